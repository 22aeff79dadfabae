"""Reading back: a module that was built from an equation gives that equation, and models of other
people's making give what a person would write."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo import plain
from depthgauge import Network, measure, parse, to_text
from depthgauge.equation.count import count
from depthgauge.trace.folding import folded
from tests.network.references import EQUATIONS

DEPTH, WIDTH = 4, 8

#: What each equation reads back as, four blocks of it: the same tree, where layers have no names,
#: scalars are numbers (1/sqrt(L) of four branches is 0.5), locals are the reader's own, and a
#: linear layer on images is the 1 x 1 convolution that it is.
BACK: dict[str, list[tuple[int, str]]] = {
    "plain": [(4, "h = tanh(W(h)); h = W(h)")],
    "residual": [(4, "h = h + 0.5 * W(relu(W(h)))")],
    "wide": [(4, "h = h + 0.5 * W(gelu(W(rmsnorm(h), out=3*n)))")],
    "post-norm": [(4, "h = layernorm(h + W(silu(W(h, out=n/2))))")],
    "swiglu sandwich": [(4, "u = rmsnorm(h); h = h + 0.5 * rmsnorm(W(silu(W(u)) * W(u)))")],
    "highway": [(4, "u = sigmoid(W(h)); h = u * tanh(W(h)) + (1 - u) * h")],
    "input skip": [
        (1, "h = 0.1 * h + (0.9 * h + 0.3 * W(h))"),  # h0 is h there
        (3, "h = 0.9 * h + 0.3 * W(h) + 0.1 * h0"),
    ],
    "learned": [
        (
            4,
            "h = h + scalar(1.5) * (gain(0.2) * W(relu(W(h + scalar(0.1)) - scalar(0.05))))",
        )
    ],
    "per block": [
        (1, "h = h + W(tanh(h))"),
        (1, f"h = h + {1 / math.sqrt(2)!r} * W(tanh(h))"),
        (1, f"h = h + {1 / math.sqrt(3)!r} * W(tanh(h))"),
        (1, "h = h + 0.5 * W(tanh(h))"),
    ],
    "definition": [(4, "h = h + 0.3 * W(h * softsign(W(rmsnorm(h))))")],
    "tied": [(4, "h = h + 0.2 * W1(relu(W1(h)))")],
    "biased": [(4, "h = h + W(relu(W(h, bias=True)), bias=True)")],
    "batchnorm": [(4, "h = h + 0.5 * W(relu(batchnorm(h, gain=0.7, bias=True)))")],
    "post-norm transformer": [
        (
            4,
            "h = layernorm(h + attention(h, heads=2)); h = layernorm(h + W(relu(W(h))))",
        )
    ],
    "normed by length": [(4, 'h = h + attention(h, heads=2, scale=4, norm="l2")')],
    "normed queries": [(4, 'h = h + attention(h, heads=2, norm="rmsnorm")')],
    "causal": [(4, "h = h + 0.5 * attention(rmsnorm(h), heads=4, causal=True, scale=0.3)")],
    "convolution": [(4, "h = h + 0.5 * conv1(relu(conv3(batchnorm(h), out=2*n)))")],
    "circular": [
        (
            4,
            'h = relu(h + 0.3 * conv3(relu(groupnorm(conv1(h), groups=2)), padding="circular"))',
        )
    ],
    "dead end": [(1, "h = W(h)")],
}


@pytest.mark.parametrize(
    ("equation", "back"),
    [
        ("h = (h + h0)/2 + W(relu(h))", "h = 0.5 * (h + h0) + W(relu(h))"),
        ("h = h + h0 + W(relu(h))", "h = h + h0 + W(relu(h))"),
        ("h = 0.9*h + 0.1*h0 + W(relu(h))", "h = 0.9 * h + 0.1 * h0 + W(relu(h))"),
        ("h = 0.9*h + W(relu(h)) + 0.1*h0", "h = 0.9 * h + W(relu(h)) + 0.1 * h0"),
    ],
)
def test_the_first_tensor_is_added_to_the_stream_however_the_sum_is_written(
    equation: str, back: str
) -> None:
    module = Network(equation, DEPTH, WIDTH).module()
    profile = measure(module, torch.randn(6, WIDTH))
    (stream,) = profile.to_dict()["streams"]
    assert (profile.depth, stream["branches"], stream["m"]) == (DEPTH, DEPTH, [1] * DEPTH)
    blocks = [(block["times"], block["equation"]) for block in stream["blocks"]]
    assert [times for times, _ in blocks] == [1, DEPTH - 1]  # h0 is h in the first
    assert blocks[1][1] == back


@pytest.mark.parametrize(("depth", "whole"), [(4, False), (300, True)])
def test_a_branch_of_hundreds_of_layers_in_series_is_one_operation(depth: int, whole: bool) -> None:
    """Each block begins with the first tensor again: one skip spans them all."""
    module = Network("h = h0 + W1(h); h = h + W2(relu(h))", depth, WIDTH).module()
    profile = measure(module, torch.randn(6, WIDTH), instruments="rivers").to_dict()
    assert ('h = opaque("' in profile["equation"]) == whole
    reasons = [entry["reason"] for entry in profile["coverage"]["opaque"]]
    assert ("too much in series to be read back" in reasons) == whole


class Latents(nn.Module):
    """What is learned reads the batch, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.q, self.k, self.v, self.o = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.latents.expand(len(x), -1, -1)
        for q, k, v, o in zip(self.q, self.k, self.v, self.o, strict=True):
            z = z + o(F.scaled_dot_product_attention(q(z), k(x), v(x)))
        return z


