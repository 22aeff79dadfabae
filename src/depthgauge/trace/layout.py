"""What a recipe counts, found on the model: residual branches, the weight layers in each.

A recipe's numbers depend on L and m, and a wrong count goes unseen: here both come from the pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor, nn

from depthgauge.equation.count import count
from depthgauge.equation.nodes import LearnedScalar
from depthgauge.equation.scalars import evaluate
from depthgauge.trace.analysis import Analysis, Step, analyse
from depthgauge.trace.coefficients import after_sum, entering, parameter_of, weighed
from depthgauge.trace.graph import Graph, Value, common_path
from depthgauge.trace.heads import ROLES, projections
from depthgauge.trace.readings import Activation as Bent
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import quiet, run, unwrapped
from depthgauge.trace.streams import Branch, Link, region

__all__ = ["Layout", "Normed", "Residual", "Weight", "layout"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path, or the rows of one that have one role.

    ``fan_in`` numbers enter each of ``fan_out`` (of a kernel, with its places); 0 where the
    function does not say. ``axis``: where its outputs lie; ``rows``: which of them are meant, all
    if None; ``stacked``: the fan out of all. ``role``: query, key, value or output of attention,
    else ``""``. ``last``: no weight layer stands between it and the sum, or the output.
    ``first``: nor between it and what the branch begins with. ``shifted``: a learned number is
    added to what enters it. ``bias``: the path of the vector added to what leaves it, ``""``
    where there is none. ``follows``: the kind of the activation that enters it, ``""`` where the
    state or another layer does, and ``bend`` its options.
    """

    path: str
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    last: bool
    shifted: bool
    role: str = ""
    axis: int = 0
    rows: tuple[int, ...] | None = None
    stacked: int = 0
    first: bool = False
    bias: str = ""
    follows: str = ""
    bend: tuple[tuple[str, Any], ...] = ()

    @property
    def owner(self) -> str:
        """The path of the module that holds it."""
        return self.path.rpartition(".")[0]

    @property
    def turned(self) -> tuple[int, ...]:
        """The shape with its outputs first, ``(out, in, ...)``, of the rows that are meant."""
        shape = list(self.shape)
        if self.axis:
            shape[0], shape[self.axis] = shape[self.axis], shape[0]
        return tuple(shape) if self.rows is None else (len(self.rows), *shape[1:])

    def part(self, tensor: Tensor) -> Tensor:
        """What is meant of the tensor, outputs first: a view, or of some rows a copy."""
        turned = tensor.transpose(0, self.axis) if self.axis else tensor
        return turned if self.rows is None else turned[list(self.rows)]


@dataclass(frozen=True)
class Normed:
    """A norm of a branch, or on the stream after its sum: where, the module that it is (or stands
    in), the parameter of its gain (``""``: none), and how many numbers it is over."""

    at: str
    kind: str
    path: str
    gain: str
    width: int


@dataclass(frozen=True)
class Residual:
    """One residual branch.

    ``block``: its place among the blocks of its stream, from 1. ``m`` weight layers in series
    (attention has four), its weights in forward order, where it has norms and which, the modules of
    its activations (the branch's own where one is called as a function), in front of how many of
    them a learned number is added, and how many learned numbers multiply it. ``skip`` and
    ``factor``: the fixed numbers in front of the skip and of the branch in the sum (NaN where the
    block cannot be read); ``learned``: kind, ``scalar`` or ``gain``, and present value of what else
    multiplies the branch. ``sum``: the path of the module that returns the sum, ``""`` where none
    does. ``inlet``: the fixed number between the state (of a transition the sum before it), or the
    norm in front, and the first weight layers, also those of a skip that has its own (NaN where
    they differ). ``across``: the weights
    of such a skip. ``bent``: the stream passes an activation after the sum. ``leaks``: the learned
    number in front of the branch is added to an identity skip as well.
    """

    stream: str
    block: int
    path: str
    m: int
    weights: tuple[Weight, ...]
    norm_at: tuple[str, ...]
    norms: tuple[Normed, ...]
    activations: tuple[str, ...]
    shifted: int
    multipliers: int
    skip: float
    factor: float
    learned: tuple[tuple[str, float], ...]
    sum: str
    inlet: float = 1.0
    across: tuple[Weight, ...] = ()
    bent: bool = False
    leaks: bool = False

    @property
    def projected(self) -> bool:
        """Whether the skip has weights of its own, as that of a transition has."""
        return bool(self.across)

    @property
    def attends(self) -> bool:
        return any(weight.role for weight in self.weights)


