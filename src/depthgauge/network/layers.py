"""What one block needs: its weight layers and learnable vectors, named and with their shapes.

The reader that knows widths. Everything else asks here: the initialisers (shapes), the module
(parameters), the stream (what to draw, how much memory a block takes).

Index legend: ``n`` the state's width, ``k`` a kernel side. A weight has PyTorch's axis order,
``(out, in)`` or ``(out, in, k, k)``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Arithmetic,
    Attention,
    Block,
    Call,
    Constant,
    Convolution,
    Define,
    Dropout,
    Function,
    Init,
    Initial,
    LearnedGain,
    LearnedScalar,
    Let,
    Linear,
    Local,
    Node,
    Norm,
    Number,
    Opaque,
    Product,
    Scalar,
    Scale,
    State,
    Symbol,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.scalars import evaluate
from depthgauge.equation.text import to_text
from depthgauge.errors import EquationError, NetworkError

Layout: TypeAlias = Literal["rows", "tokens", "images"]

#: Names of the axes of a state, in order; an image has two axes of space.
LAYOUT_AXES: dict[Layout, tuple[str, ...]] = {
    "rows": ("batch", "width"),
    "tokens": ("batch", "tokens", "width"),
    "images": ("batch", "width", "space", "space"),
}


#: More channels, or a larger kernel, than anybody measures; a typing slip, not a layer.
LARGEST_SIZE, LARGEST_KERNEL = 10_000_000, 255


@dataclass(frozen=True, slots=True)
class Layer:
    """One weight: ``name`` is its key, ``aliases`` the names an initialisation may use for it."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    init: Init | None
    bias: bool
    padding: Literal["zeros", "circular"] = "zeros"


@dataclass(frozen=True, slots=True)
class Vector:
    """A learnable scalar ``()`` or per-channel vector ``(width,)`` with its initial value."""

    name: str
    shape: tuple[int, ...]
    initial: Scalar


@dataclass(frozen=True, slots=True)
class Layers:
    """All that one block learns, in order of evaluation, and its activations' names.

    ``batch_norms``: norms over the batch with their width. ``elements``: numbers in all
    intermediate results for one example at one position, what a backward pass has to keep.
    """

    block: Block
    weights: tuple[Layer, ...]
    vectors: tuple[Vector, ...]
    activations: tuple[str, ...]
    batch_norms: dict[str, int]
    elements: int

    @property
    def weight_elements(self) -> int:
        return sum(math.prod(layer.shape) for layer in self.weights)


def layout_of(block: Block) -> Layout:
    """The state's shape that the block's layers ask for."""
    for node in walk(block):
        if isinstance(node, Opaque):
            raise not_built(node)
    kinds = {type(node) for node in walk(block)}
    if Convolution in kinds and Attention in kinds:
        raise NetworkError(
            "the equation has both attention and conv, which need different states, "
            "(batch, tokens, n) and (batch, n, size, size); give each a network of its own"
        )
    return "images" if Convolution in kinds else "tokens" if Attention in kinds else "rows"


def not_built(node: Opaque) -> NetworkError:
    return NetworkError(
        f"{to_text(Opaque(node.name))} can be read but not built; write its equation in the "
        f"language"
    )


def named(block: Block) -> Block:
    """The block with a unique name on every layer and learnable: the second ``W`` is ``W.2``.

    Names count occurrences of the same word in the text, so that another norm or activation
    renames no weight.
    """
    seen: Counter[str] = Counter()

    def number(word: str) -> str:
        seen[word] += 1
        return f"{word}.{seen[word]}"

    def rule(node: Node) -> Node:
        if isinstance(node, Linear) and node.name == "W":
            return dataclasses.replace(node, name=number("W"))
        if isinstance(node, Convolution) and not node.name:
            return dataclasses.replace(node, name=number(f"conv{node.kernel}"))
        if isinstance(node, Attention) and not node.name:
            return dataclasses.replace(node, name=number("attention"))
        if isinstance(node, LearnedScalar | LearnedGain | Norm | Dropout):
            return dataclasses.replace(node, name=number(_word(node)))
        return node

    renamed = rewrite(block, rule)
    assert isinstance(renamed, Block)
    return renamed


def _word(node: LearnedScalar | LearnedGain | Norm | Dropout) -> str:
    match node:
        case LearnedScalar():
            return "scalar"
        case LearnedGain():
            return "gain"
        case Dropout():
            return "dropout"
        case Norm():
            return node.kind


