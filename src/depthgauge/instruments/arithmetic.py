"""The same weights in another arithmetic: by a cast, under autocast, in emulated float8, in tf32.

    float64 float32 bfloat16 float16     every parameter, buffer and floating tensor of the batch,
                                         on a copy of the model; complex tensors by their parts
    tf32                                 the float32 model with tf32 allowed in matrix products
    autocast-bfloat16, autocast-float16  ``torch.autocast`` around the float32 model and its loss
    float8_e4m3, float8_e5m2             emulated: the factors of every linear layer, convolution
                                         and matrix product are cast to float8 and back, the product
                                         is taken in the model's own precision, and the gradient goes
                                         straight through the cast

A factor's scale in float8 is 1 (``"plain"``), or ``largest finite / max |x|`` of the whole tensor
(``"amax"``, current scaling; Micikevicius et al., arXiv 2209.05433, section 3).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthgauge.errors import NetworkError, SpecificationError, nearest
from depthgauge.instruments.formats import FORMATS, Format, cast
from depthgauge.trace.batches import mapped
from depthgauge.trace.inventory import Inventory
from depthgauge.trace.operations import kind_of, plain_name

__all__ = ["ARITHMETICS", "SCALINGS", "Arithmetic", "arithmetic_named"]

_CASTS: Final = ("float64", "float32", "bfloat16", "float16")
_AUTOCAST: Final = {"autocast-bfloat16": "bfloat16", "autocast-float16": "float16"}
_FLOAT8: Final = ("float8_e4m3", "float8_e5m2")
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

    def prepared(
        self, model: nn.Module, held: Inventory, batch: Any
    ) -> tuple[nn.Module, Any]:
        """The model and batch to run: copies, where something is cast.

        Raises NetworkError where this model cannot run so.
        """
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
            f"or function of your own{nearest(str(name), ARITHMETICS)}"
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
        elif kind_of(name) in ("weights", "contract", "attend") and "embedding" not in name:
            fused = name.startswith(("add", "baddbmm"))  # the first tensor is added, no factor
            factors = range(1, 3) if fused else range(2 if kind_of(name) == "weights" else 3)
            args = tuple(
                self._rounded(a) if i in factors or isinstance(a, list | tuple) else a
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
