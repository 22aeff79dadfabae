"""One forward pass as a graph of values: who was computed from whom, by which function, where.

``N`` values in the order in which they were made, so that a value's inputs stand before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

__all__ = ["GRAFTED", "MARK", "Call", "Graph", "Ref", "Value", "common_path"]


#: ``Value.item`` of what was found along autograd's graph, without arguments.
GRAFTED: Final = -2
#: The attribute of a tensor under which the recorder's token and the number of its value stand.
MARK: Final = "_depthgauge_value"
_NOWHERE: Final[tuple[int, ...]] = ()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
#: Kinds of value whose parameters are weights, if they are not the first input.
_LAYERS: Final = frozenset(("weights", "norm"))


class Ref(int):
    """In a value's arguments, the place of a tensor: the number of the value it held."""

    __slots__ = ()


class Value:
    """One tensor of the forward pass, as it was when it was made.

    ``args`` and ``options`` are what ``function`` was given by position and by name, with ``Ref``
    in place of tensors; ``item`` is its place if several tensors were made, else -1. ``path`` names
    a parameter, a buffer or a part of the batch. ``data``: it depends on the batch; ``param``: on
    parameters. ``grad``: a gradient reaches it; ``blind``: it was made where gradients were
    switched off, so that ``grad`` says nothing.
    """

    __slots__ = (
        "args", "blind", "call", "data", "floating", "function", "grad", "index", "inputs", "item",
        "kind", "name", "options", "param", "path", "shape",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        name: str,
        kind: str,
        inputs: tuple[int, ...],
        call: int,
        shape: tuple[int, ...],
        floating: bool,
        grad: bool,
        data: bool,
        param: bool,
        blind: bool,
        args: tuple[Any, ...] = _NOWHERE,
        options: Mapping[str, Any] = _NOTHING,
        function: Any = None,
        item: int = -1,
        path: str = "",
    ) -> None:
        self.index = index
        self.name = name
        self.kind = kind
        self.inputs = inputs
        self.call = call
        self.shape = shape
        self.floating = floating
        self.grad = grad
        self.data = data
        self.param = param
        self.blind = blind
        self.args = args
        self.options = options
        self.function = function
        self.item = item
        self.path = path

    def __repr__(self) -> str:
        return f"{self.index}: {self.name}{self.inputs} [{self.kind}] {self.shape} {self.path}"


class Call(NamedTuple):
    """One execution of a module; ``parent`` is the number of the call that made it, or -1."""

    path: str
    parent: int
    type: str


@dataclass
class Graph:
    """The values and calls of one pass; ``outputs`` are the numbers of what the model returned,
    ``constants`` the tensors of one number each that neither data nor parameters enter."""

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=lambda: [Call("", -1, "")])
    outputs: tuple[int, ...] = ()
    constants: dict[int, Any] = field(default_factory=dict)
    _flow: list[tuple[int, ...]] = field(default_factory=list, repr=False)

    @property
    def flow(self) -> list[tuple[int, ...]]:
        """For each value the inputs that a gradient reaches through it, in order, each once.

        Where gradients were switched off, the inputs that carry the value. A layer's own weights
        are left out: no path begins there. One list that grows with the values.
        """
        values, out = self.values, self._flow
        if len(out) == len(values):
            return out
        for value in values[len(out) :]:
            inputs, blind = value.inputs, value.blind
            if not inputs or not value.floating or value.kind == "cut" or not (value.grad or blind):
                out.append(_NOWHERE)
                continue
            layer = value.kind in _LAYERS
            found = []
            for i in inputs:
                v = values[i]
                if (
                    v.floating and (v.grad or blind) and i not in found
                    and not (layer and v.kind == "parameter" and i != inputs[0])
                ):  # fmt: skip
                    found.append(i)
            out.append(tuple(found))
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
        found = {i for i in roots if i >= low}
        flow, todo = self.flow, list(found)
        while todo:
            for j in flow[todo.pop()]:
                if j >= low and j not in found:
                    found.add(j)
                    todo.append(j)
        return found

    @cached_property
    def places(self) -> list[int]:
        """For each value how many before it were seen when they were made: the same in another
        pass, whatever kernels leave on autograd's graph; -1 for what was found there."""
        grafts, out = 0, []
        for value in self.values:
            grafts += value.item == GRAFTED
            out.append(-1 if value.item == GRAFTED else value.index - grafts)
        return out

    def around(self, i: int, j: int) -> int:
        """The innermost call in which values ``i`` and ``j`` are both made."""
        calls, a, b = self.calls, self.values[i].call, self.values[j].call
        while a != b:  # a call stands behind the one that made it
            a, b = min(a, b), calls[max(a, b)].parent
        return a

    def path(self, i: int) -> str:
        """The path of the module that made value ``i``; ``""`` is the model itself."""
        return self.calls[self.values[i].call].path


#: A number in a module path, which counts what a list holds.
LISTED: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def numberless(path: str) -> str:
    """``blocks.*.up`` for ``blocks.3.up``: the same of every module in a list."""
    return LISTED.sub("*", path)


def common_path(paths: Iterable[str]) -> str:
    """The longest module path that begins all of them, ``""`` if there is none."""
    common: str | None = None
    for path in paths:
        if path == common:
            continue
        if common is None:
            common = path
        while common and common != path and not path.startswith(f"{common}."):
            common = common.rpartition(".")[0]
        if not common:
            break
    return common or ""
