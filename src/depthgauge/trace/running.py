"""One forward and one backward pass of any module, recorded and read, the model left as it was."""

from __future__ import annotations

import gc
import inspect
import math
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain as chained
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn.parameter import is_lazy

from depthgauge.errors import DepthgaugeError, ModelError, NetworkError, TargetError
from depthgauge.network.chain import Chain, Kept, twice_differentiable
from depthgauge.trace.alike import alike, counterparts, uncast
from depthgauge.trace.backward import gradients
from depthgauge.trace.batches import call, examples, mapped, tensors
from depthgauge.trace.graph import Graph
from depthgauge.trace.inventory import Inventory, inventory
from depthgauge.trace.readings import Edge, Readings
from depthgauge.trace.recorder import Recorder, Watcher
from depthgauge.trace.untouched import untouched

__all__ = ["Pass", "chain", "loss_of", "quiet", "run", "unwrapped"]

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


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
    lifted: bool = True  # whether the batch required a gradient


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module inside wrappers that only place or compile it, with what was taken off."""
    notes = []
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            notes.append(f"the module inside {type(model).__name__} was measured, on one device")
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            notes.append("the compiled model ran uncompiled: hooks do not fire in compiled code")
            model = inner
        else:
            break
    every = list(model.modules())
    if any("_orig_mod" in m._modules for m in every):
        notes.append("compiled submodules ran uncompiled: hooks do not fire in compiled code")
    elif any(getattr(m, "_compiled_call_impl", None) for m in every):
        notes.append("modules compiled in place ran uncompiled: hooks do not fire in compiled code")
    return model, notes


def check(held: Inventory, batch: Any) -> None:
    """Refuse what cannot be run or measured, by name."""
    for place, (name, tensor) in enumerate(chained(held.parameters, held.buffers)):
        lazy, meta = is_lazy(tensor), tensor.is_meta
        if not (lazy or meta or tensor.is_complex()):
            continue
        word = "parameter" if place < len(held.parameters) else "buffer"
        if lazy:
            raise NetworkError(
                f"{word} '{name}' has no shape yet (a lazy module); run the model once on a batch "
                f"before it is measured"
            )
        if meta:
            raise NetworkError(
                f"{word} '{name}' is on the meta device, which holds no numbers; call "
                f"model.to_empty(device='cpu') and initialise the model before it is measured"
            )
        if word == "parameter":
            raise NetworkError(
                f"parameter '{name}' is complex ({tensor.dtype}); depthgauge measures real "
                f"networks, so write real and imaginary part as two real tensors"
            )
    given = list(tensors(batch))
    for name, tensor in given:
        where = f"the batch's tensor '{name}'" if name else "the batch"
        if tensor.is_complex():
            raise NetworkError(
                f"{where} is complex ({tensor.dtype}); depthgauge measures real networks, so give "
                f"real and imaginary part as two real tensors"
            )
        if tensor.is_meta:
            raise NetworkError(f"{where} is on the meta device, which holds no numbers")
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise NetworkError(f"{where} is {kind}; give an ordinary dense tensor")
        if tensor.is_floating_point() and tensor.dtype.itemsize < 2:
            raise NetworkError(
                f"{where} is of {tensor.dtype}, in which nothing can be added; give float16, "
                f"bfloat16, float32 or float64"
            )
        if tensor.dim() and not tensor.numel():
            raise NetworkError(f"{where} is empty, of shape {tuple(tensor.shape)}")


@contextmanager
def _eager() -> Iterator[None]:
    """Functions run as they are written: nothing compiled, scripts operation by operation."""
    with ExitStack() as stack:
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        stack.enter_context(warnings.catch_warnings())
        # Compiled modules run uncompiled here, with our hooks.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there")
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection, which thousands of small objects would set off again and again, and no
    warnings from NumPy where a statistic overflows."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        if collecting:
            gc.enable()


def run(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int = 0,
) -> Pass:
    """Run ``model`` on ``batch`` and its gradient back, and read both on the way.

    Raises ModelError, with the path of the module, when the model raises; NetworkError for what
    cannot be measured. The model is left as it was in either case.
    """
    start = perf_counter()
    readings.examples = examples(batch)
    with quiet():
        held = inventory(model)
        check(held, batch)
        return _run(model, held, batch, loss, readings, seed, start)


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
    except _Refused as refused:
        # Some models refuse a batch that requires a gradient; most that raise do so anyway.
        first = refused.error
    if isinstance(first.__cause__, SystemExit) or not any(
        t.is_floating_point() for _, t in tensors(batch)
    ):
        raise first from first.__cause__
    readings.forget()
    note = f"the gradient at the input was not measured: {_one_line(first.__cause__)}"
    try:
        return _attempt(model, held, batch, loss, readings, seed, start, note)
    except _Refused:
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
        found = _forward(model, held, batch, readings, saved, not note)
        found.note = note
        return _backward(held, batch, loss, readings, seed, found, start)


class _Refused(Exception):
    """The forward pass raised; ``error`` says where."""

    def __init__(self, error: ModelError) -> None:
        self.error = error


def _one_line(error: object) -> str:
    """The first line of an error's message."""
    try:
        return str(error).strip().partition("\n")[0].strip() or "no message"
    except Exception:
        return "a message that cannot be printed"


