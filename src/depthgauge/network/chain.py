"""States of one pass that stay on their autograd graph: Jacobians that act on vectors.

Index legend: ``D`` steps, states ``h_0 ... h_D`` in forward order; ``J_(i->k) = dh_k/dh_i``;
``P`` vectors at once.

    pull   u -> J_(i->k)^T u      one backward pass through that part of the depth alone
    push   v -> J_(i->k) v        by a backward pass through the backward pass

``J_(i->k)`` is of all paths from one state to the other in the graph, also around states between.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from depthgauge.errors import NetworkError

if TYPE_CHECKING:
    from depthgauge.network.module import EquationNetwork

__all__ = ["Chain", "Kept", "batched_vjp", "chain_of_blocks", "twice_differentiable"]

#: Numbers of cotangents in one batched backward pass, at most, counted at one state.
AT_ONCE = 2**22
#: Share by which ``push`` and ``pull`` may disagree.
_AGREEING = 1e-2


@dataclass(frozen=True)
class Kept:
    """One state: where autograd made it (None: no gradient reaches it), its numbers at that moment,
    its axis of examples, the module that made it."""

    reached: GradientEdge | None
    value: Tensor
    axis: int | None
    path: str = ""

    @property
    def edge(self) -> GradientEdge:
        """Raises NetworkError where no gradient reaches the state."""
        if self.reached is None:
            raise NetworkError(f"no gradient reaches the state made in '{self.path}'")
        return self.reached

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def examples(self) -> int:
        return 1 if self.axis is None else self.value.shape[self.axis]

    @property
    def size(self) -> int:
        """Numbers of one example."""
        return self.value.numel() // max(self.examples, 1)

    def rows(self, x: Tensor) -> Tensor:
        """``(P, *shape) -> (P, examples, size)``."""
        axis = 0 if self.axis is None else self.axis
        moved = x.movedim(axis + 1, 1) if self.axis is not None else x.unsqueeze(1)
        return moved.reshape(len(x), self.examples, -1)

    def spread(self, rows: Tensor) -> Tensor:
        """``(P, examples, size) -> (P, *shape)``."""
        if self.axis is None:
            return rows.reshape(len(rows), *self.shape)
        inner = [n for i, n in enumerate(self.shape) if i != self.axis]
        return rows.reshape(len(rows), self.examples, *inner).movedim(1, self.axis + 1)


class Chain:
    """The states of one pass; while it is alive, so is the graph. ``total`` makes the number whose
    gradient goes back: the loss, or the output along a random cotangent. ``outputs``: every tensor
    that the network returned."""

    def __init__(
        self, states: Sequence[Kept], total: Callable[[], Tensor], outputs: Sequence[Tensor] = ()
    ) -> None:
        self.states = tuple(states)
        self.total = total
        self.outputs = tuple(outputs)
        self._compared: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """Steps: one less than states."""
        return len(self.states) - 1

    def until(self, last: int | None) -> Chain:
        """The states up to that one; all of them for None or a number beyond the end."""
        if last is None or last >= len(self):
            return self
        return Chain(self.states[: last + 1], self.total, self.outputs)

    @property
    def dtype(self) -> torch.dtype:
        return self.states[-1].value.dtype

    @property
    def device(self) -> torch.device:
        return self.states[-1].value.device

    def pull(self, later: int, earlier: int, cotangents: Tensor) -> Tensor:
        """``J_(earlier->later)^T`` on each of ``(P, *shape of later)``: ``(P, *shape of earlier)``.

        Batched; PyTorch runs operations that have no batched backward one by one.
        """
        return self.pull_through(later, [earlier], cotangents)[0]

    def pull_through(self, later: int, earlier: Sequence[int], cotangents: Tensor) -> list[Tensor]:
        """``pull`` to each of these states, by one backward pass through all of them."""
        top, lows = self.states[later], [self.states[k] for k in earlier]
        most = max(1, top.value.numel(), *(low.value.numel() for low in lows))
        parts = [
            _vjps(top.edge, [low.edge for low in lows], part, [low.value for low in lows])
            for part in torch.split(cotangents, max(1, AT_ONCE // most))
        ]
        if len(parts) == 1:
            return parts[0]
        return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]

    def push(self, earlier: int, later: int, tangents: Tensor) -> Tensor:
        """``J_(earlier->later)`` on each of ``(P, *shape of earlier)``: ``(P, *shape of later)``.

        Raises RuntimeError where an operation has no derivative of its backward. Some say nothing,
        and what goes through them would be missing (``once_differentiable``, a backward that leaves
        autograd), so the first result between two states is compared with ``pull``.
        """
        top, low = self.states[later], self.states[earlier]
        dummy = torch.zeros_like(top.value, requires_grad=True)
        (back,) = torch.autograd.grad(
            [top.edge], [low.edge], [dummy], create_graph=True, allow_unused=True
        )
        if back is None or not back.requires_grad:  # nothing leads from one to the other
            moved = tangents.new_zeros(len(tangents), *top.shape)
        else:
            at_once = max(1, AT_ONCE // max(top.value.numel(), low.value.numel(), 1))
            edge = get_gradient_edge(back)
            parts = [
                _vjps(edge, [dummy], part, [top.value])[0]
                for part in torch.split(tangents, at_once)
            ]
            moved = torch.cat(parts) if len(parts) > 1 else parts[0]
        if back is not None and (earlier, later) not in self._compared:
            self._compared.add((earlier, later))
            self._compare(earlier, later, tangents, moved)
        return moved

    def _compare(self, earlier: int, later: int, tangents: Tensor, moved: Tensor) -> None:
        """Raises RuntimeError where ``u . (J v)`` is not ``(J^T u) . v`` for Gaussian u."""
        v, out = tangents.flatten(1), moved.flatten(1)
        generator = torch.Generator("cpu").manual_seed(0)
        u = torch.randn(4, out.shape[1], generator=generator).to(out)
        pulled = self.pull(later, earlier, u.reshape(4, *moved.shape[1:])).flatten(1)
        apart = torch.linalg.vector_norm(out @ u.T - v @ pulled.T)
        # As large as these products are, also for a v that J keeps nothing of.
        usual = torch.linalg.vector_norm(v) * torch.linalg.vector_norm(pulled) / v.shape[1] ** 0.5
        if bool(apart > _AGREEING * (2 * torch.linalg.vector_norm(out) + usual)):
            raise RuntimeError(
                "the derivative of the backward pass is not that of the forward pass"
            )


def batched_vjp(
    outputs: Sequence[GradientEdge],
    inputs: Any,
    vectors: Tensor,
) -> list[Tensor | None]:
    """For each input, an edge or a tensor, what each of ``(P, *shape of output)`` becomes there;
    None where nothing arrives.

    One batched pass; where an operation cannot be batched (a custom function, a checkpoint), P
    passes.
    """
    reached: list[bool] = []

    def one(vector: Tensor) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(outputs, inputs, [vector], retain_graph=True, allow_unused=True)
        reached[:] = [g is not None for g in found]
        return tuple(vector.new_zeros(()) if g is None else g for g in found)

    try:
        with warnings.catch_warnings():
            # Of operations that PyTorch takes one by one inside: slow, and right.
            warnings.filterwarnings("ignore", message="There is a performance drop because")
            each = torch.vmap(one)(vectors)
    except (RuntimeError, ValueError):
        each = tuple(torch.stack(parts) for parts in zip(*map(one, vectors), strict=True))
    return [g if there else None for g, there in zip(each, reached, strict=True)]


def _vjps(
    output: GradientEdge,
    inputs: Sequence[GradientEdge | Tensor],
    vectors: Tensor,
    like: Sequence[Tensor],
) -> list[Tensor]:
    found = batched_vjp([output], inputs, vectors)
    return [
        vectors.new_zeros(len(vectors), *x.shape) if g is None else g
        for g, x in zip(found, like, strict=True)
    ]


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Attention written out: the fused kernels have no derivative of their backward."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def chain_of_blocks(model: EquationNetwork, h: Tensor, cotangent: Tensor) -> Chain:
    """The input and the state after every block of a network that an equation built."""
    with twice_differentiable(), torch.enable_grad():
        h = h.detach().requires_grad_()
        states = [Kept(get_gradient_edge(h), h.detach(), 0, "the input")]
        first = h
        for k, block in enumerate(model.blocks):
            h = block(h, first)
            states.append(Kept(get_gradient_edge(h), h.detach(), 0, f"blocks.{k}"))
    return Chain(states, lambda: (h * cotangent).sum(), [h.detach()])
