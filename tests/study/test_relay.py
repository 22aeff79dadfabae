"""The relay suite: powers of a gain, and a direction that a norm does not see."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthgauge.errors import ClaimError, NetworkError
from depthgauge.instruments.directions import component
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


@settings(deadline=None)
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


@settings(deadline=None)
@given(st.floats(0.5, 1.0), st.integers(1, 96), st.integers(2, 40), st.integers(0, 99))
def test_rotations_keep_length_and_plane(keep: float, depth: int, width: int, seed: int) -> None:
    answer, other = relay.plane(width, seed)
    states = torch.stack(list(relay.rotated(answer, other, keep, depth)))
    ones = torch.ones(depth + 1, dtype=torch.float64)
    torch.testing.assert_close(states.norm(dim=-1), ones, rtol=1e-12, atol=0)
    along = torch.tensor([keep**k for k in range(depth + 1)], dtype=torch.float64)
    # arccos loses half of the digits where its argument is 1 or the component is lost
    torch.testing.assert_close(states @ answer, along, rtol=0, atol=1e-12)
    torch.testing.assert_close(states @ other, (1 - along**2).sqrt(), rtol=0, atol=1e-7)


def test_an_instrument_that_returns_the_norm_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "component", lambda states, direction: states.norm(dim=-1))
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


def test_a_stage_that_shrinks_instead_of_turning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def shrinking(answer: Tensor, other: Tensor, keep: float, depth: int) -> Iterator[Tensor]:
        return (answer * keep**k for k in range(depth + 1))

    monkeypatch.setattr(relay, "rotated", shrinking)
    assert failed(relay.run()) == {
        "rotation: norm, largest relative change at any stage",
        "rotation: the direction sees what the norm does not, component gain / norm gain",
    }


def test_the_norm_is_held_at_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    rotated = relay.rotated

    def bulging(*arguments: object) -> Iterator[Tensor]:
        for k, h in enumerate(rotated(*arguments)):  # type: ignore[arg-type]
            yield 1.01 * h if k == 48 else h

    monkeypatch.setattr(relay, "rotated", bulging)
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


# ------------------------------------------------------------------- the instrument itself


def slow_component(states: list[list[float]], direction: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(d * d for d in direction))
    return [math.fsum(x * d for x, d in zip(h, direction, strict=True)) / length for h in states]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 999), st.floats(1e-3, 1e3))
def test_component_is_the_slow_sum(rows: int, width: int, seed: int, length: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    direction = length * torch.randn(width, generator=generator, dtype=torch.float64)
    expected = slow_component(states.tolist(), direction.tolist())
    found = component(states, direction)
    torch.testing.assert_close(found.tolist(), expected, rtol=1e-10, atol=1e-12)
    many = component(states.expand(3, rows, width), direction)
    assert many.shape == (3, rows)
    assert component(states[0], direction).shape == ()


def test_component_keeps_sign_and_what_is_not_finite() -> None:
    states = torch.tensor([[-3.0, 4.0], [math.inf, 0.0], [math.nan, 0.0]])
    found = component(states, torch.tensor([2.0, 1e-300], dtype=torch.float64))
    assert found.tolist()[:2] == [-3.0, math.inf]
    assert math.isnan(found[2])


def test_component_of_half_precision_is_taken_in_float32() -> None:
    states = torch.full((1, 4096), 100.0, dtype=torch.float16)
    found = component(states, torch.ones(4096, dtype=torch.float16))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(6400.0)  # the sum before division overflows float16


def test_component_leaves_no_graph() -> None:
    states = torch.ones(2, 3, requires_grad=True)
    assert not component(states, torch.ones(3, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (torch.ones(4), "direction has the shape (4,), expected (3,), the width of the states"),
        (torch.ones(1, 3), "direction has the shape (1, 3), expected (3,)"),
        (torch.zeros(3), "direction has the length 0, so it points nowhere; give a vector"),
        (torch.tensor([1.0, math.nan, 0.0]), "direction has the length nan"),
        (torch.tensor([1.0, math.inf, 0.0]), "direction has the length inf"),
    ],
)
def test_component_says_what_is_wrong_with_a_direction(direction: Tensor, message: str) -> None:
    with pytest.raises(NetworkError, match=re.escape(message)):
        component(torch.ones(2, 3), direction)
