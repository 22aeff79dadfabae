"""What begins at zero, or around it, where it should not: a sentence each.

A gain of zero on every way from the input to the output, gains of norms that were drawn around
zero as weights are, and zeros in front of an activation whose slope at 0 is 0, which no step wakes.
A last layer, or a branch, of zeros is a recipe and wakes by itself: nothing is said of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import DepthgaugeError
from depthgauge.trace.constants import constant
from depthgauge.trace.ends import ends
from depthgauge.trace.graph import Graph, Value
from depthgauge.trace.heads import replayed
from depthgauge.trace.norms import bias_of, gain_of
from depthgauge.trace.roles import Roles, displaces

if TYPE_CHECKING:
    from depthgauge.trace.running import Pass

__all__ = ["zeros"]

#: A gain of fewer channels is not asked whether it was drawn.
_CHANNELS: Final = 8
#: Of numbers around zero: their mean over their root mean square is below this. That of 8 drawn
#: numbers is so with a probability of 0.79, that of 32 with 0.99; what is 1 in the mean never is.
_AROUND: Final = 0.45
#: Products that are zero where one of their factors is.
_PRODUCTS: Final = ("matmul", "mm", "bmm", "linear", "einsum")
_BENDS: Final = ("act", "point")
#: Of how many steps the gradients are looked at: a layer behind zeros wakes in two.
_STEPS: Final = 3


@dataclass(frozen=True)
class _Gain:
    """The learned factor of a norm: the value ``at`` that the norm has become with it, the value
    that it is, and its numbers. ``second``: the norm's function has taken a gain before it."""

    at: Value
    value: Value
    numbers: Tensor
    second: bool = False


def zeros(model: nn.Module, batch: Any, loss: Any, passed: Pass) -> list[str]:
    """The sentences; ``loss``: what was given, None without one."""
    graph, held = passed.graph, dict([*passed.held.parameters, *passed.held.buffers])
    gains = list(_gains(graph, held))
    said = list(_drawn(graph, gains))
    cut = next((g for g in gains if not g.numbers.any() and _cuts(graph, g)), None)
    if cut is not None:
        return [*said, _cut(graph, cut, _asleep(model, batch, loss, 1))]
    flat = _flat(graph, dict(passed.held.parameters))
    if flat and (asleep := _asleep(model, batch, loss, _STEPS)) is not None:
        said += _dead(graph, flat, asleep)
    return said


# --------------------------------------------------------------------------- gains of norms


def _gains(graph: Graph, held: Mapping[str, Tensor]) -> Iterator[_Gain]:
    """Gains of norms that are not one number for all channels, or are zero.

    A norm's gain is what its function takes, or a factor right behind it: where something else
    reads the norm too (a skip, a state space's own path), the factor is no gain of it.
    """
    values, roles = graph.values, Roles(graph)
    alone: dict[int, bool] | None = None
    for value in values:
        if not value.data:
            continue
        second = False
        if (given := gain_of(value)) is not None:
            i = given
        elif value.kind == "product" and len(value.inputs) == 2:
            learned = [j for j in value.inputs if values[j].param and not values[j].data]
            moving = [j for j in value.inputs if values[j].data]
            if len(learned) != 1 or len(moving) != 1:
                continue
            row, i = _seen(values, moving[0]), learned[0]
            norm = values[row[-1]]
            if values[i].path and _one(held.get(values[i].path)):
                continue
            if norm.kind != "norm" and roles.norm_of(row[-1]) is None:
                continue
            alone = _read_once(graph) if alone is None else alone
            if not all(alone.get(j) for j in row):
                continue
            second = gain_of(norm) is not None
        else:
            continue
        numbers = constant(graph, i, held)
        if numbers is not None and not _one(numbers):
            yield _Gain(value, values[i], numbers.detach(), second)


def _seen(values: Sequence[Value], i: int) -> list[int]:
    """Value ``i`` and those that it is a view or cast of, the first of them last."""
    row = [i]
    while values[i].kind == "shape" and len(values[i].inputs) == 1:
        i = values[i].inputs[0]
        row.append(i)
    return row


