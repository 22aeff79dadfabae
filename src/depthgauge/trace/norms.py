"""Norms, called as functions or written out, as words of the language with their options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from depthgauge.equation.functions import AXES, NORMS
from depthgauge.equation.nodes import (
    Add,
    LearnedGain,
    LearnedScalar,
    Norm,
    Number,
    Option,
    Product,
    Scalar,
    Scale,
    Value,
)
from depthgauge.trace.blocks import Region, Unsayable, is_mixed, scaled, ungained, with_options
from depthgauge.trace.graph import Ref
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.roles import Roles
from depthgauge.trace.statistic import (
    Sight,
    Statistic,
    Values,
    argument,
    beside,
    centre,
    plain,
    statistic,
)

__all__ = [
    "bias_of",
    "by_length",
    "gain_of",
    "gained",
    "lengthwise",
    "norm",
    "scalenorm",
    "shifted",
    "spelled_axis",
    "spelled_kind",
]

#: The names of a state's axes, by how many there are.
_AXES: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("batch", "width"),
    3: ("batch", "tokens", "width"),
    4: ("batch", "width", "space", "space"),
}
_QUOTIENTS: Final = ("div", "divide", "true_divide", "truediv")
#: Where PyTorch's functions take gain, bias and eps.
_PLACES: Final[Mapping[str, tuple[int, int, int]]] = {
    "layer_norm": (2, 3, 4),
    "rms_norm": (2, 99, 3),
    "batch_norm": (3, 4, 7),
    "instance_norm": (3, 4, 7),
    "group_norm": (2, 3, 4),
}
#: ``F.rms_norm``'s own eps, that of float32.
_SMALLEST: Final = 1.1920928955078125e-07


def norm(region: Region, value: Traced, base: int) -> Value | None:
    """The norm that value ``value`` is of ``base``; None for an activation that is none after all.

    Raises Unsayable for a norm that the language has no word for.
    """
    if value.name in ("tanh", "erf"):
        return _bounded(region, value)
    if value.name in _PLACES:
        return _called(region, value, base)
    if value.kind == "norm":
        raise Unsayable(value.index, value.name)
    return _spelled(region, value)


def _made(kind: str, value: Value, options: Mapping[str, Option]) -> Norm:
    """The norm with what was found of its options, the others by default."""
    filled = {name: options.get(name, default) for name, default in NORMS[kind].items()}
    return Norm(kind, value, tuple(filled.items()))


# ------------------------------------------------------------------------- called by name


def _called(region: Region, value: Traced, base: int) -> Value:
    name = value.name
    weight, bias, place = _PLACES[name]
    eps = argument(value, place, ("eps",), None)
    if eps is None:
        eps = _SMALLEST if name == "rms_norm" else 1e-5
    options: dict[str, Option] = {"eps": Number(float(eps))}
    kind = name.replace("_", "")
    if name in ("layer_norm", "rms_norm"):
        sizes = argument(value, 1, ("normalized_shape",), ())
        if isinstance(sizes, tuple) and len(sizes) > 1:
            raise Unsayable(value.index, f"{name} over {len(sizes)} axes")
    elif name == "group_norm":
        options["groups"] = Number(float(argument(value, 1, ("num_groups",), 1)))
    elif name == "instance_norm":
        if len(value.shape) != 4 or argument(value, 5, ("use_input_stats",), True) is not True:
            raise Unsayable(value.index, name)
        kind, options["axis"] = "layernorm", "space"
    out: Value = _made(kind, region.value(base), options)
    for given, learn in (
        (argument(value, weight, ("weight",), None), gained),
        (argument(value, bias, ("bias",), None), shifted),
    ):
        if isinstance(given, Ref):
            part: Value | None = region.vector(given)
            if part is None:
                part = region.learned(given)
            elif learn is shifted:  # like a layer's bias, whatever it has learned
                part = LearnedGain(Number(0.0), f"{int(given)}")
            out = learn(out, part)
    return out


def gain_of(value: Traced) -> int | None:
    """The value that a norm's function takes as its gain."""
    return _affine(value, 0, "weight")


def bias_of(value: Traced) -> int | None:
    """The value that a norm's function takes as its bias."""
    return _affine(value, 1, "bias")


