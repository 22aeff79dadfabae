"""A profile as the JSON document of ``measure --json``, and as a pandas table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from depthgauge.extras import load
from depthgauge.jsonable import jsonable, why_not_finite
from depthgauge.remarks import remarks
from depthgauge.summaries import SUMMARIES, spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["JudgedCorridor", "document", "frame"]

_RIVERS = ("state_rms", "gradient_rms")


class JudgedCorridor(Protocol):
    """What a corridor says about a profile, as much of it as the document needs."""

    @property
    def state(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


def document(profile: Profile, verdict: JudgedCorridor | None) -> dict[str, Any]:
    """Everything as plain JSON; what is not finite is null with a reason beside it."""
    out: dict[str, Any] = {
        "target": profile.target,
        "equation": profile.equation,
        "depth": profile.depth,
        "width": profile.width,
        "branches": profile.branches,
        "streams": profile.streams,
        "disagreements": profile.disagreements,
        "dtype": profile.dtype,
        "batch": profile.batch,
        "seeds": profile.seeds,
        "settings": profile.settings,
        "sites": _sites(profile),
        "curves": _curves(profile),
        "summary": _summary(profile),
        "coverage": _coverage(profile),
        "overhead": profile.overhead,
        "not_measured": profile.not_measured,
        "exponents": profile.exponents,
        "remarks": remarks(profile),
        "findings": [],
        "verdict": "not_measured",
        "verdict_reason": "no corridor was declared",
    }
    if profile.overhead is None:
        out["overhead_reason"] = "an equation is run block by block: no pass of a model is timed"
    if verdict is not None:
        corridor = verdict.to_dict()
        out["verdict"] = verdict.state
        out["verdict_reason"] = str(corridor.get("reason", ""))
        out["corridor"] = corridor
    converted: dict[str, Any] = jsonable(out)
    return converted


def frame(profile: Profile) -> Any:
    """One row a site; with a seed axis one row a seed and site. NaN where it was not measured."""
    pandas = load("pandas", "pandas", "Profile.to_frame")
    rows = []
    for k, seed in enumerate(profile.seeds):
        filled = {name: np.full(len(profile.sites), np.nan) for name in profile.columns}
        for name, column in profile.columns.items():
            filled[name][list(column.rows)] = column.values[:, k]
        for site in profile.sites:
            row: dict[str, object] = {"seed": seed} if profile.seed_axis else {}
            row |= {"index": site.index, "block": site.block, "path": site.path, "role": site.role}
            rows.append(row | {name: values[site.index] for name, values in filled.items()})
    names = ["seed"] if profile.seed_axis else []
    names += ["index", "block", "path", "role", *profile.columns]
    return pandas.DataFrame(rows, columns=names)


def _sites(profile: Profile) -> list[dict[str, Any]]:
    """One object a site: medians over seeds; the rivers' RMS also with least and largest."""
    several = len(profile.seeds) > 1
    out: list[dict[str, Any]] = [
        {"index": site.index, "block": site.block, "path": site.path, "role": site.role}
        for site in profile.sites
    ]
    for name, column in profile.columns.items():
        for row, values in zip(column.rows, column.values, strict=True):
            median, low, high = spread(values)
            out[row][name] = median
            if several and name in _RIVERS:
                out[row] |= {f"{name}_min": low, f"{name}_max": high}
            if several and (reason := _reason(values, median, name)):
                out[row][f"{name}_reason"] = reason
    for name, found in profile.vectors.items():
        for row, numbers in found.items():
            with np.errstate(invalid="ignore"):
                out[row][name] = np.median(numbers, axis=0).tolist()
            if reason := next(filter(None, map(why_not_finite, out[row][name])), ""):
                out[row][f"{name}_reason"] = reason
    return out


def _reason(values: np.ndarray[Any, Any], median: float, name: str) -> str:
    """``""`` or why the median over several seeds is null, with how many seeds are to blame."""
    if not (reason := why_not_finite(median, name)):
        return ""
    bad = int((~np.isfinite(values)).sum())
    return f"{reason} in {bad} of {values.size} seeds"


def _curves(profile: Profile) -> dict[str, Any]:
    """The rivers block by block, one list a seed; null at a block where it was not measured."""
    found = {name: river for name in _RIVERS if (river := profile.by_block(name))}
    blocks = sorted({block for measured, _ in found.values() for block in measured})
    out: dict[str, Any] = {"block": blocks}
    for name, (measured, values) in found.items():
        where = {block: i for i, block in enumerate(measured)}
        out[name] = [
            [float(values[where[block], k]) if block in where else None for block in blocks]
            for k in range(len(profile.seeds))
        ]
        count = Counter(why_not_finite(x) for curve in out[name] for x in curve if x is not None)
        total = len(blocks) * len(profile.seeds)
        reasons = [f"{why} at {bad} of {total}" for why, bad in count.items() if why]
        if missing := len(blocks) - len(measured):
            reasons.append(f"not measured at {missing} of {len(blocks)} blocks")
        if reasons:
            out[f"{name}_reason"] = "; ".join(reasons)
    return out


def _summary(profile: Profile) -> dict[str, Any]:
    """Every summary: value (median over seeds), n, min and max; null with its reason."""
    summary = profile.summary()
    out: dict[str, Any] = {}
    for name in SUMMARIES:
        if name not in summary:
            out[name] = {"value": None, "value_reason": profile.why_not(name), "n": 0}
            continue
        values = summary[name]
        median, low, high = spread(values)
        out[name] = {"value": median, "n": values.size, "min": low, "max": high}
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size and (reason := why_not_finite(median, name)):
            out[name]["value_reason"] = f"{reason} {profile.why_nonfinite(name, int(bad[0]))}"
            if values.size > 1:
                out[name]["value_reason"] += f"; {bad.size} of {values.size} seeds"
    return out


def _coverage(profile: Profile) -> dict[str, list[dict[str, str]]]:
    """Which sites were expected and seen; where no gradient arrived; each with its reason."""

    def found(word: str) -> list[dict[str, str]]:
        return [_entry(path, reason) for path, reason in profile.coverage.get(word, ())]

    counts = [0] * len(profile.sites)
    for column in profile.columns.values():
        for row in column.rows:
            counts[row] += 1
    backward = profile.columns.get("gradient_rms")
    reached = set(backward.rows) if backward else set()
    why = profile.not_measured.get("gradient_rms", "no gradient was measured here")
    neither = "neither a value nor a gradient was measured here"
    states = [site for site in profile.sites if site.role == "state"]
    return {
        "expected": [_entry(site.path, site.role) for site in profile.sites],
        "seen": [
            _entry(site.path, f"{count} quantities")
            for site, count in zip(profile.sites, counts, strict=True)
            if count
        ],
        "not_called": found("not_called"),
        "no_gradient": [
            *(
                _entry(site.path, why if counts[site.index] or not any(counts) else neither)
                for site in states
                if site.index not in reached
            ),
            *found("no_gradient"),
        ],
        "opaque": found("opaque"),
        "fallback": found("fallback"),
    }


def _entry(path: str, reason: str) -> dict[str, str]:
    return {"path": path, "reason": reason}
