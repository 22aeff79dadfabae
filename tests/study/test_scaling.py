"""Exponents of depth against NumPy's regression, tables of Student's t, and known laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import SpecificationError
from depthgauge.instruments.step import Step
from depthgauge.instruments.subject import Effort, Subject
from depthgauge.network.spec import Network
from depthgauge.study.scaling import NAMES, exponent, of_network, scaling, t_quantile


@given(st.floats(-3, 3), st.floats(0.1, 10), st.integers(1, 5))
def test_a_power_law_is_found_exactly(slope: float, factor: float, seeds: int) -> None:
    depths = [4, 16, 64, 256]
    values = factor * np.array(depths)[:, None] ** slope * np.ones(seeds)
    found = exponent(depths, values)
    assert found.slope == pytest.approx(slope, abs=1e-10)
    assert math.exp(found.constant) == pytest.approx(factor, rel=1e-9)
    assert found.low - 1e-10 <= slope <= found.high + 1e-10
    assert (found.depths, found.seeds) == (4, seeds)


def test_the_slope_is_that_of_a_regression_on_the_means() -> None:
    rng = np.random.default_rng(0)
    depths, values = [3, 10, 20, 70], np.exp(rng.standard_normal((4, 6)))
    slope, constant = np.polyfit(np.log(depths), np.log(values).mean(1), 1)
    found = exponent(depths, values)
    assert (found.slope, found.constant) == pytest.approx((slope, constant), rel=1e-10)
    each = [np.polyfit(np.log(depths), np.log(v), 1)[0] for v in values.T]
    half = 2.570582 * np.std(each, ddof=1) / math.sqrt(6)
    assert found.high - found.slope == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062047), (2, 4.3026527), (3, 3.1824463), (7, 2.3646243), (30, 2.0422725)],
)
def test_quantiles_of_student(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=1e-7)
    assert t_quantile(0.5, freedom) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_interval_covers_as_often_as_it_says(seeds: int) -> None:
    rng, depths, trials = np.random.default_rng(1), [4, 8, 16, 32, 64], 1000
    inside = inside_half = 0
    for _ in range(trials):
        noise = 0.3 * rng.standard_normal((5, seeds))
        found = exponent(depths, np.exp(noise) * np.array(depths)[:, None] ** 0.5)
        inside += found.low < 0.5 < found.high
        half = (found.high - found.low) / 4
        inside_half += abs(found.slope - 0.5) < half
    error = math.sqrt(0.95 * 0.05 * trials)
    assert abs(inside - 0.95 * trials) < 4 * error
    assert abs(inside_half - 0.95 * trials) > 4 * error  # an interval half as wide would not


def test_two_depths_and_one_seed_have_no_interval() -> None:
    found = exponent([4, 16], [1.0, 4.0])
    assert found.slope == pytest.approx(1)
    assert math.isnan(found.low)
    assert found.to_dict()["low"] is None
    assert "n = 1" in str(found)


@pytest.mark.parametrize(
    ("depths", "values", "says"),
    [
        ([4], [1.0], "depths are 4; an exponent needs at least two"),
        ([4, 4], [1.0, 2.0], "depths are 4, 4"),
        ([4, 16], [1.0, 0.0], "at depth 16 a value is zero, negative or not finite"),
        ([4, 16], [math.inf, 1.0], "at depth 4 a value is zero"),
    ],
)
def test_what_has_no_exponent(depths: list[int], values: list[float], says: str) -> None:
    with pytest.raises(SpecificationError) as error:
        exponent(depths, values)
    assert says in str(error.value)


ZERO_LAST = {"W1": "he", "W2": "zeros"}


@pytest.mark.parametrize(
    ("equation", "init", "branch", "together"),
    [
        ("h + W2(relu(W1(h)))", ZERO_LAST, 0.0, 1.0),
        ("h + W2(relu(W1(h)))/sqrt(L)", ZERO_LAST, -1.0, 0.0),
        ("h + W2(relu(W1(h)))/L", ZERO_LAST, -2.0, -1.0),
    ],
)
def test_updates_over_depths(
    equation: str, init: dict[str, str], branch: float, together: float
) -> None:
    build = of_network(Network(equation, 1, 32, init=init), 8)
    effort = Effort(step=Step("sgd", 1e-4), branches=8)
    scaled = scaling(build, [4, 8, 16], range(6), effort)
    found = scaled.exponents
    assert found["branch_update"].slope == pytest.approx(branch, abs=0.1)
    assert found["together"].slope == pytest.approx(together, abs=0.1)
    assert found["functional_update"].slope == pytest.approx(together, abs=0.1)
    # The step in a weight of 0 over the weights of the branch: that of the gradient.
    assert found["update_to_weight"].slope == pytest.approx((branch - 0.0) / 2, abs=0.1)
    assert (found["together"].depths, found["together"].seeds) == (3, 6)
    sign = scaling(
        build, [4, 8, 16], range(6), dataclasses.replace(effort, step=Step("adam", 1e-4))
    ).exponents
    assert sign["together"].slope == pytest.approx((together + 1) / 2, abs=0.1)
    assert together == 1 or sign["together"].slope > found["together"].slope + 0.4


def test_sums_over_branches_want_all_of_them() -> None:
    """Of 8 and 16 branches 4 are moved alone: what their sum is to them is a sample's, and of four
    aligned ones 2 at every depth, where it is the root of L."""
    build = of_network(Network("h + W2(relu(W1(h)))", 1, 32, init=ZERO_LAST), 8)
    ratio = "norm_of_sum_to_root_sum_square"
    for branches in (4, 16):
        effort = Effort(step=Step("sgd", 1e-4), branches=branches)
        found = scaling(build, [4, 8, 16], (0, 1), effort)
        assert found.exponents.keys() >= {"functional_update", "branch_update", "together"}
        for name in (ratio, "update_alignment"):
            assert (name in found.exponents) == (branches == 16)
            assert (name in found.missing) == (branches == 4)
        if branches == 4:
            assert found.missing[ratio] == (
                "at depth 16 4 of 16 branches were moved alone, and of a sample it depends on how "
                "many they are; branches=16 moves each (Effort, --branches) (in 2 of 2 seeds)"
            )
        else:
            assert found.exponents[ratio].slope == pytest.approx(0.5, abs=0.1)
            assert abs(found.exponents["update_alignment"].slope) < 0.1


@pytest.mark.parametrize(
    ("equation", "init", "says"),
    [
        ("h + 1e40 * W2(relu(W1(h)))", "he", "at depth 8 the gradient of 'blocks."),
        ("h + W2(relu(W1(h)))", "zeros", "at depth 2 it is 0, which is no power of the depth"),
        ("h + W2(relu(W1(h)))", "he", ""),
    ],
)
def test_what_has_no_exponent_says_at_which_depth_and_why(
    equation: str, init: str, says: str
) -> None:
    build = of_network(Network(equation, 1, 8, init=init), 4)
    found = scaling(build, [2, 8], effort=Effort(step=Step("sgd", 1e-90 if says else 1e-4)))
    assert set(NAMES) == {*found.exponents, *found.missing}
    assert not set(found.exponents) & set(found.missing)
    if says:
        assert "functional_update" not in found.exponents
        assert found.missing["functional_update"].startswith(says)
    else:
        assert not found.missing


class Clock:
    """Stands still but for what is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


