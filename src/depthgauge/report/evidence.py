"""The words and tables of a report: verdict, equation, gates, corridor, provenance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from depthgauge.equation import parse
from depthgauge.equation.folded import folded
from depthgauge.equation.mathml import folded_mathml, to_mathml
from depthgauge.errors import EquationError
from depthgauge.profile_text import number
from depthgauge.report.page import (
    Badge,
    Formula,
    Lines,
    Paragraph,
    Part,
    Table,
    clean,
    state_of,
    state_words,
)

__all__ = ["corridor", "equation", "gates", "provenance", "tables", "verdict", "verdict_reason"]

#: Kinds of tables that have a section of their own.
_ELSEWHERE: Final = ("ablation", "laws")
#: Rows of a table that is shown when it is asked for.
_LONG: Final = 12


def verdict(record: Mapping[str, Any]) -> Iterator[Part]:
    """The state and its reasons, then every gate in a line."""
    found = record["verdict"]
    yield Badge(state_of(found["state"]), "the commission")
    if reason := verdict_reason(found):
        yield Paragraph(reason)
    score = found.get("score")
    if score is not None:
        yield Paragraph(f"Smallest margin: {score:+.3g} decades to the nearest bound.")
    elif found.get("score_reason"):
        yield Paragraph(f"No smallest margin: {clean(found['score_reason'])}.")
    yield Table(
        "Gates",
        ("gate", "state", "reason"),
        tuple(
            (
                clean(gate["name"]) + (" (weakest)" if gate["name"] == found["weakest"] else ""),
                state_words(state_of(gate["state"])),
                clean(gate["reason"]),
            )
            for gate in record.get("gates", [])
        ),
    )
    for note in record.get("notes", []):
        yield Paragraph(f"Note: {clean(note)}")


def verdict_reason(found: Mapping[str, Any]) -> str:
    """Why a commission's verdict is what it is, and which gate that is of."""
    named = (found["weakest"], found["reason"]) if found["reason"] else ()
    return ": ".join(clean(text) for text in named if text)


def equation(record: Mapping[str, Any]) -> Iterator[Part]:
    """The block as mathematics, a builder's as a run shows it, or as text where that is not in the
    language; then what fixes it."""
    subject = record["subject"]
    text = clean(subject["equation"])
    if text:
        try:
            yield Formula(text, _mathml(text))
        except EquationError:
            yield Lines(text)
    else:
        yield Paragraph("No equation was read from this target.")
    yield Paragraph(_size(subject))
    yield Table("Everything that fixes it", ("what", "value"), tuple(_facts(subject)), folded=True)


def _mathml(text: str) -> str:
    try:
        return to_mathml(parse(text))
    except EquationError:  # a builder's, folded, a line for each stream
        return folded_mathml(folded(text))


def _size(subject: Mapping[str, Any]) -> str:
    """The subject in a line; the table has all of it."""
    parts = [f"Depth {subject['depth']}"]
    for name in ("width", "tokens", "size"):
        if subject.get(name) is not None:
            parts.append(f"{name} {subject[name]}")
    parts.append(f"{subject.get('branches', 0)} residual branches")
    if subject.get("m"):
        parts.append(f"weight layers in each {_counted(subject['m'])}")
    if subject.get("placement"):
        parts.append(f"norm placement {clean(subject['placement'])}")
    seeds = ", ".join(map(str, subject["seeds"]))
    parts += [
        f"batch {subject['batch']}",
        f"{clean(subject['dtype'])} on {clean(subject['device'])}",
    ]
    return f"{', '.join(parts)}, seed{'s' * (len(subject['seeds']) > 1)} {seeds}."


