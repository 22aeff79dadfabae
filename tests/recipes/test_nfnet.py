"""NF-ResNet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import Applied, apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.first_steps import first_gradients
from depthgauge.recipes.nfnet import gains
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.wrappers import Entered, Standardised, Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import gpt2, mlp, preactivation, resnet

MLP = "h + W2(relu(W1(relu(h), out=2*n)))"

#: The authors' table, sampled.
TABLE = {
    "relu": 1.7139588594,
    "gelu": 1.7015043497,
    "silu": 1.7881293297,
    "tanh": 1.5939117670,
    "elu": 1.2716004848,
    "selu": 1.0008515120,
    "leaky_relu": 1.7059034109,
    "sigmoid": 4.8038353920,
    "softplus": 1.9203323126,
    "softsign": 2.3388531208,
}


def test_golden_numbers() -> None:
    assert f"{gains('relu')[0]:.6f}" == "1.712859"
    assert gains("relu")[0] == pytest.approx(math.sqrt(2 / (1 - 1 / math.pi)), rel=1e-9)
    for kind, sampled in TABLE.items():
        assert gains(kind)[0] == pytest.approx(sampled, rel=1e-3)
    for kind, printed in {"tanh": "1.59254", "silu": "1.78719", "gelu": "1.70093"}.items():
        assert f"{gains(kind)[0]:.5f}" == printed
    for kind, printed in {"tanh": "1.59254", "gelu": "1.53353", "elu": "1.24520"}.items():
        assert f"{gains(kind)[1]:.5f}" == printed
    assert gains("leaky_relu", (("slope", 0.5),)) != gains("leaky_relu")
    with pytest.raises(NetworkError, match="no gain is known of the activation 'hardswish'"):
        gains("hardswish")


def test_on_equations() -> None:
    changed, model, batch = on_equation("nfnet", "h + batchnorm(W2(relu(W1(relu(h), out=2*n))))")
    assert str(changed.block) == (
        "h = h + 0.2 * (scalar(0) * W2(relu(W1(relu(1/sqrt(1 + (l - 1)*0.2**2 * 1) * h)"
        ", out=2*n, bias=True)), bias=True))"
    ).replace(" * 1)", ")")
    assert torch.equal(model(batch), batch)
    inlets = [branch.inlet for branch in layout(model, batch).branches]
    assert [f"{beta:.6f}" for beta in inlets[:3]] == ["1.000000", "0.980581", "0.962250"]
    on_equation("nfnet", "h + conv3(relu(conv3(relu(h))))", width=8, size=4)
    on_equation("nfnet", "h + W2(gelu(W1(silu(h))))")
    on_equation("nfnet", "h = h + W(relu(h)); h = h + W(relu(h))")
    kept = [f.said for f in audit(model, batch, "nfnet").findings if "at the start alone" in f.said]
    assert kept == [
        "weights of branches: standardised, gamma / sqrt(fan in); 12 of 12 at the start alone, no "
        "parametrisation keeps it"
    ]


def test_a_projection_of_the_stream_itself_takes_beta_too() -> None:
    """What a branch without a norm and the 1x1 convolution beside it are given is one number."""

    def early() -> tuple[nn.Module, Any]:
        return preactivation(early=True)

    found = layout(*early()).branches
    assert [[w.path for w in branch.across] for branch in found] == [
        ["1.shortcut.weight"],
        [],
        ["3.shortcut.weight"],
        [],
    ]
    applied, batch = on_module("nfnet", early)

    def lost(model: nn.Module) -> None:
        times = model.get_submodule("3.shortcut.before")
        assert isinstance(times, Times)
        times.number = 1.0

    words = "3 of 4 .*'3.convs' gives its layers its input by several numbers, .* expected 0.9623"
    broken(applied.model, batch, "nfnet", lost, words)


def test_the_variance_is_the_one_that_is_computed() -> None:
    network = rewritten(Network(MLP, 8, 256), "nfnet").network
    model = network.module(seed=0)
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "scalar" in name:
                p.fill_(1)
        found = []
        for block in model.get_submodule("blocks").children():
            block.register_forward_hook(lambda m, given, out: found.append(float(out.var())))
        model(x)
    predicted = [1 + 0.04 * k for k in range(1, 9)]
    assert found == pytest.approx(predicted, rel=0.02)
    # Without the activation's gain the branches die out, and the stream does not grow.
    with torch.no_grad():
        scaled("W2.weight", 1 / 1.712859)(model)
        scaled("W1.weight", 1 / 1.712859)(model)
        found.clear()
        model(x)
    assert found[-1] < 1 + 0.04 * 8 / 4


def _uneven(w: Tensor) -> Tensor:
    """Of the right size in all, row by row of another."""
    by = torch.linspace(0.5, 1.5, len(w))[:, None]
    return w * by / by.square().mean().sqrt()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w * (math.sqrt(2) / 1.7128586), "the gain of the root mean square, 1.4142"),
        (lambda w: w / 1.7128586, "12 of 12 weights .*the activation's gain is missing"),
        (lambda w: w * 1.7128586, "the activation's gain counts twice"),
        (lambda w: w + 0.02, "rows whose mean is not taken off"),
        (_uneven, "rows of different sizes"),
        (lambda w: nn.init.kaiming_uniform_(torch.empty_like(w), a=5**0.5), "PyTorch's default"),
    ],
)
def test_mistaken_weights_are_named(change: Callable[[Tensor], Tensor], words: str) -> None:
    _, model, batch = on_equation("nfnet", MLP, width=64)

    def plant(model: nn.Module) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("weight"):
                    p.copy_(change(p))

    broken(model, batch, "nfnet", plant, words)


def test_the_authors_sampled_gain_is_near_enough() -> None:
    _, model, batch = on_equation("nfnet", MLP)
    with torch.no_grad():
        scaled("weight", TABLE["relu"] / gains("relu")[0])(model)
    assert audit(model, batch, "nfnet").holds


@pytest.mark.parametrize(
    ("inlet", "factor", "words"),
    [
        ("1", "0.2*scalar(0)", "1 of 6 branches .*: beta is missing"),
        ("1/sqrt(1+l*0.2**2)", "0.2*scalar(0)", "beta is that of the state after the block"),
        ("1/(1+(l-1)*0.2**2)", "0.2*scalar(0)", "1/v instead of its root"),
        ("1/sqrt(1+(l-1)*0.2)", "0.2*scalar(0)", "v grows by alpha, not by its square"),
        ("1/sqrt(1+(l-1)*0.2**2)", "scalar(0)", "alpha is missing"),
        ("1/sqrt(1+(l-1)*0.2**2)", "0.2**2*scalar(0)", "alpha was squared"),
        ("1/sqrt(1+(l-1)*0.2**2)", "0.2", "SkipInit's gain is missing"),
        ("1/sqrt(1+(l-1)*0.2**2)", "0.2*scalar(1)", "SkipInit's gain begins at 1"),
    ],
)
def test_mistaken_numbers_are_named(inlet: str, factor: str, words: str) -> None:
    text = f"h + {factor}*W2(relu(W1(relu(({inlet})*h), bias=True)), bias=True)"
    init = "standardised(gain=sqrt(2/(1-1/pi)))"
    found = audit(Network(text, 6, 32, init=init).module(seed=0), torch.randn(4, 32), "nfnet")
    assert re.search(words, said(found)), said(found)
    assert "weights of branches:" not in said(found)


# ------------------------------------------------------------------- gains of activations


class Gained(nn.Module):
    """An activation and its gain, in a module of its own, as in ports of the authors' code."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * self.gain


