"""Q and C maps, and the constants that they give, against the slow way and the authors' figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from depthgauge.errors import NetworkError
from depthgauge.recipes.kernel_maps import (
    Curve,
    Joint,
    curved,
    leaky_map,
    leaky_slope,
    local_curvature,
    local_slope,
    maps,
    maximal,
    sloped,
)

#: The authors' ResNet-101: pre-activation bottlenecks, the first of a stage with the activation in
#: front of its shortcut, shortcut weight .6, an activation at the end.
RESNET_101: list[int | Joint] = [
    *(Joint(int(k == 0), 3, 0.36) for number in (3, 4, 23, 3) for k in range(number)),
    1,
]
NEUTRAL = {"gelu": (("approximate", "none"),)}


def reference(curve: Curve) -> tuple[float, ...]:
    """Tanh's maps by Gauss-Hermite and derivatives by differences."""
    x, w = np.polynomial.hermite_e.hermegauss(120)
    w = w / w.sum()

    def f(z: np.ndarray) -> np.ndarray:
        inside = curve.alpha * z + curve.beta
        made: np.ndarray = curve.gamma * (np.tanh(inside) + curve.delta)
        return made

    step = 1e-4
    first = (f(x + step) - f(x - step)) / (2 * step)
    second = (f(x + step) - 2 * f(x) + f(x - step)) / step**2
    q = float(w @ f(x) ** 2)
    # Q'(1) by moving q itself.
    moved = [float(w @ f(math.sqrt(1 + s) * x) ** 2) for s in (step, -step)]
    slope = (moved[0] - moved[1]) / (2 * step)
    ends = float(w @ f(x)) ** 2 / q, float(w @ first**2) / q, float(w @ second**2) / q
    return q, slope, *ends


@pytest.mark.parametrize(
    "curve", [Curve("tanh"), Curve("tanh", (), 0.3, 0.5, 4.0, -0.4), Curve("tanh", (), -0.7, 0.2)]
)
def test_maps_against_the_slow_way(curve: Curve) -> None:
    found = maps(curve)
    here = (found.q, found.q_slope, found.c_zero, found.c_slope, found.c_curve)
    assert here == pytest.approx(reference(curve), rel=2e-6)


def test_the_kink_may_lie_anywhere() -> None:
    """``gamma leaky_relu(alpha z + beta)`` by pieces, to 1e-10."""
    a, alpha, beta = 0.3, 0.8, 0.45
    z = beta / alpha
    density, below = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erfc(z / math.sqrt(2)) / 2
    square = alpha * alpha + beta * beta  # of the whole line, and below the kink
    part = square * below - alpha * beta * density
    found = maps(Curve("leaky_relu", (("slope", a),), alpha, beta, 1.7))
    assert found.q == pytest.approx(1.7**2 * (square - (1 - a * a) * part), rel=1e-10)
    gained = 1.7**2 * alpha**2 * (1 - below + a * a * below)
    assert found.c_slope == pytest.approx(gained / found.q, rel=1e-10)
    assert found.c_curve == 0


def test_relus_map() -> None:
    assert leaky_map(0.0, 0.0) == pytest.approx(1 / math.pi, rel=1e-12)
    assert leaky_map(0.5, 0.0) == pytest.approx(0.608998, abs=5e-7)
    assert maximal([50], lambda c: leaky_map(c, 0.0), 0.0) == pytest.approx(0.98786, abs=5e-6)
    assert leaky_map(0.3, 1.0) == pytest.approx(0.3, rel=1e-12), "a linear one changes nothing"


@pytest.mark.parametrize(
    ("layers", "slope"),
    [(20, 0.18138), (50, 0.43052), (100, 0.57044), (200, 0.6796), (1000, 0.84435)],
)
def test_slopes_of_a_plain_network(layers: int, slope: float) -> None:
    found = leaky_slope([layers], 0.9)
    assert found == pytest.approx(slope, abs=6e-6)
    value = 0.0
    for _ in range(layers):
        value = leaky_map(value, found)
    assert value == pytest.approx(0.9, abs=1e-12)


def test_too_shallow_a_network() -> None:
    with pytest.raises(NetworkError, match=r"correlation 0 leave this network with one of 0\.8715"):
        leaky_slope([10], 0.9)


def test_local_conditions_of_whole_networks() -> None:
    assert local_slope([50], 1.5) == pytest.approx(1.5 ** (1 / 50), rel=1e-12)
    assert local_slope([50], 1.5) == pytest.approx(1.008142, abs=5e-7)
    assert local_curvature([50], 0.3) == pytest.approx(0.006, rel=1e-12)
    # A sum weighs them: .36 of the skip's none and .64 of the branch's two.
    assert local_curvature([Joint(0, 2, 0.36), 1], 0.3) == pytest.approx(0.3 / (0.64 * 2 + 1))
    # A branch by itself may be worst.
    assert local_curvature([Joint(0, 2, 0.36)], 0.3) == pytest.approx(0.15)


def test_the_authors_figures_for_a_residual_network() -> None:
    """To the seven digits that their quadrature of 1e5 points has."""
    assert leaky_slope(RESNET_101, 0.75) == pytest.approx(0.6291800290, rel=2e-9)
    assert math.sqrt(2 / (1 + leaky_slope(RESNET_101, 0.75) ** 2)) == pytest.approx(
        1.196996550, rel=2e-9
    )
    slope, curvature = local_slope(RESNET_101, 1.2), local_curvature(RESNET_101, 0.2)
    for found, numbers in (
        (sloped("tanh", (), slope), (0.0746107306, 0.5566915200, 18.002635964, -0.5034378769)),
        (sloped("softplus", (), slope), (0.1876100817, 0.4068806344, 8.878672544, -0.9213466151)),
        (
            sloped("gelu", NEUTRAL["gelu"], slope),
            (0.0704325313, 0.2594892979, 20.211589023, -0.1581537896),
        ),
        (
            sloped("gelu", (("approximate", "tanh"),), slope),
            (0.0703627150, 0.2586837249, 20.249573305, -0.1575832811),
        ),
        (curved("tanh", (), curvature), (0.0580205218, 0.5218639804, 22.360662618, -0.4796430704)),
        (
            curved("softplus", (), curvature),
            (0.1501148979, 0.5374599901, 10.548801879, -0.9964810145),
        ),
    ):
        here = (found.alpha, found.beta, found.gamma, found.delta)
        assert here == pytest.approx(numbers, rel=1e-7)


@pytest.mark.parametrize("layers", [5, 1000])
@pytest.mark.parametrize(
    "kind",
    ["tanh", "softplus", "gelu", "silu", "mish", "elu", "erf", "sigmoid", "softsign"],
)
def test_every_condition_holds(kind: str, layers: int) -> None:
    one = maps(sloped(kind, (), local_slope([layers], 1.5)))
    assert (one.q, one.q_slope, one.c_zero) == pytest.approx((1, 1, 0), abs=1e-9)
    assert one.c_slope**layers == pytest.approx(1.5, rel=1e-9)
    other = maps(curved(kind, (), local_curvature([layers], 0.3)))
    assert (other.q, other.q_slope, other.c_slope) == pytest.approx((1, 1, 1), abs=1e-9)
    assert other.c_curve * layers == pytest.approx(0.3, rel=1e-9)


def test_what_has_no_constants() -> None:
    with pytest.raises(NetworkError, match=r"no constants give relu a slope of 1\.0\d+ with"):
        sloped("relu", (), 1.05)
