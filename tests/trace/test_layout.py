"""What a recipe counts, on networks whose counts are known by their construction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

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
    assert names(found) == [("f.parametrizations.weight.original1", True)]
    (weight,) = found.branches[0].weights
    assert weight.lengths == "1.f.parametrizations.weight.original0"
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


@pytest.mark.parametrize(
    ("layer", "fans", "turned", "group"),
    [
        (nn.Conv2d(8, 16, 3, padding=1, groups=4), (18, 36), (16, 2, 3, 3), (4, 2, 3, 3)),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), (9, 9), (8, 1, 3, 3), (1, 1, 3, 3)),
        (nn.ConvTranspose2d(8, 12, 3, padding=1), (72, 108), (12, 8, 3, 3), (12, 8, 3, 3)),
        (nn.ConvTranspose2d(8, 12, 2, stride=2, groups=4), (8, 12), (12, 2, 2, 2), (3, 2, 2, 2)),
    ],
)
def test_fans_of_convolutions_are_those_of_a_group(
    layer: nn.Module, fans: tuple[int, int], turned: tuple[int, ...], group: tuple[int, ...]
) -> None:
    found = layout(nn.Sequential(layer, nn.Tanh()), torch.randn(2, 8, 6, 6))
    (weight,) = found.layers
    assert (weight.fan_in, weight.fan_out) == fans
    assert (weight.turned, weight.group) == (turned, group)
    assert found.biases_of(found.layers)[0].path == weight.bias == "0.bias"
    assert found.activations == ("tanh",)
    tensor = layer.get_parameter("weight").detach()
    part = weight.part(tensor)
    assert part.shape == turned
    copy = torch.zeros_like(tensor)
    weight.put(copy, part)
    assert torch.equal(copy, tensor)
    # A row of the part makes one channel of the output: with that row alone, no other is made.
    layer.get_parameter("bias").data.zero_()
    lone = torch.zeros_like(part)
    lone[5] = part[5]
    weight.put(layer.get_parameter("weight").data, lone)
    made = layer(torch.randn(2, 8, 6, 6)).abs().sum((0, 2, 3))
    assert made.nonzero().flatten().tolist() == [5]


class Given(nn.Module):
    """A matrix that a function of the user's own uses."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.use, self.w = use, nn.Parameter(torch.randn(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.use(x, self.w))


@pytest.mark.parametrize(
    ("use", "entering"),
    [
        (lambda x, w: x @ w, 7),
        (lambda x, w: x @ w.t(), 5),
        (lambda x, w: x @ w.T, 5),
        (lambda x, w: x @ w.transpose(0, 1), 5),
        (lambda x, w: x @ w.permute(1, 0), 5),
        (lambda x, w: x @ w.t().t(), 7),
        (lambda x, w: F.linear(x, w), 5),
        (lambda x, w: F.linear(x, w.t()), 7),
        (lambda x, w: (w @ x.t()).t(), 5),
        (lambda x, w: torch.einsum("bi,oi->bo", x, w), 5),
        (lambda x, w: torch.einsum("io, bi -> bo", w, x), 7),
    ],
)
def test_a_matrix_is_read_as_its_function_reads_it(
    use: Callable[[Tensor, Tensor], Tensor], entering: int
) -> None:
    (weight,) = layout(Given(use), torch.randn(3, entering)).layers
    assert (weight.fan_in, weight.fan_out) == (entering, 12 - entering)
    assert weight.turned == (12 - entering, entering)


def test_biases_are_found_also_where_they_are_added_by_hand() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.w + self.b)

    assert [b.path for b in layout(Plain(), torch.randn(3, 6)).biases] == ["b"]
    model, batch = transformer(1, 1)
    found = layout(model, batch)
    attention = found.branches[0].weights
    assert {w.bias.rpartition("self_attn.")[2] for w in attention} == {
        "in_proj_bias",
        "out_proj.bias",
    }


def test_a_head_that_an_embedding_shares_is_no_layer_of_its_own() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.f = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(self.f(self.table(x))), self.table.weight)

    found = layout(Tied(), torch.randint(11, (2, 5)))
    assert [w.path for w in found.heads] == ["table.weight"]
    assert [w.path for w in found.layers] == ["f.weight"]
