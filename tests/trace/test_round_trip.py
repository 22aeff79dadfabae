"""Every word of the language, built as a network and read back: what comes back means the same.

``meanings`` compares what two readings compute; what the reader does not promise (names,
initialisers, scalars in their symbols) is no part of it. What stands before the first state of a
stream or after its last is stem and head, and is listed at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge import Network, measure, parse
from depthgauge.equation import functions
from depthgauge.equation.nodes import Activation, Define, Let, Norm, walk
from depthgauge.equation.options import WEIGHT_OPTIONS
from depthgauge.profile import Profile
from tests.trace.meanings import meaning_of_blocks, meaning_of_network

DEPTH, WIDTH = 3, 8

#: Equations by what they are about; each is a branch to be read back in every block.
GROUPS: dict[str, tuple[str, ...]] = {
    "norms over rows": (
        "h + W(layernorm(h, eps=0.01, gain=0.7, bias=True))",
        "h + W(layernorm(h, bias=True))",
        "h + W(layernorm(h, eps=0.01, eps_at='outside'))",
        "h + W(layernorm(h, axis='batch'))",
        "h + W(layernorm(h, axis='batch+width'))",
        "h + W(rmsnorm(h, eps=0.02, gain=2))",
        "h + W(rmsnorm(h, bias=True))",
        "h + W(rmsnorm(h, eps=0.02, eps_at='outside', gain=1))",
        "h + W(rmsnorm(h, axis='batch'))",
        "h + W(batchnorm(h, eps=0.03, gain=1, bias=True))",
        "h + W(batchnorm(h, eps=0.03, eps_at='outside'))",
        "h + W(batchnorm(h, axis='width'))",
        "h + W(groupnorm(h, groups=4, eps=0.01, gain=0.5, bias=True))",
        "h + W(groupnorm(h, groups=1, eps=0.01))",
        "h + W(groupnorm(h, groups=2, eps=0.01, eps_at='outside'))",
        "h + W(scalenorm(h))",
        "h + W(scalenorm(h, eps=0.1, gain=2))",
        "h + W(scalenorm(h, axis='batch'))",
        "h + W(scalenorm(h, axis='batch+width'))",
        "h + W(dyt(h, alpha=0.7))",
        "h + W(dyt(h, alpha=0.7, gain=2, bias=True))",
        "h + W(derf(h, alpha=0.7, shift=0.25))",
        "h + W(derf(h, alpha=0.7, shift=0.25, gain=1.5, bias=True))",
        "layernorm(h + W(h), gain=1, bias=True)",
        "scalenorm(h + W(h))",
        "h + rmsnorm(W(rmsnorm(h, gain=1)), gain=0.1)",
        "h + W(layernorm(rmsnorm(h)))",
        "rmsnorm(h) + W(h)",
    ),
    "norms over tokens and images": (
        "h + attention(batchnorm(h))",
        "h + attention(batchnorm(h, axis='tokens'))",
        "h + attention(layernorm(h, axis='tokens'))",
        "h + attention(layernorm(h, axis='tokens+width'))",
        "h + attention(scalenorm(h))",
        "h + attention(scalenorm(h, axis='tokens'))",
        "h + attention(groupnorm(h, groups=2))",
        "h + conv3(layernorm(h, gain=1, bias=True))",
        "h + conv3(layernorm(h, axis='width+space', gain=1))",
        "h + conv3(layernorm(h, axis='space'))",
        "h + conv3(rmsnorm(h, gain=1))",
        "h + conv3(rmsnorm(h, eps_at='outside', axis='width+space'))",
        "h + conv3(batchnorm(h, gain=1, bias=True))",
        "h + conv3(batchnorm(h, axis='batch'))",
        "h + conv3(groupnorm(h, groups=2, gain=1, bias=True))",
        "h + conv3(groupnorm(h, gain=1, bias=True))",
        "h + conv3(scalenorm(h))",
        "h + conv3(scalenorm(h, axis='space'))",
        "h + conv3(dyt(h, gain=1, bias=True))",
        "h + conv3(derf(h, gain=1, bias=True))",
    ),
    "activations": (
        *(f"h + W({kind}(W(h)))" for kind in functions.ACTIVATIONS),
        "h + W(leaky_relu(W(h), slope=0.2))",
        "h + W(elu(W(h), alpha=0.5))",
        "h + W(gelu(W(h), approximate='tanh'))",
        "h + W(softplus(W(h), beta=2))",
        "h + W(tanh(0.5*W(h)))",
        "h + W(tanh(scalar(0.5)*W(h)))",
        "h + W(erf(scalar(0.5)*W(h) + scalar(0.1)))",
        "h + W(tanh(scalar(0.5)*W(h) + scalar(0.1)))",
        "h + W(tanh(gain(0.5)*W(h)))",
        "relu(h) + W(h)",
        "tanh(h + W(h))",
        "h + W(relu(tanh(silu(W(h)))))",
        "h + W(relu(-h))",
    ),
    "layers": (
        "h + W(relu(W(h, out=3*n, bias=True)), bias=True)",
        "h + W(relu(W(h, out=5, init='he')), init='zeros')",
        "h + W_q(relu(W_k(h)))",
        "h + conv3(relu(conv5(h, out=2*n, bias=True)), bias=True)",
        "h + conv3(relu(conv5(h, padding='circular')), padding='circular', bias=True)",
        "h + conv1(relu(W(h)), init='delta_orthogonal')",
        "h + conv1(relu(conv1(h, padding='circular')))",
        "h + attention(h, init='xavier')",
        "h + attention(h, heads=4, bias=True)",
        "h + attention(h, heads=2, scale=0.1)",
        "h + attention(h, heads=2, scale=0.5)",
        "h + attention(rmsnorm(h), heads=2, causal=True)",
        "h + attention(rmsnorm(h), heads=2, norm='layernorm')",
        "h + attention(h, heads=2, causal=True, scale=0.1, norm='rmsnorm')",
        "h + attention(h, heads=2, scale=3, norm='l2')",
        "h + 0.5*attention(h, scale=1, norm='l2')",
        "u = layernorm(h); h = h + attention(u) + W(gelu(W(u)))",
        "attention(h)",
    ),
    "tied layers": (
        "h + W1(relu(W1(h)))",
        "h + W1(relu(h)) + W2(relu(W1(h)))",
        "h = h + W1(relu(h)); h = h + W1(tanh(h))",
        "h = h + W2(relu(W1(h))); h = h + W2(tanh(W1(h)))",
        "h + conv3(relu(conv3(h, name='C')), name='D') + conv3(h, name='C')",
        "h = h + attention(h, name='A'); h = h + attention(tanh(h), name='A')",
        "h + attention(h, name='A') + 0.5*attention(tanh(h), name='A')",
        "F(x) = W1(relu(W2(x))); h = h + F(F(h))",
        "F(x) = W(relu(rmsnorm(x, gain=1))); h = h + F(h); h = h + 0.5*F(tanh(h))",
        "F(x) = layernorm(x, gain=1, bias=True); h = h + W(F(h) * F(tanh(h)))",
    ),
    "learned numbers": (
        "h + scalar(0.5)*W(h)",
        "h + gain(1e-5)*W(h)",
        "gain(0.9)*h + W(h)",
        "scalar(0.9)*h + W(h)",
        "h + conv3(gain(0.1)*conv3(h))",
        "s = scalar(0.5); h = h + s*W(relu(s*W(h)))",
        "s = scalar(0.5); h = s*h + s*W(h)",
        "s = scalar(0.5); h = h + s*W(h); h = h + s*W(relu(h))",
        "s = scalar(0.5); h = s*h + (1 - s)*W(h)",
        "g = gain(0.5); h = h + g*W(relu(g*W(h)))",
        "h + sigmoid(scalar(0))*W(h)",
        "h + softplus(gain(0), beta=2)*W(h)",
        "h + W(h + scalar(0.1)) + gain(0.2)",
        "h + W(h - scalar(0.1)) - gain(0.2)",
        "h + scalar(2)*(gain(3)*W(h))",
        "h + (scalar(2) + gain(3))*W(h)",
        "h + (1 + gain(0))*W(h)",
        "h + (0.5*scalar(2))*W(h)",
        "h + (scalar(2)/l)*W(h)",
        "h + W((1 + gain(0))*rmsnorm(h))",
        "h + W(gain(0.5)*rmsnorm(h))",
        "h + W(scalar(0.5)*rmsnorm(h))",
        "h + W(layernorm(h) + gain(0))",
        "h + W(layernorm(h) + gain(0.3))",
        "h + W(layernorm(h, gain=1) + gain(0.3))",
        "h + W(gain(2)*layernorm(h, gain=3))",
        "h + W(gain(2)*layernorm(h, bias=True))",
        "h + W(gain(2)*(0.5*layernorm(h)))",
        "W(h) + gain(0.1)",
    ),
    "scalars": (
        "h - W(h)",
        "0.5*h + W(h)/2",
        "W(h) - h",
        "-h + W(h)",
        "h - (h - W(h))",
        "(h + W(h))/2",
        "h + 0*W(h)",
        "a = exp(-l/depth); h = h + a*W(h)",
        "h + sqrt(l/depth)/L*W(h)*n",
        "a = 2*L; b = a/depth; h = h + W(h)/b",
        "h + min(1, max(l, 2))/abs(-L)*W(h)",
        "h + floor(pi)*log(2)*W(h) + ceil(0.5)*W(relu(h))",
        "h + W(h) + 0.3",
        "h + W(h + 0.3)",
        "h + W(1 - h)",
        "h + W(0.5*layernorm(h))",
        "0.5*W(h) + 0.1",
    ),
    "gates and dropout": (
        "h + W(W(h)*W(h))",
        "t = sigmoid(W(h)); h = t*h + (1 - t)*W(h)",
        "h + W(silu(W(h, out=2*n))*W(h, out=2*n))",
        "h + W(h*h)",
        "u = W(h); h = h + W(u*u*u)",
        "h + h*W(h)",
        "t = sigmoid(W(h)); h = h + t*W(relu(t*W(h)))",
        "sigmoid(W(h))*h + W(h)",
        "h + dropout(W(h), p=0.1)",
        "h + W(dropout(h, p=0.25))",
        "h + dropout(W(h), p=0)",
    ),
    "states and names": (
        "h + W(h) + h0",
        "h + W(h + h0)",
        "h + W(h)*h0",
        "0.9*h + 0.1*h0 + W(h)",
        "h + W(h0)",
        "0.9*h + W(h0)",
        "h + W(h) + W(h0)",
        "h + W(rmsnorm(h0))",
        "F(x) = W(relu(W(x))); h = h + F(h)",
        "F(x) = W(relu(W(x))); h = h + F(h); h = h + 0.5*F(rmsnorm(h))",
        "F(x) = x*W(h); h = h + F(tanh(h))",
        "F(x, s) = s*W(x); h = h + F(h, scalar(2))",
        "h = h + attention(rmsnorm(h)); h = h + W(gelu(W(rmsnorm(h))))",
        "h = h + W(h); h = tanh(h); h = h + W(relu(h))",
        "u = h; h = h + W(h); h = h + W(u)",
        "u = W(h); h = h + W(h); h = h + u",
        "u = relu(W(h)); h = h + W(u) + 0.5*u",
        "u = relu(W(h)); h = h + W(u); h = h + W(u)",
        "h + W(relu(h)) + W(tanh(h))",
        "h + W(relu(h + W(h)))",
        "W(h) + W(relu(W(h)))",
        "h + W(relu(rmsnorm(h)) + rmsnorm(h))",
        "relu(layernorm(W(h), gain=1, bias=True))",
        "W(relu(W(h)))",
        "relu(conv3(h))",
    ),
}
EQUATIONS = [equation for group in GROUPS.values() for equation in group]


def network(equation: str, depth: int = DEPTH) -> Network:
    sizes: dict[str, Any] = {"tokens": 3} if "attention" in equation else {}
    sizes |= {"size": 5} if "conv" in equation else {}
    return Network(equation, depth=depth, width=WIDTH, **sizes)


def profile(net: Network, train: bool = True) -> Profile:
    batch = torch.randn(5, *net.state_shape, generator=torch.Generator().manual_seed(0))
    return measure(net.module(0).train(train), batch, instruments="rivers")


def read(found: Profile) -> list[str]:
    """The blocks in order, a repeated one as often as it stands."""
    blocks = [block for stream in found.streams for block in stream["blocks"]]
    return [block["equation"] for block in blocks for _ in range(block["times"])]


def told(net: Network, texts: list[str]) -> tuple[object, object]:
    terms: dict[object, int] = {}
    one = meaning_of_network(net, terms)
    return one.told(), meaning_of_blocks([parse(text) for text in texts], net, terms).told()


@pytest.mark.parametrize("equation", EQUATIONS)
def test_what_is_read_back_means_the_same(equation: str) -> None:
    net = network(equation)
    found = profile(net)
    texts = read(found)
    built, back = told(net, texts)
    assert back == built, texts
    assert not found.coverage["opaque"]
    assert not any("share" in reason for _, reason in found.coverage["fallback"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("h + W(layernorm(h))", "h + W(layernorm(h, eps=0.01))"),
        ("h + W(layernorm(h))", "h + W(layernorm(h, eps_at='outside'))"),
        ("h + W(layernorm(h))", "h + W(layernorm(h, gain=1))"),
        ("h + W(layernorm(h))", "h + W(layernorm(h, bias=True))"),
        ("h + W(layernorm(h) + gain(0.3))", "h + W(layernorm(h, bias=True))"),
        ("h + W(rmsnorm(h))", "h + W(rmsnorm(h, axis='batch'))"),
        ("h + W(groupnorm(h, groups=2))", "h + W(groupnorm(h, groups=4))"),
        ("h + W(scalenorm(h))", "h + W(scalenorm(h, gain=2))"),
        ("h + W(elu(h))", "h + W(elu(h, alpha=2))"),
        ("h + attention(h, heads=2)", "h + attention(h, heads=2, causal=True)"),
        ("h + attention(h, heads=2)", "h + attention(h, heads=2, scale=1)"),
        ("h + attention(h, heads=2)", "h + attention(h, heads=2, norm='rmsnorm')"),
        (
            "h + attention(h, heads=2, scale=3, norm='l2')",
            "h + attention(h, heads=2, scale=2, norm='l2')",
        ),
        ("h + conv3(h)", "h + conv3(h, padding='circular')"),
        ("h + W(h)", "h + W(h, bias=True)"),
        ("h + W1(relu(W1(h)))", "h + W1(relu(W2(h)))"),
        ("h = h + W1(h); h = h + W1(tanh(h))", "h = h + W1(h); h = h + W2(tanh(h))"),
        ("s = scalar(1); h = h + s*W(s*h)", "h + scalar(1)*W(scalar(1)*h)"),
        ("h + (scalar(2)/l)*W(h)", "h + scalar(2)*W(h)"),
        ("h + W(h0)", "h + W(h)"),
        ("h + dropout(W(h), p=0.1)", "h + dropout(W(h), p=0.2)"),
        ("h + W(h)*W(h)", "h + W(h) + W(h)"),
    ],
)
def test_one_option_apart_is_not_the_same(one: str, other: str) -> None:
    """The comparison can fail, whichever of the two is read back."""
    for built, asked in ((one, other), (other, one)):
        expected, back = told(network(asked), read(profile(network(built))))
        assert back != expected


def test_every_word_is_read_back() -> None:
    trees = [node for text in EQUATIONS for node in walk(parse(text))]
    given = {
        (node.kind, name)
        for node in trees
        if isinstance(node, Activation | Norm)
        for name, option in node.options
        if option != {**functions.ACTIVATIONS, **functions.NORMS}[node.kind][name]
    }
    norms = {(kind, name) for kind, options in functions.NORMS.items() for name in options}
    activations = {(k, name) for k, options in functions.ACTIVATIONS.items() for name in options}
    assert norms | activations == given
    for layer, options in WEIGHT_OPTIONS.items():
        here = [node for node in trees if isinstance(node, layer)]
        for name, default in options.items():
            named = name == "name" and "A" in str(here) and "C" in str(here)
            assert named or any(getattr(node, name) != default for node in here), (layer, name)
    kinds = {type(node).__name__ for node in trees}
    assert {"Dropout", "LearnedScalar", "LearnedGain", "Initial", "Constant", "Product"} <= kinds
    assert {Let.__name__, Define.__name__, "Call", "Update", "Local", "Scale"} <= kinds


# ------------------------------------------------------------------- where the promise ends


@pytest.mark.parametrize(
    ("equation", "blocks"),
    [
        # Before the first state is the stem, after the last the head; the repetition between is
        # that of the equation, cut elsewhere.
        ("h = rmsnorm(h); h = h + W(h)", ["h = rmsnorm(h + W(h))"] * 2 + ["h = h + W(h)"]),
        ("h = 0.5*h; h = h + W(h)", ["h = 0.5 * (h + W(h))"] * 2 + ["h = h + W(h)"]),
        ("dropout(h + W(h), p=0.1)", ["h = dropout(h + W(h), p=0.1)"] * 2 + ["h = h + W(h)"]),
        ("W(relu(h))", ["h = relu(W(h))"] * 2 + ["h = W(h)"]),
        ("tanh(h)", []),
        (
            "rmsnorm(h + W(relu(h0)))",
            ["h = h + W(relu(h))", *["h = rmsnorm(h) + W(relu(h0))"] * 2],
        ),
    ],
)
def test_stem_and_head_are_not_in_the_stream(equation: str, blocks: list[str]) -> None:
    assert read(profile(network(equation))) == blocks


def test_what_blocks_share_is_in_the_coverage() -> None:
    """A name is tied inside a block, also where the first block reads otherwise because ``h0`` is
    ``h`` there; what several blocks share is counted instead."""
    found = profile(network("h = h + W1(h + h0); h = h + W1(tanh(h))"))
    assert not found.coverage["fallback"]
    layer = nn.Linear(8, 8)
    blocks = [Sum(nn.Sequential(layer, nn.Linear(8, 8))) for _ in range(3)]
    shared = measure(nn.Sequential(*blocks), torch.randn(4, 8))
    assert [reason for _, reason in shared.coverage["fallback"]] == [
        "layers and learned numbers that several blocks share, read as each block's own: 1"
    ]


class Sum(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.branch(h))


def test_running_statistics_are_opaque() -> None:
    """In eval mode the module's norm over the batch is no statistic of its input."""
    found = profile(network("h + W(batchnorm(h))"), train=False)
    assert read(found) == ['h = h + W(opaque("_Running", h))'] * DEPTH
    assert found.coverage["opaque"]
