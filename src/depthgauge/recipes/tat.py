"""Tailored activation transformations (Zhang, Botev and Martens, "Deep Learning without Shortcuts:
Shaping the Kernel with Tailored Rectifiers", ICLR 2022).

    ReLU, leaky ReLU   sqrt(2/(1+a^2)) leaky_relu(x, a), with the slope a at which the network's
                       maximal C value at 0 is eta = 0.9
    smooth phi         gamma (phi(alpha x + beta) + delta) with Q(1) = Q'(1) = C'(1) = 1 and the
                       C''(1) at which the network's maximal curvature is tau = 0.3

In a plain network of L activations in series the C map is applied L times, and C''(1) = tau/L.
"""

from __future__ import annotations

import math

from depthgauge.errors import NetworkError
from depthgauge.recipes.given import number
from depthgauge.recipes.kernel_maps import (
    Curve,
    Joint,
    curved,
    leaky_map,
    leaky_slope,
    local_curvature,
    maps,
    maximal,
)
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.recipes.shaping import (
    CLOSE,
    SHAPED_JUDGEMENT,
    SHAPED_RULES,
    Asked,
    Condition,
    parts_of,
    shaped,
)
from depthgauge.trace.counted import Layout

__all__ = ["TAT", "tat"]

_RECTIFIERS = ("relu", "leaky_relu")
#: How far the network's C value at 0 may lie from eta: one layer of fifty is more.
_NEAR = 1e-3


def tat(eta: float = 0.9, tau: float = 0.3) -> Recipe:
    """TAT with this maximal C value at 0 of rectifiers, between 0 and 1, and this maximal curvature
    of smooth activations, above 0. Raises NetworkError for others."""
    eta, tau = number("eta", eta, below=1), number("tau", tau)

    def plan(layout: Layout) -> Plan:
        parts = parts_of(layout, "TAT")
        kinds = {bend.kind for bend in layout.bends.rows}
        if kinds <= set(_RECTIFIERS):
            target = _rectifier(parts, eta)
            law = f"slope {target.slope:.7g} below 0 and scale sqrt(2/(1+a**2)): C(0) of the "
            law += f"network {eta:g}"
            return shaped(layout, parts, law, lambda _: target.asked)
        if kinds & set(_RECTIFIERS):
            raise NetworkError(
                f"{', '.join(sorted(kinds))} were found, and TAT has one condition for rectifiers "
                f"and another for smooth activations; use one of them"
            )
        for kind in kinds & {"selu"}:
            raise NetworkError(
                f"{kind} was found, which has a kink and no curvature C''(1); use elu, tanh, "
                f"softplus or gelu"
            )
        curvature = local_curvature(parts, tau)
        law = f"Q(1) = Q'(1) = C'(1) = 1 and a curvature of {curvature:.5g}, of the network {tau:g}"
        return shaped(layout, parts, law, lambda c: _smooth(c, parts, curvature, tau))

    return Recipe(
        "tat",
        "Tailored activation transformations",
        "activations of one kind; no norm; in series, beside sums of one skip and one branch",
        (
            "ReLU becomes sqrt(2/(1+a**2)) leaky_relu(x, a), a with which two examples of "
            f"correlation 0 leave the network with one of {eta:g}: 0.4305 for 50 layers in series, "
            "0.5704 for 100",
            "a smooth activation becomes gamma (phi(alpha x + beta) + delta) with Q(1) = Q'(1) = "
            f"C'(1) = 1 and a curvature C''(1) with which the network's is {tau:g}, {tau:g}/L in a "
            "plain one of L activations",
            *SHAPED_RULES,
        ),
        (
            "the constants are those of one depth: a deeper network has a slope nearer to 1",
            "sqrt(2/(1+a**2)) stands behind the activation: a gain of sqrt(2) in the weights "
            "beside it is one too many",
            "batch norm and layer norm undo it",
            "a shallow network has no solution: ReLU itself stays below eta",
            "what enters is to have a second moment of 1 in each example, which is not seen to",
        ),
        "Zhang, Botev and Martens, ICLR 2022; google-deepmind/dks",
        plan,
        tier=3,
        judgement=SHAPED_JUDGEMENT,
        whole=True,
    )


class _Rectifier:
    """The leaky ReLU of a network."""

    def __init__(self, parts: list[int | Joint], eta: float) -> None:
        self.slope = slope = leaky_slope(parts, eta)
        scale = math.sqrt(2 / (1 + slope**2))
        curve = Curve("leaky_relu", (("slope", slope),), gamma=scale)

        def network(found: Curve, _: object) -> float:
            bent = float(dict(found.options).get("slope", math.nan))
            return maximal(parts, lambda c: leaky_map(c, bent), 0.0)

        shifts = Condition("shifts", lambda c, _: math.hypot(c.beta, c.delta), 0, CLOSE)
        one = Condition("Q(1)", lambda _, at: at.q, 1, CLOSE)
        value = Condition("C(0) of the network", network, eta, _NEAR, local=False)
        self.asked = Asked(curve, (one, shifts, value), lambda c: _layers(c, eta))


def _rectifier(parts: list[int | Joint], eta: float) -> _Rectifier:
    return _Rectifier(parts, eta)


def _layers(curve: Curve, eta: float) -> float:
    """How many of a leaky ReLU in series bring two examples of correlation 0 to eta."""
    slope, value = float(dict(curve.options)["slope"]), 0.0
    for count in range(100_000):
        if value >= eta - _NEAR:
            return count
        value = leaky_map(value, slope)
    return math.inf


def _smooth(curve: Curve, parts: list[int | Joint], curvature: float, tau: float) -> Asked:
    conditions = (
        Condition("Q(1)", lambda _, at: at.q, 1, CLOSE),
        Condition("Q'(1)", lambda _, at: at.q_slope, 1, CLOSE),
        Condition("C'(1)", lambda _, at: at.c_slope, 1, CLOSE),
        Condition(
            "a maximal slope",
            lambda _, at: maximal(parts, lambda x: at.c_slope * x, 1.0),
            1,
            0.01,
        ),
        Condition(
            "a maximal curvature",
            lambda _, at: maximal(parts, lambda x: x + at.c_curve, 0.0),
            tau,
            0.005 * tau,
            local=False,
        ),
    )
    return Asked(
        curved(curve.kind, curve.options, curvature),
        conditions,
        lambda c: tau / maps(c).c_curve,
    )


TAT = tat()
