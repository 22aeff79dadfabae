"""At which depth a bound will break: by what was measured, and beyond it by the law of growth.

A law breaks a bound at the first number of blocks at which it lies outside; ``low`` is the first
at which its interval reaches outside, ``high`` the first at which all of it is. Of a law that bends
one end is open: where it goes on slower than it says there is no ``high``, where it goes on faster
``low`` is the next block. What was measured goes before the law: a bound that held at a depth did
not break before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from depthgauge.jsonable import jsonable
from depthgauge.network.spec import LARGEST_DEPTH
from depthgauge.study.corridor import Judgement, State
from depthgauge.study.corridors import NamedCorridor
from depthgauge.study.growth import Growth, Kind, Law

__all__ = ["Break", "BreakState", "Crossing", "break_of", "first_to_break"]

BreakState: TypeAlias = Literal["broken", "breaks", "will_break", "may_break", "holds", "not_known"]

#: Depths looked at: every one up to so many more, then so many evenly over their logarithm.
_EACH: Final = 5_000
_NEVER: Final = f"not up to {LARGEST_DEPTH:,} blocks"


@dataclass(frozen=True)
class Crossing:
    """Where one law leaves the bounds; inf where it does not, NaN where there is no interval.
    ``bend``: that of the law."""

    law: Kind
    depth: float
    low: float
    high: float
    bend: str = ""

    def __str__(self) -> str:
        if math.isinf(self.depth):
            return "not at all"
        if math.isnan(self.low):
            return f"{self.place} (no interval)"
        ends = [f"{end:,.0f}" if math.isfinite(end) else "no end" for end in (self.low, self.high)]
        return f"{self.place} [{ends[0]}, {ends[1]}]"

    @property
    def place(self) -> str:
        """``at 441 blocks or later``."""
        other = {"slower": " or later", "faster": " or earlier"}.get(self.bend, "")
        return f"at {self.depth:,.0f} blocks{other}"


@dataclass(frozen=True)
class Break:
    """One bound over depth.

    ``state``: ``broken`` (already at the least depth tried), ``breaks`` (between two that were
    tried), ``will_break`` (beyond them, by the law), ``may_break`` (by one law within reach and
    not by another), ``holds`` (by the law it does not) or ``not_known``. ``passed``, ``failed``:
    the deepest it held at before the first it failed at. ``crossings``: of each law within reach,
    the likelier first. ``reason``: of what is not known.
    """

    name: str
    state: BreakState
    states: Mapping[int, State]
    crossings: tuple[Crossing, ...] = ()
    passed: int | None = None
    failed: int | None = None
    reason: str = ""

    @property
    def depth(self) -> float:
        """The depth at which it breaks, the earliest of the laws within reach; inf for never, NaN
        where it is not known."""
        if self.state == "broken":
            return float(self.failed or math.nan)
        return min((c.depth for c in self.crossings), default=math.nan)

    @property
    def low(self) -> float:
        return self._end(min)

    @property
    def high(self) -> float:
        return self._end(max)

    def __str__(self) -> str:
        by = " or ".join(self._by_law())
        if self.state == "broken":
            again = [d for d, state in self.states.items() if state in ("pass", "warn")]
            later = f", inside again at {', '.join(map(str, again))}" if again else ""
            return f"already broken at {self.failed}{later}"
        if self.state == "breaks":
            law = f", by the law {by}" if self.crossings else f"; {self.reason}"
            return f"breaks between {self.passed} and {self.failed}{law}"
        if self.state == "will_break":
            return f"will break {by}"
        if self.state == "may_break":
            return f"undecided: breaks {by}"
        if self.state == "holds":
            low = self.low
            allowed = f"; its interval allows it from {low:,.0f} blocks on"
            return f"does not break{allowed if math.isfinite(low) else ''}"
        return f"not known: {self.reason}"

    def _by_law(self) -> list[str]:
        """Where each law within reach breaks it, those that do first."""
        if len(self.crossings) == 1:
            return [str(self.crossings[0])]
        words = [f"{c} ({c.law})" for c in self.crossings if math.isfinite(c.depth)]
        never = [c.law for c in self.crossings if math.isinf(c.depth)]
        return [*words, *([f"not at all ({', '.join(never)})"] if never else [])]

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": self.name,
            "state": self.state,
            "words": str(self),
            **_numbers(self),
            "passed": self.passed,
            "failed": self.failed,
            "reason": self.reason,
            "states": {str(depth): state for depth, state in self.states.items()},
            "crossings": [{"law": c.law, **_numbers(c), "bend": c.bend} for c in self.crossings],
        }
        converted: dict[str, Any] = jsonable(out)
        return converted

    def _end(self, which: Any) -> float:
        if self.state == "broken":
            return self.depth
        found = [c.low if which is min else c.high for c in self.crossings]
        return float(which(found)) if found and not any(map(math.isnan, found)) else math.nan


def break_of(
    name: str,
    judgements: Mapping[int, Judgement],
    growth: Growth | None,
    corridor: NamedCorridor,
    dtype: str,
) -> Break:
    """Where the bounds of the summary ``name`` break; ``judgements``: by depth, ascending."""
    states: dict[int, State] = {depth: found.state for depth, found in judgements.items()}
    judged = [depth for depth, state in states.items() if state != "not_measured"]
    if not judged:
        why = next(iter(judgements.values())).reason
        return Break(name, "not_known", states, reason=f"not measured ({why})")
    failed = next((depth for depth in judged if states[depth] == "fail"), None)
    if failed == judged[0]:
        return Break(name, "broken", states, failed=failed)
    passed = max(depth for depth in judged if failed is None or depth < failed)
    found = Break(name, "not_known", states, passed=passed, failed=failed)
    why = "no summary" if growth is None else growth.reason
    if growth is None or not growth.within:
        return _without(found, f"follows no law: {why}")
    crossings = [_crossing(law, name, corridor, dtype, judged[0]) for law in growth.within]
    agreed = tuple(held for c in crossings if (held := _held(c, passed, failed)))
    if not agreed:
        return _without(found, "the law does not agree with what was measured")
    if failed is not None:
        return _with(found, "breaks", agreed)
    never = [math.isinf(crossing.depth) for crossing in agreed]
    state: BreakState = "holds" if all(never) else "may_break" if any(never) else "will_break"
    return _with(found, state, agreed)


def _with(found: Break, state: BreakState, crossings: tuple[Crossing, ...]) -> Break:
    return Break(found.name, state, found.states, crossings, found.passed, found.failed)


def _without(found: Break, reason: str) -> Break:
    """What was measured, where no law helps."""
    state: BreakState = "not_known" if found.failed is None else "breaks"
    return Break(found.name, state, found.states, (), found.passed, found.failed, reason)


def _crossing(law: Law, name: str, corridor: NamedCorridor, dtype: str, first: int) -> Crossing:
    depths = _depths(first)
    least, most = corridor.limits(name, depths, dtype)
    where = depths.astype(np.float64)
    middle, (low, high) = law.at(where), law.band(where)

    def at(outside: npt.NDArray[np.bool_]) -> float:
        return float(depths[outside.argmax()]) if outside.any() else math.inf

    if np.isnan(low).any():
        return Crossing(law.kind, at((middle < least) | (middle > most)), math.nan, math.nan)
    depth = at((middle < least) | (middle > most))
    first_end = at((low < least) | (high > most))
    last_end = at((high < least) | (low > most))
    if law.bend == "faster":
        first_end = float(first)
    elif law.bend == "slower":
        last_end = math.inf
    return Crossing(law.kind, depth, first_end, last_end, law.bend)


def _held(crossing: Crossing, passed: int, failed: int | None) -> Crossing | None:
    """The crossing between what was measured; None where its interval lies outside of that."""
    first, last = passed + 1.0, math.inf if failed is None else float(failed)
    depth, low, high = crossing.depth, crossing.low, crossing.high
    if math.isnan(low):
        low = high = depth
    if high < first or low > last:
        return None
    depth, low, high = (min(max(end, first), last) for end in (depth, low, high))
    if math.isnan(crossing.low):
        low = high = math.nan
    return Crossing(crossing.law, depth, low, high, crossing.bend)


def _depths(first: int) -> npt.NDArray[np.int64]:
    near = np.arange(first, min(first + _EACH, LARGEST_DEPTH + 1))
    far = np.geomspace(near[-1], max(LARGEST_DEPTH, near[-1]), _EACH).astype(np.int64)
    return np.unique(np.concatenate([near, far]))


def _numbers(found: Break | Crossing) -> dict[str, Any]:
    """Depth and interval, each null with its reason where it is no number."""
    out: dict[str, Any] = {}
    for key in ("depth", "low", "high"):
        value: float = getattr(found, key)
        out[key] = value
        if math.isinf(value):
            out[f"{key}_reason"] = _NEVER
        elif math.isnan(value):
            out[f"{key}_reason"] = "there is no law" if key == "depth" else "there is no interval"
    return out


def first_to_break(breaks: Sequence[Break]) -> Break | None:
    """The bound that will break first of those that have not; else the first that may."""
    for state in ("will_break", "may_break"):
        if coming := [found for found in breaks if found.state == state]:
            return min(coming, key=lambda found: found.depth)
    return None
