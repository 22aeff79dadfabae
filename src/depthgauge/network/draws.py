"""Where random numbers come from: keyed draws, and one generator consumed in order.

``keyed``: every tensor has a generator of its own, seeded by what it is (seed, block, name), so
that an edit elsewhere in the network changes no weight. Normals are float32 numbers in every
precision, so the same network can be run in float64 and in bfloat16.

``sequential-pcg64``: one ``numpy.random.default_rng(seed)`` in float64, consumed in the order
input, weights of block 1, 2, ..., cotangent; for figures that a NumPy script has to reproduce.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

DrawOrder: TypeAlias = Literal["keyed", "sequential-pcg64"]
DRAW_ORDERS: Final[tuple[DrawOrder, ...]] = ("keyed", "sequential-pcg64")

#: The block index of tensors that belong to no block.
INPUT, COTANGENT = 0, -1

#: Blocks of one page of keyed draws, and the most numbers of a tensor that is drawn in pages.
PAGE, PAGED_NUMBERS = 8, 2**15


class Source(Protocol):
    """Random numbers for one tensor, consumed in C order."""

    def normal(self, count: int, std: float = 1.0) -> NDArray[Any]:
        """``count`` independent draws of N(0, std)."""
        ...

    def uniform(self, count: int) -> NDArray[Any]:
        """``count`` independent draws, uniform in [0, 1)."""
        ...


class Draws(Protocol):
    """The source of every tensor of one network under one seed."""

    def source(self, block: int, name: str) -> Source: ...


def draws(order: DrawOrder, seed: int) -> Draws:
    return KeyedDraws(seed) if order == "keyed" else SequentialDraws(seed)


class KeyedDraws:
    """One SFC64 stream for each page of a tensor's blocks, seeded by the page's number beside 128
    bits of the BLAKE2b hash of ``seed/name``.

    A page is ``PAGE`` blocks of a small tensor and one block of a large one, drawn in one call and
    kept until the next. Normals by Box and Muller (1958), ``sqrt(-2 log u) (cos, sin)(2 pi v)``,
    with u in (0, 1] of 24 bits: magnitudes end at 5.77. Half of the count are cosines, the other
    half sines. The raw bits are the same on every machine; the last digit of a normal follows
    NumPy's float32 logarithm.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.SFC64(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._pages: dict[str, tuple[int, NDArray[np.float32]]] = {}

    def source(self, block: int, name: str) -> Source:
        return _KeyedSource(self, block, name)

    def uniforms(self, block: int, name: str, count: int) -> NDArray[np.float32]:
        """The block's row of its page, not to be written to."""
        blocks = PAGE if count <= PAGED_NUMBERS and block > INPUT else 1
        number, row = divmod(block - 1, blocks)
        kept, page = self._pages.get(name, (None, None))
        if page is None or kept != number or page.shape != (blocks, count):
            self._seed_with(name, number)
            page = self._generator.random((blocks, count), dtype=np.float32)
            self._pages[name] = number, page
        uniforms: NDArray[np.float32] = page[row]
        return uniforms

    def _seed_with(self, name: str, number: int) -> None:
        key = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=16).digest()
        words = [*np.frombuffer(key, np.uint64), np.uint64(number % 2**64), np.uint64(1)]
        self._state["state"]["state"] = np.array(words, np.uint64)
        self._bits.state = self._state
        self._bits.random_raw(12, output=False)  # rounds that mix the seed, as in NumPy's seeding


@dataclass(frozen=True, slots=True)
class _KeyedSource:
    draws: KeyedDraws
    block: int
    name: str

    def uniform(self, count: int) -> NDArray[np.float32]:
        return self.draws.uniforms(self.block, self.name, count).copy()

    def normal(self, count: int, std: float = 1.0) -> NDArray[Any]:
        numbers = self.draws.uniforms(self.block, self.name, count + count % 2).copy()
        return box_muller(numbers, std)[:count]


def box_muller(numbers: NDArray[np.float32], std: Any = 1.0) -> NDArray[Any]:
    """Uniform draws in [0, 1) turned into normals in place, along an even last axis.

    ``std``: one number, or an array that broadcasts against ``numbers``. It enters under the root,
    squared; where that leaves float32, the normals are scaled afterwards, in float64.
    """
    size = np.asarray(std)
    if not np.all((size == 0) | ((size > 1e-15) & (size < 1e15))):
        scaled: NDArray[Any] = box_muller(numbers) * size
        return scaled
    half = numbers.shape[-1] // 2
    radius, angle = numbers[..., :half], numbers[..., half:]
    np.subtract(np.float32(1), radius, out=radius)
    np.log(radius, out=radius)
    radius *= np.asarray(-2.0 * np.square(std), np.float32)
    np.sqrt(radius, out=radius)
    angle *= np.float32(2 * np.pi)
    cosine = np.cos(angle)
    np.sin(angle, out=angle)
    angle *= radius
    radius *= cosine
    return numbers


def keyed_normals(
    sources: Sequence[KeyedDraws], blocks: Sequence[int], name: str, count: int, std: Any
) -> NDArray[Any]:
    """``(blocks, sources, count)``: one tensor in several blocks under several seeds.

    ``std``: the standard deviation of each, ``(blocks, sources)``.
    """
    numbers = np.empty((len(blocks), len(sources), count + count % 2), np.float32)
    for e, source in enumerate(sources):
        for row, block in enumerate(blocks):
            numbers[row, e] = source.uniforms(block, name, numbers.shape[-1])
    return box_muller(numbers, np.asarray(std)[..., None])[..., :count]


class SequentialDraws:
    """``numpy.random.default_rng(seed)`` in order; a tensor asked for again is replayed.

    Where each tensor began is kept (a state of the generator and how many normals after it), so
    that streaming can drop a block's weights and draw the same ones again.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._began: dict[tuple[int, str], tuple[Any, int]] = {}
        self._next = self._generator.bit_generator.state

    def source(self, block: int, name: str) -> Source:
        state, offset = self._began.setdefault((block, name), (self._next, 0))
        self._replaying = state is not self._next
        self._generator.bit_generator.state = state
        if offset:
            self._generator.standard_normal(offset)
        return self

    def _done(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._replaying:
            self._next = self._generator.bit_generator.state
        return numbers

    def normal(self, count: int, std: float = 1.0) -> NDArray[np.float64]:
        return self._done(self._generator.standard_normal(count) * std)

    def uniform(self, count: int) -> NDArray[np.float64]:
        return self._done(self._generator.random(count))

    def run_of_normals(
        self, keys: Sequence[tuple[int, str]], counts: Sequence[int]
    ) -> NDArray[np.float64]:
        """The normals of several tensors that follow one another, drawn in one call."""
        if any(key in self._began for key in keys):
            each = zip(keys, counts, strict=True)
            return np.concatenate([self.source(*key).normal(count) for key, count in each])
        ends = accumulate(counts)
        for key, end, count in zip(keys, ends, counts, strict=True):
            self._began[key] = self._next, end - count
        self._generator.bit_generator.state = self._next
        numbers = self._generator.standard_normal(sum(counts))
        self._next = self._generator.bit_generator.state
        return numbers
