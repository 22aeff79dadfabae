"""Weight normalisation with its data-dependent initialisation (Salimans and Kingma, arXiv
1602.07868, sections 2 and 3).

    w = g v / |v|  for each output,    v ~ N(0, 0.05)

On one batch, layer by layer in forward order, t being what a layer makes with g = 1 and b = 0:

    g = s / std(t),   b = -mean(t) s / std(t)

over examples and places, channel by channel, so that what it makes has mean 0 and standard
deviation s: 1, of a branch's last layer 0.1 (as in OpenAI's code for PixelCNN++).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from depthgauge.errors import NetworkError
from depthgauge.recipes.layers import place_of
from depthgauge.recipes.outputs import seen
from depthgauge.recipes.rules import Count, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Weight
from depthgauge.trace.layout import layout

__all__ = ["WEIGHT_NORM"]

#: Of a branch's last layer.
_SMALL: Final = 0.1
#: How far a mean (in units of s) and a standard deviation may lie from what is asked.
_TOLERANCE: Final = 0.05


def _plan(layout: Layout) -> Plan:
    weights, scope = _covered(layout), scope_of(layout)
    mistakes = (("torch", "PyTorch's default, kaiming_uniform with a = sqrt(5)"),)
    targets = tuple(Target(w, "normal(std=0.05)", scope, mistakes) for w in weights)
    normed = [w for w in weights if w.lengths]
    bare = [w for w in weights if not w.lengths]
    why = f"'{bare[0].path}' is its own" if bare else ""
    count = Count("weights that are lengths times directions", len(normed), len(weights), why)
    return Plan(
        (Rule("directions", "normal of standard deviation 0.05", targets, bare=True),),
        counts=(count,),
        biased=tuple(weights),
    )


def _covered(layout: Layout) -> tuple[Weight, ...]:
    """Every layer. Raises NetworkError for one that is no module with a weight and a bias."""
    for weight in layout.layers:
        if weight.axis and weight.groups > 1:
            raise NetworkError(
                f"'{weight.path}' is a transposed convolution of {weight.groups} groups, in which "
                f"outputs share a length, and weight normalisation gives each its own; use one "
                f"group"
            )
        module, name = place_of(weight)
        if name != "weight" or weight.bias not in ("", f"{module}.bias"):
            raise NetworkError(
                f"'{weight.path}' is no weight of a module of its own, and what its layer makes "
                f"cannot be seen; use linear layers and convolutions (in attention, one for each "
                f"projection)"
            )
    if not layout.layers:
        raise NetworkError("no weight layer was found, and weight normalisation is about them")
    return layout.layers


def _sizes(found: Layout) -> dict[str, float]:
    """The standard deviation that each layer's output is to have."""
    last = {w.path for branch in found.branches for w in branch.weights if w.last}
    return {place_of(w)[0]: _SMALL if w.path in last else 1.0 for w in found.layers}


def _normalised(model: nn.Module, batch: Any) -> str:
    """Give each weight its lengths, and lengths and biases what the batch asks for."""
    found = layout(model, batch)
    sizes = _sizes(found)
    # Queries, keys and values in one matrix are one layer.
    for path, dim in {place_of(w)[0]: w.axis for w in found.layers if not w.lengths}.items():
        if parametrize.is_parametrized(model.get_submodule(path), "weight"):
            raise NetworkError(
                f"the weight of '{path}' is parametrised already, and weight normalisation would "
                f"stand in front of that; take it off first"
            )
        parametrizations.weight_norm(model.get_submodule(path), dim=dim)
    found = layout(model, batch)
    if across := _across(model, found):
        raise NetworkError(
            f"'{across[0]}' has lengths for its inputs, expected one for each output; use dim=1 "
            f"for a transposed convolution, else dim=0"
        )
    if unread := [place_of(w)[0] for w in found.layers if not (w.lengths and w.bias)]:
        raise NetworkError(
            f"the layer '{unread[0]}' is computed in parts outside of its module, which hide its "
            f"length or its bias, and weight normalisation sets both on data; give that layer a "
            f"forward pass of its own"
        )
    named, axes = dict(model.named_parameters()), _axes(found)
    lengths = {place_of(w)[0]: (named[w.lengths], named[w.bias]) for w in found.layers}
    still = []

    def look(path: str, made: Tensor) -> Tensor:
        g, b = lengths[path]
        dims = [d for d in range(made.dim()) if d != made.dim() + axes[path]]
        wide = made.double()
        mean, std = wide.mean(dims), wide.std(dims, correction=0)
        if not bool(torch.isfinite(std).all()):
            raise NetworkError(
                f"what '{path}' makes of this batch is not finite; look at the batch, or at the "
                f"layers in front of it"
            )
        still.extend([path] if bool((std == 0).any()) else [])
        factor = torch.where(std > 0, sizes[path] / std, 1.0)
        g.copy_(factor.reshape(g.shape))
        b.copy_(-mean * factor)
        shape = [-1 if d == made.dim() + axes[path] else 1 for d in range(made.dim())]
        changed: Tensor = made * g.reshape(shape) + b.reshape(shape)
        return changed

    with torch.no_grad():
        for g, b in lengths.values():
            g.fill_(1.0)
            b.zero_()
    seen(model, batch, list(lengths), look)
    words = f"lengths and biases of {len(lengths)} layers set on the batch"
    if still:
        words += f"; {len(still)} have outputs that do not vary ('{still[0]}'), left at length 1"
    return words