@dataclass(frozen=True)
class Layout:
    """The residual branches of all streams, the weights after which no other comes (heads), those
    in no branch (stems, shortcuts, heads), the modules of all norms, and of those after the last
    sum, the parameters that are one number, and the modules of norms whose result nothing reads."""

    branches: tuple[Residual, ...]
    heads: tuple[Weight, ...]
    outside: tuple[Weight, ...]
    norms: tuple[str, ...]
    final: tuple[str, ...]
    scalars: tuple[str, ...]
    idle: tuple[str, ...] = ()

    @property
    def L(self) -> int:
        """Residual branches in the whole network."""
        return len(self.branches)

    @property
    def m(self) -> tuple[int, ...]:
        """The numbers of weight layers that a branch has, each once, from the smallest on."""
        return tuple(sorted({branch.m for branch in self.branches}))

    @property
    def hidden(self) -> tuple[Weight, ...]:
        """The weights of all branches; in a network without a branch, all weights but heads."""
        if self.branches:
            return tuple(w for branch in self.branches for w in branch.weights if w.fan_in)
        heads = {weight.path for weight in self.heads}
        return tuple(w for w in self.outside if w.fan_in and w.path not in heads)

    @property
    def blocks(self) -> int:
        """Blocks of all streams: layers of a Transformer."""
        return len({(branch.stream, branch.block) for branch in self.branches})

    @property
    def streams(self) -> dict[str, int]:
        """Residual branches of each stream."""
        return dict(Counter(branch.stream for branch in self.branches))


def layout(model: nn.Module, batch: Any) -> Layout:
    """What the tracer finds in one pass of ``model`` on ``batch``; the model is left as it was.

    Raises ModelError when it raises, NetworkError for what cannot be run.
    """
    model, _ = unwrapped(model)
    with quiet():
        readings = Readings((), (), (), False)
        passed = run(model, batch, None, readings)
        held = dict([*passed.held.parameters, *passed.held.buffers])
        analysis = analyse(passed.graph, readings, held)
        return _laid_out(analysis, readings, dict(passed.held.parameters))


def _laid_out(analysis: Analysis, readings: Readings, parameters: Mapping[str, Tensor]) -> Layout:
    graph, roles = analysis.graph, analysis.roles
    parts = projections(roles)
    sums = {link.merge.value for track in analysis.tracks for link in track.stream.links}
    found = []
    for track in analysis.tracks:
        blocks = [block for block in track.blocks if any(step.link for step in block)]
        places = {
            step.link.merge.value: (place, step)
            for place, block in enumerate(blocks, 1)
            for step in block
            if step.link
        }
        listed = _listed([graph.path(link.merge.value) for link in track.stream.links])
        for k, link in enumerate(track.stream.links):
            place, step = places[link.merge.value]
            place = listed[k] if listed else place
            read = _read(step, len(link.branches))
            for branch, form in zip(link.branches, read, strict=True):
                inside = region(roles, branch.begin, branch.terms, sums, link.merge.value)
                row = _Row(analysis, readings, parts, sorted(inside))
                if math.isnan(form.factor) or math.isnan(form.skip):
                    form = _seen(analysis, parameters, link, branch, form)
                found.append(row.residual(track.stream.name, place, branch, link, form))
    within = {weight.path for branch in found for weight in branch.weights}
    every = _Row(analysis, readings, parts, sorted(graph.live)).weights()
    heads = tuple(weight for weight in every if weight.last and weight.path not in within)
    seen = {weight.path: weight for weight in every if weight.path not in within}
    outside = tuple(
        seen.get(path, Weight(path, tuple(p.shape), 0, 0, False, False))
        for path, p in parameters.items()
        if p.dim() > 1 and path not in within
    )
    norms = [i for i in sorted(graph.live) if graph.values[i].kind == "norm"]
    norms += [i for i in sorted(graph.live) if i not in norms and roles.norm_of(i) is not None]
    idle = [v.index for v in graph.values if v.kind == "norm" and v.data]
    idle = [i for i in idle if i not in graph.live]
    ends = [track.stream.links[-1].merge.value for track in analysis.tracks if track.stream.links]
    after = [i for i in norms if any(end in graph.ancestors([i], end) for end in ends)]
    return Layout(
        tuple(found),
        heads,
        outside,
        tuple(dict.fromkeys(graph.path(i) for i in sorted(norms))),
        tuple(dict.fromkeys(graph.path(i) for i in after)),
        tuple(path for path, p in parameters.items() if p.numel() == 1),
        tuple(dict.fromkeys(graph.path(i) for i in idle)),
    )


