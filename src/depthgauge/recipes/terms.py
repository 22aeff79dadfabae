"""A sum taken apart into terms, coefficient times value, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from depthgauge.equation.functions import ONE
from depthgauge.equation.nodes import (
    SCALARS,
    Add,
    Arithmetic,
    Dropout,
    Initial,
    LearnedGain,
    LearnedScalar,
    Local,
    Product,
    Scalar,
    Scale,
    State,
    Value,
    walk,
)
from depthgauge.equation.parse import parse_scalar

__all__ = ["Term", "carries", "learned_of", "scalar_or", "terms_of", "together"]


@dataclass(frozen=True)
class Term:
    """``factor * learned * core``."""

    core: Value
    factor: Scalar = ONE
    learned: tuple[Value, ...] = ()


def terms_of(value: Value, factor: Scalar = ONE, learned: tuple[Value, ...] = ()) -> Iterator[Term]:
    """The terms of a sum, factors distributed."""
    match value:
        case Add(left, right):
            yield from terms_of(left, factor, learned)
            yield from terms_of(right, factor, learned)
        case Scale(by, of):
            yield from terms_of(of, _times(factor, by), learned)
        case Product(LearnedScalar() | LearnedGain() as by, of):
            yield from terms_of(of, factor, (*learned, by))
        case Product(of, LearnedScalar() | LearnedGain() as by):
            yield from terms_of(of, factor, (*learned, by))
        case Dropout(of) if not isinstance(of, Add):
            for term in terms_of(of, factor, learned):
                yield replace(term, core=replace(value, value=term.core))
        case _:
            yield Term(value, factor, learned)


def _times(a: Scalar, b: Scalar) -> Scalar:
    if a == ONE:
        return b
    return a if b == ONE else Arithmetic("*", a, b)


def scalar_or(text: str | None, other: Scalar) -> Scalar:
    """The scalar in a text; ``other`` without one."""
    found = other if text is None else parse_scalar(text)
    assert isinstance(found, SCALARS)
    return found


def learned_of(text: str) -> tuple[Value, ...]:
    """``"scalar(0)"`` or ``"gain(1e-5)"``, ``"gain"`` at 1; nothing for ``""``."""
    if not text:
        return ()
    word, _, initial = text.removesuffix(")").partition("(")
    initial = initial or "1"
    made = LearnedGain if word == "gain" else LearnedScalar
    return (made(scalar_or(initial, ONE)),)


def carries(term: Term) -> bool:
    """Whether a state stands in it."""
    return any(isinstance(node, State | Initial | Local) for node in walk(term.core))


def together(skips: Sequence[Term], branches: Sequence[Term]) -> Value:
    """The sum; a factor that all share stands in front of it."""
    shared = {term.factor for term in (*skips, *branches)}
    one = shared.pop() if len(shared) == 1 else ONE
    terms = [replace(t, factor=ONE) if one != ONE else t for t in (*skips, *branches)]
    total = _whole(terms[0])
    for term in terms[1:]:
        total = Add(total, _whole(term))
    return total if one == ONE else Scale(one, total)


def _whole(term: Term) -> Value:
    value = term.core
    for learned in reversed(term.learned):
        value = Product(learned, value)
    return value if term.factor == ONE else Scale(term.factor, value)
