"""Numbers put around branches, sums, layers and heads: fixed ones, and those that are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from torch import nn

from depthgauge.recipes.rules import Around, Form, number_of, scope_of
from depthgauge.recipes.work import Work
from depthgauge.recipes.wrappers import Entered, Left, PerChannel, Scaled, Shifted, Times, Weighed
from depthgauge.trace.counted import Residual, Weight

__all__ = [
    "put_around",
    "put_biases",
    "put_coefficients",
    "put_inlet",
    "put_outlets",
    "put_shifts",
]


def put_coefficients(work: Work, branch: Residual, form: Form) -> None:
    """The numbers of the sum: fixed ones of skip and branch, a learned one of the branch."""
    scope = scope_of(work.found, branch)
    skip = branch.skip if form.skip is None else number_of(form.skip, scope)
    factor = branch.factor if form.factor is None else number_of(form.factor, scope)
    asked = form.skip is not None or form.factor is not None
    if asked and (math.isnan(branch.factor) or math.isnan(branch.skip)):
        work.left.append(f"the sum after '{branch.path}' could not be read: no factor was put in")
    elif asked:
        _weigh(work, branch, form, skip / branch.skip, factor / branch.factor)
    if form.carried and not branch.carriers:
        work.left.append(
            f"the skip beside '{branch.path}' cannot be multiplied by a learned number from outside"
        )
    if form.learned and not form.shifts:
        _learned(work, branch, form.learned, scope)


def _weigh(work: Work, branch: Residual, form: Form, skip: float, factor: float) -> None:
    """Bring the sum to ``skip`` times its skip plus ``factor`` times its branch."""
    normed = any(norm.at == "stream" for norm in branch.norms) or bool(branch.sum)
    if normed and "stream" in (form.norms if form.norms is not None else branch.norm_at):
        skip, factor = 1.0, factor / skip  # the norm after the sum sees their ratio alone
    ratio = factor / skip
    if skip != 1 and not branch.sum:
        whole = "sum" if math.isclose(skip, factor) else "skip"
        work.left.append(
            f"no module returns the sum after '{branch.path}': its {whole} was not scaled"
        )
        return
    idle = math.isclose(ratio, 1)
    work.end(branch, partial(_times, ratio), "branches scaled", ratio, idle)
    if branch.sum:
        scaled, idle = partial(_times, skip), math.isclose(skip, 1)
        work.wrap(branch.sum, scaled, "sums scaled", skip, idle)


def _learned(work: Work, branch: Residual, text: str, scope: Mapping[str, float]) -> None:
    kind, _, initial = text.removesuffix(")").partition("(")
    start = number_of(initial, scope)
    if branch.learned:
        work.left.append(f"'{branch.path}' has a learned multiplier already")
        return
    width = branch.width
    axis = work.axis(branch)
    work.end(
        branch,
        (lambda m: PerChannel(m, start, width, axis))
        if kind == "gain"
        else (lambda m: Scaled(m, start, bias=False)),
        f"multipliers {text}",
        start,
    )


def put_inlet(work: Work, branch: Residual, form: Form, text: str) -> None:
    """What enters times a number: behind the norm in front, else in front of the layers."""
    number = number_of(text, scope_of(work.found, branch)) / branch.inlet
    if math.isnan(number):
        work.left.append(f"what enters '{branch.path}' could not be read: it was not scaled")
    else:
        what, idle = "branch inputs scaled", math.isclose(number, 1)
        stays = form.norms is None or "in" in form.norms
        front = [norm.path for norm in branch.norms if norm.at == "in" and stays]
        if len(front) == 1 and work.leaf(front[0]):
            work.wrap(front[0], partial(_times, number), what, number, idle)
            return
        # Behind a norm in front of the branch it is no number of a skip that reads the state.
        normed = "in" in (branch.norm_at if form.norms is None else form.norms)
        across = () if normed else (w.called for w in branch.across if w.first)
        for path in dict.fromkeys((*work.entrances(branch), *across)):
            work.wrap(path, partial(_timed_input, number), what, number, idle)


def put_around(work: Work, row: Around) -> None:
    """The fixed numbers in front of a weight layer and behind it."""
    weight = row.weight
    front = number_of(row.front, row.scope) / weight.front
    behind = 1.0 if row.behind is None else number_of(row.behind, row.scope) / weight.behind
    if math.isnan(front * behind):
        work.left.append(f"the numbers around the layer of '{weight.path}' could not be read")
    elif not _alone(work, weight) and not math.isclose(front * behind, 1):
        work.left.append(
            f"the layer of '{weight.path}' is no module of its own: its number was not put in"
        )
    else:
        for number, put, what in (
            (front, _timed_input, "inputs of layers scaled"),
            (behind, _times, "outputs of layers scaled"),
        ):
            idle = math.isclose(number, 1)
            work.wrap(weight.called, partial(put, number), what, number, idle)


def _alone(work: Work, weight: Weight) -> bool:
    """Whether the layer is a module that does nothing else."""
    module = work.modules.get(weight.called)
    matrices = [p for p in module.parameters() if p.dim() > 1] if module is not None else []
    return weight.called == weight.owner and work.leaf(weight.called) and len(matrices) == 1


def put_outlets(work: Work, text: str) -> None:
    """What enters each head times a number."""
    branches = work.found.branches
    number = number_of(text, scope_of(work.found, branches[-1] if branches else None))
    for head, here in zip(work.found.heads, work.found.outlets, strict=True):
        ratio = number / here
        if math.isnan(ratio):
            work.left.append(f"the factor of the head '{head.path}' could not be read")
        elif not math.isclose(ratio, 1):
            work.wrap(head.called, partial(_timed, ratio), "heads scaled")


def _times(number: float, module: nn.Module) -> nn.Module:
    return Left(module, Times(number))


def _timed_input(number: float, module: nn.Module) -> nn.Module:
    return Entered(module, Times(number))


def _timed(ratio: float, module: nn.Module) -> nn.Module:
    """What enters a layer times a number: of a linear one behind its weight, since a number in
    front of it would stand on the stream, and be one of its last sum."""
    if isinstance(module, nn.Linear):
        return Weighed(module, ratio)
    return Entered(module, Times(ratio))


def put_shifts(work: Work, branch: Residual) -> None:
    """A scalar bias in front of layers and activations; a multiplier at the end."""
    layers = {w.called: w.last for w in branch.weights if not w.table}
    if branch.learned:  # a second one would double its rate
        work.left.append(f"'{branch.path}' has a learned multiplier already: no scalar was put in")
        return
    for path in dict.fromkeys(branch.activations):
        if work.leaf(path):
            work.wrap(path, Shifted, "activations with a scalar bias")
        else:
            work.left.append(
                f"the activation in '{path}' is called as a function: no bias was put before it"
            )
    outputs = {w.called for w in branch.weights if w.role == "output"}
    enters = {w.called for w in branch.weights if w.first}
    for path, last in layers.items():
        if path not in outputs or path in enters:
            work.wrap(path, Shifted, "layers with a scalar bias")
        if last:
            work.wrap(path, Scaled, "multipliers")


def put_biases(work: Work, branch: Residual) -> None:
    """A bias for each of the branch's layers that has none and can take one."""
    for weight in branch.weights:
        module = work.modules.get(weight.owner)
        if weight.table or weight.bias or getattr(module, "bias", None) is not None:
            continue
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            outputs = module.out_features if isinstance(module, nn.Linear) else (
                module.out_channels
            )  # fmt: skip
            module.bias = nn.Parameter(module.weight.new_zeros(outputs))
            work.done["layers given a bias"] += 1
        else:
            work.left.append(f"the layer of '{weight.path}' takes no bias")