def _listed(paths: Sequence[str]) -> list[int]:
    """The block of each sum, from 1, where the blocks are the modules of one list, ``h.0``,
    ``h.1``, ..., with as many sums in each and no other list inside. Else none: there steps that
    repeat are blocks, though equal steps of one block look like several."""
    shared = common_path(paths)
    rest = [path[len(shared) :].strip(".").split(".") for path in paths]
    if not all(parts[0].isdecimal() for parts in rest):
        return []
    if any(part.isdecimal() for parts in rest for part in parts[1:]):
        return []
    numbers = [int(parts[0]) for parts in rest]
    if numbers != sorted(numbers) or len(set(Counter(numbers).values())) != 1:
        return []
    order = {number: k for k, number in enumerate(dict.fromkeys(numbers), 1)}
    return [order[number] for number in numbers]


@dataclass(frozen=True)
class _Form:
    """What a sum does to its skip and to one branch."""

    skip: float = math.nan
    factor: float = math.nan
    learned: tuple[tuple[str, float], ...] = ()
    norms: tuple[tuple[str, str], ...] = ()


def _read(step: Step, branches: int) -> list[_Form]:
    """From the step's equation: a form for each branch, in order; one without numbers where the
    equation does not have that many, or hides how a branch ends."""
    found = count(step.equation.block).merges if step.equation else ()
    if len(found) != 1 or len(found[0].branches) != branches:
        return [_Form()] * branches
    forms = []
    for branch in found[0].branches:
        norms = tuple((at, norm.kind) for at, norm in branch.norms)
        hidden = branch.hidden and not branch.hidden.startswith("attention")
        learned = tuple(
            ("scalar" if isinstance(x, LearnedScalar) else "gain", evaluate(x.initial, {}))
            for x in branch.learned
        )
        number = math.nan if hidden else branch.factor
        forms.append(_Form(found[0].factor, number, learned, norms))
    return forms


def _seen(
    analysis: Analysis, parameters: Mapping[str, Tensor], link: Link, branch: Branch, form: _Form
) -> _Form:
    """The form by the values themselves, of a sum that no equation says."""
    roles = analysis.roles
    after = after_sum(roles, link.after, link.merge.value)
    skip = weighed(roles, parameters, link.merge.skip)
    ends = {weighed(roles, parameters, term) for term in branch.terms}
    if len(ends) != 1 or len(roles.terms(link.merge.value)) != 1 + len(link.merge.terms):
        return form
    end = ends.pop()
    return _Form(skip.number * after, end.number * after, end.learned, form.norms)