def _ours(error: BaseException) -> bool:
    """Whether the mistake is in this package: then it is no failure of the user's model."""
    at, deepest = error.__traceback__, ""
    while at is not None:
        deepest = at.tb_frame.f_code.co_filename
        at = at.tb_next
    return deepest.startswith(_PACKAGE) and not isinstance(error, DepthgaugeError)


@dataclass
class _Forward:
    output: Any
    recorder: Recorder
    anchor: Tensor
    seconds: float  # of the model itself
    note: str = ""


def _forward(
    model: nn.Module,
    held: Inventory,
    batch: Any,
    watcher: Watcher | None,
    saved: dict[int, tuple[Tensor, Tensor]],
    lift: bool,
    keep: Collection[int] = (),
) -> _Forward:
    anchor = torch.zeros((), requires_grad=True, device="cpu")  # wherever new tensors go
    recorder = Recorder(held, watcher, anchor, saved, keep)

    def given(x: Tensor) -> Tensor:
        if lift and x.is_floating_point():
            return x.detach() + anchor.to(x)
        return x.detach().clone()

    copied = mapped(batch, given)
    for name, tensor in tensors(copied):
        recorder.give(tensor, name or "input")
    start = perf_counter()
    try:
        with _eager(), recorder:
            output = call(model, copied)
    except (Exception, SystemExit) as error:
        theirs = error is recorder.raised or isinstance(error, RecursionError | SystemExit)
        recorder.raised = None  # which holds its frames, and they the model
        if not theirs and _ours(error):
            raise
        where = recorder.where
        path = f"'{where.path}' ({where.type})" if where.path else f"the model ({where.type})"
        if not where.type:
            path = f"the model ({type(model).__name__})"
        made = ModelError(
            f"the forward pass of {path} raised {type(error).__name__}: {_one_line(error)}",
            where.path,
        )
        made.__cause__ = error
        raise _Refused(made) from error
    return _Forward(output, recorder, anchor, perf_counter() - start - recorder.own)


@contextmanager
def chain(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    places: Sequence[int],
    before: Pass,
    seed: int = 0,
) -> Iterator[Chain]:
    """Another pass like ``before``, with the states at the values ``places`` kept on the graph;
    ``batch`` may have fewer examples.

    While the block lasts the graph is alive; the model is left as it was when it ends. A pass that
    calls other functions than ``before`` is taken twice, to find the states and to keep them, and
    so is one with states that a checkpoint makes. Raises NetworkError where they are not found.
    """
    graph = before.graph
    wanted = [uncast(graph, i) for i in places]
    with ExitStack() as opened:
        again = opened.enter_context(_again(model, batch, before, wanted, graph))
        at: Sequence[int | None] = wanted
        same = alike(graph, again.graph, max(wanted, default=0))
        if not same:
            at, graph = counterparts(graph, again.graph, wanted), again.graph
        if not same or again.shut:
            opened.close()
            again = opened.enter_context(_again(model, batch, before, at, graph, _Opened()))
        count, full = examples(batch), _examples(before.graph)
        states = []
        for i, j in zip(wanted, at, strict=True):
            edge, value = (None, None) if j is None else again.kept(graph.places[j])
            shape = before.graph.values[i].shape
            axis = _axis(shape, full)
            expected = [count if k == axis else n for k, n in enumerate(shape)]
            if value is None or list(value.shape) != expected:
                raise NetworkError(
                    "a second pass of the model does not compute what the first did, so its states "
                    "cannot be followed; make the forward pass depend on its batch and seed alone"
                )
            where = before.graph.path(i) or "the input"
            states.append(Kept(edge, value, axis, where))
        found, recorder = again.found, again.found.recorder

        def total() -> Tensor:
            outputs = list(tensors(found.output))
            return _total(outputs, found.output, batch, loss, seed, recorder.graph, recorder)[0]

        yield Chain(states, total, [t.detach() for _, t in tensors(found.output)])


