"""Gates: how many derivatives of each activation are live, flat, or gone with the unit.

    live       share of pre-activations z, over examples, positions and units, with |phi'(z)| > 0.1
               (ReLU: z > 0)
    saturated  share with |phi'(z)| < 0.01
    q05 ...    quantiles of |phi'(z)|: the ceil(q N)-th smallest, an element that exists
    dead       share of units for which |phi(z)| <= 1e-6 and |phi'(z)| <= 1e-6 for every example and
               position of the batch

Three different questions: a tanh can be 99.9 per cent live while the state has lost its magnitude,
and a ReLU unit that is off for half of the batch is neither live there nor dead. A pre-activation
that is NaN makes all of them NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments.rivers import places, quantiles, wide
from depthgauge.network.activations import Gate

LIVE, SATURATED, DEAD = 0.1, 0.01, 1e-6
QUANTILES: Final = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
STATISTICS: Final = ("live", "saturated", "dead", *QUANTILES)


class Gates:
    """Statistics of the activations of ``members`` networks, seen together.

    ``values[name]`` is ``(rows, members)``; a row is one activation of one block. ``width_axis`` is
    the position of the units, from the right.
    """

    def __init__(self, statistics: Sequence[str], rows: int, members: int, width_axis: int) -> None:
        self._statistics = tuple(statistics)
        self._members, self._width_axis = members, width_axis
        self.values = {name: np.full((rows, members), np.nan) for name in statistics}

    def see(self, row: int, rule: Gate, z: Tensor, y: Tensor) -> None:
        """Reduce one activation's input and output, ``(E, ...)``; without E for a single member."""
        if not self._statistics:
            return
        z, y = wide(z.detach()), wide(y.detach())
        if self._members == 1:
            z, y = z.unsqueeze(0), y.unsqueeze(0)
        # A comparison with NaN is False: without this a lost state would look merely flat.
        lost = [math.isnan(top) for top in y.flatten(1).amax(1).tolist()]
        slope = None
        for name in self._statistics:
            if name in QUANTILES:
                continue
            if name == "live" and rule.kind == "relu":
                marks = _positive(y)  # exactly where z > 0
            else:
                slope = rule.derivative(z, y).abs_() if slope is None else slope
                marks = self._marks(name, slope, y)
            self.values[name][row] = [
                math.nan if gone else share
                for share, gone in zip(_shares(marks), lost, strict=True)
            ]

        if wanted := [name for name in self._statistics if name in QUANTILES]:
            slope = rule.derivative(z, y).abs_() if slope is None else slope
            found = quantiles(slope.flatten(1), [QUANTILES[name] for name in wanted])
            gone = torch.tensor(lost)
            for name, values in zip(wanted, found.cpu(), strict=True):
                self.values[name][row] = values.double().masked_fill(gone, math.nan)

    def _marks(self, name: str, slope: Tensor, y: Tensor) -> Tensor:
        if name == "live":
            return slope > LIVE
        if name == "saturated":
            return slope < SATURATED
        units = y.dim() + self._width_axis
        others = [axis for axis in range(1, y.dim()) if axis != units]
        return torch.maximum(slope, y.abs()).amax(others) <= DEAD


def of_one(names: Sequence[str], rule: Gate, z: Tensor, y: Tensor) -> dict[str, float]:
    """Shares and quantiles, all but ``dead``, of one flat input and output; one sort gives all."""
    if math.isnan(y.amax().item()):
        return dict.fromkeys(names, math.nan)
    at = places(z.numel(), QUANTILES.values())
    if rule.kind == "relu":  # slopes are 0 and 1: how many there are of each says all
        flat = below = z.numel() - int((z > 0).count_nonzero())
        picked = [float(i >= flat) for i in at]
    else:
        slope = np.sort(np.abs(rule.derivative(z, y).cpu().numpy()))
        flat = int(np.searchsorted(slope, LIVE, "right"))
        below = int(np.searchsorted(slope, SATURATED, "left"))
        picked = slope[at].tolist()
    found = {"live": 1 - flat / z.numel(), "saturated": below / z.numel()}
    found.update(zip(QUANTILES, picked, strict=True))
    return {name: float(found[name]) for name in names}


def _positive(y: Tensor) -> Tensor:
    """``y > 0``; NumPy compares faster than PyTorch does."""
    return torch.from_numpy(y.numpy() > 0) if y.device.type == "cpu" else y > 0


def _shares(marks: Tensor) -> list[float]:
    """The share of true marks of each member: ``(E, ...) -> E numbers``."""
    if marks.device.type == "cpu":  # NumPy counts true bytes several times faster than a sum does
        each = marks.numpy()
        return [np.count_nonzero(one) / one.size for one in each]
    found: list[float] = marks.flatten(1).double().mean(1).tolist()
    return found
