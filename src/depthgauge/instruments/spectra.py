"""Spectra of Jacobians: of each block's own, and of all blocks from a state to the end.

Index legend: states ``h_0 ... h_D`` of a chain; ``J_(i->k) = dh_k/dh_i`` of one example, its rows
and columns over all numbers of that example's state.

    log_singular_values  natural logarithms of the singular values of J_(k->D)
    block_gain_k         largest singular value of J_(k-1->k); block_loss_k the smallest; all of
                         them as block_log_singular_values

J_(i->k) has min(n_i, n_k) singular values. A state between of fewer numbers leaves no more than it
has; the others are 0, of logarithm -inf, and lost.

States of more numbers than ``Effort.exact`` and ``Effort.rank`` have too many directions to follow
each; then the leading ones are, and sums over all come from probes, see
``depthgauge.instruments.leading``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.errors import ModelError, NetworkError
from depthgauge.instruments.jacobians import end, unfit
from depthgauge.instruments.leading import Ends, Leading, ranks, subspace
from depthgauge.instruments.spectrum import GradedProducts, effective_ranks
from depthgauge.instruments.subject import BudgetSpentError, Effort, Found, Subject
from depthgauge.network.chain import Chain, Kept
from depthgauge.sites import FloatArray

__all__ = ["BLOCKS", "SPECTRUM", "TOGETHER", "blocks", "own_rank", "spectra"]

SPECTRUM: Final = (
    "log_singular_values",
    "effective_rank_participation",
    "effective_rank_entropy",
    "stable_rank",
    "lost_direction_fraction",
)
BLOCKS: Final = ("block_gain", "block_loss", "block_log_singular_values")
_RANKS: Final = {
    "participation": "effective_rank_participation",
    "entropy": "effective_rank_entropy",
    "stable": "stable_rank",
    "lost": "lost_direction_fraction",
}
#: How far apart the columns of one QR decomposition in float64 may be: so many digits it costs.
_APART = 1e5
#: What notes call the examples of a batch that is one state.
TOGETHER: Final = "all at once: they act on one another"
#: Examples that are asked whether they reach others, at most.
_ASKED = 8
#: Blocks between two QR decompositions: before the first, which says how far apart they leave the
#: columns, and at most.
_FIRST, _MOST = 4, 64
#: States of one backward pass whose columns are kept, should the last of them lean too far.
_KEPT = 4
#: How much the blocks before the last stretch count for the next one's length.
_FADING = 0.75


@contextmanager
def _followed(subject: Subject, effort: Effort) -> Iterator[tuple[Chain, list[int], str]]:
    """The chain, the examples that are followed, and how they are called in notes; where Jacobians
    say nothing no examples, and why.

    Where examples act on one another, as under a norm over the batch, the whole batch is one state.
    """
    few = subject.few(effort.examples) if subject.few else None
    with ExitStack() as opened:
        chain = opened.enter_context(subject.chain(batch=few)).until(effort.until)
        if why := unfit(chain):
            yield chain, [], why
            return
        if subject.few is None and _coupled(chain):
            states = [dataclasses.replace(state, axis=None) for state in chain.states]
            yield Chain(states, chain.total), [0], TOGETHER
            return
        count = chain.states[-1].examples
        chosen = _spaced(count, effort.examples)
        if subject.picked is not None and len(chosen) < count:  # the others would cost as much
            there = [state.rows(state.value[None])[0, chosen] for state in chain.states]
            del chain
            opened.close()
            alone = _alone(opened, subject, chosen, there)
            chain = (alone or opened.enter_context(subject.chain())).until(effort.until)
            chosen = list(range(len(chosen))) if alone else chosen
        yield chain, chosen, ""


def _alone(
    opened: ExitStack, subject: Subject, chosen: Sequence[int], there: Sequence[Tensor]
) -> Chain | None:
    """The chain of the chosen examples in a batch of their own, if their states are what they were
    ``there``, among the others."""
    assert subject.picked is not None
    with ExitStack() as trial:
        try:
            chain = trial.enter_context(subject.chain(batch=subject.picked(chosen)))
        except (ModelError, NetworkError):  # a model of one size of batch
            return None
        exact = torch.finfo(chain.dtype).eps ** 0.5
        for state, before in zip(chain.states, there, strict=False):
            now = state.rows(state.value[None])[0]
            if now.shape != before.shape:
                return None
            apart, size = (now - before).abs().max(), before.abs().max()
            if not apart <= exact * size:
                return None
        opened.enter_context(trial.pop_all())
        return chain


def spectra(subject: Subject, effort: Effort) -> Found:
    """Singular values of ``J_(k->D)`` at some states, and how many directions they leave."""
    found = Found()
    with _followed(subject, effort) as (chain, chosen, words):
        if not chosen:
            found.missing = dict.fromkeys(SPECTRUM, words)
        elif _all_followed(chain, effort):
            _exact(chain, subject.rows, chosen, effort, found)
        else:
            _leading(chain, subject.rows, chosen, effort, found)
    if words and "spectrum" in found.notes:
        found.notes["spectrum"]["examples"] = words
    return found


@dataclass(frozen=True)
class _Own(Kept):
    """A state of which one ``example`` is seen: the others are held still at the first state, and
    not asked at the last."""

    example: int = 0

    @property
    def examples(self) -> int:
        return 1

    @property
    def size(self) -> int:
        return self.value.numel() // super().examples

    def rows(self, x: Tensor) -> Tensor:
        assert self.axis is not None
        return x.select(self.axis + 1, self.example).reshape(len(x), 1, -1)

    def spread(self, rows: Tensor) -> Tensor:
        assert self.axis is not None
        whole = rows.new_zeros(len(rows), *self.shape)
        part = whole.select(self.axis + 1, self.example)
        part.copy_(rows.reshape(part.shape))
        return whole


def own_rank(subject: Subject, effort: Effort) -> float:
    """The participation ratio of ``J_ee = dh_D[e]/dh_0[e]``, the mean over ``effort.examples``: of
    one example's last state by its own first, through whatever a norm over the batch takes of it
    too. Where examples do not act on one another it is ``effective_rank_participation``.

    Raises NetworkError where states have no axis of examples, or their Jacobians say nothing.
    """
    each = []
    with subject.chain() as chain:
        ends = chain.states[0], chain.states[-1]
        why = unfit(chain)
        if not why and any(state.axis is None for state in ends):
            why = "a state has no axis of the batch's examples"
        if why:
            raise NetworkError(why)
        for example in _spaced(ends[1].examples, effort.examples):
            found = Found()
            own = [_Own(s.reached, s.value, s.axis, s.path, example) for s in ends]
            alone = Chain(own, chain.total)
            taken = _exact if _all_followed(alone, effort) else _leading
            taken(alone, [0], [0], effort, found)
            if found.missing:
                raise NetworkError(found.missing["effective_rank_participation"])
            each.append(found.columns["effective_rank_participation"][1][0])
    return float(np.mean(each))


def blocks(subject: Subject, effort: Effort) -> Found:
    """The largest and smallest gain of each block's own Jacobian, mean over examples."""
    found = Found()
    with _followed(subject, effort) as (chain, chosen, words):
        if not chosen:
            found.missing = dict.fromkeys(BLOCKS, words)
            return found
        if not _all_followed(chain, effort):
            _leading_of_blocks(chain, subject.rows, chosen, effort, found)
            if words and "blocks" in found.notes:
                found.notes["blocks"]["examples"] = words
            return found
        for k in range(1, len(chain) + 1):
            effort.check(k - 1, len(chain))
            bases = np.tile(np.eye(chain.states[k].size), (len(chosen), 1, 1))
            (back,) = _pulled(chain, k, [k - 1], chosen, bases)
            pulled = _columns(chain.states[k - 1], back, chosen)
            each = np.array([_values(columns) for columns in pulled])
            row, ends = subject.rows[k], each.mean(axis=0)
            found.put("block_gain", row, ends[0])
            found.put("block_loss", row, ends[-1])
            vectors = found.vectors.setdefault("block_log_singular_values", {})
            vectors[row] = np.asarray(np.log(each).mean(axis=0), dtype=np.float64)
    found.notes["blocks"] = {"examples": words or len(chosen), **end(chain, effort)}
    return found


