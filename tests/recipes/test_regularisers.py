"""Mixup and Cutout against their formulas; nothing is drawn from the global generator."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.errors import SpecificationError
from depthgauge.recipes.regularisers import cutout, mixup, symmetric_beta


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -------------------------------------------------------------------------------------- Beta


def shares(alpha: float, count: int = 4000) -> np.ndarray:
    generator = seeded()
    return np.array([symmetric_beta(alpha, generator) for _ in range(count)])


def z_scores(x: np.ndarray, alpha: float) -> list[float]:
    """Of mean, variance and fourth central moment against those of Beta(alpha, alpha)."""
    variance = 1 / (4 * (2 * alpha + 1))
    fourth = variance**2 * (3 - 6 / (2 * alpha + 3))
    found = []
    for power, expected in ((1, 0.0), (2, variance), (4, fourth)):
        moment = (x - 0.5) ** power
        found.append((moment.mean() - expected) / (moment.std() / math.sqrt(len(x))))
    return found


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.7, 1.0, 2.0, 20.0])
def test_moments_are_those_of_beta(alpha: float) -> None:
    x = shares(alpha)
    assert (x >= 0).all()
    assert (x <= 1).all()
    assert max(map(abs, z_scores(x, alpha))) < 4
    assert max(map(abs, z_scores(x, 2 * alpha))) > 8


def test_distributions_that_are_known() -> None:
    """alpha = 1 is uniform, alpha = 1/2 the arcsine law; Kolmogorov's distance for 4000."""
    rank = (np.arange(4000) + 0.5) / 4000
    for alpha, cumulative in (
        (1.0, lambda x: x),
        (0.5, lambda x: 2 / math.pi * np.arcsin(np.sqrt(x))),
    ):
        x = np.sort(shares(alpha))
        assert np.abs(cumulative(x) - rank).max() < 1.95 / math.sqrt(4000)  # p = 0.001
        other = np.sort(shares(0.8))
        assert np.abs(cumulative(other) - rank).max() > 1.95 / math.sqrt(4000)


def test_tiny_and_huge_alpha_are_the_ends() -> None:
    assert set(shares(1e-9, 200).round(6)) == {0.0, 1.0}
    assert np.abs(shares(1e12, 200) - 0.5).max() < 1e-4


# ------------------------------------------------------------------------------------- Mixup


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 3, 4, 5, generator=seeded(1), dtype=torch.float64)
    return x, torch.tensor([0, 1, 2, 0, 1, 2])


