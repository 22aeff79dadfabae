"""Arithmetics that are emulated function by function: float64 throughout, half precision that is
lent float32, float8 at the factors of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from depthgauge.instruments.formats import Format, cast
from depthgauge.trace.backward import within_modes
from depthgauge.trace.inventory import inventory
from depthgauge.trace.operations import kind_of, plain_name

__all__ = ["Float8", "Lent", "Mode", "Widest", "factors"]

_NARROW: Final = (torch.float32, torch.float16, torch.bfloat16)
_HALVES: Final = (torch.float16, torch.bfloat16)
_CAST_BY: Final = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}
#: Functions of several products in one call, which the emulation does not reach into.
_WHOLE: Final = ("multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu")
#: Functions that draw: what they draw depends on the precision in which they draw it.
_DRAWS: Final = (
    "bernoulli", "rand_like", "randn_like", "normal", "uniform", "exponential", "log_normal",
    "cauchy", "gumbel_softmax", "multinomial", "poisson",
)  # fmt: skip
#: What PyTorch says where a kernel lacks a type.
_LACKS: Final = ("not implemented for", "Unsupported dtype", "Low precision dtypes not supported")


def _as(dtype: torch.dtype, only: Sequence[torch.dtype]) -> Callable[[Any], Any]:
    """Changes tensors of the types ``only`` to ``dtype``, also in lists and tuples."""
    return lambda x: _changed(x, lambda t: t.to(dtype) if t.dtype in only else t)


def _changed(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``x`` with its tensors changed, in lists, tuples and PyTorch's named results too."""
    if isinstance(x, Tensor):
        return change(x)
    if type(x) in (list, tuple) or type(x).__module__ == "torch.return_types":
        return type(x)([_changed(item, change) for item in x])
    return x


