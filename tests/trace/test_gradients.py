"""Gradients of one backward pass: through checkpoints, inside modes, with nothing left behind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from depthgauge.trace.backward import dense, gradients


class _Counts(TorchFunctionMode):
    """Counts the products that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += func in (torch.nn.functional.linear,)
        return func(*args, **(kwargs or {}))


def _checkpointed(kind: bool | None) -> tuple[nn.Linear, Tensor, GradientEdge, Tensor]:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    h = x * 2
    edge = get_gradient_edge(h)
    y = layer(h) if kind is None else checkpoint(layer, h, use_reentrant=kind)
    return layer, x, edge, (torch.tanh(y) ** 2).sum()


@pytest.mark.parametrize("kind", [None, True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_gradients_at_edges_and_leaves(kind: bool | None, inside: bool) -> None:
    layer, x, edge, total = _checkpointed(None)
    at: list[Any] = [edge, x, layer.weight]
    wanted = torch.autograd.grad(total, at)
    unused = nn.Parameter(torch.ones(1))
    layer, x, edge, total = _checkpointed(kind)
    layer.weight.grad = held = torch.ones(3, 3)
    with _Counts() if inside else nullcontext() as mode:
        *found, none = gradients(total, [edge, x, layer.weight, unused])
    assert none is None
    for g, w in zip(found, wanted, strict=True):
        assert g is not None
        assert torch.equal(g, w)
    assert layer.weight.grad is held
    assert bool((held == 1).all())
    assert x.grad is None
    if inside:
        assert mode is not None
        assert mode.seen == (kind is not None)  # the product is computed anew, in the mode


def test_pytorch_s_own_function_leaves_the_mode() -> None:
    """Why ``gradients`` does not call it there."""
    layer, _, _, total = _checkpointed(False)
    with _Counts() as mode:
        torch.autograd.grad(total, [layer.weight])
    assert mode.seen == 0


def test_a_sparse_gradient_made_dense() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    (g,) = gradients(table(torch.tensor([1, 1, 3])).sum(), [table.weight])
    assert g is not None
    assert g.is_sparse
    assert dense(g).tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]
    assert dense(table.weight) is table.weight
