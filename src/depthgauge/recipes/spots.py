"""Where in a network a weight stands: in which kind of branch, and which of its weights it is.

A mistake in a rule's number is made once for a kind of branch, as for cross-attention, and then
shows in all branches of it, whatever list holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from depthgauge.trace.counted import Layout

__all__ = ["Spot", "Spots", "spots_of"]


class Spot(NamedTuple):
    """``branch``: what tells one kind of branch from another; ``place``: the weight in it."""

    branch: Any
    place: Any = None


#: By path and rows of a weight.
Spots: TypeAlias = Mapping[tuple[str, tuple[int, ...] | None], Spot]


def spots_of(found: Layout) -> Spots:
    """Of each weight of a branch. Branches are of one kind if their stream is the same, what the
    weights are (of queries, keys, values; reading the stream or not, as keys of another stream do
    not), and whether the skip has weights of its own. A weight of several branches is the first's.
    """
    spots: dict[tuple[str, tuple[int, ...] | None], Spot] = {}
    for branch in found.branches:
        parts = tuple((w.role, w.first, w.last, w.table) for w in branch.weights)
        kind = (branch.stream, branch.projected, parts)
        for place, weight in enumerate(branch.weights):
            spots.setdefault((weight.path, weight.rows), Spot(kind, (kind, place)))
    return spots
