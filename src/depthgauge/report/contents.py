"""``report_of``: from a record and its arrays to the report, section by section.

What a section needs and the record does not hold is said in its place: silence is never a pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from depthgauge.report.curves import QUANTILE, Curves, is_log, points_each
from depthgauge.report.drawing import Figure, Panel
from depthgauge.report.effects import effects_of
from depthgauge.report.evidence import (
    corridor,
    equation,
    gates,
    provenance,
    tables,
    verdict,
    verdict_reason,
)
from depthgauge.report.growth import growth
from depthgauge.report.page import Paragraph, Part, Report, Section, clean, state_of
from depthgauge.sites import QUANTITIES

__all__ = ["report_of"]

Arrays = Mapping[str, npt.NDArray[Any]]

SPECTRUM: Final = "log_singular_values"
_RANKS: Final = "Effective ranks and gains over depth"

#: Sections of curves: anchor, heading, what it shows, and the quantities that are its panels.
_CURVES: Final[tuple[tuple[str, str, str, dict[str, str]], ...]] = (
    (
        "rivers",
        "Both rivers over depth",
        "What every block passes on, and the gradient that reaches it from behind.",
        {"state_rms": "State RMS", "gradient_rms": "Gradient RMS"},
    ),
    (
        "branches",
        "Branches beside the stream",
        "What a branch adds, over the stream that it is added to, and the cosine between the two.",
        {
            "branch_to_stream": "Branch-to-stream ratio",
            "branch_stream_cosine": "Cosine of branch and stream",
        },
    ),
    (
        "activations",
        "Gates of the activations",
        "The share of derivatives that are alive, that are flat, and of units dead on this batch.",
        {
            "live_derivative_fraction": "Live derivatives",
            "saturated_fraction": "Saturated",
            "dead_fraction": "Dead units",
        },
    ),
    (
        "directions",
        "Singular spectrum over depth",
        "Of the Jacobian from a state to the last one: how many directions still get through.",
        {
            "effective_rank_participation": "Participation ratio",
            "effective_rank_entropy": "Entropy rank",
            "stable_rank": "Stable rank",
            "apjn": "Averaged Jacobian norm",
            "block_gain": "Largest gain of a block",
            "block_loss": "Smallest gain of a block",
        },
    ),
    (
        "correlation",
        "Correlation",
        "The mean cosine between two examples, and between two tokens: at 1 all point one way.",
        {"correlation": "Between examples", "token_correlation": "Between tokens"},
    ),
    (
        "precision",
        "Head-room of the precision",
        "Binary digits between the largest magnitude and overflow, between a typical gradient and "
        "underflow; below 0 there is no room.",
        {
            "headroom_float16_bits": "To overflow in float16",
            "headroom_bfloat16_bits": "To overflow in bfloat16",
            "headroom_float8_e4m3_bits": "To overflow in float8 e4m3",
            "headroom_float8_e5m2_bits": "To overflow in float8 e5m2",
            "underflow_headroom_bits": "Gradient to underflow",
            "relative_error_state": "Error of the state",
            "relative_error_gradient": "Error of the gradient",
        },
    ),
    (
        "step",
        "One step of the optimiser",
        "How far one step moves each state, and what each branch alone does to the last one.",
        {
            "functional_update": "Change of the state",
            "branch_update": "Change by a branch alone",
            "update_to_weight": "Change of the weights",
        },
    ),
)
_DRAWN: Final = frozenset(name for *_, panels in _CURVES for name in panels)


def report_of(record: Mapping[str, Any], arrays: Arrays) -> Report:
    """The report of a record's document (see ``record.json``) and the arrays of ``curves.npz``.

    Every curve is thinned to what a screen shows, the whole page to a few megabytes whatever the
    depth. Raises UsageError where the record names an array that is missing or has another shape.
    """
    curves = Curves(record, arrays)
    points = points_each(curves.count([*_DRAWN]))
    found = record["verdict"]
    state = state_of(found["state"])
    sections = [
        Section("verdict", "Verdict", tuple(verdict(record))),
        Section("equation", "The block", tuple(equation(record))),
        *(
            Section(anchor, heading, tuple(_drawn(curves, points, anchor, heading, about, panels)))
            for anchor, heading, about, panels in _CURVES
        ),
        Section("ablation", "Ablation", tuple(_ablation(record))),
        Section("laws", "Laws over depth", tuple(_laws(record, curves))),
        Section("gates", "Gate by gate", tuple(gates(record))),
        Section("corridor", "The corridor", tuple(corridor(record))),
        Section("provenance", "Provenance", tuple(provenance(record, _not_drawn(curves)))),
    ]
    title = _title(record["subject"])
    return Report(title, state, verdict_reason(found), tuple(sections))


def _title(subject: Mapping[str, Any]) -> str:
    """The equation where it is one line, else what was commissioned."""
    lines = clean(subject["equation"]).strip().splitlines()
    return lines[0] if len(lines) == 1 else clean(subject["target"]).replace("\n", " ")


def _drawn(
    curves: Curves, points: int, anchor: str, heading: str, about: str, panels: Mapping[str, str]
) -> Iterator[Part]:
    yield Paragraph(about)
    found, missing = [], []
    if anchor == "directions":
        name, lines = curves.spectrum(SPECTRUM, points)
        if lines:
            panel = Panel("Singular values", "decades", False, lines)
            title, heading = f"Some directions of {name}", _RANKS
            yield _captioned(Figure("spectrum", title, (panel,), ""))
        else:
            missing.append(SPECTRUM)
    for name, label in panels.items():
        if lines := curves.lines(name, points):
            unit = QUANTITIES[name].unit if name in QUANTITIES else ""
            found.append(Panel(label, unit, is_log(name), lines))
        else:
            missing.append(name)
    if found:
        yield _captioned(Figure(anchor, heading, tuple(found), ""))
    if missing:
        yield Paragraph(f"Not in this record: {', '.join(missing)}.")


def _captioned(figure: Figure) -> Figure:
    """What a line and a band are, and how much of a long curve is shown."""
    most = max(line.seeds for line in figure.lines())
    said = [figure.seeds()]
    if most > 10:
        quantiles = f"{100 * QUANTILE:g} to the {100 - 100 * QUANTILE:g} per cent quantile"
        said.append(f"Bands reach from the {quantiles} over seeds.")
    elif most > 1:
        said.append("Bands reach from the least seed to the largest.")
    if lost := figure.thinned():
        said.append(
            f"Thinned to what a screen shows: of {lost[0]:,} blocks {lost[1]:,} are drawn, among "
            f"them the first, the last, and the least and largest of every stretch."
        )
    return dataclasses.replace(figure, caption=" ".join(said))


def _not_drawn(curves: Curves) -> list[str]:
    return [
        name
        for name in curves.quantities()
        if name not in _DRAWN and not name.startswith(f"{SPECTRUM}[")
    ]


def _ablation(record: Mapping[str, Any]) -> Iterator[Part]:
    found = _tables(record, "ablation")
    if not found:
        yield Paragraph("No ablation was run.")
    for i, table in enumerate(found):
        yield from effects_of(table, f"ablation-{i + 1}")
        yield from tables([table])


def _laws(record: Mapping[str, Any], curves: Curves) -> Iterator[Part]:
    if figure := growth(curves):
        yield figure
    found = _tables(record, "laws")
    if not found:
        yield Paragraph("No law was fitted: that needs several depths.")
    yield from tables(found)


def _tables(record: Mapping[str, Any], kind: str) -> Sequence[Mapping[str, Any]]:
    return [
        table
        for gate in record.get("gates", [])
        for table in gate.get("tables", [])
        if table["kind"] == kind
    ]
