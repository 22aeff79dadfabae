"""The report as Markdown: read back by a Markdown reader, names stay text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from depthgauge.errors import SpecificationError
from depthgauge.report.contents import report_of
from depthgauge.report.markdown import SUMMARY, add_to_summary, to_markdown
from depthgauge.report.page import clean
from tests.report.records import EVIL, record

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tokens(text: str) -> list[Any]:
    return [t for token in READER.parse(text) for t in (token, *(token.children or ()))]


def said(text: str) -> list[str]:
    """What each inline piece says, entities read and marks gone."""
    return [
        "".join(child.content for child in token.children or ())
        for token in READER.parse(text)
        if token.type == "inline"
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return to_markdown(report_of(*record()))


def test_the_verdict_is_on_top(text: str) -> None:
    lines = text.splitlines()
    assert lines[0].startswith("# a = 1/sqrt(L); h = h + a \\* W2")
    assert lines[2:9] == [
        "## Verdict",
        "",
        "### ✗ fail: the commission",
        "",
        "local gates: saturated_fraction: 0.9 is above max 0.5 by 0.255 decades",
        "",
        "Smallest margin: -0.255 decades to the nearest bound.",
    ]
    assert "| local gates (weakest) | ✗ fail | saturated_fraction: 0.9 is above" in text


def test_a_curve_is_a_small_graph_beside_its_numbers(text: str) -> None:
    row = next(line for line in text.splitlines() if line.startswith("| norm=none, depth 96 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1][0] == "▁"
    assert cells[1][-1] == "█"
    assert float(cells[3]) > 1000 * float(cells[2])


def test_names_are_text_to_a_reader_of_markdown(text: str) -> None:
    raw = {t.content.strip() for t in tokens(text) if t.type in ("html_block", "html_inline")}
    assert all(block.startswith(("<details><summary>", "</details>")) for block in raw), raw
    shown = clean(EVIL).replace("@a", "@\u200ba").replace("#1", "#\u200b1")
    assert any(f"{shown}, depth 96" == piece for piece in said(text))
    assert not [t for t in tokens(text) if t.type in ("link_open", "image", "code_inline")]


@pytest.mark.parametrize(
    "name",
    ["*a*", "_a_", "~~a~~", "[a](b)", "![a](b)", "`a`", "a|b", "\\", "<b>", "&amp;", "<!--",
     "a_b_c", "# a", "- a", "1. a", "> a", "===", "+ a", "---"],
)  # fmt: skip
def test_no_mark_of_a_name_means_anything(name: str) -> None:
    document, arrays = record(evil=name)
    document["gates"] = document["gates"][-1:]
    document["gates"][0]["question"] = document["verdict"]["reason"] = name
    text = to_markdown(report_of(document, arrays))
    found = said(text)
    assert found.count(name) >= 3, "the reason, the question and the argument"
    assert f"{name}, depth 96" in found
    kinds = {t.type for t in tokens(text)}
    assert not kinds & {"em_open", "link_open", "image", "code_inline", "s_open", "blockquote_open",
                        "bullet_list_open", "ordered_list_open", "hr"}  # fmt: skip
    headings = [t for t in tokens(text) if t.type == "heading_open"]
    assert {t.tag for t in headings} == {"h1", "h2", "h3"}


def test_the_check_of_marks_can_fail() -> None:
    assert "em_open" in {t.type for t in tokens("*a*")}
    assert "html_inline" in {t.type for t in tokens("a <b>c</b>")}
    assert said("*a*") == ["a"]


def test_every_row_has_as_many_cells_as_its_head(text: str) -> None:
    widths: list[int] = []
    for token in READER.parse(text):
        if token.type == "tr_open":
            widths.append(0)
        widths[-1:] = [w + (token.type in ("th_open", "td_open")) for w in widths[-1:]]
    assert len(widths) > 100
    assert min(widths) >= 2
    pipes = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(pipes) == len(widths) + sum(set(line) <= set("|-: ") for line in pipes)


def test_a_fence_is_longer_than_what_it_holds() -> None:
    document, arrays = record(quantities=[])
    document["subject"]["equation"] = "12 x [\n````\n]"
    text = to_markdown(report_of(document, arrays))
    (fence, *_) = (t for t in tokens(text) if t.type == "fence")
    assert fence.content == "12 x [\n````\n]\n"


def test_a_steps_summary_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv(SUMMARY, str(file))
    assert add_to_summary("# a\n") == str(file)
    assert file.read_text() == "before\n# a\n\n"
    monkeypatch.setenv(SUMMARY, str(tmp_path))
    with pytest.raises(SpecificationError, match=r"cannot be written: is a directory"):
        add_to_summary("x")
    monkeypatch.delenv(SUMMARY)
    with pytest.raises(SpecificationError, match=r"\$GITHUB_STEP_SUMMARY names, and it is not set"):
        add_to_summary("x")
