"""How a summary grows with depth: one of three laws, chosen by a criterion, with its interval.

Index legend: ``D`` depths, ``K`` seeds; ``y`` the summary, ``L`` the depth.

    constant     log y = c
    power        log y = c + p log L
    exponential  log y = c + r L

of a summary in bits, a logarithm already, with ``bits log 2`` in the place of ``log y``.

Each seed has a line of its own, by least squares, so that seeds are paired over depths; rates are
their means, and intervals Student's t over seeds (of one seed those of the regression). The law is
chosen by Schwarz's criterion (Ann. Stat. 6, 1978), which a parameter makes larger:

    n log(RSS / n) + parameters log n,    n = K (D - 1)

RSS being the sum of squares about lines of one rate and a constant for each seed, which takes K of
the K D numbers; the rate is the parameter. A law that grows needs two things: a criterion smaller
than that of the constant by more than ``REACH``, and a rate whose interval leaves out 0. With
neither it is the constant; with one of them it is undecided. Two laws that grow and are within
reach of one another are undecided too.

None of the three may be right: ``sqrt(1 + s L)`` is a constant, then a power. Where, of several
seeds at three depths or more, the square of what the logarithm is linear in has a coefficient whose
interval over seeds leaves out 0, the law bends: it goes on slower, or faster, than it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from depthgauge.jsonable import jsonable
from depthgauge.sites import FloatArray, Scale
from depthgauge.study.scaling import Line, line

__all__ = ["REACH", "Growth", "Kind", "Law", "growth"]

Kind: TypeAlias = Literal["constant", "power", "exponential"]

#: Differences of the criterion below which two laws are within reach: evidence "not worth more than
#: a bare mention" (Kass and Raftery, J. Am. Stat. Assoc. 90, 1995).
REACH: Final = 2.0
CONFIDENCE: Final = 0.95

#: Relative differences that are rounding of states in float32.
_ROUNDING: Final = 1e-6
_LOG2: Final = math.log(2)


@dataclass(frozen=True)
class Law:
    """One law with its interval. ``rate`` is p or r (0 of a constant), ``low`` to ``high`` holds it
    with 95 per cent. ``criterion``: Schwarz's. ``departure``: the root of the mean square of what
    the lines leave, in decades (of a summary in bits: bits). ``bend``: ``slower`` or ``faster``
    where with depth it changes less, or more, than the law says; else empty."""

    kind: Kind
    rate: float
    low: float
    high: float
    criterion: float
    departure: float
    bend: Literal["", "slower", "faster"]
    scale: Scale
    line: Line

    @property
    def moves(self) -> bool:
        """Whether the interval of the rate leaves out 0."""
        return self.low > 0 or self.high < 0

    def at(self, depths: Sequence[float] | FloatArray) -> FloatArray:
        """The summary that the law gives."""
        return self._value(self.line.at(self._x(depths)))

    def band(self, depths: Sequence[float] | FloatArray) -> tuple[FloatArray, FloatArray]:
        """The interval of the law itself at these depths; not that of one seed more."""
        x = self._x(depths)
        middle, half = self.line.at(x), self.line.half_at(x, CONFIDENCE)
        return self._value(middle - half), self._value(middle + half)

    def __str__(self) -> str:
        """The formula in words: ``grows like L^0.50 +- 0.02``."""
        if self.kind == "constant":
            unit = " bits" if self.scale == "bits" else ""
            low, high = (float(side[0]) for side in self.band([1.0]))
            interval = "" if math.isnan(low) else f" [{low:.4g}, {high:.4g}]"
            return f"stays at {float(self.at([1.0])[0]):.4g}{unit}{interval}"
        bend = f", and {self.bend} with depth" if self.bend else ""
        if self.scale == "bits":
            return f"{'gains' if self.rate > 0 else 'loses'} {self.formula}{bend}"
        return f"{'grows' if self.rate > 0 else 'falls'} like {self.formula}{bend}"

    @property
    def formula(self) -> str:
        """``L^0.50 +- 0.02``, ``exp(0.33 L) +- 0.01 (x 1.39 a block)``, ``0.42 +- 0.01 bits a
        block``."""
        half = (self.high - self.low) / 2
        rate, error = _figures(self.rate, half)
        if self.kind == "constant":
            return "a constant"
        if self.scale == "bits":
            if self.kind == "power":
                rate, error = _figures(abs(self.rate), half)
                return f"{rate}{error} bits with each doubling of the depth"
            rate, error = _figures(abs(self.rate) / _LOG2, half / _LOG2)
            return f"{rate}{error} bits a block"
        if self.kind == "power":
            return f"L^{rate}{error}"
        factor = math.exp(min(self.rate, 700.0))
        return f"exp({rate} L){error} (x {factor:.4g} a block)"

    def to_dict(self) -> dict[str, Any]:
        names = ("kind", "rate", "low", "high", "criterion", "departure", "bend")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        if math.isnan(self.low):
            found["low_reason"] = found["high_reason"] = _NO_INTERVAL
        constant = self.line.constant
        found["constant"] = constant
        if math.isinf(constant):
            found["constant_reason"] = "the logarithm of 0"
        converted: dict[str, Any] = jsonable(found | {"words": str(self)})
        return converted

    def _x(self, depths: Sequence[float] | FloatArray) -> FloatArray:
        return _regressor(self.kind, np.asarray(depths, dtype=np.float64))

    def _value(self, logs: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            found: FloatArray = logs / _LOG2 if self.scale == "bits" else np.exp(logs)
        return found


_NO_INTERVAL: Final = "two depths of one seed leave no degree of freedom"


@dataclass(frozen=True)
class Growth:
    """What was found of one summary over ``depths`` (those in ``left_out`` have no logarithm).

    ``laws``: all three, the smallest criterion first. ``within``: the one chosen, or those among
    which it is undecided, the likelier first; empty where there is no law, for the ``reason``.
    """

    depths: tuple[int, ...]
    seeds: int
    laws: tuple[Law, ...] = ()
    within: tuple[Law, ...] = ()
    left_out: tuple[int, ...] = ()
    reason: str = ""

    @property
    def state(self) -> Kind | Literal["undecided", "none"]:
        if not self.within:
            return "none"
        return self.within[0].kind if len(self.within) == 1 else "undecided"

    @property
    def law(self) -> Law | None:
        """The law chosen; None where none is, or more than one could be."""
        return self.within[0] if len(self.within) == 1 else None

    def __str__(self) -> str:
        if not self.within:
            return f"no law: {self.reason}"
        words = str(self.within[0])
        if len(self.within) > 1:
            words = f"undecided: {' or '.join(law.formula for law in self.within)}"
        left = f"; not at depth {', '.join(map(str, self.left_out))}" if self.left_out else ""
        return words + left

    def to_dict(self) -> dict[str, Any]:
        return {
            "law": self.state,
            "words": str(self),
            "depths": list(self.depths),
            "seeds": self.seeds,
            "left_out": list(self.left_out),
            "reason": self.reason,
            "within": [law.kind for law in self.within],
            "laws": [law.to_dict() for law in self.laws],
        }


def growth(
    depths: Sequence[int], values: Sequence[Any] | FloatArray, scale: Scale = "log"
) -> Growth:
    """The law of ``values``, ``(D,)`` or ``(D, K)``, a seed a column, over ``depths``.

    Depths at which a value has no logarithm (0, negative, not finite) are left out; with fewer than
    two others there is no law. ``scale``: of the summary.
    """
    y = np.asarray(values, dtype=np.float64).reshape(len(depths), -1)
    if scale != "bits" and len(depths) > 1 and not y.any():
        zero = Line(-math.inf, 0.0, 0.0, 0.0, 0.0, 1)
        law = Law("constant", 0.0, 0.0, 0.0, -math.inf, 0.0, "", scale, zero)
        return Growth(tuple(depths), y.shape[1], (law,), (law,))
    good = [bool((np.isfinite(row) & ((row > 0) | (scale == "bits"))).all()) for row in y]
    kept = tuple(d for d, ok in zip(depths, good, strict=True) if ok)
    left = tuple(d for d, ok in zip(depths, good, strict=True) if not ok)
    seeds = y.shape[1]
    if len(set(kept)) < 2:
        why = f"a value is 0, negative or not finite at depth {', '.join(map(str, left))}"
        why = why if left else "a law needs at least two depths"
        return Growth(tuple(depths), seeds, left_out=left, reason=why)
    logs = y[good] * _LOG2 if scale == "bits" else np.log(y[good])
    laws = {kind: _law(kind, kept, logs, scale) for kind in _KINDS}
    order = sorted(laws.values(), key=lambda law: law.criterion)
    return Growth(kept, seeds, tuple(order), _within(laws, order), left)


_KINDS: Final[tuple[Kind, ...]] = ("constant", "power", "exponential")


def _within(laws: dict[Kind, Law], order: Sequence[Law]) -> tuple[Law, ...]:
    """The law chosen, or those among which it is undecided."""
    constant = laws["constant"]
    best, other = (law for law in order if law.kind != "constant")
    better = constant.criterion - best.criterion > REACH
    moves = best.moves
    if not (better or moves):
        return (constant,)
    growing = (best, other) if other.criterion - best.criterion <= REACH else (best,)
    return growing if better and moves else (*growing, constant)


def _law(kind: Kind, depths: Sequence[int], logs: FloatArray, scale: Scale) -> Law:
    x = _regressor(kind, np.asarray(depths, dtype=np.float64))
    fitted = line(x, logs)
    left = logs - logs.mean(axis=0) - fitted.slope * (x - x.mean())[:, None]
    count, free = logs.size - logs.shape[1], int(kind != "constant")
    squares = max(float((left * left).sum()), count * _ROUNDING**2)
    criterion = count * math.log(squares / count) + free * math.log(count)
    half = fitted.half_of_slope(CONFIDENCE) if free else 0.0
    if free and abs(fitted.slope) * (reach := float(np.ptp(x))) < _ROUNDING:
        half += _ROUNDING / reach  # so that it holds 0
    unit = _LOG2 if scale == "bits" else math.log(10)
    return Law(
        kind,
        fitted.slope,
        fitted.slope - half,
        fitted.slope + half,
        criterion,
        float(np.sqrt((left * left).mean())) / unit,
        _bend(x, logs, fitted.slope) if free else "",
        scale,
        fitted,
    )


def _bend(x: FloatArray, logs: FloatArray, rate: float) -> Literal["", "slower", "faster"]:
    """Which way the lines bend, if that is sure: by the part of x^2 that no line has."""
    if len(x) < 3 or logs.shape[1] < 2:
        return ""
    plain = np.stack([np.ones_like(x), x - x.mean()], axis=1)
    square = plain[:, 1] ** 2
    curve = square - plain @ np.linalg.lstsq(plain, square)[0]
    fitted = line(curve, logs)
    if abs(fitted.slope) * float(np.ptp(curve)) < _ROUNDING:
        return ""
    if abs(fitted.slope) <= fitted.half_of_slope(CONFIDENCE):
        return ""
    return "faster" if fitted.slope * rate > 0 else "slower"


def _regressor(kind: Kind, depths: FloatArray) -> FloatArray:
    """What the logarithm is linear in."""
    if kind == "power":
        return np.log(depths)
    return depths if kind == "exponential" else np.zeros_like(depths)


def _figures(rate: float, half: float) -> tuple[str, str]:
    """The rate and ``+- half`` to the first digit of the interval."""
    if math.isnan(half):
        return f"{rate:.3g}", " (no interval)"
    last = half if half > 1e-6 * abs(rate) else abs(rate) / 10
    digits = max(2, min(9, -math.floor(math.log10(last)))) if last else 2
    return f"{rate:.{digits}f}", f" +- {half:.{digits}f}"
