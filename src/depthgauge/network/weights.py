"""The weights of one block for every member of an ensemble, drawn when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthgauge.equation.functions import INITS
from depthgauge.equation.nodes import Init, Symbol, walk
from depthgauge.errors import NetworkError, nearest
from depthgauge.network.draws import Draws, normals
from depthgauge.network.init import INITIALISERS, NORMAL_STD, options_of, positive, rows
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
            kinds = {member.inits[layer.name].kind for member in self._members}
            if kinds <= NORMAL_STD.keys():
                weights = self._normal(layer, block, scopes)
            else:
                weights = np.stack(
                    [self._one(layer, e, block, scope) for e, scope in enumerate(scopes)]
                )
            tensors[layer.name] = self._tensor(weights)
            if layer.bias and "torch" in kinds:
                tensors[f"{layer.name}.bias"] = self._tensor(
                    np.stack(
                        [
                            draw_bias(m.draws, m.inits[layer.name], layer, block)
                            for m in self._members
                        ]
                    )
                )
        return tensors

    def _normal(self, layer: Layer, block: int, scopes: Sequence[Mapping[str, float]]) -> Any:
        """Normal weights of all members, drawn together and scaled together."""
        stds = []
        for e, (member, scope) in enumerate(zip(self._members, scopes, strict=True)):
            kind = member.inits[layer.name].kind
            rule, options = NORMAL_STD[kind], self._options_of(layer, e, scope)
            stds.append(positive(kind, rule(layer.shape, options)))
        sources = [member.draws for member in self._members]
        numbers: Any = normals(sources, block, layer.name, math.prod(layer.shape))
        numbers *= np.asarray(stds, numbers.dtype)[:, None]
        return rows(numbers, layer.shape)

    def _one(self, layer: Layer, e: int, block: int, scope: Mapping[str, float]) -> Any:
        init, options = self._members[e].inits[layer.name], self._options_of(layer, e, scope)
        source = self._members[e].draws.source(block, layer.name)
        return INITIALISERS[init.kind](layer.shape, options, source)

    def _options_of(self, layer: Layer, e: int, scope: Mapping[str, float]) -> dict[str, Any]:
        options = self._options.get((e, layer.name))
        if options is None:
            init = self._members[e].inits[layer.name]
            options = options_of(init, scope)
            # A scalar of the equation may use l; only options of plain numbers are kept.
            if not any(isinstance(node, Symbol) for node in walk(init)):
                self._options[e, layer.name] = options
        return options

    def _tensor(self, stacked: Any) -> Tensor:
        """``(E, ...)`` as a tensor, without E for a single member; strides are kept."""
        tensor = torch.from_numpy(stacked).to(self._device, self._dtype)
        return tensor if len(self._members) > 1 else tensor[0]


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
