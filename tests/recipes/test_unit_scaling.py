"""Unit scaling."""

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
from depthgauge.measurement import measure
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.unit_scaling import unit_scaling
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said, scaled
from tests.recipes.models import gpt2, mlp, plain, resnet, stacked

WRITTEN = (
    "h = 1/sqrt(2) * h + 1/sqrt(2)/sqrt(4*n) * "
    "W2(sqrt(2/(1 - 1/pi)) * relu(1/sqrt(n) * W1(layernorm(h), out=4*n)))"
)


def test_on_equations() -> None:
    changed, model, batch = on_equation("unit-scaling", "h + W2(relu(W1(layernorm(h), out=4*n)))")
    assert str(changed.block) == WRITTEN
    plant = redrawn("unit-scaling", batch, "lecun")
    broken(model, batch, "unit-scaling", plant, "12 of 12 weights: .*is to stand behind the layer")
    on_equation("unit-scaling", "h = h + W2(tanh(W1(h))); h = h + W4(gelu(W3(h, out=2*n)))")
    on_equation("unit-scaling", "u = rmsnorm(h); h = h + 0.3 * W2(2 * tanh(W1(u)))")
    changed, _, _ = on_equation("unit-scaling", "h + conv3(tanh(conv1(h)))", width=8)
    assert "1/sqrt(2)/sqrt(9*n) * conv3(1.59253741972 * tanh(1/sqrt(n) * conv1(h)))" in str(
        changed.block
    )
    changed, _, _ = on_equation(unit_scaling(0.5), "h + W2(leaky_relu(W1(h)))")
    assert "h = 1/sqrt(1 + 0.5**2) * h + 0.5/sqrt(1 + 0.5**2)/sqrt(n)" in str(changed.block)


