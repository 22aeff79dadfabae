"""The leading singular values of a long product whose factors are too wide to follow as a whole.

Subspace iteration from end to end (Halko, Martinsson and Tropp, SIAM Rev. 53, 2011, algorithm 4.4)
gives the leading values; ``sum sigma^2`` and ``sum sigma^4``, and with them the participation ratio
and the stable rank, are exact along those and come from random probes across them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from depthgauge.instruments.subject import Effort, Found
from depthgauge.network.chain import Chain
from depthgauge.sites import FloatArray

__all__ = ["Leading", "leading", "subspace"]

_NAMES: Final = (
    "log_singular_values",
    "effective_rank_participation",
    "effective_rank_entropy",
    "stable_rank",
    "lost_direction_fraction",
)


class Leading(NamedTuple):
    """``logs``: of the leading singular values from end to end; ``right`` (n, r): the directions at
    the beginning; ``change``: the largest of a logarithm of their larger half in the last
    iteration."""

    logs: FloatArray
    right: FloatArray
    change: float


def subspace(chain: Chain, effort: Effort, generator: torch.Generator) -> Leading:
    """Subspace iteration from end to end. Raises RuntimeError where the backward pass has no
    derivative."""
    last, low, top = len(chain), chain.states[0], chain.states[-1]
    rank = min(effort.rank, low.size, top.size)
    draw = torch.randn(top.size, rank, generator=generator, dtype=torch.float64).numpy()
    left = right = np.linalg.qr(draw)[0]
    logs = before = np.full(rank, math.nan)
    for done in range(effort.iterations):
        effort.check(done, effort.iterations)
        right = np.linalg.qr(_applied(chain, left, last, 0)[0])[0]
        out, scale = _applied(chain, right, 0, last)
        left = np.linalg.qr(out)[0]
        with np.errstate(divide="ignore"):
            before, logs = logs, np.log(np.linalg.svd(out, compute_uv=False)) + scale
    with np.errstate(invalid="ignore"):
        change = float(np.max(np.abs(logs - before)[: max(rank // 2, 1)]))
    return Leading(logs, right, change)


def leading(chain: Chain, rows: Sequence[int], effort: Effort, found: Found) -> None:
    """The leading singular values from end to end, and the participation ratio by probes."""
    last = len(chain)
    low, top = chain.states[0], chain.states[last]
    most = max(state.size for state in chain.states)
    generator = torch.Generator("cpu").manual_seed(effort.seed)
    try:
        logs, right, change = subspace(chain, effort, generator)
        moments = _moments(chain, right, effort, generator)
    except (RuntimeError, np.linalg.LinAlgError) as error:
        line = str(error).partition("\n")[0]
        why = f"a state has {most} numbers, more than {effort.exact}, and cannot be pushed forward"
        found.missing = dict.fromkeys(_NAMES, f"{why}: {line}")
        return
    rank = len(logs)
    found.vectors["log_singular_values"] = {rows[0]: logs}
    found.put("effective_rank_participation", rows[0], moments.participation)
    found.put("stable_rank", rows[0], math.exp(moments.log_square - 2 * logs[0]))
    why = (
        f"a state has {most} numbers, more than {effort.exact}; only the {rank} leading directions "
        f"from end to end are followed"
    )
    for name in ("effective_rank_entropy", "lost_direction_fraction"):
        found.missing[name] = why
    found.notes["spectrum"] = {
        "method": "subspace iteration from end to end, participation by probes",
        "examples": 1,
        "directions": rank,
        "until": last,
        "of": min(low.size, top.size),
        "iterations": effort.iterations,
        "largest_change_of_a_logarithm": change,
        "probes": effort.probes,
        "participation_standard_error": moments.error,
    }


def _applied(chain: Chain, vectors: FloatArray, start: int, end: int) -> tuple[FloatArray, float]:
    """``J`` or ``J^T`` of the first example on the columns of ``(n, r)``, and the logarithm of what
    the result was divided by: block by block, so that no number leaves the range of the chain."""
    at = chain.states[start]
    rows = torch.zeros(vectors.shape[1], at.examples, at.size, dtype=chain.dtype)
    rows[:, 0] = torch.from_numpy(vectors.T.copy()).to(rows)
    moving, scale = at.spread(rows.to(chain.device)), 0.0
    step = 1 if start < end else -1
    for k in range(start, end, step):
        moving = chain.push(k, k + 1, moving) if step > 0 else chain.pull(k, k - 1, moving)
        top = float(moving.abs().max())
        if 0 < top < math.inf:
            moving, scale = moving / top, scale + math.log(top)
    out: FloatArray = chain.states[end].rows(moving)[:, 0].double().cpu().numpy().T
    return out, scale


class _Moments(NamedTuple):
    """``log_square``: logarithm of ``sum sigma^2``; the participation ratio and its error."""

    log_square: float
    participation: float
    error: float


def _moments(
    chain: Chain, leading: FloatArray, effort: Effort, generator: torch.Generator
) -> _Moments:
    """From ``|J v|^2`` and ``|J^T J v|^2``: summed over the orthonormal columns of ``leading``
    (n, r), averaged over Gaussian v orthogonal to them (Meyer et al., "Hutch++", SOSA 2021); the
    error by leaving one probe out."""
    last, count, rank = len(chain), effort.probes, leading.shape[1]
    v = torch.randn(len(leading), count, generator=generator, dtype=torch.float64).numpy()
    v = v - leading @ (leading.T @ v)
    out, forth = _applied(chain, np.hstack([leading, v]), 0, last)
    back, again = _applied(chain, out, last, 0)
    squares, fourths = (out**2).sum(0), (back**2).sum(0)
    unit = math.exp(2 * (forth - again))

    def square(kept: npt.NDArray[np.int64]) -> float:
        return float(squares[:rank].sum() + squares[rank:][kept].mean())

    def ratio(kept: npt.NDArray[np.int64]) -> float:
        fourth = fourths[:rank].sum() + fourths[rank:][kept].mean()
        with np.errstate(all="ignore"):
            return float(unit * np.float64(square(kept)) ** 2 / fourth)

    every = np.arange(count)
    with np.errstate(divide="ignore"):
        log_square = float(np.log(square(every))) + 2 * forth
    if count < 3:
        return _Moments(log_square, ratio(every), math.nan)
    each = np.array([ratio(np.delete(every, i)) for i in range(count)])
    error = math.sqrt((count - 1) / count * float(((each - each.mean()) ** 2).sum()))
    return _Moments(log_square, ratio(every), error)
