"""The screens of verify and diff: names as they are, no markup read, narrow terminals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from depthgauge.record.difference import difference
from depthgauge.record.document import equation_hash
from depthgauge.record.folder import write
from depthgauge.record.verify import verify
from depthgauge.report.record_screen import print_difference, print_verification
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
    assert "and 17 more curves, which differ less" in out
    assert out.index("q29") < out.index("q28")  # those that differ most first
    assert "q17" not in out
    assert out.endswith(
        "diff: 0 of 1 judgements and 29 of 30 curves differ, 2 are equal, 0 stand in one only\n"
    )


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
