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
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

DrawOrder: TypeAlias = Literal["keyed", "sequential-pcg64"]
DRAW_ORDERS: Final[tuple[DrawOrder, ...]] = ("keyed", "sequential-pcg64")

#: The block index of tensors that belong to no block.
INPUT, COTANGENT = 0, -1


class Source(Protocol):
    """Random numbers for one tensor, consumed in C order."""

    def normal(self, count: int) -> NDArray[Any]:
        """``count`` independent draws of N(0, 1)."""
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
    """One SFC64 stream a key; the 192-bit state is the BLAKE2b hash of ``seed/block/name``.

    Normals by Box and Muller (1958), ``sqrt(-2 log u) (cos, sin)(2 pi v)``, with u in (0, 1] of 24
    bits: magnitudes end at 5.77. Half of the count are cosines, the other half sines. The raw bits
    are the same on every machine; the last digit of a normal follows NumPy's float32 logarithm.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.SFC64(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state

    def source(self, block: int, name: str) -> Source:
        key = hashlib.blake2b(f"{self._seed}/{block}/{name}".encode(), digest_size=24).digest()
        words = np.empty(4, np.uint64)
        words[:3] = np.frombuffer(key, np.uint64)
        words[3] = 1  # SFC64's counter; 12 rounds mix the seed, as in NumPy's own seeding
        self._state["state"]["state"] = words
        self._bits.state = self._state
        self._bits.random_raw(12, output=False)
        return self

    def uniform(self, count: int) -> NDArray[np.float32]:
        return self._generator.random(count, dtype=np.float32)

    def normal(self, count: int) -> NDArray[np.float32]:
        numbers = np.empty((1, count + count % 2), np.float32)
        self._generator.random(out=numbers[0], dtype=np.float32)
        return box_muller(numbers)[0, :count]

    def fill(self, out: NDArray[np.float32]) -> None:
        """Uniform draws into ``out``, from which ``box_muller`` makes the normals."""
        self._generator.random(out=out, dtype=np.float32)


def box_muller(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Uniform draws in [0, 1) turned into normals in place, along an even last axis."""
    half = numbers.shape[-1] // 2
    radius, angle = numbers[..., :half], numbers[..., half:]
    np.subtract(np.float32(1), radius, out=radius)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    angle *= np.float32(2 * np.pi)
    cosine = np.cos(angle)
    np.sin(angle, out=angle)
    angle *= radius
    radius *= cosine
    return numbers


def normals(
    sources: Sequence[Draws], block: int, name: str, count: int
) -> NDArray[np.float32] | NDArray[np.float64]:
    """``(len(sources), count)`` normals of one tensor under several seeds, made together."""
    if not all(isinstance(source, KeyedDraws) for source in sources):
        return np.stack([source.source(block, name).normal(count) for source in sources])
    numbers = np.empty((len(sources), count + count % 2), np.float32)
    for source, row in zip(sources, numbers, strict=True):
        keyed = source.source(block, name)
        assert isinstance(keyed, KeyedDraws)
        keyed.fill(row)
    return box_muller(numbers)[:, :count]


class SequentialDraws:
    """``numpy.random.default_rng(seed)`` in order; a tensor asked for again is replayed.

    The generator's state before each tensor is kept (a few hundred bytes), so that streaming can
    drop a block's weights and draw the same ones again.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._before: dict[tuple[int, str], Any] = {}
        self._next = self._generator.bit_generator.state

    def source(self, block: int, name: str) -> Source:
        state = self._before.setdefault((block, name), self._next)
        self._replaying = state is not self._next
        self._generator.bit_generator.state = state
        return self

    def _done(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._replaying:
            self._next = self._generator.bit_generator.state
        return numbers

    def normal(self, count: int) -> NDArray[np.float64]:
        return self._done(self._generator.standard_normal(count))

    def uniform(self, count: int) -> NDArray[np.float64]:
        return self._done(self._generator.random(count))
