"""Weights that a model computes of its parameters at each pass, in its own code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from torch import Tensor, nn

from depthgauge.trace.again import kept
from depthgauge.trace.analysis import Analysis
from depthgauge.trace.row import held_by
from depthgauge.trace.running import Pass

__all__ = ["Computed", "computed"]

#: Kinds of values that are the parameter itself, moved about.
_MOVED: Final = ("parameter", "shape", "cut")
#: In the names of functions that a statistic of a matrix is taken by.
_STATISTIC: Final = re.compile("norm|svd|eig")
_PARAMETRISED: Final = ".parametrizations."


@dataclass(frozen=True)
class Computed:
    """The weight that a layer was given in place of a parameter, of that parameter's shape;
    ``numbers``: the single learned numbers that it was computed with; ``reduced``: whether a
    statistic of the parameters takes part, so that the law is kept after a step."""

    weight: Tensor
    numbers: tuple[str, ...]
    reduced: bool


def computed(model: nn.Module, batch: Any, passed: Pass, analysis: Analysis) -> dict[str, Computed]:
    """By the path of the parameter, each weight that one more pass shows; nothing where that does
    not compute what the first did. What PyTorch's parametrisations compute is left to them."""
    places = _places(analysis)
    if not places:
        return {}
    seen = kept(model, batch, sorted({i for i, _ in places.values()}), passed)
    return {
        path: Computed(seen[i], numbers, reduced)
        for path, (i, (numbers, reduced)) in places.items()
        if i in seen
    }


def _places(analysis: Analysis) -> Mapping[str, tuple[int, tuple[tuple[str, ...], bool]]]:
    """By parameter the value that is computed of it where a layer first takes that."""
    values = analysis.graph.values
    found: dict[str, tuple[int, tuple[tuple[str, ...], bool]]] = {}
    for i in sorted(i for i in analysis.graph.live if analysis.roles.layers(i)):
        for place, group in held_by(analysis, i):
            j = values[i].inputs[place]
            while values[j].kind == "shape" and len(values[j].inputs) == 1:
                shaped = [path for path, shape in group if shape == values[j].shape]
                below = values[values[j].inputs[0]]
                if shaped and below.kind not in _MOVED and below.shape != values[j].shape:
                    break  # a view brings what was computed to the parameter's shape
                j = below.index
            names = [path for path, shape in group if shape == values[j].shape]
            if values[j].kind in ("parameter", "cut") or not names or _PARAMETRISED in names[0]:
                continue
            found.setdefault(names[0], (j, _made_of(analysis, j)))
    return found


def _made_of(analysis: Analysis, i: int) -> tuple[tuple[str, ...], bool]:
    values, todo, seen = analysis.graph.values, [i], set[int]()
    while todo:
        if (at := todo.pop()) not in seen:
            seen.add(at)
            todo += values[at].inputs
    made = [values[k] for k in sorted(seen)]
    numbers = [v.path for v in made if v.kind == "parameter" and prod(v.shape) == 1]
    reduced = any(v.kind in ("reduce", "norm") or _STATISTIC.search(v.name) for v in made)
    return tuple(dict.fromkeys(numbers)), reduced