def _all_followed(chain: Chain, effort: Effort) -> bool:
    """Whether every direction of these states is followed, or the leading ones alone."""
    return _largest(chain) <= max(effort.exact, effort.rank)


def _largest(chain: Chain) -> int:
    return max(state.size for state in chain.states)


def _wide(chain: Chain, effort: Effort) -> str:
    return f"a state has {_largest(chain)} numbers, more than {max(effort.exact, effort.rank)}"


def _leading_of_blocks(
    chain: Chain, rows: Sequence[int], chosen: Sequence[int], effort: Effort, found: Found
) -> None:
    """The leading singular values of each block that is too wide to follow as a whole."""
    generator = torch.Generator("cpu").manual_seed(effort.seed)
    each: dict[int, Leading] = {}
    wide, whole = _wide(chain, effort), True
    try:
        for k in range(1, len(chain) + 1):
            effort.check(k - 1, len(chain))
            block = Ends(Chain(chain.states[k - 1 : k + 1], chain.total), chosen)
            each[rows[k]] = lead = subspace(block, effort, generator)._replace(near=np.zeros(0))
            whole = whole and lead.logs.shape[1] == block.values
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        found.missing = dict.fromkeys(BLOCKS, f"{wide}, and cannot be pushed forward: {line}")
        return
    for row, lead in each.items():
        found.put("block_gain", row, float(np.exp(lead.logs[:, 0]).mean()))
    found.vectors["block_log_singular_values"] = {r: np.mean(v.logs, 0) for r, v in each.items()}
    rank = max(lead.logs.shape[1] for lead in each.values())
    if whole:  # one end of every block is narrow
        for row, lead in each.items():
            found.put("block_loss", row, float(np.exp(lead.logs[:, -1]).mean()))
    else:
        found.missing["block_loss"] = (
            f"{wide}; only the {rank} leading directions of a block are followed"
        )
    found.notes["blocks"] = {
        "examples": len(chosen),
        **end(chain, effort),
        "directions": rank,
        **_settled(list(each.values())),
    }


