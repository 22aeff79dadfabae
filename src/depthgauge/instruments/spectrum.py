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
    lost            share of the n values with sigma < sigma_1 / 10, those that are 0 among them
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthgauge.sites import FloatArray

__all__ = ["LOST", "GradedProducts", "effective_ranks", "log_singular_values"]

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
class GradedProducts:
    """``P`` of E examples: ``u`` (E, n, r), ``logs`` (E, r), ``t`` (E, r, m). ``lean`` (E,): how
    far the columns of the last factor leaned on one another, the logarithm of 1 over the smallest
    share of a column that is none of the others'; so many digits this factor cost."""

    u: FloatArray
    logs: FloatArray
    t: FloatArray
    lean: FloatArray

    @classmethod
    def identity(cls, examples: int, size: int) -> GradedProducts:
        eye = _eyes(examples, size, size)
        return cls(eye, np.zeros((examples, size)), eye, np.zeros(examples))

    def times(self, columns: FloatArray) -> GradedProducts:
        """``A P`` for a factor ``A`` of each example, given ``A U`` (E, n', r).

        A column that depends on the ones before it to rounding, or that is zero, has the logarithm
        -inf from then on. NaN and inf make every logarithm of their example NaN.
        """
        rows, logs, each = columns.swapaxes(1, 2), self.logs, np.arange(len(columns))[:, None]
        top = np.abs(rows).max(axis=2)
        odd = np.isnan(logs).any(axis=1) | ~np.isfinite(top).all(axis=1)
        if odd.any():
            rows = np.where(odd[:, None, None], np.eye(*rows.shape[1:]), rows)
            top, logs = np.where(odd[:, None], 1.0, top), np.where(odd[:, None], 0.0, logs)
        # Every column at length 1: an absolute error of QR is a relative one of each column.
        top = np.where(top > 0, top, 1.0)  # squares stay in range
        unit = rows / top[:, :, None]
        lengths = np.sqrt(np.einsum("eij,eij->ei", unit, unit))
        dead = (lengths == 0) | np.isinf(logs)
        unit /= np.where(lengths > 0, lengths, 1.0)[:, :, None]
        with np.errstate(divide="ignore"):
            scale = logs + np.log(lengths) + np.log(top)
        order = np.argsort(-scale, axis=1, kind="stable")
        q, r = np.linalg.qr(unit[each, order].swapaxes(1, 2))
        rank, least = r.shape[1], _dependent(columns[0])
        diagonal = np.abs(np.diagonal(r, axis1=1, axis2=2))
        gone = (diagonal < least) | dead[each, order[:, :rank]]
        for i in np.flatnonzero(gone.any(axis=1)):
            q[i], r[i], order[i] = _ordered_qr(unit[i].T, order[i], dead[i])
            diagonal[i] = np.abs(np.diag(r[i]))
            gone[i] = (diagonal[i] < least) | dead[i, order[i, :rank]]
        diagonal[gone] = 1.0
        scale = scale[each, order]  # of each column of Q R
        new = np.where(gone, -np.inf, scale[:, :rank] + np.log(diagonal))
        # diag(e^-new) R diag(e^scale), whose entries above the diagonal shrink with the grading.
        with np.errstate(invalid="ignore"):
            mixing = scale[:, None, :] - scale[:, :rank, None]
        np.exp(np.minimum(mixing, 0.0, out=mixing), out=mixing)
        mixing *= r
        mixing /= diagonal[:, :, None]
        mixing[gone] = 0.0
        new[odd] = np.nan
        lean = -np.log(diagonal.min(axis=1, initial=1.0))
        return GradedProducts(q, new, mixing @ self.t[each, order], lean)

    def log_singular_values(self) -> FloatArray:
        """(E, r): natural logarithms, from the largest on; -inf where a direction is gone."""
        found = [log_singular_values(*one) for one in zip(self.logs, self.t, strict=True)]
        return np.array(found).reshape(self.logs.shape)


def _eyes(examples: int, rows: int, columns: int) -> FloatArray:
    return np.tile(np.eye(rows, columns), (examples, 1, 1))


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
    start = GradedProducts.identity(1, len(s))
    for _ in range(_SETTLING):
        turned = dataclasses.replace(start, logs=s[None]).times(a.T[None])
        s, a = turned.logs[0], turned.t[0]
    return s, a


def _rotate(a: FloatArray, s: FloatArray) -> None:
    """Make the rows of ``diag(e^s) a``, of length 1, orthogonal, in place.

    While most pairs lean on one another all of them are turned, round by round; once few do, those
    alone, the worst first. Two rows that lean by c change their logarithms by c where their scales
    are equal, by ``c^2 / (1 - ratio^2)`` where one is ``ratio`` times the other.
    """
    upper, lower = np.triu_indices(len(s), 1)
    for _ in range(_SWEEPS * len(s)):
        cosines = np.abs((a @ a.T)[upper, lower])
        apart = -np.expm1(-2 * np.abs(s[upper] - s[lower]))
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = np.fmin(cosines, cosines**2 / apart)
        leaning = np.flatnonzero((changes > _ALIKE) & (cosines > _ORTHOGONAL))
        if not len(leaning):
            break
        if len(leaning) > _FEW * len(s):
            for i, j in _rounds(len(s)):
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


def _rounds(count: int) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Every pair once, in rounds of disjoint pairs (a round robin)."""
    players = np.arange(count + count % 2)
    half = len(players) // 2
    for _ in range(len(players) - 1):
        upper, lower = players[:half], players[: -half - 1 : -1]
        real = np.maximum(upper, lower) < count
        yield upper[real], lower[real]
        players[1:] = np.roll(players[1:], 1)


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
