"""What a recipe counts, found on the model: residual branches, the weight layers in each.

A recipe's numbers depend on L and m, and a wrong count goes unseen: here both come from the pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from torch import Tensor, nn

from depthgauge.equation.count import count
from depthgauge.equation.nodes import (
    LearnedGain,
    LearnedScalar,
    Node,
    Norm,
    Number,
    Scale,
    rewrite,
)
from depthgauge.equation.scalars import evaluate
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.analysis import Analysis, Step, Track, analyse
from depthgauge.trace.bends import Bends, bends_of
from depthgauge.trace.blocks import folded
from depthgauge.trace.coefficients import after_sum, entering, parameter_of, weighed
from depthgauge.trace.fans import bias_of, fans_of, groups_of, lengths_of
from depthgauge.trace.forward import quiet
from depthgauge.trace.graph import Graph, Value, common_path
from depthgauge.trace.heads import (
    ROLES,
    averaged,
    before_scores,
    crossing,
    normed_operands,
    projections,
)
from depthgauge.trace.links import Branch, Link
from depthgauge.trace.logits import around, logits, outlet
from depthgauge.trace.nesting import region
from depthgauge.trace.norms import by_length, spelled_axis, spelled_kind
from depthgauge.trace.readings import Activation as Bent
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run
from depthgauge.trace.second import Second

__all__ = ["End", "Layout", "Normed", "Residual", "Weight", "layout", "rows_of"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path, or the rows of one that have one role.

    ``fan_in`` numbers enter each of ``fan_out`` (of a kernel, with its places); 0 where the
    function does not say. ``axis``: where its outputs lie; ``rows``: which of them are meant, all
    if None; ``stacked``: the fan out of all. ``groups`` of a convolution: its channels fall into so
    many, and both fans are those within one. ``role``: query, key, value or output of attention,
    else ``""``. ``last``: no weight layer stands between it and the sum, or the output.
    ``first``: nor between it and what the branch begins with. ``shifted``: a learned number is
    added to what enters it. ``bias``: the path of the vector added to what leaves it, ``""``
    without one. ``lengths``: that of the parameter that its directions are multiplied by (weight
    normalisation). ``looked_up``: an embedding reads the same numbers. ``follows``: the kind of the
    activation that enters it, ``""`` where the state or another layer does, ``bend`` its options.
    ``called``: the path of the module that multiplies by it (of PyTorch's attention in one function
    not the one that holds it). ``front`` and ``behind``: the fixed numbers directly in front of the
    layer and directly behind it (NaN where one is not read).
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
    follows: str = ""
    bend: tuple[tuple[str, Any], ...] = ()
    called: str = ""
    front: float = 1.0
    behind: float = 1.0

    @property
    def table(self) -> bool:
        """Whether it is only looked up, as the table of distances that attention's scores are
        shifted by: no layer."""
        return self.looked_up and not self.fan_in

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
            turned.copy_(part if turned.dim() else part[0])  # one number is drawn as (1,)
        else:
            turned[list(self.rows)] = part


@dataclass(frozen=True)
class Normed:
    """A norm of a branch, or on the stream after its sum: where (``in``, ``inner``, ``out``,
    ``stream``, ``query-key`` between a projection and the scores of attention, ``""`` elsewhere),
    the module that it is (or stands in), the parameter of its gain (``""``: none), how many
    channels it has, the learned numbers of one that is bounded, DyT or Derf (its alpha, its shift),
    the axis of its channels from the right, and of an inner one whether what it gives enters a last
    weight layer of its branch as it is; ``offset``: the parameter that is added to it (``""``:
    none)."""

    at: str
    kind: str
    path: str
    gain: str
    width: int
    numbers: tuple[str, ...] = ()
    axis: int = -1
    last: bool = False
    offset: str = ""


@dataclass(frozen=True)
class End:
    """What follows the last sum of a stream: the norms in front of the next layer (but for one that
    is the last branch's own), the modules of the layers that read it, and whether the model returns
    it, beside what its head makes or alone."""

    stream: str
    norms: tuple[Normed, ...]
    readers: tuple[str, ...]
    returned: bool = False


@dataclass(frozen=True)
class Residual:
    """One residual branch.

    ``block``: its place among the blocks of its stream, from 1; ``place``: that of its sum among
    the sums of its stream, from 0, which parallel branches share. ``m`` weight layers in series
    (attention has four), its weights in forward order, where it has norms and which, the modules of
    its activations (the branch's own where one is called as a function), in front of how many of
    them a learned number is added, and how many learned numbers multiply it. ``skip`` and
    ``factor``: the fixed numbers in front of the skip and of the branch in the sum (NaN where the
    block cannot be read); ``learned``: kind, ``scalar`` or ``gain``, and present value of what else
    multiplies the branch; ``carried``: the same of the skip, ``carriers`` the parameters. ``sum``:
    the path of the module that returns the sum, ``""`` where none does; ``within``: of the one that
    it is made in. ``inlet``: the fixed number between the state (of a transition what the stream
    passes on to identity skips), or the norm in front, and the first weight layers, also those of a
    skip that has its own (NaN where they differ). ``across``: the weights of such a skip.
    ``bent``: the stream passes an activation after the sum. ``leaks``: the learned number in front
    of the branch is added to an identity skip as well. ``dropout``: its probability behind the last
    weight layer, also where it is switched off. ``logits``: the fixed number that products of
    queries and keys are multiplied by (NaN without attention, or where it is not read), ``head``
    the features of a head, ``queries`` the module that makes queries and nothing else, ``""`` where
    none does, ``keys`` how many each query is held against, ``temperatures`` the learned numbers
    that multiply those products too; ``scored``: of each norm between the projections and the
    products of attention the role of what it norms (query, key or value), its kind (``l2`` that by
    the length), and over how many numbers.
    ``numbers``: the path of each learned number that its values are added to (``"sum"``) or
    multiplied by (``"product"``), and which of the two. ``behind``: the part of ``skip`` and
    ``factor`` that multiplies the sum itself, on the way to what the stream passes on; ``outside``:
    the part of that which the module of the sum does not multiply by itself, behind the last sum
    perhaps the head's.
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
    within: str = ""
    inlet: float = 1.0
    dropout: float = 0.0
    carried: tuple[tuple[str, float], ...] = ()
    carriers: tuple[str, ...] = ()
    across: tuple[Weight, ...] = ()
    bent: bool = False
    leaks: bool = False
    logits: float = math.nan
    head: int = 0
    queries: str = ""
    numbers: tuple[tuple[str, str], ...] = ()
    keys: int = 0
    temperatures: tuple[str, ...] = ()
    scored: tuple[tuple[str, str, int], ...] = ()
    behind: float = 1.0
    outside: float = 1.0
    place: int = 0

    @property
    def projected(self) -> bool:
        """Whether the skip has weights of its own, as that of a transition has."""
        return bool(self.across)

    @property
    def placed(self) -> tuple[Normed, ...]:
        """Its norms but those of queries and keys, which belong to no placement."""
        return tuple(norm for norm in self.norms if norm.at != "query-key")

    @property
    def attends(self) -> bool:
        return any(weight.role for weight in self.weights)


@dataclass(frozen=True)
class Layout:
    """The residual branches of all streams, the weights after which no other comes (heads), those
    in no branch (stems, shortcuts, heads), the modules of all norms, and of those after the last
    sum, the parameters that are one number, the biases of weights, the kinds of activation that
    were met, each once, the modules of norms whose result nothing reads, all norms, what follows
    each stream, the tables that embeddings look up, the weights of layers whose inputs could not be
    counted, the paths of all parameters, the fixed number around each head, the activations one by
    one, the tables whose rows attention averages beside its values (of relations), the second
    streams beside post-norm ones, and how often each module ran, by its path."""

    branches: tuple[Residual, ...]
    heads: tuple[Weight, ...]
    outside: tuple[Weight, ...]
    norms: tuple[str, ...]
    final: tuple[str, ...]
    scalars: tuple[str, ...]
    biases: tuple[Weight, ...] = ()
    activations: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    every: tuple[Normed, ...] = ()
    ends: tuple[End, ...] = ()
    tables: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    outlets: tuple[float, ...] = ()
    bends: Bends = field(default_factory=Bends)
    averaged: tuple[str, ...] = ()
    second: tuple[Second, ...] = ()
    runs: Mapping[str, int] = field(default_factory=dict)

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
    parts, tables, scored = projections(roles), _tables(graph), before_scores(roles)
    sums = {link.merge.value for track in analysis.tracks for link in track.stream.links}
    found = []
    for track in analysis.tracks:
        blocks = [block for block in _blocks(track) if any(step.link for step in block)]
        longest = max((sum(step.link is not None for step in block) for block in blocks), default=0)
        places = {
            step.link.merge.value: (place, step)
            for place, block in enumerate(blocks, 1)
            for step in block
            if step.link
        }
        listed = _listed([graph.path(link.merge.value) for link in track.stream.links])
        if len(listed) == max(listed, default=0) and longest > 1:
            listed = []  # modules of one sum each that repeat by twos or more
        for k, link in enumerate(track.stream.links):
            place, step = places[link.merge.value]
            place = listed[k] if listed else place
            read = _read(step, len(link.branches))
            for branch, form in zip(link.branches, read, strict=True):
                inside = region(roles, branch.begin, branch.terms, sums, link.merge.value)
                row = _Row(analysis, readings, parts, sorted(inside), tables, scored)
                if math.isnan(form.factor) or math.isnan(form.skip):
                    form = _seen(analysis, parameters, link, branch, form)
                made = row.residual(track.stream.name, place, branch, link, form)
                found.append(replace(made, place=k))
    within = {weight.path for branch in found for weight in branch.weights}
    every = _Row(analysis, readings, parts, sorted(graph.live), tables, scored).weights()
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
        biases=tuple(
            Weight(path, tuple(parameters[path].shape), 0, 0, False, False) for path in biases
        ),
        activations=tuple(dict.fromkeys(bent.kind for bent in readings.activations.values())),
        idle=tuple(dict.fromkeys(graph.path(i) for i in idle)),
        every=tuple(_normed(analysis, i, "", _Form()) for i in sorted(norms)),
        ends=tuple(_end(analysis, track, sums) for track in analysis.tracks if track.stream.links),
        tables=tables,
        uncounted=tuple(dict.fromkeys(w.path for w in every if not w.fan_in and not w.looked_up)),
        parameters=tuple(parameters),
        outlets=tuple(_outlet(analysis, weight) for weight in heads),
        bends=bends_of(analysis, readings),
        averaged=averaged(roles),
        second=analysis.second,
        runs=Counter(call.path for call in graph.calls),
    )


def _outlet(analysis: Analysis, head: Weight) -> float:
    """The fixed number around the last layer that multiplies by this weight."""
    at = [
        i
        for i in sorted(analysis.graph.live)
        if analysis.roles.layers(i)
        and any(head.path == path for _, row in _held(analysis, i) for path, _ in row)
    ]
    return outlet(analysis.roles, at[-1]) if at else math.nan


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


def _tables(graph: Graph) -> tuple[str, ...]:
    values = (graph.values[i] for i in sorted(graph.live) if graph.values[i].name == "embedding")
    inputs = (graph.values[j] for value in values for j in value.inputs)
    return tuple(dict.fromkeys(v.path for v in inputs if v.kind == "parameter"))


def rows_of(model: nn.Module, batch: Any) -> tuple[float, ...]:
    """For each residual branch, in the layout's order, the largest norm of a row (a token's vector)
    of the stream in front of it, in evaluation mode; NaN where that was not seen.

    Raises what ``layout`` does.
    """
    model, _ = unwrapped(model)
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with quiet():
            readings = Readings(("row",), (), (), False)
            passed = run(model, batch, None, readings)
            held = dict([*passed.held.parameters, *passed.held.buffers])
            tracks = analyse(passed.graph, readings, held).tracks
    finally:
        for module, mode in modes.items():
            module.training = mode
    found = []
    for link in (link for track in tracks for link in track.stream.links):
        row = readings.states.get(readings.place(link.before), (math.nan,))
        found += [float(row[0])] * len(link.branches)
    return tuple(found)


def _blocks(track: Track) -> list[list[Step]]:
    """The steps of each block. Numbers and norms tell no two blocks apart: a rule may give each its
    own."""

    def rule(node: Node) -> Node:
        match node:
            case Scale(value=inside) | Norm(value=inside):
                return inside
            case LearnedScalar() | LearnedGain():
                return replace(node, initial=Number(1.0))
        return node

    read = [rewrite(step.equation.block, rule) for step in track.steps if step.equation]
    return replace(track, folds=folded(read)).blocks


def _end(analysis: Analysis, track: Track, sums: set[int]) -> End:
    graph, roles = analysis.graph, analysis.roles
    todo = [track.stream.links[-1].after]
    seen, norms, readers = set(todo), [], []
    while todo:
        for i in graph.consumers[todo.pop()]:
            if roles.layers(i):
                readers.append(graph.path(i))
            elif i not in seen and i not in sums:
                seen.add(i)
                todo.append(i)
                norms += [i] if roles.norm_of(i) is not None else []
    own = tuple(_normed(analysis, i, "", _Form()) for i in sorted(norms))
    returned = not seen.isdisjoint(graph.outputs)
    return End(track.stream.name, own, tuple(dict.fromkeys(readers)), returned)


@dataclass(frozen=True)
class _Form:
    """What a sum does to its skip and to one branch."""

    skip: float = math.nan
    factor: float = math.nan
    learned: tuple[tuple[str, float], ...] = ()
    norms: tuple[tuple[str, str], ...] = ()
    inlet: float = math.nan
    carried: tuple[tuple[str, float], ...] = ()


def _read(step: Step, branches: int) -> list[_Form]:
    """From the step's equation: a form for each branch, in order; one without numbers where the
    equation does not have that many, or hides how a branch ends."""
    found = count(step.equation.block).merges if step.equation else ()
    if len(found) != 1 or len(found[0].branches) != branches:
        return [_Form()] * branches
    forms = []
    for branch in found[0].branches:
        norms = tuple((at, norm.kind) for at, norm in branch.norms)
        hidden = branch.hidden and not branch.hidden.startswith(("attention", "cross attention"))
        learned, carried = _values(branch.learned), _values(found[0].learned)
        number = math.nan if hidden else branch.factor
        forms.append(_Form(found[0].factor, number, learned, norms, branch.inlet, carried))
    return forms


def _seen(
    analysis: Analysis, parameters: Mapping[str, Tensor], link: Link, branch: Branch, form: _Form
) -> _Form:
    """The form by the values themselves, of a sum that no equation says."""
    roles = analysis.roles
    after = after_sum(roles, link.after, link.merge.value)
    skip = weighed(roles, parameters, link.merge.skip, link.before)
    ends = {weighed(roles, parameters, term) for term in branch.terms}
    if len(ends) != 1 or len(roles.terms(link.merge.value)) != 1 + len(link.merge.terms):
        return form
    end = ends.pop()
    return replace(form, skip=skip.number * after, factor=end.number * after, learned=end.learned)


def _values(learned: Sequence[LearnedScalar | LearnedGain]) -> tuple[tuple[str, float], ...]:
    return tuple(
        ("scalar" if isinstance(x, LearnedScalar) else "gain", evaluate(x.initial, {}))
        for x in learned
    )


@dataclass(frozen=True)
class _Row:
    """Values of a region in forward order, and what recipes count among them."""

    analysis: Analysis
    readings: Readings
    parts: Mapping[int, Mapping[str, tuple[int, ...] | None]]
    order: Sequence[int]
    tables: Collection[str]  # parameters that embeddings read
    scored: Collection[int]  # values between projections and the scores of attention

    def residual(
        self, stream: str, block: int, branch: Branch, link: Link, form: _Form
    ) -> Residual:
        values, roles = self.analysis.graph.values, self.analysis.roles
        skip = sorted(self.analysis.graph.ancestors([link.merge.skip], branch.begin))
        across = replace(self, order=skip)
        layers = [*self._entered(branch.begin), *across._entered(branch.begin)]
        inlets = {entering(roles, i, branch.begin) for i in layers}
        inlet = inlets.pop() if len(inlets) == 1 else math.nan
        after = self.analysis.graph.ancestors([link.after], link.merge.value) - {link.merge.value}
        # Also those that a module spells out in several functions.
        bent = [values[i] for i in self.order if i in self.readings.activations]
        scored = logits(roles, self.parts, self.order)
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
        )

    def _scored(self) -> tuple[tuple[str, str, int], ...]:
        """Role, kind and width of the norms between projections and the products of attention."""
        found = []
        for role, i in normed_operands(self.analysis.roles, self.order):
            norm = _normed(self.analysis, i, "query-key", _Form())
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

    def _norms(self, link: Link, form: _Form) -> tuple[Normed, ...]:
        """The norms among the values, and those between the sum and what the stream passes on."""
        analysis, roles = self.analysis, self.analysis.roles
        depth: dict[int, int] = {}
        for i in self.order:
            below = max((depth.get(j, 0) for j in roles.flow[i]), default=0)
            depth[i] = below + roles.layers(i)
        whole = max(depth.values(), default=0)
        found: dict[int, Normed] = {}
        leading = self._leading()
        for i in self.order:
            if roles.norm_of(i) is not None:
                at = "in" if not depth[i] else "out" if depth[i] == whole else "inner"
                at = "query-key" if at == "inner" and i in self.scored else at
                last = at == "inner" and i in leading
                found[i] = replace(_normed(analysis, i, at, form), last=last)
        between = analysis.graph.ancestors([link.after], link.merge.value)
        for i in sorted(between - {link.merge.value}):
            if roles.norm_of(i) is not None:
                found[i] = _normed(analysis, i, "stream", form)
        return tuple(norm for i, norm in found.items() if not self._again(i, found))

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
        entered = self._entered(begin)
        found: list[list[Weight]] = []
        for i in sorted({*self.order, *crossing(roles, self.order)}, reverse=True):
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
        # One NaN is as good as another: weights that are alike are counted once.
        front, behind = (
            math.nan if math.isnan(number) else number
            for number in around(self.analysis.roles, value.index)
        )
        found = replace(
            found,
            groups=groups,
            bias=bias_of(self.analysis, value, place),
            looked_up=path in self.tables,
            called=self.analysis.graph.path(value.index),
            front=front,
            behind=behind,
        )
        if (bend := self._followed(value)) is None:
            return found
        return replace(found, follows=bend.kind, bend=tuple(sorted(bend.options.items())))

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
    """A norm by its value; its kind from the function or, of one spelled out, from its own values,
    else from the equation."""
    graph, values = analysis.graph, analysis.graph.values
    value = values[i]
    kind = _NORMS.get(value.name) or spelled_kind(analysis.roles, i)
    kind = kind or next((kind for a, kind in form.norms if a == at), "norm")
    learned = [values[j] for j in value.inputs[1:] if values[j].kind == "parameter"]
    gain = learned[0].path if learned else _affine_after(graph, i, "gain")
    offset = learned[1].path if len(learned) > 1 else _affine_after(graph, i, "bias")
    second = value.name in ("batch_norm", "group_norm") and len(value.shape) > 1
    axis = 1 - len(value.shape) if second else spelled_axis(analysis.roles, i)
    width = value.shape[axis] if value.shape else 1
    if kind == "scalenorm" and not gain:  # multiplied before it divides
        gain = next((path for j in value.inputs for path in _numbers(analysis, j)), "")
    bounded = kind in ("dyt", "derf") and value.inputs
    numbers = _numbers(analysis, value.inputs[0]) if bounded else ()
    return Normed(at, kind, graph.path(i), gain, width, numbers, axis, offset=offset)


