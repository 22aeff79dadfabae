"""Counting: the residual branches of one block, and the weight layers in series in each (m).

The text is first read into a graph, in which a definition is its body, a local is the operation
it names, and every update makes a new state. A *cut* is an operation through which every path
from the states to the updated value runs, so ``u = h + A(h); h = u + F(u)`` counts like
``h = h + A(h); h = h + F(h)``. What lies between two cuts is one merge (a sum of a skip and
branches), or steps of a plain layer, or a weight-free wrapper of what stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain, permutations, starmap
from itertools import count as numbering
from typing import TypeAlias, TypeGuard, get_args

from depthgauge.equation.functions import INITIAL, STATE
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Attention,
    Block,
    Call,
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
    Product,
    Scale,
    State,
    Value,
    children,
    rewrite,
)

__all__ = ["Branch", "Count", "Merge", "count"]

#: Weight layers in series; attention has four (q, k, v, o), as Fixup counts them.
WEIGHT_LAYERS: dict[type, int] = {Linear: 1, Convolution: 1, Attention: 4}
NORM_AT = ("in", "inner", "out", "stream")
#: Skip kinds of a weight-free path, each hiding the ones before it.
_PATH_KINDS = ("identity", "scaled", "per-channel", "normed", "mixed")
_COEFFICIENTS = _PATH_KINDS[:3]
_WORDS = {"in": "pre", "inner": "inner", "out": "out", "stream": "post"}
_PHRASES = {
    "none": "no norm",
    "pre": "pre-norm",
    "post": "post-norm",
    "out": "norm on the branch output",
    "inner": "norm inside the branch",
    "mixed": "mixed norm placement",
}


@dataclass(frozen=True, slots=True)
class Branch:
    """``m`` weight layers in series on the value path (in a sum or product, the longest)."""

    m: int
    norm_at: tuple[str, ...]  # subset of NORM_AT, in its order
    inner: int  # residual merges nested inside

    @property
    def placement(self) -> str:
        return _placement(self.norm_at)


@dataclass(frozen=True, slots=True)
class Merge:
    """Branches added in one place; ``skip`` is identity, scaled, per-channel, normed, mixed,
    gated or projected."""

    branches: tuple[Branch, ...]
    skip: str


@dataclass(frozen=True, slots=True)
class Count:
    """What one block holds: residual merges, and ``plain`` layers (m of each) outside of them."""

    merges: tuple[Merge, ...]
    plain: tuple[int, ...]
    plain_norm_at: tuple[str, ...] = ()  # where the plain layers have norms, together

    @property
    def branches(self) -> int:
        return len(self._branches)

    @property
    def inner(self) -> int:
        return sum(branch.inner for branch in self._branches)

    @property
    def projected(self) -> int:
        return sum(merge.skip == "projected" for merge in self.merges)

    @property
    def parallel(self) -> int:
        return sum(len(merge.branches) > 1 for merge in self.merges)

    @property
    def has_skip(self) -> bool:
        return bool(self.merges)

    @property
    def m(self) -> tuple[int, ...]:
        """Weight layers in series per branch, in order; without a merge, per plain layer."""
        return tuple(branch.m for branch in self._branches) if self.merges else self.plain

    @property
    def norm_at(self) -> tuple[str, ...]:
        if not self.merges:
            return self.plain_norm_at
        return _ordered(flag for branch in self._branches for flag in branch.norm_at)

    @property
    def skip(self) -> str:
        return _common((merge.skip for merge in self.merges), default="none")

    @property
    def placement(self) -> str:
        words = (branch.placement for branch in self._branches)
        return _common(words, default=_placement(self.plain_norm_at))

    def describe(self) -> str:
        """``1 residual branch, m = 2, pre-norm, identity skip``."""
        plain = _many(sum(self.plain), "weight layer")
        if not self.merges:
            return f"no residual branch, {plain}"
        lengths = self.m[:1] if len(set(self.m)) == 1 else self.m
        parts = [
            _many(self.branches, "residual branch", "residual branches"),
            "m = " + ", ".join(map(str, lengths)),
            _PHRASES.get(self.placement, f"{self.placement} norm"),
            f"{self.skip} skip" if self.skip != "mixed" else "mixed skips",
        ]
        if self.parallel:
            several = len(self.merges) > 1
            parts[0] += f" in {len(self.merges)} merges" if several else " in parallel"
        if self.inner:
            parts.append(_many(self.inner, "inner merge"))
        if self.plain:
            parts.append(f"{plain} outside the branches")
        return ", ".join(parts)

    @property
    def _branches(self) -> tuple[Branch, ...]:
        return tuple(branch for merge in self.merges for branch in merge.branches)


def count(block: Block) -> Count:
    """Merges, branches and plain layers of one block; the same whatever L and the names are."""
    ops, updates = _graph(block)
    pieces = _folded([piece for value in updates for piece in _pieces(ops, value)])
    plain = [piece for piece in pieces if isinstance(piece, _Plain)]
    return Count(
        merges=tuple(piece for piece in pieces if isinstance(piece, Merge)),
        plain=tuple(piece.m for piece in plain),
        plain_norm_at=_ordered(flag for piece in plain for flag in piece.norm_at),
    )


# --------------------------------------------------------------------------------- graph


@dataclass(frozen=True, slots=True)
class _Op:
    """A node whose value operands are numbers of earlier operations; a state has none."""

    node: Value
    inputs: tuple[int, ...]


def _graph(block: Block) -> tuple[list[_Op], list[int]]:
    """Operations, equal ones shared and operands first, and the number of each updated value."""
    ops: list[_Op] = []
    known: dict[object, int] = {}
    definitions: dict[str, Define] = {}

    def put(node: Value, inputs: tuple[int, ...] = ()) -> int:
        ops.append(_Op(node, inputs))
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
                return read(definitions[name].body, names | inside)
        inputs = tuple(read(child, names) for child in children(value) if _is_value(child))
        rest = [getattr(value, field.name) for field in fields(value)]
        key = type(value), tuple(part for part in rest if not _is_value(part)), inputs
        if key not in known:
            known[key] = put(value, inputs)
        return known[key]

    names = {INITIAL: put(Initial()), STATE: put(State())}
    updates: list[int] = []
    for statement in _numbered(block).statements:
        if isinstance(statement, Define):
            definitions[statement.name] = statement
        elif isinstance(statement, Let):
            if not isinstance(statement.bound, SCALARS):
                names[statement.name] = read(statement.bound, names)
        else:
            updates.append(read(statement.value, names))
            names[STATE] = put(State())
    return ops, updates


def _numbered(block: Block) -> Block:
    """Anonymous layers told apart: each ``W`` in the text is a layer of its own."""
    numbers = numbering()

    def rule(node: Node) -> Node:
        own = Linear | Convolution | Attention | Dropout | LearnedScalar | LearnedGain
        if isinstance(node, own) and node.name in ("", "W"):
            return replace(node, name=f"#{next(numbers)}")
        return node

    changed = rewrite(block, rule)
    assert isinstance(changed, Block)
    return changed


_VALUES = get_args(Value)


def _is_value(part: object) -> TypeGuard[Value]:
    return isinstance(part, _VALUES)


# -------------------------------------------------------------------------------- regions


@dataclass(frozen=True, slots=True)
class _Term:
    """A coefficient, by its kind and by what is a number in it, times an operation."""

    op: int
    kind: str = "identity"
    number: float = 1.0

    def times(self, outer: _Term) -> _Term:
        return _Term(self.op, _worst(self.kind, outer.kind), self.number * outer.number)

    @property
    def coefficient(self) -> str:
        return "scaled" if self.kind == "identity" and self.number != 1 else self.kind


@dataclass(frozen=True, slots=True)
class _Region:
    """The graph from above down to its leaves: the states, and ``stop``, which read like one."""

    ops: Sequence[_Op]
    stop: frozenset[int] = frozenset()

    def leaf(self, i: int) -> bool:
        return i in self.stop or isinstance(self.ops[i].node, State | Initial)

    def inputs(self, i: int) -> tuple[int, ...]:
        return () if self.leaf(i) else self.ops[i].inputs

    def layers(self, i: int) -> int:
        return 0 if self.leaf(i) else WEIGHT_LAYERS.get(type(self.ops[i].node), 0)

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

    def scaled(self, i: int) -> _Term | None:
        """``a * x`` as a term, or None: a fixed or learned coefficient."""
        match self.ops[i].node, self.inputs(i):
            case Scale(Number(value)), (x,):
                return _Term(x, number=value)
            case Scale(), (x,):
                return _Term(x, "scaled")
            case Product(), (left, right):
                for a, x in ((left, right), (right, left)):
                    if not self.sources(a) and not self.depth(a):
                        nodes = (self.ops[j].node for j in self.reach(a))
                        channels = any(isinstance(node, LearnedGain) for node in nodes)
                        return _Term(x, "per-channel" if channels else "scaled")
        return None

    def terms(self, i: int) -> tuple[_Term, ...]:
        """The flattened sum at ``i``, coefficients distributed, without what no leaf enters;
        equal terms are one."""

        @cache
        def flat(j: int) -> tuple[_Term, ...]:
            if isinstance(self.ops[j].node, Add) and not self.leaf(j):
                return tuple(dict.fromkeys(term for k in self.inputs(j) for term in flat(k)))
            if scaled := self.scaled(j):
                return tuple(term.times(scaled) for term in flat(scaled.op))
            return (_Term(j),) if self.sources(j) else ()

        return flat(i)

    def kind(self, term: _Term) -> str:
        """What a weight-free term does to the leaf that it carries."""

        @cache
        def kind(term: _Term) -> str:
            below = [kind(inside) for i in self.inputs(term.op) for inside in self.terms(i)]
            own = "mixed"
            match self.ops[term.op].node:
                case _ if self.leaf(term.op):
                    own = "identity"
                case Norm():
                    own = "normed"
                case Dropout() | Activation("identity"):
                    own = "identity"
            return _worst(term.coefficient, own, _common(below, default="identity"))

        return kind(term)

    def gated(self, term: _Term) -> bool:
        """A bare leaf times a gate that holds weights."""
        pair = self.inputs(term.op) if isinstance(self.ops[term.op].node, Product) else ()
        bare = [[self.kind(t) for t in self.terms(i)] for i in pair if not self.depth(i)]
        return len(bare) == 1 and len(bare[0]) == 1 and bare[0][0] in _COEFFICIENTS

    def linear(self, term: _Term) -> bool:
        """Weights, scales, sums and norms alone."""
        kinds = Linear | Convolution | Norm | Scale | Add | Dropout
        moved = (i for i in self.reach(term.op) if self.sources(i) and not self.leaf(i))
        return all(isinstance(self.ops[i].node, kinds) or self.scaled(i) for i in moved)

    def norm_at(self, *roots: int) -> tuple[str, ...]:
        """Norms before, between and after the weight layers on the paths below the roots."""
        flags: set[str] = set()
        seen: set[tuple[int, bool]] = set()
        todo = [(i, False) for i in roots]
        while todo:
            if (at := todo.pop()) not in seen:
                seen.add(at)
                i, covered = at
                if isinstance(self.ops[i].node, Norm) and not self.leaf(i):
                    flags.add("in" if not self.depth(i) else "inner" if covered else "out")
                todo += [(j, covered or self.layers(i) > 0) for j in self.inputs(i)]
        return _ordered(flags)

    def within(self, x: int, y: int) -> bool:
        """Whether ``x`` occurs in ``y`` under a weight layer."""
        layers = filter(self.layers, self.reach(y))
        return x in self.reach(*(j for layer in layers for j in self.inputs(layer)))

    def groups(self, terms: Iterable[_Term]) -> list[tuple[int, ...]]:
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
            stream = len(found) == 1 and found[0].skip in _COEFFICIENTS
            return replace(found[0], skip="gated") if stream else None
        terms = self.terms(i)
        branches = [term for term in terms if self.depth(term.op)]
        skips = [term for term in terms if term not in branches]
        kind = _common(map(self.kind, skips))
        if not skips and (skips := list(filter(self.gated, branches))):
            kind = "gated"
        elif not skips and len({self.depth(term.op) for term in branches}) > 1:
            least = min(self.depth(term.op) for term in branches)
            flat = [term for term in branches if self.depth(term.op) == least]
            kind, skips = "projected", list(filter(self.linear, flat))
        groups = self.groups(term for term in branches if term not in skips)
        if not groups or not skips:
            return None
        made = (Branch(max(map(self.depth, g)), self.norm_at(*g), self.inner(g)) for g in groups)
        return Merge(tuple(made), kind)

    def cuts(self, i: int) -> list[int]:
        """Operations with weights under ``i`` that every path to it runs through, innermost
        first. The initial or an older state may pass by when what is cut is a merge in use twice,
        as in ``u = h + A(h); h = u + F(u) + h0``."""
        below = self.reach(i)
        newest = max(self.sources(i), default=-1)
        for x in reversed(below[:-1]):
            if newest in self.sources(x) and self.depth(x):
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


# --------------------------------------------------------------------------------- pieces


@dataclass(frozen=True, slots=True)
class _Plain:
    m: int
    norm_at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """Weight-free steps on the stream: is a norm among them, and the coefficient before it."""

    norm: bool
    kind: str


_Piece: TypeAlias = Merge | _Plain | _Wrapper


def _pieces(ops: Sequence[_Op], value: int) -> list[_Piece]:
    """One update from the state upwards: merges, and the runs of steps before and after them."""
    pieces: list[_Piece] = []
    start: frozenset[int] = frozenset()  # the last merge, from which a run goes on
    last, run = start, -1
    for point in [*_Region(ops).cuts(value), value]:
        if merge := _Region(ops, last).merge(point):
            pieces += [_run(_Region(ops, start), run)] if run >= 0 else []
            pieces.append(merge)
            start, run = frozenset({point}), -1
        else:
            run = point
        last = frozenset({point})
    return pieces + ([_run(_Region(ops, start), run)] if run >= 0 else [])


def _run(region: _Region, i: int) -> _Piece:
    if m := region.depth(i):
        return _Plain(m, region.norm_at(i))
    *steps, base = region.steps(i)
    by = _Term(base)
    for step in reversed(steps) if region.leaf(base) else ():
        if scaled := region.scaled(step):
            by = by.times(scaled)
        elif not isinstance(region.ops[step].node, Add):
            break
    norm = any(isinstance(region.ops[step].node, Norm) for step in steps)
    return _Wrapper(norm, by.coefficient)


def _folded(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Wrappers folded into what they wrap. One that opens a block goes with the layer that
    follows or, blocks being repeated, wraps the last merge of the block before."""
    kept: list[_Piece] = []
    leading: list[_Wrapper] = []
    for piece in pieces:
        if not isinstance(piece, _Wrapper):
            kept.append(piece)
        elif kept:
            kept[-1] = _wrap(kept[-1], piece, "out")
        else:
            leading.append(piece)
    for piece in leading if kept else ():
        at = 0 if isinstance(kept[0], _Plain) else -1
        kept[at] = _wrap(kept[at], piece, "out" if at else "in")
    return kept


