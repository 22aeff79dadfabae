"""What a network of block equations computes, in a form that two readers can be compared in.

Names, brackets, the order of terms and factors, and scalars that are numbers by now do not matter;
which layer stands where, on what, with which options and in how many places, does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from depthgauge import Network
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Attention,
    Block,
    Call,
    Constant,
    Convolution,
    Define,
    Dropout,
    Initial,
    LearnedGain,
    LearnedScalar,
    Let,
    Linear,
    Local,
    Norm,
    Opaque,
    Option,
    Product,
    Scalar,
    Scale,
    State,
    Value,
)
from depthgauge.equation.scalars import evaluate
from depthgauge.network.layers import LAYOUT_AXES, Layout, named

__all__ = ["Meaning", "meaning_of_blocks", "meaning_of_network"]

#: A sum: each term's number with its coefficient, to six digits.
Sum = tuple[tuple[int, str], ...]


@dataclass
class Meaning:
    """``end``: the last state. ``learned``: for each layer and each learned number what it stands
    on, in all its places."""

    terms: dict[object, int] = field(default_factory=dict)
    learned: dict[object, set[int]] = field(default_factory=dict)
    end: Sum = ()

    def number(self, term: object) -> int:
        return self.terms.setdefault(term, len(self.terms))

    def told(self) -> tuple[Sum, Counter[tuple[int, ...]]]:
        return self.end, Counter(tuple(sorted(places)) for places in self.learned.values())


def meaning_of_network(network: Network, terms: dict[object, int]) -> Meaning:
    meaning = Meaning(terms)
    scopes = [{**network.scope, "l": float(l + 1)} for l in range(network.depth)]
    return _run(meaning, [(network.block, scope) for scope in scopes], network.layout)


def meaning_of_blocks(
    blocks: Iterable[Block], network: Network, terms: dict[object, int]
) -> Meaning:
    """``blocks`` as they were read back; they know no scalar but the width."""
    scope = {"n": float(network.width)}
    return _run(Meaning(terms), [(block, scope) for block in blocks], network.layout)


def _run(
    meaning: Meaning, blocks: Iterable[tuple[Block, Mapping[str, float]]], layout: Layout
) -> Meaning:
    initial: Sum = ((meaning.number("input"), "1"),)
    state = initial
    for place, (block, scope) in enumerate(blocks):
        runner = _Runner(meaning, place, dict(scope), layout, initial, state)
        state = runner.block(block)
    meaning.end = state
    return meaning


@dataclass
class _Runner:
    meaning: Meaning
    place: int
    scope: dict[str, float]
    layout: Layout
    h0: Sum
    h: Sum
    locals: dict[str, Sum] = field(default_factory=dict)
    definitions: dict[str, Define] = field(default_factory=dict)

    def block(self, block: Block) -> Sum:
        for statement in named(block).statements:
            match statement:
                case Let(name, bound) if isinstance(bound, SCALARS):
                    self.scope[name] = evaluate(bound, self.scope)
                case Let(name, bound):
                    assert not isinstance(bound, SCALARS)
                    self.locals[name] = self.of(bound)
                case Define(name):
                    self.definitions[name] = statement
                case _:
                    self.h = self.of(statement.value)
        return self.h

    def term(self, *parts: object) -> Sum:
        return ((self.meaning.number(parts), "1"),)

    def layer(self, name: str, *parts: object) -> Sum:
        """A term with learned numbers, and where it stands."""
        made = self.meaning.number(parts)
        self.meaning.learned.setdefault((self.place, name), set()).add(made)
        return ((made, "1"),)

    def plain(self, option: Option) -> object:
        return f"{evaluate(option, self.scope):.6g}" if isinstance(option, SCALARS) else option

    def size(self, out: Scalar | None) -> float:
        return self.scope["n"] if out is None else evaluate(out, self.scope)

    def of(self, value: Value) -> Sum:
        match value:
            case State():
                return self.h
            case Initial():
                return self.h0
            case Local(name):
                return self.locals[name]
            case Constant(scalar):
                return _times(evaluate(scalar, self.scope), self.term("one"))
            case LearnedScalar(initial, name) | LearnedGain(initial, name):
                return self.learn(name, self.plain(initial), type(value).__name__)
            case Scale(factor, inner):
                return _times(evaluate(factor, self.scope), self.of(inner))
            case Add(left, right):
                return _plus(self.of(left), self.of(right))
            case Product(left, right):
                return self.product(self.of(left), self.of(right))
            case Linear(name, inner, out, _, bias) if self.layout == "images":
                return self.layer(name, "conv", 1, self.of(inner), self.size(out), bias)
            case Linear(name, inner, out, _, bias):
                return self.layer(name, "linear", self.of(inner), self.size(out), bias)
            case Convolution(kernel, inner, out, _, bias, padding, name):
                parts = "conv", kernel, self.of(inner), self.size(out), bias
                return self.layer(name, *parts, *([padding] if kernel > 1 else []))
            case Attention(inner, heads, causal, scale, _, bias, name, norm):
                count = evaluate(heads, self.scope)
                usual = (self.scope["n"] / count) ** (0.5 if norm == "l2" else -0.5)
                by = f"{usual if scale is None else evaluate(scale, self.scope):.6g}"
                return self.layer(name, "attention", self.of(inner), count, causal, by, bias, norm)
            case Activation("identity", inner):
                return self.of(inner)
            case Activation(kind, inner, options):
                return self.term(
                    kind, self.of(inner), tuple((k, self.plain(v)) for k, v in options)
                )
            case Norm():
                return self.norm(value)
            case Dropout(inner, p):
                share = evaluate(p, self.scope)
                return self.term("dropout", self.of(inner), share) if share else self.of(inner)
            case Call(name, arguments):
                definition = self.definitions[name]
                outer = self.locals
                given = dict(zip(definition.parameters, map(self.of, arguments), strict=True))
                self.locals = {**outer, **given}
                found = self.of(definition.body)
                self.locals = outer
                return found
            case Opaque(name, arguments, m):
                return self.term("opaque", name, tuple(map(self.of, arguments)), m)

    def product(self, left: Sum, right: Sum) -> Sum:
        """The factors in order, whatever their brackets; numbers stand in front."""
        keys = {number: term for term, number in self.meaning.terms.items()}
        factor = 1.0
        factors: list[Any] = []
        for side in (left, right):
            if len(side) == 1:
                ((number, coefficient),) = side
                factor *= float(coefficient)
                term = keys[number]
                match term:
                    case ("one",):
                        pass
                    case ("product", tuple() as inner):
                        factors += inner
                    case _:
                        factors.append(((number, "1"),))
            else:
                factors.append(side)
        if len(factors) < 2:
            return _times(factor, factors[0] if factors else self.term("one"))
        return _times(factor, self.term("product", tuple(sorted(factors))))

    def norm(self, value: Norm) -> Sum:
        options: dict[str, Any] = {k: self.plain(v) for k, v in value.options}
        names = dict.fromkeys(LAYOUT_AXES[self.layout])
        kind = value.kind
        if kind in ("layernorm", "rmsnorm", "batchnorm", "scalenorm"):
            axis = options.pop("axis")
            others = "+".join(name for name in names if name != "width")
            axis = axis or (others if kind == "batchnorm" else "width")
            options["axis"] = "+".join(name for name in names if name in axis.split("+"))
            kind = "standardise" if kind in ("layernorm", "batchnorm") else kind
        inner = self.of(value.value)
        gain, bias = options.pop("gain", None), options.pop("bias", None)
        if kind in ("dyt", "derf"):
            inner = self.product(self.learn(f"{value.name}.alpha", options["alpha"]), inner)
            if kind == "derf":
                inner = _plus(inner, self.learn(f"{value.name}.shift", options["shift"]))
            out = self.term("tanh" if kind == "dyt" else "erf", inner, ())
        else:
            out = self.term(kind, inner, tuple(sorted(options.items())))
        if gain is not None:
            word = "LearnedScalar" if kind == "scalenorm" else "LearnedGain"
            out = self.product(self.learn(f"{value.name}.gain", gain, word), out)
        return _plus(out, self.learn(f"{value.name}.bias", "0", "LearnedGain")) if bias else out

    def learn(self, name: str, initial: object, word: str = "LearnedScalar") -> Sum:
        """A learned number, or one a channel, with what it starts with."""
        return self.layer(name, word, initial)


def _times(factor: float, value: Sum) -> Sum:
    return tuple((term, f"{factor * float(c):.6g}") for term, c in value)


def _plus(left: Sum, right: Sum) -> Sum:
    total: dict[int, float] = {}
    for term, coefficient in (*left, *right):
        total[term] = total.get(term, 0.0) + float(coefficient)
    return tuple((term, f"{c:.6g}") for term, c in sorted(total.items()))
