"""The local test: a sum where an earlier tensor meets something that was computed from it.

A sum is a *merge* when one of its terms, followed back through operations that only carry it on
(views, dropout, factors, norms, gates), reaches a tensor from which another term was computed
through weights or a mixing of positions. The test needs no source and no output. A term that goes
through weights itself, linearly, is a projected skip when the other bends the same tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from depthgauge.trace.graph import GRAFTED
from depthgauge.trace.roles import KINDS_OF_PATH, Roles, worst

__all__ = ["Merge", "chain", "find", "local", "merges"]

#: Kinds of path on which a stream stays the same stream.
_KEPT = ("identity", "scaled", "per-channel")
_OLDER = 24  # states that a delayed branch may have begun at, at most
_LONGEST = 64  # values on a weight-free path, at most


@dataclass(frozen=True, slots=True)
class Merge:
    """The sum ``value``: a skip from ``root`` by way of the term ``skip``, and branches.

    Each branch is a group of terms, more than one where a term was computed from another.
    ``absorbed`` are sums that were added at once with this one.
    """

    value: int
    root: int
    skip: int
    kind: str
    branches: tuple[tuple[int, ...], ...]
    absorbed: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()  # of branches that begin at an older state than the skip

    def start(self, k: int) -> int:
        """The tensor that branch ``k`` was computed from."""
        return self.starts[k] if self.starts else self.root

    @property
    def terms(self) -> tuple[int, ...]:
        return tuple(term for branch in self.branches for term in branch)


def merges(roles: Roles) -> list[Merge]:
    """Every merge of the graph, also those inside branches, in forward order."""
    live = roles.graph.live
    places = [i for i in [*roles.sums, *_cells(roles)] if i in live]
    injected = _injected(roles, places)
    found = [merge for i in places if (merge := find(roles, i, injected))]
    if not any(roles.values[i].shape for i in roles.graph.outputs):
        found = [merge for merge in found if not _compares(roles, merge)]
    gone = {i for merge in found for i in merge.absorbed}
    return sorted((m for m in found if m.value not in gone), key=lambda m: m.value)


def _compares(roles: Roles, merge: Merge) -> bool:
    """Whether a loss compares the batch itself with what was made of it: no weights follow."""
    if not any(roles.values[i].kind == "input" for i in chain(roles, merge.root)):
        return False
    seen, todo = set(), [merge.value]
    while todo:
        i = todo.pop()
        for user in roles.graph.consumers[i]:
            if roles.moves(user):
                return False
            if user not in seen:
                seen.add(user)
                todo.append(user)
    return True


def _cells(roles: Roles) -> list[int]:
    return [v.index for v in roles.values if v.kind == "cell"]


def _injected(roles: Roles, sums: Collection[int]) -> set[int]:
    """Tensors that are added again at several places where the stream is added too: ``h0`` in
    ``h = 0.9 h + W(h) + 0.1 h0``. At one place it would be a long skip."""
    places = set(sums)
    within = {part for i in sums for part in _flat(roles, i)[1]}  # of a sum that counts for them
    met: Counter[int] = Counter()
    for i in sums:
        if i in within:
            continue
        roots = set()
        for node, _ in _flat(roles, i)[0]:
            back = chain(roles, node)
            bare = [t for t in back if t in places and t != i]
            last = min(back)
            roots.add(max(bare) if bare else last if roles.values[last].kind == "input" else -1)
        roots.discard(-1)
        if len(roots) > 1:
            met.update(roots)
    return {root for root, times in met.items() if times > 1}


def find(roles: Roles, i: int, injected: Collection[int] = ()) -> Merge | None:
    """The merge at value ``i``, or None. A tensor among ``injected`` is its skip only if no other
    is."""
    if roles.values[i].kind == "cell":
        return _cell(roles, i)
    terms, absorbed = _flat(roles, i)
    terms = list(dict(reversed(terms)).items())[::-1] if terms else []
    if len(terms) < 2:
        return None
    nodes = [node for node, _ in terms]
    whole = _size(roles, i)
    if _centres(roles, i, whole):
        return None
    chains = {node: chain(roles, node) for node in nodes}
    # What is spread over the sum, the mean that was taken off before, is no stream.
    bearing = {
        n: c
        for n, c in chains.items()
        if (_size(roles, n) >= whole or roles.values[n].item == GRAFTED) and not _table(roles, n)
    }
    found = None
    if injected and (own := {n: c for n, c in bearing.items() if not set(c) & set(injected)}):
        found = _skip(roles, [n for n in nodes if n in own or n not in bearing], own)
    found = found or _skip(roles, nodes, bearing) or _projection(roles, nodes, bearing)
    if found is None:
        return _delayed(roles, i, nodes, absorbed)
    skip, root, kind, reaches = found
    reaches |= {n: reach(roles, n, root) for n in nodes if n not in reaches}
    coefficient = dict(terms)[skip]
    # Beside a part of the stream behind a mask, the rest of it gated is no branch (a coupling).
    behind = chains[skip] if roles.values[skip].kind == "product" else {}
    masked = [t for t, path in behind.items() if path in ("identity", "per-channel") and t != skip]
    gated = {n for n in nodes if n != skip and any(chains[n].get(t) == "gated" for t in masked)}
    gated = gated if len(gated) < len(nodes) - 1 else set()
    others = [n for n in nodes if n != skip and n not in gated]
    groups = _groups(roles, others, root, reaches)
    if not groups:
        return None
    extra = [n for n in others if all(n not in g for g in groups)]
    total = worst(kind, coefficient, *("gated" for _ in gated))
    starts = [root] * len(groups)
    for node in extra:
        if not roles.values[node].data or root in chains[node]:
            continue
        if (start := _start(roles, node, root)) is not None:
            groups.append((node,))
            starts.append(start)
        else:
            total = worst(total, "mixed")
    begins = tuple(starts) if len(set(starts)) > 1 else ()
    return Merge(i, root, skip, total, tuple(groups), tuple(absorbed), begins)


def _centres(roles: Roles, i: int, whole: int) -> bool:
    """Whether a sum takes off what is spread over it: a mean, weighted or not, a threshold."""
    value = roles.values[i]
    if value.name not in ("sub", "subtract", "isub") or len(value.inputs) != 2:
        return False
    return _size(roles, value.inputs[1]) < whole == _size(roles, value.inputs[0])


def _delayed(roles: Roles, i: int, nodes: list[int], absorbed: list[int]) -> Merge | None:
    """A sum of the stream and a branch that was computed from the stream before the last merge:
    ``c = f(x); x = x + g(x); x = x + c``."""
    for skip in nodes:
        back = chain(roles, skip)
        root = next((t for t in back if roles.values[t].kind == "sum"), None)
        if root is None or back[root] not in (*_KEPT, "normed") or find(roles, root) is None:
            continue
        others = [n for n in nodes if n != skip and roles.values[n].data]
        starts = [_start(roles, n, root) for n in others]
        known = tuple(start for start in starts if start is not None)
        # Behind a norm, only what reads the batch itself again: an older state may be another's.
        injected = all(roles.values[start].kind == "input" for start in known)
        if others and len(known) == len(others) and (back[root] in _KEPT or injected):
            branches = tuple((n,) for n in others)
            return Merge(i, root, skip, back[root], branches, tuple(absorbed), known)
    return None


def _start(roles: Roles, term: int, root: int) -> int | None:
    """The latest state before ``root`` that ``term`` was computed from through weights, past
    ``root`` itself, or None; ``root`` is a merge, and the states before are what it and earlier
    merges carry on."""
    if root in chain(roles, term):  # the stream itself, turned or seen otherwise
        return None
    sum_ = next((t for t in chain(roles, root) if roles.values[t].kind == "sum"), None)
    if sum_ is None or find(roles, sum_) is None:
        return None
    older: list[int] = []
    todo, seen = [sum_], {root, sum_}
    while todo and len(older) < _OLDER:
        at = todo.pop()
        for node, _ in roles.terms(at) if roles.values[at].kind == "sum" else ():
            for t, kind in chain(roles, node).items():
                if kind in (*_KEPT, "normed") and t not in seen:
                    seen.add(t)
                    older.append(t)
                    todo.append(t)
    if not older or term in older:
        return None
    below = reach(roles, term, min(older), sum_)
    return max((t for t in older if below.get(t, 0) & WEIGHED_STATES), default=None)


def _table(roles: Roles, i: int) -> bool:
    """Whether parameters alone are added at several places: a table of positions, no latents."""
    values = roles.values
    if values[i].data:
        return False
    sums = [user for user in roles.graph.consumers[i] if values[user].kind == "sum"]
    own = [user for user in sums if values[user].data]
    if len(sums) < 2 or len(own) > 1:
        return len(sums) > 1
    if not own:  # a state if what was made of it by weights is added to it
        return not any(
            reach(roles, j, i).get(i, 0) & WEIGHED_STATES
            for user in sums
            for j in roles.flow[user]
            if j > i
        )
    # Beside sums of parameters alone: a state if the one sum with data is carried on, a table if
    # only layers read it.
    return all(roles.moves(user) for user in roles.graph.consumers[own[0]])


#: Recurrent cells that keep a stream: which of their inputs enters again gated, and which of their
#: outputs is what it became.
_GATED: Final = {"gru_cell": (1, -1), "lstm_cell": (2, 1)}


def _cell(roles: Roles, i: int) -> Merge | None:
    """A recurrent cell that keeps a stream: its state enters again, gated."""
    value = roles.values[i]
    place, item = _GATED.get(value.name, (0, None))
    if value.item != item or len(value.inputs) <= place:
        return None
    state = value.inputs[place]
    kept = roles.values[state]
    if not (kept.floating and (kept.grad or kept.blind) and (kept.data or kept.param)):
        return None
    back = chain(roles, state)
    found = reach(roles, value.inputs[0], min(back))
    read = [t for t in back if found.get(t, 0) & WEIGHED_STATES]
    return Merge(i, max(read, default=state), state, "gated", ((i,),))


def _flat(roles: Roles, i: int) -> tuple[list[tuple[int, str]], list[int]]:
    """The terms of a sum, those of sums that are used nowhere else in their place; and these sums.

    What a module that was called adds up is one term: a mixture of experts is one branch.
    """
    if (known := roles.flat.get(i)) is not None:
        return known
    out: list[tuple[int, str]] = []
    absorbed: list[int] = []
    todo = roles.terms(i)[::-1]
    sums = roles.sums
    while todo and len(out) < 256:
        node, kind = todo.pop()
        at, through = node, kind
        while roles.values[at].kind in ("shape", "drop", "product") and _used_once(roles, at):
            steps = roles.back(at)
            if len(steps) != 1 or steps[0].kind not in ("identity", "scaled", "per-channel"):
                break
            if _size(roles, steps[0].value) != _size(roles, at):
                break  # another resolution is another place
            at, through = steps[0].value, worst(through, steps[0].kind)
        if at in sums and _used_once(roles, at) and roles.values[at].call == roles.values[i].call:
            absorbed.append(at)
            todo += [(j, worst(through, kind)) for j, kind in reversed(roles.terms(at))]
        else:
            out.append((node, kind))
    roles.flat[i] = out, absorbed
    return out, absorbed


def _used_once(roles: Roles, i: int) -> bool:
    """By what reaches an output: a number that is logged on the way is no use."""
    live = roles.graph.live
    return sum(user in live for user in roles.graph.consumers[i]) == 1


def chain(roles: Roles, i: int) -> Mapping[int, str]:
    """What value ``i`` carries: each tensor on its weight-free paths back, with the path's kind."""
    found = roles.chains.get(i)
    if found is not None:
        return found
    found = {i: "identity"}
    todo = [i]
    while todo and len(found) < _LONGEST:
        at = todo.pop()
        for step in roles.back(at):
            if step.kind == "gated" and _size(roles, step.value) != _size(roles, at):
                continue
            if step.value not in found:
                found[step.value] = worst(found[at], step.kind)
                todo.append(step.value)
    roles.chains[i] = found
    return found