def _given(items: Sequence[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _given(item)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _writes(function: Any) -> bool:
    """Whether a function writes to its first tensor, or is a property of it."""
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name.startswith("__i") or name in ("__setitem__", "__get__", "__set__")
    return bool(name.endswith("_"))


class Mode(TorchFunctionMode):
    """Sees every function of PyTorch in ``called``, in what a backward pass computes anew too: the
    pass that a re-entrant checkpoint runs inside another stays in the mode.

    ``functions``: those that did not run as they were meant to, with the module that called them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.functions: dict[str, list[str]] = {}
        self._paths = {id(module): path for path, module in inventory(model).modules}
        self._running: list[int] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The mode, and which module runs in it."""
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave),
        ]
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(id(module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._running and self._running.pop() != id(module):
            pass  # one that raised, and the model went on

    @property
    def where(self) -> str:
        """The module that runs."""
        path = next((p for m in reversed(self._running) if (p := self._paths.get(m))), "")
        return f"'{path}'" if path else "the model itself"

    def add(self, name: str) -> None:
        places = self.functions.setdefault(name, [])
        if self.where not in places:
            places.append(self.where)

    def told(self) -> list[str]:
        """``cdist in '1' and 2 more``: the functions with where they were called."""
        return [
            f"{name} in {places[0]}" + (f" and {len(places) - 1} more" if places[1:] else "")
            for name, places in sorted(self.functions.items())
        ]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.autograd.backward:
            given = kwargs.get("grad_tensors")
            plain = not any(kwargs.get(k) for k in ("inputs", "retain_graph", "create_graph"))
            if plain and isinstance(given, list | tuple) and all(g is not None for g in given):
                with self:
                    within_modes(args[0], given)
                return None
        return self.called(func, args, kwargs)

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class Widest(Mode):
    """Everything in float64: what a model casts down, and tensors that it makes itself; or nothing
    narrower than another ``kind``. ``functions`` names those that lack it and ran in float32."""

    def __init__(self, model: nn.Module, kind: torch.dtype = torch.float64) -> None:
        super().__init__(model)
        self._kind = kind
        self._narrow = tuple(t for t in _NARROW if t.itemsize < kind.itemsize)
        self._casts = {_CAST_BY[t] for t in self._narrow}

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        name, of_tensor = plain_name(func), bool(args) and isinstance(args[0], Tensor)
        kind, narrow = self._kind, self._narrow
        if of_tensor and getattr(func, "__name__", "") in self._casts:  # not the number float(x)
            return args[0].to(kind)
        widen, lend = _as(kind, narrow), _as(torch.float32, (torch.float64,))
        if name in _DRAWS and of_tensor and kind == torch.float64:
            drawn = func(*map(lend, args), **kwargs)
            return args[0].copy_(drawn) if _writes(func) else widen(drawn)
        if of_tensor and name in ("to", "type"):
            args = [kind if a in narrow else a for a in map(widen, args)]
            kwargs = {k: kind if a in narrow else a for k, a in kwargs.items()}
        elif of_tensor and kwargs.get("dtype") in narrow:
            kwargs = {**kwargs, "dtype": kind}  # softmax(x, dtype=float32)
        elif not _writes(func) and "out" not in kwargs:
            args, kwargs = list(map(widen, args)), {k: widen(a) for k, a in kwargs.items()}
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if _writes(func) or "ouble" not in str(error) or kind != torch.float64:
                raise
            out = func(*map(lend, args), **{k: lend(a) for k, a in kwargs.items()})
            self.add(name)
        leaf = isinstance(out, Tensor) and out.is_leaf and out.requires_grad
        return out if leaf or _writes(func) else widen(out)


class Lent(Mode):
    """Functions that lack half precision run in float32 and their results are rounded;
    ``functions`` names them.

    Complex numbers, which PyTorch has of float32 at least, are rounded by their parts; the real
    numbers that are computed from them are of half precision again.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._complex = WeakTensorKeyDictionary()  # of half precision: which
        self._wide = WeakTensorKeyDictionary()  # float32 made of half precision: by what

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        given = list(_given([*args, *kwargs.values()]))
        half = next((t.dtype for t in given if t.dtype in _HALVES), None)
        if half is None and self._complex:
            half = next((self._complex[t] for t in given if t in self._complex), None)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if half is None or not any(words in str(error) for words in _LACKS):
                if why := self._at_odds(error, func, given):
                    raise RuntimeError(why) from error
                raise
            lend = _as(torch.float32, _HALVES)
            out = func(*map(lend, args), **{key: lend(a) for key, a in kwargs.items()})
            self.add(plain_name(func))
            return args[0].copy_(out) if _writes(func) else self._rounded(out, half)
        if _writes(func) and getattr(func, "__name__", "") != "__get__":
            return out
        if self._complex and any(t in self._complex for t in given):
            return self._rounded(out, half)
        if half is not None or self._wide:
            self._follow(func, given, out)
        return out

    def _rounded(self, out: Any, half: Any) -> Any:
        def rounded(x: Tensor) -> Tensor:
            if x.dtype == torch.float32:
                return x.to(half)
            if x.dtype == torch.complex64:
                x = torch.view_as_complex(torch.view_as_real(x).to(half).float())
                self._complex[x] = half
            return x

        return _changed(out, rounded)

    def _follow(self, func: Callable[..., Any], given: Sequence[Tensor], out: Any) -> None:
        """Where float32 comes from that is computed from half precision."""
        made = [t for t in _given([out]) if t.dtype == torch.float32]
        if made:
            kinds = [_name(t.dtype) for t in given if t.dtype in _HALVES]
            origin = next((self._wide[t] for t in given if t in self._wide), "")
            if kinds and not origin:
                origin = f"{plain_name(func)} in {self.where} made of {kinds[0]}"
            for t in made if origin else ():
                self._wide[t] = origin

    def _at_odds(
        self, error: RuntimeError, func: Callable[..., Any], given: Sequence[Tensor]
    ) -> str:
        """``""``, or where types do not match the functions that are at odds."""
        origin = next((self._wide[t] for t in given if t in self._wide), "")
        if origin and ("dtype" in str(error) or "scalar type" in str(error)):
            return (
                f"{plain_name(func)} was given float32, which {origin}: {error}; cast it to the "
                f"type of the weights there"
            )
        return ""


def factors(name: str) -> list[int]:
    """Which arguments of the function ``name`` are factors of a product, by position."""
    kind = kind_of(name)
    if name in _WHOLE or "embedding" in name or kind not in ("weights", "contract", "attend"):
        return []
    if name.startswith(("add", "baddbmm")):  # the first tensor is added
        return [1, 2]
    return list(range(2 if kind == "weights" else 3))


# ------------------------------------------------------------------------------------ float8


class _Through(torch.autograd.Function):
    """Round to the format; the gradient goes through as if nothing had been done."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, format: Format, scaling: str) -> Tensor:
        if scaling == "plain":
            return cast(x, format).to(x.dtype)
        top = x.abs().amax()
        scale = torch.where(top > 0, format.largest / top, 1.0)
        return (cast(x * scale, format) / scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None


class Float8(Mode):
    """Casts the factors of every product, but in backward functions that a model wrote itself;
    ``functions`` names those that it could not open."""

    def __init__(self, model: nn.Module, format: Format, scaling: str) -> None:
        super().__init__(model)
        self._format, self._scaling = format, scaling

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        name = plain_name(func)
        backward = torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()
        if backward and not self._running:  # of a function that the model wrote; no module runs
            return func(*args, **kwargs)
        if name in _WHOLE:
            self.add(name)
        elif which := factors(name):
            args = tuple(
                self._rounded(a) if i in which or isinstance(a, list | tuple) else a
                for i, a in enumerate(args)
            )
            kwargs = {
                key: self._rounded(a) if key not in ("bias", "attn_mask", "out") else a
                for key, a in kwargs.items()
            }
        return func(*args, **kwargs)

    def _rounded(self, x: Any) -> Any:
        if isinstance(x, list | tuple):  # einsum's operands
            return type(x)(self._rounded(item) for item in x)
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel():
            return _Through.apply(x, self._format, self._scaling)  # type: ignore[no-untyped-call]
        return x
