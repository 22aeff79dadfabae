"""One forward pass as a graph of values: who was computed from whom, by which function, where.

``N`` values in the order in which they were made, so that a value's inputs stand before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = ["Call", "Graph", "Ref", "Value"]


class Ref(int):
    """In a value's arguments, the place of a tensor: the number of the value it held."""

    __slots__ = ()


class Value:
    """One tensor of the forward pass, as it was when it was made.

    ``args`` are the function's arguments with ``Ref`` in place of tensors. ``data``: it depends on
    the batch; ``param``: on parameters. ``grad``: a gradient reaches it; ``blind``: it was made
    where gradients were switched off, so that ``grad`` says nothing. ``anchored``: it was given a
    gradient for the measurement.
    """

    __slots__ = (
        "args", "blind", "call", "data", "floating", "grad", "index", "inputs", "kind", "name",
        "param", "place", "shape",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        name: str,
        kind: str,
        inputs: tuple[int, ...] = (),
        args: tuple[Any, ...] = (),
        *,
        call: int = 0,
        place: str = "",
        shape: tuple[int, ...] = (),
        floating: bool = True,
        grad: bool = True,
        data: bool = True,
        param: bool = False,
        blind: bool = False,
    ) -> None:
        self.index, self.name, self.kind = index, name, kind
        self.inputs, self.args = inputs, args
        self.call, self.place, self.shape = call, place, shape
        self.floating, self.grad, self.data = floating, grad, data
        self.param, self.blind = param, blind

    def __repr__(self) -> str:
        return f"{self.index}: {self.name}{self.inputs} [{self.kind}] {self.shape} {self.place}"


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a module; ``parent`` is the number of the call that made it, or -1."""

    path: str
    parent: int
    type: str


@dataclass
class Graph:
    """The values and calls of one pass; ``outputs`` are the numbers of what the model returned."""

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=lambda: [Call("", -1, "")])
    outputs: tuple[int, ...] = ()

    @cached_property
    def flow(self) -> list[tuple[int, ...]]:
        """For each value the inputs from which a gradient comes, in order, without repetition."""
        values = self.values
        out: list[tuple[int, ...]] = []
        for value in values:
            carries = value.floating and value.kind != "cut" and (value.grad or value.blind)
            inputs = [
                i
                for i in dict.fromkeys(value.inputs)
                if values[i].floating and (values[i].grad or values[i].blind or value.blind)
            ]
            out.append(tuple(inputs) if carries else ())
        return out

    @cached_property
    def consumers(self) -> list[tuple[int, ...]]:
        """For each value the later values that a gradient reaches it from."""
        out: list[list[int]] = [[] for _ in self.values]
        for i, inputs in enumerate(self.flow):
            for j in inputs:
                out[j].append(i)
        return [tuple(users) for users in out]

    @cached_property
    def live(self) -> set[int]:
        """What the outputs were computed from: the tensors among them, or else the losses.

        A loss beside a tensor is left out: on its way the target, often the input itself, would
        meet what was computed from it.
        """
        floating = [i for i in self.outputs if self.values[i].floating]
        tensors = [i for i in floating if len(self.values[i].shape) > 0]
        return self.ancestors(tensors or floating)

    def ancestors(self, roots: Iterable[int], low: int = -1) -> set[int]:
        """The roots and all they were computed from, as far down as value ``low`` (inclusive)."""
        found: set[int] = set()
        todo = [i for i in roots if i >= low]
        while todo:
            if (i := todo.pop()) not in found:
                found.add(i)
                todo += [j for j in self.flow[i] if j >= low and j not in found]
        return found

    def path(self, i: int) -> str:
        """The path of the module that made value ``i``; ``""`` is the model itself."""
        return self.calls[self.values[i].call].path
