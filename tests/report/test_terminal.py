"""Screens, line by line, at a width and into a file that the test chooses."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from rich.console import Console

import depthgauge as dg
from depthgauge.report import progress as progress_module
from depthgauge.report.progress import progress
from depthgauge.report.tables import Column, print_table, terminal
from depthgauge.report.terminal import print_profile, print_suite, profile_line, suite_line
from depthgauge.sites import QUANTITIES
from depthgauge.study.claims import Claim, SuiteResult
from depthgauge.study.corridor import Corridor
from tests.factories import profile

SUITE = SuiteResult(
    suite="example",
    about="Two networks with different keys, to see what a table makes of them.",
    configurations=(
        {
            "name": "first",
            "depth": 4,
            "skip": True,
            "branch_scale": None,
            "forward_end_rms": 1.52e14,
            "equation": "h = h + W(h)",
            "curves": {"block": [0, 1, 2], "state_rms": [1, 1e7, 1e14], "gradient_rms": [3, 2, 1]},
        },
        {
            "name": "second [bold]",
            "depth": 4,
            "norm": "rmsnorm",
            "forward_end_rms": None,
            "forward_end_rms_reason": "overflow to inf",
            "component_gain": 0.381,
            "curves": {"block": [0, 1, 2], "state_rms": [1, None, math.inf], "component": [1] * 3},
        },
    ),
    claims=(
        Claim("first: end RMS", 1.52e14, min=1e8),
        Claim(
            "second: the component's gain, a claim whose name is long enough to need another line "
            "on a screen",
            0.381,
            min=0.5,
            max=2,
        ),
    ),
    lessons=("The first grows by 14 decades, and the second is no number before its end: " * 2,),
    settings={"width": 64, "dtype": "float64", "eps": 1e-8, "input": "a, b", "versions": {}},
)
PROFILE = profile(
    [[1, 1, 1], [2, 4, 9], [4, 8, 12]],
    [[3, 2, 4], [2, 2, 2], [1, 1, 1]],
    extra={"live_derivative_fraction": [[0.5, 0.4, 0.6], [0.3, 0.2, 0.4]]},
    streams=({"name": "h", "branches": 2, "skip": "identity", "placement": "pre", "m": [2, 2]},),
    settings={"init": {"W1": "he"}, "device": "cpu"},
    not_measured=dict.fromkeys(QUANTITIES, "only the rivers were asked for"),
)
VERDICT = Corridor.of(
    forward_drift={"max": 10}, gradient_ratio={"min": 0.1, "max": 4.5}, state_max={"max": 9}
).judge(PROFILE)
OVERFLOW = profile((1.0, 2.0, math.inf, math.nan), (math.nan, math.nan, 1.0, 1.0))

SUITE_AT_100 = """\
suite example: Two networks with different keys, to see what a table makes of them.
width 64, dtype float64, eps 1e-08

configuration  blocks  skip  skip scale          end RMS  norm     component gain
first               4   yes           -         1.52e+14  -                     -
second [bold]       4     -           -  overflow to inf  rmsnorm           0.381

curves: log10 over the blocks, each from its least to its largest
configuration  state RMS  gradient RMS  component
first          ▁▅█        █▆▁
second [bold]  ▄××                      ▄▄▄

         value  bound     claim
PASS  1.52e+14  > 1e+08   first: end RMS
FAIL     0.381  0.5 to 2  second: the component's gain, a claim whose name is long enough to need
                          another line on a screen

The first grows by 14 decades, and the second is no number before its end: The first grows by 14
decades, and the second is no number before its end:

checks: FAIL (1 of 2 claims does not hold)
"""
PROFILE_AT_100 = """\
h = h + a * W2(relu(W1(h)))
2 blocks, 2 residual branches of 2 weight layers, skip identity, norm placement pre
width 64, batch 128, float32, 3 seeds (0..2), init W1 he, on cpu

summary                   median  [min, max]  n
forward_end_rms                8  [4, 12]     3
forward_drift                  8  [4, 12]     3
gradient_ratio                 3  [2, 4]      3
gradient_drift                 3  [2, 4]      3
live_derivative_fraction     0.4  [0.3, 0.5]  3

river         log10  at the input  at block 2
state RMS     ▁▆█               1           8
gradient RMS  █▆▁               3           1

