"""How a number grows with depth: the exponent of a power law, with its interval.

Index legend: ``D`` depths, ``K`` seeds.

    log y = c + p log L        ordinary least squares over the depths

With several seeds one ``p`` is fitted for each, and the interval is Student's t over them,
``mean(p) +- t_(K-1) s / sqrt(K)``: seeds are independent, the residuals about a line that is not
quite straight are not. With one seed it is the regression's own, t with D - 2 degrees of freedom.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from depthgauge.errors import SpecificationError
from depthgauge.jsonable import jsonable
from depthgauge.sites import FloatArray

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.instruments.subject import Effort, Subject
    from depthgauge.network.spec import Network

__all__ = [
    "Exponent",
    "Line",
    "Scaling",
    "exponent",
    "line",
    "of_modules",
    "of_network",
    "scaling",
    "t_quantile",
    "within",
]


@dataclass(frozen=True)
class Exponent:
    """``y = e^constant L^slope``; ``low`` to ``high`` holds the slope with ``confidence``.

    ``depths`` and ``seeds`` say how many there were. An interval of one seed at two depths has no
    degree of freedom: it is NaN.
    """

    slope: float
    low: float
    high: float
    constant: float
    depths: int
    seeds: int
    confidence: float

    def __str__(self) -> str:
        half = (self.high - self.low) / 2
        return f"{self.slope:.3f} +- {half:.3f} ({self.depths} depths, n = {self.seeds})"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(vars(self))
        return found


def exponent(
    depths: Sequence[float], values: Sequence[Any] | FloatArray, confidence: float = 0.95
) -> Exponent:
    """The slope of ``log values`` on ``log depths``; values: ``(D,)`` or ``(D, K)``.

    Raises SpecificationError for fewer than two different depths, or values that have no logarithm.
    """
    x = np.log(np.asarray(depths, dtype=np.float64))
    y = np.asarray(values, dtype=np.float64).reshape(len(x), -1)
    if len(set(depths)) < 2:
        raise SpecificationError(
            f"depths are {', '.join(map(str, depths))}; an exponent needs at least two"
        )
    if not (np.isfinite(y) & (y > 0)).all():
        at = next(
            d for d, row in zip(depths, y, strict=True) if not (np.isfinite(row) & (row > 0)).all()
        )
        raise SpecificationError(
            f"at depth {at} a value is zero, negative or not finite, so the values follow no power "
            f"of the depth; leave that depth out"
        )
    fitted = line(x, np.log(y))
    half = fitted.half_of_slope(confidence)
    slope, count = fitted.slope, y.shape[1]
    return Exponent(slope, slope - half, slope + half, fitted.constant, len(x), count, confidence)


@dataclass(frozen=True)
class Line:
    """``y = constant + slope x``; the variances of both and their covariance, of which Student's t
    has ``freedom`` degrees."""

    constant: float
    slope: float
    of_constant: float
    of_slope: float
    of_both: float
    freedom: int

    def at(self, x: FloatArray) -> FloatArray:
        return self.constant + self.slope * x

    def half_of_slope(self, confidence: float) -> float:
        """Half of the slope's interval; NaN where there is no degree of freedom."""
        return self._t(confidence) * math.sqrt(max(self.of_slope, 0.0))

    def half_at(self, x: FloatArray, confidence: float) -> FloatArray:
        """Half of the interval of the line itself at ``x``."""
        variance = self.of_constant + 2 * x * self.of_both + x * x * self.of_slope
        half: FloatArray = self._t(confidence) * np.sqrt(np.maximum(variance, 0.0))
        return half

    def _t(self, confidence: float) -> float:
        return t_quantile((1 + confidence) / 2, self.freedom) if self.freedom else math.nan


