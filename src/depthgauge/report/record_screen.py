"""What verify and diff found, in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from depthgauge.profile_text import number
from depthgauge.record.changes import Change
from depthgauge.record.checks import Fault
from depthgauge.record.difference import CurveDifference, JudgementDifference, RecordDifference
from depthgauge.record.document import Record
from depthgauge.record.verify import Verification
from depthgauge.report.tables import Column, paragraph, plain, print_table

__all__ = [
    "difference_line",
    "print_difference",
    "print_verification",
    "verification_line",
]

_STYLES = {"valid": "green", "stale": "yellow", "broken": "bold red", "newer": "yellow"}
#: Curves that are shown, those that differ most.
_SHOWN = 12


def print_verification(found: Verification, console: Console) -> None:
    """What the record is of, each reason why it does not hold, and the closing line."""
    if found.record is not None:
        _about(found.directory, found.record, console)
    if found.state in ("valid", "stale") and not found.compared:
        paragraph(
            console, "no target given: only the files and the version of torch were looked at"
        )
    for reason in found.reasons:
        _said(reason, console)
    plain(console, verification_line(found), _STYLES[found.state])


def verification_line(found: Verification) -> str:
    """The closing line: ``verify: stale (2 reasons)``."""
    count = len(found.reasons)
    return f"verify: {found.state}" + (f" ({count} reason{'s' * (count > 1)})" if count else "")


def _about(directory: str, record: Record, console: Console) -> None:
    subject, when = record.subject, record.provenance.finished
    seeds = len(subject.seeds)
    paragraph(
        console,
        f"{directory}: {subject.target}, depth {subject.depth}, width {subject.width or '-'}, "
        f"{subject.dtype}, {seeds} seed{'s' * (seeds != 1)}; "
        f"verdict {record.verdict.state.replace('_', ' ')}{f', {when}' if when else ''}",
    )


def _said(reason: Change | Fault, console: Console) -> None:
    first, *lines = reason.lines
    paragraph(console, first, indent="- ")
    for line in lines:
        paragraph(console, line[4:], indent=line[:4])


# ---------------------------------------------------------------------------- differences


def print_difference(
    found: RecordDifference, left: tuple[str, Record], right: tuple[str, Record], console: Console
) -> None:
    """Whether it is one model at all, then judgements and curves, and what one record lacks."""
    _about(*left, console)
    _about(*right, console)
    if not found.same_subject:
        plain(console)
        plain(
            console,
            "the two records are of different models, or of one that was run in another way:",
            "bold yellow",
        )
        for change in found.subject:
            _said(change, console)
    for change in (*found.corridor, *found.verdict):
        _said(change, console)
    judged = [each for each in found.judgements if not each.same]
    if judged:
        plain(console)
        print_table(console, _judgements(judged))
    curves = sorted((c for c in found.curves if not c.same), key=lambda c: -c.size)
    if curves:
        plain(console)
        print_table(console, _curves(curves[:_SHOWN]))
        if len(curves) > _SHOWN:
            plain(console, f"and {len(curves) - _SHOWN} more curves, which differ less")
    for words, names in (("left", found.only_left), ("right", found.only_right)):
        for name in names:
            paragraph(console, f"only {words}: {name}", indent="- ")
    for change in found.others:
        _said(change, console)
    plain(console)
    plain(console, difference_line(found), "green" if found.equal else "yellow")


def difference_line(found: RecordDifference) -> str:
    """The closing line: that all is equal, or how much is and how much is not."""
    rounded = f", {found.rounded} of them to 12 digits only" if found.rounded else ""
    if found.equal:
        return f"diff: equal ({found.compared} judgements and curves{rounded})"
    judged = sum(not each.same for each in found.judgements)
    curves = sum(not each.same for each in found.curves)
    only = len(found.only_left) + len(found.only_right)
    models = "" if found.same_subject else "different subjects, "
    return (
        f"diff: {models}{judged} of {len(found.judgements)} judgements and {curves} of "
        f"{len(found.curves)} curves differ, {found.alike} are equal{rounded}, {only} stand in one "
        f"only"
    )


def _judgements(judged: Sequence[JudgementDifference]) -> list[Column]:
    def both(name: str) -> list[str]:
        return [_arrow(getattr(j.left, name), getattr(j.right, name)) for j in judged]

    shown = [
        Column("gate", [each.gate for each in judged], right=False),
        Column("bounded", [each.name for each in judged], right=False),
        Column("state", both("state"), right=False),
        Column("value", both("value"), right=False),
        Column("margin", both("margin"), right=False),
    ]
    rest = ["; ".join(_rest(each)) for each in judged]
    return [*shown, Column("and", rest, right=False)] if any(rest) else shown


#: What of a judgement has a column of its own.
_JUDGED = ("state", "value", "margin")


def _rest(judged: JudgementDifference) -> list[str]:
    """What of it is another where no column shows that it is."""
    changes = judged.changes
    return [] if any(c.what in _JUDGED for c in changes) else list(map(str, changes))


def _arrow(left: object, right: object) -> str:
    """Both, in as many digits as tell them apart."""
    a, b = (_cell(x) for x in (left, right))
    if isinstance(left, float) and isinstance(right, float) and left != right:
        digits = 4
        while a == b:
            digits += 1
            a, b = (f"{x:.{digits}g}" for x in (left, right))
    return a if left == right else f"{a} -> {b}"


def _cell(x: object) -> str:
    if isinstance(x, int | float):
        return number(x)
    return "-" if x is None else str(x).replace("_", " ")


def _curves(curves: Sequence[CurveDifference]) -> list[Column]:
    return [
        Column("curve", [c.quantity for c in curves], right=False),
        Column("largest", [_largest(c) for c in curves]),
        Column("block", ["-" if c.block is None else str(c.block) for c in curves]),
        Column("seed", ["-" if c.seed is None else str(c.seed) for c in curves]),
        Column("configuration", [c.configuration for c in curves], right=False),
        Column("gate", [c.gate + (f" ({c.note})" if c.note else "") for c in curves], right=False),
    ]


def _largest(curve: CurveDifference) -> str:
    if math.isnan(curve.largest):
        return "not a number"
    unit = " decades" if curve.unit == "decades" else ""
    return f"{curve.largest:+.3g}{unit}" if curve.largest else "0"