@dataclass(frozen=True)
class _Row:
    """Values of a region in forward order, and what recipes count among them."""

    analysis: Analysis
    readings: Readings
    parts: Mapping[int, Mapping[str, tuple[int, ...] | None]]
    order: Sequence[int]

    def residual(
        self, stream: str, block: int, branch: Branch, link: Link, form: _Form
    ) -> Residual:
        values, roles = self.analysis.graph.values, self.analysis.roles
        skip = sorted(self.analysis.graph.ancestors([link.merge.skip], branch.begin))
        across = replace(self, order=skip)
        layers = [*self._entered(branch.begin), *across._entered(branch.begin)]
        inlets = {entering(roles, i, branch.begin) for i in layers}
        after = self.analysis.graph.ancestors([link.after], link.merge.value) - {link.merge.value}
        # Also those that a module spells out in several functions.
        bent = [values[i] for i in self.order if i in self.readings.activations]
        return Residual(
            stream,
            block,
            branch.path,
            branch.m,
            self.weights(branch.begin),
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
            inlets.pop() if len(inlets) == 1 else math.nan,
            across.weights(branch.begin) if link.merge.kind == "projected" else (),
            any(i in self.readings.activations for i in after),
            self._leaks(link, branch),
        )

    def _leaks(self, link: Link, branch: Branch) -> bool:
        """Whether what is added in front of the branch's layers is added to an identity skip."""
        graph = self.analysis.graph
        if link.merge.kind not in ("identity", "scaled"):
            return False  # Fixup's strided shortcuts take it
        skip = graph.ancestors([link.merge.skip], branch.begin)
        entering = {j for i in self._entered(branch.begin) for j in self.analysis.roles.flow[i]}
        return any(
            graph.values[i].kind == "sum" and _has_number(self.analysis, graph.values[i])
            for i in entering & skip
        )

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

    def _norms(self, link: Link, form: _Form) -> tuple[Normed, ...]:
        """The norms among the values, and those between the sum and what the stream passes on."""
        analysis, roles = self.analysis, self.analysis.roles
        depth: dict[int, int] = {}
        for i in self.order:
            below = max((depth.get(j, 0) for j in roles.flow[i]), default=0)
            depth[i] = below + roles.layers(i)
        whole = max(depth.values(), default=0)
        found = []
        for i in self.order:
            if roles.norm_of(i) is not None:
                at = "in" if not depth[i] else "out" if depth[i] == whole else "inner"
                found.append(_normed(analysis, i, at, form))
        between = analysis.graph.ancestors([link.after], link.merge.value)
        for i in sorted(between - {link.merge.value}):
            if roles.norm_of(i) is not None:
                found.append(_normed(analysis, i, "stream", form))
        return tuple(dict.fromkeys(found))

    def weights(self, begin: int = -1) -> tuple[Weight, ...]:
        """The weights; those of a layer that is several, as attention, in its order."""
        roles, values = self.analysis.roles, self.analysis.graph.values
        after: dict[int, int] = {}  # weight layers between a value and the region's end
        entered = self._entered(begin)
        found: list[list[Weight]] = []
        for i in reversed(self.order):
            behind, layers = after.get(i, 0), roles.layers(i)
            held = _held(self.analysis, i) if layers else []
            row = []
            for k, (place, group) in enumerate(held):
                # Of attention in one function, the output's weight comes last.
                last = behind == 0 and k == len(held) - 1
                for path, shape in group:
                    whole = self._weight(values[i], place, path, shape, last)
                    whole = replace(whole, first=i in entered and (not last or len(held) == 1))
                    row += self._split(values[i], whole, behind, k, len(held))
            found.append(row)
            for j in roles.flow[i]:
                after[j] = max(after.get(j, 0), behind + layers)
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

    def _weight(
        self, value: Value, place: int, path: str, shape: tuple[int, ...], last: bool
    ) -> Weight:
        fan_in, fan_out, axis = _fans(value, place, shape)
        made = Weight(path, shape, fan_in, fan_out, last, _shifted(self.analysis, value))
        made = replace(made, axis=axis, stacked=fan_out, bias=self._bias(value, place))
        if (bend := self._followed(value)) is None:
            return made
        return replace(made, follows=bend.kind, bend=tuple(sorted(bend.options.items())))

    def _bias(self, value: Value, place: int) -> str:
        """The vector that the layer adds to its outputs, or that is added to them next; of several
        that which comes after the weight."""
        graph = self.analysis.graph
        order = (*value.inputs[place:], *value.inputs[:place])
        near = [graph.values[j] for j in order]
        for j in graph.consumers[value.index] if len(graph.consumers[value.index]) == 1 else ():
            if graph.values[j].kind == "sum":
                near += [graph.values[k] for k in graph.values[j].inputs]
        vectors = [v.path for v in near if v.kind == "parameter" and len(v.shape) == 1]
        return vectors[0] if vectors else ""

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
            replace(whole, role=role, rows=rows, fan_out=whole.fan_out * len(rows) // out)
            for role, rows in roles.items()
            if rows is not None
        ]

    def _attended(self, i: int) -> bool:
        """Whether value ``i`` is what attention gives, moved about."""
        roles, values = self.analysis.roles, self.analysis.graph.values
        while values[i].kind in ("shape", "drop") and values[i].inputs:
            i = values[i].inputs[0]
        return values[i].kind in ("attend", "contract") and roles.layers(i) == 2


