"""The first step of an ensemble of networks, each branch's share of it without a pass of its own.

Index legend: ``S`` seeds, ``B`` examples, ``n`` width, ``O`` classes, ``L`` blocks of one residual
branch each; ``h_l`` the state after block l, ``f = h_L C^T`` the logits, the loss cross-entropy
over random labels.

What branch l adds to the logits per unit of learning rate, to first order, is

    d_l = J_l dF_l,    J_l = df/dh_l,    dF_l = (dF/dW)(h_(l-1)) u,    u = -g or -sign(g)

with the weights' gradient g. ``J_l`` comes down the depth with the loss gradient, one cotangent a
class, since a logit of one example depends on no other; ``dF_l`` is a derivative of the block by a
backward pass through its backward pass. So all L shares cost as much as O + 4 passes, where moving
each branch alone costs L.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.equation.scalars import evaluate
from depthgauge.network.draws import INPUT, Draws, draws
from depthgauge.network.norms import RootMeanSquare
from depthgauge.network.program import Coefficient
from depthgauge.network.spec import Network
from depthgauge.network.tensors import BlockNumbers, TensorContext
from depthgauge.network.weights import Member, Weights
from depthgauge.sites import FloatArray

__all__ = ["DIRECTIONS", "Head", "Shares", "drawn_blocks", "first_step", "with_leaves"]

#: What a weight moves along per unit of learning rate; Adam's first step is a sign step.
DIRECTIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "sgd": lambda g: -g,
    "sign": lambda g: -g.sign(),
}


@dataclass(frozen=True)
class Head:
    """The linear classifier ``C`` (O, n): N(0, 1/n) or zero, after RMSNorm where ``norm``."""

    classes: int = 10
    zero: bool = False
    norm: bool = False


@dataclass(frozen=True)
class Shares:
    """Root mean squares over examples and logits, one a seed ``(S,)``, per unit learning rate.

    ``norm_of_sum`` of ``sum_l d_l``, ``sum_of_norms`` and ``root_sum_square`` of the ``d_l``,
    ``total`` the change of the logits after a whole step of everything at ``lr``, divided by it.
    """

    norm_of_sum: FloatArray
    sum_of_norms: FloatArray
    root_sum_square: FloatArray
    total: FloatArray


def first_step(
    network: Network,
    seeds: Sequence[int],
    *,
    batch: int,
    lr: float,
    head: Head | None = None,
    unit_variance: bool = False,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Shares]:
    """The shares for each of ``DIRECTIONS``; at least two seeds.

    ``unit_variance``: every layer's weight is divided by the standard deviation of its output on
    this batch first, in forward order (LSUV, arXiv 1511.06422).
    """
    assert len(seeds) > 1, seeds
    assert network.branches == network.depth, network
    run = _Ensemble(network, seeds, batch, head or Head(), dtype)
    if unit_variance:
        run.scale_to_unit_variance()
    output, shares = run.shares()
    found = {}
    for name, own in shares.items():
        total = (run.stepped(DIRECTIONS[name], lr) - output) / lr
        each = _rms(own)
        found[name] = Shares(
            _rms(own.sum(0)).numpy(),
            each.sum(0).numpy(),
            each.square().sum(0).sqrt().numpy(),
            _rms(total).numpy(),
        )
    return found


def _rms(x: Tensor) -> Tensor:
    """Over the last two axes, in float64."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), dtype=torch.float64)
    return norm / math.sqrt(x.shape[-2] * x.shape[-1])


def drawn_blocks(
    network: Network, sources: Sequence[Draws], dtype: torch.dtype
) -> list[BlockNumbers]:
    """Weights ``(S, out, in)`` and learnable scalars ``(S, 1, 1)`` of every block."""
    members = [Member(source, network.chosen) for source in sources]
    device = torch.device("cpu")
    drawn = Weights(members, network.layers.weights, dtype, device)
    places = range(1, network.depth + 1)
    scalars = [network.program.coefficients(block) for block in places]
    weights = drawn.blocks(places, [[scope] * len(members) for _, scope in scalars])
    found = []
    for (coefficients, scope), tensors in zip(scalars, weights, strict=True):
        vectors: dict[str, Coefficient] = {
            v.name: torch.full((len(members), 1, 1), evaluate(v.initial, scope), dtype=dtype)
            for v in network.layers.vectors
        }
        own = {name: tensor.clone() for name, tensor in tensors.items()}
        found.append(BlockNumbers(list(coefficients), vectors, own))
    return found


class _Context(TensorContext):
    """Norms that can be differentiated for many cotangents at once."""

    def rms_norm(self, norm: RootMeanSquare, x: Tensor) -> Tensor:
        return norm(x)


class _UnitVariance(TensorContext):
    """Divides each weight by the standard deviation of what it makes, as it is met."""

    def apply(self, name: str, x: Tensor) -> Tensor:
        weight = self._weights[name]
        y = super().apply(name, x)
        deviation = y.flatten(1).std(1, correction=0).reshape(-1, 1, 1)
        weight /= deviation
        return y / deviation

    def apply_add(self, name: str, x: Tensor, residual: Any, scale: Coefficient) -> Tensor:
        result: Tensor = residual + scale * self.apply(name, x)
        return result


