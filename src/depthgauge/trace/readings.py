"""What is read off a forward pass as it runs: numbers, no tensor.

At every sum that the local test takes for a merge: the stream that enters it, the branch that is
added, and what comes out; at norms and activations that follow a merge, and at what enters a weight
layer: the state there. A hook on the same tensor reads the gradient on its way back, and dies with
it. On a device other than the CPU the numbers stay there until the end: one synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional as F

from depthgauge.instruments import gates, rivers
from depthgauge.instruments.correlation import STATISTICS
from depthgauge.instruments.gates import DEAD
from depthgauge.network.activations import Gate, gate
from depthgauge.trace.affine import affine
from depthgauge.trace.axes import Axes
from depthgauge.trace.graph import MARK, Graph, Value
from depthgauge.trace.held import Held
from depthgauge.trace.merges import local
from depthgauge.trace.reductions import SAMPLE, Numbers, Together, numbers, of_branch, sample
from depthgauge.trace.roles import Roles
from depthgauge.trace.sharpness import MAKES, sharpness

__all__ = ["Edge", "Readings", "activation_path"]

#: Options of PyTorch's activations: (the language's name, PyTorch's, the default), in order.
_OPTIONS: Final[dict[str, tuple[tuple[str, str, Any], ...]]] = {
    "relu": (),
    "tanh": (),
    "sigmoid": (),
    "silu": (),
    "mish": (),
    "selu": (),
    "softsign": (),
    "gelu": (("approximate", "approximate", "none"),),
    "elu": (("alpha", "alpha", 1.0),),
    "leaky_relu": (("slope", "negative_slope", 0.01),),
    "softplus": (("beta", "beta", 1.0),),
}

#: Where a composite activation is compared with the known ones.
_GRID: Final = (-6.0, -2.5, -1.7, -1.0, -0.4, -0.05, 0.0, 0.02, 0.3, 0.9, 1.4, 2.2, 3.6, 7.0)
_KNOWN: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("gelu", {"approximate": "tanh"}),
    ("gelu", {"approximate": "none"}),
    *((name, {}) for name in ("relu", "tanh", "sigmoid", "silu", "mish", "selu", "softsign")),
    ("elu", {"alpha": 1.0}),
    ("leaky_relu", {"slope": 0.01}),
    ("softplus", {"beta": 1.0}),
)

#: Where a gradient comes by: a node and the place of its output, or at a leaf None and the leaf.
Edge = tuple[Node | None, int | Tensor]

#: Statistics that depend on which axis is which.
_ORDERED: Final = frozenset(("row", *STATISTICS))
#: Kinds of value that a stream may go on in, but whose parts may as well be a layer's input.
_ASIDE: Final = ("join", "sum", "input")


@dataclass(frozen=True, slots=True)
class _Sum:
    """A merge that is about to run, with the numbers of its branch."""

    numbers: Numbers | None


@dataclass(frozen=True, slots=True)
class _Fused:
    """The first term of a sum that makes its other term itself, ``addmm``."""

    index: int
    tensor: Tensor


@dataclass(slots=True)
class Activation:
    """One activation: the value that it made, the call that it was made in, name and options."""

    value: int
    call: int
    kind: str
    options: dict[str, Any]


class Readings:
    """Statistics by the number of the value they were taken of.

    ``river``: names of ``instruments.rivers`` for states and gradients; ``gates``: names of
    ``instruments.gates``; ``branches``: whether additions are looked at.
    """

    def __init__(
        self, state: Sequence[str], gradient: Sequence[str], gates: Sequence[str], branches: bool
    ) -> None:
        self.states: dict[int, Numbers] = {}
        self.gradients: dict[int, Numbers] = {}
        self.branches: dict[int, Numbers] = {}
        self.gates: dict[int, Numbers] = {}
        self.activations: dict[int, Activation] = {}
        #: Of attention by value: what its logits, largest probability and entropy are.
        self.attention: dict[int, tuple[float, float, float]] = {}
        self.composites: dict[int, tuple[str, dict[str, Any]] | None] = {}
        self.own = 0.0
        self.examples, self.axis = 1, 0  # how many the batch has, along which of its axes
        #: Where on autograd's graph the gradients that are read come by, by value.
        self.edges: dict[int, Edge] = {}
        self._merged = False  # whether a merge was met
        self._recent = Held()  # values just made, until the next merge
        self._inputs = Held()  # the parts of the batch, until the pass is over
        self._alias: dict[int, int] = {}  # root of a skip -> the view of it that was read
        self._state, self._gradient = tuple(state), tuple(gradient)
        self._gates, self.adds = tuple(gates), branches
        #: Of a state, with what shows a NaN where gradients are read.
        shown = not gradient or not {"rms", "max"}.isdisjoint(state)
        self._numbers = self._state if shown else (*self._state, "max")
        self._small = Together(self._numbers, self.states)
        self._small_back = Together(self._gradient, self.gradients)
        #: The statistics of each part, in the order in which they are found.
        self.names: dict[str, tuple[str, ...]] = {
            "state": self._numbers,
            "gradient": self._gradient,
            "branch": ("rms", "ratio", "cosine"),
            "gate": self._gates,
        }
        self._tables = {
            "state": self.states, "gradient": self.gradients, "branch": self.branches,
            "gate": self.gates,
        }  # fmt: skip
        self._roles: Roles | None = None  # all from ``begin``
        self._graph: Graph | None = None
        self._axes: Axes | None = None
        self.compares = not {*STATISTICS}.isdisjoint(state)  # whether examples are told apart

    def forget(self) -> None:
        """Begin again, for another pass."""
        examples, axis = self.examples, self.axis
        self.__init__(  # type: ignore[misc]
            self._state, self._gradient, self._gates, self.adds
        )
        self.examples, self.axis = examples, axis

    def begin(self, graph: Graph) -> None:
        self._graph, self._roles = graph, Roles(graph)
        self._axes = Axes(graph, self.axis)

    def given(self, value: Value, x: Tensor) -> None:
        self._inputs.hold(value.index, x)
        self.made(value, x)

    # ------------------------------------------------------------------------------- sums

    def adding(self, terms: list[tuple[int, Tensor]], factors: tuple[float, ...] | None) -> object:
        graph, roles = self._graph, self._roles
        assert graph is not None
        assert roles is not None
        if len(terms) < 2:
            return None
        if factors is None:
            return _Fused(*terms[0])
        terms = terms[: len(factors)]
        (a, x), (b, y) = terms[:2]
        if x.shape != y.shape and not (graph.values[a].data and graph.values[b].data):
            return None
        found = local(roles, [i for i, _ in terms])
        if found is None:
            return False
        skip, root, kind = found
        place = [i for i, _ in terms].index(skip)
        stream, own = terms[place][1], factors[place]
        self._carry(skip, root, kind, stream)
        if not self.adds:
            return _Sum(None)
        others = [(t, f) for k, ((_, t), f) in enumerate(zip(terms, factors, strict=True))
                  if k != place]  # fmt: skip
        branch, added = others[0]
        if len(others) > 1:  # in one place, as in x + (f + g)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                branch, added = sum((t * f for t, f in others[1:]), branch * added), 1.0
        return _Sum(of_branch(branch, stream, added, own))

    def _carry(self, skip: int, root: int, kind: str, stream: Tensor | None) -> None:
        """Read the state at the root of a skip: the root itself, if it was made a moment ago, is
        the batch's or the term that enters the sum, else that term, if it is all of the root seen
        otherwise."""
        assert self._graph is not None
        first = not self._merged
        if not first and not self._recent.any_of((skip, root)):
            self.ended(last=False)  # another stream begins: this is where the one before has ended
        self._merged = True
        held = self._recent.get(root)
        if held is None and root not in self._alias:
            held = self._inputs.get(root)
        if held is None and stream is not None:
            held = stream if skip == root else self._behind(stream, root) if first else None
        if held is not None:
            self._read(root, held)
        elif (
            stream is not None and kind == "identity"
            and prod(self._graph.values[root].shape) == stream.numel()
        ):  # fmt: skip
            self._read(skip, stream)
            self._alias[root] = skip
        self._recent.clear()

    def _behind(self, view: Tensor, index: int) -> Tensor | None:
        """The tensor that ``view`` is a view of, if it holds value ``index`` now, or the same
        numbers in another order and these are all that is asked for."""
        assert self._graph is not None
        base = view._base if view._is_view() else None
        if base is None:
            return None
        if (mark := base.__dict__.get(MARK)) is not None:
            return base if mark[1] == index else None
        same = base.numel() == prod(self._graph.values[index].shape)
        return base if same and _ORDERED.isdisjoint(self._numbers) else None

    def added(self, value: Value, out: Tensor, seen: object) -> None:
        roles = self._roles
        assert roles is not None
        if isinstance(seen, _Sum):
            if seen.numbers is not None:
                self.branches[value.index] = seen.numbers
        elif seen is False:
            self.made(value, out)
            return
        else:
            found = local(roles, [j for j, _ in roles.terms(value.index)])
            if found is None:
                self.made(value, out)
                return
            skip, root, kind = found
            fused = isinstance(seen, _Fused) and seen.index == skip and seen.tensor is not out
            stream = seen.tensor if isinstance(seen, _Fused) and fused else None
            self._carry(skip, root, kind, stream)
            if stream is not None and self.adds and stream.shape == out.shape:
                rest = out.detach() - stream.detach()
                self.branches[value.index] = of_branch(rest, stream, 1.0, 1.0)
        self._read(value.index, out)
        self._recent.clear()
        self._recent.hold(value.index, out)

    # ------------------------------------------------------------------------ other states

    def made(self, value: Value, out: Tensor) -> None:
        # Held until the next merge, a few at a time: it may turn out to be where that one's skip
        # begins, or at last where the stream ends.
        held = self._recent
        below = [j for j in value.inputs[:2] if j in held] if value.kind != "weights" else []
        if out.requires_grad and (below or not self._merged):
            held.hold(value.index, out, value.kind in _ASIDE or all(map(held.aside, below)))

    def ended(self, last: bool = True) -> None:
        """A stream is over, or (``last``) the whole pass: what followed the last merge is read."""
        if self._merged:
            for index, out in self._recent.fresh() if last else self._recent.latest():
                self._read(index, out)
        self._recent.clear()

    def entering(self, value: Value, x: Tensor) -> None:
        # Where there is a stream its merges show the states; inside branches nobody asks for them.
        if not self._merged:
            self._read(value.index, x)

    def emerged(self, made: Sequence[Value], out: Tensor) -> None:
        """Of what a script has done its ends can be read: the state that it was given, if its first
        merge or layer begins there, and what it gives back behind its last one."""
        roles, last, inside = self._roles, made[-1], False
        assert roles is not None
        assert self._graph is not None
        for value in made:
            if value.kind in ("weights", "contract", "opaque"):
                given = [(j, x) for j in value.inputs if (x := self._recent.get(j)) is not None]
                for j, x in given[:1]:
                    self.entering(self._graph.values[j], x)
            terms = [j for j, _ in roles.terms(value.index)] if value.kind == "sum" else []
            if (found := local(roles, terms)) is not None:
                self._carry(*found, None)
                inside = True
                if value is last:
                    self._read(value.index, out)
        if inside:
            self._recent.hold(last.index, out)
        else:
            self.made(last, out)

    def opened(self, index: int, x: Tensor) -> None:
        if index in self.states:
            self._read(index, x)

    def returned(self, value: Value, x: Tensor) -> None:
        """What the model returns."""
        self._read(value.index, x)

    # ----------------------------------------------------------------------- activations

    def activating(self, z: Tensor, in_place: bool) -> object:
        if not self._gates:
            return True
        return z.detach().clone() if in_place else z.detach()

    def activated(self, value: Value, function: Any, y: Tensor, seen: object) -> None:
        if value.inputs and value.inputs[0] in self.states:
            self._read(value.index, y)
        call, args, kwargs = function
        options = _options(value.name, args, kwargs)
        made = Activation(value.index, value.call, value.name, options or {})
        if self._gates and isinstance(seen, Tensor) and value.data:
            if options is not None:
                rule = gate(value.name, options)
            else:
                kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
                rule = _by_autograd(value.name, lambda z: call(z, *args, **kwargs))
                if any(isinstance(a, Tensor) and a.numel() > 1 for a in (*args, *kwargs.values())):
                    # A slope a channel: no sample has channels, so the slopes of all stand for z.
                    seen, rule = rule.derivative(seen, y), Gate(value.name, call, _given)
            self.gates[value.index] = self._gate(rule, seen, y, self._axis(value))
        self.activations[value.index] = made

    def weighing(self, value: Value, args: Any, options: Any) -> None:
        if self._state and value.data and value.name in MAKES:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                found = sharpness(value.name, args, options)
            if found is not None:
                self.attention[value.index] = found

    def left(self, call: int, module: nn.Module, z: Tensor, y: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            kind = _recognise(module, z)
            inner = [i for i, found in self.activations.items() if found.call == call]
            index = y.__dict__[MARK][1]
            if kind is None and len(inner) == 1 and self._around(inner[0], index, call):
                return
            self.composites[call] = kind
            for i in inner:
                del self.activations[i]
                self.gates.pop(i, None)
            if kind is None and not inner:
                return
            name, options = kind or (type(module).__name__, {})
            made = Activation(index, call, name, options)
            if self._gates and self._graph is not None:
                rule = gate(*kind) if kind else _by_autograd(name, module.forward)
                axis = self._axis(self._graph.values[index])
                self.gates[index] = self._gate(rule, z.detach(), y, axis)
            self.activations[index] = made

    def _around(self, inner: int, end: int, call: int) -> bool:
        """Whether a module does nothing but one known activation, value ``inner``, with fixed
        numbers around it, up to value ``end``: it has a name, and the numbers are read apart."""
        if self._graph is None or self.activations[inner].kind not in _OPTIONS:
            return False
        values = self._graph.values
        own = [values[end]]
        while own[-1].call == call and len(own[-1].inputs) == 1:
            own.append(values[own[-1].inputs[0]])
        own = [v for v in own if v.call == call]
        return any(v.index == inner for v in own) and all(
            v.index == inner or affine(v) is not None for v in own
        )

    def _gate(self, rule: Gate, z: Tensor, y: Tensor, axis: int) -> list[float]:
        """Shares and quantiles over a sample of the pre-activations; dead units over all."""
        y = y.detach()
        part = [rivers.wide(sample(x, x.reshape(-1))) for x in (z, y)]
        some = [name for name in self._gates if name != "dead"]
        found = gates.of_one(some, rule, *part) if some else {}
        if "dead" in self._gates:
            found["dead"] = _dead(rule, rivers.wide(z), rivers.wide(y), axis)
        return [found[name] for name in self._gates]

    def _axis(self, value: Value) -> int:
        """Where the units are, from the right: the channels of a convolution, or the last axis."""
        if self._graph is None:
            return -1
        at = value
        for _ in range(8):
            if at.name.startswith(("conv", "batch_norm", "group_norm", "instance_norm")):
                return 1 - len(value.shape)
            if not at.inputs or at.kind in ("weights", "contract", "attend"):
                break
            at = self._graph.values[at.inputs[0]]
        return -1

    # ---------------------------------------------------------------------------- reading

    def _read(self, index: int, x: Tensor) -> None:
        if index not in self.states:
            if not x.is_floating_point() or not x.numel():
                return
            if not self._small.add(index, x):
                axis = None
                if self.compares and self._axes is not None:
                    axis = self._axes.state(index, x.shape[:-1], self.examples)
                self.states[index] = numbers(x, self._numbers, axis)
        # What was made without gradients may have one now: the output of a checkpoint.
        if self._gradient and x.requires_grad and index not in self.edges:
            node = x.grad_fn
            self.edges[index] = (None, x) if node is None else (node, x.output_nr)
            x.register_hook(partial(self._back, index))  # type: ignore[no-untyped-call]

    def _back(self, index: int, g: Tensor | None) -> None:
        if g is None:  # nothing came back along this path
            return
        start = perf_counter()
        if not self._small_back.add(index, g):
            self.gradients[index] = numbers(g, self._gradient)
        self.own += perf_counter() - start

    @property
    def roles(self) -> Roles | None:
        """What was found out about the graph while it grew, if none of it may have changed."""
        graph = self._graph
        return self._roles if graph and not any(value.blind for value in graph.values) else None

    def place(self, index: int) -> int:
        """The value at which the state of value ``index`` was read."""
        return index if index in self.states else self._alias.get(index, index)

    def lost(self, index: int) -> bool:
        """Whether the state that was read at a value holds a NaN: then what came back through it
        means nothing. Autograd gives numbers there too: comparisons with NaN open and close gates
        at will."""
        if not self._gradient or not (found := self.states.get(index)):
            return False
        assert not isinstance(found, Tensor)
        seen = dict(zip(self._numbers, found, strict=True))
        return any(math.isnan(seen.get(name, 0.0)) for name in ("rms", "max"))

    def forgotten(self) -> list[float]:
        """The statistics, in the order of ``names``, of a gradient that means nothing."""
        return [1.0 if name == "nonfinite" else math.nan for name in self._gradient]

    def found(self, index: int, *parts: str) -> tuple[tuple[str, Sequence[float]], ...]:
        """What was read at a value of some of the parts ``"state"``, ``"gradient"``, ``"branch"``
        and ``"gate"``: of each that was, the numbers under its ``names``."""
        out: list[tuple[str, Sequence[float]]] = []
        for part in parts:
            found = self._tables[part].get(index)
            assert not isinstance(found, Tensor)
            if found:
                out.append((part, found))
        return tuple(out)

    def finish(self) -> None:
        """Let autograd's graph and the batch go, and fetch what stayed on a device, all in one
        transfer."""
        self.edges.clear()
        self._inputs.clear()
        self._small.end()
        self._small_back.end()
        held = [
            (table, key)
            for table in (self.states, self.gradients, self.branches)
            for key, found in table.items()
            if isinstance(found, Tensor)
        ]
        if held:
            rows = [table[key] for table, key in held]
            flat = torch.cat([row for row in rows if isinstance(row, Tensor)]).tolist()
            for (table, key), row in zip(held, rows, strict=True):
                table[key] = flat[: len(row)]
                del flat[: len(row)]


def _dead(rule: Gate, z: Tensor, y: Tensor, axis: int) -> float:
    """The share of units that are 0 with derivative 0 on every example: first by the output alone,
    then by the derivative where that is 0."""
    if y.dim() + axis < 1:  # one example: every unit is the whole of its output
        y, z = y.unsqueeze(0), z.unsqueeze(0)
    if y.numel() <= SAMPLE and y.device.type == "cpu":
        return _dead_of_few(rule, z, y, axis)
    if not math.isfinite(y.sum().item()) and bool(y.isnan().any()):
        return math.nan
    where = y.dim() + axis
    others = [i for i in range(y.dim()) if i != where]
    count = y.shape[where]
    # The first examples show most units alive; only the rest are looked at on all of them.
    first = y[: max(1, len(y) // 8)] if len(y) > 1 else y
    silent = (_largest(first, others) <= DEAD).nonzero()[:, 0]
    if len(silent) and len(first) < len(y):
        y, z = (x.index_select(where, silent) for x in (y, z))
        silent = (_largest(y, others) <= DEAD).nonzero()[:, 0]
    if not len(silent):
        return 0.0
    slope = rule.derivative(z.index_select(where, silent), y.index_select(where, silent))
    return int((slope.abs().amax(others) <= DEAD).sum()) / count


def _dead_of_few(rule: Gate, z: Tensor, y: Tensor, axis: int) -> float:
    """The same of few numbers, where calls cost more than what they look at."""
    where = y.dim() + axis
    others = tuple([i for i in range(y.dim()) if i != where])
    a = y.numpy()
    top = np.maximum.reduce(a, axis=others)
    if np.isnan(top).any():
        return math.nan
    silent = (top <= DEAD) & (np.minimum.reduce(a, axis=others) >= -DEAD)
    if not silent.any():
        return 0.0
    if rule.kind == "relu":
        found = silent & ~np.logical_or.reduce(z.numpy() > 0, axis=others)
        return int(np.count_nonzero(found)) / len(silent)
    places = torch.from_numpy(np.flatnonzero(silent))
    slope = rule.derivative(z.index_select(where, places), y.index_select(where, places))
    return int((slope.abs().amax(others) <= DEAD).sum()) / len(silent)


def _largest(x: Tensor, axes: list[int]) -> Tensor:
    if x.device.type != "cpu":
        return x.abs().amax(axes)
    return torch.from_numpy(np.abs(x.numpy()).max(tuple(axes)))


# --------------------------------------------------------------------- kinds of activation


def activation_path(graph: Graph, readings: Readings, seen: Activation) -> str:
    """The module that an activation is; of one that is called as a function that module's, with the
    function's name."""
    call = graph.calls[seen.call]
    alone = seen.call in readings.composites or call.type.lower() == seen.kind.replace("_", "")
    return call.path if alone else f"{call.path}.{seen.kind}".lstrip(".")


