"""The block equation as a closed set of small frozen nodes.

A block is a tuple of statements. Scalars are known before any tensor exists (``1/sqrt(L)``);
values are states and what is computed from them. Every other meaning (text, LaTeX, counting,
PyTorch, theory) is a *reader* of these classes and lives in a file of its own.

What is canonical by construction, so that one equation has one tree:

* ``x - y`` is ``Add(x, Scale(Number(-1), y))``; ``x / s`` is ``Scale(1/s, x)``; ``x * s`` is
  ``Scale(s, x)``: a scalar factor always stands in front.
* A negative literal is a negative ``Number``; ``Negative`` never holds a ``Number``.
* Options always hold every value, the defaults of ``functions.py`` filled in.
* A free scalar given beside the equation is a ``Let`` in front of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

# ------------------------------------------------------------------------------- scalars


@dataclass(frozen=True, slots=True)
class Number:
    """A finite literal, always a float: ``4`` and ``4.0`` are the same number."""

    value: float


@dataclass(frozen=True, slots=True)
class Symbol:
    """``L``, ``depth``, ``l``, ``n``, ``pi`` or a scalar bound by a ``Let`` before it."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    of: Scalar


@dataclass(frozen=True, slots=True)
class Arithmetic:
    op: Literal["+", "-", "*", "/", "**"]
    left: Scalar
    right: Scalar


@dataclass(frozen=True, slots=True)
class Function:
    """``sqrt``, ``exp``, ``log``, ``abs``, ``min`` or ``max`` of scalars."""

    name: str
    arguments: tuple[Scalar, ...]


Scalar: TypeAlias = Number | Symbol | Negative | Arithmetic | Function

# ----------------------------------------------------------------------- initialisation

Option: TypeAlias = Scalar | str | bool | None
Options: TypeAlias = tuple[tuple[str, Option], ...]


@dataclass(frozen=True, slots=True)
class Init:
    """An initialiser by name with all its options: ``he(mode="fan_out", gain=1)``."""

    kind: str
    options: Options = ()

    def option(self, name: str) -> Option:
        return dict(self.options)[name]


# -------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class State:
    """``h``: the state where the expression is evaluated."""


@dataclass(frozen=True, slots=True)
class Initial:
    """``h0``: the state that entered the first block."""


@dataclass(frozen=True, slots=True)
class Local:
    """A value bound by a ``Let`` before it, or the parameter of the enclosing ``Define``."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar used where a value stands, the ``1`` of ``1 - t``."""

    scalar: Scalar


@dataclass(frozen=True, slots=True)
class LearnedScalar:
    """``scalar(0)``: one learnable number, shape ``()``, with its initial value."""

    initial: Scalar
    name: str = ""


@dataclass(frozen=True, slots=True)
class LearnedGain:
    """``gain(1e-5)``: one learnable number a channel, shape ``(n,)``, with its initial value."""

    initial: Scalar
    name: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Scale:
    """A fixed scalar times a value."""

    factor: Scalar
    value: Value


@dataclass(frozen=True, slots=True)
class Product:
    """An elementwise product of two values: a gate."""

    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Linear:
    """``W1(x, out=4*n, init="he", bias=True)``; ``out=None`` means the state's width ``n``.

    The name ``W`` is anonymous: each occurrence in the text is a layer of its own. ``W1`` used
    twice is one tied weight.
    """

    name: str
    value: Value
    out: Scalar | None = None
    init: Init | None = None
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """``conv3(x, out=n, padding="circular", name="C1")``: stride 1, size kept, kernel odd."""

    kernel: int
    value: Value
    out: Scalar | None = None
    init: Init | None = None
    bias: bool = False
    padding: Literal["zeros", "circular"] = "zeros"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head self-attention with layers q, k, v, o; ``scale=None`` means 1/sqrt(n/heads).

    ``norm``: of queries and of keys, over the features of each head. With ``"l2"``, which divides
    each by its length, ``scale`` is where a learned number begins; None is sqrt(n/heads).
    """

    value: Value
    heads: Scalar = Number(1.0)
    causal: bool = False
    scale: Scalar | None = None
    init: Init | None = None
    bias: bool = False
    name: str = ""
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Activation:
    kind: str
    value: Value
    options: Options = ()

    def option(self, name: str) -> Option:
        return dict(self.options)[name]


@dataclass(frozen=True, slots=True)
class Norm:
    kind: str
    value: Value
    options: Options = ()
    name: str = ""

    def option(self, name: str) -> Option:
        return dict(self.options)[name]


@dataclass(frozen=True, slots=True)
class Dropout:
    value: Value
    p: Scalar
    name: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """``F(h)`` where ``F(x) = ...`` stands before it."""

    name: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """``opaque("selective scan", x, m=2)``: a named operation that the language cannot say.

    ``m``, a whole literal, is the number of weight layers in series inside it. Without arguments
    it is a value from elsewhere. It can be read, counted and printed, not built.
    """

    name: str
    arguments: tuple[Value, ...] = ()
    m: Scalar = Number(0.0)


Value: TypeAlias = (
    State
    | Initial
    | Local
    | Constant
    | LearnedScalar
    | LearnedGain
    | Add
    | Scale
    | Product
    | Linear
    | Convolution
    | Attention
    | Activation
    | Norm
    | Dropout
    | Call
    | Opaque
)

# ---------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Let:
    """``u = rmsnorm(h)`` (a value) or ``a = 1/sqrt(L)`` (a scalar); the name is never ``h``."""

    name: str
    bound: Value | Scalar


@dataclass(frozen=True, slots=True)
class Define:
    """``F(x) = W2(tanh(W1(x)))``; the body may use its parameters, ``h``, ``h0``, earlier names."""

    name: str
    parameters: tuple[str, ...]
    body: Value


@dataclass(frozen=True, slots=True)
class Update:
    """``h = ...``: what the state becomes; later statements see the new state."""

    value: Value


Statement: TypeAlias = Let | Define | Update


@dataclass(frozen=True, slots=True)
class Block:
    """The statements of one block, in order; at least one is an ``Update``."""

    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        from depthgauge.equation.text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"


Node: TypeAlias = Block | Statement | Value | Scalar | Init

SCALARS = (Number, Symbol, Negative, Arithmetic, Function)

# --------------------------------------------------------------------------- traversals


def children(node: Node) -> Iterator[Node]:
    """The nodes directly under ``node``, in the order in which they are evaluated and printed."""
    for field in dataclasses.fields(node):
        yield from _nodes_in(getattr(node, field.name))


def _nodes_in(part: object) -> Iterator[Node]:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield part  # type: ignore[misc]
    elif isinstance(part, tuple):
        for item in part:
            yield from _nodes_in(item)


def walk(node: Node) -> Iterator[Node]:
    """``node`` and everything under it, operands before what is computed from them."""
    for child in children(node):
        yield from walk(child)
    yield node


def rewrite(node: Node, rule: Callable[[Node], Node]) -> Node:
    """A copy in which ``rule`` has replaced every node, operands first."""

    def inside(part: object) -> object:
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            return rewrite(part, rule)  # type: ignore[arg-type]
        if isinstance(part, tuple):
            return tuple(inside(item) for item in part)
        return part

    changed: dict[str, Any] = {
        f.name: inside(getattr(node, f.name)) for f in dataclasses.fields(node)
    }
    return rule(type(node)(**changed))
