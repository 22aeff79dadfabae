"""The weights of one block for every member of an ensemble, drawn when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthgauge.equation.functions import INITS
from depthgauge.equation.nodes import Init, Symbol, walk
from depthgauge.errors import NetworkError, nearest
from depthgauge.network.draws import Draws
from depthgauge.network.init import INITIALISERS, options_of
from depthgauge.network.layers import Layer

LECUN = Init("lecun", tuple(INITS["lecun"].items()))


def choose(layers: Sequence[Layer], inits: Mapping[str, Init]) -> dict[str, Init]:
    """Which initialiser each weight gets: the equation's, else the most specific name's in
    ``inits``, else ``inits["default"]``, else LeCun (unit gain for a linear layer).

    Raises NetworkError for a name that no weight has, and for a weight initialised in both places.
    """
    words = [alias for layer in layers for alias in layer.aliases]
    for name in inits:
        if name != "default" and name not in words:
            known = ", ".join(dict.fromkeys([*(layer.name for layer in layers), "default"]))
            raise NetworkError(
                f"init names '{name}', but the block has {known}{nearest(name, words)}"
            )
    chosen = {}
    for layer in layers:
        beside = next((inits[alias] for alias in layer.aliases if alias in inits), None)
        if beside is not None and layer.init is not None:
            raise NetworkError(
                f"{layer.name} is initialised twice, in the equation and beside it; keep one"
            )
        chosen[layer.name] = layer.init or beside or inits.get("default", LECUN)
    return chosen


@dataclass(frozen=True)
class Member:
    """One network of an ensemble: where its numbers come from."""

    draws: Draws
    inits: Mapping[str, Init]


class Weights:
    """``block(l, scopes)`` gives the tensors of block ``l``.

    A weight is ``(out, in, ...)`` for one member and ``(E, out, in, ...)`` for an ensemble. Biases
    start at zero and are left out, but for PyTorch's default initialisation, which draws them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        layers: Sequence[Layer],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._members, self._layers = members, layers
        self._dtype, self._device = dtype, device
        self._options: dict[tuple[int, str], dict[str, Any]] = {}

    def block(self, block: int, scopes: Sequence[Mapping[str, float]]) -> dict[str, Tensor]:
        """Weights by layer name, drawn biases by ``<layer>.bias``; ``scopes`` one a member."""
        tensors: dict[str, Tensor] = {}
        for layer in self._layers:
            tensors[layer.name] = self._stack(
                layer.shape,
                [self._draw(layer, e, block, scope) for e, scope in enumerate(scopes)],
            )
            if layer.bias and any(m.inits[layer.name].kind == "torch" for m in self._members):
                tensors[f"{layer.name}.bias"] = self._stack(
                    layer.shape[:1],
                    [draw_bias(m.draws, m.inits[layer.name], layer, block) for m in self._members],
                )
        return tensors

    def _draw(self, layer: Layer, e: int, block: int, scope: Mapping[str, float]) -> Any:
        member = self._members[e]
        init = member.inits[layer.name]
        options = self._options.get((e, layer.name))
        if options is None:
            options = options_of(init, scope)
            # A scalar of the equation may use l; only options of plain numbers are kept.
            if not any(isinstance(node, Symbol) for node in walk(init)):
                self._options[e, layer.name] = options
        source = member.draws.source(block, layer.name)
        return INITIALISERS[init.kind](layer.shape, options, source)

    def _stack(self, shape: tuple[int, ...], arrays: Sequence[Any]) -> Tensor:
        if len(arrays) == 1:
            return torch.from_numpy(arrays[0]).to(self._device, self._dtype)
        # The memory of each weight is in row-vector order, as drawn: no transposition, and the
        # product of row vectors reads it in order.
        stacked = torch.empty((len(arrays), *shape[1:], shape[0]), dtype=self._dtype).movedim(-1, 1)
        for target, array in zip(stacked, arrays, strict=True):
            target.copy_(torch.from_numpy(array))
        return stacked.to(self._device)


def draw_weight(
    draws: Draws, init: Init, layer: Layer, block: int, scope: Mapping[str, float]
) -> Any:
    source = draws.source(block, layer.name)
    return INITIALISERS[init.kind](layer.shape, options_of(init, scope), source)


def draw_bias(draws: Draws, init: Init, layer: Layer, block: int) -> Any:
    """Zero, but for PyTorch's default: uniform on +-1/sqrt(fan_in)."""
    if init.kind != "torch":
        return np.zeros(layer.shape[:1])
    bound = float(np.prod(layer.shape[1:])) ** -0.5
    return (2 * draws.source(block, f"{layer.name}.bias").uniform(layer.shape[0]) - 1) * bound
