"""Two records, quantity by quantity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.record.difference import RecordDifference, difference
from depthgauge.record.document import Bound, CorridorPart, Gate, Table, Verdict
from depthgauge.record.folder import Stored, write
from tests.record import factory


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """The difference of two records; the left one is that of the factory."""

    def of(arrays: Any = None, **changes: Any) -> RecordDifference:
        left = write(tmp_path / "left", factory.record(), factory.arrays())
        right = write(tmp_path / "right", factory.record(**changes), arrays or factory.arrays())
        found = difference(left, right)
        json.dumps(found.to_dict(), allow_nan=False)
        return found

    return of


def test_the_same_findings_are_equal(compared: Any) -> None:
    for changes in ({}, {"provenance": factory.provenance(platform="another machine")}):
        found = compared(**changes)
        assert found.equal
        assert found.same_subject
        assert all(each.same for each in (*found.judgements, *found.curves))
        assert [*found.subject, *found.only_left, *found.only_right, *found.others] == []


def test_judgements(compared: Any) -> None:
    other = factory.judgement(value=1.9, state="warn", margin=0.02, reason="near")
    gate = factory.gate(state="warn", judgements=(other, factory.judgement("forward_drift")),
                        curves=(0,))  # fmt: skip
    found = compared(gates=(gate,), verdict=Verdict(state="warn", weakest="rivers", score=0.02))
    assert not found.equal
    (judged,) = found.judgements
    assert (judged.gate, judged.name, judged.same) == ("rivers", "gradient_ratio", False)
    document = judged.to_dict()
    assert (document["left_value"], document["right_value"]) == (1.2, 1.9)
    assert (document["left_state"], document["right_state"]) == ("pass", "warn")
    assert (document["left_margin"], document["right_margin"]) == (0.2, 0.02)
    assert found.only_right == ("judgement forward_drift of gate rivers",)
    assert [str(change) for change in found.verdict] == [
        "verdict.state pass -> warn",
        "verdict.score 0.2 -> 0.02",
    ]
    assert [str(change) for change in found.others] == ["rivers.state pass -> warn"]


def test_a_curve_gives_its_largest_difference_with_the_block(compared: Any) -> None:
    arrays = factory.arrays()
    arrays["state"][2, 1] *= 100
    arrays["state"][3, 0] /= 2
    (curve,) = compared(arrays).curves
    assert (curve.block, curve.seed, curve.unit) == (2, 1, "decades")
    assert curve.largest == pytest.approx(-2, abs=1e-10)
    assert not curve.same


def differing_in(tmp_path: Path, quantity: str, left: float, right: float) -> list[Stored]:
    """Two records that are alike but for one number of one curve."""
    stored = []
    for name, value in (("left", left), ("right", right)):
        arrays = factory.arrays()
        arrays["state"][1, 0] = value
        record = factory.record(curves=(factory.curve(quantity=quantity),))
        stored.append(write(tmp_path / name, record, arrays))
    return stored


@pytest.mark.parametrize(
    ("quantity", "left", "right", "largest", "unit"),
    [
        ("state_rms", 1.0, 0.0, math.inf, "decades"),
        ("state_rms", 1.0, math.nan, math.nan, "decades"),
        ("state_rms", math.nan, math.nan, 0.0, "decades"),
        ("state_rms", math.inf, math.inf, 0.0, "decades"),
        ("dead_fraction", 0.25, 0.5, -0.25, "plain"),
        ("state_mean", -1.0, 1.0, -2.0, "plain"),
        ("unheard_of", 10.0, 1.0, 1.0, "decades"),
        ("unheard_of", -10.0, 1.0, -11.0, "plain"),
    ],
)
def test_how_numbers_are_compared(
    tmp_path: Path, quantity: str, left: float, right: float, largest: float, unit: str
) -> None:
    stored = differing_in(tmp_path, quantity, left, right)
    found = difference(*stored)
    (curve,) = found.curves
    assert curve.largest == pytest.approx(largest, abs=1e-10, nan_ok=True)
    assert curve.unit == unit
    assert curve.same == (largest == 0)
    assert curve.block == (None if curve.same else 1)
    assert found.equal == curve.same
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("quantity", "left", "right", "same"),
    [
        ("state_rms", 1.0, 1.0 + 4e-16, True),
        ("state_rms", 1e-200, 1e-200 * (1 + 9e-13), True),
        ("state_rms", 1e-200, 1e-200 * (1 + 2e-12), False),
        ("state_rms", 0.0, 1e-300, False),
        ("state_mean", 3e-17, -2e-17, True),  # the rest of the curve is of order 1
        ("state_mean", 3e-12, -2e-12, False),
        ("dead_fraction", 0.25, 0.25 + 1e-14, True),
        ("dead_fraction", 0.25, 0.25 + 1e-11, False),
    ],
)
def test_numbers_that_agree_to_12_digits_are_the_same(
    tmp_path: Path, quantity: str, left: float, right: float, same: bool
) -> None:
    stored = differing_in(tmp_path, quantity, left, right)
    found = difference(*stored)
    (curve,) = found.curves
    assert curve.same == found.equal == same
    assert (curve.exact, curve.largest == 0) == (False, same)
    assert (found.compared, found.alike, found.rounded) == (2, 1 + same, int(same))
    assert difference(stored[0], stored[0]).rounded == 0


def test_scores_that_agree_to_12_digits(compared: Any) -> None:
    verdict = Verdict(state="pass", weakest="rivers", score=0.2 + 1e-13)
    assert compared(verdict=verdict).equal
    assert not compared(verdict=verdict.model_copy(update={"score": 0.2 + 1e-11})).equal
    assert compared(subject=factory.subject(target="./spec.toml")).equal  # another name for it


def test_only_what_both_have_is_compared(compared: Any) -> None:
    arrays = {"blocks": np.array([3, 2, 9]), "state": factory.arrays()["state"][[3, 2, 0]][:, [1]]}
    (curve,) = compared(arrays, curves=(factory.curve(seeds=(1,)),)).curves
    assert (curve.largest, curve.same) == (0, False)
    assert curve.note == "only 2 blocks are in both, only 1 seed is in both"
    arrays = {"blocks": np.array([7]), "state": np.ones((1, 2))}
    (curve,) = compared(arrays).curves
    assert (curve.largest, curve.note) == (0, "only 0 blocks are in both")


def test_what_stands_in_one_only(compared: Any) -> None:
    gates = (Gate(name="update", question="?", state="pass"), factory.gate(curves=(0, 1)))
    curves = (factory.curve(configuration="norm none, depth 96"), factory.curve(depth=48))
    found = compared(gates=gates, curves=curves)
    assert found.only_left == ("curve state_rms of baseline, depth 96, depth 96 (gate rivers)",)
    assert found.only_right == (
        "gate update",
        "curve state_rms of norm none, depth 96, depth 96 (gate rivers)",
        "curve state_rms of baseline, depth 96, depth 48 (gate rivers)",
    )
    assert not found.curves


def test_tables_and_notes(compared: Any) -> None:
    def table(value: float) -> Table:
        return Table(kind="laws", title="growth", columns=("quantity", "slope"),
                     rows=(("state_rms", value),))  # fmt: skip

    gate = factory.gate(curves=(0,), tables=(table(0.5),), leaves_open="nothing")
    found = compared(gates=(gate,), notes=("a note",))
    assert [change.what for change in found.others] == [
        "rivers.leaves_open", "rivers.tables.growth", "notes",
    ]  # fmt: skip
    assert not found.equal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subject": factory.subject(depth=128)}, "depth 96 -> 128"),
        ({"subject": factory.subject(seeds=(0,))}, "seeds [0, 1] -> [0]"),
        ({"subject": factory.subject(kind="builder")}, "kind equation -> builder"),
    ],
)
def test_different_models_are_compared_and_that_is_said(
    compared: Any, changes: Any, said: str
) -> None:
    found = compared(**changes)
    assert not found.same_subject
    assert [str(change) for change in found.subject] == [said]
    assert len(found.curves) == len(found.judgements) == 1


def test_the_corridors(compared: Any) -> None:
    found = compared(
        corridor=CorridorPart(name="strict", bounds={"gradient_ratio": Bound(min=0.9)})
    )
    assert len(found.corridor) == 1
    assert not found.equal