steepest  river         factor  seed
block 1   state RMS          9     2
block 2   state RMS          2     0
block 1   gradient RMS       2     2

gate  live, mean
relu         0.4

not measured: state_mean, state_max, quantiles, nonfinite_fraction, gradient_mean, gradient_max,
              gradient_nonfinite_fraction, saturated_fraction, dead_fraction, derivative_q05,
              derivative_q50, derivative_q95, branches, correlation, jacobian, spectrum, blocks,
              directions, updates, precision, stiffness (only the rivers were asked for)

corridor                      value  bound              margin  reason
forward_drift   FAIL             12  max 10            -0.0792  12 is 0.0792 decades outside \
max 10;
                                                                1 of 3 seeds outside
gradient_ratio  WARN              4  min 0.1, max 4.5  +0.0512  4 is 0.0512 decades inside max 4.5;
                                                                1 of 3 seeds within 0.1
state_max       NOT MEASURED      -  max 9                   -  only the rivers were asked for

corridor: FAIL, smallest margin -0.0792 decades (forward_drift: 12 is 0.0792 decades outside \
max 10; 1 of 3 seeds outside)
"""
SUITE_AT_60 = """\
suite example: Two networks with different keys, to see what
a table makes of them.
width 64, dtype float64, eps 1e-08

configuration  blocks  skip  skip scale          end RMS
first               4   yes           -         1.52e+14
second [bold]       4     -           -  overflow to inf

configuration  norm     component gain
first          -                     -
second [bold]  rmsnorm           0.381

curves: log10 over the blocks, each from its least to its
largest
configuration  state RMS  gradient RMS  component
first          ▁▅█        █▆▁
second [bold]  ▄××                      ▄▄▄

         value  bound     claim
PASS  1.52e+14  > 1e+08   first: end RMS
FAIL     0.381  0.5 to 2  second: the component's gain, a
                          claim whose name is long enough to
                          need another line on a screen

The first grows by 14 decades, and the second is no number
before its end: The first grows by 14 decades, and the
second is no number before its end:

checks: FAIL (1 of 2 claims does not hold)
"""


def screen(draw: Callable[..., None], *arguments: Any, width: int, **options: Any) -> str:
    file = io.StringIO()
    draw(*arguments, console=Console(width=width, file=file, **options))
    return file.getvalue()


# ------------------------------------------------------------------------- golden screens


def test_suite_at_100_columns() -> None:
    assert screen(print_suite, SUITE, width=100) == SUITE_AT_100


def test_suite_at_60_columns() -> None:
    assert screen(print_suite, SUITE, width=60) == SUITE_AT_60


def test_profile_at_100_columns() -> None:
    assert screen(print_profile, PROFILE, VERDICT, width=100) == PROFILE_AT_100


# -------------------------------------------------------------------------------- suites


def test_the_closing_line_of_a_suite() -> None:
    good, bad = Claim("a", 1.0, max=2), Claim("b", math.nan, max=2)

    def line(*claims: Claim) -> str:
        return suite_line(SuiteResult("s", "", (), claims))

    assert line(good) == "checks: PASS"
    assert line(good, bad) == "checks: FAIL (1 of 2 claims does not hold)"
    assert line(bad, bad) == "checks: FAIL (2 of 2 claims do not hold)"
    assert line() == "checks: FAIL (no claim)"


def test_a_suite_without_curves_claims_and_lessons_is_still_a_screen() -> None:
    bare = SuiteResult("bare", "Nothing.", ({"name": "a", "x": 1},), ())
    assert screen(print_suite, bare, width=100) == (
        "suite bare: Nothing.\n\nconfiguration  x\na              1\n\nchecks: FAIL (no claim)\n"
    )


def test_a_legend_says_what_rows_and_columns_are_and_a_spread_stands_beside_its_number() -> None:
    rows = (
        {"name": "a", "x": 1, "loss": 0.17562, "loss_sd": 0.0413, "hidden": [1]},
        {"name": "b", "x": 2, "loss": 12.0, "loss_sd": 3.2},
        {"name": "c", "x": 3, "loss": None, "loss_sd": None, "loss_reason": "not finite"},
        {"name": "d", "x": 4, "loss": 2.0, "loss_sd": 0.0},
    )
    legend = {"": "A row is a letter, n = 2.", "loss": "of held-out rows", "absent": "no column"}
    told = SuiteResult("fixup-goldilocks", "Letters.", rows, (), legend=legend)
    assert screen(print_suite, told, width=100) == (
        "suite fixup-goldilocks: Letters.\n\nA row is a letter, n = 2.\n\n"
        "configuration  branch step  step 1  moving  run loss            loss  failed\n"
        "a                        -       -       -         -  0.176 +- 0.041       -\n"
        "b                        -       -       -         -     12.0 +- 3.2       -\n"
        "c                        -       -       -         -      not finite       -\n"
        "d                        -       -       -         -          2 +- 0       -\n\n"
        "  loss: of held-out rows\n\nchecks: FAIL (no claim)\n"
    )


@pytest.mark.parametrize("module", ["fixup_counts", "fixup", "goldilocks"])
def test_every_column_of_fixup_s_suites_is_told_under_a_name_of_its_own(module: str) -> None:
    legend: dict[str, str] = import_module(f"depthgauge.study.{module}").LEGEND
    suite = {"fixup": "fixup-first-step", "goldilocks": "fixup-goldilocks"}.get(module)
    keys = [key for key in legend if key]
    # Of fixup-counts every number has a column; what is shown of the others is a choice.
    row = {"name": "a", **dict.fromkeys(keys, 1)}
    lines = screen(
        print_suite,
        SuiteResult(suite or "fixup-counts", "", (row,), (), legend=legend),
        width=400,
    ).splitlines()
    header = next(line for line in lines if line.startswith("configuration"))
    names = re.split(r" {2,}", header)[1:]
    assert len(set(names)) == len(names) == len(keys)
    told = [line.partition(":")[0].strip() for line in lines if line.startswith("  ")]
    assert told == names


# ------------------------------------------------------------------------------ profiles


def test_overflow_is_said_where_it_began() -> None:
    text = screen(print_profile, OVERFLOW, width=100)
    assert "▁█××" in text
    line = text.splitlines()[-1]
    assert line == profile_line(OVERFLOW)
    assert line == (
        "measured 3 blocks; state is not finite from block 2 (blocks.1) on, in 1 of 1 seeds; "
        "gradient is not finite, going back, from block 1 (blocks.0) on, in 1 of 1 seeds; "
        "no corridor was declared"
    )
    verdict = Corridor.of(forward_drift={"max": 3}).judge(OVERFLOW)
    judged = screen(print_profile, OVERFLOW, verdict, width=100)
    assert "\nstate is not finite from block 2 (blocks.1) on, in 1 of 1 seeds\n" in judged
    assert judged.splitlines()[-1].startswith("corridor: FAIL, smallest margin -inf decades (forw")


def test_one_seed_has_a_value_and_no_spread() -> None:
    text = screen(print_profile, profile((1.0, 2.0)), width=100)
    assert re.search(r"^summary +value +n$", text, re.M)
    assert re.search(r"^forward_end_rms +2 +1$", text, re.M)
    assert "min, max" not in text


def test_seeds_that_are_not_finite_are_counted_beside_the_others() -> None:
    text = screen(print_profile, profile([[1, 1, 1], [2, 4, math.nan]]), width=100)
    assert re.search(r"^forward_end_rms +3 +\[2, 4\] +2, 1 not finite$", text, re.M)


def test_what_was_counted() -> None:
    none = profile(branches=0)
    assert "\n2 blocks, no residual branch\n" in screen(print_profile, none, width=100)
    stream = {"branches": 4, "m": [1, 2], "skip": "scaled", "placement": "post", "inner": 2}
    some = profile(branches=4, streams=(stream,))
    assert (
        "2 blocks, 4 residual branches of 1 or 2 weight layers, skip scaled, norm placement post, "
        "2 inner\n"
    ) in screen(print_profile, some, width=100)


@pytest.mark.parametrize("state", ["pass", "warn"])
def test_a_corridor_that_holds(state: str) -> None:
    corridor = Corridor.of(forward_drift={"max": 40, "warn": 0.1 if state == "pass" else 2})
    line = profile_line(profile(), corridor.judge(profile()))
    assert line.startswith(f"corridor: {state.upper()}, smallest margin +1 decades")


# ------------------------------------------------------------------------ pipes, terminals


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
def test_every_width_works_and_numbers_are_not_cut(width: int) -> None:
    for text in (
        screen(print_suite, SUITE, width=width),
        screen(print_profile, PROFILE, VERDICT, width=width),
    ):
        assert "\x1b" not in text
        assert "…" not in text
        assert not re.search(r"[─-╿]", text)  # no boxes
        assert all(line == line.rstrip() for line in text.splitlines())
    assert "1.52e+14" in screen(print_suite, SUITE, width=width)


def test_a_terminal_gets_colours_and_a_pipe_none() -> None:
    text = screen(print_suite, SUITE, width=100, force_terminal=True, color_system="standard")
    assert "\x1b[32mPASS\x1b[0m" in text
    assert "\x1b[1;31mFAIL\x1b[0m" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == SUITE_AT_100


def test_text_in_brackets_is_no_markup() -> None:
    assert "second [bold]" in screen(print_suite, SUITE, width=100)


def test_a_pipe_is_100_wide_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert terminal().width == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal().width == 72


def test_a_table_that_is_too_wide_is_split_and_repeats_its_first_column() -> None:
    columns = [
        Column("name", ["a", "b"], right=False),
        Column("first", ["1", "2"]),
        Column("second", ["3", "4"]),
    ]

    def draw(console: Console) -> None:
        print_table(console, columns)

    assert screen(draw, width=19) == (
        "name  first  second\na         1       3\nb         2       4\n"
    )
    assert screen(draw, width=18) == (
        "name  first\na         1\nb         2\n\nname  second\na          3\nb          4\n"
    )
    assert screen(draw, width=8).startswith("a\n  first: 1\nb\n  first: 2\n\na\n  second: 3\n")


# ------------------------------------------------------------------------------ progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("file", "quiet", "patience", "drawn"),
    [
        (Terminal(), False, 0.0, True),
        (Terminal(), False, 60.0, False),
        (Terminal(), True, 0.0, False),
        (io.StringIO(), False, 0.0, False),
    ],
)
def test_progress_is_for_long_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, file: io.StringIO, quiet: bool, patience: float, drawn: bool
) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with progress("measuring", quiet=quiet, file=file) as step:
        for done in range(1, 4):
            step(done, 3)
    assert ("measuring" in file.getvalue()) == drawn
    assert bool(file.getvalue()) == drawn


def test_progress_says_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    with progress("sweeping", file=file) as step:
        for depth in (12, 48):
            step.now(f"layers {depth}, seed 0")
            step(depth, 48)
    assert "sweeping layers 48, seed 0" in file.getvalue()
    silent = io.StringIO()
    with progress("sweeping", file=silent) as step:
        step.now("layers 12, seed 0")
    assert silent.getvalue() == ""


def test_progress_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()

    def interrupted() -> None:
        with progress("measuring", file=file) as step:
            step(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().rstrip().endswith("\x1b[2K")  # the bar's line is wiped


def test_one_step_of_the_optimiser_is_a_table_of_its_own() -> None:
    found = dg.measure(
        "h + W2(relu(W1(h)))/sqrt(L)", depth=4, width=8, batch=4, instruments="updates"
    )
    lines = screen(print_profile, found, width=100).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("one step "))
    table = lines[head + 1 : lines.index("", head)]
    labels = ["state, relative", "last state, by a branch", "weights of a", "alignment of branches"]
    assert len(table) == len(labels)
    for line, label in zip(table, labels, strict=True):
        assert line.startswith(label)
    assert "0 at the input" in table[0]
    alignment = f"{found['update_alignment'][0]:.4g} at block 4"
    assert alignment in table[3]


def test_the_largest_gain_of_a_wide_block_is_stated_with_its_accuracy() -> None:
    """Where every direction is followed it is exact, and nothing stands behind it."""
    for exact in (8, 256):
        effort = dg.Effort(exact=exact, rank=4, iterations=1)
        found = dg.measure("W(h)", depth=2, width=24, instruments="blocks", effort=effort)
        drawn = screen(print_profile, found, width=160)
        (line,) = (line for line in drawn.splitlines() if "largest gain of a block" in line)
        notes = found.settings["instruments"]
        assert isinstance(notes, dict)
        change = notes["blocks"].get("relative_change_of_the_largest", 0.0)
        assert (f"± {change * found['block_gain'][0]:.2g} at" in line) == (exact == 8)
        assert ("±" in line) == (exact == 8)
