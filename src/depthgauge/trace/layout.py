"""What a recipe counts, found on the model in one pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from depthgauge.trace.admission import unwrapped
from depthgauge.trace.analysis import Analysis, Step, Track, analyse
from depthgauge.trace.bends import bends_of
from depthgauge.trace.computed import computed
from depthgauge.trace.counted import End, Layout, Weight
from depthgauge.trace.forms import Form, read_form, seen_form
from depthgauge.trace.forward import quiet
from depthgauge.trace.graph import Graph, Value
from depthgauge.trace.heads import averaged, before_scores, projections
from depthgauge.trace.links import Link
from depthgauge.trace.logits import outlet
from depthgauge.trace.nesting import region
from depthgauge.trace.normed import normed
from depthgauge.trace.readings import Readings
from depthgauge.trace.roles import TURNS
from depthgauge.trace.row import Row, held_by
from depthgauge.trace.running import run

__all__ = ["layout", "rows_of"]


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
        found = _laid_out(analysis, readings, dict(passed.held.parameters))
        return replace(found, computed=computed(model, batch, passed, analysis))


def _laid_out(analysis: Analysis, readings: Readings, parameters: Mapping[str, Tensor]) -> Layout:
    graph, roles = analysis.graph, analysis.roles
    parts, tables, scored = projections(roles), _tables(graph), before_scores(roles)
    sums = {link.merge.value for track in analysis.tracks for link in track.stream.links}
    found = []
    for track in analysis.tracks:
        on_stream = _activations_on_stream(analysis, readings, track.stream.links)
        blocks = [block for block in track.repeated if any(step.link for step in block)]
        longest = max((sum(step.link is not None for step in block) for block in blocks), default=0)
        places = {
            step.link.merge.value: (place, step)
            for place, block in enumerate(blocks, 1)
            for step in block
            if step.link
        }
        numbered = track.places
        single = len(numbered) == max(numbered, default=0) if numbered else _apart(graph, track)
        if single and longest > 1:
            # Modules of one sum each that repeat by twos or more: attention and the feed-forward
            # part behind it are one block, a transition and what follows it are several.
            alike = all(len(_kinds(analysis, block, sums)) == 1 for block in blocks)
            numbered = list(range(1, len(track.stream.links) + 1)) if alike else []
        for k, link in enumerate(track.stream.links):
            place, step = places[link.merge.value]
            place = numbered[k] if numbered else place
            read = read_form(step, len(link.branches))
            for branch, form in zip(link.branches, read, strict=True):
                inside = region(roles, branch.begin, branch.terms, sums, link.merge.value)
                row = Row(analysis, readings, parts, sorted(inside), tables, scored)
                if math.isnan(form.factor) or math.isnan(form.skip):
                    form = seen_form(analysis, parameters, link, branch, form)
                made = row.residual(track.stream.name, place, branch, link, form, on_stream)
                found.append(replace(made, place=k))
    within = {weight.path for branch in found for weight in branch.weights}
    every = Row(analysis, readings, parts, sorted(graph.live), tables, scored).weights()
    heads = tuple(weight for weight in every if weight.last and weight.path not in within)
    seen: dict[str, list[Weight]] = {}
    for weight in every:
        seen.setdefault(weight.path, []).append(weight)
    lengths = {weight.lengths for weight in every}
    outside = tuple(
        weight
        for path, p in parameters.items()
        if p.dim() > 1 and path not in within | lengths
        for weight in seen.get(path, [Weight(path, tuple(p.shape), 0, 0, False, False)])
    )
    weights = [w for branch in found for w in branch.weights] + list(outside)
    biases = tuple(dict.fromkeys(weight.bias for weight in weights if weight.bias))
    # One of a weight alone is no norm of the network.
    moving = [i for i in sorted(graph.live) if graph.values[i].data]
    norms = [i for i in moving if graph.values[i].kind == "norm"]
    norms += [i for i in moving if i not in norms and roles.norm_of(i) is not None]
    idle = [v.index for v in graph.values if v.kind == "norm" and v.data]
    idle = [i for i in idle if i not in graph.live]
    ends = [track.stream.links[-1].merge.value for track in analysis.tracks if track.stream.links]
    after = [i for i in norms if any(end in graph.ancestors([i], end) for end in ends)]
    return Layout(
        tuple(found),
        heads,
        outside,
        tuple(dict.fromkeys(graph.path(i) for i in sorted(norms))),
        tuple(dict.fromkeys(graph.path(i) for i in after)),
        tuple(path for path, p in parameters.items() if p.numel() == 1),
        biases=tuple(
            Weight(path, tuple(parameters[path].shape), 0, 0, False, False) for path in biases
        ),
        activations=tuple(dict.fromkeys(bent.kind for bent in readings.activations.values())),
        idle=tuple(dict.fromkeys(graph.path(i) for i in idle)),
        every=tuple(normed(analysis, i, "", Form()) for i in sorted(norms)),
        ends=tuple(_end(analysis, track, sums) for track in analysis.tracks if track.stream.links),
        tables=tables,
        uncounted=tuple(dict.fromkeys(w.path for w in every if not w.fan_in and not w.looked_up)),
        parameters=tuple(parameters),
        outlets=tuple(_outlet(analysis, weight) for weight in heads),
        bends=bends_of(analysis, readings),
        averaged=averaged(roles),
        second=analysis.second,
        runs=Counter(call.path for call in graph.calls),
        begun={t.stream.name: _tables(graph, t.states[0]) for t in analysis.tracks},
        lookups=tuple(dict.fromkeys(graph.path(v.index) for v in _lookups(graph))),
        read={t.stream.name: _tables(graph, t.states[0], True) for t in analysis.tracks},
    )


def _activations_on_stream(
    analysis: Analysis, readings: Readings, links: Sequence[Link]
) -> set[int]:
    """The activations that the stream itself passes behind a sum, though the next branch and the
    projection beside it begin in front of them.

    Those that identity skips take on tell: all of them are activated, or none. Where they do not,
    an activation is the stream's if the module that makes the sum calls it too.
    """
    graph, told = analysis.graph, set[bool]()
    found: dict[int, tuple[int, int]] = {}  # by activation the sums that it stands between
    for before, link in pairwise(links):
        end = before.merge.value
        bent = graph.ancestors([link.merge.root], end) & readings.activations.keys() - {end}
        if link.merge.kind == "projected":
            found |= dict.fromkeys(bent, (end, link.merge.value))
        elif not link.broken:
            told.add(bool(bent))
    if len(told) == 1:
        return set(found) if told.pop() else set()
    return {i for i, (a, b) in found.items() if _calls(graph, a, i) and not _calls(graph, b, i)}


def _calls(graph: Graph, made: int, i: int) -> bool:
    """Whether value ``i`` is made in the call that makes value ``made``, or in one inside it."""
    return graph.around(made, i) == graph.values[made].call


def _outlet(analysis: Analysis, head: Weight) -> float:
    """The fixed number around the last layer that multiplies by this weight."""
    at = [
        i
        for i in sorted(analysis.graph.live)
        if analysis.roles.layers(i)
        and any(head.path == path for _, row in held_by(analysis, i) for path, _ in row)
    ]
    return outlet(analysis.roles, at[-1]) if at else math.nan


def _apart(graph: Graph, track: Track) -> bool:
    """Whether each sum is made by a module of its own, together with the layers of its branches."""
    paths = [graph.path(link.merge.value) for link in track.stream.links]
    inside = all(
        f"{branch.path}.".startswith(f"{path}.")
        for path, link in zip(paths, track.stream.links, strict=True)
        for branch in link.branches
    )
    return inside and len(set(paths)) == len(paths)


def _kinds(analysis: Analysis, block: Sequence[Step], sums: set[int]) -> set[frozenset[str]]:
    """For each sum of a block what its branches weigh and mix with: the functions, whatever their
    sizes and strides, and those that turn the axes, each once."""
    roles, values, found = analysis.roles, analysis.graph.values, set[frozenset[str]]()
    for link in (step.link for step in block if step.link):
        inside: set[int] = set()
        for branch in link.branches:
            inside |= region(roles, branch.begin, branch.terms, sums, link.merge.value)
        kinds = (i for i in inside if roles.moves(i) or values[i].name in TURNS)
        found.add(frozenset(values[i].name for i in kinds))
    return found


def _lookups(graph: Graph, end: int | None = None) -> list[Value]:
    """The look-ups of embeddings; of one value those that it was made of."""
    seen = sorted(graph.live if end is None else graph.ancestors([end]))
    return [graph.values[i] for i in seen if _looks_up(graph, graph.values[i])]


def _looks_up(graph: Graph, value: Value) -> bool:
    """Whether it is rows of a table: an embedding's, or a matrix indexed by the batch."""
    if value.name == "embedding":
        return True
    if value.name not in ("getitem", "index_select") or len(value.inputs) != 2:
        return False
    table, places = (graph.values[j] for j in value.inputs)
    return (
        table.kind == "parameter"
        and len(table.shape) == 2
        and value.shape[-1:] == table.shape[-1:]
        and places.data
        and not places.floating
    )


