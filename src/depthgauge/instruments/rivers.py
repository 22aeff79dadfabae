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
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

#: Tensors are gathered and reduced together until they hold this many elements: small states are
#: cheaper together, large ones are reduced at once, without a copy.
GATHERED_ELEMENTS = 1 << 17

QUANTILES: Final[dict[str, float]] = {"q01": 0.01, "q50": 0.5, "q99": 0.99, "q999": 0.999}


def wide(x: Tensor) -> Tensor:
    """``x`` in a precision in which statistics may be taken: float32 or wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms(x: Tensor) -> Tensor:
    """Root mean square over the last axis: ``(..., N) -> (...)``, inf and NaN kept."""
    root: Tensor = torch.linalg.vector_norm(x, dim=-1) / math.sqrt(x.shape[-1])
    # Below this the squares lose digits to underflow.
    floor = 1e-18 if x.dtype == torch.float32 else 1e-150
    if bool(((root > floor) & (root < math.inf)).all()):
        return root
    top = largest(x).double()
    scaled = x.double() / torch.where((top > 0) & (top < math.inf), top, 1.0).unsqueeze(-1)
    exact = torch.linalg.vector_norm(scaled, dim=-1) / math.sqrt(x.shape[-1]) * top
    return torch.where(top.isinf(), top, exact)


def largest(x: Tensor) -> Tensor:
    """Largest magnitude over the last axis; NaN if there is one."""
    return x.abs().amax(-1)


def nonfinite(x: Tensor) -> Tensor:
    """Share of elements over the last axis that are inf or NaN."""
    if bool(largest(x).isfinite().all()):
        return x.new_zeros(x.shape[:-1])
    return 1 - x.isfinite().to(torch.float64).mean(-1)


def quantiles(x: Tensor) -> Tensor:
    """Quantiles of magnitude over the last axis: ``(..., N) -> (len(QUANTILES), ...)``.

    NaN counts as the largest magnitude, so that it is seen in the upper quantiles.
    """
    count = x.shape[-1]
    places = [max(math.ceil(q * count), 1) - 1 for q in QUANTILES.values()]
    magnitude = x.abs()
    if x.device.type == "cpu":  # selection is several times faster than sorting
        picked = np.partition(magnitude.numpy(), places, axis=-1)[..., places]
        return torch.from_numpy(np.moveaxis(picked, -1, 0))
    return magnitude.sort(-1).values[..., places].movedim(-1, 0)


_SINGLE: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "rms": rms,
    "mean": lambda x: x.mean(-1),
    "max": largest,
    "nonfinite": nonfinite,
}


class River:
    """Statistics of one river at ``rows`` places for ``members`` networks.

    ``statistics`` are names of this file's head; ``values[name]`` is ``(rows, members)``, NaN until
    seen.
    """

    def __init__(self, statistics: Sequence[str], rows: int, members: int) -> None:
        self._single = [name for name in statistics if name in _SINGLE]
        self._quantiles = [name for name in statistics if name in QUANTILES]
        self._members = members
        self.values = {name: np.full((rows, members), np.nan) for name in statistics}
        self._rows: list[int] = []
        self._gathered: list[Tensor] = []
        self._elements = 0

    def see(self, row: int, x: Tensor) -> None:
        """Take the state or gradient at this place: ``(E, ...)``, or ``(...)`` for one member."""
        self._rows.append(row)
        self._gathered.append(x)
        self._elements += x.numel()
        if self._elements >= GATHERED_ELEMENTS:
            self.flush()

    def flush(self) -> None:
        """Reduce what has been gathered; called once more after the last place."""
        if not self._gathered:
            return
        gathered = self._gathered
        x = gathered[0].unsqueeze(0) if len(gathered) == 1 else torch.stack(gathered)
        x = wide(x.detach()).reshape(len(gathered), self._members, -1)
        for name in self._single:
            self.values[name][self._rows] = _SINGLE[name](x).double().cpu().numpy()
        if self._quantiles:
            picked = dict(zip(QUANTILES, quantiles(x).double().cpu().numpy(), strict=True))
            for name in self._quantiles:
                self.values[name][self._rows] = picked[name]
        self._rows, self._gathered, self._elements = [], [], 0
