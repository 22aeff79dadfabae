"""Singular values of long products as logarithms, and what they say about how many directions live.

    P = J_1^T J_2^T ... J_D^T = U diag(e^s) T

``U`` (n, r) has orthonormal columns, ``s`` (r,) are logarithms, ``T`` (r, m) has rows of ordinary
size: a decomposition with a graded middle, in which no number leaves the range of float64 whatever
D is. A factor is taken in by one QR of ``J^T U``, whose columns all have ordinary size (Stewart,
"On graded QR decompositions of products of matrices", ETNA 5, 1997; the UDT of quantum Monte Carlo,
Loh et al. 1992, with columns sorted before the factorisation instead of pivoted in it). The
singular values of ``diag(e^s) T`` come from one-sided Jacobi rotations of its rows, whose scales
stay logarithms (Demmel and Veselic, SIAM J. Matrix Anal. Appl. 13, 1992: each value to its own
relative accuracy).

Effective ranks of singular values ``sigma_1 >= ... >= sigma_n``:

    participation   (sum sigma^2)^2 / sum sigma^4
    entropy         exp(-sum p ln p), p = sigma / sum sigma     (Roy and Vetterli, EUSIPCO 2007)
    stable          sum sigma^2 / sigma_1^2
    lost            share of the n directions with sigma < sigma_1 / 10
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthgauge.sites import FloatArray

__all__ = ["LOST", "GradedProduct", "effective_ranks", "log_singular_values"]

#: A direction is lost when it is this factor below the best.
LOST = 10.0
#: What two rows that lean on one another may still change of a logarithm, and the cosine that is
#: rounding.
_ALIKE, _ORTHOGONAL = 1e-14, 1e-15
_SWEEPS = 60
#: QR decompositions before the first rotation.
_SETTLING = 5
#: Leaning pairs for each row, below which they are turned alone.
_FEW = 4
#: Ratio of singular values up to which a plain decomposition keeps 12 digits of the smallest.
_FLAT = 1e4


@dataclass(frozen=True)
class GradedProduct:
    """``P``: ``u`` (n, r), ``logs`` (r,), ``t`` (r, m). ``lean``: how far the columns of the last
    factor leaned on one another, the logarithm of 1 over the smallest share of a column that is
    none of the others'; so many digits this factor cost."""

    u: FloatArray
    logs: FloatArray
    t: FloatArray
    lean: float = 0.0

    @classmethod
    def identity(cls, size: int) -> GradedProduct:
        return cls(np.eye(size), np.zeros(size), np.eye(size))

    def times(self, columns: FloatArray) -> GradedProduct:
        """``A P`` for a factor ``A``, given ``A U`` (n', r).

        A column that depends on the ones before it to rounding, or that is zero, has the logarithm
        -inf from then on. NaN and inf make every logarithm NaN.
        """
        if np.isnan(self.logs).any() or not np.isfinite(columns).all():
            rank = min(columns.shape)
            return GradedProduct(np.eye(len(columns), rank), np.full(rank, np.nan), self.t[:rank])
        top = np.abs(columns).max(axis=0)
        top = np.where(top > 0, top, 1.0)  # squares stay in range
        with np.errstate(divide="ignore"):
            lengths = np.log(np.linalg.norm(columns / top, axis=0)) + np.log(top)
        order = np.argsort(-(self.logs + lengths), kind="stable")
        # Every column at length 1: an absolute error of QR is a relative one of each column.
        sizes = np.where(np.isfinite(lengths), lengths, 0.0)
        dead = ~np.isfinite(self.logs + lengths)
        q, r, order = _ordered_qr(columns / np.exp(sizes), order, dead)
        rank = len(r)
        diagonal = np.abs(np.diag(r))
        gone = (diagonal < _dependent(columns)) | dead[order[:rank]]
        diagonal = np.where(gone, 1.0, diagonal)
        scale = (self.logs + sizes)[order]  # of each column of Q R
        new = np.where(gone, -np.inf, scale[:rank] + np.log(diagonal))
        # diag(e^-new) R diag(e^scale), whose entries above the diagonal shrink with the grading.
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = np.exp(np.minimum(scale[None, :] - scale[:rank, None], 0.0))
        ratio = np.where(np.isfinite(ratio), ratio, 0.0)
        mixing = r / diagonal[:, None] * ratio
        mixing[gone] = 0.0
        lean = math.log(1 / diagonal.min()) if rank else 0.0
        return GradedProduct(q, new, mixing @ self.t[order], lean)

    def log_singular_values(self) -> FloatArray:
        """Natural logarithms, from the largest on; -inf where a direction is gone."""
        return log_singular_values(self.logs, self.t)