def _settled(each: Sequence[Leading]) -> dict[str, Any]:
    """How far the leading values have come, by the largest changes of ``Leading``."""
    found: dict[str, Any] = {"iterations": max(lead.iterations for lead in each)}
    for key, changes in (
        ("largest_change_of_a_logarithm", [lead.change for lead in each]),
        ("relative_change_of_the_largest", [math.expm1(lead.change_of_first) for lead in each]),
    ):
        found[key] = float(np.max(changes))
        if math.isnan(found[key]) and found["iterations"] < 2:
            found[f"{key}_reason"] = "one iteration, and none to compare it with"
    return found


def _leading(
    chain: Chain, rows: Sequence[int], chosen: Sequence[int], effort: Effort, found: Found
) -> None:
    """From end to end alone: the leading values, and by quadrature what all of them say."""
    generator = torch.Generator("cpu").manual_seed(effort.seed)
    ends = Ends(chain, chosen)
    try:
        lead = subspace(ends, effort, generator)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        why = f"{_wide(chain, effort)}, and cannot be pushed forward: {line}"
        found.missing = dict.fromkeys(SPECTRUM, why)
        return
    found.vectors["log_singular_values"] = {rows[0]: lead.logs.mean(0)}
    found.notes["spectrum"] = {
        "method": "block Krylov space or subspace iteration from end to end, Lanczos quadrature "
        "across it",
        "examples": len(chosen),
        "directions": lead.logs.shape[1],
        **end(chain, effort),
        **_counted(chain),
        **_settled([lead]),
    }
    try:
        all_of = ranks(ends, lead, effort, generator)
    except BudgetSpentError as error:
        found.missing = dict.fromkeys(_RANKS.values(), str(error))
        return
    for key, name in _RANKS.items():
        found.put(name, rows[0], float(all_of.each[key].mean()))
    found.notes["spectrum"] |= {
        "probes": effort.probes if all_of.steps else 0,
        "lanczos_steps": all_of.steps,
        "from_end_to_end": {name: _spread(all_of.each[key]) for key, name in _RANKS.items()},
        "standard_error_over_probes": {name: all_of.errors[key] for key, name in _RANKS.items()},
        "change_by_half_of_the_steps": {name: all_of.changes[key] for key, name in _RANKS.items()},
    }


def _values(columns: FloatArray) -> FloatArray:
    """The singular values; NaN where the Jacobian is not finite."""
    if not np.isfinite(columns).all():
        return np.full(min(columns.shape), math.nan)
    return np.asarray(np.linalg.svd(columns, compute_uv=False), dtype=np.float64)