def _normed(analysis: Analysis, i: int, at: str, form: _Form) -> Normed:
    """A norm by its value; its kind from the function or, of one spelled out, from the equation."""
    graph, values = analysis.graph, analysis.graph.values
    value = values[i]
    kind = _NORMS.get(value.name) or next((kind for a, kind in form.norms if a == at), "norm")
    learned = [values[j] for j in value.inputs[1:] if values[j].kind == "parameter"]
    gain = learned[0].path if learned else _gain_after(graph, i)
    axis = 1 if value.name in ("batch_norm", "group_norm") else -1
    return Normed(at, kind, graph.path(i), gain, value.shape[axis] if value.shape else 1)


def _gain_after(graph: Graph, i: int) -> str:
    """The learned gain that a norm spelled out is multiplied by in its own module, or around it in
    the block of an equation."""
    values, call = graph.values, graph.values[i].call
    near = {call, graph.calls[call].parent}
    todo = [i]
    while todo:
        for j in graph.consumers[todo.pop()]:
            if values[j].call in near and values[j].kind == "product":
                held = (parameter_of(values, k) for k in values[j].inputs)
                for gain in (v for v in held if v is not None):
                    # What multiplies a branch of an equation has a number for a name.
                    if values[j].call == call or gain.path.endswith(".gain"):
                        return gain.path
            if values[j].call in near and values[j].kind == "shape":
                todo.append(j)
    return ""


_NORMS = {
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "batch_norm": "batchnorm",
    "group_norm": "groupnorm",
    "tanh": "dyt",
    "erf": "derf",
}


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


def _held(analysis: Analysis, i: int) -> list[tuple[int, list[tuple[str, tuple[int, ...]]]]]:
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


def _fans(value: Value, place: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """What enters, what leaves, and the axis of what leaves, by the function's layout of its
    weight."""
    kernel = prod(shape[2:])
    if value.name.startswith("conv_transpose"):
        return shape[0] * kernel, shape[1] * kernel, 1
    if value.name.startswith("conv") or value.name in ("linear", "multi_head_attention_forward"):
        return shape[1] * kernel, shape[0] * kernel, 0
    if value.name in ("matmul", "mm", "addmm", "bmm", "rmatmul") and len(shape) == 2:
        return (shape[0], shape[1], 1) if place else (shape[1], shape[0], 0)
    return 0, 0, 0


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


def _has_number(analysis: Analysis, value: Value) -> bool:
    """Whether one of the inputs is a learned number."""
    values = analysis.graph.values
    inputs = [values[i] for i in value.inputs]
    number = any(v.kind == "parameter" and prod(v.shape) == 1 for v in inputs)
    return number and any(v.data for v in inputs)
