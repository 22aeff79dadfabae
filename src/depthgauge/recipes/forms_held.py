"""Residual branches held to a recipe's forms: factors, learned numbers, norms and their gains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from depthgauge.recipes.finding import Finding, counted_finding
from depthgauge.recipes.rounding import coarsest
from depthgauge.recipes.rules import Count, Form, number_of, scope_of
from depthgauge.recipes.scored import scored_finding, temperature_finding
from depthgauge.recipes.weights_held import is_constant
from depthgauge.trace.counted import Layout, Normed, Residual

__all__ = ["form_findings"]

#: How far a fixed factor or a learned number may lie from the recipe's.
_CLOSE: Final = 1e-3


@dataclass(frozen=True)
class _Step:
    """A branch as it was found, its form, and the symbols there."""

    branch: Residual
    form: Form
    scope: Mapping[str, float]
    close: float = _CLOSE

    def number(self, text: str | None, other: float) -> float:
        return other if text is None else number_of(text, self.scope)

    @property
    def readable(self) -> bool:
        return not (math.isnan(self.branch.skip) or math.isnan(self.branch.factor))

    def multiplied(self, text: str, here: Sequence[tuple[str, float]]) -> bool:
        """Whether ``here`` is this learned multiplier, ``"gain(1e-5)"``, and no other; ``"gain"``
        is one of any size."""
        kind, _, initial = text.removesuffix(")").partition("(")
        if kind and not initial:
            return self.readable and [word for word, _ in here] == [kind]
        asked = ((kind, number_of(initial, self.scope)),) if kind else ()
        return (
            self.readable
            and len(asked) == len(here)
            and all(
                a == b and math.isclose(x, y, rel_tol=self.close, abs_tol=1e-12)
                for (a, x), (b, y) in zip(asked, here, strict=True)
            )
        )

    def scored(self, text: str) -> bool:
        """Whether attention multiplies its logits by this number, ``"1/d"``."""
        asked = number_of(text, {**self.scope, "d": float(self.branch.head)})
        return math.isclose(self.branch.logits, asked, rel_tol=_CLOSE)

    def weighed(self, skip: str | None, factor: str | None) -> bool:
        """Whether skip and branch have these factors; before a norm, whether their ratio has."""
        has = self.branch.skip, self.branch.factor
        asked = self.number(skip, has[0]), self.number(factor, has[1])
        if any(norm.at == "stream" for norm in self.branch.norms):
            return math.isclose(has[0] * asked[1], has[1] * asked[0], rel_tol=_CLOSE)
        return all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(has, asked, strict=True))


def form_findings(
    found: Layout, forms: Sequence[Form], parameters: Mapping[str, Tensor], once: bool
) -> Iterator[Finding]:
    """``once``: whether one norm is to stand at each place, or as many as there are."""
    close = _CLOSE + coarsest(parameters.values())
    steps = [
        _Step(branch, form, scope_of(found, branch), close)
        for branch, form in zip(found.branches, forms, strict=False)
    ]
    weighed = [s for s in steps if s.form.skip is not None or s.form.factor is not None]
    if weighed:
        yield _weighed(weighed)
    if attending := [s for s in steps if s.form.logits is not None and s.branch.head]:
        yield _scored(attending)
    if scored := [s for s in steps if s.form.scored is not None]:
        yield scored_finding([(s.branch, s.form) for s in scored])
        if any(s.form.temperature is not None for s in scored):
            yield temperature_finding([(s.branch, s.form) for s in scored], parameters)
    if learned := [s for s in steps if s.form.learned is not None and not s.form.shifts]:
        yield _learned([(s, s.form.learned or "", s.branch.learned) for s in learned], "branches")
    if carried := [s for s in steps if s.form.carried is not None]:
        yield _learned([(s, s.form.carried or "", s.branch.carried) for s in carried], "skips")
    if normed := [s for s in steps if s.form.norms is not None]:
        yield _placed(normed, once)
    gains = [
        (norm.gain, number_of(s.form.gains[norm.at], s.scope), norm.at)
        for s in steps
        for norm in s.branch.norms
        if norm.at in s.form.gains
    ]
    if wanted := sum(len(s.form.gains) for s in steps):
        yield _gains(gains, wanted, parameters)
    shifted = [s.branch for s in steps if s.form.shifts]
    if shifted:
        # Of attention the whole sub-layer is shifted, not its output layer apart.
        layers = [w for b in shifted for w in b.weights if w.role != "output" and not w.table]
        for what, number, of in (
            ("weight layers of branches with a scalar bias in front",
             sum(w.shifted for w in layers), len(layers)),
            ("activations of branches with a scalar bias in front",
             sum(branch.shifted for branch in shifted),
             sum(len(branch.activations) for branch in shifted)),
            ("branches with a scalar multiplier",
             sum(branch.multipliers > 0 for branch in shifted), len(shifted)),
        ):  # fmt: skip
            yield counted_finding(Count(what, number, of))
        # Of parallel branches one is enough: what is activated is their sum.
        bent = {(b.stream, b.place) for b in shifted if b.bent}
        ended = {(b.stream, b.place) for b in shifted if b.ended}
        if bent:
            what = "activations behind a sum with a scalar bias in front"
            why = "the one at the branch's end, behind its last layer and its multiplier"
            yield counted_finding(Count(what, len(bent & ended), len(bent), why))


def _weighed(steps: Sequence[_Step]) -> Finding:
    """Fixed factors in front of skips and branches."""
    part = "factors of skip and branch"
    read = [s for s in steps if s.readable]
    wrong = [s for s in read if not s.weighed(s.form.skip, s.form.factor)]
    right = len(read) - len(wrong)
    if not wrong:
        unread = len(steps) - len(read)
        said = f"{right} of {len(steps)} sums: {_sum_of(steps[0])}"
        said += f"; {unread} could not be read" if unread else ""
        return Finding(part, right, len(steps), said)
    one = wrong[0]
    skip, factor = one.branch.skip, one.branch.factor
    said = (
        f"{len(wrong)} of {len(steps)} sums: {skip:.4g} h + {factor:.4g} F, expected {_sum_of(one)}"
    )
    tables = [{words: texts for *texts, words in s.form.mistakes} for s in wrong]
    for words in tables[0]:
        if all(words in t and s.weighed(*t[words]) for s, t in zip(wrong, tables, strict=True)):
            return Finding(part, right, len(steps), f"{said}: {words}")
    return Finding(part, right, len(steps), f"{said} ('{one.branch.path}')")


def _scored(steps: Sequence[_Step]) -> Finding:
    """The number that products of queries and keys are multiplied by."""
    right = [s.scored(s.form.logits or "1") for s in steps]
    said = f"{sum(right)} of {len(steps)} attention logits that are {steps[0].form.logits} q k"
    if not all(right):
        wrong = [s for s, ok in zip(steps, right, strict=True) if not ok]
        branch = wrong[0].branch
        has = "what is not read" if math.isnan(branch.logits) else f"{branch.logits:.4g}"
        said += f", d features in a head; '{branch.path}' has {has} for d = {branch.head}"
        for text, words in wrong[0].form.logits_mistakes:
            if all(s.scored(text) for s in wrong):
                said += f": {words}"
                break
    return Finding("attention logits", sum(right), len(steps), said)


def _sum_of(step: _Step) -> str:
    skip = step.number(step.form.skip, step.branch.skip)
    factor = step.number(step.form.factor, step.branch.factor)
    return f"{skip:.4g} h + {factor:.4g} F"


def _learned(
    rows: Sequence[tuple[_Step, str, tuple[tuple[str, float], ...]]], what: str
) -> Finding:
    """Learned multipliers of branches or of skips: what is asked for, and what is there."""
    part = "learned multipliers" + (" of skips" if what == "skips" else "")
    right = [step.multiplied(text, here) for step, text, here in rows]
    text = _valued([(step, text) for step, text, _ in rows])
    said = f"{sum(right)} of {len(rows)} {what} with a learned multiplier {text}"
    if not text:
        said = f"{sum(right)} of {len(rows)} {what} without a learned multiplier"
    if not all(right):
        step, _, here = rows[right.index(False)]
        has = " ".join(f"{kind}({number:.4g})" for kind, number in here) or "none"
        said += f"; '{step.branch.path}' has {has if step.readable else 'one that is not read'}"
        wrong = [row for row, ok in zip(rows, right, strict=True) if not ok]
        for other, words in step.form.learned_mistakes if what == "branches" else ():
            if all(s.multiplied(other, there) for s, _, there in wrong):
                said += f": {words}"
                break
    return Finding(part, sum(right), len(rows), said)


def _valued(rows: Sequence[tuple[_Step, str]]) -> str:
    """A learned multiplier with its number in place of its formula, where all have the same."""
    text = rows[0][1]
    kind, _, initial = text.removesuffix(")").partition("(")
    numbers = {number_of(initial, step.scope) for step, other in rows if other == text and initial}
    one = len(numbers) == 1 and all(other == text for _, other in rows)
    return f"{kind}({numbers.pop():.4g})" if one else text


def _placed(steps: Sequence[_Step], once: bool) -> Finding:
    """Norms: where they stand, one at each place, and which."""
    right, placed = [], _taken(steps)
    for step, norms in zip(steps, placed, strict=True):
        wanted = step.form.norms or {}
        kinds = all(wanted.get(n.at) in ("", n.kind) for n in norms)
        here = {n.at for n in norms}
        single = len(here) == sum(not norm.beside for norm in norms)
        alone = not once or (single and not _astray(step))
        right.append(set(wanted) == here and alone and kinds and not _passed(step))
    asked = ", ".join(f"{kind or 'norm'} {at}" for at, kind in (steps[0].form.norms or {}).items())
    said = f"{sum(right)} of {len(steps)} branches with their norms in place ({asked})"
    if not asked:
        said = f"{sum(right)} of {len(steps)} branches without a norm"
    if not all(right):
        wrong = [k for k, ok in enumerate(right) if not ok]
        # A first branch that reads a normed x too shows no norm: the next one shows what was done.
        first = next((k for k in wrong if placed[k] != steps[k].branch.placed), wrong[0])
        step, norms = steps[first], placed[first] or steps[first].branch.placed
        found = ", ".join(f"{n.kind} {n.at}" for n in norms) or "no norm"
        said += f"; '{step.branch.path}' has {found}"
        places = {n.at for n in norms}
        words = [words for others, words in step.form.misplaced if set(others) == places]
        said += f": {words[0]}" if words else ""
        single = len(places) == sum(not norm.beside for norm in norms)
        if places == set(step.form.norms or {}) and not single:
            said += ": one norm is to stand at each place"
        elif places == set(step.form.norms or {}) and _astray(step):
            said += ": the inner norm does not stand directly in front of the branch's last layer"
        elif places == set(step.form.norms or {}) and (passed := _passed(step)):
            said += f": '{passed[0]}' reads the stream itself, past the norm in front"
    return Finding("norms", sum(right), len(steps), said)


def _taken(steps: Sequence[_Step]) -> list[tuple[Normed, ...]]:
    """The norms of each branch. Where they are to stand in front of branches, one on the stream
    belongs to the next branch if that has none of its own: its residual is taken from the normed x.
    Behind the last sum it is then the final norm."""
    rows = [list(step.branch.placed) for step in steps]
    by_place: dict[tuple[str, int], list[int]] = {}
    for k, step in enumerate(steps):
        by_place.setdefault((step.branch.stream, step.branch.place), []).append(k)
    kept = set()  # streams with a norm behind a sum whose next branch has its own
    for (stream, place), here in by_place.items():
        wanted = [steps[k].form.norms or {} for k in here]
        if any("in" not in places or "stream" in places for places in wanted):
            continue
        norms = {n.path: n for k in here for n in steps[k].branch.placed if n.at == "stream"}
        behind = by_place.get((stream, place + 1), [])
        normed = any(n.at == "in" for k in behind for n in steps[k].branch.placed)
        if norms and normed:
            kept.add(stream)
        if not norms or normed or (not behind and stream in kept):
            continue
        for k in here:
            rows[k] = [n for n in rows[k] if n.path not in norms]
        for k in behind:
            rows[k] += norms.values()
    return [tuple(row) for row in rows]


def _passed(step: _Step) -> tuple[str, ...]:
    """What reads the stream past the norm that is to stand in front of all of the branch."""
    return step.branch.bare if "in" in (step.form.norms or {}) else ()


def _astray(step: _Step) -> bool:
    """Whether an inner norm stands elsewhere than in front of the last layer."""
    return any(norm.at == "inner" and not norm.last for norm in step.branch.placed)


def _gains(
    gains: Sequence[tuple[str, float, str]], wanted: int, parameters: Mapping[str, Tensor]
) -> Finding:
    """Gains of norms that are to begin at a number."""
    right = [bool(path) and is_constant(parameters[path], value) for path, value, _ in gains]
    value = f"{gains[0][1]:g}" if gains else "a number"
    said = f"{sum(right)} of {len(gains)} gains of norms begin at {value}"
    if not all(right):
        said += f"; '{gains[right.index(False)][0]}' does not"
    elif len(gains) < wanted:
        said += f"; {wanted - len(gains)} of {wanted} places have no norm"
    return Finding("gains of norms", sum(right), wanted, said)