#: Sets of states are bits: bit s is set when a path in state s leads there.
FREE, WEIGHED, FREE_AND_BENT, WEIGHED_AND_BENT = 1 << 0, 1 << 1, 1 << 2, 1 << 3
WEIGHED_STATES = WEIGHED | WEIGHED_AND_BENT


def reach(roles: Roles, term: int, low: int, past: int = -1) -> dict[int, int]:
    """What ``term`` was computed from, no earlier than ``low`` and on paths past the value
    ``past``: value -> states of the paths.

    A state says whether weights (1) and a nonlinearity (2) lie on the path, that value excluded.
    """
    known = roles.reaches.get((term, low, past))
    if known is not None:
        return known
    found: dict[int, int] = {term: FREE}
    todo = [(term, 0)]
    flow, weights = roles.flow, roles.weights
    while todo:
        i, state = todo.pop()
        below = flow[i]
        if below:
            own = weights.get(i)
            state |= roles.weight(i) if own is None else own
            bit = 1 << state
            for j in below:
                if j >= low and j != past:
                    seen = found.get(j, 0)
                    if not seen & bit:
                        found[j] = seen | bit
                        todo.append((j, state))
    roles.reaches[term, low, past] = found
    return found


def local(roles: Roles, terms: list[int]) -> tuple[int, int, str] | None:
    """Which of a sum's own terms is the skip, its root and its kind, or None; asked while the pass
    still runs."""
    terms = [i for i in dict.fromkeys(terms) if _carries(roles, i)]
    if len(terms) < 2:
        return None
    chains = {node: chain(roles, node) for node in terms}
    found = _skip(roles, terms, chains)
    if found is None and (sums := [n for n in terms if roles.values[n].kind == "sum"]):
        # (x + a) + b, while it is not known yet that nothing else will read x + a.
        for node in sums:
            further = dict(chains[node])
            for term, kind in roles.terms(node):
                for t, path in chain(roles, term).items():
                    further.setdefault(t, worst(kind, path))
            chains[node] = further
        found = _skip(roles, terms, chains)
        if found is not None:
            return found[0], found[0], "identity"
    found = found or _projection(roles, terms, terms)
    return None if found is None else (found[0], found[1], found[2])