def _read_once(graph: Graph) -> dict[int, bool]:
    """Of each value that an output is computed from, whether one value alone reads it there."""
    values = graph.values
    once = dict.fromkeys(graph.outputs, False)  # whoever called the model reads those
    todo, done = list(once), set(once)
    while todo:
        for j in dict.fromkeys(values[todo.pop()].inputs):
            once[j] = j not in once
            if j not in done:
                done.add(j)
                todo.append(j)
    return once


def _one(numbers: Tensor | None) -> bool:
    """Whether it begins and ends with the same number, which is not zero: a constant, as most are.
    A look at two numbers is what a gain of ones costs."""
    if numbers is None or not numbers.numel() or not numbers.is_floating_point():
        return True
    first, last = ends([numbers])[0]
    return first == last != 0


def _drawn(graph: Graph, gains: Sequence[_Gain]) -> Iterator[str]:
    """Gains whose numbers lie on both sides of zero with a mean of about zero."""
    found = [(g, std) for g in gains if not g.second and (std := _around(g.numbers))]
    if not found:
        return
    gain, std = found[0]
    yield (
        f"norm scale: {len(found)} norms have gains that were drawn around 0, as weights are "
        f"('{_named(graph, gain)}', standard deviation {std:.2g}), so that channels leave them "
        f"with random signs and an RMS of {std:.2g} in place of 1: begin gains at 1 and biases at 0"
    )


def _around(numbers: Tensor) -> float:
    """The standard deviation of numbers that were drawn around zero, 0 of others."""
    x = numbers.double().flatten()
    size = float(x.square().mean().sqrt())
    several = x.numel() >= _CHANNELS and len(set(x.tolist())) > x.numel() // 2
    return size if several and abs(float(x.mean())) < _AROUND * size else 0.0


def _named(graph: Graph, gain: _Gain) -> str:
    """The path of the parameter that a gain is made of, else of the norm's module."""
    todo = [gain.value]
    while todo:
        value = todo.pop()
        if value.kind == "parameter":
            return value.path
        todo += [graph.values[i] for i in value.inputs]
    return graph.path(gain.at.index) or "the model"


# ------------------------------------------------------------------------ zero on every way


def _cuts(graph: Graph, gain: _Gain) -> bool:
    """Whether every way from the batch to the first output is through what this gain multiplies;
    further ones may be states that a model returns beside it, or a cache."""
    todo, seen = [i for i in graph.outputs if graph.values[i].floating][:1], {gain.at.index}
    while todo:
        if (i := todo.pop()) in seen or not graph.values[i].data:
            continue
        seen.add(i)
        if not graph.values[i].inputs:
            return False
        todo += graph.values[i].inputs
    return True


def _cut(graph: Graph, gain: _Gain, asleep: Sequence[str] | None) -> str:
    said = (
        f"zero path: the gain of a norm on every way from the input to the output is 0 in all of "
        f"its {gain.numbers.numel()} channels ('{_named(graph, gain)}'), so that the output is the "
        f"same for every input"
    )
    if asleep is not None:
        said += f"; {len(asleep)} parameters have no gradient at the first step"
    return f"{said}: begin that gain at 1"


def _asleep(model: nn.Module, batch: Any, loss: Any, steps: int) -> list[str] | None:
    """Parameters without a gradient at each of the first steps; None where none could be taken."""
    from depthgauge.recipes.first_steps import first_gradients

    try:
        each = first_gradients(model, batch, loss, steps)
    except DepthgaugeError:
        return None
    return [name for name in each[0] if all(step[name] for step in each)] if each else None


# ----------------------------------------------------------------------------- flat at zero


