"""Errors of a run against float64: how large, how they grow, what is first lost to overflow.

Index legend: states ``h_k`` and gradients ``g_k`` of the intended run, ``h*_k`` and ``g*_k`` in
float64; norms over all elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from depthgauge.instruments.formats import relative_distance
from depthgauge.instruments.losses import flushed, largest_of
from depthgauge.instruments.ranges import Place, Ranges, document
from depthgauge.instruments.runs import Ran
from depthgauge.instruments.subject import Found, Subject
from depthgauge.trace.operations import CASTS

__all__ = ["ERRORS", "errors", "errors_by_place", "growth", "other_functions"]

ERRORS: Final = (
    "relative_error_state",
    "relative_error_gradient",
    "flushed_gradient_fraction",
)


def errors(
    subject: Subject, reference: Ran, intended: Ran, found: Found, note: dict[str, Any]
) -> None:
    """Relative errors of states and gradients, what was flushed, what grew, what was lost first."""
    first = _first_nonfinite(reference.ranges, intended.ranges)
    note["first_nonfinite"] = first
    if first is None:
        note["first_nonfinite_reason"] = "every value that is finite in float64 is finite here"
    if intended.no_states:
        found.missing |= dict.fromkeys(ERRORS, intended.no_states)
        return
    if differs := other_functions(reference.ranges, intended.ranges):
        intended.notes.append(f"{differs}; states are compared where the same calls make them")
    for row, h, exact in zip(subject.rows, intended.states, reference.states, strict=True):
        found.put("relative_error_state", row, relative_distance(h, exact))
    no_backward = reference.no_backward or intended.no_backward
    pairs = zip(subject.rows, intended.gradients, reference.gradients, strict=False)
    for row, g, exact_g in pairs:
        if g is not None and exact_g is not None:
            found.put("relative_error_gradient", row, relative_distance(g, exact_g))
            found.put("flushed_gradient_fraction", row, flushed(g, exact_g))
    for name, why in ((name, no_backward or "no gradient reaches a state") for name in ERRORS[1:]):
        if name not in found.columns:
            found.missing[name] = why
    for name in ERRORS[:2]:
        if name in found.columns:
            note[name] = growth(found.columns[name][1])
    gone = {
        name: share
        for name, g in intended.parameters.items()
        if name in reference.parameters and (share := flushed(g, reference.parameters[name])) > 0
    }
    note["flushed_parameters"] = largest_of(gone)


def errors_by_place(
    subject: Subject,
    reference: Ran,
    intended: Ran,
    places: Sequence[Place | None],
    found: Found,
    note: dict[str, Any],
) -> None:
    """Errors of states where the intended run has none to give, having raised after them or called
    other functions: at the places that make those of the reference, without gradients."""
    for row, place, exact in zip(subject.rows, places, reference.states, strict=True):
        h = intended.ranges.kept.get(place) if place else None
        if h is not None and h.shape == exact.shape:
            found.put("relative_error_state", row, relative_distance(h, exact))
    if "relative_error_state" in found.columns:
        note["relative_error_state"] = growth(found.columns["relative_error_state"][1])
        del found.missing["relative_error_state"]


def growth(errors: Sequence[float]) -> dict[str, float | int | str | None]:
    """How errors ``e_k`` of consecutive states grow: the factor a block of a straight line through
    ``ln e_k`` over k, by least squares, with the standard error of its logarithm.

    Over the states whose error is finite and not 0; none where these are fewer than 3.
    """
    given = np.asarray(errors, dtype=np.float64)
    at = np.flatnonzero(np.isfinite(given) & (given > 0))
    out: dict[str, float | int | str | None] = {
        "first": float(given[0]),
        "last": float(given[-1]),
        "states": len(at),
        "factor_per_block": None,
        "log_standard_error": None,
    }
    if len(at) <= 2:
        why = f"a growth is fitted to three states or more, and {len(at)} have an error above 0"
        out |= {"factor_per_block_reason": why, "log_standard_error_reason": why}
    else:
        logs, x = np.log(given[at]), at - at.mean()
        slope = float(x @ logs / (x @ x))
        rest = logs - logs.mean() - slope * x
        out["factor_per_block"] = math.exp(slope)
        out["log_standard_error"] = math.sqrt(float(rest @ rest) / (len(at) - 2) / float(x @ x))
    return out


def other_functions(reference: Ranges, intended: Ranges) -> str:
    """``""``, or where the intended run begins to call other functions than the reference, casts
    aside."""
    trails = [[c for c in ran.trail if c[1] not in CASTS] for ran in (reference, intended)]
    for one, other in zip(*trails, strict=False):
        if one != other:
            return (
                f"in this arithmetic the model calls {other[1]} in '{other[0]}' where it calls "
                f"{one[1]} in '{one[0]}' in float64"
            )
    if len(trails[0]) != len(trails[1]):
        return "in this arithmetic the model calls more or fewer functions than in float64"
    return ""


def _first_nonfinite(reference: Ranges, intended: Ranges) -> dict[str, Any] | None:
    """Where the intended run first makes inf or NaN and the reference does not: on the way forward,
    or else on the way back."""
    for of in ("value", "gradient"):
        exact, seen = (r.values if of == "value" else r.gradients for r in (reference, intended))
        for place, here in seen.items():
            before = exact.get(place)
            if before is not None and here.lost > before.lost:
                return {**document(place), "of": of, "fraction": here.lost - before.lost}
    return None