def _carries(roles: Roles, i: int) -> bool:
    value = roles.values[i]
    return value.floating and (value.grad or value.blind)


_Found = tuple[int, int, str, dict[int, dict[int, int]]]


def _skip(roles: Roles, nodes: list[int], chains: Mapping[int, Mapping[int, str]]) -> _Found | None:
    if not chains:
        return None
    low = min(min(c) for c in chains.values())
    reaches = {n: reach(roles, n, low) for n in nodes}
    options: dict[int, tuple[int, str, set[int]]] = {}
    for node, back in chains.items():
        best: tuple[int, int] | None = None
        for other in nodes:
            if other == node:
                continue
            for t, kind in back.items():
                if kind != "mixed" and reaches[other].get(t, 0) & WEIGHED_STATES:
                    rank = (-KINDS_OF_PATH.index(kind), t)
                    if best is None or rank > best:
                        best = rank
        if best is not None:
            t = best[1]
            using = {o for o in nodes if o != node and reaches[o].get(t, 0) & WEIGHED_STATES}
            options[node] = (t, back[t], using)
    plain = {n: o for n, o in options.items() if o[1] not in ("gated",)}
    options = plain or options
    # The skip is no branch of another skip: k1 in x + k1 + k2 is one, though k2 is built on it.
    first = [
        n for n in options
        if not any(n in o[2] for m, o in options.items() if m != n and m not in options[n][2])
    ]  # fmt: skip
    if not first:
        return None
    node = min(first, key=lambda n: options[n][0])
    return node, options[node][0], options[node][1], reaches


