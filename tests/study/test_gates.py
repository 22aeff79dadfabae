"""The gates suite: integrals over N(mean, 1), a norm at two places, and claims that can fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from depthgauge.errors import ClaimError
from depthgauge.network.activations import gate
from depthgauge.study import gates
from depthgauge.study.claims import Assertion, SuiteResult, by_name

N = gates.EXAMPLES * gates.UNITS


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return gates.run()


def failed(result: SuiteResult) -> set[str]:
    return {claim.name for claim in result.claims if not claim.holds}


# -------------------------------------------------------------------------------- integrals

erf = np.vectorize(math.erf)


def _phi(z: Any) -> Any:
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _cdf(z: Any) -> Any:
    return (1 + erf(z / math.sqrt(2))) / 2


#: Output and derivative, written out once more.
FORMULAS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (np.tanh, lambda z: np.cosh(z) ** -2),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0) * 1.0),
    "gelu": (lambda z: z * _cdf(z), lambda z: _cdf(z) + z * _phi(z)),
}


def integrals(activation: str, mean: float) -> dict[str, tuple[float, float]]:
    """Expectation and standard deviation over z ~ N(mean, 1) of what each quantity averages."""
    output, derivative = FORMULAS[activation]
    z = np.linspace(mean - 9, mean + 9, 40_001)
    weight = _phi(z - mean) * (z[1] - z[0])
    y, slope = output(z), derivative(z)
    averaged = {
        "mean_output": y,
        "mean_output_magnitude": abs(y),
        "mean_derivative": slope,
        "mean_derivative_magnitude": abs(slope),
        "live_derivative_fraction": abs(slope) > 0.1,
        "saturated_fraction": abs(slope) < 0.01,
        "negative_output_fraction": y < 0,
        "passing_fraction": (y < 0) & (abs(slope) > 1e-6),
    }
    found = {}
    for name, values in averaged.items():
        expected = float((values * weight).sum())
        variance = float((np.square(values * 1.0) * weight).sum()) - expected**2
        found[name] = expected, math.sqrt(max(variance, 0))
    return found


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("mean", [0, -3])
def test_every_quantity_is_its_integral(result: SuiteResult, activation: str, mean: int) -> None:
    row = by_name(result.configurations)[f"{activation}, mean {mean}"]
    for name, (expected, deviation) in integrals(activation, mean).items():
        # |z| < 4 over the n = 262,144 draws; 1e-4 for the step of the integral at a jump
        assert abs(row[name] - expected) < 4 * deviation / math.sqrt(N) + 1e-4, name


def test_output_rms_is_over_every_element() -> None:
    z = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
    row = gates.observe(gate("relu", {}), z, lambda x: x, None)
    assert row["output_rms"] == row["block_rms"] == pytest.approx(math.sqrt(26 / 4), rel=1e-12)
    assert row["mean_output"] == 2.0
    assert row["live_derivative_fraction"] == 0.75
    assert row["saturated_fraction"] == 0.25
    assert row["preactivation_mean"] == 1.5
    assert row["preactivation_std"] == pytest.approx(math.sqrt(5.25), rel=1e-12)


def test_the_norm_stands_where_it_is_said_to() -> None:
    z = torch.tensor([[1.0, -2.0, 4.0]], dtype=torch.float64)
    rule = gate("relu", {})
    before = gates.observe(rule, z, lambda x: x - 2, "before the gate")
    after = gates.observe(rule, z, lambda x: x - 2, "after the block")
    assert before["preactivation_mean"] == after["preactivation_mean"] - 2 == -1
    assert before["live_derivative_fraction"] == pytest.approx(1 / 3)
    assert after["live_derivative_fraction"] == pytest.approx(2 / 3)
    assert after["output_rms"] == pytest.approx(math.sqrt(17 / 3))  # the gate's: 1, 0, 4
    assert after["block_rms"] == pytest.approx(math.sqrt((1 + 4 + 4) / 3))  # -1, -2, 2


# ----------------------------------------------------------------------------------- claims


def test_every_claim_holds(result: SuiteResult) -> None:
    assert len(result.claims) == 6 + 3 * 5
    assert result.check() is result


@pytest.mark.parametrize("claim", gates.CLAIMS, ids=lambda c: c.name)
def test_a_claim_with_another_bound_fails(
    monkeypatch: pytest.MonkeyPatch, result: SuiteResult, claim: Assertion
) -> None:
    value = by_name(result.configurations)[claim.configuration][claim.quantity]
    if claim.max is None:
        moved = dataclasses.replace(claim, min=value + 0.001)
    else:
        moved = dataclasses.replace(claim, min=None, max=value - 0.001)
    monkeypatch.setattr(gates, "CLAIMS", tuple(moved if c is claim else c for c in gates.CLAIMS))
    found = gates.run()
    assert failed(found) == {claim.name}
    with pytest.raises(ClaimError, match="suite gates"):
        found.check()


def test_without_the_shift_its_claims_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CASES", tuple((name, 0.0, place) for name, _, place in gates.CASES))
    broken = failed(gates.run())
    assert {claim.name for claim in gates.CLAIMS} <= broken
    assert {f"{a}: norm after the block, live from its value at mean 0 by" for a in FORMULAS} <= (
        broken
    )


def test_a_norm_that_does_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "normaliser", lambda *_: lambda x: x)
    assert failed(gates.run()) == {
        f"{activation}: norm before the gate, {quantity} from its value at mean 0 by"
        for activation in FORMULAS
        for quantity in ("live", "mean derivative")
    }


def test_a_norm_after_the_block_that_stands_before_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = (*gates.CASES[:3], ("mean -3, norm after", -3.0, "before the gate"))
    monkeypatch.setattr(gates, "CASES", moved)
    found = gates.run()
    assert failed(found) == {
        f"{activation}: norm after the block, live from its value at mean {mean} by"
        for activation in FORMULAS
        for mean in (-3, 0)
    }
    assert "brings the live derivatives to 0.931" in found.lessons[-1]


def test_a_shift_that_changes_the_variance_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = gates.observe

    def stretched(rule: Any, z: Any, norm: Any, place: Any) -> dict[str, float]:
        return observe(rule, 1.01 * (z + 3) - 3 if z.mean() < -1 else z, norm, place)

    monkeypatch.setattr(gates, "observe", stretched)
    assert failed(gates.run()) == {
        f"{activation}: the shift changes the standard deviation by" for activation in FORMULAS
    }


# ---------------------------------------------------------------------- result and lessons


def test_a_norm_after_the_block_mends_what_is_seen_downstream(result: SuiteResult) -> None:
    rows = by_name(result.configurations)
    for activation in FORMULAS:
        shifted, after = (
            rows[f"{activation}, {case}"] for case in ("mean -3", "mean -3, norm after")
        )
        # ReLU's output is so small that the norm's eps takes 5 per cent of it.
        assert after["block_rms"] == pytest.approx(1, rel=0.06)
        for name in ("output_rms", "live_derivative_fraction", "mean_derivative"):
            assert after[name] == shifted[name]


def test_lessons_carry_the_numbers(result: SuiteResult) -> None:
    shift, before, after = result.lessons
    for word in ("-0.972", "0.049", "0.0012", "0.990"):
        assert word in shift
    assert "0.931, 0.500, 0.819 at mean 0, 0.119, 0.001, 0.107 at mean -3" in before
    assert before.endswith("norm before the gate 0.931, 0.500, 0.819.")
    assert "leaves the live derivatives at 0.119, 0.001, 0.107: what is seen downstream" in after


def test_document(result: SuiteResult) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["checks"] == "PASS"
    assert len(document["configurations"]) == 12
    assert [c["name"] for c in document["configurations"][:4]] == [
        "tanh, mean 0",
        "tanh, mean -3",
        "tanh, mean -3, norm before",
        "tanh, mean -3, norm after",
    ]
    assert document["settings"]["seed"] == 7


def test_progress_counts_configurations() -> None:
    seen: list[tuple[int, int]] = []
    gates.run(lambda done, total: seen.append((done, total)))
    assert seen == [(k, 12) for k in range(1, 13)]