RELU = math.sqrt(2 / (1 - 1 / math.pi))


class Activated(nn.Module):
    """A block with a gain for each of its two activations, behind them or in the weights."""

    def __init__(self, place: int, behind: bool, gains: tuple[float, float]) -> None:
        super().__init__()
        self.beta, self.skip = 1 / math.sqrt(1 + 0.04 * place), nn.Parameter(torch.zeros(()))
        self.one, self.two = (Gained(g) if behind else nn.ReLU() for g in gains)
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)
        for layer, gain in zip((self.a, self.b), gains, strict=True):
            row = layer.weight.data - layer.weight.data.mean(1, keepdim=True)
            row /= row.std(1, correction=0, keepdim=True) * math.sqrt(row.shape[1])
            layer.weight.data.copy_(row * (1 if behind else gain))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + 0.2 * (self.skip * self.b(self.two(self.a(self.one(x) * self.beta))))
        return out


def activated(behind: bool, *gains: float) -> tuple[nn.Module, Tensor]:
    """Six blocks, of which the fourth has these gains."""
    torch.manual_seed(0)
    right = (RELU, RELU)
    rows = [Activated(k, behind, (gains[0], gains[1]) if k == 3 else right) for k in range(6)]
    return nn.Sequential(*rows), torch.randn(16, 32)


