"""One outermost merge of a stream: branches, their layers and norms, what it passes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from depthgauge.equation.branches import ordered
from depthgauge.trace.graph import common_path
from depthgauge.trace.merges import Merge, chain
from depthgauge.trace.nesting import region
from depthgauge.trace.roles import Roles, worst
from depthgauge.trace.series import series

__all__ = ["Branch", "Link", "carried_by", "closed", "link_of"]

_STATISTICS = ("reduce", "point", "sum", "product", "shape")


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


def link_of(
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
    ``streams``, ``carried`` as in ``carried_by``."""
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
        depths = series(roles, order)
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


def carried_by(roles: Roles, row: Sequence[Merge]) -> list[str]:
    """The kinds of norms and fixed numbers that stand on the stream behind a sum, where an identity
    skip takes it on: of the sum that has most. Asked for projections alone.

    Where no identity skip tells, modules do: what is called together with the sum in front, apart
    from the sum behind, is the stream's, unless something between two sums is called with the
    latter.
    """
    if not any(merge.kind == "projected" for merge in row):
        return []
    rows = [(a, b, _between(roles, b.root, a)) for a, b in pairwise(row)]
    told = [found for _, b, found in rows if b.kind != "projected" and found is not None]
    if told:
        return [kind for _, kind in max(told, key=len)]
    graph, own = roles.graph, list[list[str]]()
    for a, b, found in rows:
        kinds = list[str]()
        for i, kind in found or ():
            before, behind = graph.around(a.value, i), graph.around(i, b.value)
            if before < behind and not kinds:
                return []
            if before <= behind:
                break
            kinds.append(kind)
        own.append(kinds)
    return max(own, key=len, default=[])


def _shared(roles: Roles, merge: Merge, root: int, carried: Sequence[str]) -> tuple[int, bool]:
    """What the stream passes on from a merge to the branch and the projection that both begin at
    ``root``, and whether it is normed: it has as many norms and fixed numbers behind the sum as
    elsewhere; what follows is the next block's own."""
    at, normed = merge.value, False
    for (i, kind), other in zip(_between(roles, root, merge) or (), carried, strict=False):
        if kind != other:
            break
        at, normed = i, normed or kind == "normed"
    return at, normed


def _between(roles: Roles, i: int, merge: Merge) -> list[tuple[int, str]] | None:
    """The norms and fixed numbers on the weight-free path from a merge to value ``i``, each with
    its kind, up to an activation; None where there is no such path."""
    found: list[tuple[int, str]] = []
    while i != merge.value:
        steps = roles.back(i)
        if len(steps) != 1:
            return None
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


def closed(links: list[Link]) -> Link:
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
            _goes_on(roles, at, users[0])
            or (normed and _affine(roles, at, users[0]))
            or _completes(roles, merge, users[0])
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


def _goes_on(roles: Roles, i: int, user: int) -> bool:
    """Whether the stream goes on in ``user``: active, seen otherwise, times or plus a number."""
    value = roles.values[user]
    if value.shape != roles.values[i].shape:
        return False
    number = value.kind in ("product", "sum") and len(value.inputs) == 1 and not roles.bends(user)
    return value.kind in ("act", "shape", "drop") or number


def _completes(roles: Roles, merge: Merge, user: int) -> bool:
    """Whether ``user`` puts what a merge has written beside the rest of the tensor that it was a
    part of."""
    value, stream = roles.values[user], chain(roles, merge.root).keys()
    rest = [j for j in value.inputs if merge.value not in chain(roles, j)]
    if value.kind != "join" or not rest or any(stream.isdisjoint(chain(roles, j)) for j in rest):
        return False
    return _size(roles, merge.value) == round(_fraction(roles, merge) * _size(roles, user))


def _affine(roles: Roles, i: int, user: int) -> bool:
    """Whether ``user`` is the learned gain or bias of a norm that ends in value ``i``."""
    value = roles.values[user]
    others = [roles.values[j] for j in value.inputs if j != i]
    learned = len(others) == 1 and others[0].param and not others[0].data
    return value.kind in ("product", "sum") and learned and value.shape == roles.values[i].shape


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
    while at != merge.root:
        below = [s.value for s in roles.back(at) if merge.root in chain(roles, s.value)]
        if roles.values[at].kind not in ("shape", "drop", "product") or len(below) != 1:
            break
        at = below[0]
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


def _path(roles: Roles, place: Sequence[int], merge: Merge) -> str:
    """The smallest module that holds a branch's weight layers; where that is the module of the
    merge itself, the branch's last layer."""
    own = roles.graph.path(merge.value)
    paths = [roles.graph.path(i) for i in place if roles.moves(i)]
    if not paths:
        return own
    common = common_path(paths)
    return paths[-1] if common == own or own.startswith(f"{common}.") or not common else common
