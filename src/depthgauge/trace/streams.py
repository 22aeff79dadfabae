"""Streams: merges in a row, each taking its skip from what the one before passed on.

A merge inside a branch of another is inner. The outermost ones are linked: where a skip leads back
to an earlier merge without weights they are one segment, through layers without a skip they are
one stream in two segments, and where it leads to another source they are two streams.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from depthgauge.equation.branches import common, ordered
from depthgauge.trace.graph import common_path
from depthgauge.trace.merges import Merge, chain
from depthgauge.trace.roles import Roles, worst

__all__ = ["Branch", "Link", "Stream", "region", "streams"]


@dataclass(frozen=True, slots=True)
class Branch:
    """What is added at a merge: its terms, the tensor that it was computed from, ``m`` weight
    layers in series, where it has norms."""

    terms: tuple[int, ...]
    begin: int
    m: int
    norm_at: tuple[str, ...]
    inner: int
    path: str


@dataclass(frozen=True, slots=True)
class Link:
    """One outermost merge of a stream.

    ``before`` is the tensor that the stream was before it, ``after`` what it passes on (through a
    norm or an activation that stands on the stream). ``broken``: layers without a skip stand
    between the merge before and this one. ``fraction``: how much of the stream is written.
    """

    merge: Merge
    branches: tuple[Branch, ...]
    before: int
    after: int
    broken: bool
    fraction: float
    kind: str  # of the skip, with what is done to the stream after the sum
    trimmed: int  # ``after`` without a norm that the head reads


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
    outer, inside = _nested(roles, merges)
    rows = _linked(roles, outer)
    found = []
    stops = {merge.value for merge in outer}
    for source, row in rows:
        places = {merge.value: k for k, merge in enumerate(row)}
        carried = _carried(roles, row)
        links = [
            _link(roles, row, k, places, inside[row[k].value], stops, aside, carried)
            for k in range(len(row))
        ]
        links[-1] = _closed(links)
        found.append(Stream(source, links))
    for stream in found:
        stream.name = _name(roles, stream)
    _tell_apart(found)
    return found


# ------------------------------------------------------------------------------- nesting


def _nested(roles: Roles, merges: Sequence[Merge]) -> tuple[list[Merge], dict[int, list[Merge]]]:
    """The outermost merges, and by merge those that stand in its branches."""
    regions = {m.value: _branches_of(roles, m) - {m.value} for m in merges}
    left_out = _injections(roles, merges) | _crossing(roles, merges, regions)
    owner: dict[int, Merge] = {}
    outer: list[Merge] = []
    aside: list[Merge] = []
    carried: set[int] = set()  # what the skips of outermost merges lead back to
    inside: dict[int, list[Merge]] = {}
    for merge in reversed(merges):
        if merge.value in left_out:
            continue
        holder = owner.get(merge.value)
        if holder is not None:
            place = regions[holder.value]
            users = roles.graph.consumers[merge.value]
            ends = all(i in place or i == holder.value for i in users)
            if ends and merge.value not in carried:
                # One whose skip comes from elsewhere is a side path that ends in the branch.
                if merge.root in place or merge.root in (holder.root, *holder.starts):
                    inside[holder.value].append(merge)
                else:
                    aside.append(merge)
                continue
        outer.append(merge)
        carried |= chain(roles, merge.root).keys()
        inside[merge.value] = []
        for i in regions[merge.value]:
            owner[i] = merge  # of several around a value the innermost, which runs first
    values = {merge.value for merge in outer}
    for merge in aside[::-1]:  # the last of a stream that is read by another's branch alone
        if not values.isdisjoint(chain(roles, merge.root)):
            outer.append(merge)
            values.add(merge.value)
            inside[merge.value] = []
    return sorted(outer, key=lambda merge: merge.value), inside


def _crossing(roles: Roles, merges: Sequence[Merge], regions: dict[int, set[int]]) -> set[int]:
    """Merges whose skip leaves from inside another's branch, not from a merge there, and ends
    outside of it: the first layer's values added to all later ones, a sum of all layers' outputs.
    """
    values = {merge.value for merge in merges}
    holders: dict[int, list[int]] = {}
    for merge in merges:
        for i in regions[merge.value]:
            holders.setdefault(i, []).append(merge.value)
    return {
        merge.value
        for merge in merges
        if any(
            m != merge.value and merge.value not in regions[m]
            for m in holders.get(_source(roles, merge.root), ())
        )
        and values.isdisjoint(chain(roles, merge.root))
    }


def _branches_of(roles: Roles, merge: Merge) -> set[int]:
    """The values of all branches of a merge, each from where it begins."""
    found: set[int] = set()
    for k, terms in enumerate(merge.branches):
        found |= region(roles, merge.start(k), terms)
    return found


def _injections(roles: Roles, merges: Sequence[Merge]) -> set[int]:
    """Sums that mix one early tensor into the stream at several places: no branches of their own.

    All their terms are the stream itself, carried on without weights.
    """
    by_root: dict[int, list[int]] = {}
    values = {m.value for m in merges}
    for merge in merges:
        bare = all(
            values & set(chain(roles, term)) and not roles.moves(term) for term in merge.terms
        )
        if bare:
            by_root.setdefault(merge.root, []).append(merge.value)
    return {i for found in by_root.values() if len(found) > 1 for i in found}


def region(
    roles: Roles, root: int, terms: Sequence[int], stops: Collection[int] = (), own: int = -1
) -> set[int]:
    """The values between ``root`` and the terms: computed from it, and they from these.

    A value among ``stops``, other than ``own``, is a leaf like ``root``: an outermost merge of
    another stream.
    """
    flow = roles.flow
    below = {i for i in terms if i >= root}
    todo = list(below)
    leaves: set[int] = set()
    while todo:
        i = todo.pop()
        if i in stops:
            if i != own:
                leaves.add(i)
            if i not in terms:
                continue
        for j in flow[i]:
            if j >= root and j not in below:
                below.add(j)
                todo.append(j)
    found = {root, *leaves}
    for i in sorted(below):
        if not found.isdisjoint(flow[i]):
            found.add(i)
    found -= leaves.difference(terms)
    found.discard(root)
    return found


# ------------------------------------------------------------------------------- linking


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
            sources.append(_source(roles, merge.root))
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
    key = min(own) if len(own) == 1 else _source(roles, merge.root)
    if len(own) > 1:
        return len(rows)
    return begun.setdefault(key, len(rows))


def _source(roles: Roles, root: int) -> int:
    """The first tensor of the stream that ``root`` carries, by way of views and copies alone."""
    at = root
    while roles.values[at].kind in ("shape", "drop"):
        steps = roles.back(at)
        if len(steps) != 1:
            break
        at = steps[0].value
    return at


# ----------------------------------------------------------------------------- one merge


def _link(
    roles: Roles,
    row: Sequence[Merge],
    place: int,
    places: Mapping[int, int],
    nested: Sequence[Merge],
    stops: Collection[int],
    aside: Collection[int],
    carried: Sequence[str],
) -> Link:
    """The merge at ``place`` in its stream's ``row``, where a merge's value is at ``places``.
    ``nested`` stand in its branches; ``stops`` are all outermost merges; ``aside`` as in
    ``streams``, ``carried`` as in ``_carried``."""
    merge = row[place]
    last = max((k for i in chain(roles, merge.root) if (k := places.get(i, place)) < place),
               default=None)  # fmt: skip
    start = merge.root
    if merge.kind == "projected" and last is not None:
        start = _shared(roles, row[last], merge.root, carried)[0]
    after, normed, trimmed = _passed_on(roles, row, place, aside, carried)
    paths = []
    for k, terms in enumerate(merge.branches):
        begin = merge.start(k) if merge.starts and merge.starts[k] != merge.root else start
        inside = region(roles, begin, terms, stops, merge.value)
        order = sorted(inside)
        flags = _flags(roles, order, begin, terms)
        inner = sum(m.value in inside for m in nested) + (len(terms) > 1)
        if normed:
            flags = ordered((*flags, "stream"))
        depths = _depths(roles, order, begin)
        m = max(depths.get(term, 0) for term in terms)
        paths.append(Branch(terms, begin, m, flags, inner, _path(roles, order, merge)))
    return Link(
        merge,
        tuple(paths),
        before=merge.root,
        after=after,
        broken=place > 0 and last is None,
        fraction=_fraction(roles, merge),
        kind=worst(merge.kind, _factor_after(roles, merge.value, after)),
        trimmed=trimmed,
    )


def _passed_on(
    roles: Roles,
    row: Sequence[Merge],
    place: int,
    aside: Collection[int],
    carried: Sequence[str],
) -> tuple[int, bool, int]:
    """What the next merge takes its skip from, whether a norm stands on the way there, and the
    value before that norm."""
    merge = row[place]
    for k in range(place + 1, len(row)):
        other = row[k]
        back = chain(roles, other.root)
        if merge.value in back:
            if other.kind == "projected" and _norms(roles, other.root, merge):
                after, normed = _shared(roles, merge, other.root, carried)
                return after, normed, after  # behind it read by branch and projection alike
            normed = back[merge.value] == "normed" or _norms(roles, other.root, merge)
            return other.root, normed, other.root
    return _last(roles, merge, aside) if merge is row[-1] else (merge.value, False, merge.value)


def _carried(roles: Roles, row: Sequence[Merge]) -> list[str]:
    """The kinds of norms and fixed numbers that stand on the stream behind a sum, where an identity
    skip takes it on: of the sum that has most. Asked for projections alone."""
    if not any(merge.kind == "projected" for merge in row):
        return []
    rows = (_between(roles, b.root, a) for a, b in pairwise(row) if b.kind != "projected")
    return [kind for _, kind in max(rows, key=len, default=[])]


def _shared(roles: Roles, merge: Merge, root: int, carried: Sequence[str]) -> tuple[int, bool]:
    """What the stream passes on from a merge to the branch and the projection that both begin at
    ``root``, and whether it is normed: it has as many norms and fixed numbers behind the sum as
    elsewhere; what follows is the next block's own."""
    at, normed = merge.value, False
    for (i, kind), other in zip(_between(roles, root, merge), carried, strict=False):
        if kind != other:
            break
        at, normed = i, normed or kind == "normed"
    return at, normed


