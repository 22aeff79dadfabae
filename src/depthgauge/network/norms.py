"""Norms in PyTorch, over the axes of a state named in ``layers.LAYOUT_AXES``.

    layernorm   (x - mean) / sqrt(var + eps), biased variance        Ba et al. 1607.06450
    rmsnorm     x / sqrt(mean(x^2) + eps)                             Zhang and Sennrich 1910.07467
    batchnorm   layernorm's formula over every axis but the width     Ioffe and Szegedy 1502.03167
    groupnorm   layernorm's formula over a group of channels and space  Wu and He 1803.08494
    scalenorm   g x / max(|x|, eps)                                   Nguyen and Salazar 1910.05895
    dyt         tanh(alpha x)                                         Zhu et al. 2503.10622
    derf        erf(alpha x + shift)                                  Chen et al. 2512.10938

``eps_at="outside"``: the root is taken first, ``x / (rms + eps)``. Batch norm uses the batch's own
statistics, as in training. Any axes may stand in front of the state's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from depthgauge.equation.functions import AXES
from depthgauge.errors import NetworkError
from depthgauge.network.layers import LAYOUT_AXES, Layout

Normalise = Callable[[Tensor], Tensor]


def width_axis(layout: Layout) -> int:
    """The position of the width, from the right."""
    axes = LAYOUT_AXES[layout]
    return axes.index("width") - len(axes)


def axes_of(kind: str, axis: str | None, layout: Layout) -> tuple[int, ...]:
    """The axes a norm reduces over, from the right."""
    names = LAYOUT_AXES[layout]
    if axis is None:
        wanted = {name for name in names if name != "width"} if kind == "batchnorm" else {"width"}
    else:
        wanted = set(axis.split("+"))
        missing = [name for name in AXES if name in wanted and name not in names]
        if missing:
            raise NetworkError(
                f"{kind} has axis='{axis}', but a state of ({', '.join(dict.fromkeys(names))}) has "
                f"no axis {missing[0]}; choose out of {', '.join(dict.fromkeys(names))}"
            )
    return tuple(i - len(names) for i, name in enumerate(names) if name in wanted)


@dataclass(frozen=True, slots=True)
class Standardise:
    """``(x - mean) / sqrt(square + eps)``; without ``centred`` the mean is 0."""

    axes: tuple[int, ...]
    eps: float
    inside: bool
    centred: bool

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and mean square over the axes, which are kept with size 1."""
        if not self.centred:
            return x.new_zeros(()), x.square().mean(self.axes, keepdim=True)
        mean = x.mean(self.axes, keepdim=True)
        return mean, (x - mean).square().mean(self.axes, keepdim=True)

    def apply(self, x: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        root = (square + self.eps).sqrt() if self.inside else square.sqrt() + self.eps
        return (x - mean if self.centred else x) / root

    def __call__(self, x: Tensor) -> Tensor:
        if self.inside:
            return self.apply(x, *self.statistics(x))
        if self.centred:
            x = x - x.mean(self.axes, keepdim=True)
        # vector_norm has the subgradient 0 at 0, where a square root has none
        count = math.prod(x.shape[axis] for axis in self.axes)
        return x / (_length(x, self.axes) / math.sqrt(count) + self.eps)


def _length(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return length


@dataclass(frozen=True, slots=True)
class RootMeanSquare:
    """``x / sqrt(mean(x^2) + eps)`` over the last axis, in PyTorch's kernel."""

    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)

    def once(self, x: Tensor) -> Tensor:
        """The same for a single backward pass: in float64 PyTorch's takes four times as long."""
        if x.dtype != torch.float64:
            return self(x)
        y: Tensor = _RootMeanSquare.apply(x, self.eps)  # type: ignore[no-untyped-call]
        return y


class _RootMeanSquare(torch.autograd.Function):
    """``y = r x``, ``r = 1 / sqrt(mean(x^2) + eps)``; backward ``r (g - y mean(g y))``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        r = _length(x, (-1,)).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        y, r = ctx.saved_tensors
        along = torch.linalg.vecdot(g, y).unsqueeze_(-1).div_(-y.shape[-1])
        return torch.addcmul(g, y, along).mul_(r), None


def over_batch(kind: str, options: dict[str, Any]) -> bool:
    """Whether the norm mixes examples, so that a trained network needs running statistics."""
    axis = options.get("axis")
    return "batch" in axis.split("+") if axis else kind == "batchnorm"


def normaliser(kind: str, options: dict[str, Any], layout: Layout) -> Normalise:
    """The norm without its learnable parts; ``options`` are numbers and words, not scalars."""
    eps, inside = options["eps"], options.get("eps_at", "inside") == "inside"
    if kind == "groupnorm":
        return _group(int(options["groups"]), eps, inside, layout)
    axes = axes_of(kind, options["axis"], layout)
    if kind == "scalenorm":
        return lambda x: x / _length(x, axes).clamp_min(eps)
    if axes == (-1,) and inside and not over_batch(kind, options):
        # the fused kernels need the normalised axis last
        if kind == "rmsnorm":
            return RootMeanSquare(eps)
        return lambda x: F.layer_norm(x, x.shape[-1:], eps=eps)
    return Standardise(axes, eps, inside, centred=kind != "rmsnorm")


def of_heads(kind: str) -> Normalise:
    """The norm of queries or keys over the features of a head, the last axis; ``l2``: x / |x|."""
    match kind:
        case "l2":
            return lambda x: F.normalize(x, dim=-1)
        case "rmsnorm":
            return RootMeanSquare(1e-6)
    return lambda x: F.layer_norm(x, x.shape[-1:])


def _group(groups: int, eps: float, inside: bool, layout: Layout) -> Normalise:
    width = width_axis(layout)
    space = (-2, -1) if layout == "images" else ()
    standardise = Standardise((width, *space), eps, inside, centred=True)

    def apply(x: Tensor) -> Tensor:
        axis = x.dim() + width
        split = x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
        return standardise(split).flatten(axis, axis + 1)

    return apply
