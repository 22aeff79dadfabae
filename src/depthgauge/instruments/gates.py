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
from numpy.typing import NDArray
from torch import Tensor

from depthgauge.instruments.rivers import GATHERED_ELEMENTS, wide
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
        self._gathered: dict[Gate, list[tuple[int, Tensor, Tensor]]] = {}
        self._elements = 0

    def see(self, row: int, rule: Gate, z: Tensor, y: Tensor) -> None:
        """Take one activation's input and output, ``(E, ...)``; without E for a single member."""
        if not self._statistics:
            return
        self._gathered.setdefault(rule, []).append((row, z, y))
        self._elements += z.numel()
        if self._elements >= GATHERED_ELEMENTS:
            self.flush()

    def flush(self) -> None:
        """Reduce what has been gathered; called once more after the last activation."""
        for rule, seen in self._gathered.items():
            rows, inputs, outputs = zip(*seen, strict=True)
            shares = self._reduce(rule, self._together(inputs), self._together(outputs))
            for name, share in zip(self._statistics, shares, strict=True):
                self.values[name][list(rows)] = share
        self._gathered, self._elements = {}, 0

    def _together(self, tensors: Sequence[Tensor]) -> Tensor:
        """``(rows, E, ...)``, in a precision for statistics."""
        one = tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tuple(tensors))
        return wide(one.detach() if self._members > 1 else one.detach().unsqueeze(1))

    def _reduce(self, rule: Gate, z: Tensor, y: Tensor) -> NDArray[np.float64]:
        """The shares of each row and member: ``(statistics, rows, E)``."""
        if rule.kind == "relu" and self._statistics == ("live",):
            shares = [_share(y.sign())]  # y > 0 exactly where z > 0
        else:
            shares = self._shares(rule.derivative(z, y).abs_(), y)
        # A comparison with NaN is False: without this a lost state would look merely flat.
        lost = y.flatten(2).amax(2).isnan()
        return torch.stack(shares).masked_fill(lost, torch.nan).cpu().numpy()

    def _shares(self, slope: Tensor, y: Tensor) -> list[Tensor]:
        shares = []
        for name in self._statistics:
            if name == "live":
                marks = slope > LIVE
            elif name == "saturated":
                marks = slope < SATURATED
            else:
                units = y.dim() + self._width_axis
                others = [axis for axis in range(2, y.dim()) if axis != units]
                marks = torch.maximum(slope, y.abs()).amax(others) <= DEAD
            shares.append(_share(marks))
        return shares


def _share(marks: Tensor) -> Tensor:
    """Mean of marks of 0 and 1 for each row and member: ``(rows, E, ...) -> (rows, E)``."""
    marks = marks.flatten(2)
    return marks.sum(2, dtype=torch.float64) / marks.shape[2]
