"""Where a bound breaks: beyond what was tried by the law, between it by both."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from depthgauge.network.spec import LARGEST_DEPTH
from depthgauge.sites import FloatArray
from depthgauge.study.breaks import Break, break_of, first_to_break
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import Entry, NamedCorridor
from depthgauge.study.growth import growth
from depthgauge.summaries import SUMMARIES
from tests.factories import profile

DEPTHS = (12, 48, 96)
NOISE = np.random.default_rng(4).standard_normal((3, 3))


def broken_at(
    values: Any, bound: dict[str, float] | NamedCorridor, name: str = "forward_end_rms"
) -> Break:
    """The break of a summary with these values, ``(D, K)``."""
    each: FloatArray = np.asarray(values, dtype=np.float64).reshape(len(DEPTHS), -1)
    corridor = bound
    if isinstance(bound, dict):
        corridor = NamedCorridor.of(Corridor.of({name: bound}))
    assert isinstance(corridor, NamedCorridor)
    judgements = {}
    for depth, row in zip(DEPTHS, each, strict=True):
        made = profile([[1.0] * len(row), row])
        if name != "forward_end_rms":
            made = profile([[1.0] * len(row)] * 2, extra={name: [[1e9] * len(row), row]})
        (judgements[depth],) = corridor.at(depth, "float32").judge(made).judgements
    law = growth(DEPTHS, each, SUMMARIES[name].scale)
    return break_of(name, judgements, law, corridor, "float32")


def logs(law: Any, noise: float = 0.01) -> FloatArray:
    x = np.array(DEPTHS, dtype=np.float64)[:, None]
    found: FloatArray = np.exp(law(x) + noise * NOISE)
    return found


# --------------------------------------------------------------------- beyond what was tried


@pytest.mark.parametrize(
    ("law", "bound", "truth"),
    [
        (lambda x: 0.5 * np.log(x), {"max": 20.0}, 400),
        (lambda x: -0.5 * np.log(x), {"min": 0.05}, 400),
        (lambda x: 0.01 * x, {"max": math.e**2}, 200),
        (lambda x: -0.01 * x, {"min": math.e**-2, "max": 9.0}, 200),
    ],
)
def test_a_law_breaks_its_bound_where_it_crosses_it(
    law: Any, bound: dict[str, float], truth: int
) -> None:
    found = broken_at(logs(law), bound)
    assert found.state == "will_break"
    assert found.low < truth < found.high
    assert found.depth == pytest.approx(truth, rel=0.1)
    assert found.high / found.low < 1.5
    exact = broken_at(logs(law, 0.0), bound)
    assert exact.low == exact.depth == exact.high
    assert exact.depth in (truth, truth + 1)  # the bound itself is inside
    assert str(found).startswith(f"will break at {found.depth:,.0f} blocks [")


def test_the_interval_holds_the_depth_as_often_as_it_says() -> None:
    rng, inside, half_as_wide, trials = np.random.default_rng(2), 0, 0, 200
    x, truth = np.array(DEPTHS)[:, None], 400
    for _ in range(trials):
        values = np.exp(0.5 * np.log(x) + 0.02 * rng.standard_normal((3, 4)))
        found = broken_at(values, {"max": 20.0})
        (crossing,) = (c for c in found.crossings if c.law == "power")
        inside += crossing.low <= truth <= crossing.high
        if math.isinf(crossing.high):  # it bends, by chance
            half_as_wide += 1
            continue
        low, high = (math.log(end / crossing.depth) for end in (crossing.low, crossing.high))
        half_as_wide += low / 2 <= math.log(truth / crossing.depth) <= high / 2
    error = math.sqrt(0.95 * 0.05 * trials)
    assert abs(inside - 0.95 * trials) < 4 * error
    assert half_as_wide < 0.95 * trials - 4 * error


def test_a_constant_does_not_break_and_neither_does_what_moves_away() -> None:
    for law in (lambda x: 0 * x, lambda x: -0.5 * np.log(x)):
        found = broken_at(logs(law), {"max": 20.0})
        assert (found.state, str(found)) == ("holds", "does not break")
        assert found.depth == math.inf
        document = found.to_dict()
        json.dumps(document, allow_nan=False)
        assert document["depth"] is None
        assert document["depth_reason"] == f"not up to {LARGEST_DEPTH:,} blocks"


def test_laws_within_reach_each_say_where() -> None:
    found = broken_at(logs(lambda x: 0.3 * np.log(x), 0.18), {"max": 50.0})
    assert {c.law for c in found.crossings} == {"power", "exponential", "constant"}
    first, second = str(found).split(" or ")
    assert first == "undecided: breaks at 602 blocks [240, no end] (exponential)"
    assert second == "not at all (power, constant)"
    assert (found.state, found.depth, found.low, found.high) == ("may_break", 602, 240, math.inf)
    sure = broken_at(logs(lambda x: 0.3 * np.log(x), 0.02), {"max": 50.0})
    assert (sure.state, len(sure.crossings)) == ("will_break", 1)


def test_a_law_that_bends_has_an_open_end() -> None:
    slow = broken_at(logs(lambda x: 0.5 * np.log(1 + 0.02 * x), 1e-3), {"max": 10.0})
    truth = 99 / 0.02
    assert (slow.state, slow.high) == ("will_break", math.inf)
    assert slow.low < slow.depth < truth  # earlier than it does: the high end says so
    assert " blocks or later [" in str(slow)
    assert str(slow).endswith(", no end]")
    fast = broken_at(logs(lambda x: (x / 48) ** 1.3, 1e-3), {"max": math.e**4})
    assert fast.low == 97
    assert fast.low < 48 * 4 ** (1 / 1.3) < fast.high
    assert " or earlier [97, " in str(fast)


def test_bounds_that_hold_at_some_depths_only() -> None:
    from depthgauge.study.bound import Bound

    entries = (
        Entry("forward_end_rms", Bound(max=20)),
        Entry("forward_end_rms", Bound(max=12), 200),
    )
    found = broken_at(logs(lambda x: 0.5 * np.log(x), 0.0), NamedCorridor("two", "", entries))
    assert found.depth == 200  # 12 is crossed at 144, where it is no bound yet
    late = (
        Entry("forward_end_rms", Bound(max=20), 0, 300),
        Entry("forward_end_rms", Bound(max=1e9), 301),
    )
    assert broken_at(
        logs(lambda x: 0.5 * np.log(x), 0.0), NamedCorridor("two", "", late)
    ).depth > 1e6  # fmt: skip


# --------------------------------------------------------------------- what was measured


def test_what_fails_at_the_least_depth_is_broken_already() -> None:
    found = broken_at(logs(lambda x: 0.5 * np.log(x)), {"max": 2.0})
    assert (found.state, str(found)) == ("broken", "already broken at 12")
    assert (found.depth, found.low, found.high) == (12, 12, 12)
    again = broken_at([9.0, 1.0, 1.0], {"max": 2.0})
    assert str(again) == "already broken at 12, inside again at 48, 96"


def test_between_two_depths_the_law_says_where() -> None:
    found = broken_at(logs(lambda x: 0.5 * np.log(x)), {"max": 8.0})
    assert (found.state, found.passed, found.failed) == ("breaks", 48, 96)
    assert found.depth == pytest.approx(64, rel=0.1)
    assert 49 <= found.low <= found.depth <= found.high <= 96
    assert str(found).startswith("breaks between 48 and 96, by the law at 6")


def test_what_was_measured_goes_before_the_law() -> None:
    """Overflow at 96: the law is that of 12 and 48, and its crossing is not before 49."""
    found = broken_at([[1.0] * 3, [1.1, 1.2, 1.3], [math.inf] * 3], {"max": 100.0})
    assert (found.state, found.passed, found.failed) == ("breaks", 48, 96)
    assert str(found).startswith("breaks between 48 and 96")
    contrary = broken_at([[1.0] * 3, [100.0] * 3, [1.0] * 3], {"max": 2.0})
    assert (contrary.passed, contrary.failed) == (12, 48)


def test_one_seed_outside_breaks_although_the_law_does_not() -> None:
    values = np.ones((3, 3))
    values[2, 0] = 30.0
    found = broken_at(values, {"max": 20.0})
    assert (found.state, found.passed, found.failed) == ("breaks", 48, 96)
    assert str(found).startswith("breaks between 48 and 96")


def test_what_is_not_measured_is_not_known() -> None:
    corridor = NamedCorridor.of(Corridor.of(stiffness={"max": 1.0}))
    judged = {d: corridor.at(d, "").judge(profile()).judgements[0] for d in DEPTHS}
    found = break_of("stiffness", judged, None, corridor, "")
    assert (found.state, found.depth is math.nan or math.isnan(found.depth)) == ("not_known", True)
    assert str(found) == "not known: not measured (no instrument measured it)"
    json.dumps(found.to_dict(), allow_nan=False)
    lost = broken_at([0.0, 0.0, 0.1], {"max": 2.0})
    assert lost.state == "not_known"
    assert "follows no law: a value is 0, negative or not finite at depth 12, 48" in str(lost)


def test_bits_fall_to_their_bound() -> None:
    bits = 15 - 0.5 * np.log2(np.array(DEPTHS))[:, None] * np.ones(3)
    found = broken_at(bits, {"min": 10.0}, "headroom_float16_bits")
    assert (found.state, found.depth) == ("will_break", 1025)


def test_one_seed_at_two_depths_has_no_interval() -> None:
    corridor = NamedCorridor.of(Corridor.of(forward_end_rms={"max": 20.0}))
    values = [[3.0], [6.0]]
    judged = {
        d: corridor.at(d, "").judge(profile([[1.0], v])).judgements[0]
        for d, v in zip((9, 36), values, strict=True)
    }
    found = break_of("forward_end_rms", judged, growth((9, 36), values), corridor, "")
    assert found.state == "may_break"
    assert math.isnan(found.low)
    assert "(no interval)" in str(found)
    assert found.to_dict()["low_reason"] == "there is no interval"


def test_the_first_to_break() -> None:
    sooner = broken_at(logs(lambda x: 0.5 * np.log(x)), {"max": 20.0})
    later = broken_at(logs(lambda x: 0.5 * np.log(x)), {"max": 30.0})
    never = broken_at(logs(lambda x: 0 * x), {"max": 20.0})
    assert first_to_break([never, later, sooner]) is sooner
    assert first_to_break([never]) is None
