"""What a recipe counts on a model, as data: weights, norms, residual branches, and all of it.

A recipe's numbers depend on L and m, and a wrong count goes unseen: here both come from the pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from depthgauge.trace.bends import Bends
from depthgauge.trace.second import Second

if TYPE_CHECKING:
    from depthgauge.trace.computed import Computed

__all__ = ["End", "Layout", "Normed", "Residual", "Weight"]


@dataclass(frozen=True)
class Weight:
    """A matrix or kernel by its path, or the rows of one that have one role.

    ``fan_in`` numbers enter each of ``fan_out`` (of a kernel, with its places); 0 where the
    function does not say. ``axis``: where its outputs lie; ``rows``: which of them are meant, all
    if None; ``stacked``: the fan out of all. ``groups`` of a convolution: its channels fall into so
    many, and both fans are those within one. ``strides``, of a transposed convolution their
    product: one in so many of ``fan_in`` reaches an output. ``role``: query, key, value or output
    of attention, else ``""``. ``last``: no weight layer stands between it and the sum, or the
    output. ``first``: nor between it and what the branch begins with. ``shifted``: a learned number
    is added to what enters it. ``bias``: the path of the vector added to what leaves it, ``""``
    without one. ``lengths``: that of the parameter that its directions are multiplied by (weight
    normalisation). ``looked_up``: an embedding reads the same numbers. ``follows``: the kind of the
    activation that enters it, ``""`` where the state or another layer does, ``bend`` its options,
    ``activation`` the module that it is, or stands in, with its name there.
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
    strides: int = 1
    bias: str = ""
    lengths: str = ""
    looked_up: bool = False
    follows: str = ""
    bend: tuple[tuple[str, Any], ...] = ()
    activation: str = ""
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
    none); ``times``: of a division by the length the fixed number behind it; ``beside``: whether it
    stands in front of a layer beside one that has its own, and norms what no other norm gives."""

    at: str
    kind: str
    path: str
    gain: str
    width: int
    numbers: tuple[str, ...] = ()
    axis: int = -1
    last: bool = False
    offset: str = ""
    times: float = 1.0
    beside: bool = False


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
    its activations (the branch's own where one is called as a function; not those that the stream
    passes behind the sum before), in front of how many of
    them a learned number is added, and how many learned numbers multiply it. ``skip`` and
    ``factor``: the fixed numbers in front of the skip and of the branch in the sum (NaN where the
    block cannot be read); ``learned``: kind, ``scalar`` or ``gain``, and present value of what else
    multiplies the branch; ``carried``: the same of the skip, ``carriers`` the parameters. ``sum``:
    the path of the module that returns the sum, ``""`` where none does; ``within``: of the one that
    it is made in. ``inlet``: the fixed number between the state (of a transition what the stream
    passes on to identity skips), or the norm in front, and the first weight layers, also those of a
    skip that has its own (NaN where they differ). ``across``: the weights of such a skip.
    ``bent``: the stream passes an activation after the sum. ``ended``: a learned number is added
    behind the branch's last weight layer, or to the sum in front of such an activation.
    ``leaks``: the learned number in front of the branch is added to an identity skip as well.
    ``dropout``: its probability behind the last weight layer, also where it is switched off.
    ``logits``: the fixed number that products of
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
    perhaps the head's. ``width``: the channels of the sum. ``bare``: the modules of its layers, or
    of what mixes positions, that read the state itself, with no norm between.
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
    ended: bool = False
    width: int = 1
    bare: tuple[str, ...] = ()

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
    streams beside post-norm ones, how often each module ran, by its path, of each stream the
    tables that what it begins with was made of, and by its parameter each weight that the model
    computes at each pass. ``lookups``: the modules that look a table up. ``read``: of each stream
    those tables that the batch is looked up in, not places that the model counts itself."""

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
    begun: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    computed: Mapping[str, Computed] = field(default_factory=dict)
    lookups: tuple[str, ...] = ()
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
