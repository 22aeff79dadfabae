"""What a norm that is written out divides by, read exactly.

Every such divisor is, with ``v`` the mean square of its input over some axes, centred or not,

    factor (sqrt(v + inside) + outside), no less than factor * floor,

its square, or 1 over one of them. Functions change these numbers one after the other; what changes
anything else (another power, a learned number on the way) has no reading here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from depthgauge.trace.blocks import short
from depthgauge.trace.graph import Ref
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.operations import CASTS
from depthgauge.trace.roles import Roles

__all__ = [
    "Sight",
    "Statistic",
    "Values",
    "argument",
    "axes_of",
    "centre",
    "number_in",
    "plain",
    "statistic",
]

_LENGTHS: Final = ("norm", "linalg_vector_norm", "linalg_norm", "vector_norm")
_SPREADS: Final = ("var", "std", "var_mean", "std_mean")
_QUOTIENTS: Final = ("div", "divide", "true_divide", "truediv")
_COPIES: Final = (*CASTS, "contiguous", "clone", "cpu", "cuda", "alias", "identity")
#: Functions that give what was averaged the shape of what it was averaged of.
_SPREAD: Final = (*_COPIES, "expand", "expand_as", "broadcast_to", "unsqueeze")
_LONGEST: Final = 16


class Sight(Protocol):
    """What a divisor is read in: a region of a stream, or all values of a pass."""

    roles: Roles
    values: list[Traced]
    before: int

    def number(self, operand: Any) -> float | None: ...


class Values:
    """All values of a pass, no state in front."""

    def __init__(self, roles: Roles) -> None:
        self.roles, self.values, self.before = roles, roles.values, -1

    def number(self, operand: Any) -> float | None:
        return number_in(self.roles, operand)


def number_in(roles: Roles, operand: Any) -> float | None:
    """An operand that is a number, or a tensor that holds one and that nothing computes."""
    if isinstance(operand, Ref):
        tensor = roles.graph.constants.get(operand)
        return None if tensor is None or tensor.is_complex() else short(tensor.reshape(()))
    plain = isinstance(operand, int | float) and not isinstance(operand, bool)
    return float(operand) if plain else None


@dataclass(frozen=True, slots=True)
class Statistic:
    """A root mean square of value ``of`` over ``axes``, which hold ``count`` elements each."""

    of: int
    axes: tuple[int, ...]
    count: int
    centred: bool
    factor: float = 1.0
    inside: float = 0.0
    outside: float = 0.0
    floor: float = 0.0
    rooted: bool = False
    inverse: bool = False

    @property
    def length(self) -> bool:
        """Whether it is the length of ``of``: sqrt(count) times its root mean square."""
        return not (self.centred or self.inside or self.outside) and math.isclose(
            self.factor, math.sqrt(self.count)
        )


def statistic(region: Sight, i: int) -> Statistic | None:
    """What value ``i`` is as a statistic, or None."""
    row = []
    at = region.values[i]
    while at.kind != "reduce":
        row.append(at)
        moving = region.roles.moving(at.inputs)
        if len(moving) != 1 or len(row) > _LONGEST:
            return None
        at = region.values[moving[0]]
    found = _reduced(region, at)
    for value in reversed(row):
        found = None if found is None else _changed(region, value, found)
    return found


# --------------------------------------------------------------------------- the reduction


def _reduced(region: Sight, value: Traced) -> Statistic | None:
    name, x = value.name, value.inputs[0]
    if name in _LENGTHS:
        order = argument(value, 1, ("p", "ord"), None)
        axes = axes_of(region, value, 2)
        if order not in (None, 2, "fro"):
            return None
        if name == "linalg_norm" and order == 2 and len(axes) > 1:  # a matrix's largest factor
            return None
        of, count = _centred(region, x, axes), _count(region, x, axes)
        return Statistic(*of, factor=math.sqrt(count), rooted=True)
    if name in _SPREADS and value.item <= 0:
        given = [a for a in value.args[1:] if isinstance(a, bool)]
        unbiased = value.options.get("unbiased", given[0] if given else True)
        lost = value.options.get("correction", 1 if unbiased else 0)
        count = _count(region, x, axes := axes_of(region, value, 1))
        if not isinstance(lost, int) or lost >= count:
            return None
        rooted, share = name.startswith("std"), count / (count - lost)
        factor = math.sqrt(share) if rooted else share
        return Statistic(plain(region, x), axes, count, True, factor=factor, rooted=rooted)
    if name not in ("mean", "sum") or (under := _squared(region, x)) is None:
        return None
    of = _centred(region, under, axes_of(region, value, 1))
    return Statistic(*of, factor=1.0 if name == "mean" else float(of[2]))


def _squared(region: Sight, i: int) -> int | None:
    """What value ``i`` is the square of, element by element, or None."""
    value = region.values[plain(region, i)]
    if value.name == "square" or (
        value.name in ("pow", "float_power") and argument(value, 1, ("exponent",), None) == 2
    ):
        return value.inputs[0]
    twice = value.kind == "product" and len(value.inputs) == 2 and len({*value.inputs}) == 1
    return value.inputs[0] if twice and value.name not in _QUOTIENTS else None


def _centred(
    region: Sight, i: int, axes: tuple[int, ...]
) -> tuple[int, tuple[int, ...], int, bool]:
    """The first four numbers of a statistic of value ``i``, which may be less its own mean."""
    i = plain(region, i)
    base = centre(region, i, axes)
    return (i if base is None else base), axes, _count(region, i, axes), base is not None


def centre(region: Sight, i: int, axes: tuple[int, ...]) -> int | None:
    """``x`` where value ``i`` is ``x`` less its mean over ``axes``, or None."""
    if region.roles.centred(i) is None:
        return None
    x, taken = region.values[i].inputs
    mean = region.values[plain(region, taken, _SPREAD)]
    known = mean.name == "mean" or (mean.name in ("var_mean", "std_mean") and mean.item == 1)
    if not known or region.values[i].options.get("alpha", 1) != 1:
        return None
    same = plain(region, mean.inputs[0]) == plain(region, x) and beside(region, taken, x, axes)
    return plain(region, x) if same and axes_of(region, mean, 1) == axes else None


def beside(region: Sight, i: int, x: int, axes: tuple[int, ...]) -> bool:
    """Whether value ``i``, reduced over ``axes``, has a shape that meets ``x`` where it should."""
    shape, whole = region.values[i].shape, region.values[x].shape
    kept = tuple(1 if a in axes else size for a, size in enumerate(whole))
    lost = next((a for a, size in enumerate(kept) if size != 1), len(kept))
    return shape in (kept, whole) or (len(shape) <= len(kept) and shape == kept[lost:])


def plain(region: Sight, i: int, through: tuple[str, ...] = _COPIES) -> int:
    """Value ``i`` before casts and copies."""
    value = region.values[i]
    while value.kind == "shape" and value.name in through and value.inputs and i != region.before:
        i = value.inputs[0]
        value = region.values[i]
    return i


def axes_of(region: Sight, value: Traced, place: int) -> tuple[int, ...]:
    """The axes that a reduction runs over, from 0 on; without an argument all of them."""
    size = len(region.values[value.inputs[0]].shape)
    given = argument(value, place, ("dim", "axis"), None)
    if given is None or given == () or isinstance(given, bool):
        return tuple(range(size))
    return tuple(sorted(a % size for a in (given if isinstance(given, tuple) else (given,))))


def argument(value: Traced, place: int, names: tuple[str, ...], default: Any) -> Any:
    """An argument given by place or by one of several names."""
    if len(value.args) > place:
        return value.args[place]
    return next((value.options[name] for name in names if name in value.options), default)


def _count(region: Sight, i: int, axes: tuple[int, ...]) -> int:
    return math.prod(region.values[i].shape[a] for a in axes)


# ----------------------------------------------------------------- what is done to it then


def _changed(region: Sight, value: Traced, s: Statistic) -> Statistic | None:
    name = value.name
    if value.kind == "shape":
        return s if name in _SPREAD else None
    if name in ("sqrt", "rsqrt", "reciprocal", "square"):
        return _power(s, {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}[name])
    if name == "pow":
        power = argument(value, 1, ("exponent",), None)
        return _power(s, power) if type(power) in (int, float) else None
    given = [*value.args, *(value.options[k] for k in ("other", "min") if k in value.options)]
    known = [n for a in given if (n := region.number(a)) is not None]
    if len(known) != 1 or len(value.args) > 2 or value.options.get("max") is not None:
        return None
    (number,) = known
    behind = bool(value.args) and isinstance(value.args[0], Ref)  # the number stands second
    if name in ("clamp_min", "clamp", "clip", "maximum"):
        if s.inverse or s.inside or s.outside or s.floor or number < 0:
            return None
        low = number / s.factor
        return replace(s, floor=low if s.rooted else math.sqrt(low))
    if name == "add" and value.options.get("alpha", 1) == 1 and not s.inverse and not s.floor:
        more = number / s.factor
        if s.rooted:
            return replace(s, outside=s.outside + more)
        return replace(s, inside=s.inside + more)
    if name in ("mul", "multiply") and number > 0:
        return replace(s, factor=s.factor / number if s.inverse else s.factor * number)
    if name in _QUOTIENTS and number > 0 and behind and not value.options.get("rounding_mode"):
        return replace(s, factor=s.factor * number if s.inverse else s.factor / number)
    if (name == "rdiv" or name in _QUOTIENTS) and number > 0:
        factor = s.factor * number if s.inverse else s.factor / number
        return replace(s, inverse=not s.inverse, factor=factor)
    return None


def _power(s: Statistic, power: float) -> Statistic | None:
    """The statistic to a power that is 2, 1/2 or one over those; ``factor`` is the divisor's."""
    if power == -1:
        return replace(s, inverse=not s.inverse)
    if abs(power) == 0.5 and not s.rooted:
        s = replace(s, rooted=True, factor=math.sqrt(s.factor))
    elif abs(power) == 2 and s.rooted and not s.outside:
        s = replace(s, rooted=False, factor=s.factor**2)
    else:
        return None
    return s if power > 0 else replace(s, inverse=not s.inverse)
