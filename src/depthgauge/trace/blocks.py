"""Blocks that were read back: factors and options, names for what is shared, folding.

Nothing here knows a graph; these are the language's own nodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from torch import Tensor

from depthgauge.equation.functions import ACTIVATIONS, NORMS
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Attention,
    Block,
    Constant,
    Convolution,
    Dropout,
    LearnedGain,
    LearnedScalar,
    Let,
    Linear,
    Local,
    Node,
    Norm,
    Number,
    Option,
    Options,
    Product,
    Scale,
    State,
    Statement,
    Update,
    Value,
    children,
    rewrite,
    walk,
)
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.roles import Roles

#: What is marked by the value that it is while blocks are read, of a norm by role.
_MARKED: Final = (Linear, Convolution, Attention, LearnedScalar, LearnedGain, Norm)
#: Behind the value in a learned gain's mark, if its channels have different numbers.
_MIXED: Final = "mixed"
#: In place of a number that training has moved.
_TRAINED: Final = Number(math.inf)


class Unsayable(Exception):
    """Value ``at`` is nothing that the language has a word for; ``name`` is what it is."""

    def __init__(self, at: int, name: str) -> None:
        self.at, self.name = at, name


class Region(Protocol):
    """What stands between two states, as much of it as the readers of layers, norms and views
    need."""

    roles: Roles
    values: list[Traced]
    before: int
    after: int
    inside: set[int]
    opaque: list[tuple[str, str]]
    dropped: list[float]

    @property
    def axis(self) -> int:
        """The state's axis of channels."""
        ...

    @property
    def width(self) -> int: ...

    def value(self, i: int) -> Value:
        """The language's node for value ``i``."""
        ...

    def tensor(self, i: int) -> Tensor | None:
        """The parameter that value ``i`` is."""
        ...

    def number(self, operand: Any) -> float | None:
        """An operand that is a number, or a tensor that holds one and that nothing computes."""
        ...

    def learned(self, i: int) -> Value:
        """The node of value ``i``, which parameters and numbers alone make."""
        ...

    def vector(self, i: int) -> LearnedGain | None:
        """Value ``i`` if it is a parameter with numbers along one axis."""
        ...


def carried(value: Value) -> bool:
    """The state, or a factor of it."""
    while isinstance(value, Scale):
        value = value.value
    if isinstance(value, Product):
        return any(map(carried, (value.left, value.right))) and any(
            isinstance(side, LearnedScalar | LearnedGain) for side in (value.left, value.right)
        )
    return isinstance(value, State)


def known(value: Value) -> bool:
    """A learned number or gain, or a factor of one."""
    while isinstance(value, Scale):
        value = value.value
    return isinstance(value, LearnedScalar | LearnedGain)


def scaled(factor: float, value: Value) -> Value:
    if factor == 1:
        return value
    if isinstance(value, Constant) and isinstance(value.scalar, Number):
        return Constant(Number(factor * value.scalar.value))
    return Scale(Number(float(factor)), value)


def begins(tensor: Tensor) -> tuple[float, bool]:
    """The one number of a tensor, or of one that has several their mean to three digits; and
    whether it has several, as training leaves it."""
    flat = tensor.detach().reshape(-1)
    if bool((flat == flat[0]).all()):
        return short(flat[0]), False
    return three(float(flat.double().mean())), True


def learned_gain(tensor: Tensor, value: int) -> LearnedGain:
    """The node of value ``value``, a parameter with a number for each channel."""
    number, mixed = begins(tensor)
    return LearnedGain(Number(number), f"{value}.{_MIXED}" if mixed else f"{value}")


def is_mixed(mark: str) -> bool:
    """Whether a learned gain with this mark has several numbers."""
    return mark.endswith(f".{_MIXED}")


def three(number: float) -> float:
    """A number to three digits."""
    return float(f"{number:.3g}")


def ungained(norm: Norm) -> bool:
    return dict(norm.options).get("gain", 0) is None


def with_options(options: Options, **changes: Option) -> Options:
    return tuple((name, changes.get(name, option)) for name, option in options)


def short(tensor: Tensor) -> float:
    """One number as its own precision writes it: 1e-06, not 9.99999997e-07."""
    number = float(tensor.detach())
    short = tensor.detach().float().cpu().reshape(()).numpy()
    # A float64 that holds a float32 came from one: 0.7, not 0.699999988.
    return float(str(short)) if float(short) == number else number


