"""The same weights in another arithmetic: by a cast, under autocast, in emulated float8, in tf32.

    own                                  the model as it is
    float64 float32 bfloat16 float16     every parameter, buffer and floating tensor of the batch,
                                         on a copy of the model; complex tensors by their parts
    tf32                                 the float32 model with tf32 allowed in matrix products
    autocast-bfloat16, autocast-float16  ``torch.autocast`` around the float32 model and its loss;
                                         for these two what is float64 is cast to float32 first
    float8_e4m3, float8_e5m2             emulated: the factors of linear layers, convolutions and
                                         matrix products are cast to float8 and back, the
                                         product is taken in the model's own precision, and the
                                         gradient goes straight through the cast

float64 is the reference: there a model's own casts to narrower types are casts to float64, and
random numbers are those that float32 draws. In half precision a function that PyTorch lacks runs in
float32 and its result is rounded, which is said. A model whose parameters are of several types is
its own arithmetic, and that of the half precision among them.

A factor's scale in float8 is 1 (``"plain"``), or ``largest finite / max |x|`` of the whole tensor
(``"amax"``, current scaling; Micikevicius et al., arXiv 2209.05433, section 3).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError, SpecificationError, nearest
from depthgauge.instruments.formats import FORMATS, Format
from depthgauge.instruments.modes import Float8, Lent, Mode, Widest
from depthgauge.trace.batches import mapped, tensors
from depthgauge.trace.inventory import Inventory

__all__ = [
    "ARITHMETICS",
    "SCALINGS",
    "Arithmetic",
    "arithmetic_named",
    "meant",
    "not_autocast",
    "own",
    "typed",
]

_CASTS: Final = ("float64", "float32", "bfloat16", "float16")
_AUTOCAST: Final = {"autocast-bfloat16": "bfloat16", "autocast-float16": "float16"}
_FLOAT8: Final = ("float8_e4m3", "float8_e5m2")
ARITHMETICS: Final = (*_CASTS, "tf32", *_AUTOCAST, *_FLOAT8)
SCALINGS: Final = ("plain", "amax")

_HALVES: Final = (torch.float16, torch.bfloat16)

#: Complex numbers whose parts are of a real type.
_COMPLEX: Final = {torch.float64: torch.complex128, torch.float32: torch.complex64}


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic by its name. ``format``: in which values are rounded; ``stored``: that of the
    weights, in which updates are added. ``mix``: the types of a model's own parameters, commonest
    first, where there are several; each is stored in its own.
    """

    name: str
    format: Format
    stored: Format
    scaling: str = "plain"
    mix: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Its name; of the model's own the types of its weights."""
        return " and ".join(self.mix) or (self.format.name if self.name == "own" else self.name)

    @property
    def emulated(self) -> bool:
        """Whether only the factors of products are rounded to the format."""
        return self.name in _FLOAT8

    @property
    def instead(self) -> list[str]:
        """What is run in its place, where nothing runs in it here."""
        if not self.emulated:
            return []
        return [
            f"{self.name} is emulated: factors of products are cast to it and back, the products "
            f"are taken in the model's own precision"
        ]

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
        dtype = self.format.dtype
        if self.name not in _CASTS:
            _plain_float32(self.name, held)
            if self.name == "tf32":
                _has_tf32(held)
            if self.emulated or not _holds_float64(held, batch):
                return model, batch
            dtype = torch.float32  # float64 stays as it is under autocast, and in no tf32 product
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
        elif (mode := self._mode(model)) is not None:
            with mode.watching():
                yield notes
            notes += [f"{said} {self._emulated}" for said in mode.told()]
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

    def _mode(self, model: nn.Module) -> Mode | None:
        if self.name in _FLOAT8:
            return Float8(model, self.format, self.scaling)
        if self.name == "float64":
            return Widest(model)
        return Lent(model) if self.format.dtype in _HALVES else None

    @property
    def _emulated(self) -> str:
        """What became of functions that this arithmetic does not have."""
        if self.name in _FLOAT8:
            return "ran in the model's own precision"
        if self.name == "float64":
            return "has no float64 here: in the reference too it was computed in float32"
        return (
            f"has no {self.format.name} here: it was computed in float32 and rounded to "
            f"{self.format.name}"
        )


def arithmetic_named(name: str, scaling: str = "plain") -> Arithmetic:
    """The arithmetic of that name. Raises SpecificationError with the nearest name."""
    if name not in ARITHMETICS:
        each = " or ".join(f"'{one}'" for one in typed(str(name)))
        near = f" (write {each})" if each else nearest(str(name), ARITHMETICS)
        raise SpecificationError(
            f"the arithmetic is {name!r}, expected one of {', '.join(ARITHMETICS)}, or a module "
            f"or function of your own that takes the same batch{near}"
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


def typed(name: str) -> list[str]:
    """The arithmetics that ``name`` stands for without their type: both of autocast."""
    name = "autocast" if name in ("amp", "mixed") else name
    return [one for one in ARITHMETICS if one.startswith(f"{name}-")]


def not_autocast(device: torch.device) -> torch.autocast:
    """Where a backward pass belongs: what was cast on the way forward is cast on the way back."""
    return torch.autocast(device.type, enabled=False)


def own(held: Inventory, batch: Any) -> Arithmetic:
    """The model as it is, each parameter in its own type. The format is that of most parameters,
    of those in half precision where there are any, and that of the batch where there are none."""
    kinds = [p.dtype for _, p in held.parameters if p.is_floating_point()]
    kinds = kinds or [t.dtype for _, t in tensors(batch) if t.is_floating_point()]
    counted = [f for f in FORMATS.values() if f.dtype in kinds]
    counted.sort(key=lambda f: -sum(kind == f.dtype for kind in kinds))
    plain = [FORMATS["float32"]]
    format = next((f for f in counted if f.dtype in _HALVES), (counted or plain)[0])
    mix = tuple(f.name for f in counted) if len(counted) > 1 else ()
    return Arithmetic("own", format, (counted or plain)[0], mix=mix)


def meant(name: str, held: Inventory, batch: Any) -> Arithmetic:
    """The arithmetic ``name``; that of a half precision which a model holds beside wider weights is
    the model's own: what it keeps wider it keeps so in training.

    Raises SpecificationError with the nearest name.
    """
    as_it_is, named = own(held, batch), arithmetic_named(name)
    mixed = named.name in as_it_is.mix and named.format.dtype in _HALVES
    return as_it_is if mixed else named


def _plain_float32(name: str, held: Inventory) -> None:
    for path, p in held.parameters:
        if p.is_floating_point() and p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise NetworkError(
                f"parameter '{path}' is {kind}, but {name} runs around float32 weights; call "
                f"model.float() first, or compare '{kind}'"
            )


def _holds_float64(held: Inventory, batch: Any) -> bool:
    every = [*(t for _, t in (*held.parameters, *held.buffers)), *(t for _, t in tensors(batch))]
    return any(t.dtype == torch.float64 for t in every)


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
