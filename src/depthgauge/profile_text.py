"""A profile in a dozen or two lines of plain text."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depthgauge.difference import decades
from depthgauge.jsonable import why_not_finite
from depthgauge.remarks import remarks
from depthgauge.sites import QUANTITIES, FloatArray
from depthgauge.sparkline import sparkline
from depthgauge.summaries import batch_words, spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = [
    "RIVERS",
    "Steep",
    "missing",
    "nonfinite",
    "not_seen",
    "number",
    "power",
    "steepest",
    "text",
]

RIVERS = {"state_rms": "state RMS", "gradient_rms": "gradient RMS"}


class Steep(NamedTuple):
    """One block's change of one river's RMS, in the direction of travel, in its farthest seed."""

    decades: float
    block: int
    river: str
    seed: int


def number(x: float, name: str = "") -> str:
    """Four digits, or the words for what is not finite in the quantity ``name``."""
    return why_not_finite(x, name) or f"{x:.4g}"


def text(profile: Profile) -> str:
    """Equation, size, summary with spread and n, both rivers, steepest blocks, what is missing."""
    n = len(profile.seeds)
    seeds = f"seed {profile.seeds[0]}" if n == 1 else f"n = {n} seeds, median [min, max]"
    lines = [
        *(profile.equation or profile.target).splitlines(),
        f"depth {profile.depth}, width {profile.width}, {profile.branches} branches, "
        f"{batch_words(profile)}, {profile.dtype}, {seeds}",
        *_summary(profile),
        *_sparklines(profile),
        *_steepest(profile),
        *nonfinite(profile),
        *remarks(profile),
        *_missing(profile),
        *(f"{label}: {line}" for label, lines in not_seen(profile).items() for line in lines),
    ]
    return "\n".join(lines)


def _summary(profile: Profile) -> list[str]:
    """Over the seeds whose value is finite; how many are not stands beside their number."""
    lines = []
    for name, values in profile.summary().items():
        good = values[np.isfinite(values)]
        median, low, high = spread(good if good.size else values)
        range_ = f"  [{number(low)}, {number(high)}]" if good.size and values.size > 1 else ""
        bad = (
            f", not finite in {values.size - good.size} more" if 0 < good.size < values.size else ""
        )
        n = good.size or values.size
        lines.append(f"  {name:<26}{number(median)}{range_}  n={n}{bad}")
    return lines


def _sparklines(profile: Profile) -> list[str]:
    """The median over seeds, block by block."""
    lines = []
    places = {site.block for site in profile.sites if site.role == "state"}
    for name, label in RIVERS.items():
        if river := profile.by_block(name):
            blocks, values = river
            median = [spread(row).median for row in values]
            ends = dict.fromkeys((0, -1) if len(blocks) > 1 else (0,))
            shown = [f"{number(median[i])} at block {blocks[i]}" for i in ends]
            if missing := len(places.difference(blocks)):
                shown.append(f"not measured at {missing} of {len(places)} blocks")
            lines.append(f"{label:<13}{sparkline(median)}  {', '.join(shown)}")
    return lines


def steepest(profile: Profile, n: int = 3) -> list[Steep]:
    """The ``n`` blocks that change an RMS most, forward or (the gradient) backward."""
    found = []
    for name, label in RIVERS.items():
        if river := profile.by_block(name):
            blocks, values = river
            gain = _gain(values, backward=name == "gradient_rms")
            for i, block in enumerate(blocks[1:]):
                known = np.flatnonzero(~np.isnan(gain[i]))
                if known.size:
                    k = int(known[np.argmax(np.abs(gain[i][known]))])
                    found.append(Steep(float(gain[i, k]), block, label, profile.seeds[k]))
    return sorted(found, key=lambda steep: -abs(steep.decades))[:n]


def _steepest(profile: Profile) -> list[str]:
    paths = {site.block: str(site) for site in profile.sites if site.role == "state"}
    return [
        f"{'steepest' if i == 0 else '':<13}{paths[block]}: {label} x {power(gain)}"
        + (f" (seed {seed})" if len(profile.seeds) > 1 else "")
        for i, (gain, block, label, seed) in enumerate(steepest(profile))
    ]


def _gain(values: FloatArray, backward: bool) -> FloatArray:
    """Decades gained across each block in the direction of travel, shape (B - 1, K).

    -inf where a river becomes zero; NaN where it is zero already or not finite.
    """
    before, after = (values[1:], values[:-1]) if backward else (values[:-1], values[1:])
    known = np.isfinite(before) & np.isfinite(after) & (before > 0)
    return np.where(known, decades(after, before), np.nan)


def power(exponent: float) -> str:
    """10 ** exponent, also where it has no float."""
    if math.isinf(exponent) or abs(exponent) < 300:
        return number(10**exponent)
    return f"1e{math.floor(exponent):+d}"


def nonfinite(profile: Profile) -> list[str]:
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


def missing(profile: Profile) -> dict[str, list[str]]:
    """What was not measured, by reason; all quantities of one instrument by its name."""
    from depthgauge.arguments import INSTRUMENTS

    groups: dict[str, list[str]] = {}
    for name in [*QUANTITIES, *(x for x in profile.not_measured if x not in QUANTITIES)]:
        if name not in profile.columns:
            groups.setdefault(profile.why_not(name), []).append(name)
    for names in groups.values():
        for instrument, quantities in INSTRUMENTS.items():
            if len(quantities) > 1 and set(quantities) <= set(names):
                first = names.index(quantities[0])
                names[:] = [n for n in names if n not in quantities]
                names.insert(first, instrument)
    return groups


#: The words of the coverage on a screen, and how many lines each may take there.
_UNSEEN = {
    "not_called": "never called",
    "no_gradient": "no gradient",
    "opaque": "opaque",
    "fallback": "states",
}
_LINES, _PATHS = 4, 3


def not_seen(profile: Profile) -> dict[str, list[str]]:
    """What a model hid, by kind: paths that share a reason on a line, numbers in them as stars."""
    out: dict[str, list[str]] = {}
    for word, label in _UNSEEN.items():
        groups: dict[str, dict[str, int]] = {}
        for path, reason in profile.coverage.get(word, ()):
            paths = groups.setdefault(reason, {})
            alike = re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", path) or "the model"
            paths[alike] = paths.get(alike, 0) + 1
        lines = [f"{_listed(paths)}: {reason}" for reason, paths in groups.items()]
        if len(lines) > _LINES:
            lines[_LINES - 1 :] = [
                f"{len(lines) - _LINES + 1} more reasons, in to_dict() or --json"
            ]
        if lines:
            out[label] = lines
    for found in profile.disagreements:
        out.setdefault("two tests", []).append(
            f"{found['stream']}: the local test finds {found['local_merge']} merges, path counting "
            f"{found['path_counting']}; {found['reported']} reported ({found['reason']})"
        )
    notes = profile.settings.get("notes")
    if isinstance(notes, list) and notes:
        out["note"] = [str(note) for note in notes]
    return out


def _listed(paths: dict[str, int]) -> str:
    shown = [f"{path} ({n})" if n > 1 else path for path, n in paths.items()]
    more = len(shown) - _PATHS
    return ", ".join(shown[:_PATHS]) + (f" and {more} more" if more > 0 else "")


def _missing(profile: Profile) -> list[str]:
    return [
        textwrap.fill(
            f"not measured: {', '.join(names)}: {reason}", width=100, subsequent_indent="  "
        )
        for reason, names in missing(profile).items()
    ]