def test_learned_queries_are_the_stream_that_attention_reads() -> None:
    (stream,) = measure(Latents(), torch.randn(2, 5, WIDTH)).to_dict()["streams"]
    assert stream["m"] == [4, 4]
    first, second = (block["equation"] for block in stream["blocks"])
    assert 'h = h + W(opaque("scaled_dot_product_attention", h, W(' in first
    assert 'h = h + W(opaque("scaled_dot_product_attention", W(h, ' in second


def network(name: str) -> Network:
    equation = EQUATIONS[name]
    sizes: dict[str, Any] = {"tokens": 3} if "attention" in equation else {}
    sizes |= {"size": 4} if "conv" in equation else {}
    return Network(equation, depth=DEPTH, width=WIDTH, **sizes)


def blocks(module: nn.Module, batch: Any) -> list[tuple[int, str]]:
    profile = measure(module, batch, instruments="rivers")
    return [(b["times"], b["equation"]) for s in profile.streams for b in s["blocks"]]


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_network_built_from_an_equation_gives_it_back(name: str) -> None:
    net = network(name)
    found = blocks(net.module(0), torch.randn(5, *net.state_shape))
    assert found == BACK[name]
    for _, text in found:
        assert to_text(parse(text)) == text
        assert "opaque" not in text


def test_another_equation_gives_another_text() -> None:
    """The comparison can fail: a moved norm, another activation, a scale that was forgotten."""
    found = {
        text: blocks(Network(text, depth=2, width=8).module(0), torch.randn(4, 8))
        for text in (
            "h + W2(relu(W1(rmsnorm(h))))",
            "rmsnorm(h + W2(relu(W1(h))))",
            "h + W2(gelu(W1(rmsnorm(h))))",
            "h + 0.5*W2(relu(W1(rmsnorm(h))))",
            "h + rmsnorm(W2(relu(W1(rmsnorm(h)))))",
        )
    }
    assert len({str(blocks) for blocks in found.values()}) == len(found)


@pytest.mark.parametrize("name", [n for n in EQUATIONS if n not in ("plain", "dead end")])
def test_the_tracer_counts_what_the_equation_counts(name: str) -> None:
    """Branches, weight layers, skip, norms: two readers, one answer."""
    net = network(name)
    profile = measure(net.module(0), torch.randn(5, *net.state_shape), instruments="rivers")
    (stream,) = profile.streams
    expected = count(net.block)
    assert profile.branches == net.branches
    assert stream["m"] == list(expected.m) * DEPTH
    assert tuple(stream["norm_at"]) == expected.norm_at
    assert (stream["inner"], stream["projected"], stream["parallel"]) == (0, 0, 0)
    if name not in ("input skip", "per block"):  # where h0 is h, or the scale 1
        assert stream["skip"] == expected.skip


