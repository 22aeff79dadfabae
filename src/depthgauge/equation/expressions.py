"""Python syntax trees become scalars and values, in the canonical form that ``nodes`` describes."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, final

from depthgauge.equation.functions import (
    ACTIVATIONS,
    ALIASES,
    INITIAL,
    MINUS_ONE,
    NORMS,
    ONE,
    OPAQUE_NAME,
    SCALAR_FUNCTIONS,
    STATE,
    SYMBOLS,
    ZERO,
)
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Arithmetic,
    Attention,
    Call,
    Constant,
    Convolution,
    Dropout,
    Function,
    Initial,
    LearnedGain,
    LearnedScalar,
    Linear,
    Local,
    Negative,
    Norm,
    Number,
    Opaque,
    Option,
    Product,
    Scalar,
    Scale,
    State,
    Symbol,
    Value,
)
from depthgauge.equation.options import WEIGHT_OPTIONS, Table, options
from depthgauge.equation.split import Side, place
from depthgauge.errors import EquationError, nearest

__all__ = ["Reader", "Scope", "is_word", "negated"]

Weight: TypeAlias = Linear | Convolution | Attention
Operator: TypeAlias = Literal["+", "-", "*", "/", "**"]

_LINEAR: Final = re.compile(r"W([0-9]+|_\w+)?")
_CONVOLUTION: Final = re.compile(r"conv([0-9]*)")
_ALIASES: Final = {a: of for a, of in ALIASES.items() if of in ACTIVATIONS or of in NORMS}
_FUNCTIONS: Final = (
    *ACTIVATIONS,
    *NORMS,
    *_ALIASES,
    *SCALAR_FUNCTIONS,
    *("W", "W1", "W2", "conv1", "conv3", "attention", "dropout", "scalar", "gain", "opaque"),
)


def is_word(name: str) -> bool:
    """Whether the language itself means something by this name, so that nobody can assign it."""
    layer = _LINEAR.fullmatch(name) or _CONVOLUTION.fullmatch(name)
    return bool(layer) or name in (INITIAL, *SYMBOLS, *_FUNCTIONS)


@dataclass(slots=True)
class Scope:
    """The names known at one place of an equation."""

    names: dict[str, Literal["scalar", "value"]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    #: The number of parameters of each definition, and the one that is being read.
    functions: dict[str, int] = field(default_factory=dict)
    defining: str = ""
    #: Each named weight as it first stood, on ``h``; the same object in every scope of an equation.
    weights: dict[str, Weight] = field(default_factory=dict)
    #: Scalars given beside the equation and not used so far; shared in the same way.
    unused: set[str] = field(default_factory=set)

    def inside(self, name: str, parameters: tuple[str, ...]) -> Scope:
        """The scope of a definition's body."""
        return dataclasses.replace(self, parameters=parameters, defining=name)


# What Python has and the language has not, in plain words.
_ABSENT: Final[Mapping[type[ast.AST], str]] = {
    ast.Attribute: "an attribute (a name after a dot)",
    ast.Subscript: "an index in square brackets",
    ast.Compare: "a comparison",
    ast.BoolOp: "'and' or 'or'",
    ast.IfExp: "a condition ('if' and 'else')",
    ast.Lambda: "a lambda",
    ast.NamedExpr: "an assignment with ':='",
    ast.JoinedStr: "a formatted string",
    ast.Starred: "a '*' in front of an argument",
    ast.List: "a list",
    ast.Tuple: "a tuple (a comma outside a call)",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Await: "'await'",
    ast.Yield: "'yield'",
    ast.YieldFrom: "'yield'",
    ast.Not: "'not'",
    ast.Invert: "the operator '~'",
}
_HAS: Final = "which has numbers, names, + - * / ** and calls"

_OPERATORS: Final[Mapping[type[ast.operator], Operator]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
}
_ABSENT_OPERATORS: Final[Mapping[type[ast.operator], tuple[str, str]]] = {
    ast.BitXor: ("^", ": write ** for a power"),
    ast.MatMult: ("@", ": write W1(h) for a weight layer"),
    ast.FloorDiv: ("//", ": write / for a quotient of scalars"),
    ast.Mod: ("%", f", {_HAS}"),
    ast.BitAnd: ("&", f", {_HAS}"),
    ast.BitOr: ("|", f", {_HAS}"),
    ast.LShift: ("<<", f", {_HAS}"),
    ast.RShift: (">>", f", {_HAS}"),
}


