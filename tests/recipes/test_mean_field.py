"""Gains and critical lines."""

from __future__ import annotations

import math

import pytest

from depthgauge.errors import NetworkError
from depthgauge.recipes.mean_field import (
    chi,
    critical,
    rms_gain,
    second_moment,
    std_gain,
)


@pytest.mark.parametrize(
    ("activation", "moment"),
    [
        ("relu", 0.5),
        ("leaky_relu", 0.50005),
        ("tanh", 0.394294),
        ("gelu", 0.425221),
        ("silu", 0.355776),
        ("elu", 0.644945),
        ("selu", 1.0),
        ("erf", 0.464559),
        ("mish", 0.452342),
        ("sigmoid", 0.293379),
        ("softsign", 0.183014),
    ],
)
def test_second_moments(activation: str, moment: float) -> None:
    assert second_moment(activation) == pytest.approx(moment, abs=6e-7)


def test_gains() -> None:
    assert rms_gain("relu") == pytest.approx(math.sqrt(2), rel=1e-12)
    assert rms_gain("tanh") == pytest.approx(1.592537, abs=5e-7)
    assert rms_gain("gelu") == pytest.approx(1.53353, abs=6e-6)
    assert rms_gain("silu") == pytest.approx(1.67653, abs=6e-6)
    assert rms_gain("elu") == pytest.approx(1.24520, abs=6e-6)
    assert std_gain("relu") == pytest.approx(math.sqrt(2 / (1 - 1 / math.pi)), rel=1e-12)


@pytest.mark.parametrize(
    ("bias", "weight", "q"),
    [
        (0.0025, 1.26009, 0.15369),
        (0.01, 1.42421, 0.27330),
        (0.04, 1.70080, 0.51208),
        (0.05, 1.76095, 0.57005),
        (0.1, 1.98607, 0.80580),
    ],
)
def test_the_critical_line_of_tanh(bias: float, weight: float, q: float) -> None:
    point = critical("tanh", bias_variance=bias)
    assert point.weight_variance == pytest.approx(weight, abs=6e-6)
    assert point.q == pytest.approx(q, abs=6e-6)
    assert chi("tanh", point.weight_variance, point.q) == pytest.approx(1, rel=1e-10)
    back = critical("tanh", weight_variance=point.weight_variance)
    assert back.bias_variance == pytest.approx(bias, rel=1e-8)


@pytest.mark.parametrize(
    ("weight", "bias"), [(1.05, 2.0105e-5), (1.25, 2.232e-3), (1.5, 0.015818), (2.0, 0.10378)]
)
def test_by_the_variance_of_the_weights(weight: float, bias: float) -> None:
    found = critical("tanh", weight_variance=weight).bias_variance
    assert found == pytest.approx(bias, rel=2.5e-4)


def test_of_no_line() -> None:
    assert critical("erf", bias_variance=1e-12).weight_variance == pytest.approx(
        math.pi / 4, rel=1e-3
    )
    assert chi("relu", 2.0, 0.3) == pytest.approx(1, rel=1e-12)
    assert 2.0 * second_moment("relu", 0.3) == pytest.approx(0.3, rel=1e-12)
    with pytest.raises(NetworkError, match=r"of ReLU it is the point sigma_w\^2 = 2"):
        critical("relu", bias_variance=0.1)
    with pytest.raises(NetworkError, match=r"no critical point of tanh has a variance of 0\.9"):
        critical("tanh", weight_variance=0.9)
