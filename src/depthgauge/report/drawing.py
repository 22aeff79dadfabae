"""Figures before anybody draws them: curves over blocks, and effects with their spread.

A figure knows what it shows in words: ``summary`` is the sentence for who cannot see it, ``rows``
the numbers behind it. Index legend: ``P`` points kept of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from depthgauge.profile_text import number
from depthgauge.sites import FloatArray

__all__ = [
    "CURVE_COLUMNS",
    "EFFECT_COLUMNS",
    "Effect",
    "EffectFigure",
    "Figure",
    "Line",
    "Panel",
    "Style",
]

#: What the numbers of a figure over blocks are called, and which of them are numbers.
CURVE_COLUMNS: Final = {
    "curve": False,
    "first": True,
    "last": True,
    "least": True,
    "at": True,
    "largest": True,
    "at ": True,
    "seeds": True,
    "note": False,
}
EFFECT_COLUMNS: Final = {"change": False, "quantity": False, "effect": True, "spread": False}


class Style(NamedTuple):
    """How a curve is told from others: numbers of a colour and of a dash (or a mark)."""

    colour: int
    dash: int


@dataclass(frozen=True, eq=False)
class Line:
    """One configuration's quantity over blocks: median and band over seeds, each of shape (P,).

    NaN is a gap: no seed has a value there that can be drawn. ``configuration`` and ``depth`` are
    what a legend shows and hides it by, ``style`` is the same for both in every figure; ``blocks``
    is how many blocks were measured, of which ``x`` are kept; ``note`` says where values are
    missing, or nothing.
    """

    name: str
    configuration: str
    depth: int
    style: Style
    x: npt.NDArray[np.int64]
    middle: FloatArray
    low: FloatArray
    high: FloatArray
    seeds: int
    blocks: int
    note: str = ""

    def __post_init__(self) -> None:
        assert self.x.shape == self.middle.shape == self.low.shape == self.high.shape, self.name

    @property
    def has_band(self) -> bool:
        return self.seeds > 1

    @property
    def last(self) -> float:
        """The median at the last block; NaN where it is a gap."""
        return float(self.middle[-1]) if self.middle.size else np.nan

    def row(self) -> tuple[str, ...]:
        """One cell for each of ``CURVE_COLUMNS``."""
        known = np.flatnonzero(np.isfinite(self.middle))
        if not known.size:
            return (self.name, *["-"] * 6, str(self.seeds), self.note or "nothing to draw")
        least = known[np.argmin(self.middle[known])]
        largest = known[np.argmax(self.middle[known])]
        ends = [_cell(self.middle[0]), _cell(self.middle[-1])]
        extremes = [
            cell for i in (least, largest) for cell in (_cell(self.middle[i]), str(self.x[i]))
        ]
        return (self.name, *ends, *extremes, str(self.seeds), self.note)


@dataclass(frozen=True)
class Panel:
    """One quantity; its axis is logarithmic or linear."""

    label: str
    unit: str
    log: bool
    lines: tuple[Line, ...]

    def summary(self, x: str = "block") -> str:
        """``State RMS of 15 curves: at the last block from 0.9 (a) to 1.5 (b); 1 has gaps.``"""
        many = f"{len(self.lines)} curves" if len(self.lines) > 1 else "one curve"
        ends = sorted((line.last, line.name) for line in self.lines if np.isfinite(line.last))
        broken = sum(bool(line.note) for line in self.lines)
        noted = f"; {broken} with gaps" if broken else ""
        if not ends:
            return f"{self.label} of {many}: no finite value at the last {x}{noted}."
        (low, least), (high, largest) = ends[0], ends[-1]
        if len(ends) == 1:
            return f"{self.label} of {many}: {number(low)} at the last {x} ({least}){noted}."
        return (
            f"{self.label} of {many}: at the last {x} from {number(low)} ({least}) "
            f"to {number(high)} ({largest}){noted}."
        )


@dataclass(frozen=True)
class Figure:
    """Panels above each other over one axis: ``x`` is what its numbers are, ``block`` or
    ``depth``, of which the second is logarithmic."""

    anchor: str
    title: str
    panels: tuple[Panel, ...]
    caption: str
    x: Literal["block", "depth"] = "block"

    def summary(self) -> str:
        return " ".join(panel.summary(self.x) for panel in self.panels)

    def lines(self) -> Iterator[Line]:
        return (line for panel in self.panels for line in panel.lines)

    def names(self) -> dict[str, Style]:
        """Every configuration and the style of its deepest curve, in order: the legend."""
        found: dict[str, Line] = {}
        for line in self.lines():
            if line.depth > found.setdefault(line.configuration, line).depth:
                found[line.configuration] = line
        return {name: line.style for name, line in found.items()}

    def depths(self) -> dict[int, Style]:
        """Every depth and the style of its first curve, the shallowest first."""
        found: dict[int, Style] = {}
        for line in sorted(self.lines(), key=lambda line: line.depth):
            found.setdefault(line.depth, line.style)
        return found

    def seeds(self) -> str:
        """``"Medians over 3 seeds."``: what one number of a curve is."""
        numbers = {line.seeds for line in self.lines()}
        low, high = min(numbers), max(numbers)
        if high == 1:
            return "One seed."
        return f"Medians over {low if low == high else f'{low} to {high}'} seeds."

    def thinned(self) -> tuple[int, int] | None:
        """Blocks measured and points kept of the curve that lost most; ``None``: none lost any."""
        lost = [(line.blocks, line.x.size) for line in self.lines() if line.x.size < line.blocks]
        return max(lost, key=lambda pair: pair[0] / max(1, pair[1]), default=None)


@dataclass(frozen=True)
class Effect:
    """What one change did to one quantity: the median over seeds, paired by seed, and its range."""

    change: str
    quantity: str
    value: float
    low: float
    high: float

    def row(self) -> tuple[str, ...]:
        """One cell for each of ``EFFECT_COLUMNS``."""
        spread = f"[{number(self.low)}, {number(self.high)}]"
        return self.change, self.quantity, f"{self.value:+.3g}", spread


@dataclass(frozen=True)
class EffectFigure:
    """Changes as rows, the effect on each quantity as a mark with its spread."""

    anchor: str
    title: str
    unit: str
    effects: tuple[Effect, ...]
    caption: str

    def names(self) -> dict[str, Style]:
        """Every quantity and its style, in order: the legend."""
        found = dict.fromkeys(effect.quantity for effect in self.effects)
        return {name: Style(i, i) for i, name in enumerate(found)}

    def changes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(effect.change for effect in self.effects))

    def summary(self) -> str:
        """The largest effect in words."""
        known = [effect for effect in self.effects if np.isfinite(effect.value)]
        n = len(self.names())
        many = f"{len(self.changes())} changes, {n} quantit{'y' if n == 1 else 'ies'}"
        if not known:
            return f"{many}; no effect is finite."
        most = max(known, key=lambda effect: abs(effect.value))
        return (
            f"{many}; the largest effect is {most.value:+.3g} ({self.unit}) on {most.quantity} "
            f"by {most.change}."
        )

    def of(self, quantity: str) -> Iterator[Effect]:
        return (effect for effect in self.effects if effect.quantity == quantity)


def _cell(value: float) -> str:
    return number(value) if np.isfinite(value) else "-"
