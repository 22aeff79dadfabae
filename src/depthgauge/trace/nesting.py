"""Which merges are outermost, and which stand inside a branch of another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from depthgauge.trace.merges import Merge, chain
from depthgauge.trace.roles import Roles

__all__ = ["nested", "region", "source_of"]


def nested(roles: Roles, merges: Sequence[Merge]) -> tuple[list[Merge], dict[int, list[Merge]]]:
    """The outermost merges, and by merge those that stand in its branches."""
    regions = {m.value: _branches_of(roles, m) - {m.value} for m in merges}
    injections = _injections(roles, merges)
    for merge in merges:
        if merge.value in injections:  # the stream goes on through it
            roles.carry(merge.value, max(merge.terms))
    left_out = injections | _crossing(roles, merges, regions)
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
            for m in holders.get(source_of(roles, merge.root), ())
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


def source_of(roles: Roles, root: int) -> int:
    """The first tensor of the stream that ``root`` carries, by way of views and copies alone."""
    at = root
    while roles.values[at].kind in ("shape", "drop"):
        steps = roles.back(at)
        if len(steps) != 1:
            break
        at = steps[0].value
    return at