def _options(name: str, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """PyTorch's arguments as the language's options, or None for an activation it lacks."""
    if name not in _OPTIONS:
        return None
    out = {}
    for place, (ours, theirs, default) in enumerate(_OPTIONS[name]):
        out[ours] = kwargs.get(theirs, args[place] if len(args) > place else default)
    return out


def _by_autograd(name: str, function: Callable[[Tensor], Tensor]) -> Gate:
    """A rule for an activation without one: autograd's derivative, element by element."""

    def derivative(z: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad(), torch._C.DisableTorchFunction():
            leaf = z.detach().requires_grad_()
            out = function(leaf)
            return torch.autograd.grad(out.sum(), leaf)[0]

    return Gate(name, function, derivative)


def _given(slope: Tensor, y: Tensor) -> Tensor:
    """The derivative where it is known before."""
    return slope


def _recognise(module: nn.Module, like: Tensor) -> tuple[str, dict[str, Any]] | None:
    """The known activation with the same values as the module on a grid, or None.

    The module has no parameters, buffers or children; it is run once more, on 14 numbers.
    """
    grid = torch.tensor(_GRID, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        try:
            found = module.forward(grid.clone())
        except Exception:
            return None
        if not isinstance(found, Tensor) or found.shape != grid.shape:
            return None
        tolerance = 1e-5 if like.dtype in (torch.float32, torch.float64) else 2e-2
        for kind, options in _KNOWN:
            if F.l1_loss(gate(kind, options).apply(grid), found).item() < tolerance:
                return kind, options
    return None
