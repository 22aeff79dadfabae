"""Activations in PyTorch and their derivatives, each written out.

``derivative(z, y)`` gets the pre-activation ``z`` and the output ``y = phi(z)`` that the forward
pass has anyway, so that tanh's is one multiplication. At a kink it is the derivative from the left,
as autograd has it (ReLU'(0) = 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Unary: TypeAlias = Callable[[Tensor], Tensor]
Derivative: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# Klambauer et al. 1706.02515: the values for which N(0, 1) is a fixed point.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@dataclass(frozen=True, slots=True)
class Gate:
    """An activation with its options filled in."""

    kind: str
    apply: Unary
    derivative: Derivative


def gate(kind: str, options: dict[str, Any]) -> Gate:
    """``options`` are numbers and words: ``gate("leaky_relu", {"slope": 0.01})``."""
    return Gate(kind, *_GATES[kind](**options))


def _step(z: Tensor, y: Tensor) -> Tensor:
    return (z > 0).to(z.dtype)


def _leaky(slope: float) -> tuple[Unary, Derivative]:
    return (
        lambda z: F.leaky_relu(z, slope),
        lambda z, y: slope + (1 - slope) * _step(z, y),
    )


def _elu(alpha: float) -> tuple[Unary, Derivative]:
    # alpha e^z = y + alpha below 0
    return lambda z: F.elu(z, alpha), lambda z, y: torch.where(z > 0, 1.0, y + alpha)


def _selu_derivative(z: Tensor, y: Tensor) -> Tensor:
    return torch.where(z > 0, SELU_SCALE, y + SELU_SCALE * SELU_ALPHA)


def _gelu(approximate: str) -> tuple[Unary, Derivative]:
    def exact(z: Tensor, y: Tensor) -> Tensor:
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * density

    def tanh_form(z: Tensor, y: Tensor) -> Tensor:
        rate, cubic = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(rate * (z + cubic * z**3))
        return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * rate * (1 + 3 * cubic * z * z)

    derivative = tanh_form if approximate == "tanh" else exact
    return lambda z: F.gelu(z, approximate=approximate), derivative


def _silu_derivative(z: Tensor, y: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s + y * (1 - s)


def _mish_derivative(z: Tensor, y: Tensor) -> Tensor:
    t = torch.tanh(F.softplus(z))
    return t + z * torch.sigmoid(z) * (1 - t * t)


def _softplus(beta: float) -> tuple[Unary, Derivative]:
    return lambda z: F.softplus(z, beta), lambda z, y: torch.sigmoid(beta * z)


_GATES: Final[dict[str, Callable[..., tuple[Unary, Derivative]]]] = {
    "identity": lambda: (lambda z: z, lambda z, y: torch.ones_like(z)),
    "sigmoid": lambda: (torch.sigmoid, lambda z, y: y * (1 - y)),
    "tanh": lambda: (torch.tanh, lambda z, y: 1 - y * y),
    "relu": lambda: (torch.relu, _step),
    "leaky_relu": _leaky,
    "elu": _elu,
    "selu": lambda: (torch.selu, _selu_derivative),
    "gelu": _gelu,
    "silu": lambda: (F.silu, _silu_derivative),
    "mish": lambda: (F.mish, _mish_derivative),
    "softplus": _softplus,
    "softsign": lambda: (F.softsign, lambda z, y: (1 + z.abs()).pow(-2)),
    "erf": lambda: (torch.erf, lambda z, y: (2 / math.sqrt(math.pi)) * torch.exp(-z * z)),
}