def _flat(graph: Graph, parameters: Mapping[str, Tensor]) -> list[tuple[str, Value]]:
    """Activations that zeros alone enter, where their slope is 0: each with the parameter of zeros
    that makes them so."""
    named = [(name, p) for name, p in parameters.items() if p.numel() and p.is_floating_point()]
    each = zip(named, ends([p for _, p in named]), strict=True)
    if _only_biases(graph, {name for (name, _), found in each if found == (0, 0)}):
        return []
    values, found = graph.values, []
    origin: dict[int, str] = {}  # of values that are exactly zero, what made them so
    behind = set[int]()  # those that an activation passes on
    for value in values:
        i = value.index
        if not value.data:
            if value.path and not value.inputs:
                p = parameters.get(value.path)
                if p is not None and _ended(p) and not p.any():
                    origin[i] = value.path
            elif value.inputs and all(j in origin for j in value.inputs):
                numbers = constant(graph, i, parameters)
                if numbers is not None and not numbers.any():
                    origin[i] = origin[value.inputs[0]]
        elif value.kind in _BENDS and len(value.inputs) == 1 and value.inputs[0] in origin:
            here, slope = _at_zero(values, value)
            if slope == 0 and value.inputs[0] not in behind:
                found.append((origin[value.inputs[0]], value))
            if here == 0:
                origin[i] = origin[value.inputs[0]]
                behind.add(i)
        elif (made := _zero(value, values, origin)) is not None:
            origin[i] = made
    return found


def _only_biases(graph: Graph, names: Set[str]) -> bool:
    """Whether parameters are nothing but biases, which alone make no zeros."""
    values = graph.values
    for value in values if names else ():
        layer = value.kind == "weights" and value.name.startswith(("linear", "conv"))
        last = 2 if layer else len(value.inputs)
        bias = bias_of(value) if value.kind == "norm" else None
        if any(values[j].path in names and j != bias for j in value.inputs[:last]):
            return False
    return True


def _ended(p: Tensor) -> bool:
    """Whether it begins and ends with zero."""
    return bool(p.numel()) and p.is_floating_point() and ends([p])[0] == (0, 0)


def _zero(value: Value, values: Sequence[Value], origin: Mapping[int, str]) -> str | None:
    """What makes a value of data exactly zero, None where it is not known to be."""
    inside = [j for j in value.inputs if j in origin]
    if not inside:
        return None
    learned = [j for j in value.inputs if not values[j].data and values[j].param]
    match value.kind:
        case "product":
            zero = value.name in ("mul", "multiply")
        case "contract" if value.name in _PRODUCTS and len(value.inputs) == 2:
            zero = True
        case "weights":
            zero = bool(learned) and all(j in origin for j in learned)
        case "norm":
            gain, bias = gain_of(value), bias_of(value)
            if gain is not None and gain in origin and (bias is None or bias in origin):
                return origin[gain]
            zero = False
        case "sum":
            zero = len(inside) == len(value.inputs) > 1
        case "shape" | "drop":
            zero = len(inside) == len(value.inputs) and not displaces(value)
        case _:
            zero = False
    return origin[inside[0]] if zero else None


def _at_zero(values: Sequence[Value], value: Value) -> tuple[float, float]:
    """The largest magnitude of an activation, and of its slope, where zeros enter it; NaN where it
    could not be called again."""
    i = value.inputs[0]
    x = torch.zeros(values[i].shape, requires_grad=True)
    with torch.enable_grad():
        y = replayed(value, {i: x})
        if y is None or not y.requires_grad:
            return math.nan, math.nan
        (slope,) = torch.autograd.grad(y.sum(), x)
    return float(y.detach().abs().max()), float(slope.abs().max())


def _dead(graph: Graph, flat: Sequence[tuple[str, Value]], asleep: Sequence[str]) -> Iterator[str]:
    """Those whose zeros no step moves."""
    dead = [(path, value) for path, value in flat if path in asleep]
    if not dead:
        return
    path, value = dead[0]
    where = graph.path(value.index)
    yield (
        f"dead from the start: {len(dead)} activations are given nothing but zeros, where their "
        f"slope is 0 ('{where or 'the model'}', {value.name}), since '{path}' is zero; after "
        f"{_STEPS} steps {len(asleep)} parameters have had no gradient, that one among them: draw "
        f"it small, or take an activation with a slope at 0"
    )
