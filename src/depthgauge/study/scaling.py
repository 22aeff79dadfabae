"""How a number grows with depth: the exponent of a power law, with its interval.

Index legend: ``D`` depths, ``K`` seeds.

    log y = c + p log L        ordinary least squares over the depths

With several seeds one ``p`` is fitted for each, and the interval is Student's t over them,
``mean(p) +- t_(K-1) s / sqrt(K)``: seeds are independent, the residuals about a line that is not
quite straight are not. With one seed it is the regression's own, t with D - 2 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    "exponent",
    "line",
    "of_modules",
    "of_network",
    "scaling",
    "t_quantile",
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


def scaling(
    build: Callable[[int, int], Subject],
    depths: Sequence[int],
    seeds: Sequence[int] = (0,),
    effort: Effort | None = None,
) -> dict[str, Exponent]:
    """The exponents of what ``updates`` finds; ``build(depth, seed)`` gives the subject.

    ``functional_update`` of the last state, ``branch_update`` (the mean of a branch), ``together``
    (all branches moved at once), ``update_alignment``, ``norm_of_sum_to_root_sum_square``. A
    quantity that some depth does not have, or that is zero there, has no exponent and is left out.
    """
    from depthgauge.instruments.subject import Effort

    each = [[_totals(build(depth, seed), effort or Effort()) for seed in seeds] for depth in depths]
    names = set.intersection(*(set(one) for at in each for one in at))
    found = {}
    for name in sorted(names):
        values = [[one[name] for one in at] for at in each]
        if all(math.isfinite(v) and v > 0 for at in values for v in at):
            found[name] = exponent(depths, values)
    return found


def _totals(subject: Subject, effort: Effort) -> Mapping[str, float]:
    """One number each for a whole network."""
    from depthgauge.instruments.updates import updates

    taken = updates(subject, effort)
    if not taken.columns:
        return {}
    totals = {"functional_update": taken.columns["functional_update"][1][-1]}
    if shares := taken.notes["updates"].get("branches"):
        size = shares["state_rms"]
        totals["branch_update"] = shares["sum_of_norms"] / shares["measured"] / size
        totals["together"] = shares["together"] / size
        if "alignment" in shares:
            totals["update_alignment"] = shares["alignment"]
            if shares["measured"] == shares["of"]:  # of a sample it grows with the sample
                name = "norm_of_sum_to_root_sum_square"
                totals[name] = shares[name]
    return totals


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
