"""The change of the function by one step, against finite differences and against its own law."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.study.functional_step import CLASSES, functional_step
from depthgauge.study.scaling import exponent
from tests.recipes.models import gpt2


def by_differences(
    model: nn.Module, batch: Any, seed: int, rates: dict[str, float], weights: bool
) -> float:
    """A small step of the parameters themselves, there and back."""
    model = model.double()
    width = model(batch).shape[-1]
    head = torch.randn(
        CLASSES, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )

    def logits() -> Tensor:
        out: Tensor = model(batch).reshape(-1, width) @ head.T / width**0.5
        return out

    torch.manual_seed(seed)
    labels = torch.randint(CLASSES, logits().shape[:1])
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(F.cross_entropy(logits(), labels), list(parameters.values()))
    step = 1e-6
    found = []
    for sign in (1, -2, 1):  # forward, back past the start, and to the start
        with torch.no_grad():
            for (name, p), g in zip(parameters.items(), gradients, strict=True):
                if p.dim() > 1 or not weights:
                    p.sub_(sign * step * rates.get(name, 1.0) * g)
            found.append(logits())
    return float(((found[0] - found[1]) / (2 * step)).square().mean().sqrt())


@pytest.mark.parametrize("weights", [False, True])
def test_against_finite_differences(weights: bool) -> None:
    network = Network("h + scalar(0.5)*W2(tanh(W1(layernorm(h), bias=True)))", 3, 8)
    model, batch = network.module(1), torch.randn(5, 8, dtype=torch.float64)
    rates = {name: 0.1 for name, p in model.named_parameters() if p.numel() == 1}
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = functional_step(model, batch, 3, rates)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    expected = by_differences(model, batch, 3, rates, weights)
    assert (found.weights if weights else found.all) == pytest.approx(expected, rel=1e-6)
    assert found.all != pytest.approx(found.weights, rel=1e-3)
    assert functional_step(model, batch, 3).all != pytest.approx(found.all, rel=1e-3)


def test_nothing_moves_where_nothing_has_a_gradient() -> None:
    model = Network("h + scalar(0)*W2(relu(W1(h)))", 3, 8).module(0)
    found = functional_step(model, torch.randn(4, 8))
    assert found.weights == 0
    assert found.all > 0


def test_of_attention_images_and_outputs_of_other_kinds() -> None:
    attends = Network("h + attention(h, heads=2)", 2, 8, tokens=4)
    for network in (attends, Network("h + conv3(relu(conv3(h)))", 2, 8, size=4)):
        model = network.module(0)
        assert functional_step(model, torch.randn(2, *network.state_shape)).all > 0
    assert functional_step(*gpt2(n_layer=1)).all > 0

    class Total(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    with pytest.raises(NetworkError, match="gives no tensor"):
        functional_step(nn.Sequential(nn.Linear(3, 3), Total()), torch.randn(2, 3))


def test_the_weights_of_fixup_move_the_function_alike_at_any_depth() -> None:
    """Slope 0 for L^(-1/2) in the first layer and zero in the second, near 1 without the scale."""
    slopes = []
    for first in ("he(gain=sqrt(2)/sqrt(L))", "he"):
        rows = []
        for depth in (16, 64):
            network = Network("h + W2(relu(W1(h)))", depth, 32, init={"W1": first, "W2": "zeros"})
            data = [torch.randn(32, 32, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
            rows.append([functional_step(network.module(s), data[s], s).weights for s in (0, 1)])
        slopes.append(exponent((16, 64), rows).slope)
    assert slopes == [pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1)]


class OfOneType(nn.Module):
    """A kernel that takes numbers of these types alone."""

    def __init__(self, *kinds: torch.dtype) -> None:
        super().__init__()
        self.layer, self.kinds = nn.Linear(8, 8), kinds

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in self.kinds:
            raise RuntimeError(f"expected {self.kinds}, got {x.dtype}")
        out: Tensor = x + torch.tanh(self.layer(x))
        return out


def test_what_does_not_take_float64_is_measured_in_float32() -> None:
    torch.manual_seed(0)
    model, batch = OfOneType(torch.float32, torch.float64), torch.randn(16, 8)
    expected = functional_step(model, batch)
    model.kinds = (torch.float32,)
    found = functional_step(model, batch)
    assert found.all == pytest.approx(expected.all, rel=1e-4)
    assert found != expected
    model.kinds = (torch.float16,)
    with pytest.raises(NetworkError, match="neither in float64 nor in float32"):
        functional_step(model, batch)
