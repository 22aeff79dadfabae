"""The ends of the spectrum of a symmetric matrix that is known by its products alone.

Lanczos with full reorthogonalisation (Golub and Van Loan, *Matrix Computations*, section 10.3):
after k products ``A Q_k = Q_k T_k + beta_k q_(k+1) e_k^T``, T_k tridiagonal. For each eigenpair
``T_k s = theta s`` some eigenvalue of A lies within ``|beta_k s_k|`` of theta, ``s_k`` the last
entry of s. Near an end that stands apart the error is about its square over the gap.

Index legend: ``N`` rows of the matrix, ``k`` products. The bound says that an eigenvalue is near,
not that it is the last one: of two that stand close together the smaller may be the one found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

__all__ = ["Ends", "lanczos"]


#: Products before it may stop: a start that has little of the last eigenvector finds another first.
LEAST: Final = 8


@dataclass(frozen=True)
class Ends:
    """The largest and the smallest eigenvalue, each with its residual bound; ``products`` that were
    taken; ``stopped``: "converged", "whole space" (nothing is left to look in), "products",
    "budget" or "not finite"."""

    largest: float
    largest_residual: float
    smallest: float
    smallest_residual: float
    products: int
    stopped: str

    @property
    def converged(self) -> bool:
        return self.stopped in ("converged", "whole space")

    @property
    def settled(self) -> bool:
        """Whether the largest is known at all: one product from a random start knows the average
        eigenvalue, and a residual bound as large as its value says nothing."""
        return self.converged or (self.products > 1 and self.largest_residual < self.largest)

    def at_least(self, value: float, residual: float) -> Ends:
        """With ``value = u^T A u``, ``|u| = 1``, in the place of a largest eigenvalue below it;
        ``residual = |A u - value u|``. The larger bound stays: u may lie along another."""
        near = max(self.largest_residual, 1e-2 * value) if self.converged else 0.0
        if not value > self.largest + near:
            return self
        stopped = "products" if self.converged else self.stopped  # it had converged to another
        bound = max(residual, self.largest_residual)
        return replace(self, largest=value, largest_residual=bound, stopped=stopped)

    @property
    def largest_magnitude(self) -> float:
        """Of the two ends the one that is farther from 0, with its sign."""
        return max((self.largest, self.smallest), key=abs)


def lanczos(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    products: int,
    tolerance: float = 1e-2,
    spent: Callable[[], bool] = lambda: False,
) -> Ends:
    """The ends of the spectrum seen from ``start`` ``(N,)``, in at most ``products`` products.

    Converged, after ``LEAST`` products: the residual bounds of the largest eigenvalue and of the
    largest in magnitude are below ``tolerance`` times it. ``spent()`` true ends it early, after one
    product at the least.
    """
    most = min(products, start.numel())
    basis = start.new_empty(most, start.numel())
    basis[0] = start / torch.linalg.vector_norm(start)
    alpha: list[float] = []
    beta: list[float] = []
    ends, stopped = _ends(np.array([[math.nan]])), "not finite"
    for k in range(most):
        w = product(basis[k])
        alpha.append(float(torch.dot(w.double(), basis[k].double())))
        known = basis[: k + 1]
        for _ in range(2):  # twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6.9)
            w = w - known.T @ (known @ w)
        rest = float(torch.linalg.vector_norm(w, dtype=torch.float64))
        if not (math.isfinite(alpha[-1]) and math.isfinite(rest)):
            return Ends(*ends, k + 1, "not finite")
        matrix = np.diag(alpha) + np.diag(beta, 1) + np.diag(beta, -1)
        ends = _ends(matrix, rest)
        size = float(np.abs(matrix).max())
        if k + 1 == start.numel() or rest <= 100 * torch.finfo(w.dtype).eps * size:
            return Ends(*ends, k + 1, "whole space")
        if k + 1 >= LEAST and _near(ends, tolerance):
            return Ends(*ends, k + 1, "converged")
        stopped = "products"
        if spent():
            stopped = "budget"
            break
        if k + 1 < most:
            beta.append(rest)
            basis[k + 1] = w / rest
    return Ends(*ends, len(alpha), stopped)


def _ends(matrix: np.ndarray, rest: float = math.nan) -> tuple[float, float, float, float]:
    """Largest and smallest eigenvalue of T, each with its residual bound."""
    if not np.isfinite(matrix).all():
        return math.nan, math.nan, math.nan, math.nan
    values, vectors = np.linalg.eigh(matrix)
    bounds = rest * np.abs(vectors[-1])
    return float(values[-1]), float(bounds[-1]), float(values[0]), float(bounds[0])


def _near(ends: tuple[float, float, float, float], tolerance: float) -> bool:
    largest, its, smallest, other = ends
    size = max(abs(largest), abs(smallest))
    # A largest eigenvalue of nearly 0, beside a large negative one, has no relative accuracy.
    good = its <= tolerance * max(abs(largest), 1e-3 * size)
    return good and (abs(smallest) <= abs(largest) or other <= tolerance * size)
