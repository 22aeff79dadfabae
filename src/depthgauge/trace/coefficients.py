"""By what a sum weighs its terms, and what a branch does to what enters it, read off the pass.

Equations say the same, where a block can be read: this is for the sums that they cannot show, a
strided shortcut or attention to another stream, and for what lies between a state and the first
weight layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from depthgauge.trace.graph import Ref, Value
from depthgauge.trace.operations import NEGATIONS
from depthgauge.trace.roles import Roles

__all__ = ["Weighed", "after_sum", "entering", "fixed", "parameter_of", "weighed"]

#: What neither scales nor mixes.
_IDLE = ("shape", "drop")


@dataclass(frozen=True)
class Weighed:
    """A fixed number, and kind (``scalar`` or ``gain``) and value of the learned ones; ``bare``:
    the value that they multiply."""

    number: float
    learned: tuple[tuple[str, float], ...]
    bare: int


def weighed(
    roles: Roles, parameters: Mapping[str, Tensor], i: int, state: int | None = None
) -> Weighed:
    """What value ``i`` is multiplied by, down to the first value that is no product, or to the
    ``state``.

    A learned number that is added (a bias at the branch's end) is passed by.
    """
    number, learned = 1.0, []
    while i != state and (below := _below(roles, i)) is not None:
        value = roles.values[i]
        if value.kind == "product":
            if (by := _learned(roles, parameters, value, below)) is not None:
                number *= by[0]
                learned.append(by[1:])
            else:
                number *= fixed(value)
        elif value.kind not in _IDLE and not _biased(roles, value, below):
            break
        i = below
    return Weighed(number, tuple(learned), i)


def after_sum(roles: Roles, end: int, total: int, outside: bool = False) -> float:
    """The fixed number between the sum ``total`` and what the stream passes on; what comes after a
    norm or an activation does not scale the sum. ``outside``: without what the module of the sum
    multiplies by itself, unless that module holds the layers that read the product too."""
    number, i = 1.0, end
    while i != total:
        below = _below(roles, i)
        if below is None:
            return math.nan
        value = roles.values[i]
        if roles.norm_of(i) is not None or roles.bends(i):
            number = 1.0
        elif value.kind == "product" and not _is_learned(roles, value, below):
            inside = outside and _closed(roles, i, roles.values[total].call)
            number *= 1.0 if inside else fixed(value)
        i = below
    return number


def _closed(roles: Roles, i: int, call: int) -> bool:
    """Whether value ``i`` is made in this call, and no layer that reads it runs in it."""
    values, calls = roles.values, roles.graph.calls
    if values[i].call != call:
        return False
    todo, seen = list(roles.graph.consumers[i]), set[int]()
    while todo:
        j = todo.pop()
        if roles.layers(j):
            at = values[j].call
            while at > call:
                at = calls[at].parent
            if at == call:
                return False
        elif j not in seen:
            seen.add(j)
            todo += roles.graph.consumers[j]
    return True


def entering(roles: Roles, layer: int, begin: int) -> tuple[float, int]:
    """The fixed number that stands between value ``begin`` and the weight layer ``layer``, behind
    a norm if there is one, and the value behind which it was looked for, that norm or ``begin``;
    NaN where the way is no single path."""
    number, i, start = 1.0, layer, begin
    for _ in range(len(roles.values)):
        below = _below(roles, i, begin)
        if below is None:
            return math.nan, start
        value = roles.values[i]
        if i != layer and start == begin:
            start = begin if roles.norm_of(i) is None else i
            if value.kind == "product" and not _is_learned(roles, value, below):
                number *= fixed(value)
        if below == begin:
            return number, start
        i = below
    return math.nan, start


def _below(roles: Roles, i: int, low: int = 0) -> int | None:
    """The one value that ``i`` was made from, aside from parameters and masks; of several that
    which was computed from value ``low``."""
    moving = [j for j in dict.fromkeys(roles.flow[i]) if roles.values[j].data and j >= low]
    if len(moving) > 1 and low:
        moving = [j for j in moving if low in roles.graph.ancestors([j], low)]
    if roles.norm_of(i) is not None:
        return roles.norm_of(i)
    return moving[0] if len(moving) == 1 else None


def _other(roles: Roles, value: Value, below: int) -> Value | None:
    others = [j for j in value.inputs if j != below]
    return roles.values[others[0]] if len(others) == 1 else None


def _is_learned(roles: Roles, value: Value, below: int) -> bool:
    other = _other(roles, value, below)
    return other is not None and other.param and not other.data


def _learned(
    roles: Roles, parameters: Mapping[str, Tensor], value: Value, below: int
) -> tuple[float, str, float] | None:
    """Of a learned factor what is fixed in it, its kind, and its present value, NaN of one that is
    computed."""
    if not _is_learned(roles, value, below):
        return None
    other = _other(roles, value, below)
    assert other is not None
    number, made = 1.0, other
    while made.kind == "product" and len(made.inputs) == 1:
        number *= fixed(made)
        made = roles.values[made.inputs[0]]
    source = parameter_of(roles.values, made.index)
    held = parameters.get(source.path) if source is not None else None
    start = float(held.detach().double().mean()) if held is not None else math.nan
    return number, ("scalar" if prod(other.shape) == 1 else "gain"), start


def parameter_of(values: Sequence[Value], i: int) -> Value | None:
    """The parameter that value ``i`` is, as it is or in another shape."""
    while values[i].kind == "shape" and len(values[i].inputs) == 1:
        i = values[i].inputs[0]
    return values[i] if values[i].kind == "parameter" else None


def fixed(value: Value) -> float:
    """The number in a product with one; NaN for a mask or a tensor."""
    if value.name in NEGATIONS:
        return -1.0
    numbers = [a for a in value.args if isinstance(a, int | float) and not isinstance(a, Ref)]
    if len(numbers) != 1 or len(value.inputs) != 1:
        return math.nan
    return 1 / numbers[0] if "div" in value.name else float(numbers[0])


def _biased(roles: Roles, value: Value, below: int) -> bool:
    """A sum with a learned number."""
    other = _other(roles, value, below)
    return value.kind == "sum" and other is not None and other.param and not other.data
