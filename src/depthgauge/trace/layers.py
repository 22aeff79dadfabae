"""Linear layers and convolutions as the language's nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from depthgauge.equation.nodes import (
    Arithmetic,
    Convolution,
    Linear,
    Number,
    Scalar,
    Symbol,
    Value,
)
from depthgauge.trace.attention import fused
from depthgauge.trace.blocks import Region, Unsayable
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.views import over_another_axis

__all__ = ["layer", "part_of_layer"]


def layer(region: Region, value: Traced) -> Value:
    """The node of a layer; what the language has no word for is unsayable."""
    i = value.index
    if value.name == "multi_head_attention_forward":
        return fused(region, value)
    if value.name == "linear":
        x, weight = value.inputs[0], value.inputs[1]
        bias = len(value.inputs) > 2
    elif value.kind == "contract" and value.name in ("matmul", "mm", "addmm") and len(
        value.inputs
    ) in (2, 3):  # fmt: skip
        bias = value.name == "addmm"
        x, weight = value.inputs[-2], value.inputs[-1]
        if region.values[weight].data or not region.values[weight].param:
            raise Unsayable(i, value.name)
    elif value.name == "conv2d":
        return _convolution(region, value)
    else:
        raise Unsayable(i, value.name)
    if not region.values[x].data:
        raise Unsayable(i, value.name)
    if over_another_axis(region, x):
        raise Unsayable(i, "linear over another axis")
    out = _out(region, value.shape[-1] if value.shape else 0)
    return Linear(f"{weight}", region.value(x), out, None, bias)


def part_of_layer(region: Region, value: Traced) -> Value | None:
    """One part of a layer's output that is cut in several along the width: a layer itself."""
    whole = region.values[value.inputs[0]]
    if value.name not in ("chunk", "split", "unsafe_chunk") or whole.name != "linear":
        return None
    made = layer(region, whole)
    cut = value.shape[:-1] == whole.shape[:-1] and value.shape[-1] < whole.shape[-1]
    if not cut or not isinstance(made, Linear):
        return None
    return replace(made, name=f"{made.name}.{value.item}", out=_out(region, value.shape[-1]))


def _convolution(region: Region, value: Traced) -> Value:
    weight = region.values[value.inputs[1]]
    given = dict(zip(("stride", "padding", "dilation", "groups"), value.args[3:], strict=False))
    given |= value.options
    kernel = weight.shape[-1] if weight.shape else 0
    stride, dilation = _square(given.get("stride", 1)), _square(given.get("dilation", 1))
    padding = given.get("padding", 0)
    before = region.values[value.inputs[0]]
    around = before.args[1] if before.name == "pad" and len(before.args) > 1 else ()
    circular = (
        before.options.get("mode", before.args[2] if len(before.args) > 2 else "") == "circular"
        and set(around) == {kernel // 2}
        and _square(padding) == 0
    )
    kept = circular or padding == "same" or _square(padding) == kernel // 2
    same = weight.shape[-1:] == weight.shape[-2:-1] and kernel % 2 == 1 and kept
    if stride != 1 or dilation != 1 or given.get("groups", 1) != 1 or not same:
        word = f"conv {'x'.join(map(str, weight.shape[2:]))}"
        details = [
            f"stride {stride}" if stride != 1 else "",
            f"groups {given.get('groups', 1)}" if given.get("groups", 1) != 1 else "",
            f"dilation {dilation}" if dilation != 1 else "",
        ]
        raise Unsayable(value.index, ", ".join([word, *filter(None, details)]))
    bias = len(value.inputs) > 2
    out, name = _out(region, weight.shape[0]), f"{weight.index}"
    if not circular:
        inner = region.value(value.inputs[0])
        return Convolution(kernel, inner, out, None, bias, "zeros", name)
    inner = region.value(region.values[value.inputs[0]].inputs[0])
    return Convolution(kernel, inner, out, None, bias, "circular", name)


def _out(region: Region, size: int) -> Scalar | None:
    n = region.width
    if size == n or not size:
        return None
    if size % n == 0:
        return Arithmetic("*", Number(float(size // n)), Symbol("n"))
    if n % size == 0:
        return Arithmetic("/", Symbol("n"), Number(float(n // size)))
    return Number(float(size))


def _square(sizes: Any) -> Any:
    if isinstance(sizes, tuple) and len(set(sizes)) == 1:
        return sizes[0]
    return sizes
