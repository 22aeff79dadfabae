"""``to_text``: the one canonical text of a tree, which parses back to the same tree.

    h = h + 1/sqrt(L) * W2(relu(W1(rmsnorm(h), out=4*n)))

Parentheses only where Python's precedence asks for them; options only where they differ from
their defaults. Between scalars ``* / **`` are tight, so that the spaced ``*`` is the one between
a factor and its value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, assert_never

from depthgauge.equation.functions import ACTIVATIONS, INITIAL, INITS, MINUS_ONE, NORMS, STATE, ZERO
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
    Negative,
    Node,
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
from depthgauge.errors import expect

__all__ = ["number_text", "to_text"]

#: How tightly a text holds together, loosest first, as Python reads it.
SUM, TERM, SIGNED, POWER, ATOM = range(5)
_OPERATORS: Final = {  # op: (its text, its level, the least level left and right of it)
    "+": (" + ", SUM, SUM, TERM),
    "-": (" - ", SUM, SUM, TERM),
    "*": ("*", TERM, TERM, SIGNED),
    "/": ("/", TERM, TERM, SIGNED),
    "**": ("**", POWER, ATOM, SIGNED),
}

Written: TypeAlias = tuple[str, int]


def to_text(node: Node) -> str:
    """The canonical text of a block, a statement, a value, a scalar or an initialiser."""
    expect("node", node, Node, "a block of parse(), or a part of one")
    match node:
        case Block(statements):
            return "; ".join(map(_statement, statements))
        case Let() | Define() | Update():
            return _statement(node)
        case Init():
            return _init(node)
        case Number() | Symbol() | Negative() | Arithmetic() | Function():
            return _scalar(node)[0]
        case _:
            return _value(node)[0]


def number_text(number: float) -> str:
    """The shortest text that reads back as this float: ``4``, ``0.02``, ``1e-08``."""
    if number.is_integer() and abs(number) < 1e16:
        return str(int(number))
    return repr(number)


def _statement(statement: Statement) -> str:
    match statement:
        case Update(value):
            return f"{STATE} = {to_text(value)}"
        case Let(name, bound):
            return f"{name} = {to_text(bound)}"
        case Define(name, parameters, body):
            return f"{name}({', '.join(parameters)}) = {to_text(body)}"
    assert_never(statement)


def _fit(written: Written, least: int) -> str:
    text, level = written
    return text if level >= least else f"({text})"


def _scalar(scalar: Scalar) -> Written:
    match scalar:
        case Number(number):
            return number_text(number), (SIGNED if number < 0 else ATOM)
        case Symbol(name):
            return name, ATOM
        case Negative(of):
            return "-" + _fit(_scalar(of), SIGNED), SIGNED
        case Arithmetic(op, left, right):
            sign, level, on_left, on_right = _OPERATORS[op]
            return _fit(_scalar(left), on_left) + sign + _fit(_scalar(right), on_right), level
        case Function(name, arguments):
            return f"{name}({', '.join(map(to_text, arguments))})", ATOM
    assert_never(scalar)


def _value(value: Value) -> Written:
    match value:
        case State():
            return STATE, ATOM
        case Initial():
            return INITIAL, ATOM
        case Local(name):
            return name, ATOM
        case Constant(scalar):
            return _scalar(scalar)
        case Add(left, right):
            return _fit(_value(left), SUM) + _added(right), SUM
        case Scale(factor, of) if factor == MINUS_ONE:
            return "-" + _fit(_value(of), SIGNED), SIGNED
        case Scale(factor, of):
            return f"{_fit(_scalar(factor), TERM)} * {_fit(_value(of), SIGNED)}", TERM
        case Product(left, right):
            return f"{_fit(_value(left), TERM)} * {_fit(_value(right), SIGNED)}", TERM
        case LearnedScalar(initial):
            return f"scalar({to_text(initial)})", ATOM
        case LearnedGain(initial):
            return f"gain({to_text(initial)})", ATOM
        case Linear(name, of):
            word = name.partition(".")[0]  # a reader's name of an anonymous layer: W.2 is W
            return _call(word, [of], _fields(value, "name", "value")), ATOM
        case Convolution(kernel, of):
            return _call(f"conv{kernel}", [of], _fields(value, "kernel", "value")), ATOM
        case Attention(of):
            return _call("attention", [of], _fields(value, "value")), ATOM
        case Activation(kind, of, options):
            return _call(kind, [of], _changed(options, ACTIVATIONS[kind])), ATOM
        case Norm(kind, of, options):
            return _call(kind, [of], _changed(options, NORMS[kind])), ATOM
        case Dropout(of, p):
            return _call("dropout", [of], [f"p={to_text(p)}"]), ATOM
        case Call(name, arguments):
            return _call(name, arguments, []), ATOM
        case Opaque(name, arguments, m):
            words = [_quoted(name), *map(to_text, arguments)]
            if m != ZERO:
                words.append(f"m={to_text(m)}")
            return f"opaque({', '.join(words)})", ATOM
    assert_never(value)


def _added(right: Value) -> str:
    """What follows the left operand of an Add; a sign in the tree becomes a minus."""
    match right:
        case Scale(factor, of) if factor == MINUS_ONE:
            return " - " + _fit(_value(of), TERM)
        case Constant(Number(number)) if number < 0:
            return " - " + number_text(-number)
        case Constant(Negative(of)):
            return " - " + _fit(_scalar(of), TERM)
        case _:
            return " + " + _fit(_value(right), TERM)


def _call(name: str, arguments: Iterable[Value], options: Iterable[str]) -> str:
    return f"{name}({', '.join([*map(to_text, arguments), *options])})"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _fields(layer: Linear | Convolution | Attention, *without: str) -> list[str]:
    """The options of a layer with weights: its fields that differ from their defaults."""
    return [
        f"{field.name}={_option(getattr(layer, field.name))}"
        for field in dataclasses.fields(layer)
        if field.name not in without
        and getattr(layer, field.name) != field.default
        and not (field.name == "name" and "." in layer.name)
    ]


def _changed(options: Options, defaults: Mapping[str, Option], quote: str = '"') -> list[str]:
    return [
        f"{name}={_option(option, quote)}" for name, option in options if option != defaults[name]
    ]


def _option(option: Option | Init, quote: str = '"') -> str:
    if isinstance(option, Init):
        return f'"{_init(option)}"'
    if isinstance(option, SCALARS):
        return to_text(option)
    return f"{quote}{option}{quote}" if isinstance(option, str) else str(option)


def _init(init: Init) -> str:
    # Single quotes, because the whole stands in double quotes inside an equation.
    options = _changed(init.options, INITS[init.kind], "'")
    return f"{init.kind}({', '.join(options)})" if options else init.kind
