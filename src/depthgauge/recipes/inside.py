"""What a form asks of the inside of branches, counted; and the weights that modules compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from depthgauge.recipes.rules import Around, Count, Form, Plan, number_of, scope_of
from depthgauge.trace.layout import Layout, Residual

__all__ = ["counted", "effective"]

_CLOSE: Final = 1e-3
_ORIGINAL: Final = ".original"


def effective(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, and in place of one that a weight is computed from, that weight."""
    found = dict(parameters)
    for path in parameters:
        owner, made, name = path.removesuffix(_ORIGINAL).rpartition(".parametrizations.")
        if made and path.endswith(_ORIGINAL):
            with torch.no_grad():
                weight = getattr(model.get_submodule(owner), name)
            if weight.shape == parameters[path].shape:
                found[path] = weight
    return found


def counted(layout: Layout, plan: Plan) -> Iterator[Count]:
    """Numbers around layers, inlets, biases and scalars that leak to the skip, as the plan has
    them."""
    if plan.around:
        yield _surrounded(plan.around)
    rows = list(zip(layout.branches, plan.forms, strict=False))
    if scaled := [(branch, form) for branch, form in rows if form.inlet is not None]:
        yield _inlets(layout, scaled)
    if biased := [branch for branch, form in rows if form.biased]:
        weights = [w for branch in biased for w in branch.weights]
        bare = [w for w in weights if not w.bias]
        why = f"'{bare[0].path}' has none" if bare else ""
        has = len(weights) - len(bare)
        yield Count("weight layers of branches with a bias", has, len(weights), why)
    if shifted := [branch for branch, form in rows if form.shifts]:
        leaking = sum(branch.leaks for branch in shifted)
        why = "the skip is to carry the state as it is"
        yield Count("branches whose first scalar bias is added to the skip too", leaking, 0, why)


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


def _inlets(layout: Layout, rows: Sequence[tuple[Residual, Form]]) -> Count:
    wrong = [row for row in rows if not _enters(layout, row[0], row[1].inlet or "1")]
    what = "branches whose input is scaled as it is to be"
    why = ""
    if wrong:
        branch, form = wrong[0]
        asked = number_of(form.inlet or "1", scope_of(layout, branch))
        why = f"'{branch.path}' takes {branch.inlet:.4g} of its input, expected {asked:.4g}"
        tables = [{words: text for text, words in form.inlet_mistakes} for _, form in wrong]
        named = [words for words in tables[0] if all(words in table for table in tables)]
        fitting = [
            words
            for words in named
            if all(_enters(layout, b, t[words]) for (b, _), t in zip(wrong, tables, strict=True))
        ]
        why += f": {', or '.join(fitting[:2])}" if fitting else ""
    return Count(what, len(rows) - len(wrong), len(rows), why)


def _enters(layout: Layout, branch: Residual, text: str) -> bool:
    asked = number_of(text, scope_of(layout, branch))
    return math.isclose(branch.inlet, asked, rel_tol=_CLOSE)
