"""Long products whose factors are too wide to follow as a whole: the leading singular values, and
sums over all of them.

The leading values come from the block Krylov space of products from end to end (Musco and Musco,
arXiv 1504.05477), and where they fall off steeply by subspace iteration (Halko, Martinsson and
Tropp, SIAM Rev. 53, 2011, algorithm 4.4). Both approach from below.

Sums over all values are traces ``tr f(A^T A)``, taken along each leading direction, and across them
from random probes (Meyer et al., "Hutch++", SOSA 2021), both by Lanczos quadrature, see
``depthgauge.instruments.quadrature``; no direction need have converged for that.

A quadrature of k nodes sees no value below about 1/k of the largest. What this costs ``sum sigma``
and ``sum sigma ln sigma`` falls as about 1/k, so the nodes of half of the steps give it: ``2 S_k -
S_(k/2)`` (Richardson). The largest value is that of the largest node.

Index legend: ``E`` examples; vectors are rows, ``(E, r, n)``; ``A`` is J or its transpose, the one
of fewer columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from depthgauge.instruments.quadrature import Quadrature, bidiagonal
from depthgauge.instruments.spectrum import LOST, effective_ranks
from depthgauge.instruments.subject import Effort
from depthgauge.network.chain import Chain
from depthgauge.sites import FloatArray

__all__ = ["Ends", "Leading", "Ranks", "ranks", "subspace"]

#: Lanczos steps from a probe, and from a leading direction, which is nearly one singular vector.
STEPS: Final = 32
_ALONG: Final = 4
#: Iterations of a Krylov space for each of ``Effort.iterations``.
_KRYLOV: Final = 2
#: Leading values that lie further apart (a logarithm) settle by themselves, and in a Krylov space
#: the smaller ones would be rounding of the larger.
_STEEP: Final = math.log(1e3)
#: The share of all directions that is rounding of a sum over them.
_NONE: Final = 1e-12
#: Numbers in the bases of all recurrences at once.
_AT_ONCE: Final = 2**26


@dataclass(frozen=True)
class Ends:
    """``A`` of each of these examples, from the smaller end of the chain to the other."""

    chain: Chain
    examples: Sequence[int]

    @property
    def near(self) -> int:
        """The state at the smaller end."""
        first, last = self.chain.states[0], self.chain.states[-1]
        return 0 if first.size <= last.size else len(self.chain)

    @property
    def far(self) -> int:
        return len(self.chain) - self.near

    @property
    def directions(self) -> int:
        """Singular values that need not be 0: the size of the narrowest state."""
        return min(state.size for state in self.chain.states)

    @property
    def values(self) -> int:
        """Singular values of A: the size of the smaller end."""
        return self.chain.states[self.near].size

    def applied(self, rows: FloatArray, start: int, end: int) -> tuple[FloatArray, FloatArray]:
        """``J`` or ``J^T`` on rows ``(E, r, n) -> (E, r, n')``, and the logarithms ``(E, r)`` of
        what they were divided by, block by block: no number leaves the range of the chain."""
        chain, chosen = self.chain, list(self.examples)
        at = chain.states[start]
        moving = torch.zeros(rows.shape[1], at.examples, at.size, dtype=chain.dtype)
        moving[:, chosen] = torch.from_numpy(rows).transpose(0, 1).to(moving)
        moving = moving.to(chain.device)
        scale = torch.zeros(moving.shape[:2], dtype=torch.float64)
        step = 1 if start < end else -1
        for k in range(start, end, step):
            there = chain.states[k].spread(moving)
            there = chain.push(k, k + 1, there) if step > 0 else chain.pull(k, k - 1, there)
            moving = chain.states[k + step].rows(there)
            top = moving.abs().amax(-1)
            top = torch.where((top > 0) & top.isfinite(), top, 1.0)
            moving, scale = moving / top[..., None], scale + top.cpu().double().log()
        out: FloatArray = moving[:, chosen].transpose(0, 1).double().cpu().numpy()
        logs: FloatArray = scale[:, chosen].T.numpy()
        return out, logs


class Leading(NamedTuple):
    """``logs`` (E, r): of the leading singular values; ``near`` (E, r, n): the span of their
    directions at the smaller end; ``change``: the largest of a logarithm of their larger half in
    the last third of the ``iterations``, of subspace iteration in the last half, and
    ``change_of_first`` that of the largest value's; 0 where every direction was followed. NaN where
    J is not finite, or after one iteration. It is more than what is left to come where the error
    falls as ``1 / iterations^2``, of subspace iteration as ``1 / iterations``, or faster."""

    logs: FloatArray
    near: FloatArray
    change: float
    change_of_first: float = math.nan
    iterations: int = 0


def subspace(ends: Ends, effort: Effort, generator: torch.Generator) -> Leading:
    """The leading values: from the block Krylov space of all iterations where they lie close
    together, by subspace iteration where they do not, or where that space does not fit.

    Raises RuntimeError where the backward pass has no derivative.
    """
    rank, states = min(effort.rank, ends.directions), ends.chain.states
    far = states[ends.far].size
    shape = len(ends.examples), rank, far
    draw = torch.randn(shape, generator=generator, dtype=torch.float64).numpy()
    space = _Space(np.zeros((len(ends.examples), 0, states[ends.near].size)), [], [])
    fitting = _AT_ONCE // max(len(ends.examples) * rank * (states[ends.near].size + far), 1)
    count = _KRYLOV * effort.iterations if rank < ends.directions else effort.iterations
    krylov = 1 < count <= fitting and rank < ends.directions
    left, each = _orthonormal(draw), list[FloatArray]()
    while len(each) < count:
        effort.check(len(each), count, "iterations")
        pulled = ends.applied(left, ends.far, ends.near)[0]
        near = space.beside(pulled)[:, : ends.directions - space.count]
        out, scale = ends.applied(near, ends.near, ends.far)
        left, logs = _orthonormal(out), _log_singular_values(out, scale)
        if not each and not float(np.max(logs[:, 0] - logs[:, -1])) < _STEEP:
            krylov, count = False, min(count, effort.iterations)
        each.append(logs)
        if krylov:
            space = space.with_block(near, out, scale)
            if space.count == ends.directions:
                return Leading(*space.leading(rank), 0.0, 0.0, len(each))
    if krylov:
        logs, near = space.leading(rank)
        before, _ = space.leading(rank, 2 * len(each) // 3)
    else:
        before = each[len(each) // 2 - 1] if len(each) > 1 else np.full_like(logs, math.nan)
    with np.errstate(invalid="ignore"):
        changes = np.abs(logs - before)
    larger = float(np.max(changes[:, : max(rank // 2, 1)]))
    return Leading(logs, near, larger, float(np.max(changes[:, 0])), len(each))


@dataclass(frozen=True)
class _Space:
    """The block Krylov space of ``A^T A``: an orthonormal ``basis`` (E, m, n), what A makes of its
    rows, and the logarithms of the scales of these, block by block."""

    basis: FloatArray
    images: list[FloatArray]
    scales: list[FloatArray]

    @property
    def count(self) -> int:
        return int(self.basis.shape[1])

    def beside(self, rows: FloatArray) -> FloatArray:
        """Orthonormal rows across the basis: what is left of a row may be rounding, so again."""
        rows = _orthonormal(rows)
        for _ in range(2 if self.count else 0):
            rows = _orthonormal(rows - rows @ self.basis.swapaxes(1, 2) @ self.basis)
        return rows

    def with_block(self, near: FloatArray, out: FloatArray, scale: FloatArray) -> _Space:
        basis = np.concatenate([self.basis, near], 1)
        return _Space(basis, [*self.images, out], [*self.scales, scale])

    def leading(self, rank: int, blocks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """The logarithms ``(E, r)`` of the largest values of A on the space, or on so many blocks
        of it, none above A's own, and their directions: ``(E, r, n)``. NaN where an image is not
        finite."""
        rows = np.concatenate(self.images[:blocks], 1)
        scale = np.concatenate(self.scales[:blocks], 1)
        top = scale.max(1, keepdims=True)
        finite = np.isfinite(rows).all((1, 2), keepdims=True)
        scaled = np.where(finite, rows, 0.0) * np.exp(scale - top)[..., None]
        left, values, _ = np.linalg.svd(scaled, full_matrices=False)
        with np.errstate(divide="ignore"):
            logs = np.log(values[:, :rank]) + top + np.where(finite, 0.0, math.nan)[..., 0]
        return logs, left[..., :rank].swapaxes(1, 2) @ self.basis[:, : rows.shape[1]]


def _orthonormal(rows: FloatArray) -> FloatArray:
    """Orthonormal rows with the same span; what is not finite is left out."""
    q: FloatArray = np.linalg.qr(np.where(np.isfinite(rows), rows, 0.0).swapaxes(1, 2))[0]
    return q.swapaxes(1, 2)


def _log_singular_values(rows: FloatArray, scale: FloatArray) -> FloatArray:
    """Of ``diag(e^scale) rows``: ``(E, r)``."""
    top = scale.max(1, keepdims=True)
    finite = np.isfinite(rows).all((1, 2), keepdims=True)
    scaled = np.where(finite, rows, 0.0) * np.exp(scale - top)[..., None]
    with np.errstate(divide="ignore"):
        logs: FloatArray = np.log(np.linalg.svd(scaled, compute_uv=False)) + top
    return logs + np.where(finite, 0.0, math.nan)[..., 0]


class Ranks(NamedTuple):
    """``each``: the numbers of ``effective_ranks``, ``(E,)``. Of their means: ``errors``, the
    standard errors over probes, and ``changes``, what the second half of the Lanczos steps did to
    them; ``steps`` that were taken from a probe."""

    each: Mapping[str, FloatArray]
    errors: dict[str, float]
    changes: dict[str, float]
    steps: int


def ranks(ends: Ends, leading: Leading, effort: Effort, generator: torch.Generator) -> Ranks:
    """How many directions J leaves, from sums over all of its singular values:

        tr f(A^T A) = sum_i v_i^T f(A^T A) v_i + (n - r) mean_p z_p^T f(A^T A) z_p

    with the r orthonormal ``leading.near`` as v, and z uniform on the unit sphere across them.
    """
    count, rank = leading.logs.shape
    if rank == ends.directions:  # nothing is left across them
        zeros = np.full(ends.values - rank, -np.inf)
        all_of = [effective_ranks(np.concatenate([logs, zeros])) for logs in leading.logs]
        exact = {key: np.array([one[key] for one in all_of]) for key in all_of[0]}
        return Ranks(exact, dict.fromkeys(exact, 0.0), dict.fromkeys(exact, 0.0), 0)
    size = ends.values
    unit = np.where(np.isfinite(leading.logs[:, :1]), leading.logs[:, :1], 0.0)

    def through(rows: FloatArray, start: int, end: int) -> FloatArray:
        out, scale = ends.applied(rows, start, end)
        with np.errstate(invalid="ignore", over="ignore"):
            return out * np.exp(scale - unit)[..., None]

    def quadrature(starts: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        return bidiagonal(
            lambda rows: through(rows, ends.near, ends.far),
            lambda rows: through(rows, ends.far, ends.near),
            starts,
            steps,
            lambda done: effort.check(done, steps, "Lanczos steps"),
        )

    across = _across(leading.near, effort.probes, generator)
    steps = size if size <= 2 * STEPS else STEPS
    numbers = count * steps * sum(ends.chain.states[i].size for i in (0, -1))
    parts = np.array_split(across, min(effort.probes, -(-numbers * effort.probes // _AT_ONCE)), 1)
    along = Quadrature.of(*quadrature(leading.near, min(_ALONG, size)))
    found = [quadrature(part, steps) for part in parts]
    alpha, beta = (np.concatenate(arrays, 1) for arrays in zip(*found, strict=True))
    nodes = [Quadrature.of(alpha[..., :k], beta[..., :k]) for k in _halved(steps, size)]
    others = size - rank
    whole, half = (_Estimate(along, nodes[i], nodes[i + 1], others, ends.values) for i in (0, 1))
    each, before = whole.ranks(), half.ranks()
    changes = {key: float(np.mean(each[key] - before[key])) for key in each}
    return Ranks(each, whole.errors(), changes, steps)


def _across(near: FloatArray, count: int, generator: torch.Generator) -> FloatArray:
    """So many unit rows across those of ``near``: ``(E, r, n) -> (E, count, n)``."""
    shape = len(near), count, near.shape[2]
    rows = torch.randn(shape, generator=generator, dtype=torch.float64).numpy()
    for _ in range(2):
        rows = rows - rows @ near.swapaxes(1, 2) @ near
    unit: FloatArray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit


def _halved(steps: int, size: int) -> tuple[int, int, int]:
    """All steps, and those with which they are compared; the whole space needs no comparison."""
    if steps == size:
        return steps, steps, steps
    return steps, max(steps // 2, 1), max(steps // 4, 1)


@dataclass(frozen=True)
class _Estimate:
    """``along`` every leading direction; ``across`` from probes of so many ``others``, ``half`` by
    half of the steps; of J's ``count`` values in all. In units of about the largest one."""

    along: Quadrature
    across: Quadrature
    half: Quadrature
    others: int
    count: int

    def ranks(self, without: int | None = None) -> dict[str, FloatArray]:
        """The numbers of ``effective_ranks`` for every example ``(E,)``, one probe left out."""
        along, across, half = self.along, self.across, self.half
        top = np.maximum(along.values.max((1, 2)), across.values.max((1, 2)))
        kept = [i for i in range(across.values.shape[1]) if i != without]

        def total(leading: FloatArray, probes: FloatArray) -> FloatArray:
            whole: FloatArray = leading.sum(1) + self.others * probes[:, kept].mean(1)
            return whole

        square, fourth = (total(along.power(p), across.power(p)) for p in (2, 4))
        one, product = (
            total(exact, 2 * fine - coarse)
            for exact, fine, coarse in zip(
                along.first(False), across.first(True), half.first(True), strict=True
            )
        )
        left = total(along.above(top / LOST), across.above(top / LOST)) / self.count
        zero = top == 0
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {
                "participation": square**2 / fourth,
                "entropy": np.exp(np.log(one) - product / one),
                "stable": square / top**2,
            }
        found = {key: np.where(zero, 0.0, values) for key, values in found.items()}
        lost = np.where(1 - left < _NONE, 0.0, 1 - left)
        return {**found, "lost": np.where(zero, 1.0, lost)}

    def errors(self) -> dict[str, float]:
        """Of the means over examples, by leaving one probe out; NaN for one probe alone."""
        count = self.across.values.shape[1]
        if count < 2:
            return dict.fromkeys(self.ranks(), math.nan)
        each = [self.ranks(without=i) for i in range(count)]
        found = {}
        for key in each[0]:
            values = np.array([one[key] for one in each])  # (P, E); every example has its own
            variances = (count - 1) ** 2 / count * values.var(0, ddof=1)
            found[key] = math.sqrt(float(variances.sum())) / values.shape[1]
        return found
