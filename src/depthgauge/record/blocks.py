"""Where the blocks of a network stand in a module that an equation built or a person wrote.

A block is recognised by the paths that an equation's module has (``blocks.0.W1.weight``), by the
numbers of its weights, or by their shapes and order; what it is called decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor, nn

    from depthgauge.network.spec import Network

__all__ = ["Block", "as_drawn", "blocks_by_numbers", "blocks_in"]

#: A number in a path, which counts what its container holds.
_NUMBER: Final = re.compile(r"(?:^|\.)(\d+)(?=\.)")


@dataclass(frozen=True)
class Block:
    """One block: the path of its module (``""`` where it has none of its own), and the paths of its
    weights by the names of the equation's layers, or by their own where those do not fit."""

    path: str
    weights: Mapping[str, str]


def as_drawn(shape: Sequence[int], layer: Sequence[int]) -> tuple[int, ...]:
    """The shape of a module's weight as that of its layer is told: a linear layer on the channels
    of an image is a 1 x 1 convolution."""
    found = tuple(shape)
    return found[:2] if len(layer) == 2 and found[2:] == (1, 1) else found


def blocks_in(module: nn.Module, network: Network) -> tuple[Block, ...]:
    """The blocks in their order, of what looks most like those of the network; none where nothing
    is repeated and nothing has its weights' shapes."""
    weights = _weights(module)
    containers = _containers(weights)
    grouped = [_numbered(at, held, weights, network) for at, held in containers.items()]
    if exact := [found for found in grouped if _fits(found, weights, network)]:
        return max(exact, key=_likeness)
    if found := _in_order(weights, network):
        return found
    return max(grouped, key=_likeness, default=())


def blocks_by_numbers(
    module: nn.Module, network: Network, built: Mapping[str, Tensor]
) -> tuple[Block, ...]:
    """The blocks whose weights are those of ``built``, a module of the network, by path, in the
    precision of the module; none unless every weight is found."""
    import torch

    weights = _weights(module)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for path, weight in weights.items():
        by_shape.setdefault(_bare(weight.shape), []).append(path)
    found = []
    for block in range(network.depth):
        own = {}
        for layer in network.layers.weights:
            wanted = built[f"blocks.{block}.{layer.name}.weight"].detach()
            rest = by_shape.get(_bare(wanted.shape), [])
            for path in rest:
                at = weights[path].detach()
                if torch.equal(wanted.to(at).reshape(at.shape), at):
                    own[layer.name] = path
                    rest.remove(path)
                    break
            else:
                return ()
        found.append(own)
    return _placed(found, weights, network)


def _bare(shape: Sequence[int]) -> tuple[int, ...]:
    """Without the sides of a kernel of one point."""
    return tuple(shape[:2]) if tuple(shape[2:]) == (1,) * len(shape[2:]) else tuple(shape)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Every weight by its path, each once: what is called so, and what has two axes or more."""
    return {
        path: parameter
        for path, parameter in module.named_parameters()
        if path.rpartition(".")[2] == "weight" or parameter.dim() > 1
    }


# ---------------------------------------------------------------------- by container


def _containers(weights: Mapping[str, Tensor]) -> dict[str, dict[int, dict[str, str]]]:
    """By container and number the paths of weights, under the rest of each path."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for path in weights:
        for match in _NUMBER.finditer(path):
            held = found.setdefault(path[: match.start(1)], {}).setdefault(int(match[1]), {})
            held[_stem(path[match.end() + 1 :])] = path
    return found


def _stem(path: str) -> str:
    return "" if path == "weight" else path.removesuffix(".weight")


def _numbered(
    container: str,
    held: Mapping[int, Mapping[str, str]],
    weights: Mapping[str, Tensor],
    network: Network,
) -> tuple[Block, ...]:
    return tuple(
        Block(f"{container}{number}", _named(held[number], weights, network))
        for number in sorted(held)
    )


