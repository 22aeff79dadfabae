"""One number a seed: formulas, what lets them through, and where they cannot be formed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import UsageError
from depthgauge.measurement import measure
from depthgauge.profile import SUMMARIES
from depthgauge.summaries import spread
from tests.factories import profile

NAN, INF = math.nan, math.inf
FORMATS = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")


def test_every_summary_follows_its_formula() -> None:
    extra = {
        "live_derivative_fraction": [0.5, 0.3],
        "saturated_fraction": [0.1, 0.2],
        "dead_fraction": [0.05, 0.0],
        "nonfinite_fraction": [0.0, 0.0, 0.25],
        "gradient_nonfinite_fraction": [0.5, 0.0, 0.0],
        "state_max": [3.0, 9.0, 5.0],
        "effective_rank_participation": [16.0, 32.0, 64.0],
        "functional_update": [9.0, 0.1, 0.2],
        "stiffness": [8.0, 8.0, 0.5],
        "correlation": [0.0, 0.3, 0.6],
        **{f"headroom_{name}_bits": [9.0, -2.0, 5.0] for name in FORMATS},
        "underflow_headroom_bits": [12.0, 11.0, 13.0],
        "relative_error_state": [0.0, 1e-6, 3e-6],
        "relative_error_gradient": [2e-6, 1e-6, 0.0],
    }
    made = profile((2.0, 0.5, 4.0), (3.0, 12.0, 1.5), extra=extra)
    expected = [4.0, 8.0, 2.0, 8.0, 0.4, 0.2, 0.05, 0.5, 9.0]
    expected += [0.25, 0.2, 8.0, 0.6, *[-2.0] * 4, 11.0, 3e-6, 2e-6]
    assert list(made.summary()) == list(SUMMARIES)
    assert [float(v[0]) for v in made.summary().values()] == pytest.approx(expected, rel=1e-15)


def test_summaries_have_one_value_a_seed() -> None:
    summary = profile([[1, 1], [2, 10]], [[1, 1], [1, 4]]).summary()
    assert summary["forward_drift"].tolist() == [2.0, 10.0]
    assert summary["gradient_ratio"].tolist() == [1.0, 0.25]


def test_only_what_was_measured_is_summarised() -> None:
    made = profile((1.0, 2.0, 4.0))
    assert list(made.summary()) == ["forward_end_rms", "forward_drift"]
    assert made.why_not("gradient_drift") == "it needs gradient_rms, which no instrument measured"
    river = made.columns["state_rms"]
    for keep, left in ([0, 1], []), ([0, 2], ["forward_end_rms"]), ([1, 2], ["forward_end_rms"]):
        rows = tuple(river.rows[i] for i in keep)
        part = {"state_rms": dataclasses.replace(river, rows=rows, values=river.values[keep])}
        partial = dataclasses.replace(made, columns=part)
        assert list(partial.summary()) == left
        assert partial.why_not("forward_drift") == "state_rms was measured at 2 of 3 blocks"


def test_the_share_of_directions_is_of_those_there_could_be() -> None:
    """Of a state of tokens or images they are more than its width, of a narrow end fewer."""
    rank = {"effective_rank_participation": [16.0, 32.0, 64.0]}
    for note, share in (({}, 0.25), ({"of": 16}, 1.0), ({"of": 1024}, 1 / 64)):
        settings = {"instruments": {"spectrum": note}}
        made = profile(extra=rank, settings=settings)
        assert made.summary()["participation_share"].tolist() == [share]


def test_of_tokens_every_number_of_a_state_is_a_direction() -> None:
    for tokens, numbers in ((None, 8), (4, 32)):
        made = measure(
            "h + W(h)/sqrt(L)", 2, depth=2, width=8, tokens=tokens, instruments="spectrum"
        )
        rank = made["effective_rank_participation"][0]
        assert made.summary()["participation_share"] == pytest.approx(rank / numbers)
        assert 0.1 < rank / numbers < 1


def test_jacobians_that_end_early_are_not_from_end_to_end() -> None:
    rank = {"effective_rank_participation": [16.0, 32.0, 64.0]}
    for until, there in ((2, True), (1, False)):
        settings = {"instruments": {"spectrum": {"of": 64, "until": until}}}
        made = profile(extra=rank, settings=settings)
        assert ("participation_share" in made.summary()) == there
    why = "the Jacobians lead to state 1, not to the last (2)"
    assert made.why_not("participation_share") == why


@pytest.mark.parametrize(
    ("name", "quantity", "at", "place"),
    [
        ("participation_share", "effective_rank_participation", 0, "the first state"),
        ("functional_update", "functional_update", 2, "the last state"),
        ("correlation", "correlation", 2, "the last state"),
    ],
)
def test_what_is_taken_at_one_place_is_missing_without_it(
    name: str, quantity: str, at: int, place: str
) -> None:
    made = profile(extra={quantity: [0.1, 0.2, 0.3]})
    column = made.columns[quantity]
    for keep, there in (([at], True), ([i for i in range(3) if i != at], False)):
        rows = tuple(column.rows[i] for i in keep)
        part = dataclasses.replace(column, rows=rows, values=column.values[keep])
        some = dataclasses.replace(made, columns={**made.columns, quantity: part})
        assert (name in some.summary()) == there
    assert some.why_not(name) == f"{quantity} was not measured at {place}"


@pytest.mark.parametrize(
    ("state", "end", "drift"),
    [
        ((1.0, 0.0), 0.0, 1e30),
        ((1.0, 1e-40), 1e-40, 1e30),
        ((1.0, INF), INF, INF),
        ((INF, INF), INF, INF),
        ((1.0, INF, NAN), NAN, NAN),
        ((NAN, 1.0), 1.0, NAN),
    ],
)
def test_what_is_not_finite_goes_through(state: Any, end: float, drift: float) -> None:
    summary = profile(state).summary()
    np.testing.assert_equal(summary["forward_end_rms"], [end])
    np.testing.assert_allclose(summary["forward_drift"], [drift], rtol=1e-15)


def test_gradient_ratio_of_a_zero_gradient_never_raises() -> None:
    ratio = profile([[1] * 3] * 2, [[1, 0, INF], [0, 0, INF]]).summary()["gradient_ratio"]
    np.testing.assert_equal(ratio, [INF, NAN, NAN])


def test_first_nonfinite_goes_forward_and_its_gradient_backward() -> None:
    made = profile((1.0, 2.0, INF, NAN), (NAN, INF, 1.0, 1.0))
    assert made.first_nonfinite() == made.sites[4]
    assert made.first_nonfinite_gradient() == made.sites[2]
    shares = {"nonfinite_fraction": [0, 0.1, 0], "gradient_nonfinite_fraction": [0.1, 0, 0]}
    early = profile((1.0, 2.0, NAN), (1.0, 1.0, 1.0), extra=shares)
    assert early.first_nonfinite() == early.sites[2]
    assert early.first_nonfinite_gradient() == early.sites[0]
    healthy = profile((1.0, 2.0), (1.0, 1.0), extra={"nonfinite_fraction": [0, 0]})
    assert healthy.first_nonfinite() is healthy.first_nonfinite_gradient() is None
    assert profile((1.0, 2.0)).first_nonfinite_gradient() is None
    seeds = profile([[1, NAN], [NAN, 1]])
    assert [seeds.first_nonfinite(k) for k in (0, 1)] == [seeds.sites[2], seeds.sites[0]]
    with pytest.raises(UsageError, match="seed 2 is a place on the seed axis, which has 2; give 0"):
        seeds.first_nonfinite(2)


def test_spread_is_the_median_and_the_range() -> None:
    assert spread(np.array([3.0, 1.0, 2.0])) == (2.0, 1.0, 3.0)
    assert spread(np.array([1.6e308, 1.7e308])).median == pytest.approx(1.65e308)
    assert spread(np.array([1.0, INF])) == (INF, 1.0, INF)
    assert all(map(math.isnan, spread(np.array([1.0, NAN]))))


@given(st.lists(st.floats(0, 1e100), min_size=1, max_size=9))
def test_spread_agrees_with_numpy(values: list[float]) -> None:
    expected = np.median(values), np.min(values), np.max(values)
    assert spread(np.array(values)) == pytest.approx(expected, rel=1e-12, abs=1e-320)
