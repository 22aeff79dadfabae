"""What verify and diff found, in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

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
#: Rows of a table that are shown, those that differ most, and lines of what is said one by one.
_SHOWN, _SAID = 12, 6
#: Characters of a line that is said, where not all of it is.
_LINE = 240


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
    for note in found.notes:
        paragraph(console, note)
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
    found: RecordDifference,
    left: tuple[str, Record],
    right: tuple[str, Record],
    console: Console,
    every: bool = False,
) -> None:
    """Whether it is one model at all, then judgements and curves, and what one record lacks.

    What differs most of each, a line for each quantity, and how much more there is; ``every``: all.
    """
    if not found.same_model:
        plain(console, _models(left[1], right[1]), "bold yellow")
    _about(*left, console)
    _about(*right, console)
    if not found.same_subject:
        plain(console)
        run = "the model was run in another way:"
        plain(console, run if found.same_model else "what differs in them:", "bold yellow")
        _some(found.subject, "changes of the model or its run", console, every)
    _some([*found.corridor, *found.verdict], "changes of bounds and verdict", console, every)
    judged = sorted((j for j in found.judgements if not j.same), key=_weight)
    if judged:
        plain(console)
        print_table(console, _judgements(judged if every else judged[:_SHOWN]))
        _more(len(judged), _SHOWN, "judgements, which differ less", console, every)
    curves = sorted((c for c in found.curves if not c.same), key=lambda c: -c.size)
    if curves:
        shown = curves if every else _by_quantity(curves)[:_SHOWN]
        plain(console)
        print_table(console, _curves(shown, {} if every else Counter(c.quantity for c in curves)))
        _more(len(curves), len(shown), "curves, which differ less", console, every)
    for words, names in (("left", found.only_left), ("right", found.only_right)):
        for name in names if every else names[:_SAID]:
            paragraph(console, f"only {words}: {name}", indent="- ")
        _more(len(names), _SAID, f"that stand in the {words} one only", console, every)
    _some(found.others, "changes in tables and notes", console, every)
    plain(console)
    plain(console, difference_line(found), "green" if found.equal else "yellow")


def _models(left: Record, right: Record) -> str:
    """That two records are of different models, with what tells the models apart."""
    a, b = (record.subject.equation_hash[:_HASH] for record in (left, right))
    if a == b:
        return f"different models: one equation ({a}...), which code builds in one of them"
    return f"different models: equation {a}... -> {b}..."


#: Of a hash as much as tells it from any other that somebody will see.
_HASH = len("sha256:") + 12


def _some(changes: Sequence[Change], what: str, console: Console, every: bool) -> None:
    for change in changes if every else changes[:_SAID]:
        if every or change.what == "equation":
            _said(change, console)
        else:
            line = change.sentence
            short = line if len(line) <= _LINE else f"{line[:_LINE]} ..."
            paragraph(console, short, indent="- ")
    _more(len(changes), _SAID, what, console, every)


def _more(count: int, shown: int, what: str, console: Console, every: bool) -> None:
    if count > shown and not every:
        plain(console, f"and {count - shown} more {what}; --all shows them")


def _weight(judged: JudgementDifference) -> tuple[bool, float]:
    """Another state first, then the margin that moved most."""
    margins = (judged.left.margin, judged.right.margin)
    moved = math.inf if None in margins else abs((margins[0] or 0.0) - (margins[1] or 0.0))
    return judged.left.state == judged.right.state, -moved


def _by_quantity(curves: Sequence[CurveDifference]) -> list[CurveDifference]:
    """Of each quantity the curve that differs most, which is the first of it."""
    found: dict[str, CurveDifference] = {}
    for curve in curves:
        found.setdefault(curve.quantity, curve)
    return list(found.values())


def difference_line(found: RecordDifference) -> str:
    """The closing line: that all is equal, or how much is and how much is not."""
    fine = found.rounded - found.coarse
    rounded = f", {fine} of them to 12 digits only" if fine else ""
    rounded += f", {found.coarse} (curvature) to 5 digits only" if found.coarse else ""
    if found.equal:
        return f"diff: equal ({found.compared} judgements and curves{rounded})"
    judged = sum(not each.same for each in found.judgements)
    curves = sum(not each.same for each in found.curves)
    only = len(found.only_left) + len(found.only_right)
    models = "" if found.same_subject else "one model run otherwise, "
    models = models if found.same_model else "different models, "
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


def _curves(curves: Sequence[CurveDifference], counted: Mapping[str, int] = {}) -> list[Column]:
    """``counted``: how many curves of a quantity differ, where only one of each is shown."""
    several = any(counted.get(c.quantity, 1) > 1 for c in curves)
    many = [Column("of", [str(counted.get(c.quantity, 1)) for c in curves])] if several else []
    return [
        Column("curve", [c.quantity for c in curves], right=False),
        Column("largest", [_largest(c) for c in curves]),
        *many,
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
