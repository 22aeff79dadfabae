"""A module held against the subject of a record: first what it is, then its weights.

Of a network that was commissioned as an equation everything is known, so that the module is run
beside one that is built anew; of one that code built its layers are, and with a batch its blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError, NetworkError
from depthgauge.record.changes import Change, between, equation_change, subject_changes
from depthgauge.record.parts import Subject

if TYPE_CHECKING:
    from torch import Tensor, nn

    from depthgauge.network.spec import Network

__all__ = ["as_drawn", "block_of", "layers_of", "module_changes"]

#: A weight of a block, in the module that an equation builds.
_BLOCK: Final = re.compile(r"(?:(.*)\.)?blocks\.(\d+)\.(.+)\.weight")

#: Examples of the batch on which two modules are read.
_EXAMPLES: Final = 4

#: Both networks run the same operations, so that outputs differ by a few roundings at most.
_ROUNDINGS: Final = 8

#: Layers that are named one by one.
_MOST: Final = 3


def block_of(path: str) -> tuple[str, int, str] | None:
    """The path of the network, the block (from 1) and the layer of a weight's path, or None."""
    match = _BLOCK.fullmatch(path)
    return (match[1] or "", int(match[2]) + 1, match[3]) if match else None


def as_drawn(shape: Sequence[int], layer: Sequence[int]) -> tuple[int, ...]:
    """The shape of a module's weight as that of its layer is told: a linear layer on the channels
    of an image is a 1 x 1 convolution."""
    found = tuple(shape)
    return found[:2] if len(layer) == 2 and found[2:] == (1, 1) else found


def layers_of(module: nn.Module) -> dict[str, str]:
    """Shapes of the weights, those whose paths differ in numbers alone counted together:
    ``{"blocks.*.up.weight": "12 x [256, 64]"}``."""
    counted: dict[str, Counter[str]] = {}
    for path, parameter in module.named_parameters():
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
        counted.setdefault(pattern, Counter())[str(list(parameter.shape))] += 1
    return {
        pattern: ", ".join(f"{n} x {shape}" for shape, n in shapes.items())
        for pattern, shapes in counted.items()
    }


def module_changes(stored: Subject, module: nn.Module, batch: Any = None) -> list[Change]:
    """What of the module is not what was commissioned: depth, width, layers, precision, equation,
    output, and last the weights, which must be those of a seed of the record.

    ``batch``: of a module that code built, to read its blocks; without one its layers are held
    against those of the record. Raises ModelError where it cannot be run on the batch.
    """
    from depthgauge.record.subject import drawn_hash, module_hash

    if stored.kind == "equation":
        network = _network(stored)
        own = drawn_hash(module, network)
        found = _of_equation(stored, network, module, own)
    else:
        found, own = _of_code(stored, module, batch), module_hash(module)
    if own not in stored.weights.values():
        words = (
            f"the module's weights are not those of the seeds that were commissioned "
            f"({', '.join(stored.weights)}); ask before the first step, and build it under one of "
            f"them"
        )
        found.append(Change("weights", dict(stored.weights), own, words))
    return found


# --------------------------------------------------------------------- built by an equation


def _of_equation(stored: Subject, network: Network, module: nn.Module, drawn: str) -> list[Change]:
    shapes = {layer.name: layer.shape for layer in network.layers.weights}
    blocks: dict[int, dict[str, tuple[int, ...]]] = {}
    at, dtypes = "", dict[str, None]()
    for path, parameter in module.named_parameters():
        if (place := block_of(path)) is not None:
            at, block, layer = place
            shape = as_drawn(parameter.shape, shapes.get(layer, ()))
            blocks.setdefault(block, {})[layer] = shape
            dtypes[str(parameter.dtype).removeprefix("torch.")] = None
    if not blocks:
        words = "the module holds no blocks that an equation built"
        return [Change("blocks", stored.depth, 0, words)]
    found = list(between(stored.depth, len(blocks), "depth"))
    width = _width(network, blocks[min(blocks)])
    found += between(network.width, width, "width")
    found += between(stored.dtype, ", ".join(dtypes), "dtype")
    for block, own in blocks.items():
        if differ := list(_layers(replace(network, width=width), own, block)):
            found += differ
            break  # one block says what there is to say
    seed = next((int(seed) for seed, each in stored.weights.items() if each == drawn), None)
    return found or list(_read(network, module.get_submodule(at), seed))


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


def _read(network: Network, module: nn.Module, seed: int | None) -> Iterator[Change]:
    """What a run shows that is not that of the network built anew: the equation, and where the
    weights are those of a ``seed``, the output."""
    import torch

    from depthgauge.trace.measuring import measure_module

    some = next(module.parameters())
    draw = torch.Generator("cpu").manual_seed(0)
    batch = torch.randn((_EXAMPLES, *network.state_shape), generator=draw).to(some)
    built = network.module(seed or 0, dtype=some.dtype).to(some.device).train(module.training)
    texts = []
    for each in (built, module):
        try:
            texts.append(measure_module(each, batch, instruments=["state_rms"]).equation)
        except DepthgaugeError as error:
            words = f"the equation cannot be compared: {error}"
            yield Change("equation", str(network.block), None, words)
            return
    if texts[0] != texts[1]:
        yield equation_change(*texts)
    elif seed is not None:
        yield from _output(built, module, batch)


def _output(built: nn.Module, module: nn.Module, batch: Tensor) -> Iterator[Change]:
    """How far the module's output is from that of the network built anew, ``|y - y0| / |y0|`` over
    all numbers, where that is more than rounding.

    The equation that a run shows has no options (``eps``, ``slope``), biases, gains.
    """
    import torch

    wanted, own = (_run(each, batch) for each in (built, module))
    if wanted.shape != own.shape:
        yield from between(list(wanted.shape), list(own.shape), "the shape of the output")
        return
    # One that is not finite is compared as a number too, so that both have to be the same.
    wanted64, own64 = (torch.nan_to_num(y.double(), posinf=1e60, neginf=-1e60)
                       for y in (wanted, own))  # fmt: skip
    share = float((own64 - wanted64).norm() / wanted64.norm().clamp_min(1e-300))
    if share > _ROUNDINGS * torch.finfo(batch.dtype).eps:
        words = (
            f"its output differs from what was commissioned by {100 * share:.3g} per cent though "
            f"equation and weights read alike (an option such as eps or slope, or a bias, differs)"
        )
        yield Change("output", 0.0, share, words)


def _run(module: nn.Module, batch: Tensor) -> Tensor:
    """The first tensor of the output; modes, buffers and generators are left as they were."""
    import torch

    from depthgauge.trace.batches import tensors
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    with untouched(inventory(module)), torch.no_grad():
        return next(tensor for _, tensor in tensors(module(batch)))


# --------------------------------------------------------------------------- built by code


def _of_code(stored: Subject, module: nn.Module, batch: Any) -> list[Change]:
    found: list[Change] = []
    if batch is not None:
        from depthgauge.trace.measuring import measure_module

        seen = measure_module(module, batch, instruments=["state_rms"])
        shown = {"equation": seen.equation, "depth": seen.depth, "width": seen.width}
        today = stored.model_copy(update={**shown, "dtype": seen.dtype, "branches": seen.branches})
        found += subject_changes(stored, today)
    if not found and stored.layers:
        every = list(between(stored.layers, layers_of(module)))
        found += every[:_MOST]
        if (more := len(every) - _MOST) > 0:
            found.append(Change("layers", None, None, f"and {more} more layers like these"))
    return found
