"""A report as Markdown: for a pull request, or the summary of a step on GitHub.

Curves are small graphs of letters beside their numbers. What a name holds stays text: marks of
Markdown, HTML, mentions and references are taken out of force.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from depthgauge.errors import SpecificationError
from depthgauge.report.drawing import CURVE_COLUMNS, EffectFigure, Figure, Panel
from depthgauge.report.page import (
    Badge,
    Formula,
    Lines,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
    state_words,
)
from depthgauge.sparkline import sparkline

__all__ = ["SUMMARY", "add_to_summary", "to_markdown"]

#: Where GitHub says which file a step's summary is.
SUMMARY: Final = "GITHUB_STEP_SUMMARY"

#: Marks that mean something in the middle of a line; an underscore only at the edge of a word.
_MARKS: Final = re.compile(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w))")
#: What makes a line a heading, a list, a quotation or a rule.
_BEGINNING: Final = re.compile(r"^([#+=>-])|^(\d+)([.)])(?=\s)")
#: A name would be called, an issue pointed at: nothing of no width stands between.
_CALLS: Final = re.compile(r"@(?=\w)|#(?=\d)")
_GRAPH: Final = 24


def to_markdown(report: Report) -> str:
    """The whole report, the verdict first."""
    lines = [f"# {_inline(report.title)}", ""]
    for section in report.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def add_to_summary(text: str) -> str:
    """Appends to the file that ``$GITHUB_STEP_SUMMARY`` names, and returns its name.

    Raises SpecificationError when there is none, or when it cannot be written.
    """
    path = os.environ.get(SUMMARY, "")
    if not path:
        raise SpecificationError(
            f"--summary writes to the file that ${SUMMARY} names, and it is not set; "
            f"use it inside a step of GitHub Actions"
        )
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecificationError(f"${SUMMARY} {path} cannot be written: {reason}") from None
    return path


def _section(section: Section) -> Iterator[str]:
    yield f"## {_inline(section.heading)}"
    yield ""
    for part in section.parts:
        yield from _part(part)
        yield ""


def _part(part: Part) -> Iterator[str]:
    match part:
        case Badge(state, label):
            yield f"### {_inline(state_words(state))}: {_inline(label)}"
        case Paragraph(text):
            yield _BEGINNING.sub(r"\2\\\1\3", _inline(text))
        case Lines(text) | Formula(text):
            yield from _fenced(text)
        case Table():
            if part.folded:
                yield f"<details><summary>{_inline(part.title)} ({len(part.rows)} rows)</summary>"
                yield ""
                yield from _table(part)
                yield ""
                yield "</details>"
            else:
                yield f"**{_inline(part.title)}**"
                yield ""
                yield from _table(part)
        case Figure():
            yield f"**{_inline(part.title)}**"
            yield ""
            for panel in part.panels:
                yield f"{_inline(panel.label)}, {_inline(panel.unit)}:"
                yield ""
                yield from _curves(panel, part.x)
                yield ""
            yield _inline(part.seeds())
        case EffectFigure():  # its table follows
            yield f"**{_inline(part.title)}**: {_inline(part.summary())}"
        case _:
            assert_never(part)


def _fenced(text: str) -> Iterator[str]:
    """A fence longer than any inside."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield fence
    yield text
    yield fence


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        yield "None."
        return
    numbers = table.numbers or (False,) * len(table.columns)
    yield from _rows(table.columns, table.rows, numbers)


def _curves(panel: Panel, x: str) -> Iterator[str]:
    columns = {"curve": False, f"over the {x}s": False} | CURVE_COLUMNS
    rows = []
    for line in panel.lines:
        name, *cells = line.row()
        graph = sparkline(10**line.middle if not panel.log else line.middle, _GRAPH)
        rows.append((name, graph, *cells))
    yield from _rows(tuple(columns), rows, tuple(columns.values()))


def _rows(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]
) -> Iterator[str]:
    yield f"| {' | '.join(_inline(name).strip() for name in columns)} |"
    yield f"| {' | '.join('--:' if n else '---' for n in numbers)} |"
    for row in rows:
        yield f"| {' | '.join(_inline(cell) for cell in row)} |"


def _inline(text: str) -> str:
    """One line in which no mark means anything."""
    called = _CALLS.sub(lambda match: f"{match.group()}\0", " ".join(text.split()))
    marked = _MARKS.sub(r"\\\1", called)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace("\0", "&#8203;")
