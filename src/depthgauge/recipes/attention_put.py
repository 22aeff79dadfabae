"""What a form asks of attention, put behind the layers that make queries and keys."""

from __future__ import annotations

import math
from functools import partial

import torch

from depthgauge.errors import NetworkError
from depthgauge.recipes.heads import with_norms, with_number
from depthgauge.recipes.rules import Form, number_of, scope_of
from depthgauge.recipes.work import Work
from depthgauge.recipes.wrappers import Left, Times
from depthgauge.trace.counted import Residual, Weight
from depthgauge.trace.heads import ROLES

__all__ = ["put_logits", "put_scored"]


def put_logits(work: Work, branch: Residual, text: str) -> None:
    """Attention's logits times a number, behind the layer that makes queries: of one that makes
    keys and values too behind its queries alone."""
    scope = {**scope_of(work.found, branch), "d": float(branch.head or 1)}
    ratio = number_of(text, scope) / branch.logits
    if not branch.head or math.isclose(ratio, 1):
        return
    what = f"attention logits scaled to {text}"
    if branch.queries and not math.isnan(ratio):
        work.wrap(branch.queries, lambda m: Left(m, Times(ratio)), what)
        return
    packed = _projections(branch, "query")
    why = "it is not read" if math.isnan(ratio) else "no layer makes its queries"
    if len(packed) > 1:
        why = f"{len(packed)} layers make its queries"
    elif packed and not math.isnan(ratio):
        ((path, weights),) = packed.items()
        try:
            work.wrap(path, partial(with_number, weights=weights, number=ratio), what)
            return
        except NetworkError as error:
            why = str(error)
    work.left.append(f"attention in '{branch.path}' keeps the factor of its logits: {why}")


def _projections(branch: Residual, role: str = "") -> dict[str, list[Weight]]:
    """By the module that is called the weights of attention's projections: all, or of modules that
    make what has this role."""
    made: dict[str, list[Weight]] = {}
    for weight in branch.weights:
        if weight.role in ROLES or weight.role == "projection":
            made.setdefault(weight.called, []).append(weight)
    return {path: ws for path, ws in made.items() if not role or any(w.role == role for w in ws)}


def put_scored(work: Work, branch: Residual, form: Form, kind: str) -> None:
    """Norms of queries and keys behind the layers that make them, logits by their number."""
    scope = {**scope_of(work.found, branch), "d": float(branch.head or 1)}
    number = number_of(form.logits or "1/sqrt(d)", scope) / branch.logits
    start = None if form.temperature is None else number_of(form.temperature, scope)
    wanted = {("query", kind, branch.head), ("key", kind, branch.head)}
    if (
        wanted == set(branch.scored)
        and math.isclose(number, 1)
        and (start is None or branch.temperatures)
    ):
        if start is not None:
            with torch.no_grad():
                work.model.get_parameter(branch.temperatures[0]).fill_(start)
        return
    if branch.scored or branch.temperatures or math.isnan(number):
        why = "are not read" if math.isnan(number) else "have norms or numbers of their own"
        work.left.append(f"queries and keys in '{branch.path}' {why}: nothing was put there")
        return
    what = f"{kind} norms of queries and keys"
    for path, weights in _projections(branch).items():
        if {weight.role for weight in weights} == {"value"}:
            continue
        change = partial(
            with_norms, weights=weights, head=branch.head, kind=kind, number=number, start=start
        )
        try:
            work.wrap(path, change, what)
        except NetworkError as error:
            work.left.append(f"'{path}' is left without norms: {error}")