def negated(scalar: Scalar) -> Scalar:
    """``-s``, folded when ``s`` is a literal; there is no negative zero."""
    return Number(-scalar.value or 0.0) if isinstance(scalar, Number) else Negative(scalar)


@final
class Reader:
    """Reads the trees of one side of a statement, knowing the names of one scope."""

    def __init__(self, side: Side, scope: Scope) -> None:
        self.side, self.scope = side, scope

    def within(self, side: Side) -> Reader:
        return Reader(side, self.scope)

    def scalar(self, node: ast.expr, what: str) -> Scalar:
        found = self.read(node)
        if not isinstance(found, SCALARS):
            raise self.side.error(
                f"{what} takes a scalar such as 1/sqrt(L), and this is a value "
                "(computed from the state or learned)",
                node,
            )
        return found

    def value(self, node: ast.expr, what: str) -> Value:
        found = self.read(node)
        if isinstance(found, SCALARS):
            raise self.side.error(f"{what} takes a value such as h, and this is a scalar", node)
        return found

    def read(self, node: ast.expr) -> Value | Scalar:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.read(operand)
            case ast.UnaryOp(ast.USub(), operand):
                found = self.read(operand)
                return negated(found) if isinstance(found, SCALARS) else Scale(MINUS_ONE, found)
            case ast.UnaryOp(op, _):
                raise self._absent(op, node)
            case ast.BinOp():
                return self._binary(node)
            case ast.Call():
                return self._call(node)
            case ast.Attribute(attr=attribute):
                name = place(self.side, node, end=True) - len(attribute)
                raise self._absent(node, name)
            case _:
                raise self._absent(node, node)

    def _absent(self, kind: ast.AST, at: int | ast.AST) -> EquationError:
        what = _ABSENT.get(type(kind), f"'{type(kind).__name__}'")
        return self.side.error(f"{what} is not part of the language, {_HAS}", at)

    # ------------------------------------------------------------------ numbers and names

    def _number(self, node: ast.Constant) -> Number:
        literal = node.value
        if isinstance(literal, bool) or not isinstance(literal, int | float):
            string = isinstance(literal, str)
            what = "a string" if string else "..." if literal is ... else str(literal)
            where = "strings stand only in options" if string else "a number or a name was expected"
            raise self.side.error(f"{what} cannot stand here: {where}", node)
        try:
            number = float(literal)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise self.side.error("this number is too large: the largest is about 1.8e308", node)
        return Number(number)

    def _name(self, node: ast.Name) -> Value | Scalar:
        name, scope = node.id, self.scope
        if name in scope.parameters:
            return Local(name)
        if name in scope.names:
            scope.unused.discard(name)
            return Symbol(name) if scope.names[name] == "scalar" else Local(name)
        if name in SYMBOLS:
            return Symbol(name)
        if name in (STATE, INITIAL):
            return State() if name == STATE else Initial()
        if name in scope.functions or is_word(name):
            raise self.side.error(f"'{name}' is a function: write {name}(...)", node)
        if name == scope.defining:
            raise self.side.error(f"the definition of '{name}' cannot use '{name}' itself", node)
        known = [STATE, INITIAL, *SYMBOLS, *scope.parameters, *scope.names, *scope.functions]
        near = nearest(name, [*known, *_FUNCTIONS])
        hint = f"declare it as a scalar ({name}=...) or bind it before"
        raise self.side.error(f"unknown name '{name}'{near}: {hint}", node)

    # -------------------------------------------------------------------------- operators

    def _binary(self, node: ast.BinOp) -> Value | Scalar:
        if type(node.op) in _ABSENT_OPERATORS:
            sign, advice = _ABSENT_OPERATORS[type(node.op)]
            raise self._at_operator(
                node, sign, f"the operator '{sign}' is not part of the language{advice}"
            )
        op, left, right = _OPERATORS[type(node.op)], self.read(node.left), self.read(node.right)
        if isinstance(left, SCALARS) and isinstance(right, SCALARS):
            return Arithmetic(op, left, right)
        if op == "+":
            return Add(_as_value(left), _as_value(right))
        if op == "-":
            minus = (
                Constant(negated(right)) if isinstance(right, SCALARS) else Scale(MINUS_ONE, right)
            )
            return Add(_as_value(left), minus)
        if op == "*" and isinstance(left, SCALARS):
            return Scale(left, _as_value(right))
        assert not isinstance(left, SCALARS) or op in ("/", "**")
        if op == "*" and not isinstance(right, SCALARS):
            return Product(_as_value(left), right)
        if op != "**" and not isinstance(left, SCALARS) and isinstance(right, SCALARS):
            return _scaled(left, op, right)
        raise self._at_operator(node, op, _no_operation(op, left))

    def _at_operator(self, node: ast.BinOp, sign: str, message: str) -> EquationError:
        # Between the operands stand only spaces, brackets and the operator.
        first = place(self.side, node.left, end=True)
        return self.side.error(message, self.side.code.find(sign, first))

    # ------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Value | Scalar:
        if not isinstance(node.func, ast.Name):
            if isinstance(node.func, ast.Attribute):
                self.read(node.func)
            raise self.side.error("only a name can be called, as in relu(h)", node.func)
        name = _ALIASES.get(node.func.id, node.func.id)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                raise self._absent(argument, argument)
        if name in self.scope.functions:
            return self._apply(name, node)
        if name in SCALAR_FUNCTIONS:
            return self._scalar_function(name, node)
        if name in _BUILD:
            return _BUILD[name](self, name, node)
        if _LINEAR.fullmatch(name):
            return self._weight(Linear(name, self._one(name, node)), name, name != "W", node)
        if kernel := _CONVOLUTION.fullmatch(name):
            return self._convolution(name, int(kernel[1] or 0), node)
        raise self._unknown_function(node.func)

    def _unknown_function(self, func: ast.Name) -> EquationError:
        name, scope = func.id, self.scope
        if name == scope.defining:
            return self.side.error(f"the definition of '{name}' cannot call '{name}' itself", func)
        if name in (*scope.parameters, *scope.names, *SYMBOLS, STATE, INITIAL):
            advice = f"write {name} * (...) for a product"
            return self.side.error(f"'{name}' is not a function: {advice}", func)
        near = nearest(name, [*_FUNCTIONS, *scope.functions])
        if name.startswith("W"):
            near = f": weight layers are W, W1 and W_name, so write W_{name[1:]}(...)"
        return self.side.error(
            f"unknown function '{name}'" + (near or f": define it before ({name}(x) = ...)"), func
        )

    def _apply(self, name: str, node: ast.Call) -> Call:
        if node.keywords:
            raise self.side.error(f"{name} takes no options: it is a definition", node.keywords[0])
        self._count(name, node, self.scope.functions[name], "value")
        return Call(name, tuple(self.value(argument, name) for argument in node.args))

    def _scalar_function(self, name: str, node: ast.Call) -> Function:
        if node.keywords:
            raise self.side.error(f"{name} has no options", node.keywords[0])
        arity = SCALAR_FUNCTIONS[name]
        if arity is None and len(node.args) < 2:
            raise self.side.error(f"{name} takes two or more scalars, not {len(node.args)}", node)
        if arity is not None:
            self._count(name, node, arity, "scalar")
        return Function(name, tuple(self.scalar(argument, name) for argument in node.args))

    def _count(self, name: str, node: ast.Call, wanted: int, what: str) -> None:
        if len(node.args) != wanted:
            plural = "" if wanted == 1 else "s"
            at = node.args[wanted] if len(node.args) > wanted else node
            raise self.side.error(f"{name} takes {wanted} {what}{plural}, not {len(node.args)}", at)

    def _one(self, name: str, node: ast.Call) -> Value:
        """The value that a layer works on: its only argument without a name."""
        if len(node.args) > 1:
            message = f"{name} takes one value; what follows has a name, such as bias=True"
            raise self.side.error(message, node.args[1])
        self._count(name, node, 1, "value")
        return self.value(node.args[0], name)

    def _options(self, name: str, node: ast.Call, table: Table) -> tuple[tuple[str, Option], ...]:
        found = options(self, name, node.keywords, table)
        return cast("tuple[tuple[str, Option], ...]", tuple(found.items()))

    def _activation(self, name: str, node: ast.Call) -> Activation:
        value = self._one(name, node)
        return Activation(name, value, self._options(name, node, ACTIVATIONS[name]))

    def _norm(self, name: str, node: ast.Call) -> Norm:
        return Norm(name, self._one(name, node), self._options(name, node, NORMS[name]))

    def _learned(self, name: str, node: ast.Call) -> LearnedScalar | LearnedGain:
        if node.keywords:
            raise self.side.error(f"{name} has no options", node.keywords[0])
        self._count(name, node, 1, "scalar")
        kind = LearnedScalar if name == "scalar" else LearnedGain
        return kind(self.scalar(node.args[0], name))

    def _dropout(self, name: str, node: ast.Call) -> Dropout:
        if len(node.args) not in (1, 2):
            raise self.side.error(f"{name} takes a value and p, as in dropout(h, p=0.1)", node)
        value = self.value(node.args[0], name)
        given = list(node.keywords)
        if len(node.args) == 2:
            arg = ast.keyword(arg="p", value=node.args[1])
            given.insert(0, ast.copy_location(arg, node.args[1]))
        p = options(self, name, given, {"p": ONE})["p"]
        if not given:
            raise self.side.error(f"{name} needs its probability, as in dropout(h, p=0.1)", node)
        if isinstance(p, Number) and not 0 <= p.value < 1:
            raise self.side.error("the option p of dropout is in [0, 1)", given[0].value)
        return Dropout(value, cast("Scalar", p))

    def _opaque(self, name: str, node: ast.Call) -> Opaque:
        first = node.args[0] if node.args else node
        label = first.value if isinstance(first, ast.Constant) else None
        if not isinstance(label, str):
            example = f'as in {name}("scan", h, m=2)'
            raise self.side.error(f"{name} takes its name in quotes first, {example}", first)
        if not label.isprintable() or not 1 <= len(label) <= OPAQUE_NAME:
            takes = f"1 to {OPAQUE_NAME} printable characters"
            raise self.side.error(f"the name of {name} is {takes}", first)
        arguments = tuple(self.value(argument, name) for argument in node.args[1:])
        m = options(self, name, node.keywords, {"m": ZERO})["m"]
        if not isinstance(m, Number) or m.value < 0 or not m.value.is_integer():
            message = f"the option m of {name} is a whole number of weight layers, as in m=2"
            raise self.side.error(message, node.keywords[0].value)
        return Opaque(label, arguments, m)

    def _attention(self, name: str, node: ast.Call) -> Weight:
        return self._weight(Attention(self._one(name, node)), name, True, node)

    def _convolution(self, name: str, kernel: int, node: ast.Call) -> Weight:
        if kernel % 2 == 0:
            raise self.side.error(f"{name} is not known: kernels are odd, as in conv3(h)", node)
        return self._weight(Convolution(kernel, self._one(name, node)), name, True, node)

    def _weight(self, layer: Weight, owner: str, named: bool, node: ast.Call) -> Weight:
        """The layer with its options, the same ones wherever its name stands."""
        given = options(self, owner, node.keywords, WEIGHT_OPTIONS[type(layer)])
        layer = dataclasses.replace(layer, **cast("dict[str, Any]", given))
        if named and layer.name:
            bare = dataclasses.replace(layer, value=State())
            if self.scope.weights.setdefault(layer.name, bare) != bare:
                raise self.side.error(
                    f"the weight '{layer.name}' stands before with other options: one name is one "
                    "tied weight, so give both the same options or another name",
                    node,
                )
        return layer


