"""Which modules of a list are blocks, whatever holds the list.

A module stands in a list where its name is a number (``h.0``), where what holds it is not called
itself (a ModuleDict), or where it and others beside it are called alike but for a number
(``layer0``, ``layer1``). Where a stream leads through several lists, their modules count on. Each
run of such a module is a block, and each run of the one module that a stream leads through again
and again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import accumulate, groupby, takewhile
from typing import Final

from depthgauge.trace.graph import Graph

__all__ = ["listed"]

_COUNTED: Final = re.compile(r"(.*\D)\d+")


def listed(graph: Graph, ends: Sequence[int], summed: Sequence[bool], repeats: bool) -> list[int]:
    """The block of each step of a stream, from 1, where the blocks are the modules of lists; else
    none.

    A step ends with the value of ``ends``, a sum where ``summed``. ``repeats``: whether some of
    the steps stand there several times in a row. Lists in a list say nothing where their inner
    modules hold one sum each, or not all as many: ``stages.0.1`` is a block, ``block.0.layer.1`` a
    part of one. Of one list's only module without repetitions the sums are one block. A step
    outside of the list (a transition between stages) is a block, where fewer of the sums stand
    there than the list has blocks.
    """
    rows = [_calls(graph, i) for i in ends]
    made = [row for row, is_sum in zip(rows, summed, strict=True) if is_sum]
    if not made:
        return []
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*made, strict=False))
    shared = [level[0] for level in levels]
    whole = graph.calls[shared[-1]].path
    called = {call.path for call in graph.calls}
    paths = [graph.calls[row[-1]].path for row in made]
    slots = [_slots(path, whole, called) for path in paths]
    outer = _counted(paths, whole)
    if not any(slots):
        slots, outer = outer or _again(graph, made, len(shared)), []
    if not any(slots):
        alone = len(made) == len(rows) and _alone(graph, shared[-1], called, repeats)
        return [1] * len(rows) if alone else []
    keys = [_run(graph, row, found[-1]) for row, found in zip(made, slots, strict=True) if found]
    blocks = [len(list(run)) for _, run in groupby(keys)]
    if len(made) - len(keys) >= len(blocks):
        return []
    nested = bool(outer) or any(len(found) > 1 for found in slots)
    if nested and (blocks[0] == 1 or len(set(blocks)) > 1):
        return []
    if max(blocks) == 1 and len(made) == len(rows) and not repeats and _sole(whole, called):
        return [1] * len(rows)
    held = set(keys)
    places = [_place(graph, row, held) or k for k, row in enumerate(rows)]
    return [place for place, (_, run) in enumerate(groupby(places), 1) for _ in run]


def _place(graph: Graph, row: Sequence[int], held: Set[tuple[int, str]]) -> tuple[int, str] | None:
    """The innermost of the runs that a value was made in."""
    for call in reversed(row):
        path = graph.calls[call].path
        above = (path[:end] for end in (m.start() for m in re.finditer(r"\.|$", path)))
        here = [(call, path), *((-1, at) for at in above)]
        if found := [key for key in here if key in held]:
            return found[-1]
    return None


def _again(graph: Graph, rows: Sequence[Sequence[int]], level: int) -> list[list[str]]:
    """For each sum the one module at this level of calls that all of them are made in, if it holds
    several sums of each run."""
    if any(len(row) <= level for row in rows):
        return []
    paths = {graph.calls[row[level]].path for row in rows}
    runs = {row[level] for row in rows}
    return [[*paths]] * len(rows) if len(paths) == 1 < len(runs) < len(rows) else []


def _calls(graph: Graph, i: int) -> list[int]:
    """The calls around value ``i``, the model's own first."""
    found, at = [], graph.values[i].call
    while at >= 0:
        found.append(at)
        at = graph.calls[at].parent
    return found[::-1]


def _slots(path: str, whole: str, called: set[str]) -> list[str]:
    """The modules of lists on the way from ``whole`` down to ``path``."""
    return [
        at for at in _below(path, whole) if _numbered(at) or at.rpartition(".")[0] not in called
    ]


def _below(path: str, whole: str) -> list[str]:
    """The paths on the way from ``whole``, which is left out, down to ``path``."""
    names = path[len(whole) :].strip(".").split(".") if path != whole else []
    return [*accumulate(names, lambda at, name: f"{at}.{name}" if at else name, initial=whole)][1:]


def _counted(paths: Sequence[str], whole: str) -> list[list[str]]:
    """For each path the module below ``whole``, if all are called alike but for a number."""
    firsts = [_below(path, whole)[:1] for path in paths]
    stems = {_stem(at) for found in firsts for at in found}
    return firsts if all(firsts) and len(stems) == 1 and "" not in stems else []


def _stem(path: str) -> str:
    """``layer`` for a module called ``layer3``; ``""`` where no number follows a word."""
    found = _COUNTED.fullmatch(path.rpartition(".")[2])
    return found[1] if found else ""


def _run(graph: Graph, row: Sequence[int], path: str) -> tuple[int, str]:
    """Which run of the module at ``path`` a sum was made in; of one that is never called itself,
    its path alone."""
    return next((call for call in row if graph.calls[call].path == path), -1), path


def _alone(graph: Graph, call: int, called: set[str], repeats: bool) -> bool:
    """Whether a module in which all sums stand beside each other is one block: of a list, and
    where some of its steps are alike, its only one, in which no module runs twice."""
    whole = graph.calls[call].path
    in_list = bool(_slots(whole, "", called) or _stem(whole))
    return in_list and (not repeats or (_sole(whole, called) and not _loops(graph, call)))


def _loops(graph: Graph, call: int) -> bool:
    """Whether a module runs several times in a call."""
    inside = {call}
    for k, (_, parent, _) in enumerate(graph.calls[call + 1 :], call + 1):
        if parent in inside:
            inside.add(k)
    return len({graph.calls[k].path for k in inside}) < len(inside)


def _numbered(path: str) -> bool:
    return path.rpartition(".")[2].isdecimal()


def _sole(path: str, called: set[str]) -> bool:
    """Whether a module is the only one of a list that was called."""
    holder = path.rpartition(".")[0]
    beside = [at for at in called - {path, ""} if at.rpartition(".")[0] == holder]
    if _numbered(path) or holder not in called:
        return not beside
    return bool(_stem(path)) and all(_stem(at) != _stem(path) for at in beside)
