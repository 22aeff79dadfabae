"""How Jacobians of parts of the depth act: their spectra and their average size.

Index legend: states ``h_0 ... h_D`` of a chain; ``J_(i->k) = dh_k/dh_i`` of one example, its rows
and columns over all numbers of that example's state; ``n_k`` how many those are.

    apjn_k               |J_(k->D)|_F^2 / n_D, over examples: the averaged partial Jacobian norm
                         (Doshi, He and Gromov, arXiv 2111.12143)
    log_singular_values  natural logarithms of the singular values of J_(k->D)
    block_gain_k         largest singular value of J_(k-1->k); block_loss_k the smallest

``|J|_F^2 = E |J^T u|^2`` for random signs u (Hutchinson, Commun. Stat. 19, 1990); the standard
error is over probes. A state of more than ``Effort.exact`` numbers has too many directions to
follow each: then the leading singular values from end to end come by subspace iteration (Halko,
Martinsson and Tropp, SIAM Rev. 53, 2011, algorithm 4.4), and the participation ratio from
``sum sigma^2`` and ``sum sigma^4``, exact along those and by random probes across them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from depthgauge.instruments.spectrum import GradedProduct, effective_ranks
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.network.chain import Chain, batched_vjp
from depthgauge.sites import FloatArray

__all__ = ["APJN", "SPECTRUM", "apjn", "narrow", "spectra"]

SPECTRUM = (
    "log_singular_values",
    "effective_rank_participation",
    "effective_rank_entropy",
    "stable_rank",
    "lost_direction_fraction",
    "block_gain",
    "block_loss",
)
APJN = ("apjn", "apjn_standard_error")
_RANKS = {
    "participation": "effective_rank_participation",
    "entropy": "effective_rank_entropy",
    "stable": "stable_rank",
    "lost": "lost_direction_fraction",
}
#: Numbers that the gradients of all states at once may take.
_AT_ONCE = 2**25


def narrow(chain: Chain) -> str:
    """``""``, or why Jacobians in this precision say nothing."""
    if chain.dtype in (torch.float32, torch.float64):
        return ""
    kind = str(chain.dtype).removeprefix("torch.")
    return f"Jacobians are taken in float32 or wider, and the states are {kind}"


# --------------------------------------------------------------------------------- sizes


def apjn(subject: Subject, effort: Effort) -> Found:
    """``apjn`` and its standard error at every state; at the last one it is 1."""
    found = Found()
    with subject.chain() as chain:
        if why := narrow(chain):
            found.missing = dict.fromkeys(APJN, why)
            return found
        each = sizes(chain, effort)
    exact = len(each) < effort.probes
    for row, values in zip(subject.rows, each.T, strict=True):
        found.put("apjn", row, float(values.mean()))
        if exact or effort.probes > 1:
            error = 0.0 if exact else values.std(ddof=1) / math.sqrt(effort.probes)
            found.put("apjn_standard_error", row, float(error))
    if effort.probes < 2:
        found.missing["apjn_standard_error"] = "one probe has no spread; ask for at least 2"
    found.notes["jacobian"] = {
        "probes": "every direction, so exact" if exact else effort.probes,
        "examples": chain.states[-1].examples,
    }
    return found


def sizes(chain: Chain, effort: Effort) -> FloatArray:
    """``|J_(k->D)^T u|^2 / n_D`` summed over examples and divided by their number, for every probe
    and state: ``(P, D + 1)``. With more probes than numbers at the output, one row: exact."""
    last, top = len(chain), chain.states[-1]
    count = top.value.numel()
    if effort.probes > count:
        probes = torch.eye(count, dtype=chain.dtype).reshape(count, *top.shape).to(chain.device)
    else:
        generator = torch.Generator("cpu").manual_seed(effort.seed)
        signs = torch.randint(0, 2, (effort.probes, *top.shape), generator=generator)
        probes = (2 * signs - 1).to(chain.device, chain.dtype)
    out = np.full((len(probes), last + 1), float(effort.probes <= count) or 1 / count)
    numbers = sum(state.value.numel() for state in chain.states)
    at_once = max(1, _AT_ONCE // numbers)
    if numbers <= _AT_ONCE:
        for start in range(0, len(probes), at_once):
            effort.check(0, last)
            part = probes[start : start + at_once]
            for k, g in enumerate(_all(chain, part)):
                out[start : start + at_once, k] = _squares(g) / count
    else:
        g = probes
        for k in range(last, 0, -1):
            effort.check(last - k, last)
            g = chain.pull(k, k - 1, g)
            out[:, k - 1] = _squares(g) / count
    return out.sum(0, keepdims=True) if effort.probes > count else out


def _all(chain: Chain, probes: Tensor) -> list[Tensor]:
    """What probes at the last state become at every earlier one, in one batched pass."""
    edges = [state.edge for state in chain.states]
    found = batched_vjp(edges[-1:], edges[:-1], probes)
    return [probes.new_zeros(len(probes), 1) if g is None else g for g in found]


def _squares(g: Tensor) -> FloatArray:
    norms = torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64)
    squares: FloatArray = norms.square().cpu().numpy()
    return squares


# ------------------------------------------------------------------------------- spectra


def spectra(subject: Subject, effort: Effort) -> Found:
    """Singular values of ``J_(k->D)`` at some states and of every block's own Jacobian.

    Where examples act on one another, as under a norm over the batch, J is that of the whole batch,
    one long state.
    """
    found = Found()
    few = subject.few(effort.examples) if subject.few else None
    with subject.chain(batch=few) as chain:
        if why := narrow(chain):
            found.missing = dict.fromkeys(SPECTRUM, why)
            return found
        together = subject.few is None and _coupled(chain)
        if together:
            states = [dataclasses.replace(state, axis=None) for state in chain.states]
            chain = Chain(states, chain.total)
        if max(state.size for state in chain.states) <= effort.exact:
            _exact(chain, subject.rows, effort, found)
        else:
            _leading(chain, subject.rows, effort, found)
    if together and "spectrum" in found.notes:
        found.notes["spectrum"]["examples"] = "all at once: they act on one another"
    return found


def _exact(chain: Chain, rows: Sequence[int], effort: Effort, found: Found) -> None:
    last, top = len(chain), chain.states[-1]
    chosen = _spaced(top.examples, effort.examples)
    wanted = {k for k in (last - i for i in _spaced(last + 1, effort.sites)) if k < last} | {0}
    products = [GradedProduct(top.size) for _ in chosen]
    spectra: dict[int, list[FloatArray]] = {}
    blocks: dict[int, list[tuple[float, float]]] = {}
    for k in range(last, 0, -1):
        effort.check(last - k, last)
        size = chain.states[k].size
        pulled = _pulled(chain, k, chosen, [product.u for product in products])
        alone = pulled  # U is orthogonal: the block's own singular values
        if products[0].u.shape[1] < size:  # fewer directions than the block has
            alone = _pulled(chain, k, chosen, [np.eye(size) for _ in chosen])
        blocks[k] = [_ends(columns) for columns in alone]
        for product, columns in zip(products, pulled, strict=True):
            product.take(columns)
        if k - 1 in wanted:
            spectra[k - 1] = [product.log_singular_values() for product in products]
    for k in sorted(spectra):
        _put_ranks(found, rows[k], spectra[k])
        found.vectors.setdefault("log_singular_values", {})[rows[k]] = np.mean(spectra[k], axis=0)
    for k in sorted(blocks):
        gains, losses = np.array(blocks[k]).T
        found.put("block_gain", rows[k], float(gains.mean()))
        found.put("block_loss", rows[k], float(losses.mean()))
    found.notes["spectrum"] = {
        "method": "every direction, QR of each block's Jacobian, Jacobi rotations at the end",
        "examples": len(chosen),
        "directions": top.size,
        "from_end_to_end": {
            name: _spread([effective_ranks(logs)[key] for logs in spectra[0]])
            for key, name in _RANKS.items()
        },
    }


def _put_ranks(found: Found, row: int, logs: Sequence[FloatArray]) -> None:
    ranks = [effective_ranks(one) for one in logs]
    for key, name in _RANKS.items():
        found.put(name, row, float(np.mean([rank[key] for rank in ranks])))


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return {"mean": mean, "standard_error": error, "n": len(values)}


def _pulled(
    chain: Chain, k: int, examples: Sequence[int], bases: Sequence[FloatArray]
) -> list[FloatArray]:
    """``J_(k-1->k)^T U`` of each example: ``(n_k, r) -> (n_(k-1), r)``."""
    top, low = chain.states[k], chain.states[k - 1]
    rank = max(u.shape[1] for u in bases)
    vectors = torch.zeros(rank, top.examples, top.size, dtype=chain.dtype, device=chain.device)
    for example, u in zip(examples, bases, strict=True):
        vectors[: u.shape[1], example] = torch.from_numpy(u.T.copy()).to(vectors)
    back = low.rows(chain.pull(k, k - 1, top.spread(vectors)))
    return [
        back[: u.shape[1], example if low.axis is not None else 0].double().cpu().numpy().T
        for example, u in zip(examples, bases, strict=True)
    ]


def _coupled(chain: Chain) -> bool:
    """Whether what is asked of one example comes back at others too, as a norm over the batch
    makes it."""
    if any(state.axis is None or state.examples < 2 for state in chain.states):
        return any(state.examples > 1 for state in chain.states)
    for k in range(len(chain), 0, -1):
        top, low = chain.states[k], chain.states[k - 1]
        asked = torch.zeros(1, top.examples, top.size, dtype=chain.dtype, device=chain.device)
        asked[:, 0] = torch.linspace(0.5, 1.5, top.size)  # a norm's mean would hide ones
        back = low.rows(chain.pull(k, k - 1, top.spread(asked)))
        if back.shape[1] != top.examples or bool((back[:, 1:] != 0).any()):
            return True
    return False


def _ends(columns: FloatArray) -> tuple[float, float]:
    """The largest and the smallest singular value."""
    if not np.isfinite(columns).all():
        return math.nan, math.nan
    values = np.linalg.svd(columns, compute_uv=False)
    return float(values[0]), float(values[-1])


def _spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of ``0 ... count - 1``, evenly spaced, first and last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})


# ------------------------------------------------------------------- states of many numbers


def _leading(chain: Chain, rows: Sequence[int], effort: Effort, found: Found) -> None:
    """The leading singular values from end to end, and the participation ratio by probes."""
    last = len(chain)
    low, top = chain.states[0], chain.states[last]
    most = max(state.size for state in chain.states)
    rank = min(effort.rank, low.size, top.size)
    generator = torch.Generator("cpu").manual_seed(effort.seed)
    draw = torch.randn(top.size, rank, generator=generator, dtype=torch.float64).numpy()
    left = right = np.linalg.qr(draw)[0]
    logs = before = np.full(rank, math.nan)
    try:
        for done in range(effort.iterations):
            effort.check(done, effort.iterations)
            right = np.linalg.qr(_applied(chain, left, last, 0)[0])[0]
            out, scale = _applied(chain, right, 0, last)
            left = np.linalg.qr(out)[0]
            with np.errstate(divide="ignore"):
                before, logs = logs, np.log(np.linalg.svd(out, compute_uv=False)) + scale
        moments = _moments(chain, right, effort, generator)
    except (RuntimeError, np.linalg.LinAlgError) as error:
        line = str(error).partition("\n")[0]
        why = f"a state has {most} numbers, more than {effort.exact}, and cannot be pushed forward"
        found.missing = dict.fromkeys(SPECTRUM, f"{why}: {line}")
        return
    half = max(rank // 2, 1)
    with np.errstate(invalid="ignore"):
        change = float(np.max(np.abs(logs - before)[:half]))
    found.vectors["log_singular_values"] = {rows[0]: logs}
    found.put("effective_rank_participation", rows[0], moments.participation)
    found.put("stable_rank", rows[0], math.exp(moments.log_square - 2 * logs[0]))
    why = (
        f"a state has {most} numbers, more than {effort.exact}; only the {rank} leading directions "
        f"from end to end are followed"
    )
    for name in ("effective_rank_entropy", "lost_direction_fraction", "block_gain", "block_loss"):
        found.missing[name] = why
    found.notes["spectrum"] = {
        "method": "subspace iteration from end to end, participation by probes",
        "examples": 1,
        "directions": rank,
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
