"""Which parameters have no gradient at the first steps: by design where a layer begins at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.instruments.hessian import duplicate
from depthgauge.recipes.losses import gradients_of
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.backward import dense
from depthgauge.trace.batches import call, mapped, tensors
from depthgauge.trace.forward import quiet
from depthgauge.trace.total import loss_of

__all__ = ["STEPS", "first_gradients"]

STEPS: Final = 3
#: Small against any weight: a step is to wake what sleeps, not to train.
_RATE: Final = 1e-3
_HALVES: Final = (torch.float16, torch.bfloat16)


def first_gradients(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None = None, steps: int = STEPS
) -> list[dict[str, bool]]:
    """For each step, by parameter, whether its gradient is exactly zero (or there is none).

    Steps of SGD on a copy, in which the largest gradient moves by 1e-3; without a loss that of a
    fixed random cotangent at every output. Half precision is taken in float32, where the model
    runs in it: what underflows is not zero by design. The model is left as it was. Raises
    ModelError where the loss raises, NetworkError where it has no gradient. Nothing is found of a
    model whose parameters are all frozen.
    """
    copied, batch = _widened(unwrapped(duplicate(model))[0], batch)
    parameters = {name: p for name, p in copied.named_parameters() if p.requires_grad}
    if not parameters:
        return []
    found = []
    with quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        for _ in range(steps):
            torch.manual_seed(0)  # the same dropout at each step, and the same cotangent
            output = call(copied, batch)
            total = loss_of(loss, output, batch) if loss is not None else _total(output)
            gradients = gradients_of(total, list(parameters.values()))
            rows = dict(zip(parameters, map(_dense, gradients), strict=True))
            found.append({name: g is None or not bool(g.any()) for name, g in rows.items()})
            largest = max(
                (float(g.abs().max()) for g in rows.values() if g is not None and g.numel()),
                default=0,
            )
            with torch.no_grad():
                for name, g in rows.items():
                    if g is not None and largest:
                        parameters[name].sub_(g * (_RATE / largest))
    return found


def _widened(model: nn.Module, batch: Any) -> tuple[nn.Module, Any]:
    """Model and batch in float32 where they are of half precision and run in it."""
    if not any(p.dtype in _HALVES for p in model.parameters()):
        return model, batch
    copied = duplicate(model).float()
    wide = mapped(batch, lambda x: x.float() if x.dtype in _HALVES else x)
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
            call(copied, wide)
    except Exception:  # a dtype that its code says
        return model, batch
    return copied, wide


def _dense(g: Tensor | None) -> Tensor | None:
    return None if g is None else dense(g)


def _total(output: Any) -> Tensor:
    """The output's own loss, else the sum of every real output times fixed random numbers."""
    if isinstance(own := getattr(output, "loss", None), Tensor) and own.numel() == 1:
        return own
    found = (t for _, t in tensors(output))
    outputs = [t for t in found if t.is_floating_point() and t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    parts = [(t * torch.randn(t.shape, generator=generator).to(t)).sum() for t in outputs]
    return torch.stack([part.double() for part in parts]).sum()
