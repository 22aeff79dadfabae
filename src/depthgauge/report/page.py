"""The report of a record as one object: sections of text, badges, tables, formulas and figures.

Nothing here knows a terminal, HTML or Markdown; each of these is a reader of this object (see
``page_screen``, ``html`` and ``markdown``). Texts are as the record holds them, with what would
steer a terminal taken out; each reader escapes them for its own language.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from depthgauge.report.drawing import EffectFigure, Figure

__all__ = [
    "STATES",
    "Badge",
    "Formula",
    "Lines",
    "Paragraph",
    "Part",
    "Report",
    "Section",
    "State",
    "Table",
    "clean",
    "state_of",
    "state_words",
]

State: TypeAlias = Literal["pass", "warn", "fail", "not_measured"]

#: The four states, the worst first, and the mark that says one without a colour.
STATES: Final[dict[State, str]] = {"fail": "✗", "not_measured": "?", "warn": "!", "pass": "✓"}

#: They turn the direction in which the rest of a line is read.
_BIDI: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Control characters, halves of pairs, and line ends that only some readers know.
_STEERING: Final = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True)
class Badge:
    """A state with what is in it."""

    state: State
    label: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Lines:
    """Text whose lines stay as they are: an equation, a command."""

    text: str


@dataclass(frozen=True)
class Formula:
    """An equation, as text that parses back and as MathML."""

    text: str
    mathml: str


@dataclass(frozen=True)
class Table:
    """Rows of text under their columns; ``numbers`` says which columns are numbers.

    Cells are ready to be read: a number has its four digits, what is missing is ``-``. A
    ``folded`` one is shown when it is asked for, where the reader can fold.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[bool, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.title
        assert len(self.numbers) in (0, len(self.columns)), self.title

    def is_number(self, column: int) -> bool:
        return bool(self.numbers) and self.numbers[column]


Part: TypeAlias = Badge | Paragraph | Lines | Formula | Table | Figure | EffectFigure


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; ``anchor`` is its name in a link."""

    anchor: str
    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    """``title`` says what was commissioned; ``state`` and ``reason`` are those of the verdict."""

    title: str
    state: State
    reason: str
    sections: tuple[Section, ...]

    def figures(self) -> Iterator[Figure | EffectFigure]:
        """Every figure, in order."""
        for section in self.sections:
            for part in section.parts:
                if isinstance(part, Figure | EffectFigure):
                    yield part


def state_of(word: object) -> State:
    """One of the four; what is none of them was not measured, which is never a pass."""
    for state in STATES:
        if word == state:
            return state
    return "not_measured"


def state_words(state: State) -> str:
    """``"✗ fail"``, ``"? not measured"``: a mark and a word, so that no colour is needed."""
    return f"{STATES[state]} {state.replace('_', ' ')}"


def clean(text: object) -> str:
    """The text without what steers a terminal or turns the reading direction; lines are kept."""
    return "".join(
        "�" if char in _BIDI or (unicodedata.category(char) in _STEERING and char != "\n") else char
        for char in str(text).replace("\t", " ").replace("\r\n", "\n")
    )
