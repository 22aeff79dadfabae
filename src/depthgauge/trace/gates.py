"""Which factors of a product only weigh the others: gates, weights of experts, attention's scores.

A residual branch ends with the layers whose outputs are added as values. What multiplies such a
value, and comes on every way through a sigmoid, a softmax or a choice of the largest, is a gate: no
last layer. So is what lies between 0 and 1 by how it is spelled out: ``clamp(h, 0, 1)``,
``relu6(h + 3) / 6``, ``(tanh(h / 2) + 1) / 2``, ``1 / (1 + exp(-h))``. What is bounded in other
ways, as by a sine or by ``h / sqrt(1 + h^2)``, counts as a value.
"""

from __future__ import annotations

import math
from typing import Any, Final

from depthgauge.trace.graph import Ref, Value
from depthgauge.trace.logits import factor
from depthgauge.trace.roles import Roles
from depthgauge.trace.statistic import number_in

__all__ = ["gates_of"]

_SIGMOIDS: Final = ("sigmoid", "hardsigmoid", "special_expit", "expit")
_CHOICES: Final = ("topk", "max", "amax")
_IDLE: Final = ("shape", "drop", "product", "point", "sum", "choose", "norm", "join", "reduce")
#: What activations lie between.
_BETWEEN: Final = {"tanh": (-1.0, 1.0), "softsign": (-1.0, 1.0), "relu6": (0.0, 6.0)}
_ANY: Final = (-math.inf, math.inf)


def gates_of(roles: Roles, i: int) -> set[int]:
    """The inputs of value ``i`` that weigh its other inputs; none where all of them do, or none
    does. Of attention in one operation: queries and keys."""
    value = roles.values[i]
    if value.kind == "attend":
        return set(value.inputs) - {value.inputs[2]} if len(value.inputs) > 2 else set()
    moving = roles.moving(value.inputs)
    if value.kind not in ("product", "contract") or len(moving) < 2:
        return set()
    found = {j for j in moving if _weighing(roles, j)}
    if "div" in value.name and len(value.inputs) == 2 and _unit(_over(*_range(roles, moving[1]))):
        found.add(moving[1])
    return found if len(found) < len(moving) else set()


def _weighing(roles: Roles, i: int) -> bool:
    """Whether all that value ``i`` is made of comes through a sigmoid, a softmax or a choice, with
    no weight layer behind it: in whatever order its factors stand."""
    todo, seen = [i], {i}
    while todo:
        j = todo.pop()
        value = roles.values[j]
        if value.kind == "softmax" or value.name in (*_SIGMOIDS, *_CHOICES):
            continue
        if _unit(_range(roles, j)):
            continue
        moving = roles.moving(value.inputs)
        if value.kind not in _IDLE or roles.layers(j) or not moving:
            return False
        todo += [k for k in moving if k not in seen]
        seen.update(moving)
    return True


def _unit(between: tuple[float, float]) -> bool:
    """Whether a value lies between 0 and 1, with a sixth that was written as 0.16667."""
    return between[0] == 0 and math.isclose(between[1], 1, rel_tol=1e-3)


def _over(low: float, high: float) -> tuple[float, float]:
    """What one over a number between both lies between."""
    return (1 / high, 1 / low) if low > 0 else _ANY


def _range(roles: Roles, i: int, depth: int = 12) -> tuple[float, float]:
    """What value ``i`` lies between, by the functions and fixed numbers that it is made with."""
    value = roles.values[i]
    moving = roles.moving(value.inputs)
    if value.name in _SIGMOIDS:
        return 0.0, 1.0
    if value.name in _BETWEEN:
        return _BETWEEN[value.name]
    if len(moving) != 1 or not depth:
        return (0.0, math.inf) if value.name == "exp" else _ANY
    low, high = _range(roles, moving[0], depth - 1)
    match value.kind:
        case "shape" | "drop":
            return (low, high) if value.kind == "shape" else _ANY
        case "act" | "point":
            return _bent(roles, value, low, high)
        case "sum":
            return _shifted(roles, value, low, high)
        case "product" if "rdiv" in value.name:
            (by,) = _numbers(roles, value) or (math.nan,)
            over = _over(low, high)
            return (by * over[0], by * over[1]) if by > 0 else _ANY
        case "product":
            by = factor(roles, value)
            ends = sorted((by * low, by * high)) if by and not math.isnan(by) else _ANY
            return ends[0], ends[1]
    return _ANY


def _bent(roles: Roles, value: Value, low: float, high: float) -> tuple[float, float]:
    """What a function of one value between ``low`` and ``high`` lies between."""
    match value.name:
        case "exp":
            return (math.exp(low) if low > -math.inf else 0.0), math.inf
        case "relu":
            return max(low, 0.0), max(high, 0.0)
        case "reciprocal":
            return _over(low, high)
        case "pow" if _numbers(roles, value) == [-1.0]:
            return _over(low, high)
        case "clamp" | "clip" | "clamp_min" | "clamp_max" | "hardtanh":
            least, most = _limits(value)
            return min(max(low, least), most), max(min(high, most), least)
    return _ANY


def _limits(value: Value) -> tuple[float, float]:
    """The numbers that a value is held between; none of those that are tensors."""
    given: list[Any] = [*value.args[1:3]]
    if value.name == "clamp_max":
        given = [None, *given]
    usual = (-1.0, 1.0) if value.name == "hardtanh" else (None, None)
    found = []
    for k, names in enumerate((("min", "min_val"), ("max", "max_val"))):
        named = [value.options[name] for name in names if name in value.options]
        limit: Any = given[k] if k < len(given) else named[0] if named else usual[k]
        plain = isinstance(limit, int | float) and not isinstance(limit, Ref)
        found.append(float(limit) if plain else (math.inf if k else -math.inf))
    return found[0], found[1]


def _shifted(roles: Roles, value: Value, low: float, high: float) -> tuple[float, float]:
    """A value between both, with a number added to it or taken off, or taken off a number."""
    numbers = _numbers(roles, value)
    if len(numbers) != 1 or value.options.get("alpha", 1) != 1:
        return _ANY
    (by,) = numbers
    first = number_in(roles, value.args[0]) is not None
    match value.name.replace("_", ""):
        case "add" | "radd" | "iadd" | "addscalar":
            return low + by, high + by
        case "rsub":
            return by - high, by - low
        case "sub" | "subtract" | "isub":
            return (by - high, by - low) if first else (low - by, high - by)
    return _ANY


def _numbers(roles: Roles, value: Value) -> list[float]:
    """The fixed numbers that a function is given beside its value."""
    given = [*value.args, *(value.options[k] for k in ("other", "exponent") if k in value.options)]
    return [number for a in given if (number := number_in(roles, a)) is not None]