def _exact(
    chain: Chain, rows: Sequence[int], chosen: Sequence[int], effort: Effort, found: Found
) -> None:
    """Every direction, from the last state back. As many blocks are taken together as keep the
    columns of one QR decomposition well apart."""
    last, top = len(chain), chain.states[-1]
    wanted = sorted({last - i for i in _spaced(last + 1, effort.sites)} - {last} | {0})
    products = GradedProducts.identity(len(chosen), top.size)
    apart = math.log(_APART if chain.dtype == torch.float64 else 10.0)
    each: dict[int, FloatArray] = {}
    k, together = last, _FIRST
    blocks = leaned = 0.0  # of the stretches so far, the last ones most
    while k > 0:
        effort.check(last - k, last)
        longest = min(together, k - max(w for w in wanted if w < k))
        lengths = sorted({-(-longest * i // _KEPT) for i in range(1, _KEPT + 1)})
        pulled = _pulled(chain, k, [k - n for n in lengths], chosen, products.u)
        while True:
            length = lengths.pop()
            columns = _columns(chain.states[k - length], pulled.pop(), chosen)
            taken = products.times(columns)
            lean = max(float(taken.lean.max()), 1e-6)
            if lean <= apart or not lengths:
                break
            fitting = int(apart * length / lean)  # too many digits were lost: fewer blocks
            while len(lengths) > 1 and lengths[-1] > fitting:
                lengths.pop()
                pulled.pop()
        if lean > apart and length > 1:
            together = max(1, min(int(apart * length / lean), length // 2))
            continue
        products, k = taken, k - length
        blocks, leaned = _FADING * blocks + length, _FADING * leaned + lean
        together = min(_MOST, max(1, int(apart * blocks / leaned)))
        if k in wanted:
            each[k] = _with_lost(products.log_singular_values(), chain.states[k:])
    for k in sorted(each):
        _put_ranks(found, rows[k], each[k])
        found.vectors.setdefault("log_singular_values", {})[rows[k]] = np.mean(each[k], axis=0)
    found.notes["spectrum"] = {
        "method": "every direction: a graded QR decomposition, Jacobi rotations where it is steep",
        "examples": len(chosen),
        "directions": top.size,
        **_counted(chain),
        **end(chain, effort),
        "from_end_to_end": {
            name: _spread([effective_ranks(logs)[key] for logs in each[0]])
            for key, name in _RANKS.items()
        },
    }


def _with_lost(logs: FloatArray, states: Sequence[Kept]) -> FloatArray:
    """All singular values of J from the first of these states to the last: those found, as many as
    the narrowest leaves, and the zeros."""
    kept = min(logs.shape[1], *(state.size for state in states))
    found = np.full((len(logs), min(states[0].size, states[-1].size)), -np.inf)
    found[:, :kept] = logs[:, :kept]
    return found


def _counted(chain: Chain) -> dict[str, Any]:
    """For the notes: how many singular values J has from end to end, how many of them a state on
    the way has too few numbers for, and which one."""
    states = chain.states
    count = min(states[0].size, states[-1].size)
    narrowest = min(states, key=lambda state: state.size)
    found: dict[str, Any] = {"of": count, "exactly_lost": count - narrowest.size}
    if found["exactly_lost"]:
        found["narrowest"] = {"path": narrowest.path, "numbers": narrowest.size}
    return found


def _put_ranks(found: Found, row: int, logs: FloatArray) -> None:
    ranks = [effective_ranks(one) for one in logs]
    for key, name in _RANKS.items():
        found.put(name, row, float(np.mean([rank[key] for rank in ranks])))


def _spread(values: Sequence[float] | FloatArray) -> dict[str, Any]:
    mean = float(np.mean(values))
    if len(values) < 2:
        why = "one state, no spread"
        return {"mean": mean, "standard_error": math.nan, "standard_error_reason": why, "n": 1}
    error = float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return {"mean": mean, "standard_error": error, "n": len(values)}


def _pulled(
    chain: Chain, k: int, lows: Sequence[int], examples: Sequence[int], bases: FloatArray
) -> list[Tensor]:
    """``J_(low->k)^T U`` at each of these states, ``(r, *shape of low)``; ``U`` (E, n_k, r) are of
    these examples."""
    top, numbers = chain.states[k], torch.from_numpy(bases).permute(2, 0, 1)
    vectors = torch.zeros(
        len(numbers), top.examples, top.size, dtype=chain.dtype, device=chain.device
    )
    vectors[:, examples] = numbers.to(vectors)
    return chain.pull_through(k, lows, top.spread(vectors))


def _columns(state: Kept, back: Tensor, examples: Sequence[int]) -> FloatArray:
    """What was pulled to a state, of E examples: ``(r, *shape) -> (E, n, r)``."""
    columns: FloatArray = state.rows(back)[:, examples].double().cpu().numpy().transpose(1, 2, 0)
    return columns


def _coupled(chain: Chain) -> bool:
    """Whether what is asked of one example comes back at others too, as a norm over the batch
    makes it."""
    if any(state.axis is None or state.examples < 2 for state in chain.states):
        return any(state.examples > 1 for state in chain.states)
    for k in range(len(chain), 0, -1):
        top, low = chain.states[k], chain.states[k - 1]
        some = _spaced(top.examples, _ASKED)
        asked = torch.zeros(
            len(some), top.examples, top.size, dtype=chain.dtype, device=chain.device
        )
        asked[range(len(some)), some] = torch.linspace(0.5, 1.5, top.size).to(asked)  # not all ones
        back = low.rows(chain.pull(k, k - 1, top.spread(asked)))
        if back.shape[1] != top.examples:
            return True
        back[range(len(some)), some] = 0.0
        reached = back != 0
        if not bool(reached.any()):
            continue
        # A derivative that is not finite makes NaN of the nothing that its example was asked.
        own = low.rows(chain.pull(k, k - 1, torch.zeros_like(top.value)[None])) != 0
        if bool((reached & ~own).any()):
            return True
    return False


def _spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of ``0 ... count - 1``, evenly spaced, first and last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})