@pytest.mark.parametrize(
    ("budget", "seeds", "measured"),
    [(30, 1, (4, 16)), (100, 1, (4, 16, 64)), (100, 2, (4, 16)), (39, 2, (4,)), (3, 1, (4,))],
)
def test_a_budget_is_that_of_all_depths(
    monkeypatch: pytest.MonkeyPatch, budget: float, seeds: int, measured: tuple[int, ...]
) -> None:
    """Each takes as many seconds as it has blocks; the first is begun, since nothing is known."""
    clock = Clock(monkeypatch)
    build = of_network(Network("h + W2(relu(W1(h)))/sqrt(L)", 1, 8), 4)

    def slow(depth: int, seed: int) -> Subject:
        made = build(depth, seed)
        clock.now += depth
        return made

    effort = Effort(step=Step("sgd", 1e-4), branches=64, budget=budget)
    found = scaling(slow, [64, 16, 4], range(seeds), effort)
    depths = measured if budget > 4 else ()  # the branches of the only one came too late
    assert found.depths == depths
    why = f"the budget of {budget} seconds left no time for it"
    assert found.left_out == {d: why for d in (4, 16, 64) if d not in depths}
    if len(depths) > 1:
        assert found.exponents["together"].depths == len(depths)
    else:
        left = "depth 4 alone" if depths else "none"
        why = (
            f"an exponent needs two depths, and the budget of {budget} seconds left time for {left}"
        )
        assert found.missing == dict.fromkeys(NAMES, why)
    assert clock.now <= budget or budget < 4


def test_a_depth_that_the_budget_cuts_short_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    build = of_network(Network("h + W2(relu(W1(h)))/sqrt(L)", 1, 8), 4)

    def slower(depth: int, seed: int) -> Subject:
        made = build(depth, seed)
        clock.now += {4: 1, 8: 2, 16: 50}[depth]  # where 4 were to be expected
        return made

    found = scaling(slower, [4, 8, 16], effort=Effort(budget=20))
    assert (found.depths, list(found.left_out)) == ((4, 8), [16])
    assert {exponent.depths for exponent in found.exponents.values()} == {2}