def _affine(value: Traced, which: int, name: str) -> int | None:
    if value.name not in _PLACES:
        return None
    given = argument(value, _PLACES[value.name][which], (name,), None)
    return int(given) if isinstance(given, Ref) else None


def gained(value: Value, factor: Value) -> Value:
    """``factor * value``: a norm without a gain takes a learned number a channel as its own."""
    if isinstance(value, Scale) and isinstance(value.value, Norm):
        inner = gained(value.value, factor)
        if isinstance(inner, Norm):
            return Scale(value.factor, inner)
    plain = isinstance(value, Norm) and ungained(value) and "bias:" not in value.name
    if isinstance(factor, LearnedGain) and isinstance(value, Norm) and plain:
        options = with_options(value.options, gain=factor.initial)
        return Norm(value.kind, value.value, options, f"gain:{factor.name} {value.name}".strip())
    return Product(factor, value)


def shifted(value: Value, offset: Value) -> Value:
    """``value + offset``: a norm without a bias takes a learned one that starts at 0, or has been
    trained, as its own."""
    if (
        isinstance(offset, LearnedGain)
        and (offset.initial == Number(0.0) or is_mixed(offset.name))
        and isinstance(value, Norm)
        and dict(value.options).get("bias") is False
    ):
        options = with_options(value.options, bias=True)
        return Norm(value.kind, value.value, options, f"{value.name} bias:{offset.name}".strip())
    return Add(value, offset)


# ----------------------------------------------------------------------------- pointwise


def _bounded(region: Region, value: Traced) -> Value | None:
    """``tanh(alpha x)`` and ``erf(alpha x + shift)`` with learned numbers alpha and shift."""
    inner = region.values[value.inputs[0]]
    options: dict[str, Option] = {}
    if inner.kind == "sum":
        shift = _learned_number(region, inner, "add")
        if value.name == "tanh" or shift is None or inner.options.get("alpha", 1) != 1:
            return None
        options["shift"] = shift
        inner = region.values[region.roles.moving(inner.inputs)[0]]
    elif value.name == "erf":
        return None
    alpha = _learned_number(region, inner, "mul")
    if alpha is None:
        return None
    x = region.value(region.roles.moving(inner.inputs)[0])
    return _made("dyt" if value.name == "tanh" else "derf", x, {"alpha": alpha, **options})


def _learned_number(region: Region, value: Traced, name: str) -> Scalar | None:
    """What the learned number starts with that a sum or a product takes."""
    others = [j for j in value.inputs if not region.values[j].data]
    if value.name not in (name, "multiply" if name == "mul" else name) or len(others) != 1:
        return None
    found = region.learned(others[0])
    return found.initial if isinstance(found, LearnedScalar) else None


# --------------------------------------------------------------------------- written out


def _spelled(region: Region, value: Traced) -> Value:
    """A norm by its statistic; a factor that is left over stands in front of it."""
    s, factors = _divisor(region, value)
    if s is None:
        raise Unsayable(value.index, "norm")
    if s.floor:
        gains = [region.learned(j) for j in factors]
        if len(gains) == 1 and (found := _by_length(region, s, gains[0])) is not None:
            return found
        raise Unsayable(value.index, "norm" if s.centred else "norm by length")
    kind, options = "layernorm" if s.centred else "rmsnorm", _over(region, s)
    if s.centred and (groups := _groups(region, s)):
        kind, options = "groupnorm", {"groups": Number(float(groups))}
    if options is None:
        raise Unsayable(value.index, "norm over other axes")
    if s.inside and s.outside:
        raise Unsayable(value.index, "norm with two eps")
    options["eps"] = Number(_tidy(s.outside or s.inside))
    if s.outside:
        options["eps_at"] = "outside"
    if kind == "layernorm" and s.axes == _others(region, s):
        kind, options["axis"] = "batchnorm", None
    factor = 1.0 if math.isclose(s.factor, 1.0) else 1 / s.factor
    out = scaled(factor, _made(kind, region.value(s.of), options))
    for j in factors:
        out = gained(out, region.learned(j))
    return out


