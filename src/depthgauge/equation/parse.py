"""``parse``: the text of a block equation becomes its tree, or an error with a caret.

    statement := [h =] expression | name = expression | F(x, ...) = expression
    expression: Python's numbers, names, + - * / **, calls; see ``functions`` for the words

    h = h + a * W2(relu(W1(rmsnorm(h))))       # comments run to the end of the line
    F(x) = W2(tanh(W1(x))); h = h + F(h)/sqrt(L)

Whatever the text, the only exception is EquationError. The text of every tree that comes back,
``to_text(tree)``, is accepted too and gives the same tree.
"""

from __future__ import annotations

import ast
import keyword
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TypeVar

from depthgauge.equation.expansion import too_large
from depthgauge.equation.expressions import Reader, Scope, is_word
from depthgauge.equation.functions import STATE
from depthgauge.equation.nodes import (
    SCALARS,
    Block,
    Define,
    Init,
    Let,
    Node,
    Scalar,
    Statement,
    Update,
    children,
)
from depthgauge.equation.options import initialiser
from depthgauge.equation.split import (
    CHARACTERS,
    NESTING,
    Sentence,
    Side,
    python,
    sentences,
    single,
    too_deep,
)
from depthgauge.equation.text import number_text, to_text
from depthgauge.errors import EquationError

__all__ = ["parse", "parse_init", "parse_scalar"]

_N = TypeVar("_N", bound=Node)


def parse(text: str, /, scalars: Mapping[str, str | float | Scalar] | None = None) -> Block:
    """The block that ``text`` describes.

    ``scalars`` are free scalars given beside the equation, ``{"a": "1/sqrt(L)"}``: each becomes
    a ``Let`` in front, in the order given, may use those before it, and must be used.
    """
    if scalars is not None and not isinstance(scalars, Mapping):
        raise EquationError(
            f"scalars is {scalars!r}: give a table of them by name, such as {{'a': '1/sqrt(L)'}}"
        )
    scope = Scope()
    statements: list[Statement] = []
    for name, given in (scalars or {}).items():
        statements.append(_declared(name, given, scope))
    for sentence in sentences(_whole(text)):
        statements.append(_statement(sentence, scope))
    if not text.strip():
        raise EquationError("the equation is empty: write at least h = ...")
    for name in scope.unused:
        raise EquationError(
            f"the scalar '{name}' is given beside the equation, which never uses it: "
            "remove one or use the other",
            text,
        )
    if not any(isinstance(statement, Update) for statement in statements):
        raise EquationError("the equation never assigns h: write h = ... as one statement", text)
    block = Block(tuple(statements))
    if (length := len(to_text(block))) > CHARACTERS:
        raise EquationError(
            f"the equation, written out, is {length:,} characters long and the limit is "
            f"{CHARACTERS:,}: bind what it repeats to a name (u = ...) or define it (F(x) = ...)"
        )
    if why := too_large(block):
        raise EquationError(why)
    return block


def parse_scalar(text: str, /, names: Iterable[str] = ()) -> Scalar:
    """The scalar that ``text`` describes; ``names`` are known besides ``L``, ``depth``, ..."""
    return _scalar(single(_whole(text), "a scalar"), _scope(names))


def parse_init(text: str, /, names: Iterable[str] = ()) -> Init:
    """The initialiser that ``text`` describes, ``he`` or ``normal(0.02/sqrt(2*L))``."""
    side = single(_whole(text), "an initialiser")
    return _not_deep(side, initialiser(Reader(side, _scope(names))))


def _whole(text: str) -> Side:
    if not isinstance(text, str):
        raise EquationError(f"an equation is text, not {type(text).__name__}: put it in quotes")
    return Side(text, 0, text)


def _scope(names: Iterable[str]) -> Scope:
    return Scope(names=dict.fromkeys(names, "scalar"))


def _scalar(side: Side, scope: Scope) -> Scalar:
    return _not_deep(side, Reader(side, scope).scalar(python(side), "this place"))


