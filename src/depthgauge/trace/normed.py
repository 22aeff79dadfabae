"""A norm of the graph as a recipe counts it: its kind, gain, offset and numbers."""

from __future__ import annotations

import math
from collections.abc import Collection
from math import prod

from depthgauge.trace.analysis import Analysis
from depthgauge.trace.coefficients import fixed, parameter_of
from depthgauge.trace.counted import Normed
from depthgauge.trace.forms import Form
from depthgauge.trace.graph import Graph
from depthgauge.trace.norms import lengthwise, spelled_axis, spelled_kind

__all__ = ["normed", "numbers_behind"]

_NORMS = {
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "batch_norm": "batchnorm",
    "group_norm": "groupnorm",
    "tanh": "dyt",
    "erf": "derf",
}


def normed(analysis: Analysis, i: int, at: str, form: Form) -> Normed:
    """A norm by its value; its kind from the function or, of one spelled out, from its own values,
    else from the equation."""
    graph, values = analysis.graph, analysis.graph.values
    value = values[i]
    kind = _NORMS.get(value.name) or spelled_kind(analysis.roles, i)
    kind = kind or next((kind for a, kind in form.norms if a == at), "norm")
    learned = [values[j] for j in value.inputs[1:] if values[j].kind == "parameter"]
    gain = learned[0].path if learned else _affine_after(graph, i, "gain")
    offset = learned[1].path if len(learned) > 1 else _affine_after(graph, i, "bias")
    second = value.name in ("batch_norm", "group_norm") and len(value.shape) > 1
    axis = 1 - len(value.shape) if second else spelled_axis(analysis.roles, i)
    width = value.shape[axis] if value.shape else 1
    times = 1.0
    if (inside := lengthwise(analysis.roles, i)) is not None:
        times, one = _number_of(graph, i, inside)
        kind, gain = ("scalenorm", one) if one else (kind, gain)
    bounded = kind in ("dyt", "derf") and value.inputs
    numbers = numbers_behind(analysis, value.inputs[0]) if bounded else ()
    return Normed(at, kind, graph.path(i), gain, width, numbers, axis, offset=offset, times=times)


def _number_of(graph: Graph, i: int, inside: Collection[int]) -> tuple[float, str]:
    """Of a quotient by a length the fixed number behind it, and its one learned number: in front,
    in the divisor (``inside``) or behind; ``""`` where it has none, or one for each channel."""
    values, call, times = graph.values, graph.values[i].call, 1.0
    learned = [values[j] for j in inside]
    near = {call, graph.calls[call].parent}  # an equation's own stands around it
    while True:
        readers = [values[j] for j in graph.consumers[i] if values[j].kind in ("shape", "product")]
        if len(readers) != 1 or readers[0].call not in near:
            break
        value = readers[0]
        held = [p for p in (parameter_of(values, k) for k in value.inputs) if p is not None]
        own = [p for p in held if value.call == call or p.path.endswith(".gain")]
        if value.kind == "product" and not own:
            if len(value.inputs) != 1 or math.isnan(number := fixed(value)):
                break
            times *= number
        learned += own
        i = value.index
    found = {p.path for p in learned}
    one = len(found) == 1 and all(prod(p.shape) == 1 for p in learned)
    return times, found.pop() if one else ""


def numbers_behind(analysis: Analysis, i: int) -> tuple[str, ...]:
    """The learned numbers in ``alpha x + shift``, in this order."""
    values, found = analysis.graph.values, []
    while values[i].kind in ("sum", "product"):
        inputs = [values[j] for j in values[i].inputs]
        found += [v.path for v in inputs if v.kind == "parameter" and prod(v.shape) == 1]
        if values[i].kind == "product":
            break
        i = next((v.index for v in inputs if v.data), i)
    return tuple(reversed(found))


def _affine_after(graph: Graph, i: int, name: str) -> str:
    """The learned gain that a norm spelled out is multiplied by, or the bias that is then added, in
    its own module, or around it in the block of an equation."""
    values, call = graph.values, graph.values[i].call
    near = {call, graph.calls[call].parent}
    kind = "product" if name == "gain" else "sum"
    todo = [i]
    while todo:
        for j in graph.consumers[todo.pop()]:
            value = values[j]
            if value.call not in near or value.kind not in ("shape", "product", "sum"):
                continue
            held = [p for p in (parameter_of(values, k) for k in value.inputs) if p is not None]
            # What multiplies a branch of an equation has a number for a name.
            own = [p for p in held if value.call == call or p.path.endswith(f".{name}")]
            if value.kind == kind and own:
                return own[0].path
            if value.kind == "shape" or (value.kind == "product" and own):
                todo.append(j)
    return ""