def _tables(graph: Graph, end: int | None = None, batch: bool = False) -> tuple[str, ...]:
    """The tables that embeddings look up; of one value those that it was made of, of those only
    the ones that what depends on the ``batch`` is looked up in."""
    found = []
    for value in _lookups(graph, end):
        inputs = [graph.values[j] for j in value.inputs]
        tables = [v.path for v in inputs if v.kind == "parameter"]
        found += tables if not batch or any(v.data for v in inputs) else []
    return tuple(dict.fromkeys(found))


def rows_of(model: nn.Module, batch: Any) -> tuple[float, ...]:
    """For each residual branch, in the layout's order, the largest norm of a row (a token's vector)
    of the stream in front of it, in evaluation mode; NaN where that was not seen.

    Raises what ``layout`` does.
    """
    model, _ = unwrapped(model)
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with quiet():
            readings = Readings(("row",), (), (), False)
            passed = run(model, batch, None, readings)
            held = dict([*passed.held.parameters, *passed.held.buffers])
            tracks = analyse(passed.graph, readings, held).tracks
    finally:
        for module, mode in modes.items():
            module.training = mode
    found = []
    for link in (link for track in tracks for link in track.stream.links):
        row = readings.states.get(readings.place(link.before), (math.nan,))
        found += [float(row[0])] * len(link.branches)
    return tuple(found)


def _end(analysis: Analysis, track: Track, sums: set[int]) -> End:
    graph, roles = analysis.graph, analysis.roles
    todo = [track.stream.links[-1].after]
    seen, norms, readers = set(todo), [], []
    while todo:
        for i in graph.consumers[todo.pop()]:
            if roles.layers(i):
                readers.append(graph.path(i))
            elif i not in seen and i not in sums:
                seen.add(i)
                todo.append(i)
                norms += [i] if roles.norm_of(i) is not None else []
    own = tuple(normed(analysis, i, "", Form()) for i in sorted(norms))
    returned = not seen.isdisjoint(graph.outputs)
    return End(track.stream.name, own, tuple(dict.fromkeys(readers)), returned)
