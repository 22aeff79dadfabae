"""The maps of deep kernel shaping, and activations that are shaped by them.

Of ``f(x) = gamma (phi(alpha x + beta) + delta)`` behind weights of variance 1 / fan_in, in a wide
network, the second moment q of a unit and the correlation c of two examples at q = 1 pass as

    Q(q) = E[f(sqrt(q) z)^2]            Q(1) = E[f^2]     Q'(1) = E[f f' z]
    C(c) = E[f(u) f(v)] / Q(1)          C(0) = E[f]^2 / Q(1)
    C'(1) = E[f'^2] / Q(1)              C''(1) = E[f''^2] / Q(1)

``z``, and each of ``u, v`` of correlation c, is N(0, 1). Behind a sum of weights w and sqrt(1-w^2)
the map is ``w^2`` times that of the skip plus ``1-w^2`` times that of the branch. Martens et al.
2110.01765 (DKS), Zhang, Botev and Martens (ICLR 2022, TAT).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from depthgauge.errors import NetworkError
from depthgauge.recipes.mean_field import gate_of, points

__all__ = [
    "Curve",
    "Joint",
    "Maps",
    "curved",
    "leaky_map",
    "leaky_slope",
    "local_curvature",
    "local_slope",
    "maps",
    "maximal",
    "sloped",
]

Options = tuple[tuple[str, Any], ...]

#: How far apart the shifts are that are tried for a change of sign, and how far out.
_STEP: Final = 0.1
_OUT: Final = 4.0


@dataclass(frozen=True)
class Curve:
    """``gamma (phi(alpha x + beta) + delta)``, phi an activation of the language."""

    kind: str
    options: Options = ()
    alpha: float = 1.0
    beta: float = 0.0
    gamma: float = 1.0
    delta: float = 0.0

    @property
    def bare(self) -> Curve:
        """The activation without what was put around it."""
        return Curve(self.kind, self.options)


@dataclass(frozen=True)
class Joint:
    """A residual sum: activations in series on its skip and in its branch, and the share ``w^2`` of
    the skip, 1 - that of the branch."""

    skip: int
    branch: int
    share: float


@dataclass(frozen=True)
class Maps:
    """``Q(1), Q'(1), C(0), C'(1), C''(1)``."""

    q: float
    q_slope: float
    c_zero: float
    c_slope: float
    c_curve: float


def maps(curve: Curve) -> Maps:
    """The maps at their two ends. ``c_curve`` leaves out what a kink of f adds, infinity."""
    seen = _Seen(curve)
    y = curve.gamma * (seen.y + curve.delta)
    d, dd = curve.gamma * curve.alpha * seen.d, curve.gamma * curve.alpha**2 * seen.dd
    q = seen.mean(y * y)
    if not 0 < q < math.inf:
        return Maps(q, math.nan, math.nan, math.nan, math.nan)
    return Maps(
        q, seen.mean(y * d * seen.z), seen.mean(y) ** 2 / q, seen.mean(d * d) / q,
        seen.mean(dd * dd) / q,
    )  # fmt: skip


class _Seen:
    """phi and its first two derivatives at ``alpha z + beta``, and averages over z."""

    def __init__(self, curve: Curve) -> None:
        gate = gate_of(curve.kind, dict(curve.options))
        self.z, self.weights = points(-curve.beta / curve.alpha if curve.alpha else 0.0)
        with torch.enable_grad():
            x = (curve.alpha * self.z + curve.beta).requires_grad_()
            d = gate.derivative(x, gate.apply(x))
            # Of a piecewise linear one nothing leads back to x.
            dd = torch.autograd.grad(d.sum(), x)[0] if d.requires_grad else torch.zeros_like(d)
        self.y, self.d, self.dd = gate.apply(x).detach(), d.detach(), dd

    def mean(self, values: Tensor) -> float:
        return float((values * self.weights).sum())


# ------------------------------------------------------------------------- whole networks


def maximal(parts: Sequence[int | Joint], local: Callable[[float], float], start: float) -> float:
    """The largest value, over the network and its branches, of the map that each activation
    applies as ``local`` to what begins at ``start``.

    ``parts``: activations in series and sums, in forward order. With ``local`` the C map it is the
    maximal C value, with ``c_slope * x`` from 1 the maximal slope at 1, with ``x + c_curve`` from 0
    (where every slope is 1) the maximal curvature.
    """

    def along(number: int, x: float) -> float:
        for _ in range(number):
            x = local(x)
        return x

    through, inside = start, [start]
    for part in parts:
        if isinstance(part, Joint):
            branch = along(part.branch, through)
            through = part.share * along(part.skip, through) + (1 - part.share) * branch
            inside.append(along(part.branch, start))
        else:
            through = along(part, through)
    return max(through, *inside)


def leaky_map(c: float, slope: float) -> float:
    """The C map of a leaky ReLU, whatever multiplies it."""
    c = min(max(c, -1.0), 1.0)
    bent = (1 - slope) ** 2 * (math.sqrt(1 - c * c) + (math.pi - math.acos(c)) * c)
    return (bent / math.pi + 2 * slope * c) / (1 + slope**2)


# ------------------------------------------------------------------------------ constants


def local_slope(parts: Sequence[int | Joint], zeta: float) -> float:
    """The slope C'(1) of each activation with which the maximal slope is ``zeta``; in a plain
    network of L in series ``zeta**(1/L)``."""
    return _root(lambda slope: maximal(parts, lambda x: slope * x, 1.0) - zeta, 1.0, zeta)


def local_curvature(parts: Sequence[int | Joint], tau: float) -> float:
    """The curvature C''(1) of each activation with which, where every slope is 1, the maximal
    curvature is ``tau``; in a plain network of L in series ``tau/L``."""
    return tau / maximal(parts, lambda x: x + 1, 0.0)


def leaky_slope(parts: Sequence[int | Joint], eta: float) -> float:
    """The slope below 0 with which the maximal C value at 0 is ``eta``.

    Raises NetworkError where ReLU itself, slope 0, stays below it.
    """

    def off(slope: float) -> float:
        return maximal(parts, lambda c: leaky_map(c, slope), 0.0) - eta

    if (relu := off(0.0)) < 0:
        raise NetworkError(
            f"with ReLU two examples of correlation 0 leave this network with one of "
            f"{relu + eta:.4g}, below TAT's {eta:g} already: it is not deep enough to need the "
            f"transformation; use he"
        )
    return _root(off, 0.0, 1.0)


@lru_cache(maxsize=64)
def curved(kind: str, options: Options, curvature: float) -> Curve:
    """TAT's activation: Q(1) = Q'(1) = C'(1) = 1 and C''(1) = ``curvature``.

    Raises NetworkError where no constants have all four.
    """

    def along(beta: float, sign: int) -> Curve | None:
        def off(alpha: float) -> float:
            seen = _Seen(Curve(kind, options, alpha, beta))
            return alpha**2 * seen.mean(seen.dd**2) - curvature * seen.mean(seen.d**2)

        if (alpha := _rising(off)) is None:
            return None
        curve = Curve(kind, options, alpha, beta)
        seen = _Seen(curve)
        gamma = 1 / (alpha * math.sqrt(seen.mean(seen.d**2)))
        middle = seen.mean(seen.y)
        room = 1 / gamma**2 - seen.mean((seen.y - middle) ** 2)  # what the mean's square may be
        if room < 0:
            return None
        return replace(curve, gamma=gamma, delta=sign * math.sqrt(room) - middle)

    return _least(along, (1, -1)) or _unsolved("TAT", kind, f"a curvature of {curvature:.4g}")


@lru_cache(maxsize=64)
def sloped(kind: str, options: Options, slope: float) -> Curve:
    """DKS's activation: Q(1) = Q'(1) = 1, C(0) = 0 and C'(1) = ``slope``.

    Raises NetworkError where no constants have all four.
    """

    def along(beta: float, _: int) -> Curve | None:
        def off(alpha: float) -> float:
            seen = _Seen(Curve(kind, options, alpha, beta))
            spread = seen.mean((seen.y - seen.mean(seen.y)) ** 2)
            return alpha**2 * seen.mean(seen.d**2) - slope * spread

        if (alpha := _rising(off)) is None:
            return None
        curve = Curve(kind, options, alpha, beta)
        seen = _Seen(curve)
        middle = seen.mean(seen.y)
        gamma = 1 / math.sqrt(seen.mean((seen.y - middle) ** 2))
        return replace(curve, gamma=gamma, delta=-middle)

    return _least(along, (1,)) or _unsolved("DKS", kind, f"a slope of {slope:.6g}")


def _unsolved(title: str, kind: str, asked: str) -> NoReturn:
    raise NetworkError(
        f"no constants give {kind} {asked} with the other conditions of {title}; use tanh, "
        f"softplus or gelu"
    )


def _least(along: Callable[[float, int], Curve | None], signs: Sequence[int]) -> Curve | None:
    """Of the curves with Q'(1) = 1 the one of the smallest input shift, of two equal ones that of
    the positive: over ``beta`` and the sign that a condition leaves open."""

    def off(beta: float, sign: int) -> float:
        curve = along(beta, sign)
        return math.nan if curve is None else maps(curve).q_slope - 1

    last = {(side, sign): off(0.0, sign) for side in (1, -1) for sign in signs}
    for k in range(1, round(_OUT / _STEP) + 1):
        found: list[Curve] = []
        for (side, sign), before in last.items():
            here = last[side, sign] = off(side * k * _STEP, sign)
            if before * here <= 0:  # not where either is NaN
                found += _between(along, off, side * (k - 1) * _STEP, side * k * _STEP, sign)
        if found:
            return min(found, key=lambda curve: (round(abs(curve.beta), 9), -curve.beta))
    return None


def _between(
    along: Callable[[float, int], Curve | None],
    off: Callable[[float, int], float],
    low: float,
    high: float,
    sign: int,
) -> Iterator[Curve]:
    """The curve between two shifts, if there is one: a change of sign may be a jump."""
    curve = along(_root(lambda beta: off(beta, sign), low, high), sign)
    if curve is not None and abs(maps(curve).q_slope - 1) < 1e-8:
        yield curve


def _rising(off: Callable[[float], float]) -> float | None:
    """The first root above 0 of a function that begins below 0, if it comes before 50."""
    low = high = 1e-4
    if not off(low) < 0:
        return None
    while not off(high) >= 0:
        low, high = high, 2 * high
        if high > 50:
            return None
    return _root(off, low, high)


def _root(off: Callable[[float], float], low: float, high: float) -> float:
    """A root in a bracket: false position, halving the value of an end that stays (Illinois)."""
    at_low, at_high = off(low), off(high)
    if at_low == 0 or at_high == 0:
        return low if at_low == 0 else high
    for _ in range(200):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        if not min(low, high) < middle < max(low, high):
            middle = (low + high) / 2
        value = off(middle)
        if value == 0 or abs(high - low) <= 1e-15 * abs(middle):
            return middle
        if value * at_high < 0:
            low, at_low = high, at_high
        else:
            at_low /= 2
        high, at_high = middle, value
        if abs(high - low) <= 4e-16 * max(abs(high), 1e-300):
            break
    return high