def _between(roles: Roles, i: int, merge: Merge) -> list[tuple[int, str]]:
    """The norms and fixed numbers on the weight-free path from a merge to value ``i``, each with
    its kind, up to an activation; none where there is no such path."""
    found: list[tuple[int, str]] = []
    while i != merge.value:
        steps = roles.back(i)
        if len(steps) != 1:
            return []
        if steps[0].kind == "mixed":
            found = []
        elif steps[0].kind != "identity":
            found.append((i, steps[0].kind))
        i = steps[0].value
    return found[::-1]


def _factor_after(roles: Roles, sum_: int, after: int) -> str:
    """The factor that the whole sum is given before the stream goes on: ``(x + f) / sqrt(2)``."""
    kind = chain(roles, after).get(sum_, "identity")
    return kind if kind in ("scaled", "per-channel") else "identity"


def _closed(links: list[Link]) -> Link:
    """The last link, with its trailing norm taken as the stream's own or as the head's.

    It is the stream's where earlier merges of the same form have one there, or where a single merge
    has no other norm; the final norm of a pre-norm stack is read by the head alone.
    """
    last = links[-1]
    bare = [tuple(f for f in b.norm_at if f != "stream") for b in last.branches]
    alike = [
        link for link in links[:-1]
        if [tuple(f for f in b.norm_at if f != "stream") for b in link.branches] == bare
    ]  # fmt: skip
    own = any("stream" in b.norm_at for link in alike for b in link.branches)
    if own or (len(links) == 1 and not any(bare)):
        return last
    branches = tuple(replace(b, norm_at=f) for b, f in zip(last.branches, bare, strict=True))
    return replace(last, branches=branches, after=last.trimmed)


