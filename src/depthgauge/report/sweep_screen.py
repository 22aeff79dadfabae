"""A sweep over depths in the terminal: summaries with their laws, bounds with where they break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from depthgauge.profile_text import number
from depthgauge.report.tables import Column, paragraph, plain, print_table
from depthgauge.summaries import spread

if TYPE_CHECKING:
    from rich.console import Console

    from depthgauge.study.corridor import Judgement
    from depthgauge.study.swept import Sweep

__all__ = ["print_sweep", "sweep_line"]


def print_sweep(found: Sweep, console: Console) -> None:
    """Target and sizes, the table of laws, the table of bounds, and whether it discriminated."""
    deepest = found.profiles[found.depths[-1]]
    for line in found.target.splitlines():
        plain(console, line)
    seeds = len(found.seeds)
    paragraph(
        console,
        f"depths {', '.join(map(str, found.depths))}; width {deepest.width}, batch "
        f"{deepest.batch}, {deepest.dtype}, {seeds} seed{'s' * (seeds > 1)}"
        f"{': medians' if seeds > 1 else ''}",
    )
    plain(console)
    print_table(console, _laws(found))
    plain(console)
    if found.breaks:
        print_table(console, _bounds(found))
        plain(console)
        for line in _unjudged(found):
            paragraph(console, line, "not measured: ")
    style = "green" if found.state in ("pass", "warn") else "bold red"
    plain(console, sweep_line(found), style)


def sweep_line(found: Sweep) -> str:
    """The closing line: the corridor's verdict over all depths, and whether it discriminated."""
    name = f" {found.corridor}" if found.corridor else ""
    state = found.state.replace("_", " ").upper()
    return f"corridor{name}: {state}; {found.discrimination}"


def _laws(found: Sweep) -> list[Column]:
    columns = [Column("summary", list(found.laws), right=False)]
    for depth in found.depths:
        summary = found.profiles[depth].summary()
        cells = [_median(summary[name]) for name in found.laws]
        columns.append(Column(f"at {depth}", cells))
    words = [str(law) for law in found.laws.values()]
    return [*columns, Column("over depth", words, right=False, wraps=True)]


def _median(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """Over the seeds whose value is finite."""
    good = values[np.isfinite(values)]
    return number(spread(good if good.size else values).median)


def _bounds(found: Sweep) -> list[Column]:
    """The margin at each depth, in decades, in capitals where it is outside."""
    rows = [b.name for b in found.breaks]
    columns = [Column("margin of", rows, right=False)]
    for depth in found.depths:
        judged = {j.name: j for j in found.verdicts[depth].judgements}
        columns.append(Column(f"at {depth}", [_margin(judged.get(name)) for name in rows]))
    words = [str(b) for b in found.breaks]
    return [*columns, Column("breaks", words, right=False, wraps=True)]


def _margin(judged: Judgement | None) -> str:
    if judged is None or judged.state == "not_measured":
        return "-"
    word = {"fail": "FAIL ", "warn": "WARN "}.get(judged.state, "")
    return f"{word}{judged.margin:+.3g}"


def _unjudged(found: Sweep) -> Sequence[str]:
    """Bounds that no depth was judged by, each reason once."""
    reasons: dict[str, list[str]] = {}
    for b in found.breaks:
        if set(b.states.values()) == {"not_measured"}:
            first = next(iter(found.verdicts.values()))
            why = next(j.reason for j in first.judgements if j.name == b.name)
            reasons.setdefault(why, []).append(b.name)
    return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
