"""Views of one tensor: which say nothing, and which give channels the numbers of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor

from depthgauge.trace.blocks import Region
from depthgauge.trace.graph import Value
from depthgauge.trace.heads import replayed
from depthgauge.trace.roles import TURNS, Roles, displaces

__all__ = ["keeps_all", "over_another_axis", "scrambles"]


def keeps_all(roles: Roles, value: Value) -> bool:
    """Whether a view keeps all elements and the width where it was: says nothing."""
    moved = roles.moving(value.inputs)
    if len(moved) != 1:
        return False
    before = math.prod(roles.values[moved[0]].shape)
    return math.prod(value.shape) == before and not displaces(value)


def scrambles(region: Region, value: Value) -> bool:
    """Whether a row of views that ends here, in the shape that it began with, has given
    channels the numbers of others: ``reshape(B, D, T).transpose(1, 2)``. Where axes are of one
    size, whole axes may have changed places."""
    users = region.roles.graph.consumers[value.index]
    row, at = [value], region.values[value.inputs[0]]
    if value.index != region.after and all(region.values[j].kind == "shape" for j in users):
        return False  # the row goes on
    while at.kind == "shape" and at.index in region.inside and keeps_all(region.roles, at):
        row.append(at)
        at = region.values[at.inputs[0]]
    if at.shape != value.shape or all(one.name not in TURNS for one in row):
        return False
    places = _moved(torch.arange(math.prod(at.shape)).view(at.shape), row)
    if places is None:
        return False
    axis = region.axis if len(at.shape) == len(region.values[region.before].shape) else -1
    size, behind = at.shape[axis], math.prod(at.shape[axis:][1:])
    own = torch.arange(places.numel()) // behind % size
    kept = torch.equal(places.flatten() // behind % size, own)
    return not kept and not _turned(places)


def over_another_axis(region: Region, x: int) -> bool:
    """Whether axes were exchanged between the last function that knew the width and a layer,
    with no such exchange undone and no channels of heads put beside each other."""
    row: list[Value] = []
    at = region.values[x]
    while at.kind in ("shape", "drop") and at.inputs and at.index != region.before:
        row += [at] if at.kind == "shape" else []
        at = region.values[at.inputs[0]]
    turns = sum(one.name in TURNS for one in row)
    width, shape = at.shape[-1:], region.values[x].shape
    if turns % 2 == 0 or width == shape[-1:]:
        return False
    channels = _moved(torch.arange(*width).expand(at.shape), row)
    if channels is None:
        return True
    size = min(*width, shape[-1])
    return not torch.equal(channels[..., :size], torch.arange(size).expand(*shape[:-1], size))


def _moved(numbers: Tensor, row: Sequence[Value]) -> Tensor | None:
    """What a row of views, the last of them first, makes of numbers; None where that is unknown."""
    found: Tensor | None = numbers
    for one in reversed(row):
        found = None if found is None else replayed(one, {one.inputs[0]: found})
    return found


def _turned(places: Tensor) -> bool:
    """Whether numbered places are those of a tensor whose axes were exchanged."""
    before = torch.arange(places.numel()).view(places.shape)
    return any(
        before.permute(axes).shape == places.shape and torch.equal(before.permute(axes), places)
        for axes in permutations(range(places.dim()))
    )