def _norms(roles: Roles, i: int, merge: Merge) -> bool:
    """Whether a norm stands between the merge and value ``i`` on its weight-free path."""
    todo, seen = [(i, False)], set()
    while todo:
        at, normed = todo.pop()
        if at == merge.value:
            return normed
        if at not in seen:
            seen.add(at)
            todo += [(s.value, normed or s.kind == "normed") for s in roles.back(at)]
    return False


def _last(roles: Roles, merge: Merge, aside: Collection[int]) -> tuple[int, bool, int]:
    """The end of a segment, whether a norm follows on the stream, and the value before it."""
    at, normed, before = merge.value, False, -1
    kept = at  # the latest that is more than a view
    while True:
        norm = None if normed else _norm_of(roles, at, aside)
        users = [u for u in roles.graph.consumers[at] if roles.values[u].data and u not in aside]
        if norm is not None:
            normed, before, at, kept = True, kept, norm, norm
        elif len(users) == 1 and (
            _goes_on(roles, at, users[0]) or (normed and _affine(roles, at, users[0]))
        ):
            at = users[0]
            kept = kept if roles.values[at].kind in ("shape", "drop") else at
        else:
            return kept, normed, before if normed else kept


def _norm_of(roles: Roles, i: int, aside: Collection[int] = ()) -> int | None:
    """The norm of value ``i`` or of a view of it, also one that is written out in several
    functions, if nothing else reads the value."""
    near, views, todo = {i}, {i}, [i]
    found = None
    while todo and len(near) < 16:
        at = todo.pop()
        for user in (user for user in roles.graph.consumers[at] if user not in aside):
            if at in views and roles.values[user].kind == "shape":
                views.add(user)
            if roles.norm_of(user) in views:
                found = user if found in (None, user) else -1
            elif user not in near and roles.values[user].kind in _STATISTICS:
                near.add(user)
                todo.append(user)
            elif user not in near:
                return None
    return found if found != -1 else None


_STATISTICS = ("reduce", "point", "sum", "product", "shape")


