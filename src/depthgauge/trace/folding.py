"""Which steps of a stream make a block, and which blocks in a row are shown as one.

A block is a module of a list (``listing``); else what repeats. One block that was made otherwise is
still one: blocks are all of one length where every one has a step in common with what most of them
are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final

from depthgauge.trace.reading import Read

__all__ = ["Fold", "folded", "folds_of", "parted", "repeats", "sizes_of"]

#: The first step, steps in a unit, how often it repeats.
Fold = tuple[int, int, int]
#: Blocks in a row that differ in what their learned numbers begin with, to be shown as one.
_EACH: Final = 3


def folded(items: Sequence[object]) -> list[Fold]:
    """Repetitions: (start, items in a unit, times), in order, covering the sequence.

    At each place the unit that covers most by repeating; a shorter one where two cover the same.
    """
    numbers: dict[object, int] = {}
    same = {id(item): item for item in items}  # most are one object many times
    of = {number: numbers.setdefault(item, len(numbers)) for number, item in same.items()}
    row = [of[id(item)] for item in items]
    out: list[Fold] = []
    at, total = 0, len(row)
    while at < total:
        best = (1, 1)
        for unit in range(1, (total - at) // 2 + 1):
            if best[1] > 1 and best[0] * best[1] + unit > total - at:
                break  # nothing longer than what is covered is left
            if row[at] != row[at + unit]:
                continue
            times = 1
            while row[at + times * unit : at + (times + 1) * unit] == row[at : at + unit]:
                times += 1
            if times > 1 and (best == (1, 1) or unit * times > best[0] * best[1]):
                best = (unit, times)
        out.append((at, *best))
        at += best[0] * best[1]
    return out


# ------------------------------------------------------------------------------- blocks


def sizes_of(read: Sequence[Read], places: Sequence[int] = ()) -> list[int]:
    """How many steps each block has: those of one place of ``places``, which are the blocks that
    the steps stand in where modules of a list tell; else those that repeat."""
    if places:
        return [len(list(block)) for _, block in groupby(places)]
    for rows in ([r.form for r in read], [r.outline for r in read]):
        folds = folded(rows)
        if unit := folds[0][1] if len(folds) == 1 else _aligned(rows):
            return [unit] * (len(read) // unit)
    return [steps for _, steps, times in folds_of(read, [1] * len(read)) for _ in range(times)]


def repeats(read: Sequence[Read]) -> bool:
    """Whether some steps in a row stand there several times."""
    return any(times > 1 for _, _, times in folded([r.outline for r in read]))


def _aligned(row: Sequence[object]) -> int:
    """The steps of a block where one kind of block is more than half of all, and every other has a
    step in common with it; 0 if there is no such length."""
    for unit in (n for n in range(1, len(row) // 2 + 1) if len(row) % n == 0):
        blocks = [tuple(row[k : k + unit]) for k in range(0, len(row), unit)]
        ((usual, times),) = Counter(blocks).most_common(1)
        alike = all(any(a == b for a, b in zip(usual, block, strict=True)) for block in blocks)
        if 2 * times > len(blocks) and (alike or unit == 1):
            return unit
    return 0


def folds_of(read: Sequence[Read], sizes: Sequence[int]) -> list[Fold]:
    """The repetitions of blocks of these sizes, in steps; by their forms or, where these are
    shorter, by their outlines."""
    ends = list(accumulate(sizes, initial=0))
    blocks = [read[a:b] for a, b in pairwise(ends)]
    folds = folded([tuple(r.form for r in block) for block in blocks])
    if len(folds) > 1:
        outlines = [tuple(r.outline for r in block) for block in blocks]
        folds = min(folds, folded(outlines), key=len)
    return [(ends[at], ends[at + unit] - ends[at], times) for at, unit, times in folds]


# ---------------------------------------------------------------------------------- runs


def parted(rounds: Sequence[tuple[Read, ...]]) -> list[tuple[int, int]]:
    """The repetitions of a fold as they are shown, parted where blocks differ in more than their
    outline: ``(repetitions in a unit, times)``.

    Of blocks each of which begins with scalars of its own, as training leaves them, three or more
    are shown as one.
    """
    if len({tuple(map(id, each)) for each in rounds}) == 1:
        return [(1, len(rounds))]
    out: list[tuple[int, int]] = []
    for _, formed in groupby(rounds, lambda each: [r.form for r in each]):
        alike = list(formed)
        chosen = [tuple(r.chosen for r in each) for each in alike]
        distinct = len(set(chosen)) == len(chosen)
        folds = [(k, 1, 1) for k in range(len(chosen))] if distinct else folded(chosen)
        for single, row in groupby(folds, lambda fold: fold[1:] == (1, 1)):
            places = list(row)
            if single and _trained([alike[start] for start, _, _ in places]):
                out.append((1, len(places)))
            else:
                out += [(unit, times) for _, unit, times in places]
    return out


def _trained(rounds: Sequence[tuple[Read, ...]]) -> bool:
    """Whether blocks differ in scalars alone, each having its own."""
    if len(rounds) < _EACH or len({tuple(r.chosen for r in each) for each in rounds}) < len(rounds):
        return False
    return len({tuple(r.gained for r in each) for each in rounds}) == 1