class _Opened:
    """Where autograd made what a re-entrant checkpoint gives: known when that has ended."""

    def __init__(self) -> None:
        self.edges: dict[int, GradientEdge] = {}

    def opened(self, index: int, x: Tensor) -> None:
        self.edges[index] = get_gradient_edge(x)

    def _nothing(self, *seen: Any) -> None:
        """Numbers are not asked for."""

    begin = adding = made = added = activating = activated = entering = returned = left = _nothing


@dataclass
class _Again:
    """A pass taken again: what came out of it, the edges that checkpoints opened."""

    found: _Forward
    opened: dict[int, GradientEdge]

    @property
    def graph(self) -> Graph:
        return self.found.recorder.graph

    @property
    def shut(self) -> bool:
        """Whether a state that was kept has no edge."""
        return any(edge is None for edge, _ in self.found.recorder.kept.values())

    def kept(self, place: int) -> tuple[GradientEdge | None, Tensor | None]:
        edge, value = self.found.recorder.kept.get(place, (None, None))
        return edge or self.opened.get(place), value


@contextmanager
def _again(
    model: nn.Module,
    batch: Any,
    before: Pass,
    wanted: Sequence[int | None],
    graph: Graph,
    watcher: _Opened | None = None,
) -> Iterator[_Again]:
    """One more forward pass; ``wanted``: values of ``graph`` whose tensors are kept."""
    keep = [graph.places[i] for i in wanted if i is not None]
    with (
        untouched(before.held) as saved,
        torch.inference_mode(False),
        torch.enable_grad(),
        twice_differentiable(),
    ):
        try:
            found = _forward(model, before.held, batch, watcher, saved, before.lifted, keep)
        except _Refused as refused:
            raise refused.error from refused.error.__cause__
        if watcher is None:
            yield _Again(found, {})
            return
        for _, tensor in tensors(found.output):
            found.recorder.find(tensor)
        where = found.recorder.graph.places
        yield _Again(found, {where[i]: edge for i, edge in watcher.edges.items()})


def _examples(graph: Graph) -> int:
    """How many examples the batch of a recorded pass had."""
    return next((v.shape[0] for v in graph.values if v.kind == "input" and v.shape), 1)


def _axis(shape: Sequence[int], count: int) -> int | None:
    """The axis of a state that counts the examples: the first of that size, none if none is."""
    return next((i for i, n in enumerate(shape) if n == count), None)


def _backward(
    held: Inventory,
    batch: Any,
    loss: Callable[..., Any] | None,
    readings: Readings,
    seed: int,
    found: _Forward,
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
    total, words = _total(outputs, found.output, batch, loss, seed, graph, recorder)
    parameters = [(name, p) for name, p in held.parameters if p.requires_grad]
    notes = [found.note] if found.note else []
    no_backward, missing = "", []
    if not total.requires_grad:
        no_backward = "the output does not depend on any tensor that a gradient could reach"
        missing = [name for name, _ in parameters]
    else:
        blind = any(value.blind for value in graph.values)
        # What was written over may be missed by a backward pass, which has to be seen to fail.
        below = None if blind or recorder.wrote else _survey(total, readings.edges.values())
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
                f"the backward pass raised {type(error).__name__}: {_one_line(error)}"
            ) from error
        theirs += perf_counter() - clock - readings.own
        missing = [name for name, p in parameters if id(p) not in reached]
    readings.finish()
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
        not found.note,
    )


@dataclass
class _Below:
    """Autograd's graph below a number: the ids of its leaves, of the states that were read those
    with none below them, and whether functions of the user's own stand in it."""

    leaves: set[int]
    first: list[GradientEdge | Tensor]
    own: bool