@pytest.mark.parametrize(
    ("behind", "gains", "words"),
    [
        (True, (RELU, 1.0), "'3.two' in front of '3.b.weight' there is none, expected 1.7129"),
        (True, (RELU, 2**0.5), "'3.two.relu' in .* it is 1.4142, not 1.7129: that of the root"),
        (True, (RELU, 1.6), "'3.two.relu' in front of '3.b.weight' it is 1.6000, not 1.7129"),
        (True, (1.0, RELU), "'3.b' takes 0.9449 .* behind '3.one' .gain 1.7129.*: .* is missing"),
        (True, (2**0.5, RELU), "behind '3.one.relu' .gain 1.7129., .* gain is 1.4142, not 1.7129"),
        (False, (RELU, 1.0), "1 of 12 .*0.58 times.* is missing .'3.b.weight', behind '3.two'"),
        (False, (1.0, RELU), "1 of 12 .*0.58 times.* is missing .'3.a.weight', behind '3.one'"),
        (False, (RELU, 2**0.5), "the root mean square, 1.4142, .*'3.b.weight', behind '3.two'"),
    ],
)  # fmt: skip
def test_the_activation_whose_gain_is_wrong_is_named(
    behind: bool, gains: tuple[float, float], words: str
) -> None:
    assert audit(*activated(behind, RELU, RELU), "nfnet").holds
    found = audit(*activated(behind, *gains), "nfnet")
    assert sum(not finding.holds for finding in found.findings) == 1
    assert re.search(words, said(found)), said(found)


# -------------------------------------------------------------------------------- modules


def deep() -> tuple[nn.Module, Tensor]:
    return preactivation((3, 4, 6, 3), deep=True)


def test_on_modules() -> None:
    applied, batch = on_module("nfnet", deep)
    inlets = [f"{branch.inlet:.6f}" for branch in layout(applied.model, batch).branches]
    transitions = [inlets[k] for k in (0, 3, 7, 13)]
    assert transitions == ["1.000000", "0.944911", "0.928477", "0.898027"]
    assert inlets[8:13] == ["0.980581", "0.962250", "0.944911", "0.928477", "0.912871"]
    assert (
        sum("at the start alone" in f.said for f in audit(applied.model, batch, "nfnet").findings)
        == 0
    )
    zero = first_gradients(applied.model, batch)
    assert not any(none for name, none in zero[0].items() if name.endswith("scale"))
    inner = [name for name in zero[0] if ".convs." in name and name.endswith("original")]
    assert all(zero[0][name] for name in inner)
    assert not any(zero[1][name] for name in inner)
    on_module("nfnet", preactivation)
    on_module("nfnet", mlp)


def test_stages_end_where_the_paper_has_them() -> None:
    ends = [1 + blocks * 0.2**2 for blocks in (3, 4, 6, 3)]
    assert [f"{v:.2f}" for v in ends] == ["1.12", "1.16", "1.24", "1.12"]
    applied, batch = on_module("nfnet", deep)
    branches = layout(applied.model, batch).branches
    read = [1 / branches[k].inlet ** 2 for k in (3, 7, 13)]
    assert read == pytest.approx(ends[:3], rel=1e-6)


def _gain(number: float) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Standardised) and module.number > 1:
                module.number = number

    return plant


