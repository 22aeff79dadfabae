"""LSUV, layer-sequential unit-variance (Mishkin and Matas, "All you need is a good init", arXiv
1511.06422).

    W = Q, orthonormal rows or columns;   then, layer by layer in forward order,
    W <- W / std(layer's output on a batch)

The output is that before the activation, its standard deviation that over everything: examples,
places and channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.layers import of_every_layer
from depthgauge.recipes.outputs import visited
from depthgauge.recipes.rules import Count, Plan, Recipe
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

__all__ = ["LSUV"]

#: How far a standard deviation may lie from 1 in an audit, how near it is brought, and in how many
#: passes at most (more than one where a bias is not zero).
_TOLERANCE: Final = 0.1
_BROUGHT: Final = 1e-3
_PASSES: Final = 10


def _plan(layout: Layout) -> Plan:
    law = "orthonormal rows or columns, of the size that the data ask for"
    kinds = " and ".join(dict.fromkeys(norm.kind for norm in layout.every))
    met = f"{len(layout.every)} of {kinds} met, which divide out the size of what enters them"
    doubt = f"derived for networks without norms, and {met}" if kinds else ""
    return of_every_layer(
        layout, layout.layers, lambda _: "orthogonal", law, lambda _: (), sized=False, doubt=doubt
    )


def _weights(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return {weight.path: named[weight.path] for weight in layout(model, batch).layers}


def _std(output: Tensor) -> float:
    return float(output.detach().double().std(correction=0))


def _scaled(model: nn.Module, batch: Any) -> str:
    """Bring every layer's output to unit variance. Raises NetworkError where one is not finite."""
    weights = _weights(model, batch)
    for _ in range(_PASSES):
        stds: dict[str, float] = {}

        def look(path: str, output: Tensor, stds: dict[str, float] = stds) -> bool:
            stds[path] = std = _std(output)
            if not std < torch.inf:
                raise NetworkError(
                    f"what '{path}' makes of this batch is not finite; look at the batch, or at "
                    f"the layers in front of it"
                )
            off = std > 0 and abs(std - 1) > _BROUGHT
            if off:
                weights[path].div_(std)
            return off

        visited(model, batch, weights, look)
        if all(std == 0 or abs(std - 1) <= _BROUGHT for std in stds.values()):
            break
    zero = [path for path, std in stds.items() if std == 0]
    words = f"{len(stds) - len(zero)} layers brought to unit variance on the batch"
    if zero:
        words += f"; {len(zero)} left as they are, whose output is zero ('{zero[0]}')"
    if unseen := [path for path in weights if path not in stds]:
        words += f"; {len(unseen)} not seen as a layer ('{unseen[0]}')"
    return words


def _unit(model: nn.Module, batch: Any) -> Sequence[Count]:
    """The layers whose output has unit variance on the batch."""
    weights, stds = _weights(model, batch), dict[str, float]()

    def look(path: str, output: Tensor) -> bool:
        stds[path] = _std(output)
        return False

    visited(model, batch, weights, look)
    zero = [path for path in weights if stds.get(path) == 0]
    asked = [path for path in weights if path not in zero]
    wrong = [path for path in asked if not abs(stds.get(path, torch.nan) - 1) <= _TOLERANCE]
    what = "layers of unit variance on the batch"
    if zero:
        what += f" ({len(zero)} more have a zero output, '{zero[0]}')"
    if not asked:
        return (Count(what, 0, 1, "every output is zero"),)
    why = ""
    if wrong:
        why = f"'{wrong[0]}' was not seen as a layer"
        if wrong[0] in stds:
            why = f"what '{wrong[0]}' makes has a standard deviation of {stds[wrong[0]]:.3g}"
    return (Count(what, len(asked) - len(wrong), len(asked), why),)


LSUV = Recipe(
    "lsuv",
    "LSUV, layer-sequential unit variance",
    "a batch of data, of unit variance and large; made for networks without norms",
    (
        "every weight: orthonormal rows or columns, biases zero",
        "then in forward order each weight is divided by the standard deviation of what its layer "
        "makes of the batch, before the activation",
    ),
    (
        "in training mode dropout and batch norm spoil the estimate: evaluation mode",
        "a layer whose output is zero, behind a multiplier of zero, cannot be scaled and is left",
        "each layer's own output has unit variance, the residual stream still grows with depth",
        "a norm does at every step what this does once: what stands directly in front of one is "
        "scaled for nothing",
        "of a weight that is used twice the first use counts",
        "another batch gives other numbers: an audit wants the batch that it was made with",
    ),
    "Mishkin and Matas, arXiv 1511.06422",
    _plan,
    judgement="within 10 per cent in an audit, as its PyTorch version; the last weight of a branch "
    "that begins at zero is drawn, too; networks with norms are not refused, apply and audit name "
    "the norms",
    after=_scaled,
    measured=_unit,
)
