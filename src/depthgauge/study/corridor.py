"""Declared bounds, and how far inside or outside them a profile lies.

A margin is the distance to the nearest bound in decades, positive inside and negative outside
(``depthgauge.study.bound``). A yes or no throws away most of what a number at initialisation can
tell; the margin keeps it.
Four states: pass, warn, fail and not measured; not measured is never pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from depthgauge.errors import SpecificationError, expect, nearest
from depthgauge.jsonable import jsonable, why_not_finite
from depthgauge.profile import SUMMARIES, Profile
from depthgauge.profile_text import number
from depthgauge.remarks import by_design
from depthgauge.sites import FloatArray
from depthgauge.study.bound import KEYS, Bound, nearer, wrong_for
from depthgauge.summaries import DRIFT_FLOOR, spread, without_loss

__all__ = ["Bound", "Corridor", "Judgement", "State", "Verdict"]

State: TypeAlias = Literal["pass", "warn", "fail", "not_measured"]

_WORST_FIRST: tuple[State, ...] = ("fail", "not_measured", "warn", "pass")
_DRIFTS = ("forward_drift", "gradient_drift")


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
        out["bound"] = self.bound.to_dict()
        out["reason"] = self.reason
        converted: dict[str, Any] = jsonable(out)
        return converted

    def _why_null(self, name: str, x: float) -> str:
        if self.state == "not_measured":
            return "not measured"
        if name != "margin":
            return why_not_finite(x, self.name)
        if x > 0:
            return "infinitely far inside: no seed comes near a bound that a ratio can reach"
        return f"minus infinity: {self.reason}"


@dataclass(frozen=True)
class Verdict:
    """All judgements of one corridor, with its name if it has one."""

    judgements: tuple[Judgement, ...]
    name: str = ""

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
        out: dict[str, Any] = {"name": self.name} if self.name else {}
        out |= {"state": self.state, "reason": self.reason, "score": self.score}
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

    def __repr__(self) -> str:
        return f"<Verdict: {str(self).partition(chr(10))[0]}, {len(self.judgements)} bounds>"

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
    """Bounds by summary name, judged in the order in which they were declared; ``name``: of the
    named corridor that they are from, for screens and records."""

    bounds: tuple[tuple[str, Bound], ...]
    name: str = ""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        todo = "Corridor.of(gradient_ratio={'max': 10}) makes one of a table"
        expect(
            "bounds", self.bounds, tuple, "a tuple of pairs of a summary's name and a Bound", todo
        )
        for pair in self.bounds:
            if not (isinstance(pair, tuple) and [*map(type, pair)] == [str, Bound]):
                expect("a bound", pair, (), "a pair of a summary's name and a Bound", todo)
        for name, bound in self.bounds:
            if sentence := _wrong_name(name) or wrong_for(name, bound):
                raise SpecificationError(sentence)
            if name in seen:
                raise SpecificationError(f"the corridor bounds {name} twice; give it one bound")
            seen.add(name)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {bound}" for name, bound in self.bounds) or "no bound"

    @classmethod
    def of(cls, declared: Mapping[str, object] | None = None, /, **bounds: object) -> Corridor:
        """From ``{"forward_drift": {"max": 3.0}}`` or ``forward_drift=Bound(max=3)``."""
        if declared is not None:
            todo = "such as {'gradient_ratio': {'max': 10}}"
            expect("declared", declared, Mapping, "a table of bounds by summary", todo)
        given = [*(declared or {}).items(), *bounds.items()]
        return cls(tuple((name, _bound(name, value)) for name, value in given))

    def to_dict(self) -> dict[str, dict[str, float | str]]:
        """What ``Corridor.of`` takes."""
        return {name: bound.to_dict() for name, bound in self.bounds}

    def judge(self, profile: Profile) -> Verdict:
        """Each bound against the profile's summary; with several seeds the worst one decides.

        What one step changes is judged where there is a loss: without one it has no scale, and is
        not measured. Of a loss that does not see the output no gradient is.
        """
        expect("profile", profile, Profile, "a Profile; measure() gives one")
        summary = profile.summary()
        judgements = []
        for name, bound in self.bounds:
            seen = _unseen(profile, name) if name in summary else profile.why_not(name)
            why = without_loss(profile, name) or seen
            found = summary.get(name)
            judgements.append(
                _unmeasured(name, bound, why)
                if why or found is None
                else _judge(name, bound, found, profile)
            )
        return Verdict(tuple(judgements), self.name)


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
        if name.startswith(("gradient", "functional", "participation")):
            waking = profile.settings.get("waking")
            reason += f"; {by_design(waking)}" if isinstance(waking, list) else ""
        if len(margins) > 1:
            reason += f"; {outside} of {len(margins)} seeds outside"
    elif state == "warn":
        close = sum(m < bound.warn for m in margins)
        inside = nearer(bound, value, SUMMARIES[name].scale)
        reason = f"{number(value, name)} is {margin:.3g} decades inside {inside}"
        if len(margins) > 1:
            reason += f"; {close} of {len(margins)} seeds within {bound.warn:g}"
    return Judgement(name, state, value, len(margins), *spread(values), bound, margin, reason)


def _unseen(profile: Profile, name: str) -> str:
    """``""``, or that what is made of gradients is of a loss that does not see the output."""
    of_gradients = name.startswith(("gradient", "functional", "stiffness", "update"))
    return str(profile.settings.get("blind") or "") if of_gradients else ""


def _unmeasured(name: str, bound: Bound, reason: str) -> Judgement:
    nan = math.nan
    return Judgement(name, "not_measured", nan, 0, nan, nan, nan, bound, nan, reason)


def _margin(name: str, bound: Bound, value: float) -> float:
    """A river that is zero everywhere has a drift below 1, which must not pass as a small one."""
    return (
        -math.inf if name in _DRIFTS and value < 1 else bound.margin(value, SUMMARIES[name].scale)
    )


def _why_outside(name: str, bound: Bound, value: float, profile: Profile, seed: int) -> str:
    if not math.isfinite(value):
        return f"{why_not_finite(value, name)} {profile.why_nonfinite(name, seed)}"
    if name in _DRIFTS and value < 1:
        return f"the RMS is below {DRIFT_FLOOR:g} at every block, so a drift says nothing"
    scale = SUMMARIES[name].scale
    margin = bound.margin(value, scale)
    return f"{number(value)} is {abs(margin):.3g} decades outside {nearer(bound, value, scale)}"


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
        if key not in KEYS:
            raise SpecificationError(
                f"'{key}' is not part of the bound of {name}{nearest(str(key), KEYS)}; use "
                f"{', '.join(KEYS[:-1])} and {KEYS[-1]}"
            )
    try:
        return Bound(**value)
    except SpecificationError as error:
        raise SpecificationError(f"{name}: {error}") from None


def _wrong_name(name: str) -> str:
    if name in SUMMARIES:
        return ""
    if near := nearest(name, SUMMARIES):
        return f"'{name}' cannot be bounded{near}; docs/corridors.md lists what can"
    return f"'{name}' cannot be bounded; use one of {', '.join(SUMMARIES)}"
