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
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.recipes.rounding import wide

__all__ = [
    "Around",
    "Entered",
    "Left",
    "PerChannel",
    "Scaled",
    "Shifted",
    "Standardised",
    "Times",
    "Transformed",
    "Weighed",
    "given_path",
    "norm_of",
]


class Around(nn.Module):
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


def given_path(model: nn.Module, path: str) -> str:
    """The path that a module of the changed model had before others were put around it."""
    module, kept = model, list[str]()
    for name in path.split(".") if path else ():
        inside = isinstance(module, Around) and name == "module"
        module = module.get_submodule(name)
        kept += [] if inside else [name]
    return ".".join(kept)


class Times(nn.Module):
    """``number * x``."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return self.number * x

    def extra_repr(self) -> str:
        return f"{self.number:g}"


class Shifted(Around):
    """``module(x + bias)``, one learned number that begins at 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.module = module

    def forward(self, *given: Any, **options: Any) -> Any:
        return _entering(self.module, lambda y: y + self.bias, given, options)


class Entered(Around):
    """``module(before(x))``; layers that read one tensor may share ``before``."""

    def __init__(self, module: nn.Module, before: nn.Module) -> None:
        super().__init__()
        self.module, self.before = module, before

    def forward(self, *given: Any, **options: Any) -> Any:
        return _entering(self.module, self.before, given, options)


def _entering(
    module: nn.Module,
    change: Callable[[Tensor], Tensor],
    given: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """What the module makes with the first tensor changed, wherever that stands among the
    arguments: queries, keys and values are one."""
    x = next((a for a in (*given, *options.values()) if isinstance(a, Tensor)), None)
    if x is None:
        return module(*given, **options)
    changed = change(x)
    named = {name: changed if a is x else a for name, a in options.items()}
    return module(*(changed if a is x else a for a in given), **named)


class Left(Around):
    """``after(module(...))``."""

    def __init__(self, module: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.module, self.after = module, after

    def forward(self, *given: Any, **options: Any) -> Any:
        return _first(self.module(*given, **options), self.after)


class Weighed(Around):
    """``number * W x + bias`` of a linear layer, whose bias keeps its size."""

    def __init__(self, module: nn.Linear, number: float) -> None:
        super().__init__()
        self.number = number
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        made = self.number * F.linear(x, self.module.weight)
        return made if self.module.bias is None else made + self.module.bias

    def extra_repr(self) -> str:
        return f"{self.number:g}"


class Transformed(Around):
    """``gamma * (module(alpha * x + beta) + delta)``, fixed numbers."""

    def __init__(
        self, module: nn.Module, alpha: float, beta: float, gamma: float, delta: float
    ) -> None:
        super().__init__()
        self.alpha, self.beta, self.gamma, self.delta = alpha, beta, gamma, delta
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.gamma * (self.module(self.alpha * x + self.beta) + self.delta)
        return made

    def extra_repr(self) -> str:
        numbers = (self.alpha, self.beta, self.gamma, self.delta)
        return "alpha={:g}, beta={:g}, gamma={:g}, delta={:g}".format(*numbers)


class Scaled(Around):
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


class PerChannel(Around):
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

    mean and variance over what enters one output; ``g`` is learned, one an output, from 1 on. A
    weight of a narrow format is standardised in float32 and rounded once. ``axis``: that of the
    outputs; of a transposed kernel, 1, it counts those of one of the ``groups``.
    """

    def __init__(self, outputs: int, gain: float, axis: int = 0, groups: int = 1) -> None:
        super().__init__()
        self.number, self.axis, self.groups = float(gain), axis, groups if axis else 1
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, weight: Tensor) -> Tensor:
        if self.groups == 1:
            return self._standardised(weight)
        each = weight.chunk(self.groups)
        gains = self.gain.chunk(self.groups)
        return torch.cat([self._standardised(w, g) for w, g in zip(each, gains, strict=True)])

    def _standardised(self, weight: Tensor, gain: Tensor | None = None) -> Tensor:
        gain = self.gain if gain is None else gain
        turned = weight.transpose(0, self.axis) if self.axis else weight
        flat = wide(turned.flatten(1))
        variance, mean = torch.var_mean(flat, 1, correction=0, keepdim=True)
        scale = torch.rsqrt((variance * flat.shape[1]).clamp_min(1e-4)) * self.number
        whole = ((flat - mean) * (scale * gain[:, None])).to(weight.dtype).view_as(turned)
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


class _Rows(nn.Module):
    """A norm that wants channels second, over the last axis of rows or tokens."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.norm(x.flatten(0, -2))
        return rows.view_as(x)


class _Channels(nn.Module):
    """A norm that wants channels last, over those of axis ``axis``."""

    def __init__(self, norm: nn.Module, axis: int) -> None:
        super().__init__()
        self.norm, self.axis = norm, axis

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.norm(x.movedim(self.axis, -1))
        return last.movedim(-1, self.axis)


def norm_of(kind: str, width: int, axis: int = -1) -> nn.Module:
    """A new norm over ``width`` channels: ``axis`` -1 for rows and tokens, -2 for sequences with
    channels second, -3 for images.

    Raises NetworkError for a kind that there is no module of.
    """
    images = axis != -1  # or sequences
    match kind:
        case "dyt" | "derf":
            return _Bounded(width, kind, axis)
        case "batchnorm":
            if axis == -3:
                return nn.BatchNorm2d(width)
            return nn.BatchNorm1d(width) if images else _Rows(nn.BatchNorm1d(width))
        case "groupnorm":
            groups = math.gcd(width, 32)
            while not images and groups > 1 and width // groups < 16:
                groups //= 2  # a group of one channel of one token is its own mean
            return nn.GroupNorm(groups, width) if images else _Rows(nn.GroupNorm(groups, width))
        case "layernorm" | "rmsnorm":
            made = nn.LayerNorm(width) if kind == "layernorm" else nn.RMSNorm(width)
            return _Channels(made, axis) if images else made
    raise NetworkError(
        f"there is no module of {kind}; use layernorm, rmsnorm, batchnorm, groupnorm, dyt or derf"
    )