def spelled_kind(roles: Roles, i: int) -> str:
    """The kind of a norm that is written out, by its own values, also where no state tells the
    axis of channels; ``""`` where only that would (groups, places of an image)."""
    s, _ = _divisor(Values(roles), roles.values[i])
    if s is None:
        return ""
    if s.floor:
        return "scalenorm" if s.length and _of_last(roles, s) else ""
    if not s.centred:
        return "rmsnorm"
    of = roles.values[s.of]
    size = len(of.shape)
    below = roles.values[of.inputs[0]].shape if of.kind == "shape" and of.inputs else of.shape
    last = s.axes == (size - 1,) and 1 < size <= len(below)  # no groups were folded out
    if last or _of_images(s, size):
        return "layernorm"
    return "batchnorm" if len(s.axes) == size - 1 and 0 in s.axes else ""


def spelled_axis(roles: Roles, i: int) -> int:
    """Where a norm that is written out has its channels, counted from the right: the axis that it
    is over in images with channels second, the one that is left of a norm over all others, else
    the last."""
    s, _ = _divisor(Values(roles), roles.values[i])
    if s is None:
        return -1
    size = len(roles.values[s.of].shape)
    if _of_images(s, size):
        return -3
    others = [a for a in range(size) if a not in s.axes]
    return others[0] - size if 0 in s.axes and len(others) == 1 else -1


def _of_images(s: Statistic, size: int) -> bool:
    """Whether a statistic is over the channels of images, (batch, channels, height, width)."""
    return s.axes == (1,) and size == 4


def _of_last(roles: Roles, s: Statistic) -> bool:
    return s.axes == (len(roles.values[s.of].shape) - 1,)


def lengthwise(roles: Roles, i: int) -> tuple[int, ...] | None:
    """Whether value ``i`` is divided by its length over the last axis, with or without an eps, in
    the root or behind it: then the learned numbers in front of the quotient or in it, else None."""
    value, sight = roles.values[i], Values(roles)
    if value.name == "normalize":
        s, factors = _normalised(sight, value), tuple[int, ...]()
    else:
        s, factors = _divisor(sight, value)
    if s is None or s.centred or not _of_last(roles, s):
        return None
    return factors if math.isclose(s.factor, math.sqrt(s.count)) else None


def by_length(roles: Roles, i: int) -> tuple[int, ...]:
    """The axis, from the right, over which value ``i`` is divided by its length, ``x / |x|``, and
    how many numbers lie on it; ``()`` of another value."""
    value, sight = roles.values[i], Values(roles)
    s = _normalised(sight, value) if value.name == "normalize" else _divisor(sight, value)[0]
    if s is None or s.centred or len(s.axes) != 1 or not s.length:
        return ()
    return s.axes[0] - len(roles.values[s.of].shape), s.count


def scalenorm(region: Region, i: int, gain: Value) -> Norm | None:
    """``g x / max(|x|, eps)`` with value ``i`` as the quotient and ``gain`` as ``g``, or None."""
    if not isinstance(gain, LearnedScalar) or region.roles.norm_of(i) is None:
        return None
    value = region.values[i]
    normalises = value.name == "normalize"
    s, factors = (_normalised(region, value), ()) if normalises else _divisor(region, value)
    return None if s is None or factors else _by_length(region, s, gain)


def _by_length(region: Region, s: Statistic, gain: Value) -> Norm | None:
    if not isinstance(gain, LearnedScalar) or not s.length:
        return None
    options = _over(region, s)
    if options is None:
        return None
    options["eps"] = Number(_tidy(s.floor * s.factor))
    start, root = gain.initial, math.sqrt(region.width)
    if not (isinstance(start, Number) and math.isclose(start.value, root, rel_tol=1e-6)):
        options["gain"] = start  # else it is the default, sqrt(n)
    return _made("scalenorm", region.value(s.of), options)


def _normalised(region: Sight, value: Traced) -> Statistic | None:
    """``F.normalize`` as the quotient that it is."""
    x, axis = plain(region, value.inputs[0]), argument(value, 2, ("dim",), 1)
    eps = argument(value, 3, ("eps",), 1e-12)
    shape = region.values[x].shape
    if argument(value, 1, ("p",), 2.0) != 2 or not isinstance(axis, int):
        return None
    axes = (axis % len(shape),)
    root = math.sqrt(shape[axes[0]])
    return Statistic(x, axes, shape[axes[0]], False, factor=root, floor=eps / root, rooted=True)


