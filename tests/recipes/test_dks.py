"""Deep kernel shaping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.dks import dks
from depthgauge.recipes.kernel_maps import Curve, maps
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.wrappers import Transformed
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import encoder, plain, postnorm, preactivation

PLAIN = "tanh(W1(h))"


def every(**numbers: float) -> Callable[[nn.Module], None]:
    """The transformed activations with other numbers."""

    def plant(model: nn.Module) -> None:
        found = [module for module in model.modules() if isinstance(module, Transformed)]
        assert found
        for module in found:
            for name, number in numbers.items():
                setattr(module, name, number)

    return plant


def shaped() -> tuple[nn.Module, Any]:
    model, batch = plain(nn.Tanh)
    return apply(model, batch, "dks", seed=1).model, batch


def test_a_plain_equation_of_fifty_layers() -> None:
    changed, _, _ = on_equation("dks", PLAIN, depth=50)
    text = "h = 10.60445 * (tanh(0.1284405 * W1(h) + 0.5707795) - 0.5098072)"
    assert str(changed.block) == text
    found = maps(Curve("tanh", (), 0.1284405, 0.5707795, 10.60445, -0.5098072))
    assert found.c_slope == pytest.approx(1.008142, abs=1e-6)
    assert found.c_slope**50 == pytest.approx(1.5, abs=1e-5)
    assert (found.q, found.q_slope, found.c_zero) == pytest.approx((1, 1, 0), abs=1e-5)


def test_the_state_keeps_its_size_and_examples_their_distance() -> None:
    """Over 50 layers: the second moment 1, a correlation of 0 stays; as it was the state fades."""

    def end(network: Network) -> Tensor:
        rows = []
        for seed in range(12):
            generator = torch.Generator().manual_seed(seed)
            q, _ = torch.linalg.qr(torch.randn(192, 2, generator=generator))
            with torch.no_grad():
                y = network.module(seed)(math.sqrt(192) * q.T)
            rows.append(torch.stack([y.square().mean(), torch.cosine_similarity(y[0], y[1], 0)]))
        return torch.stack(rows)

    network = Network(PLAIN, 50, 192)
    here = end(rewritten(network, "dks").network)
    error = 4 * here.std(0) / math.sqrt(12)
    assert (abs(here.mean(0) - torch.tensor([1.0, 0.0])) < error).all()
    before = end(network)
    assert 1 - before.mean(0)[0] > 4 * before.std(0)[0] / math.sqrt(12)


def test_on_equations() -> None:
    on_equation("dks", "gelu(W1(layernorm(h)))", depth=24)
    on_equation("dks", "h + W2(softplus(W1(h, out=4*n)))", depth=24)
    on_equation(
        "dks", "h + W3(tanh(W2(softplus(W1(h)))))", depth=8
    )  # each with constants of its own
    changed, _, _ = on_equation("dks", "h + conv3(tanh(conv3(tanh(h))))", depth=6, width=8)
    assert changed.chosen["conv3.1"].kind == "delta_orthogonal"


def test_on_modules() -> None:
    on_module("dks", lambda: plain(nn.Tanh))
    on_module("dks", lambda: plain(nn.GELU))
    on_module("dks", mixed)

    def residual() -> tuple[nn.Module, Any]:
        model, batch = preactivation((2, 2))
        for module in model.modules():
            for name, child in module.named_children():
                if isinstance(child, nn.ReLU):
                    setattr(module, name, nn.Softplus())
        return model, batch

    applied, batch = on_module("dks", residual)
    assert "3 sums scaled" in applied.changes, "the last one's factor is the activation's behind it"
    # The function is what it says: the wrapper by hand.
    wrapper = next(m for m in applied.model.modules() if isinstance(m, Transformed))
    x = torch.randn(5)
    by_hand = wrapper.gamma * (
        torch.nn.functional.softplus(wrapper.alpha * x + wrapper.beta) + wrapper.delta
    )
    assert torch.equal(wrapper(x), by_hand)
    assert applied.model(batch).shape == (4, 3)


def mixed() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers), torch.randn(16, 8)


def test_other_constants_of_the_same_maps_are_right() -> None:
    """Tanh is odd: the constants with the other sign of both shifts."""
    model, batch = shaped()
    first = next(m for m in model.modules() if isinstance(m, Transformed))
    every(beta=-first.beta, delta=-first.delta)(model)
    assert audit(model, batch, "dks").holds


def test_planted_faults() -> None:
    number = r"'1.module' has "
    broken(
        *shaped(),
        "dks",
        every(gamma=1.0),
        rf"^0 of 4 activations with .* of the network 1\.5: {number}Q\(1\) = 0\.\d+, expected 1: "
        r"the output scale gamma is missing",
    )
    broken(*shaped(), "dks", every(delta=0.0), "the output shift delta is missing")
    broken(*shaped(), "dks", every(beta=0.0), r"has Q\(1\) = .*the input shift beta is missing")
    broken(*shaped(), "dks", every(alpha=1.0), "the input scale alpha is missing")
    bare = {"alpha": 1.0, "beta": 0.0, "gamma": 1.0, "delta": 0.0}
    broken(*shaped(), "dks", every(**bare), "the activation was not transformed")
    fifty = {"alpha": 0.1284405, "beta": 0.5707795, "gamma": 10.60445, "delta": -0.5098072}
    broken(
        *shaped(),
        "dks",
        every(**fifty),
        r"a maximal slope = 1\.033, expected 1\.5: the constants are those of 50 activations in "
        r"series, and 4 are there",
    )
    model, batch = shaped()
    broken(model, batch, "dks", redrawn("dks", batch, "he"), r"5 of 5 weights: .*He's gain")

    def normed(model: nn.Module) -> None:
        model[0] = nn.Sequential(model[0], nn.LayerNorm(24))  # type: ignore[operator, index]

    broken(*shaped(), "dks", normed, "1 norms: the maps are those of a network without one")
    deeper = Network(rewritten(Network(PLAIN, 50, 32), "dks").network.block, 51, 32)
    found = said(audit(deeper.module(), torch.randn(4, 32), "dks"))
    assert "those of 50 activations in series, and 51 are there" in found


def test_weights_of_layers_that_widen() -> None:
    """A layer 8 -> 24 of orthonormal columns times sqrt(3) keeps the second moment of a unit, not
    the length."""
    model, _ = shaped()
    weight = model[0].weight.detach()  # type: ignore[index]
    assert torch.allclose(weight.T @ weight, 3 * torch.eye(8), atol=1e-5)
    narrow = model[4].weight.detach()  # type: ignore[index]
    assert torch.allclose(narrow @ narrow.T, torch.eye(24), atol=1e-5)


def test_what_it_does_not_cover() -> None:
    cases: tuple[tuple[Callable[[], tuple[nn.Module, Any]], str], ...] = (
        (lambda: plain(nn.ReLU), "relu was found, and DKS's conditions are for smooth"),
        (encoder, "has attention, and DKS is for layers and activations in series"),
        (postnorm, "relu was found"),
        (narrowing, "with a kernel, and a kernel with fewer outputs than inputs"),
    )
    for build, why in cases:
        model, batch = build()
        with pytest.raises(NetworkError, match=why):
            audit(model, batch, "dks")
    with pytest.raises(NetworkError, match="zeta is 1, expected a finite number above 1"):
        dks(zeta=1)


def narrowing() -> tuple[nn.Module, Any]:
    layers = (nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Conv2d(16, 8, 3))
    return nn.Sequential(*layers), torch.randn(2, 3, 8, 8)
