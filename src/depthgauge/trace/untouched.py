"""A model exactly as it was: buffers, module attributes, modes and random numbers put back.

Gradients are never written (``torch.autograd.grad`` returns them). What a forward pass changes by
itself (running statistics, counters, caches, lists, hooks, flags, the generators) is put back when
the block ends, also after an exception. A parameter that the model writes to is copied before the
first write, by the recorder that sees it coming.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, filterfalse
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge.trace.inventory import Inventory

__all__ = ["untouched"]

_CONTAINERS: Final = (dict, list, set, deque, bytearray)
#: What holds nothing that can be written to, as most attributes of modules do.
_PLAIN: Final = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device))
#: Tables of every module that a forward pass might write to.
_TABLES: Final = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set",
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


@contextmanager
def untouched(held: Inventory) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """While it lasts the model may run; afterwards it is as before.

    Gives a table for copies of parameters that are about to be written to, by their ids:
    ``(parameter, what it held)``.
    """
    modules = [m for _, m in held.modules if not isinstance(m, torch.jit.ScriptModule)]
    # PyTorch's own layers keep nothing but parameters, buffers and hooks; others may keep anything.
    own: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for m in modules:
        (own if type(m).__module__.startswith("torch.nn.modules") else others).append(m.__dict__)
    tables = own + others
    before = [now.copy() for now in tables]
    containers, empty = _tables(own)
    loose: list[Any] = []
    for now in others:
        for part in now.values():
            if type(part) not in _PLAIN:
                _keep(part, containers, loose)
    flags = [(p, p.requires_grad) for _, p in held.parameters]
    tensors = [b for _, b in held.buffers]
    tensors += [part for part in loose if isinstance(part, Tensor)]
    written = [(t, t.detach().clone()) for t in tensors if t.layout == torch.strided]
    arrays = [(part, part.copy()) for part in loose if isinstance(part, np.ndarray)]
    generators = _generators()
    drawn = [_state(part) for part in loose if _draws(part)]
    saved: dict[int, tuple[Tensor, Tensor]] = {}
    try:
        yield saved
    finally:
        if not _same(tables, before):  # all at once: of thousands of modules none has changed
            for now, kept in zip(tables, before, strict=True):
                _refill(now, kept)
        if any(empty):
            for table in empty:
                table.clear()
        for container, content in containers:
            if content is not None or container:
                _refill(container, content)
        for parameter, wanted in flags:
            if parameter.requires_grad is not wanted and parameter.is_leaf:
                parameter.requires_grad_(wanted)
        with torch.no_grad():
            for tensor, content in written:
                # Kernels that keep statistics do not count as writes, so the values decide.
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.detach_()
                if not torch.equal(tensor, content):
                    _write(tensor, content)
            for tensor, content in saved.values():
                _write(tensor, content)
        for array, content in arrays:
            if array.flags.writeable:
                array[...] = content
        _put_back(generators)
        for put_back, state in drawn:
            put_back(state)


def _tables(modules: list[dict[str, Any]]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Copies of the tables in PyTorch's own layers that hold anything, and those that do not."""
    try:
        rows = list(map(itemgetter(*_TABLES), modules))
    except KeyError:  # a module unpickled from another version
        rows = [tuple(now.get(name) for name in _TABLES) for now in modules]
    every = list(chain.from_iterable(rows))
    return [(part, part.copy()) for part in filter(None, every)], list(filterfalse(None, every))


def _draws(part: Any) -> bool:
    return isinstance(part, torch.Generator | np.random.Generator | random.Random)


def _state(part: Any) -> tuple[Callable[[Any], None], Any]:
    """A generator's state, and what puts it back."""
    if isinstance(part, torch.Generator):
        return part.set_state, part.get_state()  # type: ignore[return-value]
    if isinstance(part, random.Random):
        return part.setstate, part.getstate()
    return (lambda state: setattr(part.bit_generator, "state", state)), part.bit_generator.state


def _keep(part: Any, kept: list[tuple[Any, Any]], loose: list[Any], depth: int = 0) -> None:
    """Copies of a container and of those in it, and what else in them can be written to: tensors
    that are no parameters, arrays, generators."""
    if type(part) in (dict, OrderedDict, set) and not part:  # most tables of a module
        kept.append((part, None))
    elif isinstance(part, Tensor):
        if not isinstance(part, nn.Parameter):
            loose.append(part)
    elif isinstance(part, np.ndarray) or _draws(part):
        loose.append(part)
    elif isinstance(part, _CONTAINERS):
        # Most are empty; what an empty one has gained needs no copy to be seen.
        kept.append((part, part.copy() if part else None))
        if part and depth < 8 and not isinstance(part, set | bytearray):
            for item in list(part.values() if isinstance(part, dict) else part):
                _keep(item, kept, loose, depth + 1)
    elif isinstance(part, tuple) and depth < 8:
        for item in part:
            _keep(item, kept, loose, depth + 1)


def _refill(container: Any, content: Any) -> None:
    if content is None:
        if container:
            container.clear()
    elif not _same(container, content):
        container.clear()
        add = container.update if isinstance(container, dict | set) else container.extend
        add(content)


def _same(now: Any, before: Any) -> bool:
    try:
        return bool(now == before)  # the same objects are equal without being compared
    except Exception:  # two different tensors have no truth
        return False


def _write(tensor: Tensor, values: Tensor) -> None:
    if tensor.is_inference():
        with torch.inference_mode():
            tensor.copy_(values)
    else:
        tensor.data.copy_(values)


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
