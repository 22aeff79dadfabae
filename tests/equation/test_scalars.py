"""Scalars against Python's own arithmetic, and the errors of what has no value."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthgauge.equation import evaluate, parse, parse_scalar, to_text
from depthgauge.equation.nodes import SCALARS, Negative, Number, Scalar, Symbol, walk
from depthgauge.equation.scalars import symbols
from depthgauge.errors import EquationError
from tests.equation.trees import scalars

SCOPE = {"L": 4.0, "depth": 2.0, "l": 1.0, "n": 64.0}


class _Floats(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(float(str(node.value))), node)


def by_python(text: str, scope: dict[str, float]) -> Any:
    """The slow, obvious reference: Python evaluates the canonical text, with floats only."""
    tree = _Floats().visit(ast.parse(text, mode="eval"))
    names = {name: getattr(math, name) for name in ("sqrt", "exp", "log", "pi")}
    # Python's give integers of any size; a scalar here is a float from the first.
    names |= {"floor": lambda x: float(math.floor(x)), "ceil": lambda x: float(math.ceil(x))}
    return eval(compile(tree, "", "eval"), {"abs": abs, "min": min, "max": max} | names | scope)


@settings(max_examples=500)
@given(scalars(), st.sampled_from([SCOPE, {"L": 1.0, "depth": 0.5, "l": 3.0, "n": 0.0}]))
def test_the_value_is_the_one_python_computes(scalar: Scalar, scope: dict[str, float]) -> None:
    try:
        expected = by_python(to_text(scalar), scope)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        expected = None  # TypeError: a function of a complex number
    try:
        found = evaluate(scalar, scope)
    except EquationError:
        # Python lets an infinity or a complex number pass inside: exp(-(1e300*1e300)) is 0.
        assert expected is None or isinstance(expected, complex) or _passes_infinity(scalar, scope)
        return
    assert isinstance(found, float)
    assert math.isfinite(found)
    assert found == expected


def _passes_infinity(scalar: Scalar, scope: dict[str, float]) -> bool:
    for part in walk(scalar):
        assert isinstance(part, SCALARS)
        try:
            value = by_python(to_text(part), scope)
        except (ValueError, ZeroDivisionError, OverflowError, TypeError):
            return True
        if isinstance(value, complex) or not math.isfinite(value):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/sqrt(L)", 0.5),
        ("(2*depth)**-0.25", 2**-0.5),
        ("-2**2", -4.0),
        ("(-2)**2", 4.0),
        ("2**3**2", 512.0),
        ("min(l, n, 0.5) + max(l, L)", 4.5),
        ("abs(-3) - log(exp(2))", 1.0),
        ("2*pi", 2 * math.pi),
        ("L**(-1/(2*2 - 2))", 0.5),
    ],
)
def test_values(text: str, value: float) -> None:
    assert evaluate(parse_scalar(text), SCOPE) == pytest.approx(value, rel=1e-12)


def test_the_scope_may_hold_integers_and_its_own_pi() -> None:
    assert evaluate(parse_scalar("L/2"), {"L": 3}) == 1.5
    assert evaluate(Symbol("pi"), {"pi": 3.0}) == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sqrt(-1)", "sqrt(-1) is not a real number: sqrt takes a number >= 0"),
        (
            "1 + sqrt(l - L)",
            "sqrt(l - L) with L = 4, l = 1 is not a real number: sqrt takes a number >= 0",
        ),
        ("log(0)", "log(0) is not a real number: log takes a number > 0"),
        ("1/(L - 4)", "1/(L - 4) with L = 4 is not a real number: the divisor is zero"),
        (
            "(-8)**(1/3)",
            "(-8)**(1/3) is not a real number: "
            "a negative base takes a whole exponent, and zero a positive one",
        ),
        (
            "0**-1",
            "0**-1 is not a real number: "
            "a negative base takes a whole exponent, and zero a positive one",
        ),
        ("9**9**9**9", "9**9**9 is too large: it is beyond 1.8e308"),
        ("1 - exp(1000)", "exp(1000) is too large: it is beyond 1.8e308"),
        ("1e300*n**10", "1e+300*n**10 with n = 64 is too large: it is beyond 1.8e308"),
    ],
)
def test_what_has_no_value_names_the_expression_and_the_values(text: str, message: str) -> None:
    with pytest.raises(EquationError) as caught:
        evaluate(parse_scalar(text), SCOPE)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("scalar", "scope", "message"),
    [
        (Symbol("L"), {}, "the scalar 'L' has no value here"),
        (
            Symbol("alpha"),
            {"L": 1.0, "n": 2.0},
            "the scalar 'alpha' has no value here: values are known for L, n",
        ),
        (
            Symbol("alpa"),
            {"alpha": 1.0},
            "the scalar 'alpa' has no value here (did you mean 'alpha'?)",
        ),
        (Symbol("L"), {"L": math.nan}, "L is nan: a scalar is a finite number"),
        (Negative(Symbol("L")), {"L": 10**400}, "L is inf: a scalar is a finite number"),
        (Number(math.inf), {}, "inf is inf: a scalar is a finite number"),
    ],
)
def test_a_symbol_needs_a_finite_value(
    scalar: Scalar, scope: dict[str, float], message: str
) -> None:
    with pytest.raises(EquationError) as caught:
        evaluate(scalar, scope)
    assert str(caught.value) == message


def test_symbols_are_the_free_names_of_a_scalar() -> None:
    assert symbols(parse_scalar("a/sqrt(2*L) + max(1, -n)", names=["a"])) == {"a", "L", "n"}
    assert symbols(parse_scalar("2**0.5")) == set()
    assert symbols(parse("h = W(h, out=4*n, init='normal(1/L)')")) == {"n", "L"}
