"""Derf (Chen et al., "Stronger Normalization-Free Transformers", arXiv 2512.10938).

    y = gamma erf(alpha x + s) + beta,  alpha = 0.5, s = 0, gamma = 1, beta = 0 at the start

in the place of every norm; alpha and s are one learned number a site.
"""

from __future__ import annotations

from depthgauge.recipes.dyt import bounded_plan
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["DERF"]


def _plan(layout: Layout) -> Plan:
    return bounded_plan(layout, "derf", "Derf", {"alpha": "0.5", "shift": "0"})


DERF = Recipe(
    "derf",
    "Derf",
    "norms",
    (
        "gamma erf(alpha x + s) + beta in the place of every norm, also of the final one",
        "alpha = 0.5 and s = 0, one number each a site; gamma = 1 and beta = 0, one a channel",
    ),
    (
        "scale is no longer divided out: Derf(c x) is not Derf(x)",
        "a GPT-2 with Derf also learns a number, sqrt(d), in front of its embeddings",
    ),
    "Chen et al., arXiv 2512.10938; zlab-princeton/Derf",
    _plan,
    tier=2,
    judgement="weight decay is not meant for alpha and s",
)
