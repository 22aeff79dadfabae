"""The forward pass of any module, recorded: uncompiled, and an error in it said with its module."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge.errors import DepthgaugeError, ModelError
from depthgauge.trace.batches import call, mapped, tensors
from depthgauge.trace.inventory import Inventory
from depthgauge.trace.recorder import Recorder, Watcher

__all__ = ["Forward", "Refused", "forward", "one_line", "quiet"]

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


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


class Refused(Exception):
    """The forward pass raised; ``error`` says where."""

    def __init__(self, error: ModelError) -> None:
        self.error = error


def one_line(error: object) -> str:
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
class Forward:
    """What a forward pass left: its output, what was recorded, the zero that every float input
    hangs on, and what has to be said of it."""

    output: Any
    recorder: Recorder
    anchor: Tensor
    seconds: float  # of the model itself
    note: str = ""


def forward(
    model: nn.Module,
    held: Inventory,
    batch: Any,
    watcher: Watcher | None,
    saved: dict[int, tuple[Tensor, Tensor]],
    lift: bool,
    keep: Collection[int] = (),
) -> Forward:
    """Run ``model`` on a copy of ``batch``, recorded; the copy requires a gradient if ``lift``.

    ``watcher`` looks at the tensors, ``saved`` and ``keep`` are the recorder's. Raises Refused with
    the module's path where the model raises.
    """
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
            f"the forward pass of {path} raised {type(error).__name__}: {one_line(error)}",
            where.path,
        )
        made.__cause__ = error
        raise Refused(made) from error
    return Forward(output, recorder, anchor, perf_counter() - start - recorder.own)
