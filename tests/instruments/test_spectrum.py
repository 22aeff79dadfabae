"""Logarithms of singular values of long products, against mpmath and against NumPy."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthgauge.instruments.spectrum import GradedProducts, effective_ranks, log_singular_values
from depthgauge.sites import FloatArray


def logs_of(factors: list[FloatArray]) -> FloatArray:
    """Of ``J_1^T ... J_D^T`` for factors ``J_1 ... J_D``, taken in from the last."""
    product = GradedProducts.identity(1, factors[-1].shape[0])
    for factor in reversed(factors):
        product = product.times(factor.T @ product.u)
    logs: FloatArray = product.log_singular_values()[0]
    return logs


def exact(factors: list[FloatArray], digits: int) -> FloatArray:
    """The same from the product itself, in arithmetic of so many digits."""
    with mpmath.workdps(digits):
        whole = mpmath.matrix(factors[0].tolist())
        for factor in factors[1:]:
            whole = mpmath.matrix(factor.tolist()) * whole
        values = mpmath.svd_r(whole, compute_uv=False)
        return np.array(sorted((float(mpmath.log(v)) for v in values), reverse=True))


def gaussian(count: int, size: int, seed: int, gain: float = 1.0) -> list[FloatArray]:
    generator = np.random.default_rng(seed)
    scale = gain / math.sqrt(size)
    return [generator.standard_normal((size, size)) * scale for _ in range(count)]


def test_two_hundred_random_matrices() -> None:
    """124 decades from first to last; ``svd`` of the product loses all but the first few."""
    factors = gaussian(200, 6, 0)
    wanted = exact(factors, 400)
    assert (wanted[0] - wanted[-1]) / math.log(10) > 100
    assert logs_of(factors) == pytest.approx(wanted, abs=1e-10)
    naive = factors[0]
    for factor in factors[1:]:
        naive = factor @ naive
    with np.errstate(divide="ignore"):
        plain = np.log(np.linalg.svd(naive, compute_uv=False))
    assert plain[0] == pytest.approx(wanted[0], abs=1e-10)
    assert abs(plain[-1] - wanted[-1]) > 10


@pytest.mark.parametrize("gain", [1e-3, 1e3])
def test_beyond_the_range_of_float64(gain: float) -> None:
    factors = gaussian(200, 4, 1, gain)  # 10^(+-600)
    found = logs_of(factors)
    wanted = exact(factors, 300)
    assert abs(wanted).max() > 1300
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-9)


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 999))
def test_a_few_factors_as_numpy_has_them(count: int, size: int, seed: int) -> None:
    factors = gaussian(count, size, seed)
    whole = factors[0]
    for factor in factors[1:]:
        whole = factor @ whole
    wanted = np.log(np.linalg.svd(whole, compute_uv=False))
    # NumPy's own small values carry an error of eps times the largest.
    assert logs_of(factors) == pytest.approx(wanted, abs=1e-12 * math.exp(wanted[0] - wanted[-1]))


def test_factors_that_change_the_width() -> None:
    generator = np.random.default_rng(3)
    shapes = [(7, 5), (7, 7), (4, 7), (6, 4)]
    factors = [generator.standard_normal(shape) for shape in shapes]
    whole = factors[3] @ factors[2] @ factors[1] @ factors[0]
    wanted = np.log(np.linalg.svd(whole, compute_uv=False)[:4])
    found = logs_of(factors)
    assert found[:4] == pytest.approx(wanted, abs=1e-10)
    assert not (found[4:] > -20).any()  # what the narrow layer took is gone


def test_a_direction_that_is_gone() -> None:
    projection = np.diag([1.0, 1.0, 0.0])
    found = logs_of([projection, *gaussian(3, 3, 0)])
    assert np.isfinite(found[:2]).all()
    assert found[2] == -math.inf
    ranks = effective_ranks(found)
    assert ranks["lost"] >= 1 / 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [5, 12])
def test_columns_that_depend_on_others_wherever_they_stand(size: int, seed: int) -> None:
    """A dependent column in front of others must not take their directions with it."""
    generator = np.random.default_rng(seed)
    first = generator.standard_normal((size, size))
    first[:, 1] = first[:, 0]
    first[:, 3] = first[:, 0] + 1e-3 * first[:, 2]
    factors = [
        generator.standard_normal((size, size)),
        first,
        generator.standard_normal((size, size)),
    ]
    for chosen in ([first], factors, factors[::-1], [first.T, *factors, first]):
        whole = chosen[0]
        for factor in chosen[1:]:
            whole = factor @ whole
        wanted = np.linalg.svd(whole, compute_uv=False)
        logs = logs_of(chosen)
        assert np.exp(logs[: size - 2]) == pytest.approx(wanted[: size - 2], rel=1e-9)
        assert (logs[size - 2 :] < logs[0] - 25).all()
        assert np.exp(2 * logs).sum() == pytest.approx((whole**2).sum(), rel=1e-12)


@settings(max_examples=60)
@given(st.integers(2, 7), st.integers(1, 7), st.integers(1, 4), st.integers(0, 9999))
def test_products_of_any_rank_keep_their_norm(size: int, rank: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rank = min(rank, size)
    factors = [
        generator.integers(-2, 3, (size, rank)) @ generator.integers(-2, 3, (rank, size)) * 0.5
        for _ in range(count)
    ]
    whole = factors[0]
    for factor in factors[1:]:
        whole = factor @ whole
    logs = logs_of([f.astype(np.float64) for f in factors])
    assert np.exp(2 * logs).sum() == pytest.approx((whole**2).sum(), rel=1e-9, abs=1e-12)


def test_examples_at_once_are_examples_alone() -> None:
    """Beside one of NaN, one with two equal columns, one of zeros, while the width changes."""
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((5, *shape)) for shape in [(9, 7), (7, 9)] * 3]
    factors[1][1, 0, 0] = math.nan
    factors[4][2, :, 1] = factors[4][2, :, 0]
    factors[3][3] = 0.0
    product = GradedProducts.identity(5, 7)
    for factor in factors:
        product = product.times(factor @ product.u)
    found = product.log_singular_values()
    assert np.isnan(found[1]).all()
    assert (found[3] == -math.inf).all()
    for i in (0, 2, 4):
        whole = np.linalg.multi_dot([factor[i] for factor in reversed(factors)])
        wanted = np.linalg.svd(whole, compute_uv=False)
        rank = 6 if i == 2 else 7
        assert np.exp(found[i, :rank]) == pytest.approx(wanted[:rank], rel=1e-9)
        assert (found[i, rank:] < found[i, 0] - 25).all()
        alone = GradedProducts.identity(1, 7)
        for factor in factors:
            alone = alone.times(factor[i : i + 1] @ alone.u)
        assert found[i] == pytest.approx(alone.log_singular_values()[0], abs=1e-12)


def test_nan_is_a_finding() -> None:
    bad = np.eye(3)
    bad[1, 1] = math.nan
    assert np.isnan(logs_of([np.eye(3), bad, np.eye(3)])).all()
    assert all(math.isnan(value) for value in effective_ranks(np.full(3, math.nan)).values())


def test_effective_ranks_by_their_formulas() -> None:
    sigma = np.array([5.0, 3.0, 1.0, 0.4, 0.1])
    ranks = effective_ranks(np.log(sigma))
    p = sigma / sigma.sum()
    assert ranks["participation"] == pytest.approx((sigma**2).sum() ** 2 / (sigma**4).sum())
    assert ranks["entropy"] == pytest.approx(math.exp(-(p * np.log(p)).sum()))
    assert ranks["stable"] == pytest.approx((sigma**2).sum() / 25)
    assert ranks["lost"] == pytest.approx(2 / 5)
    shifted = effective_ranks(np.log(sigma) - 5000)  # no scale changes a rank
    assert shifted == pytest.approx(ranks)
    assert effective_ranks(np.zeros(8)) == pytest.approx(
        {"participation": 8, "entropy": 8, "stable": 8, "lost": 0}
    )
    one = np.array([0.0, -math.inf, -math.inf])
    assert effective_ranks(one) == pytest.approx(
        {"participation": 1, "entropy": 1, "stable": 1, "lost": 2 / 3}
    )


def test_rows_of_any_size_are_rotated_apart() -> None:
    generator = np.random.default_rng(0)
    t = generator.standard_normal((4, 4))
    logs = np.array([900.0, 0.0, -40.0, -900.0])
    wanted = exact([np.eye(4)], 20)
    assert wanted == pytest.approx(np.zeros(4))
    found = log_singular_values(logs, t)
    # Rows so far apart decouple: the volume is that of the product of its factors.
    assert found.sum() == pytest.approx(logs.sum() + np.linalg.slogdet(t)[1], rel=1e-12)
    assert found[0] == pytest.approx(900 + math.log(np.linalg.norm(t[0])), abs=1e-12)


def test_many_rows_that_lean_a_little_add_up() -> None:
    """A Gram matrix of ones and c: its largest value is 1 + (n - 1) c, first order in c."""
    n, c = 64, 0.9e-9
    rows = np.eye(n + 1)
    rows[:n, :n] = np.linalg.cholesky((1 - c) * np.eye(n) + c)
    found = log_singular_values(np.r_[np.zeros(n), -12.0], rows)
    assert found[0] == pytest.approx(0.5 * np.log1p((n - 1) * c), rel=1e-5)


def test_the_direction_of_a_repeated_column_is_nobodys() -> None:
    """The first and the last column are one; the noise beside it is the way of the second."""
    product = GradedProducts.identity(1, 3).times(np.array([[[3.0, 2, 3], [1, 1, 1], [0, 0, 0]]]))
    whole = product.u[0] @ np.diag(np.exp(product.logs[0])) @ product.t[0]
    assert whole == pytest.approx(np.array([[3.0, 2, 3], [1, 1, 1], [0, 0, 0]]), abs=1e-14)
