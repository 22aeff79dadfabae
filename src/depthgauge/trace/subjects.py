"""The streams of a module as subjects of instruments that run it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
        picked=_apart(given.batch),
        directions=given.directions,
        labels=given.labels,
        cotangent=passed.cotangent,
    )


def _apart(batch: Any) -> Callable[[Sequence[int]], Any] | None:
    """What picks examples out of a batch, all of whose tensors have an entry for each."""
    count = examples(batch)
    if any(not x.dim() or len(x) != count for _, x in tensors(batch)):
        return None
    return lambda places: mapped(batch, lambda x: x[list(places)])


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
