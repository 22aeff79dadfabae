"""Backward passes that leave nothing behind: no ``.grad``, through re-entrant checkpoints too.

What a backward pass computes anew (a checkpoint) has to be computed in the arithmetic of the
forward pass: function modes that are active around ``gradients`` stay active in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.overrides import has_torch_function

__all__ = ["checkpointed", "dense", "gradients", "within_modes"]


def gradients(
    total: Tensor, wanted: Sequence[Tensor | GradientEdge], *, keep: bool = False
) -> list[Tensor | None]:
    """Gradients of the number ``total`` at leaves and at edges of its graph; None: none came.
    ``keep``: the graph for another pass, unless a re-entrant checkpoint stands in it."""
    reached, reentrant = _leaves(total)
    if reentrant:
        return _through_grad(total, wanted, reached)
    if has_torch_function((total,)):
        return list(within_modes([total], [torch.ones_like(total)], wanted, keep=keep))
    return list(
        torch.autograd.grad(total, wanted, retain_graph=keep, allow_unused=True)  # type: ignore[arg-type]
    )


def within_modes(
    outputs: Sequence[Any],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor | GradientEdge] = (),
    *,
    keep: bool = False,
    twice: bool = False,
) -> Sequence[Tensor | None]:
    """``torch.autograd.grad``, or without ``inputs`` ``torch.autograd.backward``, inside the
    function modes that are active.

    Those two are functions that a mode is asked about, and it is no longer active while it answers;
    what a checkpoint computes anew would not be seen by it.
    """
    found: Sequence[Tensor | None] = _engine_run_backward(
        tuple(outputs), tuple(cotangents), keep, twice, tuple(inputs), True,
        accumulate_grad=not inputs,
    )  # fmt: skip
    return found


def checkpointed(total: Tensor) -> bool:
    """Whether a re-entrant checkpoint stands in the graph of ``total``."""
    return _leaves(total)[1]


def dense(g: Tensor) -> Tensor:
    """A gradient as an ordinary tensor; that of a sparse embedding holds the rows looked up."""
    return g.to_dense() if g.layout != torch.strided else g


def _through_grad(
    total: Tensor, wanted: Sequence[Tensor | GradientEdge], reached: list[Tensor]
) -> list[Tensor | None]:
    """A re-entrant checkpoint runs a backward pass of its own, which needs ``.grad``: that of every
    leaf is put back afterwards, and hooks that act on it (an optimiser in the pass) do not fire."""
    leaves = [w for w in wanted if isinstance(w, Tensor)]
    every = list({id(leaf): leaf for leaf in (*leaves, *reached)}.values())
    held = [(leaf, leaf.grad) for leaf in every]
    tables = [t for leaf in every if (t := leaf._post_accumulate_grad_hooks)]
    hooks = [(table, dict(table)) for table in tables]
    try:
        for leaf in every:
            leaf.grad = None
        for table in tables:
            table.clear()
        edges = [w for w in wanted if isinstance(w, GradientEdge)]
        with _caught(edges) as caught:
            within_modes([total], [torch.ones_like(total)])
        return [w.grad if isinstance(w, Tensor) else caught.get(w) for w in wanted]
    finally:
        for leaf, grad in held:
            leaf.grad = grad
        for table, content in hooks:
            table.update(content)


@contextmanager
def _caught(edges: Sequence[GradientEdge]) -> Iterator[dict[GradientEdge, Tensor | None]]:
    """What arrives at edges in the backward pass that runs in the block."""
    found: dict[GradientEdge, Tensor | None] = {}

    def reads(edge: GradientEdge) -> Callable[[Sequence[Tensor | None]], None]:
        def read(given: Sequence[Tensor | None]) -> None:
            found[edge] = given[edge.output_nr]

        return read

    handles = [edge.node.register_prehook(reads(edge)) for edge in edges]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _leaves(total: Tensor) -> tuple[list[Tensor], bool]:
    """The leaves of a graph, and whether there is a re-entrant checkpoint in it."""
    seen, todo = set(), [total.grad_fn]
    leaves: list[Tensor] = []
    reentrant = False
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            reentrant = reentrant or type(node).__name__ == "CheckpointFunctionBackward"
            if (leaf := getattr(node, "variable", None)) is not None:
                leaves.append(leaf)
            todo += [n for n, _ in node.next_functions]
    return leaves, reentrant
