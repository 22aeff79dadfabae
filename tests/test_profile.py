"""Profiles: what stands in them, how it is reached, and where it stops being finite."""

from __future__ import annotations

import dataclasses

import pytest

from depthgauge.errors import UsageError
from depthgauge.profile import SUMMARIES
from depthgauge.sites import QUANTITIES, Site
from tests.factories import profile


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
        *(f"derivative_{name}" for name in ("q05", "q50", "q95")),
        *("branch_rms", "branch_to_stream", "branch_stream_cosine"),
        *("correlation", "token_correlation", "apjn", "apjn_standard_error"),
        *("effective_rank_participation", "effective_rank_entropy", "stable_rank"),
        *("lost_direction_fraction", "block_gain", "block_loss", "direction_gain"),
        *("component_gain", "class_gain", "class_share"),
        *("update_to_weight", "functional_update", "branch_update", "update_alignment"),
        *("relative_error_state", "relative_error_gradient", "flushed_gradient_fraction"),
        *("headroom_float16_bits", "headroom_bfloat16_bits"),
        *("headroom_float8_e4m3_bits", "headroom_float8_e5m2_bits"),
        *("last_binades_fraction", "underflow_headroom_bits"),
        "stiffness",
    ]
    for name, quantity in (QUANTITIES | SUMMARIES).items():
        assert quantity.name == name
        assert len(quantity.definition) > 20
        assert quantity.unit
    linear = {name for name, quantity in QUANTITIES.items() if quantity.scale == "linear"}
    ends = ("fraction", "mean", "cosine", "correlation", "share", "alignment", "bits")
    assert linear == {n for n in QUANTITIES if n.endswith(ends) or n.startswith("derivative")}


def test_a_site_describes_itself() -> None:
    assert str(Site(0, 0, "input", "state")) == "the input"
    assert str(Site(3, 57, "blocks.56", "state")) == "block 57 (blocks.56)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Site(0, 0, "input", "state").block = 1  # type: ignore[misc]


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
        UsageError, match=r"not a quantity \(did you mean 'state_rms'\?\).*holds state_rms"
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
