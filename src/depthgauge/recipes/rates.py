"""Groups for an optimiser by a recipe, and whether an optimiser has them.

An optimiser is held to ratios: a recipe says by what the rate, the decay and the epsilon of some
parameters differ from those of all others, which are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from depthgauge.errors import SpecificationError
from depthgauge.recipes.finding import Finding
from depthgauge.recipes.given import number
from depthgauge.recipes.rules import Group, Plan
from depthgauge.trace.admission import uncompiled

__all__ = ["grouped", "groups_held"]

_CLOSE = 1e-3


def grouped(
    model: nn.Module,
    groups: Sequence[Group],
    lr: float,
    weight_decay: float | None = None,
    eps: float | None = None,
) -> list[dict[str, Any]]:
    """Groups for an optimiser: rates by the recipe; what no group names learns at ``lr``. Parts of
    the model may have been compiled since the groups were named. Raises SpecificationError for a
    rate or an epsilon that is not above 0, and a decay below 0."""
    lr = number("lr", lr, error=SpecificationError)
    if weight_decay is not None:
        weight_decay = number("weight_decay", weight_decay, least=0, error=SpecificationError)
    if eps is not None:
        eps = number("eps", eps, error=SpecificationError)
    named = dict(uncompiled(model).named_parameters())
    rows = [(group, [p for p in group.paths if p in named]) for group in groups]
    taken = {path for _, paths in rows for path in paths}
    rest = Group("all others", tuple(path for path in named if path not in taken))
    found = []
    for group, paths in ((rest, list(rest.paths)), *rows):
        if paths:
            row: dict[str, Any] = {"params": [named[p] for p in paths], "lr": group.rate * lr}
            if weight_decay is not None:
                row["weight_decay"] = group.decay * weight_decay
            if eps is not None:
                row["eps"] = group.eps * eps
            found.append(row)
    return found


def groups_held(model: nn.Module, plan: Plan, optimizer: Optimizer) -> Iterator[Finding]:
    """Whether the optimiser has the plan's groups."""
    groups = [group for group in plan.groups if group.paths]
    if plan.adaptive:
        fits = all("betas" in row and "eps" in row for row in optimizer.param_groups)
        said = f"{type(optimizer).__name__}: the rates are for Adam and its like"
        yield Finding("kind of optimiser", int(fits), 1, said)
    held = _Held(model, groups, optimizer)
    for group in groups:
        yield held.rate(group)
        if group.decay not in (0, 1):
            yield held.ratio(group, "weight_decay", "weight decay", group.decay)
        if group.eps != 1:
            yield held.ratio(group, "eps", "epsilon", group.eps)
    if any(group.rate != 1 for group in groups):
        yield held.others()


@dataclass(frozen=True)
class _Held:
    model: nn.Module
    groups: Sequence[Group]
    optimizer: Optimizer

    def values(self, option: str) -> dict[str, float]:
        """The option of each parameter that the optimiser has, by path."""
        rows = {
            id(p): float(row[option])
            for row in self.optimizer.param_groups
            for p in row["params"]
            if option in row
        }
        named = self.model.named_parameters()
        return {path: rows[id(p)] for path, p in named if id(p) in rows}

    def unchanged(self, values: Mapping[str, float], field: str) -> list[float]:
        """Those of the parameters that a recipe leaves at the caller's."""
        changed = {p for g in self.groups if getattr(g, field) != 1 for p in g.paths}
        return [value for path, value in values.items() if path not in changed]

    def rate(self, group: Group) -> Finding:
        """Whether the parameters of a group learn at its share of the full rate."""
        rates, decays = self.values("lr"), self.values("weight_decay")
        full = self.unchanged(rates, "rate")
        top = max(full, default=math.nan)
        right = [
            math.isclose(rates.get(path, math.nan), group.rate * top, rel_tol=_CLOSE)
            and (group.decay != 0 or not decays.get(path))
            for path in group.paths
        ]
        said = f"{sum(right)} of {len(right)} {group.what} learn at {group.rate:g} of the rate"
        said += "" if group.decay else ", without weight decay"
        if not full:
            said += "; no parameter learns at the full rate, which theirs could be held to"
        elif not all(right):
            path = group.paths[right.index(False)]
            has = path in rates
            learns = f"learns at {rates.get(path, 0):g}, expected {group.rate * top:g}"
            said += f"; '{path}' {learns if has else 'is in no group'}"
        return Finding(f"rate of {group.what}", sum(right), len(right), said)

    def ratio(self, group: Group, option: str, words: str, times: float) -> Finding:
        """Whether an option of a group is so many times that of the others."""
        values = self.values(option)
        field = "decay" if option == "weight_decay" else "eps"
        base = max(self.unchanged(values, field), default=0.0)
        here = [values.get(path, math.nan) for path in group.paths]
        right = [math.isclose(value, times * base, rel_tol=_CLOSE) for value in here]
        said = f"{sum(right)} of {len(right)} {group.what} with {times:.6g} times the {words}"
        if not base and any(here):
            said += " of others, which have none that it could be held to"
        elif not all(right):
            at = right.index(False)
            said += f"; '{group.paths[at]}' has {here[at]:g}, expected {times * base:g}"
        return Finding(f"{words} of {group.what}", sum(right), len(right), said)

    def others(self) -> Finding:
        """Whether what no group names learns at the full rate."""
        rates, named = self.values("lr"), {p for group in self.groups for p in group.paths}
        top = max(self.unchanged(rates, "rate"), default=math.nan)
        rest = {path: rate for path, rate in rates.items() if path not in named}
        slow = [p for p, rate in rest.items() if not math.isclose(rate, top, rel_tol=_CLOSE)]
        said = f"{len(rest) - len(slow)} of {len(rest)} other parameters learn at the full rate"
        said += f"; '{slow[0]}' does not" if slow else ""
        return Finding("rate of all others", len(rest) - len(slow), len(rest), said)
