"""One number a seed: what a corridor bounds and a table prints, each with its formula.

Index legend: ``K`` seeds, ``S`` sites or blocks. Every formula lets non-finite values through: the
result is NaN where a value it uses is not a number, and inf where the state overflowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from depthgauge.sites import FloatArray, Quantity

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["DRIFT_FLOOR", "SUMMARIES", "Spread", "spread", "summarise", "why_incomplete"]

DRIFT_FLOOR = 1e-30
"""What a drift divides by when the smallest RMS is below it; a river whose RMS is below it at
every block has a drift below 1, which says nothing."""


class Spread(NamedTuple):
    """Over seeds; all three are NaN when one seed is."""

    median: float
    low: float
    high: float


def spread(values: FloatArray) -> Spread:
    """Median (mean of the middle two), least and largest of a non-empty array; never warns."""
    if np.isnan(values).any():
        return Spread(np.nan, np.nan, np.nan)
    ordered = np.sort(values, axis=None)
    a, b = ordered[(ordered.size - 1) // 2], ordered[ordered.size // 2]
    with np.errstate(all="ignore"):  # halves first: a sum of two large numbers would overflow
        middle = a if a == b else a / 2 + b / 2
    return Spread(float(middle), float(ordered[0]), float(ordered[-1]))


def summarise(profile: Profile) -> dict[str, FloatArray]:
    """Every summary whose columns were measured, shape (K,)."""
    out = {}
    with np.errstate(all="ignore"):
        for name, formula in _FORMULAS.items():
            value = formula(profile)
            if value is not None:
                out[name] = value
    return out


def why_incomplete(profile: Profile, name: str) -> str:
    """Why the summary ``name`` cannot be formed, from the columns it needs."""
    for source in _SOURCES[name]:
        if source not in profile.columns:
            reason = profile.not_measured.get(source)
            return reason or f"it needs {source}, which no instrument measured"
    blocks = len(set(profile.blocks_of(_SOURCES[name][0])))
    return f"{_SOURCES[name][0]} was measured at {blocks} of {profile.depth + 1} blocks"


def _end(profile: Profile) -> FloatArray | None:
    river = profile.by_block("state_rms")
    if river is None or river[0][-1] != profile.depth:
        return None
    end: FloatArray = river[1][-1]
    return end


def _drift(name: str) -> Callable[[Profile], FloatArray | None]:
    def drift(profile: Profile) -> FloatArray | None:
        river = profile.by_block(name)
        if river is None or river[0] != tuple(range(profile.depth + 1)):
            return None
        high, low = river[1].max(axis=0), river[1].min(axis=0)
        ratio: FloatArray = np.where(np.isinf(high), high, high / np.maximum(low, DRIFT_FLOOR))
        return ratio

    return drift


def _gradient_ratio(profile: Profile) -> FloatArray | None:
    river = profile.by_block("gradient_rms")
    if river is None or river[0][0] != 0 or river[0][-1] != profile.depth:
        return None
    ratio: FloatArray = river[1][0] / river[1][-1]
    return ratio


def _over_sites(
    reduce: Callable[..., FloatArray], *names: str
) -> Callable[[Profile], FloatArray | None]:
    def over_sites(profile: Profile) -> FloatArray | None:
        values = [profile.columns[name].values for name in names if name in profile.columns]
        if not values:
            return None
        reduced: FloatArray = reduce(np.concatenate(values), axis=0)
        return reduced

    return over_sites


_FORMULAS: dict[str, Callable[[Profile], FloatArray | None]] = {
    "forward_end_rms": _end,
    "forward_drift": _drift("state_rms"),
    "gradient_ratio": _gradient_ratio,
    "gradient_drift": _drift("gradient_rms"),
    "live_derivative_fraction": _over_sites(np.mean, "live_derivative_fraction"),
    "saturated_fraction": _over_sites(np.max, "saturated_fraction"),
    "dead_fraction": _over_sites(np.max, "dead_fraction"),
    "nonfinite_fraction": _over_sites(np.max, "nonfinite_fraction", "gradient_nonfinite_fraction"),
    "state_max": _over_sites(np.max, "state_max"),
}

_SOURCES: dict[str, tuple[str, ...]] = {
    "forward_end_rms": ("state_rms",),
    "forward_drift": ("state_rms",),
    "gradient_ratio": ("gradient_rms",),
    "gradient_drift": ("gradient_rms",),
    "live_derivative_fraction": ("live_derivative_fraction",),
    "saturated_fraction": ("saturated_fraction",),
    "dead_fraction": ("dead_fraction",),
    "nonfinite_fraction": ("nonfinite_fraction",),
    "state_max": ("state_max",),
}


def _summary(name: str, unit: str, scale: Literal["log", "linear"], definition: str) -> Quantity:
    role = "activation" if unit == "share" and name != "nonfinite_fraction" else "state"
    return Quantity(name, unit, definition, scale, (role,))


_RATIO = "both are taken over the input and every block output"

SUMMARIES: dict[str, Quantity] = {
    summary.name: summary
    for summary in (
        _summary("forward_end_rms", "state units", "log", "state_rms of the last block's output"),
        _summary(
            "forward_drift",
            "ratio",
            "log",
            f"max / max(min, 1e-30) of state_rms, {_RATIO}; growth and decay look alike",
        ),
        _summary(
            "gradient_ratio",
            "ratio",
            "log",
            "gradient_rms at the input divided by that at the output: above 1 it grew on its way "
            "back",
        ),
        _summary(
            "gradient_drift", "ratio", "log", f"max / max(min, 1e-30) of gradient_rms, {_RATIO}"
        ),
        _summary(
            "live_derivative_fraction",
            "share",
            "linear",
            "the mean over activation sites, each site with the same weight",
        ),
        _summary("saturated_fraction", "share", "linear", "the largest over activation sites"),
        _summary("dead_fraction", "share", "linear", "the largest over activation sites"),
        _summary(
            "nonfinite_fraction",
            "share",
            "linear",
            "the largest over sites, of the state and, where it was measured, of the gradient",
        ),
        _summary("state_max", "state units", "log", "the largest magnitude at any state"),
    )
}
"""What a corridor may bound: name, unit, formula and scale of every summary."""

assert list(SUMMARIES) == list(_FORMULAS) == list(_SOURCES)
