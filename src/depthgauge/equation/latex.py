r"""``to_latex``: a tree as mathematics for a paper or a notebook, inside a math environment.

    h \leftarrow h + \frac{1}{\sqrt{L}}\, W_2\,\mathrm{gelu}\!\left(W_1\,\mathrm{RMSNorm}(h)\right)

It shows the structure: what is computed from what, with which factor. Options (slopes, epsilons,
initialisers, widths) are not shown; the canonical text has them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias, assert_never

from depthgauge.equation.functions import MINUS_ONE
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
    Product,
    Scalar,
    Scale,
    State,
    Statement,
    Symbol,
    Update,
    Value,
)
from depthgauge.equation.text import number_text
from depthgauge.errors import expect

__all__ = ["to_latex"]

#: How tightly a formula holds together, loosest first. Unlike in the text, a sign covers a whole
#: term (``-a b`` is minus the product), which is the same number.
SUM, SIGNED, TERM, POWER, ATOM = range(5)

Formula: TypeAlias = tuple[str, int]

_NAMES: Final = {
    "layernorm": r"\mathrm{LayerNorm}",
    "rmsnorm": r"\mathrm{RMSNorm}",
    "batchnorm": r"\mathrm{BatchNorm}",
    "groupnorm": r"\mathrm{GroupNorm}",
    "scalenorm": r"\mathrm{ScaleNorm}",
    "dyt": r"\mathrm{DyT}",
    "derf": r"\mathrm{Derf}",
    "tanh": r"\tanh",
    "identity": r"\mathrm{id}",
    "leaky_relu": r"\mathrm{leaky\,relu}",
}
#: What LaTeX reads as something else in text; two hyphens would be one dash.
_SPECIAL: Final = str.maketrans(
    {char: f"\\{char}" for char in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"-": "{-}"}
)
# fmt: off
_GREEK: Final = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi",
    "omega",
))
# fmt: on


def to_latex(node: Block | Statement | Value | Scalar) -> str:
    """The formula of a block, a statement, a value or a scalar."""
    expect("node", node, Block | Statement | Value | Scalar, "a block of parse(), or a part of one")
    match node:
        case Block((only,)):
            return to_latex(only)
        case Block(statements):
            lines = " \\\\\n".join(_statement(statement, "&") for statement in statements)
            return f"\\begin{{aligned}}\n{lines}\n\\end{{aligned}}"
        case Let() | Define() | Update():
            return _statement(node, "")
        case Number() | Symbol() | Negative() | Arithmetic() | Function():
            return _scalar(node)[0]
        case _:
            return _value(node)[0]


def _statement(statement: Statement, align: str) -> str:
    match statement:
        case Update(value):
            return rf"h {align}\leftarrow {to_latex(value)}"
        case Let(name, bound):
            return f"{_name(name)} {align}= {to_latex(bound)}"
        case Define(name, parameters, body):
            return f"{_name(name)}({', '.join(map(_name, parameters))}) {align}= {to_latex(body)}"
    assert_never(statement)


def _name(name: str) -> str:
    r"""``W1`` is ``W_1``, ``alpha`` is ``\alpha``, ``W_up`` is ``W_{\mathrm{up}}``."""
    if name == "l":
        return r"\ell"
    words = [word for word in re.split(r"_|(?<=[^\W\d])(?=\d+\Z)", name) if word]
    if not words:  # only underscores
        return r"\mathrm{" + name.replace("_", r"\_") + "}"
    head, *below = [_word(word) for word in words]
    subscript = ", ".join(below)
    if not subscript:
        return head
    return f"{head}_{subscript}" if len(subscript) == 1 else f"{head}_{{{subscript}}}"


def _word(word: str) -> str:
    if word in _GREEK:
        return f"\\{word}"
    return word if len(word) == 1 or word.isdigit() else f"\\mathrm{{{word}}}"


def _bracket(formula: str) -> str:
    return rf"\left({formula}\right)"


def _fit(written: Formula, least: int) -> str:
    formula, level = written
    return formula if level >= least else _bracket(formula)


def _sum(left: Formula, right: Formula) -> Formula:
    """A right operand that begins with a sign brings its minus along."""
    formula, level = right
    if level == SIGNED:
        return f"{_fit(left, SUM)} - {formula[1:]}", SUM
    return f"{_fit(left, SUM)} + {_fit(right, TERM)}", SUM


def _product(left: Formula, right: Formula, sign: str) -> Formula:
    # A factor with a sign needs no bracket in front, but then the whole has that sign.
    level = SIGNED if left[1] == SIGNED else TERM
    return f"{_fit(left, SIGNED)}{sign}{_fit(right, POWER)}", level


def _negative(of: Formula) -> Formula:
    return "-" + _fit(of, TERM), SIGNED


# ------------------------------------------------------------------------------- scalars


def _scalar(scalar: Scalar) -> Formula:
    match scalar:
        case Number(number):
            return _number(number)
        case Symbol(name):
            return _name(name), ATOM
        case Negative(of):
            return _negative(_scalar(of))
        case Arithmetic(op, left, right):
            return _arithmetic(op, _scalar(left), _scalar(right))
        case Function("sqrt", (of,)):
            return rf"\sqrt{{{to_latex(of)}}}", ATOM
        case Function("abs", (of,)):
            return rf"\left|{to_latex(of)}\right|", ATOM
        case Function("floor" | "ceil" as name, (of,)):
            return rf"\left\l{name} {to_latex(of)} \right\r{name}", ATOM
        case Function(name, arguments):
            return _applied(f"\\{name}", arguments), POWER
    assert_never(scalar)


def _number(number: float) -> Formula:
    if number < 0:
        return _negative(_number(-number))
    mantissa, _, exponent = number_text(number).partition("e")
    if not exponent:
        return mantissa, ATOM
    power = f"10^{{{int(exponent)}}}"
    return (power, POWER) if mantissa == "1" else (rf"{mantissa} \cdot {power}", TERM)


def _arithmetic(op: str, left: Formula, right: Formula) -> Formula:
    match op:
        case "+":
            return _sum(left, right)
        case "-":
            return f"{_fit(left, SUM)} - {_fit(right, TERM)}", SUM
        case "*":
            # Two numbers side by side would be one number.
            return _product(left, right, r" \cdot " if right[0][:1].isdigit() else r"\,")
        case "/":
            return rf"\frac{{{left[0]}}}{{{right[0]}}}", POWER
        case _:
            assert op == "**"
            return f"{_fit(left, ATOM)}^{{{right[0]}}}", POWER


# -------------------------------------------------------------------------------- values


def _value(value: Value) -> Formula:
    match value:
        case State():
            return "h", ATOM
        case Initial():
            return "h_0", ATOM
        case Local(name):
            return _name(name), ATOM
        case Constant(scalar):
            return _scalar(scalar)
        case Add(left, right):
            return _sum(_value(left), _value(right))
        case Scale(factor, of) if factor == MINUS_ONE:
            return _negative(_value(of))
        case Scale(factor, of):
            return _product(_scalar(factor), _value(of), r"\, ")
        case Product(left, right):
            return _product(_value(left), _value(right), r" \odot ")
        case LearnedScalar(initial):
            return _applied(r"\mathrm{scalar}", [initial]), POWER
        case LearnedGain(initial):
            return _applied(r"\mathrm{gain}", [initial]), POWER
        case Linear(name, of):
            inner = _value(of)
            if inner[1] >= POWER:
                return rf"{_name(name)}\,{inner[0]}", POWER
            return _applied(_name(name), [of]), POWER
        case Convolution(kernel, of, name=name):
            mark = f"{kernel}, {_name(name)}" if name else str(kernel)
            return _applied(rf"\mathrm{{Conv}}_{{{mark}}}", [of]), POWER
        case Attention(of, name=name):
            mark = f"_{{{_name(name)}}}" if name else ""
            return _applied(rf"\mathrm{{Attention}}{mark}", [of]), POWER
        case Activation(kind, of) | Norm(kind, of):
            return _applied(_NAMES.get(kind, rf"\mathrm{{{kind}}}"), [of]), POWER
        case Dropout(of):
            return _applied(r"\mathrm{dropout}", [of]), POWER
        case Call(name, arguments):
            return _applied(_name(name), arguments), POWER
        case Opaque(name, arguments):
            mark = rf"\mathrm{{opaque}}_{{\text{{{name.translate(_SPECIAL)}}}}}"
            return _applied(mark, arguments) if arguments else mark, POWER
    assert_never(value)


def _applied(name: str, arguments: Sequence[Value | Scalar]) -> str:
    """``name(x)``; brackets grow with what is larger than a letter or a number."""
    formulas = [to_latex(argument) for argument in arguments]
    leaves = (State, Initial, Local, Number, Symbol)
    if all(isinstance(argument, leaves) for argument in arguments):
        return f"{name}({', '.join(formulas)})"
    return rf"{name}\!\left({', '.join(formulas)}\right)"
