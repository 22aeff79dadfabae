"""Branches over sqrt(L): as a multiplier, or in the initialisation of their last weights.

    h = h + F(h) / sqrt(L)

With unit branches the variance grows to (1 + 1/L)^L < e, whatever the depth (Hayou et al., "Stable
ResNet", arXiv 2010.12859, the uniform rule). Both ways give the same function at the start and
another update: under SGD the first update of the function stays where it is as L grows with the
multiplier, and grows like L with the initialisation, whose gradients are not scaled.
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.he import MISTAKES, he_rule
from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout

__all__ = ["INV_SQRT_L", "INV_SQRT_L_INIT"]

_SMALL = "he(gain=sqrt(2)/sqrt(L))"


def _multiplied(layout: Layout) -> Plan:
    refuse_plain(layout, "1/sqrt(L)")
    L, layers = layout.L, sum(branch.m for branch in layout.branches)
    mistakes = [
        ("1", "1", "the factor was never applied, or lost"),
        ("1", "1/L", "1/L instead of its root"),
        ("1/sqrt(L)", "1/sqrt(L)", "the skip is scaled too"),
        ("1", f"1/sqrt({layers})", f"L counts the {layers} layers, not the {L} branches"),
        *(("1", f"1/sqrt({n})", f"L = {n}: counted in a part of the network") for n in range(2, L)),
    ]
    form = Form(skip="1", factor="1/sqrt(L)", mistakes=tuple(mistakes))
    twice = (_SMALL, "the factor stands in the initialisation as well: it is applied twice")
    return Plan((he_rule(layout, "weights", twice),), tuple(form for _ in layout.branches))


def _initialised(layout: Layout) -> Plan:
    refuse_plain(layout, "1/sqrt(L)")
    for branch in layout.branches:
        if any(norm.at == "out" for norm in branch.norms):
            raise NetworkError(
                f"the branch '{branch.path}' ends with a norm, which takes the size of its last "
                f"weight out; use inv-sqrtL, whose factor stands behind the norm"
            )
    mistakes = (
        ("he", "the factor was never applied, or lost in a second initialisation"),
        ("he(gain=sqrt(2)/L)", "1/L instead of its root"),
        ("he(gain=sqrt(2)/sqrt(depth))", "blocks were counted, not branches"),
        ("he(gain=sqrt(2)*sqrt(L))", "the exponent has the wrong sign"),
        *MISTAKES,
    )
    scope, branches = scope_of(layout), layout.branches
    last = [w for b in branches for w in b.weights if w.last and w.fan_in]
    inner = [w for b in branches for w in b.weights if not w.last and w.fan_in]
    every = (_SMALL, "the factor stands in every weight of a branch, not in the last alone")
    form = Form(
        skip="1",
        factor="1",
        mistakes=(("1", "1/sqrt(L)", "the factor multiplies the branch: another update"),),
    )
    return Plan(
        (
            Rule(
                "last weights of branches",
                f"sqrt(2 / fan in) / sqrt(L), L = {layout.L}",
                tuple(Target(w, _SMALL, scope, mistakes) for w in last),
            ),
            Rule(
                "other weights of branches",
                "sqrt(2 / fan in)",
                tuple(Target(w, "he", scope, (every, *MISTAKES)) for w in inner),
            ),
        ),
        tuple(form for _ in branches),
        ends=True,
    )


_REFERENCE = "Hayou et al., arXiv 2010.12859, the uniform rule"
_SAME = (
    "the same function at the start as {}, and another update: of the two only the multiplier "
    "keeps the first step of SGD flat in L, the initialisation lets it grow like L"
)

INV_SQRT_L = Recipe(
    "inv-sqrtL",
    "Branches over sqrt(L)",
    "residual branches",
    (
        "each branch is multiplied by 1/sqrt(L), a fixed number",
        "weights of branches: He",
    ),
    (
        "L counts residual branches of the whole network, not layers and not those of a stage",
        _SAME.format("inv-sqrtL-init"),
        "under steps of a fixed size a weight (sign, Adam) it grows like sqrt(L) all the same",
        "the skip stays as it is",
    ),
    _REFERENCE,
    _multiplied,
    judgement="He inside: for ReLU that is the edge of chaos on which the authors' earlier code "
    "draws; their later code leaves PyTorch's default",
)

INV_SQRT_L_INIT = Recipe(
    "inv-sqrtL-init",
    "Last weights of branches over sqrt(L)",
    "residual branches that end with a weight",
    (
        "last weight of each branch: He times 1/sqrt(L)",
        "every other weight of a branch: He",
    ),
    (
        _SAME.format("inv-sqrtL"),
        "a second initialisation pass over all modules undoes the scale",
        "a norm at the branch's end takes the scale out",
    ),
    _REFERENCE + "; as an initialisation Radford et al. 2019",
    _initialised,
    judgement="the multiplier's rule moved to the last weight of each branch, to be compared with",
)
