"""A model exactly as it was: buffers, module attributes, modes and random numbers put back.

Gradients are never written (``torch.autograd.grad`` returns them), parameters are only read. What
a forward pass changes by itself (running statistics, counters, caches, the generators) is put back
when the block ends, also after an exception.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthgauge.trace.inventory import Inventory

__all__ = ["untouched"]


@contextmanager
def untouched(held: Inventory) -> Iterator[None]:
    """While it lasts the model may run; afterwards it is as before."""
    modules = [
        (module.__dict__, module.__dict__.copy())
        for _, module in held.modules
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    tables = [
        (table, table.copy())
        for attributes, _ in modules
        for table in (attributes["_parameters"], attributes["_buffers"])
        if table
    ]
    written = [(b, b._version, b.detach().clone()) for b in _written(held)]
    generators = _generators()
    try:
        yield
    finally:
        for now, before in (*modules, *tables):
            if not _same(now, before):
                now.clear()
                now.update(before)
        with torch.no_grad():
            for buffer, version, values in written:
                if buffer._version != version:
                    buffer.copy_(values)
        _put_back(generators)


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    try:
        return now == before  # the same objects are equal without being compared
    except Exception:  # two different tensors have no truth
        return False


def _written(held: Inventory) -> list[Tensor]:
    """What a forward pass may write to: buffers, and small parameters that nobody trains."""
    frozen = [p for _, p in held.parameters if not p.requires_grad and p.dim() <= 1]
    return [b for b in (*(b for _, b in held.buffers), *frozen) if b.layout == torch.strided]


def _generators() -> tuple[Any, ...]:
    cuda = (
        torch.cuda.get_rng_state_all()
        if torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        else None
    )
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _put_back(states: tuple[Any, ...]) -> None:
    own, cuda, numpy, python = states
    torch.set_rng_state(own)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(numpy)
    random.setstate(python)
