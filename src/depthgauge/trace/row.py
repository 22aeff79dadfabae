"""A region of the graph as a recipe counts it: a residual branch, and the weights in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from depthgauge.trace.analysis import Analysis
from depthgauge.trace.coefficients import after_sum, entering, parameter_of
from depthgauge.trace.counted import Normed, Residual, Weight
from depthgauge.trace.fans import bias_of, fans_of, groups_of, lengths_of, strides_of
from depthgauge.trace.forms import Form
from depthgauge.trace.gates import gates_of
from depthgauge.trace.graph import Value
from depthgauge.trace.heads import ROLES, crossing, normed_operands
from depthgauge.trace.links import Branch, Link
from depthgauge.trace.logits import around, logits
from depthgauge.trace.normed import normed
from depthgauge.trace.norms import by_length
from depthgauge.trace.readings import Activation as Bent
from depthgauge.trace.readings import Readings, activation_path
from depthgauge.trace.series import series

__all__ = ["Row", "held_by"]


@dataclass(frozen=True)
class Row:
    """Values of a region in forward order, and what recipes count among them."""

    analysis: Analysis
    readings: Readings
    parts: Mapping[int, Mapping[str, tuple[int, ...] | None]]
    order: Sequence[int]
    tables: Collection[str]  # parameters that embeddings read
    scored: Collection[int]  # values between projections and the scores of attention

    def residual(
        self,
        stream: str,
        block: int,
        branch: Branch,
        link: Link,
        form: Form,
        on_stream: Collection[int] = (),
    ) -> Residual:
        """The residual branch that a link adds, of whose stream and block this region is.
        ``on_stream``: activations of the stream, which are no branch's own."""
        values, roles = self.analysis.graph.values, self.analysis.roles
        skip = self.analysis.graph.ancestors([link.merge.skip], branch.begin) - {branch.begin}
        across = replace(self, order=sorted(skip))
        inlet = self._inlet(across, branch.begin)
        after = self.analysis.graph.ancestors([link.after], link.merge.value) - {link.merge.value}
        # Also those that a module spells out in several functions.
        own = set(self.order).difference(on_stream)
        bent = [values[i] for i in sorted(own) if i in self.readings.activations]
        scored, weights = logits(roles, self.parts, self.order), self.weights(branch.begin)
        return Residual(
            stream,
            block,
            branch.path,
            branch.m,
            weights,
            branch.norm_at,
            self._norms(link, form),
            tuple(self.analysis.graph.path(value.index) for value in bent),
            sum(_activation_shifted(self.analysis, self.readings, value) for value in bent),
            sum(
                values[i].kind == "product" and _has_number(self.analysis, values[i])
                for i in self.order
            ),
            form.skip,
            form.factor,
            form.learned,
            self._returned(link.merge.value),
            within=self.analysis.graph.path(link.merge.value),
            inlet=form.inlet if math.isnan(inlet) else inlet,
            dropout=self._dropout(branch.terms),
            carried=form.carried,
            carriers=self._carriers(link),
            across=across.weights(branch.begin) if link.merge.kind == "projected" else (),
            bent=any(i in self.readings.activations for i in after),
            leaks=self._leaks(link, branch),
            logits=scored.number,
            head=scored.head,
            queries=self.analysis.graph.path(scored.queries) if scored.queries >= 0 else "",
            numbers=self._learned_numbers(branch, link),
            keys=scored.keys,
            temperatures=scored.learned,
            scored=self._scored(),
            behind=after_sum(roles, link.after, link.merge.value),
            outside=after_sum(roles, link.after, link.merge.value, outside=True),
            ended=self._ended(branch.terms, link.merge.value, after),
            width=_width(weights, values[link.merge.value].shape),
            bare=self._bare(branch.begin),
        )

    def _inlet(self, across: Row, begin: int) -> float:
        """The one number in front of all first layers of the branch, and of those of a skip that
        are given what they are given; NaN of several. What a skip's layer reads of the state itself
        is nothing of a branch that reads a norm."""
        roles = self.analysis.roles
        own = [entering(roles, i, begin) for i in self._entered(begin)]
        starts = {start for _, start in own}
        beside = [entering(roles, i, begin) for i in across._entered(begin)]
        numbers = {number for number, start in (*own, *beside) if start in starts or not own}
        return numbers.pop() if len(numbers) == 1 else math.nan

    def _scored(self) -> tuple[tuple[str, str, int], ...]:
        """Role, kind and width of the norms between projections and the products of attention."""
        found = []
        for role, i in normed_operands(self.analysis.roles, self.order):
            norm = normed(self.analysis, i, "query-key", Form())
            kind, width = norm.kind, norm.width
            if length := by_length(self.analysis.roles, i):
                kind = "l2" if length[0] == -1 else f"l2 over axis {length[0]}"
                width = length[1]
            found.append((role, kind, width))
        return tuple(dict.fromkeys(found))

    def _learned_numbers(self, branch: Branch, link: Link) -> tuple[tuple[str, str], ...]:
        graph, found = self.analysis.graph, []
        skip = graph.ancestors([link.merge.skip], branch.begin) - set(self.order)
        for i in sorted(graph.ancestors([link.merge.value], branch.begin)):
            kind, inputs = graph.values[i].kind, graph.values[i].inputs
            # What is added in front may be added to the skip too; what multiplies that is its own.
            if kind == "sum" or (kind == "product" and i not in skip):
                held = (parameter_of(graph.values, j) for j in inputs)
                numbers = [p.path for p in held if p is not None and prod(p.shape) == 1]
                if any(graph.values[j].data for j in inputs):
                    found += [(path, kind) for path in numbers]
        return tuple(dict.fromkeys(found))

    def _leaks(self, link: Link, branch: Branch) -> bool:
        """Whether a number that is added in front of the branch's layers is added to an identity
        skip as well, or to the sum: in one sum that both read, or once more in another."""
        graph, roles = self.analysis.graph, self.analysis.roles
        if link.merge.kind not in ("identity", "scaled"):
            return False  # Fixup's strided shortcuts take it
        skip = graph.ancestors([link.merge.skip], branch.begin)
        entering = {j for i in self._entered(branch.begin) for j in roles.flow[i]}
        front = {path for i in entering for path in _numbers_added(self.analysis, i)}
        inside = graph.ancestors(entering, branch.begin) - skip
        rest = graph.ancestors([link.after], branch.begin) - inside
        return any(not front.isdisjoint(_numbers_added(self.analysis, i)) for i in rest)

    def _carriers(self, link: Link) -> tuple[str, ...]:
        """The parameters that the stream is multiplied by on its way to the sum."""
        values, found = self.analysis.graph.values, []
        for i in values[link.merge.value].inputs:
            if values[i].kind == "product" and link.before in values[i].inputs:
                todo = [j for j in values[i].inputs if not values[j].data]
                while todo:  # through views of a parameter
                    value = values[todo.pop()]
                    found += [value.path] if value.kind == "parameter" else []
                    todo += value.inputs if value.kind == "shape" else ()
        return tuple(found)

    def _ended(self, terms: Sequence[int], total: int, after: Collection[int]) -> bool:
        """Whether a learned number is added behind the last weight layers, or to the sum, in front
        of the first of the activations ``after`` it."""
        analysis, roles = self.analysis, self.analysis.roles
        todo = [i for i in terms if i in self.order]
        found = {total, *todo}
        for i in sorted(analysis.graph.ancestors([total], min(todo, default=0)) - {total}):
            if not found.isdisjoint(roles.flow[i]):
                found.add(i)  # between the branch's terms and the sum
        for i in sorted(after):
            if i not in self.readings.activations and not found.isdisjoint(roles.flow[i]):
                found.add(i)  # behind the sum
        for i in todo:  # down to the layers
            below = [] if roles.layers(i) else [j for j in roles.flow[i] if j in self.order]
            todo += [j for j in below if j not in todo]
        values = (analysis.graph.values[i] for i in found | set(todo))
        return any(value.kind == "sum" and _has_number(analysis, value) for value in values)

    def _dropout(self, terms: Sequence[int]) -> float:
        """Of the dropout between the last weight layer and the sum."""
        roles, todo = self.analysis.roles, list(terms)
        for i in todo:
            value = roles.values[i]
            numbers = [a for a in (*value.args, value.options.get("p")) if isinstance(a, float)]
            if value.kind == "drop" and numbers and value.name.endswith("dropout"):
                return numbers[0]
            if not roles.layers(i) and i in self.order:
                todo += roles.flow[i]
        return 0.0

    def _returned(self, i: int) -> str:
        """The path of the module that returns value ``i``: the one it was made in, if all that is
        computed from it is computed outside."""
        graph = self.analysis.graph
        call = graph.values[i].call
        for j in graph.consumers[i]:
            at = graph.values[j].call
            while at > call:
                at = graph.calls[at].parent
            if at == call:
                return ""
        return graph.calls[call].path

    def _norms(self, link: Link, form: Form) -> tuple[Normed, ...]:
        """The norms among the values, and those between the sum and what the stream passes on."""
        analysis, roles = self.analysis, self.analysis.roles
        depth = series(roles, self.order)
        whole = max(depth.values(), default=0)
        found: dict[int, Normed] = {}
        leading = self._leading()
        for i in self.order:
            if roles.norm_of(i) is not None:
                at = "in" if not depth[i] else "out" if depth[i] == whole else "inner"
                at = "query-key" if at == "inner" and i in self.scored else at
                last = at == "inner" and i in leading
                found[i] = replace(normed(analysis, i, at, form), last=last)
        between = analysis.graph.ancestors([link.after], link.merge.value)
        for i in sorted(between - {link.merge.value}):
            if roles.norm_of(i) is not None:
                found[i] = normed(analysis, i, "stream", form)
        own = {i: norm for i, norm in found.items() if not self._again(i, found)}
        return tuple(replace(norm, beside=self._beside(i, own)) for i, norm in own.items())

    def _beside(self, i: int, norms: Mapping[int, Normed]) -> bool:
        """Whether other norms in front of the branch come before value ``i``, and none of them
        gives what it norms: each of the layers that read the stream has its own."""
        before = [j for j, norm in norms.items() if j < i and norm.at == "in"]
        below = self.analysis.graph.ancestors([i], min(before, default=i))
        return norms[i].at == "in" and bool(before) and below.isdisjoint(before)

    def _again(self, i: int, norms: Mapping[int, Normed]) -> bool:
        """Whether an equal norm came before value ``i``, beside it: layers that read one tensor
        through one module. One of its own result is another norm."""
        equal = [j for j, norm in norms.items() if j < i and norm == norms[i]]
        return any(j not in self.analysis.graph.ancestors([i], j) for j in equal)

    def _leading(self) -> set[int]:
        """The norms whose results enter a layer behind which there is no other, with nothing but
        gains, offsets and views between."""
        roles, values = self.analysis.roles, self.analysis.graph.values
        behind: set[int] = set()  # values that a layer follows
        todo: list[int] = []
        found: set[int] = set()
        for i in reversed(self.order):
            if roles.layers(i) and i not in behind:
                todo += roles.flow[i]
            if roles.layers(i) or i in behind:
                behind.update(roles.flow[i])
        while todo:
            i = todo.pop()
            if roles.norm_of(i) is not None:
                found.add(i)
            elif values[i].kind in ("shape", "drop", "product", "sum") and not roles.bends(i):
                moving = roles.moving(values[i].inputs)
                todo += moving if len(moving) == 1 else []
        return found

    def weights(self, begin: int = -1) -> tuple[Weight, ...]:
        """The weights; those of a layer that is several, as attention, in its order; of attention
        to another stream also those of its keys and values."""
        roles, values = self.analysis.roles, self.analysis.graph.values
        after: dict[int, int] = {}  # weight layers between a value and the region's end
        aside: set[int] = set()  # values that reach it as gates
        entered = self._entered(begin)
        found: list[list[Weight]] = []
        for i in sorted({*self.order, *crossing(roles, self.order)}, reverse=True):
            weighing = i not in after and i in aside
            behind, layers = int(weighing) or after.get(i, 0), roles.layers(i)
            held = held_by(self.analysis, i) if layers else []
            row = []
            for k, (place, group) in enumerate(held):
                # Of attention in one function, the output's weight comes last.
                last = behind == 0 and k == len(held) - 1
                lengths = lengths_of(dict(group))
                for path, shape in group:
                    if path == lengths:
                        continue
                    whole = self._weight(values[i], place, path, shape, last)
                    whole = replace(whole, lengths=lengths)
                    whole = replace(whole, first=i in entered and (not last or len(held) == 1))
                    row += self._split(values[i], whole, behind, k, len(held))
            found.append(row)
            gates = gates_of(roles, i)
            # A sum over an axis of an elementwise product says it there.
            below = gates or (values[i].kind == "reduce" and gates_of(roles, values[i].inputs[0]))
            weighed = bool(below) and not roles.weighs(values[i])
            for j in roles.flow[i]:
                if weighing or j in gates:
                    aside.add(j)
                else:  # what weighs a value stands beside it, not behind it
                    after[j] = max(after.get(j, 0), behind + (0 if weighed else layers))
        return tuple(dict.fromkeys(weight for part in reversed(found) for weight in part))

    def _entered(self, begin: int) -> set[int]:
        """The weight layers that value ``begin`` reaches through none."""
        roles = self.analysis.roles
        bare, found = {begin}, set()
        for i in self.order:
            if not bare.isdisjoint(roles.flow[i]):
                if roles.layers(i) and roles.values[i].kind != "attend":
                    found.add(i)
                else:
                    bare.add(i)
        return found

    def _bare(self, begin: int) -> tuple[str, ...]:
        """The modules of what reads value ``begin`` through no norm, and weighs or mixes it."""
        roles, graph, bare, found = self.analysis.roles, self.analysis.graph, {begin}, []
        for i in self.order:
            if bare.isdisjoint(roles.flow[i]) or roles.norm_of(i) is not None:
                continue
            if roles.moves(i):
                found.append(graph.path(i))
            else:
                bare.add(i)
        return tuple(dict.fromkeys(found))

    def _weight(
        self, value: Value, place: int, path: str, shape: tuple[int, ...], last: bool
    ) -> Weight:
        fan_in, fan_out, axis = fans_of(self.analysis, value, place, shape)
        shifted = _shifted(self.analysis, value)
        groups = groups_of(self.analysis, value, shape)
        if axis:
            fan_in //= groups
        else:
            fan_out //= groups
        found = Weight(path, shape, fan_in, fan_out, last, shifted, "", axis, None, fan_out)
        # One NaN is as good as another: weights that are alike are counted once.
        front, behind = (
            math.nan if math.isnan(number) else number
            for number in around(self.analysis.roles, value.index)
        )
        found = replace(
            found,
            groups=groups,
            strides=strides_of(value, shape),
            bias=bias_of(self.analysis, value, place),
            looked_up=path in self.tables,
            called=self.analysis.graph.path(value.index),
            front=front,
            behind=behind,
        )
        if (bend := self._followed(value)) is None:
            return found
        return replace(
            found,
            follows=bend.kind,
            bend=tuple(sorted(bend.options.items())),
            activation=activation_path(self.analysis.graph, self.readings, bend),
        )

    def _followed(self, value: Value) -> Bent | None:
        """The activation that what enters the layer comes from, through numbers alone."""
        roles = self.analysis.roles
        entering = roles.moving(value.inputs)
        while len(entering) == 1:
            i = entering[0]
            if i in self.readings.activations:
                return self.readings.activations[i]
            if roles.layers(i) or roles.norm_of(i) is not None:
                return None
            entering = [j for j in roles.flow[i] if roles.values[j].data]
            if roles.values[i].kind not in ("shape", "drop", "product", "sum"):
                return None
        return None

    def _split(
        self, value: Value, whole: Weight, behind: int, place: int, parts: int
    ) -> list[Weight]:
        """The weight, or a part for each role that its rows have in attention."""
        if value.name == "multi_head_attention_forward":
            return _of_attention(whole, place, parts)
        roles = self.parts.get(value.index)
        if not roles:
            after = behind == 0 and any(self._attended(j) for j in value.inputs)
            return [replace(whole, role="output" if after else "")]
        if len(roles) == 1:
            return [replace(whole, role=next(iter(roles)))]
        if any(rows is None for rows in roles.values()) or len(set(roles.values())) < len(roles):
            return [replace(whole, role="projection")]
        out = whole.shape[whole.axis]
        return [
            replace(
                whole,
                role=role,
                rows=rows,
                fan_out=whole.fan_out * len(rows) // out,
                last=whole.last and role == "value",
            )
            for role, rows in roles.items()
            if rows is not None
        ]

    def _attended(self, i: int) -> bool:
        """Whether value ``i`` is what attention gives, moved about."""
        roles, values = self.analysis.roles, self.analysis.graph.values
        while values[i].kind in ("shape", "drop") and values[i].inputs:
            i = values[i].inputs[0]
        return values[i].kind in ("attend", "contract", "reduce") and roles.layers(i) == 2


