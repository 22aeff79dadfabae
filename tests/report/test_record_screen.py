"""The screens of verify and diff: names as they are, no markup read, narrow terminals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from depthgauge.record.difference import difference
from depthgauge.record.document import Table, Verdict, equation_hash
from depthgauge.record.folder import write
from depthgauge.record.verify import verify
from depthgauge.report.record_screen import difference_line, print_difference, print_verification
from tests.record import factory

ODD = "models/[bold]<script>.py:build"


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("width", [40, 100])
def test_a_verification(tmp_path: Path, width: int) -> None:
    long = "h = h + " + " + ".join(f"W{i}(h)" for i in range(30))
    stored = factory.subject(target=ODD, equation=long, equation_hash=equation_hash(long))
    write(tmp_path, factory.record(subject=stored), factory.arrays())
    screen = console(width)
    print_verification(verify(tmp_path, factory.subject(depth=128)), screen)
    lines = shown(screen).splitlines()
    assert ODD in shown(screen).replace("\n", "")
    assert "- depth 96 -> 128" in lines
    assert lines[-1] == "verify: stale (2 reasons)"
    assert all(len(line) <= width for line in lines if str(tmp_path) not in line)
    assert not any(line != line.rstrip() for line in lines)


def test_a_difference_of_many_curves(tmp_path: Path) -> None:
    curves = [factory.curve(quantity=f"q{i:02}", values=f"v{i:02}") for i in range(30)]
    blocks = factory.arrays()["blocks"]
    held = [
        {"blocks": blocks, **{c.values: factory.arrays()["state"] * scale**i
                              for i, c in enumerate(curves)}}
        for scale in (1.0, 10.0)
    ]  # fmt: skip
    left, right = (
        write(tmp_path / str(i), factory.record(curves=curves), arrays)
        for i, arrays in enumerate(held)
    )
    screen = console(100)
    print_difference(
        difference(left, right), ("left", left.record), ("right", right.record), screen
    )
    out = shown(screen)
    assert "and 17 more curves, which differ less; --all shows them\n" in out
    assert out.index("q29") < out.index("q28")  # those that differ most first
    assert "q17" not in out
    assert out.endswith(
        "diff: 0 of 1 judgements and 29 of 30 curves differ, 2 are equal, 0 stand in one only\n"
    )


@pytest.mark.parametrize("every", [False, True])
def test_records_that_share_little_take_few_lines_unless_all_are_asked_for(
    tmp_path: Path, every: bool
) -> None:
    """Two hundred curves of four quantities, as many in one record only, and long tables."""
    shared = [factory.curve(quantity=f"q{i % 4}", configuration=f"c{i}") for i in range(200)]
    own = [factory.curve(quantity="own", configuration=f"c{i}") for i in range(200)]
    held = factory.arrays()
    sides = []
    for factor, curves, equation in ((1.0, shared, "h + W(h)"), (2.0, [*shared, *own], "h - W(h)")):
        rows = tuple((str(i), i * factor) for i in range(150))
        table = Table(kind="rivers", title="t", columns=("a", "b"), rows=rows)
        gate = factory.gate(curves=tuple(range(len(curves))), tables=(table,))
        subject = factory.subject(equation=equation, equation_hash=equation_hash(equation))
        record = factory.record(subject=subject, gates=(gate,), curves=tuple(curves))
        sides.append(write(tmp_path / equation, record, {**held, "state": held["state"] * factor}))
    left, right = sides
    screen = console(100)
    print_difference(
        difference(left, right), ("l", left.record), ("r", right.record), screen, every
    )
    lines = shown(screen).splitlines()
    assert lines[0].startswith("different models: equation sha256:")
    assert sum(line.startswith("q") for line in lines) == (200 if every else 4)
    assert sum(line.startswith("- only right: ") for line in lines) == (200 if every else 6)
    assert (len(lines) > 500) == every
    more = [line for line in lines if line.endswith("; --all shows them")]
    said = ["196 more curves", "194 more that stand in the right one", "143 more changes in tables"]
    assert [any(words in line for line in more) for words in said] == [not every] * 3
    assert every or len(lines) < 40
    counts = [line.split()[3] for line in lines if line.startswith("q")]
    assert every or counts == ["50"] * 4  # one curve of each quantity, and how many there are


def screen_of(tmp_path: Path, **changes: Any) -> str:
    """The screen of the factory's record against one that is changed."""
    arrays = changes.pop("arrays", factory.arrays())
    left = write(tmp_path / "left", factory.record(), factory.arrays())
    right = write(tmp_path / "right", factory.record(**changes), arrays)
    screen = console(160)
    print_difference(
        difference(left, right), ("left", left.record), ("right", right.record), screen
    )
    return shown(screen)