def layers_of(block: Block, width: int, scope: Mapping[str, float]) -> Layers:
    """Shapes of everything the block learns, for a state of ``width`` channels.

    ``scope`` holds ``L``, ``depth``, ``n`` and ``pi``; shapes may not depend on ``l``. Raises
    NetworkError where two widths do not fit, naming both parts.
    """
    reader = _Shapes(width, dict(scope))
    block = named(block)
    for statement in block.statements:
        match statement:
            case Let(name, bound):
                if isinstance(bound, SCALARS):
                    reader.let(name, bound)
                else:
                    reader.bind(name, bound)
            case Define():
                reader.definitions[statement.name] = statement
            case _:
                out = reader.width_of(statement.value)
                if out is None:
                    raise NetworkError(
                        f"'h = {to_text(statement.value)}' gives no state: it has no width; "
                        f"compute it from h"
                    )
                if out != width:
                    raise NetworkError(
                        f"'h = {to_text(statement.value)}' gives a state of width {out}, but the "
                        f"state has width {width}; give its last layer out=n"
                    )
    return Layers(
        block,
        tuple(reader.weights.values()),
        tuple(reader.vectors.values()),
        tuple(reader.activations),
        reader.batch_norms,
        reader.elements,
    )


@dataclass
class _Shapes:
    """One walk over a block in order of evaluation; a width of None fits any other width."""

    width: int
    scope: dict[str, float]
    locals: dict[str, int | None] = field(default_factory=dict)
    parameters: dict[str, int | None] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, Define] = field(default_factory=dict)
    weights: dict[str, Layer] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    activations: dict[str, None] = field(default_factory=dict)
    batch_norms: dict[str, int] = field(default_factory=dict)
    elements: int = 0
    words: Counter[str] = field(default_factory=Counter)

    def bind(self, name: str, bound: Value) -> None:
        self.locals[name] = self.width_of(bound)
        self.values[name] = bound

    def let(self, name: str, bound: Scalar) -> None:
        # A scalar that uses l has a value per block; a shape that uses it fails in whole().
        try:
            self.scope[name] = evaluate(bound, self.scope)
        except EquationError:
            self.scope.pop(name, None)

    def whole(self, scalar: Scalar, what: str) -> int:
        """A size: a whole number of at least 1 that is the same in every block."""
        try:
            value = evaluate(scalar, self.scope)
        except EquationError as error:
            raise NetworkError(
                f"{what} = {to_text(scalar)} has no value that every block shares "
                f"({error.message}); use n, L, depth and numbers"
            ) from None
        if value > LARGEST_SIZE:
            raise NetworkError(
                f"{what} = {to_text(scalar)} is {value:g}, but a size is at most {LARGEST_SIZE:,}"
            )
        if value < 1 or value != int(value):
            raise NetworkError(
                f"{what} = {to_text(scalar)} is {value:g}, but a size is a whole number of at "
                f"least 1"
            )
        return int(value)

    def width_of(self, value: Value) -> int | None:
        out = self._width_of(value)
        if not isinstance(value, State | Initial | Local | Scale | Call):
            self.elements += out or 0
        return out

    def _width_of(self, value: Value) -> int | None:
        match value:
            case State() | Initial():
                return self.width
            case Local(name):
                return self.parameters[name] if name in self.parameters else self.locals[name]
            case Constant():
                return None
            case LearnedScalar(initial, name):
                self.vectors[name] = Vector(name, (), initial)
                return None
            case LearnedGain(initial, name):
                self.vectors[name] = Vector(name, (self.width,), initial)
                return None
            case Scale(_, inner) | Dropout(inner):
                return self.width_of(inner)
            case Activation(kind, inner):
                width = self.width_of(inner)
                if kind != "identity":
                    self.activations[activation_name(kind, self.words)] = None
                return width
            case Add(left, right) | Product(left, right):
                return self._together(value, left, right)
            case Linear(name, inner, out, init, bias):
                return self._weight(Layer(name, (name, "W"), (), init, bias), inner, out)
            case Convolution(kernel, inner, out, init, bias):
                if kernel > LARGEST_KERNEL:
                    raise NetworkError(
                        f"a kernel has side {kernel}, but it is at most {LARGEST_KERNEL}"
                    )
                aliases = (value.name, f"conv{kernel}", "conv")
                shape = (kernel, kernel)
                layer = Layer(value.name, aliases, shape, init, bias, value.padding)
                return self._weight(layer, inner, out)
            case Attention():
                return self._attention(value)
            case Norm():
                return self._norm(value)
            case Call(name, arguments):
                definition = self.definitions[name]
                bound = [self.width_of(argument) for argument in arguments]
                outer = self.parameters, self.values
                # A definition sees its parameters and the statements' names, not its caller's.
                self.parameters = dict(zip(definition.parameters, bound, strict=True))
                given = dict(zip(definition.parameters, arguments, strict=True))
                self.values = {**self.values, **{n: v for n, v in given.items() if v != Local(n)}}
                width = self.width_of(definition.body)
                self.parameters, self.values = outer
                return width
            case Opaque():
                raise not_built(value)

    def _together(self, value: Add | Product, left: Value, right: Value) -> int | None:
        a, b = self.width_of(left), self.width_of(right)
        if a is None or b is None:
            width = b if a is None else a
            self.settle(left if a is None else right, width)
            return width
        if a != b:
            verb = "adds" if isinstance(value, Add) else "multiplies"
            raise NetworkError(
                f"'{to_text(value)}' {verb} widths {a} and {b}: '{to_text(left)}' has {a} and "
                f"'{to_text(right)}' has {b}; give them the same out="
            )
        return a

    def settle(self, value: Value, width: int | None) -> None:
        """Tell the gains inside a value that fits any width which width it stands beside."""
        if width is None or not self._flexible(value):
            return
        match value:
            case LearnedGain(initial, name):
                if self.settled.setdefault(name, width) != width:
                    raise NetworkError(
                        f"'{to_text(value)}' stands beside widths {self.settled[name]} and "
                        f"{width}; write one gain for each"
                    )
                self.vectors[name] = Vector(name, (width,), initial)
            case Local(name):
                self.settle(self.values[name], width)
            case Add(left, right) | Product(left, right):
                self.settle(left, width)
                self.settle(right, width)
            case Scale(_, inner) | Activation(_, inner) | Dropout(inner):
                self.settle(inner, width)
            case _:
                pass

    def _flexible(self, value: Value) -> bool:
        """Whether nothing in the value has a width of its own."""
        for node in walk(value):
            if isinstance(node, State | Initial | Linear | Convolution | Attention | Call):
                return False
            if isinstance(node, Local) and not self._flexible_name(node.name):
                return False
        return True

    def _flexible_name(self, name: str) -> bool:
        widths = self.parameters if name in self.parameters else self.locals
        return widths[name] is None

    def _need(self, value: Value, what: str) -> int:
        width = self.width_of(value)
        if width is None:
            raise NetworkError(
                f"{what} takes a value computed from the state, not '{to_text(value)}'"
            )
        return width

    def _weight(self, layer: Layer, inner: Value, out: Scalar | None) -> int:
        """Record a layer given with its kernel's shape; returns the width it gives."""
        fan = self._need(inner, layer.name)
        outs = self.width if out is None else self.whole(out, f"out of {layer.name}")
        layer = dataclasses.replace(layer, shape=(outs, fan, *layer.shape))
        before = self.weights.setdefault(layer.name, layer)
        if before.shape != layer.shape:
            raise NetworkError(
                f"{layer.name} stands twice in the block, with shapes {before.shape} and "
                f"{layer.shape}; one name is one tied weight, so give the second another name"
            )
        return outs

    def _attention(self, value: Attention) -> int:
        width = self._need(value.value, "attention")
        heads = self.whole(value.heads, "heads of attention")
        if width % heads:
            raise NetworkError(
                f"attention has heads={heads}, which does not divide the width {width}; "
                f"choose a divisor of {width}"
            )
        for part in "qkvo":
            name = f"{value.name}.{part}"
            words = (f"attention.{part}", value.name, "attention")
            layer = Layer(name, (name, *words), (width, width), value.init, value.bias)
            self.weights.setdefault(name, layer)
        if value.norm == "l2":
            head = Arithmetic("/", Symbol("n"), value.heads)
            start = value.scale or Function("sqrt", (head,))
            self.vectors[f"{value.name}.scale"] = Vector(f"{value.name}.scale", (), start)
        self.elements += (6 if value.norm else 4) * width
        return width

    def _norm(self, value: Norm) -> int:
        width = self._need(value.value, value.kind)
        options = dict(value.options)
        if value.kind == "batchnorm" or "batch" in str(options.get("axis")):
            self.batch_norms[value.name] = width
        if value.kind == "groupnorm":
            groups = options["groups"]
            assert isinstance(groups, SCALARS)
            count = self.whole(groups, "groups of groupnorm")
            if width % count:
                raise NetworkError(
                    f"groupnorm has groups={count}, which does not divide the width {width}; "
                    f"choose a divisor of {width}"
                )
        for option in ("gain", "bias", "alpha", "shift"):
            initial = options.get(option)
            if initial is None or initial is False:
                continue
            per_channel = option in ("gain", "bias") and value.kind != "scalenorm"
            number = Number(0.0) if initial is True else initial
            assert isinstance(number, SCALARS)
            shape = (width,) if per_channel else ()
            name = f"{value.name}.{option}"
            self.vectors[name] = Vector(name, shape, number)
        return width


def activation_name(kind: str, seen: Counter[str]) -> str:
    """The name of the next activation of this kind in the order of evaluation: ``relu.1``."""
    seen[kind] += 1
    return f"{kind}.{seen[kind]}"
