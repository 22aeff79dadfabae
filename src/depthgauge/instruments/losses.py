"""What a format loses of training: gradients that become 0, updates that leave their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import NetworkError, SpecificationError
from depthgauge.instruments.formats import Format, lost_updates
from depthgauge.instruments.step import Step, stepped
from depthgauge.trace.backward import dense

__all__ = ["flushed", "largest_of", "lost", "step_in_float64"]

#: Tensors named in a note, at most.
_NAMED: Final = 64


def flushed(g: Tensor, exact: Tensor) -> float:
    """The share of the elements of ``exact``, shapes alike, that are not 0 and are 0 in ``g``; NaN
    where either has one."""
    g, exact = dense(g), dense(exact)
    if bool(g.isnan().any() | exact.isnan().any()):
        return math.nan
    return ((g == 0) & (exact != 0)).double().mean().item() if g.numel() else 0.0


def step_in_float64(
    step: Step, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimiser adds, in float64, with its name and rate; nothing with the reason."""
    if not gradients:
        return {}, {"not_measured": "no gradient reached a parameter"}
    exact = {name: nn.Parameter(p.detach().double()) for name, p in parameters.items()}
    if isinstance(step.optimizer, Optimizer):  # holds these parameters and steps in their precision
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values()):
            why = "the optimizer given steps in half precision, where what is lost was never there"
            return {}, {"not_measured": f"{why}; name the optimizer or give a function"}
        own_precision = {name: g.to(parameters[name].dtype) for name, g in gradients.items()}
        try:
            taken = stepped(step, parameters, own_precision)
        except SpecificationError as error:
            if all(g.layout == torch.strided for g in gradients.values()):
                raise
            return {}, {"not_measured": str(error)}  # it takes no sparse gradients
    else:
        taken = stepped(step, exact, {name: g.double() for name, g in gradients.items()})
    added = {name: value.double() - exact[name].detach() for name, value in taken.values.items()}
    note = {"optimizer": taken.optimizer, "lr": taken.lr}
    return added, note | ({"foreign_parameters": taken.foreign} if taken.foreign else {})


def lost(
    parameters: Mapping[str, Tensor],
    updates: Mapping[str, Tensor],
    format: str | Format | None = None,
) -> dict[str, Any]:
    """Updates that leave the weights, stored in the format, as they are: the share over all, the
    tensors with the largest shares, and those that are ``frozen``: whose updates are all lost.
    Without a format each weight is stored in its own.

    ``updates``: what is added, by the name of its parameter. Raises NetworkError for a name that no
    parameter has, or another shape.
    """
    each: dict[str, float] = {}
    moved = gone = 0.0
    for name, update in updates.items():
        if name not in parameters or parameters[name].shape != update.shape:
            came = f"of shape {tuple(update.shape)}"
            raise NetworkError(
                f"an update {came} was given for '{name}', expected the name and shape of a "
                f"parameter"
            )
        count = int((update != 0).sum())
        if count:
            own = str(parameters[name].dtype).removeprefix("torch.")
            each[name] = lost_updates(parameters[name], update, format or own)
            moved, gone = moved + count, gone + count * each[name]
    return {
        "share": gone / moved if moved else None,
        "frozen": [name for name, share in each.items() if share == 1],
        "largest": largest_of({name: share for name, share in each.items() if not share <= 0}),
    }


def largest_of(each: Mapping[str, float]) -> dict[str, float]:
    """The largest of named shares, in order, NaN first; at most as many as a note may name."""
    ordered = sorted(each.items(), key=lambda item: (item[1] == item[1], -item[1]))
    return dict(ordered[:_NAMED])