def _goes_on(roles: Roles, i: int, user: int) -> bool:
    """Whether the stream goes on in ``user``: active, seen otherwise, times or plus a number."""
    value = roles.values[user]
    if value.shape != roles.values[i].shape:
        return False
    number = value.kind in ("product", "sum") and len(value.inputs) == 1 and not roles.bends(user)
    return value.kind in ("act", "shape", "drop") or number


def _affine(roles: Roles, i: int, user: int) -> bool:
    """Whether ``user`` is the learned gain or bias of a norm that ends in value ``i``."""
    value = roles.values[user]
    others = [roles.values[j] for j in value.inputs if j != i]
    learned = len(others) == 1 and others[0].param and not others[0].data
    return value.kind in ("product", "sum") and learned and value.shape == roles.values[i].shape


def _depths(roles: Roles, place: Sequence[int], start: int) -> dict[int, int]:
    """The most weight layers in series from the start to each value of a region."""
    depths = {start: 0}
    flow, layers = roles.flow, roles.layers
    for i in place:
        below = 0
        for j in flow[i]:
            if depths.get(j, 0) > below:
                below = depths[j]
        depths[i] = below + layers(i)
    return depths


def _flags(roles: Roles, place: Sequence[int], start: int, terms: Sequence[int]) -> tuple[str, ...]:
    """Norms before, between and after the weight layers of a branch.

    Without a weight layer, before and after what mixes positions. Norms of another stream, on the
    way to attention that reads it, are not the branch's.
    """
    flow, layers = roles.flow, roles.layers
    layered = any(map(layers, place))
    weighs = layers if layered else roles.moves
    own, order, heavy = {start}, list[int](), set[int]()
    weighed: set[int] = set()  # below a weight layer
    for i in place:
        below = flow[i]
        if not own.isdisjoint(below):
            own.add(i)
            order.append(i)
            if weighs(i):
                heavy.add(i)
                weighed.add(i)
            elif not weighed.isdisjoint(below):
                weighed.add(i)
    flags: set[str] = set()
    own.discard(start)
    # Bits: 1 where a path to a term meets no weight layer, 2 where one meets one.
    seen = {i: 1 for i in terms if i in own}
    for i in reversed(order):
        if not (paths := seen.get(i, 0)):
            continue
        if roles.norm_of(i) is not None and not _shares(roles, i):
            if i not in weighed:
                flags.add("in")
            else:
                flags.update(word for bit, word in ((1, "out"), (2, "inner")) if paths & bit)
        down = 2 if i in heavy else paths
        for j in flow[i]:
            if j in own:
                seen[j] = seen.get(j, 0) | down
    return ordered(flags)


def _shares(roles: Roles, i: int) -> bool:
    """Whether a norm is taken of shares, the weights of experts, and not of activations."""
    at = roles.norm_of(i)
    for _ in range(6):
        if at is None or roles.values[at].kind == "softmax":
            return at is not None
        moving = roles.moving(roles.values[at].inputs)
        if roles.values[at].kind not in ("shape", "reduce", "point", "sum") or len(moving) != 1:
            return False
        at = moving[0]
    return False


def _fraction(roles: Roles, merge: Merge) -> float:
    """Elements written, of those of the tensor that the skip is a slice of."""
    at, size = merge.skip, _size(roles, merge.skip)
    whole = size
    while at != merge.root and roles.values[at].kind == "shape" and roles.values[at].inputs:
        at = roles.values[at].inputs[0]
        whole = max(whole, _size(roles, at))
    if roles.values[at].kind == "shape" and roles.values[at].name in (
        "getitem", "narrow", "select", "chunk", "split", "unbind", "index_select",
    ):  # fmt: skip
        whole = max(whole, _size(roles, roles.values[at].inputs[0]))
    return size / whole if whole else 1.0


def _size(roles: Roles, i: int) -> int:
    size = 1
    for n in roles.values[i].shape:
        size *= n
    return size


# --------------------------------------------------------------------------------- names


def _path(roles: Roles, place: Sequence[int], merge: Merge) -> str:
    """The smallest module that holds a branch's weight layers; where that is the module of the
    merge itself, the branch's last layer."""
    own = roles.graph.path(merge.value)
    paths = [roles.graph.path(i) for i in place if roles.moves(i)]
    if not paths:
        return own
    common = common_path(paths)
    return paths[-1] if common == own or own.startswith(f"{common}.") or not common else common


def _name(roles: Roles, stream: Stream) -> str:
    """The path that the modules of all its merges share: ``transformer.h``."""
    return common_path(roles.graph.path(link.merge.value) for link in stream.links) or "h"


def _tell_apart(found: list[Stream]) -> None:
    names = [stream.name for stream in found]
    for k, stream in enumerate(found):
        if names.count(stream.name) > 1:
            stream.name = f"{stream.name}#{names[: k + 1].count(names[k])}"