def _declared(name: str, given: str | float | Scalar, scope: Scope) -> Let:
    """One scalar given beside the equation; it joins ``scope``."""
    if why := _unassignable(name):
        raise EquationError(f"the scalar {why}")
    name = unicodedata.normalize("NFKC", name)  # as Python reads it in the equation
    try:
        if isinstance(given, SCALARS):
            given = to_text(given)
        elif not isinstance(given, str):
            given = number_text(_finite(given))
        bound = _scalar(single(_whole(given), "a scalar"), scope)
    except EquationError as error:
        message = f"the scalar '{name}': {error.message}"
        raise EquationError(message, error.text, error.position) from None
    scope.names[name] = "scalar"
    scope.unused.add(name)
    return Let(name, bound)


def _finite(given: float) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(given, bool) or not math.isfinite(number):
        raise EquationError(f"{given!r} is neither a finite number nor text such as '1/sqrt(L)'")
    return number


def _unassignable(name: object) -> str:
    """Why nobody may bind this name, or ``""``."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        return f"{name!r} is not a name: use letters, digits and '_'"
    if is_word(name) or name == STATE:
        return f"'{name}' cannot be assigned: the language means something else by it"
    return ""


# ---------------------------------------------------------------------------- statements


def _statement(sentence: Sentence, scope: Scope) -> Statement:
    value = sentence.value
    if sentence.target is None:
        return _update(value, scope)
    side, target = sentence.target, python(sentence.target)
    match target:
        case ast.Name(id=name) if name == STATE:
            return _update(value, scope)
        case ast.Name(id=name):
            return _let(name, side, value, scope)
        case ast.Call(func=ast.Name(id=name)):
            return _define(name, target, side, value, scope)
        case _:
            message = "only h, a name or F(x) can stand before '='"
            raise side.error(message, target)


def _update(side: Side, scope: Scope) -> Update:
    node = python(side)
    return _not_deep(side, Update(Reader(side, scope).value(node, "the state h")))


def _let(name: str, target: Side, side: Side, scope: Scope) -> Let:
    if why := _unassignable(name):
        raise target.error(why)
    if name in scope.functions:
        raise target.error(f"'{name}' is a definition already: use another name")
    bound = Reader(side, scope).read(python(side))
    kind = "scalar" if isinstance(bound, SCALARS) else "value"
    if scope.names.get(name, kind) != kind:
        raise target.error(f"'{name}' is a {scope.names[name]} before and cannot become a {kind}")
    if name in scope.unused:
        raise target.error(f"the scalar '{name}' is given beside the equation and assigned here")
    if kind == "scalar" and name in scope.names:
        raise target.error(f"the scalar '{name}' is bound before: give this one another name")
    scope.names[name] = "scalar" if kind == "scalar" else "value"
    return _not_deep(side, Let(name, bound))


def _define(name: str, target: ast.Call, side: Side, value: Side, scope: Scope) -> Define:
    if why := _unassignable(name):
        raise side.error(why)
    if name in scope.functions or name in scope.names:
        raise side.error(f"'{name}' is known already: use another name")
    if not target.args or target.keywords:
        raise side.error(f"a definition has parameters, as in {name}(x) = ...", target)
    parameters: list[str] = []
    for argument in target.args:
        if not isinstance(argument, ast.Name):
            raise side.error(f"a parameter is a name, as in {name}(x) = ...", argument)
        if why := _unassignable(argument.id):
            raise side.error(f"a parameter {why}", argument)
        if argument.id in parameters:
            raise side.error(f"two parameters are called '{argument.id}'", argument)
        parameters.append(argument.id)
    inside = scope.inside(name, tuple(parameters))
    body = Reader(value, inside).value(python(value), f"the definition of {name}")
    scope.functions[name] = len(parameters)
    return _not_deep(value, Define(name, tuple(parameters), body))


def _not_deep(side: Side, node: _N) -> _N:
    """``node`` itself; the limit is on the tree, so that text and tree agree on it."""
    level: list[Node] = [node]
    for _ in range(NESTING + (2 if isinstance(node, Let | Define | Update) else 1)):
        level = [child for above in level for child in children(above)]
    if level:
        raise too_deep(side)
    return node
