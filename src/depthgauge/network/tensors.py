"""A block that runs with tensors drawn for the moment, for one network or for E at once.

Where the program meets matrix products: for one network a weight is ``(out, in)``, for an ensemble
``(E, out, in)`` and every state has the axis E in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.network.draws import Draws
from depthgauge.network.layers import Layer
from depthgauge.network.norms import RootMeanSquare, Standardise
from depthgauge.network.program import Coefficient, Observer
from depthgauge.network.spec import Network

_NOTHING = torch.empty(0)


@dataclass(slots=True)
class BlockNumbers:
    """Everything drawn or evaluated for one block."""

    coefficients: list[Coefficient]
    vectors: dict[str, Coefficient]
    weights: dict[str, Tensor]


class TensorContext:
    """A block that runs with tensors drawn for the moment, for one network or for E at once.

    Learnable scalars and gains stand at their initial values, which are numbers.
    """

    def __init__(self, network: Network, members: int, sources: Sequence[Draws]) -> None:
        self._layers: dict[str, Layer] = {layer.name: layer for layer in network.layers.weights}
        self._many, self._images = members > 1, network.layout == "images"
        self._sources = sources
        self._state_axes = 1 + len(network.state_shape)
        self.index = 0
        self.h = self.h0 = _NOTHING
        self.locals: dict[str, Tensor] = {}
        self.coefficients: list[Coefficient] = []
        self.observe: Observer | None = None
        self._vectors: dict[str, Coefficient] = {}
        self._weights: dict[str, Tensor] = {}

    def begin(self, index: int, h: Tensor, h0: Tensor, numbers: BlockNumbers) -> None:
        self.index, self.h, self.h0 = index, h, h0
        self.coefficients, self._vectors = numbers.coefficients, numbers.vectors
        self._weights = numbers.weights

    def end(self) -> None:
        """Drop what belongs to the block that ran."""
        self.locals.clear()
        self.h = self.h0 = _NOTHING
        self.observe = None
        self._weights = {}

    def apply(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[name], self._weights.get(f"{name}.bias")
        if self._images:
            return self._convolve(self._layers[name], weight, bias, x)
        if not self._many:
            return F.linear(x, weight, bias)
        rows, columns = x.flatten(1, -2), weight.transpose(1, 2)
        if bias is None:
            product = torch.bmm(rows, columns)
        else:
            product = torch.baddbmm(bias.unsqueeze(1), rows, columns)
        return product.reshape(*x.shape[:-1], -1)

    def apply_add(self, name: str, x: Tensor, residual: Any, scale: Coefficient) -> Tensor:
        weight = self._weights[name]
        if (
            self._images
            or not isinstance(residual, Tensor)
            or residual.shape != (*x.shape[:-1], self._layers[name].shape[0])
            or f"{name}.bias" in self._weights
            or _enlarges(scale)
        ):
            result: Tensor = residual + scale * self.apply(name, x)
            return result
        if isinstance(scale, Tensor):
            weight, scale = weight * scale.reshape(-1, 1, 1), 1.0
        if self._many:
            return torch.baddbmm(
                residual.flatten(1, -2), x.flatten(1, -2), weight.transpose(1, 2), alpha=scale
            ).reshape(residual.shape)
        if residual.dim() == 2:
            return torch.addmm(residual, x, weight.t(), alpha=scale)
        return torch.addmm(
            residual.flatten(0, -2), x.flatten(0, -2), weight.t(), alpha=scale
        ).reshape(residual.shape)

    def _convolve(self, layer: Layer, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        if self._many:
            biases = [None] * len(x) if bias is None else list(bias)
            each = zip(weight, biases, x, strict=True)
            return torch.stack([_conv2d(layer, w, b, image) for w, b, image in each])
        return _conv2d(layer, weight, bias, x)

    def tensor(self, x: Coefficient) -> Tensor:
        if isinstance(x, Tensor):
            return x
        return self.h.new_full((len(self._sources),) * self._many + (1,) * self._state_axes, x)

    def vector(self, name: str) -> Coefficient:
        return self._vectors[name]

    def normalise(self, name: str, norm: Standardise, x: Tensor) -> Tensor:
        return norm(x)

    def rms_norm(self, norm: RootMeanSquare, x: Tensor) -> Tensor:
        return norm.once(x)

    def drop(self, name: str, x: Tensor, p: float) -> Tensor:
        """A mask keyed like a weight, so that running a block again gives the same one."""
        count = x.numel() // len(self._sources)
        kept = torch.stack(
            [
                torch.from_numpy(source.source(self.index, name).uniform(count) >= p)
                for source in self._sources
            ]
        ).reshape(x.shape)
        return x * kept.to(x.device, x.dtype) / (1 - p)


def _enlarges(scale: Coefficient) -> bool:
    """Whether a factor is above 1 in magnitude, of some network at least: within a product its
    partial sums would overflow where the product, multiplied afterwards as in a module, does not.
    """
    if isinstance(scale, Tensor):
        return bool((scale.abs() > 1).any())
    return abs(scale) > 1


def _conv2d(layer: Layer, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if weight.dim() == 2:  # a linear layer on the channels
        weight = weight[:, :, None, None]
    side = weight.shape[-1] // 2
    if layer.padding == "circular":
        return F.conv2d(F.pad(x, (side,) * 4, mode="circular"), weight, bias)
    return F.conv2d(x, weight, bias, padding=side)