def _dependent(columns: FloatArray) -> float:
    """The share of a column of length 1 below which it is none but rounding of the others."""
    return float(4 * np.finfo(np.float64).eps * max(columns.shape))


def _ordered_qr(
    unit: FloatArray, order: npt.NDArray[np.intp], dead: npt.NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.intp]]:
    """QR of the columns in an order in which those that depend on larger ones come last: in front
    of others such a column would take a direction of noise away from them.

    A moved column has nothing along the q of columns that stood behind it: those entries of R are 0
    to rounding, and are made so, since the column may be larger than they are.
    """
    kept, moved = [int(c) for c in order], list[int]()
    place = {c: k for k, c in enumerate(kept)}
    while True:
        now = np.array([*kept, *moved], dtype=np.intp)
        q, r = np.linalg.qr(unit[:, now])
        gone = (np.abs(np.diag(r)) < _dependent(unit)) | dead[now[: len(r)]]
        dependent = [c for c, lost in zip(kept, gone, strict=False) if lost]
        if not dependent:
            break
        # The first alone, beside the zeros: its q is noise, which may have taken what a later one
        # has of its own.
        first = next((c for c in dependent if not dead[c]), None)
        taken = {c for c in dependent if dead[c] or c == first}
        kept = [c for c in kept if c not in taken]
        moved += [c for c in dependent if c in taken]
    if moved:
        places = np.array([place[int(c)] for c in now])
        r = np.where(places[None, :] < places[: len(r), None], 0.0, r)
    return q, r, now


def log_singular_values(logs: FloatArray, rows: FloatArray) -> FloatArray:
    """Of ``diag(e^logs) rows``, (r,) and (r, m): natural logarithms, the largest first.

    Where they span a few decades LAPACK's values are as good. Else one-sided Jacobi on disjoint
    pairs of rows at once. A row keeps its scale apart, so a pair meets with the ratio of both
    scales, never with a scale itself.
    """
    if np.isnan(logs).any() or not np.isfinite(rows).all():
        return np.full(len(logs), np.nan)
    if len(logs) and np.isfinite(logs).all() and np.ptp(logs) < math.log(_FLAT):
        values = np.linalg.svd(np.exp(logs - logs.max())[:, None] * rows, compute_uv=False)
        values = values[: len(logs)]
        if len(values) == len(logs) and values[-1] * _FLAT > values[0]:
            flat: FloatArray = np.log(values) + logs.max()
            return flat
    s, a = _alive(logs, rows)
    if len(s) > 1:
        s, a = _alive(*_settled(s, a))
        _rotate(a, s)
    found = np.full(len(logs), -np.inf)
    found[: len(s)] = s
    return -np.sort(-found)


