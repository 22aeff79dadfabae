"""Declared bounds, and how far inside or outside them a profile lies.

A margin is the distance to the nearest bound in decades, positive inside and negative outside:

    margin = min(log10(max / value), log10(value / min))

A yes or no throws away most of what a number at initialisation can tell; the margin keeps it.
Four states: pass, warn, fail and not measured; not measured is never pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from depthgauge.errors import SpecificationError, nearest
from depthgauge.jsonable import jsonable, why_not_finite
from depthgauge.profile import SUMMARIES, Profile
from depthgauge.profile_text import number
from depthgauge.sites import FloatArray
from depthgauge.summaries import DRIFT_FLOOR, spread

__all__ = ["Bound", "Corridor", "Judgement", "State", "Verdict"]

State: TypeAlias = Literal["pass", "warn", "fail", "not_measured"]

_WORST_FIRST: tuple[State, ...] = ("fail", "not_measured", "warn", "pass")
_DRIFTS = ("forward_drift", "gradient_drift")


@dataclass(frozen=True)
class Bound:
    """The least and the largest value allowed (both are inside), at least one of them.

    A value inside whose margin is below ``warn`` decades is a warning.
    """

    min: float | None = None
    max: float | None = None
    warn: float = 0.1

    def __post_init__(self) -> None:
        if sentence := _wrong_bound(self):
            raise SpecificationError(sentence)
        for name in ("min", "max", "warn"):  # 3 and 3.0 are one bound, and one record
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))

    def margin(self, value: float) -> float:
        """Decades to the nearest bound; -inf for what is not finite and for 0 under a ``min``."""
        if not math.isfinite(value):
            return -math.inf
        above = math.inf if self.max is None else _decades(self.max, value)
        below = math.inf if self.min is None else _decades(value, self.min)
        return min(above, below)

    def __str__(self) -> str:
        parts = ("min", self.min), ("max", self.max)
        return ", ".join(f"{name} {x:g}" for name, x in parts if x is not None)


@dataclass(frozen=True)
class Judgement:
    """One bound held against one summary.

    ``value`` and ``margin`` are those of the worst seed; ``median``, ``low`` and ``high`` are over
    all ``n`` seeds. All are NaN and ``n`` is 0 when it was not measured. ``reason`` is a sentence,
    empty only for a pass.
    """

    name: str
    state: State
    value: float
    n: int
    median: float
    low: float
    high: float
    bound: Bound
    margin: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "state": self.state, "n": self.n}
        for name in ("value", "median", "low", "high", "margin"):
            x = getattr(self, name)
            out[name] = x
            if not math.isfinite(x):
                out[f"{name}_reason"] = self._why_null(name, x)
        bound = {"min": self.bound.min, "max": self.bound.max, "warn": self.bound.warn}
        out["bound"] = {name: x for name, x in bound.items() if x is not None}
        out["reason"] = self.reason
        converted: dict[str, Any] = jsonable(out)
        return converted

    def _why_null(self, name: str, x: float) -> str:
        if self.state == "not_measured":
            return "not measured"
        if name != "margin":
            return why_not_finite(x)
        if x > 0:
            return "infinitely far inside: no seed comes near a bound that a ratio can reach"
        return f"minus infinity: {self.reason}"


@dataclass(frozen=True)
class Verdict:
    """All judgements of one corridor."""

    judgements: tuple[Judgement, ...]

    @property
    def worst(self) -> Judgement | None:
        """The judgement with the worst state and, among those, the smallest margin."""

        def badness(judgement: Judgement) -> tuple[int, float]:
            margin = 0.0 if math.isnan(judgement.margin) else judgement.margin
            return _WORST_FIRST.index(judgement.state), margin

        return min(self.judgements, key=badness, default=None)

    @property
    def state(self) -> State:
        """The worst of all: fail, then not measured, then warn, then pass."""
        return self.worst.state if self.worst else "not_measured"

    @property
    def reason(self) -> str:
        """Why the state is what it is; empty only for a pass."""
        if self.worst is None:
            return "the corridor declares no bound"
        return f"{self.worst.name}: {self.worst.reason}" if self.worst.reason else ""

    @property
    def score(self) -> float | None:
        """The smallest margin of what was measured, in decades; ``None`` when nothing was."""
        return min((j.margin for j in self.judgements if j.state != "not_measured"), default=None)

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"state": self.state, "reason": self.reason, "score": self.score}
        if self.score is None:
            out["score_reason"] = "nothing was measured"
        elif math.isinf(self.score):
            nearest_ = min(
                (j for j in self.judgements if j.state != "not_measured"), key=lambda j: j.margin
            )
            out["score_reason"] = nearest_.to_dict()["margin_reason"]
        out["judgements"] = [judgement.to_dict() for judgement in self.judgements]
        converted: dict[str, Any] = jsonable(out)
        return converted

    def __str__(self) -> str:
        score = "" if self.score is None else f", smallest margin {self.score:+.3g} decades"
        lines = [f"{self.state.replace('_', ' ')}{score}"]
        for j in self.judgements:
            lines.append(f"  {j.state.replace('_', ' '):<13}{j.name:<26}{_measured(j)}")
            if j.reason:
                lines.append(f"  {'':<13}{j.reason}")
        return "\n".join(lines)


def _measured(j: Judgement) -> str:
    """Value, bound and margin; with several seeds also their spread."""
    if not j.n:
        return f"({j.bound})"
    known = j.n > 1 and not math.isnan(j.median)
    spread_ = f"median {number(j.median)} [{number(j.low)}, {number(j.high)}] " if known else ""
    return f"{number(j.value)} ({j.bound}), margin {j.margin:+.3g}, {spread_}n={j.n}"


@dataclass(frozen=True)
class Corridor:
    """Bounds by summary name, judged in the order in which they were declared."""

    bounds: tuple[tuple[str, Bound], ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, bound in self.bounds:
            if sentence := _wrong_name(name) or _wrong_for(name, bound):
                raise SpecificationError(sentence)
            if name in seen:
                raise SpecificationError(f"the corridor bounds {name} twice; give it one bound")
            seen.add(name)

    @classmethod
    def of(cls, declared: Mapping[str, object] | None = None, /, **bounds: object) -> Corridor:
        """From ``{"forward_drift": {"max": 3.0}}`` or ``forward_drift=Bound(max=3)``."""
        given = [*(declared or {}).items(), *bounds.items()]
        return cls(tuple((name, _bound(name, value)) for name, value in given))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """What ``Corridor.of`` takes."""
        return {
            name: {
                key: value
                for key, value in (("min", bound.min), ("max", bound.max), ("warn", bound.warn))
                if value is not None
            }
            for name, bound in self.bounds
        }

    def judge(self, profile: Profile) -> Verdict:
        """Each bound against the profile's summary; with several seeds the worst one decides."""
        summary = profile.summary()
        return Verdict(
            tuple(
                _judge(name, bound, summary[name], profile)
                if name in summary
                else _unmeasured(name, bound, profile.why_not(name))
                for name, bound in self.bounds
            )
        )