def _inlets(numbers: Callable[[int, bool], float | None]) -> Callable[[nn.Module], None]:
    """Set what a block's input is multiplied by, from its place and whether it is a transition."""

    def plant(model: nn.Module) -> None:
        blocks = [block for block in model.children() if hasattr(block, "convs")]
        for k, block in enumerate(blocks):
            number = numbers(k, block.shortcut is not None)
            for module in block.modules():
                if isinstance(module, Entered) and number is not None:
                    assert isinstance(module.before, Times)
                    module.before.number = number

    return plant


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_gain(math.sqrt(2)), "the gain of the root mean square"),
        (_gain(1.0), "the activation's gain is missing"),
        (_inlets(lambda k, transition: 1.0), "beta is missing"),
        (_inlets(lambda k, transition: (1 + k * 0.04) ** -0.5), "v was not set back at the trans"),
        (
            _inlets(lambda k, transition: 1.0 if transition else None),
            "13 of 16 .*: a transition has beta of its own stage, not of the one before",
        ),
    ],
)
def test_mistakes_in_modules_are_named(plant: Callable[[nn.Module], None], words: str) -> None:
    applied, batch = on_module("nfnet", deep)
    broken(applied.model, batch, "nfnet", plant, words)


def test_a_bias_and_a_shortcuts_beta_are_counted() -> None:
    applied, batch = on_module("nfnet", preactivation)
    layer = applied.model.get_submodule("2.convs.0.module")
    assert isinstance(layer, nn.Conv2d)
    layer.bias = None
    shortcut = applied.model.get_submodule("3.shortcut.before")
    assert isinstance(shortcut, Times)
    shortcut.number = 1.0
    words = said(audit(applied.model, batch, "nfnet"))
    assert "7 of 8 weight layers of branches with a bias" in words
    assert "3 of 4 branches whose input is scaled as it is to be" in words


def test_standardisation_outlives_a_step() -> None:
    applied = _trained()
    for module in applied.model.modules():
        if isinstance(module, nn.Conv2d) and hasattr(module, "parametrizations"):
            rows = module.weight.detach().flatten(1)
            made = module.parametrizations.weight[0]  # type: ignore[union-attr,index]
            assert isinstance(made, Standardised)
            sizes = made.number * made.gain.detach().abs() / math.sqrt(rows.shape[1])
            assert torch.allclose(rows.mean(1), torch.zeros(len(rows)), atol=1e-6)
            assert torch.allclose(rows.square().mean(1).sqrt(), sizes, rtol=1e-4)


def _trained() -> Applied:
    model, batch = preactivation()
    applied = apply(model, batch, "nfnet")
    optimizer = torch.optim.SGD(applied.model.parameters(), 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(applied.model(batch), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
    return applied


@pytest.mark.parametrize(
    ("layer", "axis"),
    [
        (nn.Linear(12, 20), 0),
        (nn.Conv2d(6, 8, 3, groups=2), 0),
        (nn.ConvTranspose2d(6, 10, 3), 1),
    ],
)
def test_standardised_weights_of_other_layers(layer: nn.Module, axis: int) -> None:
    weight = layer.get_parameter("weight")
    turned = weight.transpose(0, axis)
    made = Standardised(len(turned), 1.5, axis)(weight).transpose(0, axis).flatten(1)
    fan_in = turned[0].numel()
    for row, raw in zip(made, turned.detach().flatten(1), strict=True):
        expected = (raw - raw.mean()) * 1.5 / math.sqrt(fan_in * float(raw.var(correction=0)))
        assert torch.allclose(row, expected, rtol=1e-4, atol=1e-6)


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "nfnet")
    with pytest.raises(NetworkError, match="an activation stands on the stream after the sum"):
        apply(*resnet(), "nfnet")
    with pytest.raises(NetworkError, match="has attention"):
        apply(*gpt2(), "nfnet")


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_kernels_in_groups_are_standardised_by_output(groups: int) -> None:
    kernel = torch.randn(16, 8 // groups, 3, 3)
    made = Standardised(8, 1.7, axis=1, groups=groups)(kernel)
    # The slow way: output j of group g reads the inputs of its group.
    for g in range(groups):
        for j in range(8 // groups):
            inputs = slice(g * 16 // groups, (g + 1) * 16 // groups)
            one, own = kernel[inputs, j], made[inputs, j]
            law = (one - one.mean()) / one.std(correction=0) / one.numel() ** 0.5
            assert torch.allclose(own, 1.7 * law, atol=1e-5)
