"""What one recorded pass says about the model: streams, how two tests agree, blocks as equations.

A *step* leads from one state of a stream to the next: a merge, or plain layers where the stream is
broken or where there is none at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

from torch import Tensor

from depthgauge.equation.nodes import Block, State, Update
from depthgauge.equation.text import to_text
from depthgauge.trace.blocks import averaged, bare, differing, unbegun, unmarked
from depthgauge.trace.folding import Fold, folds_of, parted, repeats, sizes_of
from depthgauge.trace.graph import Graph, common_path
from depthgauge.trace.links import Link
from depthgauge.trace.listing import listed
from depthgauge.trace.merges import WEIGHED_STATES, Merge, chain, merges, reach
from depthgauge.trace.paths import merges_between, states
from depthgauge.trace.reading import Equation, Reader
from depthgauge.trace.readings import Readings
from depthgauge.trace.roles import Roles
from depthgauge.trace.second import Second, second_streams
from depthgauge.trace.streams import Stream, streams

__all__ = ["Analysis", "Step", "Track", "analyse"]

#: How many times as large learned numbers may be that are shown as one, for nothing to be said.
_FAR: Final = 1.5


@dataclass
class Step:
    """From value ``before`` to value ``after``; ``link`` is the merge between, or None."""

    before: int
    after: int
    link: Link | None
    equation: Equation | None = None


@dataclass
class Track:
    """One stream with its steps, and how they fold: (first step, steps, times). ``sizes``: how many
    steps each block has; ``places``: the block of each sum where blocks are modules of a list."""

    stream: Stream
    steps: list[Step]
    folds: list[Fold] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)  # states of merges inside branches

    @property
    def states(self) -> list[int]:
        """The values that are its states, in forward order."""
        if not self.steps:
            return [self.stream.source]
        return [self.steps[0].before, *(step.after for step in self.steps)]

    @property
    def blocks(self) -> list[list[Step]]:
        """The steps of each block."""
        return self._cut(self.sizes)

    @property
    def repeated(self) -> list[list[Step]]:
        """The steps of each block by what repeats alone, whatever list its modules stand in."""
        return self._cut(sizes_of([step.equation.read for step in self.steps if step.equation]))

    def _cut(self, sizes: Sequence[int]) -> list[list[Step]]:
        return [self.steps[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]

    @property
    def shared(self) -> int:
        """How many layers and learned numbers stand in more than one block."""
        uses: Counter[str] = Counter()
        for steps in self.blocks:
            uses.update({mark for s in steps if s.equation for mark in s.equation.marks})
        return sum(times > 1 for times in uses.values())

    @cached_property
    def runs(self) -> list[Fold]:
        """The folds, parted where blocks differ in more than their outline."""
        found = []
        for start, unit, times in self.folds:
            rounds = [tuple(e.read for e in each) for each in self._rounds(start, unit, times)]
            for size, rows in parted(rounds):
                found.append((start, unit * size, rows))
                start += unit * size * rows
        return found

    @property
    def averaged(self) -> Iterator[tuple[int, float, float]]:
        """The blocks that are shown as one though a learned number of one begins ``_FAR`` times as
        large as that of another: how many, and the range of the number that differs most."""
        for run in self.runs:
            rounds = self._rounds(*run)
            if len({tuple(id(e.read) for e in each) for each in rounds}) > 1:
                blocks = [tuple(e.block for e in each) for each in rounds]
                numbers = max(differing(blocks), key=_apart, default=(0.0,))
                if _apart(numbers) > _FAR:
                    yield len(rounds), min(numbers), max(numbers)

    def equations(self, short: bool = False) -> list[tuple[int, str]]:
        """Repetitions and text of each run: ``(12, "h = ...; h = ...")``.

        ``short`` leaves out dropout and every option: sizes, heads, learnable parts of norms.
        """
        times = [rows for _, _, rows in self.runs]
        texts = [to_text(bare(block) if short else block) for block in self._shown]
        return list(zip(times, texts, strict=True))

    @cached_property
    def _shown(self) -> list[Block]:
        return [self._unit(*run) for run in self.runs]

    def _unit(self, start: int, unit: int, times: int) -> Block:
        """The steps that repeat as one block; what they share has a name if every time they do.
        What learned numbers begin with is the mean over the blocks."""
        rounds = self._rounds(start, unit, times)
        block = rounds[0][0].block
        if unit == 1 and all(e.block is block for (e,) in rounds):
            return block  # what stands twice in one step has its name there already
        if len({_likeness(each) for each in rounds}) == 1:
            return unmarked([e.marked for e in rounds[0]])
        shared = [unmarked([e.marked for e in equations]) for equations in rounds]
        forms = {unmarked([unbegun(e.marked) for e in equations]) for equations in rounds}
        if len(forms) > 1:
            shared = [Block(tuple(s for e in each for s in e.block.statements)) for each in rounds]
        return averaged(shared)

    def _rounds(self, start: int, unit: int, times: int) -> list[tuple[Equation, ...]]:
        """The equations of each repetition."""
        read = [s.equation for s in self.steps[start : start + unit * times] if s.equation]
        return [tuple(read[k : k + unit]) for k in range(0, len(read), unit)]


def _likeness(equations: Sequence[Equation]) -> tuple[object, ...]:
    """Equal for steps that read alike and share layers and learned numbers in the same places."""
    places: dict[str, int] = {}
    marks = (mark for e in equations for mark in e.marks)
    return (*(id(e.read) for e in equations), *(places.setdefault(m, len(places)) for m in marks))


def _apart(numbers: Sequence[float]) -> float:
    """How many times as large as another one of the numbers is."""
    low, high = min(numbers), max(numbers)
    if low < 0 < high:
        return math.inf
    small, large = sorted((abs(low), abs(high)))
    return large / small if small else math.inf if large else 1.0


@dataclass
class Analysis:
    roles: Roles
    merges: list[Merge]
    tracks: list[Track]
    disagreements: list[dict[str, Any]]
    fallback: list[tuple[str, str]]
    second: tuple[Second, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.roles.graph


def analyse(graph: Graph, readings: Readings, parameters: Mapping[str, Tensor]) -> Analysis:
    """Both structural tests, reconciled, and every step read back."""
    roles = readings.roles or Roles(graph)
    second = second_streams(roles)
    aside = {i for stream in second for i in stream.sums}  # additions that are no branches
    found = [merge for merge in merges(roles) if merge.value not in aside]
    rows = streams(roles, found, aside)
    disagreements = [d for stream in rows if (d := _compare(roles, stream))]
    fallback: list[tuple[str, str]] = []
    for stream in rows:
        own = {link.merge.value for link in stream.links}
        for other in second:
            if not own.isdisjoint(other.chain):
                reason = (
                    f"the sum of {other.added} of its {other.branches} branches, which no norm "
                    f"touches on the way, joins it at the end, and is shown as no stream of its own"
                )
                fallback.append((stream.name, reason))
    if rows:
        tracks = [_track(roles, stream, found, readings, fallback) for stream in rows]
    else:
        tracks = [_plain(roles, readings, fallback, disagreements)]
    reader = Reader(roles, parameters, readings.activations, readings.composites)
    for track in tracks:
        foreign = {
            step.after: other.stream.name
            for other in tracks
            if other is not track
            for step in other.steps
        }
        for step in track.steps:
            terms = step.link.merge.branches if step.link else ()
            source = track.steps[0].before
            end = step.link.merge.value if step.link else step.after
            step.equation = reader.read(step.before, step.after, foreign, terms, source, end)
        kept = [step for step in track.steps if step.link or not _same(step)]
        track.steps = kept or track.steps
        read = [step.equation.read for step in track.steps if step.equation]
        ends = [step.link.merge.value if step.link else step.after for step in track.steps]
        summed = [step.link is not None for step in track.steps]
        places = listed(graph, ends, summed, repeats(read))
        track.sizes = sizes_of(read, places)
        among = [place for place, is_sum in zip(places, summed, strict=False) if is_sum]
        rank = {place: k for k, place in enumerate(dict.fromkeys(among), 1)}
        track.places = [rank[place] for place in among]
        track.folds = folds_of(read, track.sizes)
        if beside := _beside(roles, track):
            names = " and ".join(sorted({roles.values[i].name for i in beside}))
            where = f"{len(beside)} place{'s' * (len(beside) != 1)}"
            reason = (
                f"an earlier state is put beside a later one by {names} at {where}, as a long skip "
                f"that adds nothing: no branch"
            )
            fallback.append((graph.path(beside[0]) or track.stream.name, reason))
        if shared := track.shared:
            what = "layers and learned numbers that several blocks share"
            reason = f"{what}, read as each block's own: {shared}"
            fallback.append((track.stream.name, reason))
        for blocks, low, high in track.averaged:
            what = f"{blocks} blocks that differ in their learned numbers alone are shown as one"
            reason = f"{what}, a number from {low:.3g} to {high:.3g} by its mean"
            fallback.append((track.stream.name, reason))
    return Analysis(roles, found, tracks, disagreements, fallback, second)


# ----------------------------------------------------------------------- the second test


def _compare(roles: Roles, stream: Stream) -> dict[str, Any] | None:
    """Path counting between the stream's ends against the local test, or None if they agree.

    The local test's merges are kept: a side path that spans the stack (values of the first layer, a
    shared position table) hides states from path counting, while nothing hides a merge from the
    local test. What path counting has beyond them is named.
    """
    source, end = stream.source, stream.links[-1].merge.value
    on_path = states(roles, source, end)
    by_paths = merges_between(roles, on_path)
    own = [link.merge.value for link in stream.links]
    if by_paths == own:
        return None
    graph = roles.graph
    missed = sorted(set(own) - set(by_paths))
    extra = sorted(set(by_paths) - set(own))
    where = [graph.path(i) for i in (missed or extra)]
    reason = (
        "paths around them keep these merges from lying on every path"
        if missed
        else "these sums have a weight-free path beside another, but the local test finds no skip"
    )
    return {
        "stream": stream.name,
        "local_merge": len(own),
        "path_counting": len(by_paths),
        "reported": len(own),
        "where": list(dict.fromkeys(where))[:8],
        "reason": reason,
    }


def _unlinked(roles: Roles, name: str, on_path: Sequence[int]) -> list[dict[str, Any]]:
    """A model in which the local test finds nothing and path counting a skip."""
    joined = []
    values = roles.values
    for before, after in pairwise(on_path):
        inputs = values[after].inputs
        if len(inputs) < 2 or len(terms := roles.moving(inputs)) < 2:
            continue
        carried = [i for i in terms if before in chain(roles, i)]
        made = [i for i in terms if reach(roles, i, before).get(before, 0) & WEIGHED_STATES]
        if carried and set(made) - set(carried):
            joined.append(after)
    if not joined:
        return []
    return [
        {
            "stream": name,
            "local_merge": 0,
            "path_counting": len(joined),
            "reported": 0,
            "where": list(dict.fromkeys(roles.graph.path(i) for i in joined))[:8],
            "reason": "a weight-free path joins what was computed beside it, in "
            + ", ".join(sorted({roles.values[i].name for i in joined}))
            + ", which adds nothing",
        }
    ]


# ---------------------------------------------------------------------------------- steps


def _beside(roles: Roles, track: Track) -> list[int]:
    """Where a stream with branches is joined with a state that it had earlier: concatenations."""
    states = track.states
    if not track.stream.links:
        return []
    found = []
    for value in roles.values:
        if value.kind == "join" and value.index in roles.graph.live:
            place = bisect_left(states, value.index)  # the first state that is made of it
            if not 0 < place < len(states):
                continue
            before, earlier = states[place - 1], states[: place - 1]
            back = (chain(roles, j) for j in value.inputs)
            if any(before not in t and not t.keys().isdisjoint(earlier) for t in back):
                found.append(value.index)
    return found


def _same(step: Step) -> bool:
    """Whether a step leaves the state as it is but for its shape."""
    return step.equation is not None and step.equation.block == Block((Update(State()),))


def _track(
    roles: Roles,
    stream: Stream,
    found: Sequence[Merge],
    readings: Readings,
    fallback: list[tuple[str, str]],
) -> Track:
    steps: list[Step] = []
    at = stream.links[0].before
    for k, link in enumerate(stream.links):
        if k and link.broken and link.before != at and link.before in readings.states:
            steps += _between(roles, at, link.before, readings)
            at = link.before
        steps.append(Step(at, link.after, link))
        at = link.after
    inside = []
    outer = {link.merge.value for link in stream.links}
    if stream.inner > len(stream.links):
        # Most of the stack stands inside long skips: its own merges are shown as states too.
        low, high = stream.links[0].before, stream.links[-1].merge.value
        inside = [
            m.value for m in found
            if m.value not in outer and low < m.value < high and m.value in readings.states
        ]  # fmt: skip
        if inside:
            fallback.append(
                (
                    stream.name,
                    f"long skips leave {len(steps) + 1} states on every path; {len(inside)} merges "
                    f"inside their branches are shown as states too",
                )
            )
    return Track(stream, steps, inside=inside)


def _between(roles: Roles, before: int, after: int, readings: Readings) -> list[Step]:
    """Plain layers between two segments: one step to each state on every path."""
    on_path = [
        i for i in states(roles, before, after) if i in readings.states and before < i < after
    ]
    places = [before, *on_path, after]
    return [Step(a, b, None) for a, b in pairwise(places)]


def _plain(
    roles: Roles,
    readings: Readings,
    fallback: list[tuple[str, str]],
    disagreements: list[dict[str, Any]],
) -> Track:
    """No merge anywhere: the tensors that enter weight layers, where every path runs through them,
    else all of them in the order in which they were made."""
    graph = roles.graph
    ends = [i for i in graph.outputs if i in graph.live]
    end = ends[0] if ends else len(graph.values) - 1
    live = graph.ancestors([end])
    read = sorted(i for i in readings.states if i in live)
    source = read[0] if read else end
    on_path = states(roles, source, end)
    kept = [i for i in on_path if i in readings.states or i == end]
    name = _name(roles, kept)
    joined = _unlinked(roles, name, on_path)
    disagreements += joined
    kept = [i for i in kept if i == end or not _mixed(roles, i)]
    every = sorted({*read, end})
    if len(kept) < len(every) and (joined or len(kept) < 3 <= len(read)):
        kept = every
        fallback.append(
            (
                name,
                f"{len(on_path)} tensors lie on every path; the {len(read) - (end in read)} that "
                f"enter weight layers, and the output, are taken for states, in the order in which "
                f"they were made",
            )
        )
    kept = sorted(dict.fromkeys(kept))
    steps = [Step(a, b, None) for a, b in pairwise(kept)]
    stream = Stream(source, [])
    stream.name = _name(roles, kept)
    return Track(stream, steps)


def _mixed(roles: Roles, i: int) -> bool:
    """Whether value ``i`` is what attention's products make: half an attention is no layer."""
    at = roles.values[i]
    while at.kind in ("shape", "drop") and at.inputs:
        at = roles.values[at.inputs[0]]
    return at.kind in ("attend", "contract") and roles.layers(at.index) == 2


def _name(roles: Roles, values: Sequence[int]) -> str:
    return common_path(roles.graph.path(i) for i in values[1:]) or "h"
