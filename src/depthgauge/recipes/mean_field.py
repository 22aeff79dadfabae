"""Gaussian averages of an activation, and the line on which signals neither die nor explode.

With weights of variance ``sigma_w^2 / fan_in`` and biases of variance ``sigma_b^2``, in a wide
plain network a state of second moment q passes as

    q' = sigma_w^2 E[phi(sqrt(q) z)^2] + sigma_b^2,    z ~ N(0, 1)
    chi = sigma_w^2 E[phi'(sqrt(q) z)^2]

and a gradient's second moment changes by chi a layer. The critical line has ``q' = q`` and
``chi = 1``: Poole et al. 1606.05340, Schoenholz et al. 1611.01232.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.equation.nodes import Number
from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate, gate

__all__ = [
    "Critical",
    "chi",
    "critical",
    "gate_of",
    "points",
    "rms_gain",
    "second_moment",
    "std_gain",
]

#: Beyond this many standard deviations there is less than 1e-30 of a Gaussian.
_REACH, _NODES = 12.0, 160


@dataclass(frozen=True)
class Critical:
    """A point of the critical line: the variances and the second moment that stays."""

    weight_variance: float
    bias_variance: float
    q: float


@cache
def _legendre() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.polynomial.legendre.leggauss(_NODES)


def points(kink: float = 0.0) -> tuple[Tensor, Tensor]:
    """Where a Gaussian average looks, and the weight of each place: Gauss-Legendre on either side
    of ``kink``, where the activation has its own (one out of reach counts as 0)."""
    x, w = _legendre()
    at = kink if abs(kink) < _REACH else 0.0
    below, above = (at + _REACH) / 2, (_REACH - at) / 2
    z = np.concatenate([at - below * (1 - x), at + above * (1 + x)])
    weights = np.concatenate([w * below, w * above])
    weights *= np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return torch.from_numpy(z), torch.from_numpy(weights)


def _average(of: Callable[[Tensor], Tensor]) -> float:
    z, weights = points()
    return float((of(z) * weights).sum())


def gate_of(activation: str, given: Mapping[str, Any] = MappingProxyType({})) -> Gate:
    """An activation by its name, with the options that are given and the others' defaults."""
    options = {
        name: option.value if isinstance(option, Number) else option
        for name, option in ACTIVATIONS[activation].items()
    }
    return gate(activation, {**options, **given})


def second_moment(activation: str, q: float = 1.0) -> float:
    """``E[phi(sqrt(q) z)^2]``."""
    phi = gate_of(activation).apply
    return _average(lambda z: phi(math.sqrt(q) * z).square())


def _slope(activation: str, q: float) -> float:
    """``E[phi'(sqrt(q) z)^2]``."""
    one = gate_of(activation)

    def squared(z: Tensor) -> Tensor:
        x = math.sqrt(q) * z
        return one.derivative(x, one.apply(x)).square()

    return _average(squared)


def rms_gain(activation: str) -> float:
    """``1 / sqrt(E[phi(z)^2])``: keeps the second moment; He's sqrt(2) for ReLU."""
    return 1 / math.sqrt(second_moment(activation))


def std_gain(activation: str) -> float:
    """``1 / sqrt(Var[phi(z)])``: for standardised weights, which take the mean away."""
    mean = _average(gate_of(activation).apply)
    return 1 / math.sqrt(second_moment(activation) - mean**2)


def chi(activation: str, weight_variance: float, q: float) -> float:
    """The factor of a gradient's second moment in one layer."""
    return weight_variance * _slope(activation, q)


def _at(activation: str, q: float) -> Critical:
    weight = 1 / _slope(activation, q)
    return Critical(weight, q - weight * second_moment(activation, q), q)


def critical(
    activation: str,
    *,
    weight_variance: float | None = None,
    bias_variance: float | None = None,
) -> Critical:
    """The point of the critical line with this ``sigma_w^2`` or this ``sigma_b^2``.

    For bounded odd activations, whose line is a function of q. Raises NetworkError for others,
    whose critical line is a point or none, and for a variance that lies on no such line.
    """
    if activation not in ("tanh", "erf", "softsign"):
        raise NetworkError(
            f"the critical line of {activation} is not one of q; expected tanh, erf or softsign "
            f"(of ReLU it is the point sigma_w^2 = 2, sigma_b = 0)"
        )
    assert (weight_variance is None) != (bias_variance is None)

    def off(q: float) -> float:
        point = _at(activation, q)
        if weight_variance is not None:
            return point.weight_variance - weight_variance
        return point.bias_variance - (bias_variance or 0.0)

    low, high = math.log(1e-9), math.log(1e3)
    if not off(math.exp(low)) < 0 < off(math.exp(high)):
        asked = weight_variance if weight_variance is not None else bias_variance
        raise NetworkError(
            f"no critical point of {activation} has a variance of {asked:g}; its line begins at "
            f"sigma_w^2 = {1 / _slope(activation, 0.0):.4g}, sigma_b = 0"
        )
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if off(math.exp(middle)) < 0 else (low, middle)
    return _at(activation, math.exp((low + high) / 2))
