"""``depthgauge report``: what it writes, what it says, what it needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from depthgauge.record.document import parsed
from depthgauge.record.folder import write
from tests.cli.command import Command
from tests.cli.test_help import imported_by
from tests.report.records import record

VERDICT = (
    "commission: FAIL (local gates: saturated_fraction: 0.9 is above max 0.5 by 0.255 decades)"
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    document, arrays = record(quantities=["state_rms", "gradient_rms"])
    write(tmp_path / "record", parsed(json.dumps(document).encode()), arrays)
    return tmp_path / "record"


def test_the_page_stands_beside_the_record(command: Command, directory: Path) -> None:
    ran = command("report", directory)
    page = directory / "report.html"
    assert (ran.status, ran.out) == (0, f"{VERDICT}\nwritten to {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in directory.iterdir()) == [
        "curves.npz",
        "record.json",
        "report.html",
    ]


def test_the_page_goes_where_it_is_told(command: Command, directory: Path) -> None:
    ran = command("report", directory, "-o", directory / "a.html", "--quiet")
    assert (ran.status, ran.out) == (0, f"{VERDICT}\n")
    assert "Plotly.react" in (directory / "a.html").read_text()
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(("name", "first"), [("markdown", "# a = 1/"), ("text", "a = 1/sqrt(L);")])
def test_text_goes_to_standard_output_or_a_file(
    command: Command, directory: Path, name: str, first: str
) -> None:
    ran = command("report", directory, "--format", name)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(first)
    told = command("report", directory, "--format", name, "-o", directory / "out")
    assert told.out.endswith(f"written to {directory / 'out'}\n")
    assert (directory / "out").read_text() == ran.out
    assert command("report", directory, "--format", name, "--quiet").out == f"{VERDICT}\n"


def test_the_summary_of_a_step_is_added_to(
    command: Command, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    ran = command("report", directory, "--summary")
    assert (ran.status, ran.out) == (2, "")
    assert "$GITHUB_STEP_SUMMARY names, and it is not set" in ran.err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(directory / "step.md"))
    ran = command("report", directory, "--summary")
    assert (ran.status, ran.out) == (0, f"{VERDICT}\n")
    assert (directory / "step.md").read_text().startswith("# a = 1/sqrt(L)")
    assert not (directory / "report.html").exists()
    both = command("report", directory, "--summary", "-o", directory / "a.html")
    assert both.status == 0
    assert (directory / "step.md").read_text().count("## Verdict") == 2
    assert (directory / "a.html").exists()


def test_what_cannot_be_used_is_a_sentence(
    command: Command, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = command("report", directory, "--format", "markdow")
    assert (ran.status, ran.err) == (
        2,
        "depthgauge: --format is 'markdow', expected one of html, markdown, text (did you mean "
        "'markdown'?)\n",
    )
    assert command("report", directory / "none").status == 2
    ran = command("report", directory, "-o", directory)
    assert (ran.status, "a directory; give the name of a file" in ran.err) == (2, True)
    monkeypatch.setitem(sys.modules, "plotly", None)
    ran = command("report", directory)
    assert ran.status == 2
    assert ran.err.endswith("install it with: pip install 'depthgauge[report]'\n")
    assert not list(directory.glob("*.html")), "half a page is not left"
    assert command("report", directory, "--format", "markdown").status == 0


@pytest.mark.parametrize("arguments", [[], ["--format", "markdown"], ["--format", "text"]])
def test_no_torch_is_imported(directory: Path, arguments: list[str]) -> None:
    given = ["report", str(directory), *arguments]
    code = f"from depthgauge.cli.main import main\nassert main({given}) == 0"
    assert imported_by(code, "torch", "depthgauge.measurement", "matplotlib") == "[]"