class Conv(nn.Module):
    """Grouped, then transposed, with a bias; neither square."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tanh = nn.GroupNorm(2, 8), nn.Tanh()
        self.up = nn.Conv2d(8, 24, 3, 1, 1, groups=4)
        self.down = nn.ConvTranspose2d(24, 8, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.tanh(self.up(self.norm(x))))
        return out


def convolved() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), Conv(), Conv(), *head), torch.randn(4, 3, 6, 6)


def embedded() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model, _ = mlp()
    body = list(model.children())[1:]
    return nn.Sequential(nn.Embedding(50, 24), *body), torch.randint(50, (4, 6))


@pytest.mark.parametrize("build", [mlp, convolved, embedded])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, batch = on_module("unit-scaling", build)
    again = apply(applied.model, batch, "unit-scaling")
    assert not [line for line in again.changes if "scaled" in line]


def test_the_module_computes_what_the_formula_says() -> None:
    applied, batch = on_module("unit-scaling", mlp)
    named = {n.replace("module.", ""): p for n, p in applied.model.named_parameters()}
    h = batch @ named["0.weight"].T / math.sqrt(8)
    for k in range(1, 7):
        x = F.layer_norm(h, (24,)) @ named[f"{k}.up.weight"].T / math.sqrt(24)
        x = torch.relu(x) * math.sqrt(2 / (1 - 1 / math.pi))
        h = (h + x @ named[f"{k}.down.weight"].T / math.sqrt(96)) / math.sqrt(2)
    expected = h @ named["7.weight"].T / 24
    assert torch.allclose(applied.model(batch), expected, atol=1e-5)
    assert {float(p.detach().abs().max()) for n, p in named.items() if n.endswith("p.bias")} == {0}


def test_fans_of_grouped_and_transposed_kernels() -> None:
    applied, batch = on_module("unit-scaling", convolved)
    first = layout(applied.model, batch).branches[0]
    assert [w.behind for w in first.weights] == pytest.approx(
        [1 / math.sqrt(2 * 9), 1 / math.sqrt(24 * 9)]
    )
    assert first.factor == pytest.approx(1 / math.sqrt(2) / math.sqrt(24 * 9))
    assert [w.front for w in first.weights] == pytest.approx([1, 1.59254], rel=1e-5)


def test_a_layer_from_1024_to_4096_gives_numbers_of_size_1() -> None:
    network = Network("h + W2(tanh(W1(h, out=4*n)))", 1, 1024)
    model = rewritten(network, "unit-scaling").network.module(seed=0)
    batch = torch.randn(32, 1024)
    seen: list[Tensor] = []
    weight = model.get_parameter("blocks.0.W1.weight")
    with torch.no_grad():
        seen = [batch @ weight.T / 32, model(batch)]
    assert weight.shape == (4096, 1024)
    assert [float(x.std()) for x in seen] == pytest.approx([1, 1], abs=0.05)


def test_the_state_keeps_its_size_through_depth_and_does_not_without() -> None:
    network = Network("h + W2(tanh(W1(h, out=2*n)))", 24, 256)
    kept = measure(rewritten(network, "unit-scaling").network, batch=64)["state_rms"]
    assert kept.tolist() == pytest.approx([1.0] * len(kept), abs=0.05)
    grown = measure(network, batch=64)["state_rms"]
    assert grown[-1] > 2


def test_behind_relu_a_state_without_a_norm_grows_by_the_mean_that_is_left_in() -> None:
    """Each sum multiplies the second moment by (1 + 1 / (2 var)) / 2, var = (1 - 1 / pi) / 2."""
    network = Network("h + W2(relu(W1(h, out=4*n)))", 12, 128)
    sizes = measure(rewritten(network, "unit-scaling").network, batch=64, seed=range(4))
    ends = sizes["state_rms"].mean(0) if sizes["state_rms"].ndim > 1 else sizes["state_rms"]
    each = ((1 + 1 / (1 - 1 / math.pi)) / 2) ** 0.5
    assert each == pytest.approx(1.1106, abs=1e-4)
    assert float(ends[-1] / ends[0]) ** (1 / 12) == pytest.approx(each, rel=0.02)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "(1/sqrt(n) * W1(",
            "(W1(",
            "6 of 12 weight layers .* has 1, .*the layer's number",
        ),
        ("(1/sqrt(n) * W1(", "(1/n * W1(", "fan in, where its root is asked"),
        ("(1/sqrt(n) * W1(", "(1/sqrt(4*n) * W1(", "has 0.08839, expected 0.1768: of the fan out"),
        ("sqrt(2/(1 - 1/pi)) * relu", "relu", "6 of 12 .* the activation's number is missing"),
        ("sqrt(2/(1 - 1/pi))", "sqrt(2)", "'blocks.0.W2.weight' has 1.414, expected 1.713"),
        ("/sqrt(4*n) * W2", " * W2", "expected 0.7071 h . 0.0625 F: the last layer's number"),
        ("h = 1/sqrt(2) * h + 1/sqrt(2)/", "h = h + 1/", "1 h . 0.08839 F, .*sum is not weighed"),
        ("h = 1/sqrt(2) * h", "h = h", "6 of 6 sums: 1 h . 0.0625 F, expected 0.7071 h"),
    ],
)
def test_another_number_is_named(before: str, after: str, words: str) -> None:
    assert before in WRITTEN
    network = Network(WRITTEN.replace(before, after), 6, 32, init="normal(std=1)")
    found = said(audit(network.module(seed=1), torch.randn(8, 32), "unit-scaling"))
    assert re.search(words, found), found
    assert " | " not in found


def test_faults_of_a_module() -> None:
    def biased(model: nn.Module) -> None:
        nn.init.ones_(model.get_parameter("0.module.bias"))

    for plant, words in (
        (scaled("up.module.weight", 0.5), "6 of 14 weights: std 0.[45]"),
        (biased, "1 of 13 biases: std up to 1, expected zero"),
    ):
        applied, batch = on_module("unit-scaling", mlp)
        broken(applied.model, batch, "unit-scaling", plant, words)
    applied, batch = on_module("unit-scaling", mlp)

    def bare(model: nn.Module) -> None:
        model.add_module("7", model.get_submodule("7").get_submodule("module"))

    words = "0 of 1 heads whose input is multiplied by 1/n = 0.04167; '7.weight' has 1"
    broken(applied.model, batch, "unit-scaling", bare, words)


def test_a_layer_that_is_called_as_a_function_is_left_and_said() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return x + F.linear(torch.tanh(F.linear(x, self.up)), self.down)

    model, batch = nn.Sequential(nn.Linear(4, 8), Block(), nn.Linear(8, 2)), torch.randn(6, 4)
    applied = apply(model, batch, "unit-scaling")
    assert any("'1.up'" in line for line in applied.left), applied.left
    assert any("nothing was put behind it" in line for line in applied.left), applied.left
    assert applied.model.get_submodule("1").get_parameter("up").shape == (8, 8)  # not wrapped
    assert not audit(applied.model, batch, "unit-scaling").holds


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (plain, "no residual branch was found, and unit scaling is a rule"),
        (gpt2, "has attention, and no fixed number keeps the size of what unit scaling makes of"),
        (resnet, "has weights of its own, and unit scaling here weighs a skip as it is"),
        (stacked, "the inputs of the layer of 'up' could not be counted, and unit scaling divides"),
    ],
)
def test_what_it_does_not_cover(build: Callable[[], tuple[nn.Module, Any]], words: str) -> None:
    model, batch = build()
    with pytest.raises(NetworkError, match=words):
        apply(model, batch, "unit-scaling")


def test_a_gate_and_a_tau_of_zero_are_refused() -> None:
    network = Network("h + W2(silu(W1(h)) * W3(h))", 2, 8)
    with pytest.raises(NetworkError, match="has layers beside each other, a gate"):
        rewritten(network, "unit-scaling")
    with pytest.raises(NetworkError, match="tau is 0, expected a finite number above 0"):
        unit_scaling(0)


@pytest.mark.parametrize("name", ["unit-scaling", "u-mup"])
@pytest.mark.parametrize("stem", [8, 24])
def test_a_number_behind_the_stem_is_not_in_front_of_the_first_layer(name: str, stem: int) -> None:
    """The first branch reads what the skip carries on: the stem's number is neither's."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = x + self.down(torch.tanh(self.up(x)))
            return made

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(stem, 24), Block(), Block(), nn.Linear(24, 3))
    batch = torch.randn(64, stem)
    applied = apply(model, batch, name)
    assert not applied.left
    found = audit(applied.model, batch, name)
    assert found.holds, found
    assert not audit(model, batch, name).holds


