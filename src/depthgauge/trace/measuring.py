"""``measure`` for any ``nn.Module``: one recorded pass as a Profile.

Sites stand in the streams' order: each stream's first tensor, then for every step the branches
that are added, the activations, and the state after it. Steps that repeat are one block, as in the
equation; a second stream's blocks follow those of the first.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge._version import __version__
from depthgauge.arguments import PARTS, aims_of, alone, chosen, dtype_name, effort_of, seeds_of
from depthgauge.causes import blind, causes, waking
from depthgauge.errors import SpecificationError, expect
from depthgauge.instruments.correlation import same
from depthgauge.instruments.subject import Effort, Subject
from depthgauge.network.spec import whole_number
from depthgauge.probing import deepened
from depthgauge.profile import Profile
from depthgauge.sites import ALIKE, QUANTITIES, Column, Site
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.analysis import Analysis, Step, Track, analyse
from depthgauge.trace.batches import examples, tensors
from depthgauge.trace.forward import quiet
from depthgauge.trace.graph import numberless
from depthgauge.trace.inventory import COMPILED, Inventory
from depthgauge.trace.links import Branch, Link
from depthgauge.trace.merges import chain
from depthgauge.trace.readings import Readings, activation_path
from depthgauge.trace.running import Pass, run
from depthgauge.trace.subjects import Given, subjects

__all__ = ["followed", "measure_module"]

#: Of a model without a merge; ``x + tanh(x)`` is none.
_NO_BRANCH: Final = "no sum was found that adds to a stream what a weight layer makes of it"

#: Of what the graph shows and no number was read of.
_NO_STATE: Final = (
    "this state is known from the graph alone: neither its value nor its gradient was read"
)
_NO_SUM: Final = "what is added here is known from the graph alone: it was not read"


def measure_module(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    *,
    seed: int | Iterable[int] = 0,
    instruments: str | Iterable[str] = "fast",
    directions: Tensor | None = None,
    labels: Tensor | None = None,
    effort: Effort | None = None,
    include: str | None = None,
    exclude: str | None = None,
    batch_axis: int | None = None,
    name: str = "",
) -> Profile:
    """Both rivers of a module, and what heavier instruments find in it; arguments as in
    ``depthgauge.measure``."""
    seeds, seed_axis = seeds_of(seed)
    if seed_axis:
        raise SpecificationError(
            "seed names several seeds, but a module's weights are what they are; give one, which "
            "draws the cotangent"
        )
    wanted = _patterns(include, exclude)
    quantities = chosen(instruments, directions, labels)
    effort, aims = effort_of(effort), aims_of(directions, labels)
    statistics = {
        part: [PARTS[q][1] for q in quantities if PARTS[q][0] == part]
        for part in ("state", "gradient", "gate", "branch")
    }
    model, notes = unwrapped(model)
    branches = any("branch" in QUANTITIES[q].roles for q in quantities)
    readings = Readings(statistics["state"], statistics["gradient"], statistics["gate"], branches)
    given = Given(model, batch, loss, seeds[0], *aims, axis=_axis_of(batch, batch_axis))

    def found() -> Profile:
        traced = _measured(given, readings, quantities, wanted, notes, name)
        groups = (subjects(given, traced.passed, traced.analysis, traced.rows) for _ in seeds)
        why = "the model has no parameters"
        without = {} if traced.passed.held.parameters else {"stiffness": why, "updates": why}
        return deepened(traced.profile, groups, quantities, effort, without)

    with quiet():
        return found()  # the graph is gone before there is a collection that would look through it


def followed(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None = None, seed: int = 0
) -> list[Subject] | str:
    """The streams of a module as instruments take them that run it again, or why there is none."""
    model, notes = unwrapped(model)
    with quiet():
        readings = Readings([], [], [], False)
        given = Given(model, batch, loss, seed)
        found = _measured(given, readings, (), lambda path: True, notes, "")
        return subjects(given, found.passed, found.analysis, found.rows)


@dataclass(frozen=True)
class _Traced:
    """What one pass gave; ``rows``: the profile's row of each state and branch of a stream."""

    profile: Profile
    passed: Pass
    analysis: Analysis
    rows: dict[tuple[str, int, int], int]


