"""The same weights in another arithmetic: by a cast, under autocast, in emulated float8, in tf32.

    own                                  the model as it is
    float64 float32 bfloat16 float16     every parameter, buffer and floating tensor of the batch,
                                         on a copy of the model; complex tensors by their parts
    tf32                                 the float32 model with tf32 allowed in matrix products
    autocast-bfloat16, autocast-float16  ``torch.autocast`` around the float32 model and its loss
    float8_e4m3, float8_e5m2             emulated: the factors of linear layers, convolutions and
                                         matrix products are cast to float8 and back, the
                                         product is taken in the model's own precision, and the
                                         gradient goes straight through the cast

float64 is the reference: there a model's own casts to narrower types are casts to float64, and
random numbers are those that float32 draws. In half precision a function that PyTorch lacks runs in
float32 and its result is rounded, which is said.

A factor's scale in float8 is 1 (``"plain"``), or ``largest finite / max |x|`` of the whole tensor
(``"amax"``, current scaling; Micikevicius et al., arXiv 2209.05433, section 3).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthgauge.errors import NetworkError, SpecificationError, nearest
from depthgauge.instruments.formats import FORMATS, Format, cast
from depthgauge.trace.batches import mapped, tensors
from depthgauge.trace.inventory import Inventory
from depthgauge.trace.operations import kind_of, plain_name

__all__ = [
    "ARITHMETICS",
    "SCALINGS",
    "Arithmetic",
    "arithmetic_named",
    "factors",
    "not_autocast",
    "own",
]

_CASTS: Final = ("float64", "float32", "bfloat16", "float16")
_AUTOCAST: Final = {"autocast-bfloat16": "bfloat16", "autocast-float16": "float16"}
_FLOAT8: Final = ("float8_e4m3", "float8_e5m2")
_NARROW: Final = (torch.float32, torch.float16, torch.bfloat16)
ARITHMETICS: Final = (*_CASTS, "tf32", *_AUTOCAST, *_FLOAT8)
SCALINGS: Final = ("plain", "amax")

#: Complex numbers whose parts are of a real type.
_COMPLEX: Final = {torch.float64: torch.complex128, torch.float32: torch.complex64}
#: Functions of several products in one call, which the emulation does not reach into.
_WHOLE: Final = ("multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu")


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic by its name. ``format``: in which values are rounded; ``stored``: that of the
    weights, in which updates are added."""

    name: str
    format: Format
    stored: Format
    scaling: str = "plain"

    @property
    def emulated(self) -> bool:
        """Whether only the factors of products are rounded to the format."""
        return self.name in _FLOAT8

    @property
    def rounds_factors(self) -> bool:
        """Whether factors of products are rounded where they enter."""
        return self.emulated or self.name in _AUTOCAST

    def prepared(self, model: nn.Module, held: Inventory, batch: Any) -> tuple[nn.Module, Any]:
        """The model and batch to run: copies, where something is cast.

        Raises NetworkError where this model cannot run so.
        """
        if self.name == "own":
            return model, batch
        if self.name not in _CASTS:
            _plain_float32(self.name, held)
            if self.name == "tf32":
                _has_tf32(held)
            return model, batch
        dtype = self.format.dtype
        assert dtype is not None
        return _copied(model, dtype), mapped(batch, lambda t: _converted(t, dtype))

    @contextmanager
    def around(self, model: nn.Module) -> Iterator[list[str]]:
        """What surrounds the forward pass and the loss; gives a list in which stands, at the end,
        what could not be emulated."""
        notes: list[str] = []
        if self.name in _AUTOCAST:
            device = next((p.device.type for p in model.parameters()), "cpu")
            with torch.autocast(device, dtype=self.format.dtype):
                yield notes
        elif self.name in _FLOAT8:
            with _Float8(self.format, self.scaling) as mode:
                yield notes
            notes += [f"{name} ran in the model's own precision" for name in sorted(mode.whole)]
        elif self.name == "float64":
            with _Widest() as widest:
                yield notes
            notes += [
                f"{name} has no float64 here: in the reference too it ran in float32"
                for name in sorted(widest.functions)
            ]
        elif self.format.dtype in (torch.float16, torch.bfloat16):
            with _Lent() as lent:
                yield notes
            notes += [
                f"{name} has no {self.format.name} here: it ran in float32, its result rounded"
                for name in sorted(lent.functions)
            ]
        elif self.name == "tf32":
            matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
            before = matmul.allow_tf32, cudnn.allow_tf32
            matmul.allow_tf32 = cudnn.allow_tf32 = True
            try:
                yield notes
            finally:
                matmul.allow_tf32, cudnn.allow_tf32 = before
        else:
            yield notes


def arithmetic_named(name: str, scaling: str = "plain") -> Arithmetic:
    """The arithmetic of that name. Raises SpecificationError with the nearest name."""
    if name not in ARITHMETICS:
        raise SpecificationError(
            f"the arithmetic is {name!r}, expected one of {', '.join(ARITHMETICS)}, or a module "
            f"of your own{nearest(str(name), ARITHMETICS)}"
        )
    if scaling not in SCALINGS:
        raise SpecificationError(
            f"scaling is {scaling!r}, expected one of {', '.join(SCALINGS)}"
            f"{nearest(str(scaling), SCALINGS)}"
        )
    if scaling != "plain" and name not in _FLOAT8:
        raise SpecificationError(
            f"scaling is {scaling!r}, but {name} has no scale; it belongs to float8_e4m3 and "
            f"float8_e5m2"
        )
    format = FORMATS[_AUTOCAST.get(name, name)]
    return Arithmetic(name, format, format if name in _CASTS else FORMATS["float32"], scaling)


