"""Effects paired by seed: decades and differences, with an interval, also of what is not finite."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from depthgauge.study.effects import Effect, effects
from tests.factories import profile

INF, NAN = math.inf, math.nan


def effect(before: list[float], after: list[float], quantity: str = "forward_drift") -> Effect:
    return Effect("norm=none", quantity, np.array(before), np.array(after))


def test_a_logarithmic_summary_has_decades_paired_by_seed() -> None:
    found = effect([1.0, 2.0, 4.0], [10.0, 20.0, 400.0])
    assert found.unit == "decades"
    assert found.values == pytest.approx([1, 1, 2])
    assert found.spread == pytest.approx((1, 1, 2))
    # mean 4/3, s = 1/sqrt(3), t_2(0.975) = 4.302653
    half = 4.302652729911275 / 3
    assert found.interval == pytest.approx((4 / 3 - half, 4 / 3 + half))
    assert found.strength == pytest.approx(4 / math.sqrt(3))
    # Not paired, the same numbers in another order would say something else.
    assert effect([1.0, 2.0, 4.0], [400.0, 10.0, 20.0]).values != pytest.approx([1, 1, 2])


def test_a_share_has_a_difference() -> None:
    found = effect([0.5, 0.5], [0.25, 0.75], "dead_fraction")
    assert found.unit == "share"
    assert list(found.values) == [-0.25, 0.25]
    assert found.strength == 0


def test_no_effect_is_weakest_and_agreement_of_all_seeds_strongest() -> None:
    none, same = effect([1, 2], [1, 2]), effect([1, 2], [2, 4])
    loose = effect([1, 2], [2, 8])
    assert none.strength == 0
    assert same.strength == INF
    assert none.rank < loose.rank < same.rank
    assert "same under every seed" in same.to_dict()["strength_reason"]


def test_one_seed_has_a_size_and_no_interval() -> None:
    found = effect([1.0], [100.0])
    assert found.interval is None
    assert found.strength == 2
    assert found.to_dict()["interval_reason"] == (
        "an interval over seeds needs two of them, and n = 1"
    )


@pytest.mark.parametrize(
    ("before", "after", "note", "n", "first"),
    [
        ([1.0, 1.0], [INF, 10.0], "not finite after the change in 1 of 2 seeds", 1, True),
        ([1.0, 1.0], [NAN, NAN], "not finite after the change in 2 of 2 seeds", 0, True),
        ([INF, NAN], [1.0, 2.0], "finite after the change only in 2 of 2 seeds", 0, True),
        ([1.0, 0.0], [1.0, 1.0], "zero before or after the change in 1 of 2 seeds", 1, True),
        ([INF, NAN], [NAN, INF], "not finite before or after in 2 of 2 seeds", 0, False),
        ([INF, INF], [INF, INF], "not finite before or after in 2 of 2 seeds", 0, False),
    ],
)
def test_what_no_number_says_is_said_in_words(
    before: list[float], after: list[float], note: str, n: int, first: bool
) -> None:
    found = effect(before, after)
    assert (found.note, found.n) == (note, n)
    assert (found.strength == INF) is first
    assert (found.rank > effect([1, 1], [1e9, 2e9]).rank) is first
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["note"] == note
    if not n:
        assert document["median"] is None
        assert document["median_reason"]


def test_effects_of_every_summary_that_both_profiles_have() -> None:
    before = profile([[1, 1], [2, 4]], [[4, 4], [1, 2]])
    after = profile([[1, 1], [20, 40]], [[4, 4], [1, 2]])
    found: dict[str, Any] = {e.quantity: e for e in effects("scale*2", before, after)}
    assert set(found) == {"forward_end_rms", "forward_drift", "gradient_ratio", "gradient_drift"}
    assert found["forward_end_rms"].values == pytest.approx([1, 1])
    assert list(found["gradient_ratio"].values) == [0, 0]
    lacking = {e.quantity for e in effects("x", before, profile([[1, 1], [2, 4]]))}
    assert lacking == {"forward_end_rms", "forward_drift"}
