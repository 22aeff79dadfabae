"""Gate statistics against autograd's derivative and plain counting."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.instruments.gates import DEAD, LIVE, QUANTILES, SATURATED, STATISTICS, Gates
from depthgauge.network.activations import gate

OPTIONS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"slope": 0.05},
    "elu": {"alpha": 1.0},
    "gelu": {"approximate": "none"},
    "softplus": {"beta": 1.0},
}


def slow(kind: str, z: torch.Tensor, width_axis: int) -> dict[str, float]:
    z = z.double().clone().requires_grad_()
    y = gate(kind, OPTIONS.get(kind, {})).apply(z)
    (slope,) = torch.autograd.grad(y.sum(), z)
    slope, y = slope.abs(), y.detach().abs()
    units = torch.maximum(slope, y).movedim(width_axis, 0).flatten(1)
    ordered = sorted(slope.flatten().tolist())
    return {
        "live": (slope > LIVE).double().mean().item(),
        "saturated": (slope < SATURATED).double().mean().item(),
        "dead": (units <= DEAD).all(1).double().mean().item(),
        **{name: ordered[math.ceil(q * len(ordered)) - 1] for name, q in QUANTILES.items()},
    }


def measured(kind: str, z: torch.Tensor, members: int = 1, width_axis: int = -1) -> Gates:
    gates = Gates(STATISTICS, 1, members, width_axis)
    rule = gate(kind, OPTIONS.get(kind, {}))
    gates.see(0, rule, z, rule.apply(z))
    return gates


@pytest.mark.parametrize("kind", [k for k in ACTIVATIONS if k != "identity"])
@pytest.mark.parametrize(("shape", "axis"), [((64, 32), -1), ((8, 5, 32), -1), ((8, 32, 3, 3), -3)])
def test_shares(kind: str, shape: tuple[int, ...], axis: int) -> None:
    generator = torch.Generator().manual_seed(2)
    z = 4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    z.movedim(axis, 0)[:3] -= 40  # three units far out on the left
    found, expected = measured(kind, z, width_axis=axis), slow(kind, z, axis)
    for name in STATISTICS:
        assert found.values[name][0, 0] == pytest.approx(expected[name], abs=1e-12)
    if kind in ("relu", "gelu", "silu", "sigmoid", "softplus"):
        assert expected["dead"] == 3 / 32
    if kind in ("tanh", "leaky_relu", "softsign"):
        assert expected["dead"] == 0


def test_relu_alone_takes_the_short_way_to_the_same_number() -> None:
    z = torch.randn(128, 64, dtype=torch.float64)
    short = Gates(("live",), 1, 1, -1)
    short.see(0, gate("relu", {}), z, z.relu())
    assert short.values["live"][0, 0] == measured("relu", z).values["live"][0, 0]
    assert short.values["live"][0, 0] == (z > 0).double().mean().item()


def test_three_different_diseases() -> None:
    units = torch.linspace(-1, 1, 200, dtype=torch.float64).expand(100, -1)
    off_for_half = torch.randn(100, 200, generator=torch.Generator().manual_seed(0)).double()
    collapsed = measured("relu", units)  # every example the same: a unit is on or off for all
    healthy = measured("relu", off_for_half)
    saturated = measured("tanh", 20 + units)
    assert collapsed.values["live"][0, 0] == 0.5
    assert abs(healthy.values["live"][0, 0] - 0.5) < 0.02
    assert collapsed.values["dead"][0, 0] == 0.5
    assert healthy.values["dead"][0, 0] == 0
    assert saturated.values["saturated"][0, 0] == 1
    assert saturated.values["dead"][0, 0] == 0


def test_members_are_kept_apart_and_nan_is_never_silent() -> None:
    z = torch.stack([torch.ones(4, 3), -torch.ones(4, 3), torch.ones(4, 3)])
    z[2, 1, 1] = math.nan
    gates = measured("relu", z, members=3)
    assert gates.values["live"][0, :2].tolist() == [1, 0]
    assert gates.values["dead"][0, :2].tolist() == [0, 1]
    assert all(np.isnan(gates.values[name][0, 2]) for name in STATISTICS)


def test_an_infinite_preactivation_is_not_nan() -> None:
    z = torch.tensor([[math.inf, 1.0, -1.0, -2.0]])
    assert measured("relu", z).values["live"][0, 0] == 0.5


def test_half_precision_is_counted_in_float32() -> None:
    z = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    found = measured("relu", z)
    assert found.values["live"][0, 0] == (z > 0).double().mean().item()
