"""An ablation in the terminal: the answer, each change with its verdict, and what it does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rich.console import Console

from depthgauge.report.tables import Column, paragraph, plain, print_table
from depthgauge.summaries import SUMMARIES

if TYPE_CHECKING:
    from depthgauge.study.ablation import Ablation, Varied
    from depthgauge.study.effects import Effect

__all__ = ["ablation_line", "print_ablation"]

_HEADERS: Final = {
    "forward_end_rms": "last state",
    "forward_drift": "drift",
    "gradient_ratio": "gradient",
    "gradient_drift": "gradient drift",
    "live_derivative_fraction": "live",
    "saturated_fraction": "saturated",
    "dead_fraction": "dead",
    "nonfinite_fraction": "not finite",
    "state_max": "largest",
}
#: Of an effect that is a number under no seed, by the beginning of its note.
_WORDS: Final = {
    "not finite after": "lost",
    "finite after": "finite again",
    "not finite before or after": "never finite",
    "zero": "zero",
}
_SHOWN: Final = 8


def print_ablation(found: Ablation, console: Console) -> None:
    """The answer, one row a change, the effects on each summary, and the strongest of all."""
    seeds = len(found.seeds)
    paragraph(console, found.answer)
    plain(console)
    plain(console, found.target)
    paragraph(console, _baseline(found))
    plain(console)
    print_table(console, _verdicts(found))
    rows = [row for row in found.rows if not row.refused]
    if columns := _effects(rows):
        plain(console)
        print_table(console, columns)
        plain(console)
        over = (
            f"median over {seeds} seeds, (least to largest) below it" if seeds > 1 else "one seed"
        )
        paragraph(
            console,
            "Effects, paired by seed: decades, log10 of after over before, and the difference of "
            f"what has no logarithmic scale, such as shares; {over}.",
        )
    if strongest := _ranked(found):
        plain(console)
        print_table(console, strongest)
        plain(console)
        paragraph(
            console,
            "By size over spread: |mean| / s over seeds. interval: of the mean, 95 per cent, "
            "Student's t."
            if seeds > 1
            else "By size: one seed has no spread.",
        )
    _told(found, console)


def ablation_line(found: Ablation) -> str:
    """The closing line, which is all that ``--quiet`` prints."""
    return f"ablate: {found.answer}"


def _baseline(found: Ablation) -> str:
    """Its factors in a line, the form left out, which the target says."""
    texts = [f"{n} {text}" for n, text in found.factors.items() if n != "form" and text != "none"]
    judged = "no corridor" if found.verdict is None else f"corridor: {found.corridor}"
    return f"baseline: {', '.join(texts)}; {judged}"


def _verdicts(found: Ablation) -> list[Column]:
    """The baseline and each change: what it is, and its worst bound."""
    names, words, states, margins, worst = [], [], [], [], []
    for name, row in [("baseline", None), *((row.change, row) for row in found.rows)]:
        names.append(name)
        words.append("; ".join(map(str, row.differences)) if row else "")
        verdict = row.verdict if row else found.verdict
        if row is not None and row.refused:
            states.append("NOT MEASURED")
            margins.append("-")
            worst.append("")
            continue
        states.append(verdict.state.replace("_", " ").upper() if verdict else "-")
        score = verdict.score if verdict else None
        margins.append("-" if score is None else f"{score:+.3g}")
        worst.append(verdict.worst.name if verdict and verdict.worst else "")
    columns = [
        Column("change", names, right=False),
        Column("verdict", states, right=False),
        Column("margin", margins),
        Column("by", worst, right=False),
        Column("before and after", words, right=False, wraps=True),
    ]
    if found.verdict is None and not any(row.refused for row in found.rows):
        del columns[1:4]
    return columns


def _effects(rows: list[Varied]) -> list[Column]:
    """A column a summary that any change moves, two lines a change."""
    by_row = [{effect.quantity: effect for effect in row.effects} for row in rows]
    names = [
        name
        for name in SUMMARIES
        if any(_moves(effects[name]) for effects in by_row if name in effects)
    ]
    if not names:
        return []
    columns = [Column("change", [cell for row in rows for cell in (row.change, "")], right=False)]
    for name in names:
        cells = [cell for effects in by_row for cell in _cells(effects.get(name))]
        columns.append(Column(_HEADERS.get(name, name.replace("_", " ")), cells))
    return columns


def _moves(effect: Effect) -> bool:
    return bool(effect.note) or any(value != 0 for value in effect.finite)


def _cells(effect: Effect | None) -> tuple[str, str]:
    if effect is None:
        return "-", ""
    median, low, high = effect.spread
    if not effect.n:
        words = (word for said, word in _WORDS.items() if effect.note.startswith(said))
        return next(words, "-"), ""
    return _signed(median), f"({_signed(low, 2)} to {_signed(high, 2)})" if effect.n > 1 else ""


def _ranked(found: Ablation) -> list[Column]:
    """The strongest effects, one a row."""
    shown = [effect for effect in found.ranked if effect.strength > 0][:_SHOWN]
    if not shown:
        return []
    columns = [
        Column("strongest", [effect.change for effect in shown], right=False),
        Column("on", [effect.quantity for effect in shown], right=False),
        Column("effect", [_signed(effect.spread.median) for effect in shown]),
        Column("interval", [_interval(effect) for effect in shown], right=False),
        Column("unit", [effect.unit for effect in shown], right=False),
        Column("over spread", [_strength(effect) for effect in shown]),
        Column("n", [str(effect.n) for effect in shown]),
    ]
    if any(effect.note for effect in shown):
        notes = [effect.note for effect in shown]
        columns.append(Column("", notes, right=False, wraps=True))
    return columns


def _interval(effect: Effect) -> str:
    if effect.interval is None:
        return "-"
    low, high = effect.interval
    return f"[{_signed(low)}, {_signed(high)}]"


def _strength(effect: Effect) -> str:
    if effect.n < 2:
        return "-"
    return "no spread" if math.isinf(effect.strength) else f"{effect.strength:.3g}"


def _signed(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else "0" if value == 0 else f"{value:+.{digits}g}"


def _told(found: Ablation, console: Console) -> None:
    """What was not tried, not held and not judged."""
    lines: Iterable[str] = [
        *(f"not tried: {change}: {reason}" for change, reason in found.left),
        *(f"{row.change} was not measured: {row.refused}" for row in found.rows if row.refused),
        *(f"{row.change}: {note}" for row in found.rows for note in row.notes),
        *found.notes,
    ]
    for line in lines:
        plain(console)
        paragraph(console, line)
