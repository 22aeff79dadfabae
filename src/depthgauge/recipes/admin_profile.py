"""Admin by a profile (Liu et al., "Understanding the Difficulty of Training Transformers", arXiv
2004.08249), its paper's own rule.

    x <- N(omega x + F(x))      omega: one learned number a channel, on the skip

One pass on a batch with every omega at 1 shows the variance of each branch; then, in each stack,

    omega_1 = 1,    omega_{i+1}^2 = omega_i^2 + Var F_i

over examples, places and channels. ``admin.py`` has the closed forms that need no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import duplicate
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.outputs import seen
from depthgauge.recipes.rules import Count, Form, Plan, Recipe
from depthgauge.trace.counted import Layout, Residual
from depthgauge.trace.layout import layout

__all__ = ["ADMIN_PROFILE", "omegas"]

#: How far an omega may lie from that of the profile in an audit.
_CLOSE: Final = 5e-3


def omegas(variances: Sequence[float]) -> list[float]:
    """omega of each branch of one stack, from the variances of its branches in order."""
    squares = [1.0]
    for variance in variances[:-1]:
        squares.append(squares[-1] + variance)
    return [math.sqrt(square) for square in squares]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "Admin")
    for branch in layout.branches:
        _end_of(branch)
    form = Form(
        skip="1",
        factor="1",
        learned="",
        carried="gain",
        norms={"stream": ""},
        misplaced=((("in",), "the norm stands in front of the branch"),),
    )
    return Plan(forms=tuple(form for _ in layout.branches), final="none")


def _end_of(branch: Residual) -> str:
    """The module whose output is the branch. Raises NetworkError where several are added."""
    paths = {weight.called for weight in branch.weights if weight.last}
    if len(paths) != 1 or "" in paths:
        raise NetworkError(
            f"the branch '{branch.path}' ends with {len(paths)} layers that are added, and what it "
            f"adds is what no single layer makes; give each a branch of its own, or use 'admin', "
            f"which needs no data"
        )
    return paths.pop()


def _profile(model: nn.Module, batch: Any, found: Layout) -> dict[str, list[float]]:
    """By stream the variance of each branch, with every omega of a copy at 1."""
    copied = duplicate(model)
    variances: dict[str, float] = {}

    def look(path: str, made: Any) -> None:
        output: Tensor = made if isinstance(made, Tensor) else made[0]
        variances[path] = float(output.double().var(correction=0))
        if not variances[path] < torch.inf:
            raise NetworkError(
                f"what '{path}' makes of this batch is not finite; look at the batch, or at the "
                f"layers in front of it"
            )

    with torch.no_grad():
        for path in (path for branch in found.branches for path in branch.carriers):
            copied.get_parameter(path).fill_(1.0)
    ends = [_end_of(branch) for branch in found.branches]
    seen(copied, batch, list(dict.fromkeys(ends)), look)
    rows: dict[str, list[float]] = {}
    for branch, end in zip(found.branches, ends, strict=True):
        rows.setdefault(branch.stream, []).append(variances[end])
    return rows


def _each(found: Layout, rows: Mapping[str, Sequence[float]]) -> list[float]:
    """What is said of each stream's branches in order, in the layout's order."""
    left = {stream: list(numbers) for stream, numbers in rows.items()}
    return [left[branch.stream].pop(0) for branch in found.branches]


def _set(model: nn.Module, batch: Any) -> str:
    found = layout(model, batch)
    rows = _profile(model, batch, found)
    asked = _each(found, {stream: omegas(row) for stream, row in rows.items()})
    count = 0
    with torch.no_grad():
        for branch, omega in zip(found.branches, asked, strict=True):
            for path in branch.carriers:
                model.get_parameter(path).fill_(omega)
                count += 1
    return f"{count} omegas set by a profile on the batch, 1 to {max(asked):.4g}"


def _held(model: nn.Module, batch: Any) -> Sequence[Count]:
    """The omegas that are those of the batch's profile."""
    found = layout(model, batch)
    rows = _profile(model, batch, found)
    held = [[model.get_parameter(path) for path in b.carriers] for b in found.branches]
    asked = _each(found, {stream: omegas(row) for stream, row in rows.items()})
    wrong = [k for k, omega in enumerate(asked) if not _near(held[k], omega)]
    what = "omegas that the variances of the branches on this batch ask for"
    having = sum(bool(row) for row in held)
    why = "no skip has an omega"
    if wrong:
        k = wrong[0]
        values = [float(p.detach().double().mean()) for p in held[k]]
        has = ", ".join(f"{value:.4g}" for value in values)
        why = f"that beside '{found.branches[k].path}' is {has}, expected {asked[k]:.4g}"
        why += _mistake(found, rows, held, wrong)
    return (Count(what, having - len(wrong), max(having, 1), why),)


def _near(held: Sequence[Tensor], omega: float) -> bool:
    return all(bool(((p.detach() - omega).abs() <= _CLOSE * omega).all()) for p in held)


def _mistake(
    found: Layout,
    rows: Mapping[str, Sequence[float]],
    held: Sequence[Sequence[Tensor]],
    wrong: Sequence[int],
) -> str:
    """The mistake that makes every one of the wrong omegas what it is."""
    first = next(iter(rows))
    before = math.fsum(rows[first])
    mistakes: dict[str, Callable[[Sequence[float], str], Sequence[float]]] = {
        "omega was never set": lambda row, _: [1.0] * len(row),
        "the sum itself, where its root belongs": lambda row, _: [w * w for w in omegas(row)],
        "the branch's own variance is counted too": lambda row, _: omegas([*row, 0.0])[1:],
        f"the branches of '{first}' are counted too": lambda row, stream: [
            math.sqrt(w * w + (before if stream != first else 0.0)) for w in omegas(row)
        ],
    }
    for words, rule in mistakes.items():
        others = _each(found, {stream: rule(row, stream) for stream, row in rows.items()})
        if all(_near(held[k], others[k]) for k in wrong):
            return f": {words}"
    return ""


ADMIN_PROFILE = Recipe(
    "admin-profile",
    "Admin, by a profile",
    "residual branches and a batch of data; in a module a learned number on each skip",
    (
        "x <- N(omega x + F(x)), omega one learned number a channel",
        "one pass on the batch with every omega at 1, which shows the variance of each branch",
        "omega_1 = 1, omega_{i+1}^2 = omega_i^2 + Var F_i, each stack by itself",
        "weights as they are",
    ),
    (
        "the profile is that of one architecture and its weights: draw them first, then look",
        "an encoder's variances are no part of its decoder's sum",
        "omega is the root of the sum, and its own branch's variance is not in it yet",
        "an audit wants the batch that it was made with",
    ),
    "Liu et al., arXiv 2004.08249; LiyuanLucasLiu/Transformer-Clinic",
    _plan,
    tier=2,
    judgement="evaluation mode; the state that enters a branch counts with variance 1, which the "
    "norm behind the sum gives it; within half a per cent in an audit",
    after=_set,
    measured=_held,
)