def line(x: FloatArray, y: FloatArray) -> Line:
    """Least squares of ``y``, ``(D, K)``, on ``x``, ``(D,)``: one line a seed and their mean, with
    its covariance over seeds; of one seed that of the regression. Where all ``x`` are 0 it is the
    mean."""
    places, count = y.shape
    centred = x - x.mean()
    square = float(centred @ centred)
    slopes = centred @ y / square if square else np.zeros(count)  # (K,)
    constants = y.mean(axis=0) - slopes * x.mean()
    slope, constant = float(slopes.mean()), float(constants.mean())
    if count > 1:
        spread = np.cov(constants, slopes) / count
        return Line(
            constant,
            slope,
            float(spread[0, 0]),
            float(spread[1, 1]),
            float(spread[0, 1]),
            count - 1,
        )
    freedom = places - (2 if square else 1)
    residuals = y[:, 0] - constant - slope * x
    variance = float(residuals @ residuals) / max(freedom, 1)
    of_slope = variance / square if square else 0.0
    mean = float(x.mean())
    return Line(
        constant, slope, variance / places + mean**2 * of_slope, of_slope, -mean * of_slope, freedom
    )


def t_quantile(p: float, freedom: int) -> float:
    """The p-quantile (p >= 1/2) of Student's t, by bisection of its distribution function."""
    assert 0.5 <= p < 1, p
    assert freedom >= 1, freedom
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, freedom) < p else (low, middle)
    return high


