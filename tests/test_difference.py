"""One profile minus another: decades, plain differences, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.errors import UsageError
from depthgauge.profile import Profile
from tests.factories import profile, profiles

NAN, INF = math.nan, math.inf


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
