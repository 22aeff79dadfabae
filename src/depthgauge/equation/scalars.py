"""The value of a scalar, ``1/sqrt(L)``, once ``L`` is known; floats only.

Every number is a float, so that ``9**9**9**9`` overflows at once where integers would fill the
memory. What is not a finite real number is an error that names the expression at fault, the
innermost one, and the values in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from depthgauge.equation.nodes import (
    Arithmetic,
    Function,
    Negative,
    Node,
    Number,
    Scalar,
    Symbol,
    walk,
)
from depthgauge.equation.text import number_text, to_text
from depthgauge.errors import EquationError, nearest

__all__ = ["evaluate", "symbols"]

_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "abs": abs,
    "min": min,
    "max": max,
    "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)),
}
#: What each operation takes, said when it got something else.
_TAKES: Final[Mapping[str, str]] = {
    "sqrt": "sqrt takes a number >= 0",
    "log": "log takes a number > 0",
    "/": "the divisor is zero",
    "**": "a negative base takes a whole exponent, and zero a positive one",
}


def symbols(node: Node) -> set[str]:
    """The names that a scalar (or any tree) uses as scalars."""
    return {found.name for found in walk(node) if isinstance(found, Symbol)}


def evaluate(scalar: Scalar, scope: Mapping[str, float]) -> float:
    """The value of ``scalar`` where ``scope`` gives its symbols; ``pi`` needs no giving.

    ``x**y`` is C's ``pow``: real or an error, never complex.
    """
    match scalar:
        case Number(number):
            return _finite(number, scalar, scope)
        case Symbol("pi") if "pi" not in scope:
            return math.pi
        case Symbol(name):
            if name not in scope:
                known = nearest(name, scope) or (
                    f": values are known for {', '.join(scope)}" if scope else ""
                )
                raise EquationError(f"the scalar '{name}' has no value here{known}")
            return _finite(_as_float(scope[name]), scalar, scope)
        case Negative(of):
            return -evaluate(of, scope)
        case Arithmetic(op, left, right):
            operands = evaluate(left, scope), evaluate(right, scope)
            return _guarded(op, lambda: _arithmetic(op, *operands), scalar, scope)
        case Function(name, arguments):
            values = [evaluate(argument, scope) for argument in arguments]
            return _guarded(name, lambda: _FUNCTIONS[name](*values), scalar, scope)
    assert_never(scalar)


def _arithmetic(op: str, left: float, right: float) -> float:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            assert op == "**"
            return math.pow(left, right)


def _guarded(
    operation: str, compute: Callable[[], float], scalar: Scalar, scope: Mapping[str, float]
) -> float:
    try:
        value = compute()
    except OverflowError:
        value = math.inf
    except (ValueError, ZeroDivisionError):
        message = f"{_named(scalar, scope)} is not a real number: {_TAKES[operation]}"
        raise EquationError(message) from None
    return _finite(value, scalar, scope)


def _finite(value: float, scalar: Scalar, scope: Mapping[str, float]) -> float:
    if math.isfinite(value):
        return value
    if isinstance(scalar, Arithmetic | Function):
        raise EquationError(f"{_named(scalar, scope)} is too large: it is beyond 1.8e308")
    raise EquationError(f"{to_text(scalar)} is {value}: a scalar is a finite number")


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _named(scalar: Scalar, scope: Mapping[str, float]) -> str:
    """The text of an expression with the values in it, ``sqrt(L - 5) with L = 4``."""
    values = [
        f"{name} = {number_text(_as_float(scope[name]))}"
        for name in sorted(symbols(scalar))
        if name in scope
    ]
    return to_text(scalar) + (f" with {', '.join(values)}" if values else "")
