"""Which rows of which weight make queries, keys and values: also of one matrix that makes them all.

The products of attention are found by their functions; from each the way leads down to the layers.
What is cut out of a layer's output on the way up (chunks, views, permutations) is played again on
the numbers of its columns, so that whatever order they are kept in, the rows of the weight are
known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Final

import torch
from torch import Tensor

from depthgauge.trace.graph import Graph, Ref, Value
from depthgauge.trace.roles import Roles

__all__ = [
    "ROLES",
    "averaged",
    "before_scores",
    "crossing",
    "is_layer",
    "layers_below",
    "normed_operands",
    "projections",
    "replayed",
]

ROLES: Final = ("query", "key", "value")


def projections(roles: Roles) -> dict[int, dict[str, tuple[int, ...] | None]]:
    """By the number of a layer's value, the roles that its outputs have, each with the places on
    the last axis that have it; None where they cannot be told."""
    found: dict[int, dict[str, tuple[int, ...] | None]] = {}
    for i in sorted(roles.graph.live):
        for role, j in _operands(roles, roles.values[i]):
            below = layers_below(roles, j)
            for layer in below:
                if is_layer(roles, layer):
                    found.setdefault(layer, {})[role] = _places(roles.graph, layer, j, below)
    return found


def before_scores(roles: Roles) -> set[int]:
    """The values between a projection of queries or keys and the product of attention that are on
    no way to the values of one."""
    found: dict[str, set[int]] = {role: set() for role in ROLES}
    for i in roles.graph.live:
        for role, j in _operands(roles, roles.values[i]):
            found[role] |= layers_below(roles, j)
    return (found["query"] | found["key"]) - found["value"]


def averaged(roles: Roles) -> tuple[str, ...]:
    """Tables that are looked up and whose rows, past no layer, are multiplied by what a softmax
    gives: relation-aware attention adds them to its values."""
    graph, values, found = roles.graph, roles.values, []
    for i in sorted(graph.live):
        if values[i].name != "embedding":
            continue
        seen, todo = {i}, [i]
        while todo:
            j = todo.pop()
            for k in graph.consumers[j]:
                others = [other for other in values[k].inputs if other != j]
                if values[k].kind == "contract" and any(_soft(roles, other) for other in others):
                    tables = [values[t] for t in values[i].inputs if values[t].kind == "parameter"]
                    found += [table.path for table in tables]
                elif values[k].kind in ("shape", "drop") and k not in seen:
                    seen.add(k)
                    todo.append(k)
    return tuple(dict.fromkeys(found))


def _soft(roles: Roles, i: int) -> bool:
    """Whether a value is what a softmax gives, moved about."""
    while roles.values[i].kind in ("shape", "drop") and roles.values[i].inputs:
        i = roles.values[i].inputs[0]
    return roles.values[i].kind == "softmax"


def crossing(roles: Roles, order: Collection[int]) -> set[int]:
    """What the keys and values of attention among ``order`` are made of, down to their layers,
    where none of those layers is among ``order``: that of another stream."""
    found: set[int] = set()
    for i in order:
        for _, j in _operands(roles, roles.values[i]):
            below = layers_below(roles, j)
            layers = {k for k in below if is_layer(roles, k)}
            if layers and layers.isdisjoint(order):
                found |= below
    return found


def normed_operands(roles: Roles, order: Collection[int]) -> list[tuple[str, int]]:
    """The norms between the layers and the products of attention among ``order``, each with the
    role of what it norms: queries, keys or values."""
    found: list[tuple[str, int]] = []
    for i in sorted(order):
        for role, j in _operands(roles, roles.values[i]):
            below = layers_below(roles, j)
            low = min((k for k in below if is_layer(roles, k)), default=j)
            norms = (k for k in sorted(below) if k > low and roles.norm_of(k) is not None)
            found += [(role, k) for k in norms]
    return found


def _operands(roles: Roles, value: Value) -> Iterator[tuple[str, int]]:
    """Queries, keys and values of a product of attention."""
    if value.kind == "attend" and len(value.inputs) >= 3:
        yield from zip(ROLES, value.inputs[:3], strict=True)
    elif value.kind == "contract" and roles.layers(value.index) == 2:
        moving = roles.moving(value.inputs)
        for scores, values in (moving, moving[::-1]) if len(moving) == 2 else ():
            if (pair := _scored(roles, scores)) is not None:
                yield from (("query", pair[0]), ("key", pair[1]), ("value", values))
                return


def _scored(roles: Roles, i: int) -> tuple[int, int] | None:
    """The two factors under a softmax."""
    soft = False
    for _ in range(16):
        value = roles.values[i]
        below = roles.moving(value.inputs)
        if value.kind == "contract" and len(below) == 2:
            return (below[0], below[1]) if soft else None
        soft = soft or value.kind == "softmax"
        if not below:
            break
        i = below[0]
    return None


def is_layer(roles: Roles, i: int) -> bool:
    return roles.values[i].kind in ("weights", "contract") and roles.layers(i) == 1


def layers_below(roles: Roles, i: int) -> set[int]:
    """What value ``i`` was computed from, down to the first layers; of tensors that were put beside
    each other and cut apart again those that reach it."""
    found, todo = {i}, [-i]
    while todo:  # the latest first, so that all that lies between a value and ``i`` is known
        j = -heappop(todo)
        if not is_layer(roles, j):
            new = _reaching(roles, j, i, found) - found
            found |= new
            for k in new:
                heappush(todo, -k)
    return found


def _reaching(roles: Roles, j: int, top: int, found: set[int]) -> set[int]:
    """What value ``j`` was made from: of a join along the last axis, what reaches ``top``."""
    value = roles.values[j]
    whole = set(roles.flow[j])
    parts = value.args[0] if value.args else ()
    if value.name not in ("cat", "concat", "concatenate") or not isinstance(parts, tuple):
        return whole
    dim = value.options.get("dim", value.args[1] if len(value.args) > 1 else 0)
    if not all(isinstance(part, Ref) for part in parts) or dim not in (-1, len(value.shape) - 1):
        return whole
    places = _places(roles.graph, j, top, found)
    if places is None:
        return whole
    reached, first = set(places), 0
    for part in parts:
        size = roles.values[part].shape[-1]
        if reached.isdisjoint(range(first, first + size)):
            whole.discard(int(part))
        first += size
    return whole


def _places(graph: Graph, layer: int, top: int, below: set[int]) -> tuple[int, ...] | None:
    """The places on the last axis of a layer's output that reach value ``top``."""
    shape = graph.values[layer].shape
    if not shape:
        return None
    columns = torch.arange(shape[-1]).expand(shape)
    found: set[int] = set()
    todo = [(layer, columns)]
    while todo:
        i, numbers = todo.pop()
        users = [j for j in graph.consumers[i] if j in below]
        if i == top or any(graph.values[j].kind != "shape" for j in users):
            found.update(numbers.abs().flatten().tolist())  # rotary halves change their sign
            users = [j for j in users if graph.values[j].kind == "shape"] if i != top else []
        for j in users:
            played = replayed(graph.values[j], {i: numbers})
            if played is None:
                return None
            todo.append((j, played))
    return tuple(sorted(found)) or None


def replayed(value: Value, numbers: Mapping[int, Tensor]) -> Tensor | None:
    """The function of ``value`` called again with ``numbers`` in place of the values that they
    stand under; None where it was given another tensor too."""

    def given(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return numbers[argument]
        if isinstance(argument, tuple):
            return tuple(map(given, argument))
        return argument

    try:
        options: Mapping[str, Any] = {name: given(a) for name, a in value.options.items()}
        out = value.function(*map(given, value.args), **options)
        if value.item >= 0:
            out = out[value.item]
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError):
        return None
    return out if isinstance(out, Tensor) and tuple(out.shape) == value.shape else None
