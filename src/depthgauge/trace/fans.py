"""What a function does with its weight: what enters, what leaves, groups, the bias beside it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from depthgauge.trace.analysis import Analysis
from depthgauge.trace.graph import Value
from depthgauge.trace.roles import TURNS
from depthgauge.trace.statistic import argument

__all__ = ["bias_of", "fans_of", "groups_of", "lengths_of", "strides_of"]


def fans_of(
    analysis: Analysis, value: Value, place: int, shape: tuple[int, ...]
) -> tuple[int, int, int]:
    """What enters, what leaves, and the axis of what leaves, by the function's layout of its
    weight, as the parameter lies; 0 where the function does not say."""
    kernel = prod(shape[2:])
    if value.name.startswith("conv_transpose"):
        return shape[0] * kernel, shape[1] * kernel, 1
    if value.name.startswith("conv"):
        return shape[1] * kernel, shape[0] * kernel, 0
    axis = _axis(value, place) if len(shape) == 2 else None
    if axis is None:
        return 0, 0, 0
    if _turned(analysis, value.inputs[place]):
        axis = 1 - axis
    return shape[1 - axis], shape[axis], axis


def _axis(value: Value, place: int) -> int | None:
    """The axis of a matrix, as the function is given it, along which its outputs lie."""
    if value.name in ("linear", "multi_head_attention_forward"):
        return 0
    if value.name in ("matmul", "mm", "addmm", "bmm", "rmatmul"):
        return 1 if place else 0
    if value.name == "einsum" and value.args and isinstance(value.args[0], str):
        entering, _, leaving = value.args[0].replace(" ", "").partition("->")
        words = entering.split(",")
        if len(words) == 2 and place < 2 and len(words[place]) == 2:
            out = [axis for axis, letter in enumerate(words[place]) if letter in leaving]
            if len(out) == 1 and words[place][1 - out[0]] in words[1 - place]:
                return out[0]
    return None


def _turned(analysis: Analysis, i: int) -> bool:
    """Whether what the function is given is the parameter with its axes exchanged."""
    values, turned = analysis.graph.values, False
    while values[i].kind != "parameter" and values[i].inputs:
        turned ^= values[i].name in TURNS
        i = values[i].inputs[0]
    return turned


def groups_of(analysis: Analysis, value: Value, shape: tuple[int, ...]) -> int:
    """The groups of a convolution, from the channels of what enters and leaves it."""
    if not value.name.startswith("conv"):
        return 1
    channel = -1 - len(shape[2:])
    if value.name.startswith("conv_transpose"):
        return max(value.shape[channel] // shape[1], 1)
    return max(analysis.graph.values[value.inputs[0]].shape[channel] // shape[1], 1)


def strides_of(value: Value, shape: tuple[int, ...]) -> int:
    """Of a transposed convolution the product of its strides: one in so many of a kernel's places
    meets an input on its way to an output. 1 of another function."""
    if not value.name.startswith("conv_transpose"):
        return 1
    given = argument(value, 3, ("stride",), 1)
    axes = given if isinstance(given, tuple | list) else (given,)
    axes = (*axes, *axes[-1:] * (len(shape) - 2 - len(axes)))  # one number is that of every axis
    return prod(axes) if all(isinstance(a, int) for a in axes) else 1


def bias_of(analysis: Analysis, value: Value, place: int) -> str:
    """The vector that is added to what the weight at ``place`` makes: by the function itself, or by
    a sum that follows it."""
    values = analysis.graph.values
    vectors = {
        at: values[j].path
        for at, j in enumerate(value.inputs)
        if values[j].kind == "parameter" and len(values[j].shape) == 1
    }
    if vectors:
        return vectors[min(vectors, key=lambda at: (at < place, at))]
    for j in analysis.graph.consumers[value.index]:
        if values[j].kind == "sum" and values[j].call == value.call:
            for k in values[j].inputs:
                if values[k].kind == "parameter" and values[k].shape == value.shape[-1:]:
                    return values[k].path
    return ""


def lengths_of(together: Mapping[str, tuple[int, ...]]) -> str:
    """Of the parameters that one weight is computed of, by path with their shapes, the one that
    holds a number for each output of another; ``""`` without one."""
    for path, shape in together.items():
        for other in together.values():
            pairs = list(zip(shape, other, strict=False))
            fits = len(shape) == len(other) and all(a in (1, b) for a, b in pairs)
            several = sum(a > 1 for a in shape)
            if fits and shape != other and (several == 1 or (not several and other[0] == 1)):
                return path
    return ""
