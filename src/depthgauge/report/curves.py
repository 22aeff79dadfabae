"""A record's curves as lines to draw: median and band over seeds, thinned to what a screen shows.

    band = quantiles 0.1 and 0.9 over seeds, outward to a seed that exists

so that with fewer than 11 seeds it is the least and the largest. A seed counts at a block only
where its value can be drawn: finite, and on a logarithmic axis positive.

Index legend: ``B`` blocks, ``K`` seeds, ``P`` points kept.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from depthgauge.errors import UsageError
from depthgauge.report.drawing import Line, Style
from depthgauge.report.page import clean
from depthgauge.sites import QUANTITIES, FloatArray

__all__ = ["Curves", "band", "kept", "line_of", "points_each"]

QUANTILE: Final = 0.1
#: Colours before the first comes again.
COLOURS: Final = 7
#: Points of a curve that a screen can tell apart, and the fewest that still look like it.
MOST, FEWEST = 600, 48
#: Numbers in all curves of a page: at eight bytes each well under three megabytes.
NUMBERS: Final = 320_000

#: Quantities of the gradient that do not begin with its name.
_OF_GRADIENTS: Final = (
    "relative_error_gradient",
    "flushed_gradient_fraction",
    "underflow_headroom_bits",
)

IntArray = npt.NDArray[np.int64]


def points_each(lines: int) -> int:
    """How many points each of so many lines may have; a line is four numbers a point."""
    return max(FEWEST, min(MOST, NUMBERS // (4 * max(1, lines))))


def band(values: FloatArray, log: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Median, low and high over seeds at each block, from (B, K) to (B,) each; NaN: no seed."""
    usable = np.isfinite(values) & ((values > 0) | (not log))
    ordered = np.sort(np.where(usable, values, np.nan), axis=1)  # NaN comes last
    n = usable.sum(axis=1)
    top = np.maximum(n - 1, 0)

    def at(index: IntArray) -> FloatArray:
        picked: FloatArray = np.take_along_axis(ordered, index[:, None], axis=1)[:, 0]
        return picked

    low = at(np.floor(QUANTILE * top + 1e-9).astype(np.int64))
    high = at(np.ceil((1 - QUANTILE) * top - 1e-9).astype(np.int64))
    a, b = at(top // 2), at((top + 1) // 2)
    # Halves first: a sum of two large numbers would overflow.
    return np.where(a == b, a, a / 2 + b / 2), low, high


def kept(middle: FloatArray, low: FloatArray, high: FloatArray, points: int) -> IntArray:
    """Which of B points to keep, at most about ``points``, in order.

    Of each stretch the least and largest median and the farthest of the band; the first and the
    last point of all; and both sides of every gap while there are few of them.
    """
    total = middle.size
    if total <= points:
        return np.arange(total)
    edges = np.linspace(0, total, max(2, points // 4) + 1).astype(np.int64)
    chosen = [0, total - 1]
    for start, stop in itertools.pairwise(edges):
        known = start + np.flatnonzero(np.isfinite(middle[start:stop]))
        if not known.size:
            chosen.append(int(start))  # a gap stays a gap
            continue
        for values, pick in (
            (middle, np.argmin),
            (middle, np.argmax),
            (low, np.argmin),
            (high, np.argmax),
        ):
            chosen.append(int(known[pick(values[known])]))
    holes = np.flatnonzero(np.diff(np.isfinite(middle).astype(np.int8)))[: points // 8]
    chosen += [int(i) for hole in holes for i in (hole, hole + 1)]
    return np.unique(np.array(chosen, dtype=np.int64))


class Naming(NamedTuple):
    """What a curve is called, and how it is told from others."""

    name: str
    configuration: str
    depth: int
    style: Style


def line_of(
    naming: Naming, blocks: IntArray, values: FloatArray, log: bool, points: int, note: str
) -> Line:
    """The line of ``values``, shape (B, K), thinned to about ``points``."""
    middle, low, high = band(values, log)
    keep = kept(middle, low, high, points)
    drawn = (blocks[keep], middle[keep], low[keep], high[keep])
    return Line(*naming, *drawn, values.shape[1], blocks.size, note)


class Curves:
    """The curves of a record by quantity, each configuration with one name and one style."""

    def __init__(self, record: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        listed: Sequence[Mapping[str, Any]] = record.get("curves", [])
        #: Quantity -> name of the curve -> how it is called and drawn, its entry in the record.
        self._of: dict[str, dict[str, tuple[Naming, Mapping[str, Any]]]] = {}
        for naming, curve in zip(_named(listed), listed, strict=True):
            self._of.setdefault(curve["quantity"], {}).setdefault(naming.name, (naming, curve))

    def quantities(self) -> tuple[str, ...]:
        """What was measured, in the record's order."""
        return tuple(self._of)

    def count(self, quantities: Sequence[str]) -> int:
        """How many lines those quantities are together."""
        return sum(len(self._of.get(name, ())) for name in quantities)

    def lines(self, quantity: str, points: int) -> tuple[Line, ...]:
        """One line for each configuration in which ``quantity`` was measured."""
        log = is_log(quantity)
        found = []
        for naming, curve in self._of.get(quantity, {}).values():
            blocks, values = self._values(curve)
            blocks, values = _by_block(quantity, blocks, values)
            note = _note(quantity, blocks, values, log)
            found.append(line_of(naming, blocks, values, log, points, note))
        return tuple(found)

    def spectrum(self, quantity: str, points: int) -> tuple[str, tuple[Line, ...]]:
        """The directions of one vector quantity, ``quantity[1]``, ``quantity[8]``, ... as lines.

        Each is a curve of natural logarithms, shown in decades; they are those of one curve's
        name, the deepest and first listed, which is returned with them (empty where there is
        none).
        """
        directions = {name: _rank(name, quantity) for name in self._of if _rank(name, quantity)}
        of = {name: naming for key in directions for name, (naming, _) in self._of[key].items()}
        if not of:
            return "", ()
        chosen = max(of.values(), key=lambda naming: naming.depth).name
        lines: list[Line] = []
        for key, rank in directions.items():
            if chosen in self._of[key]:
                naming, curve = self._of[key][chosen]
                name, i = f"direction {rank}", len(lines)
                blocks, logs = self._values(curve)
                decades = logs / np.log(10)
                note = _note(key, blocks, decades, False)
                own = Naming(name, name, naming.depth, Style(i, i))
                lines.append(line_of(own, blocks, decades, False, points, note))
        return chosen, tuple(lines)

    def by_depth(self, quantity: str) -> dict[str, dict[int, tuple[Style, FloatArray]]]:
        """Configuration -> depth -> style and values, shape (B, K), of one quantity."""
        found: dict[str, dict[int, tuple[Style, FloatArray]]] = {}
        for naming, curve in self._of.get(quantity, {}).values():
            values = _by_block(quantity, *self._values(curve))[1]
            found.setdefault(naming.configuration, {})[naming.depth] = (naming.style, values)
        return found

    def _values(self, curve: Mapping[str, Any]) -> tuple[IntArray, FloatArray]:
        found = []
        for role in ("blocks", "values"):
            key = curve[role]
            if key not in self._arrays:
                raise UsageError(
                    f"the record names an array '{clean(key)}' that curves.npz does not hold; "
                    f"the two belong to different commissions"
                )
            found.append(self._arrays[key])
        blocks, values = found
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or blocks.shape != values.shape[:1] or not values.size:
            raise UsageError(
                f"the array '{clean(curve['values'])}' has the shape {values.shape}, expected a "
                f"row for each of {blocks.size} blocks; the record is damaged"
            )
        return blocks.astype(np.int64), values.astype(np.float64)


def _rank(name: str, quantity: str) -> str:
    """What stands in the brackets of ``quantity[...]``, else nothing."""
    match = re.fullmatch(rf"{re.escape(quantity)}\[(.+)\]", name)
    return clean(match.group(1)) if match else ""


def is_log(quantity: str) -> bool:
    return quantity in QUANTITIES and QUANTITIES[quantity].scale == "log"


def _named(listed: Sequence[Mapping[str, Any]]) -> list[Naming]:
    """Each curve's name: its configuration, the gate where another gate measured the same of the
    same name, and the depth where the record has several.

    A configuration has a colour; the dash tells depths apart (the deepest is solid), or
    configurations at one depth.
    """
    depths = sorted({curve["depth"] for curve in listed}, reverse=True)
    taken: dict[tuple[str, str, int], str] = {}
    numbers: dict[str, int] = {}
    found = []
    for curve in listed:
        depth, configuration = curve["depth"], _configuration(curve)
        key = (curve["quantity"], configuration, depth)
        if taken.setdefault(key, curve["values"]) != curve["values"]:
            configuration = f"{configuration} ({clean(curve['gate'])})"
        number = numbers.setdefault(configuration, len(numbers))
        if len(depths) > 1:
            style = Style(number, depths.index(depth) + 3 * (number // COLOURS))
            found.append(Naming(f"{configuration}, depth {depth}", configuration, depth, style))
        else:
            found.append(Naming(configuration, configuration, depth, Style(number, number)))
    return found


def _configuration(curve: Mapping[str, Any]) -> str:
    """Without the depth at its end, which stands beside it."""
    return re.sub(rf",? depth {curve['depth']}\Z", "", clean(curve["configuration"]))


def _by_block(quantity: str, blocks: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """One row a block, as in a profile: of several states the last, of other sites the mean."""
    order = np.argsort(blocks, kind="stable")
    blocks, values = blocks[order], values[order]
    unique, first, counts = np.unique(blocks, return_index=True, return_counts=True)
    if unique.size == blocks.size:
        return blocks, values
    if quantity in QUANTITIES and QUANTITIES[quantity].roles[0] == "state":
        return unique, values[first + counts - 1]
    with np.errstate(all="ignore"):
        mean: FloatArray = np.add.reduceat(values, first, axis=0) / counts[:, None]
    return unique, mean


def _note(quantity: str, blocks: IntArray, values: FloatArray, log: bool) -> str:
    """Where values are missing, and in how many seeds; the gradient travels backward."""
    notes = []
    backward = quantity.startswith("gradient") or quantity in _OF_GRADIENTS
    kinds = [(~np.isfinite(values), "not finite")]
    if log:
        kinds.append((values == 0, "zero"))
    for bad, what in kinds:
        if bad.any():
            at = np.flatnonzero(bad.any(axis=1))
            block, way = (blocks[at[-1]], "back") if backward else (blocks[at[0]], "on")
            n = int(bad.any(axis=0).sum())
            seeds = f" in {n} of {values.shape[1]} seeds" if values.shape[1] > 1 else ""
            notes.append(f"{what} from block {block} {way}{seeds}")
    return "; ".join(notes)
