"""How many weight layers stand in series in front of a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from depthgauge.trace.merges import chain
from depthgauge.trace.roles import Roles

__all__ = ["series"]


def series(
    roles: Roles, order: Iterable[int], before: Mapping[int, int] | None = None
) -> dict[int, int]:
    """The most weight layers in series among the values of ``order``, which run forwards, up to
    each of them. ``before``: those between the stream and each value, where ``order`` is only some
    of what lies between.

    Attention counts two for its queries and keys, none where both are the stream itself.
    """
    found: dict[int, int] = {}
    for i in order:
        below = 0
        for j in roles.flow[i]:
            if found.get(j, 0) > below:
                below = found[j]
        layers = roles.layers(i)
        if layers == 2 and _bare(roles, i, found if before is None else before):
            layers = 0
        found[i] = below + layers
    return found


def _bare(roles: Roles, i: int, depths: Mapping[int, int]) -> bool:
    """Whether value ``i`` is a product of attention whose queries and keys are one tensor, with no
    layer in front of it."""
    value = roles.values[i]
    match value.kind:
        case "attend":
            pair = value.inputs[:2]
        case "contract" | "reduce":
            inner = value if value.kind == "contract" else roles.values[value.inputs[0]]
            scores = (k for j in inner.inputs if (k := roles.scored(j)) is not None)
            if (made := next(scores, None)) is None:
                return False
            product = roles.values[made]
            if product.kind == "reduce":
                product = roles.values[product.inputs[0]]
            pair = product.inputs[:2]
        case _:
            return False
    if len(pair) < 2 or any(depths.get(j, 0) for j in pair):
        return False
    return not chain(roles, pair[0]).keys().isdisjoint(chain(roles, pair[1]))