def judged(**changes: Any) -> Any:
    return (factory.gate(curves=(0,), judgements=(factory.judgement(**changes),)),)


def test_what_agrees_to_12_digits_is_equal_and_counted(tmp_path: Path) -> None:
    arrays = factory.arrays()
    arrays["state"] = arrays["state"] * (1 + 4e-13)
    gates = judged(value=1.2 * (1 + 4e-16), median=1.2 * (1 - 4e-13), margin=0.2 + 4e-13)
    assert 1.2 * (1 + 4e-16) != 1.2
    out = screen_of(tmp_path, arrays=arrays, gates=gates)
    assert out.endswith("diff: equal (2 judgements and curves, 2 of them to 12 digits only)\n")
    assert "->" not in out
    assert screen_of(tmp_path).endswith("diff: equal (2 judgements and curves)\n")


@pytest.mark.parametrize(
    ("name", "dtype", "off", "same"),
    [
        ("stiffness", "float32", 1e-6, True),
        ("stiffness", "float32", 1e-4, False),
        ("stiffness", "float64", 1e-6, False),  # which has the digits
        ("gradient_ratio", "float32", 1e-6, False),  # which nothing iterates
    ],
)
def test_curvature_in_float32_is_compared_to_5_digits(
    tmp_path: Path, name: str, dtype: str, off: float, same: bool
) -> None:
    """Where it is judged, in the score that it gives, and in the tables that hold it."""
    sides = []
    for factor in (1.0, 1 + off):
        judgement = factory.judgement(name, value=1.2 * factor, margin=0.2 + factor - 1)
        title = "Learning rate x curvature" if name == "stiffness" else "Both rivers"
        tables = (
            Table(kind="a", title=title, columns=("a", "b"), rows=(("step 0", 0.7 * factor),)),
            Table(kind="a", title="Against", columns=("a", "b"), rows=((name, 0.7 * factor),)),
        )
        record = factory.record(
            subject=factory.subject(dtype=dtype),
            gates=(factory.gate(curves=(0,), judgements=(judgement,), tables=tables),),
            verdict=Verdict(state="pass", weakest="rivers", score=judgement.margin),
        )
        sides.append(write(tmp_path / str(factor), record, factory.arrays()))
    found = difference(*sides)
    assert (found.equal, not found.verdict, not found.others) == (same,) * 3
    assert (found.rounded, found.coarse) == (int(same), int(same))
    said = "diff: equal (2 judgements and curves, 1 (curvature) to 5 digits only)"
    assert (difference_line(found) == said) == same


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": 1.2 * (1 + 1e-11)}, "1.2 -> 1.20000000001 "),
        ({"margin": 0.2 + 1e-7}, "0.2 -> 0.2000001"),
        ({"high": 1.2 * (1 + 1e-11)}, "high 1.2 -> 1.200000000012"),
        ({"n": 3}, "n 2 -> 3"),
        ({"reason": "another"}, "reason '' -> another"),
        ({"state": "warn", "reason": "another"}, "pass -> warn"),
    ],
)
def test_whatever_differs_can_be_seen(tmp_path: Path, changes: Any, said: str) -> None:
    out = screen_of(tmp_path, gates=judged(**changes))
    (row,) = [line for line in out.splitlines() if line.startswith("rivers  gradient_ratio")]
    assert said in row
    assert row.count("->") == 1
    assert out.endswith(
        "diff: 1 of 1 judgements and 0 of 1 curves differ, 1 are equal, 0 stand in one only\n"
    )