def _wrap(piece: _Piece, wrapper: _Wrapper, plain_flag: str) -> _Piece:
    def flagged(norm_at: tuple[str, ...], flag: str) -> tuple[str, ...]:
        return _ordered((*norm_at, flag)) if wrapper.norm else norm_at

    if isinstance(piece, _Plain):
        return replace(piece, norm_at=flagged(piece.norm_at, plain_flag))
    assert isinstance(piece, Merge)
    branches = (replace(b, norm_at=flagged(b.norm_at, "stream")) for b in piece.branches)
    normed = "stream" in piece.branches[0].norm_at  # what comes after a norm scales no skip
    fixed = normed or piece.skip not in _COEFFICIENTS
    return Merge(tuple(branches), piece.skip if fixed else _worst(piece.skip, wrapper.kind))


# ---------------------------------------------------------------------------------- words


def _ordered(flags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(flags), key=NORM_AT.index))


def _placement(norm_at: tuple[str, ...]) -> str:
    if norm_at == ("in", "out"):
        return "sandwich"
    return "+".join(_WORDS[flag] for flag in norm_at) or "none"


def _worst(*kinds: str) -> str:
    return max(kinds, key=_PATH_KINDS.index)


def _common(words: Iterable[str], default: str = "none") -> str:
    """The one word that all share, ``"mixed"``, or ``default`` when there is none."""
    found = set(words)
    return found.pop() if len(found) == 1 else "mixed" if found else default


def _many(number: int, one: str, several: str = "") -> str:
    plural = several or f"{one}s"
    return f"{number or 'no'} {one if number == 1 else plural}"
