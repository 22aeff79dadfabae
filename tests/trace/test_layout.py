"""What a recipe counts, on networks whose counts are known by their construction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from depthgauge.network.spec import Network
from depthgauge.study.reference import resnet, transformer
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout
from tests.recipes.models import preactivation

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


class Inlined(nn.Module):
    """The blocks of a list in one forward function, without a call of any."""

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.forward(x)
        return x


def test_factors_inlets_and_biases_of_strided_blocks_are_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Weighed(1), Weighed(2), Weighed(1))
    found = layout(model, torch.randn(2, 4, 8, 8))
    rows = [(b.skip, b.factor, b.inlet, b.projected) for b in found.branches]
    assert rows == [
        pytest.approx((1, 0.125, 0.9, False)),
        pytest.approx((1, 0.125, 0.7, True)),  # the half is of the sum in front, as elsewhere
        pytest.approx((1, 0.125, 0.9, False)),
    ]
    pair = nn.Sequential(Weighed(1), Weighed(2))
    alone = layout(pair, torch.randn(2, 4, 8, 8)).branches
    assert alone[1].inlet == pytest.approx(0.7), "as the module tells that halves the sum"
    alone = layout(Inlined(pair), torch.randn(2, 4, 8, 8)).branches
    assert alone[1].inlet == pytest.approx(0.5 * 0.7), "where nothing tells whose the half is"
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


def test_equal_steps_of_a_block_are_one_block() -> None:
    text = "h = h + W(relu(h)); h = h + W(relu(h))"
    found = layout(Network(text, 4, 8).module(seed=0), torch.randn(2, 8))
    assert (found.L, found.blocks) == (8, 4)
    assert [branch.block for branch in found.branches] == [1, 1, 2, 2, 3, 3, 4, 4]


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


def staged(model: nn.Sequential, stages: tuple[int, ...], nested: bool) -> nn.Sequential:
    """The blocks of a staged network in a list, behind its stem, or in a list for each stage."""
    layers = list(model)
    blocks, head = layers[1 : 1 + sum(stages)], layers[1 + sum(stages) :]
    rows = [blocks[sum(stages[:k]) : sum(stages[: k + 1])] for k in range(len(stages))]
    listed = [nn.Sequential(*row) for row in rows] if nested else blocks
    return nn.Sequential(layers[0], nn.Sequential(*listed), *head)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("stages", [(2, 2, 2), (4, 4, 4), (7, 7, 7), (2, 3, 2)])
def test_stages_that_repeat_are_no_blocks(
    stages: tuple[int, ...], deep: bool, nested: bool
) -> None:
    """A transition and the blocks behind it repeat as one unit, of as many blocks."""
    model, batch = preactivation(stages, deep)
    assert isinstance(model, nn.Sequential)
    found = layout(staged(model, stages, nested), batch)
    assert [b.block for b in found.branches] == list(range(1, sum(stages) + 1))


@pytest.mark.parametrize("depth", [20, 34, 50])
def test_blocks_of_a_post_activation_resnet_are_those_of_the_paper(depth: int) -> None:
    found = layout(*resnet(depth))
    assert [b.block for b in found.branches] == list(range(1, found.L + 1))


class Mixing(nn.Module):
    """A layer along the tokens, of which there are five, or along the features."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.tokens, self.norm = tokens, nn.LayerNorm(WIDTH)
        self.f = nn.Linear(5, 5) if tokens else nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        x = self.f(x.mT).mT if self.tokens else self.f(x)
        return h + torch.tanh(x)


class Scored(nn.Module):
    """Attention without a fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        mixed = (self.q(h) @ self.k(h).mT / WIDTH**0.5).softmax(-1) @ self.v(h)
        out: Tensor = h + self.out(mixed)
        return out


@pytest.mark.parametrize(
    "parts",
    [
        (Attended, Gated),
        (Scored, Gated),
        (Attended, Gated, Gated),
        (lambda: Mixing(True), lambda: Mixing(False)),
    ],
)
def test_modules_that_do_different_things_in_turn_are_one_block(
    parts: tuple[Callable[[], nn.Module], ...],
) -> None:
    found = of(*(part() for _ in range(3) for part in parts))
    assert [b.block for b in found.branches] == [k for k in (1, 2, 3) for _ in parts]


def test_modules_that_do_the_same_in_turn_are_blocks() -> None:
    """Narrow and wide, or with one activation and another."""

    class Formed(nn.Module):
        def __init__(self, width: int, act: nn.Module) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)
            self.act = act

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.down(self.act(self.up(h)))
            return out

    rows = [
        Formed(width, act) for _ in range(3) for width, act in ((8, nn.ReLU()), (24, nn.GELU()))
    ]
    assert [b.block for b in of(*rows).branches] == [1, 2, 3, 4, 5, 6]


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


class Written(nn.Module):
    """A norm that is written out: centred or not, over these axes, groups folded out."""

    def __init__(self, centred: bool, axes: tuple[int, ...], groups: int = 0) -> None:
        super().__init__()
        self.centred, self.axes, self.groups = centred, axes, groups
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.unflatten(-1, (self.groups, -1)) if self.groups else x
        y = y - y.mean(self.axes, keepdim=True) if self.centred else y
        y = y * torch.rsqrt(y.pow(2).mean(self.axes, keepdim=True) + 1e-6)
        out: Tensor = self.weight * y.view_as(x)
        return out


@pytest.mark.parametrize(
    ("norm", "kind"),
    [
        (Written(False, (-1,)), "rmsnorm"),
        (Written(True, (-1,)), "layernorm"),
        (Written(True, (0, 1)), "batchnorm"),
        (Written(True, (-1,), groups=2), "norm"),  # of what kind, only a state would tell
    ],
)
def test_a_norm_written_out_has_its_kind_also_outside_of_branches(
    norm: nn.Module, kind: str
) -> None:
    (end,) = of(Gated(), Gated(), norm).ends
    assert [(n.kind, n.path, n.gain) for n in end.norms] == [(kind, "3", "3.weight")]


class ScoredWith(nn.Module):
    """Pre-norm attention with norms of some of its queries, keys and values."""

    def __init__(self, *roles: str, fused: bool = True) -> None:
        super().__init__()
        self.norm, self.fused = nn.LayerNorm(WIDTH), fused
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleDict({role: Written(False, (-1,)) for role in roles})

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        parts = {"query": self.q(x), "key": self.k(x), "value": self.v(x)}
        q, k, v = (self.norms[r](y) if r in self.norms else y for r, y in parts.items())
        mixed = (
            F.scaled_dot_product_attention(q, k, v)
            if self.fused
            else (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
        )
        out: Tensor = h + self.out(mixed)
        return out


@pytest.mark.parametrize("fused", [True, False])
def test_norms_of_queries_and_keys_are_of_no_placement(fused: bool) -> None:
    (branch,) = of(ScoredWith("query", "key", "value", fused=fused)).branches
    assert [(n.at, n.path) for n in branch.norms] == [
        ("in", "1.norm"),
        ("query-key", "1.norms.query"),
        ("query-key", "1.norms.key"),
        ("inner", "1.norms.value"),
    ]
    assert [n.at for n in branch.placed] == ["in", "inner"]
    assert branch.norm_at == ("in", "inner"), "which is what is measured"
    (branch,) = of(ScoredWith("query", "key", fused=fused)).branches
    assert ([n.at for n in branch.placed], branch.norm_at) == (["in"], ("in", "inner"))