def _width(weights: Sequence[Weight], shape: tuple[int, ...]) -> int:
    """The channels of a sum of this shape: what leaves the last of the layers that ends on one of
    its axes of channels, the second of kernels; else the last axis, as behind experts, whose
    weights lie in one stack."""
    if not shape:
        return 1
    channels = {shape[-1]}
    if len(shape) > 2 and any(len(w.shape) > 2 and w.fan_in for w in weights):
        channels.add(shape[1])
    ends = (w.turned[0] for w in reversed(weights) if w.last and w.fan_in)
    return next((out for out in ends if out in channels), shape[-1])


def _of_attention(whole: Weight, place: int, parts: int) -> list[Weight]:
    """The weights of attention in one function: queries, keys and values, stacked or each its own,
    then the output."""
    if place == parts - 1:
        return [replace(whole, role="output")]
    if parts > 2:
        return [replace(whole, role=ROLES[place] if place < len(ROLES) else "")]
    third = whole.shape[0] // 3
    rows = [tuple(range(k * third, (k + 1) * third)) for k in range(3)]
    return [
        replace(whole, role=role, rows=own, fan_out=third)
        for role, own in zip(ROLES, rows, strict=True)
    ]


def held_by(analysis: Analysis, i: int) -> list[tuple[int, list[tuple[str, tuple[int, ...]]]]]:
    """The matrices and kernels that value ``i`` is made with, by their place among its inputs;
    those together that one weight is computed of (a direction and its lengths)."""
    values = analysis.graph.values
    groups = []
    for place, j in enumerate(values[i].inputs):
        found: dict[str, tuple[int, ...]] = {}
        todo = [] if values[j].data else [j]
        while todo:
            value = values[todo.pop()]
            if value.kind == "parameter" and len(value.shape) > 1:
                found.setdefault(value.path, value.shape)
            todo += [k for k in reversed(value.inputs) if not values[k].data]
        if found:
            groups.append((place, list(found.items())))
    return groups