def bare(block: Block) -> Block:
    """The block without dropout and without any option: its form alone."""

    def rule(node: Node) -> Node:
        match node:
            case Dropout(value):
                return value
            case Norm(kind, value):
                return Norm(kind, value, filled(NORMS[kind]))
            case Activation(kind, value):
                return Activation(kind, value, filled(ACTIVATIONS[kind]))
            case Linear(name, value):
                return Linear(name, value)
            case Convolution(kernel, value):
                return Convolution(kernel, value)
            case Attention(value):
                return Attention(value)
        return node

    found = rewrite(block, rule)
    assert isinstance(found, Block)
    return found


def unbegun(block: Block, kept: Literal["", "gains", "scalars"] = "") -> Block:
    """A marked block without what its learned numbers begin with, but for what was ``kept``: of
    gains those with one number for all channels, for others are no start that anyone chose; with
    scalars both."""

    def rule(node: Node) -> Node:
        match node:
            case LearnedScalar() if kept != "scalars":
                return dataclasses.replace(node, initial=_TRAINED)
            case LearnedGain(name=name) if not kept or is_mixed(name):
                return dataclasses.replace(node, initial=_TRAINED)
            case Norm(options=options, name=name):
                of_channels = "gain:" in name
                mixed = any(word.startswith("gain:") and is_mixed(word) for word in name.split())
                gain = bool(kept) and not mixed if of_channels else kept == "scalars"
                stays = {"gain": gain, "alpha": kept == "scalars", "shift": kept == "scalars"}
                begun = [k for k, v in options if k in stays and isinstance(v, Number)]
                changes = {k: _TRAINED for k in begun if not stays[k]}
                return dataclasses.replace(node, options=with_options(options, **changes))
            case Attention(norm="l2", scale=Number()) if kept != "scalars":
                return dataclasses.replace(node, scale=_TRAINED)
        return node

    found = rewrite(block, rule)
    assert isinstance(found, Block)
    return found


def averaged(blocks: Sequence[Block]) -> Block:
    """Blocks that differ in numbers alone as one: the numbers that differ are means to three
    digits."""
    found = _averaged(blocks)
    assert isinstance(found, Block)
    return found


def _averaged(nodes: Sequence[Any]) -> Any:
    one = nodes[0]
    if all(node == one for node in nodes):
        return one
    if isinstance(one, tuple):
        return tuple(_averaged(parts) for parts in zip(*nodes, strict=True))
    if all(isinstance(node, Number) for node in nodes):
        return Number(three(sum(node.value for node in nodes) / len(nodes)))
    if not dataclasses.is_dataclass(one) or any(type(node) is not type(one) for node in nodes):
        return one
    fields = [f.name for f in dataclasses.fields(one)]
    parts = {name: _averaged([getattr(node, name) for node in nodes]) for name in fields}
    return dataclasses.replace(one, **parts)  # type: ignore[type-var]


def differing(nodes: Sequence[Any]) -> Iterator[tuple[float, ...]]:
    """The numbers in which nodes of one form differ, of each of the nodes."""
    one = nodes[0]
    if all(node == one for node in nodes):
        return
    if isinstance(one, tuple):
        for parts in zip(*nodes, strict=True):
            yield from differing(parts)
    elif all(isinstance(node, Number) for node in nodes):
        yield tuple(node.value for node in nodes)
    elif dataclasses.is_dataclass(one) and all(type(node) is type(one) for node in nodes):
        for f in dataclasses.fields(one):
            yield from differing([getattr(node, f.name) for node in nodes])


def remarked(block: Block, own: Mapping[int, int]) -> Block:
    """A marked block with other values in the places of its own."""

    def rule(node: Node) -> Node:
        if isinstance(node, _MARKED) and node.name:
            return dataclasses.replace(node, name=_mapped(node.name, own))
        return node

    if all(a == b for a, b in own.items()):
        return block
    found = rewrite(block, rule)
    assert isinstance(found, Block)
    return found


def _mapped(marks: str, own: Mapping[int, int]) -> str:
    out = []
    for word in marks.split():
        role, colon, mark = word.rpartition(":")
        out.append(f"{role}{colon}{owned(mark, own)}")
    return " ".join(out)


def owned(mark: str, own: Mapping[int, int]) -> str:
    """A mark with the value that stands in its value's place."""
    number, dot, part = mark.partition(".")
    return f"{own.get(int(number), int(number))}{dot}{part}"


def marks_of(block: Block) -> tuple[str, ...]:
    """The layers and learned numbers that stand in a marked block, as often as they do."""
    return tuple(
        word.rpartition(":")[2]
        for node in walk(block)
        if isinstance(node, _MARKED)
        for word in node.name.split()
    )