def _divisor(region: Sight, value: Traced) -> tuple[Statistic | None, tuple[int, ...]]:
    """What value ``value`` divides by, if that is a statistic of all that it divides but learned
    factors, which stand beside it."""
    if value.kind != "product" or len(value.inputs) != 2:
        return None, ()
    dividing = value.name in _QUOTIENTS
    left, right = value.inputs
    for x, by in ((left, right),) if dividing else ((left, right), (right, left)):
        over, learned_over, divides = _taken(region, by, dividing)
        s = statistic(region, over) if region.values[over].data else None
        if s is None or not s.rooted or s.inverse == divides or not beside(region, by, x, s.axes):
            continue
        at = plain(region, x)
        factors = [] if learned_over is None else [learned_over]
        while True:
            inside = centre(region, at, s.axes) if s.centred else at
            if inside == s.of:
                return s, tuple(factors)
            inner = region.values[at]
            learned = [j for j in inner.inputs if not region.values[j].data]
            moving = [j for j in inner.inputs if region.values[j].data]
            if inner.name not in ("mul", "multiply") or len(learned) != 1 or len(moving) != 1:
                break
            factors += learned
            at = plain(region, moving[0])
    return None, ()


def _taken(region: Sight, i: int, dividing: bool) -> tuple[int, int | None, bool]:
    """A divisor (``dividing``) or a factor ``i`` without the one learned number that the whole is
    multiplied by through it, that number, and whether what is left divides: ``g / |x|`` as
    ScaleNorm's authors write it, ``x / (|x| / g)``, ``x * (g * (1 / |x|))``."""
    value = region.values[i]
    if value.kind == "product" and len(value.inputs) == 2 and not value.options:
        left, right = value.inputs
        quotient = value.name in _QUOTIENTS
        for learned, other in ((left, right), (right, left)):
            if region.values[learned].kind != "parameter" or not region.values[other].data:
                continue
            if quotient and (learned == right) is dividing:
                return other, learned, True
            if not quotient and not dividing:
                return other, learned, False
    return i, None, dividing


def _tidy(number: float) -> float:
    """1e-05 where rounding on the way has left 1.0000000000000003e-05."""
    return float(f"{number:.12g}")


def _others(region: Region, s: Statistic) -> tuple[int, ...]:
    """The axes of the statistic's tensor without the one of channels."""
    shape = region.values[s.of].shape
    width = region.axis - len(region.values[region.before].shape) + len(shape)
    return tuple(a for a in range(len(shape)) if a != width)


def _over(region: Region, s: Statistic) -> dict[str, Option] | None:
    """The axes by name, None where the language has no names for them."""
    shape, state = region.values[s.of].shape, region.values[region.before].shape
    width = region.axis - len(state) + len(shape)
    if s.axes == (width,) and len(shape) <= len(state):
        return {"axis": None}
    images = region.axis == 1 and len(shape) == 4
    names = _AXES.get(len(shape), ()) if images or len(shape) < 4 else ()
    if len(shape) != len(state):
        return None
    if len(names) != len(shape):
        return {"axis": None} if s.centred and s.axes == _others(region, s) else None
    words = {names[a] for a in s.axes}
    if s.axes != tuple(a for a, name in enumerate(names) if name in words):
        return None
    return {"axis": "+".join(word for word in AXES if word in words)}


def _groups(region: Region, s: Statistic) -> int:
    """The groups that the width was folded into before a norm over one of them, or 0."""
    below = region.values[s.of]
    if below.kind != "shape" or not below.inputs:
        return 0
    shape, whole, p = below.shape, region.values[below.inputs[0]].shape, region.axis
    folded = (*whole[:p], shape[p], -1, *whole[p + 1 :]) if len(shape) > p else ()
    fits = len(shape) == len(whole) + 1 and all(
        a == b for a, b in zip(shape, folded, strict=False) if b != -1
    )
    return int(shape[p]) if fits and s.axes == tuple(range(p + 1, len(shape))) else 0
