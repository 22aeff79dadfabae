"""Sums over sqrt(2) (Gehring et al., arXiv 1705.03122; Balduzzi et al., arXiv 1702.08591).

    h = (h + F(h)) / sqrt(2)

keeps the variance where F(h) has that of h and is uncorrelated with it. The price: the identity
path alone is 2^(-L/2) after L sums.
"""

from __future__ import annotations

from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["INV_SQRT2"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "1/sqrt(2)")
    for branch in layout.branches:
        if any(norm.at == "stream" for norm in branch.norms):
            raise NetworkError(
                f"a norm stands after the sum of '{branch.path}' and takes any factor out; give a "
                f"network without norms on its stream"
            )
    form = Form(
        skip="1/sqrt(2)",
        factor="1/sqrt(2)",
        mistakes=(
            ("1", "1", "the sum was never scaled"),
            ("1", "1/sqrt(2)", "the branch alone is scaled, and the stream still grows"),
            ("1/sqrt(2)", "1", "the skip alone is scaled"),
            ("1/2", "1/2", "1/2 instead of its root"),
            ("1/sqrt(L)", "1/sqrt(L)", "the whole sum over sqrt(L), which belongs to the branch"),
        ),
    )
    return Plan(forms=tuple(form for _ in layout.branches))


_RULE: Final = "each sum of skip and branch is multiplied by 1/sqrt(2)"

INV_SQRT2 = Recipe(
    "inv-sqrt2",
    "Sums over sqrt(2)",
    "residual branches, no norm on the stream",
    (_RULE,),
    (
        "after the sum, on both: on the branch alone the stream still grows",
        "the identity path dies as 2^(-L/2): 0.0156 after 12 sums, 0.000244 after 24",
        "it counts on a branch of the stream's own variance, which nothing holds it to",
        "with a norm after the sum it does nothing",
    ),
    "Gehring et al., arXiv 1705.03122; Balduzzi et al., arXiv 1702.08591",
    _plan,
    judgement="initialisers stay as they are: the rule wants branches of unit gain and does not "
    "say how",
    unconfirmed=((_RULE, "taken from its use, the papers were not read"),),
)
