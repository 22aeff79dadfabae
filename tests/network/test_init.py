"""Initialisers against their formulas, through real non-square layers in PyTorch's axis order."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthgauge.equation.parse import parse_init
from depthgauge.errors import NetworkError
from depthgauge.network.draws import KeyedDraws, SequentialDraws
from depthgauge.network.init import INITIALISERS, fans, options_of

LINEAR, CONV = (96, 160), (24, 40, 3, 3)
FIELD = 9


def draw(text: str, shape: tuple[int, ...], seed: int = 0, draws: Any = KeyedDraws) -> Any:
    init = parse_init(text)
    source = draws(seed).source(1, "W1")
    return INITIALISERS[init.kind](shape, options_of(init, {"L": 12.0}), source)


@pytest.mark.parametrize("layer", [nn.Linear(160, 96), nn.Conv2d(40, 24, 3)])
def test_fans_are_those_of_real_layers(layer: nn.Module) -> None:
    expected = nn.init._calculate_fan_in_and_fan_out(layer.weight)  # type: ignore[arg-type]
    assert fans(tuple(layer.weight.shape)) == expected  # type: ignore[arg-type]


# (text, std for a linear layer 160 -> 96, std for a 3 x 3 convolution 40 -> 24)
STDS: list[tuple[str, float, float]] = [
    ("he", math.sqrt(2 / 160), math.sqrt(2 / (40 * FIELD))),
    ("he(mode='fan_out')", math.sqrt(2 / 96), math.sqrt(2 / (24 * FIELD))),
    ("he(gain=1)", 160**-0.5, (40 * FIELD) ** -0.5),
    ("he_uniform", math.sqrt(2 / 160), math.sqrt(2 / (40 * FIELD))),
    ("xavier", math.sqrt(2 / 256), math.sqrt(2 / (64 * FIELD))),
    ("xavier_uniform(gain=2)", 2 * math.sqrt(2 / 256), 2 * math.sqrt(2 / (64 * FIELD))),
    ("lecun", 160**-0.5, (40 * FIELD) ** -0.5),
    ("lecun_uniform", 160**-0.5, (40 * FIELD) ** -0.5),
    ("normal(0.02/sqrt(2*L))", 0.02 / math.sqrt(24), 0.02 / math.sqrt(24)),
    ("torch", 1 / math.sqrt(3 * 160), 1 / math.sqrt(3 * 40 * FIELD)),
    # the std of a normal cut at two standard deviations is 0.8796 of the uncut one
    ("trunc_normal(std=0.02)", 0.0175925, 0.0175925),
]


@pytest.mark.parametrize(("text", "linear", "conv"), STDS)
def test_standard_deviation(text: str, linear: float, conv: float) -> None:
    for shape, std in ((LINEAR, linear), (CONV, conv)):
        weight = draw(text, shape)
        assert weight.shape == shape
        count = weight.size
        # n = 15360 and 8640; |z| < 4 with the largest kurtosis here, a normal's
        assert abs(weight.std() / std - 1) < 4 / math.sqrt(2 * count)
        assert abs(weight.mean()) < 4 * std / math.sqrt(count)


@pytest.mark.parametrize(("wrong", "right"), [("he", "he(mode='fan_out')"), ("lecun", "xavier")])
def test_the_tolerance_tells_neighbouring_rules_apart(wrong: str, right: str) -> None:
    weight = draw(wrong, LINEAR)
    std = {t: s for t, s, _ in STDS}[right]
    assert abs(weight.std() / std - 1) > 4 / math.sqrt(2 * weight.size)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("he_uniform", math.sqrt(6 / 160)),
        ("xavier_uniform", math.sqrt(6 / 256)),
        ("lecun_uniform", math.sqrt(3 / 160)),
        ("torch", 160**-0.5),
        ("trunc_normal(std=0.5, bound=2)", 1.0),  # bounds in units of std, not absolute
    ],
)
def test_bounded_initialisers_reach_their_bound_and_stay_inside(text: str, bound: float) -> None:
    top = np.abs(draw(text, LINEAR)).max()
    assert 0.98 * bound < top <= bound * (1 + 1e-6)


def test_he_is_the_same_rule_as_pytorch() -> None:
    # a partner computed by PyTorch itself, on a non-square layer
    layer = nn.Linear(160, 96)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    ours = draw("he", LINEAR)
    assert abs(ours.std() / layer.weight.std().item() - 1) < 8 / math.sqrt(2 * ours.size)


@pytest.mark.parametrize("shape", [(64, 64), (48, 80), (80, 48), (16, 8, 3, 3)])
def test_orthogonal_is_orthonormal_along_its_shorter_side(shape: tuple[int, ...]) -> None:
    weight = draw("orthogonal(gain=3)", shape).reshape(shape[0], -1).astype(np.float64)
    singular = np.linalg.svd(weight, compute_uv=False)
    assert singular == pytest.approx(np.full(min(weight.shape), 3.0), rel=1e-5)


def test_orthogonal_is_haar_only_with_the_sign_fix() -> None:
    # The trace of a Haar matrix has mean 0 and variance 1; LAPACK's own Q has a mean far from it.
    traces = [np.trace(draw("orthogonal", (8, 8), seed)) for seed in range(400)]
    assert abs(np.mean(traces)) < 4 / math.sqrt(400)
    unfixed = [
        np.trace(np.linalg.qr(np.random.default_rng(s).standard_normal((8, 8)))[0])
        for s in range(400)
    ]
    assert abs(np.mean(unfixed)) > 4 / math.sqrt(400)


def test_delta_orthogonal_keeps_every_length_under_circular_padding() -> None:
    kernel = torch.from_numpy(np.array(draw("delta_orthogonal(gain=1.5)", (12, 12, 3, 3))))
    x = torch.randn(4, 12, 6, 6, generator=torch.Generator().manual_seed(0))
    y = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), kernel)
    assert torch.allclose(y.flatten(1).norm(dim=1), 1.5 * x.flatten(1).norm(dim=1), rtol=1e-5)
    away = kernel.clone()
    away[:, :, 1, 1] = 0
    assert not away.any()
    flat = torch.from_numpy(np.array(draw("orthogonal(gain=1.5)", (12, 12, 3, 3))))
    z = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), flat)
    assert not torch.allclose(z.flatten(1).norm(dim=1), 1.5 * x.flatten(1).norm(dim=1), rtol=0.01)


def test_delta_orthogonal_widens_with_orthonormal_columns() -> None:
    centre = draw("delta_orthogonal", (20, 12, 5, 5))[:, :, 2, 2].astype(np.float64)
    assert centre.T @ centre == pytest.approx(np.eye(12), abs=1e-6)


@pytest.mark.parametrize("shape", [(12, 40), (7, 5, 3, 3)])
def test_standardised_rows_are_centred_and_of_one_size(shape: tuple[int, ...]) -> None:
    rows = draw("standardised(gain=1.5)", shape).reshape(shape[0], -1).astype(np.float64)
    assert rows.mean(1) == pytest.approx(np.zeros(shape[0]), abs=1e-7)
    size = 1.5 / math.sqrt(rows.shape[1])
    assert np.sqrt(np.square(rows).mean(1)) == pytest.approx(np.full(shape[0], size), rel=1e-6)
    plain = draw("he", shape).reshape(shape[0], -1)
    assert np.abs(plain.mean(1)).max() > 0.01


def test_identity_constant_and_zeros() -> None:
    assert (draw("identity(gain=2)", (5, 5)) == 2 * np.eye(5)).all()
    x = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    kernel = torch.from_numpy(draw("identity", (5, 5, 3, 3)))
    assert torch.equal(F.conv2d(x, kernel, padding=1), x)
    assert (draw("constant(0.5)", (3, 4)) == 0.5).all()
    assert not draw("zeros", (3, 4)).any()


@pytest.mark.parametrize(
    ("text", "shape", "says"),
    [
        ("delta_orthogonal", (8, 12, 3, 3), "at least as many outputs as inputs, not 12 -> 8"),
        ("delta_orthogonal", (8, 8), "is for convolutions"),
        ("standardised", (8, 1), "which is 1 number here"),
        ("identity", (8, 12), "as many outputs as inputs, not 12 -> 8"),
        ("normal(std=-1)", (4, 4), "standard deviation of -1"),
        ("trunc_normal(bound=0)", (4, 4), "give a positive number of std"),
    ],
)
def test_what_does_not_exist_is_refused(text: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(NetworkError, match=says):
        draw(text, shape)


def test_sequential_draws_are_row_vector_matrices() -> None:
    z = np.random.default_rng(5).standard_normal((160, 96)) * math.sqrt(2 / 160)
    assert np.array_equal(draw("he", LINEAR, seed=5, draws=SequentialDraws), z.T)


@pytest.mark.parametrize("kind", sorted(INITIALISERS))
def test_every_initialiser_repeats_itself(kind: str) -> None:
    shape = (8, 8, 3, 3)
    make: Callable[[], Any] = lambda: draw(kind, shape, seed=3)  # noqa: E731
    assert np.array_equal(make(), make())
