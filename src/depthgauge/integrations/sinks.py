"""Where numbers of a training run go: known by what it can do, so that nothing is imported here.

function(numbers, step)        called as it is
SummaryWriter                  add_scalar(name, x, global_step=step)     TensorBoard
a run of Weights & Biases      log(numbers, step=step)
the mlflow module              log_metrics(numbers, step=step)
a logger of Lightning          log_metrics(numbers, step)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from depthgauge.errors import SpecificationError

__all__ = ["Log", "sink_of"]


class Log(Protocol):
    def __call__(self, numbers: Mapping[str, float], step: int, /) -> object: ...


def sink_of(log: object) -> Log:
    """What writes to ``log``, or to each of several. Raises SpecificationError."""
    if log is None:
        return lambda numbers, step: None
    if isinstance(log, Sequence) and not isinstance(log, str):
        each = [sink_of(one) for one in log]
        return lambda numbers, step: [one(numbers, step) for one in each]
    if callable(add := getattr(log, "add_scalar", None)):
        return lambda numbers, step: [add(n, x, global_step=step) for n, x in numbers.items()]
    if callable(metrics := getattr(log, "log_metrics", None)):
        return _finite(metrics)
    if callable(own := getattr(log, "log", None)) and not callable(log):
        return _weights_and_biases(own)
    if callable(log):
        return log
    raise SpecificationError(
        f"log is of type {type(log).__name__}, expected a function of (numbers, step), a "
        f"SummaryWriter, a Weights & Biases run, the mlflow module or a list of them"
    )


def _finite(metrics: Callable[..., Any]) -> Log:
    """Servers that refuse what is not finite are told how many such numbers there were."""

    def write(numbers: Mapping[str, float], step: int) -> None:
        kept = {name: x for name, x in numbers.items() if math.isfinite(x)}
        lost = len(numbers) - len(kept)
        metrics({**kept, "depthgauge/not_finite": float(lost)}, step=step)

    return write


def _weights_and_biases(own: Callable[..., Any]) -> Log:
    def write(numbers: Mapping[str, float], step: int) -> None:
        own(dict(numbers), step=step)

    return write
