"""One number a seed: what a corridor bounds and a table prints, each with its formula.

Index legend: ``K`` seeds, ``S`` sites or blocks. Every formula lets non-finite values through: the
result is NaN where a value it uses is not a number, and inf where the state overflowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from depthgauge.sites import FloatArray, Quantity, Scale

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = [
    "DRIFT_FLOOR",
    "SUMMARIES",
    "Spread",
    "batch_words",
    "has_loss",
    "quantities_for",
    "spread",
    "summarise",
    "why_incomplete",
    "without_loss",
]

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
    if (end := _jacobians_end(profile)) < profile.depth and name == "participation_share":
        return f"the Jacobians lead to state {end}, not to the last ({profile.depth})"
    if name in _AT:
        return f"{_SOURCES[name][0]} was not measured at {_AT[name]}"
    blocks = len(set(profile.blocks_of(_SOURCES[name][0])))
    return f"{_SOURCES[name][0]} was measured at {blocks} of {profile.depth + 1} blocks"


def without_loss(profile: Profile, name: str) -> str:
    """``""``, or why the size of this summary says nothing: what one step changes is scaled by
    the loss, and that of a random cotangent has no scale."""
    if name not in _SCALED_BY_THE_LOSS or has_loss(profile):
        return ""
    return (
        "no loss was given, and along a random cotangent its size says nothing; build a module "
        "with the loss it trains on"
    )


def quantities_for(name: str, loss: bool) -> tuple[str, ...]:
    """The quantities that a summary is made of; none where it has no size without a ``loss``."""
    return () if name in _SCALED_BY_THE_LOSS and not loss else _SOURCES[name]


def batch_words(profile: Profile) -> str:
    """How many examples, and where in the batch they are if not along its first axis."""
    axis = profile.settings.get("batch_axis")
    where = f" (examples along axis {axis})" if axis else ""
    return f"batch {profile.batch}{where}"


def has_loss(profile: Profile) -> bool:
    """Whether the gradient is that of a loss that was given, or is among the outputs."""
    return str(profile.settings.get("cotangent", "")).startswith("the gradient of")


def _at_last(name: str) -> Callable[[Profile], FloatArray | None]:
    def at_last(profile: Profile) -> FloatArray | None:
        river = profile.by_block(name)
        if river is None or river[0][-1] != profile.depth:
            return None
        end: FloatArray = river[1][-1]
        return end

    return at_last


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


def _participation_share(profile: Profile) -> FloatArray | None:
    river = profile.by_block("effective_rank_participation")
    if river is None or river[0][0] != 0 or _jacobians_end(profile) < profile.depth:
        return None
    share: FloatArray = river[1][0] / _note(profile).get("of", profile.width)
    return share


def _note(profile: Profile) -> Mapping[str, Any]:
    """What the spectrum says beside its columns."""
    notes = profile.settings.get("instruments")
    found = notes.get("spectrum") if isinstance(notes, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _jacobians_end(profile: Profile) -> int:
    """The state that the Jacobians of the spectrum lead to."""
    end = _note(profile).get("until", profile.depth)
    assert isinstance(end, int)
    return end


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


_FORMATS: Final = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
_ERRORS: Final = ("relative_error_state", "relative_error_gradient")
_HEADROOMS: Final = tuple(f"headroom_{name}_bits" for name in _FORMATS)

_FORMULAS: dict[str, Callable[[Profile], FloatArray | None]] = {
    "forward_end_rms": _at_last("state_rms"),
    "forward_drift": _drift("state_rms"),
    "gradient_ratio": _gradient_ratio,
    "gradient_drift": _drift("gradient_rms"),
    "live_derivative_fraction": _over_sites(np.mean, "live_derivative_fraction"),
    "saturated_fraction": _over_sites(np.max, "saturated_fraction"),
    "dead_fraction": _over_sites(np.max, "dead_fraction"),
    "nonfinite_fraction": _over_sites(np.max, "nonfinite_fraction", "gradient_nonfinite_fraction"),
    "state_max": _over_sites(np.max, "state_max"),
    "participation_share": _participation_share,
    "functional_update": _at_last("functional_update"),
    "stiffness": _over_sites(np.max, "stiffness"),
    "correlation": _at_last("correlation"),
    **{name: _over_sites(np.min, name) for name in (*_HEADROOMS, "underflow_headroom_bits")},
    **{name: _over_sites(np.max, name) for name in _ERRORS},
}

_SOURCES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _FORMULAS},
    "forward_end_rms": ("state_rms",),
    "forward_drift": ("state_rms",),
    "gradient_ratio": ("gradient_rms",),
    "gradient_drift": ("gradient_rms",),
    "participation_share": ("effective_rank_participation",),
}

#: The one place that a summary is taken from.
_AT: Final = {
    "participation_share": "the first state",
    "functional_update": "the last state",
    "correlation": "the last state",
}

_SCALED_BY_THE_LOSS: Final = ("functional_update",)
_ACTIVATIONS: Final = ("live_derivative_fraction", "saturated_fraction", "dead_fraction")


def _summary(name: str, unit: str, scale: Scale, definition: str) -> Quantity:
    role = "activation" if name in _ACTIVATIONS else "state"
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
        _summary(
            "participation_share",
            "share",
            "log",
            "effective_rank_participation from the first state to the last, over the directions "
            "there could be: the numbers of one example's state, the fewer of both ends",
        ),
        _summary(
            "functional_update",
            "ratio",
            "log",
            "the last state's change by one step of the optimiser, over its size before",
        ),
        _summary(
            "stiffness",
            "ratio",
            "log",
            "learning rate x largest curvature of the loss, over the limit of the optimiser",
        ),
        _summary(
            "correlation",
            "cosine",
            "linear",
            "the mean cosine between the last states of two different examples",
        ),
        *(
            _summary(
                f"headroom_{name}_bits",
                "bits",
                "bits",
                f"log2({name}'s largest number / largest magnitude), the least over sites",
            )
            for name in _FORMATS
        ),
        _summary(
            "underflow_headroom_bits",
            "bits",
            "bits",
            "log2(RMS of the gradient / smallest normal number), the least over states",
        ),
        *(
            _summary(
                name,
                "ratio",
                "log",
                f"the {what} in the arithmetic meant for training less that in float64, over its "
                f"norm there: the largest over states",
            )
            for name, what in zip(_ERRORS, ("state", "gradient"), strict=True)
        ),
    )
}
"""What a corridor may bound: name, unit, formula and scale of every summary."""

assert list(SUMMARIES) == list(_FORMULAS)
assert set(SUMMARIES) == set(_SOURCES)
