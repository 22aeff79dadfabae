"""Recording: every tensor function of a forward pass, with the module that called it.

A function mode sees each call of a PyTorch function before and after it runs; while it lasts
``Module.__call__`` keeps the stack of modules. Nothing is stored on modules or parameters, and
everything is gone when the ``with`` block ends. What no function made (a scripted block, a custom
function in C++) is found again along autograd's own graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from depthgauge.trace.following import begin, end
from depthgauge.trace.graph import GRAFTED, MARK, Call, Graph, Ref, Value
from depthgauge.trace.held import Stack
from depthgauge.trace.inventory import Inventory
from depthgauge.trace.manner import (
    FUSED,
    MANNERS,
    SUMMED,
    Manner,
    axis_of,
    factors_of,
    in_place,
    manner_of,
    overwrites,
    summed,
)
from depthgauge.trace.operations import autograd_name, kind_of

__all__ = ["Recorder", "Watcher"]

_TOKENS = itertools.count()
_PLAIN: Final = frozenset((int, float, bool, str, type(None), type(...), torch.dtype))

_LAYERS: Final = frozenset(("weights", "contract", "opaque", "cell"))
_MADE: Final = frozenset(("weights", "norm", "act", "product", "drop", "shape", "join"))
_SHOWN: Final = frozenset(("sum", "softmax", "attend", *_MADE, *_LAYERS))
_FLOATING: Final = frozenset((
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64,
    torch.complex128, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2,
))  # fmt: skip
#: Kinds that may return their input itself and have not written to it.
_UNWRITTEN: Final = frozenset(("shape", "cut", "source"))
_ALIKE: Final = frozenset(("expand_as", "view_as", "reshape_as", "type_as"))
_EMPTY: Final[tuple[int, ...]] = ()
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_SPLIT: Final = frozenset((*FUSED, "sum", "mean", "einsum", "index_put", "max", "min"))
#: Tensors that nothing computes, functions that make one out of numbers, and kinds of function
#: that make a constant of constants: without chance.
_GIVEN: Final = ("buffer", "constant")
_NUMBERS: Final = ("tensor", "as_tensor", "asarray", "scalar_tensor", "full", "zeros", "ones")
_COMPUTED: Final = ("shape", "sum", "product", "point", "act", "reduce")
_ELEMENTWISE: Final = ("act", "point", "product", "sum", "shape", "source", "constant")


class Watcher(Protocol):
    """Looks at tensors as they are made; whatever it keeps is numbers."""

    def begin(self, graph: Graph) -> None:
        """The graph that will grow."""
        ...

    def given(self, value: Value, x: Tensor) -> None:
        """A part of the batch, before anything ran."""
        ...

    def adding(self, terms: list[tuple[int, Tensor]], factors: tuple[float, ...] | None) -> object:
        """The float tensors that a sum is about to add, not yet written over, and the factors that
        the function gives the first of them; None for one that does more than add."""
        ...

    def made(self, value: Value, out: Tensor) -> None:
        """What may be, or follow, a state: carried on, normed, active, a layer's output."""
        ...

    def added(self, value: Value, out: Tensor, seen: object) -> None:
        """What the sum made, with what ``adding`` returned (None where it was not asked)."""
        ...

    def activating(self, z: Tensor, in_place: bool) -> object:
        """An activation's input, which it writes over if it works in place."""
        ...

    def activated(self, value: Value, function: Any, y: Tensor, seen: object) -> None:
        """The activation's output; ``function`` is it without the recorder."""
        ...

    def weighing(self, value: Value, args: Any, options: Any) -> None:
        """A softmax of logits, or attention as one function, with what it was given."""
        ...

    def entering(self, value: Value, x: Tensor) -> None:
        """The data that enters a weight layer."""
        ...

    def returned(self, value: Value, x: Tensor) -> None:
        """A state for certain: of a recurrent cell."""
        ...

    def emerged(self, made: Sequence[Value], out: Tensor) -> None:
        """What was found along autograd's graph; ``out`` is the tensor of the last value."""
        ...

    def opened(self, index: int, x: Tensor) -> None:
        """Value ``index`` was made where gradients were off, and has one now."""
        ...

    def left(self, call: int, module: nn.Module, z: Tensor, y: Tensor) -> None:
        """A module without weights and children has made ``y`` of ``z``, element by element."""
        ...


