"""The values between two states as the language's nodes, one rule a kind of function.

What the language cannot say becomes ``opaque("name", inputs, m=...)``, named by the smallest module
that holds it; it is never left out. Views, casts and dropout that is switched off say nothing and
vanish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.equation.nodes import (
    Activation,
    Add,
    Block,
    Constant,
    Dropout,
    Initial,
    LearnedGain,
    LearnedScalar,
    Norm,
    Number,
    Opaque,
    Product,
    Scale,
    State,
    Value,
    children,
)
from depthgauge.trace.attention import attention
from depthgauge.trace.blocks import (
    Unsayable,
    begins,
    carried,
    filled,
    known,
    learned_gain,
    option_of,
    scaled,
    shared,
    short,
)
from depthgauge.trace.graph import GRAFTED, Ref, common_path
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.layers import layer, part_of_layer
from depthgauge.trace.merges import chain
from depthgauge.trace.norms import bias_of, gained, norm, scalenorm, shifted
from depthgauge.trace.operations import NEGATIONS
from depthgauge.trace.readings import Activation as Seen
from depthgauge.trace.roles import Roles, drop_rate
from depthgauge.trace.series import series
from depthgauge.trace.statistic import number_in
from depthgauge.trace.views import keeps_all, scrambles

__all__ = ["Region", "Sources"]

#: How often what cannot be said is hidden piece by piece, and at all.
_DETAILED: Final = 3
_ATTEMPTS: Final = 24
#: How deep nodes stand in each other at most: what reads a tree calls itself for each of them.
_NESTED: Final = 150
_LEADING: Final = ("identity", "scaled", "per-channel", "normed")
_COMPOUND: Final = (tuple, slice)
#: Why what a block meets is opaque though all that made it may be known.
_ELSEWHERE: Final = "from elsewhere: it was made before the state that a block begins with"


@dataclass
class Sources:
    """What regions of one graph are read from: the roles of its values, ``parameters`` by path,
    ``activations`` that were seen by value, ``composites`` of several functions by call."""

    roles: Roles
    parameters: Mapping[str, Tensor]
    activations: Mapping[int, Seen]
    composites: Mapping[int, Any]

    def tensor(self, i: int) -> Tensor | None:
        """The parameter or buffer that value ``i`` is."""
        return self.parameters.get(self.roles.values[i].path)


class Region:
    """The values that ``after`` was computed from, down to the state ``before``; arguments as of
    ``Reader.read``."""

    def __init__(
        self,
        sources: Sources,
        before: int,
        after: int,
        foreign: Mapping[int, str],
        branches: Sequence[Sequence[int]],
        initial: int,
        end: int,
    ) -> None:
        self.branches, self.initial = branches, initial
        self.end = after if end < 0 else end
        self.sources, self.roles = sources, sources.roles
        self.values = sources.roles.values
        self.before, self.after, self.foreign = before, after, foreign
        self.opaque: list[tuple[str, str]] = []
        self.elsewhere: list[tuple[str, str]] = []  # opaque, and made outside of the region
        self.dropped: list[float] = []  # with which rates weights of attention are dropped
        self.inside = self._between()
        self._memo: dict[int, Value] = {}
        self._hidden: dict[int, tuple[str, set[int]]] = {}  # opaque value -> name, what it hides
        self._elsewhere: dict[str, list[int]] = {}  # name -> values from elsewhere called so

    def _between(self) -> set[int]:
        """The values that ``after`` was computed from, down to the state and the foreign ones."""
        values, before, initial, foreign = self.values, self.before, self.initial, self.foreign
        ends = self.after in (before, initial) or self.after in foreign
        todo = [] if ends else [self.after]
        found = set(todo)
        while todo:
            for j in values[todo.pop()].inputs:
                if j > before and j != initial and j not in found and j not in foreign:
                    value = values[j]
                    if value.data and value.floating:
                        found.add(j)
                        todo.append(j)
        return found

    @cached_property
    def reached(self) -> set[int]:
        """What a gradient reaches from ``after``, down to the state."""
        return self.roles.graph.ancestors([self.after], self.before)

    def _carries(self, i: int) -> bool:
        value = self.values[i]
        return value.data and value.floating and (i >= self.before or i == self.initial)

    @property
    def width(self) -> int:
        shape = self.values[self.before].shape
        return shape[self.axis] if shape else 1

    @cached_property
    def path(self) -> str:
        """The path of the module around the region."""
        values, calls = self.values, self.roles.graph.calls
        return common_path([calls[values[i].call].path for i in self.inside if i <= self.end])

    @cached_property
    def axis(self) -> int:
        """The state's axis of channels."""
        shape = self.values[self.before].shape
        images = any(
            self.values[i].name.startswith("conv") and len(self.values[i].shape) == 4
            for i in self.inside
        )
        return 1 if images and len(shape) == 4 else len(shape) - 1

    def key(self) -> tuple[object, tuple[int, ...]]:
        """Equal for regions that read alike: functions, arguments, sizes, how they hang together,
        constants, and the numbers that learned factors begin with. Beside it the values that are
        learned or constant, in order."""
        order = sorted(self.inside)
        places = {i: k for k, i in enumerate(order)}
        places[self.before] = -1
        if self.initial >= 0:
            places.setdefault(self.initial, -2)
        learned: dict[int, int] = {}
        values, calls = self.values, self.roles.graph.calls
        row: list[object] = [values[self.before].shape, len(self.branches)]
        for i in order:
            value = values[i]
            inputs, args = value.inputs, value.args
            row += (
                value.name, value.shape, value.item, calls[value.call].type, len(inputs), len(args),
            )  # fmt: skip
            for j in inputs:
                if (place := places.get(j)) is not None:
                    row.append(place)
                elif values[j].data:
                    row.append(self.foreign.get(j, j))
                else:
                    row += self._given(value, j, learned)
            # Numbers of values differ from region to region; how they hang together is above.
            for a in args:
                kind = type(a)
                row.append(None if kind is Ref else _unnumbered(a) if kind in _COMPOUND else a)
            for k, a in value.options.items():
                row += (k, _unnumbered(a))
        return tuple(row), tuple(learned)

    def _given(self, user: Traced, i: int, learned: dict[int, int]) -> list[object]:
        """Value ``i``, which no data enters, as a part of the key: what it is computed from."""
        if i in learned:
            return [learned[i]]
        learned[i] = len(learned)
        value = self.values[i]
        if value.kind == "parameter":
            return [learned[i], value.shape, self._begins(user, i)]
        row: list[object] = [learned[i], value.name, value.shape, self.number(Ref(i))]
        row += map(_unnumbered, (*value.args, *value.options.items()))
        for j in value.inputs:
            row += self._given(value, j, learned)
        return row

    def _begins(self, value: Traced, learned: int) -> object:
        """What a learned factor begins with; weights and the biases of layers and norms do not
        matter."""
        shape = self.values[learned].shape
        if value.kind in ("weights", "contract") or _wide(shape) or learned == bias_of(value):
            return shape
        tensor = self.tensor(learned)
        return shape if tensor is None else begins(tensor)

    # ------------------------------------------------------------------------- the block

    def block(self) -> Block:
        """The region's statement; a value in use twice is named first, unless it is the state."""
        for attempt in range(_ATTEMPTS):
            try:
                self._memo = {}
                self.dropped.clear()
                self.elsewhere.clear()
                top = self.value(self.after)
                if _nested(top) > _NESTED:
                    raise RecursionError
                break
            except Unsayable as found:
                self._hide(found, whole=attempt >= _DETAILED)
            except RecursionError:
                path = self.roles.graph.path(self.after)
                self.opaque.append((path, "too much in series to be read back"))
                top = self._whole()
                break
        else:
            top = self._whole()
        return Block(tuple(shared(top)))

    def _whole(self) -> Opaque:
        """The region as one operation."""
        self.elsewhere.clear()
        return Opaque(self._type(self.after), (State(),), self._layers(self.inside))

    def _hide(self, found: Unsayable, whole: bool) -> None:
        """Hide the smallest module around what cannot be said, without one the value alone, or
        after several attempts the whole branch that it is in."""
        graph = self.roles.graph
        entry = (graph.path(found.at), found.name)
        if entry not in self.opaque:
            self.opaque.append(entry)
        if whole and (branch := self._branch_of(found.at)):
            end, members = branch
            self._hidden[end] = (f"{self._type(found.at)} branch", members)
            return
        call = self.values[found.at].call
        while call > 0:
            members = {i for i in self.inside if _within(graph.calls, self.values[i].call, call)}
            if self.end in members:
                break  # hiding this module would hide the sum, and with it the skip
            ends = [i for i in members if self._leaves(i, members)]
            hidden = self._hidden.get(ends[0], ("", set()))[1] if ends else set()
            if len(ends) == 1 and len(hidden) < len(members):
                single = sum(self.values[i].kind not in ("shape", "drop") for i in members) == 1
                if single and not self.values[found.at].data:
                    break  # what meets this constant can be said
                name = found.name if single else graph.calls[call].type
                self._hidden[ends[0]] = (name, members)
                return
            call = graph.calls[call].parent
        self._hidden[found.at] = (found.name, self._norm_at(found.at))

    def _norm_at(self, at: int) -> set[int]:
        """Value ``at``, with its statistic if it is a norm."""
        base = self.roles.norm_of(at)
        if base is None:
            return {at}
        return (self.roles.graph.ancestors([at], base + 1) & self.inside) - {base}

    def _branch_of(self, at: int) -> tuple[int, set[int]] | None:
        """The branch that holds value ``at``: its last term, and all of it but norms and factors
        at its beginning."""
        for terms in self.branches:
            for term in terms:
                inside = self.roles.graph.ancestors([term], self.before + 1)
                inside &= self.inside
                members = {i for i in inside if i == term or not self._leads(i)}
                # What carries no gradient, a constant, is in no branch by its values.
                known = at in inside or at not in self.reached
                if known and len(self._hidden.get(term, ("", set()))[1]) < len(members):
                    return term, members
        return None

    def _leads(self, i: int) -> bool:
        """Whether value ``i`` is the state with nothing but norms and factors done to it."""
        found = chain(self.roles, i)
        return self.before in found and found[self.before] in _LEADING

    def _leaves(self, i: int, members: set[int]) -> bool:
        if i == self.after:
            return True
        users = self.roles.graph.consumers[i]
        return any(u in self.inside and u not in members for u in users)

    @cached_property
    def _depths(self) -> dict[int, int]:
        """The most weight layers in series between the state and each value."""
        return series(self.roles, sorted(self.inside))

    def _layers(self, members: set[int]) -> Number:
        depths = series(self.roles, sorted(members), self._depths)
        return Number(float(max(depths.values(), default=0)))

    def _type(self, i: int) -> str:
        return self.roles.graph.calls[self.values[i].call].type or self.values[i].name

    # --------------------------------------------------------------------------- values

    def value(self, i: int) -> Value:
        """The node of value ``i``."""
        if i == self.before:
            return State()
        if i == self.initial:
            return Initial()
        if i in self.foreign:
            self._met(i)
            return Opaque(self.foreign[i])
        if i not in self._memo:
            self._memo[i] = self._opaque(i) if i in self._hidden else self._read(self.values[i])
        return self._memo[i]

    def tensor(self, i: int) -> Tensor | None:
        return self.sources.tensor(i)

    def _opaque(self, i: int) -> Value:
        name, members = self._hidden[i]
        below = {j for k in members for j in self.roles.flow[k]} - members
        entering = {j for j in below if self.values[j].data}
        if not self.values[self.before].data:  # a state that is learned: latents, queries
            above = self.roles.graph.ancestors(below - entering, self.before)
            entering |= above & {self.before}
        layers = self._layers(members)
        if not entering and not layers.value:
            return self._from_elsewhere(i, name)
        return Opaque(name, tuple(self.value(j) for j in sorted(entering)), layers)

    def _read(self, value: Traced) -> Value:
        """The language's node; a function called in a way that nobody foresaw has none."""
        try:
            return self._said(value)
        except (IndexError, KeyError, TypeError, ValueError):
            raise Unsayable(value.index, value.name) from None

    def _said(self, value: Traced) -> Value:
        i = value.index
        if i < self.before or not value.data:
            return self._outside(value)
        base = self.roles.norm_of(i)
        if base is not None and (found := norm(self, value, base)) is not None:
            return found
        if (seen := self.sources.activations.get(i)) is not None:
            return self._activation(seen, value)
        if (whole := attention(self, value)) is not None:
            return whole
        match value.kind:
            case "shape" if value.item >= 0 and (part := part_of_layer(self, value)):
                return part
            case "shape" if len(value.inputs) and keeps_all(self.roles, value):
                if scrambles(self, value):
                    raise Unsayable(i, value.name)
                return self.value(value.inputs[0])
            case "drop":
                return self._drop(value)
            case "sum":
                return self._sum(value)
            case "product":
                return self._product(value)
            case "weights" | "contract":
                return layer(self, value)
            case "act" | "point":
                kind = value.name
                if kind in ACTIVATIONS and len(self.roles.moving(value.inputs)) == 1:
                    return Activation(kind, self.value(value.inputs[0]), filled(ACTIVATIONS[kind]))
                raise Unsayable(i, kind)
        raise Unsayable(i, value.name)

    def _outside(self, value: Traced) -> Value:
        """A value from before the region, or one that no data enters."""
        if not value.data:
            try:
                return self.learned(value.index)
            except Unsayable:
                return self._from_elsewhere(value.index, value.path or f"constant {value.name}")
        path = self._met(value.index)
        return self._from_elsewhere(value.index, path or "an earlier tensor")

    def _met(self, i: int) -> str:
        """The path of a value that the region meets and does not make, which is listed once."""
        path = self.roles.graph.path(i) or self.values[i].path
        if (path, _ELSEWHERE) not in self.elsewhere:
            self.elsewhere.append((path, _ELSEWHERE))
        return path

    def _from_elsewhere(self, i: int, name: str) -> Opaque:
        """A value that is not computed from the state, by its path inside the region's module; one
        name is one value."""
        if self.path and name.startswith(f"{self.path}."):
            name = name[len(self.path) + 1 :]
        called = self._elsewhere.setdefault(name, [])
        if i not in called:
            called.append(i)
        entry = (self.roles.graph.path(i), self.values[i].path or name)
        if not self.values[i].data and entry not in self.opaque:
            self.opaque.append(entry)
        place = called.index(i)
        return Opaque(f"{name} {place + 1}" if place else name)

    def _activation(self, seen: Seen, value: Traced) -> Value:
        if seen.call in self.sources.composites:
            inside = [i for i in self.inside if self.values[i].call == seen.call]
            entering = {j for i in inside for j in self.values[i].inputs if self._carries(j)}
            entering -= set(inside)
            if len(entering) != 1:
                raise Unsayable(value.index, seen.kind)
            z = entering.pop()
        else:
            z = value.inputs[0]
        if seen.kind not in ACTIVATIONS:
            raise Unsayable(value.index, seen.kind)
        options = tuple(
            (name, option_of(seen.options.get(name, default)))
            for name, default in ACTIVATIONS[seen.kind].items()
        )
        return Activation(seen.kind, self.value(z), options)

    def _drop(self, value: Traced) -> Value:
        inner, p = self.value(value.inputs[0]), drop_rate(value)
        return Dropout(inner, Number(p)) if p else inner

    def _sum(self, value: Traced) -> Value:
        i, name = value.index, value.name
        if self.roles.centred(i) is not None:
            raise Unsayable(i, "centring")
        if value.item == GRAFTED:
            terms = self.roles.terms(i)
            if len(terms) != 2 or name != "add":
                raise Unsayable(i, name)
            return self._ordered(self.value(terms[0][0]), self.value(terms[1][0]))
        if name in ("add", "iadd", "sub", "subtract", "isub", "rsub"):
            left, right = self._two(value)
            alpha = value.options.get("alpha", 1)
            a, b = self._operand(left), self._operand(right)
            if name == "rsub":
                a, b = b, a
            sign = -1 if name in ("sub", "subtract", "isub", "rsub") else 1
            if isinstance(a, LearnedGain) and isinstance(b, Norm) and sign > 0 and alpha == 1:
                a, b = b, a
            if isinstance(a, Norm) and sign > 0 and alpha == 1:
                return shifted(a, b) if isinstance(b, LearnedGain) else self._ordered(a, b)
            return self._ordered(a, scaled(sign * alpha, b))
        if name in ("addmm", "baddbmm", "stack", "sum", "index_add", "scatter_add", "addcmul"):
            terms = self.roles.terms(i)
            if name == "addcmul" and value.options.get("value", 1) != 1:
                raise Unsayable(i, name)
            out = self.value(terms[0][0])
            for j, _ in terms[1:]:
                out = Add(out, self.value(j))
            return out
        if name == "mean":
            terms = self.roles.terms(i)
            out = self.value(terms[0][0])
            for j, _ in terms[1:]:
                out = Add(out, self.value(j))
            return scaled(1 / len(terms), out)
        if name == "lerp":
            start, end, weight = (*value.args, value.options.get("weight"))[:3]
            if (weight := self.number(weight)) is not None:
                a, b = self._operand(start), self._operand(end)
                return Add(scaled(1 - weight, a), scaled(weight, b))
        raise Unsayable(i, name)

    @staticmethod
    def _ordered(a: Value, b: Value) -> Value:
        """A sum in which the stream stands first, whichever operand of the function it was, or a
        number that something is taken from."""
        taken = isinstance(b, Constant) and isinstance(a, Scale)
        if b == Constant(Number(0.0)):
            return a
        turned = taken or (carried(b) and not carried(a)) or (known(a) and not known(b))
        return Add(b, a) if turned else Add(a, b)

    @staticmethod
    def _two(value: Traced) -> tuple[Any, Any]:
        """The two operands of a binary function."""
        given = [*value.args[:2]]
        given += [value.options[k] for k in ("input", "other") if k in value.options]
        if len(given) < 2:
            raise Unsayable(value.index, value.name)
        return given[0], given[1]

    def _operand(self, operand: Any) -> Value:
        if isinstance(operand, Ref):
            value = self.values[operand]
            return self.value(operand) if value.data else self.learned(operand)
        if isinstance(operand, int | float):
            return Constant(Number(float(operand)))
        raise Unsayable(self.after, "an operand that is no tensor")

    def number(self, operand: Any) -> float | None:
        """An operand that is a number, or a tensor that holds one and that nothing computes."""
        return number_in(self.roles, operand)

    def _product(self, value: Traced) -> Value:
        if value.name in NEGATIONS:
            return scaled(-1.0, self._operand(Ref(value.inputs[0])))
        divides = value.name in ("div", "divide", "true_divide", "truediv")
        if value.options.get("rounding_mode"):
            raise Unsayable(value.index, "division")
        left, right = self._two(value)
        for x, factor, turned in ((left, right, False), (right, left, True)):
            number = self.number(factor)
            if number is None or (value.name == "rdiv" or (divides and turned)):
                continue
            if not (divides and not number):
                return scaled(1 / number if divides else number, self._operand(x))
        refs = isinstance(left, Ref) and isinstance(right, Ref)
        if divides or value.name == "rdiv" or not refs:
            raise Unsayable(value.index, "division")
        for x, factor in ((left, right), (right, left)):
            if not self.values[factor].data:
                found = self.learned(factor)
                if (norm := scalenorm(self, x, found)) is not None:
                    return norm
                return gained(self._operand(x), found)
        return Product(self.value(left), self.value(right))

    def learned(self, i: int) -> Value:
        """The node of value ``i``, which parameters and numbers alone make."""
        if i in self._hidden:
            return self.value(i)
        if i not in self._memo:
            self._memo[i] = self._learned(self.values[i])
        return self._memo[i]

    def _learned(self, value: Traced) -> Value:
        """A learned number, a gain, a constant, or what is computed from those."""
        i = value.index
        if (number := self.number(Ref(i))) is not None:
            return Constant(Number(number))
        if value.kind in ("parameter", "shape"):
            return self._parameter(value)
        if value.kind == "product":
            return self._product(value)
        if value.kind == "sum":
            return self._sum(value)
        if len(value.inputs) == 1 and value.name in ACTIVATIONS:
            seen = self.sources.activations.get(i)
            given = seen.options if seen is not None else {}
            of = ACTIVATIONS[value.name]
            options = tuple((k, option_of(given.get(k, default))) for k, default in of.items())
            return Activation(value.name, self.learned(value.inputs[0]), options)
        raise Unsayable(i, value.path or value.name)

    def _parameter(self, value: Traced) -> Value:
        """A learned number, or one number a channel, perhaps seen through views."""
        whole = value
        while whole.kind == "shape" and len(whole.inputs) == 1:
            if math.prod(whole.shape) != math.prod(self.values[whole.inputs[0]].shape):
                break
            whole = self.values[whole.inputs[0]]
        tensor = self.tensor(whole.index) if whole.kind == "parameter" else None
        if whole.kind == "shape" and whole.name in ("getitem", "unbind"):
            tensor = self._row(whole)
        if tensor is None:
            raise Unsayable(value.index, whole.path or value.name)
        if tensor.numel() == 1:
            return LearnedScalar(Number(short(tensor)), f"{whole.index}")
        if not self._a_channel(value.shape):
            raise Unsayable(value.index, whole.path or value.name)
        return learned_gain(tensor, whole.index)

    def _row(self, value: Traced) -> Tensor | None:
        """One row of a table of parameters."""
        held = self.values[value.inputs[0]]
        table = self.tensor(held.index) if held.kind == "parameter" else None
        places = value.args[1:2] if value.name == "getitem" else (value.item,)
        if table is None or not places or (value.name == "unbind" and any(value.args[1:])):
            return None
        try:
            row = table[places[0]]
        except (IndexError, TypeError):
            return None
        return row if row.shape == value.shape else None

    def _a_channel(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape gives one number to each channel that it meets: along the
        state's axis of channels, or where linear layers and convolutions have them."""
        wide = [a - len(shape) for a, size in enumerate(shape) if size > 1]
        size = len(self.values[self.before].shape)
        return wide in ([self.axis - size], [-1], [-3] if size == 4 else [-1])

    def vector(self, i: int) -> LearnedGain | None:
        """Value ``i`` if it is a parameter with numbers along one axis."""
        tensor = self.tensor(i)
        if self.values[i].kind != "parameter" or tensor is None or tensor.dim() != 1:
            return None
        return learned_gain(tensor, i)


def _nested(top: Value) -> int:
    """How many nodes stand in each other, each looked into once."""
    depths: dict[int, int] = {}
    todo: list[Any] = [top]
    while todo:
        node = todo[-1]
        below = list(children(node))
        fresh = [child for child in below if id(child) not in depths]
        if fresh:
            todo += fresh
        else:
            depths[id(node)] = 1 + max((depths[id(child)] for child in below), default=0)
            todo.pop()
    return depths[id(top)]


def _wide(shape: tuple[int, ...]) -> bool:
    """Whether numbers lie along more than one axis."""
    return sum(size > 1 for size in shape) > 1


def _unnumbered(argument: Any) -> Any:
    """An argument that can be compared, without the numbers of values in it."""
    if type(argument) is Ref:
        return None
    if isinstance(argument, tuple):
        return tuple(map(_unnumbered, argument))
    return str(argument) if isinstance(argument, slice) else argument


def _within(calls: Sequence[Any], call: int, outer: int) -> bool:
    while call > outer:
        call = calls[call].parent
    return call == outer
