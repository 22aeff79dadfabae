"""The number whose gradient goes back: a loss, or a random cotangent at the output."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.errors import ModelError, TargetError
from depthgauge.trace.forward import one_line
from depthgauge.trace.graph import Graph
from depthgauge.trace.recorder import Recorder

__all__ = ["loss_of", "total_of"]


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
        return _wide(named[0]), "the gradient of the loss among the outputs"
    if all(t.numel() == 1 for _, t in backward):
        scalars = [_wide(t) for _, t in backward]
        word = "the gradient of the loss returned"
        if len(scalars) > 1:
            word = f"the gradient of the sum of the {len(scalars)} losses returned"
        return sum(scalars[1:], scalars[0]), word
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
