"""Lanczos against a dense eigenvalue solver, and what it says of itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from depthgauge.instruments.lanczos import lanczos


def matrix(values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with these eigenvalues, and a random start."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    return q @ torch.diag(values) @ q.T, torch.randn(n, generator=generator, dtype=torch.float64)


def test_all_of_a_small_space_is_exact() -> None:
    values = torch.linspace(-3, 5, 12, dtype=torch.float64)
    a, start = matrix(values)
    found = lanczos(lambda v: a @ v, start, 50, tolerance=0.0)
    assert (found.largest, found.smallest) == pytest.approx((5.0, -3.0), rel=1e-12)
    assert found.stopped == "whole space"
    assert found.products == 12
    assert found.largest_magnitude == found.largest


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top", [2.0, 20.0])
def test_an_eigenvalue_lies_within_the_residual_bound(seed: int, top: float) -> None:
    values = torch.randn(300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = torch.cat([values.clamp(-1, 1), torch.tensor([top, -7.0])])
    a, start = matrix(values, seed)
    for products in (1, 2, 4, 8, 16):
        found = lanczos(lambda v: a @ v, start, products, tolerance=0.0)
        assert float((values - found.largest).abs().min()) <= found.largest_residual + 1e-12
        assert float((values - found.smallest).abs().min()) <= found.smallest_residual + 1e-12
    found = lanczos(lambda v: a @ v, start, 40)
    assert found.converged
    assert found.largest == pytest.approx(top, rel=1e-3)
    assert found.largest_magnitude == pytest.approx(top if top > 7 else -7.0, rel=1e-3)
    assert found.products < 40


def test_what_has_not_converged_says_so() -> None:
    a, start = matrix(torch.linspace(-1, 1, 200, dtype=torch.float64))
    found = lanczos(lambda v: a @ v, start, 3)
    assert not found.converged
    assert found.stopped == "products"
    assert abs(found.largest - 1) > 0.01
    spent = lanczos(lambda v: a @ v, start, 30, spent=lambda: True)
    assert (spent.stopped, spent.products) == ("budget", 1)


def test_many_equal_eigenvalues_and_none_but_zero() -> None:
    a, start = matrix(torch.tensor([2.0] * 6 + [-1.0] * 6, dtype=torch.float64))
    found = lanczos(lambda v: a @ v, start, 10, tolerance=0.0)
    assert (found.largest, found.smallest) == pytest.approx((2.0, -1.0), rel=1e-12)
    assert (found.products, found.stopped) == (2, "whole space")
    zero = lanczos(torch.zeros_like, start, 10)
    assert (zero.largest, zero.smallest, zero.products) == (0.0, 0.0, 1)


def test_a_product_that_is_not_finite_is_no_number() -> None:
    found = lanczos(lambda v: v * math.inf, torch.ones(4), 10)
    assert math.isnan(found.largest)
    assert not found.converged


def test_a_rayleigh_quotient_is_below_the_largest() -> None:
    values = torch.full((400,), 1e-3, dtype=torch.float64)
    values[-1] = 50.0
    a, start = matrix(values)
    early = lanczos(lambda v: a @ v, start, 1)
    assert early.largest < 5  # of 50, and nothing says so but its bound
    assert not early.settled
    u = torch.linalg.eigh(a)[1][:, -1] + 0.5 * start / start.norm()
    u = u / u.norm()
    value = float(u @ a @ u)
    raised = early.at_least(value, float(torch.linalg.vector_norm(a @ u - value * u)))
    assert 30 < raised.largest == value <= 50
    assert not raised.settled  # u may lie along an eigenvector below the largest
    late = lanczos(lambda v: a @ v, start, 20)
    assert late.settled
    assert late.at_least(value, 0.0) is late
    assert late.at_least(math.nan, math.nan) is late
    assert not late.at_least(51.0, 0.0).converged  # it had converged to another
