"""Tensors that a pass makes of parameters and numbers alone, computed again from the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from depthgauge.trace.graph import Graph, Ref

__all__ = ["constant"]


def constant(graph: Graph, i: int, held: Mapping[str, Tensor]) -> Tensor | None:
    """Value ``i``, such as ``1 + w``; ``held``: parameters and buffers by path. None where data
    enters it, or a function does not give the same shape again."""
    value = graph.values[i]
    if value.data:
        return None
    if value.path:
        return held.get(value.path)
    if i in graph.constants:
        number = graph.constants[i]
        return number if isinstance(number, Tensor) else torch.tensor(number)
    if value.function is None:
        return None

    def given(argument: Any) -> Any:
        if isinstance(argument, Ref):
            if (found := constant(graph, int(argument), held)) is None:
                raise ValueError(f"value {argument} is not known")
            return found.detach().clone()  # what is done in place is done to a copy
        return tuple(map(given, argument)) if isinstance(argument, tuple) else argument

    try:
        with torch.no_grad():
            options = {name: given(a) for name, a in value.options.items()}
            out = value.function(*map(given, value.args), **options)
            out = out[value.item] if value.item >= 0 else out
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None
    return out if isinstance(out, Tensor) and tuple(out.shape) == value.shape else None
