"""Modules around modules: what a recipe puts in front of a layer, behind it, or in its place.

Each holds the wrapped module as ``module`` and answers for its attributes; what enters and leaves
may be a tuple, whose first tensor is the one that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError

__all__ = ["Entered", "Left", "PerChannel", "Scaled", "Shifted", "Standardised", "Times", "norm_of"]


class _Around(nn.Module):
    """A module that holds another, and what is asked of it and it has not, it asks that one:
    ``nn.TransformerEncoder`` reads ``self_attn.batch_first``. ``module`` is set last: parameters of
    the same names would be taken for the other's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):  # __deepcopy__ would copy that one
                raise
            return getattr(super().__getattr__("module"), name)


class Times(nn.Module):
    """``number * x``."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return self.number * x

    def extra_repr(self) -> str:
        return f"{self.number:g}"


class Shifted(_Around):
    """``module(x + bias)``, one learned number that begins at 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.module = module

    def forward(self, x: Tensor, *others: Any, **options: Any) -> Any:
        return self.module(*_entering(lambda y: y + self.bias, x, others), **options)


class Entered(_Around):
    """``module(before(x))``; layers that read one tensor may share ``before``."""

    def __init__(self, module: nn.Module, before: nn.Module) -> None:
        super().__init__()
        self.module, self.before = module, before

    def forward(self, x: Tensor, *others: Any, **options: Any) -> Any:
        return self.module(*_entering(self.before, x, others), **options)


def _entering(change: Callable[[Tensor], Tensor], x: Tensor, others: tuple[Any, ...]) -> list[Any]:
    """The arguments with ``x`` changed wherever it stands: queries, keys and values are one."""
    changed = change(x)
    return [changed, *(changed if other is x else other for other in others)]


class Left(_Around):
    """``after(module(...))``."""

    def __init__(self, module: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.module, self.after = module, after

    def forward(self, *given: Any, **options: Any) -> Any:
        return _first(self.module(*given, **options), self.after)


class Scaled(_Around):
    """``scale * module(...)``, and ``+ bias`` where there is one: learned numbers."""

    def __init__(self, module: nn.Module, scale: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), float(scale)))
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None
        self.module = module

    def forward(self, *given: Any, **options: Any) -> Any:
        def change(y: Tensor) -> Tensor:
            scaled = self.scale * y
            return scaled if self.bias is None else scaled + self.bias

        return _first(self.module(*given, **options), change)


class PerChannel(_Around):
    """``gain * module(...)``, a learned number for each channel of axis ``axis``."""

    def __init__(self, module: nn.Module, gain: float, width: int, axis: int = -1) -> None:
        super().__init__()
        shape = (width,) if axis == -1 else (width, *(1,) * (-1 - axis))
        self.gain = nn.Parameter(torch.full(shape, float(gain)))
        self.module = module

    def forward(self, *given: Any, **options: Any) -> Any:
        return _first(self.module(*given, **options), lambda y: self.gain * y)


def _first(found: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a module returned, with its first tensor changed."""
    if isinstance(found, Tensor):
        return change(found)
    return type(found)((change(found[0]), *found[1:]))


class Standardised(nn.Module):
    """Scaled weight standardisation (2101.08692), a parametrisation of a weight ``(out, in, ...)``:

        g gain (w - mean) / sqrt(max(fan_in var, 1e-4))

    mean and variance over what enters one output; ``g`` is learned, one an output, from 1 on.
    """

    def __init__(self, outputs: int, gain: float, axis: int = 0) -> None:
        super().__init__()
        self.number, self.axis = float(gain), axis
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, weight: Tensor) -> Tensor:
        turned = weight.transpose(0, self.axis) if self.axis else weight
        flat = turned.flatten(1)
        variance, mean = torch.var_mean(flat, 1, correction=0, keepdim=True)
        scale = torch.rsqrt((variance * flat.shape[1]).clamp_min(1e-4)) * self.number
        whole = ((flat - mean) * (scale * self.gain[:, None])).view_as(turned)
        return whole.transpose(0, self.axis) if self.axis else whole

    def extra_repr(self) -> str:
        return f"gain={self.number:g}"


class _Bounded(nn.Module):
    """DyT (2503.10622) and Derf (2512.10938): ``gain * f(alpha x + shift) + bias``."""

    def __init__(self, width: int, kind: str, axis: int) -> None:
        super().__init__()
        shape = (width,) if axis == -1 else (width, *(1,) * (-1 - axis))
        self.kind, self.alpha = kind, nn.Parameter(torch.full((1,), 0.5))
        self.gain, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.shift = nn.Parameter(torch.zeros(1)) if kind == "derf" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.shift is None:
            return self.gain * torch.tanh(self.alpha * x) + self.bias
        return self.gain * torch.erf(self.alpha * x + self.shift) + self.bias


def norm_of(kind: str, width: int, axis: int = -1) -> nn.Module:
    """A new norm over ``width`` channels: ``axis`` -1 for rows and tokens, -3 for images.

    Raises NetworkError for a kind that there is not over images.
    """
    images = axis != -1
    match kind:
        case "dyt" | "derf":
            return _Bounded(width, kind, axis)
        case "batchnorm":
            return nn.BatchNorm2d(width) if images else nn.BatchNorm1d(width)
        case "groupnorm":
            return nn.GroupNorm(math.gcd(width, 32), width)
        case "layernorm" if images:
            return nn.GroupNorm(1, width)
        case "layernorm":
            return nn.LayerNorm(width)
        case "rmsnorm" if not images:
            return nn.RMSNorm(width)
    raise NetworkError(f"there is no {kind} module over the channels of images; use groupnorm")