def marks(blocks: Sequence[Block]) -> Counter[str]:
    """How often each layer and learned number stands in marked blocks."""
    return Counter(mark for block in blocks for mark in marks_of(block))


def unmarked(blocks: Sequence[Block]) -> Block:
    """Marked blocks as one, in which names stand for what is in it more than once.

    Layers get the language's names for tied weights; learned numbers are named in front.
    """
    uses = marks(blocks)
    words: Counter[str] = Counter()
    names: dict[str, str] = {}
    lets: dict[str, Let] = {}

    def named(mark: str, word: str) -> str:
        if uses[mark] < 2:
            return ""
        if mark not in names:
            words[word] += 1
            names[mark] = f"{word}{words[word]}"
        return names[mark]

    def learned(node: LearnedScalar | LearnedGain) -> Value:
        bare = dataclasses.replace(node, name="")
        name = named(node.name, "s" if isinstance(node, LearnedScalar) else "g")
        if not name:
            return bare
        lets.setdefault(name, Let(name, bare))
        return Local(name)

    def rule(node: Node) -> Node:
        match node:
            case Linear():
                return dataclasses.replace(node, name=named(node.name, "W") or "W")
            case Convolution():
                return dataclasses.replace(node, name=named(node.name, "C"))
            case Attention():
                return dataclasses.replace(node, name=named(node.name, "A"))
            case LearnedScalar() | LearnedGain():
                return learned(node)
            case Norm():
                return _untied(node, uses, learned)
        return node

    found = [rewrite(statement, rule) for block in blocks for statement in block.statements]
    return Block((*lets.values(), *found))  # type: ignore[arg-type]


def _untied(
    norm: Norm, uses: Mapping[str, int], learned: Callable[[LearnedScalar | LearnedGain], Value]
) -> Value:
    """The norm, with a gain or a bias that stands elsewhere too beside it, under its name there."""
    options = dict(norm.options)
    own = dict(word.split(":") for word in norm.name.split())
    if all(uses[mark] < 2 for mark in own.values()):
        return dataclasses.replace(norm, name="")
    gain, bias = options.get("gain"), options.get("bias")
    plain = with_options(norm.options, **{k: {"gain": None, "bias": False}[k] for k in own})
    out: Value = Norm(norm.kind, norm.value, plain)
    if "gain" in own and isinstance(gain, SCALARS):
        out = Product(learned(LearnedGain(gain, own["gain"])), out)
    if "bias" in own and bias:
        out = Add(out, learned(LearnedGain(Number(0.0), own["bias"])))
    return out


def filled(defaults: Mapping[str, Option]) -> Options:
    return tuple(defaults.items())


def option_of(value: Any) -> Option:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(float(value))
    option: Option = value
    return option


def shared(top: Value) -> list[Statement]:
    """``h = top``, after a name for each inner value that stands in it twice."""
    counts: Counter[int] = Counter()
    nodes: dict[int, Value] = {}

    def count(value: Any) -> None:
        counts[id(value)] += 1
        nodes[id(value)] = value
        if counts[id(value)] == 1:
            for child in children(value):
                count(child)

    count(top)
    simple = (State, Local, Constant, LearnedScalar, LearnedGain, Number)
    names: dict[int, str] = {}
    lets: list[Statement] = []

    def rebuilt(value: Any) -> Any:
        if id(value) in names:
            return Local(names[id(value)])
        changed: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            part = getattr(value, f.name)
            if isinstance(part, tuple) and part and dataclasses.is_dataclass(part[0]):
                changed[f.name] = tuple(rebuilt(item) for item in part)
            elif dataclasses.is_dataclass(part) and type(part).__name__ in _VALUES:
                changed[f.name] = rebuilt(part)
        made = dataclasses.replace(value, **changed) if changed else value
        if counts[id(value)] > 1 and not isinstance(value, simple) and value is not top:
            names[id(value)] = (
                _LETTERS[len(names)] if len(names) < len(_LETTERS) else (f"u{len(names)}")
            )
            lets.append(Let(names[id(value)], made))
            return Local(names[id(value)])
        return made

    statement = Update(rebuilt(top))
    return [*lets, statement]


_LETTERS: Final = ("u", "v", "w", "y", "z")
_VALUES: Final = frozenset(
    (
        "State", "Initial", "Local", "Constant", "LearnedScalar", "LearnedGain", "Add", "Scale",
        "Product", "Linear", "Convolution", "Attention", "Activation", "Norm", "Dropout", "Call",
        "Opaque",
    )
)  # fmt: skip
