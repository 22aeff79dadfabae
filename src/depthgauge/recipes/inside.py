"""What a form asks of the inside of branches, counted; and the weights that modules compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from depthgauge.recipes.rules import Around, Count, Form, Plan, number_of, scope_of
from depthgauge.trace.counted import Layout, Residual, Weight

__all__ = ["counted", "effective", "headed", "scaled_biases", "uncounted"]

_CLOSE: Final = 1e-3
_ORIGINAL: Final = ".original"


def effective(
    model: nn.Module, parameters: Mapping[str, Tensor], layout: Layout
) -> dict[str, Tensor]:
    """The parameters, and in place of one that a weight is computed from, that weight: by a
    parametrisation, or by the model's own code in the pass of ``layout``."""
    found = {**parameters, **{path: one.weight for path, one in layout.computed.items()}}
    for path in parameters:
        owner, made, name = path.removesuffix(_ORIGINAL).rpartition(".parametrizations.")
        if made and path.endswith(_ORIGINAL):
            module = model.get_submodule(owner)
            # Of a spectral norm in training mode a look is a step of its power iteration.
            buffers = [(b, b.clone()) for b in module.get_submodule("parametrizations").buffers()]
            with torch.no_grad():
                weight = getattr(module, name)
                for buffer, was in buffers:
                    buffer.copy_(was)
            if weight.shape == parameters[path].shape:
                found[path] = weight
    return found


def headed(layout: Layout, plan: Plan) -> Layout:
    """The layout with a number that stands behind the last sum of a stream as the head's alone,
    where between the two it could be either's: where a recipe gives heads a fixed number, and where
    it has none behind any sum, as the other sums have none. With a recipe that weighs its sums it
    is the sum's alone."""
    last = {branch.stream: branch for branch in layout.branches}
    formed = zip(layout.branches, plan.forms, strict=False)
    weighed = any(form.skip not in (None, "1") for _, form in formed)
    if weighed:
        if plan.outlet is None:
            return layout
        return replace(layout, outlets=tuple(w.front * w.behind for w in layout.heads))
    rows = []
    for branch in layout.branches:
        by = 1.0
        if branch.place == last[branch.stream].place:
            by = branch.behind if plan.outlet is not None else _of_head(layout, branch)
        by = by or 1.0
        rows.append(replace(branch, skip=branch.skip / by, factor=branch.factor / by))
    return replace(layout, branches=tuple(rows))


def _of_head(layout: Layout, last: Residual) -> float:
    """The number that multiplies the last sum of a stream outside of its module, in front of the
    layers that read it, and no other sum of that stream."""
    others = [b for b in layout.branches if b.stream == last.stream and b.place != last.place]
    read = any(end.readers and not end.returned for end in layout.ends if end.stream == last.stream)
    alone = all(math.isclose(branch.behind, 1) for branch in others)
    return last.outside if read and alone and not math.isnan(last.outside) else 1.0


def counted(layout: Layout, plan: Plan) -> Iterator[Count]:
    """Numbers around layers, second streams, inlets, biases and scalars that leak to the skip, as
    the plan has them."""
    if plan.around:
        yield _surrounded(plan.around)
    rows = list(zip(layout.branches, plan.forms, strict=False))
    if layout.second and not plan.second and any(form.norms is not None for _, form in rows):
        why = (
            f"the sum of {layout.second[0].added} branches, which no norm touches on the way, "
            f"joins the stream at its end: ResiDual"
        )
        yield Count("second streams beside the one with norms", len(layout.second), 0, why)
    if scaled := [(branch, form) for branch, form in rows if form.inlet is not None]:
        yield _inlets(layout, scaled)
    if biased := [branch for branch, form in rows if form.biased]:
        weights = [w for branch in biased for w in branch.weights if not w.table]
        bare = [w for w in weights if not w.bias]
        why = f"'{bare[0].path}' has none" if bare else ""
        has = len(weights) - len(bare)
        yield Count("weight layers of branches with a bias", has, len(weights), why)
    if shifted := [branch for branch, form in rows if form.shifts]:
        leaking = sum(branch.leaks for branch in shifted)
        why = "the skip is to carry the state as it is"
        yield Count("branches whose first scalar bias is added to the skip too", leaking, 0, why)


