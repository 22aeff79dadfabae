"""The JSON document and the pandas table of a profile."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings

import pytest
from hypothesis import given

from depthgauge.errors import MissingExtra
from depthgauge.profile import Profile
from tests.factories import profile, profiles

NAN, INF = math.nan, math.inf


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