class _Ensemble:
    """One network under S seeds: its numbers, and after ``shares`` the gradients of all."""

    def __init__(
        self, network: Network, seeds: Sequence[int], batch: int, head: Head, dtype: torch.dtype
    ) -> None:
        self._network, self._head, self._dtype = network, head, dtype
        self._sources = [draws(network.draws, seed) for seed in seeds]
        n, classes = network.width, head.classes
        self._input = self._normal("input", batch, *network.state_shape)
        uniform = [s.source(INPUT, "labels").uniform(batch) for s in self._sources]
        self._labels = (torch.stack([torch.from_numpy(u) for u in uniform]) * classes).long()
        scale = 0.0 if head.zero else 1 / math.sqrt(n)
        self._classifier = self._normal("classifier", classes, n) * scale
        self._blocks = drawn_blocks(network, self._sources, dtype)
        self._gradients: list[dict[str, Tensor]] = []  # of each block, by the tensors' names
        self._classifier_gradient = torch.empty(0)

    def _normal(self, name: str, *shape: int) -> Tensor:
        each = [self._one(source, name, shape) for source in self._sources]
        return torch.stack(each).to(self._dtype)

    @staticmethod
    def _one(source: Draws, name: str, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(source.source(INPUT, name).normal(math.prod(shape))).reshape(shape)

    def _run(self, context: TensorContext, index: int, h: Tensor, numbers: BlockNumbers) -> Tensor:
        context.begin(index, h, h, numbers)
        out: Tensor = self._network.program(context)
        context.end()
        return out

    def _context(self, kind: type[TensorContext] = _Context) -> TensorContext:
        return kind(self._network, len(self._sources), self._sources)

    def scale_to_unit_variance(self) -> None:
        context, h = self._context(_UnitVariance), self._input
        for l, numbers in enumerate(self._blocks, 1):
            h = self._run(context, l, h, numbers)

    def forward(self, blocks: Sequence[BlockNumbers] | None = None) -> list[Tensor]:
        """The states ``h_0 ... h_L``."""
        context, states = self._context(), [self._input]
        for l, numbers in enumerate(blocks or self._blocks, 1):
            states.append(self._run(context, l, states[-1], numbers))
        return states

    def _logits(self, h: Tensor, classifier: Tensor) -> Tensor:
        if self._head.norm:
            h = h / h.square().mean(-1, keepdim=True).sqrt()
        return torch.bmm(h, classifier.transpose(1, 2))

    def shares(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits ``(S, B, O)``, and for each of ``DIRECTIONS`` the d_l ``(L, S, B, O)``."""
        states = self.forward()
        h, c = states[-1].clone().requires_grad_(), self._classifier.clone().requires_grad_()
        logits = self._logits(h, c)
        loss = F.cross_entropy(logits.flatten(0, 1), self._labels.flatten(), reduction="sum")
        g, self._classifier_gradient = torch.autograd.grad(
            loss / logits.shape[1], [h, c], retain_graph=True
        )
        ones = torch.eye(self._head.classes, dtype=self._dtype)[:, None, None, :]
        (down,) = torch.autograd.grad(
            logits, h, ones.expand(-1, *logits.shape), is_grads_batched=True
        )
        context = self._context()
        found: dict[str, list[Tensor]] = {name: [] for name in DIRECTIONS}
        for l in range(len(self._blocks), 0, -1):
            h = states[l - 1].clone().requires_grad_()
            numbers, leaves = with_leaves(self._blocks[l - 1])
            out = self._run(context, l, h, numbers)
            g, *own = torch.autograd.grad(out, [h, *leaves.values()], g, retain_graph=True)
            dummy = torch.zeros_like(out, requires_grad=True)
            back = torch.autograd.grad(out, list(leaves.values()), dummy, create_graph=True)
            for name, direction in DIRECTIONS.items():
                u = [direction(x) for x in own]
                (moved,) = torch.autograd.grad(back, dummy, u, retain_graph=True)
                found[name].append(torch.einsum("osbn,sbn->sbo", down, moved))
            (down,) = torch.autograd.grad(out, h, down, is_grads_batched=True)
            self._gradients.append(dict(zip(leaves, own, strict=True)))
        self._gradients.reverse()
        return logits.detach(), {k: torch.stack(each[::-1]) for k, each in found.items()}

    def stepped(self, direction: Any, lr: float) -> Tensor:
        """The logits after a whole step of every weight and of the classifier."""
        blocks = [
            _mapped(numbers, lambda k, x, g=g: x + lr * direction(g[k]))
            for numbers, g in zip(self._blocks, self._gradients, strict=True)
        ]
        classifier = self._classifier + lr * direction(self._classifier_gradient)
        return self._logits(self.forward(blocks)[-1], classifier)


def _mapped(numbers: BlockNumbers, change: Any) -> BlockNumbers:
    """The block with ``change(name, tensor)`` in place of every learnable tensor."""
    return BlockNumbers(
        numbers.coefficients,
        {k: change(k, x) for k, x in numbers.vectors.items()},
        {k: change(k, x) for k, x in numbers.weights.items()},
    )


def with_leaves(numbers: BlockNumbers) -> tuple[BlockNumbers, dict[str, Tensor]]:
    """Copies of all learnable tensors that ask for gradients, in a block of their own, and these
    by name."""
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        leaves[name] = x.clone().requires_grad_()
        return leaves[name]

    return _mapped(numbers, leaf), leaves
