"""The options of calls, ``slope=0.1`` or ``init="he(gain=1)"``, read by the tables they stand in.

A table gives an option's default, and with its name the default says what the option takes. The
options that come back are always complete and in the table's order.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from depthgauge.equation.functions import ALIASES, AXES, CHOICES, INITS, ONE
from depthgauge.equation.nodes import Attention, Convolution, Init, Linear, Option, Scalar
from depthgauge.equation.split import Side, place, python, single
from depthgauge.errors import nearest

__all__ = ["WEIGHT_OPTIONS", "Table", "initialiser", "options"]

Table: TypeAlias = Mapping[str, "Option | Init"]


class ReadsScalars(Protocol):
    """What this file needs of the reader of expressions."""

    @property
    def side(self) -> Side: ...

    def scalar(self, node: ast.expr, what: str) -> Scalar: ...

    def within(self, side: Side) -> ReadsScalars:
        """A reader of another piece of text that knows the same names."""
        ...


def _defaults(layer: type[Linear | Convolution | Attention]) -> Table:
    return {
        f.name: f.default for f in dataclasses.fields(layer) if f.default is not dataclasses.MISSING
    }


#: The options of the layers with weights are the fields that have a default.
WEIGHT_OPTIONS: Final[Mapping[type[Linear | Convolution | Attention], Table]] = {
    layer: _defaults(layer) for layer in (Linear, Convolution, Attention)
}


def options(
    reader: ReadsScalars, owner: str, given: Sequence[ast.keyword], table: Table
) -> dict[str, Option | Init]:
    """Every option of ``table`` in its order: what was given, else the default."""
    found: dict[str, Option | Init] = {}
    for keyword in given:
        if keyword.arg is None:
            raise reader.side.error("'**' in a call is not part of the language", keyword)
        if keyword.arg not in table:
            known = f"it takes {', '.join(table)}" if table else "it takes none"
            raise reader.side.error(f"{owner} has no option '{keyword.arg}': {known}", keyword)
        if keyword.arg in found:
            raise reader.side.error(f"{owner} has '{keyword.arg}' twice: keep one", keyword)
        found[keyword.arg] = _option(reader, owner, keyword.arg, table[keyword.arg], keyword.value)
    return {name: found.get(name, default) for name, default in table.items()}


def _option(
    reader: ReadsScalars, owner: str, name: str, default: Option | Init, node: ast.expr
) -> Option | Init:
    what, side = f"the option {name} of {owner}", reader.side
    literal = node.value if isinstance(node, ast.Constant) else ...
    if literal is None and default is None:
        return None
    if name == "init":
        return _init_string(reader, what, node)
    if name == "axis":
        return _axis(reader, what, node)
    if name == "name":
        if not isinstance(literal, str) or not literal.isidentifier() or literal == "W":
            raise side.error(f'{what} takes a name in quotes, such as name="C1"', node)
        return literal
    if name in CHOICES:
        if literal not in CHOICES[name]:
            words = " or ".join(f'"{choice}"' for choice in CHOICES[name])
            raise side.error(f"{what} takes {words}", node)
        return str(literal)
    if isinstance(default, bool):
        if not isinstance(literal, bool):
            raise side.error(f"{what} takes True or False", node)
        return literal
    if name == "gain" and default is None and isinstance(literal, bool):
        return ONE if literal else None
    return reader.scalar(node, what)


def _axis(reader: ReadsScalars, what: str, node: ast.expr) -> str:
    text = node.value if isinstance(node, ast.Constant) else None
    words = text.split("+") if isinstance(text, str) else []
    if not words or not set(words) <= set(AXES):
        raise reader.side.error(
            f'{what} takes names of axes joined by "+", out of {", ".join(AXES)}', node
        )
    if len(set(words)) < len(words):
        raise reader.side.error(f"{what} names an axis twice: keep one", node)
    return "+".join(axis for axis in AXES if axis in words)


def _init_string(reader: ReadsScalars, what: str, node: ast.expr) -> Init:
    side = reader.side
    text = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(text, str):
        raise side.error(f'{what} takes an initialiser in quotes, such as init="he"', node)
    start = place(side, node) + 1
    # A caret inside the string is right only if the string stands there as it is: no "he" "re".
    if side.code[start : place(side, node, end=True) - 1] != text:
        raise side.error(f"{what} takes one string in plain quotes", node)
    inside = single(Side(side.text, side.start + start, text), "an initialiser")
    return initialiser(reader.within(inside))


def initialiser(reader: ReadsScalars) -> Init:
    """``he`` or ``he(mode='fan_out', gain=1)``: the whole of the reader's text."""
    side = reader.side
    node = python(side)
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name):
        raise side.error("an initialiser is a name, perhaps with options: he(gain=1)", node)
    kind = ALIASES.get(name.id, name.id)
    if kind not in INITS:
        near = nearest(name.id, [*INITS, *(a for a, of in ALIASES.items() if of in INITS)])
        known = near or f": there are {', '.join(INITS)}"
        raise side.error(f"unknown initialiser '{name.id}'{known}", name)
    table = INITS[kind]
    given = list(node.keywords) if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Call) and node.args:
        first = node.args[0]
        if len(node.args) > 1 or not table:
            takes = f"option '{next(iter(table))}' without its name" if table else "no options"
            wrong = node.args[1] if table else first
            raise side.error(f"the initialiser {kind} takes {takes}", wrong)
        arg = ast.keyword(arg=next(iter(table)), value=first)
        given.insert(0, ast.copy_location(arg, first))
    found = options(reader, f"the initialiser {kind}", given, table)
    return Init(kind, tuple(_plain(found).items()))


def _plain(found: Mapping[str, Option | Init]) -> dict[str, Option]:
    """The same options, none of which is an Init: only a weight layer's table has ``init``."""
    plain = {name: option for name, option in found.items() if not isinstance(option, Init)}
    assert len(plain) == len(found)
    return plain