def uncounted(layout: Layout, plan: Plan) -> tuple[str, ...]:
    """The weights that a plan's rules speak of and none of them names, since their inputs could not
    be counted: in branches, outside of them where a rule names a layer there, and of heads unless
    the rules leave one alone that was counted."""
    if all(rule.vectors for rule in plan.rules):
        return ()
    named = {target.weight.path for rule in plan.rules for target in rule.targets}
    heads = {w.path for w in layout.heads}
    others = {w.path for w in layout.outside if len(w.shape) > 1} - heads - set(layout.tables)
    asked = {w.path for branch in layout.branches for w in branch.weights}
    if others & named:
        asked |= others
    left = heads - named - set(layout.uncounted)
    if heads & named or (others & named and not left):
        asked |= heads
    return tuple(path for path in layout.uncounted if path in asked - named)


def _surrounded(rows: Sequence[Around]) -> Count:
    """The fixed numbers in front of weight layers and behind them."""
    wrong = [row for row in rows if not math.isclose(row.found, row.asked, rel_tol=_CLOSE)]
    why = ""
    if wrong:
        row = wrong[0]
        why = f"'{row.weight.path}' has {row.found:.4g}, expected {row.asked:.4g}"
        tables = [{words: text for text, words in r.mistakes} for r in wrong]
        for words in tables[0]:
            if all(
                words in table
                and math.isclose(r.found, number_of(table[words], r.scope), rel_tol=_CLOSE)
                for r, table in zip(wrong, tables, strict=True)
            ):
                why += f": {words}"
                break
    return Count("weight layers between their numbers", len(rows) - len(wrong), len(rows), why)


def scaled_biases(
    parameters: Mapping[str, Tensor], scales: Sequence[tuple[Weight, float]]
) -> Iterator[Count]:
    """Biases that have the size of PyTorch's, ``1/sqrt(3 fan_in)``, times the factor of their
    weights; nothing where all are zero, or where so few numbers fit the size itself as well."""
    own, both, biases = [], [], 0
    for weight, factor in scales:
        if not weight.bias or not weight.fan_in:
            continue
        bias = parameters[weight.bias].detach().double()
        bias = bias if weight.rows is None else bias[list(weight.rows)]
        if bool(bias.any()):
            biases += 1
            own.append(bias * math.sqrt(3 * weight.fan_in))
            both.append(own[-1] / factor)
    if not biases:
        return
    plain, scaled = (float(torch.cat(part).square().mean().sqrt()) for part in (own, both))
    near = 5 / math.sqrt(2 * sum(map(len, own))) + 0.02
    wrong = abs(scaled - 1) <= near < abs(plain - 1)
    why = "a filter by names such as 'fc1' catches 'fc1.bias' too"
    yield Count("biases scaled as their weights are", biases if wrong else 0, 0, why)


def _inlets(layout: Layout, rows: Sequence[tuple[Residual, Form]]) -> Count:
    wrong = [row for row in rows if not _enters(layout, row[0], row[1].inlet or "1")]
    what = "branches whose input is scaled as it is to be"
    why = ""
    if wrong:
        branch, form = wrong[0]
        asked = number_of(form.inlet or "1", scope_of(layout, branch))
        takes = f"takes {branch.inlet:.4g} of its input"
        if math.isnan(branch.inlet):
            takes = "gives its layers its input by several numbers, or by none that could be read"
        behind = f", behind {form.entered}" if form.entered else ""
        why = f"'{branch.path}' {takes}{behind}, expected {asked:.4g}"
        tables = [{words: text for text, words in form.inlet_mistakes} for _, form in wrong]
        named = [words for words in tables[0] if all(words in table for table in tables)]
        fitting = [
            words
            for words in named
            if all(_enters(layout, b, t[words]) for (b, _), t in zip(wrong, tables, strict=True))
        ]
        same = [(b, form) for b, form in rows if b.path == branch.path]
        numbers = {number_of(form.inlet or "1", scope_of(layout, b)) for b, form in same}
        if len(numbers) > 1 and len({b.inlet for b, _ in same}) == 1:
            why += f": it runs {len(same)} times in a pass with the one number, where the recipe "
            why += f"has {len(numbers)}"
        elif fitting:
            why += f": {', or '.join(fitting[:2])}"
    return Count(what, len(rows) - len(wrong), len(rows), why)


def _enters(layout: Layout, branch: Residual, text: str) -> bool:
    asked = number_of(text, scope_of(layout, branch))
    return math.isclose(branch.inlet, asked, rel_tol=_CLOSE)
