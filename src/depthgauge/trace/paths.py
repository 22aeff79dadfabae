"""Path counting: the values that lie on every path from a stream's first tensor to its end.

Paths are counted with a random weight on each edge, modulo a large prime, forward from the source
and backward from the end. Where the product of both counts is the total, every path runs through
the value; elsewhere that happens by chance with probability 1/p. Linear in the number of edges.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

from depthgauge.trace.merges import (
    FREE,
    FREE_AND_BENT,
    WEIGHED,
    WEIGHED_AND_BENT,
    WEIGHED_STATES,
    find,
    reach,
)
from depthgauge.trace.roles import Roles

__all__ = ["merges_between", "states"]

PRIME: Final = (1 << 61) - 1


def states(roles: Roles, source: int, end: int) -> list[int]:
    """The values on every path from ``source`` to ``end``, both included, in forward order."""
    flow = roles.flow
    below = roles.graph.ancestors([end], source)
    if source not in below:
        return []
    draw = random.Random(0).getrandbits
    order = sorted(below)
    forward = {source: 1}
    edges: list[tuple[int, int, int]] = []  # from a value to an input, with a weight
    for i in order[1:]:
        inputs = flow[i]
        if len(inputs) == 1:  # a weight on an only edge decides nothing
            (j,) = inputs
            if j in forward:
                forward[i] = forward[j]
                edges.append((i, j, 1))
            continue
        inputs = tuple([j for j in inputs if j in forward])
        if inputs:
            weights = [draw(60) + 1 for _ in inputs] if len(inputs) > 1 else [1]
            weighted = list(zip(inputs, weights, strict=True))
            forward[i] = sum(forward[j] * weight for j, weight in weighted) % PRIME
            edges += [(i, j, weight) for j, weight in weighted]
    backward = dict.fromkeys(order, 0) | {end: 1}
    for i, j, weight in reversed(edges):
        if back := backward[i]:
            backward[j] = (backward[j] + back * weight) % PRIME
    whole = forward.get(end, 0)
    return [i for i in order if i in forward and forward[i] * backward[i] % PRIME == whole]


def merges_between(roles: Roles, on_path: list[int]) -> list[int]:
    """The states that are sums and end a region of parallel paths, one weight-free, one not.

    Everything between two neighbouring states is such a region or one step. Where no path is
    weight-free, a linear one beside one that bends is a projected skip.
    """
    found = []
    for before, after in pairwise(on_path):
        if roles.values[after].kind == "cell":
            found += [after] if find(roles, after) else []
        elif roles.values[after].kind == "sum" and len(roles.flow[after]) > 1:
            states = reach(roles, after, before).get(before, 0)
            free = states & (FREE | FREE_AND_BENT) and states & WEIGHED_STATES
            if free or (states & WEIGHED and states & WEIGHED_AND_BENT):
                found.append(after)
    return found
