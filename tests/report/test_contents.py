"""The report of a record: what is in it, in which order, and what is said to be missing."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from depthgauge.report.contents import report_of
from depthgauge.report.drawing import EffectFigure, Figure
from depthgauge.report.effects import effects_of
from depthgauge.report.page import (
    Badge,
    Formula,
    Lines,
    Paragraph,
    Report,
    Section,
    Table,
    clean,
    state_of,
    state_words,
)
from tests.report.records import EVIL, record

SECTIONS = [
    "verdict", "equation", "rivers", "branches", "activations", "directions", "correlation",
    "precision", "step", "ablation", "laws", "gates", "corridor", "provenance",
]  # fmt: skip


def section(report: Report, anchor: str) -> Section:
    return next(s for s in report.sections if s.anchor == anchor)


def texts(of: Section) -> list[str]:
    return [part.text for part in of.parts if isinstance(part, Paragraph)]


def table(of: Section, title: str) -> Table:
    return next(p for p in of.parts if isinstance(p, Table) and p.title == title)


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(*record())


def test_the_verdict_comes_first_and_the_provenance_last(report: Report) -> None:
    assert [s.anchor for s in report.sections] == SECTIONS
    assert report.state == "fail"
    assert report.reason.startswith("local gates: saturated_fraction: 0.9")
    assert report.title.startswith("a = 1/sqrt(L); h = h + ")


def test_every_gate_is_in_the_verdict_with_its_state(report: Report) -> None:
    gates = table(section(report, "verdict"), "Gates")
    assert [row[:2] for row in gates.rows] == [
        ("rivers", "✓ pass"),
        ("local gates (weakest)", "✗ fail"),
        ("ablation", "! warn"),
        ("depth sweep", "✓ pass"),
        ("training boundary", "? not measured"),
    ]
    assert texts(section(report, "verdict")) == [
        report.reason,
        "Smallest margin: -0.255 decades to the nearest bound.",
        "Note: matched training runs were not made: not run is not pass",
    ]


def test_a_gate_says_its_question_bound_and_what_it_leaves_open(report: Report) -> None:
    gates = section(report, "gates")
    assert [(p.state, p.label) for p in gates.parts if isinstance(p, Badge)] == [
        ("pass", "rivers"), ("fail", "local gates"), ("warn", "ablation"),
        ("pass", "depth sweep"), ("not_measured", "training boundary"),
    ]  # fmt: skip
    assert "Do both rivers survive the depth?" in texts(gates)
    assert "Leaves open: whether the network learns" in texts(gates)
    (row,) = table(gates, "What local gates measured").rows
    assert row == (
        "saturated_fraction", "✗ fail", "0.9", "0.9", "0.9 to 0.9", "3", "max 0.5", "-0.255",
        "0.9 is above max 0.5 by 0.255 decades",
    )  # fmt: skip


def test_an_equation_is_mathematics_and_a_builders_as_far_as_the_language_goes(
    report: Report,
) -> None:
    formula = section(report, "equation").parts[0]
    assert isinstance(formula, Formula)
    assert "<msqrt><mi>L</mi></msqrt>" in formula.mathml
    document, arrays = record(quantities=["state_rms"])
    document["subject"]["equation"] = "12 x [h = h + W(relu(h))]; h = layernorm(h)"
    folded = section(report_of(document, arrays), "equation").parts[0]
    assert isinstance(folded, Formula)
    assert folded.text == document["subject"]["equation"]
    assert "<mn>12</mn><mo>×</mo>" in folded.mathml
    assert "LayerNorm" in folded.mathml
    document["subject"]["equation"] = "12 x [\n  h = h + W(h)\n]\nh = norm(h)"  # not the language
    written = report_of(document, arrays)
    assert section(written, "equation").parts[0] == Lines(document["subject"]["equation"])
    assert written.title == "spec.toml"
    document["subject"]["equation"] = ""
    assert texts(section(report_of(document, arrays), "equation"))[0].startswith("No equation")
    assert report_of(document, arrays).title == "spec.toml"


def test_both_rivers_have_every_configuration_on_log_axes(report: Report) -> None:
    (rivers,) = (p for p in section(report, "rivers").parts if isinstance(p, Figure))
    assert [(panel.label, panel.log) for panel in rivers.panels] == [
        ("State RMS", True), ("Gradient RMS", True),
    ]  # fmt: skip
    assert all(len(panel.lines) == 15 for panel in rivers.panels)
    assert list(rivers.names()) == ["baseline", "norm=none", "activation=relu", "scale*2",
                                    clean(EVIL)]  # fmt: skip
    assert list(rivers.depths()) == [12, 48, 96]
    assert {style.dash for style in rivers.names().values()} == {0}, "the deepest is solid"
    assert [style.dash for style in rivers.depths().values()] == [2, 1, 0]
    assert "State RMS of 15 curves: at the last block from 1." in rivers.summary()
    assert "(norm=none, depth 96)" in rivers.summary()
    assert "1 with gaps" in rivers.summary()
    assert rivers.caption == "Medians over 3 seeds. Bands reach from the least seed to the largest."


def test_what_was_not_measured_is_said() -> None:
    document, arrays = record((96,), quantities=["state_rms"])
    for gate in document["gates"]:
        gate["tables"] = []
    report = report_of(document, arrays)
    assert texts(section(report, "rivers"))[-1] == "Not in this record: gradient_rms."
    assert texts(section(report, "branches"))[-1] == (
        "Not in this record: branch_to_stream, branch_stream_cosine."
    )
    assert "log_singular_values" in texts(section(report, "directions"))[-1]
    assert texts(section(report, "ablation")) == ["No ablation was run."]
    assert texts(section(report, "laws")) == ["No law was fitted: that needs several depths."]
    assert [f.anchor for f in report.figures()] == ["rivers"]


def test_an_empty_record_still_has_its_verdict() -> None:
    document, _ = record(quantities=[])
    report = report_of(dict(document, gates=[], corridor={"name": "x", "bounds": {}}), {})
    assert [s.anchor for s in report.sections] == SECTIONS
    assert list(report.figures()) == []


def test_what_is_measured_and_not_drawn_is_named(report: Report) -> None:
    assert texts(section(report, "provenance")) == ["In curves.npz and not drawn here: state_max."]


def test_an_ablation_is_an_effect_plot_by_unit_with_its_table(report: Report) -> None:
    decades, share, listed, why = section(report, "ablation").parts
    assert isinstance(decades, EffectFigure)
    assert isinstance(share, EffectFigure)
    assert (decades.unit, share.unit) == ("decades", "difference")
    assert list(decades.names()) == ["forward_drift", "gradient_ratio"]
    assert decades.changes()[0] == "norm=none"
    assert "init=orthogonal" not in decades.changes()
    assert decades.caption.endswith("In the table alone, since they are no number: 1.")
    first = decades.effects[0]
    assert (first.value, first.low, first.high) == (2.0, 1.9, 2.15)
    assert decades.summary() == (
        "6 changes, 2 quantities; the largest effect is +2 (decades) on forward_drift by norm=none."
    )
    assert isinstance(listed, Table)
    assert listed.folded
    assert listed.rows[-1] == ("init=orthogonal", "gradient_ratio", "decades", "0", "-", "-", "-")
    assert why == Paragraph("Cells shown as -: the gradient overflowed to inf.")


def test_a_table_without_effects_has_no_plot_and_says_so() -> None:
    (only,) = effects_of({"title": "T", "columns": ["change", "state"], "rows": []}, "a")
    assert only == Paragraph(
        "No effect plot of 'T': it has no column quantity and no column effect."
    )


@pytest.mark.parametrize("state", ["pass", "warn", "fail", "not_measured"])
def test_every_state_has_a_mark_and_a_word(state: Any) -> None:
    words = state_words(state_of(state))
    assert words[2:] == state.replace("_", " ")
    assert len({state_words(state_of(s)) for s in ("pass", "warn", "fail", "not_measured")}) == 4


@pytest.mark.parametrize("word", ["", "PASS", None, 1, "ok"])
def test_what_is_no_state_is_never_a_pass(word: object) -> None:
    assert state_of(word) == "not_measured"


def test_long_curves_are_thinned_and_the_caption_says_so() -> None:
    report = report_of(*record((2000,), quantities=["state_rms"]))
    (figure,) = (f for f in report.figures() if isinstance(f, Figure))
    assert all(line.x.size < 800 for line in figure.lines())
    assert "of 2,001 blocks" in figure.caption
    short = report_of(*record((96,), quantities=["state_rms"]))
    assert all("Thinned" not in f.caption for f in short.figures())


def test_a_report_reads_the_record_and_leaves_it(report: Report) -> None:
    document, arrays = record()
    before = json.dumps(document)
    report_of(document, arrays)
    assert json.dumps(document) == before
    assert dataclasses.is_dataclass(report)


def test_clean_takes_out_what_steers_and_nothing_else() -> None:
    assert clean("a\tb\r\nc\x07\x1b[0m\u202e é ∑ \ud800") == "a b\nc��[0m� é ∑ �"
    assert clean(3) == "3"
