"""Which axis of a batch counts its examples, and where that axis is in each value of a pass.

Index legend: ``B`` examples, ``T`` positions. Most models take ``(B, ...)``; recurrent layers and
attention of PyTorch take ``(T, B, n)`` unless they are told otherwise, and say so where they are
called. Numbers that stand for the examples are carried from the batch through the views of the pass
to such a call, and it is seen along which of its axes they come in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from depthgauge.trace.graph import Graph, Value
from depthgauge.trace.heads import replayed

__all__ = ["Axes", "examples_along"]

#: Calls that are asked, at most.
_ASKED: Final = 8
#: Steps from a softmax down to the product under it, at most.
_DOWN: Final = 16
#: Numbers of a value that is viewed, at most: some views copy them.
_LARGEST: Final = 2**26
_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
#: Kinds that give the axes on the right to those of a larger tensor.
_BROADCAST: Final = ("sum", "product", "act", "point", "norm", "drop", "softmax", "choose")
#: Kinds that work on the last axis, or on all behind the first.
_LAYERS: Final = ("weights", "contract", "attend")
#: What may stand between a softmax and the product of queries and keys.
_UNDER: Final = ("shape", "product", "sum", "point", "drop", "choose", "softmax", "act")


@dataclass(frozen=True)
class _Along:
    """The axis along which examples are counted, and the example at each of its places: more places
    than examples where it holds heads too. ``axis`` -1: one example was picked out."""

    axis: int
    labels: Tensor


@dataclass(frozen=True)
class _Asked:
    """A call whose operand, a value's number, has examples along one of the axes ``own`` and
    positions along one of the axes ``other``."""

    value: Value
    operand: int
    own: tuple[int, ...]
    other: tuple[int, ...]
    words: str


class Axes:
    """Where the examples of a batch, along ``axis`` of its tensors, are in the values of a pass."""

    def __init__(self, graph: Graph, axis: int = 0) -> None:
        self.axis = axis
        self._graph = graph
        self._known: dict[int, _Along | None] = {}

    @property
    def examples(self) -> int:
        """How many: of the first tensor of the batch that has the axis."""
        sizes = (v.shape[self.axis] for v in self._inputs() if len(v.shape) > self.axis)
        return next(sizes, 1)

    def state(self, index: int, shape: Sequence[int], count: int) -> int | None:
        """The axis of ``count`` examples in a value of this shape: the only one of that size, or of
        several that to which the batch's own has come, by default the batch's own, the first; None
        where none has the size."""
        fitting = [k for k, n in enumerate(shape) if n == count]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        found = self.of(index)
        if found is not None and found.axis in fitting:
            return found.axis
        return self.axis if self.axis in fitting else fitting[0]

    def of(self, index: int) -> _Along | None:
        """What is known of a value; None where examples cannot be followed to it."""
        known, values = self._known, self._graph.values
        todo = [index]
        while todo:
            i = todo[-1]
            below = [j for j in values[i].inputs if values[j].data and j not in known]
            if i in known or not below:
                todo.pop()
                if i not in known:
                    known[i] = self._made(values[i])
            else:
                todo += below
        return known[index]

    def _inputs(self) -> Iterator[Value]:
        return (v for v in self._graph.values if v.kind == "input")

    def _made(self, value: Value) -> _Along | None:
        if value.kind == "input":
            there = len(value.shape) > self.axis and value.shape[self.axis] == self.examples
            labels = torch.arange(self.examples, dtype=torch.int32, device="cpu")
            return _Along(self.axis, labels) if there and self.examples > 1 else None
        for j in value.inputs:
            before = self._known.get(j)
            if before is None:
                continue
            found = self._carried(value, self._graph.values[j], before)
            if found is not None:
                return found
        return None

    def _carried(self, value: Value, source: Value, before: _Along) -> _Along | None:
        """What a function makes of examples along an axis of one of its inputs."""
        if before.axis < 0:
            return before
        if value.kind == "shape":
            if prod(source.shape) > _LARGEST:
                return None
            numbers = _numbered(source.shape, before)
            played = replayed(value, {source.index: numbers})
            if played is None:  # a view of what was contiguous
                played = replayed(value, {source.index: numbers.contiguous()})
            if played is not None:
                return _read(played)
            return before if value.shape == source.shape else None
        if value.name == "einsum":
            return _of_einsum(value, source, before)
        at, rank = before.axis, len(value.shape)
        if value.kind in _LAYERS and value.name != "embedding":
            last = len(source.shape) - 1
            if at == last or (at and "conv" in value.name):
                return None
        elif value.kind in _BROADCAST:
            at += rank - len(source.shape)
        elif value.kind in ("reduce", "join") and rank != len(source.shape):
            return None
        kept = 0 <= at < rank and value.shape[at] == len(before.labels)
        return _Along(at, before.labels) if kept else None


def examples_along(graph: Graph) -> tuple[int, str]:
    """The axis of the batch that counts examples, 0 or 1, and what says so if it is not the first.

    It is not where no call of attention or of a recurrent layer has its examples from axis 0 of the
    batch, some call has its positions from there, and all that can be followed have their examples
    from axis 1. One number along an axis cannot be followed: the other axis decides then."""
    first = next((v for v in graph.values if v.kind == "input" and v.shape), None)
    if first is None or len(first.shape) < 2:
        return 0, ""
    asked = []
    for one in _asked(graph):
        asked.append(one)
        if len(asked) == _ASKED:
            break
    axes, others = Axes(graph, 0), Axes(graph, 1)
    along = []
    for one in asked:
        along.append(_seen(axes, one))
        if along[-1]:  # as of most models the first says
            return 0, ""
    if not asked or (False not in along and axes.examples > 1):
        return 0, ""
    across = [_seen(others, one) for one in asked]
    single = (
        others.examples == 1
        and False in along
        and all(
            len(one.own) == 1 and graph.values[one.operand].shape[one.own[0]] == 1 for one in asked
        )
    )
    if False in across or not (single or True in across):
        return 0, ""
    at = asked[0] if single else asked[across.index(True)]
    path = graph.path(at.value.index) or "the model"
    return 1, f"{at.words} in '{path}' takes axis 0 for positions"


def _seen(axes: Axes, asked: _Asked) -> bool | None:
    """Whether a call finds examples where it wants them, or positions; None where that is not
    known."""
    found = axes.of(asked.operand)
    if found is None:
        return None
    if found.axis in asked.own:
        return True
    return False if found.axis in asked.other else None


def _asked(graph: Graph) -> Iterator[_Asked]:
    """The calls that tell examples from positions, in the order of the pass."""
    values = graph.values
    for value in values:
        if not value.data or value.item > 0:
            continue
        operand = next((i for i in value.inputs if values[i].data), None)
        rank = 0 if operand is None else len(values[operand].shape)
        if operand is None:
            continue
        if value.name == "multi_head_attention_forward" and rank == 3:
            yield _Asked(value, operand, (1,), (0,), "the attention")
        elif value.name in _RECURRENT and rank == 3 and isinstance(_last(value), bool):
            own = 0 if _last(value) else 1
            yield _Asked(value, operand, (own,), (1 - own,), "the recurrent layer")
        elif value.kind == "cell" and rank == 2:
            yield _Asked(value, operand, (0,), (-1,), "the recurrent cell")
        elif value.kind == "attend" and rank > 2:
            yield _Asked(value, operand, tuple(range(rank - 2)), (rank - 2,), "the attention")
        elif value.kind == "softmax" and (one := _of_scores(graph, value)) is not None:
            yield one


def _last(value: Value) -> object:
    """The last argument, of a recurrent layer whether examples come first."""
    return value.args[-1] if value.args else None


def _scores(graph: Graph, softmax: Value) -> Value | None:
    """The product of two tensors of data under a softmax."""
    values, at = graph.values, softmax
    for _ in range(_DOWN):
        below = [i for i in at.inputs if values[i].data and values[i].floating]
        if at.kind == "contract" and len(below) == 2:
            return at
        if at.kind not in _UNDER or not below:
            return None
        at = values[below[0]]
    return None


def _of_scores(graph: Graph, softmax: Value) -> _Asked | None:
    """The queries of the product under a softmax: ``(..., T, n)`` of a product of matrices, or by
    the letters of an einsum."""
    if (product := _scores(graph, softmax)) is None:
        return None
    operand = product.inputs[0]
    rank = len(graph.values[operand].shape)
    own: tuple[int, ...] = tuple(range(rank - 2))
    other: tuple[int, ...] = (rank - 2,)
    if product.name == "einsum":
        if (letters := _letters(product)) is None or len(letters[0]) != 2:
            return None
        (left, right), out = letters
        if "." in left or len(left) != rank:
            return None
        own = tuple(k for k, c in enumerate(left) if c in right and c in out)
        other = tuple(k for k, c in enumerate(left) if c not in right and c in out)
    elif rank < 3:
        return None
    return _Asked(product, operand, own, other, "the attention")


def _letters(einsum: Value) -> tuple[list[str], str] | None:
    """The letters of each term and of the result."""
    equation = einsum.args[0] if einsum.args else None
    if not isinstance(equation, str) or "->" not in equation:
        return None
    left, _, right = equation.replace(" ", "").partition("->")
    return left.split(","), right


def _of_einsum(value: Value, source: Value, before: _Along) -> _Along | None:
    letters = _letters(value)
    if letters is None or len(letters[0]) != len(value.inputs):
        return None
    term = letters[0][value.inputs.index(source.index)]
    if "." in term or len(term) != len(source.shape) or "." in letters[1]:
        return None
    at = letters[1].find(term[before.axis])
    return _Along(at, before.labels) if at >= 0 else None


def _numbered(shape: Sequence[int], along: _Along) -> Tensor:
    """``(*shape)``, each number that of its example; one number in memory for all of the same."""
    sizes = [len(along.labels) if k == along.axis else 1 for k in range(len(shape))]
    return along.labels.view(sizes).expand(*shape)


def _read(numbers: Tensor) -> _Along | None:
    """The one axis along which these numbers differ."""
    if not numbers.numel():
        return None
    differ = [
        k
        for k, (n, stride) in enumerate(zip(numbers.shape, numbers.stride(), strict=True))
        if n > 1 and stride and bool((numbers != numbers.narrow(k, 0, 1)).any())
    ]
    if len(differ) > 1:
        return None
    if not differ:
        return _Along(-1, numbers.reshape(-1)[:1])
    at = differ[0]
    labels = numbers.movedim(at, -1).reshape(-1, numbers.shape[at])[0]
    return _Along(at, labels)
