"""The report on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from depthgauge.report.contents import report_of
from depthgauge.report.page_screen import print_report, report_line
from tests.report.records import record


def screen(width: int = 100, colour: bool = False, **more: object) -> str:
    document, arrays = record(**more)  # type: ignore[arg-type]
    drawn = io.StringIO()
    console = Console(file=drawn, width=width, highlight=False, markup=False, emoji=False,
                      force_terminal=colour)  # fmt: skip
    print_report(report_of(document, arrays), console)
    return drawn.getvalue()


def test_the_top_of_the_screen_is_the_verdict() -> None:
    assert screen().startswith(
        """\
a = 1/sqrt(L); h = h + a * W2(gelu(W1(rmsnorm(h), out=4*n)))

VERDICT

✗ fail: the commission
local gates: saturated_fraction: 0.9 is above max 0.5 by 0.255 decades
Smallest margin: -0.255 decades to the nearest bound.

Gates
gate                   state           reason
rivers                 ✓ pass
local gates (weakest)  ✗ fail          saturated_fraction: 0.9 is above max 0.5 by 0.255 decades
ablation               ! warn          forward_drift: 2.9 is inside max 3 by 0.0147 decades
depth sweep            ✓ pass
training boundary      ? not measured  matched runs are not part of this commission
Note: matched training runs were not made: not run is not pass

THE BLOCK
  a = 1/sqrt(L); h = h + a * W2(gelu(W1(rmsnorm(h), out=4*n)))
"""
    )


def test_the_last_line_is_the_verdict_too() -> None:
    report = report_of(*record())
    line = (
        "commission: FAIL (local gates: saturated_fraction: 0.9 is above max 0.5 by 0.255 decades)"
    )
    assert report_line(report) == line
    assert screen().endswith(f"\n{line}\n")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_longer_than_the_screen(width: int) -> None:
    long = [line for line in screen(width).splitlines() if cell_len(line) > width]
    # Hashes, the command and the closing line are not broken: they are copied.
    assert all("sha256:" in line or "commission" in line or "= h + a" in line for line in long), (
        long
    )


def test_a_curve_has_its_graph_and_a_gap_its_words() -> None:
    text = screen()
    row = next(line for line in text.splitlines() if line.startswith("norm=none, depth 96 "))
    assert "▁" in row
    assert "█" in row
    assert "norm=none, depth 96: not finite from block 31 back in 1 of 3 seeds" in text


def test_nothing_in_a_name_steers_the_terminal() -> None:
    assert "\x1b" not in screen()
    assert "\u202e" not in screen()
    assert "\x1b[" in screen(colour=True), "our own colours are seen"
    assert "\x1b[31m|" not in screen(colour=True)