def _survey(total: Tensor, read: Iterable[Edge]) -> _Below:
    """What a backward pass will meet; ``read`` are the states whose gradients are wanted.

    The gradient at the first of them needs that of all others, and of no weight: a backward pass
    to there costs about half of one that a step needs.
    """
    at: dict[Any, list[Edge]] = {}
    for edge in read:
        node, x = edge
        at.setdefault(id(x) if node is None else node, []).append(edge)
    leaves: set[int] = set()
    first: list[Edge] = []
    met: dict[Any, bool] = {}  # whether a state that was read stands at a node or below it
    below: dict[Any, list[Any]] = {}
    todo: list[Any] = [total.grad_fn]
    while todo:
        node = todo[-1]
        if (inputs := below.get(node)) is None:
            inputs = below[node] = []
            fresh = len(todo)
            for n, _ in node.next_functions:
                if n is not None:
                    inputs.append(n)
                    if n not in below:
                        todo.append(n)
            if len(todo) > fresh:
                continue
        todo.pop()
        if node in met:
            continue
        found = False
        for n in inputs:
            if met[n]:
                found = True
                break
        states = at.get(node)
        if not inputs and (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
            states = at.get(id(leaf), states)
        if states and not found:
            first += states
            found = True
        met[node] = found
    own = any(issubclass(kind, BackwardCFunction) for kind in set(map(type, below)))
    return _Below(leaves, [_gradient_at(*edge) for edge in first], own)


def _gradient_at(node: Node | None, x: int | Tensor) -> GradientEdge | Tensor:
    if isinstance(x, Tensor):
        return x
    assert node is not None
    return GradientEdge(node, x)


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


def _total(
    outputs: list[tuple[str, Tensor]],
    output: Any,
    batch: Any,
    loss: Callable[..., Any] | None,
    seed: int,
    graph: Graph,
    recorder: Recorder,
) -> tuple[Tensor, str]:
    """The number whose gradient goes back, and in words what it is.

    The user's loss; else a loss among the outputs; else all outputs if all are losses; else a
    random cotangent of RMS 1 at the first tensor, and at others that end streams of their own.
    """
    if loss is not None:
        return loss_of(loss, output, batch), "the gradient of the loss given"
    backward = [(n, t) for n, t in outputs if t.requires_grad and t.is_floating_point()]
    if not backward:
        return outputs[0][1], "none"
    named = [t for n, t in backward if n.rpartition(".")[2] == "loss" and t.numel() == 1]
    if named:
        return named[0].float().sum(), "the gradient of the loss among the outputs"
    if all(t.numel() == 1 for _, t in backward):
        scalars = [t.float().sum() for _, t in backward]
        word = "the gradient of the loss returned"
        if len(scalars) > 1:
            word = f"the gradient of the sum of the {len(scalars)} losses returned"
        return torch.stack(scalars).sum() if len(scalars) > 1 else scalars[0], word
    generator = torch.Generator("cpu").manual_seed(seed)
    seen: set[int] = set()
    total = None
    chosen = []
    several = len(backward) > 1
    for name, tensor in backward:
        if tensor.numel() == 1:
            continue
        below = graph.ancestors([recorder.find(tensor)]) if several else set()
        if total is not None and not _fresh(graph, below - seen):
            continue
        seen |= below
        draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float32, device="cpu")
        draw /= (torch.linalg.vector_norm(draw) / math.sqrt(draw.numel())).clamp_min(1e-30)
        part = (tensor * draw.to(tensor)).sum()
        total = part if total is None else total + part
        chosen.append(name or "the output")
    assert total is not None
    return total, f"standard normal, divided by its RMS, at {', '.join(chosen)}"


def _fresh(graph: Graph, only: set[int]) -> bool:
    """Whether values that no output before was computed from hold sums: a stream of their own."""
    return any(graph.values[i].kind == "sum" and len(graph.flow[i]) > 1 for i in only)


def loss_of(loss: Callable[..., Any], output: Any, batch: Any) -> Tensor:
    """The user's loss as one number. Raises ModelError where it raises, TargetError else."""
    try:
        value = loss(output, batch) if _takes_two(loss) else loss(output)
    except (Exception, SystemExit) as error:
        raise ModelError(f"the loss raised {type(error).__name__}: {_one_line(error)}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TargetError(f"the loss returned {came}, expected a tensor with one number")
    return value.sum()


def _takes_two(loss: Callable[..., Any]) -> bool:
    """Whether a loss asks for the batch too: a second argument by position, without a default."""
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    wanted = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(wanted) > 1
