"""A commission in the terminal: the verdict, and every gate with its question and what came."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich.console import Console

from depthgauge.report.tables import WIDTH, Column, paragraph, plain, print_table

if TYPE_CHECKING:
    from depthgauge.record.parts import Gate, Limits
    from depthgauge.study.commission.run import Commission

__all__ = ["commission_line", "commission_text", "print_commission"]


def print_commission(found: Commission, console: Console) -> None:
    """Verdict and reason, the gates, their bounds, and what they note."""
    record = found.stored.record
    paragraph(console, commission_line(found))
    plain(console)
    plain(console, record.subject.equation or record.subject.target)
    plain(console)
    print_table(console, _gates(found.gates))
    if judged := _judgements(found.gates):
        plain(console)
        print_table(console, judged)
        plain(console)
        paragraph(
            console,
            "margin: decades to the nearest bound, of the worst seed; n: seeds. Why each bound is "
            f"what it is: depthgauge report {found.directory}",
        )
    for gate in found.gates:
        for text in (gate.reason, *gate.notes):
            if text:
                plain(console)
                paragraph(console, f"{gate.name}: {text}")


def commission_text(found: Commission) -> str:
    """The screen as text, 100 columns wide."""
    drawn = io.StringIO()
    print_commission(found, Console(file=drawn, width=WIDTH, color_system=None))
    return drawn.getvalue().rstrip("\n")


def commission_line(found: Commission) -> str:
    """The closing line, which is all that ``--quiet`` prints."""
    verdict = found.stored.record.verdict
    score = "" if verdict.score is None else f", smallest margin {verdict.score:+.3g} decades"
    said = f": {verdict.weakest}: {verdict.reason}" if verdict.reason else ""
    return f"commission: {verdict.state.replace('_', ' ')}{score}{said}"


def _gates(gates: tuple[Gate, ...]) -> list[Column]:
    return [
        Column("gate", [gate.name for gate in gates], right=False),
        Column("state", [gate.state.replace("_", " ") for gate in gates], right=False),
        Column("question", [gate.question for gate in gates], right=False, wraps=True),
    ]


def _judgements(gates: tuple[Gate, ...]) -> list[Column]:
    rows = [(gate, j) for gate in gates[:6] for j in gate.judgements]
    if not rows:
        return []
    cells = [
        (
            gate.name,
            j.name,
            j.state.replace("_", " "),
            "-" if j.value is None else f"{j.value:.4g}",
            _bound(j.bound),
            "-" if j.margin is None else f"{j.margin:+.3g}",
            str(j.n),
        )
        for gate, j in rows
    ]
    names = ("gate", "summary", "state", "value", "bound", "margin", "n")
    columns = zip(names, zip(*cells, strict=True), strict=True)
    return [Column(name, column, right=name in _NUMBERS) for name, column in columns]


_NUMBERS: Final = ("value", "margin", "n")


def _bound(limits: Limits) -> str:
    sides = (("min", limits.min), ("max", limits.max))
    return ", ".join(f"{name} {x:g}" for name, x in sides if x is not None)
