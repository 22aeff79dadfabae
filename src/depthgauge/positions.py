"""Norms over positions and channels together, in networks of (batch, tokens, width), and whether
they are what lets a later position change the outputs before it.

A norm over (channels, time) of a convolutional network is over the same axes by another meaning,
and left alone: a layer next to it works on the last axis, or nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from depthgauge.instruments.hessian import duplicate
from depthgauge.trace.axes import Axes
from depthgauge.trace.batches import call, mapped, tensors
from depthgauge.trace.forward import quiet
from depthgauge.trace.graph import Graph, Value

__all__ = ["mixed"]

_NORMS: Final = ("layer_norm", "rms_norm")
#: What is carried from a norm to a layer and back.
_CARRIED: Final = ("norm", "sum", "product", "act", "point", "drop", "shape", "choose")
#: Views that may give the last axis another meaning.
_TURNED: Final = ("T", "mT", "H", "mH", "t", "adjoint", "movedim", "moveaxis", "roll", "flip")
#: Change of the outputs before a position, relative to them, that is rounding.
_ROUNDING: Final = 1e-5


def mixed(model: nn.Module, batch: Any, graph: Graph, axis: int = 0) -> list[str]:
    """The sentence, or none; ``axis``: of the batch, along which it counts examples."""
    found = [value for value in graph.values if _over_positions(value) and _last(graph, value)]
    if not found:
        return []
    path, axes = graph.calls[found[0].call].path or "the model", Axes(graph, axis)
    if axis and axes.state(found[0].index, found[0].shape[:-1], axes.examples) == 1:
        return [
            f"norm axis: {len(found)} norms are over examples and channels together ('{path}', "
            f"{tuple(found[0].shape[1:])}), so that each example depends on all others: normalise "
            f"the last axis alone"
        ]
    said = (
        f"norm axis: {len(found)} norms are over positions and channels together ('{path}', "
        f"{tuple(found[0].shape[1:])}), so that positions keep their own sizes and each depends on "
        f"all others"
    )
    leak, own = _leak(model, batch, int(axis == 0))
    if leak > _ROUNDING >= own:
        said += (
            f"; the last position changes the outputs before it by {100 * leak:.2g} per cent, and "
            f"without these norms' statistics it does not, as in a causal model it must not"
        )
    return [f"{said}: normalise the last axis alone"]


def _over_positions(value: Value) -> bool:
    if value.name not in _NORMS or len(value.shape) != 3:
        return False
    sizes = value.options.get("normalized_shape", value.args[1] if len(value.args) > 1 else ())
    return isinstance(sizes, Sequence) and len(sizes) > 1


def _last(graph: Graph, norm: Value) -> bool:
    """Whether a layer next to a norm works on the last axis: linear, attention or an embedding."""
    values = graph.values

    def makes(value: Value) -> bool:
        return _works(graph, value) and value.shape[-1:] == norm.shape[-1:]

    def takes(value: Value) -> bool:
        return _works(graph, value) and any(
            values[i].data and values[i].shape[-1:] == norm.shape[-1:] for i in value.inputs
        )

    below = _next(graph, norm.inputs, lambda v: v.inputs if _kept(v) else ())
    above = _next(graph, [norm.index], lambda v: [
        i for i in graph.consumers[v.index] if not _carries(values[i]) or _kept(values[i])
    ])  # fmt: skip
    return any(makes(v) for v in below) or any(takes(v) for v in above if v is not norm)


def _next(
    graph: Graph, start: Iterable[int], step: Callable[[Value], Iterable[int]]
) -> list[Value]:
    """All values from these on, one step at a time, up to the first that carry nothing on."""
    todo, seen = list(start), set[int]()
    first = set(todo)
    while todo:
        if (i := todo.pop()) in seen:
            continue
        seen.add(i)
        if i in first or _carries(graph.values[i]):
            todo += step(graph.values[i])
    return [graph.values[i] for i in seen]


def _carries(value: Value) -> bool:
    return value.kind in _CARRIED


def _works(graph: Graph, value: Value) -> bool:
    """Whether a value is made by a layer that works on the last axis of what it is given."""
    if value.kind == "contract":  # the data on the left, by a matrix of weights
        left, right = ([graph.values[i] for i in value.inputs[-2:]] + [value, value])[:2]
        return value.name != "einsum" and left.data and not right.data
    return value.kind == "attend" or (value.kind == "weights" and "conv" not in value.name)


def _kept(value: Value) -> bool:
    """Whether the last axis is what it was before."""
    if not _carries(value) or value.kind != "shape":
        return _carries(value)
    axes = [a for a in value.args if type(a) is int]
    axes += [a for arg in value.args if isinstance(arg, list | tuple) for a in arg]
    axes += [a for a in value.options.values() if type(a) is int]
    size = len(value.shape)
    if value.name in ("transpose", "swapaxes", "swapdims"):
        return not {-1, size - 1} & set(axes)
    if value.name == "permute":
        return bool(axes) and axes[-1] in (-1, size - 1)
    return value.name not in _TURNED


# ---------------------------------------------------------------------------------- causal


class _Each(TorchFunctionMode):
    """Norms over positions and channels work on each position alone."""

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if getattr(func, "__name__", "") not in _NORMS:
            return func(*args, **options)
        names = ["input", "normalized_shape", "weight", "bias", "eps"]
        if func.__name__ == "rms_norm":
            names.remove("bias")
        given = dict(zip(names, args, strict=False)) | options
        x, sizes = given["input"], given["normalized_shape"]
        if not isinstance(sizes, Sequence) or len(sizes) < 2:
            return func(*args, **options)
        eps = {} if given.get("eps") is None else {"eps": given["eps"]}
        own = F.layer_norm if func.__name__ == "layer_norm" else F.rms_norm
        out = own(x, sizes[-1:], **eps)
        for name, by in (("weight", torch.mul), ("bias", torch.add)):
            if (learned := given.get(name)) is not None:
                out = by(out, learned)
        return out


def _leak(model: nn.Module, batch: Any, axis: int) -> tuple[float, float]:
    """How much outputs at earlier positions, along this axis, change with the last position,
    relative to them, and how much where norms see one position alone; 0 and 1 where that cannot be
    asked."""

    def changed(x: Tensor) -> Tensor:
        other = x.clone()
        if x.dim() > 1 and x.shape[axis] > 1:
            last = -x.select(axis, -1) if x.is_floating_point() else x.select(axis, 0)
            other.select(axis, -1).copy_(last)
        return other

    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
            copied, other = duplicate(model).eval(), mapped(batch, changed)
            leak = _apart(call(copied, batch), call(copied, other), axis)
            if not leak > _ROUNDING:
                return leak, 1.0
            with _Each():
                return leak, _apart(call(copied, batch), call(copied, other), axis)
    except Exception:  # a model that takes no other batch
        return 0.0, 1.0


def _apart(one: Any, two: Any, axis: int) -> float:
    """Of two outputs, at all positions but the last: the difference relative to the first."""
    a, b = ([t for _, t in tensors(x) if t.is_floating_point() and t.dim() > 2] for x in (one, two))
    if not a or not b:
        return 0.0
    before, after = (x[0].narrow(axis, 0, x[0].shape[axis] - 1) for x in (a, b))
    return float((after - before).double().norm() / before.double().norm().clamp_min(1e-30))
