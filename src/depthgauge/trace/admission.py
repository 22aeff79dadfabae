"""The module that is run, and what is refused before it is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain as chained
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from depthgauge.equation.nodes import Block
from depthgauge.errors import NetworkError, TargetError, expect
from depthgauge.network.spec import Network
from depthgauge.trace.batches import tensors
from depthgauge.trace.inventory import COMPILED, Inventory

__all__ = ["check", "uncompiled", "unwrapped"]


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module inside wrappers that only place or compile it, with what was taken off.

    Raises TargetError for what is no module.
    """
    equation = isinstance(model, str | Block | Network)
    todo = "of an equation Network(...).module(seed) is one" if equation else ""
    expect("model", model, nn.Module, "an nn.Module", todo)
    notes = []
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            notes.append(f"the module inside {type(model).__name__} was measured, on one device")
            model = model.module
        elif isinstance(inner := getattr(model, COMPILED, None), nn.Module):
            notes.append("the compiled model ran uncompiled: hooks do not fire in compiled code")
            model = inner
        else:
            break
    every = list(model.modules())
    if any(COMPILED in m._modules for m in every):
        notes.append("compiled submodules ran uncompiled: hooks do not fire in compiled code")
    elif any(getattr(m, "_compiled_call_impl", None) for m in every):
        notes.append("modules compiled in place ran uncompiled: hooks do not fire in compiled code")
    return model, notes


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside such wrappers, of itself and of every part, so that its paths are those of
    ``inventory``. The model is left as it was: a module that holds a wrapped part is stood in for
    by a shallow one, which shares parameters and buffers with it."""
    model, _ = unwrapped(model)
    above = [m for m in model.modules() if any(COMPILED in part._modules for part in m.modules())]
    shallow = {module: _shallow(module) for module in above if COMPILED not in module._modules}
    for module in shallow.values():
        for name, part in module._modules.items():
            while part is not None and isinstance(inner := part._modules.get(COMPILED), nn.Module):
                part = inner
            module._modules[name] = part if part is None else shallow.get(part, part)
    return shallow.get(model, model)


def _shallow(module: nn.Module) -> nn.Module:
    made = module.__new__(type(module))
    made.__dict__.update(module.__dict__, _modules=dict(module._modules))
    return made


def check(held: Inventory, batch: Any) -> None:
    """Refuse what cannot be run or measured, by name."""
    names = batch if isinstance(batch, Mapping) else ()
    if (other := next((key for key in names if not isinstance(key, str)), None)) is not None:
        raise TargetError(
            f"the batch has the key {other!r}, expected the names of the model's arguments; give a "
            f"tensor, a tuple, or a dict whose keys are strings"
        )
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
