"""Gates: how many derivatives of each activation are live, flat, or gone with the unit.

    live       share of pre-activations z, over examples, positions and units, with |phi'(z)| > 0.1
               (ReLU: z > 0)
    saturated  share with |phi'(z)| < 0.01
    dead       share of units for which |phi(z)| <= 1e-6 and |phi'(z)| <= 1e-6 for every example and
               position of the batch

Three different questions: a tanh can be 99.9 per cent live while the state has lost its magnitude,
and a ReLU unit that is off for half of the batch is neither live there nor dead. A pre-activation
that is NaN makes all three NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments.rivers import wide
from depthgauge.network.activations import Gate

LIVE, SATURATED, DEAD = 0.1, 0.01, 1e-6
STATISTICS: Final = ("live", "saturated", "dead")


class Gates:
    """Statistics of the activations of ``members`` networks, seen together.

    ``values[name]`` is ``(rows, members)``; a row is one activation of one block. ``width_axis`` is
    the position of the units, from the right.
    """

    def __init__(self, statistics: Sequence[str], rows: int, members: int, width_axis: int) -> None:
        self._statistics = tuple(statistics)
        self._members, self._width_axis = members, width_axis
        self.values = {name: np.full((rows, members), np.nan) for name in statistics}
        self._rows: list[int] = []
        self._seen: list[Tensor] = []

    def see(self, row: int, rule: Gate, z: Tensor, y: Tensor) -> None:
        """Take one activation's input and output, ``(E, ...)``; without E for a single member."""
        if not self._statistics:
            return
        z, y = wide(z.detach()), wide(y.detach())
        if self._members == 1:
            z, y = z.unsqueeze(0), y.unsqueeze(0)
        if rule.kind == "relu" and self._statistics == ("live",):
            shares = [_share(y.sign())]  # y > 0 exactly where z > 0
        else:
            shares = self._shares(rule.derivative(z, y).abs_(), y)
        # A comparison with NaN is False: without this a lost state would look merely flat.
        lost = y.flatten(1).amax(1).isnan()
        self._rows.append(row)
        self._seen.append(torch.stack([*shares, lost.double()]))

    def flush(self) -> None:
        """Move what has been seen into ``values``; called once after the last activation."""
        if self._seen:
            *shares, lost = torch.stack(self._seen, 1).cpu().numpy()
            for name, share in zip(self._statistics, shares, strict=True):
                self.values[name][self._rows] = np.where(lost > 0, np.nan, share)
        self._rows, self._seen = [], []

    def _shares(self, slope: Tensor, y: Tensor) -> list[Tensor]:
        shares = []
        for name in self._statistics:
            if name == "live":
                marks = slope > LIVE
            elif name == "saturated":
                marks = slope < SATURATED
            else:
                units = y.dim() + self._width_axis
                others = [axis for axis in range(1, y.dim()) if axis != units]
                marks = torch.maximum(slope, y.abs()).amax(others) <= DEAD
            shares.append(_share(marks))
        return shares


def _share(marks: Tensor) -> Tensor:
    """Mean of marks of 0 and 1 for each member: ``(E, ...) -> (E,)``."""
    marks = marks.flatten(1)
    return marks.sum(1, dtype=torch.float64) / marks.shape[1]
