"""SkipInit (De and Smith, arXiv 2002.10444): what batch norm does to a branch, as one number.

    h = h + alpha F(h),  alpha = 0 at the start

He inside, biases on, no norm. Batch norm lets the l-th branch carry 1/l of the stream's variance;
one learned number a branch does as much.
"""

from __future__ import annotations

from depthgauge.recipes.branches import reached, refuse_plain
from depthgauge.recipes.he import he_rule
from depthgauge.recipes.rules import Count, Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["SKIPINIT"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "SkipInit")
    form = Form(
        skip="1",
        factor="1",
        learned="scalar(0)",
        norms={},
        biased=True,
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
    return Plan(
        (he_rule(layout),),
        tuple(form for _ in layout.branches),
        (Count("norms", len(layout.norms), 0, "SkipInit takes their place"),),
        silent=True,
        wakes={w.path: 1 for branch in reached(layout) for w in branch.weights},
    )


SKIPINIT = Recipe(
    "skipinit",
    "SkipInit",
    "residual branches; no norm",
    (
        "a learned number, 0 at the start, multiplies each branch",
        "weights of branches: He, not scaled by depth",
        "every weight layer of a branch has a bias; no norm",
    ),
    (
        "layers that stood before batch norm have no bias: they need one now",
        "inside branches the gradient of the first step is zero by design",
        "without the noise of batch norm it wants another regulariser",
        "weight decay on the multiplier is left on by the authors",
    ),
    "De and Smith, arXiv 2002.10444",
    _plan,
    judgement="the authors' code begins with a zero classifier too; that is not asked for here",
)
