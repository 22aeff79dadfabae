"""Profiles: access, summaries, subtraction, and what other programs and people read."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import MissingExtra, UsageError
from depthgauge.jsonable import finite, jsonable
from depthgauge.profile import SUMMARIES, Profile
from depthgauge.sites import QUANTITIES, Site
from depthgauge.summaries import spread
from tests.factories import profile

NAN, INF = math.nan, math.inf
ANY = st.floats(0) | st.just(math.nan)


@st.composite
def profiles(draw: st.DrawFn, values: st.SearchStrategy[float] = ANY) -> Profile:
    depth, seeds = draw(st.integers(1, 6)), draw(st.integers(1, 3))

    def rows(n: int) -> list[list[float]]:
        row = st.lists(values, min_size=seeds, max_size=seeds)
        return draw(st.lists(row, min_size=n, max_size=n))

    extra = {
        name: rows(depth if "activation" in quantity.roles else depth + 1)
        for name, quantity in QUANTITIES.items()
        if name not in ("state_rms", "gradient_rms") and draw(st.booleans())
    }
    gradient = rows(depth + 1) if draw(st.booleans()) else None
    return profile(rows(depth + 1), gradient, extra=extra)


# -------------------------------------------------------------------------------- sites


def test_quantity_names_are_the_contract() -> None:
    river = ["rms", "mean", "max", "q01", "q50", "q99", "q999"]
    assert list(QUANTITIES) == [
        *(f"state_{name}" for name in river),
        "nonfinite_fraction",
        *(f"gradient_{name}" for name in river),
        "gradient_nonfinite_fraction",
        "live_derivative_fraction",
        "saturated_fraction",
        "dead_fraction",
    ]
    for name, quantity in (QUANTITIES | SUMMARIES).items():
        assert quantity.name == name
        assert len(quantity.definition) > 20
        assert quantity.unit
    linear = {name for name, quantity in QUANTITIES.items() if quantity.scale == "linear"}
    assert linear == {name for name in QUANTITIES if name.endswith(("fraction", "mean"))}


def test_a_site_describes_itself() -> None:
    assert str(Site(0, 0, "input", "state")) == "the input"
    assert str(Site(3, 57, "blocks.56", "state")) == "block 57 (blocks.56)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Site(0, 0, "input", "state").block = 1  # type: ignore[misc]


# -------------------------------------------------------------------------------- access


def test_one_integer_seed_has_no_seed_axis() -> None:
    made = profile((1.0, 2.0, 4.0))
    assert made["state_rms"].tolist() == [1.0, 2.0, 4.0]
    assert made.curve("state_rms") == {0: 1.0, 1: 2.0, 2: 4.0}
    one = profile((1.0, 2.0, 4.0), seed_axis=True)
    assert one["state_rms"].tolist() == [[1.0, 2.0, 4.0]]
    two = profile([[1, 5], [2, 6], [4, 7]])
    assert two["state_rms"].tolist() == [[1, 2, 4], [5, 6, 7]]
    assert [v.tolist() for v in two.curve("state_rms").values()] == [[1, 5], [2, 6], [4, 7]]  # type: ignore[union-attr]


def test_sites_and_blocks_of_a_quantity() -> None:
    made = profile((1.0, 2.0, 4.0), extra={"live_derivative_fraction": [0.5, 0.4]})
    assert made.blocks_of("state_rms") == (0, 1, 2)
    assert made.blocks_of("live_derivative_fraction") == (1, 2)
    assert [site.path for site in made.sites_of("live_derivative_fraction")] == [
        "blocks.0.relu",
        "blocks.1.relu",
    ]
    assert "state_rms" in made
    assert "gradient_rms" not in made


def test_arrays_are_copies() -> None:
    made = profile((1.0, 2.0, 4.0))
    made["state_rms"][0] = 99.0
    assert made["state_rms"][0] == 1.0


def test_unknown_and_unmeasured_names_say_what_to_do() -> None:
    made = profile((1.0, 2.0))
    with pytest.raises(
        UsageError, match=r"not a quantity; did you mean 'state_rms'.*holds state_rms"
    ):
        made["state_rsm"]
    with pytest.raises(UsageError, match="not in this profile: no example was shown twice"):
        made.curve("dead_fraction")
    with pytest.raises(UsageError, match="not in this profile: no instrument measured it"):
        made.sites_of("gradient_rms")
    linear = profile((1.0,), not_measured={})
    assert linear.why_not("dead_fraction") == "there is no activation site in this profile"


def test_a_block_with_several_sites_gives_its_last_state_and_its_mean_activation() -> None:
    made = profile((1.0, 2.0, 4.0), extra={"dead_fraction": [0.2, 0.4]})
    sites = tuple(dataclasses.replace(site, block=min(site.block, 1)) for site in made.sites)
    folded = dataclasses.replace(made, sites=sites, depth=1)
    assert folded.curve("state_rms") == {0: 1.0, 1: 4.0}
    assert folded.curve("dead_fraction") == {1: pytest.approx(0.3)}


def test_a_malformed_profile_is_our_mistake() -> None:
    made = profile((1.0, 2.0))
    for fields in (
        {"seeds": (0, 1)},
        {"sites": made.sites[::-1]},
        {"columns": {"state": made.columns["state_rms"]}},
        {"columns": {"dead_fraction": made.columns["state_rms"]}},
    ):
        with pytest.raises(AssertionError):
            dataclasses.replace(made, **fields)


# ------------------------------------------------------------------------------- summary


def test_every_summary_follows_its_formula() -> None:
    extra = {
        "live_derivative_fraction": [0.5, 0.3],
        "saturated_fraction": [0.1, 0.2],
        "dead_fraction": [0.05, 0.0],
        "nonfinite_fraction": [0.0, 0.0, 0.25],
        "gradient_nonfinite_fraction": [0.5, 0.0, 0.0],
        "state_max": [3.0, 9.0, 5.0],
    }
    made = profile((2.0, 0.5, 4.0), (3.0, 12.0, 1.5), extra=extra)
    expected = [4.0, 8.0, 2.0, 8.0, 0.4, 0.2, 0.05, 0.5, 9.0]
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


# ---------------------------------------------------------------------------- difference


def test_a_difference_is_decades_or_plain() -> None:
    a = profile((1.0, 20.0, 4.0), extra={"live_derivative_fraction": [0.5, 0.3]})
    b = profile((1.0, 2.0, 40.0), extra={"live_derivative_fraction": [0.4, 0.3]})
    difference = a - b
    assert difference["state_rms"].tolist() == pytest.approx([0.0, 1.0, -1.0], abs=1e-15)
    assert difference["live_derivative_fraction"].tolist() == pytest.approx([0.1, 0.0])
    (name, site, value), *_ = difference.worst(1)
    assert (name, site) == ("state_rms", a.sites[2])
    assert value == pytest.approx(1.0)
    assert [round(v, 9) for _, _, v in difference.worst()] == [1.0, -1.0, 0.1]


def test_zeros_and_infinities_subtract() -> None:
    a = profile((0.0, 0.0, 1.0, INF, INF, NAN, 1e-320, 1e300))
    b = profile((0.0, 1.0, 0.0, INF, 1.0, 1.0, 1e-310, 1e-300))
    expected = [0.0, -INF, INF, 0.0, INF, NAN, -10.0, 600.0]
    np.testing.assert_allclose((a - b)["state_rms"], expected, rtol=1e-3)
    assert math.isnan((a - b).worst(1)[0][2])


def test_seeds_broadcast() -> None:
    two, one = profile([[1, 10], [10, 100]]), profile((1.0, 10.0))
    np.testing.assert_allclose((two - one)["state_rms"], [[0, 0], [1, 1]], atol=1e-15)
    np.testing.assert_allclose((one - two)["state_rms"], [[0, 0], [-1, -1]], atol=1e-15)
    assert (two - two)["state_rms"].shape == (2, 2)
    assert (one - one)["state_rms"].shape == (2,)
    with pytest.raises(UsageError, match="2 seeds minus 3 seeds; give both profiles the same"):
        two - profile([[1, 1, 1], [1, 1, 1]])


def test_sites_must_agree() -> None:
    a = profile((1.0, 2.0))
    with pytest.raises(UsageError, match="3 sites minus 5 sites; only profiles of the same blocks"):
        a - profile((1.0, 2.0, 3.0))
    gelu = dataclasses.replace(a.sites[1], path="blocks.0.gelu")
    other = dataclasses.replace(a, sites=(a.sites[0], gelu, a.sites[2]))
    with pytest.raises(UsageError, match=r"site 1 is the activation of block 1 \(blocks.0.relu\)"):
        a - other
    with pytest.raises(TypeError, match="unsupported operand"):
        a - 1  # type: ignore[operator]


def test_what_was_not_compared_is_listed() -> None:
    a, b = profile((1.0, 2.0), (1.0, 1.0)), profile((1.0, 2.0))
    for difference, side in ((a - b, "right"), (b - a, "left")):
        reason = f"not measured on the {side}: no instrument measured it"
        assert difference.not_compared == {"gradient_rms": reason}
        with pytest.raises(UsageError, match=f"was not compared: {reason}"):
            difference["gradient_rms"]
    with pytest.raises(UsageError, match=r"did you mean 'state_rms'.*it holds state_rms"):
        (a - b)["state_rsm"]
    river = b.columns["state_rms"]
    part = dataclasses.replace(river, rows=river.rows[1:], values=river.values[1:])
    partial = b - dataclasses.replace(b, columns={"state_rms": part})
    assert partial["state_rms"].tolist() == [0.0]
    assert partial.not_compared == {"state_rms": "1 sites were measured on one side only"}
    assert not (a - a).not_compared


def test_difference_as_text() -> None:
    a, b = profile((1.0, 20.0), (1.0, 1.0)), profile((1.0, 2.0))
    assert str(a - b) == (
        "h + a * W2(relu(W1(h))) - h + a * W2(relu(W1(h))) (largest over sites, n = 1 seeds)\n"
        "  state_rms                   +1 decades at block 1 (blocks.0)\n"
        "worst: state_rms +1 at block 1 (blocks.0); state_rms +0 at the input\n"
        "not compared: gradient_rms: not measured on the right: no instrument measured it"
    )
    assert repr(a - b) == "<Difference of 1 quantities at 3 sites>"


@given(profiles(st.floats(0, allow_nan=False)))
def test_a_profile_minus_itself_is_zero(made: Profile) -> None:
    difference = made - made
    assert set(difference.columns) == set(made.columns)
    for name in made.columns:
        assert not difference[name].any()
        assert difference[name].shape == made[name].shape


@given(profiles())
def test_a_difference_changes_sign_when_turned_round(made: Profile) -> None:
    river = made.columns["state_rms"]
    back = {"state_rms": dataclasses.replace(river, values=river.values[::-1])}
    other = dataclasses.replace(made, columns=back)
    there, and_back = (made - other)["state_rms"], (other - made)["state_rms"]
    np.testing.assert_allclose(there, -and_back, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------- JSON


def test_document_of_one_seed() -> None:
    made = profile((1.0, 2.0), (3.0, 1.5), extra={"live_derivative_fraction": [0.5]})
    document = made.to_dict()
    assert document["target"] == "h + a * W2(relu(W1(h)))"
    assert (document["depth"], document["width"], document["batch"]) == (1, 64, 128)
    assert (document["seeds"], document["dtype"]) == ([0], "float32")
    assert document["sites"] == [
        {"index": 0, "block": 0, "path": "input", "role": "state"}
        | {"state_rms": 1.0, "gradient_rms": 3.0},
        {"index": 1, "block": 1, "path": "blocks.0.relu", "role": "activation"}
        | {"live_derivative_fraction": 0.5},
        {"index": 2, "block": 1, "path": "blocks.0", "role": "state"}
        | {"state_rms": 2.0, "gradient_rms": 1.5},
    ]
    assert document["curves"] == {
        "block": [0, 1],
        "state_rms": [[1.0, 2.0]],
        "gradient_rms": [[3.0, 1.5]],
    }
    assert document["summary"]["forward_drift"] == {"value": 2.0, "n": 1, "min": 2.0, "max": 2.0}
    assert document["summary"]["dead_fraction"] == {
        "value": None,
        "value_reason": "no example was shown twice",
        "n": 0,
    }
    assert (document["findings"], document["disagreements"]) == ([], [])
    assert document["verdict"] == "not_measured"
    assert document["verdict_reason"] == "no corridor was declared"
    assert document["settings"]["init"] == {"W1": "he"}


def test_document_of_several_seeds_gives_medians_and_the_range_of_the_rivers() -> None:
    made = profile(
        [[1, 1, 1], [2, 4, 9]],
        extra={"nonfinite_fraction": [[0, 0, 0], [0, 0.5, 0.1]]},
    )
    site = made.to_dict()["sites"][-1]
    assert site["state_rms"] == 4.0
    assert (site["state_rms_min"], site["state_rms_max"]) == (2.0, 9.0)
    assert site["nonfinite_fraction"] == 0.1
    assert "nonfinite_fraction_min" not in site
    assert made.to_dict()["curves"]["state_rms"] == [[1, 2], [1, 4], [1, 9]]
    assert made.to_dict()["summary"]["forward_drift"] == {"value": 4, "n": 3, "min": 2, "max": 9}


def test_every_null_has_its_reason() -> None:
    document = profile((1.0, INF, NAN)).to_dict()
    assert document["sites"][2]["state_rms"] is None
    assert document["sites"][2]["state_rms_reason"] == "overflow to inf"
    assert document["sites"][4]["state_rms_reason"] == "not a number"
    assert document["curves"]["state_rms"] == [[1.0, None, None]]
    assert (
        document["curves"]["state_rms_reason"]
        == "overflow to inf at 1 of 3; not a number at 1 of 3"
    )
    drift = document["summary"]["forward_drift"]
    assert drift["value_reason"] == "not a number from block 1 on (blocks.0)"
    assert drift["min_reason"] == "not a number"
    seeds = profile([[1, 1], [1, NAN]]).to_dict()
    assert seeds["sites"][2]["state_rms_reason"] == "not a number in 1 of 2 seeds"
    assert seeds["summary"]["forward_drift"]["value_reason"].endswith("; 1 of 2 seeds")


def test_a_curve_with_holes_says_so() -> None:
    made = profile((1.0, 2.0, 4.0), (1.0, 1.0, 1.0))
    river = made.columns["gradient_rms"]
    part = dataclasses.replace(river, rows=river.rows[1:], values=river.values[1:])
    holed = dataclasses.replace(made, columns=dict(made.columns) | {"gradient_rms": part})
    document = holed.to_dict()
    assert document["curves"]["gradient_rms"] == [[None, 1.0, 1.0]]
    assert document["curves"]["gradient_rms_reason"] == "not measured at 1 of 3 blocks"
    assert document["coverage"]["no_gradient"] == [
        {"path": "input", "reason": "no gradient was measured here"}
    ]
    whole = made.to_dict()
    assert "gradient_rms_reason" not in whole["curves"]
    assert whole["coverage"]["no_gradient"] == []


def test_coverage_lists_what_was_expected_and_seen() -> None:
    made = profile((1.0, 2.0), not_measured={"gradient_rms": "no backward pass was run"})
    coverage = made.to_dict()["coverage"]
    assert list(coverage) == [
        "expected",
        "seen",
        "not_called",
        "no_gradient",
        "opaque",
        "fallback",
    ]
    assert [entry["path"] for entry in coverage["expected"]] == [s.path for s in made.sites]
    assert [entry["path"] for entry in coverage["seen"]] == ["input", "blocks.0"]
    assert {entry["reason"] for entry in coverage["no_gradient"]} == {"no backward pass was run"}


def test_jsonable_reduces_everything() -> None:
    assert [finite(x) for x in (1, NAN, INF, -INF, 2.5)] == [1.0, None, None, None, 2.5]
    value = {
        "a": np.float32(1.5),
        "b": np.array([1, 2]),
        3: (True, None, "x"),
        "c": -INF,
        "d": [[1.0, NAN], [INF, NAN]],
        "e": {"f": NAN, "f_reason": "the optimiser was off"},
        "g": frozenset({"y", "x"}),
        "h": np.dtype("float32"),
        "i": [{"j": INF}],
    }
    out = jsonable(value)
    assert out == {
        "a": 1.5,
        "b": [1, 2],
        "3": [True, None, "x"],
        "c": None,
        "c_reason": "minus infinity",
        "d": [[1.0, None], [None, None]],
        "d_reason": "not a number at 2 of 4, overflow to inf at 1 of 4",
        "e": {"f": None, "f_reason": "the optimiser was off"},
        "g": ["x", "y"],
        "h": "float32",
        "i": [{"j": None, "j_reason": "overflow to inf"}],
    }
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.dumps(value["c"], allow_nan=False)


@given(profiles())
def test_a_document_is_always_json(made: Profile) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = made.to_dict()
        text, short = str(made), repr(made)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert "\n" not in short
    assert text.startswith("h = h + a * W2(relu(W1(h)))\ndepth ")
    for site in document["sites"]:
        for name, value in site.items():
            assert value is not None or site[f"{name}_reason"]
    for entry in document["summary"].values():
        assert entry["value"] is not None or entry["value_reason"]


# ------------------------------------------------------------------------ text and tables


def test_text_of_one_seed() -> None:
    extra = {"live_derivative_fraction": [0.5, 0.4], "saturated_fraction": [0.1, 0.2]}
    rest = dict.fromkeys(QUANTITIES, "only the rivers were asked for")
    made = profile((1.0, 2.0, 40.0), (30.0, 3.0, 1.0), extra=extra, not_measured=rest)
    lines = str(made).splitlines()
    assert lines[:-3] == [
        "h = h + a * W2(relu(W1(h)))",
        "depth 2, width 64, 2 branches, batch 128, float32, seed 0",
        "  forward_end_rms           40  n=1",
        "  forward_drift             40  n=1",
        "  gradient_ratio            30  n=1",
        "  gradient_drift            30  n=1",
        "  live_derivative_fraction  0.45  n=1",
        "  saturated_fraction        0.2  n=1",
        "state RMS    ▁▂█  1 at block 0, 40 at block 2",
        "gradient RMS █▃▁  30 at block 0, 1 at block 2",
        "steepest     block 2 (blocks.1): state RMS x 20",
        "             block 1 (blocks.0): gradient RMS x 10",
        "             block 2 (blocks.1): gradient RMS x 3",
    ]
    assert lines[-3].startswith("not measured: state_mean, state_max, ")
    assert lines[-1].endswith("only the rivers were asked for")
    assert 12 <= len(lines) <= 20
    assert max(map(len, lines)) <= 100


def test_text_of_several_seeds_has_spread_and_n() -> None:
    text = str(profile([[1, 1, 1], [2, 4, 9]]))
    assert "n = 3 seeds, median [min, max]" in text
    assert "  forward_drift             4  [2, 9]  n=3\n" in text
    assert "steepest     block 1 (blocks.0): state RMS x 9 (seed 2)" in text


def test_text_shows_where_a_river_ends() -> None:
    text = str(profile((1.0, 2.0, INF, NAN), (NAN, NAN, 1.0, 1.0)))
    assert "state RMS    ▁█××  1 at block 0, not a number at block 3" in text
    assert "state is not finite from block 2 (blocks.1) on, in 1 of 1 seeds" in text
    assert "gradient is not finite, going back, from block 1 (blocks.0) on" in text
    assert "block 1 (blocks.0): state RMS x 2" in text
    assert "steepest     block 1 (blocks.0): state RMS x 0\n" in str(profile((1.0, 0.0, 0.0)))
    assert "state RMS x 1e-310" in str(profile((1.0, 1e-310)))
    assert "not finite" not in str(profile((1.0, 2.0)))


def test_frame_has_one_row_a_site() -> None:
    frame = profile((1.0, 2.0), extra={"dead_fraction": [0.5]}).to_frame()
    assert list(frame.columns) == ["index", "block", "path", "role", "state_rms", "dead_fraction"]
    assert len(frame) == 3
    assert frame["state_rms"].dropna().tolist() == [1.0, 2.0]
    assert frame["dead_fraction"].tolist()[1] == 0.5
    seeds = profile([[1, 2], [3, 4]], seeds=(7, 9)).to_frame()
    assert list(seeds.columns)[:2] == ["seed", "index"]
    assert seeds["seed"].tolist() == [7, 7, 7, 9, 9, 9]
    assert seeds[seeds["seed"] == 9]["state_rms"].dropna().tolist() == [2.0, 4.0]


def test_frame_without_pandas_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"Profile.to_frame needs pandas.*depthgauge\[pandas\]"):
        profile().to_frame()


# ---------------------------------------------------------------------------------- plot


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    yield plt
    plt.close("all")


def test_plot_draws_both_rivers(pyplot: Any) -> None:
    ax = profile([[1, 1, 4], [2, 4, 9]], [[3, 2, 1], [1, 1, 1]]).plot()
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("block", "RMS", "log")
    state, gradient = ax.get_lines()
    assert state.get_ydata().tolist() == [1.0, 4.0]
    assert gradient.get_ydata().tolist() == [2.0, 1.0]
    assert len(ax.collections) == 2
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["state RMS, n=3", "gradient RMS, n=3"]
    ax.figure.canvas.draw()


def test_plot_of_one_seed_on_given_axes(pyplot: Any) -> None:
    given = pyplot.subplots()[1]
    made = profile([[1, 1], [2, 4]])
    assert made.plot(given, seed=1) is given
    assert given.get_lines()[0].get_ydata().tolist() == [1.0, 4.0]
    assert not given.collections
    with pytest.raises(UsageError, match="seed 5 is a place on the seed axis"):
        made.plot(given, seed=5)


def test_plot_marks_the_gaps_where_they_begin(pyplot: Any) -> None:
    ax = profile((1.0, 0.0, INF, NAN), (NAN, NAN, 1.0, 1.0)).plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "state RMS",
        "state not finite from block 2 on",
        "state zero from block 1 on",
        "gradient RMS",
        "gradient not finite from block 1 back",
    ]
    np.testing.assert_equal(ax.get_lines()[0].get_ydata(), [1.0, NAN, NAN, NAN])
    ax.figure.canvas.draw()
    some = profile([[1, 1], [2, NAN]]).plot()
    assert some.get_lines()[0].get_ydata().tolist() == [1.0, 2.0]
    assert some.get_legend().get_texts()[1].get_text().endswith("on in 1 of 2 seeds")


def test_plot_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"Profile.plot needs matplotlib.*depthgauge\[plot\]"):
        profile().plot()
