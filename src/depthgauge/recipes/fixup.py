"""Fixup (Zhang, Dauphin and Ma, arXiv 1901.09321): residual networks without norms.

    scale = L^(-1/(2m - 2))

of every inner weight of a branch of m weight layers, on top of its standard initialisation; the
last weight of each branch and the classifier zero; a learned number (at 0) added in front of each
layer and activation of a branch, one multiplier (at 1) at its end. L: residual branches of the
whole network.
"""

from __future__ import annotations

import math

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Count, Plan, Recipe, Rule, Target
from depthgauge.trace.layout import Layout, Residual, Weight

__all__ = ["FIXUP", "fixup_scale"]


def fixup_scale(branches: int, layers: int) -> float:
    """``L^(-1/(2m - 2))``, of each inner weight of a branch of ``m = layers`` in series.

    Raises NetworkError for one layer, which has no inner weight.
    """
    if layers < 2:
        raise NetworkError(
            f"Fixup scales the inner weights of a branch by L^(-1/(2m - 2)), and a branch of "
            f"m = {layers} weight layers has none; only its zero last layer applies"
        )
    if branches < 1:
        raise NetworkError(f"L is {branches}, expected at least one residual branch")
    return float(branches ** (-1 / (2 * layers - 2)))


def _plan(layout: Layout) -> Plan:
    if not layout.branches:
        raise NetworkError(
            "no residual branch was found, and Fixup is a rule about them; give a network with a "
            "skip connection, or look at what 'depthgauge measure' finds in it"
        )
    attends = any(branch.m == 4 for branch in layout.branches)
    inner = [_inner(layout, branch, attends) for branch in layout.branches if branch.m > 1]
    last = [w for branch in layout.branches for w in branch.weights if w.last]
    laws = ", ".join(f"{fixup_scale(layout.L, m):.4f} for m = {m}" for m in layout.m if m > 1)
    base = "Xavier" if attends else "He (fan out)"
    rules = (
        Rule(
            "inner weights of branches",
            f"{base} times L^(-1/(2m-2)), L = {layout.L}: {laws}",
            tuple(target for targets in inner for target in targets),
        ),
        Rule("last weights of branches", "zero", tuple(Target(w.path, 0.0) for w in last)),
        Rule("weights of the head", "zero", tuple(Target(w.path, 0.0) for w in layout.heads)),
    )
    return Plan(rules, _counts(layout), silent=True, shifts=True)


def _inner(layout: Layout, branch: Residual, attends: bool) -> list[Target]:
    scale = fixup_scale(layout.L, branch.m)
    layers = sum(b.m for b in layout.branches)
    others = (
        (1.0, "the depth scale was never applied"),
        (
            fixup_scale(layers, branch.m),
            f"L counts the {layers} layers, not the {layout.L} branches",
        ),
        (fixup_scale(layout.L, branch.m + 1), f"m = {branch.m + 1}: the shortcut was counted"),
        (1 / scale, "the exponent has the wrong sign"),
        *(
            (fixup_scale(n, branch.m), f"L = {n}: counted in a part of the network")
            for n in range(2, layout.L)
        ),
    )
    found = []
    for weight in branch.weights:
        if weight.last or not weight.fan_in:
            continue
        base = _xavier(weight) if attends else math.sqrt(2 / weight.fan_out)
        mistakes = [(base * other, words) for other, words in others if other != scale]
        if not attends:
            fan_in = math.sqrt(2 / weight.fan_in) * scale
            mistakes.append((fan_in, "He of the fan in, where Fixup takes the fan out"))
        found.append(Target(weight.path, base * scale, tuple(mistakes)))
    return found


def _xavier(weight: Weight) -> float:
    return math.sqrt(2 / (weight.fan_in + weight.fan_out))


def _counts(layout: Layout) -> tuple[Count, ...]:
    branches = layout.branches
    weights = [w for branch in branches for w in branch.weights]
    return (
        Count("norms", len(layout.norms), 0, "Fixup takes their place"),
        Count("weight layers of branches with a scalar bias in front",
              sum(w.shifted for w in weights), len(weights)),
        Count("activations of branches with a scalar bias in front",
              sum(branch.shifted for branch in branches),
              sum(len(branch.activations) for branch in branches)),
        Count("branches with a scalar multiplier",
              sum(branch.multipliers > 0 for branch in branches), len(branches)),
    )  # fmt: skip


FIXUP = Recipe(
    "fixup",
    "Fixup initialisation",
    "residual branches; no norm",
    (
        "inner weights of a branch of m layers: standard initialisation times L^(-1/(2m-2))",
        "last weight of each branch and the classifier: zero",
        "a scalar bias (0) before each layer and activation of a branch, a multiplier (1) at its "
        "end",
        "standard initialisation: He of the fan out; in a Transformer Xavier of the stacked matrix",
        "scalars learn at a tenth of the rate",
    ),
    (
        "L counts residual branches of the whole network, not layers and not those of a stage",
        "m does not count the shortcut; attention has m = 4",
        "m = 1 has no inner weight: the rule says nothing but the zero",
        "the stem, the shortcuts and the skip keep what they have",
        "zero gradients inside branches at the first two steps are the design, no disease",
    ),
    "Zhang, Dauphin and Ma, arXiv 1901.09321",
    _plan,
)
