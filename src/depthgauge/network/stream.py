"""Both rivers through a deep network with bounded memory.

Forward, block by block: weights are drawn, used and dropped. Backward, segment by segment from the
end: a segment is run again from its checkpoint with autograd on, and one call gives the gradient at
every state in it. What fits in the memory budget is neither drawn nor run twice; a network that
fits as a whole is one segment.

An ensemble of networks whose trees have one shape runs as one batched pass: every state is
``(E, batch, ...)`` and every weight ``(E, out, in)``. A single network has no axis E.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate
from depthgauge.network.draws import COTANGENT, INPUT, PAGE, KeyedDraws, draws
from depthgauge.network.program import Coefficient, skeleton
from depthgauge.network.spec import Network
from depthgauge.network.tensors import BlockNumbers, TensorContext
from depthgauge.network.threads import threads
from depthgauge.network.weights import Member, Weights

#: Bytes that weights and intermediate results may take together, if the caller does not say.
MEMORY = 512 * 2**20

#: Bytes of weights that are drawn in one go.
AHEAD = 2**22


def batched(items: Iterable[int], size: int) -> Iterator[tuple[int, ...]]:
    """``itertools.batched`` of Python 3.12."""
    rest = iter(items)
    while part := tuple(islice(rest, size)):
        yield part


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
        network.program.options,
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
    run = _Stream(ensemble, watcher, batch, dtype, torch.device(device), memory)
    # The caller's modes must not reach in here: gradients are wanted, in the precision named.
    with torch.inference_mode(False), torch.autocast(run.device.type, enabled=False):
        try:
            run.run()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            raise NetworkError(
                f"a number of the equation is beyond the range of {str(dtype).split('.')[-1]}; "
                f"use float64, or smaller numbers"
            ) from error


def elements_of(network: Network, batch: int | Tensor) -> int:
    """Numbers in the state of one network."""
    examples = batch if isinstance(batch, int) else len(batch)
    return examples * math.prod(network.state_shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """``keep``: blocks whose weights stay from the first pass; ``segment``: blocks of a segment."""

    keep: int
    segment: int


def plan(*, depth: int, state: int, weights: int, results: int, memory: int) -> Plan:
    """Share ``memory`` bytes among kept weights, checkpoints and the segment that is run again.

    ``state``, ``weights``, ``results``: bytes of one state, and of one block's weights and
    intermediate results. With segments of s blocks the checkpoints take ``state depth / s`` and a
    segment takes ``(weights + results) s``. Where even the best s, at which the two are equal, does
    not fit, it is taken all the same: it is the least that a backward pass needs.
    """
    block = max(weights + results, 1)
    if depth * block <= memory:
        return Plan(depth, depth)
    segment = max(1, int(0.25 * memory / block))
    if state * depth / segment > 0.1 * memory:
        segment = max(segment, round(math.sqrt(depth * state / block)))
    segment = min(segment, depth)
    left = memory - segment * block - state * depth / segment
    return Plan(min(depth, max(0, int(left / max(weights, 1)))), segment)


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
        self._dtype, self.device = dtype, device
        self._depth, self._program = network.depth, network.program
        self._draws = [draws(network.draws, seed) for seed in ensemble.seeds]
        members = [
            Member(source, member.chosen)
            for source, member in zip(self._draws, ensemble.networks, strict=True)
        ]
        self._weights = Weights(members, network.layers.weights, dtype, device)
        self._shared = all(other is network for other in ensemble.networks)
        self._varies = any(other.program.varies for other in ensemble.networks)
        # Masks are keyed in every draw order: they are no part of the order that is reproduced.
        masks = [KeyedDraws(seed) for seed in ensemble.seeds]
        self._context = TensorContext(network, len(ensemble), masks)
        self._kept: dict[int, BlockNumbers] = {}
        self._done = 0
        size = len(ensemble) * dtype.itemsize
        bytes_of_state = size * elements_of(network, batch)
        bytes_of_weights = size * network.layers.weight_elements
        self._plan = plan(
            depth=network.depth,
            state=bytes_of_state,
            weights=bytes_of_weights,
            results=bytes_of_state * network.layers.elements // network.width,
            memory=memory,
        )
        self._ahead = max(1, min(PAGE, AHEAD // max(bytes_of_weights, 1)))

    # ---------------------------------------------------------------------------- numbers

    def _segments(self) -> list[range]:
        """Blocks of each segment, in forward order."""
        starts = range(1, self._depth + 1, self._plan.segment)
        return [range(s, min(s + self._plan.segment, self._depth + 1)) for s in starts]

    def _blocks(self, wanted: Iterable[int]) -> Iterator[BlockNumbers]:
        """The numbers of these blocks, a few drawn together.

        For a single network a thread draws a little ahead of the products, which take about as
        long; the members of an ensemble are shared among threads as a whole.
        """
        parts = batched(wanted, self._ahead)
        if self._many:
            yield from chain.from_iterable(map(self._numbers, parts))
            return
        pool = threads("draws", 1)
        waiting: deque[Future[list[BlockNumbers]]] = deque()
        try:
            for part in parts:
                waiting.append(pool.submit(self._numbers, part))
                if len(waiting) > 1:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _numbers(self, blocks: Sequence[int]) -> list[BlockNumbers]:
        """What is kept, and the rest drawn."""
        missing = [block for block in blocks if block not in self._kept]
        drawn = dict(zip(missing, self._draw(missing), strict=True)) if missing else {}
        for block in missing[: max(self._plan.keep - len(self._kept), 0)]:
            self._kept[block] = drawn[block]
        return [drawn[block] if block in drawn else self._kept[block] for block in blocks]

    def _draw(self, blocks: Sequence[int]) -> list[BlockNumbers]:
        scalars = [self._scalars(block) for block in blocks]
        weights = self._weights.blocks(blocks, [scopes for _, scopes in scalars])
        found = []
        for (coefficients, scopes), tensors in zip(scalars, weights, strict=True):
            found.append(BlockNumbers(coefficients, self._vectors(scopes), tensors))
        return found

    def _scalars(self, block: int) -> tuple[list[Coefficient], list[Mapping[str, float]]]:
        """The block's coefficients by slot, and each member's scope."""
        if self._shared:
            slots, scope = self._program.coefficients(block)
            return [self._within(v) for v in slots], [scope] * len(self._networks)
        each = [network.program.coefficients(block) for network in self._networks]
        by_slot = zip(*(slots for slots, _ in each), strict=True)
        return [self._spread(values) for values in by_slot], [scope for _, scope in each]

    def _vectors(self, scopes: Sequence[Mapping[str, float]]) -> dict[str, Coefficient]:
        """Learnable scalars and gains at their initial values."""
        members = list(zip(self._networks, scopes, strict=True))
        return {
            vector.name: self._spread(
                [evaluate(net.layers.vectors[i].initial, scope) for net, scope in members]
            )
            for i, vector in enumerate(self._networks[0].layers.vectors)
        }

    def _within(self, value: float) -> float:
        """A scalar past the range of the precision is infinite in it, as an overflow is."""
        most = torch.finfo(self._dtype if self._dtype == torch.float64 else torch.float32).max
        return value if abs(value) <= most else math.copysign(math.inf, value)

    def _spread(self, values: Sequence[float]) -> Coefficient:
        """One number where the members agree, else a tensor with one number a member."""
        values = [self._within(value) for value in values]
        if all(value == values[0] for value in values):
            return values[0]
        shape = (len(values), 1, *(1,) * len(self._networks[0].state_shape))
        return torch.tensor(values, dtype=self._dtype, device=self.device).reshape(shape)

    def _input(self) -> Tensor:
        network = self._networks[0]
        if isinstance(self._batch, Tensor):
            given = self._batch.to(self.device, self._dtype)
            given = given.clone() if given.is_inference() else given
            return given.expand(len(self._networks), *given.shape) if self._many else given
        return self._gaussian(INPUT, "input", (self._batch, *network.state_shape))

    def _cotangent(self, state: Tensor) -> Tensor:
        shape = state.shape[1:] if self._many else state.shape
        g = self._gaussian(COTANGENT, "cotangent", shape, torch.float64)
        axes = tuple(range(state.dim() - len(shape), state.dim()))
        return (g / g.square().mean(axes, keepdim=True).sqrt()).to(self._dtype)

    def _gaussian(
        self, block: int, name: str, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> Tensor:
        count = math.prod(shape)
        each = [
            torch.from_numpy(source.source(block, name).normal(count)).reshape(*shape)
            for source in self._draws
        ]
        return (torch.stack(each) if self._many else each[0]).to(self.device, dtype or self._dtype)

    @property
    def _many(self) -> bool:
        return len(self._networks) > 1

    # -------------------------------------------------------------------------- the rivers

    def run(self) -> None:
        h0 = self._input()
        self._watcher.state(0, h0)
        *earlier, last = self._segments()
        checkpoints = []
        numbers = self._blocks(range(1, self._depth + 1))
        h = h0
        with torch.no_grad():
            for segment in earlier:
                checkpoints.append(h)
                for block in segment:
                    h = self._block(block, h, h0, next(numbers), seen=True)
        leaf = h0.detach().requires_grad_()
        edge = get_gradient_edge(leaf)
        places, h = self._run_segment(last, h, leaf, numbers, seen=True)

        g = self._cotangent(h)
        self._watcher.gradient(self._depth, g)
        direct = None  # what reaches the input past the chain of states, through h0
        for segment in (last, *reversed(earlier)):
            if segment is not last:
                start = checkpoints.pop()
                places, h = self._run_segment(
                    segment, start, leaf, self._blocks(segment), seen=False
                )
            # The gradient of (h g).sum() at h is g; given as grad_outputs, it makes PyTorch import
            # its symbolic shapes first, which takes longer than a whole suite.
            *reached, past = torch.autograd.grad((h * g).sum(), [*places, edge], allow_unused=True)
            if past is not None:
                direct = past if direct is None else direct + past
            for block, inner in zip(reversed(segment), reversed(reached), strict=True):
                g = torch.zeros_like(g) if inner is None else inner
                if block == 1 and direct is not None:
                    g = g + direct
                self._watcher.gradient(block - 1, g)
            self._advance(len(segment))

    def _run_segment(
        self,
        segment: range,
        start: Tensor,
        leaf: Tensor,
        numbers: Iterator[BlockNumbers],
        seen: bool,
    ) -> tuple[list[GradientEdge], Tensor]:
        """Where the gradient of the state before each block arises, and the last state.

        An edge of the graph is kept for each state and not the state: what no operation needs in
        the backward pass is free again at once, and the next block writes to memory still in cache.
        """
        h = start.detach().requires_grad_()
        places = []
        with torch.enable_grad():
            for block in segment:
                places.append(get_gradient_edge(h))
                h = self._block(block, h, leaf, next(numbers), seen)
                if not h.requires_grad:  # a state that no gradient reaches is still a place
                    h = h.detach().requires_grad_()
        return places, h

    def _block(
        self, block: int, h: Tensor, h0: Tensor, numbers: BlockNumbers, seen: bool
    ) -> Tensor:
        context = self._context
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
