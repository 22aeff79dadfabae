"""Another pass of a module like one before, with states kept on autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from depthgauge.errors import NetworkError
from depthgauge.network.chain import Chain, Kept, twice_differentiable
from depthgauge.trace.alike import alike, counterparts, uncast
from depthgauge.trace.axes import Axes
from depthgauge.trace.batches import examples, tensors
from depthgauge.trace.forward import Forward, Refused, forward
from depthgauge.trace.graph import Graph
from depthgauge.trace.running import Pass
from depthgauge.trace.total import total_of
from depthgauge.trace.untouched import untouched

__all__ = ["StatesLostError", "chain", "kept"]


class StatesLostError(NetworkError):
    """The states of one pass are not found in another."""


@contextmanager
def chain(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    places: Sequence[int],
    before: Pass,
    seed: int = 0,
) -> Iterator[Chain]:
    """Another pass like ``before``, with the states at the values ``places`` kept on the graph;
    ``batch`` may have fewer examples.

    While the block lasts the graph is alive; the model is left as it was when it ends. A pass that
    calls other functions than ``before`` is taken twice, to find the states and to keep them, and
    so is one with states that a checkpoint makes. Raises StatesLostError where they are not found.
    """
    graph = before.graph
    wanted = [uncast(graph, i) for i in places]
    with ExitStack() as opened:
        again = opened.enter_context(_again(model, batch, before, wanted, graph))
        at: Sequence[int | None] = wanted
        same = alike(graph, again.graph, max(wanted, default=0))
        if not same:
            at, graph = counterparts(graph, again.graph, wanted), again.graph
        if not same or again.shut:
            opened.close()
            again = opened.enter_context(_again(model, batch, before, at, graph, _Opened()))
        count, axes = examples(batch, before.axis), Axes(before.graph, before.axis)
        states = []
        for i, j in zip(wanted, at, strict=True):
            edge, value = (None, None) if j is None else again.kept(graph.places[j])
            shape = before.graph.values[i].shape
            axis = axes.state(i, shape, axes.examples)
            expected = [count if k == axis else n for k, n in enumerate(shape)]
            if value is None or list(value.shape) != expected:
                raise StatesLostError(
                    "a second pass of the model does not compute what the first did, so its states "
                    "cannot be followed; make the forward pass depend on its batch and seed alone"
                )
            where = before.graph.path(i) or "the input"
            states.append(Kept(edge, value, axis, where))
        found, recorder = again.found, again.found.recorder

        def total() -> Tensor:
            outputs = list(tensors(found.output))
            return total_of(outputs, found.output, batch, loss, seed, recorder.graph, recorder)[0]

        yield Chain(states, total, [t.detach() for _, t in tensors(found.output)])


def kept(model: nn.Module, batch: Any, places: Sequence[int], before: Pass) -> dict[int, Tensor]:
    """The tensors of the values ``places`` in another pass like ``before``; of none where that
    calls other functions. The model is left as it was."""
    graph = before.graph
    with _again(model, batch, before, places, graph) as again:
        if not alike(graph, again.graph, max(places, default=0)):
            return {}
        found = {i: again.kept(graph.places[i])[1] for i in places}
        return {i: tensor for i, tensor in found.items() if tensor is not None}


class _Opened:
    """Where autograd made what a re-entrant checkpoint gives: known when that has ended."""

    def __init__(self) -> None:
        self.edges: dict[int, GradientEdge] = {}

    def opened(self, index: int, x: Tensor) -> None:
        self.edges[index] = get_gradient_edge(x)

    def _nothing(self, *seen: Any) -> None:
        """Numbers are not asked for."""

    begin = given = adding = made = added = activating = activated = _nothing
    weighing = entering = returned = emerged = left = _nothing


@dataclass
class _Again:
    """A pass taken again: what came out of it, the edges that checkpoints opened."""

    found: Forward
    opened: dict[int, GradientEdge]

    @property
    def graph(self) -> Graph:
        return self.found.recorder.graph

    @property
    def shut(self) -> bool:
        """Whether a state that was kept has no edge."""
        return any(edge is None for edge, _ in self.found.recorder.kept.values())

    def kept(self, place: int) -> tuple[GradientEdge | None, Tensor | None]:
        edge, value = self.found.recorder.kept.get(place, (None, None))
        return edge or self.opened.get(place), value


@contextmanager
def _again(
    model: nn.Module,
    batch: Any,
    before: Pass,
    wanted: Sequence[int | None],
    graph: Graph,
    watcher: _Opened | None = None,
) -> Iterator[_Again]:
    """One more forward pass; ``wanted``: values of ``graph`` whose tensors are kept."""
    keep = [graph.places[i] for i in wanted if i is not None]
    with (
        untouched(before.held) as saved,
        torch.inference_mode(False),
        torch.enable_grad(),
        twice_differentiable(),
    ):
        try:
            found = forward(model, before.held, batch, watcher, saved, before.lifted, keep)
        except Refused as refused:
            raise refused.error from refused.error.__cause__
        if watcher is None:
            yield _Again(found, {})
            return
        for _, tensor in tensors(found.output):
            found.recorder.find(tensor)
        where = found.recorder.graph.places
        yield _Again(found, {where[i]: edge for i, edge in watcher.edges.items()})
