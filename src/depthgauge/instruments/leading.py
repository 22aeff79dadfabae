"""Long products whose factors are too wide to follow as a whole: the leading singular values, and
sums over all of them.

Subspace iteration from end to end (Halko, Martinsson and Tropp, SIAM Rev. 53, 2011, algorithm 4.4)
gives the leading values. Sums over all values are traces ``tr f(A^T A)``, taken along each leading
direction, and across them from random probes (Meyer et al., "Hutch++", SOSA 2021), both by Lanczos
quadrature, see ``depthgauge.instruments.quadrature``; no direction need have converged for that.

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
    the last iteration. NaN where J is not finite."""

    logs: FloatArray
    near: FloatArray
    change: float


def subspace(ends: Ends, effort: Effort, generator: torch.Generator) -> Leading:
    """Subspace iteration from end to end. Raises RuntimeError where the backward pass has no
    derivative."""
    rank, far = min(effort.rank, ends.directions), ends.chain.states[ends.far]
    shape = len(ends.examples), rank, far.size
    draw = torch.randn(shape, generator=generator, dtype=torch.float64).numpy()
    near = left = _orthonormal(draw)
    logs = before = np.full(shape[:2], math.nan)
    for done in range(effort.iterations):
        effort.check(done, effort.iterations, "iterations")
        near = _orthonormal(ends.applied(left, ends.far, ends.near)[0])
        out, scale = ends.applied(near, ends.near, ends.far)
        left = _orthonormal(out)
        before, logs = logs, _log_singular_values(out, scale)
    with np.errstate(invalid="ignore"):
        change = float(np.max(np.abs(logs - before)[:, : max(rank // 2, 1)]))
    return Leading(logs, near, change)


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
        all_of = [effective_ranks(logs) for logs in leading.logs]
        exact = {key: np.array([one[key] for one in all_of]) for key in all_of[0]}
        return Ranks(exact, dict.fromkeys(exact, 0.0), dict.fromkeys(exact, 0.0), 0)
    size = ends.chain.states[ends.near].size
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
    whole, half = (
        _Estimate(along, nodes[i], nodes[i + 1], others, ends.directions) for i in (0, 1)
    )
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
    half of the steps; of J's ``directions`` values in all. In units of about the largest one."""

    along: Quadrature
    across: Quadrature
    half: Quadrature
    others: int
    directions: int

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
        left = total(along.above(top / LOST), across.above(top / LOST)) / self.directions
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
