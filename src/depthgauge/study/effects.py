"""What one change does to one summary, paired by seed.

    effect_k = log10(after_k / before_k)    or    after_k - before_k,    k = 1, ..., K

in decades for what has a logarithmic scale, as a difference for a share. Baseline and change have
the same weights and data under each seed, so that what differs between seeds drops out of each
difference. The interval is Student's t over seeds, mean +- t_(K-1) s / sqrt(K); what is ranked by
is |mean| / s.

Index legend: ``K`` seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from depthgauge.difference import decades
from depthgauge.jsonable import jsonable
from depthgauge.profile import Profile
from depthgauge.sites import FloatArray
from depthgauge.study.scaling import t_quantile
from depthgauge.summaries import SUMMARIES, Spread, spread

__all__ = ["CONFIDENCE", "Effect", "effects"]

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, eq=False)
class Effect:
    """``before`` and ``after``: the summary under each seed, shape (K,), in the same order."""

    change: str
    quantity: str
    before: FloatArray
    after: FloatArray

    @property
    def unit(self) -> str:
        """``decades``, or the summary's own, of which the effect is a difference."""
        quantity = SUMMARIES[self.quantity]
        return "decades" if quantity.scale == "log" else quantity.unit

    @cached_property
    def values(self) -> FloatArray:
        """One a seed; inf or NaN where before or after is not finite, or one of them alone is 0."""
        lost = ~np.isfinite(self.before) & ~np.isfinite(self.after)  # inf twice is no effect of 0
        with np.errstate(all="ignore"):
            log = self.unit == "decades"
            found = decades(self.after, self.before) if log else self.after - self.before
        return np.where(lost, np.nan, found)

    @cached_property
    def finite(self) -> FloatArray:
        return self.values[np.isfinite(self.values)]

    @property
    def n(self) -> int:
        """Seeds whose effect is a finite number."""
        return len(self.finite)

    @property
    def spread(self) -> Spread:
        """Median, least and largest over the seeds whose effect is finite; NaN when none is."""
        return spread(self.finite) if self.n else Spread(math.nan, math.nan, math.nan)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean over seeds lies with 95 per cent confidence; None of fewer than two."""
        if self.n < 2:
            return None
        half = t_quantile((1 + CONFIDENCE) / 2, self.n - 1) * self._deviation / math.sqrt(self.n)
        middle = float(self.finite.mean())
        return middle - half, middle + half

    @property
    def strength(self) -> float:
        """Size over spread, |mean| / s: inf where a seed's effect is infinite or all seeds agree, 0
        where there is no effect or nothing to compare, and the size alone of one seed."""
        if self._apart:
            return math.inf
        if not self.n:
            return 0.0
        size = abs(float(self.finite.mean()))
        if self.n < 2 or size == 0:
            return size
        return size / self._deviation if self._deviation else math.inf

    @property
    def note(self) -> str:
        """What no number of decades says: ``""``, or in how many seeds what is no longer finite."""
        before, after = np.isfinite(self.before), np.isfinite(self.after)
        words = {
            "not finite after the change": before & ~after,
            "finite after the change only": ~before & after,
            "not finite before or after": ~before & ~after,
            "zero before or after the change": before & after & ~np.isfinite(self.values),
        }
        counts = {text: int(where.sum()) for text, where in words.items() if where.any()}
        of = len(self.values)
        return "; ".join(f"{text} in {count} of {of} seeds" for text, count in counts.items())

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The strongest is the largest; what is not finite in a seed stands before all numbers."""
        return self._apart, self.strength, abs(self.spread.median) if self.n else 0.0

    def to_dict(self) -> dict[str, Any]:
        median, low, high = self.spread
        interval = self.interval
        out: dict[str, Any] = {
            "change": self.change,
            "quantity": self.quantity,
            "unit": self.unit,
            "n": self.n,
            "median": median,
            "min": low,
            "max": high,
            "interval": None if interval is None else list(interval),
            "confidence": CONFIDENCE,
            "strength": self.strength,
            "values": self.values,
            "before": self.before,
            "after": self.after,
        }
        if interval is None:
            out["interval_reason"] = f"an interval over seeds needs two of them, and n = {self.n}"
        if math.isinf(self.strength):
            out["strength_reason"] = self.note or "the effect is the same under every seed"
        if self.note:
            out["note"] = self.note
        converted: dict[str, Any] = jsonable(out)
        return converted

    @property
    def _apart(self) -> bool:
        """Whether under some seed one side is finite, or zero, and the other is not."""
        one = np.isfinite(self.before) | np.isfinite(self.after)
        return bool((one & ~np.isfinite(self.values)).any())

    @cached_property
    def _deviation(self) -> float:
        """Over seeds, with K - 1; what rounding leaves of equal numbers is none."""
        found = float(self.finite.std(ddof=1))
        return found if found > 1e-12 * float(np.abs(self.finite).max()) else 0.0


def effects(change: str, before: Profile, after: Profile) -> Iterator[Effect]:
    """Of every summary that both have, seeds in pairs."""
    assert before.seeds == after.seeds, (before.seeds, after.seeds)
    first, second = before.summary(), after.summary()
    for name in SUMMARIES:
        if name in first and name in second:
            yield Effect(change, name, first[name], second[name])
