"""``to_mathml``: a tree as mathematics that a browser draws by itself, no script and no network.

    <math display="block"><mi>h</mi><mo>←</mo> ... </math>

It shows what ``to_latex`` shows, the structure, with the same brackets: options (slopes, epsilons,
initialisers, widths) are left to the canonical text. Names become text with ``& < >`` escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple, assert_never

from depthgauge.equation.folded import Folded, Repeated
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

__all__ = ["folded_mathml", "to_mathml"]

#: How tightly a formula holds together, loosest first, as in LaTeX: a sign covers a whole term.
SUM, SIGNED, TERM, POWER, ATOM = range(5)


class Formula(NamedTuple):
    """Elements and how tightly they hold; ``body`` of a ``SIGNED`` one stands without its minus,
    so that a sum may take the minus as its own."""

    body: str
    level: int

    def __str__(self) -> str:
        return f"<mrow>{_PREFIX}{self.body}</mrow>" if self.level == SIGNED else self.body


_NAMES: Final = {
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "batchnorm": "BatchNorm",
    "groupnorm": "GroupNorm",
    "scalenorm": "ScaleNorm",
    "dyt": "DyT",
    "derf": "Derf",
    "identity": "id",
    "leaky_relu": "leaky relu",
}
# fmt: off
_GREEK: Final = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ",
    "eta": "η", "theta": "θ", "iota": "ι", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν",
    "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "upsilon": "υ", "phi": "φ",
    "chi": "χ", "psi": "ψ", "omega": "ω",
}
# fmt: on
_BRACKETS: Final = {"abs": "||", "floor": "⌊⌋", "ceil": "⌈⌉"}
_THIN: Final = '<mspace width="0.17em"/>'
_MINUS: Final = "<mo>−</mo>"
_PREFIX: Final = '<mo form="prefix">−</mo>'
_APPLY: Final = "<mo>\u2061</mo>"


def to_mathml(node: Block | Statement | Value | Scalar) -> str:
    """One ``<math>`` element for a block, a statement, a value or a scalar; several statements
    are the rows of a table, aligned at their sign."""
    match node:
        case Block():
            inside = _block(node)
        case Let() | Define() | Update():
            inside = _row(_statement(node))
        case _:
            inside = _formula(node)
    return f'<math display="block">{inside}</math>'


def folded_mathml(streams: Sequence[Folded]) -> str:
    """One ``<math>`` element for the streams that a run of a module shows, a row for each part:
    its name, how often it stands there, and the block in brackets."""
    rows = []
    for stream in streams:
        if stream.name:
            rows.append(f"<mtext>{escape(stream.name)}</mtext>")
        rows += [_repeated(part) for part in stream.parts]
    if len(rows) == 1:
        return f'<math display="block">{rows[0]}</math>'
    cells = "".join(f'<mtr><mtd style="text-align:left">{row}</mtd></mtr>' for row in rows)
    return f'<math display="block"><mtable displaystyle="true">{cells}</mtable></math>'


def _repeated(part: Repeated) -> str:
    if part.times == 1:
        return _block(part.block)
    fence = '<mo fence="true" stretchy="true">'
    times = f"<mn>{part.times}</mn><mo>×</mo>"
    return _row((times, f"{fence}[</mo>", _block(part.block), f"{fence}]</mo>"))


def _block(block: Block) -> str:
    if len(block.statements) == 1:
        return _row(_statement(block.statements[0]))
    rows = "".join(_table_row(_statement(statement)) for statement in block.statements)
    return f'<mtable displaystyle="true">{rows}</mtable>'


def _statement(statement: Statement) -> tuple[str, str, str]:
    """What stands left of the sign, the sign, what stands right of it."""
    match statement:
        case Update(value):
            return "<mi>h</mi>", "<mo>←</mo>", _formula(value)
        case Let(name, bound):
            return _name(name), "<mo>=</mo>", _formula(bound)
        case Define(name, parameters, body):
            head = _call(_name(name), [_name(parameter) for parameter in parameters])
            return head, "<mo>=</mo>", _formula(body)
    assert_never(statement)


def _table_row(parts: tuple[str, str, str]) -> str:
    left, sign, right = parts
    aligned = f'<mtd style="text-align:right">{left}</mtd>'
    return f'<mtr>{aligned}<mtd style="text-align:left">{_row((sign, right))}</mtd></mtr>'


def _row(parts: Iterable[str]) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def _formula(node: Value | Scalar) -> str:
    match node:
        case Number() | Symbol() | Negative() | Arithmetic() | Function():
            return str(_scalar(node))
        case _:
            return str(_value(node))


def _name(name: str) -> str:
    """``W1`` is W with the subscript 1, ``alpha`` is α, ``W_up`` is W with the subscript up."""
    if name == "l":
        return "<mi>ℓ</mi>"
    words = [word for word in re.split(r"_|(?<=[^\W\d])(?=\d+\Z)", name) if word]
    if not words:  # only underscores
        return _word(name)
    head, *below = map(_word, words)
    if not below:
        return head
    return f"<msub>{head}{_row(_separated(below)) if len(below) > 1 else below[0]}</msub>"


def _word(word: str) -> str:
    """A letter is slanted and a longer word upright, which is what a browser does with ``mi``."""
    tag = "mn" if word.isdigit() else "mi"
    return f"<{tag}>{escape(_GREEK.get(word, word))}</{tag}>"


def _upright(word: str) -> str:
    return f"<mtext>{escape(word)}</mtext>" if " " in word else f"<mi>{escape(word)}</mi>"


def _separated(formulas: Iterable[str]) -> list[str]:
    parts: list[str] = []
    for formula in formulas:
        parts += ["<mo>,</mo>", formula] if parts else [formula]
    return parts


def _bracket(formula: str, left: str = "(", right: str = ")") -> str:
    # Said in words that they are brackets: alone, a bar would be an operator like any other.
    opened = f'<mo form="prefix" fence="true" stretchy="true">{left}</mo>'
    closed = f'<mo form="postfix" fence="true" stretchy="true">{right}</mo>'
    return _row((opened, formula, closed))


def _fit(written: Formula, least: int) -> str:
    return str(written) if written.level >= least else _bracket(str(written))


def _call(name: str, arguments: Sequence[str]) -> str:
    return _row((name, _APPLY, _bracket(_row(_separated(arguments)))))


def _applied(name: str, arguments: Sequence[Value | Scalar]) -> Formula:
    return Formula(_call(name, [_formula(argument) for argument in arguments]), POWER)


def _sum(left: Formula, right: Formula) -> Formula:
    """A right operand that begins with a sign brings its minus along."""
    if right.level == SIGNED:
        return Formula(_row((_fit(left, SUM), _MINUS, right.body)), SUM)
    return Formula(_row((_fit(left, SUM), "<mo>+</mo>", _fit(right, TERM))), SUM)


def _negative(of: Formula) -> Formula:
    return Formula(_fit(of, TERM), SIGNED)


def _product(left: Formula, right: Formula, sign: str) -> Formula:
    # A factor with a sign needs no bracket in front, but then the whole has that sign.
    if left.level == SIGNED:
        return Formula(_row((left.body, sign, _fit(right, POWER))), SIGNED)
    return Formula(_row((_fit(left, TERM), sign, _fit(right, POWER))), TERM)


# ------------------------------------------------------------------------------- scalars


def _scalar(scalar: Scalar) -> Formula:
    match scalar:
        case Number(number):
            return _number(number)
        case Symbol(name):
            return Formula(_name(name), ATOM)
        case Negative(of):
            return _negative(_scalar(of))
        case Arithmetic(op, left, right):
            return _arithmetic(op, _scalar(left), _scalar(right))
        case Function("sqrt", (of,)):
            return Formula(f"<msqrt>{_formula(of)}</msqrt>", ATOM)
        case Function("abs" | "floor" | "ceil" as name, (of,)):
            return Formula(_bracket(_formula(of), *_BRACKETS[name]), ATOM)
        case Function(name, arguments):
            return _applied(_upright(name), arguments)
    assert_never(scalar)


def _number(number: float) -> Formula:
    if number < 0:
        return _negative(_number(-number))
    mantissa, _, exponent = number_text(number).partition("e")
    if not exponent:
        return Formula(f"<mn>{mantissa}</mn>", ATOM)
    raised = _number(float(int(exponent)))
    power = f"<msup><mn>10</mn>{raised}</msup>"
    if mantissa == "1":
        return Formula(power, POWER)
    return Formula(_row((f"<mn>{mantissa}</mn>", "<mo>·</mo>", power)), TERM)


def _arithmetic(op: str, left: Formula, right: Formula) -> Formula:
    match op:
        case "+":
            return _sum(left, right)
        case "-":
            return Formula(_row((_fit(left, SUM), _MINUS, _fit(right, TERM))), SUM)
        case "*":
            # Two numbers side by side would be one number.
            digit = re.match(r"(<\w+>)*<mn>", right.body)
            return _product(left, right, "<mo>·</mo>" if digit else _THIN)
        case "/":
            return Formula(f"<mfrac>{left}{right}</mfrac>", POWER)
        case _:
            assert op == "**"
            return Formula(f"<msup>{_fit(left, ATOM)}{right}</msup>", POWER)


# -------------------------------------------------------------------------------- values


def _value(value: Value) -> Formula:
    match value:
        case State():
            return Formula("<mi>h</mi>", ATOM)
        case Initial():
            return Formula("<msub><mi>h</mi><mn>0</mn></msub>", ATOM)
        case Local(name):
            return Formula(_name(name), ATOM)
        case Constant(scalar):
            return _scalar(scalar)
        case Add(left, right):
            return _sum(_value(left), _value(right))
        case Scale(factor, of) if factor == MINUS_ONE:
            return _negative(_value(of))
        case Scale(factor, of):
            return _product(_scalar(factor), _value(of), _THIN)
        case Product(left, right):
            return _product(_value(left), _value(right), "<mo>⊙</mo>")
        case LearnedScalar(initial):
            return _applied(_upright("scalar"), [initial])
        case LearnedGain(initial):
            return _applied(_upright("gain"), [initial])
        case Linear(name, of):
            inner = _value(of)
            if inner.level >= POWER:
                return Formula(_row((_name(name), _THIN, inner.body)), POWER)
            return _applied(_name(name), [of])
        case Convolution(kernel, of, name=name):
            marks = [f"<mn>{kernel}</mn>", *([_name(name)] if name else [])]
            return _applied(f"<msub><mi>Conv</mi>{_row(_separated(marks))}</msub>", [of])
        case Attention(of, name=name):
            mixer = "<mi>Attention</mi>"
            return _applied(f"<msub>{mixer}{_name(name)}</msub>" if name else mixer, [of])
        case Activation(kind, of) | Norm(kind, of):
            return _applied(_upright(_NAMES.get(kind, kind)), [of])
        case Dropout(of):
            return _applied("<mi>dropout</mi>", [of])
        case Call(name, arguments):
            return _applied(_name(name), arguments)
        case Opaque(name, arguments):
            mark = f"<msub><mi>opaque</mi><mtext>{escape(name)}</mtext></msub>"
            return _applied(mark, arguments) if arguments else Formula(mark, POWER)
    assert_never(value)
