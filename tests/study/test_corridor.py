"""Corridors: margins, four states, and declarations that cannot be meant."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import SpecificationError
from depthgauge.profile import SUMMARIES
from depthgauge.study.bound import wrong_for
from depthgauge.study.corridor import Bound, Corridor, Judgement, Verdict
from tests.factories import profile

NAN = math.nan
VALUE = st.floats(0, 1e300) | st.sampled_from([math.nan, math.inf, 0.0, 1.0])
POSITIVE = st.floats(1e-30, 1e30)


def one(verdict: Verdict) -> Judgement:
    (judgement,) = verdict.judgements
    return judgement


# ------------------------------------------------------------------------------- judging


@pytest.mark.parametrize(
    ("bound", "state", "margin"),
    [
        (Bound(max=40.0), "pass", 1.0),
        (Bound(min=0.4), "pass", 1.0),
        (Bound(min=0.4, max=400.0), "pass", 1.0),
        (Bound(max=4.4), "warn", math.log10(1.1)),
        (Bound(max=4.4, warn=0.01), "pass", math.log10(1.1)),
        (Bound(max=4.4, warn=3), "warn", math.log10(1.1)),
        (Bound(max=4.0), "warn", 0.0),
        (Bound(min=4.0, warn=0), "pass", 0.0),
        (Bound(max=0.4), "fail", -1.0),
        (Bound(min=400.0), "fail", -2.0),
        (Bound(min=40.0, max=400.0), "fail", -1.0),
    ],
)
def test_margin_is_decades_to_the_nearest_bound(bound: Bound, state: str, margin: float) -> None:
    verdict = Corridor.of(forward_end_rms=bound).judge(profile((1.0, 2.0, 4.0), (3.0, 1.5, 1.0)))
    judgement = one(verdict)
    assert judgement.value == 4.0
    assert judgement.state == verdict.state == state
    assert judgement.margin == pytest.approx(margin, abs=1e-12)
    assert verdict.score == judgement.margin
    assert bool(judgement.reason) == (state != "pass")


def test_reasons_say_value_distance_and_bound() -> None:
    made = profile((1.0, 2.0, 4.0), (3.0, 1.5, 1.0))
    fail = one(Corridor.of(forward_end_rms={"min": 0.1, "max": 0.4}).judge(made))
    assert fail.reason == "4 is 1 decades outside max 0.4"
    low = one(Corridor.of(forward_drift={"min": 40, "max": 400}).judge(made))
    assert low.reason == "4 is 1 decades outside min 40"
    warn = one(Corridor.of(forward_drift={"max": 4.4}).judge(made))
    assert warn.reason == "4 is 0.0414 decades inside max 4.4"


def test_the_worst_seed_decides_and_the_reason_counts_the_others() -> None:
    made = profile([[1.0] * 4, [2.0, 30.0, 1.0, 300.0]], [[1.0] * 4] * 2)
    judgement = one(Corridor.of(forward_drift={"max": 10.0}).judge(made))
    assert judgement.state == "fail"
    assert (judgement.value, judgement.n) == (300.0, 4)
    assert (judgement.median, judgement.low, judgement.high) == (16.0, 1.0, 300.0)
    assert judgement.reason == "300 is 1.48 decades outside max 10; 2 of 4 seeds outside"
    calm = one(Corridor.of(forward_drift={"max": 1e4}).judge(made))
    assert (calm.state, calm.reason, calm.value) == ("pass", "", 300.0)
    near = one(Corridor.of(forward_drift={"max": 301.0}).judge(made))
    assert near.state == "warn"
    assert near.reason.endswith("; 1 of 4 seeds within 0.1")


def test_not_a_number_fails_and_says_where_it_began() -> None:
    state = [1.0, 2.0, math.nan, math.nan]
    for name in ("forward_drift", "forward_end_rms"):
        judgement = one(Corridor.of({name: {"max": 1e9}}).judge(profile(state)))
        assert (judgement.state, judgement.margin) == ("fail", -math.inf)
        assert judgement.reason == "not a number from block 2 on (blocks.1)"
    healthy = one(Corridor.of(forward_drift={"max": 1e9}).judge(profile((1.0, 2.0, 2.0, 2.0))))
    assert healthy.state == "pass"


def test_overflow_fails_under_a_minimum_too() -> None:
    made = profile([1.0, 1e30, math.inf])
    for bound in (Bound(min=0.1), Bound(max=10.0)):
        judgement = one(Corridor.of(forward_end_rms=bound).judge(made))
        assert judgement.state == "fail"
        assert judgement.reason == "overflow to inf from block 2 on (blocks.1)"
    assert one(Corridor.of(forward_end_rms=Bound(min=0.1)).judge(profile())).state == "pass"


def test_one_bad_seed_of_several_is_found() -> None:
    made = profile([[1.0, 1.0], [1.0, math.nan]], [[1.0, 1.0], [1.0, 1.0]])
    judgement = one(Corridor.of(forward_drift={"max": 10.0}).judge(made))
    assert judgement.state == "fail"
    assert math.isnan(judgement.value)
    assert judgement.reason == "not a number from block 1 on (blocks.0); 1 of 2 seeds outside"


def test_of_seeds_equally_far_out_one_that_is_not_a_number_says_most() -> None:
    for last in ([math.inf, NAN], [NAN, math.inf]):
        judgement = one(Corridor.of(forward_end_rms={"max": 1}).judge(profile([[1, 1], last])))
        assert math.isnan(judgement.value)
        assert judgement.reason.startswith("not a number from block 1 on")


def test_a_gradient_that_is_not_finite_is_traced_backward_and_to_the_state() -> None:
    nan, corridor = math.nan, Corridor.of(gradient_ratio={"max": 10.0})
    alone = one(corridor.judge(profile((1.0, 1.0, 1.0), (nan, nan, 1.0))))
    assert alone.reason == "not a number from block 1 back (blocks.0) in the gradient"
    both = one(corridor.judge(profile((1.0, 1.0, nan), (nan, nan, nan))))
    assert both.reason == (
        "not a number from block 2 back (blocks.1) in the gradient; "
        "the state is not finite from block 2 on (blocks.1)"
    )
    zero = one(corridor.judge(profile((1.0, 1.0), (1.0, 0.0))))
    assert zero.reason == (
        "overflow to inf because the gradient RMS at the output is too small to divide by"
    )
    assert alone.state == both.state == zero.state == "fail"
    assert one(corridor.judge(profile((1.0, 1.0), (1.0, 1.0)))).state == "pass"


def test_what_was_not_measured_never_passes() -> None:
    corridor = Corridor.of(gradient_ratio={"max": 10}, dead_fraction={"max": 0.5})
    verdict = corridor.judge(profile((1.0, 1.0)))
    assert verdict.state == "not_measured"
    assert verdict.score is None
    ratio, dead = verdict.judgements
    assert ratio.reason == "it needs gradient_rms, which no instrument measured"
    assert dead.reason == "no example was shown twice"
    assert ratio.n == 0
    reason = {"gradient_rms": "no backward pass was run"}
    told = corridor.judge(profile((1.0, 1.0), not_measured=reason))
    assert told.judgements[0].reason == "no backward pass was run"
    measured = profile((1.0, 1.0), (1.0, 1.0), extra={"dead_fraction": [0.0]})
    assert corridor.judge(measured).state == "pass"


def test_zero_is_infinitely_far_under_a_maximum_and_outside_every_minimum() -> None:
    dead = profile((1.0, 0.0))
    assert one(Corridor.of(forward_end_rms={"max": 1}).judge(dead)).margin == math.inf
    low = one(Corridor.of(forward_end_rms={"min": 1e-30}).judge(dead))
    assert (low.state, low.margin) == ("fail", -math.inf)
    none = profile((1.0,) * 2, extra={"nonfinite_fraction": [0.0, 0.0]})
    some = profile((1.0,) * 2, extra={"nonfinite_fraction": [0.0, 1e-9]})
    corridor = Corridor.of(nonfinite_fraction={"max": 0})
    assert corridor.judge(none).state == "pass"
    assert corridor.judge(some).state == "fail"
    assert one(Corridor.of(dead_fraction={"min": 0, "max": 1}).judge(
        profile((1.0,) * 2, extra={"dead_fraction": [0.0]})
    )).state == "pass"  # fmt: skip


def test_a_negative_cosine_is_outside_a_minimum_of_zero() -> None:
    corridor = Corridor.of(correlation={"min": 0})
    for value, state in ((-0.3, "fail"), (-1e-300, "fail"), (0.0, "pass"), (0.3, "pass")):
        made = profile((1.0,) * 2, extra={"correlation": [value, value]})
        assert one(corridor.judge(made)).state == state
    above = one(Corridor.of(correlation={"max": 0}).judge(
        profile((1.0,) * 2, extra={"correlation": [-0.3, -0.3]})
    ))  # fmt: skip
    assert above.state == "pass"


@pytest.mark.parametrize(
    ("bound", "value", "state", "margin"),
    [
        ({"min": -0.5}, -0.25, "pass", math.log10(2)),
        ({"min": -0.5}, -0.45, "warn", math.log10(0.5 / 0.45)),
        ({"min": -0.5}, -1.0, "fail", -math.log10(2)),
        ({"min": -0.5}, 0.3, "pass", math.inf),
        ({"min": -0.5}, -0.0, "pass", math.inf),
        ({"max": -0.2}, -0.8, "pass", math.log10(4)),
        ({"max": -0.2}, -0.1, "fail", -math.log10(2)),
        ({"max": -0.2}, 0.0, "fail", -math.inf),
        ({"min": -0.8, "max": -0.2}, -0.4, "pass", math.log10(2)),
    ],
)
def test_below_zero_the_decades_of_a_cosine_are_those_of_its_size(
    bound: dict[str, float], value: float, state: str, margin: float
) -> None:
    made = profile((1.0,) * 2, extra={"correlation": [value, value]})
    found = one(Corridor.of(correlation=bound).judge(made))
    assert found.state == state
    assert found.margin == pytest.approx(margin, abs=1e-12)


def test_a_river_that_is_zero_everywhere_has_no_small_drift() -> None:
    judgement = one(Corridor.of(gradient_drift={"max": 3}).judge(profile((1.0,) * 2, (0.0,) * 2)))
    assert judgement.state == "fail"
    assert judgement.reason == "the RMS is below 1e-30 at every block, so a drift says nothing"
    constant = profile((1.0,) * 2, (1e-20,) * 2)
    assert one(Corridor.of(gradient_drift={"max": 3}).judge(constant)).state == "pass"


BITS = "headroom_float16_bits"


@pytest.mark.parametrize(
    ("bits", "bound", "state", "margin"),
    [
        (8.0, {"min": 0}, "pass", 8 * math.log10(2)),
        (0.0, {"min": 0, "warn": 0}, "pass", 0.0),
        (1.0, {"min": 0, "warn": 0.31}, "warn", math.log10(2)),
        (1.0, {"min": 0, "warn": 0.3}, "pass", math.log10(2)),
        (-3.0, {"min": 0}, "fail", -3 * math.log10(2)),
        (-3.0, {"min": -4}, "pass", math.log10(2)),
        (5.0, {"min": 0, "max": 4}, "fail", -math.log10(2)),
        (math.inf, {"min": 0}, "pass", math.inf),
        (math.inf, {"max": 40}, "fail", -math.inf),
        (-math.inf, {"min": 0}, "fail", -math.inf),
        (NAN, {"min": 0}, "fail", -math.inf),
        (NAN, {"max": 40}, "fail", -math.inf),
    ],
)
def test_bits_are_logarithms_already(
    bits: float, bound: dict[str, float], state: str, margin: float
) -> None:
    made = profile(extra={BITS: [40.0, 40.0, bits]} if bits != math.inf else {BITS: [bits] * 3})
    judgement = one(Corridor.of({BITS: bound}).judge(made))
    assert judgement.state == state
    assert judgement.margin == pytest.approx(margin, abs=1e-12)


def test_the_reason_of_bits_names_the_bound_that_is_near() -> None:
    made = profile(extra={BITS: [40.0, 40.0, -3.0]})
    low = one(Corridor.of({BITS: {"min": 0, "max": 60}}).judge(made))
    assert low.reason == "-3 is 0.903 decades outside min 0"
    high = one(Corridor.of({BITS: {"min": -99, "max": -4}}).judge(made))
    assert high.reason == "-3 is 0.301 decades outside max -4"


def test_what_the_loss_scales_is_judged_where_there_is_a_loss() -> None:
    name = "functional_update"
    column = {name: [0.5] * 3}
    corridor = Corridor.of({name: {"max": 0.1}})
    for cotangent, state in (
        ("the gradient of the loss given", "fail"),
        ("the gradient of the loss among the outputs", "fail"),
        ("standard normal, divided by its RMS", "not_measured"),
    ):
        made = profile(extra=column, settings={"cotangent": cotangent})
        judgement = one(corridor.judge(made))
        assert judgement.state == state
        assert name in made.summary()
    assert judgement.reason.startswith("no loss was given, and along a random cotangent its size")
    with_loss = {"cotangent": "the gradient of the loss given"}
    for settings, reason in ((with_loss, "not asked for"), ({}, judgement.reason)):
        made = profile(not_measured={name: "not asked for"}, settings=settings)
        absent = one(corridor.judge(made))
        assert (absent.state, absent.reason) == ("not_measured", reason)


def test_stiffness_is_judged_wherever_it_was_measured() -> None:
    """It is where there is a loss, and of an equation, whose loss is that of classes."""
    made = profile(
        extra={"stiffness": [0.5] * 3},
        settings={"cotangent": "standard normal, divided by its RMS"},
    )
    for most, state in ((0.1, "fail"), (10.0, "pass")):
        assert one(Corridor.of({"stiffness": {"max": most}}).judge(made)).state == state


def test_reason_and_source_of_a_bound_are_kept() -> None:
    bound = {"max": 3.0, "reason": "it grows", "source": "a paper"}
    corridor = Corridor.of(forward_drift=bound)
    assert corridor.to_dict() == {"forward_drift": {**bound, "warn": 0.1}}
    document = corridor.judge(profile()).to_dict()
    assert document["judgements"][0]["bound"] == {**bound, "warn": 0.1}
    with pytest.raises(SpecificationError, match="reason of a bound is 3; give text in quotes"):
        Corridor.of(forward_drift={"max": 3, "reason": 3})


def test_the_worst_state_wins() -> None:
    made = profile((1.0, 2.0, 4.0), (3.0, 1.5, 1.0))
    passing, warning = {"forward_drift": {"max": 9}}, {"gradient_ratio": {"max": 3.1}}
    missing, failing = {"state_max": {"max": 9}}, {"forward_end_rms": {"max": 1}}
    expected = ["pass", "warn", "not_measured", "fail"]
    for i in range(4):
        bounds: dict[str, object] = {}
        for part in (passing, warning, missing, failing)[: i + 1]:
            bounds |= part
        verdict = Corridor.of(bounds).judge(made)
        assert verdict.state == expected[i]
        assert verdict.score == min(
            j.margin for j in verdict.judgements if j.state != "not_measured"
        )
    assert verdict.reason.startswith("forward_end_rms: 4 is 0.602 decades outside max 1")
    empty = Corridor.of({}).judge(made)
    assert (empty.state, empty.reason) == ("not_measured", "the corridor declares no bound")


# ------------------------------------------------------------------------------ printing


def test_verdict_as_text() -> None:
    bounds = {"forward_drift": {"max": 3}, "gradient_ratio": {"min": 0.3}, "state_max": {"max": 9}}
    assert str(Corridor.of(bounds).judge(profile((1.0, 2.0, 4.0), (3.0, 1.5, 1.0)))) == (
        "fail, smallest margin -0.125 decades\n"
        "  fail         forward_drift             4 (max 3), margin -0.125, n=1\n"
        "               4 is 0.125 decades outside max 3\n"
        "  pass         gradient_ratio            3 (min 0.3), margin +1, n=1\n"
        "  not measured state_max                 (max 9)\n"
        "               no instrument measured it"
    )
    seeds = profile([[1, 1, 1], [2, 4, 2]])
    line = str(Corridor.of(forward_drift={"max": 400}).judge(seeds)).splitlines()[1]
    assert line.endswith("4 (max 400), margin +2, median 2 [2, 4] n=3")
    bad = str(Corridor.of(forward_drift={"max": 400}).judge(profile([[1, 1], [2, NAN]])))
    assert bad.splitlines()[1].endswith("not a number (max 400), margin -inf, n=2")


def test_verdict_as_json_puts_a_reason_beside_every_null() -> None:
    corridor = Corridor.of(
        forward_drift={"max": 3}, forward_end_rms={"max": 3}, state_max={"max": 3}
    )
    document = corridor.judge(profile((1.0, math.nan))).to_dict()
    json.dumps(document, allow_nan=False)
    assert document["state"] == "fail"
    assert document["score"] is None
    assert document["score_reason"] == ("minus infinity: not a number from block 1 on (blocks.0)")
    drift, _, state_max = document["judgements"]
    assert drift["margin"] is None
    assert drift["margin_reason"] == "minus infinity: not a number from block 1 on (blocks.0)"
    assert drift["value_reason"] == "not a number"
    assert drift["bound"] == {"max": 3.0, "warn": 0.1}
    assert state_max["margin_reason"] == state_max["value_reason"] == "not measured"
    dead = Corridor.of(forward_end_rms={"max": 1}).judge(profile((1.0, 0.0))).to_dict()
    assert dead["score"] is None
    assert dead["score_reason"].startswith("infinitely far inside")
    nothing = Corridor.of(state_max={"max": 3}).judge(profile()).to_dict()
    assert (nothing["score"], nothing["score_reason"]) == (None, "nothing was measured")


def test_a_profile_carries_its_verdict() -> None:
    made = profile((1.0, 2.0, 4.0), (3.0, 1.5, 1.0))
    document = made.to_dict(Corridor.of(forward_drift={"max": 3}).judge(made))
    assert document["verdict"] == document["corridor"]["state"] == "fail"
    assert document["verdict_reason"] == "forward_drift: 4 is 0.125 decades outside max 3"
    assert made.to_dict(Corridor.of(forward_drift={"max": 9}).judge(made))["verdict"] == "pass"


# ----------------------------------------------------------------------------- declaring


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"forward_drfit": {"max": 3}}, "'forward_drfit' cannot be bounded \\(did you mean 'for"),
        ({"accuracy": {"max": 3}}, "use one of forward_end_rms, forward_drift, gradient_ratio"),
        ({"forward_drift": {"maxi": 3}}, "'maxi' is not part of the bound of forward_drift \\(did"),
        ({"forward_drift": 3.0}, r"the bound of forward_drift is 3.0; give a table"),
        ({"forward_drift": {}}, "forward_drift: a bound has neither min nor max"),
        ({"forward_drift": {"warn": 1.0}}, "forward_drift: a bound has neither min nor max"),
        ({"forward_drift": {"min": 3, "max": 2}}, "min 3 is larger than max 2"),
        ({"forward_drift": {"max": 0}}, "max of forward_drift is 0; give a positive number"),
        ({"gradient_ratio": {"min": -1}}, "min of gradient_ratio is -1; give a positive number"),
        ({"dead_fraction": {"max": -0.1}}, "max of dead_fraction is -0.1; give a share, 0 or more"),
        ({"forward_drift": {"max": math.nan}}, "max of a bound is nan; give a finite number"),
        ({"forward_drift": {"max": math.inf}}, "max of a bound is inf; give a finite number"),
        ({"forward_drift": {"max": 10**400}}, "give a finite number"),
        ({"forward_drift": {"max": "3"}}, "max of a bound is '3'; give a finite number"),
        ({"forward_drift": {"max": True}}, "max of a bound is True; give a finite number"),
        ({"forward_drift": {"max": 3, "warn": None}}, "warn of a bound is None"),
        ({"forward_drift": {"max": 3, "warn": -1}}, "warn of a bound is -1 decades; give 0 or"),
    ],
)
def test_declarations_that_cannot_be_meant(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        Corridor.of(declared)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("dead_fraction min 3", "min of dead_fraction is 3, which no value can meet; from 0 to 1"),
        ("dead_fraction max 3", "max of dead_fraction is 3, which every value meets; from 0 to 1"),
        ("participation_share min 1.01", "min of participation_share is 1.01, which no value can"),
        ("participation_share min 0.1 max 10", "max of participation_share is 10, which every"),
        ("nonfinite_fraction min 0", "the bound of nonfinite_fraction is min 0, which every value"),
        ("dead_fraction max 1 warn 0", "the bound of dead_fraction is max 1, which every value"),
        ("correlation min 2", "min of correlation is 2, which no value can meet; from -1 to 1"),
        ("correlation min -2", "min of correlation is -2, which every value meets; from -1 to 1"),
        ("correlation max -1.5", "max of correlation is -1.5, which no value can meet; from -1"),
        ("correlation min -1 warn 0", "the bound of correlation is min -1, which every value"),
        ("correlation max 1.5", "max of correlation is 1.5, which every value meets; from -1 to 1"),
        ("forward_drift max 0.5", "max of forward_drift is 0.5, which no value can meet; 1 or mor"),
        ("gradient_drift min 0.5", "min of gradient_drift is 0.5, which every value meets; 1 or m"),
        ("forward_drift min 1 warn 0", "the bound of forward_drift is min 1, which every value"),
        # Beside them those that tell values apart, if only by a warning.
        ("dead_fraction min 1", ""),
        ("dead_fraction max 1", ""),
        ("dead_fraction min 0 max 0.5", ""),
        ("correlation min 0", ""),
        ("correlation max 1", ""),
        ("correlation min -0.5", ""),
        ("correlation min -1", ""),
        ("correlation max -1", ""),
        ("correlation min -0.9 max -0.1", ""),
        ("forward_drift min 1", ""),
        ("forward_drift max 1", ""),
        ("gradient_ratio min 3 max 1e9", ""),
        ("headroom_float16_bits min -3", ""),
    ],
)
def test_a_bound_that_no_value_can_meet_or_that_every_value_meets(declared: str, said: str) -> None:
    name, *words = declared.split()
    bound = {key: float(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    if not said:
        assert Corridor.of({name: bound}).to_dict() == {name: {"warn": 0.1, **bound}}
        return
    with pytest.raises(SpecificationError) as caught:
        Corridor.of({name: bound})
    assert str(caught.value).replace("; it is ", "; ").startswith(said)


def test_a_name_is_bounded_once() -> None:
    with pytest.raises(SpecificationError, match="bounds forward_drift twice"):
        Corridor.of({"forward_drift": {"max": 3}}, forward_drift=Bound(max=3))


def test_every_summary_can_be_bounded_and_nothing_else() -> None:
    corridor = Corridor.of({name: {"max": 5 if "drift" in name else 0.5} for name in SUMMARIES})
    assert [name for name, _ in corridor.bounds] == list(SUMMARIES)
    assert len(corridor.judge(profile()).judgements) == len(SUMMARIES)


def test_integers_and_floats_declare_the_same_corridor() -> None:
    a, b = Corridor.of(forward_drift={"max": 3}), Corridor.of(forward_drift=Bound(max=3.0))
    assert a == b
    assert json.dumps(a.to_dict()) == json.dumps(b.to_dict())
    assert a != Corridor.of(forward_drift={"max": 4})


# ---------------------------------------------------------------------------- properties


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    low, high = sorted((draw(POSITIVE), draw(POSITIVE)))
    side = draw(st.sampled_from(["min", "max", "both"]))
    warn = draw(st.floats(0, 2))
    return Bound(min=low if side != "max" else None, max=high if side != "min" else None, warn=warn)


@given(st.dictionaries(st.sampled_from(list(SUMMARIES)), bounds()))
def test_a_corridor_survives_a_round_trip_through_json(declared: dict[str, Bound]) -> None:
    corridor = Corridor.of({n: bound for n, bound in declared.items() if not wrong_for(n, bound)})
    assert Corridor.of(json.loads(json.dumps(corridor.to_dict(), allow_nan=False))) == corridor


@given(st.lists(VALUE, min_size=1, max_size=5), bounds())
def test_margin_state_and_value_agree(values: list[float], bound: Bound) -> None:
    made = profile([[1.0] * len(values), values])
    judgement = one(Corridor.of(forward_end_rms=bound).judge(made))
    low = -math.inf if bound.min is None else bound.min
    high = math.inf if bound.max is None else bound.max
    inside = all(low <= x <= high and math.isfinite(x) for x in values)
    assert (judgement.state in ("pass", "warn")) == inside == (judgement.margin >= 0)
    assert (judgement.state == "warn") == (0 <= judgement.margin < bound.warn)
    assert bool(judgement.reason) == (judgement.state != "pass")


@given(POSITIVE, st.sampled_from([-1, 0, 1]))
def test_the_sign_of_the_margin_is_right_at_the_last_digit(bound: float, step: int) -> None:
    value = float(np.nextafter(bound, bound * (1 + step))) if step else bound
    assert (Bound(max=bound).margin(value) < 0) == (value > bound)
    assert (Bound(min=bound).margin(value) < 0) == (value < bound)


@given(st.lists(VALUE, min_size=2, max_size=6), st.lists(VALUE, min_size=2, max_size=6))
def test_not_a_number_is_never_a_pass(state: list[float], gradient: list[float]) -> None:
    size = min(len(state), len(gradient))
    made = profile(state[:size], gradient[:size])
    corridor = Corridor.of(
        {name: {"max": 1e308, "warn": 0} for name in ("forward_drift", "gradient_drift")}
    )
    verdict = corridor.judge(made)
    if not np.isfinite([state[:size], gradient[:size]]).all():
        assert verdict.state == "fail"
    json.dumps(verdict.to_dict(), allow_nan=False)
    json.dumps(made.to_dict(verdict), allow_nan=False)
    assert str(verdict)
