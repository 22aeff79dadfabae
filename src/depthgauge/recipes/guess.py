"""Which recipe do a module's numbers agree with?

Every recipe that covers the network is held to its weights and equations. What a recipe asks for is
its evidence: the tensors and places that are as it has them speak for it, the others against it. A
recipe agrees when nothing speaks against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.jsonable import jsonable
from depthgauge.recipes.audit import Finding, counted_finding, held
from depthgauge.recipes.registry import RECIPES
from depthgauge.recipes.rules import Recipe
from depthgauge.trace.layout import Layout, layout

__all__ = ["Candidate", "Guess", "guess"]


@dataclass(frozen=True)
class Candidate:
    """One recipe and what it asks of this network. ``weight``: of what it asks, how much concerns
    the numbers of weights and factors: a placement of norms alone is met by many networks."""

    recipe: Recipe
    findings: tuple[Finding, ...]
    initialises: bool

    @property
    def agrees(self) -> bool:
        return bool(self.findings) and all(f.holds for f in self.findings)

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
                    "against": [f.said for f in c.findings if not f.holds],
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

    Raises NetworkError for what cannot be run, ModelError when the model raises.
    """
    found = layout(model, batch)
    asked = [recipe for recipe in RECIPES.values() if not recipe.searches]
    every = (_candidate(model, batch, found, recipe) for recipe in asked)
    candidates = [candidate for candidate in every if candidate is not None]
    candidates.sort(key=lambda c: (c.agrees, c.initialises, c.share, c.evidence), reverse=True)
    return Guess(found.L, found.m, tuple(candidates))


def _candidate(model: nn.Module, batch: Any, found: Layout, recipe: Recipe) -> Candidate | None:
    try:
        recipe = recipe.on(model, batch, found)
        plan = recipe.plan(found)
    except NetworkError:
        return None
    findings = tuple(held(model, found, plan))
    if recipe.measured is not None and all(finding.holds for finding in findings):
        findings = (*findings, *map(counted_finding, recipe.measured(model, batch)))
    initialises = any(rule.targets for rule in plan.rules)
    return Candidate(recipe, findings, initialises) if findings else None
