"""A second stream beside a post-norm one: the sum of all branches, which no norm touches, joined to
the first at the end (ResiDual).

    x_{k+1} = N(x_k + f_k),   r = s x_0 + s f_1 + ... + s f_L,   y = a x_L + N(r)

Sums are taken apart into terms with fixed numbers in front, norms being terms; so it does not
matter in which order the second one was added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from depthgauge.trace.coefficients import fixed
from depthgauge.trace.graph import Value
from depthgauge.trace.roles import Roles

__all__ = ["Second", "second_streams"]

_PLUS, _MINUS = ("add", "iadd", "radd"), ("sub", "subtract", "isub")


@dataclass(frozen=True)
class Second:
    """What was found: ``branches`` of the post-norm stream, of which ``added`` are in the second
    sum, each times ``scale``; ``missing``: the modules of the branches that are not, or by another
    number; ``begins``: whether what the first branch reads is in it too, by that number;
    ``normed``: whether a norm stands between the second sum and the joint one; ``first``: the
    number in front of the post-norm stream there; ``others``: terms of the second sum that are none
    of these; ``chain``: the values of the first stream's sums;
    ``sums``: the values of its additions, and of the joint one, which no branch of the first is
    added by."""

    branches: int
    added: int
    scale: float
    missing: tuple[str, ...]
    begins: bool
    normed: bool
    first: float
    others: int
    chain: tuple[int, ...]
    sums: frozenset[int]


def second_streams(roles: Roles) -> tuple[Second, ...]:
    """The second streams of a pass, the earliest first; each adds one branch at least that the last
    sum of its first stream does not hold."""
    found: list[Second] = []
    known: set[int] = set()
    chains = _Chains(roles)
    for i in sorted(roles.graph.live, reverse=True):
        if roles.values[i].kind == "sum" and i not in known and chains.may_join(i):
            second = _joined(roles, i, chains)
            if second is not None:
                found.append(second)
                known |= second.sums
    return tuple(reversed(found))


def _joined(roles: Roles, i: int, chains: _Chains) -> Second | None:
    terms, sums = _terms(roles, i)
    found = {term: chains.of(term) for term in terms}
    first = max(found, key=lambda term: (len(found[term]), term))
    chain = found[first]
    rest = {term: number for term, number in terms.items() if term != first}
    if len(chain) < 2 or not rest:
        return None
    normed = len(rest) == 1 and roles.norm_of(next(iter(rest))) is not None
    second, others = _terms(roles, _base(roles, next(iter(rest)))) if normed else (rest, set())
    own = [set(step.added) for step in chain]
    if not any(second.keys() & added for added in own[:-1]):
        return None
    begin = chain[0].skip
    counted = [number for added in own for term in added if (number := second.get(term))]
    scale = max(set(counted), key=counted.count)
    missing = [
        roles.graph.path(max(added))
        for added in own
        if not all(math.isclose(second.get(term, 0.0), scale, rel_tol=1e-6) for term in added)
    ]
    known = set().union(*own) | {begin}
    return Second(
        len(chain),
        len(chain) - len(missing),
        scale,
        tuple(missing),
        math.isclose(second.get(begin, 0.0), scale, rel_tol=1e-6),
        normed,
        terms[first],
        len(second.keys() - known),
        tuple(step.sum for step in chain),
        frozenset((sums | others) - {step.sum for step in chain}),
    )


@dataclass(frozen=True)
class _Step:
    """A sum under a norm: the value, the term that is the stream, and what is added to it."""

    sum: int
    skip: int
    added: tuple[int, ...]


class _Chains:
    """Post-norm steps, each looked for once."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.steps: dict[int, _Step | None] = {}

    def may_join(self, i: int) -> bool:
        """Whether one of two tensors that are added is what two steps end with, and the other a
        norm or a sum."""
        moving = self.roles.moving(self.roles.values[i].inputs)
        if len(moving) != 2:
            return False
        a, b = (_bare(self.roles, j)[0] for j in moving)
        return any(
            (step := self.step(one)) is not None
            and self.step(step.skip) is not None
            and (self.roles.norm_of(other) is not None or self.roles.values[other].kind == "sum")
            for one, other in ((a, b), (b, a))
        )

    def of(self, norm: int) -> list[_Step]:
        """The steps down from a norm, the first of them first."""
        steps: list[_Step] = []
        while (step := self.step(norm)) is not None:
            steps.append(step)
            norm = step.skip
        return steps[::-1]

    def step(self, norm: int) -> _Step | None:
        if norm not in self.steps:
            self.steps[norm] = self._step(norm)
        return self.steps[norm]

    def _step(self, norm: int) -> _Step | None:
        roles = self.roles
        if roles.norm_of(norm) is None:
            return None
        base, _ = _bare(roles, _base(roles, norm))  # the sum itself, seen otherwise by the norm
        terms, _ = _terms(roles, base)
        skip = min(terms, default=-1)  # what is added was computed from it
        added = tuple(sorted(set(terms) - {skip}))
        if not added or not all(skip in roles.graph.ancestors([t], skip) for t in added):
            return None
        return _Step(base, skip, added)


def _base(roles: Roles, norm: int) -> int:
    base = roles.norm_of(norm)
    assert base is not None
    return base


def _terms(roles: Roles, i: int) -> tuple[Mapping[int, float], set[int]]:
    """The terms of the sum at value ``i``, each with the number in front of it, what cancels being
    none, and the additions that they were taken out of."""
    found: dict[int, float] = {}
    sums: set[int] = set()
    todo = [(i, 1.0)]
    while todo:
        j, number = todo.pop()
        j, by = _bare(roles, j)
        value = roles.values[j]
        if roles.norm_of(j) is None and value.kind == "sum" and (signs := _signs(value)):
            sums.add(j)
            moving = roles.moving(value.inputs)
            todo += [(k, number * by * sign) for k, sign in signs if k in moving]
        else:
            found[j] = found.get(j, 0.0) + number * by
    return {term: number for term, number in found.items() if abs(number) > 1e-9}, sums


def _signs(value: Value) -> list[tuple[int, float]]:
    """The inputs of a sum, each with its number; none of another kind of sum."""
    if value.name in _PLUS and len(value.inputs) == 1:
        return [(value.inputs[0], 1.0)]  # and a number
    if value.name not in (*_PLUS, *_MINUS) or len(value.inputs) != 2:
        return []
    by = float(value.options.get("alpha", 1.0))
    return [(value.inputs[0], 1.0), (value.inputs[1], by if value.name in _PLUS else -by)]


def _bare(roles: Roles, i: int) -> tuple[int, float]:
    """Value ``i`` without what only moves it or multiplies it by a fixed number, and that number;
    a norm without its gain and its offset."""
    number = 1.0
    while roles.norm_of(i) is None:
        value = roles.values[i]
        moving = roles.moving(value.inputs)
        by = fixed(value) if value.kind == "product" else 1.0
        if value.kind not in ("shape", "drop", "product") or len(moving) != 1 or math.isnan(by):
            break
        i, number = moving[0], number * by
    return _affine(roles, i), number


def _affine(roles: Roles, i: int) -> int:
    """The norm that value ``i`` is, but for its gain and its offset; else ``i``."""
    at = i
    while roles.norm_of(at) is None:
        moving = roles.moving(roles.values[at].inputs)
        if roles.values[at].kind not in ("product", "sum", "shape") or len(moving) != 1:
            return i
        at = moving[0]
    return at
