"""What a recipe counts, on networks whose counts are known by their construction."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from depthgauge.network.spec import Network
from depthgauge.study.reference import resnet, transformer
from depthgauge.trace.layout import Layout, layout

WIDTH = 8


class Gated(nn.Module):
    """``h + down(silu(gate(h)) * up(h))``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 12)
        self.down = nn.Linear(12, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class Normalised(nn.Module):
    """A branch of one layer whose weight is computed of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.f = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + torch.tanh(self.f(h))
        return out


class Attended(nn.Module):
    """Attention written out, with its queries, keys and values in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        out: Tensor = h + self.out(F.scaled_dot_product_attention(q, k, v))
        return out


def of(*blocks: nn.Module) -> Layout:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, WIDTH), *blocks, nn.Linear(WIDTH, 2))
    return layout(model, torch.randn(4, 5, 3))


def paths(found: Layout) -> tuple[str, ...]:
    return tuple(weight.path for weight in found.outside)


def names(found: Layout, branch: int = 0) -> list[tuple[str, bool]]:
    return [(w.path.split(".", 1)[1], w.last) for w in found.branches[branch].weights]


def test_weights_stand_in_forward_order_with_the_last_marked() -> None:
    found = of(Gated(), Attended(), Gated())
    assert (found.L, found.m) == (3, (2, 4))
    assert names(found) == [("gate.weight", False), ("up.weight", False), ("down.weight", True)]
    assert names(found, 1) == [("qkv.weight", False)] * 3 + [("out.weight", True)]
    assert paths(found) == ("0.weight", "4.weight")
    assert found.branches[0].weights[2].shape == (WIDTH, 12)


def test_parameters_that_a_weight_is_computed_of_are_its_weights() -> None:
    found = of(Normalised())
    assert (found.L, found.m) == (1, (1,))
    assert ("f.parametrizations.weight.original1", True) in names(found)
    assert paths(found) == ("0.weight", "2.weight")


def test_attention_in_one_function_has_its_output_last() -> None:
    model, batch = transformer(1, 1)
    found = layout(model, batch)
    assert [branch.m for branch in found.branches] == [4, 2, 4, 4, 2]
    last = [w.path for branch in found.branches for w in branch.weights if w.last]
    assert last == [
        "encoder.layers.0.self_attn.out_proj.weight",
        "encoder.layers.0.linear2.weight",
        "decoder.layers.0.self_attn.out_proj.weight",
        "decoder.layers.0.multihead_attn.out_proj.weight",
        "decoder.layers.0.linear2.weight",
    ]


@pytest.mark.parametrize(("depth", "branches", "m"), [(20, 9, 2), (50, 16, 3)])
def test_shortcuts_are_in_no_branch(depth: int, branches: int, m: int) -> None:
    model, batch = resnet(depth)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    found = layout(model, batch)
    assert (found.L, found.m) == (branches, (m,))
    assert all(len(branch.weights) == m for branch in found.branches)
    assert any("shortcut" in path for path in paths(found))
    assert {"stem.weight", "head.weight"} <= set(paths(found))
    for name, p in model.state_dict().items():
        assert torch.equal(p, before[name])


def test_without_a_branch_all_is_outside() -> None:
    found = layout(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(2, 3))
    assert (found.L, found.m) == (0, ())
    assert paths(found) == ("0.weight", "2.weight")


class Dropped(nn.Module):
    """Pre-norm with a number of its own behind the norm, and dropout at the branch's end."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.norm, self.f, self.number = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), number

    def forward(self, h: Tensor) -> Tensor:
        x: Tensor = self.f(torch.tanh(self.number * self.norm(h)))
        return h + F.dropout(x, 0.2, self.training)


def test_numbers_of_each_block_are_read_and_make_no_other_block() -> None:
    found = of(Dropped(1.0), Attended(), Dropped(0.5), Attended(), Dropped(3.0), Attended())
    assert [(b.block, b.inlet) for b in found.branches[::2]] == [(1, 1.0), (2, 0.5), (3, 3.0)]
    assert [b.block for b in found.branches[1::2]] == [1, 2, 3]
    assert [b.dropout for b in found.branches] == [0.2, 0.0] * 3
    assert {b.within for b in found.branches} == {"1", "2", "3", "4", "5", "6"}
    equation = "h = h + attention(layernorm(h)/sqrt(l)); h = h + W2(relu(W1(2*layernorm(h))))"
    network = Network(equation, 4, WIDTH)
    built = layout(network.module(), torch.randn(2, 5, WIDTH))
    assert [b.block for b in built.branches] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [b.inlet for b in built.branches[::2]] == pytest.approx([l**-0.5 for l in range(1, 5)])
    assert {b.inlet for b in built.branches[1::2]} == {2.0}


def test_what_follows_each_stream() -> None:
    (end,) = of(Gated(), Gated()).ends
    assert (end.norms, end.readers) == ((), ("3",))
    (end,) = of(Gated(), Gated(), nn.LayerNorm(WIDTH), nn.Dropout(0.1)).ends
    assert ([norm.path for norm in end.norms], end.readers) == (["3"], ("5",))
    model, batch = transformer(2, 1)
    first, second = layout(model, batch).ends
    assert [(e.stream, [n.path for n in e.norms]) for e in (first, second)] == [
        ("encoder.layers", ["encoder.norm"]),
        ("decoder.layers.0", ["decoder.norm"]),
    ]
    assert (first.readers, second.readers) == (("decoder.layers.0.multihead_attn",), ())


class Grouped(nn.Module):
    """Post-norm, whose norm is of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.norm = nn.Linear(WIDTH, WIDTH), nn.GroupNorm(2, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        rows: Tensor = self.norm((h + torch.relu(self.f(h))).flatten(0, -2))
        return rows.view_as(h)


def test_a_norm_of_a_view_is_the_last_branch_s_own() -> None:
    found = of(Grouped(), Grouped(), Grouped())
    assert [[(n.at, n.kind) for n in b.norms] for b in found.branches] == (
        [[("stream", "groupnorm")]] * 3
    )
    assert found.ends[0].norms == ()


def test_who_multiplies_by_a_weight() -> None:
    model, batch = transformer(1, 1)
    found = layout(model, batch)
    for branch in found.branches[:2]:
        whole = branch.attends
        for weight in branch.weights:
            assert weight.called == (branch.path if whole else weight.owner)
    (branch,) = of(Normalised()).branches
    assert {weight.called for weight in branch.weights} == {"1.f"}


def test_tables_and_numbers_of_bounded_norms() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.gated = nn.Embedding(7, WIDTH), Gated()
            self.head = nn.Linear(WIDTH, 7)
            self.alpha, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            h = self.gated(self.table(x))
            out: Tensor = self.head(torch.erf(self.alpha * h + self.shift))
            return out

    found = layout(Embedded(), torch.randint(7, (2, 5)))
    assert found.tables == ("table.weight",)
    (norm,) = found.every
    assert (norm.kind, norm.numbers) == ("derf", ("alpha", "shift"))