def test_mixed_inputs_and_loss_are_the_formula() -> None:
    x, y = batch()
    kept = x.clone()
    # The same draws once more: the share first, then the order.
    again = seeded(4)
    share = symmetric_beta(1.0, again)
    order = torch.randperm(6, generator=again)
    mixed = mixup(x, y, 1.0, seeded(4))
    assert mixed.share == share
    assert 0.02 < share < 0.98
    assert not torch.equal(order, torch.arange(6))
    for b in range(6):
        partner = int(order[b])
        torch.testing.assert_close(mixed.inputs[b], share * x[b] + (1 - share) * x[partner])
        assert mixed.labels[b] == y[b]
        assert mixed.partners[b] == y[partner]
    assert torch.equal(x, kept)
    logits = torch.randn(6, 3, generator=seeded(2), dtype=torch.float64)
    one, two = (F.one_hot(labels, 3).double() for labels in (y, y[order]))
    soft = share * one + (1 - share) * two
    expected = -(soft * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(mixed.loss(logits), expected, rtol=1e-12, atol=0)
    assert not torch.allclose(mixed.loss(logits), F.cross_entropy(logits, y), rtol=1e-3)


def test_another_loss_is_mixed_the_same_way() -> None:
    x, _ = batch()
    target = torch.randn(6, 2, generator=seeded(3), dtype=torch.float64)
    mixed = mixup(x, target, 0.4, seeded(4))
    out = torch.zeros(6, 2, dtype=torch.float64)
    one, two = target.square().mean(), mixed.partners.square().mean()
    expected = mixed.share * one + (1 - mixed.share) * two
    torch.testing.assert_close(mixed.loss(out, F.mse_loss), expected)


def test_alpha_of_zero_mixes_and_draws_nothing() -> None:
    x, y = batch()
    generator = seeded()
    before = generator.get_state()
    mixed = mixup(x, y, 0, generator)
    assert torch.equal(mixed.inputs, x)
    assert mixed.share == 1
    assert torch.equal(generator.get_state(), before)
    logits = torch.randn(6, 3, generator=seeded(2))
    assert torch.equal(mixed.loss(logits), F.cross_entropy(logits, y))
    mixup(x, y, 0.1, generator)
    assert not torch.equal(generator.get_state(), before)


def test_the_same_generator_gives_the_same_and_the_global_one_is_not_touched() -> None:
    x, y = batch()
    before = torch.get_rng_state()
    one, two, other = (mixup(x, y, 1.0, seeded(s)) for s in (7, 7, 8))
    assert torch.equal(one.inputs, two.inputs)
    assert not torch.equal(one.inputs, other.inputs)
    images = torch.ones(6, 3, 16, 16)
    holes = [cutout(images, 4, seeded(s)) for s in (7, 7, 8)]
    assert torch.equal(holes[0], holes[1])
    assert not torch.equal(holes[0], holes[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("inputs", "labels", "alpha", "words"),
    [
        (torch.ones(4, 2), torch.zeros(4), -0.1, "alpha is -0.1, expected a finite number"),
        (torch.ones(4, 2), torch.zeros(4), math.nan, "alpha is nan, expected a finite number"),
        (torch.ones(4, 2), torch.zeros(4), math.inf, "alpha is inf, expected a finite number"),
        (torch.ones(4, 2).long(), torch.zeros(4), 1.0, "inputs are torch.int64, expected floating"),
        (torch.ones(4, 2), torch.zeros(3), 1.0, "4 inputs and 3 labels"),
    ],
)
def test_what_cannot_be_mixed_is_said(
    inputs: Tensor, labels: Tensor, alpha: float, words: str
) -> None:
    with pytest.raises(SpecificationError, match=words):
        mixup(inputs, labels, alpha, seeded())


# ------------------------------------------------------------------------------------ Cutout


def runs(size: int, side: int) -> set[tuple[int, int]]:
    """Where a hole may begin and end along one axis, the centre at each pixel."""
    return {(max(c - side // 2, 0), min(c - side // 2 + side, size)) for c in range(size)}


@pytest.mark.parametrize("side", [1, 3, 4, 16])
def test_a_hole_is_a_square_about_a_pixel_cut_off_by_the_border(side: int) -> None:
    images = torch.randn(500, 3, 20, 9, generator=seeded(1)).abs() + 1
    kept = images.clone()
    holed = cutout(images, side, seeded(2))
    assert torch.equal(images, kept)
    seen = set()
    for image, before in zip(holed, kept, strict=True):
        hole = image[0] == 0
        rows, columns = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        place = [(int(x[0]), int(x[-1]) + 1) for x in (rows, columns)]
        assert place[0] in runs(20, side)
        assert place[1] in runs(9, side)
        seen.add(place[0])
        expected = before.clone()
        expected[:, slice(*place[0]), slice(*place[1])] = 0
        assert torch.equal(image, expected)
    assert seen == runs(20, side)


def test_the_masked_share_is_that_of_a_square_that_is_cut_off() -> None:
    lengths = [min(c + 8, 32) - max(c - 8, 0) for c in range(32)]
    expected = (sum(lengths) / 32 / 32) ** 2
    assert f"{expected:.6f}" == "0.191406"
    masked = (cutout(torch.ones(4000, 1, 32, 32), 16, seeded()) == 0).double().mean((1, 2, 3))
    error = float(masked.std()) / math.sqrt(4000)
    assert abs(float(masked.mean()) - expected) < 4 * error
    assert abs(float(masked.mean()) - 0.25) > 20 * error


def test_no_side_and_a_side_that_covers_all() -> None:
    images = torch.ones(4, 3, 8, 8)
    assert torch.equal(cutout(images, 0, seeded()), images)
    assert not cutout(images, 16, seeded()).any()
    assert cutout(images, 14, seeded(3)).any()


def test_what_cannot_be_cut_is_said() -> None:
    with pytest.raises(SpecificationError, match=r"the shape \(3, 8, 8\), expected \(batch, chan"):
        cutout(torch.ones(3, 8, 8), 2, seeded())
    with pytest.raises(SpecificationError, match="side is -1, expected a whole number"):
        cutout(torch.ones(1, 3, 8, 8), -1, seeded())
