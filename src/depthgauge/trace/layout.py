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
from depthgauge.trace.fans import bias_of, fans_of, groups_of, lengths_of, looked_up
from depthgauge.trace.graph import Graph, Value
from depthgauge.trace.heads import ROLES, projections
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import quiet, run, unwrapped
from depthgauge.trace.streams import Branch, Link, region

__all__ = ["Layout", "Normed", "Residual", "Weight", "layout"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path, or the rows of one that have one role.

    ``fan_in`` numbers enter each of ``fan_out`` (of a kernel, with its places); 0 where the
    function does not say. ``axis``: where its outputs lie; ``rows``: which of them are meant, all
    if None; ``stacked``: the fan out of all. ``groups`` of a convolution: its channels fall into so
    many, and both fans are those within one. ``role``: query, key, value or output of attention,
    else ``""``. ``last``: no weight layer stands between it and the sum, or the output.
    ``first``: nor between it and what the branch begins with. ``shifted``: a learned number is
    added to what enters it. ``bias``: the path of its bias, ``""`` without one. ``lengths``: that
    of the parameter that its directions are multiplied by (weight normalisation). ``looked_up``: an
    embedding reads the same numbers.
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
    groups: int = 1
    bias: str = ""
    lengths: str = ""
    looked_up: bool = False

    @property
    def owner(self) -> str:
        """The path of the module that holds it."""
        return self.path.rpartition(".")[0]

    @property
    def turned(self) -> tuple[int, ...]:
        """The shape with its outputs first, ``(out, in, ...)``, of the rows that are meant; ``in``
        are the inputs of one output, in a convolution of groups those of its group."""
        shape = list(self.shape)
        if self.axis:
            shape[0], shape[self.axis] = shape[self.axis], shape[0]
            if self.groups > 1:
                shape[:2] = shape[0] * self.groups, shape[1] // self.groups
        return tuple(shape) if self.rows is None else (len(self.rows), *shape[1:])

    @property
    def group(self) -> tuple[int, ...]:
        """The shape of one group, outputs first: what an initialiser draws."""
        out, *others = self.turned
        return (out // self.groups, *others)

    def part(self, tensor: Tensor) -> Tensor:
        """What is meant of the tensor, outputs first: a view, or of some rows a copy."""
        turned = tensor
        if self.axis and self.groups > 1:  # (groups in, out, ...): each group is turned by itself
            parts = tensor.reshape(self.groups, -1, *tensor.shape[1:]).transpose(1, 1 + self.axis)
            turned = parts.flatten(0, 1)
        elif self.axis:
            turned = tensor.transpose(0, self.axis)
        return turned if self.rows is None else turned[list(self.rows)]

    def put(self, tensor: Tensor, part: Tensor) -> None:
        """Write into the tensor what is meant of it, as ``part`` gives it."""
        if self.axis and self.groups > 1:
            parts = part.reshape(self.groups, -1, *part.shape[1:]).transpose(1, 1 + self.axis)
            tensor.copy_(parts.flatten(0, 1))
            return
        turned = tensor.transpose(0, self.axis) if self.axis else tensor
        if self.rows is None:
            turned.copy_(part)
        else:
            turned[list(self.rows)] = part


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
    does.
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

    @property
    def attends(self) -> bool:
        return any(weight.role for weight in self.weights)


@dataclass(frozen=True)
class Layout:
    """The residual branches of all streams, the weights after which no other comes (heads), those
    in no branch (stems, shortcuts, heads), the modules of all norms, and of those after the last
    sum, the parameters that are one number, the biases of weights, the kinds of activation that
    were met, each once, and the weights of layers whose inputs could not be counted."""

    branches: tuple[Residual, ...]
    heads: tuple[Weight, ...]
    outside: tuple[Weight, ...]
    norms: tuple[str, ...]
    final: tuple[str, ...]
    scalars: tuple[str, ...]
    biases: tuple[Weight, ...] = ()
    activations: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

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
    def layers(self) -> tuple[Weight, ...]:
        """Every weight layer, in branches and out of them, but for what an embedding shares."""
        inside = tuple(w for branch in self.branches for w in branch.weights)
        return tuple(w for w in (*inside, *self.outside) if w.fan_in and not w.looked_up)

    def biases_of(self, weights: Sequence[Weight]) -> tuple[Weight, ...]:
        """The biases of these weights, each once."""
        paths = {weight.bias for weight in weights}
        return tuple(bias for bias in self.biases if bias.path in paths)

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
    parts, tables = projections(roles), looked_up(analysis)
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
        for link in track.stream.links:
            place, step = places[link.merge.value]
            read = _read(step, len(link.branches))
            for branch, form in zip(link.branches, read, strict=True):
                inside = region(roles, branch.begin, branch.terms, sums, link.merge.value)
                row = _Row(analysis, readings, parts, sorted(inside), tables)
                found.append(row.residual(track.stream.name, place, branch, link, form))
    within = {weight.path for branch in found for weight in branch.weights}
    every = _Row(analysis, readings, parts, sorted(graph.live), tables).weights()
    heads = tuple(weight for weight in every if weight.last and weight.path not in within)
    seen: dict[str, list[Weight]] = {}
    for weight in every:
        seen.setdefault(weight.path, []).append(weight)
    lengths = {weight.lengths for weight in every}
    outside = tuple(
        weight
        for path, p in parameters.items()
        if p.dim() > 1 and path not in within | lengths
        for weight in seen.get(path, [Weight(path, tuple(p.shape), 0, 0, False, False)])
    )
    weights = [w for branch in found for w in branch.weights] + list(outside)
    biases = tuple(dict.fromkeys(weight.bias for weight in weights if weight.bias))
    norms = [i for i in sorted(graph.live) if graph.values[i].kind == "norm"]
    norms += [i for i in sorted(graph.live) if i not in norms and roles.norm_of(i) is not None]
    ends = [track.stream.links[-1].merge.value for track in analysis.tracks if track.stream.links]
    after = [i for i in norms if any(end in graph.ancestors([i], end) for end in ends)]
    return Layout(
        tuple(found),
        heads,
        outside,
        tuple(dict.fromkeys(graph.path(i) for i in sorted(norms))),
        tuple(dict.fromkeys(graph.path(i) for i in after)),
        tuple(path for path, p in parameters.items() if p.numel() == 1),
        biases=tuple(
            Weight(path, tuple(parameters[path].shape), 0, 0, False, False) for path in biases
        ),
        activations=tuple(dict.fromkeys(bent.kind for bent in readings.activations.values())),
        uncounted=tuple(dict.fromkeys(w.path for w in every if not w.fan_in and not w.looked_up)),
    )


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


@dataclass(frozen=True)
class _Row:
    """Values of a region in forward order, and what recipes count among them."""

    analysis: Analysis
    readings: Readings
    parts: Mapping[int, Mapping[str, tuple[int, ...] | None]]
    order: Sequence[int]
    tables: frozenset[int]  # parameters that embeddings read

    def residual(
        self, stream: str, block: int, branch: Branch, link: Link, form: _Form
    ) -> Residual:
        values = self.analysis.graph.values
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
                lengths = lengths_of(dict(group))
                for path, shape in group:
                    if path == lengths:
                        continue
                    whole = self._weight(values[i], place, path, shape, last)
                    whole = replace(whole, lengths=lengths)
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
        fan_in, fan_out, axis = fans_of(self.analysis, value, place, shape)
        shifted = _shifted(self.analysis, value)
        groups = groups_of(self.analysis, value, shape)
        if axis:
            fan_in //= groups
        else:
            fan_out //= groups
        found = Weight(path, shape, fan_in, fan_out, last, shifted, "", axis, None, fan_out)
        return replace(
            found,
            groups=groups,
            bias=bias_of(self.analysis, value, place),
            looked_up=value.inputs[place] in self.tables,
        )

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
    """The learned gain that a norm spelled out is multiplied by in its own module."""
    values, call = graph.values, graph.values[i].call
    todo = [i]
    while todo:
        for j in graph.consumers[todo.pop()]:
            learned = [values[k] for k in values[j].inputs if values[k].kind == "parameter"]
            if values[j].call == call and values[j].kind == "product" and learned:
                return learned[0].path
            if values[j].call == call and values[j].kind == "shape":
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
