"""Norms, called as functions or written out, as words of the language with their options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from depthgauge.equation.functions import NORMS
from depthgauge.equation.nodes import Norm, Number, Option, Value
from depthgauge.trace.blocks import Region, Unsayable, uniform
from depthgauge.trace.graph import Ref
from depthgauge.trace.graph import Value as Traced

__all__ = ["norm"]


def norm(region: Region, value: Traced, base: int) -> Value:
    kind, options = _kind(region, value)
    filled = dict(NORMS[kind])
    for name, found in options.items():
        if name in filled:
            filled[name] = found
    return Norm(kind, region.value(base), tuple(filled.items()))


def _kind(region: Region, value: Traced) -> tuple[str, dict[str, Option]]:
    name, given = value.name, value.options
    if name in ("layer_norm", "rms_norm"):
        if len(_sizes(value)) > 1:
            raise Unsayable(value.index, f"{name} over {len(_sizes(value))} axes")
        kind = "layernorm" if name == "layer_norm" else "rmsnorm"
        place = 4 if name == "layer_norm" else 3
        eps = value.args[place] if len(value.args) > place else given.get("eps")
        if eps is None and name == "rms_norm":
            eps = 1.1920928955078125e-07
        return kind, _affine(region, value, eps)
    if name in ("batch_norm", "instance_norm", "normalize", "local_response_norm"):
        if name == "batch_norm":
            eps = value.args[7] if len(value.args) > 7 else given.get("eps", 1e-5)
            return "batchnorm", _affine(region, value, eps)
        raise Unsayable(value.index, name)
    if name == "group_norm":
        groups = value.args[1] if len(value.args) > 1 else given.get("num_groups", 1)
        eps = value.args[4] if len(value.args) > 4 else given.get("eps", 1e-5)
        return "groupnorm", {"groups": Number(float(groups)), **_affine(region, value, eps)}
    if name in ("tanh", "erf"):
        return _bounded(region, value)
    return _spelled(region, value)


def _affine(region: Region, value: Traced, eps: Any) -> dict[str, Option]:
    """Learnable gain and bias among a norm's inputs, told apart by what they begin with."""
    out: dict[str, Option] = {"eps": Number(float(eps))} if isinstance(eps, float) else {}
    learned = [j for j in value.inputs[1:] if region.values[j].kind == "parameter"]
    if learned:
        tensor = region.tensor(learned[0])
        out["gain"] = Number(uniform(tensor) if tensor is not None else 1.0)
    out["bias"] = len(learned) > 1
    return out


def _number(tensor: Tensor | None, other: float) -> float:
    return other if tensor is None or tensor.numel() != 1 else float(tensor.detach())


def _bounded(region: Region, value: Traced) -> tuple[str, dict[str, Option]]:
    inner = region.values[value.inputs[0]]
    shift = 0.0
    if inner.kind == "sum":
        learned = [j for j in inner.inputs if not region.values[j].data]
        tensor = region.tensor(learned[0]) if learned else None
        shift = _number(tensor, 0.0)
        inner = region.values[region.roles.moving(inner.inputs)[0]]
    alpha = next((j for j in inner.inputs if not region.values[j].data), None)
    tensor = region.tensor(alpha) if alpha is not None else None
    start = _number(tensor, 0.5)
    if value.name == "tanh":
        return "dyt", {"alpha": Number(start)}
    return "derf", {"alpha": Number(start), "shift": Number(shift)}


def _spelled(region: Region, value: Traced) -> tuple[str, dict[str, Option]]:
    """A norm written out: by which statistic, over which axes."""
    x, statistic = value.inputs
    if region.roles.values[x].kind == "reduce" or not region.values[x].data:
        x, statistic = statistic, x
    centred, axes, eps, length = False, None, None, False
    todo, seen = [statistic], 0
    while todo and seen < 24:
        seen += 1
        at = region.values[todo.pop()]
        if at.kind == "sum" and region.roles.centred(at.index) is None:
            numbers = [a for a in at.args if isinstance(a, float) and not isinstance(a, Ref)]
            eps = numbers[0] if numbers else eps
        if at.kind == "reduce":
            axes = _axes(at) if axes is None else axes
            length = at.name in ("linalg_vector_norm", "norm", "vector_norm", "linalg_norm")
            centred = centred or at.name in ("var", "std", "var_mean", "std_mean")
            under = region.roles.under(at)
            centred = centred or any(region.roles.centred(j) is not None for j in under)
        for j in region.roles.moving(at.inputs):
            centred = centred or region.roles.centred(j) is not None
            if at.kind != "reduce":
                todo.append(j)
    shape = region.values[x].shape
    if length or axes is None:
        raise Unsayable(value.index, "norm by length")
    options: dict[str, Option] = {"eps": Number(eps)} if eps is not None else {}
    over = sorted(a % len(shape) for a in axes)
    others = [a for a in range(len(shape)) if a != region.axis]
    if over == others and centred:
        return "batchnorm", options
    if centred and (groups := _groups(region, x, over)):
        return "groupnorm", {"groups": Number(float(groups)), **options}
    if over != [region.axis]:
        raise Unsayable(value.index, "norm over other axes")
    return ("layernorm" if centred else "rmsnorm"), options


def _groups(region: Region, x: int, over: Sequence[int]) -> int:
    """The groups that the width was folded into before a norm over one of them, or 0."""
    at = region.values[x]
    base = region.roles.centred(x)
    shape = at.shape if base is None else region.values[base].shape
    below = region.values[base if base is not None else x]
    if below.kind != "shape" or not below.inputs:
        return 0
    whole, p = region.values[below.inputs[0]].shape, region.axis
    folded = (*whole[:p], shape[p], -1, *whole[p + 1 :]) if len(shape) > p else ()
    fits = len(shape) == len(whole) + 1 and all(
        a == b for a, b in zip(shape, folded, strict=False) if b != -1
    )
    return int(shape[p]) if fits and over == list(range(p + 1, len(shape))) else 0


def _sizes(value: Traced) -> tuple[Any, ...]:
    given = value.args[1] if len(value.args) > 1 else value.options.get("normalized_shape", ())
    return given if isinstance(given, tuple) else (given,)


def _axes(value: Traced) -> list[int]:
    given = value.args[1] if len(value.args) > 1 else value.options.get("dim", -1)
    found = given if isinstance(given, tuple) else (given,)
    return [a for a in found if isinstance(a, int)]