def not_autocast(device: torch.device) -> torch.autocast:
    """Where a backward pass belongs: what was cast on the way forward is cast on the way back."""
    return torch.autocast(device.type, enabled=False)


def own(held: Inventory, batch: Any) -> Arithmetic:
    """The model as it is; the format is that of most parameters, else of the batch."""
    kinds = [p.dtype for _, p in held.parameters if p.is_floating_point()]
    kinds = kinds or [t.dtype for _, t in tensors(batch) if t.is_floating_point()]
    most = max(set(kinds), key=kinds.count) if kinds else torch.float32
    format = next((f for f in FORMATS.values() if f.dtype == most), FORMATS["float32"])
    return Arithmetic("own", format, format)


def _plain_float32(name: str, held: Inventory) -> None:
    for path, p in held.parameters:
        if p.is_floating_point() and p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise NetworkError(
                f"parameter '{path}' is {kind}, but {name} runs around float32 weights; call "
                f"model.float() first, or compare '{kind}'"
            )


def _has_tf32(held: Inventory) -> None:
    devices = {p.device for _, p in held.parameters}
    elsewhere = sorted(str(d) for d in devices if d.type != "cuda")
    if elsewhere or any(torch.cuda.get_device_capability(d) < (8, 0) for d in devices):
        where = ", ".join(elsewhere) or ", ".join(sorted(map(str, devices)))
        raise NetworkError(
            f"tf32 is arithmetic of CUDA devices from compute capability 8.0 on, and the model is "
            f"on {where}; move it to such a device, or compare 'bfloat16'"
        )


def _converted(t: Tensor, dtype: torch.dtype) -> Tensor:
    if t.is_floating_point():
        return t.to(dtype)
    if t.is_complex() and dtype in _COMPLEX:  # half precision has no complex products
        return t.to(_COMPLEX[dtype])
    return t


def _copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with every floating parameter and buffer cast, each once, ties kept."""
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise NetworkError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {line}), and a cast "
            f"must leave it as it is; compare 'autocast-bfloat16', which needs no copy"
        ) from error
    for module in made.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                parameter.data = _converted(parameter.data, dtype)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _converted(buffer, dtype)
    return made


# ------------------------------------------------------------------------------------- modes

#: Functions that draw: what they draw depends on the precision in which they draw it.
_DRAWS: Final = (
    "bernoulli", "rand_like", "randn_like", "normal", "uniform", "exponential", "log_normal",
    "cauchy", "gumbel_softmax", "multinomial", "poisson",
)  # fmt: skip
#: What PyTorch says where a kernel lacks a type.
_LACKS: Final = ("not implemented for", "Unsupported dtype", "Low precision dtypes not supported")


def _as(dtype: torch.dtype, only: Sequence[torch.dtype]) -> Callable[[Any], Any]:
    """Changes tensors of the types ``only`` to ``dtype``, also in lists and tuples."""

    def change(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(dtype) if x.dtype in only else x
        if type(x) in (list, tuple):
            return type(x)([change(item) for item in x])
        return x

    return change


def _writes(function: Any) -> bool:
    """Whether a function writes to its first tensor, or is a property of it."""
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name.startswith("__i") or name in ("__setitem__", "__get__", "__set__")
    return bool(name.endswith("_"))


class _Widest(TorchFunctionMode):
    """Everything in float64: what a model casts down, and tensors that it makes itself.
    ``functions`` names those that lack float64 and ran in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, of_tensor = plain_name(func), bool(args) and isinstance(args[0], Tensor)
        if name in ("float", "half", "bfloat16") and of_tensor:
            return args[0].double()
        widen, lend = _as(torch.float64, _NARROW), _as(torch.float32, (torch.float64,))
        if name in _DRAWS and of_tensor:
            drawn = func(*map(lend, args), **kwargs)
            return args[0].copy_(drawn) if _writes(func) else widen(drawn)
        if of_tensor and name in ("to", "type"):
            args = [torch.float64 if a in _NARROW else a for a in map(widen, args)]
            kwargs = {k: torch.float64 if a in _NARROW else a for k, a in kwargs.items()}
        elif of_tensor and kwargs.get("dtype") in _NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}  # softmax(x, dtype=float32)
        elif not _writes(func) and "out" not in kwargs:
            args, kwargs = list(map(widen, args)), {k: widen(a) for k, a in kwargs.items()}
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if _writes(func) or "ouble" not in str(error):
                raise
            out = func(*map(lend, args), **{k: lend(a) for k, a in kwargs.items()})
            self.functions.add(name)
        leaf = isinstance(out, Tensor) and out.is_leaf and out.requires_grad
        return out if leaf or _writes(func) else widen(out)


class _Lent(TorchFunctionMode):
    """Functions that lack half precision run in float32; ``functions`` names them."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            halves = (torch.float16, torch.bfloat16)
            given = [t for _, t in tensors([*args, *kwargs.values()]) if t.dtype in halves]
            if not given or not any(words in str(error) for words in _LACKS):
                raise
        lend = _as(torch.float32, halves)
        out = func(*map(lend, args), **{key: lend(a) for key, a in kwargs.items()})
        self.functions.add(plain_name(func))
        if _writes(func):
            return args[0].copy_(out)
        return _as(given[0].dtype, (torch.float32,))(out)


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


class _Float8(TorchFunctionMode):
    """Casts the factors of every product; ``whole`` names functions that it could not open."""

    def __init__(self, format: Format, scaling: str) -> None:
        super().__init__()
        self._format, self._scaling = format, scaling
        self.whole: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = plain_name(func)
        if name in _WHOLE:
            self.whole.add(name)
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
