"""The same values in two passes of one model that do not call quite the same functions.

A model may look at a tensor's type: T5 clamps its states in float16 and casts them in half
precision, and does neither in float64. A value is found again by the call of the module that made
it, and in it by the longest common sequence of functions, casts left out. What only limits or casts
a value stands for the value that it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from depthgauge.trace.graph import GRAFTED, Graph
from depthgauge.trace.operations import CASTS

__all__ = ["alike", "counterparts", "uncast"]

#: Functions that leave a value as it is unless it is out of range.
_LIMITS: Final = ("clamp", "clamp_min", "clamp_max", "clip", "nan_to_num")


def uncast(graph: Graph, i: int) -> int:
    """The value that a cast was given. A cast to a tensor's own type gives the tensor itself, in
    another precision a new one, which only what follows the cast sends its gradient to."""
    value = graph.values[i]
    while value.name in CASTS and value.inputs:
        value = graph.values[value.inputs[0]]
    return value.index


def alike(before: Graph, now: Graph, last: int) -> bool:
    """Whether both passes call the same functions in the same modules up to value ``last``."""
    return _trail(before)[: before.places[last] + 1] == _trail(now)[: before.places[last] + 1]


def _trail(graph: Graph) -> list[tuple[str, str]]:
    calls = graph.calls
    return [(calls[v.call].path, v.name) for v in graph.values if v.item != GRAFTED]


def counterparts(before: Graph, now: Graph, wanted: Sequence[int]) -> list[int | None]:
    """For each value of ``before`` the one of ``now``; None where there is none of its shape."""
    pairs: dict[int, int] = {}
    theirs = _by_call(now)
    for call, mine in _by_call(before).items():
        other = theirs.get(call, [])
        first, second = [before.values[i].name for i in mine], [now.values[i].name for i in other]
        if first == second:
            pairs |= zip(mine, other, strict=True)
            continue
        for a, b, size in SequenceMatcher(None, first, second, False).get_matching_blocks():
            pairs |= zip(mine[a : a + size], other[b : b + size], strict=True)
    return [_found(before, now, pairs, i) for i in wanted]


def _found(before: Graph, now: Graph, pairs: dict[int, int], i: int) -> int | None:
    i = uncast(before, i)
    while i not in pairs and before.values[i].name in _LIMITS and before.values[i].inputs:
        i = uncast(before, before.values[i].inputs[0])
    j = pairs.get(i)
    return j if j is not None and now.values[j].shape == before.values[i].shape else None


def _by_call(graph: Graph) -> dict[tuple[str, int], list[int]]:
    """The values that each call of a module made, in order; a call is known by the module's path
    and how many calls of it came before."""
    seen: Counter[str] = Counter()
    keys = []
    for call in graph.calls:
        keys.append((call.path, seen[call.path]))
        seen[call.path] += 1
    found: dict[tuple[str, int], list[int]] = {}
    for value in graph.values:
        if value.item != GRAFTED and value.name not in CASTS:
            found.setdefault(keys[value.call], []).append(value.index)
    return found
