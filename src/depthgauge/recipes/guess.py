"""Which recipe do a module's numbers agree with?

Every recipe that covers the network is held to its weights and equations. What a recipe asks for is
its evidence: the tensors and places that are as it has them speak for it, the others against it. A
recipe agrees when nothing speaks against it and something that is its own shows. Doubts are what
its law is not derived for, and that another recipe asks for the same of these weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import nn

from depthgauge.errors import DepthgaugeError
from depthgauge.jsonable import jsonable
from depthgauge.network.init import rms_of
from depthgauge.recipes.finding import Finding, counted_finding
from depthgauge.recipes.held import held
from depthgauge.recipes.registry import RECIPES
from depthgauge.recipes.rules import Form, Plan, Recipe, Target, init_of, number_of, scope_of
from depthgauge.recipes.weights_held import EXACT
from depthgauge.trace.admission import uncompiled
from depthgauge.trace.counted import Layout, Residual
from depthgauge.trace.layout import layout

__all__ = ["Candidate", "Guess", "guess"]

#: By path and rows of a weight: how it is drawn, and its root mean square.
Sizes: TypeAlias = Mapping[tuple[str, Any], tuple[str, float]]


@dataclass(frozen=True)
class Candidate:
    """One recipe and what it asks of this network. ``weight``: of what it asks, how much concerns
    the numbers of weights and factors: a placement of norms alone is met by many networks.
    ``sizes``: the root mean square that it asks of each weight; ``bare``: why nothing of its own
    shows; ``doubts``: what else keeps it from being the one; ``same``: recipes that agree and ask
    for the same of these weights. ``special``: how much it asks that few networks have by chance,
    whatever their sizes: activations of shaped constants, numbers and parts that it puts into the
    network (factors other than 1, learned multipliers, norms of queries and keys, spectral norms),
    weights of one form (zeros, equal singular values, standardised rows) and no draw's, and kinds
    of norms by name."""

    recipe: Recipe
    findings: tuple[Finding, ...]
    initialises: bool
    sizes: Sizes = field(default_factory=dict)
    bare: str = ""
    doubts: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    special: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __repr__(self) -> str:
        return f"<Candidate {self.recipe.name}: {100 * self.share:.0f} per cent of it>"

    @property
    def agrees(self) -> bool:
        return bool(self.findings) and not self.bare and all(f.holds for f in self.findings)

    @property
    def speaks(self) -> bool:
        """Whether it asks for more than where norms stand: for sizes, or for parts of its own."""
        return self.initialises or self.special[1] > 0

    @property
    def unmeant(self) -> bool:
        """Whether its law is not derived for an activation of the network."""
        return any(doubt.startswith("derived for") for doubt in self.doubts)

    @property
    def share(self) -> float:
        """The mean over its parts of the share that is as the recipe has it."""
        return sum(f.matching / f.of for f in self.findings if f.of) / max(len(self.findings), 1)

    @property
    def evidence(self) -> int:
        return sum(f.matching for f in self.findings)


@dataclass(frozen=True)
class Guess:
    """Candidates, those that agree first. ``named``: the recipe that the numbers agree with, the
    one that asks for most of those that agree; None where none does."""

    branches: int
    layers: tuple[int, ...]
    candidates: tuple[Candidate, ...]

    @property
    def named(self) -> Recipe | None:
        first = self.candidates[0] if self.candidates else None
        return first.recipe if first is not None and first.agrees else None

    @property
    def alike(self) -> tuple[str, ...]:
        """Other recipes that the numbers of these weights do not tell from the one named."""
        return self.candidates[0].same if self.named is not None else ()

    def __str__(self) -> str:
        from depthgauge.report.audit_screen import print_audit
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_audit(self, console))

    def __repr__(self) -> str:
        named = self.named.name if self.named is not None else "no recipe"
        return f"<Guess: {named}, of {len(self.candidates)} candidates>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        document: dict[str, Any] = jsonable({
            "guess": self.named.name if self.named else None,
            "branches": self.branches,
            "m": list(self.layers),
            "candidates": [
                {
                    "recipe": c.recipe.name,
                    "agrees": c.agrees,
                    "share": c.share,
                    "for": [f.said for f in c.findings if f.holds],
                    "against": [f.said for f in c.findings if not f.holds]
                    + ([c.bare] if c.bare else []),
                    "doubts": list(c.doubts),
                }
                for c in self.candidates
            ],
        })  # fmt: skip
        if self.named is None:
            document["guess_reason"] = "every recipe has something that speaks against it"
        return document


def guess(model: nn.Module, batch: Any) -> Guess:
    """Hold a module to every recipe that covers it, but for those whose audit is a search of its
    own; the model is left as it was.

    Raises NetworkError for what cannot be run, TargetError for what is no module, ModelError when
    the model raises.
    """
    model = uncompiled(model)
    found = layout(model, batch)
    asked = [recipe for recipe in RECIPES.values() if not recipe.searches]
    every = (_candidate(model, batch, found, recipe) for recipe in asked)
    candidates = [candidate for candidate in every if candidate is not None]
    candidates = [_beside(candidate, candidates) for candidate in candidates]
    candidates.sort(key=_rank, reverse=True)
    return Guess(found.L, found.m, tuple(candidates))


def _rank(c: Candidate) -> tuple[bool, bool, bool, float, tuple[int, int, int, int], int]:
    return c.agrees, c.speaks, not c.unmeant, c.share, c.special, c.evidence


def _beside(candidate: Candidate, others: Sequence[Candidate]) -> Candidate:
    """With the doubt that others that agree ask for the same."""
    if not candidate.agrees or not candidate.sizes:
        return candidate
    same = [
        other.recipe.name
        for other in others
        if other is not candidate and other.agrees and _same(candidate.sizes, other.sizes)
    ]
    if not same:
        return candidate
    doubt = f"{' and '.join(same)} {'asks' if len(same) == 1 else 'ask'} the same of these weights"
    return replace(candidate, doubts=(*candidate.doubts, doubt), same=tuple(same))


def _same(a: Sizes, b: Sizes) -> bool:
    """Whether both ask weights of the same kind and size of the weights that both cover."""
    shared = a.keys() & b.keys()
    return bool(shared) and all(
        a[key][0] == b[key][0] and math.isclose(a[key][1], b[key][1], rel_tol=1e-6)
        for key in shared
    )


def _candidate(model: nn.Module, batch: Any, found: Layout, recipe: Recipe) -> Candidate | None:
    """None where the recipe does not cover the network, or has a number that it does not define:
    the model itself ran, when it was laid out."""
    try:
        return _held(model, batch, found, recipe)
    except DepthgaugeError:
        return None


def _held(model: nn.Module, batch: Any, found: Layout, recipe: Recipe) -> Candidate | None:
    recipe = recipe.on(model, batch, found)
    plan = recipe.plan(found)
    findings = tuple(finding for finding in held(model, found, plan) if finding.of)
    counted: tuple[Finding, ...] = ()
    if recipe.measured is not None and all(finding.holds for finding in findings):
        counted = tuple(map(counted_finding, recipe.measured(model, batch)))
        findings = (*findings, *counted)
    targets = [target for rule in plan.rules for target in rule.targets]
    doubts = tuple(rule.doubt for rule in plan.rules if rule.targets and rule.doubt)
    if not findings:
        return None
    return Candidate(
        recipe,
        findings,
        bool(targets),
        _sizes(targets),
        plan.bare,
        doubts,
        special=_special(found, plan, targets, counted),
    )


def _special(
    found: Layout, plan: Plan, targets: Sequence[Target], counted: Sequence[Finding]
) -> tuple[int, int, int, int]:
    formed = sum(_drawn(target) != "drawn" for target in targets)
    kinds = [kind for form in plan.forms for kind in (form.norms or {}).values()]
    parts = sum(_parts(form, b, found) for b, form in zip(found.branches, plan.forms, strict=False))
    if not plan.rules and not plan.forms:  # all that it says is what was measured
        parts += sum(finding.of for finding in counted)
    return len(plan.curves), parts, formed, sum(map(bool, kinds))


def _parts(form: Form, branch: Residual, found: Layout) -> int:
    """What a form puts into a branch that a plain one does not have: a number of 1 is none."""
    scope = scope_of(found, branch)
    fixed = [form.skip, form.factor, form.inlet, *form.gains.values()]
    scores = None if form.logits is None or not branch.head else form.logits
    head = {**scope, "d": float(branch.head)}
    usual = scores is None or math.isclose(number_of(scores, head) ** 2 * branch.head, 1)
    learned = (form.learned, form.carried, form.scored, form.temperature)
    return (
        sum(text is not None and not math.isclose(number_of(text, scope), 1) for text in fixed)
        + sum(map(bool, learned))
        + form.shifts
        + (not usual)
    )


def _drawn(target: Target) -> str:
    """How a weight is drawn: what the form of it tells from a sample, or ``"drawn"``."""
    kind = init_of(target.init).kind
    return kind if kind in (*EXACT, "zeros", "standardised") else "drawn"


def _sizes(targets: Sequence[Target]) -> Sizes:
    """What is asked of each matrix or kernel: how it is drawn, and its root mean square."""
    found = {}
    for target in targets:
        weight = target.weight
        if len(weight.shape) > 1 and target.sized:
            size = rms_of(init_of(target.init), weight.group, target.scope)
            found[weight.path, weight.rows] = (_drawn(target), size)
    return found
