"""He initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from depthgauge.network.init import rms_of
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.he import he
from depthgauge.recipes.rules import init_of
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet


def test_golden_numbers() -> None:
    kernel, scope = (64, 64, 3, 3), {"L": 1.0}
    assert rms_of(init_of("he"), kernel, scope) == pytest.approx(0.0589256, abs=5e-8)
    assert rms_of(init_of("torch"), kernel, scope) == pytest.approx(0.0240563, abs=5e-8)
    assert math.sqrt(3) * rms_of(init_of("he"), kernel, scope) == pytest.approx(0.102062, abs=5e-7)


def test_on_equations() -> None:
    on_equation("he", "h + W2(relu(W1(h, out=4*n)))")
    on_equation("he", "W0(h) + W2(relu(W1(h, bias=True)))", init="torch")
    _, model, batch = on_equation("he", "W(relu(h))", depth=8)
    broken(model, batch, "he", scaled("weight", 2**-0.5), "a gain of 1, where ReLU takes")


def test_on_modules_and_faults() -> None:
    applied, batch = on_module("he", resnet)
    kernel = applied.model.get_parameter("1.a.weight").detach()
    assert float(kernel.std()) == pytest.approx((2 / 72) ** 0.5, rel=0.1)
    shortcut = applied.model.get_parameter("2.shortcut.weight").detach()
    assert float(shortcut.std()) == pytest.approx((2 / 8) ** 0.5, rel=0.2)
    on_module("he", gpt2)
    applied, batch = on_module("he", mlp)
    broken(applied.model, batch, "he", _default, "6 of 13 weights: .*PyTorch's default")


def _default(model: nn.Module) -> None:
    for block in list(model.children())[1:-1]:
        layer = block.get_submodule("up")
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.reset_parameters()


def test_groups_and_transposed_weights_keep_the_second_moment() -> None:
    applied, batch = on_module("he", convolutions)
    h = batch.repeat(8, 1, 1, 1)
    assert isinstance(applied.model, nn.Sequential)
    moments = []
    for module in list(applied.model)[:6]:
        h = module(h).detach()
        moments.append(float(h.square().mean()))
    # A zero border loses a little; a factor of the groups would be 4 or 48.
    assert all(0.4 < b / a < 1.2 for a, b in zip(moments[::2], moments[2::2], strict=False))
    broken(applied.model, batch, "he", _fan_out, "1 of 5 weights.*of the fan out of all groups")


def upsampling(stride: int, kernel: int, pad: int, axes: int = 2) -> tuple[nn.Module, Tensor]:
    """Four transposed convolutions, each followed by a ReLU."""
    torch.manual_seed(0)
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1]
    width = 128 if axes == 1 else 32
    layers = [x for _ in range(4) for x in (kind(width, width, kernel, stride, pad), nn.ReLU())]
    size = 12 // stride // stride + 2  # which grows by the stride in each layer
    batch = torch.randn(8, width, *(size,) * axes)
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)), batch


def built(*sizes: int) -> tuple[nn.Module, Tensor]:
    model, batch = upsampling(*sizes)
    model(batch)  # the lazy layer takes its shape
    return model, batch


def gain_a_layer(model: nn.Module, batch: Tensor) -> float:
    """The geometric mean over the last three layers, behind their activations."""
    assert isinstance(model, nn.Sequential)
    sizes, h = [], batch
    for module in list(model)[:8]:
        h = module(h).detach()
        sizes.append(float(h.square().mean().sqrt()))
    return math.exp(math.log(sizes[7] / sizes[1]) / 3)


@pytest.mark.parametrize(
    ("sizes", "of"), [((2, 4, 1), 4), ((2, 2, 0), 4), ((3, 6, 1), 9), ((2, 4, 1, 1), 2)]
)
def test_what_a_stride_leaves_empty_is_not_counted(sizes: tuple[int, ...], of: int) -> None:
    """In k/s per axis reach an output; all of them counted, the state loses s a layer."""
    applied, batch = on_module("he", lambda: built(*sizes))
    assert gain_a_layer(applied.model, batch) == pytest.approx(1, abs=0.15)

    def ignored(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    words = f"4 of 4 weights: .*: one in {of} of the kernel's places reaches an output"
    broken(applied.model, batch, "he", ignored, words)
    assert gain_a_layer(applied.model, batch) == pytest.approx(of**-0.5, rel=0.15)


def test_without_a_stride_every_place_is_counted() -> None:
    applied, _ = on_module("he", lambda: built(1, 3, 1))
    kernel = applied.model.get_parameter("2.weight").detach()
    assert float(kernel.std()) == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.05)


def _fan_out(model: nn.Module) -> None:
    torch.manual_seed(3)
    nn.init.kaiming_normal_(model.get_parameter("2.weight"), mode="fan_out", nonlinearity="relu")


def test_a_uniform_draw_of_pytorch_follows_and_a_bias_does_not() -> None:
    model, batch = plain(nn.ReLU)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
    assert said(audit(model, batch, "he")).startswith("4 of 4 biases: std up to")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    assert audit(model, batch, "he").holds


def test_the_size_of_a_normalised_weight_is_that_of_its_lengths() -> None:
    model, batch = plain(nn.ReLU)
    parametrizations.weight_norm(model.get_submodule("2"))
    words = said(audit(apply(model, batch, "he").model, batch, "he"))
    assert words == (
        "1 weights of lengths and directions: their lengths say how large they are; take weight "
        "normalisation off"
    )


def test_another_gain_is_a_recipe_of_its_own() -> None:
    model, batch = plain(nn.Tanh)
    tanh = he("1.592537")
    applied = apply(model, batch, tanh).model
    assert audit(applied, batch, tanh).holds
    found = audit(applied, batch, "he")
    assert not found.holds
    assert "derived for ReLU, and tanh was met" in " ".join(
        finding.said for finding in audit(apply(model, batch, "he").model, batch, "he").findings
    )


@pytest.mark.parametrize(
    "plant",
    [
        lambda p: p.fill_(math.sqrt(2 / p.shape[1])),
        lambda p: p.abs_(),
        lambda p: p.mul_(math.sqrt(0.75)).add_(math.sqrt(0.5 / p.shape[1])),
    ],
)
def test_weights_of_the_right_size_that_are_not_drawn_are_named(
    plant: Callable[[Tensor], object],
) -> None:
    applied, batch = on_module("he", mlp)

    def planted(model: nn.Module) -> None:
        with torch.no_grad():
            plant(model.get_parameter("1.up.weight"))

    words = r"1 of 13 weights: numbers whose mean is not zero \('1.up.weight'\)"
    broken(applied.model, batch, "he", planted, words)


@pytest.mark.parametrize("init", ["he", "he_uniform"])
@pytest.mark.parametrize("width", [1, 2, 3, 64])
def test_the_mean_of_a_draw_is_near_enough_to_zero(init: str, width: int) -> None:
    for seed in range(40):
        network = Network("h + W2(relu(W1(h)))", 2, width, init={"W1": init, "W2": init})
        found = audit(network.module(seed=seed), torch.randn(4, width), "he")
        assert "mean" not in said(found)