def _named(
    own: Mapping[str, str], weights: Mapping[str, Tensor], network: Network
) -> dict[str, str]:
    """The weights of a block under the names of the equation's layers: those that they have, else
    by shape, and of one shape by order."""
    layers = network.layers.weights
    names = [layer.name for layer in layers]
    if len(own) != len(layers) or set(names) & set(own):
        return dict(own)
    rest, found = list(own.values()), {}
    for layer in layers:
        same = [p for p in rest if as_drawn(weights[p].shape, layer.shape) == tuple(layer.shape)]
        if not same:
            return dict(zip(names, own.values(), strict=True))
        found[layer.name] = same[0]
        rest.remove(same[0])
    return found


def _fits(blocks: Sequence[Block], weights: Mapping[str, Tensor], network: Network) -> bool:
    wanted = {layer.name: tuple(layer.shape) for layer in network.layers.weights}

    def shapes(block: Block) -> dict[str, tuple[int, ...]]:
        return {
            name: as_drawn(weights[path].shape, wanted.get(name, ()))
            for name, path in block.weights.items()
        }

    return len(blocks) == network.depth and all(shapes(block) == wanted for block in blocks)


def _likeness(blocks: Sequence[Block]) -> tuple[bool, int]:
    """An equation's own container before others, and then the one that holds most."""
    named = bool(re.search(r"(?:^|\.)blocks\.\d+$", blocks[0].path))
    return named, sum(len(block.weights) for block in blocks)


# -------------------------------------------------------------------------- by order


def _in_order(weights: Mapping[str, Tensor], network: Network) -> tuple[Block, ...]:
    """The first weights in a row that have the shapes of all blocks."""
    layers = network.layers.weights * network.depth
    paths = [path for path, weight in weights.items() if weight.dim() > 1]
    for first in range(len(paths) - len(layers) + 1) if layers else ():
        row = paths[first : first + len(layers)]
        if all(
            as_drawn(weights[path].shape, layer.shape) == tuple(layer.shape)
            for path, layer in zip(row, layers, strict=True)
        ):
            step = len(network.layers.weights)
            parts = [row[i : i + step] for i in range(0, len(row), step)]
            names = [layer.name for layer in network.layers.weights]
            found = [dict(zip(names, part, strict=True)) for part in parts]
            return _placed(found, weights, network)
    return ()


def _placed(
    found: Sequence[Mapping[str, str]], weights: Mapping[str, Tensor], network: Network
) -> tuple[Block, ...]:
    """The blocks with the modules that hold them, with every other weight in those, and with what
    looks like one more beside them."""
    paths = [_common(list(own.values())) for own in found]
    if not _apart(paths):
        return tuple(Block("", own) for own in found)
    blocks = []
    for at, own in zip(paths, found, strict=True):
        inside = [path for path in weights if path.startswith(f"{at}.")]
        more = {_stem(path[len(at) + 1 :]): path for path in inside if path not in own.values()}
        blocks.append(Block(at, {**own, **more}))
    container = paths[0][: len(paths[0]) - len(paths[0].rpartition(".")[2])]
    beside = _containers(weights).get(container, {})
    others = {n: own for n, own in beside.items() if f"{container}{n}" not in paths}
    more_blocks = _numbered(container, others, weights, network)
    return (*blocks, *(b for b in more_blocks if _fits([b], weights, replace(network, depth=1))))


def _apart(paths: Sequence[str]) -> bool:
    """Whether each is the path of a module in which no other stands."""
    return "" not in paths and all(
        a == b or not f"{b}.".startswith(f"{a}.") for a in set(paths) for b in set(paths)
    ) and len(set(paths)) == len(paths)  # fmt: skip


def _common(paths: Sequence[str]) -> str:
    """The path of the module that holds all of these parameters."""
    parts = [path.split(".")[:-1] for path in paths]
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))
    return ".".join(words[0] for words in shared)