@pytest.mark.parametrize("name", ["residual", "post-norm", "causal", "convolution"])
def test_module_and_equation_are_measured_alike(name: str) -> None:
    """The same weights and the same batch: the states of the module are those of the equation."""
    net = network(name)
    x = torch.randn(6, *net.state_shape, dtype=torch.float64)
    by_equation = measure(net, x, dtype="float64", seed=3)
    by_module = measure(net.module(3, dtype=torch.float64), x)
    assert by_module.depth == by_equation.depth == DEPTH
    for quantity in ("state_rms", "state_max", "live_derivative_fraction"):
        if quantity in by_equation:
            one = by_equation.by_block(quantity)
            other = by_module.by_block(quantity)
            assert one is not None
            assert other is not None
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1], rel=1e-6)


# ----------------------------------------------------------------- what other people write


class Written(nn.Module):
    """``n`` blocks of a forward function written by hand."""

    def __init__(self, function: Callable[[Written, Tensor, int], Tensor], n: int = 3) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(n))
        self.down = nn.ModuleList(nn.Linear(16, 8, bias=False) for _ in range(n))
        self.scale = nn.ParameterList(nn.Parameter(torch.tensor(0.25)) for _ in range(n))
        self.gain = nn.ParameterList(nn.Parameter(torch.full((8,), 1e-5)) for _ in range(n))
        self.function, self.n = function, n

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.n):
            x = self.function(self, x, i)
        return x


def inside(m: Written, x: Tensor, i: int) -> Tensor:
    y: Tensor = m.down[i](F.relu(m.up[i](x)))
    return y


