"""The table of an ablation as an effect plot: one mark a change and quantity, with its spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from depthgauge.report.drawing import Effect, EffectFigure
from depthgauge.report.page import Paragraph, Part, clean

__all__ = ["effects_of"]

#: The words by which a column is known.
_WORDS: Final = {
    "change": ("change", "factor"),
    "quantity": ("quantity",),
    "effect": ("effect", "median"),
    "low": ("low", "min", "least"),
    "high": ("high", "max", "largest"),
    "unit": ("unit",),
}
_NEEDED: Final = ("change", "quantity", "effect")


def effects_of(table: Mapping[str, Any], anchor: str) -> Iterator[Part]:
    """A figure for each unit of the table's effects; a sentence where the table has no such
    columns, with those it has."""
    at = _places([str(name).strip().lower() for name in table["columns"]])
    if missing := [name for name in _NEEDED if name not in at]:
        yield Paragraph(
            f"No effect plot of '{clean(table['title'])}': it has no column "
            f"{' and no column '.join(missing)}."
        )
        return
    units: dict[str, list[Effect]] = {}
    for row in table["rows"]:
        unit = clean(row[at["unit"]]) if "unit" in at else "decades"
        value = _number(row, at, "effect")
        if not math.isfinite(value):
            continue
        low, high = _number(row, at, "low"), _number(row, at, "high")
        known = math.isfinite(low) and math.isfinite(high)
        units.setdefault(unit, []).append(
            Effect(
                clean(row[at["change"]]),
                clean(row[at["quantity"]]),
                value,
                low if known else value,
                high if known else value,
            )
        )
    lost = len(table["rows"]) - sum(map(len, units.values()))
    for i, (unit, effects) in enumerate(units.items()):
        caption = (
            "Each mark is the median over seeds of the change minus the baseline of the same "
            "seed, its bar the range over seeds; at 0 nothing changed."
        )
        if lost and i == 0:
            caption += f" In the table alone, since they are no number: {lost}."
        measure = "as a difference" if unit == "difference" else f"in {unit}"
        title = f"{clean(table['title'])}: effects {measure}"
        yield EffectFigure(f"{anchor}-{i + 1}", title, unit, tuple(effects), caption)


def _places(columns: Sequence[str]) -> dict[str, int]:
    found = {}
    for name, words in _WORDS.items():
        for word in words:
            if word in columns:
                found[name] = columns.index(word)
                break
    return found


def _number(row: Sequence[Any], at: Mapping[str, int], name: str) -> float:
    cell = row[at[name]] if name in at else None
    return float(cell) if isinstance(cell, int | float) else math.nan
