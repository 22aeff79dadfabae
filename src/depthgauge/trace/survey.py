"""Autograd's graph looked through before a backward pass: how far it has to go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from depthgauge.trace.readings import Edge

__all__ = ["Below", "survey"]


@dataclass
class Below:
    """Autograd's graph below a number: the ids of its leaves, of the states that were read those
    with none below them, and whether functions of the user's own stand in it."""

    leaves: set[int]
    first: list[GradientEdge | Tensor]
    own: bool


def survey(total: Tensor, read: Iterable[Edge]) -> Below:
    """What a backward pass will meet; ``read`` are the states whose gradients are wanted.

    The gradient at the first of them needs that of all others, and of no weight: a backward pass
    to there costs about half of one that a step needs.
    """
    at: dict[Any, list[Edge]] = {}
    for edge in read:
        node, x = edge
        at.setdefault(id(x) if node is None else node, []).append(edge)
    leaves: set[int] = set()
    first: list[Edge] = []
    met: dict[Any, bool] = {}  # whether a state that was read stands at a node or below it
    below: dict[Any, list[Any]] = {}
    todo: list[Any] = [total.grad_fn]
    while todo:
        node = todo[-1]
        if (inputs := below.get(node)) is None:
            inputs = below[node] = []
            fresh = len(todo)
            for n, _ in node.next_functions:
                if n is not None:
                    inputs.append(n)
                    if n not in below:
                        todo.append(n)
            if len(todo) > fresh:
                continue
        todo.pop()
        if node in met:
            continue
        found = False
        for n in inputs:
            if met[n]:
                found = True
                break
        states = at.get(node)
        if not inputs and (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
            states = at.get(id(leaf), states)
        if states and not found:
            first += states
            found = True
        met[node] = found
    own = any(issubclass(kind, BackwardCFunction) for kind in set(map(type, below)))
    return Below(leaves, [_gradient_at(*edge) for edge in first], own)


def _gradient_at(node: Node | None, x: int | Tensor) -> GradientEdge | Tensor:
    if isinstance(x, Tensor):
        return x
    assert node is not None
    return GradientEdge(node, x)
