"""From text to Python syntax trees, one expression at a time; nothing is ever evaluated.

The text is cut into statements (at ``;`` and at line ends outside brackets and strings), each
into what stands before and after its ``=``. Comments and the line ends inside brackets become
spaces, one for one: an offset in a piece is then an offset in the text as typed, and that is
where the caret goes.

What Python would read and this language would not (``2j``, ``+=``, control characters,
backslashes other than before a quote or a backslash in a string) is turned away here, because
Python warns about some of it while it reads.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

from depthgauge.errors import EquationError

__all__ = [
    "CHARACTERS",
    "NESTING",
    "Sentence",
    "Side",
    "place",
    "python",
    "sentences",
    "single",
    "too_deep",
]

#: The longest text, and the most operations inside one another. Both are far above any block
#: that was ever published and far below what Python's own reader can take.
CHARACTERS: Final = 4_000
NESTING: Final = 60

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\f\v]+)
      | (?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<quote>["'])
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?P<junk>[\w.]*)
      | (?P<word>[^\W\d]\w*)
      | (?P<open>[(\[{])
      | (?P<close>[)\]}])
      | (?P<end>[;\n])
      | (?P<compare>==|!=|<=|>=|:=)
      | (?P<augmented>[-+*/%@&|^<>]{1,2}=)
      | (?P<equals>=)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_UNREADABLE: Final = re.compile("[\\x00-\\x08\\x0e-\\x1f\\x7f\ud800-\udfff\\\\]")
_ESCAPED: Final = re.compile(r"""\\[\\"']""")
_CLOSES: Final = {"(": ")", "[": "]", "{": "}"}
_UNFINISHED: Final = re.compile(r"(\*\*|[-+*/])\s*\Z")


@dataclass(frozen=True, slots=True)
class Side:
    """A piece of an equation: ``code`` stands at offset ``start`` of ``text`` as typed."""

    text: str
    start: int
    code: str

    def error(self, message: str, at: int | ast.AST = 0) -> EquationError:
        """The error with its caret ``at`` a character of ``code``, or at a tree read from it."""
        offset = at if isinstance(at, int) else place(self, at)
        return EquationError(message, self.text, self.start + offset)

    def cut(self, first: int, last: int) -> Side:
        """The piece from ``first`` to ``last`` without the spaces around it."""
        code = self.code[first:last]
        lead = len(code) - len(code.lstrip(" "))
        return Side(self.text, self.start + first + lead, code.strip(" "))


@dataclass(frozen=True, slots=True)
class Sentence:
    """One statement: what stands after its ``=`` and, when it has one, before it."""

    value: Side
    target: Side | None = None


def sentences(raw: Side) -> list[Sentence]:
    """The statements of a text, in order; blank ones are left out."""
    if len(raw.code) > CHARACTERS:
        raise EquationError(
            f"the equation is {len(raw.code):,} characters long and the limit is {CHARACTERS:,}: "
            "bind what it repeats to a name (u = ...) or define it (F(x) = ...)"
        )
    found: list[Sentence] = []
    opened: list[tuple[str, int]] = []  # brackets and where they stand
    equals: list[int] = []
    code, begin = list(raw.code), 0
    for token in _TOKEN.finditer(raw.code + "\n"):
        kind, word, at = token.lastgroup, token[0], token.start()
        if kind in ("space", "comment"):
            code[at : token.end()] = " " * len(word)
        elif kind == "open":
            opened.append((word, at))
            if len(opened) > NESTING:
                raise too_deep(raw, at)
        elif kind == "close":
            if not opened:
                raise raw.error(f"this '{word}' closes nothing: remove it or open it before", at)
            bracket, where = opened.pop()
            if _CLOSES[bracket] != word:
                raise raw.error(f"the '{bracket}' is closed by '{word}'", where)
        elif kind == "equals" and not opened:
            equals.append(at)
        elif kind == "end":
            if opened and (word == ";" or at == len(raw.code)):
                bracket, where = opened[-1]
                raise raw.error(f"this '{bracket}' is never closed", where)
            if opened:
                code[at] = " "
                continue
            statement = Side(raw.text, raw.start, "".join(code)).cut(begin, at)
            if statement.code:
                found.append(
                    _sentence(statement, [e - statement.start + raw.start for e in equals])
                )
            begin, equals = at + 1, []
        else:
            _check_token(raw, token)
    return found


