"""Sums over all singular values of a matrix that is known by its products alone.

Stochastic Lanczos quadrature (Ubaru, Chen and Saad, SIAM J. Matrix Anal. Appl. 38, 2017): for a
unit vector v, ``v^T f(A^T A) v ~ sum_i tau_i f(theta_i^2)`` with the singular values theta of the
bidiagonal matrix that Golub and Kahan's recurrence makes from v, and tau the squares of the first
entries of its right singular vectors; m times the mean over random v of m dimensions is the trace.
Bidiagonal, so that a value is good to the rounding of the largest one, not to its root, as it would
be from ``A^T A``.

Index legend: ``E`` matrices at once, ``P`` vectors for each, ``n`` and ``n'`` their columns and
rows, ``k`` steps. Vectors are rows here: ``(E, P, n)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from depthgauge.sites import FloatArray

__all__ = ["Quadrature", "bidiagonal"]


@dataclass(frozen=True)
class Quadrature:
    """Of every start, ``(E, P, k)``: ``values`` theta, the largest first; ``weights`` tau, of
    sum 1; ``residuals`` rho: ``|A^T A y - theta^2 y| = theta rho`` for the Ritz vector y, so the
    square of some singular value is no farther than that from theta^2."""

    values: FloatArray
    weights: FloatArray
    residuals: FloatArray

    @classmethod
    def of(cls, alpha: FloatArray, beta: FloatArray) -> Quadrature:
        """From the diagonal ``(E, P, k)`` and the entries right of it, the last one outside. NaN
        where one of them is not finite."""
        k = alpha.shape[-1]
        finite = np.asarray(np.isfinite(alpha) & np.isfinite(beta)).all(-1, keepdims=True)
        alpha, beta = np.where(finite, alpha, 0.0), np.where(finite, beta, 0.0)
        matrix = alpha[..., None] * np.eye(k) + beta[..., None] * np.eye(k, k=1)
        left, values, right = np.linalg.svd(matrix)
        bad = np.where(finite, 0.0, np.nan)
        residuals = beta[..., -1:] * np.abs(left[..., -1, :])
        return cls(values + bad, right[..., 0] ** 2 + bad, residuals + bad)

    def power(self, exponent: int) -> FloatArray:
        """``sum tau theta^exponent``, exact for even ones up to ``4 k - 2``: ``(E, P)``."""
        total: FloatArray = (self.weights * self.values**exponent).sum(-1)
        return total

    def first(self, open_end: bool) -> tuple[FloatArray, FloatArray]:
        """Of sigma and of ``sigma ln sigma``: ``(E, P)`` each. ``open_end``: of a spectrum that may
        go on towards 0, of which a node sees no more than its mean square.

        The last node stands for all that is smaller than h, half-way to the node before it, or as
        far as its residual where that is less. Theta is the root of its mean square, too large for
        a mean; so the weight below sigma is taken for a power of it, ``tau (sigma / h)^a``, of this
        mean square: ``a / (a + 2) = (theta / h)^2``.
        """
        theta, mean, product = self.values, self.values.copy(), _x_log_x(self.values)
        if open_end and theta.shape[-1] > 1:
            last = theta[..., -1]
            h = last + np.minimum(self.residuals[..., -1], (theta[..., -2] - last) / 2)
            h = np.where(h > 0, h, 1.0)
            ratio = (last / h) ** 2
            mean[..., -1] = h * 2 * ratio / (1 + ratio)
            product[..., -1] = mean[..., -1] * (np.log(h) - (1 - ratio) / (1 + ratio))
        return (self.weights * mean).sum(-1), (self.weights * product).sum(-1)

    def above(self, threshold: FloatArray) -> FloatArray:
        """The weight of what is not below ``threshold`` (E,): ``(E, P)``.

        Half of the weight of a node is spread evenly towards either neighbour, no farther than its
        residual, so that a value which has been found stays where it is. By the inequalities of
        Chebyshev, Markov and Stieltjes no more than the weight of the nodes beside the threshold
        can be wrong.
        """
        theta, t = self.values, threshold[:, None, None]
        larger = np.concatenate([np.full_like(theta[..., :1], np.inf), theta[..., :-1]], -1)
        smaller = np.concatenate([theta[..., 1:], np.zeros_like(theta[..., :1])], -1)
        away = theta * self.residuals
        high = np.minimum(np.sqrt(theta**2 + away), larger)
        low = np.maximum(np.sqrt(np.maximum(theta**2 - away, 0.0)), smaller)
        halves = _share(theta, high, t) + _share(low, theta, t)
        total: FloatArray = (self.weights * halves / 2).sum(-1)
        return total


def _share(low: FloatArray, high: FloatArray, t: FloatArray) -> FloatArray:
    """The share of ``[low, high]`` that is not below ``t``."""
    width = high - low
    inside = np.clip((high - t) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    return np.where(width > 0, inside, np.where(low >= t, 1.0, 0.0))


def _x_log_x(x: FloatArray) -> FloatArray:
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0)), 0.0 * x)


def bidiagonal(
    forth: Callable[[FloatArray], FloatArray],
    back: Callable[[FloatArray], FloatArray],
    starts: FloatArray,
    steps: int,
    check: Callable[[int], None] = lambda done: None,
) -> tuple[FloatArray, FloatArray]:
    """``alpha`` and ``beta`` ``(E, P, k)`` of ``A V = U B``, ``B`` with alpha on its diagonal and
    beta right of it, by full reorthogonalisation.

    ``forth``: ``(E, P, n) -> (E, P, n')``, A on every row; ``back`` its transpose; ``starts``: unit
    rows. ``check(k)`` is called before every step. What is used up goes on as zeros, of no weight.
    """
    alpha, beta = np.zeros((2, *starts.shape[:2], steps))
    right: list[FloatArray] = []
    left: list[FloatArray] = []
    v = starts
    for k in range(steps):
        check(k)
        right.append(v)
        alpha[..., k], u = _next(forth(v), left)
        left.append(u)
        beta[..., k], v = _next(back(u), right)
    return alpha, beta


def _next(x: FloatArray, known: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """The length of what ``known`` leaves of x, and its direction."""
    with np.errstate(invalid="ignore", over="ignore"):
        before = np.linalg.norm(x, axis=-1)
        for _ in range(2):  # twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6.9)
            for each in known:
                x = x - (x * each).sum(-1, keepdims=True) * each
        rest = np.linalg.norm(x, axis=-1)
        rest = np.where(rest <= 16 * np.finfo(np.float64).eps * before, 0.0, rest)
    return rest, np.where(rest[..., None] == 0, 0.0, x / np.where(rest > 0, rest, 1.0)[..., None])
