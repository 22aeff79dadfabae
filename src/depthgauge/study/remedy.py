"""Which single change brings a failing bound back inside, and what it breaks in turn; beside them
comparisons, which change several factors and tell of none what it does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from depthgauge.jsonable import jsonable

if TYPE_CHECKING:
    from depthgauge.study.ablation import Ablation, Varied
    from depthgauge.study.corridor import Verdict

__all__ = ["Remedy", "answer", "remedies"]


@dataclass(frozen=True)
class Remedy:
    """``mends``: bounds that fail at the baseline and hold after the change; ``breaks``: those that
    fail after it and did not before; ``fails`` still; ``unknown``: those that could be judged at
    the baseline and not after it.

    ``factors``: those that it changes, one unless it is a comparison. ``score``: the smallest
    margin after it, in decades.
    """

    change: str
    factors: tuple[str, ...]
    mends: tuple[str, ...]
    breaks: tuple[str, ...]
    fails: tuple[str, ...]
    unknown: tuple[str, ...]
    score: float

    @property
    def single(self) -> bool:
        return len(self.factors) == 1

    @property
    def whole(self) -> bool:
        """Whether every bound that the baseline was judged by holds after it."""
        return not (self.breaks or self.fails or self.unknown)

    @property
    def cost(self) -> str:
        """What is wrong after it: ``""`` or ``"it breaks state_max"``."""
        parts = [("breaks", self.breaks), ("leaves outside", self.fails)]
        words = [f"{verb} {_and(names)}" for verb, names in parts if names]
        if self.unknown:
            words.append(f"leaves {_and(self.unknown)} not measured")
        return f"it {_and(words)}" if words else ""

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {**vars(self), "single": self.single, "whole": self.whole}
        if abs(self.score) == float("inf"):
            side = "inside" if self.score > 0 else "outside"
            out["score_reason"] = f"infinitely far {side}"
        found: dict[str, Any] = jsonable(out)
        return found


def remedies(found: Ablation) -> tuple[Remedy, ...]:
    """One a change that was judged; those after which every bound holds first, then those that mend
    more and break less, then the larger smallest margin."""
    if found.verdict is None:
        return ()
    made = [_remedy(row, found.verdict) for row in found.rows if row.verdict is not None]

    def worth(remedy: Remedy) -> tuple[bool, int, int, float]:
        lost = len(remedy.breaks + remedy.unknown)
        return not remedy.whole, -len(remedy.mends), lost, -remedy.score

    return tuple(sorted(made, key=worth))


def answer(found: Ablation) -> str:
    """The sentence on top."""
    if found.verdict is None:
        return "no bound was declared, so none can fail; name a corridor to have changes judged"
    failing = _failing(found.verdict)
    tried = [remedy for remedy in found.remedies if remedy.single]
    together = [remedy for remedy in found.remedies if not remedy.single]
    if not failing:
        return _nothing_failed(found, tried, together)
    what = f"{_and(failing)} {'fails' if len(failing) == 1 else 'fail'} at the baseline"
    whole = [remedy for remedy in tried if remedy.whole]
    mending = [r for r in tried if set(r.mends) == set(failing) and not r.whole]
    partly = [r for r in tried if r.mends and r not in whole and r not in mending]
    inside = "it" if len(failing) == 1 else "all of them"
    parts = []
    if whole:
        changes = ", or ".join(remedy.change for remedy in whole)
        parts.append(f"{changes} alone brings {inside} back inside and breaks nothing")
    parts += [f"{r.change} brings {inside} back inside, but {r.cost}" for r in mending]
    if not whole and not mending and tried:
        parts.append(f"no single change of those tried brings {inside} back inside")
        parts += [f"{r.change} brings {_and(r.mends)} back, but {r.cost}" for r in partly]
        best = max(tried, key=lambda remedy: remedy.score)
        if not partly and math.isfinite(best.score):
            parts.append(f"{best.change} comes nearest, {-best.score:.3g} decades outside")
    parts += [_compared(remedy, failing, inside) for remedy in together]
    if together:
        parts.append(_NOT_TOLD if tried else f"no single change was tried, and {_NOT_TOLD}")
    if unknown := _unknown(found.verdict):
        parts.append(_were(unknown))
    return f"{what}: " + "; ".join(parts)


#: What a comparison leaves open.
_NOT_TOLD: Final = "a comparison does not tell which of its factors does it"


def _compared(remedy: Remedy, failing: Sequence[str], inside: str) -> str:
    """What a comparison does to the bounds that fail at the baseline."""
    what = f"the comparison {remedy.change}, of {_and(remedy.factors)} at once,"
    but = f", but {remedy.cost}" if remedy.cost else ""
    if set(remedy.mends) == set(failing):
        return f"{what} brings {inside} back inside{but}"
    if remedy.mends:
        return f"{what} brings {_and(remedy.mends)} back{but}"
    return (
        f"{what} {'does not bring it' if len(failing) == 1 else 'brings none of them'} back inside"
    )


def _nothing_failed(found: Ablation, tried: Sequence[Remedy], together: Sequence[Remedy]) -> str:
    verdict = found.verdict
    assert verdict is not None
    unknown = _unknown(verdict)
    held = [j for j in verdict.judgements if j.state != "not_measured"]
    if not held:
        return f"nothing was judged: {_were(unknown)}"
    nearest = min(held, key=lambda j: j.margin)
    text = "nothing failed at the baseline"
    if unknown:
        text += f", but {_were(unknown)}"
    text += f"; the nearest bound is that of {nearest.name}, {nearest.margin:+.3g} decades inside"
    parts = [f"{r.change} alone breaks {_and(r.breaks)}" for r in tried if r.breaks]
    if tried and not parts:
        parts.append(
            "no single change breaks a bound either, so this test tells none of them apart"
        )
    for r in together:
        does = f"breaks {_and(r.breaks)}" if r.breaks else "breaks no bound either"
        parts.append(f"the comparison {r.change}, of {_and(r.factors)} at once, {does}")
    if any(remedy.breaks for remedy in together):
        parts.append(_NOT_TOLD)
    return "; ".join([text, *parts])


def _remedy(row: Varied, before: Verdict) -> Remedy:
    assert row.verdict is not None
    failing, unknown = _failing(before), _unknown(before)
    states = {j.name: j.state for j in row.verdict.judgements}
    after = _failing(row.verdict)
    score = row.verdict.score
    return Remedy(
        row.change,
        tuple(each.factor for each in row.differences),
        tuple(name for name in failing if states.get(name) in ("pass", "warn")),
        tuple(name for name in after if name not in failing),
        tuple(name for name in after if name in failing),
        tuple(name for name in _unknown(row.verdict) if name not in unknown),
        float("-inf") if score is None else score,
    )


def _failing(verdict: Verdict) -> tuple[str, ...]:
    return tuple(j.name for j in verdict.judgements if j.state == "fail")


def _unknown(verdict: Verdict) -> tuple[str, ...]:
    return tuple(j.name for j in verdict.judgements if j.state == "not_measured")


def _were(names: Sequence[str]) -> str:
    return f"{_and(names)} {'was' if len(names) == 1 else 'were'} not measured"


def _and(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
