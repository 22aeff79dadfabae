"""The fixed numbers at two places that parametrisations are about: in front of the softmax of
attention, and around the layer that a network ends with.

    logits = number q k^T        d features in each head
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from depthgauge.trace.coefficients import fixed, parameter_of
from depthgauge.trace.graph import Ref, Value
from depthgauge.trace.heads import is_layer, layers_below
from depthgauge.trace.roles import Roles
from depthgauge.trace.statistic import number_in

__all__ = ["Logits", "around", "factor", "logits", "outlet"]

_IDLE = ("shape", "drop")


@dataclass(frozen=True)
class Logits:
    """By what the product of queries and keys is multiplied (NaN where that is not read, or where
    there is no attention), how many features a head has, and the value of the layer that makes
    queries and nothing else, with no norm behind it; -1 without one. ``keys``: how many each query
    is held against; ``learned``: the learned numbers that multiply the product too, one for all or
    one a head."""

    number: float = math.nan
    head: int = 0
    queries: int = -1
    keys: int = 0
    learned: tuple[str, ...] = ()


def logits(
    roles: Roles,
    parts: Mapping[int, Mapping[str, tuple[int, ...] | None]],
    order: Sequence[int],
) -> Logits:
    """Of the one attention among the values ``order``; of several, where they agree, the number."""
    found = [row for i in order if (row := _of(roles, parts, roles.values[i])) is not None]
    if len(found) == 1:
        return found[0]
    if len({(row.number, row.head) for row in found}) == 1:
        return replace(found[0], queries=-1)
    return Logits()


def _of(
    roles: Roles, parts: Mapping[int, Mapping[str, tuple[int, ...] | None]], value: Value
) -> Logits | None:
    if value.name == "multi_head_attention_forward":
        width = roles.values[value.inputs[0]].shape[-1]
        numbers = [a for a in value.args if type(a) is int]
        heads = value.options.get("num_heads", numbers[1] if len(numbers) > 1 else 0)
        keys = roles.values[value.inputs[1]].shape[0]  # tokens first, whatever the module takes
        return Logits((width // heads) ** -0.5, width // heads, -1, keys) if heads else Logits()
    if value.kind == "attend" and len(value.inputs) >= 3:
        query, key = value.inputs[:2]
        head = roles.values[query].shape[-1]
        given = value.options.get("scale", value.args[6] if len(value.args) > 6 else None)
        number = head**-0.5 if given is None else float(given)
        learned: tuple[str, ...] = ()
        tokens = roles.values[key].shape[-2]
    elif (scored := _scored(roles, value)) is not None:
        number, query, key, learned = scored
        head, tokens = roles.values[query].shape[-1], value.shape[-1]
    else:
        return None
    times, layer, first = _made(roles, query)
    only = layer >= 0 and set(parts.get(layer, ())) == {"query"}
    others, _, second = _made(roles, key)
    products = tuple(dict.fromkeys((*first, *second, *learned)))
    return Logits(number * times * others, head, layer if only else -1, tokens, products)


def _scored(roles: Roles, value: Value) -> tuple[float, int, int, tuple[str, ...]] | None:
    """The number under a softmax, the two factors that it multiplies, and the learned ones."""
    if value.kind != "softmax":
        return None
    number, learned = 1.0, list[str]()
    for _ in range(16):
        moving = roles.moving(value.inputs)
        if value.kind == "contract" and len(moving) == 2:
            number *= float(value.options.get("alpha", 1.0))
            return number, moving[0], moving[1], tuple(learned)
        if value.kind == "product" and (path := _learned(roles, value)):
            learned.append(path)
        elif value.kind == "product":
            number *= factor(roles, value)
        if not moving:
            return None
        value = roles.values[moving[0]]
    return None


def factor(roles: Roles, value: Value) -> float:
    """The number in a product with one, also one that a constant tensor holds; NaN of others."""
    moving = roles.moving(value.inputs)
    numbers = [number_in(roles, Ref(j)) for j in value.inputs if j not in moving]
    if len(numbers) != 1 or len(moving) != 1:
        return fixed(value)
    (number,) = numbers
    if number is None or "rdiv" in value.name or ("div" in value.name and not number):
        return math.nan
    return 1 / number if "div" in value.name else number


def _learned(roles: Roles, value: Value) -> str:
    """The path of the learned number that a product multiplies by, one for all features of a head;
    ``""`` without one."""
    for j in value.inputs:
        held = parameter_of(roles.values, j)
        if held is not None and roles.values[j].shape[-1:] in ((), (1,)):
            return held.path
    return ""


def _made(roles: Roles, i: int) -> tuple[float, int, list[str]]:
    """The fixed number between value ``i`` and the layer below it, or the norm, that layer, -1
    behind a norm, and the learned numbers. Rotary phases turn what they multiply, and do not
    count."""
    below = layers_below(roles, i)
    norms = [j for j in below if roles.norm_of(j) is not None]
    number, learned = 1.0, []
    for j in sorted(below):
        value = roles.values[j]
        if value.kind == "product" and (path := _learned(roles, value)):
            learned.append(path)
        if j > max(norms, default=-1) and value.kind == "product":
            by = factor(roles, value)
            half = by == -1 and value.shape[-1:] < roles.values[i].shape[-1:]  # that is turned
            number *= 1.0 if half or math.isnan(by) else by
    layers = [j for j in below if is_layer(roles, j)]
    return number, layers[0] if len(layers) == 1 and not norms else -1, learned


def outlet(roles: Roles, layer: int) -> float:
    """The fixed number around a layer, in front of it and behind it, with one that a sum in front
    of it may have behind itself: between the two it could be either's."""
    front, behind = around(roles, layer, shared=True)
    return front * behind


def _of_layers(roles: Roles, i: int) -> bool:
    """Whether nothing but weight layers reads a value, by way of views and fixed numbers."""
    values, users = roles.values, roles.graph.consumers[i]
    return all(
        is_layer(roles, j)
        or (
            values[j].kind in ("product", *_IDLE)
            and len(values[j].inputs) == 1
            and _of_layers(roles, j)
        )
        for j in users
    )


def around(roles: Roles, layer: int, shared: bool = False) -> tuple[float, float]:
    """The fixed number in front of a layer, up to the next thing that is no product, and that
    behind it. What multiplies all that a sum of the stream gives is that sum's number, unless
    ``shared``."""
    number, i = 1.0, layer
    while len(moving := roles.moving(roles.values[i].inputs)) == 1:
        i = moving[0]
        value = roles.values[i]
        if value.kind == "sum" and len(roles.moving(value.inputs)) > 1:
            number = 1.0 if len(roles.graph.consumers[i]) == 1 and not shared else number
            break
        if value.kind == "product" and len(value.inputs) == 1:
            if not _of_layers(roles, i):
                break  # of the stream, as a number behind the stem that the first skip carries on
            number *= fixed(value)
        elif value.kind not in _IDLE:
            break
    front, number, i = number, 1.0, layer
    while len(users := roles.graph.consumers[i]) == 1:
        i = users[0]
        value = roles.values[i]
        if value.kind == "product" and len(value.inputs) == 1:
            number *= fixed(value)
        elif value.kind not in _IDLE and not (
            value.kind == "sum" and len(roles.moving(value.inputs)) == 1
        ):
            break
    return front, number
