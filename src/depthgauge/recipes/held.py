"""A module held to a plan by what its weights and its equations say, without another pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from depthgauge.recipes.ends_held import final_finding, outlet_finding
from depthgauge.recipes.finding import Finding, counted_finding
from depthgauge.recipes.forms_held import form_findings
from depthgauge.recipes.inside import counted, effective, headed, scaled_biases, uncounted
from depthgauge.recipes.rules import Count, Plan
from depthgauge.recipes.spots import spots_of
from depthgauge.recipes.weights_held import rule_finding
from depthgauge.trace.counted import Layout, Residual

__all__ = ["held"]


def held(model: nn.Module, found: Layout, plan: Plan) -> Iterator[Finding]:
    """What the weights and the equations of a model say, without another pass."""
    found, parameters = headed(found, plan), dict(model.named_parameters())
    weights = effective(model, parameters, found)
    kept = {path for path, one in found.computed.items() if one.reduced}
    spots = spots_of(found)
    for rule in plan.rules:
        if rule.targets:
            yield rule_finding(rule, parameters if rule.bare else weights, kept, spots)
    if unseen := uncounted(found, plan):
        yield _unseen(unseen)
    yield from _empty(found, parameters)
    if plan.ends and (endless := [b.path for b in found.branches if not _ended(b)]):
        yield _endless(endless, len(found.branches))
    yield from form_findings(found, plan.forms, parameters, once=plan.everywhere is None)
    if plan.biased:
        bare = [weight for weight in plan.biased if not weight.bias]
        why = f"'{bare[0].path}' has none" if bare else ""
        have = len(plan.biased) - len(bare)
        yield counted_finding(Count("weight layers with a bias", have, len(plan.biased), why))
    if plan.everywhere is not None:
        others = [norm for norm in found.every if norm.kind != plan.everywhere]
        why = f"{plan.everywhere} takes their place"
        yield counted_finding(Count("norms of another kind", len(others), 0, why))
    if plan.outlet is not None and found.heads:
        yield outlet_finding(found, plan.outlet)
    if plan.final is not None and found.ends:
        yield final_finding(found, plan)
    for count in (*counted(found, plan), *scaled_biases(parameters, plan.scales), *plan.counts):
        yield counted_finding(count)


def _unseen(paths: Sequence[str]) -> Finding:
    said = f"{len(paths)} weights that the rule speaks of were not checked: their inputs could not "
    said += f"be counted ('{paths[0]}')"
    return Finding("weights that could not be counted", 0, len(paths), said, measured=False)


def _empty(found: Layout, parameters: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Of streams that begin with what the batch is looked up in those that begin with zeros alone,
    where there is one: no recipe zeroes an embedding."""
    read = {name: tables for name, tables in found.read.items() if tables}
    zero = [
        (name, tables)
        for name, tables in read.items()
        if all(path in parameters and not bool(parameters[path].any()) for path in tables)
    ]
    if zero:
        (name, tables), *_ = zero
        said = f"{len(zero)} of {len(read)} streams begin with embeddings that are all zero: what "
        said += f"'{name}' is given says nothing ('{tables[0]}')"
        yield Finding("streams that begin with zeros", len(read) - len(zero), len(read), said)


def _ended(branch: Residual) -> bool:
    return any(weight.last for weight in branch.weights)


def _endless(paths: Sequence[str], branches: int) -> Finding:
    said = f"{len(paths)} of {branches} branches end with no weight that was found, and the rule "
    said += f"of last weights was not held against them ('{paths[0]}')"
    right = branches - len(paths)
    return Finding("last weights of branches found", right, branches, said, measured=False)