def _activation_shifted(analysis: Analysis, readings: Readings, value: Value) -> bool:
    if value.call not in readings.composites:
        return _shifted(analysis, value)
    values = analysis.graph.values
    own = [v for v in values if v.call == value.call]
    entering = {j for v in own for j in v.inputs if values[j].data and values[j].call != value.call}
    return any(values[j].kind == "sum" and _has_number(analysis, values[j]) for j in entering)


def _shifted(analysis: Analysis, value: Value) -> bool:
    """Whether a learned number was added to what enters."""
    values = analysis.graph.values
    entering = analysis.roles.moving(value.inputs)
    for _ in range(4):
        if not entering:
            return False
        value = values[entering[0]]
        if value.kind not in ("shape", "drop"):
            break
        entering = analysis.roles.moving(value.inputs)
    return value.kind == "sum" and _has_number(analysis, value)


def _numbers_added(analysis: Analysis, i: int) -> set[str]:
    """The learned numbers that value ``i``, a sum, adds to what it is made of."""
    values = analysis.graph.values
    if values[i].kind != "sum" or not any(values[j].data for j in values[i].inputs):
        return set()
    held = (parameter_of(values, j) for j in values[i].inputs)
    return {value.path for value in held if value is not None and prod(value.shape) == 1}


def _has_number(analysis: Analysis, value: Value) -> bool:
    """Whether one of the inputs is a learned number."""
    values = analysis.graph.values
    inputs = [values[i] for i in value.inputs]
    number = any(v.kind == "parameter" and prod(v.shape) == 1 for v in inputs)
    return number and any(v.data for v in inputs)
