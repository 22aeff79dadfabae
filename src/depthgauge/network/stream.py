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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate
from depthgauge.network.draws import COTANGENT, INPUT, KeyedDraws, draws
from depthgauge.network.program import Coefficient, skeleton
from depthgauge.network.spec import Network
from depthgauge.network.tensors import BlockNumbers, TensorContext
from depthgauge.network.weights import Member, Weights

#: Bytes that weights and intermediate results may take together, if the caller does not say.
MEMORY = 512 * 2**20

#: Bytes of weights that are drawn in one go, ahead of the blocks that use them.
AHEAD = 2**20

#: Elements of a state from which PyTorch may use all its threads.
SHARED_ELEMENTS = 2**16


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
    with _threads_for(run.state_elements):
        run.run()


@contextmanager
def _threads_for(elements: int) -> Iterator[None]:
    """One thread for products too small to share: waking a second one costs more than it does."""
    before = torch.get_num_threads()
    if elements >= SHARED_ELEMENTS or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        # Masks are keyed in every draw order: they are needed while other draws are under way.
        masks = [KeyedDraws(seed) for seed in ensemble.seeds]
        self._context = TensorContext(network, len(ensemble), masks)
        self._kept: dict[int, BlockNumbers] = {}
        self._done = 0
        self._plan(memory)

    def _plan(self, memory: int) -> None:
        """How many blocks keep their weights and how many blocks a segment has."""
        network, members = self._networks[0], len(self._networks)
        examples = self._batch if isinstance(self._batch, int) else len(self._batch)
        positions = math.prod(network.state_shape) // network.width
        item = self._dtype.itemsize
        self.state_elements = members * examples * math.prod(network.state_shape)
        state = self.state_elements * item
        weights = members * network.layers.weight_elements * item
        results = members * examples * positions * network.layers.elements * item
        self._ahead = max(1, min(8, AHEAD // max(weights, 1)))
        if self._depth * (weights + results) <= memory:
            self._keep, self._segment = self._depth, self._depth
            return
        self._keep = min(self._depth, int(0.65 * memory / max(weights, 1)))
        # Checkpoints and the segment being run share the rest; neither may crowd out the other.
        segment = int(0.25 * memory / max(weights + results, 1))
        fewest = math.ceil(self._depth * state / max(0.1 * memory, state))
        self._segment = min(max(segment, fewest, 1), self._depth)

    # ---------------------------------------------------------------------------- numbers

    def _segments(self) -> list[range]:
        """Blocks of each segment, in forward order."""
        starts = range(1, self._depth + 1, self._segment)
        return [range(s, min(s + self._segment, self._depth + 1)) for s in starts]

    def _blocks(self, wanted: Iterable[int]) -> Iterator[BlockNumbers]:
        """The numbers of these blocks, drawn in order by a thread that runs a little ahead.

        Drawing is NumPy's work and takes as long as the products; both let go of the interpreter.
        """
        parts = batched(wanted, self._ahead)
        with ThreadPoolExecutor(1) as pool:
            waiting: deque[Future[list[BlockNumbers]]] = deque()
            for part in parts:
                waiting.append(pool.submit(self._numbers, part))
                if len(waiting) > 1:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()

    def _numbers(self, blocks: Sequence[int]) -> list[BlockNumbers]:
        found = []
        for block in blocks:
            numbers = self._kept.get(block)
            if numbers is None:
                numbers = self._draw(block)
                if len(self._kept) < self._keep:
                    self._kept[block] = numbers
            found.append(numbers)
        return found

    def _draw(self, block: int) -> BlockNumbers:
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
        return BlockNumbers(coefficients, vectors, self._weights.block(block, scopes))

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
        return (torch.stack(each) if self._many else each[0]).to(self._device, dtype or self._dtype)

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
        states = self._run_segment(last, h, leaf, numbers, seen=True)
        del h

        g = self._cotangent(states[-1])
        self._watcher.gradient(self._depth, g)
        direct = None  # what reaches the input past the chain of states, through h0
        for segment in (last, *reversed(earlier)):
            if segment is not last:
                start = checkpoints.pop()
                states = self._run_segment(segment, start, leaf, self._blocks(segment), seen=False)
            *reached, past = torch.autograd.grad(
                states[-1], [*states[:-1], leaf], g, allow_unused=True
            )
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
    ) -> list[Tensor]:
        """The states before and after each block of the segment, with their graph."""
        states = [start.detach().requires_grad_()]
        with torch.enable_grad():
            for block in segment:
                h = self._block(block, states[-1], leaf, next(numbers), seen)
                # A state that no gradient can reach is still a place in the river.
                states.append(h if h.requires_grad else h.detach().requires_grad_())
        return states

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
