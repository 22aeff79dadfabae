"""Stable ResNet, decreasing (Hayou et al., arXiv 2010.12859): early branches count most.

    h = h + F(h) / (sqrt(l) log(l + 1))    l = 1, 2, ... over the whole network

lambda_l^2 = 1/(l log(l + 1)^2) has a finite sum, whatever the depth; with the logarithm alone, not
squared, the sum diverges. The uniform rule is inv-sqrtL.
"""

from __future__ import annotations

from depthgauge.recipes.branches import index_of, refuse_plain
from depthgauge.recipes.rules import Count, Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["STABLE_RESNET"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "Stable ResNet")
    stage, forms = 0, []
    for branch, l in zip(layout.branches, index_of(layout), strict=True):
        stage = 1 if branch.projected else stage + 1
        forms.append(_form(l, stage))
    unread = Count(
        "norms whose result nothing reads",
        len(layout.idle),
        0,
        "computed, then overwritten by what they were to normalise",
    )
    return Plan(forms=tuple(forms), counts=(unread,))


def _form(l: str, stage: int) -> Form:
    return Form(
        skip="1",
        factor=f"1/(sqrt({l})*log({l}+1))",
        mistakes=(
            ("1", "1", "the factor was never applied, or lost"),
            (
                "1",
                f"1/sqrt({l}*log({l}+1))",
                "lambda^2 = 1/(l log(l+1)), where the logarithm is squared: its sum diverges",
            ),
            ("1", "1/sqrt(L)", "the uniform rule, inv-sqrtL"),
            ("1", f"1/(sqrt({l})*log({l}+1)/log(2))", "the logarithm is to base 2, not natural"),
            ("1", f"1/(sqrt({stage})*log({stage}+1))", "l begins anew in each stage"),
            ("1", f"1/(sqrt({l}+1)*log({l}+2))", "l was counted from 2"),
        ),
    )


STABLE_RESNET = Recipe(
    "stable-resnet",
    "Stable ResNet, decreasing",
    "residual branches",
    ("the l-th branch is multiplied by 1/(sqrt(l) log(l + 1)), a fixed number",),
    (
        "lambda^2 has the logarithm squared; an earlier version of the authors' code has not",
        "l counts from 1 across all stages, and the logarithm is natural: lambda_1 = 1.4427 > 1",
        "the shortcut is not scaled",
        "in the batch norm variant of the authors' earlier code the norm's result is overwritten",
    ),
    "Hayou et al., arXiv 2010.12859",
    _plan,
    tier=2,
    judgement="the paper has one branch a block; where a block has several, l counts branches. "
    "Initialisers stay as they are, as in the authors' code",
)
