"""The weights of one block for every member of an ensemble, drawn when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from depthgauge.equation.functions import INITS
from depthgauge.equation.nodes import Init, Symbol, walk
from depthgauge.errors import NetworkError, nearest
from depthgauge.network.draws import Draws, KeyedDraws, SequentialDraws, keyed_normals
from depthgauge.network.init import INITIALISERS, NORMAL_STD, options_of, positive, rows
from depthgauge.network.layers import Layer

#: The scalars of one block, by name, for each member.
Scopes: TypeAlias = Sequence[Mapping[str, float]]

#: Initialisers that a bias may have.
_OF_VECTORS = ("zeros", "constant", "normal", "trunc_normal")
LECUN = Init("lecun", tuple(INITS["lecun"].items()))


def choose(layers: Sequence[Layer], inits: Mapping[str, Init]) -> dict[str, Init]:
    """Which initialiser each weight gets: the equation's, else the most specific name's in
    ``inits``, else ``inits["default"]``, else LeCun (unit gain for a linear layer). A bias has one
    only where ``inits`` names it, ``"W1.bias"``.

    Raises NetworkError for a name that no weight has, and for a weight initialised in both places.
    """
    words = [alias for layer in layers for alias in layer.aliases]
    words += [f"{alias}.bias" for layer in layers if layer.bias for alias in layer.aliases]
    for name in inits:
        if name != "default" and name not in words:
            names = [layer.name for layer in layers]
            names += [f"{layer.name}.bias" for layer in layers if layer.bias]
            known = ", ".join(dict.fromkeys([*names, "default"]))
            raise NetworkError(
                f"init names '{name}', but the block has {known}{nearest(name, known.split(', '))}"
            )
    chosen = {}
    for layer in layers:
        beside = next((inits[alias] for alias in layer.aliases if alias in inits), None)
        if beside is not None and layer.init is not None:
            raise NetworkError(
                f"{layer.name} is initialised twice, in the equation and beside it; keep one"
            )
        chosen[layer.name] = layer.init or beside or inits.get("default", LECUN)
        biases = (f"{alias}.bias" for alias in layer.aliases)
        bias = next((inits[name] for name in biases if name in inits), None)
        if layer.bias and bias is not None:
            if bias.kind not in _OF_VECTORS:
                raise NetworkError(
                    f"the bias of {layer.name} is initialised by {bias.kind}, which is for "
                    f"matrices; use {', '.join(_OF_VECTORS)}"
                )
            chosen[f"{layer.name}.bias"] = bias
    return chosen


@dataclass(frozen=True)
class Member:
    """One network of an ensemble: where its numbers come from."""

    draws: Draws
    inits: Mapping[str, Init]


class Weights:
    """``blocks(indices, scopes)`` gives the tensors of these blocks.

    A weight is ``(out, in, ...)`` for one member and ``(E, out, in, ...)`` for an ensemble. Biases
    start at zero and are left out, but for PyTorch's default initialisation, which draws them, and
    those that have an initialiser of their own.
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
        self._stds: dict[str, list[float]] = {}
        self._keyed = [m.draws for m in members if isinstance(m.draws, KeyedDraws)]
        self._sequential = [m.draws for m in members if isinstance(m.draws, SequentialDraws)]
        inits = {x.name: {m.inits[x.name].kind for m in members} for x in layers}
        self._normal = {name for name, kinds in inits.items() if kinds <= NORMAL_STD.keys()}
        own = {name for m in members for name in m.inits}
        self._biased = {
            x.name
            for x in layers
            if x.bias and ("torch" in inits[x.name] or f"{x.name}.bias" in own)
        }

    def blocks(self, indices: Sequence[int], scopes: Sequence[Scopes]) -> list[dict[str, Tensor]]:
        """For each block: weights by layer name, drawn biases by ``<layer>.bias``.

        ``scopes``: for each block, one scope a member.
        """
        found: list[dict[str, Tensor]] = [{} for _ in indices]
        if not self._sequential:
            for layer in self._layers:
                self._draw(found, layer, indices, scopes)
        elif len(self._normal) == len(self._layers) and not self._biased:
            self._draw_run(found, indices, scopes)
        else:  # one generator cannot draw a layer of several blocks before their next layer
            for place, index, scope in zip(found, indices, scopes, strict=True):
                for layer in self._layers:
                    self._draw([place], layer, [index], [scope])
        return found

    def _draw(
        self,
        found: Sequence[dict[str, Tensor]],
        layer: Layer,
        indices: Sequence[int],
        scopes: Sequence[Scopes],
    ) -> None:
        """One layer of several blocks."""
        name = layer.name
        if name in self._normal and not self._sequential:
            stds = [self._stds_of(layer, scope) for scope in scopes]
            count = math.prod(layer.shape)
            drawn: Any = rows(keyed_normals(self._keyed, indices, name, count, stds), layer.shape)
        else:
            each = zip(indices, scopes, strict=True)
            drawn = np.stack([self._each(layer, index, scope) for index, scope in each])
        self._place(found, name, drawn)
        if name in self._biased:
            biases = [
                [
                    draw_bias(m.draws, m.inits, layer, i, scope)
                    for m, scope in zip(self._members, each, strict=True)
                ]
                for i, each in zip(indices, scopes, strict=True)
            ]
            self._place(found, f"{name}.bias", np.stack(biases))

    def _draw_run(
        self,
        found: Sequence[dict[str, Tensor]],
        indices: Sequence[int],
        scopes: Sequence[Scopes],
    ) -> None:
        """All layers of several blocks, block after block, out of one run of normals a member."""
        keys = [(index, layer.name) for index in indices for layer in self._layers]
        counts = [math.prod(layer.shape) for layer in self._layers]
        runs = [
            source.run_of_normals(keys, counts * len(indices)).reshape(len(indices), 1, -1)
            for source in self._sequential
        ]
        together = np.concatenate(runs, axis=1) if len(runs) > 1 else runs[0]
        parts = np.split(together, list(accumulate(counts))[:-1], axis=-1)
        for layer, numbers in zip(self._layers, parts, strict=True):
            stds = [self._stds_of(layer, scope) for scope in scopes]
            numbers *= np.asarray(stds)[..., None]
            self._place(found, layer.name, rows(numbers, layer.shape))

    def _stds_of(self, layer: Layer, scopes: Scopes) -> list[float]:
        """The standard deviation of each member; kept where no symbol can change it."""
        stds = self._stds.get(layer.name)
        if stds is None:
            inits = [member.inits[layer.name] for member in self._members]
            stds = [
                positive(init.kind, NORMAL_STD[init.kind](layer.shape, options_of(init, scope)))
                for init, scope in zip(inits, scopes, strict=True)
            ]
            if not any(isinstance(node, Symbol) for init in inits for node in walk(init)):
                self._stds[layer.name] = stds
        return stds

    def _each(self, layer: Layer, block: int, scopes: Scopes) -> Any:
        return np.stack(
            [
                draw_weight(member.draws, member.inits[layer.name], layer, block, scope)
                for member, scope in zip(self._members, scopes, strict=True)
            ]
        )

    def _place(self, found: Sequence[dict[str, Tensor]], name: str, drawn: Any) -> None:
        """``(blocks, E, ...)`` handed out block by block, without E for a single member."""
        tensors = torch.from_numpy(drawn).to(self._device, self._dtype)
        if len(self._members) == 1:
            tensors = tensors[:, 0]
        for place, tensor in zip(found, tensors.unbind(), strict=True):
            place[name] = tensor


def draw_weight(
    draws: Draws, init: Init, layer: Layer, block: int, scope: Mapping[str, float]
) -> Any:
    source = draws.source(block, layer.name)
    return INITIALISERS[init.kind](layer.shape, options_of(init, scope), source)


def draw_bias(
    draws: Draws, inits: Mapping[str, Init], layer: Layer, block: int, scope: Mapping[str, float]
) -> Any:
    """By its own initialiser; else zero, but for PyTorch's default: uniform on +-1/sqrt(fan_in)."""
    name = f"{layer.name}.bias"
    if name in inits:
        draw = INITIALISERS[inits[name].kind]
        return draw(layer.shape[:1], options_of(inits[name], scope), draws.source(block, name))
    if inits[layer.name].kind != "torch":
        return np.zeros(layer.shape[:1])
    bound = float(np.prod(layer.shape[1:])) ** -0.5
    return (2 * draws.source(block, name).uniform(layer.shape[0]) - 1) * bound
