"""Does this module follow the recipe that it claims? From measurement, never from a configuration.

L, m and which weight is last come from the pass, factors of skips and branches from the block
equation, what a weight is from its numbers, gradients of the first steps from steps that are taken
on a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from depthgauge.errors import expect, expect_callable
from depthgauge.jsonable import jsonable
from depthgauge.recipes.clipping_held import Clip, clipping_held
from depthgauge.recipes.finding import Finding, counted_finding
from depthgauge.recipes.held import held
from depthgauge.recipes.rates import groups_held
from depthgauge.recipes.registry import recipe_of
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.recipes.starts_held import behind_zero_heads, silent_finding, woken_findings
from depthgauge.trace.admission import uncompiled
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

__all__ = ["Audit", "audit", "found_in"]


@dataclass(frozen=True)
class Audit:
    """What an audit found; ``branches`` and ``layers`` are L and the numbers m, as counted."""

    recipe: str
    branches: int
    layers: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings)

    def __str__(self) -> str:
        from depthgauge.report.audit_screen import print_audit
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_audit(self, console))

    def __repr__(self) -> str:
        right = sum(finding.holds for finding in self.findings)
        return f"<Audit by {self.recipe}: {right} of {len(self.findings)} parts hold>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        rows = []
        for finding in self.findings:
            row: dict[str, Any] = {
                "part": finding.part,
                "holds": finding.holds,
                "measured": finding.measured,
                "matching": finding.matching,
                "of": finding.of,
                "said": finding.said,
            }
            if not math.isnan(finding.ratio):
                row["ratio"] = finding.ratio
            rows.append(row)
        document: dict[str, Any] = jsonable(
            {
                "recipe": self.recipe,
                "holds": self.holds,
                "branches": self.branches,
                "m": list(self.layers),
                "findings": rows,
            }
        )
        return document


def audit(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe,
    optimizer: Optimizer | None = None,
    loss: Callable[..., Any] | None = None,
    clip: Clip | None = None,
) -> Audit:
    """Hold a module to a recipe, by name or as one. The model is left as it was; of one,
    or a part, in a wrapper that only places or compiles it, what is inside is audited.

    ``optimizer``: held to the recipe's groups. ``loss``: of which the gradients of the first steps
    are taken; without one a fixed random cotangent's. ``clip(model)``, which clips the gradients of
    the model that it is given: held to adaptive clipping, on a copy. Raises
    SpecificationError for a name that no recipe has, NetworkError for a network that the recipe
    does not cover or that cannot be run, TargetError for an argument of another kind, ModelError
    when the model raises.
    """
    if optimizer is not None:
        expect("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer of the model")
    expect_callable("loss", loss, "a function of the output, or of the output and the batch")
    expect_callable("clip", clip, "a function of the model that clips its gradients in place")
    rules = recipe_of(recipe)
    model = uncompiled(model)
    found = layout(model, batch)
    rules = rules.on(model, batch, found)
    plan = rules.plan(found)
    findings = found_in(model, batch, rules, found, plan, loss)
    if optimizer is not None:
        findings += groups_held(model, plan, optimizer)
    if clip is not None:
        findings += clipping_held(model, batch, clip)
    return Audit(rules.name, found.L, found.m, tuple(findings))


def found_in(
    model: nn.Module,
    batch: Any,
    rules: Recipe,
    found: Layout,
    plan: Plan,
    loss: Callable[..., Any] | None = None,
) -> list[Finding]:
    """What an audit finds in a model alone, whatever its optimiser: what its weights and equations
    say, what is measured on the batch, and its first steps."""
    findings = list(held(model, found, plan))
    if rules.measured is not None:
        findings += [counted_finding(count) for count in rules.measured(model, batch)]
    if plan.silent:
        findings.append(silent_finding(model, batch))
    if plan.wakes:
        wakes = behind_zero_heads(model, found, plan.wakes)
        findings += woken_findings(model, batch, wakes, loss)
    return findings
