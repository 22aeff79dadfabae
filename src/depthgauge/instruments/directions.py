"""Directions: how much of a state lies along one direction that matters.

Index legend: ``n`` the state's width, ``...`` whatever stands in front (states, examples, tokens).

    component   c = <h, d> / |d|

A norm adds the squares of all directions, so a rotation that carries the answer into another
direction leaves it as it was. The component keeps its sign: examples that point opposite ways
cancel in a mean over it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthgauge.errors import NetworkError
from depthgauge.instruments.rivers import wide


def component(states: Tensor, direction: Tensor) -> Tensor:
    """The component of each state along a direction: ``(..., n)`` and ``(n,) -> (...)``.

    Only the direction's direction counts, not its length. In float32 or wider; inf and NaN of a
    state are kept. Raises NetworkError for a direction of another width, or of no direction.
    """
    if direction.dim() != 1 or states.shape[-1:] != direction.shape:
        raise NetworkError(
            f"direction has the shape {tuple(direction.shape)}, expected ({states.shape[-1]},), "
            f"the width of the states"
        )
    states = wide(states.detach())
    along = direction.detach().to(states)
    length = torch.linalg.vector_norm(along)
    if not 0 < float(length) < float("inf"):
        raise NetworkError(
            f"direction has the length {float(length):g}, so it points nowhere; give a vector of "
            f"finite numbers that are not all zero"
        )
    found: Tensor = states @ (along / length)
    return found
