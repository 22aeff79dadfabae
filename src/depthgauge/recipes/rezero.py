"""ReZero (Bachlechner et al., arXiv 2003.04887): a learned number, 0, in front of each branch.

    h = h + alpha F(h),  alpha = 0 at the start

No norm. At the first step alpha alone has a gradient.
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Form, Group, Plan, Recipe
from depthgauge.trace.layout import Layout

__all__ = ["REZERO"]


def _plan(layout: Layout) -> Plan:
    if not layout.branches:
        raise NetworkError(
            "no residual branch was found, and ReZero puts a number in front of each; give a "
            "network with a skip connection"
        )
    form = Form(
        skip="1",
        factor="1",
        learned="scalar(0)",
        norms={},
    )
    weights = {w.path: 1 for branch in layout.branches for w in branch.weights}
    return Plan(
        forms=tuple(form for _ in layout.branches),
        silent=True,
        wakes=weights,
        groups=(Group("multipliers", layout.scalars, 1.0, decay=False),),
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
        "weight decay pulls the number, and with it the network, to the identity",
        "inside branches the gradient of the first step is zero by design",
    ),
    "Bachlechner et al., arXiv 2003.04887",
    _plan,
)
