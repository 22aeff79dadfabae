"""The scalar suite: closed forms, quoted figures, and claims that can fail."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import ClaimError
from depthgauge.network.spec import Network
from depthgauge.study import scalar
from depthgauge.study.claims import SuiteResult, quoted

#: j = 0.2, L = 96, as people quote them; computed here once more from scratch.
FIGURES = {
    "plain": ("7.9e-68", 0.2**96),
    "skip": ("4.0e7", 1.2**96),
    "opposed skip": ("5.0e-10", 0.8**96),
    "scaled skip": ("6.96", (1 + 0.2 / math.sqrt(96)) ** 96),
    "scaled opposed skip": ("0.138", (1 - 0.2 / math.sqrt(96)) ** 96),
}


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return scalar.run()


def test_both_rivers_agree_with_the_closed_forms(result: SuiteResult) -> None:
    assert [c["name"] for c in result.configurations] == list(FIGURES)
    for row in result.configurations:
        _, exact = FIGURES[row["name"]]
        assert row["closed_form"] == pytest.approx(exact, rel=1e-12, abs=0)
        assert row["forward_gain"] == pytest.approx(exact, rel=1e-9, abs=0)
        assert row["gradient_ratio"] == pytest.approx(exact, rel=1e-9, abs=0)
        river = row["curves"]["state_rms"]
        assert len(river) == 97
        assert river[48] / river[0] == pytest.approx(math.sqrt(exact), rel=1e-9, abs=0)


def test_every_claim_holds(result: SuiteResult) -> None:
    assert len(result.claims) == 15
    assert result.passed
    for name, (printed, _) in FIGURES.items():
        assert any(c.name == f"{name}: forward gain, quoted as {printed}" for c in result.claims)


@pytest.mark.parametrize("i", range(len(scalar.RECURRENCES)))
@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"factor": 1.0001}, ("forward gain, relative", "gradient ratio, relative")),
        ({"equation": "0.999 * (h + j * h)", "scaled": False}, ("relative error", "quoted")),
        ({"printed": "3.21e5"}, ("quoted",)),
    ],
)
def test_a_mistake_fails_the_claims_that_look_at_it(
    monkeypatch: pytest.MonkeyPatch, i: int, change: dict[str, object], broken: tuple[str, ...]
) -> None:
    wrong = dataclasses.replace(scalar.RECURRENCES[i], **change)  # type: ignore[arg-type]
    others = scalar.RECURRENCES
    monkeypatch.setattr(scalar, "RECURRENCES", (*others[:i], wrong, *others[i + 1 :]))
    found = scalar.run()
    failed = [c.name for c in found.claims if not c.holds]
    assert failed
    assert all(name.startswith(f"{wrong.name}: ") for name in failed)
    assert all(any(word in name for name in failed) for word in broken)
    with pytest.raises(ClaimError, match=wrong.name):
        found.check()


@pytest.mark.parametrize("river", ["forward_gain", "gradient_ratio"])
def test_each_river_is_held_to_the_closed_form(result: SuiteResult, river: str) -> None:
    row = dict(result.configurations[0])
    row[river] *= 1 + 1e-8
    first, second, third = scalar.closed_form_claims(row, "7.9e-68")
    assert [first.holds, second.holds] == [river != "forward_gain", river != "gradient_ratio"]
    assert third.holds


@pytest.mark.parametrize(
    ("printed", "low", "high"),
    [("0.381", 0.3805, 0.3815), ("4.0e7", 3.95e7, 4.05e7), ("108", 107.5, 108.5)],
)
def test_quoted_is_half_a_unit_of_the_last_digit(printed: str, low: float, high: float) -> None:
    claim = quoted("x", 1.0, printed)
    assert (claim.min, claim.max) == (low, high)


@given(st.floats(1e-60, 1e60), st.integers(1, 8))
def test_quoted_holds_for_what_it_was_rounded_from(x: float, digits: int) -> None:
    printed = f"{x:.{digits}e}"
    claim = quoted("x", x, printed)
    assert claim.min is not None
    assert claim.max is not None
    assert claim.min <= x <= claim.max  # a tie lies on the bound
    unit = claim.max - claim.min
    assert not dataclasses.replace(claim, value=x + 1.01 * unit).holds
    assert not dataclasses.replace(claim, value=x - 1.01 * unit).holds


@given(st.floats(-1.5, 1.5).filter(lambda j: abs(1 + j) > 0.2), st.integers(1, 40))
def test_streamed_recurrence_is_the_power_of_its_factor(j: float, depth: int) -> None:
    network = Network("h + j * h", depth, scalar.WIDTH, scalars={"j": j})
    (profile,) = scalar.stream([network])
    row = scalar.gain_row("x", 1 + j, (1 + j) ** depth, profile)
    # The magnitude: an RMS has no sign. h + j h cancels, so its error is eps / |1 + j| a stage.
    expected = abs(1 + j) ** depth
    assert row["forward_gain"] == pytest.approx(expected, rel=1e-12, abs=0)
    assert row["gradient_ratio"] == pytest.approx(expected, rel=1e-12, abs=0)


def test_lesson_carries_the_numbers(result: SuiteResult) -> None:
    (lesson,) = result.lessons
    for word in ("0.2", "96", "7.9e-68", "4e+07", "5e-10", "6.96", "0.138", "within one decade"):
        assert word in lesson


def test_lesson_changes_with_the_numbers(result: SuiteResult) -> None:
    rows = [dict(row) for row in result.configurations]
    rows[3]["forward_gain"] = 1234.0
    assert "is 1.23e+03 and 0.138" in scalar._lesson(rows)
    assert "does not keep" in scalar._lesson(rows)


def test_document(result: SuiteResult) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["checks"] == "PASS"
    assert document["settings"]["j"] == 0.2
    assert document["configurations"][0]["equation"] == "j = 0.2; h = j * h"
