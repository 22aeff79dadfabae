"""A comparison of recipes in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from rich.console import Console

from depthgauge.report.tables import Column, paragraph, plain, print_table
from depthgauge.study.compare import PLAIN, Comparison, Row
from depthgauge.study.scaling import Exponent
from depthgauge.summaries import spread

__all__ = ["print_comparison"]

_HEADERS = {
    "forward_end_rms": "last state",
    "forward_drift": "drift",
    "gradient_ratio": "gradient",
    "effective_rank": "rank",
    "headroom_float16_bits": "over",
    "underflow_headroom_bits": "under",
    "branch_to_stream": "branch",
}
_WORDS = {
    **_HEADERS,
    "update_exponent": "step",
    "weight_update_exponent": "step of the weights",
}


def print_comparison(found: Comparison, console: Console) -> None:
    """The table, what its columns are, and what each recipe changes, needs and costs."""
    rows = [row for row in found.rows if not row.refused]
    seeds = len(found.seeds)
    plain(console, found.target)
    sizes = "".join(f", {name} {number}" for name, number in found.sizes.items())
    at = f"depths {', '.join(map(str, found.depths))}" if len(found.depths) > 1 else "that depth"
    steps = len(next(iter(rows[0].updates.values()), ()))
    paragraph(
        console,
        f"depth {found.depth}{sizes}, {seeds} seed{'s' * (seeds > 1)}: median, (least to largest) "
        f"below it; the first step at {at}, {steps} seed{'s' * (steps > 1)}",
    )
    plain(console)
    columns = [Column("recipe", _twice(row.name for row in rows), right=False)]
    columns += [
        Column(header, [cell for row in rows for cell in _cells(row, name)])
        for name, header in _HEADERS.items()
    ]
    one = len(found.depths) == 1
    columns += [
        Column("step" if one else "step ~ L^", [c for r in rows for c in _stepped(r, 0, one)]),
        Column("weights", [c for row in rows for c in _stepped(row, 1, one)]),
        Column("time", [c for row in rows for c in _spread(row.step_time, _two)]),
        Column("parameters", _twice(_extra(row, rows[0]) for row in rows)),
    ]
    print_table(console, columns)
    plain(console)
    paragraph(
        console,
        "last state: its RMS. drift: largest over smallest RMS of a state. gradient: RMS at the "
        "input over that at the output. rank: participation ratio of the end-to-end Jacobian, of "
        "one example's last state by its own first, a norm over the batch included. "
        "over, under: binary digits to float16's overflow and underflow, the "
        "least of any site. branch: RMS over the stream's. "
        + (_STEP if one else _POWER)
        + "; weights: that of matrices alone. The logits are ten of a fixed random classifier on "
        "what the network gives; a module's own head stays in front of it. time: a step over that "
        f"of the network as given, n = {len(rows[0].step_time)} rounds beside whatever else this "
        "machine does. "
        "parameters: all, then what a recipe adds.",
    )
    for row in found.rows:
        if row.name != PLAIN:
            plain(console)
            _about(row, console)


_STEP = (
    "step: the change of the logits by the first step of SGD, RMS per unit of rate at the recipe's "
    "rates; several depths (--depths) say how it grows"
)
_POWER = (
    "step ~ L^: how the change of the logits by the first step of SGD grows with depth, at the "
    "recipe's rates, with half of its 95 per cent interval; x: a factor for each block, where it "
    "follows no power"
)


def _stepped(row: Row, which: int, one: bool) -> tuple[str, str]:
    """How an update grows with depth, or of one depth the update itself."""
    _, values, fitted = row.steps[which]
    if not one:
        return _power(row, fitted)
    return _spread(next(iter(values.values())), _three) if values else ("-", "")


def _twice(cells: Iterable[str]) -> list[str]:
    """Each cell with an empty one under it."""
    return [part for cell in cells for part in (cell, "")]


def _cells(row: Row, name: str) -> tuple[str, str]:
    return _spread(row.quantities[name], _three) if name in row.quantities else ("-", "")


def _spread(values: Sequence[float], form: Callable[[float], str]) -> tuple[str, str]:
    median, low, high = spread(np.asarray(values, dtype=np.float64))
    return form(median), "" if len(values) < 2 else f"({form(low)} to {form(high)})"


def _three(value: float) -> str:
    if math.isnan(value):
        return "not finite"
    return f"{value:.3g}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _power(row: Row, found: Exponent | None) -> tuple[str, str]:
    if found is None:
        return "-", ""
    if row.steep:
        return f"x {row.growth:.3g}", "a block"
    half = (found.high - found.low) / 2
    return f"{found.slope:.2f}", "" if math.isnan(half) else f"+- {half:.2f}"


def _extra(row: Row, first: Row) -> str:
    more = row.parameters - first.parameters
    return f"{more:+,}" if more else "0" if row is not first else f"{row.parameters:,}"


def _about(row: Row, console: Console) -> None:
    plain(console, f"{row.name}: {row.title} ({row.reference})", "bold")
    if row.refused:
        paragraph(console, f"not covered: {row.refused}", indent="  ")
        return
    paragraph(console, f"needs: {row.needs}", indent="  ")
    for line in (*row.changes, *(f"groups: {group}" for group in row.groups)):
        paragraph(console, line, indent="  ")
    for line in row.left:
        paragraph(console, f"not done: {line}", indent="  ")
    one = {"update_exponent", "weight_update_exponent"} if len(row.updates) == 1 else set()
    for name, why in row.reasons.items():
        if name in one:
            continue  # the update itself stands in the table
        paragraph(console, f"{_WORDS.get(name, name)} not measured: {why}", indent="  ")
