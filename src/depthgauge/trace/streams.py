"""Streams: merges in a row, each taking its skip from what the one before passed on.

A merge inside a branch of another is inner. The outermost ones are linked: where a skip leads back
to an earlier merge without weights they are one segment, through layers without a skip they are
one stream in two segments, and where it leads to another source they are two streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from depthgauge.equation.branches import common, ordered
from depthgauge.trace.graph import common_path
from depthgauge.trace.links import Branch, Link, carried_by, closed, link_of
from depthgauge.trace.merges import Merge
from depthgauge.trace.nesting import nested, source_of
from depthgauge.trace.roles import Roles

__all__ = ["Stream", "streams"]


@dataclass
class Stream:
    """Merges in forward order, and the value it begins with."""

    source: int
    links: list[Link] = field(default_factory=list)
    name: str = ""

    @property
    def branches(self) -> list[Branch]:
        return [branch for link in self.links for branch in link.branches]

    @property
    def norm_at(self) -> tuple[str, ...]:
        return ordered(flag for branch in self.branches for flag in branch.norm_at)

    @property
    def skip(self) -> str:
        return common((link.kind for link in self.links), default="none")

    @property
    def inner(self) -> int:
        return sum(branch.inner for branch in self.branches)

    @property
    def projected(self) -> int:
        return sum(link.merge.kind == "projected" for link in self.links)

    @property
    def parallel(self) -> int:
        return sum(len(link.branches) > 1 for link in self.links)

    @property
    def segments(self) -> int:
        return 1 + sum(link.broken for link in self.links[1:])

    @property
    def end(self) -> int:
        return self.links[-1].after if self.links else self.source


def streams(roles: Roles, merges: Sequence[Merge], aside: Collection[int] = ()) -> list[Stream]:
    """The streams, in the order in which their first outermost merges run; ``aside``: values that
    read a stream and are no part of it, a second sum of its branches."""
    if not merges:
        return []
    outer, inside = nested(roles, merges)
    rows = _linked(roles, outer)
    found = []
    stops = {merge.value for merge in outer}
    for source, row in rows:
        places = {merge.value: k for k, merge in enumerate(row)}
        carried = carried_by(roles, row)
        links = [
            link_of(roles, row, k, places, inside[row[k].value], stops, aside, carried)
            for k in range(len(row))
        ]
        links[-1] = closed(links)
        found.append(Stream(source, links))
    for stream in found:
        stream.name = _name(roles, stream)
    _tell_apart(found)
    return found


def _linked(roles: Roles, outer: Sequence[Merge]) -> list[tuple[int, list[Merge]]]:
    """Source and merges of each stream.

    Every value knows the streams that it was computed from; a merge belongs to the stream of its
    skip, whatever its branches read.
    """
    at = {merge.value: merge for merge in outer}
    sources: list[int] = []
    rows: list[list[Merge]] = []
    nothing = frozenset[int]()
    known: list[frozenset[int]] = []
    origins: list[frozenset[int]] = []  # found where two tensors are first joined
    begun: dict[int, int] = {}  # the source of a stream, or where two were joined -> its number
    for i, below in enumerate(roles.flow):
        if (merge := at.get(i)) is None:
            if len(below) < 2:
                known.append(known[below[0]] if below else nothing)
                continue
            sets = {known[j] for j in below if known[j]}
            own = sets.pop() if len(sets) == 1 else nothing.union(*sets)
            # Beside other data of the batch (words after an image) a stream becomes a new one.
            if own and roles.values[i].kind == "join":
                origins = origins or _origins(roles)
                if _foreign(origins, below, known, own, sources):
                    own = frozenset((-1 - i,))
            known.append(own)
            continue
        number = _number(roles, merge, known, rows, begun)
        if number == len(rows):
            sources.append(source_of(roles, merge.root))
            rows.append([])
        rows[number].append(merge)
        known.append(frozenset((number,)))
    return list(zip(sources, rows, strict=True))


def _origins(roles: Roles) -> list[frozenset[int]]:
    """For each value the parts of the batch that it was computed from."""
    found: list[frozenset[int]] = []
    for value in roles.values:
        if value.kind == "input":
            found.append(frozenset((value.index,)))
        else:
            sets = {found[j] for j in value.inputs if found[j]}
            found.append(sets.pop() if len(sets) == 1 else frozenset().union(*sets))
    return found


def _foreign(
    origins: list[frozenset[int]],
    joined: Sequence[int],
    known: list[frozenset[int]],
    own: frozenset[int],
    sources: list[int],
) -> bool:
    """Whether a join brings in a part of the batch that the streams in it have not seen."""
    seen = frozenset().union(*(origins[sources[k]] for k in own if k >= 0))
    # A stream that begins with parameters has seen what it was made of since.
    seen = seen or frozenset().union(*(origins[j] for j in joined if known[j]))
    fresh = [origins[j] for j in joined if not known[j] and origins[j]]
    return bool(seen) and any(seen.isdisjoint(origin) for origin in fresh)


def _number(
    roles: Roles,
    merge: Merge,
    known: list[frozenset[int]],
    rows: list[list[Merge]],
    begun: dict[int, int],
) -> int:
    """The stream that a merge belongs to; a new one where its skip comes from none or several."""
    own = known[merge.root] or known[merge.skip]
    if len(own) > 1:  # several resolutions meet: the one of this size goes on
        size = roles.values[merge.value].shape
        alike = {k for k in own if k >= 0 and roles.values[rows[k][-1].value].shape == size}
        own = frozenset(alike) if len(alike) == 1 else own
    if len(own) == 1 and min(own) >= 0:
        return min(own)
    key = min(own) if len(own) == 1 else source_of(roles, merge.root)
    if len(own) > 1:
        return len(rows)
    return begun.setdefault(key, len(rows))


def _name(roles: Roles, stream: Stream) -> str:
    """The path that the modules of all its merges share: ``transformer.h``."""
    return common_path(roles.graph.path(link.merge.value) for link in stream.links) or "h"


def _tell_apart(found: list[Stream]) -> None:
    names = [stream.name for stream in found]
    for k, stream in enumerate(found):
        if names.count(stream.name) > 1:
            stream.name = f"{stream.name}#{names[: k + 1].count(names[k])}"
