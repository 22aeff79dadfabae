"""One forward and one backward pass of any module, recorded and read, the model left as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.errors import ModelError, NetworkError, TargetError
from depthgauge.instruments.rivers import wide
from depthgauge.trace.admission import check
from depthgauge.trace.axes import examples_along
from depthgauge.trace.backward import gradients
from depthgauge.trace.batches import examples, tensors
from depthgauge.trace.forward import Forward, Refused, forward, one_line, quiet
from depthgauge.trace.graph import Graph
from depthgauge.trace.inventory import Inventory, inventory
from depthgauge.trace.readings import Readings
from depthgauge.trace.survey import survey
from depthgauge.trace.total import total_of
from depthgauge.trace.untouched import untouched

__all__ = ["Pass", "run"]


@dataclass
class Pass:
    """What one pass left: the graph, the names of parameters without gradient, the module ids that
    were called, seconds in all and those of the model itself, and what else has to be said."""

    graph: Graph
    held: Inventory
    no_gradient: list[str]
    called: set[int]
    seconds: float
    theirs: float
    cotangent: str
    notes: list[str] = field(default_factory=list)
    no_backward: str = ""
    total: float = math.nan  # what the gradient is of
    lifted: bool = True  # whether the batch required a gradient
    lost: bool = False  # whether what the gradient is of is NaN
    axis: int = 0  # of the batch, along which it counts examples
    axis_reason: str = ""  # what the pass says of that, where it was not given


def run(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int = 0,
    axis: int | None = None,
) -> Pass:
    """Run ``model`` on ``batch`` and its gradient back, and read both on the way.

    ``axis``: of the batch, along which it counts examples; None for what the pass says. Where that
    is not the first and examples are compared, it is read a second time, with that.

    Raises ModelError, with the path of the module, when the model raises; NetworkError for what
    cannot be measured. The model is left as it was in either case.
    """
    start = perf_counter()
    readings.axis = axis or 0
    readings.examples = examples(batch, readings.axis)
    with quiet():
        held = inventory(model)
        check(held, batch)
        passed = _run(model, held, batch, loss, readings, seed, start)
        if axis is not None:
            return replace(passed, axis=axis)
        found, why = examples_along(passed.graph)
        if found != readings.axis and readings.compares:
            readings.axis, readings.examples = found, examples(batch, found)
            readings.forget()
            passed = _run(model, held, batch, loss, readings, seed, start)
        return replace(passed, axis=found, axis_reason=why)


def _run(
    model: nn.Module,
    held: Inventory,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int,
    start: float,
) -> Pass:
    try:
        return _attempt(model, held, batch, loss, readings, seed, start, "")
    except Refused as refused:
        # Some models refuse a batch that requires a gradient; most that raise do so anyway.
        first = refused.error
    if isinstance(first.__cause__, SystemExit) or not any(
        t.is_floating_point() for _, t in tensors(batch)
    ):
        raise first from first.__cause__
    readings.forget()
    note = f"the gradient at the input was not measured: {one_line(first.__cause__)}"
    try:
        return _attempt(model, held, batch, loss, readings, seed, start, note)
    except Refused:
        raise first from first.__cause__


def _attempt(
    model: nn.Module,
    held: Inventory,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int,
    start: float,
    note: str,
) -> Pass:
    """One pass; the batch carries a gradient unless a ``note`` says why it does not."""
    with untouched(held) as saved, torch.inference_mode(False), torch.enable_grad():
        found = forward(model, held, batch, readings, saved, not note)
        found.note = note
        return _backward(held, batch, loss, readings, seed, found, start)


def _backward(
    held: Inventory,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int,
    found: Forward,
    start: float,
) -> Pass:
    recorder, graph = found.recorder, found.recorder.graph
    theirs = found.seconds
    outputs = [(name, t) for name, t in tensors(found.output)]
    if not outputs:
        raise TargetError(
            f"the model returned {type(found.output).__name__} without a tensor in it; return a "
            f"tensor, or a tuple, dict or dataclass of tensors"
        )
    for name, tensor in outputs:
        if tensor.is_complex():
            where = f" '{name}'" if name else ""
            raise NetworkError(
                f"the model's output{where} is complex ({tensor.dtype}); depthgauge measures real "
                f"networks, so return its real and imaginary part"
            )
    graph.outputs = tuple(dict.fromkeys(recorder.find(t) for _, t in outputs))
    readings.ended()
    for _, tensor in outputs:
        readings.returned(graph.values[recorder.find(tensor)], tensor)
    total, words = total_of(outputs, found.output, batch, loss, seed, graph, recorder)
    parameters = [(name, p) for name, p in held.parameters if p.requires_grad]
    notes = [found.note] if found.note else []
    no_backward, missing = "", []
    if not total.requires_grad:
        no_backward = "the output does not depend on any tensor that a gradient could reach"
        missing = [name for name, _ in parameters]
    else:
        blind = any(value.blind for value in graph.values)
        # What was written over may be missed by a backward pass, which has to be seen to fail.
        below = None if blind or recorder.wrote else survey(total, readings.edges.values())
        try:
            if below is not None and below.first and not below.own:
                reached = below.leaves
                clock = perf_counter()
                torch.autograd.grad(total, below.first, allow_unused=True)  # type: ignore[arg-type]
            else:
                clock = perf_counter()
                reached = _whole(total, found.anchor, parameters, blind)
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"the backward pass raised {type(error).__name__}: {one_line(error)}"
            ) from error
        theirs += perf_counter() - clock - readings.own
        missing = [name for name, p in parameters if id(p) not in reached]
    readings.finish()
    number = float(total.detach()) if total.numel() == 1 and not total.is_meta else math.nan
    # Along a cotangent infinities, as of a masked logit, may add up to NaN too.
    lost = math.isnan(number) and not total.is_meta
    lost = lost and (loss is not None or any(_lost(tensor) for _, tensor in outputs))
    return Pass(
        graph,
        held,
        missing,
        recorder.called,
        perf_counter() - start,
        theirs,
        words,
        notes,
        no_backward,
        number,
        not found.note,
        lost,
    )


def _lost(x: Tensor) -> bool:
    """Whether a value of it is NaN."""
    return x.is_floating_point() and not x.is_meta and bool(wide(x.detach()).isnan().any())


def _whole(
    total: Tensor, anchor: Tensor, parameters: Sequence[tuple[str, Tensor]], blind: bool
) -> set[int]:
    """A backward pass through everything; the ids of the parameters that a gradient reached."""
    leaves = [anchor, *(p for _, p in parameters)]
    if blind:
        each = gradients(total, leaves)
    else:
        each = list(torch.autograd.grad(total, leaves, allow_unused=True))
    return {id(leaf) for leaf, g in zip(leaves, each, strict=True) if g is not None}
