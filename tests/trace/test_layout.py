"""What a recipe counts, on networks whose counts are known by their construction."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from depthgauge.network.spec import Network
from depthgauge.study.reference import resnet, transformer
from depthgauge.trace.layout import Layout, _listed, layout

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


class Weighed(nn.Module):
    """What a sum and the way to its branch are multiplied by, strided or not."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, stride, 1), nn.Conv2d(4, 4, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(4, 4, 1, stride) if stride > 1 else nn.Identity()
        self.gain = nn.Parameter(torch.full((4, 1, 1), 0.3))
        self.idle = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        entered = F.gelu(x) * 0.7 if isinstance(self.shortcut, nn.Conv2d) else 0.9 * F.gelu(x)
        skip = self.shortcut(entered) if isinstance(self.shortcut, nn.Conv2d) else x
        out = self.b(F.relu(self.a(entered)))
        self.idle(out)
        total: Tensor = (skip * 2 + self.gain * (out / 4)) * 0.5
        return total


def test_factors_inlets_and_biases_of_strided_blocks_are_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Weighed(1), Weighed(2), Weighed(1))
    found = layout(model, torch.randn(2, 4, 8, 8))
    rows = [(b.skip, b.factor, b.inlet, b.projected) for b in found.branches]
    assert rows == [
        pytest.approx((1, 0.125, 0.9, False)),
        pytest.approx((1, 0.125, 0.5 * 0.7, True)),
        pytest.approx((1, 0.125, 0.9, False)),
    ]
    assert [kind for b in found.branches for kind, _ in b.learned] == ["gain"] * 3
    assert [x for b in found.branches for _, x in b.learned] == pytest.approx([0.3] * 3)
    assert [w.path for w in found.branches[1].across] == ["1.shortcut.weight"]
    first, last = found.branches[1].weights
    assert (first.bias, first.follows, first.bend) == (
        "1.a.bias",
        "gelu",
        (("approximate", "none"),),
    )
    assert (last.bias, last.follows) == ("", "relu")
    assert found.idle == ("0.idle", "1.idle", "2.idle")
    assert [b.bent for b in found.branches] == [True, False, False]
    assert not any(b.leaks for b in found.branches)


def test_biases_of_attention_in_one_function_are_told_apart() -> None:
    model, batch = transformer(1, 1)
    found = layout(model, batch).branches[0]
    assert [w.bias.rpartition(".")[2] for w in found.weights] == ["in_proj_bias"] * 3 + ["bias"]
    assert found.weights[-1].bias == "encoder.layers.0.self_attn.out_proj.bias"
    assert all(branch.inlet == 1 for branch in layout(model, batch).branches)
    assert all(branch.factor == 1 for branch in layout(model, batch).branches)


class Shared(nn.Module):
    """A pre-activation block whose scaled activation goes into the branch and the shortcut."""

    def __init__(self, entering: int, leaving: int, beta: float, transition: bool) -> None:
        super().__init__()
        self.a = nn.Conv2d(entering, leaving, 3, 1 + transition, 1)
        self.b, self.beta = nn.Conv2d(leaving, leaving, 3, 1, 1), beta
        self.shortcut = nn.Conv2d(entering, leaving, 1, 2) if transition else None
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x) * self.beta
        skip = x if self.shortcut is None else self.shortcut(out)
        total: Tensor = skip + 0.2 * self.gain * self.b(F.relu(self.a(out)))
        return total


def test_a_scaled_activation_that_branch_and_shortcut_share_is_an_inlet() -> None:
    torch.manual_seed(0)
    blocks = (Shared(4, 4, 0.9, False), Shared(4, 8, 0.8, True), Shared(8, 8, 0.7, False))
    found = layout(nn.Sequential(nn.Conv2d(3, 4, 3), *blocks), torch.randn(2, 3, 10, 10))
    assert [b.inlet for b in found.branches] == pytest.approx([0.9, 0.8, 0.7])
    assert [(b.skip, b.factor, b.learned) for b in found.branches] == [
        (1.0, 0.2, (("scalar", 0.0),))
    ] * 3


@pytest.mark.parametrize(
    ("paths", "blocks"),
    [
        (("h.0", "h.0", "h.1", "h.1"), [1, 1, 2, 2]),
        (("h.2", "h.4"), [1, 2]),
        (("1", "2", "3"), [1, 2, 3]),
        (("s.0.b.0", "s.0.b.1", "s.1.b.0", "s.1.b.1"), []),
        (("h.0", "h.0", "h.1"), []),
        (("layer1.0", "layer2.0"), []),
        (("net", "net"), []),
        (("h.1", "h.0"), []),
    ],
)
def test_blocks_are_the_modules_of_one_list(paths: tuple[str, ...], blocks: list[int]) -> None:
    assert _listed(paths) == blocks


def test_equal_steps_of_a_block_are_one_block() -> None:
    text = "h = h + W(relu(h)); h = h + W(relu(h))"
    found = layout(Network(text, 4, 8).module(seed=0), torch.randn(2, 8))
    assert (found.L, found.blocks) == (8, 4)
    assert [branch.block for branch in found.branches] == [1, 1, 2, 2, 3, 3, 4, 4]
