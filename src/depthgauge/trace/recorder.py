"""Recording: every tensor function of a forward pass, with the module that called it.

A function mode sees each call of a PyTorch function before and after it runs; two global module
hooks keep the stack of modules. Nothing is stored on modules or parameters, and everything is gone
when the ``with`` block ends. What no function made (a scripted block, a custom function in C++) is
found again along autograd's own graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode

from depthgauge.trace.graph import Call, Graph, Ref, Value
from depthgauge.trace.operations import KINDS, autograd_name, kind_of, plain_name

__all__ = ["Recorder", "Watcher"]

_KEY: Final = "_depthgauge_value"
_TOKENS = itertools.count()
_FUSED: Final = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "addcmul", "addcdiv")
_PLAIN: Final = (int, float, bool, str, type(None), slice, type(...), torch.dtype, torch.Size)

#: Functions that a watcher looks at before they run, because they may write over their input.
_BEFORE: Final = frozenset(name for name, kind in KINDS.items() if kind in ("sum", "act"))
_AFTER: Final = frozenset(("sum", "act", "norm", "weights", "contract", "opaque", "cell"))


class Watcher(Protocol):
    """Looks at tensors as they are made; whatever it keeps is numbers."""

    def before(self, graph: Graph, name: str, tensors: list[tuple[int, Tensor]]) -> object:
        """The float inputs of a sum or an activation, not yet written over."""
        ...

    def after(self, value: Value, out: Tensor, before: object) -> None:
        """What such a function made, with what ``before`` returned."""
        ...

    def layer(self, value: Value, x: Tensor) -> None:
        """The data that is about to enter a weight layer: value ``value``."""
        ...


class Recorder(TorchFunctionMode):
    """Records into ``graph`` while it is entered; ``with recorder: model(...)``.

    ``names`` maps the id of each parameter and buffer to its path and whether it is a parameter.
    ``anchor``: a zero that requires a gradient, added to what a frozen layer makes of the data.
    ``own`` counts the seconds that recording and watching took.
    """

    def __init__(
        self,
        model: nn.Module,
        watcher: Watcher | None = None,
        anchor: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.graph = Graph()
        self.own = 0.0
        self.called: set[int] = set()
        self._watcher, self._anchor = watcher, anchor
        self._token = next(_TOKENS)
        self._paths = {id(m): path for path, m in model.named_modules()}
        self._held: dict[int, tuple[str, bool]] = {}
        for path, buffer in model.named_buffers():
            self._held[id(buffer)] = (path, False)
        for path, parameter in model.named_parameters():
            self._held[id(parameter)] = (path, True)
        self._known: dict[int, int] = {}  # id of a parameter, buffer or input -> its value
        self._kept: list[Tensor] = []  # keeps those ids alive
        self._nodes: dict[Any, int] = {}  # autograd's node -> the value that it made
        self._here = 0
        self._written: set[int] = set()  # values that were written over a tensor
        self._handles: list[Any] = []

    # ------------------------------------------------------------------------ entering

    def __enter__(self) -> Recorder:
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            for handle in self._handles:
                handle.remove()

    @property
    def where(self) -> Call:
        """The module that is running, or that was when the forward pass raised."""
        return self.graph.calls[self._here]

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.called.add(id(module))
        path = self._paths.get(id(module))
        calls = self.graph.calls
        if path is None:
            path = f"{calls[self._here].path}.<{type(module).__name__}>".lstrip(".")
        calls.append(Call(path, self._here, type(module).__name__))
        self._here = len(calls) - 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._here = max(self.graph.calls[self._here].parent, 0)

    # ----------------------------------------------------------------------- recording

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = plain_name(func)
        watcher, seen = self._watcher, None
        if name == "requires_grad" and args[0].grad_fn is not None and len(args) == 2:
            return None  # asks for the gradient that our anchor has given it already
        if watcher is not None and name in _BEFORE:
            start = perf_counter()
            seen = watcher.before(self.graph, name, self._floats(args, kwargs))
            self.own += perf_counter() - start
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            start = perf_counter()
            out = self._record(name, args, kwargs, out, seen)
            self.own += perf_counter() - start
        elif type(out) in (tuple, list) or (isinstance(out, tuple) and out):
            start = perf_counter()
            for place, item in enumerate(out):
                if isinstance(item, Tensor):
                    self._record(name, args, kwargs, item, None, place)
            self.own += perf_counter() - start
        elif name == "setitem":
            self._record(name, args, kwargs, args[0], None)
        return out

    def _record(
        self, name: str, args: Any, kwargs: Any, out: Tensor, seen: object, place: int = -1
    ) -> Tensor:
        inputs: list[int] = []
        shown = [self._strip(arg, inputs) for arg in args]
        if kwargs:
            shown += [(key, self._strip(arg, inputs)) for key, arg in kwargs.items()]
        values = self.graph.values
        kind = kind_of(name)
        data = param = False
        for i in inputs:
            data = data or values[i].data
            param = param or values[i].param
        if place >= 0:
            shown.append(("place", place))
        name, kind, inputs = self._split(name, kind, inputs, shown, out)
        value = self._new(name, kind, tuple(inputs), tuple(shown), out, data, param)
        anchor = self._anchor
        if (
            anchor is not None and data and not value.grad and not value.blind and value.floating
            and kind != "cut" and kind != "source" and place < 0
            and any(values[i].param for i in inputs) and out.dtype.is_floating_point
            and not any(values[i].grad and values[i].floating for i in inputs if values[i].data)
        ):  # fmt: skip
            out = out + anchor.to(out)
            value.grad = True
            value.args = (*value.args, ("anchored", True))
        self._know(out, value)
        if args and args[0] is out and kind not in ("shape", "cut", "source"):
            self._wrote(out, value)
        if (watcher := self._watcher) is not None and value.floating and kind in _AFTER:
            if kind in ("weights", "contract", "opaque", "cell"):
                self._layer(watcher, args)
            if seen is not None or kind == "norm":
                watcher.after(value, out, seen)
        return out

    def _split(
        self, name: str, kind: str, inputs: list[int], shown: list[Any], out: Tensor
    ) -> tuple[str, str, list[int]]:
        """A function that does two things as two values: ``addmm`` is a product and a sum."""
        values = self.graph.values
        if name in _FUSED and len(inputs) > 2:
            first, *factors = inputs
            inner = "mul" if name == "addcmul" else "div" if name == "addcdiv" else "matmul"
            data = any(values[i].data for i in factors)
            if not values[first].data and kind == "contract":  # a bias
                return name, kind, inputs
            param = any(values[i].param for i in factors)
            made = self._new(
                inner, kind_of(inner), tuple(factors), tuple(map(Ref, factors)), out, data, param
            )
            shown[:] = [Ref(first), Ref(made.index), *shown[3:]]
            return name, "sum", [first, made.index]
        if name in ("sum", "mean") and len(inputs) == 1 and values[inputs[0]].name == "stack":
            stack = values[inputs[0]]
            axis = _axis(stack.args, 0)
            over = _axis(tuple(shown), None)
            if over is not None and over % len(stack.shape) == axis % len(stack.shape):
                return name, "sum", list(stack.inputs)
        if name == "einsum" and (stacked := _summed(values, inputs, shown)):
            return name, "sum", stacked
        if name == "index_put" and shown[-1] in (True, ("accumulate", True)):
            return name, "sum", inputs
        return name, kind, inputs

    def _layer(self, watcher: Watcher, args: Any) -> None:
        """Show the watcher the data that enters a weight layer."""
        for arg in args[:2]:
            if isinstance(arg, Tensor) and arg.is_floating_point():
                value = self.graph.values[self.find(arg)]
                if value.data and (value.grad or value.blind):
                    watcher.layer(value, arg)
                    return

    def _new(
        self,
        name: str,
        kind: str,
        inputs: tuple[int, ...],
        args: tuple[Any, ...],
        out: Tensor,
        data: bool,
        param: bool,
    ) -> Value:
        value = Value(
            len(self.graph.values),
            name,
            kind,
            inputs,
            args,
            call=self._here,
            shape=tuple(out.shape),
            floating=out.is_floating_point() or out.is_complex(),
            grad=out.requires_grad,
            data=data,
            param=param,
            blind=not torch.is_grad_enabled(),
        )
        self.graph.values.append(value)
        return value

    def _wrote(self, tensor: Tensor, value: Value) -> None:
        """``tensor`` was written over: the tensor that it is a view of has changed too."""
        self._written.add(value.index)
        base = tensor._base if tensor._is_view() else None
        if base is not None:
            below = self.find(base)
            data = value.data or self.graph.values[below].data
            inputs = (below, value.index)
            whole = self._new("setitem", "join", inputs, (), base, data, value.param)
            self._written.add(whole.index)
            self._know(base, whole)

    def _know(self, tensor: Tensor, value: Value) -> None:
        if id(tensor) in self._held or id(tensor) in self._known:
            self._known[id(tensor)] = value.index
        else:
            try:
                setattr(tensor, _KEY, (self._token, value.index))
            except (AttributeError, RuntimeError):
                self._known[id(tensor)] = value.index
                self._kept.append(tensor)
        if value.grad:
            node = tensor.grad_fn
            if node is not None:
                self._nodes[node] = value.index

    # ------------------------------------------------------------------- finding a value

    def give(self, tensor: Tensor, name: str) -> None:
        """Make ``tensor``, a part of the batch, known as an input called ``name``."""
        value = self._new(name, "input", (), (), tensor, True, False)
        value.place = name
        self._know(tensor, value)

    def find(self, tensor: Tensor) -> int:
        """The number of the value that ``tensor`` holds now."""
        mark = tensor.__dict__.get(_KEY) if hasattr(tensor, "__dict__") else None
        if mark is not None and mark[0] == self._token:
            index: int = mark[1]
            return self._fresh(tensor, index) if self._written else index
        known = self._known.get(id(tensor))
        return self._unknown(tensor) if known is None else known

    def _fresh(self, view: Tensor, index: int) -> int:
        """A view of what has been written over since: a view of what is there now."""
        base = view._base if view._is_view() else None
        mark = base.__dict__.get(_KEY) if base is not None else None
        if mark is None or mark[0] != self._token or mark[1] <= index:
            return index
        newer = self.graph.values[mark[1]]
        if newer.index not in self._written or newer.inputs[-1] == index:
            return index
        old = self.graph.values[index]
        value = self._new(
            old.name, "shape", (newer.index,), (), view, newer.data, newer.param or old.param
        )
        setattr(view, _KEY, (self._token, value.index))
        return value.index

    def _unknown(self, tensor: Tensor) -> int:
        """A parameter, a buffer, a constant, or what a function made that nobody saw."""
        path, trained = self._held.get(id(tensor), ("", False))
        node = tensor.grad_fn
        if node is not None and not path:
            index = self._graft(node)
            value = self.graph.values[index]
            if not value.shape:
                value.shape, value.floating = tuple(tensor.shape), tensor.is_floating_point()
        else:
            leaf = isinstance(tensor, nn.Parameter) or trained
            kind = "parameter" if leaf else "buffer" if path else "constant"
            value = self._new(path or kind, kind, (), (), tensor, False, leaf)
            value.place, value.blind = path, False
            if leaf:
                value.grad = tensor.requires_grad
        if node is not None and not path:
            self._know(tensor, value)
        else:
            self._known[id(tensor)] = value.index
            self._kept.append(tensor)
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
        values = self.graph.values
        value = Value(
            len(values),
            name,
            kind_of(name),
            inputs,
            (("grafted", True),),
            call=self._here,
            data=any(values[i].data for i in inputs),
            param=any(values[i].param for i in inputs),
        )
        values.append(value)
        return value.index

    def _strip(self, arg: Any, inputs: list[int]) -> Any:
        """The argument with numbers in place of its tensors, which are added to ``inputs``."""
        if isinstance(arg, Tensor):
            index = self.find(arg)
            inputs.append(index)
            return Ref(index)
        if type(arg) in (tuple, list):
            return tuple([self._strip(item, inputs) for item in arg])
        if isinstance(arg, slice):
            return slice(*(self._strip(x, inputs) for x in (arg.start, arg.stop, arg.step)))
        return arg if isinstance(arg, _PLAIN) else None

    def _floats(self, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[int, Tensor]]:
        given = [*args, *kwargs.values()] if kwargs else args
        return [(self.find(a), a) for a in given if isinstance(a, Tensor) and a.is_floating_point()]


def _axis(args: tuple[Any, ...], default: int | None) -> int | None:
    """The one axis among a function's arguments, the second one or called dim."""
    for arg in args[1:]:
        if isinstance(arg, tuple) and arg and arg[0] in ("dim", "axis"):
            arg = arg[1]
        if isinstance(arg, tuple) and len(arg) == 1:
            arg = arg[0]
        if isinstance(arg, int) and not isinstance(arg, bool | Ref):
            return arg
    return default


def _summed(values: list[Value], inputs: list[int], shown: list[Any]) -> list[int]:
    """What ``einsum("k,k...->...", numbers, stack)`` adds up with constant or learned numbers."""
    equation = next((a for a in shown if isinstance(a, str)), "")
    left, arrow, right = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    if not arrow or len(subscripts) != 2 or len(inputs) != 2:
        return []
    for which, other in ((0, 1), (1, 0)):
        stack, numbers = values[inputs[which]], subscripts[other]
        if stack.name != "stack" or values[inputs[other]].data or len(numbers) != 1:
            continue
        axis = _axis(stack.args, 0)
        letters = subscripts[which].replace("...", "." * (len(stack.shape) - 1))
        if axis is not None and letters[axis % len(stack.shape)] == numbers not in right:
            return list(stack.inputs)
    return []