def _across(model: nn.Module, found: Layout) -> list[str]:
    """The weights whose lengths stand along another axis than that of their outputs."""
    named = dict(model.named_parameters())
    return [
        w.path
        for w in found.layers
        if w.lengths and named[w.lengths].shape[w.axis] != w.shape[w.axis]
    ]


def _axes(found: Layout) -> dict[str, int]:
    """Where the channels of each layer's output lie, from the end."""
    return {place_of(w)[0]: -1 if len(w.shape) == 2 else 1 - len(w.shape) for w in found.layers}


def _standard(model: nn.Module, batch: Any) -> Sequence[Count]:
    """The layers whose channels have mean 0 and the standard deviation asked for."""
    found = layout(model, batch)
    sizes, axes = _sizes(found), _axes(found)
    off: dict[str, str] = {}
    still: list[str] = []

    def look(path: str, made: Tensor) -> None:
        dims = [d for d in range(made.dim()) if d != made.dim() + axes[path]]
        wide, size = made.double(), sizes[path]
        mean, std = wide.mean(dims) / size, wide.std(dims, correction=0) / size
        moving = std > 0
        still.extend([path] if not bool(moving.all()) else [])
        wrong = (mean.abs() > _TOLERANCE) | ((std - 1).abs() > _TOLERANCE) & moving
        if bool(wrong.any()):
            k = int(wrong.nonzero()[0])
            off[path] = (
                f"channel {k} of '{path}' has mean {float(mean[k]) * size:.3g} and standard "
                f"deviation {float(std[k]) * size:.3g}, expected 0 and {size:g}"
            )

    seen(model, batch, list(sizes), look)
    normed, across = [w for w in found.layers if w.lengths], _across(model, found)
    why = f"those of '{across[0]}' stand along its inputs" if across else ""
    lengths = Count(
        "weights with a length for each output", len(normed) - len(across), len(normed), why
    )
    what = "layers of mean 0 and the standard deviation asked for on the batch"
    what += f" ({len(still)} with outputs that do not vary)" if still else ""
    made = Count(what, len(sizes) - len(off), len(sizes), next(iter(off.values()), ""))
    return (lengths, made) if normed else (made,)


WEIGHT_NORM = Recipe(
    "weight-norm",
    "weight normalisation with data-dependent initialisation",
    "linear layers and convolutions, a batch of data",
    (
        "each weight is a length for each output times a direction: w = g v / |v|",
        "directions: normal of standard deviation 0.05",
        "on one batch, in forward order: g = s / std(t), b = -mean(t) s / std(t) for each output",
        "s = 1, of the last layer of a residual branch 0.1",
    ),
    (
        "the axis of the outputs is 0 in linear layers and convolutions, 1 in transposed ones",
        "done anew, it has to come before the optimiser has a state",
        "weight decay of the directions does nothing but change how fast they turn",
        "an audit wants the batch that it was made with",
    ),
    "Salimans and Kingma, arXiv 1602.07868",
    _plan,
    tier=2,
    judgement="an output that does not vary on the batch keeps length 1; within 5 per cent in an "
    "audit",
    after=_normalised,
    measured=_standard,
    unwritten="an equation has no lengths beside a weight's directions; apply it to the module "
    "that is built of one",
)
