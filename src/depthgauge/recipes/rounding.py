"""How far numbers lie from what they were computed as, by the format that holds them.

A number that is rounded once is off by at most half of its format's eps, relative to itself. Of n
such numbers, each off by what it happens to be, a mean is off by at most that, and by five standard
errors of a uniform error,

    min(u, 5 u / sqrt(3 n)),   u = eps / 2: bfloat16 0.0039, float16 0.00049, float32 6e-8

relative to their root mean square; their root mean square itself by twice that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["coarsest", "of_mean", "rounding", "wide"]


def rounding(dtype: torch.dtype) -> float:
    """What one rounding moves a number by at most, relative to it; 0 of integers."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point or dtype.is_complex else 0.0


def of_mean(dtype: torch.dtype, numbers: int) -> float:
    """What it moves the mean of so many numbers by."""
    return rounding(dtype) * min(1.0, 5 / math.sqrt(3 * max(numbers, 1)))


def coarsest(tensors: Iterable[Tensor]) -> float:
    """The rounding of the coarsest format among the tensors."""
    return max((rounding(tensor.dtype) for tensor in tensors), default=0.0)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 where its format is narrower: to compute in, and round once after."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
