"""Tables as plain text: no boxes, nothing cut, split by columns where they are too wide.

A row is one line unless its last column is a sentence, which wraps. Lines end without spaces, so
that a screen can be compared with a file.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from depthgauge.sparkline import sparkline

__all__ = [
    "GAP",
    "Column",
    "curve",
    "pad",
    "paragraph",
    "plain",
    "print_table",
    "terminal",
    "text_of",
    "wrapped",
]

#: Characters in a line where nobody says how many there are.
WIDTH = 100
GAP = 2
#: A column that wraps is given at least this.
ROOM = 24

SHORTEST, LONGEST = 12, 48

STYLES = {"PASS": "green", "FAIL": "bold red", "WARN": "yellow", "NOT MEASURED": "yellow"}


@dataclass(frozen=True)
class Column:
    """A header and its cells; one that ``wraps`` takes what the columns before it leave."""

    header: str
    cells: Sequence[str]
    right: bool = True
    wraps: bool = False

    @property
    def width(self) -> int:
        widest = max(map(cell_len, (self.header, *self.cells)))
        return min(widest, ROOM) if self.wraps else widest


def terminal() -> Console:
    """Standard output: as wide as the terminal, in a pipe as ``COLUMNS`` says, else 100."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def text_of(draw: Callable[[Console], None]) -> str:
    """What ``draw`` prints, as text of 100 columns: the screen of an object that is printed."""
    drawn = io.StringIO()
    draw(Console(file=drawn, width=WIDTH, color_system=None, highlight=False))
    return drawn.getvalue().rstrip("\n")


def plain(console: Console, line: str | Text = "", style: str = "") -> None:
    """One line as it is: not wrapped, so that it can be copied, and no markup is read in it."""
    console.print(Text(line, style) if isinstance(line, str) else line, soft_wrap=True)


def wrapped(text: str, room: int) -> list[str]:
    """The lines of ``text``, each at most ``room`` wide."""
    lines = Text(text).wrap(Console(width=room), room)
    return [line.plain.rstrip() for line in lines] or [""]


def paragraph(console: Console, text: str, indent: str = "") -> None:
    """Text wrapped to the width; later lines begin under the end of ``indent``."""
    for i, line in enumerate(wrapped(text, max(ROOM, console.width - cell_len(indent)))):
        plain(console, f"{indent if i == 0 else ' ' * cell_len(indent)}{line}")


def curve(values: Iterable[float | None], room: int) -> str:
    """A sparkline in ``room`` columns, neither too short to read nor longer than needed."""
    shown = (math.nan if value is None else value for value in values)
    return sparkline(shown, min(LONGEST, max(SHORTEST, room)))


def pad(text: str, width: int, right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def print_table(console: Console, columns: Sequence[Column]) -> None:
    """The table in one piece, or in several that repeat the first column."""
    for i, shown in enumerate(_pieces(columns, console.width)):
        if i:
            plain(console)
        if _width(shown) <= console.width:
            _print_piece(console, shown)
        else:
            _print_stacked(console, shown)


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _pieces(columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """The first column with as many others as the width holds, until all were shown."""
    key, *others = columns
    shown = [key]
    for column in others:
        if len(shown) > 1 and _width([*shown, column]) > width:
            yield shown
            shown = [key]
        shown.append(column)
    yield shown


def _print_piece(console: Console, columns: Sequence[Column]) -> None:
    left = console.width - _width(columns)
    widths = [column.width + left * column.wraps for column in columns]
    plain(console, _line([column.header for column in columns], columns, widths, "bold"))
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines = [
            wrapped(cell, width) if column.wraps else [cell]
            for cell, column, width in zip(cells, columns, widths, strict=True)
        ]
        for i in range(max(map(len, lines))):
            row = [column[i] if i < len(column) else "" for column in lines]
            plain(console, _line(row, columns, widths))


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], style: str = ""
) -> Text:
    line = Text()
    for i, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        line.append(" " * GAP if i else "")
        line.append(pad(cell, width, column.right), style or STYLES.get(cell, ""))
    line.rstrip()
    return line


def _print_stacked(console: Console, columns: Sequence[Column]) -> None:
    """For a width that does not even hold two columns: a line for each cell."""
    key, *others = columns
    for i, name in enumerate(key.cells):
        plain(console, name, "bold")
        for column in others:
            if cell := column.cells[i]:
                plain(console, f"  {column.header}: {cell}")
