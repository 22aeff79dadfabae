"""How far one step of gradient descent moves the logits of any module, to first order.

    d = J u,  u = -rate dloss/dW,  update = RMS of d over examples and logits

``J``: the derivative of the logits after the weights; ``rate``: the share of the learning rate that
a recipe gives a parameter, so that the update is per unit of it. The logits are a fixed linear
classifier's on the last axis (of images their channels, averaged) of what the module gives; the
loss is cross-entropy over random labels. With ``norm`` each position of the last state is divided
by its root mean square first, as in front of the head of a pre-norm network. The classifier itself
does not move: what is measured is
the change of the function that is deep. Zhang, Dauphin and Ma, arXiv 1901.09321, section 3: this is
what must not grow with depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import converted
from depthgauge.network.chain import twice_differentiable
from depthgauge.trace.batches import call, tensors
from depthgauge.trace.forward import quiet

__all__ = ["Update", "functional_step"]

CLASSES: Final = 10


class Update(NamedTuple):
    """Of all parameters, and of the matrices and kernels among them alone."""

    all: float
    weights: float


def functional_step(
    model: nn.Module,
    batch: Any,
    seed: int = 0,
    rates: Mapping[str, float] | None = None,
    norm: bool = False,
) -> Update:
    """The update in float64, of a copy, and in float32 where a kernel of the model does not take
    that; the model is left as it was. ``rates``: by parameter, 1 of those that are not named.

    Raises NetworkError where the output is no tensor of real numbers that a gradient reaches, or
    where the model runs in neither.
    """
    rates = rates or {}
    with quiet(), twice_differentiable(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        copied, output = _run(model, batch, seed)
        named = [(name, p) for name, p in copied.named_parameters() if p.requires_grad]
        logits = _logits(output, seed, norm)
        labels = torch.randint(CLASSES, logits.shape[:1], device=logits.device)
        loss = F.cross_entropy(logits, labels)
        every = [p for _, p in named]
        gradients = torch.autograd.grad(loss, every, retain_graph=True, allow_unused=True)
        # A backward pass through the backward pass: J u without forward-mode rules.
        cotangent = torch.zeros_like(logits, requires_grad=True)
        pulled = torch.autograd.grad(logits, every, cotangent, create_graph=True, allow_unused=True)
        along = [
            (p.dim() > 1, -rates.get(name, 1.0) * (pull * g).sum())
            for (name, p), g, pull in zip(named, gradients, pulled, strict=True)
            if g is not None and pull is not None
        ]
        return Update(
            _moved([a for _, a in along], cotangent), _moved([a for m, a in along if m], cotangent)
        )


def _run(model: nn.Module, batch: Any, seed: int) -> tuple[nn.Module, Any]:
    """A copy in the widest numbers that the model runs in, and what it gives there."""
    why = ""
    for kind in (torch.float64, torch.float32):
        copied, given = converted(model, batch, kind)
        torch.manual_seed(seed)
        try:
            return copied, call(copied, given)
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            why = f"{type(error).__name__}: {line}"
    raise NetworkError(
        f"the model runs neither in float64 nor in float32 ({why}), so a step's change of its "
        f"function cannot be measured"
    )


def _moved(along: Sequence[Tensor], cotangent: Tensor) -> float:
    if not along:
        return 0.0
    total = torch.stack(list(along)).sum()
    (change,) = torch.autograd.grad(total, cotangent, retain_graph=True)
    return float(change.square().mean().sqrt())


def _logits(output: Any, seed: int, norm: bool) -> Tensor:
    """A classifier of variance 1/n, drawn from the seed, on the first real tensor."""
    found = [t for _, t in tensors(output) if t.is_floating_point() and t.requires_grad]
    if not found or found[0].dim() < 2:
        raise NetworkError(
            "the module gives no tensor (batch, ..., n) that a gradient reaches, so a step's "
            "change of its function cannot be measured"
        )
    state = found[0]
    if state.dim() == 4:
        state = state.mean((2, 3))
    width = state.shape[-1]
    if norm:
        state = state / state.square().mean(-1, keepdim=True).sqrt()
    generator = torch.Generator().manual_seed(seed)
    head = torch.randn(CLASSES, width, generator=generator, dtype=torch.float64)
    return state.reshape(-1, width) @ head.to(state).T / math.sqrt(width)