def single(raw: Side, what: str) -> Side:
    """The one expression that a text holds: a scalar or an initialiser."""
    found = sentences(raw)
    if not found:
        raise EquationError(f"{what} was expected and the text is empty")
    if found[0].target is not None:
        raise raw.error(
            f"{what} was expected, not an assignment", found[0].target.start - raw.start
        )
    if len(found) > 1:
        extra = found[1].target or found[1].value
        raise raw.error(
            f"one {what.split(' ', 1)[1]} was expected, not two", extra.start - raw.start
        )
    return found[0].value


def _sentence(statement: Side, equals: list[int]) -> Sentence:
    if not equals:
        return Sentence(statement)
    if len(equals) > 1:
        raise statement.error("one statement has one '=': write two statements", equals[1])
    target = statement.cut(0, equals[0])
    value = statement.cut(equals[0] + 1, len(statement.code))
    if not target.code:
        raise statement.error("nothing stands before this '='", equals[0])
    if not value.code:
        raise statement.error("nothing stands after this '='", equals[0])
    return Sentence(value, target)


def _check_token(raw: Side, token: re.Match[str]) -> None:
    """Turn away what Python would read and this language does not have."""
    word, at = token[0], token.start()
    if token["number"] and token["junk"]:
        product = token["junk"].isidentifier() and token["junk"][0] not in "_xXoObBjJ"
        advice = (
            f"write {token['number']}*{token['junk']} for a product"
            if product
            else "numbers look like 2, 0.5 or 1e-3"
        )
        raise raw.error(f"'{word}' is not a number: {advice}", at)
    if token["quote"]:
        raise raw.error(f"the string that {word} opens is never closed", at)
    if token["augmented"]:
        raise raw.error(f"the language has no '{word}': write h = h {word[:-1]} ...", at)
    if token["string"]:
        word = _ESCAPED.sub("  ", word)
    if unreadable := _UNREADABLE.search(word):
        name = "backslash" if unreadable[0] == "\\" else f"character U+{ord(unreadable[0]):04X}"
        raise raw.error(f"the language has no use for a {name}: remove it", at + unreadable.start())


# -------------------------------------------------------------------------- Python's reader


def python(side: Side) -> ast.expr:
    """The syntax tree of one expression; every way in which there is none is an EquationError."""
    try:
        tree = ast.parse(side.code, mode="eval").body
    except SyntaxError as error:
        if ending := _UNFINISHED.search(side.code):
            raise side.error(
                f"the expression ends with '{ending[1]}': finish it, or put the parts that stand "
                "on several lines in parentheses",
                ending.start(),
            ) from None
        at = min(max((error.offset or 1) - 1, 0), len(side.code))
        raise side.error(f"cannot be read as an equation: {error.msg}", at) from None
    except (RecursionError, MemoryError):
        raise too_deep(side) from None
    except ValueError as error:
        raise side.error(f"cannot be read as an equation: {error}") from None
    # Twice the limit, because what counts is the tree made from this one, and ``--2`` or
    # ``h/2/2`` make a flatter one. Without recursion, which is what the limit protects.
    level: list[ast.AST] = [tree]
    for _ in range(2 * NESTING):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise too_deep(side)
    return tree


def place(side: Side, node: ast.AST, *, end: bool = False) -> int:
    """Where a tree begins (or ends) in ``code``, in characters: Python counts bytes of UTF-8."""
    column: int = getattr(node, "end_col_offset" if end else "col_offset")
    return len(side.code.encode()[:column].decode())


def too_deep(side: Side, at: int = 0) -> EquationError:
    return side.error(
        f"the expression is nested deeper than {NESTING} operations: bind a part of it to a name "
        "(u = ...) before",
        at,
    )