def _facts(subject: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = "target kind depth depths width tokens size branches m placement draws batch dtype "
    for name in (names + "device seeds").split():
        value, reason = subject.get(name), subject.get(f"{name}_reason")
        if value in (None, "", []) and not reason:
            continue
        shown = "weight layers in a branch" if name == "m" else name
        yield shown, _counted(value) if name == "m" and value else _shown(value, reason)
    for group, word in (("scalars", ""), ("init", "init of "), ("arguments", "argument ")):
        for name, value in subject.get(group, {}).items():
            yield f"{word}{clean(name)}", _shown(value)


def _counted(values: Sequence[object]) -> str:
    """``"2"`` where all are alike, else how often each comes."""
    counts = {value: list(values).count(value) for value in dict.fromkeys(values)}
    if len(counts) == 1:
        return clean(values[0])
    return ", ".join(f"{clean(value)} ({n} times)" for value, n in counts.items())


def _shown(value: object, reason: object = None) -> str:
    match value:
        case None:
            return f"- ({clean(reason)})" if reason else "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return number(value)
        case list() | tuple():
            return ", ".join(_shown(item) for item in value)
        case Mapping():
            return ", ".join(f"{clean(key)} {_shown(item)}" for key, item in value.items())
    return clean(value)


# --------------------------------------------------------------------------------- gates


def gates(record: Mapping[str, Any]) -> Iterator[Part]:
    """Of each gate: its question, what was measured against which bound, what it leaves open."""
    for gate in record.get("gates", []):
        yield Badge(state_of(gate["state"]), clean(gate["name"]))
        yield Paragraph(clean(gate["question"]))
        if gate["reason"]:
            yield Paragraph(clean(gate["reason"]))
        if gate.get("judgements"):
            yield _judgements(gate)
        for note in gate.get("notes", []):
            yield Paragraph(f"Note: {clean(note)}")
        yield from tables(
            table for table in gate.get("tables", []) if table["kind"] not in _ELSEWHERE
        )
        if gate.get("leaves_open"):
            yield Paragraph(f"Leaves open: {clean(gate['leaves_open'])}")


def _judgements(gate: Mapping[str, Any]) -> Table:
    columns = ("bound on", "state", "worst seed", "median", "range", "n", "bound", "margin")
    numbers = (False, False, True, True, False, True, False, True)
    rows = []
    for found in gate["judgements"]:
        low, high = (_shown(found.get(name)) for name in ("low", "high"))
        margin = found.get("margin")
        rows.append(
            (
                clean(found["name"]),
                state_words(state_of(found["state"])),
                _measured(found, "value"),
                _measured(found, "median"),
                f"{low} to {high}" if found["n"] > 1 and low != "-" else "-",
                str(found["n"]),
                _bound(found["bound"]),
                f"{margin:+.3g}" if margin is not None else _measured(found, "margin"),
                clean(found["reason"]),
            )
        )
    title = f"What {clean(gate['name'])} measured"
    return Table(title, (*columns, "reason"), tuple(rows), (*numbers, False))


def _measured(found: Mapping[str, Any], name: str) -> str:
    """The number, or why there is none."""
    value = found.get(name)
    if value is not None:
        return number(float(value))
    reason = clean(found.get(f"{name}_reason") or "-")
    return "-" if reason == "not measured" else reason.partition(":")[0]


def _bound(bound: Mapping[str, Any]) -> str:
    parts = [f"{name} {bound[name]:g}" for name in ("min", "max") if bound.get(name) is not None]
    return ", ".join(parts) or "-"


def tables(found: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """The record's own tables: numbers to four digits, states with their mark."""
    for table in found:
        rows = [list(row) for row in table["rows"]]
        columns = tuple(clean(name) for name in table["columns"])
        numbers = tuple(
            any(_is_number(row[i]) for row in rows)
            and all(row[i] is None or _is_number(row[i]) for row in rows)
            for i in range(len(columns))
        )
        states = [name == "state" for name in columns]
        cells = tuple(
            tuple(
                state_words(state_of(cell)) if is_state else _shown(cell)
                for cell, is_state in zip(row, states, strict=True)
            )
            for row in rows
        )
        yield Table(clean(table["title"]), columns, cells, numbers, folded=len(rows) > _LONG)
        if table.get("rows_reason"):
            yield Paragraph(f"Cells shown as -: {clean(table['rows_reason'])}.")


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


# ---------------------------------------------------------------- corridor and provenance


def corridor(record: Mapping[str, Any]) -> Iterator[Part]:
    """Every bound with its reason and where that comes from."""
    found = record.get("corridor", {})
    yield Paragraph(f"The corridor '{clean(found.get('name', ''))}', bounds as they were in force.")
    rows = tuple(
        (
            clean(name),
            _bound(bound),
            f"{bound.get('warn', math.nan):g}",
            clean(bound.get("reason", "")),
            clean(bound.get("source", "")),
        )
        for name, bound in found.get("bounds", {}).items()
    )
    columns = ("quantity", "bound", "warns within, decades", "reason", "source")
    yield Table("Bounds", columns, rows, (False, False, True, False, False))


def provenance(record: Mapping[str, Any], not_drawn: Sequence[str]) -> Iterator[Part]:
    """Versions, machine, command, times and every hash that holds the record together."""
    found, subject = record["provenance"], record["subject"]
    yield Table("Where and when", ("what", "value"), tuple(_circumstances(found)))
    hashes = [
        ("record", record.get("fingerprint", "")),
        ("equation", subject.get("equation_hash", "")),
        ("data", subject.get("data", "")),
    ]
    if source := subject.get("source"):
        hashes.append((f"source {source['file']}", source["hash"]))
    hashes += [(f"weights, seed {seed}", h) for seed, h in subject.get("weights", {}).items()]
    hashes += list(record.get("files", {}).items())
    rows = tuple((clean(name), clean(text)) for name, text in hashes if text)
    yield Table("Hashes", ("of", "hash"), rows, folded=True)
    if command := found.get("command"):
        yield Lines(clean(" ".join(map(str, command))))
    if not_drawn:
        names = ", ".join(map(clean, not_drawn))
        yield Paragraph(f"In curves.npz and not drawn here: {names}.")


def _circumstances(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("depthgauge", "torch", "numpy", "python", "platform", "started", "finished"):
        if found.get(name):
            yield name, clean(found[name])
    if git := found.get("git"):
        yield "git", clean(git["commit"]) + (" with changes not committed" if git["dirty"] else "")
    else:
        yield "git", _shown(None, found.get("git_reason"))
    for gate, seconds in found.get("wall_seconds", {}).items():
        yield f"seconds of {clean(gate)}", number(float(seconds))
