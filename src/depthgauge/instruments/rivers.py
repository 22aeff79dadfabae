"""The two rivers: statistics of every state and of the gradient that reaches it.

``E`` members of an ensemble, ``N`` elements of one state (examples, tokens, width, space). Every
statistic is over the N elements of one member; nothing is averaged over members.

    rms       sqrt(mean(x^2))          no mean subtracted, every element counts once
    mean      mean(x)
    max       max |x|
    q01 ...   quantiles of |x|: the ceil(q N)-th smallest, an element that exists
    nonfinite share of elements that are inf or NaN

float16 and bfloat16 are cast to float32 first. Where squares would overflow or underflow, the RMS
is taken again in float64 with the largest magnitude divided out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments.correlation import STATISTICS, of_examples, of_tokens

QUANTILES: Final[dict[str, float]] = {"q01": 0.01, "q50": 0.5, "q99": 0.99, "q999": 0.999}


def wide(x: Tensor) -> Tensor:
    """``x`` in a precision in which statistics may be taken: float32 or wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms(x: Tensor) -> list[float]:
    """Root mean square of each row of ``(E, N)``, inf and NaN kept."""
    count = math.sqrt(x.shape[-1])
    roots: list[float] = torch.linalg.vector_norm(x, dim=-1).tolist()
    # Below the floor squares lose digits to underflow; at infinity they have overflowed.
    floor = 1e-16 if x.dtype == torch.float32 else 1e-148
    return [
        root / count if floor < root < math.inf else _rms_by_largest(x[e])
        for e, root in enumerate(roots)
    ]


def _rms_by_largest(x: Tensor) -> float:
    """The RMS in float64 with the largest magnitude divided out: no square leaves the range."""
    top = x.abs().max().item()
    if not 0 < top < math.inf:
        return top
    scaled = x.double() / top
    return top * scaled.square().mean().sqrt().item()


def largest(x: Tensor) -> list[float]:
    """Largest magnitude of each row; NaN if there is one."""
    found: list[float] = x.abs().amax(-1).tolist()
    return found


def nonfinite(x: Tensor) -> list[float]:
    """Share of the elements of each row that are inf or NaN."""
    if all(map(math.isfinite, largest(x))):
        return [0.0] * len(x)
    found: list[float] = (1 - x.isfinite().double().mean(-1)).tolist()
    return found


def mean(x: Tensor) -> list[float]:
    found: list[float] = x.mean(-1, dtype=torch.float64).tolist()  # a float32 sum may overflow
    return found


def quantiles(x: Tensor, shares: Sequence[float] = tuple(QUANTILES.values())) -> Tensor:
    """Quantiles of magnitude over the last axis: ``(..., N) -> (len(shares), ...)``.

    NaN counts as the largest magnitude, so that it is seen in the upper quantiles.
    """
    magnitude = x.abs()
    if x.device.type == "cpu":  # NumPy sorts with vector instructions; selecting is slower
        ordered = torch.from_numpy(np.sort(magnitude.numpy(), axis=-1))
    else:
        ordered = magnitude.sort(-1).values
    return ordered[..., places(x.shape[-1], shares)].movedim(-1, 0)


def places(count: int, shares: Iterable[float]) -> list[int]:
    """Where the quantiles stand among ``count`` elements in order: the ceil(q N)-th, from 0."""
    return [max(math.ceil(q * count), 1) - 1 for q in shares]


SINGLE: Final[dict[str, Callable[[Tensor], list[float]]]] = {
    "rms": rms,
    "mean": mean,
    "max": largest,
    "nonfinite": nonfinite,
}


class River:
    """Statistics of one river at ``rows`` places for ``members`` networks.

    ``statistics`` are names of this file's head; ``values[name]`` is ``(rows, members)``, NaN until
    seen.
    """

    def __init__(self, statistics: Sequence[str], rows: int, members: int) -> None:
        self._single = [name for name in statistics if name in SINGLE]
        self._between = [name for name in statistics if name in STATISTICS]
        self._quantiles = [name for name in statistics if name in QUANTILES]
        self._members = members
        self.values = {name: np.full((rows, members), np.nan) for name in statistics}

    def see(self, row: int, x: Tensor) -> None:
        """Reduce the state or gradient at this place: ``(E, ...)``, without E for one member."""
        x = wide(x.detach())
        for name in self._between:
            between = of_examples if name == "correlation" else of_tokens
            self.values[name][row] = between(x if self._members > 1 else x.unsqueeze(0))
        x = x.reshape(self._members, -1)
        for name in self._single:
            self.values[name][row] = SINGLE[name](x)
        if self._quantiles:
            picked = dict(zip(QUANTILES, quantiles(x).cpu(), strict=True))
            for name in self._quantiles:
                self.values[name][row] = picked[name]
