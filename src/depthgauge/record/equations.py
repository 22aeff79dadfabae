"""A module held against a network that was commissioned as an equation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from depthgauge.errors import NetworkError
from depthgauge.record.blocks import Block, as_drawn, blocks_by_numbers, blocks_in
from depthgauge.record.changes import Change, between
from depthgauge.record.parts import Subject

if TYPE_CHECKING:
    from torch import Tensor, nn

    from depthgauge.network.spec import Network
from depthgauge.record.beside import seen

__all__ = ["of_equation"]


def of_equation(stored: Subject, module: nn.Module, batch: Any) -> tuple[list[Change], bool]:
    """What is another, and whether the weights are those of a seed."""
    network = _network(stored)
    blocks, seed = _recognised(stored, network, module)
    if not blocks:
        words = "the module holds no blocks that an equation built"
        return [Change("blocks", stored.depth, 0, words)], False
    parameters = dict(module.named_parameters())
    layers = {layer.name: layer.shape for layer in network.layers.weights}
    shapes = [
        {n: as_drawn(parameters[p].shape, layers.get(n, ())) for n, p in block.weights.items()}
        for block in blocks
    ]
    every = [parameters[path].dtype for block in blocks for path in block.weights.values()]
    dtypes = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in every)
    found = list(between(stored.depth, len(blocks), "depth"))
    width = _width(network, shapes[0])
    found += between(network.width, width, "width")
    found += between(stored.dtype, ", ".join(dtypes), "dtype")
    for number, own in enumerate(shapes, 1):
        if differ := list(_layers(replace(network, width=width), own, number)):
            found += differ
            break  # one block says what there is to say
    return found or list(seen(stored, network, module, blocks, seed, batch)), seed is not None


def _network(stored: Subject) -> Network:
    from depthgauge.network.spec import Network

    return Network(
        stored.equation,
        depth=stored.depth,
        width=stored.width or 1,
        init=stored.init or None,
        tokens=stored.tokens,
        size=stored.size,
        draws="keyed",
    )


def _recognised(
    stored: Subject, network: Network, module: nn.Module
) -> tuple[tuple[Block, ...], int | None]:
    """The blocks, and the seed whose weights they have: as the record tells them, else as the
    network of each seed has them, in the precision of the module."""
    from depthgauge.record.subject import drawn_hash

    blocks = blocks_in(module, network)
    own = drawn_hash(module, network, blocks, stored.dtype)
    if blocks and (seed := _seed(stored, own)) is not None:
        return blocks, seed
    for seed in map(int, stored.weights):
        built = _built(stored, network, seed)
        if built is None:
            continue
        at = blocks_by_numbers(module, network, built)
        if at and _biases(module, network, at, built):
            return at, seed
    return blocks, None


def _seed(stored: Subject, own: str) -> int | None:
    return next((int(seed) for seed, each in stored.weights.items() if each == own), None)


def _built(stored: Subject, network: Network, seed: int) -> dict[str, Tensor] | None:
    """The parameters of the network under a seed by path, or None where they are no longer drawn
    as they were for the record."""
    import torch

    from depthgauge.record.subject import drawn_hash

    module = network.module(seed, dtype=getattr(torch, stored.dtype))
    own = drawn_hash(module, network, blocks_in(module, network), stored.dtype)
    return dict(module.named_parameters()) if own == stored.weights[str(seed)] else None


def _biases(
    module: nn.Module, network: Network, blocks: Sequence[Block], built: Mapping[str, Tensor]
) -> bool:
    """Whether the biases that are drawn are those of the network built anew."""
    import torch

    from depthgauge.record.subject import bias_is_drawn

    parameters = dict(module.named_parameters())
    for number, block in enumerate(blocks[: network.depth]):
        for name, path in block.weights.items():
            wanted = built.get(f"blocks.{number}.{name}.bias")
            if wanted is None or not bias_is_drawn(network, name):
                continue
            own = parameters.get(f"{path.removesuffix('weight')}bias")
            if own is None or not torch.equal(wanted.to(own), own):
                return False
    return True


def _width(network: Network, own: dict[str, tuple[int, ...]]) -> int:
    """The width of the states: what layers take that take a state in the network."""
    taken = {
        own[layer.name][1]
        for layer in network.layers.weights
        if layer.shape[1] == network.width and len(own.get(layer.name, ())) > 1
    }
    return taken.pop() if len(taken) == 1 else network.width


def _layers(network: Network, own: dict[str, tuple[int, ...]], block: int) -> Iterator[Change]:
    """Layers of a block that came, went, or have another shape than the width asks for."""
    try:
        weights = network.layers.weights
    except NetworkError:  # no such width: said already
        return
    wanted = {layer.name: list(layer.shape) for layer in weights}
    for name in {**wanted, **own}:
        before, after = wanted.get(name), list(own[name]) if name in own else None
        yield from between(before, after, f"layer {name} of block {block}")
