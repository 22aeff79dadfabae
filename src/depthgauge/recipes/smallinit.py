"""SmallInit (Nguyen and Salazar, "Transformers without Tears", arXiv 1910.05895).

attention      std = sqrt(2 / (5 d))          Xavier as if each matrix were stacked four times
feed-forward   std = sqrt(2 / (d + d_ff))     Xavier
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout

__all__ = ["SMALLINIT"]

_SMALL = "normal(std=sqrt(2/(5*n)))"


def _plan(layout: Layout) -> Plan:
    if not any(branch.attends for branch in layout.branches):
        raise NetworkError(
            "no attention was found, and SmallInit makes its weights smaller; give a Transformer, "
            "or take 'xavier', which is its rule for feed-forward weights"
        )
    mistakes = (
        ("xavier", "Xavier of each matrix by itself, where SmallInit's is sqrt(2/5d)"),
        ("xavier(gain=1/sqrt(2))", "Xavier of queries, keys and values stacked"),
    )
    small, plain = [], []
    for branch in layout.branches:
        scope = scope_of(layout, branch)
        for weight in branch.weights:
            if weight.table:  # distances, whose numbers are added to scores
                continue
            if branch.attends:
                small.append(Target(weight, _SMALL, scope, mistakes))
            elif weight.fan_in:
                words = "sqrt(2/5d), which is for attention"
                plain.append(Target(weight, "xavier", scope, ((_SMALL, words),)))
    return Plan(
        (
            Rule("attention weights", "sqrt(2 / 5d)", tuple(small)),
            Rule("feed-forward weights", "Xavier", tuple(plain)),
        )
    )


SMALLINIT = Recipe(
    "smallinit",
    "SmallInit",
    "attention",
    (
        "attention weights: normal of standard deviation sqrt(2 / 5d), d the width",
        "feed-forward weights: Xavier, sqrt(2 / (d + d_ff))",
    ),
    ("in the paper it goes with pre-norm and ScaleNorm, whose gain begins at sqrt(d), not at 1",),
    "Nguyen and Salazar, arXiv 1910.05895; tnq177/transformers_without_tears",
    _plan,
    tier=2,
)
