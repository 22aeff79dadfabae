"""Sums over singular values by Lanczos quadrature, against those of a whole decomposition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from depthgauge.instruments.quadrature import Quadrature, bidiagonal
from depthgauge.sites import FloatArray


def quadrature(matrices: FloatArray, starts: FloatArray, steps: int) -> list[Quadrature]:
    """From all steps, and from half of them. ``matrices`` (E, n', n), ``starts`` (E, P, n)."""
    alpha, beta = bidiagonal(
        lambda rows: rows @ matrices.swapaxes(1, 2), lambda rows: rows @ matrices, starts, steps
    )
    return [Quadrature.of(alpha[..., :k], beta[..., :k]) for k in (steps, max(steps // 2, 1))]


def of_values(sigma: FloatArray, steps: int) -> list[Quadrature]:
    """As every direction alike sees them: sums over singular values are ``n`` times these."""
    start = np.full((1, 1, len(sigma)), 1 / math.sqrt(len(sigma)))
    return quadrature(np.diag(sigma)[None], start, steps)


def product(factors: int, size: int, seed: int = 0) -> FloatArray:
    """Singular values of a product of Gaussian matrices, the largest 1."""
    generator = np.random.default_rng(seed)
    whole = np.eye(size)
    for _ in range(factors):
        whole = generator.standard_normal((size, size)) @ whole / math.sqrt(size)
    values = np.linalg.svd(whole, compute_uv=False)
    return np.asarray(values / values[0], dtype=np.float64)


def test_the_recurrence_is_a_bidiagonalisation() -> None:
    generator = np.random.default_rng(0)
    matrices = generator.standard_normal((2, 9, 7))
    starts = generator.standard_normal((2, 3, 7))
    starts /= np.linalg.norm(starts, axis=-1, keepdims=True)
    alpha, beta = bidiagonal(
        lambda rows: rows @ matrices.swapaxes(1, 2), lambda rows: rows @ matrices, starts, 7
    )
    assert beta[..., -1] == pytest.approx(np.zeros((2, 3)), abs=1e-12)  # nowhere left to go
    for e in range(2):
        wanted = np.linalg.svd(matrices[e], compute_uv=False)
        for p in range(3):
            b = np.diag(alpha[e, p]) + np.diag(beta[e, p, :-1], 1)
            assert np.linalg.svd(b, compute_uv=False) == pytest.approx(wanted, rel=1e-10)


def test_all_directions_give_the_sums_themselves() -> None:
    generator = np.random.default_rng(1)
    matrices = generator.standard_normal((2, 5, 8))
    (q, _) = quadrature(matrices, np.stack([np.eye(8)] * 2), 8)
    for e, sigma in enumerate(np.linalg.svd(matrices, compute_uv=False)):
        sums = [q.power(p)[e].sum() for p in (2, 4)]
        assert sums == pytest.approx([(sigma**2).sum(), (sigma**4).sum()], rel=1e-10)
        one, log = (x[e].sum() for x in q.first(False))
        assert (one, log) == pytest.approx((sigma.sum(), (sigma * np.log(sigma)).sum()), rel=1e-10)
        count = (sigma >= sigma[0] / 3).sum()
        assert q.above(np.full(2, sigma[0] / 3))[e].sum() == pytest.approx(count, rel=1e-10)


@pytest.mark.parametrize("factors", [1, 3, 8])
def test_a_spectrum_that_goes_on_towards_zero(factors: int) -> None:
    """Nodes alone take its smallest values for larger than they are; with the power law at that end
    and half of the steps beside them 32 steps suffice."""
    sigma = product(factors, 500)
    whole, half = of_values(sigma, 32)
    wanted = np.array([sigma.mean(), (sigma * np.log(sigma)).mean()])
    nodes, fine, coarse = (
        np.array([x.item() for x in sums])
        for sums in (whole.first(False), whole.first(True), half.first(True))
    )
    assert 2 * fine - coarse == pytest.approx(wanted, rel=0.01)
    lost = 1 - whole.above(np.array([0.1])).item()
    assert lost == pytest.approx((sigma < 0.1).mean(), abs=0.01)
    if factors > 1:  # the case that must fail
        assert abs(nodes / wanted - 1).max() > 0.02
        assert abs(nodes / wanted - 1).max() > 3 * abs((2 * fine - coarse) / wanted - 1).max()


@pytest.mark.parametrize(
    "sigma",
    [
        np.ones(300),
        np.repeat([1.0, 0.3], 150),
        np.repeat([1.0, 0.0], [200, 100]),
        np.concatenate([np.linspace(0.5, 1, 200), np.zeros(100)]),
        np.concatenate([np.linspace(0.5, 1, 100), np.linspace(0, 0.01, 200)]),
    ],
    ids=["isometry", "two values", "projection", "slab and kernel", "slab and tail"],
)
def test_what_stands_apart_is_counted_where_it_stands(sigma: FloatArray) -> None:
    whole, half = of_values(sigma, 32)
    assert whole.above(np.array([0.1])).item() == pytest.approx((sigma >= 0.1).mean(), abs=1e-9)
    one = 2 * whole.first(True)[0] - half.first(True)[0]
    assert one.item() == pytest.approx(sigma.mean(), rel=1e-3)
    assert whole.power(4).item() == pytest.approx((sigma**4).mean(), rel=1e-10)


def test_fewer_directions_than_steps_and_none() -> None:
    (q, half) = of_values(np.array([1.0, 0.5, 0.5]), 20)
    assert q.power(1).item() == pytest.approx(2 / 3)
    assert half.power(1).item() == pytest.approx(2 / 3)
    (zero, _) = of_values(np.zeros(5), 4)
    assert zero.power(2).item() == zero.first(True)[0].item() == zero.first(True)[1].item() == 0


def test_nan_is_a_finding_of_its_own_matrix() -> None:
    matrices = np.stack([np.eye(3), np.full((3, 3), math.nan)])
    (q, _) = quadrature(matrices, np.stack([np.eye(3)] * 2), 2)
    for sums in (q.power(2), *q.first(True), q.above(np.full(2, 0.1))):
        assert np.isfinite(sums[0]).all()
        assert np.isnan(sums[1]).all()
