"""Counting: the residual branches of one block, and the weight layers in series in each (m).

A *cut* is an operation through which every path from the states to the updated value runs, so
``u = h + A(h); h = u + F(u)`` counts like ``h = h + A(h); h = h + F(h)``. What lies between two
cuts is one merge (a sum of a skip and branches), or steps of a plain layer, or a weight-free
wrapper of what stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from depthgauge.equation.branches import COEFFICIENTS, Branch, Count, Merge, ordered, worst
from depthgauge.equation.nodes import Add, Block, Dropout, Norm
from depthgauge.equation.regions import Op, Region, Term, graph
from depthgauge.errors import expect

__all__ = ["Branch", "Count", "Merge", "count"]


def count(block: Block) -> Count:
    """Merges, branches and plain layers of one block; the same whatever L and the names are."""
    expect("block", block, Block, "a Block; parse(equation) gives one")
    ops, updates = graph(block)
    pieces = _folded([piece for value in updates for piece in _pieces(ops, value)])
    plain = [piece for piece in pieces if isinstance(piece, _Plain)]
    return Count(
        merges=tuple(piece for piece in pieces if isinstance(piece, Merge)),
        plain=tuple(piece.m for piece in plain),
        plain_norm_at=ordered(flag for piece in plain for flag in piece.norm_at),
    )


@dataclass(frozen=True, slots=True)
class _Plain:
    m: int
    norm_at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """Weight-free steps on the stream: its norms, and the coefficient before them."""

    norms: tuple[Norm, ...]
    kind: str
    factor: float


_Piece: TypeAlias = Merge | _Plain | _Wrapper


def _pieces(ops: Sequence[Op], value: int) -> list[_Piece]:
    """One update from the state upwards: merges, and the runs of steps before and after them."""
    pieces: list[_Piece] = []
    start: frozenset[int] = frozenset()  # the last merge, from which a run goes on
    last, run = start, -1
    for point in [*Region(ops).cuts(value), value]:
        if merge := Region(ops, last).merge(point):
            pieces += [_run(Region(ops, start), run)] if run >= 0 else []
            pieces.append(merge)
            start, run = frozenset({point}), -1
        else:
            run = point
        last = frozenset({point})
    return pieces + ([_run(Region(ops, start), run)] if run >= 0 else [])


def _run(region: Region, i: int) -> _Piece:
    if m := region.depth(i):
        return _Plain(m, region.norm_at(i))
    *steps, base = region.steps(i)
    by = Term(base)
    for step in reversed(steps) if region.leaf(base) else ():
        if scaled := region.scaled(step):
            by = by.times(scaled)
        elif not isinstance(region.ops[step].node, Add | Dropout):
            break
    nodes = [region.ops[step].node for step in steps]
    return _Wrapper(tuple(n for n in nodes if isinstance(n, Norm)), by.coefficient, by.number)


def _folded(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Wrappers folded into what they wrap. One that opens a block goes with the layer that
    follows or, blocks being repeated, wraps the last merge of the block before."""
    kept: list[_Piece] = []
    leading: list[_Wrapper] = []
    for piece in pieces:
        if not isinstance(piece, _Wrapper):
            kept.append(piece)
        elif kept:
            kept[-1] = _wrap(kept[-1], piece, "out")
        else:
            leading.append(piece)
    for piece in leading if kept else ():
        at = 0 if isinstance(kept[0], _Plain) else -1
        kept[at] = _wrap(kept[at], piece, "out" if at else "in")
    return kept


def _wrap(piece: _Piece, wrapper: _Wrapper, plain_flag: str) -> _Piece:
    def flagged(norm_at: tuple[str, ...], flag: str) -> tuple[str, ...]:
        return ordered((*norm_at, flag)) if wrapper.norms else norm_at

    if isinstance(piece, _Plain):
        return replace(piece, norm_at=flagged(piece.norm_at, plain_flag))
    assert isinstance(piece, Merge)
    normed = "stream" in piece.branches[0].norm_at  # what comes after a norm scales no skip
    factor = 1.0 if normed else wrapper.factor
    on_stream = tuple(("stream", norm) for norm in wrapper.norms)
    branches = tuple(
        replace(
            b,
            norm_at=flagged(b.norm_at, "stream"),
            factor=b.factor * factor,
            norms=(*b.norms, *on_stream),
        )
        for b in piece.branches
    )
    fixed = normed or piece.skip not in COEFFICIENTS
    kind = piece.skip if fixed else worst(piece.skip, wrapper.kind)
    return Merge(branches, kind, piece.factor * factor, piece.learned)