def root(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def centred(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


WRITTEN: dict[str, tuple[Callable[[Written, Tensor, int], Tensor], str]] = {
    "a residual": (lambda m, x, i: x + inside(m, x, i), "h = h + W(relu(W(h, out=2*n)))"),
    "the other order": (lambda m, x, i: inside(m, x, i) + x, "h = h + W(relu(W(h, out=2*n)))"),
    "minus": (lambda m, x, i: x - inside(m, x, i), "h = h - W(relu(W(h, out=2*n)))"),
    "plus the negative": (
        lambda m, x, i: x + -inside(m, x, i),
        "h = h - W(relu(W(h, out=2*n)))",
    ),
    "a negative skip": (
        lambda m, x, i: -x + inside(m, x, i),
        "h = -h + W(relu(W(h, out=2*n)))",
    ),
    "a sign inside": (
        lambda m, x, i: x + m.down[i](F.relu(torch.negative(m.up[i](x)))),
        "h = h + W(relu(-W(h, out=2*n)))",
    ),
    "a negative number that is learned": (
        lambda m, x, i: x + (-m.scale[i]) * inside(m, x, i),
        "h = h + -scalar(0.25) * W(relu(W(h, out=2*n)))",
    ),
    "add with alpha": (
        lambda m, x, i: torch.add(x, inside(m, x, i), alpha=0.1),
        "h = h + 0.1 * W(relu(W(h, out=2*n)))",
    ),
    "divided": (
        lambda m, x, i: (x + inside(m, x, i)) / 2,
        "h = 0.5 * (h + W(relu(W(h, out=2*n))))",
    ),
    "ReZero": (
        lambda m, x, i: x + m.scale[i] * inside(m, x, i),
        "h = h + scalar(0.25) * W(relu(W(h, out=2*n)))",
    ),
    "LayerScale": (
        lambda m, x, i: x + m.gain[i] * inside(m, x, i),
        "h = h + gain(1e-05) * W(relu(W(h, out=2*n)))",
    ),
    "an RMS norm by hand": (
        lambda m, x, i: x + inside(m, root(x), i),
        "h = h + W(relu(W(rmsnorm(h), out=2*n)))",
    ),
    "a layer norm by hand": (
        lambda m, x, i: centred(x + inside(m, x, i)),
        "h = layernorm(h + W(relu(W(h, out=2*n))))",
    ),
    "lerp": (
        lambda m, x, i: torch.lerp(x, inside(m, x, i), 0.25),
        "h = 0.75 * h + 0.25 * W(relu(W(h, out=2*n)))",
    ),
    "an unknown function": (
        lambda m, x, i: x + m.down[i](torch.special.i1(m.up[i](x))),
        'h = h + W(opaque("special_i1", W(h, out=2*n), m=1))',
    ),
}


def length(x: Tensor, p: float = 2) -> Tensor:
    return x.norm(p=p, dim=-1, keepdim=True)  # type: ignore[no-any-return]


class Constants(Written):
    """A number as a buffer, one of several, one that is no buffer, and one a channel."""

    def __init__(self, function: Callable[[Written, Tensor, int], Tensor]) -> None:
        super().__init__(function)
        self.register_buffer("quarter", torch.tensor(0.25))
        self.register_buffer("channels", torch.full((8,), 0.25))
        self.register_buffer("several", torch.tensor([0.5, 0.25, 0.125]))
        self.plain = torch.tensor(0.3)


#: Norms by length: the language has one, with a learned number in front. Others stay opaque.
LENGTHS: dict[str, tuple[Callable[[Written, Tensor, int], Tensor], str]] = {
    "ScaleNorm": (
        lambda m, x, i: x + inside(m, x / length(x).clamp(min=1e-3) * m.scale[i], i),
        "scalenorm(h, eps=0.001, gain=0.25)",
    ),
    "the gain in front": (
        lambda m, x, i: x + inside(m, m.scale[i] * x / length(x).clamp_min(1e-5), i),
        "scalenorm(h, gain=0.25)",
    ),
    "F.normalize": (
        lambda m, x, i: x + inside(m, F.normalize(x, dim=-1) * m.scale[i], i),
        "scalenorm(h, eps=1e-12, gain=0.25)",
    ),
    "over the batch": (
        lambda m, x, i: x + inside(m, x / x.norm(dim=0).clamp(min=1e-5) * m.scale[i], i),
        'scalenorm(h, axis="batch", gain=0.25)',
    ),
    "eps beside the length": (
        lambda m, x, i: x + inside(m, x / (length(x) + 1e-2), i),
        f'{1 / math.sqrt(8)!r} * rmsnorm(h, eps=0.00353553390593, eps_at="outside")',
    ),
    "no gain": (
        lambda m, x, i: x + inside(m, F.normalize(x, dim=-1), i),
        'opaque("normalize", h)',
    ),
    "a gain a channel": (
        lambda m, x, i: x + inside(m, m.gain[i] * (x / length(x).clamp(min=1e-5)), i),
        'gain(1e-05) * opaque("norm by length", h)',
    ),
    "the sum of magnitudes": (
        lambda m, x, i: x + inside(m, x / length(x, p=1).clamp(min=1e-5) * m.scale[i], i),
        'scalar(0.25) * opaque("norm", h)',
    ),
    "F.normalize by the largest": (
        lambda m, x, i: x + inside(m, F.normalize(x, p=math.inf, dim=-1) * m.scale[i], i),
        'scalar(0.25) * opaque("normalize", h)',
    ),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_norms_by_length(name: str) -> None:
    function, norm = LENGTHS[name]
    torch.manual_seed(0)
    found = blocks(Written(function), torch.randn(4, 8))
    assert found == [(3, f"h = h + W(relu(W({norm}, out=2*n)))")]


def standardised(x: Tensor, **options: Any) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, **options) + 1e-6)


#: Statistics that are a norm's up to a factor, and some that are no norm's.
STATISTICS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "the biased deviation": (
        lambda x: standardised(x, unbiased=False),
        'layernorm(h, eps=1e-06, eps_at="outside")',
    ),
    "the unbiased deviation": (
        standardised,
        f'{(7 / 8) ** 0.5!r} * layernorm(h, eps=9.35414346693e-07, eps_at="outside")',
    ),
    "without eps": (lambda x: x * x.pow(2).mean(-1, keepdim=True).rsqrt(), "rmsnorm(h, eps=0)"),
    "a sum for a mean": (
        lambda x: x / (x.pow(2).sum(-1, keepdim=True) + 8e-3).sqrt(),
        f"{1 / math.sqrt(8)!r} * rmsnorm(h, eps=0.001)",
    ),
    "twice the root": (
        lambda x: x / (2 * (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()),
        "0.5 * rmsnorm(h, eps=0.001)",
    ),
    "the fourth power": (
        lambda x: x * (x.pow(4).mean(-1, keepdim=True) + 1e-6).rsqrt(),
        'opaque("norm", h)',
    ),
    "another's mean": (
        lambda x: (x - x.mean(0, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt(),
        'opaque("norm", h)',
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_norms_by_their_statistic(name: str) -> None:
    function, norm = STATISTICS[name]
    torch.manual_seed(0)
    model = Written(lambda m, x, i: x + inside(m, function(x), i))
    expected = [(3, f"h = h + W(relu(W({norm}, out=2*n)))")]
    assert blocks(model.double(), torch.randn(4, 8, dtype=torch.float64)) == expected


#: Constants that are numbers, and some that are none.
CONSTANTS: dict[str, tuple[Callable[[Any, Tensor, int], Tensor], list[tuple[int, str]]]] = {
    "a buffer": (lambda m, x, i: x + m.quarter * inside(m, x, i), [(3, "0.25")]),
    "divided by one": (lambda m, x, i: x + inside(m, x, i) / m.quarter, [(3, "4")]),
    "computed": (
        lambda m, x, i: x + (1 - m.quarter).sqrt() * inside(m, x, i),
        [(3, "0.8660254")],
    ),
    "no buffer": (lambda m, x, i: x + m.plain * inside(m, x, i), [(3, "0.3")]),
    "made on the way": (lambda m, x, i: x + torch.tensor(0.5) * inside(m, x, i), [(3, "0.5")]),
    "one of several": (
        lambda m, x, i: x + m.several[i] * inside(m, x, i),
        [(1, "0.5"), (1, "0.25"), (1, "0.125")],
    ),
    "one a channel": (
        lambda m, x, i: x + m.channels * inside(m, x, i),
        [(3, 'opaque("channels")')],
    ),
    "one a channel, in another shape": (
        lambda m, x, i: x + m.channels.view(1, -1) * inside(m, x, i),
        [(3, 'opaque("channels")')],
    ),
    "by chance": (lambda m, x, i: x + torch.rand(()) * inside(m, x, i), [(3, 'opaque("rand")')]),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_one_number_are_numbers(name: str) -> None:
    function, factors = CONSTANTS[name]
    torch.manual_seed(0)
    part = "W(relu(W(h, out=2*n)))"
    expected = [(times, f"h = h + {factor} * {part}") for times, factor in factors]
    assert blocks(Constants(function), torch.randn(4, 8)) == expected


def test_a_table_is_no_gain() -> None:
    """One number a token and channel is neither a learned number nor one a channel."""
    torch.manual_seed(0)

    def function(m: Any, x: Tensor, i: int) -> Tensor:
        y: Tensor = m.table * inside(m, x, i)
        return x + y

    model = Written(function)
    model.table = nn.Parameter(torch.ones(4, 8))
    found = blocks(model, torch.randn(5, 4, 8))
    assert found == [(3, 'h = h + opaque("table") * W(relu(W(h, out=2*n)))')]


def test_two_constants_are_not_called_alike() -> None:
    """Equal opaque values are one value, so that two have two names."""
    torch.manual_seed(0)

    def function(m: Any, x: Tensor, i: int) -> Tensor:
        return x + torch.rand(()) * inside(m, x, i) + torch.rand(()) * inside(m, x.tanh(), i)

    (found,) = blocks(Written(function), torch.randn(4, 8))
    assert 'opaque("rand")' in found[1]
    assert 'opaque("rand 2")' in found[1]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_somebody_wrote(name: str) -> None:
    function, expected = WRITTEN[name]
    torch.manual_seed(0)
    assert blocks(Written(function), torch.randn(4, 8)) == [(3, expected)]


#: What is done to a tensor of 6 tokens in front of a branch's layers, and what is read of it.
PLACES = torch.tensor([3, 1, 0, 2, 5, 4])
MOVES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nothing": (lambda y: y, ""),
    "views": (lambda y: y.unflatten(-1, (2, -1)).mT.mT.flatten(2), ""),
    "turned twice": (lambda y: y.transpose(1, 2).transpose(1, 2).contiguous(), ""),
    "a pad of nothing": (lambda y: F.pad(y, (0, 0, 0, 0)), ""),
    "a shift": (lambda y: F.pad(y, (0, 0, 1, -1)), "pad"),
    "places": (lambda y: y[:, PLACES], "getitem"),
    "a list of places": (lambda y: y[:, [3, 1, 0, 2, 5, 4]], "getitem"),
    "selected": (lambda y: y.index_select(1, PLACES), "index_select"),
    "masked": (lambda y: y.masked_fill(PLACES[:, None] > 3, 0.0), "masked_fill"),
    "another shape": (lambda y: y.reshape(len(y), 8, 6).transpose(1, 2), "transpose"),
    "shuffled channels": (lambda y: y.unflatten(-1, (2, -1)).mT.flatten(2), "flatten"),
    "rolled": (lambda y: y.roll(1, 1), "roll"),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_is_no_view(name: str) -> None:
    function, word = MOVES[name]
    torch.manual_seed(0)
    model = Written(lambda m, x, i: x + inside(m, function(x), i))
    h = f'opaque("{word}", h)' if word else "h"
    expected = [(3, f"h = h + W(relu(W({h}, out=2*n)))")]
    assert blocks(model, torch.randn(4, 6, 8)) == expected


def test_a_skip_with_its_channels_in_another_order_is_none() -> None:
    def streams(skip: Callable[[Tensor], Tensor]) -> tuple[int, str]:
        torch.manual_seed(0)
        model = Written(lambda m, x, i: skip(x) + inside(m, x, i))
        (stream,) = measure(model, torch.randn(4, 8), instruments="rivers").streams
        return stream["branches"], stream["skip"]

    order = torch.arange(7, -1, -1)
    assert streams(lambda x: x[..., order]) == (0, "none")
    assert streams(lambda x: x.index_select(-1, order)) == (0, "none")
    assert streams(lambda x: x[..., :]) == (3, "identity")


class Attends(nn.Module):
    """Pre-norm attention of two heads, written by hand in two parts: what is made of ``y`` and the
    input ``x``, and what is made of queries, keys and values."""

    def __init__(self, made: Callable[..., Any], mixed: Callable[..., Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.q, self.k, self.v, self.o, self.w = (nn.Linear(16, 16) for _ in range(5))
        self.gain = nn.Parameter(torch.full((16,), 0.3))
        self.number = nn.Parameter(torch.tensor(0.7))
        self.table = nn.Parameter(torch.randn(6, 16))
        self.made, self.mixed = made, mixed

    def forward(self, x: Tensor) -> Tensor:
        parts = self.made(self, x, self.norm(x))
        split = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in parts)
        out: Tensor = self.o(self.mixed(self, *split).transpose(1, 2).flatten(2))
        return x + out


def plainly(m: Any, x: Tensor, y: Tensor) -> Any:
    return m.q(y), m.k(y), m.v(y)


def usually(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def turned(q: Tensor) -> Tensor:
    angle = torch.arange(6.0)[:, None]
    first, second = q.chunk(2, -1)
    return q * angle.cos() + torch.cat((-second, first), -1) * angle.sin()


#: What is done to queries, keys and values, or to scores, and how attention is then called; an
#: option of its own where the language has one.
ON_THE_WAY: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], str]] = {
    "nothing": (plainly, usually, ""),
    "a bias": (lambda m, x, y: (m.q(y) + m.gain, m.k(y), m.v(y)), usually, ""),
    "a factor that is made good": (
        lambda m, x, y: (m.q(y) * 4, m.k(y) / 4, m.v(y)),
        usually,
        "",
    ),
    "a factor": (lambda m, x, y: (m.q(y) * 2, m.k(y), m.v(y)), usually, f"scale={2 * 8**-0.5!r}"),
    "negative keys": (lambda m, x, y: (m.q(y), -m.k(y), m.v(y)), usually, f"scale={-(8**-0.5)!r}"),
    "a factor of values": (
        lambda m, x, y: (m.q(y), m.k(y), 3 * m.v(y)),
        usually,
        "values changed",
    ),
    "absolute": (lambda m, x, y: (m.q(y), m.k(y), m.v(y).abs()), usually, "values changed"),
    "squared": (lambda m, x, y: (m.q(y), m.k(y), m.v(y) ** 2), usually, "values changed"),
    "a gain": (lambda m, x, y: (m.q(y), m.k(y), m.v(y) * m.gain), usually, "values changed"),
    "positions": (lambda m, x, y: (m.q(y), m.k(y), m.v(y) + m.table), usually, "values changed"),
    "a sum": (lambda m, x, y: (m.q(y), m.k(y), m.v(y) + m.w(y)), usually, "values changed"),
    "the stream": (lambda m, x, y: (m.q(y) + x, m.k(y), m.v(y)), usually, "queries changed"),
    "waves": (lambda m, x, y: (m.q(y), m.k(y).sin(), m.v(y)), usually, "keys changed"),
    "turned round": (lambda m, x, y: (m.q(y).flip(1), m.k(y), m.v(y)), usually, "queries moved"),
    "one layer": (lambda m, x, y: (m.q(y), m.q(y), m.v(y)), usually, "queries and keys tied"),
    "one tensor": (lambda m, x, y: (m.q(y), k := m.k(y), k), usually, "keys and values tied"),
    "rotary": (plainly, lambda m, q, k, v: usually(m, turned(q), turned(k), v), "rotary"),
    "a rotary value": (plainly, lambda m, q, k, v: usually(m, q, k, turned(v)), "values changed"),
    "grouped": (
        plainly,
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
        "1 of 2 key heads",
    ),
    "written out": (plainly, lambda m, q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v, ""),
    "divided by a tensor": (
        plainly,
        lambda m, q, k, v: (q @ k.mT / torch.tensor(8.0).sqrt()).softmax(-1) @ v,
        "",
    ),
    "unscaled": (plainly, lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v, "scale=1"),
    "by the width": (plainly, lambda m, q, k, v: (q @ k.mT / 8).softmax(-1) @ v, "scale=0.125"),
    "learned": (
        plainly,
        lambda m, q, k, v: (q @ k.mT * m.number).softmax(-1) @ v,
        "learned temperature",
    ),
    "over queries": (
        plainly,
        lambda m, q, k, v: (q @ k.mT / 8**0.5).softmax(-2) @ v,
        "softmax over queries",
    ),
    "twice": (
        plainly,
        lambda m, q, k, v: (q @ k.mT / 8**0.5).softmax(-1) * 2 @ v,
        "weights changed",
    ),
    "of other heads": (
        plainly,
        lambda m, q, k, v: (q @ k.mT / 8**0.5).softmax(-1).roll(1, 1) @ v,
        "weights moved",
    ),
}


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_what_is_done_on_the_way_to_attention_is_said(name: str) -> None:
    made, mixed, word = ON_THE_WAY[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), *(Attends(made, mixed) for _ in range(2)))
    ((times, found),) = blocks(model, torch.randn(3, 6, 5))
    norm = "layernorm(h, gain=1, bias=True)"
    if word and "=" not in word:
        expected = f'h = h + opaque("attention, {word}", {norm}, m=4)'
    else:
        scale = f"{word}, " if word else ""
        expected = f"h = h + attention({norm}, heads=2, {scale}bias=True)"
    assert (times, found) == (2, expected)


def test_nothing_opaque_is_left_out_of_the_coverage() -> None:
    torch.manual_seed(0)
    profile = measure(Written(WRITTEN["an unknown function"][0]), torch.randn(4, 8))
    assert ("", "special_i1") in profile.coverage["opaque"]
    assert profile.equation == '3 x [h = h + W(opaque("special_i1", W(h), m=1))]'


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "gpt",
            "3 x [h = h + attention(layernorm(h)); h = h + W(gelu(W(layernorm(h))))]",
        ),
        (
            "bert",
            "3 x [h = layernorm(h + attention(h)); h = layernorm(h + W(gelu(W(h))))]",
        ),
        (
            "llama",
            '3 x [h = h + opaque("attention, rotary", rmsnorm(h), m=4); '
            "u = rmsnorm(h); h = h + W(silu(W(u)) * W(u))]",
        ),
        ("gptj", "3 x [u = layernorm(h); h = h + attention(u) + W(gelu(W(u)))]"),
        ("mlp", "4 x [h = relu(W(h))]; h = W(h)"),
        ("lstm", 'h = opaque("lstm", h, m=2); h = W(h)'),
    ],
)
def test_known_architectures(name: str, expected: str) -> None:
    """The short form: without sizes, heads and learnable parts of norms."""
    (model,) = (m for m in plain.MODELS if m.name == name)
    torch.manual_seed(0)
    module, batch = model.build()
    assert measure(module, batch, instruments="rivers").equation == expected


# --------------------------------------------------------------------------------- folding


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("ababab", [(0, 2, 3)]),
        ("aabaab", [(0, 3, 2)]),
        ("abcc", [(0, 1, 1), (1, 1, 1), (2, 1, 2)]),
        ("xababy", [(0, 1, 1), (1, 2, 2), (5, 1, 1)]),
        ("aaab", [(0, 1, 3), (3, 1, 1)]),
    ],
)
def test_repetitions_fold(items: str, expected: list[tuple[int, int, int]]) -> None:
    assert folded(list(items)) == expected
    assert sum(unit * times for _, unit, times in expected) == len(items)
