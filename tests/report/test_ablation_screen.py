"""The screen of an ablation: the answer first, nothing cut, no traceback for any number."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import pytest
from rich.console import Console

from depthgauge.report.ablation_screen import ablation_line, print_ablation
from depthgauge.study.ablation import Ablation, Varied
from depthgauge.study.corridor import Corridor
from depthgauge.study.effects import effects
from depthgauge.study.factors import Difference
from tests.factories import profile

CORRIDOR = Corridor.of(forward_drift={"max": 3.0}, gradient_ratio={"max": 2.0})
FACTORS = {"activation": "relu", "norm": "none", "form": "h = h + W(h)", "depth": "2"}


def ablation(
    rows: dict[str, Sequence[Sequence[float]]], before: Sequence[Sequence[float]] = ((1, 1), (8, 8))
) -> Ablation:
    """Networks of one block, by the state's RMS at its two ends under each seed."""
    gradient = [[1.0] * len(before[0])] * 2
    base = profile(before, gradient)
    varied = []
    for name, state in rows.items():
        after = profile(state, gradient)
        difference = Difference(name.partition("=")[0], "one", "other")
        found = tuple(effects(name, base, after))
        varied.append(Varied(name, (difference,), after, CORRIDOR.judge(after), found))
    return Ablation(
        "h = h + W(h)", FACTORS, base.seeds, base, CORRIDOR.judge(base), tuple(varied), "example"
    )


def shown(found: Ablation, width: int = 100) -> str:
    file = io.StringIO()
    print_ablation(found, Console(file=file, width=width, highlight=False, markup=False))
    return file.getvalue()


def test_the_screen() -> None:
    found = ablation({"scale=1": [[1, 1], [1, 4]], "[bold]=none": [[1, 1], [78, 100]]})
    lines = shown(found).splitlines()
    assert lines[0].startswith("forward_drift fails at the baseline: no single change of those")
    found = ablation({"scale=1": [[1, 1], [1, 2]], "[bold]=none": [[1, 1], [78, 100]]})
    text = shown(found)
    assert text.startswith(
        "forward_drift fails at the baseline: scale=1 alone brings it back inside and breaks "
        "nothing\n\nh = h + W(h)\nbaseline: activation relu, depth 2; corridor: example\n\n"
        "change       verdict  margin  by             before and after\n"
        "baseline     FAIL     -0.426  forward_drift\n"
        "scale=1      PASS     +0.176  forward_drift  scale: one -> other\n"
        "[bold]=none  FAIL      -1.52  forward_drift  [bold]: one -> other\n"
    )
    assert (
        "change            last state            drift\n"
        "scale=1               -0.753           -0.753\n"
        "              (-0.9 to -0.6)   (-0.9 to -0.6)\n"
    ) in text
    assert "median over 2 seeds, (least to largest) below it." in text
    assert "Student's t." in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_one_seed_has_no_spread() -> None:
    text = shown(ablation({"scale=1": [[1.0], [2.0]]}, [[1.0], [8.0]]))
    assert "(least to largest)" not in text
    assert "By size: one seed has no spread." in text
    assert " to " not in text[text.index("change ") :].partition("Effects")[0]


@pytest.mark.parametrize("end", [math.inf, math.nan, 0.0])
def test_what_is_not_finite_is_words(end: float) -> None:
    lost = shown(ablation({"scale=9": [[1, 1], [end, end]]}))
    found = shown(ablation({"scale=9": [[1, 1], [2, 2]]}, [[1, 1], [end, end]]))
    word = "zero before or after the change" if end == 0 else "not finite after the change"
    assert f"{word} in 2 of 2 seeds" in " ".join(lost.split())
    other = word if end == 0 else "finite after the change only"
    assert f"{other} in 2 of 2 seeds" in " ".join(found.split())
    assert "nan" not in lost + found
    cells = [" ".join(text.split()) for text in (lost, found)]
    assert ("scale=9 zero" if end == 0 else "scale=9 lost") in cells[0]
    assert ("scale=9 zero" if end == 0 else "scale=9 finite again") in cells[1]
    if end != 0:
        never = shown(ablation({"scale=9": [[1, 1], [end, end]]}, [[1, 1], [end, end]]))
        assert "scale=9 never finite" in " ".join(never.split())


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    found = ablation({"scale=1": [[1, 1], [1, 2]], "norm=layernorm": [[1, 1], [78, 100]]})
    words = shown(found, width).split()
    for word in ("scale=1", "norm=layernorm", "-0.426", "forward_drift", "-0.753"):
        assert word in words, word


def test_without_a_corridor_there_is_no_verdict() -> None:
    base = ablation({"scale=1": [[1, 1], [1, 2]]})
    bare = Ablation(
        base.target, base.factors, base.seeds, base.baseline, None, (), left=(("norm=x", "why"),),
        notes=("state_max was not judged: a reason",),
    )  # fmt: skip
    text = shown(bare)
    assert text.startswith("no bound was declared, so none can fail")
    assert "verdict" not in text
    assert "no corridor" in text
    assert "not tried: norm=x: why" in text
    assert "state_max was not judged: a reason" in text


def test_text_and_closing_line() -> None:
    found = ablation({"scale=1": [[1, 1], [1, 2]]})
    assert str(found) == shown(found).rstrip("\n")
    assert ablation_line(found) == f"ablate: {found.answer}"
    assert "\n" not in ablation_line(found)