def _alive(logs: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scales and rows of length 1, the largest first, without those of which nothing is left."""
    lengths = np.linalg.norm(rows, axis=1)
    alive = np.isfinite(logs) & (lengths > 0)
    a = rows[alive] / lengths[alive, None]
    s = logs[alive] + np.log(lengths[alive])
    order = np.argsort(-s, kind="stable")
    return s[order], a[order]


def _settled(s: FloatArray, a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``diag(e^s) a`` after a few QR decompositions from either side by turns, which leave less and
    less beside the diagonal where the scales are apart (Drmac and Veselic, SIAM J. Matrix Anal.
    Appl. 29, 2008: a preconditioner of Jacobi rotations)."""
    for _ in range(_SETTLING):
        eye = np.eye(len(s))
        turned = GradedProduct(eye, s, eye).times(a.T)
        s, a = turned.logs, turned.t
    return s, a


def _rotate(a: FloatArray, s: FloatArray) -> None:
    """Make the rows of ``diag(e^s) a``, of length 1, orthogonal, in place.

    While most pairs lean on one another all of them are turned, round by round; once few do, those
    alone, the worst first. Two rows that lean by c change their logarithms by c where their scales
    are equal, by ``c^2 / (1 - ratio^2)`` where one is ``ratio`` times the other.
    """
    rounds = _rounds(len(s))
    upper, lower = np.triu_indices(len(s), 1)
    for _ in range(_SWEEPS * len(rounds)):
        cosines = np.abs((a @ a.T)[upper, lower])
        apart = -np.expm1(-2 * np.abs(s[upper] - s[lower]))
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = np.fmin(cosines, cosines**2 / apart)
        leaning = np.flatnonzero((changes > _ALIKE) & (cosines > _ORTHOGONAL))
        if not len(leaning):
            break
        if len(leaning) > _FEW * len(s):
            for i, j in rounds:
                _turn(a, s, i, j)
        else:
            worst = leaning[np.argsort(-cosines[leaning])]
            _turn(a, s, *_disjoint(upper[worst].tolist(), lower[worst].tolist()))
        _back_to_length(a, s)
    s[s <= -1e17] = -np.inf


def _disjoint(upper: list[int], lower: list[int]) -> tuple[npt.NDArray[np.intp], ...]:
    """The pairs, from the first on, that share no row with one before."""
    taken: set[int] = set()
    pairs = []
    for i, j in zip(upper, lower, strict=True):
        if i not in taken and j not in taken:
            taken |= {i, j}
            pairs.append((i, j))
    return tuple(np.array(pairs, dtype=np.intp).T)


def _turn(
    a: FloatArray, s: FloatArray, upper: npt.NDArray[np.intp], lower: npt.NDArray[np.intp]
) -> None:
    """Make each of these disjoint pairs of rows orthogonal."""
    swap = s[upper] < s[lower]
    i, j = np.where(swap, lower, upper), np.where(swap, upper, lower)
    x, y = a[i], a[j]
    ratio = np.exp(s[j] - s[i])  # at most 1
    aa, bb = (x * x).sum(1), (y * y).sum(1)
    g = (x * y).sum(1)
    # tan of the angle, divided by the ratio: nothing here can leave the range.
    gap = aa - ratio * ratio * bb
    root = np.sqrt(gap * gap + 4 * ratio * ratio * g * g)
    sign = np.where(gap < 0, -1.0, 1.0)
    below = np.abs(gap) + root
    turn = np.where(below > 0, 2 * g * sign / np.where(below > 0, below, 1.0), 0.0)[:, None]
    r = ratio[:, None]
    cos = 1 / np.sqrt(1 + (turn * r) ** 2)
    a[i] = cos * (x + turn * r * r * y)
    a[j] = cos * (y - turn * x)


def _back_to_length(a: FloatArray, s: FloatArray) -> None:
    """Rows back to length 1, so that scales say where the values are."""
    lengths = np.linalg.norm(a, axis=1)
    good = lengths > 0
    a[good] /= lengths[good, None]
    with np.errstate(divide="ignore"):
        s += np.log(lengths)
    if not good.all():  # dependent rows: nothing is left of the smaller one
        a[~good] = 0.0
        s[~good] = -1e18


def _rounds(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every pair once, in rounds of disjoint pairs (a round robin)."""
    players = list(range(count)) + ([-1] if count % 2 else [])
    half = len(players) // 2
    found = []
    for _ in range(len(players) - 1):
        pairs = [
            (x, y)
            for x, y in zip(players[:half], reversed(players[half:]), strict=True)
            if min(x, y) >= 0
        ]
        upper, lower = np.array(pairs).T
        found.append((upper, lower))
        players = [players[0], players[-1], *players[1:-1]]
    return found


def effective_ranks(logs: FloatArray) -> dict[str, float]:
    """The four numbers of this file's head from natural logarithms of all singular values."""
    top = float(np.max(logs)) if logs.size else math.nan
    if math.isnan(top):
        return dict.fromkeys(("participation", "entropy", "stable", "lost"), math.nan)
    if top == -math.inf:
        return {"participation": 0.0, "entropy": 0.0, "stable": 0.0, "lost": 1.0}
    sigma = np.exp(logs - top)
    square = float((sigma**2).sum())
    p = sigma[sigma > 0] / sigma.sum()
    return {
        "participation": square**2 / float((sigma**4).sum()),
        "entropy": math.exp(-float((p * np.log(p)).sum())),
        "stable": square,
        "lost": float((sigma < 1 / LOST).mean()),
    }
