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
    for i in sorted(roles.graph.live, reverse=True):
        value = roles.values[i]
        if value.kind == "sum" and len(roles.moving(value.inputs)) == 2 and i not in known:
            second = _joined(roles, i)
            if second is not None:
                found.append(second)
                known |= second.sums
    return tuple(reversed(found))


def _joined(roles: Roles, i: int) -> Second | None:
    terms, sums = _terms(roles, i)
    chains = {term: _chain(roles, term) for term in terms if roles.norm_of(term) is not None}
    if not chains:
        return None
    first = max(chains, key=lambda term: (len(chains[term]), term))
    chain = chains[first]
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


def _chain(roles: Roles, norm: int) -> list[_Step]:
    """The post-norm steps down from a norm, the first of them first."""
    steps: list[_Step] = []
    while roles.norm_of(norm) is not None:
        base = _base(roles, norm)
        terms, _ = _terms(roles, base)
        if len(terms) < 2:
            break
        skip = min(terms)  # what is added was computed from it
        below = {term for term in terms if skip in roles.graph.ancestors([term], skip)}
        if below != set(terms):
            break
        steps.append(_Step(base, skip, tuple(sorted(below - {skip}))))
        norm = skip
    return steps[::-1]


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
        value = roles.values[j]
        moving = roles.moving(value.inputs)
        if roles.norm_of(j) is None and value.kind == "sum" and (signs := _signs(value)):
            sums.add(j)
            todo += [(k, number * sign) for k, sign in signs if k in moving]
        elif value.kind in ("shape", "drop") and len(moving) == 1:
            todo.append((moving[0], number))
        elif value.kind == "product" and len(value.inputs) == 1 and roles.norm_of(j) is None:
            todo.append((moving[0], number * fixed(value)))
        else:
            leaf = _affine(roles, j)
            found[leaf] = found.get(leaf, 0.0) + number
    return {term: number for term, number in found.items() if abs(number) > 1e-9}, sums


def _signs(value: Value) -> list[tuple[int, float]]:
    """The inputs of a sum, each with its number; none of another kind of sum."""
    if value.name in _PLUS and len(value.inputs) == 1:
        return [(value.inputs[0], 1.0)]  # and a number
    if value.name not in (*_PLUS, *_MINUS) or len(value.inputs) != 2:
        return []
    by = float(value.options.get("alpha", 1.0))
    return [(value.inputs[0], 1.0), (value.inputs[1], by if value.name in _PLUS else -by)]


def _affine(roles: Roles, i: int) -> int:
    """The norm that value ``i`` is, but for its gain; else ``i``."""
    at = i
    while roles.norm_of(at) is None:
        moving = roles.moving(roles.values[at].inputs)
        if roles.values[at].kind not in ("product", "shape") or len(moving) != 1:
            return i
        at = moving[0]
    return at