_BUILD: Final[Mapping[str, Callable[[Reader, str, ast.Call], Value]]] = {
    **dict.fromkeys(ACTIVATIONS, Reader._activation),
    **dict.fromkeys(NORMS, Reader._norm),
    "scalar": Reader._learned,
    "gain": Reader._learned,
    "dropout": Reader._dropout,
    "attention": Reader._attention,
    "opaque": Reader._opaque,
}


def _as_value(operand: Value | Scalar) -> Value:
    return Constant(operand) if isinstance(operand, SCALARS) else operand


def _scaled(value: Value, op: Literal["+", "-", "*", "/"], scalar: Scalar) -> Scale:
    """``x * s`` or ``x / s`` with the factor in front, one factor for a chain of them."""
    assert op in ("*", "/")
    if isinstance(value, Scale) and value.factor != MINUS_ONE:
        return Scale(Arithmetic(op, value.factor, scalar), value.value)
    return Scale(scalar if op == "*" else Arithmetic("/", ONE, scalar), value)


def _no_operation(op: Operator, left: Value | Scalar) -> str:
    if op == "**":
        return "values have no '**', only scalars have powers: write x * x for a square of a value"
    if isinstance(left, SCALARS):
        return "a scalar cannot be divided by a value: only values divided by scalars are known"
    return "a value cannot be divided by a value: write x * y for a gate, rmsnorm(x) to normalise"
