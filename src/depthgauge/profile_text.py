"""A profile in a dozen or two lines of plain text."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from depthgauge.difference import decades
from depthgauge.jsonable import why_not_finite
from depthgauge.sites import QUANTITIES, FloatArray
from depthgauge.sparkline import sparkline
from depthgauge.summaries import spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["number", "text"]

_RIVERS = {"state_rms": "state RMS", "gradient_rms": "gradient RMS"}


def number(x: float) -> str:
    """Four digits, or the words for what is not finite."""
    return why_not_finite(x) or f"{x:.4g}"


def text(profile: Profile) -> str:
    """Equation, size, summary with spread and n, both rivers, steepest blocks, what is missing."""
    n = len(profile.seeds)
    seeds = f"seed {profile.seeds[0]}" if n == 1 else f"n = {n} seeds, median [min, max]"
    lines = [
        *(profile.equation or profile.target).splitlines(),
        f"depth {profile.depth}, width {profile.width}, {profile.branches} branches, "
        f"batch {profile.batch}, {profile.dtype}, {seeds}",
        *_summary(profile),
        *_sparklines(profile),
        *_steepest(profile),
        *_nonfinite(profile),
        *_missing(profile),
    ]
    return "\n".join(lines)


def _summary(profile: Profile) -> list[str]:
    lines = []
    for name, values in profile.summary().items():
        median, low, high = spread(values)
        range_ = f"  [{number(low)}, {number(high)}]" if values.size > 1 else ""
        lines.append(f"  {name:<26}{number(median)}{range_}  n={values.size}")
    return lines


def _sparklines(profile: Profile) -> list[str]:
    """The median over seeds, block by block."""
    lines = []
    for name, label in _RIVERS.items():
        if river := profile.by_block(name):
            blocks, values = river
            median = [spread(row).median for row in values]
            lines.append(
                f"{label:<13}{sparkline(median)}  {number(median[0])} at block {blocks[0]}, "
                f"{number(median[-1])} at block {blocks[-1]}"
            )
    return lines


def _steepest(profile: Profile, n: int = 3) -> list[str]:
    """The ``n`` blocks that change an RMS most, forward or (the gradient) backward."""
    found = []
    for name, label in _RIVERS.items():
        if river := profile.by_block(name):
            blocks, values = river
            gain = _gain(values, backward=name == "gradient_rms")
            for i, block in enumerate(blocks[1:]):
                known = np.flatnonzero(~np.isnan(gain[i]))
                if known.size:
                    k = int(known[np.argmax(np.abs(gain[i][known]))])
                    found.append((float(gain[i, k]), block, label, profile.seeds[k]))
    found.sort(key=lambda item: -abs(item[0]))
    paths = {site.block: str(site) for site in profile.sites if site.role == "state"}
    return [
        f"{'steepest' if i == 0 else '':<13}{paths[block]}: {label} x {_power(gain)}"
        + (f" (seed {seed})" if len(profile.seeds) > 1 else "")
        for i, (gain, block, label, seed) in enumerate(found[:n])
    ]


def _gain(values: FloatArray, backward: bool) -> FloatArray:
    """Decades gained across each block in the direction of travel, shape (B - 1, K).

    -inf where a river becomes zero; NaN where it is zero already or not finite.
    """
    before, after = (values[1:], values[:-1]) if backward else (values[:-1], values[1:])
    known = np.isfinite(before) & np.isfinite(after) & (before > 0)
    return np.where(known, decades(after, before), np.nan)


def _power(exponent: float) -> str:
    """10 ** exponent, also where it has no float."""
    if math.isinf(exponent) or abs(exponent) < 300:
        return number(10**exponent)
    return f"1e{math.floor(exponent):+d}"


def _nonfinite(profile: Profile) -> list[str]:
    """Where each river stops being finite, by the first seed in which it does."""
    lines = []
    for find, what in (
        (profile.first_nonfinite, "state is not finite from"),
        (profile.first_nonfinite_gradient, "gradient is not finite, going back, from"),
    ):
        hit = [site for k in range(len(profile.seeds)) if (site := find(k))]
        if hit:
            lines.append(f"{what} {hit[0]} on, in {len(hit)} of {len(profile.seeds)} seeds")
    return lines


def _missing(profile: Profile) -> list[str]:
    """What was not measured, grouped by reason."""
    groups: dict[str, list[str]] = {}
    for name in [*QUANTITIES, *(x for x in profile.not_measured if x not in QUANTITIES)]:
        if name not in profile.columns:
            groups.setdefault(profile.why_not(name), []).append(name)
    return [
        textwrap.fill(
            f"not measured: {', '.join(names)}: {reason}", width=100, subsequent_indent="  "
        )
        for reason, names in groups.items()
    ]
