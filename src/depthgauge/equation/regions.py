"""A block as a graph, and what stands between two places in it.

The text is read into operations in which a definition is its body, a local is the operation it
names, and every update makes a new state. A ``Region`` is the graph from somewhere down to its
leaves, the states; it knows sums, skips, branches and norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain, permutations, starmap
from itertools import count as numbering
from typing import TypeGuard, get_args

from depthgauge.equation.branches import (
    COEFFICIENTS,
    Branch,
    Merge,
    common,
    ordered,
    worst,
)
from depthgauge.equation.functions import INITIAL, STATE, ZERO
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
    Node,
    Norm,
    Number,
    Opaque,
    Product,
    Scale,
    State,
    Value,
    children,
    rewrite,
)

#: Weight layers in series; attention has four (q, k, v, o), as Fixup counts them.
WEIGHT_LAYERS: dict[type, int] = {Linear: 1, Convolution: 1, Attention: 4}


@dataclass(frozen=True, slots=True)
class Op:
    """A node whose value operands are numbers of earlier operations; a state has none."""

    node: Value
    inputs: tuple[int, ...]


def graph(block: Block) -> tuple[list[Op], list[int]]:
    """Operations, equal ones shared and operands first, and the number of each updated value."""
    ops: list[Op] = []
    known: dict[object, int] = {}
    definitions: dict[str, Define] = {}

    def put(node: Value, inputs: tuple[int, ...] = ()) -> int:
        ops.append(Op(node, inputs))
        return len(ops) - 1

    def read(value: Value, names: dict[str, int]) -> int:
        match value:
            case State():
                return names[STATE]
            case Initial():
                return names[INITIAL]
            case Local(name):
                return names[name]
            case Call(name, arguments):
                given = [read(argument, names) for argument in arguments]
                inside = dict(zip(definitions[name].parameters, given, strict=True))
                return read(definitions[name].body, outside | inside)
        inputs = tuple(read(child, names) for child in children(value) if _is_value(child))
        bare = replace(value, arguments=()) if isinstance(value, Opaque) else value
        rest = [getattr(bare, field.name) for field in fields(bare)]
        key = type(value), tuple(part for part in rest if not _is_value(part)), inputs
        if key not in known:
            known[key] = put(value, inputs)
        return known[key]

    # What a definition sees beside its parameters: the statements' names, not its caller's.
    outside = {INITIAL: put(Initial()), STATE: put(State())}
    updates: list[int] = []
    for statement in _numbered(block).statements:
        if isinstance(statement, Define):
            definitions[statement.name] = statement
        elif isinstance(statement, Let):
            if not isinstance(statement.bound, SCALARS):
                outside[statement.name] = read(statement.bound, outside)
        else:
            updates.append(read(statement.value, outside))
            outside[STATE] = put(State())
    return ops, updates


def _numbered(block: Block) -> Block:
    """Anonymous layers told apart: each ``W`` in the text is a layer of its own, and so is each
    opaque operation with weights."""
    numbers = numbering()

    def rule(node: Node) -> Node:
        own = Linear | Convolution | Attention | Dropout | LearnedScalar | LearnedGain
        if isinstance(node, own) and node.name in ("", "W"):
            return replace(node, name=f"#{next(numbers)}")
        if isinstance(node, Opaque) and node.m != ZERO:
            return replace(node, name=f"{node.name}#{next(numbers)}")
        return node

    changed = rewrite(block, rule)
    assert isinstance(changed, Block)
    return changed


_VALUES = get_args(Value)


def _is_value(part: object) -> TypeGuard[Value]:
    return isinstance(part, _VALUES)


@dataclass(frozen=True, slots=True)
class Term:
    """A coefficient, by its kind, by what is a number in it (NaN: not known before the depth is)
    and by what is learned, times an operation."""

    op: int
    kind: str = "identity"
    number: float = 1.0
    learned: tuple[LearnedScalar | LearnedGain, ...] = ()

    def times(self, outer: Term) -> Term:
        kind, number = worst(self.kind, outer.kind), self.number * outer.number
        return Term(self.op, kind, number, (*outer.learned, *self.learned))

    @property
    def coefficient(self) -> str:
        return "scaled" if self.kind == "identity" and self.number != 1 else self.kind


@dataclass(frozen=True, slots=True)
class Region:
    """The graph from above down to its leaves: the states, and ``stop``, which read like one."""

    ops: Sequence[Op]
    stop: frozenset[int] = frozenset()

    def leaf(self, i: int) -> bool:
        return i in self.stop or isinstance(self.ops[i].node, State | Initial)

    def inputs(self, i: int) -> tuple[int, ...]:
        return () if self.leaf(i) else self.ops[i].inputs

    def layers(self, i: int) -> int:
        match self.ops[i].node:
            case _ if self.leaf(i):
                return 0
            case Opaque(m=Number(m)):  # the layers of a value from elsewhere stand on no path
                return int(m) if self.inputs(i) else 0
            case node:
                return WEIGHT_LAYERS.get(type(node), 0)

    def opaque(self, i: int) -> bool:
        """An operation on the leaves that the language cannot say."""
        return isinstance(self.ops[i].node, Opaque) and not self.leaf(i) and bool(self.sources(i))

    def works(self, i: int) -> bool:
        """Whether more than a stream carried on comes out: weights, or what cannot be said."""
        return any(self.layers(j) or self.opaque(j) for j in self.reach(i))

    def reach(self, *roots: int) -> list[int]:
        """Everything the roots are computed from, operands first."""
        found: set[int] = set()
        todo = list(roots)
        while todo:
            if (i := todo.pop()) not in found:
                found.add(i)
                todo += self.inputs(i)
        return sorted(found)

    def sources(self, i: int) -> set[int]:
        return set(filter(self.leaf, self.reach(i)))

    def depth(self, i: int) -> int:
        """Weight layers in series on the longest path down."""
        depths: dict[int, int] = {}
        for j in self.reach(i):
            below = max((depths[k] for k in self.inputs(j)), default=0)
            depths[j] = self.layers(j) + below
        return depths[i]

    def scaled(self, i: int) -> Term | None:
        """``a * x`` as a term, or None: a fixed or learned coefficient."""
        match self.ops[i].node, self.inputs(i):
            case Scale(Number(value)), (x,):
                return Term(x, number=value)
            case Scale(), (x,):
                return Term(x, "scaled", math.nan)
            case Product(), (left, right):
                for a, x in ((left, right), (right, left)):
                    if not self.sources(a) and not self.depth(a):
                        return self._factor(x, [self.ops[j].node for j in self.reach(a)])
        return None

    @staticmethod
    def _factor(x: int, nodes: Sequence[Value]) -> Term:
        """``x`` times a value that holds neither a state nor weights."""
        number = 1.0
        learned: list[LearnedScalar | LearnedGain] = []
        for node in nodes:
            match node:
                case LearnedScalar() | LearnedGain():
                    learned.append(node)
                case Constant(Number(value)) | Scale(Number(value)):
                    number *= value
                case Product():
                    pass
                case _:
                    number = math.nan
        channels = any(isinstance(node, LearnedGain | Opaque) for node in nodes)
        return Term(x, "per-channel" if channels else "scaled", number, tuple(learned))

    def terms(self, i: int) -> tuple[Term, ...]:
        """The flattened sum at ``i``, coefficients distributed, without what no leaf enters;
        equal terms are one."""

        @cache
        def flat(j: int) -> tuple[Term, ...]:
            if isinstance(self.ops[j].node, Add) and not self.leaf(j):
                return tuple(dict.fromkeys(term for k in self.inputs(j) for term in flat(k)))
            if scaled := self.scaled(j):
                return tuple(term.times(scaled) for term in flat(scaled.op))
            return (Term(j),) if self.sources(j) else ()

        return flat(i)

    def kind(self, term: Term) -> str:
        """What a weight-free term does to the leaf that it carries."""

        @cache
        def kind(term: Term) -> str:
            below = [kind(inside) for i in self.inputs(term.op) for inside in self.terms(i)]
            own = "mixed"
            match self.ops[term.op].node:
                case _ if self.leaf(term.op):
                    own = "identity"
                case Norm():
                    own = "normed"
                case Dropout() | Activation("identity"):
                    own = "identity"
            return worst(term.coefficient, own, common(below, default="identity"))

        return kind(term)

    def gated(self, term: Term) -> bool:
        """A bare leaf times a gate that holds weights or cannot be said."""
        pair = self.inputs(term.op) if isinstance(self.ops[term.op].node, Product) else ()
        bare = [[self.kind(t) for t in self.terms(i)] for i in pair if not self.works(i)]
        return len(bare) == 1 and len(bare[0]) == 1 and bare[0][0] in COEFFICIENTS

    def linear(self, term: Term) -> bool:
        """Weights, scales, sums and norms alone."""
        kinds = Linear | Convolution | Norm | Scale | Add | Dropout
        moved = (i for i in self.reach(term.op) if self.sources(i) and not self.leaf(i))
        return all(isinstance(self.ops[i].node, kinds) or self.scaled(i) for i in moved)

    def norm_at(self, *roots: int) -> tuple[str, ...]:
        """Where there are norms on the paths below the roots; those of queries and keys are inner
        ones, which attention's node holds."""
        nodes = (self.ops[i].node for i in self.reach(*roots) if not self.leaf(i))
        own = any(isinstance(node, Attention) and node.norm for node in nodes)
        return ordered([*(flag for flag, _ in self.norms(*roots)), *(["inner"] if own else [])])

    def norms(self, *roots: int) -> tuple[tuple[str, Norm], ...]:
        """Norms before, between and after the weight layers on the paths below the roots; where
        there is none, opaque operations stand in for them."""
        layer = self.layers if any(map(self.depth, roots)) else self.opaque
        found: list[tuple[str, Norm]] = []
        seen: set[tuple[int, bool]] = set()
        todo = [(i, False) for i in roots]
        while todo:
            if (at := todo.pop()) not in seen:
                seen.add(at)
                i, covered = at
                node = self.ops[i].node
                if isinstance(node, Norm) and not self.leaf(i):
                    before = not any(map(layer, self.reach(i)))
                    found.append(("in" if before else "inner" if covered else "out", node))
                todo += [(j, covered or bool(layer(i))) for j in self.inputs(i)]
        return tuple(dict.fromkeys(found))

    def within(self, x: int, y: int) -> bool:
        """Whether ``x`` occurs in ``y`` under a weight layer or an opaque operation."""
        layers = (i for i in self.reach(y) if self.layers(i) or self.opaque(i))
        return x in self.reach(*(j for layer in layers for j in self.inputs(layer)))

    def groups(self, terms: Iterable[Term]) -> list[tuple[int, ...]]:
        """Terms that make one branch: ``u + F(u)`` is a branch with an inner merge, not two."""
        groups: list[tuple[int, ...]] = []
        for i in (term.op for term in terms):
            near = [g for g in groups if any(self.within(i, j) or self.within(j, i) for j in g)]
            joined = (*chain(*near), i)
            groups = [group for group in groups if group not in near] + [joined]
        return groups

    def inner(self, group: tuple[int, ...]) -> int:
        """Sums inside a branch that add something to a function of itself."""
        sums: set[int] = set()
        for i in self.reach(*group):
            for j in () if isinstance(self.ops[i].node, Add) or self.scaled(i) else self.inputs(i):
                while scaled := self.scaled(j):
                    j = scaled.op
                if isinstance(self.ops[j].node, Add) and not self.leaf(j):
                    sums.add(j)
        addends = [[term.op for term in self.terms(i)] for i in sums]
        nested = (any(starmap(self.within, permutations(a, 2))) for a in addends)
        return (len(group) > 1) + sum(nested)

    def merge(self, i: int) -> Merge | None:
        """The sum at ``i`` as a skip and branches, or None."""
        if isinstance(self.ops[i].node, Product):
            found = [merge for j in {*self.inputs(i)} if (merge := self.merge(j))]
            stream = len(found) == 1 and found[0].skip in COEFFICIENTS
            return replace(found[0], skip="gated") if stream else None
        terms = self.terms(i)
        branches = [term for term in terms if self.works(term.op)]
        skips = [term for term in terms if term not in branches]
        kind = common(map(self.kind, skips))
        if not skips and (skips := list(filter(self.gated, branches))):
            kind = "gated"
        elif not skips and len({self.depth(term.op) for term in branches}) > 1:
            least = min(self.depth(term.op) for term in branches)
            flat = [term for term in branches if self.depth(term.op) == least]
            kind, skips = "projected", list(filter(self.linear, flat))
        groups = self.groups(term for term in branches if term not in skips)
        if not groups or not skips:
            return None
        places = {term.op: self.bare(term) for term in branches}
        made = (self._branch(group, [places[i] for i in group]) for group in groups)
        bare = [self.bare(term) for term in skips]
        number, learned = (bare[0].number, bare[0].learned) if len(bare) == 1 else (math.nan, ())
        return Merge(tuple(made), kind, number, learned)

    def _branch(self, group: tuple[int, ...], terms: Sequence[Term]) -> Branch:
        factors = {(term.number, term.learned) for term in terms}
        number, learned = factors.pop() if len(factors) == 1 else (math.nan, ())
        norms, m = self.norms(*group), max(map(self.depth, group))
        ends = (self.ops[term.op].node for term in terms)
        hidden = next((node.name for node in ends if isinstance(node, Opaque)), "")
        flags, inlet = self.norm_at(*group), self.inlet(*group)
        return Branch(m, flags, self.inner(group), number, learned, norms, hidden, inlet)

    def inlet(self, *roots: int) -> float:
        """The fixed number that what enters the first weight layers is multiplied by."""
        inside = self.reach(*roots)
        first = [i for i in inside if self.layers(i) and self.depth(i) == self.layers(i)]
        entering = (j for i in first for j in self.inputs(i) if self.sources(j))
        found = set(map(self._multiplied, entering))
        return found.pop() if len(found) == 1 else math.nan

    def _multiplied(self, i: int) -> float:
        """The fixed numbers in ``i``, down to its first norm or to a leaf."""
        number = 1.0
        while not self.leaf(i) and not isinstance(self.ops[i].node, Norm):
            if scaled := self.scaled(i):
                number, i = number * scaled.number, scaled.op
                continue
            on = [j for j in self.inputs(i) if self.sources(j)]
            if len(on) != 1:
                break
            i = on[0]
        return number

    def bare(self, term: Term) -> Term:
        """The term with every factor down to its first norm, bend or layer taken out of it."""
        while True:
            node, inputs = self.ops[term.op].node, self.inputs(term.op)
            idle = isinstance(node, Activation) and node.kind == "identity"
            if isinstance(node, Dropout) or idle:
                below = self.terms(inputs[0])
                if len(below) != 1:
                    return term
                term = below[0].times(term)
            elif scaled := self.scaled(term.op):
                term = scaled.times(term)
            else:
                return term

    def cuts(self, i: int) -> list[int]:
        """Operations that do work under ``i`` that every path to it runs through, innermost
        first. The initial or an older state may pass by when what is cut is a merge in use twice,
        as in ``u = h + A(h); h = u + F(u) + h0``."""
        below = self.reach(i)
        newest = max(self.sources(i), default=-1)
        for x in reversed(below[:-1]):
            if newest in self.sources(x) and self.works(x):
                past = replace(self, stop=self.stop | {x}).sources(i) - {x}
                uses = sum(self.inputs(j).count(x) for j in below)
                if not past or (newest not in past and uses > 1 and self.merge(self.steps(x)[-1])):
                    return [*self.cuts(x), x]
        return []

    def steps(self, i: int) -> list[int]:
        """``i`` and down through weight-free steps to the first operation that is none."""
        steps = [i]
        while not self.layers(i):
            on = [j for j in self.inputs(i) if self.sources(j)]
            if len(on) != 1:
                break
            steps.append(i := on[0])
        return steps
