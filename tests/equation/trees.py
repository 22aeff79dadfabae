"""Random canonical trees: what ``parse`` can give, every kind of node and every option."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from depthgauge.equation.functions import (
    ACTIVATIONS,
    AXES,
    CHOICES,
    INITS,
    NORMS,
    SCALAR_FUNCTIONS,
    SYMBOLS,
)
from depthgauge.equation.nodes import (
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
    Negative,
    Norm,
    Number,
    Opaque,
    Option,
    Options,
    Product,
    Scalar,
    Scale,
    State,
    Statement,
    Symbol,
    Update,
    Value,
)

_NUMBERS = st.one_of(
    st.integers(-9, 9).map(float),
    st.sampled_from([0.02, 1e-8, 0.5, -0.25, 1e16, 1e300, 5e-324, 123456.75]),
    st.floats(allow_nan=False, allow_infinity=False),
).map(lambda number: Number(number or 0.0))  # no negative zero

#: Names of opaque operations: printable text, whatever it means to Python or to LaTeX.
NAMES = st.one_of(
    st.sampled_from(["selective scan", 'a "quoted" \\ name', "it's; # {x}_$%&~^--", "\\", " "]),
    st.text(st.characters(codec="utf-8").filter(str.isprintable), min_size=1, max_size=80),
)


@dataclass
class Grower:
    """Grows trees out of the names known so far; ``draw`` is Hypothesis's."""

    draw: Any
    scalars: list[str] = field(default_factory=lambda: list(SYMBOLS))
    values: list[str] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    weights: dict[str, Linear | Convolution | Attention] = field(default_factory=dict)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def scalar(self, depth: int = 2) -> Scalar:
        kind = self.pick(
            "number", "symbol", *(["negative", "arithmetic", "function"] * bool(depth))
        )
        match kind:
            case "number":
                return self.draw(_NUMBERS)  # type: ignore[no-any-return]
            case "symbol":
                return Symbol(self.pick(*self.scalars))
            case "negative":
                of = self.scalar(depth - 1)
                return Symbol("L") if isinstance(of, Number) else Negative(of)
            case "arithmetic":
                op = self.pick("+", "-", "*", "/", "**")
                return Arithmetic(op, self.scalar(depth - 1), self.scalar(depth - 1))
        name = self.pick(*SCALAR_FUNCTIONS)
        count = SCALAR_FUNCTIONS[name] or self.pick(2, 3)
        return Function(name, tuple(self.scalar(depth - 1) for _ in range(count)))

    def options(self, table: Mapping[str, Option]) -> Options:
        return tuple(
            (name, default if self.pick(True, False) else self.option(name, default))
            for name, default in table.items()
        )

    def option(self, name: str, default: Option) -> Option:
        if name == "axis":
            axes = self.draw(st.sets(st.sampled_from(AXES), min_size=1))
            return "+".join(axis for axis in AXES if axis in axes)
        if name in CHOICES:
            return str(self.pick(*CHOICES[name]))
        if isinstance(default, bool):
            return not default
        return self.scalar(1)

    def init(self) -> Init:
        kind = self.pick(*INITS)
        return Init(kind, self.options(INITS[kind]))

    def weight(self, layer: type[Linear | Convolution | Attention], value: Value) -> Value:
        """A layer with weights; a name that was drawn before brings its options along."""
        if layer is Linear:
            name = self.pick("W", "W1", "W23", "W_up")
        else:
            name = self.pick("", "C1", "mixer") + ("a" if layer is Attention else "")
            name = "" if name == "a" else name
        if name in self.weights:
            return dataclasses.replace(self.weights[name], value=value)
        bias, init = self.pick(True, False), self.init() if self.pick(True, False) else None
        scalar = self.scalar(1) if self.pick(True, False) else None
        grown: Linear | Convolution | Attention
        if layer is Linear:
            grown = Linear(name, value, scalar, init, bias)
        elif layer is Convolution:
            padding = self.pick("zeros", "circular")
            grown = Convolution(self.pick(1, 3, 7), value, scalar, init, bias, padding, name)
        else:
            causal, heads = self.pick(True, False), self.scalar(1)
            grown = Attention(value, heads, causal, scalar, init, bias, name)
        if name not in ("", "W"):
            self.weights[name] = grown
        return grown

    def value(self, depth: int) -> Value:
        if depth == 0:
            own = ("state", "initial", "scalar", "gain", "opaque")
            leaf = self.pick(*own, *(["local"] * len(self.values)))
            match leaf:
                case "local":
                    return Local(self.pick(*self.values))
                case "scalar":
                    return LearnedScalar(self.scalar(1))
                case "gain":
                    return LearnedGain(self.scalar(1))
                case "opaque":
                    return self.opaque()
            return State() if leaf == "state" else Initial()
        below = depth - 1 if self.pick(True, True, False) else 0
        kinds = [Linear, Convolution, Attention, Activation, Norm, Dropout, Opaque]
        kind = self.pick(Add, Add, Scale, Scale, Product, *kinds, *([Call] * len(self.functions)))
        if kind is Call:
            name = self.pick(*self.functions)
            return Call(name, tuple(self.value(below) for _ in range(self.functions[name])))
        value = self.value(depth - 1)
        if kind is Opaque:
            return self.opaque(value, *(self.value(below) for _ in range(self.pick(0, 1))))
        if kind is Add:
            constant = self.pick(True, False, False)
            other = Constant(self.scalar()) if constant else self.value(below)
            return Add(value, other) if self.pick(True, False) else Add(other, value)
        if kind is Scale:
            return Scale(Number(-1.0) if self.pick(True, False) else self.scalar(), value)
        if kind is Product:
            return Product(value, self.value(below))
        if kind is Activation:
            name = self.pick(*ACTIVATIONS)
            return Activation(name, value, self.options(ACTIVATIONS[name]))
        if kind is Norm:
            name = self.pick(*NORMS)
            return Norm(name, value, self.options(NORMS[name]))
        if kind is Dropout:
            return Dropout(value, self.pick(Number(0.0), Number(0.1), Symbol("l")))
        return self.weight(kind, value)

    def opaque(self, *arguments: Value) -> Opaque:
        return Opaque(self.draw(NAMES), arguments, Number(self.pick(0.0, 1.0, 12.0)))

    def statement(self) -> Statement:
        depth = self.pick(1, 2, 3, 4)
        kind = self.pick("update", "value", "scalar", "define")
        if kind == "value":
            name = self.pick("u", "v", "gate")
            bound = self.value(depth)
            self.values.append(name)
            return Let(name, bound)
        fresh = [name for name in ("a", "b", "beta_2") if name not in self.scalars]
        if kind == "scalar" and fresh:  # a scalar is bound once
            name, scalar = self.pick(*fresh), self.scalar()
            self.scalars.append(name)
            return Let(name, scalar)
        unused = [name for name in ("F", "G", "branch") if name not in self.functions]
        if kind == "define" and unused:
            parameters = self.pick(("x",), ("x", "y"), ("u", "x"))  # u may hide a value
            inside = dataclasses.replace(self, values=[*self.values, *parameters])
            body = inside.value(depth)
            self.functions[unused[0]] = len(parameters)
            return Define(unused[0], parameters, body)
        return Update(self.value(depth))


@st.composite
def scalars(draw: st.DrawFn) -> Scalar:
    return Grower(draw).scalar(depth=4)


@st.composite
def inits(draw: st.DrawFn) -> Init:
    return Grower(draw).init()


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    grower = Grower(draw)
    statements = [grower.statement() for _ in range(draw(st.integers(0, 4)))]
    return Block((*statements, Update(grower.value(draw(st.integers(0, 5))))))
