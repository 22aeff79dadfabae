"""What a recipe counts, found on the model: residual branches, the weight layers in each.

A recipe's numbers depend on L and m, and a wrong count goes unseen: here both come from the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from depthgauge.trace.analysis import Analysis, analyse
from depthgauge.trace.graph import Value
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import quiet, run, unwrapped
from depthgauge.trace.streams import Branch, region

__all__ = ["Layout", "Residual", "Weight", "layout"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path. ``fan_in`` numbers enter each of ``fan_out`` (of a kernel,
    with its places); 0 where the function does not say. ``last``: no weight layer stands between it
    and the sum, or the output. ``shifted``: a learned number is added to what enters it."""

    path: str
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    last: bool
    shifted: bool


@dataclass(frozen=True)
class Residual:
    """One residual branch: ``m`` weight layers in series (attention has four), its weights in
    forward order, where it has norms, the modules of its activations (the branch's own where one is
    called as a function), in front of how many of them a learned number is added, and the learned
    numbers that it is multiplied by."""

    stream: str
    path: str
    m: int
    weights: tuple[Weight, ...]
    norm_at: tuple[str, ...]
    activations: tuple[str, ...]
    shifted: int
    multipliers: int


@dataclass(frozen=True)
class Layout:
    """The residual branches of all streams, the weights after which no other comes (heads), the
    paths of those that are in no branch (stems, shortcuts, heads), and the modules of all norms."""

    branches: tuple[Residual, ...]
    heads: tuple[Weight, ...]
    outside: tuple[str, ...]
    norms: tuple[str, ...]

    @property
    def L(self) -> int:
        """Residual branches in the whole network."""
        return len(self.branches)

    @property
    def m(self) -> tuple[int, ...]:
        """The numbers of weight layers that a branch has, each once, from the smallest on."""
        return tuple(sorted({branch.m for branch in self.branches}))


def layout(model: nn.Module, batch: Any) -> Layout:
    """What the tracer finds in one pass of ``model`` on ``batch``; the model is left as it was.

    Raises ModelError when it raises, NetworkError for what cannot be run.
    """
    model, _ = unwrapped(model)
    with quiet():
        readings = Readings((), (), (), False)
        passed = run(model, batch, None, readings)
        held = dict([*passed.held.parameters, *passed.held.buffers])
        analysis = analyse(passed.graph, readings, held)
        return _laid_out(analysis, readings, dict(passed.held.parameters))


def _laid_out(analysis: Analysis, readings: Readings, parameters: Mapping[str, Tensor]) -> Layout:
    found = []
    graph = analysis.graph
    sums = {link.merge.value for track in analysis.tracks for link in track.stream.links}
    for track in analysis.tracks:
        for link in track.stream.links:
            for branch in link.branches:
                inside = region(analysis.roles, branch.begin, branch.terms, sums, link.merge.value)
                order = sorted(inside)
                found.append(_residual(analysis, readings, track.stream.name, branch, order))
    within = {weight.path for branch in found for weight in branch.weights}
    every = _weights(analysis, sorted(graph.live))
    heads = tuple(weight for weight in every if weight.last and weight.path not in within)
    outside = [path for path, p in parameters.items() if p.dim() > 1 and path not in within]
    norms = dict.fromkeys(
        graph.path(i) for i in sorted(graph.live) if graph.values[i].kind == "norm"
    )
    return Layout(tuple(found), heads, tuple(outside), tuple(norms))


def _residual(
    analysis: Analysis, readings: Readings, stream: str, branch: Branch, order: Sequence[int]
) -> Residual:
    values = analysis.graph.values
    # Also those that a module spells out in several functions.
    bent = [values[i] for i in order if i in readings.activations]
    return Residual(
        stream,
        branch.path,
        branch.m,
        _weights(analysis, order),
        branch.norm_at,
        tuple(analysis.graph.path(value.index) for value in bent),
        sum(_activation_shifted(analysis, readings, value) for value in bent),
        sum(values[i].kind == "product" and _has_number(analysis, values[i]) for i in order),
    )


def _weights(analysis: Analysis, order: Sequence[int]) -> tuple[Weight, ...]:
    """The weights of a region; those of a layer that is several, as attention, in its order."""
    roles, values = analysis.roles, analysis.graph.values
    after: dict[int, int] = {}  # weight layers between a value and the region's end
    found: list[list[Weight]] = []
    for i in reversed(order):
        behind, layers = after.get(i, 0), roles.layers(i)
        held = _held(analysis, i) if layers else []
        found.append(
            [
                # Of attention in one function, the output's weight comes last.
                Weight(
                    path,
                    shape,
                    *_fans(values[i], place, shape),
                    behind == 0 and k == len(held) - 1,
                    _shifted(analysis, values[i]),
                )
                for k, (place, group) in enumerate(held)
                for path, shape in group
            ]
        )
        for j in roles.flow[i]:
            after[j] = max(after.get(j, 0), behind + layers)
    return tuple(dict.fromkeys(weight for part in reversed(found) for weight in part))


def _held(analysis: Analysis, i: int) -> list[tuple[int, list[tuple[str, tuple[int, ...]]]]]:
    """The matrices and kernels that value ``i`` is made with, by their place among its inputs;
    those together that one weight is computed of (a direction and its lengths)."""
    values = analysis.graph.values
    groups = []
    for place, j in enumerate(values[i].inputs):
        found: dict[str, tuple[int, ...]] = {}
        todo = [] if values[j].data else [j]
        while todo:
            value = values[todo.pop()]
            if value.kind == "parameter" and len(value.shape) > 1:
                found.setdefault(value.path, value.shape)
            todo += [k for k in reversed(value.inputs) if not values[k].data]
        if found:
            groups.append((place, list(found.items())))
    return groups


def _fans(value: Value, place: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """What enters and what leaves, by the function's layout of its weight."""
    kernel = prod(shape[2:])
    if value.name.startswith("conv_transpose"):
        return shape[0] * kernel, shape[1] * kernel
    if value.name.startswith("conv") or value.name in ("linear", "multi_head_attention_forward"):
        return shape[1] * kernel, shape[0] * kernel
    if value.name in ("matmul", "mm", "addmm", "bmm", "rmatmul") and len(shape) == 2:
        return shape if place else shape[::-1]
    return 0, 0


def _activation_shifted(analysis: Analysis, readings: Readings, value: Value) -> bool:
    if value.call not in readings.composites:
        return _shifted(analysis, value)
    values = analysis.graph.values
    own = [v for v in values if v.call == value.call]
    entering = {j for v in own for j in v.inputs if values[j].data and values[j].call != value.call}
    return any(values[j].kind == "sum" and _has_number(analysis, values[j]) for j in entering)


def _shifted(analysis: Analysis, value: Value) -> bool:
    """Whether a learned number was added to what enters."""
    values = analysis.graph.values
    entering = analysis.roles.moving(value.inputs)
    for _ in range(4):
        if not entering:
            return False
        value = values[entering[0]]
        if value.kind not in ("shape", "drop"):
            break
        entering = analysis.roles.moving(value.inputs)
    return value.kind == "sum" and _has_number(analysis, value)


def _has_number(analysis: Analysis, value: Value) -> bool:
    """Whether one of the inputs is a learned number."""
    values = analysis.graph.values
    inputs = [values[i] for i in value.inputs]
    number = any(v.kind == "parameter" and prod(v.shape) == 1 for v in inputs)
    return number and any(v.data for v in inputs)
