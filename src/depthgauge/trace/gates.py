"""Which factors of a product only weigh the others: gates, weights of experts, attention's scores.

A residual branch ends with the layers whose outputs are added as values. What multiplies such a
value, and comes through a sigmoid, a softmax or a choice of the largest, is a gate: no last layer.
"""

from __future__ import annotations

from typing import Final

from depthgauge.trace.roles import Roles

__all__ = ["gates_of"]

_SIGMOIDS: Final = ("sigmoid", "hardsigmoid", "special_expit")
_CHOICES: Final = ("topk", "max", "amax")
_IDLE: Final = ("shape", "drop", "product", "point", "sum", "choose", "norm", "join", "reduce")


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
    return found if len(found) < len(moving) else set()


def _weighing(roles: Roles, i: int) -> bool:
    """Whether what value ``i`` is made of comes through a sigmoid, a softmax or a choice on every
    way, with no weight layer behind it."""
    value = roles.values[i]
    for _ in range(len(roles.values)):
        if value.kind == "softmax" or value.name in (*_SIGMOIDS, *_CHOICES):
            return True
        moving = roles.moving(value.inputs)
        if value.kind not in _IDLE or roles.layers(value.index) or not moving:
            return False
        value = roles.values[moving[0]]
    return False