class Recorder(TorchFunctionMode):
    """Records into ``graph`` while it is entered; ``with recorder: model(...)``.

    ``saved`` is filled with copies of parameters that are about to be written to. ``anchor``: a
    zero that requires a gradient, added to what a frozen layer makes of the data. ``keep``: values,
    by ``Graph.places``, whose tensors are kept, as they are when they are made, in ``kept``.
    ``own`` counts the seconds that recording and watching took.
    """

    def __init__(
        self,
        inventory: Inventory,
        watcher: Watcher | None = None,
        anchor: Tensor | None = None,
        saved: dict[int, tuple[Tensor, Tensor]] | None = None,
        keep: Collection[int] = (),
    ) -> None:
        super().__init__()
        self._saved = {} if saved is None else saved
        self._keep = frozenset(keep)
        self.kept: dict[int, tuple[GradientEdge | None, Tensor]] = {}
        self._grafts = 0
        self.graph = Graph()
        self.own = 0.0
        self.raised: Exception | None = None  # by a function of PyTorch, not by us
        self.called: set[int] = set()
        self._values = self.graph.values
        self._watcher, self._anchor = watcher, anchor
        self._token = next(_TOKENS)
        self._paths = {id(module): path for path, module in inventory.modules}
        self._held = {id(buffer): (path, False) for path, buffer in inventory.buffers}
        self._held |= {id(parameter): (path, True) for path, parameter in inventory.parameters}
        self._shapes: dict[torch.Size, tuple[int, ...]] = {}
        self._known: dict[int, int] = {}  # id of a parameter, buffer or input -> its value
        self._kept: list[Tensor] = []  # keeps those ids alive
        self._nodes: dict[Any, int] = {}  # autograd's node -> the value that it made
        self._here = 0
        #: Calls with the ids of their modules and how many values there were.
        self._running: list[tuple[int, int, int]] = []
        self._written: set[int] = set()  # values that were written over a tensor
        self._stack = Stack()  # the last one, while somebody watches

    # ------------------------------------------------------------------------ entering

    def __enter__(self) -> Recorder:
        if self._watcher is not None:
            self._watcher.begin(self.graph)
        begin(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            end(self)

    @property
    def where(self) -> Call:
        """The module that is running, or that was when the forward pass raised."""
        return self.graph.calls[self._here]

    @property
    def wrote(self) -> bool:
        """Whether a function has written over a tensor."""
        return bool(self._written)

    def enter(self, module: nn.Module) -> None:
        """``module`` is about to run."""
        number = id(module)
        self.called.add(number)
        path = self._paths.get(number)
        calls = self.graph.calls
        if path is None:
            path = f"{calls[self._here].path}.<{type(module).__name__}>".lstrip(".")
        calls.append(Call(path, self._here, type(module).__name__))
        self._here = len(calls) - 1
        self._running.append((self._here, number, len(self._values)))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """``module`` has run."""
        for x in output if isinstance(output, tuple | list) else (output,):
            if isinstance(x, Tensor) and MARK not in x.__dict__:
                start = perf_counter()
                if x.grad_fn is not None:
                    self.find(x)  # which a script has made, while it is known where
                self.own += perf_counter() - start
        here, first, number = self._here, 0, id(module)
        while self._running:  # a module whose exception the model has caught never left
            here, left, first = self._running.pop()
            if left == number:
                break
        self._here = max(self.graph.calls[here].parent, 0)
        if (
            len(self._values) - first > 1 and not module._parameters and not module._modules
            and self._watcher is not None and not module._buffers and len(args) == 1
            and isinstance(output, Tensor) and isinstance(args[0], Tensor)
        ):  # fmt: skip
            start = perf_counter()
            self._composite(here, first, module, args[0], output)
            self.own += perf_counter() - start

    def _composite(self, call: int, first: int, module: nn.Module, z: Tensor, y: Tensor) -> None:
        """Show the watcher an activation that a module spells out in several functions."""
        kinds = [value.kind for value in self._values[first:]]
        several = len(kinds) - kinds.count("source") - kinds.count("constant") > 1
        same = z.shape == y.shape and z is not y and y.is_floating_point()
        if several and same and all(kind in _ELEMENTWISE for kind in kinds):
            assert self._watcher is not None
            self._watcher.left(call, module, z, y)

    # ----------------------------------------------------------------------- recording

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        start = perf_counter()
        manner = MANNERS.get(func) or manner_of(func)
        seen: object = None
        if manner.first and args:
            if manner.name == "requires_grad" and len(args) == 2 and args[0].grad_fn is not None:
                return None  # asks for the gradient that our anchor has given it already
            seen = self._before(manner, args, kwargs)
        own = perf_counter() - start
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            self.raised = error
            raise
        start = perf_counter()
        if isinstance(out, Tensor):
            out = self._record(manner, args, kwargs, out, seen, -1, func)
        elif isinstance(out, tuple | list):
            for place, item in enumerate(out):
                if isinstance(item, Tensor):
                    self._record(manner, args, kwargs, item, None, place, func)
        elif manner.name == "setitem":
            self._record(manner, args, kwargs, args[0], None, -1, func)
        self.own += own + perf_counter() - start
        return out

    def _before(self, manner: Manner, args: Any, kwargs: Any) -> object:
        """What the watcher says of a sum or an activation that is about to run; what a parameter
        holds is kept if the function will write to it."""
        name, kind, watcher, seen = manner.name, manner.kind, self._watcher, None
        if watcher is not None:
            if kind == "sum" or name in FUSED:
                seen = watcher.adding(self._floats(args, kwargs), factors_of(name, args, kwargs))
            elif name in SUMMED:
                seen = self._summing(manner, args, kwargs)
            elif kind == "act" and args[0].is_floating_point() and args[0].numel():
                seen = watcher.activating(args[0], in_place(manner, args, kwargs))
        if manner.writes and overwrites(name, args, kwargs):
            self._spare(args[1] if name == "embedding" else args[0])
        return seen

    def _summing(self, manner: Manner, args: Any, kwargs: Any) -> object:
        """What the watcher says of a function that is about to add up the last stack."""
        stack, inputs = self._stack, list[int]()
        if stack.index < 0 or not stack.fresh:
            return None
        shown = [self._strip(arg, inputs) for arg in args]
        options = {key: self._strip(arg, inputs) for key, arg in kwargs.items()}
        if stack.index not in inputs:
            return None
        _, kind, terms = self._split(manner.name, manner.kind, inputs, shown, options, None)
        if kind != "sum" or len(terms) != len(stack.tensors):
            return None
        given = [x for arg in args for x in (arg if isinstance(arg, tuple | list) else (arg,))]
        others = [x for x in given if isinstance(x, Tensor) and self.find(x) != stack.index]
        assert self._watcher is not None
        added = list(zip(terms, stack.tensors, strict=True))
        return self._watcher.adding(added, stack.factors(manner.name, others))

    def _record(
        self,
        manner: Manner,
        args: Any,
        kwargs: Any,
        out: Tensor,
        seen: object,
        place: int,
        function: Any,
    ) -> Tensor:
        name, kind = manner.name, manner.kind
        inputs: list[int] = []
        shown: list[Any] = []
        for arg in args:
            if isinstance(arg, Tensor):
                index = self.find(arg)
                inputs.append(index)
                shown.append(Ref(index))
            else:
                shown.append(arg if type(arg) in _PLAIN else self._strip(arg, inputs))
        options = (
            {key: self._strip(arg, inputs) for key, arg in kwargs.items()} if kwargs else _NONE
        )
        values = self._values
        if name in _ALIKE:
            inputs = inputs[:1]  # of the other tensor only the shape or the type is taken
        if name in _SPLIT:
            name, kind, inputs = self._split(name, kind, inputs, shown, options, out)
        data = param = False
        for i in inputs:
            made = values[i]
            data = data or made.data
            param = param or made.param
        value = self._new(
            name, kind, tuple(inputs), out, data, param, tuple(shown), options, function, place
        )
        if (
            param and data and not value.grad and value.floating and not value.blind and place < 0
            and self._anchor is not None and kind in _LAYERS and out.dtype.is_floating_point
            and all(_untaught(values[i]) for i in inputs)
        ):  # fmt: skip
            out = out + self._anchor.to(out)
            value.grad = True
        self._know(out, value)
        if name == "stack" and self._watcher is not None:
            self._stack = Stack.of(value.index, args[0] if args else kwargs["tensors"])
        if not (data or param) and value.floating and prod(value.shape) == 1:
            self._fix(value, out)
        if self._keep:
            self._hold(value.index, out)
        whole = None
        if (
            args and args[0] is out and kind not in _UNWRITTEN
            and (kind != "drop" or in_place(manner, args, kwargs))
        ):  # fmt: skip
            whole = self._wrote(out, value)
        if kind in _SHOWN and value.floating and self._watcher is not None:
            self._show(value, function, args, kwargs, out, seen)
            if whole is not None:
                self._watcher.made(*whole)
        return out

    def _show(
        self, value: Value, function: Any, args: Any, kwargs: Any, out: Tensor, seen: object
    ) -> None:
        watcher, kind = self._watcher, value.kind
        assert watcher is not None
        if kind in _MADE:
            watcher.made(value, out)
        if kind == "sum":
            watcher.added(value, out, seen)
        elif kind in ("softmax", "attend"):
            watcher.weighing(value, args, kwargs)
        elif kind == "act" and seen is not None:
            watcher.activated(value, (function, args[1:], kwargs), out, seen)
        elif kind in _LAYERS:
            for arg in args[:2]:
                if isinstance(arg, Tensor) and arg.is_floating_point():
                    entered = self._values[self.find(arg)]
                    if entered.data and (entered.grad or entered.blind):
                        if kind == "cell":
                            watcher.returned(entered, arg)
                        else:
                            watcher.entering(entered, arg)
                            break
            if kind == "cell":
                watcher.returned(value, out)

    def _split(
        self,
        name: str,
        kind: str,
        inputs: list[int],
        shown: list[Any],
        options: Mapping[str, Any],
        out: Tensor | None,
    ) -> tuple[str, str, list[int]]:
        """A function that does two things as two values, ``addmm`` as a product and a sum, or one
        that its arguments tell: ``max`` of two tensors."""
        values = self.graph.values
        if name in FUSED and len(inputs) > 2 and out is not None:
            first, *factors = inputs
            inner = "mul" if name == "addcmul" else "div" if name == "addcdiv" else "matmul"
            data = any(values[i].data for i in factors)
            if not values[first].data and kind == "contract":  # a bias
                return name, kind, inputs
            param = any(values[i].param for i in factors)
            numbers = tuple(map(Ref, factors))
            made = self._new(inner, kind_of(inner), tuple(factors), out, data, param, numbers)
            shown[:] = [Ref(first), Ref(made.index), *shown[3:]]
            return name, "sum", [first, made.index]
        if name in ("sum", "mean") and len(inputs) == 1 and values[inputs[0]].name == "stack":
            stack = values[inputs[0]]
            axis = axis_of(stack.args, stack.options, 0)
            over = axis_of(tuple(shown), options, None)
            if (
                over is not None
                and axis is not None
                and over % len(stack.shape) == axis % len(stack.shape)
            ):
                return name, "sum", list(stack.inputs)
        if name == "einsum" and (stacked := summed(values, inputs, shown)):
            return name, "sum", stacked
        if name in ("max", "min") and len(inputs) > 1:  # of two tensors, number by number
            return f"{name}imum", "point", inputs
        if name == "index_put" and (options.get("accumulate") or shown[-1] is True):
            return name, "sum", inputs
        return name, kind, inputs

    def _new(
        self,
        name: str,
        kind: str,
        inputs: tuple[int, ...],
        out: Tensor,
        data: bool,
        param: bool,
        args: tuple[Any, ...] = _EMPTY,
        options: Mapping[str, Any] = _NONE,
        function: Any = None,
        place: int = -1,
    ) -> Value:
        values, size = self._values, out.shape
        value = Value(
            len(values), name, kind, inputs, self._here,
            self._shapes.get(size) or self._shape(size), out.dtype in _FLOATING, out.requires_grad,
            data, param, not torch.is_grad_enabled(), args, options, function, place,
        )  # fmt: skip
        values.append(value)
        return value

    def _shape(self, size: torch.Size) -> tuple[int, ...]:
        """One tuple for each size that is met."""
        return self._shapes.setdefault(size, tuple(size))

    def _spare(self, tensor: Tensor) -> None:
        """Keep what a parameter holds before it is written to, directly or by a view of it."""
        value = self._values[self.find(tensor)]
        while value.kind in ("shape", "cut") and value.inputs:
            value = self._values[value.inputs[0]]
        for kept in self._kept if value.kind == "parameter" else ():
            if self._known.get(id(kept)) == value.index and id(kept) not in self._saved:
                self._saved[id(kept)] = (kept, kept.detach().clone())

    def _wrote(self, tensor: Tensor, value: Value) -> tuple[Value, Tensor] | None:
        """``tensor`` was written over: the tensor that it is a view of has changed too, and is what
        it holds now."""
        self._written.add(value.index)
        base = tensor._base if tensor._is_view() else None
        if base is not None:
            below = self.find(base)
            data = value.data or self.graph.values[below].data
            inputs = (below, value.index)
            whole = self._new("setitem", "join", inputs, base, data, value.param)
            self._written.add(whole.index)
            self._know(base, whole)
            return whole, base
        return None

    def _hold(self, index: int, tensor: Tensor) -> None:
        if (place := index - self._grafts) not in self._keep:
            return
        with torch._C.DisableTorchFunction():
            edge = get_gradient_edge(tensor) if tensor.requires_grad else None
            self.kept[place] = edge, tensor.detach().clone()

    def _fix(self, value: Value, tensor: Tensor) -> None:
        """Keep the one number of a constant: given, held by the model, or computed from such."""
        known, values = self.graph.constants, self._values
        given = value.kind in _GIVEN or value.name in _NUMBERS
        if given or (
            value.kind in _COMPUTED and value.inputs
            and all(i in known or values[i].kind in _GIVEN for i in value.inputs)
        ):  # fmt: skip
            with torch._C.DisableTorchFunction():
                known[value.index] = tensor.detach().clone()

    def _know(self, tensor: Tensor, value: Value) -> None:
        number = id(tensor)
        if number in self._known or number in self._held:
            self._known[number] = value.index
        else:
            try:
                tensor.__dict__[MARK] = (self._token, value.index)
            except AttributeError:  # a subclass without room for it
                self._known[number] = value.index
                self._kept.append(tensor)
        if value.grad and (node := tensor.grad_fn) is not None:
            self._nodes[node] = value.index

    # ------------------------------------------------------------------- finding a value

    def give(self, tensor: Tensor, name: str) -> None:
        """Make ``tensor``, a part of the batch, known as an input called ``name``."""
        value = self._new(name, "input", (), tensor, True, False)
        value.path = name
        self._know(tensor, value)
        if self._watcher is not None and value.floating:
            self._watcher.given(value, tensor)
        if self._keep:
            self._hold(value.index, tensor)

    def find(self, tensor: Tensor) -> int:
        """The number of the value that ``tensor`` holds now."""
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        try:
            mark = tensor.__dict__.get(MARK)
        except AttributeError:
            mark = None
        if mark is not None and mark[0] == self._token:
            index: int = mark[1]
            made = self._values[index]
            if not made.grad and made.blind and tensor.requires_grad:
                made.grad = True  # made inside a checkpoint or a custom function, which has ended
                if self._watcher is not None:
                    self._watcher.opened(index, tensor)
                if tensor.grad_fn is not None:
                    self._nodes[tensor.grad_fn] = index
            return self._fresh(tensor, index) if self._written else index
        return self._unknown(tensor)

    def _fresh(self, view: Tensor, index: int) -> int:
        """A view of what has been written over since: a view of what is there now."""
        base = view._base if view._is_view() else None
        mark = base.__dict__.get(MARK) if base is not None else None
        if mark is None or mark[0] != self._token or mark[1] <= index:
            return index
        newer = self.graph.values[mark[1]]
        if newer.index not in self._written or newer.inputs[-1] == index:
            return index
        old = self.graph.values[index]
        value = self._new(
            old.name, "shape", (newer.index,), view, newer.data, newer.param or old.param
        )
        view.__dict__[MARK] = (self._token, value.index)
        return value.index

    def _unknown(self, tensor: Tensor) -> int:
        """A parameter, a buffer, a constant, or what a function made that nobody saw."""
        held = self._held.get(id(tensor))
        if held is not None:
            path, leaf = held
            number, size = len(self._values), tensor.shape
            value = Value(
                number, path, "parameter" if leaf else "buffer", _EMPTY, self._here,
                self._shapes.get(size) or self._shape(size), tensor.dtype in _FLOATING,
                tensor.requires_grad, False, leaf, False, path=path,
            )  # fmt: skip
            self._values.append(value)
            self._known[id(tensor)] = number
            self._kept.append(tensor)
            if not leaf and value.floating and prod(value.shape) == 1:
                self._fix(value, tensor)
            if self._keep:
                self._hold(number, tensor)
            return number
        node = tensor.grad_fn
        if node is not None:
            first = len(self._values)
            index = self._graft(node)
            value = self._values[index]
            if not value.shape:
                value.shape, value.floating = tuple(tensor.shape), tensor.dtype in _FLOATING
            self._know(tensor, value)
            if self._watcher is not None and index >= first and tensor.is_floating_point():
                self._watcher.emerged(self._values[first : index + 1], tensor)
            return index
        leaf = isinstance(tensor, nn.Parameter)
        kind = "parameter" if leaf else "constant"
        value = self._new(kind, kind, _EMPTY, tensor, False, leaf)
        value.blind = False
        self._known[id(tensor)] = value.index
        self._kept.append(tensor)
        if not leaf and value.floating and prod(value.shape) == 1:
            self._fix(value, tensor)
        return value.index

    def _graft(self, top: Any) -> int:
        """Values for autograd's nodes from ``top`` down to those that are known."""
        todo = [top]
        while todo:
            node = todo[-1]
            below = [n for n, _ in node.next_functions if n is not None and n not in self._nodes]
            if node in self._nodes:
                todo.pop()
            elif below:
                todo += below
            else:
                todo.pop()
                self._nodes[node] = self._grafted(node)
        return self._nodes[top]

    def _grafted(self, node: Any) -> int:
        if (leaf := getattr(node, "variable", None)) is not None:
            return self.find(leaf)
        name = autograd_name(node)
        inputs = tuple(self._nodes[n] for n, _ in node.next_functions if n is not None)
        values = self._values
        data = any(values[i].data for i in inputs)
        param = any(values[i].param for i in inputs)
        value = Value(
            len(values), name, kind_of(name), inputs, self._here, (), True, True, data, param, False
        )
        value.item = GRAFTED
        self._grafts += 1
        values.append(value)
        return value.index

    def _strip(self, arg: Any, inputs: list[int]) -> Any:
        """The argument with numbers in place of its tensors, which are added to ``inputs``."""
        if isinstance(arg, Tensor):
            index = self.find(arg)
            inputs.append(index)
            return Ref(index)
        kind = type(arg)
        if kind in _PLAIN:
            return arg
        if kind is tuple or kind is list or isinstance(arg, tuple | list):
            return tuple([self._strip(item, inputs) for item in arg])
        if kind is slice:
            return slice(*(self._strip(x, inputs) for x in (arg.start, arg.stop, arg.step)))
        return None

    def _floats(self, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[int, Tensor]]:
        given = [*args, *kwargs.values()] if kwargs else args
        return [(self.find(a), a) for a in given if isinstance(a, Tensor) and a.is_floating_point()]


def _untaught(value: Value) -> bool:
    """Whether no gradient was to be expected of an input: a parameter, numbers that stand for
    words, the batch itself. What a cut has left without one stays so."""
    return not value.floating or not value.data or value.kind == "input"