def _judge(name: str, bound: Bound, values: FloatArray, profile: Profile) -> Judgement:
    margins = [_margin(name, bound, float(value)) for value in values]
    # Among seeds that are equally far out, one that is not a number says most.
    worst = min(
        range(len(margins)), key=lambda k: (margins[k], -int(np.isnan(values[k])), -values[k])
    )
    value, margin = float(values[worst]), margins[worst]
    state: State = "fail" if margin < 0 else "warn" if margin < bound.warn else "pass"
    reason = ""
    if state == "fail":
        outside = sum(m < 0 for m in margins)
        reason = _why_outside(name, bound, value, profile, worst)
        if len(margins) > 1:
            reason += f"; {outside} of {len(margins)} seeds outside"
    elif state == "warn":
        close = sum(m < bound.warn for m in margins)
        reason = f"{number(value)} is {margin:.3g} decades inside {_nearer(bound, value)}"
        if len(margins) > 1:
            reason += f"; {close} of {len(margins)} seeds within {bound.warn:g}"
    return Judgement(name, state, value, len(margins), *spread(values), bound, margin, reason)


def _unmeasured(name: str, bound: Bound, reason: str) -> Judgement:
    nan = math.nan
    return Judgement(name, "not_measured", nan, 0, nan, nan, nan, bound, nan, reason)


