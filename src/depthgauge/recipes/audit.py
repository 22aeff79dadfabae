"""Does this module follow the recipe that it claims? From measurement, never from a configuration.

L, m and which weight is last come from the pass; each weight's root mean square is held to the
recipe's standard deviation,

    | rms / std - 1 | <= 5 / sqrt(2 n) + 0.02

for n numbers: five standard errors of a normal sample's, and what a uniform or a truncated draw is
off. A weight that is to be zero must be exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.jsonable import jsonable
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.rules import Count, Recipe, Rule, Target
from depthgauge.trace.layout import layout
from depthgauge.trace.measuring import measure_module

__all__ = ["Audit", "Finding", "audit"]


@dataclass(frozen=True)
class Finding:
    """One part of a recipe: how many of its tensors or places are as they should be, and in a
    sentence what was found. ``ratio``: geometric mean of measured over expected standard deviation,
    NaN where zeros or counts are asked for."""

    part: str
    matching: int
    of: int
    said: str
    ratio: float = math.nan

    @property
    def holds(self) -> bool:
        return self.matching == self.of


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

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        rows = []
        for finding in self.findings:
            row: dict[str, Any] = {
                "part": finding.part,
                "holds": finding.holds,
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


def audit(model: nn.Module, batch: Any, recipe: str | Recipe) -> Audit:
    """Hold a module to a recipe, by name or as one. The model is left as it was.

    Raises SpecificationError for a name that no recipe has, NetworkError for a network that the
    recipe does not cover or that cannot be run, ModelError when the model raises.
    """
    rules = recipe_named(recipe) if isinstance(recipe, str) else recipe
    found = layout(model, batch)
    plan = rules.plan(found)
    parameters = dict(model.named_parameters())
    findings = [_rule(rule, parameters) for rule in plan.rules if rule.targets]
    findings += [_count(count) for count in plan.counts]
    if plan.silent:
        findings.append(_silent(model, batch))
    return Audit(rules.name, found.L, found.m, tuple(findings))


def _rms(tensor: Tensor) -> float:
    wide = tensor.detach().double()
    return float(torch.linalg.vector_norm(wide)) / math.sqrt(max(tensor.numel(), 1))


def _near(rms: float, std: float, numbers: int) -> bool:
    if std == 0:
        return rms == 0
    return abs(rms / std - 1) <= 5 / math.sqrt(2 * numbers) + 0.02


def _rule(rule: Rule, parameters: Mapping[str, Tensor]) -> Finding:
    """How many tensors of a group follow its law; of the others the mistake that explains them."""
    seen = [(target, parameters[target.path]) for target in rule.targets]
    rms = {target.path: _rms(p) for target, p in seen}
    wrong = [(t, p) for t, p in seen if not _near(rms[t.path], t.std, p.numel())]
    right = len(seen) - len(wrong)
    if not wrong:
        return Finding(rule.group, right, len(seen), f"{rule.group}: {rule.law}", _ratio(seen, rms))
    zeros = sum(t.std == 0 for t, _ in wrong)
    if zeros == len(wrong):
        largest = max(rms[t.path] for t, _ in wrong)
        said = f"{len(wrong)} of {len(seen)} {rule.group}: std up to {largest:.4g}, expected zero"
        return Finding(rule.group, right, len(seen), f"{said} ('{wrong[0][0].path}')")
    ratio = _ratio(wrong, rms)
    stds = {round(t.std, 12) for t, _ in wrong}
    values = [rms[t.path] for t, _ in wrong]
    said = f"{len(wrong)} of {len(seen)} {rule.group}: "
    if ratio == 0:
        said += f"zero, expected {rule.law}"
    elif len(stds) == 1 and max(values) < 1.2 * min(values):
        mean = math.fsum(values) / len(values)
        said += f"std {mean:.4f}, expected {wrong[0][0].std:.4f} ({ratio:.2g} times)"
    else:
        said += f"std {ratio:.3g} times the expected one ({rule.law})"
    if why := _mistake(wrong, rms):
        said += f": {why}"
    else:
        said += f" ('{wrong[0][0].path}')"
    return Finding(rule.group, right, len(seen), said, ratio)


def _ratio(seen: Sequence[tuple[Target, Tensor]], rms: Mapping[str, float]) -> float:
    """Geometric mean of measured over expected; 0 if any is zero, NaN if zero is expected."""
    ratios = [rms[t.path] / t.std for t, _ in seen if t.std > 0]
    if not ratios:
        return math.nan
    if min(ratios) == 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _mistake(wrong: Sequence[tuple[Target, Tensor]], rms: Mapping[str, float]) -> str:
    """The words of the first mistake that would make every one of these tensors what it is."""
    tables = [{words: std for std, words in t.mistakes} for t, _ in wrong]
    for words in tables[0] if tables else ():
        if all(
            words in table and _near(rms[t.path], table[words], p.numel())
            for table, (t, p) in zip(tables, wrong, strict=True)
        ):
            return words
    return ""


def _count(count: Count) -> Finding:
    if count.expected:
        said = f"{count.found} of {count.expected} {count.what}"
        return Finding(count.what, min(count.found, count.expected), count.expected, said)
    why = f": {count.why}" if count.why and count.found else ""
    said = f"{count.found or 'no'} {count.what}{why}"
    return Finding(count.what, int(not count.found), 1, said)


def _silent(model: nn.Module, batch: Any) -> Finding:
    """Whether every branch adds exactly zero."""
    profile = measure_module(model, batch, instruments=["branch_rms"])
    sizes: list[float] = profile["branch_rms"].tolist() if "branch_rms" in profile else []
    zero = sum(size == 0 for size in sizes)
    said = f"{zero} of {len(sizes)} branches add exactly zero at the start"
    return Finding("branches that are zero at the start", zero, len(sizes), said)
