"""A report on a terminal or in a pipe: the same sections, curves as small graphs of letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
from rich.console import Console

from depthgauge.report.drawing import CURVE_COLUMNS, EffectFigure, Figure, Panel
from depthgauge.report.page import (
    Badge,
    Formula,
    Lines,
    Paragraph,
    Part,
    Report,
    State,
    Table,
    state_words,
)
from depthgauge.report.tables import Column, curve, paragraph, plain, print_table, terminal

__all__ = ["print_report", "report_line"]

_STYLES: dict[State, str] = {
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "not_measured": "yellow",
}
_GRAPH = 24
_ENDS = ("first", "last", "least", "largest")


def print_report(report: Report, console: Console | None = None) -> None:
    """Every section; tables are split by columns where they are too wide."""
    console = console or terminal()
    paragraph(console, report.title)
    for section in report.sections:
        plain(console)
        plain(console, section.heading.upper(), "bold")
        for part in section.parts:
            _print(part, console)
    plain(console)
    plain(console, report_line(report), _STYLES[report.state])


def report_line(report: Report) -> str:
    """The closing line: the verdict and its reason."""
    reason = f" ({report.reason})" if report.reason else ""
    return f"commission: {report.state.replace('_', ' ').upper()}{reason}"


def _print(part: Part, console: Console) -> None:
    match part:
        case Badge(state, label):
            plain(console)
            plain(console, f"{state_words(state)}: {label}", _STYLES[state])
        case Paragraph(text):
            paragraph(console, text)
        case Lines(text) | Formula(text):
            for line in text.splitlines():
                plain(console, f"  {line}")
        case Table():
            _print_table(part, console)
        case Figure():
            for panel in part.panels:
                plain(console)
                plain(console, f"{panel.label}, {panel.unit}", "bold")
                _print_curves(panel, part.x, console)
            paragraph(console, part.seeds())
        case EffectFigure():  # its table follows
            paragraph(console, f"{part.title}: {part.summary()}")
        case _:
            assert_never(part)


def _print_table(table: Table, console: Console) -> None:
    plain(console)
    plain(console, table.title, "bold")
    if not table.rows:
        plain(console, "none")
        return
    numbers = table.numbers or (False,) * len(table.columns)
    print_table(console, _columns(table.columns, table.rows, numbers, console.width // 2))


def _columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool], room: int
) -> list[Column]:
    """Text in the last column wraps, in the first it is cut to ``room``; a line break anywhere is
    a space."""
    last = len(names) - 1
    return [
        Column(
            name.strip(),
            [_cut(" ".join(row[i].split()), room if i == 0 else 0) for row in rows],
            right=numbers[i],
            wraps=i == last and not numbers[i],
        )
        for i, name in enumerate(names)
    ]


def _cut(text: str, room: int) -> str:
    """Without its middle where it is longer than ``room``: both ends tell names apart."""
    if not room or len(text) <= room:
        return text
    return f"{text[: room - room // 2 - 1]}…{text[-(room // 2) :]}"


def _print_curves(panel: Panel, x: str, console: Console) -> None:
    rows = [dict(zip(CURVE_COLUMNS, line.row(), strict=True)) for line in panel.lines]
    # A graph is of the logarithm; what is on a linear axis is raised to it first.
    with np.errstate(over="ignore"):
        graphs = [
            curve(line.middle if panel.log else 10**line.middle, _GRAPH) for line in panel.lines
        ]
    names = [_cut(row["curve"], console.width // 3) for row in rows]
    shown = [Column("curve", names, right=False), Column(f"over the {x}s", graphs, right=False)]
    shown += [Column(name, [row[name] for row in rows]) for name in _ENDS]
    print_table(console, shown)
    for row in rows:
        if row["note"]:
            paragraph(console, row["note"], f"{_cut(row['curve'], console.width // 3)}: ")
