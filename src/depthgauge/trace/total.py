"""The number whose gradient goes back: a loss, or a random cotangent at the output."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import ModelError, TargetError
from depthgauge.trace.batches import examples
from depthgauge.trace.forward import one_line
from depthgauge.trace.graph import Graph
from depthgauge.trace.recorder import Recorder

__all__ = ["loss_of", "total_of"]

_LAYERS: Final = ("weights", "contract", "cell")


def total_of(
    outputs: list[tuple[str, Tensor]],
    output: Any,
    batch: Any,
    loss: Callable[..., Any] | None,
    seed: int,
    graph: Graph,
    recorder: Recorder,
) -> tuple[Tensor, str]:
    """The number whose gradient goes back, and in words what it is.

    The user's loss; else a loss among the outputs, by its name or as the one number in a tuple;
    else all outputs if all are losses; else a random cotangent of RMS 1 at the first tensor, and at
    others that end streams of their own.
    """
    if loss is not None:
        return loss_of(loss, output, batch), "the gradient of the loss given"
    backward = [(n, t) for n, t in outputs if t.requires_grad and t.is_floating_point()]
    if not backward:
        return outputs[0][1], "none"
    named = [t for n, t in backward if n.rpartition(".")[2] == "loss" and t.numel() == 1]
    if named:
        return _wide(named[0]), "the gradient of the loss among the outputs"
    if all(t.numel() == 1 for _, t in backward):
        scalars = [_wide(t) for _, t in backward]
        word = "the gradient of the loss returned"
        if len(scalars) > 1:
            word = f"the gradient of the sum of the {len(scalars)} losses returned"
        return sum(scalars[1:], scalars[0]), word
    if (alone := _alone(backward, output, batch, graph, recorder)) is not None:
        name, tensor = alone
        word = f"the loss among the outputs ('{name}', the only single number with one)"
        return _wide(tensor), f"the gradient of {word}"
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


def _wide(loss: Tensor) -> Tensor:
    """A loss of one element as a number, in float32 where its type is narrower."""
    return (loss if loss.dtype == torch.float64 else loss.float()).sum()


def _alone(
    backward: list[tuple[str, Tensor]], output: Any, batch: Any, graph: Graph, recorder: Recorder
) -> tuple[str, Tensor] | None:
    """The only single number in a tuple that a gradient comes from, if it is a loss: made of the
    batch, and of all that the tensors beside it are made of, as no temperature and no penalty of a
    part is. Of a batch of one example a single number with axes may be a prediction."""
    single = [(n, t) for n, t in backward if t.numel() == 1]
    if not isinstance(output, tuple | list) or len(single) != 1:
        return None
    ((name, tensor),) = single
    i = recorder.find(tensor)
    if not graph.values[i].data or "." in name or (tensor.dim() and examples(batch) == 1):
        return None
    others = [recorder.find(t) for _, t in backward if t is not tensor]
    unseen = graph.ancestors(others) - graph.ancestors([i])
    return None if any(_weighs(graph, j) for j in unseen) else (name, tensor)


def _weighs(graph: Graph, i: int) -> bool:
    """Whether value ``i`` is what a layer with weights makes of data."""
    value, values = graph.values[i], graph.values
    learned = any(values[j].param and not values[j].data for j in value.inputs)
    return value.data and learned and value.kind in _LAYERS


def _fresh(graph: Graph, only: set[int]) -> bool:
    """Whether values that no output before was computed from hold sums: a stream of their own."""
    return any(graph.values[i].kind == "sum" and len(graph.flow[i]) > 1 for i in only)


def loss_of(loss: Callable[..., Any], output: Any, batch: Any) -> Tensor:
    """The user's loss as one number. Raises ModelError where it raises, TargetError else."""
    try:
        value = loss(output, batch) if _takes_two(loss) else loss(output)
    except (Exception, SystemExit) as error:
        raise ModelError(f"the loss raised {type(error).__name__}: {one_line(error)}") from error
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
