"""The streams of a module as subjects of instruments that run it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.instruments.subject import Branch, Subject
from depthgauge.network.chain import Chain
from depthgauge.trace.again import chain
from depthgauge.trace.analysis import Analysis, Track
from depthgauge.trace.batches import examples, mapped, tensors
from depthgauge.trace.graph import Graph
from depthgauge.trace.inventory import inventory
from depthgauge.trace.running import Pass

__all__ = ["Given", "subjects"]


@dataclass(frozen=True)
class Given:
    """What the user gave for one module."""

    model: nn.Module
    batch: Any
    loss: Callable[..., Any] | None
    seed: int
    directions: Tensor | None = None
    labels: Tensor | None = None
    axis: int | None = None  # of the batch, along which it counts examples


def subjects(
    given: Given, passed: Pass, analysis: Analysis, rows: Mapping[tuple[str, int, int], int]
) -> list[Subject] | str:
    """One for each stream of more than one state, or why there is none.

    ``rows``: the profile's row of ``("state", track, value)`` and ``("branch", track, last term)``.
    """
    if passed.no_backward:
        return passed.no_backward
    found = [
        _subject(given, passed, analysis.graph, t, track, rows)
        for t, track in enumerate(analysis.tracks)
        if len(track.states) > 1
    ]
    return found or "there is one state only, and nothing between it and another"


def _subject(
    given: Given,
    passed: Pass,
    graph: Graph,
    t: int,
    track: Track,
    rows: Mapping[tuple[str, int, int], int],
) -> Subject:
    places = track.states

    @contextmanager
    def run(model: nn.Module | None = None, batch: Any = None) -> Iterator[Chain]:
        before = passed if model is None else dataclasses.replace(passed, held=inventory(model))
        ran = given.model if model is None else model
        data = given.batch if batch is None else batch
        with chain(ran, data, given.loss, places, before, given.seed) as states:
            yield states

    return Subject(
        given.model,
        given.batch,
        given.loss,
        [rows.get(("state", t, i), -1) for i in places],
        lambda model=None, batch=None: run(model, batch),
        [graph.path(i) or "input" for i in places],
        _branches(graph, t, track, rows),
        picked=_apart(given.batch, passed.axis),
        directions=given.directions,
        labels=_as_examples(given.labels, given.batch, passed.axis),
        cotangent=passed.cotangent,
        seconds=passed.theirs,
    )


def _as_examples(labels: Tensor | None, batch: Any, axis: int) -> Tensor | None:
    """Labels as ``(B,)`` or ``(B, T)``: those of positions that are a part of the batch lie as it
    does."""
    own = axis == 1 and labels is not None and any(labels is x for _, x in tensors(batch))
    return labels.T if own and labels is not None and labels.dim() == 2 else labels


def _apart(batch: Any, axis: int) -> Callable[[Sequence[int]], Any] | None:
    """What picks examples out of a batch, all of whose tensors have an entry for each along this
    axis."""
    count = examples(batch, axis)
    if any(x.dim() <= axis or x.shape[axis] != count for _, x in tensors(batch)):
        return None
    if not axis:
        return lambda places: mapped(batch, lambda x: x[list(places)])
    return lambda places: mapped(
        batch, lambda x: x.index_select(axis, torch.tensor(list(places), device=x.device))
    )


def _branches(
    graph: Graph, t: int, track: Track, rows: Mapping[tuple[str, int, int], int]
) -> list[Branch]:
    """The residual branches with the parameters that each one uses."""
    found = []
    for step in track.steps:
        for branch in step.link.branches if step.link else ():
            inside = graph.ancestors(branch.terms, step.before + 1)
            used = {j for i in inside for j in graph.values[i].inputs}
            names = {graph.values[j].path for j in used if graph.values[j].kind == "parameter"}
            row = rows.get(("branch", t, max(branch.terms)))
            makes = track.states.index(step.after) if step.after in track.states else None
            found.append(Branch(row, branch.path, tuple(sorted(names)), makes))
    return found
