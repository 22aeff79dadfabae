"""Both rivers through a deep network with bounded memory.

Forward, block by block: weights are drawn, used and dropped. Backward, segment by segment from the
end: a segment is run again from its checkpoint with autograd on, and one call gives the gradient at
every state in it. What fits in the memory budget is neither drawn nor run twice; a network that fits
as a whole is one segment.

An ensemble of networks whose trees have one shape runs as one batched pass: every state is
``(E, batch, ...)`` and every weight ``(E, out, in)``. A single network has no axis E.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate
from depthgauge.network.draws import COTANGENT, INPUT, Draws, draws
from depthgauge.network.layers import Layer
from depthgauge.network.norms import Normalise
from depthgauge.network.program import Coefficient, skeleton
from depthgauge.network.spec import Network
from depthgauge.network.weights import Member, Weights

#: Bytes that weights and intermediate results may take together, if the caller does not say.
MEMORY = 512 * 2**20


class Watcher(Protocol):
    """Who looks on while the rivers pass; tensors are reduced at once and not kept."""

    def state(self, block: int, h: Tensor) -> None:
        """The state after block ``l``; block 0 is the input. In forward order."""

    def gate(self, block: int, name: str, rule: Gate, z: Tensor, y: Tensor) -> None:
        """One activation's input and output."""

    def gradient(self, block: int, g: Tensor) -> None:
        """The gradient that reaches the state after block ``l``. From the last block down."""

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` block passes are behind."""


@dataclass(frozen=True)
class Ensemble:
    """Networks whose trees have one shape, each with its seed, run as one batched pass."""

    networks: tuple[Network, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        first = self.networks[0]
        for other in self.networks[1:]:
            if other is not first and signature(other) != signature(first):
                raise NetworkError(
                    "networks in one ensemble must have equations of one shape, the same depth, "
                    "width and state; measure these apart"
                )

    def __len__(self) -> int:
        return len(self.networks)


def signature(network: Network) -> tuple[object, ...]:
    """What networks must share to run as one batched pass."""
    return (
        skeleton(network.layers.block),
        tuple((layer.name, layer.shape, layer.bias) for layer in network.layers.weights),
        network.depth,
        network.layout,
        network.state_shape,
        network.draws,
    )


def stream(
    ensemble: Ensemble,
    watcher: Watcher,
    *,
    batch: int | Tensor = 128,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    memory: int = MEMORY,
) -> None:
    """Send a state down and a gradient back through every block, with ``watcher`` looking on.

    ``batch``: a number of Gaussian examples, or one tensor ``(batch, ...)`` for every member. The
    gradient at the last state is Gaussian with an RMS of exactly 1 for each member.
    """
    _Stream(ensemble, watcher, batch, dtype, torch.device(device), memory).run()


@dataclass(slots=True)
class _BlockNumbers:
    """Everything drawn or evaluated for one block."""

    coefficients: list[Coefficient]
    vectors: dict[str, Coefficient]
    weights: dict[str, Tensor]


class _Stream:
    def __init__(
        self,
        ensemble: Ensemble,
        watcher: Watcher,
        batch: int | Tensor,
        dtype: torch.dtype,
        device: torch.device,
        memory: int,
    ) -> None:
        network = ensemble.networks[0]
        self._networks, self._watcher, self._batch = ensemble.networks, watcher, batch
        self._dtype, self._device = dtype, device
        self._depth, self._program = network.depth, network.program
        self._draws = [draws(network.draws, seed) for seed in ensemble.seeds]
        members = [
            Member(source, member.chosen)
            for source, member in zip(self._draws, ensemble.networks, strict=True)
        ]
        self._weights = Weights(members, network.layers.weights, dtype, device)
        self._shared = all(other is network for other in ensemble.networks)
        self._varies = any(other.program.varies for other in ensemble.networks)
        self._context = _StreamContext(network, len(ensemble), self._draws)
        self._kept: dict[int, _BlockNumbers] = {}
        self._done = 0
        self._plan(memory)

    def _plan(self, memory: int) -> None:
        """How many blocks keep their weights and how many blocks a segment has."""
        network, members = self._networks[0], len(self._networks)
        examples = self._batch if isinstance(self._batch, int) else len(self._batch)
        positions = math.prod(network.state_shape) // network.width
        item = self._dtype.itemsize
        state = members * examples * math.prod(network.state_shape) * item
        weights = members * network.layers.weight_elements * item
        results = members * examples * positions * network.layers.elements * item
        if self._depth * (weights + results) <= memory:
            self._keep, self._segment = self._depth, self._depth
            return
        self._keep = min(self._depth, int(0.65 * memory / max(weights, 1)))
        # Checkpoints and the segment being run share the rest; neither may crowd out the other.
        segment = int(0.25 * memory / max(weights + results, 1))
        fewest = math.ceil(self._depth * state / max(0.1 * memory, state))
        self._segment = min(max(segment, fewest, 1), self._depth)

    # ---------------------------------------------------------------------------- numbers

    def _numbers(self, block: int) -> _BlockNumbers:
        numbers = self._kept.get(block)
        if numbers is None:
            numbers = self._draw(block)
            if len(self._kept) < self._keep:
                self._kept[block] = numbers
        return numbers

    def _draw(self, block: int) -> _BlockNumbers:
        if self._shared:
            slots, scope = self._program.coefficients(block)
            coefficients: list[Coefficient] = list(slots)
            scopes: list[Mapping[str, float]] = [scope] * len(self._networks)
        else:
            each = [network.program.coefficients(block) for network in self._networks]
            coefficients = [self._spread(v) for v in zip(*(s for s, _ in each), strict=True)]
            scopes = [scope for _, scope in each]
        vectors = {
            vector.name: self._spread(
                [
                    evaluate(network.layers.vectors[i].initial, scope)
                    for network, scope in zip(self._networks, scopes, strict=True)
                ]
            )
            for i, vector in enumerate(self._networks[0].layers.vectors)
        }
        return _BlockNumbers(coefficients, vectors, self._weights.block(block, scopes))

    def _spread(self, values: Sequence[float]) -> Coefficient:
        """One number where the members agree, else a tensor with one number a member."""
        if all(value == values[0] for value in values):
            return values[0]
        shape = (len(values), 1, *(1,) * len(self._networks[0].state_shape))
        return torch.tensor(values, dtype=self._dtype, device=self._device).reshape(shape)

    def _input(self) -> Tensor:
        network = self._networks[0]
        if isinstance(self._batch, Tensor):
            given = self._batch.to(self._device, self._dtype)
            return given.expand(len(self._networks), *given.shape) if self._many else given
        return self._gaussian(INPUT, "input", (self._batch, *network.state_shape))

    def _cotangent(self, shape: Sequence[int]) -> Tensor:
        g = self._gaussian(COTANGENT, "cotangent", shape, torch.float64)
        axes = tuple(range(1 if self._many else 0, g.dim()))
        return (g / g.square().mean(axes, keepdim=True).sqrt()).to(self._dtype)

    def _gaussian(
        self, block: int, name: str, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> Tensor:
        count = math.prod(shape)
        each = [
            torch.from_numpy(source.source(block, name).normal(count)).reshape(*shape)
            for source in self._draws
        ]
        return (torch.stack(each) if self._many else each[0]).to(
            self._device, dtype or self._dtype
        )

    @property
    def _many(self) -> bool:
        return len(self._networks) > 1

    # -------------------------------------------------------------------------- the rivers

    def run(self) -> None:
        h0 = self._input()
        self._watcher.state(0, h0)
        starts = list(range(0, self._depth, self._segment))
        checkpoints: dict[int, Tensor] = {}
        h = h0
        with torch.no_grad():
            for block in range(1, starts[-1] + 1):
                if (block - 1) % self._segment == 0:
                    checkpoints[block - 1] = h
                h = self._block(block, h, h0, seen=True)
        checkpoints[starts[-1]] = h

        g: Tensor | None = None
        direct: Tensor | None = None  # what reaches the input past the chain, through h0
        for start in reversed(starts):
            leaf = h0.detach().requires_grad_()
            states = [checkpoints.pop(start).detach().requires_grad_()]
            last = min(start + self._segment, self._depth)
            with torch.enable_grad():
                for block in range(start + 1, last + 1):
                    h = self._block(block, states[-1], leaf, seen=g is None)
                    # A state that no gradient can reach is still a place in the river.
                    states.append(h if h.requires_grad else h.detach().requires_grad_())
            if g is None:
                per_member = states[-1].shape[1:] if self._many else states[-1].shape
                g = self._cotangent(per_member)
                self._watcher.gradient(self._depth, g)
            *inner, past = torch.autograd.grad(
                states[-1], [*states[:-1], leaf], g, allow_unused=True
            )
            if past is not None:
                direct = past if direct is None else direct + past
            for offset in reversed(range(len(inner))):
                reached = inner[offset]
                g = torch.zeros_like(states[0]) if reached is None else reached
                if start + offset == 0 and direct is not None:
                    g = g + direct
                self._watcher.gradient(start + offset, g)
            self._advance(last - start)

    def _block(self, block: int, h: Tensor, h0: Tensor, seen: bool) -> Tensor:
        context, numbers = self._context, self._numbers(block)
        context.begin(block, h, h0, numbers)
        context.observe = self._observe if seen else None
        h = self._program(context)
        context.end()
        if seen:
            self._watcher.state(block, h.detach())
            self._advance(1)
        return h

    def _observe(self, name: str, rule: Gate, z: Tensor, y: Tensor) -> None:
        self._watcher.gate(self._context.index, name, rule, z.detach(), y.detach())

    def _advance(self, blocks: int) -> None:
        self._done += blocks
        self._watcher.progress(self._done, 2 * self._depth)


class _StreamContext:
    """A block that runs with tensors drawn for the moment, for one network or for E at once.

    Learnable scalars and gains stand at their initial values, which are numbers.
    """

    def __init__(self, network: Network, members: int, sources: Sequence[Draws]) -> None:
        self._layers: dict[str, Layer] = {layer.name: layer for layer in network.layers.weights}
        self._many, self._images = members > 1, network.layout == "images"
        self._sources = sources
        self.index = 0
        self.h = self.h0 = torch.empty(0)
        self.locals: dict[str, Tensor] = {}
        self.coefficients: list[Coefficient] = []
        self.observe: Callable[[str, Gate, Tensor, Tensor], None] | None = None
        self._vectors: dict[str, Coefficient] = {}
        self._weights: dict[str, Tensor] = {}

    def begin(self, index: int, h: Tensor, h0: Tensor, numbers: _BlockNumbers) -> None:
        self.index, self.h, self.h0 = index, h, h0
        self.coefficients, self._vectors = numbers.coefficients, numbers.vectors
        self._weights = numbers.weights

    def end(self) -> None:
        """Drop what belongs to the block that ran."""
        self.locals.clear()
        self.h = self.h0 = torch.empty(0)

    def apply(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[name], self._weights.get(f"{name}.bias")
        if self._images:
            return self._convolve(self._layers[name], weight, bias, x)
        if not self._many:
            return F.linear(x, weight, bias)
        rows, columns = x.flatten(1, -2), weight.transpose(1, 2)
        if bias is None:
            product = torch.bmm(rows, columns)
        else:
            product = torch.baddbmm(bias.unsqueeze(1), rows, columns)
        return product.reshape(*x.shape[:-1], -1)

    def apply_add(self, name: str, x: Tensor, residual: Any, scale: Coefficient) -> Tensor:
        weight = self._weights[name]
        if (
            self._images
            or not isinstance(residual, Tensor)
            or residual.shape[:-1] != x.shape[:-1]
            or f"{name}.bias" in self._weights
        ):
            result: Tensor = residual + scale * self.apply(name, x)
            return result
        if isinstance(scale, Tensor):
            weight, scale = weight * scale.reshape(-1, 1, 1), 1.0
        if self._many:
            return torch.baddbmm(
                residual.flatten(1, -2), x.flatten(1, -2), weight.transpose(1, 2), alpha=scale
            ).reshape(residual.shape)
        return torch.addmm(
            residual.flatten(0, -2), x.flatten(0, -2), weight.t(), alpha=scale
        ).reshape(residual.shape)

    def _convolve(self, layer: Layer, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        if self._many:
            biases = [None] * len(x) if bias is None else list(bias)
            each = zip(weight, biases, x, strict=True)
            return torch.stack([_conv2d(layer, w, b, image) for w, b, image in each])
        return _conv2d(layer, weight, bias, x)

    def vector(self, name: str) -> Coefficient:
        return self._vectors[name]

    def normalise(self, name: str, norm: Normalise, x: Tensor) -> Tensor:
        return norm(x)

    def drop(self, name: str, x: Tensor, p: float) -> Tensor:
        """A mask keyed like a weight, so that running a block again gives the same one."""
        count = x.numel() // len(self._sources)
        kept = torch.stack(
            [
                torch.from_numpy(source.source(self.index, name).uniform(count) >= p)
                for source in self._sources
            ]
        ).reshape(x.shape)
        return x * kept.to(x.device, x.dtype) / (1 - p)


def _conv2d(layer: Layer, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if weight.dim() == 2:  # a linear layer on the channels
        weight = weight[:, :, None, None]
    side = weight.shape[-1] // 2
    if layer.padding == "circular":
        return F.conv2d(F.pad(x, (side,) * 4, mode="circular"), weight, bias)
    return F.conv2d(x, weight, bias, padding=side)