def _t_cdf(t: float, freedom: int) -> float:
    """Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(3 if odd else 2, freedom, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = math.sin(angle) * total
    if odd:
        inside = 2 / math.pi * (angle + (inside if freedom > 1 else 0.0))
    return (1 + inside) / 2


# --------------------------------------------------------------------- what is measured at a depth


#: What is fitted: one number of a whole network each.
NAMES: Final = (
    "functional_update",
    "branch_update",
    "together",
    "update_to_weight",
    "update_alignment",
    "norm_of_sum_to_root_sum_square",
)
#: What compares a sum over branches with the branches alone: of a sample it grows with the sample.
_OF_ALL: Final = ("update_alignment", "norm_of_sum_to_root_sum_square")


@dataclass(frozen=True)
class Scaling:
    """``exponents`` over ``depths``; ``missing``: why a quantity has none; ``left_out``: depths for
    which the budget left no time, and what is said of them."""

    exponents: Mapping[str, Exponent]
    missing: Mapping[str, str]
    depths: tuple[int, ...]
    left_out: Mapping[int, str]


def scaling(
    build: Callable[[int, int], Subject],
    depths: Sequence[int],
    seeds: Sequence[int] = (0,),
    effort: Effort | None = None,
) -> Scaling:
    """The exponents of what ``updates`` finds; ``build(depth, seed)`` gives the subject.

    ``functional_update`` of the last state, ``branch_update`` and ``update_to_weight`` (the means
    over branches), ``together`` (all branches moved at once), and where every branch is moved alone
    ``update_alignment`` and ``norm_of_sum_to_root_sum_square``. A quantity that some depth does not
    have, or that is zero or not finite there, has no exponent but the reason. The budget of
    ``effort`` is that of all depths together, counted from now.
    """
    from depthgauge.arguments import effort_of

    return within(build, depths, seeds, effort_of(effort))


def within(
    build: Callable[[int, int], Subject],
    depths: Sequence[int],
    seeds: Sequence[int],
    effort: Effort,
) -> Scaling:
    """``scaling`` on a clock that runs already. The shallow depths come first; one that, at the
    speed of the one before, would not end in time is left out with all deeper ones."""
    each: dict[int, list[_Totals]] = {}
    pace = 0.0  # seconds of one seed, over the depth
    for depth in sorted(set(depths)):
        found: list[_Totals] = []
        took = []
        while len(found) < len(seeds) and effort.fits(pace * depth * (len(seeds) - len(found))):
            start = time.perf_counter()
            found.append(_totals(build(depth, seeds[len(found)]), effort))
            took.append(time.perf_counter() - start)
        if len(found) < len(seeds) or any(one.cut for one in found):
            break
        each[depth] = found
        pace = min(took) / depth
    budget = "" if effort.budget is None else f"the budget of {effort.budget:g} seconds left"
    left_out = {d: f"{budget} no time for it" for d in sorted(set(depths)) if d not in each}
    exponents, missing = {}, {}
    for name in NAMES:
        if len(each) < 2 and left_out:
            left = " ".join(f"depth {d} alone" for d in each) or "none"
            missing[name] = f"an exponent needs two depths, and {budget} time for {left}"
        elif why := _no_power(name, each):
            missing[name] = why
        else:
            values = [[one.values[name] for one in at] for at in each.values()]
            exponents[name] = exponent(list(each), values)
    return Scaling(exponents, missing, tuple(each), left_out)


@dataclass(frozen=True)
class _Totals:
    """One number each for a whole network under one seed, or why there is none; ``cut``: whether
    the budget ended on the way."""

    values: Mapping[str, float]
    why: Mapping[str, str]
    cut: bool = False


def _no_power(name: str, each: Mapping[int, Sequence[_Totals]]) -> str:
    """``""``, or at which depth the quantity has no logarithm, and why: the first such depth, of
    what more branches may mend the last, which asks for the most."""
    for depth in sorted(each, reverse=name in _OF_ALL):
        at = each[depth]
        said = [_no_logarithm(one, name) for one in at]
        if bad := [why for why in said if why]:
            seeds = f" (in {len(bad)} of {len(said)} seeds)" if len(said) > 1 else ""
            return f"at depth {depth} {bad[0]}{seeds}"
    return ""


def _no_logarithm(totals: _Totals, name: str) -> str:
    if name not in totals.values:
        return totals.why[name]
    value = totals.values[name]
    if not math.isfinite(value):
        return f"it is {'not a number' if math.isnan(value) else 'infinite'}"
    return "" if value > 0 else "it is 0, which is no power of the depth"


def _totals(subject: Subject, effort: Effort) -> _Totals:
    from depthgauge.instruments.updates import updates

    taken = updates(subject, effort)
    if not taken.columns:
        return _Totals({}, dict.fromkeys(NAMES, taken.missing["functional_update"]))
    values = {"functional_update": taken.columns["functional_update"][1][-1]}
    shares = taken.notes["updates"].get("branches")
    if shares is None:
        none = dict.fromkeys(NAMES, taken.missing["branch_update"])
        return _Totals(values, none, cut=bool(subject.branches))
    size = shares["state_rms"]
    values["branch_update"] = _over(shares["sum_of_norms"] / shares["measured"], size)
    values["together"] = _over(shares["together"], size)
    why = dict.fromkeys(_OF_ALL, taken.missing.get("update_alignment", ""))
    ratio = shares.get("update_to_weight")
    if ratio is None:
        why["update_to_weight"] = "no parameter of a branch moves"
    elif not math.isfinite(ratio):
        why["update_to_weight"] = "all weights of a branch are 0"
    else:
        values["update_to_weight"] = ratio
    measured, of = shares["measured"], shares["of"]
    if measured < of:
        sample = (
            f"{measured} of {of} branches were moved alone, and of a sample it depends on how many "
            f"they are; branches={of} moves each (Effort, --branches)"
        )
        why |= dict.fromkeys(_OF_ALL, sample)
    elif "alignment" in shares:
        values["update_alignment"] = shares["alignment"]
        values[_OF_ALL[1]] = shares[_OF_ALL[1]]
    return _Totals(values, why)


def _over(change: float, size: float) -> float:
    return change / size if size else math.nan


def of_modules(
    build: Callable[[int, int], tuple[nn.Module, Any, Callable[..., Any] | None]],
) -> Callable[[int, int], Subject]:
    """A builder for ``scaling`` from one of ``(module, batch, loss)``; of several streams the last
    is taken. Raises NetworkError where there is none to follow."""

    def subject(depth: int, seed: int) -> Subject:
        from depthgauge.errors import NetworkError
        from depthgauge.trace.measuring import followed

        found = followed(*build(depth, seed), seed)
        if isinstance(found, str):
            raise NetworkError(f"at depth {depth}: {found}")
        return found[-1]

    return subject


def of_network(network: Network, batch: int = 32) -> Callable[[int, int], Subject]:
    """A builder for ``scaling``: the equation at another depth, on Gaussian examples, its loss the
    last state along a random cotangent. Raises NetworkError where it cannot be a module."""
    import dataclasses

    import torch

    from depthgauge.errors import NetworkError
    from depthgauge.subjects import subject_of

    def build(depth: int, seed: int) -> Subject:
        deeper = dataclasses.replace(network, depth=depth)
        rows = tuple(range(depth + 1))
        found = subject_of(deeper, seed, batch, rows, torch.device("cpu"))
        if isinstance(found, str):
            raise NetworkError(found)
        return found

    return build
