"""The relay suite: powers of a gain, and a direction that a norm does not see."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from depthgauge.errors import ClaimError
from depthgauge.measurement import measure
from depthgauge.profile import Profile
from depthgauge.study import relay
from depthgauge.study.claims import SuiteResult


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return relay.run()


def failed(result: SuiteResult) -> set[str]:
    return {claim.name for claim in result.claims if not claim.holds}


# ----------------------------------------------------------------------------------- gains


@pytest.mark.parametrize(
    ("i", "g", "exact"),
    [
        (0, 0.99, 0.3810471181045496),
        (1, 1.01, 2.599272925559385),
        (2, 0.8, 4.973232364097893e-10),
        (3, 1.05, 108.18641026839968),
    ],
)
def test_gains_are_powers(result: SuiteResult, i: int, g: float, exact: float) -> None:
    row = result.configurations[i]
    assert row["factor"] == g
    assert row["forward_gain"] == pytest.approx(exact, rel=1e-9, abs=0)
    assert row["gradient_ratio"] == pytest.approx(exact, rel=1e-9, abs=0)


@given(st.floats(0.7, 1.3), st.integers(1, 96))
def test_streamed_gain_is_the_power_of_its_stage(g: float, depth: int) -> None:
    (profile,) = relay.gains([g], depth)
    states = profile["state_rms"]
    np.testing.assert_allclose(
        states / states[0], [g**k for k in range(depth + 1)], rtol=1e-12, atol=0
    )
    gradients = profile["gradient_rms"]
    assert gradients[0] / gradients[-1] == pytest.approx(g**depth, rel=1e-12, abs=0)


def test_a_figure_that_is_off_in_its_third_digit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.8^96 = 4.973e-10: the often repeated 4.99e-10 is not its rounding.
    monkeypatch.setattr(relay, "GAINS", (*relay.GAINS[:2], (0.8, "4.99e-10"), relay.GAINS[3]))
    found = relay.run()
    assert failed(found) == {"gain 0.8: forward gain, quoted as 4.99e-10"}
    with pytest.raises(ClaimError, match=r"is 4\.973e-10, claimed 4\.985e-10 to 4\.995e-10"):
        found.check()


def test_a_wrong_gain_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = relay.gains
    monkeypatch.setattr(
        relay, "gains", lambda factors, *rest: gains([1.001 * g for g in factors], *rest)
    )
    assert len(failed(relay.run())) == 12


# ------------------------------------------------------------------------------- direction


def test_norm_and_component_of_the_rotation(result: SuiteResult) -> None:
    row = result.configurations[-1]
    assert row["name"] == "rotation"
    norms = np.array(row["curves"]["state_rms"])
    np.testing.assert_allclose(norms / norms[0], 1.0, rtol=1e-12)
    assert row["norm_gain"] == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(
        row["curves"]["component"], [0.99**k for k in range(97)], rtol=1e-12, atol=0
    )
    assert f"{row['component_gain']:.3f}" == "0.381"


@given(st.floats(0.5, 1.0), st.integers(1, 96), st.integers(2, 40), st.integers(0, 99))
def test_rotations_keep_length_and_plane(keep: float, depth: int, width: int, seed: int) -> None:
    answer, other = relay.plane(width, seed)
    states = [answer]
    with torch.no_grad():
        for stage in relay.rotations(answer, other, keep, depth):
            states.append(stage(states[-1]))
    found = torch.stack(states)
    ones = torch.ones(depth + 1, dtype=torch.float64)
    torch.testing.assert_close(found.norm(dim=-1), ones, rtol=1e-12, atol=0)
    along = torch.tensor([keep**k for k in range(depth + 1)], dtype=torch.float64)
    # arccos loses half of the digits where its argument is 1 or the component is lost
    torch.testing.assert_close(found @ answer, along, rtol=0, atol=1e-12)
    torch.testing.assert_close(found @ other, (1 - along**2).sqrt(), rtol=0, atol=1e-7)


def test_an_instrument_that_returns_the_norm_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(*arguments: Any, directions: Tensor, **options: Any) -> Profile:
        return measure(*arguments, directions=torch.eye(len(directions)), **options)

    monkeypatch.setattr("depthgauge.study.relay.measure", blind)
    found = relay.run()
    assert failed(found) == {
        "rotation: component, relative error",
        "rotation: component, quoted as 0.381",
        "rotation: the direction sees what the norm does not, component gain / norm gain",
    }
    assert not found.passed
    with pytest.raises(ClaimError, match="the direction sees what the norm does not"):
        found.check()
    assert "here the norm and the direction agree" in found.lessons[-1]


def scaled(model: nn.Sequential, factors: dict[int, float]) -> nn.Sequential:
    with torch.no_grad():
        for k, factor in factors.items():
            model.get_parameter(f"{k}.weight").mul_(factor)
    return model


def test_a_stage_that_shrinks_instead_of_turning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rotations = relay.rotations

    def shrinking(answer: Tensor, other: Tensor, keep: float, depth: int) -> nn.Sequential:
        return scaled(rotations(answer, other, 1.0, depth), dict.fromkeys(range(depth), keep))

    monkeypatch.setattr(relay, "rotations", shrinking)
    assert failed(relay.run()) == {
        "rotation: norm, largest relative change at any stage",
        "rotation: the direction sees what the norm does not, component gain / norm gain",
    }


def test_the_norm_is_held_at_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    rotations = relay.rotations
    monkeypatch.setattr(
        relay, "rotations", lambda *given: scaled(rotations(*given), {47: 1.01, 48: 1 / 1.01})
    )
    assert failed(relay.run()) == {"rotation: norm, largest relative change at any stage"}


# ---------------------------------------------------------------------- result and lessons


def test_every_claim_holds(result: SuiteResult) -> None:
    assert len(result.claims) == 16
    assert result.check() is result


def test_lessons_carry_the_numbers(result: SuiteResult) -> None:
    gains, direction = result.lessons
    for word in ("96 stages", "0.99 becomes 0.381", "0.8 becomes 4.97e-10", "1.05 becomes 108"):
        assert word in gains
    assert "the norm is 1.000" in direction
    assert "answer 0.381: a norm that holds does not say that the answer arrives" in direction


def test_document(result: SuiteResult) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["checks"] == "PASS"
    assert [c["name"] for c in document["configurations"]] == [
        "gain 0.99",
        "gain 1.01",
        "gain 0.8",
        "gain 1.05",
        "rotation",
    ]
    for configuration in document["configurations"]:
        assert configuration["curves"]["block"] == list(range(97))
        assert all(len(curve) == 97 for curve in configuration["curves"].values())