def _margin(name: str, bound: Bound, value: float) -> float:
    """A river that is zero everywhere has a drift below 1, which must not pass as a small one."""
    return -math.inf if name in _DRIFTS and value < 1 else bound.margin(value)


def _why_outside(name: str, bound: Bound, value: float, profile: Profile, seed: int) -> str:
    if not math.isfinite(value):
        return f"{why_not_finite(value)} {profile.why_nonfinite(name, seed)}"
    if name in _DRIFTS and value < 1:
        return f"the RMS is below {DRIFT_FLOOR:g} at every block, so a drift says nothing"
    margin = bound.margin(value)
    return f"{number(value)} is {abs(margin):.3g} decades outside {_nearer(bound, value)}"


def _nearer(bound: Bound, value: float) -> str:
    """The bound that the margin was measured to."""
    if bound.min is None:
        return f"max {bound.max:g}"
    if bound.max is None or _decades(value, bound.min) < _decades(bound.max, value):
        return f"min {bound.min:g}"
    return f"max {bound.max:g}"


def _decades(large: float, small: float) -> float:
    """log10(large / small): its sign is that of large - small, also near 1 and far from it.

    +inf when ``small`` is 0 or less (even under ``large = 0``: 0 is inside both ``max = 0`` and
    ``min = 0``), else -inf when ``large`` is.
    """
    if small <= 0:
        return math.inf
    if large <= 0:
        return -math.inf
    far = math.log10(large) - math.log10(small)
    return far if abs(far) > 1 else math.log10(large / small)


def _bound(name: str, value: object) -> Bound:
    """A bound from what was declared; every error names the summary."""
    if sentence := _wrong_name(name):
        raise SpecificationError(sentence)
    if isinstance(value, Bound):
        return value
    if not isinstance(value, Mapping):
        raise SpecificationError(
            f"the bound of {name} is {value!r}; give a table such as {{ max = 3.0 }}"
        )
    for key in value:
        if key not in ("min", "max", "warn"):
            known = nearest(str(key), ("min", "max", "warn"))
            raise SpecificationError(
                f"'{key}' is not part of the bound of {name}{known}; use min, max and warn"
            )
    try:
        return Bound(**value)
    except SpecificationError as error:
        raise SpecificationError(f"{name}: {error}") from None


def _wrong_name(name: str) -> str:
    if name in SUMMARIES:
        return ""
    return (
        f"'{name}' cannot be bounded{nearest(name, SUMMARIES)}; use one of {', '.join(SUMMARIES)}"
    )


def _wrong_bound(bound: Bound) -> str:
    """``""`` or what no bound can be, whatever it bounds."""
    for name in ("min", "max", "warn"):
        value: object = getattr(bound, name)
        if value is None and name != "warn":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not _usable(value):
            return f"{name} of a bound is {value!r}; give a finite number, or leave it out"
    if bound.min is None and bound.max is None:
        return "a bound has neither min nor max; give at least one of them"
    if bound.min is not None and bound.max is not None and bound.min > bound.max:
        return f"min {bound.min:g} is larger than max {bound.max:g}; nothing lies between them"
    if bound.warn < 0:
        return f"warn of a bound is {bound.warn:g} decades; give 0 or more"
    return ""


def _usable(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _wrong_for(name: str, bound: Bound) -> str:
    """``""`` or what this summary cannot be bounded by."""
    log = SUMMARIES[name].scale == "log"
    for side, value in (("min", bound.min), ("max", bound.max)):
        if value is not None and (value < 0 or (log and value == 0)):
            allowed = "a positive number" if log else "a share, 0 or more"
            return f"{side} of {name} is {value:g}; give {allowed}"
    return ""
