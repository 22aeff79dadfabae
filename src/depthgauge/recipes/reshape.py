"""A block equation in another form: sums rewritten, norms moved, learned numbers put in.

Every sum of a skip and branches is taken apart into terms, coefficient times value; the terms are
changed and put together again. What came out is counted anew, so that a block which the rewriting
did not understand is refused, never half changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from depthgauge.equation.branches import Count
from depthgauge.equation.count import count
from depthgauge.equation.functions import NORMS, ONE
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Arithmetic,
    Attention,
    Block,
    Call,
    Convolution,
    Define,
    Dropout,
    Initial,
    LearnedScalar,
    Let,
    Linear,
    Local,
    Node,
    Norm,
    Number,
    Opaque,
    Scalar,
    Scale,
    State,
    Statement,
    Symbol,
    Update,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.parse import parse_scalar
from depthgauge.equation.text import to_text
from depthgauge.equation.written import WEIGHTS
from depthgauge.errors import NetworkError
from depthgauge.recipes.inlining import inlined
from depthgauge.recipes.rules import Form
from depthgauge.recipes.terms import Term, carries, learned_of, scalar_or, terms_of, together

__all__ = ["Multipliers", "Numbers", "multipliers", "reshaped"]

#: Of each weight layer of a branch, in forward order, the fixed numbers in front of it and behind
#: it; None: the branch's factor holds the second.
Numbers = Sequence[tuple[str, str | None]]


@dataclass(frozen=True)
class Multipliers:
    """What stands in front of one residual branch, a fixed number and what is learned, and in front
    of each skip of its sum (``h``, and perhaps ``h0``)."""

    factor: Scalar
    learned: tuple[Value, ...]
    skips: tuple[tuple[Scalar, tuple[Value, ...]], ...]


def reshaped(block: Block, forms: Sequence[Form], around: Sequence[Numbers] = ()) -> Block:
    """The block with each residual branch in its form, branches in the order of their sums;
    ``around``: for each branch the numbers around its layers, or none.

    Raises NetworkError for a block whose sums cannot be taken apart.
    """
    return _reshaped(block, forms, around)[0]


def multipliers(block: Block) -> tuple[Multipliers, ...]:
    """What multiplies each residual branch and its skip, branches in the order of their sums.

    Raises NetworkError for a block whose sums cannot be taken apart.
    """
    return tuple(_reshaped(block, [Form()] * count(block).branches)[1])


def _reshaped(
    block: Block, forms: Sequence[Form], around: Sequence[Numbers] = ()
) -> tuple[Block, list[Multipliers]]:
    before = count(block)
    if before.branches != len(forms):
        raise NetworkError(
            f"'{block}' has {before.branches} residual branches and the recipe forms for "
            f"{len(forms)}"
        )
    waiting = iter(forms)
    work = _Reshape(inlined(block), waiting, iter(around))
    try:
        after = work.block()
    except StopIteration:  # a sum that was not counted as one
        raise _unshaped(block) from None
    # A form that is left over is that of a sum which was not seen as one.
    _check(block, before, count(after), forms, bool(list(waiting)))
    return after, work.found


def _check(block: Block, before: Count, after: Count, forms: Sequence[Form], waiting: bool) -> None:
    branches = [branch for merge in after.merges for branch in merge.branches]
    right = after.m == before.m and len(branches) == len(forms) and not waiting
    for branch, form in zip(branches, forms, strict=False):
        if form.norms is not None:
            right = right and {at for at, _ in branch.norms} == set(form.norms)
    if not right:
        raise _unshaped(block)


def _unshaped(block: Block) -> NetworkError:
    return NetworkError(
        f"the form of '{block}' cannot be changed: its sums are no skip plus branches such as "
        f"h + F(h); write each step as one sum"
    )


class _Reshape:
    def __init__(self, block: Block, forms: Iterator[Form], around: Iterator[Numbers]) -> None:
        self.whole, self.forms, self.around = block, forms, around
        self.weights: set[str] = set()  # names whose values hold weights
        self.sums: set[str] = set()  # names of sums, which are states
        self.views: dict[str, int] = {}  # names of norms of a state, by their statement
        self.done: list[Statement] = []
        self.found: list[Multipliers] = []
        norms = [node for node in walk(block) if isinstance(node, Norm)]
        self.kind = norms[0].kind if norms else "layernorm"
        self.options = {norm.kind: dict(norm.options) for norm in reversed(norms)}

    def block(self) -> Block:
        for statement in self.whole.statements:
            self.done.append(self._statement(statement))
        return Block(tuple(self.done))

    def _statement(self, statement: Statement) -> Statement:
        match statement:
            case Define(name, _, body):
                if self._holds(body):
                    self.weights.add(name)
                return statement
            case Let(name, bound) if not isinstance(bound, SCALARS):
                if (value := self._sum(bound)) is not None:
                    self.sums.add(name)
                    return replace(statement, bound=value)
                if self._holds(bound):
                    self.weights.add(name)
                elif any(isinstance(node, State | Initial | Local) for node in walk(bound)):
                    self.views[name] = len(self.done)
                return statement
            case Update(value):
                found = self._sum(value)
                return statement if found is None else Update(found)
        return statement

    def _holds(self, value: Value) -> bool:
        """Whether a value holds weights, in itself or by a name."""
        return any(
            isinstance(node, (*WEIGHTS, Opaque))
            or (isinstance(node, Local | Call) and node.name in self.weights)
            for node in walk(value)
        )

    # ----------------------------------------------------------------------------- a sum

    def _sum(self, value: Value) -> Value | None:
        """The value with its sum in the next forms, or None where it is no skip plus branches."""
        outer: list[Norm | Activation] = []
        inside = value
        while isinstance(inside, Norm | Activation):
            outer.append(inside)
            inside = inside.value
        terms = list(terms_of(inside))
        skips = [term for term in terms if not self._holds(term.core)]
        branches = [term for term in terms if self._holds(term.core)]
        if not skips or not branches or not any(map(carries, skips)):
            return None
        forms = [next(self.forms) for _ in branches]
        first, carried = forms[0], tuple((t.factor, t.learned) for t in skips)
        self.found += [Multipliers(t.factor, t.learned, carried) for t in branches]
        if first.shifts:  # they are put in anew
            skips = [term for term in skips if not isinstance(term.core, LearnedScalar)]
        skips = [replace(t, factor=scalar_or(first.skip, t.factor)) for t in skips]
        if first.carried is not None:
            skips = [replace(t, learned=learned_of(first.carried)) for t in skips]
        made = [self._branch(t, form) for t, form in zip(branches, forms, strict=True)]
        total = together(skips, [term for row in made for term in row])
        if first.norms is not None:
            if "stream" in first.norms:
                total = self._norm(first, "stream", total)
            outer = [node for node in outer if isinstance(node, Activation)]
        for node in reversed(outer):
            changed = replace(node, value=total)
            gain = first.gains.get("stream")
            total = _gained(changed, gain) if isinstance(changed, Norm) else changed
        return total

    def _branch(self, term: Term, form: Form) -> list[Term]:
        core = term.core
        if form.norms is not None:
            core = self._without_norms(core)
        if form.scored is not None:
            core = self._branch_with(core, _with_scored(form.scored, form.temperature))
        elif form.logits is not None:
            core = self._branch_with(core, _with_logits(parse_scalar(form.logits, ("d",))))
        if form.biased:
            core = self._branch_with(core, _with_bias)
        if numbers := next(self.around, ()):
            core = self._branch_with(core, _bare_layers)
            core = self._branch_with(core, _between(iter(numbers)))
        norms = form.norms or {}
        if "in" in norms or form.inlet is not None:
            core = self._entering(core, lambda x: self._front(form, x), form.inlet is not None)
        if form.shifts:
            core = _shifted(core)
        if "inner" in norms:
            core = _inside(core, lambda x: self._norm(form, "inner", x))
        if "out" in norms:
            core = self._norm(form, "out", core)
        if form.norms is None and form.gains:
            core = _regained(core, form.gains, self._holds)
        learned = term.learned if form.learned is None else learned_of(form.learned)
        changed = Term(core, scalar_or(form.factor, term.factor), learned)
        if not form.shifts:
            return [changed]
        multiplied = replace(changed, learned=(LearnedScalar(ONE),))
        return [multiplied, Term(LearnedScalar(Number(0.0)))]

    def _front(self, form: Form, x: Value) -> Value:
        """``inlet * norm(x)``, as much of it as the form has."""
        if "in" in (form.norms or {}):
            x = self._norm(form, "in", x)
        return x if form.inlet is None else Scale(scalar_or(form.inlet, ONE), x)

    def _norm(self, form: Form, place: str, value: Value) -> Norm:
        kind = (form.norms or {}).get(place) or self.kind
        options = dict(NORMS[kind])
        if kind not in ("dyt", "derf"):  # whose numbers begin where the recipe has them
            options |= self.options.get(kind, {})
        # Learned gains and offsets are kept, also by a norm of another kind.
        affine = self.options.get(self.kind, {}) if "bias" in options else {}
        options |= {name: affine[name] for name in ("gain", "bias") if "bias" in affine}
        if kind in ("dyt", "derf") and isinstance(options["gain"], SCALARS):
            options["gain"] = ONE
        if kind == "scalenorm":
            options["gain"] = NORMS[kind]["gain"]
        return _gained(Norm(kind, value, tuple(options.items())), form.gains.get(place))

    def _without_norms(self, core: Value) -> Value:
        """The branch without a norm, also in what it reads by a name."""
        return self._branch_with(core, _bare)

    def _branch_with(self, core: Value, rule: Callable[[Node], Node]) -> Value:
        """The branch rewritten by a rule, also in what it reads by a name."""
        for name in {node.name for node in walk(core) if isinstance(node, Local | Call)}:
            for place, statement in enumerate(self.done):
                if isinstance(statement, Let | Define) and statement.name == name:
                    changed = rewrite(statement, rule)
                    assert isinstance(changed, Statement)
                    self.done[place] = changed
        out = rewrite(core, rule)
        assert isinstance(out, Value)
        return out

    def _state(self, node: Node) -> bool:
        return isinstance(node, State) or (isinstance(node, Local) and node.name in self.sums)

    def _entering(
        self,
        core: Value,
        change: Callable[[Value], Value],
        unscale: bool,
    ) -> Value:
        """The branch with what enters it changed: states, and names of them; with ``unscale`` in
        the place of a fixed number in front of them."""
        before = _unscaled if unscale else _same
        for name in {node.name for node in walk(core) if isinstance(node, Local)}:
            if name in self.views:
                statement = self.done[self.views[name]]
                assert isinstance(statement, Let)
                assert isinstance(statement.bound, Value)
                bound = rewrite(statement.bound, before)
                assert isinstance(bound, Value)
                self.done[self.views[name]] = replace(statement, bound=change(bound))

        def rule(node: Node) -> Node:
            return change(node) if self._state(node) and isinstance(node, Value) else node

        out = rewrite(rewrite(core, before), rule)
        assert isinstance(out, Value)
        return out


def _bare(node: Node) -> Node:
    return node.value if isinstance(node, Norm) else node


def _with_bias(node: Node) -> Node:
    return replace(node, bias=True) if isinstance(node, WEIGHTS) else node


def _with_logits(scale: Scalar) -> Callable[[Node], Node]:
    """Attention by this number, in which ``d`` is the features of a head."""

    def rule(node: Node) -> Node:
        if not isinstance(node, Attention):
            return node
        one = node.heads == ONE
        head = Symbol("n") if one else Arithmetic("/", Symbol("n"), node.heads)
        number = rewrite(scale, lambda inner: head if inner == Symbol("d") else inner)
        assert isinstance(number, SCALARS)
        return replace(node, scale=number)

    return rule


def _bare_layers(node: Node) -> Node:
    """A weight layer without a fixed number in front of it or behind it."""
    if isinstance(node, Scale) and isinstance(node.value, WEIGHTS):
        return node.value
    while isinstance(node, WEIGHTS) and isinstance(node.value, Scale):
        node = replace(node, value=node.value.value)
    return node


def _between(numbers: Iterator[tuple[str, str | None]]) -> Callable[[Node], Node]:
    """Layers between their numbers, the innermost first."""

    def rule(node: Node) -> Node:
        if not isinstance(node, WEIGHTS):
            return node
        front, behind = (scalar_or(text, ONE) for text in next(numbers, (None, None)))
        if front != ONE:
            node = replace(node, value=Scale(front, node.value))
        return node if behind == ONE else Scale(behind, node)

    return rule


def _with_scored(kind: str, temperature: str | None) -> Callable[[Node], Node]:
    """Attention with norms of queries and keys: by their length, times a learned number; else by
    the usual 1/sqrt(d)."""
    scale = None if temperature is None else scalar_or(temperature, ONE)

    def rule(node: Node) -> Node:
        return replace(node, norm=kind, scale=scale) if isinstance(node, Attention) else node

    return rule


def _same(node: Node) -> Node:
    return node


def _unscaled(node: Node) -> Node:
    """What a fixed number multiplied that stands directly in front of a state."""
    bare = isinstance(node, Scale) and isinstance(node.value, State | Initial | Local)
    return node.value if bare and isinstance(node, Scale) else node


def _gained(norm: Norm, gain: str | None) -> Norm:
    if gain is None:
        return norm
    if "gain" not in dict(norm.options):
        raise NetworkError(f"{norm.kind} has no gain that could begin at {gain}")
    initial = scalar_or(gain, ONE)
    options = tuple((k, initial if k == "gain" else v) for k, v in norm.options)
    return replace(norm, options=options)


def _regained(core: Value, gains: Mapping[str, str], holds: Callable[[Value], bool]) -> Value:
    """The norm at the branch's end with another gain."""
    if set(gains) - {"stream"} != {"out"} or not isinstance(core, Norm) or not holds(core.value):
        raise NetworkError(
            f"the branch '{to_text(core)}' does not end with a norm whose gain could be set"
        )
    return _gained(core, gains["out"])


def _shifted(core: Value) -> Value:
    """A learned number in front of each weight layer and activation."""

    def rule(node: Node) -> Node:
        if isinstance(node, Linear | Convolution | Attention | Activation):
            entering = node.value
            while isinstance(entering, Add) and isinstance(entering.right, LearnedScalar):
                entering = entering.left
            return replace(node, value=Add(entering, LearnedScalar(Number(0.0))))
        return node

    out = rewrite(core, rule)
    assert isinstance(out, Value)
    return out


def _inside(core: Value, change: Callable[[Value], Value]) -> Value:
    """What enters the branch's last weight layer, changed."""
    if isinstance(core, Dropout):
        return replace(core, value=_inside(core.value, change))
    if isinstance(core, Attention):
        raise NetworkError(
            f"'{to_text(core)}' has its output layer inside, and an equation has no place for a "
            f"norm in front of that; apply the recipe to the module that the equation builds, "
            f"depthgauge.apply(network.module(), batch, recipe), which has one"
        )
    if not isinstance(core, Linear | Convolution):
        raise NetworkError(
            f"'{to_text(core)}' ends with no linear layer in front of which a norm could stand"
        )
    return replace(core, value=change(core.value))
