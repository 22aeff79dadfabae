"""Tensors that were just made, held until it is known whether one of them is a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

__all__ = ["Held", "Stack"]

#: How many are held at once: the first behind a merge, where its stream goes on, and the latest.
_FIRST: Final = 4
_LATEST: Final = 12


class Held:
    """Tensors by the number of the value they hold, each as long as nothing has written to it.

    What makes room for others is known for as long as the model itself holds it, as it does a
    tensor that it will add something to.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, int, bool]] = {}
        self._older: dict[int, tuple[TensorWeakRef, int]] = {}

    def hold(self, index: int, x: Tensor, aside: bool = False) -> None:
        """Hold the tensor of value ``index``; ``aside``: no sum has shown it to be on a stream's
        way, though it may be."""
        held = self._tensors
        held[index] = (x, version_of(x), aside)
        if len(held) > _FIRST + _LATEST:
            index = next(islice(held, _FIRST, None))
            older, version, _ = held.pop(index)
            self._older[index] = TensorWeakRef(older), version

    def get(self, index: int) -> Tensor | None:
        """The tensor of value ``index`` if it is held and nothing has written to it since."""
        if index in self._tensors:
            x, version, _ = self._tensors[index]
        elif index in self._older:
            reference, version = self._older[index]
            if (x := reference()) is None:
                return None
        else:
            return None
        return x if version_of(x) == version else None

    def any_of(self, indices: Iterable[int]) -> bool:
        return not self._tensors.keys().isdisjoint(indices)

    def __contains__(self, index: int) -> bool:
        return index in self._tensors

    def aside(self, index: int) -> bool:
        """Whether value ``index``, which is held, is held aside."""
        return self._tensors[index][2]

    def fresh(self) -> list[tuple[int, Tensor]]:
        """What is still as it was made, in the order in which it was."""
        return [(i, x) for i, (x, version, _) in self._tensors.items() if version_of(x) == version]

    def latest(self) -> list[tuple[int, Tensor]]:
        """Of these the latest, without what is aside."""
        latest = list(self._tensors)[-_LATEST:]
        return [(i, x) for i, x in self.fresh() if i in latest and not self._tensors[i][2]]

    def clear(self) -> None:
        self._tensors.clear()
        self._older.clear()


def version_of(x: Tensor) -> int:
    """How many times a tensor was written to."""
    return 0 if x.is_inference() else x._version


@dataclass(frozen=True, slots=True)
class Stack:
    """The tensors that value ``index`` has put on top of each other, and how often each was written
    to before that."""

    index: int = -1
    tensors: tuple[Tensor, ...] = ()
    versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, index: int, tensors: Iterable[Any]) -> Stack:
        held = tuple(x for x in tensors if isinstance(x, Tensor))
        return cls(index, held, tuple(map(version_of, held)))

    @property
    def fresh(self) -> bool:
        """Whether nothing has been written to them since."""
        return tuple(map(version_of, self.tensors)) == self.versions

    def factors(self, name: str, others: Sequence[Tensor]) -> tuple[float, ...]:
        """What the function ``name`` multiplies each by when it adds them up; ``others``: the
        tensors that it is given besides."""
        count = len(self.tensors)
        if name == "einsum":
            (numbers,) = others
            with torch._C.DisableTorchFunction():
                return tuple(numbers.detach().tolist())
        return (1 / count if name == "mean" else 1.0,) * count
