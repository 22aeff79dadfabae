"""ReZero (Bachlechner et al., arXiv 2003.04887): a learned number, 0, in front of each branch.

    h = h + alpha F(h),  alpha = 0 at the start

No norm. At the first step alpha alone has a gradient.
"""

from __future__ import annotations

from depthgauge.recipes.branches import reached, refuse_plain
from depthgauge.recipes.rules import Count, Form, Group, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["REZERO"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "ReZero")
    form = Form(
        skip="1",
        factor="1",
        learned="scalar(0)",
        norms={},
        mistakes=(
            ("1/sqrt(2)", "1/sqrt(2)", "the sum is scaled too"),
            ("1", "1/sqrt(L)", "a fixed 1/sqrt(L) as well: it is scaled twice"),
        ),
        learned_mistakes=(
            ("", "the multiplier is missing"),
            ("scalar(1)", "it begins at 1, as Fixup's does"),
            ("gain(0)", "one number a channel"),
        ),
    )
    weights = {w.path: 1 for branch in reached(layout) for w in branch.weights}
    return Plan(
        forms=tuple(form for _ in layout.branches),
        counts=(Count("norms", len(layout.norms), 0, "ReZero does without"),),
        silent=True,
        wakes=weights,
        groups=(Group("multipliers", layout.scalars, 1.0, decay=0),),
    )


REZERO = Recipe(
    "rezero",
    "ReZero",
    "residual branches; no norm",
    (
        "a learned number, 0 at the start, multiplies each branch",
        "no norm, no warm-up; initialisers as they are",
    ),
    (
        "one number a branch; the Transformer of the paper shares one in a layer",
        "in the paper's ResNet the sum comes after the activation: h + alpha relu(F(h))",
        "weight decay pulls the number, and with it the network, to the identity",
        "inside branches the gradient of the first step is zero by design",
    ),
    "Bachlechner et al., arXiv 2003.04887",
    _plan,
)
