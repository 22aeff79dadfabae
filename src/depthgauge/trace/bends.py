"""The activations of a network one by one: in series or not, and what fixed numbers stand around.

A path is walked over the values that carry the data. What multiplies two of them, attends, or has
a function of its own on the way is no chain of layers and activations, and said so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from depthgauge.trace.affine import affine
from depthgauge.trace.analysis import Analysis
from depthgauge.trace.graph import Value
from depthgauge.trace.readings import Readings

__all__ = ["Bend", "Bends", "bends_of"]


@dataclass(frozen=True)
class Bend:
    """One activation: the module that it is (or stands in), its kind and options, and the fixed
    numbers around it, ``gamma (phi(alpha x + beta) + delta)``. ``spread``: where x is a residual
    sum that nothing else reads, the root of the sum of its weights' squares, 1 elsewhere."""

    path: str
    kind: str
    options: tuple[tuple[str, Any], ...]
    alpha: float
    beta: float
    gamma: float
    delta: float
    spread: float = 1.0


@dataclass(frozen=True)
class Bends:
    """The activations in forward order; how many stand in series on the stream and, as (on the
    skip, in the branch), beside each of its sums, in forward order; ``sums``: the fixed numbers of
    skip and branch in each, times those that its own value is multiplied by; ``reader``: of each
    sum the place of the activation that alone reads it, -1 without one; ``unfit``: why the network
    is not of such parts (``""``: it is)."""

    rows: tuple[Bend, ...] = ()
    parts: tuple[int | tuple[int, int], ...] = ()
    sums: tuple[tuple[float, float], ...] = ()
    reader: tuple[int, ...] = ()
    unfit: str = ""


def bends_of(analysis: Analysis, readings: Readings) -> Bends:
    """The activations of the pass, and how they follow each other."""
    walk = _Walk(analysis, readings)
    order = sorted(walk.bent)
    rows = tuple(walk.bend(i) for i in order)
    place = {i: k for k, i in enumerate(order)}
    reader = tuple(place.get(walk.readers.get(i, -1), -1) for i in walk.sums)
    try:
        return Bends(rows, tuple(walk.parts()), tuple(map(walk.weighed, walk.sums)), reader)
    except _Unfit as why:
        return Bends(rows, unfit=str(why))


class _Unfit(Exception):
    """Why a network is no chain of activations and residual sums."""


