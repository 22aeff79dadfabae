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
from depthgauge.trace.blocks import folded
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


@pytest.mark.parametrize("name", WRITTEN)
def test_what_somebody_wrote(name: str) -> None:
    function, expected = WRITTEN[name]
    torch.manual_seed(0)
    assert blocks(Written(function), torch.randn(4, 8)) == [(3, expected)]


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