def _projection(roles: Roles, nodes: list[int], bearing: Collection[int]) -> _Found | None:
    """A skip through weights: one of ``bearing``, linear in a tensor that another term bends."""
    lines = {n: _line(roles, n) if n in bearing else {} for n in nodes}
    if not any(lines.values()):
        return None
    low = min(min(line) for line in lines.values() if line)
    reaches = {n: reach(roles, n, low) for n in nodes}
    best: tuple[int, int] | None = None
    for node, line in lines.items():
        for other in nodes:
            below = reaches[other]
            if other == node or any(_bent(reaches[node], t) for t in lines[other]):
                continue
            for t, layer in line.items():
                # What the other made of the same layer's output is no second way around it.
                if layer in below or not _bent(below, t) or (best is not None and t <= best[1]):
                    continue
                if _series(roles, other, t) > _series(roles, node, t):
                    best = (node, t)
    return None if best is None else (best[0], best[1], "projected", reaches)


def _series(roles: Roles, term: int, root: int) -> int:
    """The most weight layers in series between ``root`` and ``term``."""
    depths = {root: 0}
    for i in sorted(roles.graph.ancestors([term], root + 1)):
        below = [depths[j] for j in roles.flow[i] if j in depths]
        if below:
            depths[i] = max(below) + roles.layers(i)
    return depths.get(term, 0)


def _bent(below: dict[int, int], t: int) -> bool:
    return bool(below.get(t, 0) & WEIGHED_AND_BENT)


def _line(roles: Roles, i: int) -> dict[int, int]:
    """The tensors that value ``i`` is linear in, each with the last weight layer or pooling on the
    way there."""
    found: dict[int, int] = {}
    at, layer = i, -1
    for _ in range(_LONGEST):
        if layer >= 0:
            found[at] = layer
        value = roles.values[at]
        if value.kind in ("weights", "contract", "mix") and not roles.bends(at):
            below = roles.moving(value.inputs)
            if len(below) != 1 or value.name == "embedding":
                break
            at, layer = below[0], at
        else:
            steps = roles.back(at)
            if len(steps) != 1 or steps[0].kind in ("mixed", "gated"):
                break
            earlier = steps[0].value
            if len(roles.values[earlier].shape) > len(value.shape) and _size(
                roles, earlier
            ) > _size(roles, at):
                break  # one step of a sequence: another than its neighbours
            at = earlier
    return found


def _size(roles: Roles, i: int) -> int:
    return prod(roles.values[i].shape)


def _groups(
    roles: Roles, nodes: list[int], root: int, reaches: dict[int, dict[int, int]]
) -> list[tuple[int, ...]]:
    """The terms computed from ``root``; those of which one is built on another, or on what another
    carries, are one branch."""
    moved = [n for n in nodes if reaches[n].get(root, 0) & WEIGHED_STATES]
    carried = {n: [t for t in chain(roles, n) if t > root] for n in moved}

    def built(n: int, m: int) -> bool:
        return any(reaches[n].get(t, 0) & WEIGHED_STATES for t in carried[m])

    groups: list[tuple[int, ...]] = []
    for n in moved:
        near = [g for g in groups if any(built(n, m) or built(m, n) for m in g)]
        joined = (*(m for g in near for m in g), n)
        groups = [g for g in groups if g not in near] + [joined]
    return groups
