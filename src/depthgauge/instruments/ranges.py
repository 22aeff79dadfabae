"""The range of every value that a pass computes, inside branches too, and of its gradient.

A number format holds a value where ``max |x|`` is under its largest number: ``formats``. Two
passes of one model call the same functions, so that a value is known by its *place*: the module,
which of its calls, the function, which of its calls there.

Numbers at or under -0.99 of float32's largest, and -inf, are masks and no values: scores are set so
before a softmax. They count for no maximum. +inf and NaN are values that are lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode

from depthgauge.instruments.formats import FORMATS
from depthgauge.instruments.modes import factors
from depthgauge.instruments.rivers import rms, wide
from depthgauge.trace.batches import tensors
from depthgauge.trace.inventory import inventory
from depthgauge.trace.operations import CASTS, kind_of, plain_name

__all__ = ["Extent", "Place", "Ranges", "document", "extent"]

_MASK: Final = -0.99 * FORMATS["float32"].largest
#: Kinds that carry values on as they are, unless they cast them.
_CARRIES: Final = ("shape", "cut", "source")


class Place(NamedTuple):
    """Where a value is made: ``call`` counts the module's calls, ``nth`` the function's in it.
    ``factor``: not what the function made but the factor of that number that went into it."""

    path: str
    function: str
    call: int = 0
    nth: int = 0
    factor: int = 0


class Extent(NamedTuple):
    """``largest``: ``max |x|`` without masks, inf or NaN if there is one; ``rms``: over every
    element; ``lost``: share of elements that are not finite, masks too; ``dtype``: in which the
    value is kept."""

    largest: float
    rms: float
    lost: float
    dtype: torch.dtype


def extent(x: Tensor) -> Extent:
    """The range of ``x``, any shape, in float32 or wider."""
    kind, x = x.dtype, wide(x.detach()).reshape(1, -1)
    if not x.numel():
        return Extent(0.0, 0.0, 0.0, kind)
    low, high = (bound.item() for bound in torch.aminmax(x))
    if low > _MASK and high < math.inf:  # neither is NaN
        return Extent(max(-low, high), rms(x)[0], 0.0, kind)
    masks = x <= _MASK
    lost = ((~x.isfinite()) | masks).double().mean().item()
    values = x.where(~masks, 0.0)
    return Extent(values.abs().max().item(), rms(values)[0], lost, kind)


def document(place: Place) -> dict[str, Any]:
    factor = f", factor {place.factor}" if place.factor else ""
    return {"path": place.path, "function": place.function + factor}


class Ranges(TorchFunctionMode):
    """Reads a pass of ``model`` that runs inside the block: ``values`` and ``gradients`` by place,
    in the order in which they were computed; with ``products`` also what enters products of
    matrices. ``trail`` names every function called. ``keep``: places whose tensors are ``kept``.
    Of several passes in the block it holds the last.
    """

    def __init__(
        self, model: nn.Module, *, products: bool = False, keep: Collection[Place] = ()
    ) -> None:
        super().__init__()
        self.values: dict[Place, Extent] = {}
        self.gradients: dict[Place, Extent] = {}
        self.trail: list[tuple[str, str]] = []
        self.kept: dict[Place, Tensor] = {}
        self._products, self._keep = products, frozenset(keep)
        self._model = model
        self._paths = {id(module): path for path, module in inventory(model).modules}
        self._calls: Counter[str] = Counter()
        self._functions: Counter[Place] = Counter()
        self._running: list[tuple[str, int]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Ranges:
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            for handle in self._handles:
                handle.remove()
            self._running.clear()

    def give(self, batch: Any) -> None:
        """What the model is given, in place ``input``."""
        for name, x in tensors(batch):
            if x.is_floating_point() and x.numel():
                self._see(Place(name or "input", "input"), x)

    def _see(self, place: Place, x: Tensor) -> None:
        self.values[place] = extent(x)
        if place in self._keep:
            self.kept[place] = x.detach().clone()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """What runs in this block belongs to no module: it is the loss."""
        self._running.append((name, 0))
        try:
            yield
        finally:
            self._running.pop()

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(id(module))
        if not self._running and (path == "" or module is self._model):
            self._begin()
        if path is not None:
            self._running.append((path, self._calls[path]))
            self._calls[path] += 1

    def _begin(self) -> None:
        """What a pass before has left is forgotten, but what the model is given."""
        self.values = {k: v for k, v in self.values.items() if k.function == "input"}
        self.kept = {k: x for k, x in self.kept.items() if k.function == "input"}
        self.gradients, self.trail = {}, []
        self._calls.clear()
        self._functions.clear()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        path = self._paths.get(id(module))
        while path is not None and self._running:
            if self._running.pop()[0] == path:  # others raised, and the model went on
                break

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._running or getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        name = plain_name(func)
        for number in factors(name) if self._products else ():
            if number < len(args) and (place := self._place(name, args[number], number + 1)):
                with torch._C.DisableTorchFunction():
                    self.values[place] = extent(args[number])
        out = func(*args, **kwargs)
        if isinstance(out, Tensor | tuple | list):
            self.trail.append((self._running[-1][0], name))
        if kind_of(name) not in _CARRIES or name in CASTS:
            made = args[0] if name == "setitem" else out
            for x in made if isinstance(made, tuple | list) else (made,):
                if place := self._place(name, x):
                    self._read(place, x)
        return out

    def _place(self, name: str, x: Any, factor: int = 0) -> Place | None:
        """The next place of the function in the module that runs; None for what has no range."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
            return None
        first = Place(self._running[-1][0], name, self._running[-1][1], 0, factor)
        self._functions[first] += 1
        return first._replace(nth=self._functions[first] - 1)

    def _read(self, place: Place, x: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            self._see(place, x)
            if x.requires_grad and not x.is_leaf:
                x.register_hook(  # type: ignore[no-untyped-call]
                    lambda g: self._back(place, g)
                )

    def _back(self, place: Place, g: Tensor | None) -> None:
        if g is not None:
            with torch._C.DisableTorchFunction():
                self.gradients[place] = extent(g)