def _numbers(analysis: Analysis, i: int) -> tuple[str, ...]:
    """The learned numbers in ``alpha x + shift``, in this order."""
    values, found = analysis.graph.values, []
    while values[i].kind in ("sum", "product"):
        inputs = [values[j] for j in values[i].inputs]
        found += [v.path for v in inputs if v.kind == "parameter" and prod(v.shape) == 1]
        if values[i].kind == "product":
            break
        i = next((v.index for v in inputs if v.data), i)
    return tuple(reversed(found))


def _affine_after(graph: Graph, i: int, name: str) -> str:
    """The learned gain that a norm spelled out is multiplied by, or the bias that is then added, in
    its own module, or around it in the block of an equation."""
    values, call = graph.values, graph.values[i].call
    near = {call, graph.calls[call].parent}
    kind = "product" if name == "gain" else "sum"
    todo = [i]
    while todo:
        for j in graph.consumers[todo.pop()]:
            value = values[j]
            if value.call not in near or value.kind not in ("shape", "product", "sum"):
                continue
            held = [p for p in (parameter_of(values, k) for k in value.inputs) if p is not None]
            # What multiplies a branch of an equation has a number for a name.
            own = [p for p in held if value.call == call or p.path.endswith(f".{name}")]
            if value.kind == kind and own:
                return own[0].path
            if value.kind == "shape" or (value.kind == "product" and own):
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
