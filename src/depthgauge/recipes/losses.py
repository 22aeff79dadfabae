"""The gradients of a loss that somebody gives, and the one refusal of a loss that has none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import nodes_of

__all__ = ["gradients_of", "slopes_of"]


def gradients_of(
    loss: Tensor, parameters: Sequence[Tensor], create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradient of each parameter, None where the loss does not depend on it. Raises
    NetworkError where it depends on none of them."""
    if not loss.requires_grad:
        raise _unreached()
    found = torch.autograd.grad(loss, parameters, create_graph=create_graph, allow_unused=True)
    if all(g is None for g in found):
        raise _unreached()
    return found


def slopes_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients on the graph of the loss, zero where it does not depend on a parameter. Raises
    NetworkError where all are zero, and for a function that is marked as once differentiable, which
    autograd would leave out without a word."""
    found = gradients_of(loss, parameters, create_graph=True)
    slopes = [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
    ]
    if not any(bool(g.detach().any()) for g in slopes):
        raise _unreached()
    if any(node.name() == "torch::autograd::Error" for node in nodes_of(slopes)):
        raise NetworkError(
            "a function in the network is marked as once differentiable, and a search in sizes "
            "needs derivatives of the gradient; write its backward in differentiable functions"
        )
    return slopes


def _unreached() -> NetworkError:
    return NetworkError(
        "the loss has no gradient in any parameter; return one that is computed from the outputs "
        "on their graph, without detach() or item()"
    )