def _measured(
    given: Given,
    readings: Readings,
    quantities: tuple[str, ...],
    wanted: Callable[[str], bool],
    notes: list[str],
    name: str,
) -> _Traced:
    start = perf_counter()
    model, batch = given.model, given.batch
    passed = run(model, batch, given.loss, readings, given.seed, given.axis)
    count = examples(batch, passed.axis)
    held = passed.held
    analysis = analyse(passed.graph, readings, dict([*held.parameters, *held.buffers]))
    graph = passed.graph
    every = _rows(analysis, readings, passed)
    rows = [row for row in every if wanted(row.path)]
    filtered = len(rows) < len(every)
    columns = _columns(rows, readings, quantities)
    shapes = (graph.values[i].shape for t in analysis.tracks for i in t.states)
    positions = (max(a * b // max(count, 1), 1) for a, b, _ in (s for s in shapes if len(s) == 3))
    solitary = alone(count, max(positions, default=0))
    for q in solitary:
        columns.pop(q, None)
    not_measured = {
        q: "not among the instruments asked for" for q in QUANTITIES if q not in quantities
    }
    for q in quantities:
        if q not in columns:
            why = _why_missing(q, passed, rows, filtered, analysis)
            not_measured[q] = why if filtered and not rows else solitary.get(q, why)
    first = graph.values[analysis.tracks[0].steps[0].before if analysis.tracks[0].steps else 0]
    profile = Profile(
        target=name or type(model).__name__,
        equation=_equation(analysis),
        depth=every[-1].block if every else 0,
        width=_width(analysis, first.shape),
        branches=sum(len(track.stream.branches) for track in analysis.tracks),
        streams=tuple(_document(analysis, track) for track in analysis.tracks),
        dtype=_dtype(held, batch),
        batch=count,
        seeds=(given.seed,),
        seed_axis=False,
        sites=tuple([Site(i, row.block, row.path, row.role) for i, row in enumerate(rows)]),
        columns=columns,
        settings={
            "mode": "train" if model.training else "eval",
            "parameters": sum(p.numel() for _, p in held.parameters),
            "input": {path or "input": list(t.shape) for path, t in tensors(batch)},
            **({"examples": ALIKE} if _alike(batch, passed.axis) else {}),
            **({"batch_axis": passed.axis} if passed.axis else {}),
            **({"batch_axis_reason": passed.axis_reason} if passed.axis_reason else {}),
            "cotangent": passed.cotangent,
            "device": _device(held),
            "notes": [*notes, *passed.notes, *_unsaid(analysis)],
            "causes": causes(model, batch, given.loss, passed, readings),
            "blind": blind(passed, readings) if given.loss is not None else "",
            "versions": {
                "depthgauge": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        },
        not_measured=not_measured,
        coverage=_coverage(analysis, passed, held, _unread(analysis, readings, every)),
        disagreements=tuple(analysis.disagreements),
        overhead=(perf_counter() - start) / max(passed.theirs, 1e-9),
    )
    if _stopped(profile) and (woken := waking(model, batch, given.loss)):
        profile = replace(profile, settings={**profile.settings, "waking": woken})
    at = {row.key: i for i, row in enumerate(rows) if row.key}
    return _Traced(profile, passed, analysis, at)


def _stopped(profile: Profile) -> bool:
    """Whether no gradient at all comes to some state."""
    column = profile.columns.get("gradient_rms")
    return column is not None and bool((column.values == 0).any())


def _axis_of(batch: Any, axis: int | None) -> int | None:
    """The axis of examples that was given, if one was."""
    if axis is None:
        return None
    most = max((t.dim() for _, t in tensors(batch)), default=0) - 1
    if (given := whole_number(axis)) is None or not 0 <= given <= most:
        raise SpecificationError(
            f"batch_axis is {axis!r}, expected the axis of the batch that counts examples, a whole "
            f"number from 0 to {max(most, 0)}, or None for what the pass says"
        )
    return given


def _patterns(include: str | None, exclude: str | None) -> Callable[[str], bool]:
    """Whether a module path is wanted: ``re.search``, as in the neighbours' tools."""
    compiled: list[re.Pattern[str] | None] = []
    for word, text in (("include", include), ("exclude", exclude)):
        if text is not None:
            expect(word, text, str, "a regular expression on module names")
        try:
            compiled.append(re.compile(text) if text is not None else None)
        except (re.error, TypeError) as error:
            raise SpecificationError(
                f"{word} is {text!r}, expected a regular expression on module names ({error})"
            ) from None
    inside, outside = compiled

    def wanted(path: str) -> bool:
        if inside is not None and not inside.search(path):
            return False
        return outside is None or not outside.search(path)

    return wanted


# --------------------------------------------------------------------------------- sites


@dataclass(slots=True)
class _Row:
    """A site to be; ``numbers`` are those of each part, in the order of ``Readings.names``."""

    block: int
    path: str
    role: str
    numbers: tuple[tuple[str, Sequence[float]], ...]
    #: The role, its track, and the value of a state of a stream or the last term of a branch.
    key: tuple[str, int, int] | None = None


def _rows(analysis: Analysis, readings: Readings, passed: Pass) -> list[_Row]:
    """Every site with what was read there, in the order of the streams."""
    rows: list[_Row] = []
    block = 0
    placed: set[int] = set()
    ends: list[tuple[int, int]] = []  # (value, block) of every state, to place activations by
    for t, track in enumerate(analysis.tracks):
        if rows:
            block += 1
        source, start = track.states[0], len(rows)
        rows.append(_state(analysis, readings, source, block, t))
        ends.append((source, block))
        for steps in track.blocks:
            block += 1
            for step in steps:
                rows += _step(analysis, readings, t, step, block, placed)
                rows.append(_state(analysis, readings, step.after, block, t))
                ends.append((step.after, block))
        if passed.lost or readings.lost(readings.place(track.states[-1])):
            _forget_gradients(rows[start:], readings)
    rows += _loose(analysis, readings, placed, sorted(ends))
    rows.sort(key=lambda row: row.block)
    return rows


def _step(
    analysis: Analysis,
    readings: Readings,
    t: int,
    step: Step,
    block: int,
    placed: set[int],
) -> list[_Row]:
    """The activations and branches of one step in forward order."""
    at: list[tuple[int, _Row]] = []
    between = analysis.graph.ancestors([step.after], step.before + 1)
    for i in between:
        if i in readings.activations and i not in placed:
            placed.add(i)
            at.append((i, _activation(analysis, readings, i, block)))
    if step.link is not None:
        for i in _sums(analysis, step.link):
            if i in readings.branches:
                branch = _added(step.link, i)
                key = ("branch", t, max(branch.terms))
                found = readings.found(i, "branch")
                at.append((i, _Row(block, branch.path, "branch", found, key)))
    for i in analysis.tracks[t].inside:
        if i in between:
            at.append((i, _state(analysis, readings, i, block)))
    return [row for _, row in sorted(at, key=lambda item: item[0])]


def _forget_gradients(rows: Sequence[_Row], readings: Readings) -> None:
    """Make the gradient NaN where it came back through a NaN, as that of an equation is."""
    for row in rows:
        row.numbers = tuple(
            (part, readings.forgotten() if part == "gradient" else found)
            for part, found in row.numbers
        )


def _sums(analysis: Analysis, link: Link) -> list[int]:
    """The sums of a merge in which the stream is a term; ``f + g`` in ``x + (f + g)`` is none."""
    roles, merge = analysis.roles, link.merge
    found: list[int] = []
    for i in sorted((*merge.absorbed, merge.value)):
        terms = [j for j, _ in roles.terms(i)] or list(roles.flow[i])
        if any(j in found or merge.root in chain(roles, j) for j in terms):
            found.append(i)
    return found or [merge.value]


def _added(link: Link, i: int) -> Branch:
    """The branch that a sum adds: of several, the last whose terms stand before."""
    before = [b for b in link.branches if max(b.terms) < i]
    return (before or list(link.branches))[-1] if len(link.branches) > 1 else link.branches[0]


def _state(
    analysis: Analysis, readings: Readings, i: int, block: int, track: int | None = None
) -> _Row:
    """The state at value ``i``; ``track`` is the place of the stream that it is a state of."""
    at = readings.place(i)
    path = _place(analysis, i)
    key = None if track is None else ("state", track, i)
    return _Row(block, path, "state", readings.found(at, "state", "gradient"), key)


def _place(analysis: Analysis, i: int) -> str:
    """The module that made value ``i``; what the model's own forward function made is called after
    the module whose output it was made of."""
    graph = analysis.graph
    at = graph.values[i]
    if path := graph.calls[at.call].path:
        return path
    while not graph.path(at.index) and at.kind != "input":
        below = [j for j in at.inputs if graph.values[j].data]
        if not below:
            return "input"
        at = graph.values[max(below)]
    return graph.path(at.index) or at.path or "input"


def _activation(analysis: Analysis, readings: Readings, i: int, block: int) -> _Row:
    seen = readings.activations[i]
    path = activation_path(analysis.graph, readings, seen)
    return _Row(block, path, "activation", readings.found(i, "gate"))


def _loose(
    analysis: Analysis, readings: Readings, placed: set[int], ends: list[tuple[int, int]]
) -> list[_Row]:
    """Activations outside of all steps: in the block of the next state, or in the last."""
    rows = []
    live = analysis.graph.live
    for i in sorted(set(readings.activations) - placed):
        if i in live and readings.found(i, "gate"):
            block = next((b for value, b in ends if value > i), ends[-1][1] if ends else 0)
            rows.append(_activation(analysis, readings, i, block))
    return rows


def _columns(
    rows: Sequence[_Row], readings: Readings, quantities: Sequence[str]
) -> dict[str, Column]:
    places: dict[str, list[int]] = {}
    numbers: dict[str, list[Sequence[float]]] = {}
    for i, row in enumerate(rows):
        for part, found in row.numbers:
            places.setdefault(part, []).append(i)
            numbers.setdefault(part, []).append(found)
    at = {part: tuple(each) for part, each in places.items()}
    tables = {part: np.array(each, dtype=np.float64) for part, each in numbers.items()}
    columns = {}
    for name in quantities:
        part, statistic = PARTS[name]
        if part in tables:
            place = readings.names[part].index(statistic)
            columns[name] = Column(at[part], tables[part][:, place, None].copy())
    return columns


def _why_missing(
    quantity: str, passed: Pass, rows: Sequence[_Row], filtered: bool, analysis: Analysis
) -> str:
    part = PARTS[quantity][0]
    if filtered:
        return f"include and exclude leave no site{' of its kind' if rows else ''}"
    if part == "gradient":
        return passed.no_backward or "no gradient reached a state"
    if part == "gate":
        return "no activation was found"
    if part == "branch":
        return _NO_SUM if any(t.stream.branches for t in analysis.tracks) else _NO_BRANCH
    return "no state was read"


# ------------------------------------------------------------------------------ documents


def _equation(analysis: Analysis) -> str:
    """One line a stream: ``12 x [h = h + attention(layernorm(h)); ...]``."""
    lines = []
    for track in analysis.tracks:
        parts = []
        for text, alike in groupby(track.equations(short=True), lambda run: run[1]):
            times = sum(run[0] for run in alike)
            parts.append(f"{times} x [{text}]" if times > 1 else text)
        name = f"{track.stream.name}: " if len(analysis.tracks) > 1 else ""
        lines.append(name + "; ".join(parts))
    return "\n".join(lines)


def _unsaid(analysis: Analysis) -> list[str]:
    """What no equation says though it says all around it: dropout of attention's weights."""
    found: dict[float, dict[str, None]] = {}
    for step in (step for track in analysis.tracks for step in track.steps):
        for rate in step.equation.read.dropped if step.equation else ():
            path = numberless(step.equation.path) if step.equation else ""
            found.setdefault(rate, {})[path or "the model"] = None
    return [
        f"attention's weights are dropped out (p={rate:g}), which the equation does not say: "
        + ", ".join(paths)
        for rate, paths in found.items()
    ]


def _document(analysis: Analysis, track: Track) -> dict[str, Any]:
    """One stream under the names of the JSON contract, its blocks with their module paths."""
    stream = track.stream
    blocks = []
    for (start, unit, times), (_, text) in zip(track.runs, track.equations(), strict=True):
        paths = [
            step.equation.path
            for step in track.steps[start : start + unit * times]
            if step.equation is not None
        ]
        blocks.append({"times": times, "equation": text, "paths": list(dict.fromkeys(paths))})
    fractions = [link.fraction for link in stream.links]
    return {
        "name": stream.name,
        "branches": len(stream.branches),
        "inner": stream.inner,
        "projected": stream.projected,
        "parallel": stream.parallel,
        "norm_at": list(stream.norm_at),
        "skip": stream.skip,
        "placement": _placement(track),
        "m": [branch.m for branch in stream.branches],
        "segments": stream.segments,
        "states": 1 + len(track.steps),
        "fraction": min(fractions) if fractions else None,
        **({} if fractions else {"fraction_reason": _NO_BRANCH}),
        "source": analysis.graph.path(stream.source) or "input",
        "blocks": blocks,
    }


def _placement(track: Track) -> str:
    from depthgauge.equation.branches import common, placement_of

    words = [placement_of(branch.norm_at) for branch in track.stream.branches]
    return common(words, default="none")


def _unread(analysis: Analysis, readings: Readings, rows: Sequence[_Row]) -> list[tuple[str, str]]:
    """The states and branches that were found and of which no number was read."""
    found = []
    if readings.names["state"]:
        found = [
            (row.path, _NO_STATE) for row in rows if row.role == "state"
            and not any(part == "state" for part, _ in row.numbers)
        ]  # fmt: skip
    for link in (link for track in analysis.tracks for link in track.stream.links):
        if readings.adds and readings.branches.keys().isdisjoint(_sums(analysis, link)):
            found += [(branch.path, _NO_SUM) for branch in link.branches]
    return found


def _coverage(
    analysis: Analysis, passed: Pass, held: Inventory, unread: Sequence[tuple[str, str]]
) -> dict[str, tuple[tuple[str, str], ...]]:
    called = passed.called
    used = {v.path for v in analysis.graph.values if v.kind == "parameter"}
    not_called = [
        (
            path,
            f"{type(module).__name__} was not called itself: a function was given its weights"
            if any(f"{path}.{name}" in used for name, _ in module.named_parameters(recurse=False))
            else f"{type(module).__name__} was never called in this pass",
        )
        for path, module in held.modules
        if id(module) not in called and path and not _container(module)
    ]
    no_gradient = [(path, "no gradient reached this parameter") for path in passed.no_gradient]
    opaque = [
        entry
        for track in analysis.tracks
        for step in track.steps
        if step.equation is not None
        for entry in step.equation.opaque
    ]
    unknown = [
        (analysis.graph.path(v.index), f"the function {v.name} is not known; it may hold weights")
        for v in analysis.graph.values
        if v.kind == "opaque" and v.floating
    ]
    reached = analysis.graph.live if not passed.no_backward else set()
    blind = sorted(
        {
            analysis.graph.path(v.index)
            for v in analysis.graph.values
            # What a checkpoint ran without gradients it runs again, on the way back.
            if v.blind and v.data and v.floating and v.index not in reached
        }
        - {""}
    )
    no_gradient += [(path, "it ran with gradients switched off") for path in blind]
    found = {
        "not_called": not_called,
        "no_gradient": no_gradient,
        "opaque": [*opaque, *unknown],
        "fallback": [*analysis.fallback, *unread],
    }
    return {word: tuple(dict.fromkeys(entries)) for word, entries in found.items()}


def _container(module: nn.Module) -> bool:
    """Lists and dicts of modules are never called, nor is the wrapper of a compiled one; what they
    hold is."""
    lists = nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict
    return isinstance(module, lists) or COMPILED in module._modules


def _width(analysis: Analysis, shape: tuple[int, ...]) -> int:
    if not shape:
        return 1
    images = len(shape) == 4 and any(v.name == "conv2d" for v in analysis.graph.values)
    return int(shape[1] if images else shape[-1])


def _dtype(held: Inventory, batch: Any) -> str:
    """That of most parameters; without any, that of the batch."""
    kinds = [p.dtype for _, p in held.parameters if p.is_floating_point()]
    kinds = kinds or [t.dtype for _, t in tensors(batch) if t.is_floating_point()]
    return dtype_name(max(set(kinds), key=kinds.count)) if kinds else "float32"


def _alike(batch: Any, axis: int) -> bool:
    """Whether all examples of the batch are one, in every tensor that has them."""
    count = examples(batch, axis)
    held = [t for _, t in tensors(batch) if t.dim() > axis and t.shape[axis] == count]
    return bool(held) and all(same(t.movedim(axis, 0)) for t in held)


def _device(held: Inventory) -> str:
    devices = {p.device for _, p in held.parameters}
    return ", ".join(sorted(map(str, devices))) or "cpu"