def _mixed(x: Tensor, heads: int) -> Tensor:
    """What attention of weights of size 1 makes of ``x``, in front of its output layer, with the
    layers' own 1/sqrt(n) and logits q k / d."""
    batch, tokens, n = x.shape
    made = (x @ torch.randn(n, n).T / math.sqrt(n) for _ in range(3))
    q, k, v = (y.view(batch, tokens, heads, -1).transpose(1, 2) for y in made)
    out = torch.softmax(q @ k.mT / q.shape[-1], -1) @ v
    return out.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("shared", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("tokens", "heads"), [(64, 8), (256, 8), (64, 2)])
def test_what_attention_leaves_of_the_size_of_its_values(
    tokens: int, heads: int, shared: float
) -> None:
    """sqrt(r + (1 - r) e^(1/d) / T): the mean of a few sequences, within 10 per cent of it."""
    torch.manual_seed(0)
    one, own = torch.randn(32, 1, 128), torch.randn(32, tokens, 128)
    x = math.sqrt(shared) * one + math.sqrt(1 - shared) * own
    spread = math.exp(heads / 128) / tokens
    expected = math.sqrt(shared + (1 - shared) * spread)
    assert float(_mixed(x, heads).square().mean().sqrt()) == pytest.approx(expected, rel=0.1)


def test_no_fixed_number_is_right_in_the_first_attention_and_in_the_second() -> None:
    """Why attention is refused: the number for independent tokens is right once."""
    torch.manual_seed(0)
    tokens, n, heads = 256, 128, 8
    number = math.sqrt(tokens / math.exp(heads / n))
    h, sizes = torch.randn(8, tokens, n), []
    for _ in range(4):
        x = h / h.square().mean(-1, keepdim=True).sqrt()
        branch = number * _mixed(x, heads) @ torch.randn(n, n).T / math.sqrt(n)
        sizes.append(float(branch.square().mean().sqrt()))
        h = (h + branch) / math.sqrt(2)
    assert sizes[0] == pytest.approx(1, abs=0.1)
    assert 8 < sizes[1] < 13
    assert sizes[2:] == pytest.approx([math.sqrt(tokens)] * 2, rel=0.1)