class _Walk:
    def __init__(self, analysis: Analysis, readings: Readings) -> None:
        self.analysis, self.readings = analysis, readings
        self.graph, self.roles = analysis.graph, analysis.roles
        live = self.graph.live
        self.bent = {
            i
            for i, bent in readings.activations.items()
            if i in live and bent.kind != "identity" and self.roles.norm_of(i) is None
        }
        self.tracks = [track for track in analysis.tracks if track.stream.links]
        self.sums = {link.merge.value: link for track in self.tracks for link in track.stream.links}
        self._made: dict[int, list[int]] = {}  # values by the call that made them
        for value in self.graph.values:
            if value.data and value.call in readings.composites:
                self._made.setdefault(value.call, []).append(value.index)
        self.readers: dict[int, int] = {}  # the activation that alone reads a sum
        self.met: set[int] = set()

    # ------------------------------------------------------------------------ in series

    def parts(self) -> Iterable[int | tuple[int, int]]:
        if len(self.tracks) > 1:
            raise _Unfit(f"{len(self.tracks)} streams were found")
        parts: list[int | tuple[int, int]] = []
        before = -1
        for link in self.sums.values():
            if len(link.branches) != 1:
                raise _Unfit(f"{len(link.branches)} branches share one sum")
            branch, end = link.branches[0], link.merge.value
            self._last(branch.terms)
            parts.append(self._series([branch.begin], before))
            skip = self._series([link.merge.skip], branch.begin)
            parts.append((skip, self._series(branch.terms, branch.begin)))
            before = end
        parts.append(self._series(self.graph.outputs, before))
        self._layered()
        if beside := sorted(self.bent - self.met):
            where = self.graph.path(beside[0])
            raise _Unfit(f"the activation in '{where}' stands in no series with the others")
        return parts

    def _series(self, ends: Iterable[int], begin: int) -> int:
        """Activations in series between a value, or what the network is given, and others."""
        found = self._between(ends, begin)
        depth: dict[int, int] = {begin: 0}
        for i in sorted(found - {begin}):
            below = max((depth[j] for j in self._flow(i) if j in depth), default=0)
            depth[i] = below + (i in self.bent)
            self._plain(i)
        own = (self.bent & found) - {begin}
        longest = max((depth[i] for i in ends if i in depth), default=0)
        if len(own) > longest:
            where = self.graph.path(min(own))
            raise _Unfit(f"activations stand beside each other in '{where}'")
        self.met |= own
        return longest

    def _between(self, ends: Iterable[int], begin: int) -> set[int]:
        """The values between, walked back from the ends."""
        found = {i for i in ends if i >= begin}
        todo = list(found - {begin})
        while todo:
            for j in self._flow(todo.pop()):
                if j >= begin and j not in found and self.graph.values[j].data:
                    found.add(j)
                    if j != begin:
                        todo.append(j)
        return found

    def _layered(self) -> None:
        """No activation reads what another gives, past no weight layer, also by way of skips."""
        unlayered: set[int] = set()
        for i in sorted(self.met):
            first = {i, *self._within(i)}
            before = {j for k in first for j in self._flow(k)} - first
            todo = [j for j in before if j not in unlayered]
            while todo:
                j = todo.pop()
                if j in self.bent:
                    raise _Unfit(
                        f"the activation in '{self.graph.path(i)}' reads what that in "
                        f"'{self.graph.path(j)}' gives, past no weight layer"
                    )
                unlayered.add(j)
                if not self.roles.layers(j):
                    todo += [k for k in self._flow(j) if k not in unlayered]

    def _flow(self, i: int) -> tuple[int, ...]:
        """What a value was computed from; of a norm what it norms, not its statistics."""
        normed = self.roles.norm_of(i)
        return self.roles.flow[i] if normed is None else (normed,)

    def _plain(self, i: int) -> None:
        """Nothing but layers, activations, sums and norms."""
        value = self.graph.values[i]
        inside = self.readings.composites.get(value.call) is not None
        if i in self.bent or inside or self.roles.norm_of(i) is not None:
            return
        if self.roles.bends(i):
            raise _Unfit(f"'{self.graph.path(i)}' has {_words(value)}")

    def _last(self, terms: Sequence[int]) -> None:
        """A branch's values, not an activation's, enter the sum: numbers behind that could not be
        told from the branch's own."""
        i = terms[0]
        while i not in self.bent:
            moving = [j for j in self._flow(i) if self.graph.values[j].data]
            if self.roles.layers(i) or len(moving) != 1:
                return
            i = moving[0]
        raise _Unfit(f"the branch of '{self.graph.path(i)}' ends with an activation")

    # ------------------------------------------------------------------- numbers around

    def bend(self, i: int) -> Bend:
        bent = self.readings.activations[i]
        alpha, beta, spread = self._before(i)
        gamma, delta = self._after(i)
        options = tuple(sorted(bent.options.items()))
        path = self.graph.path(i)
        return Bend(path, bent.kind, options, alpha, beta, gamma, delta, spread)

    def _before(self, i: int) -> tuple[float, float, float]:
        """``alpha``, ``beta`` and ``spread`` of what enters the activation that made value ``i``,
        as far as nothing else reads it."""
        own, behind = {i, *self._within(i)}, set(self._within(i)) | {i}
        alpha, beta = 1.0, 0.0
        while True:
            entering = {j for k in own for j in self.roles.flow[k] if self.graph.values[j].data}
            entering -= behind
            if len(entering) != 1:
                break
            j = entering.pop()
            if not self._read_by(j) <= behind:
                break
            if j in self.sums:
                self.readers[j] = i
                return alpha, beta, math.hypot(*self._terms(j))
            if (step := affine(self.graph.values[j])) is None:
                break
            # alpha (times x + plus) + beta
            alpha, beta = alpha * step[0], beta + alpha * step[1]
            own = {j}
            behind.add(j)
        return alpha, beta, 1.0

    def _read_by(self, i: int) -> set[int]:
        return {j for j in self.graph.consumers[i] if j in self.graph.live}

    def _terms(self, total: int) -> tuple[float, float]:
        """What the skip and the branch are multiplied by in a sum."""
        link = self.sums[total]
        begin, ends = link.branches[0].begin, (link.merge.skip, link.branches[0].terms[0])
        skip, branch = (self._number(i, begin) for i in ends)
        return skip, branch

    def weighed(self, total: int) -> tuple[float, float]:
        """The same, times what the sum is multiplied by as far as nothing else reads it."""
        skip, branch = self._terms(total)
        times, _ = self._after(total)
        return skip * times, branch * times

    def _number(self, i: int, begin: int) -> float:
        """What a term of a sum is multiplied by, behind the value that the sum's sides share."""
        number = 1.0
        while i != begin and (step := affine(self.graph.values[i])) is not None:
            number *= step[0]
            i = next(j for j in self.graph.values[i].inputs if self.graph.values[j].data)
        return number

    def _within(self, i: int) -> Iterable[int]:
        """The values of an activation that a module spells out."""
        call = self.readings.activations[i].call
        if call not in self.readings.composites:
            return ()
        return self._made.get(call, ())

    def _after(self, i: int) -> tuple[float, float]:
        """``gamma, delta`` of what leaves value ``i``, as far as one alone reads it."""
        times, plus = 1.0, 0.0
        while len(followers := self._read_by(i)) == 1:
            i = followers.pop()
            if (step := affine(self.graph.values[i])) is None:
                break
            times, plus = times * step[0], plus * step[0] + step[1]
        return times, plus / times if times else 0.0


def _words(value: Value) -> str:
    if value.kind in ("product", "contract"):
        return "a product of two values that both depend on the input"
    if value.kind in ("attend", "softmax") or value.name == "multi_head_attention_forward":
        return "attention"
    return f"'{value.name}', which is no activation that is known"
