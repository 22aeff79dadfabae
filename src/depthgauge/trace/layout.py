"""What a recipe counts, found on the model: residual branches, the weight layers in each.

A recipe's numbers depend on L and m, and a wrong count goes unseen: here both come from the pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from depthgauge.trace.analysis import Analysis, analyse
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import quiet, run, unwrapped
from depthgauge.trace.streams import Branch, region

__all__ = ["Layout", "Residual", "Weight", "layout"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path; ``last``: no weight layer stands between it and the sum."""

    path: str
    shape: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class Residual:
    """One residual branch: ``m`` weight layers in series (attention has four), and its weights in
    forward order."""

    stream: str
    path: str
    m: int
    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Layout:
    """The residual branches of all streams, and the paths of the weights that are in none: stems,
    shortcuts, heads."""

    branches: tuple[Residual, ...]
    outside: tuple[str, ...]

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
        return _laid_out(analyse(passed.graph, readings, held), dict(passed.held.parameters))


def _laid_out(analysis: Analysis, parameters: Mapping[str, Tensor]) -> Layout:
    found = []
    sums = {link.merge.value for track in analysis.tracks for link in track.stream.links}
    for track in analysis.tracks:
        for link in track.stream.links:
            for branch in link.branches:
                weights = _weights(analysis, branch, sums, link.merge.value)
                found.append(Residual(track.stream.name, branch.path, branch.m, weights))
    inside = {weight.path for branch in found for weight in branch.weights}
    outside = [path for path, p in parameters.items() if p.dim() > 1 and path not in inside]
    return Layout(tuple(found), tuple(outside))


def _weights(analysis: Analysis, branch: Branch, sums: set[int], own: int) -> tuple[Weight, ...]:
    """The weights of a branch; those of a layer that is several, as attention, in its order."""
    roles = analysis.roles
    order = sorted(region(roles, branch.begin, branch.terms, sums, own))
    after: dict[int, int] = {}  # weight layers between a value and what is added
    found: list[list[Weight]] = []
    for i in reversed(order):
        behind, layers = after.get(i, 0), roles.layers(i)
        held = _held(analysis, i) if layers else []
        # Of attention in one function, the output's weight comes last.
        ends = [behind == 0 and k == len(held) - 1 for k in range(len(held))]
        found.append(
            [Weight(*w, last) for group, last in zip(held, ends, strict=True) for w in group]
        )
        for j in roles.flow[i]:
            after[j] = max(after.get(j, 0), behind + layers)
    return tuple(dict.fromkeys(weight for part in reversed(found) for weight in part))


def _held(analysis: Analysis, i: int) -> list[list[tuple[str, tuple[int, ...]]]]:
    """The matrices and kernels that value ``i`` is made with, those together that one weight is
    computed of (a direction and its lengths)."""
    values = analysis.graph.values
    groups = []
    for j in values[i].inputs:
        found: dict[str, tuple[int, ...]] = {}
        todo = [] if values[j].data else [j]
        while todo:
            value = values[todo.pop()]
            if value.kind == "parameter" and len(value.shape) > 1:
                found.setdefault(value.path, value.shape)
            todo += [k for k in reversed(value.inputs) if not values[k].data]
        if found:
            groups.append(list(found.items()))
    return groups
