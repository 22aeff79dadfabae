"""Deep kernel shaping (Martens et al., "Rapid training of deep neural networks without skip
connections or normalization layers using Deep Kernel Shaping", arXiv 2110.01765).

Every activation becomes ``gamma (phi(alpha x + beta) + delta)`` with

    Q(1) = 1,   Q'(1) = 1,   C(0) = 0,   C'(1) = psi

where psi gives the network a maximal slope of zeta = 1.5: in a plain network of L activations in
series ``psi = 1.5**(1/L)``.
"""

from __future__ import annotations

import math

from depthgauge.errors import NetworkError
from depthgauge.recipes.given import number
from depthgauge.recipes.kernel_maps import Curve, Joint, local_slope, maps, maximal, sloped
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

__all__ = ["DKS", "dks"]


def dks(zeta: float = 1.5) -> Recipe:
    """Deep kernel shaping with this maximal slope, above 1. Raises NetworkError for another."""
    zeta = number("zeta", zeta, above=1)

    def plan(layout: Layout) -> Plan:
        parts = parts_of(layout, "DKS")
        slope = local_slope(parts, zeta)
        conditions = (
            Condition("Q(1)", lambda _, at: at.q, 1, CLOSE),
            Condition("Q'(1)", lambda _, at: at.q_slope, 1, CLOSE),
            Condition("C(0)", lambda _, at: at.c_zero, 0, CLOSE),
            Condition(
                "a maximal slope",
                lambda _, at: _maximal(parts, at.c_slope),
                zeta,
                0.005 * math.log(zeta) * zeta,
                local=False,
            ),
        )

        def asked(curve: Curve) -> Asked:
            if curve.kind in ("relu", "leaky_relu"):
                raise NetworkError(
                    f"{curve.kind} was found, and DKS's conditions are for smooth activations; use "
                    f"tat, or tanh, softplus or gelu"
                )
            return Asked(
                sloped(curve.kind, curve.options, slope), conditions, lambda c: _depth(c, zeta)
            )

        law = f"Q(1) = Q'(1) = 1, C(0) = 0 and a slope of {slope:.7g}, of the network {zeta:g}"
        return shaped(layout, parts, law, asked)

    return Recipe(
        "dks",
        "Deep kernel shaping",
        "smooth activations; no norm; in series, beside sums of one skip and one branch",
        (
            "every activation: gamma (phi(alpha x + beta) + delta) with Q(1) = Q'(1) = 1, C(0) = 0 "
            f"and the slope C'(1) with which the network's is {zeta:g}, {zeta:g}**(1/L) in a plain "
            f"one of L activations",
            *SHAPED_RULES,
        ),
        (
            "the constants are those of one depth: a deeper network has others",
            "the output scale is as much part of it as the shifts: without it the state dies in a "
            "few layers",
            "batch norm and layer norm undo it",
            "a framework whose weights lie (in, out) gives a layer that widens the other factor",
            "what enters is to have a second moment of 1 in each example; the paper preprocesses "
            "its data so, this recipe does not",
        ),
        "Martens, Ballard, Desjardins, Swirszcz, Dalibard, Sohl-Dickstein and Schoenholz, arXiv "
        "2110.01765; google-deepmind/dks",
        plan,
        tier=3,
        judgement=SHAPED_JUDGEMENT,
        whole=True,
    )


def _maximal(parts: list[int | Joint], slope: float) -> float:
    return maximal(parts, lambda x: slope * x, 1.0)


def _depth(curve: Curve, zeta: float) -> float:
    slope = maps(curve).c_slope
    return math.log(zeta) / math.log(slope) if slope > 1 else math.inf


DKS = dks()
