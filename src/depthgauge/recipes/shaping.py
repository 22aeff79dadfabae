"""What DKS and TAT share: orthogonal weights, no bias, no norm, sums whose squares sum to 1, and
activations whose maps are held to conditions.

An audit does not compare constants: it takes the maps of the activation that it finds, since other
constants may have the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.errors import NetworkError
from depthgauge.recipes.kernel_maps import Curve, Joint, Maps, maps
from depthgauge.recipes.layers import TORCH, of_every_layer
from depthgauge.recipes.rules import Count, Form, Plan
from depthgauge.trace.bends import Bend
from depthgauge.trace.counted import Layout, Weight

__all__ = [
    "SHAPED_JUDGEMENT",
    "SHAPED_RULES",
    "Asked",
    "Condition",
    "curve_of",
    "parts_of",
    "shaped",
]

#: What DKS and TAT say alike, of weights and sums, and what is our judgement in both.
SHAPED_RULES: Final = (
    "every weight orthogonal times max(sqrt(out/in), 1), a kernel at its centre alone; biases zero",
    "each sum divided by the root of the sum of its weights' squares; norms out",
)
SHAPED_JUDGEMENT: Final = (
    "of several solutions the one with the smallest input shift, as the authors' figures have; an "
    "audit holds the maps, not the constants; the sums' ratios stay as they are; an average over "
    "places (pooling) is passed by"
)

Parts = Sequence[int | Joint]

#: How far Q(1), Q'(1) and C(0) may lie from their values, and the squares of a sum's weights.
CLOSE: Final = 2e-3


@dataclass(frozen=True)
class Condition:
    """Something about a curve, its value, what it is to be and how far off it may be. ``local``:
    the depth does not enter."""

    name: str
    value: Callable[[Curve, Maps], float]
    asked: float
    within: float
    local: bool = True

    def off(self, curve: Curve, at: Maps) -> bool:
        return not abs(self.value(curve, at) - self.asked) <= self.within

    def said(self, curve: Curve, at: Maps) -> str:
        return f"{self.name} = {self.value(curve, at):.5g}, expected {self.asked:g}"


@dataclass(frozen=True)
class Asked:
    """What an activation is to become and by which conditions one is judged; ``depth``: how many
    in series a curve is for, of a plain network."""

    curve: Curve
    conditions: tuple[Condition, ...]
    depth: Callable[[Curve], float]

    def holds(self, curve: Curve, local: bool = False) -> bool:
        return not self._off(curve, local)

    def _off(self, curve: Curve, local: bool = False) -> list[Condition]:
        if curve.kind != self.curve.kind:
            return list(self.conditions)
        at = maps(curve)
        return [c for c in self.conditions if (c.local or not local) and c.off(curve, at)]

    def wrong(self, curve: Curve, parts: Parts) -> str:
        """``""``, or what is wrong with an activation, with the mistake that makes it."""
        if not (off := self._off(curve)):
            return ""
        if curve.kind != self.curve.kind:
            return f"is {curve.kind}, expected {self.curve.kind}: the activation was not replaced"
        said = f"has {off[0].said(curve, maps(curve))}"
        words = self._mistake(curve, parts)
        return f"{said}: {words}" if words else said

    def _mistake(self, curve: Curve, parts: Parts) -> str:
        slope = dict(curve.options).get("slope", 0.01)
        if (curve.beta, curve.gamma, curve.delta, slope) == (0, 1, 0, 0.01):
            return "the activation was not transformed"
        for field, neutral, words in _FIELDS:
            here, wanted = getattr(curve, field), getattr(self.curve, field)
            if self.holds(replace(curve, **{field: wanted})):
                if here == neutral:
                    return f"{words} {field} is missing"
                return f"{words} {field} is {here:.5g}, expected {wanted:.5g}"
        if not self.holds(curve, local=True):
            return ""
        if len(parts) > 1 or not isinstance(parts[0], int):
            return "constants of another depth"
        return (
            f"the constants are those of {self.depth(curve):.4g} activations in series, and "
            f"{parts[0]} are there"
        )


_FIELDS: Final = (
    ("gamma", 1.0, "the output scale"),
    ("delta", 0.0, "the output shift"),
    ("beta", 0.0, "the input shift"),
    ("alpha", 1.0, "the input scale"),
)


def parts_of(layout: Layout, title: str) -> list[int | Joint]:
    """Activations in series and sums, with the shares that the sums have once their weights have
    squares that sum to 1.

    Raises NetworkError for what the papers' maps of whole networks, as they are here, do not cover.
    """
    if layout.bends.unfit:
        raise NetworkError(
            f"{layout.bends.unfit}, and {title} is for layers and activations in series, beside "
            f"sums of one skip and one branch; give such a network"
        )
    if not layout.bends.rows:
        raise NetworkError(f"no activation was found, and {title} transforms them; give one")
    for bend in layout.bends.rows:
        if bend.kind not in ACTIVATIONS:
            raise NetworkError(
                f"the activation '{bend.path}' is {bend.kind}, whose averages are not known here; "
                f"use tanh, softplus, gelu, or relu for TAT"
            )
    for branch in layout.branches:
        if math.isnan(branch.skip) or math.isnan(branch.factor):
            raise NetworkError(
                f"the weights of the sum after '{branch.path}' could not be read; write it as "
                f"fixed numbers times the skip and the branch"
            )
    sums = iter(layout.bends.sums)
    parts: list[int | Joint] = []
    for part in layout.bends.parts:
        if isinstance(part, tuple):
            skip, branch_weight = next(sums)
            parts.append(Joint(*part, skip**2 / (skip**2 + branch_weight**2)))
        elif part:
            parts.append(part)
    return parts


def curve_of(bend: Bend) -> Curve:
    """The activation as it was found, behind what has a second moment of 1: a sum that nothing
    else reads is one whose squares sum to 1, times a number."""
    options = tuple((k, v) for k, v in bend.options if k in ACTIVATIONS[bend.kind])
    alpha = bend.alpha * bend.spread
    return Curve(bend.kind, options, alpha, bend.beta, bend.gamma, bend.delta)


def shaped(layout: Layout, parts: Parts, law: str, asked: Callable[[Curve], Asked]) -> Plan:
    """The plan in which each activation becomes what ``asked`` says, which is given the one that is
    there."""
    rows = layout.bends.rows
    found = [curve_of(bend) for bend in rows]
    wanted = [asked(curve) for curve in found]
    pairs = zip(found, wanted, strict=True)
    faults = [target.wrong(curve, parts) for curve, target in pairs]
    wrong = [f"'{bend.path}' {why}" for bend, why in zip(rows, faults, strict=True) if why]
    plan = of_every_layer(
        layout,
        layout.layers,
        _init,
        "orthogonal, in a kernel at its centre, times max(sqrt(out/in), 1)",
        _mistakes,
    )
    forms = [
        _form(weights, None if at < 0 else rows[at], not faults[at])
        for weights, at in zip(layout.bends.sums, layout.bends.reader, strict=True)
    ]
    counts = [
        *plan.counts,
        Count("norms", len(layout.norms), 0, "the maps are those of a network without one"),
    ]
    if forms:
        even = sum(form.factor is None for form in forms)
        what = "sums whose weights have squares that sum to 1"
        counts.append(Count(what, even, len(forms), "the second moment grows at each other sum"))
    right = len(found) - len(wrong)
    counts.append(Count(f"activations with {law}", right, len(found), wrong[0] if wrong else ""))
    curves = tuple(target.curve for target in wanted)
    return replace(plan, forms=tuple(forms), counts=tuple(counts), curves=curves)


def _form(weights: tuple[float, float], reader: Bend | None, fits: bool) -> Form:
    """The sum divided by the root of the sum of its weights' squares. Of one that an activation
    alone reads a number behind it is the activation's, which is held to its own conditions."""
    kept = Form(norms={}, learned="")
    if reader is not None and (fits or reader.alpha != 1):
        return kept
    (skip, branch), size = weights, math.hypot(*weights)
    if abs(size - 1) <= CLOSE:
        return kept
    texts = "1/sqrt(2)", "1/sqrt(2)"
    if not math.isclose(skip, branch):
        texts = f"{skip / size:.10g}", f"{branch / size:.10g}"
    words = f"the squares of its weights sum to {size**2:.4g}"
    mistake = (f"{skip!r}", f"{branch!r}", words)
    return replace(kept, skip=texts[0], factor=texts[1], mistakes=(mistake,))


def _init(weight: Weight) -> str:
    out, entering = weight.group[:2]
    kind = "orthogonal"
    if len(weight.group) > 2 and set(weight.group[2:]) != {1}:
        kind = "delta_orthogonal"
        if out < entering:
            raise NetworkError(
                f"'{weight.path}' leads {entering} channels to {out} with a kernel, and a kernel "
                f"with fewer outputs than inputs is not drawn delta-orthogonal here; widen it"
            )
    return f"{kind}(gain=sqrt({out}/{entering}))" if out > entering else kind


def _mistakes(weight: Weight) -> Sequence[tuple[str, str]]:
    out, entering = weight.group[:2]
    kind = _init(weight).partition("(")[0]
    rows = [
        TORCH,
        ("he", "He's gain of sqrt(2), which the transformed activation has no need of"),
        ("lecun", "Gaussian of that variance, not orthogonal"),
    ]
    if out > entering:
        rows.insert(0, (kind, "the factor sqrt(out/in) was left out"))
    rows.insert(0, (f"{kind}(gain=sqrt(2*max({out}/{entering},1)))", "a gain of sqrt(2)"))
    return rows
