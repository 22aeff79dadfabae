"""A module held against the subject of a record: first what it is, then its weights.

Of a network that was commissioned as an equation everything is known, so that the module is run
beside one that is built anew; of one that code built its layers are, and with a batch its blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError, NetworkError, TargetError
from depthgauge.record.blocks import Block, as_drawn, blocks_by_numbers, blocks_in
from depthgauge.record.changes import Change, between, equation_change, subject_changes
from depthgauge.record.parts import Subject

if TYPE_CHECKING:
    from torch import Tensor, nn

    from depthgauge.network.spec import Network

__all__ = ["layers_of", "module_changes"]

#: Examples of the batch on which two modules are read.
_EXAMPLES: Final = 4

#: Units in the last place: the same operations give outputs that differ by a few at most.
_ROUNDINGS: Final = 8

#: Layers that are named one by one.
_MOST: Final = 3

_ALIKE: Final = (
    "though equation and weights read alike (an option such as eps or slope, or a bias, differs, "
    "or what is done before and behind its blocks)"
)


def layers_of(module: nn.Module) -> dict[str, str]:
    """Shapes of the weights, those whose paths differ in numbers alone counted together:
    ``{"blocks.*.up.weight": "12 x [256, 64]"}``."""
    counted: dict[str, Counter[str]] = {}
    for path, parameter in module.named_parameters():
        counted.setdefault(_pattern(path), Counter())[str(list(parameter.shape))] += 1
    return {
        pattern: ", ".join(f"{n} x {shape}" for shape, n in shapes.items())
        for pattern, shapes in counted.items()
    }


def _pattern(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def module_changes(stored: Subject, module: nn.Module, batch: Any = None) -> list[Change]:
    """What of the module is not what was commissioned: depth, width, layers, precision, equation,
    output, and last the weights, which must be those of a seed of the record.

    ``batch``: what the module takes. Of one that code built it lets its blocks be read; without one
    its layers are held against those of the record. Of one in which the network of an equation
    stands beside layers of its own it shows whether each block runs once, in order. Raises
    ModelError where the module cannot be run on the batch, TargetError where it has no numbers.
    """
    empty = [path for path, parameter in module.named_parameters() if parameter.is_meta]
    if empty:
        raise TargetError(
            f"the module has no numbers yet, '{empty[0]}' is on the device meta; ask when its "
            f"weights are there"
        )
    if stored.kind == "equation":
        found, known = _of_equation(stored, module, batch)
    else:
        found, known = _of_code(stored, module, batch)
    if not known:
        words = (
            f"the module's weights are not those of the seeds that were commissioned "
            f"({', '.join(stored.weights)}); ask before the first step, and build it under one of "
            f"them"
        )
        found.append(Change("weights", dict(stored.weights), None, words))
    return found


# --------------------------------------------------------------------- built by an equation


def _of_equation(stored: Subject, module: nn.Module, batch: Any) -> tuple[list[Change], bool]:
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
    return found or list(_read(stored, network, module, blocks, seed, batch)), seed is not None


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


def _read(
    stored: Subject,
    network: Network,
    module: nn.Module,
    blocks: Sequence[Block],
    seed: int | None,
    batch: Any,
) -> Iterator[Change]:
    """What a run shows that is not that of the network built anew: which blocks run, the equation,
    and where the weights are those of a ``seed``, the output.

    A module without other parameters is the network, and takes the first examples of the batch that
    was commissioned. In another the part is that has none, and the whole takes its own ``batch``.
    """
    some, apart = next(module.parameters()), all(block.path for block in blocks)
    held = [module.get_submodule(block.path) for block in blocks] if apart else []
    part = _part(module, blocks, held)
    mode = (held[0] if held else module).training  # a wrapper may stand in another
    built = network.module(seed or 0, dtype=some.dtype).to(some.device).train(mode)
    if part is None and not (held and batch is not None):
        words = (
            "what its blocks compute cannot be seen, for they stand beside other layers in no "
            "module of their own; put them into one"
        )
        yield Change("equation", str(network.block), None, words)
        return
    found = []
    if part is not None:
        given = _batch(stored, network, seed).to(some)
        found = list(_alone(network, built, part, held, seed, given))
    if not found and part is not module and batch is not None:
        found = list(_inside(built, module, held, seed, batch))
    yield from found


def _alone(
    network: Network,
    built: nn.Module,
    part: nn.Module,
    held: Sequence[nn.Module],
    seed: int | None,
    given: Tensor,
) -> Iterator[Change]:
    """What a run of the network itself shows."""
    try:
        order = _ran(part, held, given).order
    except Exception as error:  # the user's code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        words = f"it does not run on the batch that was commissioned: {said}"
        yield Change("output", list(given.shape), None, words)
        return
    if wrong := list(_order(order, len(held))):
        yield from wrong
        return
    texts = []
    for each in (built, part):
        try:
            texts.append(measured(each, given))
        except DepthgaugeError as error:
            words = f"the equation cannot be compared: {error}"
            yield Change("equation", str(network.block), None, words)
            return
    if texts[0] != texts[1]:
        yield equation_change(*texts)
    elif seed is not None:
        wanted, own = (_run(each, given) for each in (built, part))
        yield from _output(wanted, own, _roundings(held, network.depth), "its output", _ALIKE)


def _roundings(blocks: Sequence[nn.Module], depth: int) -> int:
    """How many units in the last place two outputs may be apart: an equation's blocks run the same
    operations, and those that a person wrote round otherwise, each by a few."""
    from depthgauge.network.module import EquationBlock

    same = blocks and all(isinstance(block, EquationBlock) for block in blocks)
    return _ROUNDINGS * (1 if same else depth)


def measured(module: nn.Module, batch: Any) -> str:
    """The equation that a run shows."""
    from depthgauge.trace.measuring import measure_module

    return measure_module(module, batch, instruments=["state_rms"]).equation


def _batch(stored: Subject, network: Network, seed: int | None) -> Tensor:
    """The first examples of the batch that a commission draws under the seed."""
    import torch

    from depthgauge.network.draws import INPUT, draws

    shape = torch.Size((min(stored.batch, _EXAMPLES), *network.state_shape))
    source = draws(network.draws, seed or 0).source(INPUT, "input")
    return torch.from_numpy(source.normal(shape.numel())).reshape(shape)


def _part(
    module: nn.Module, blocks: Sequence[Block], held: Sequence[nn.Module]
) -> nn.Module | None:
    """The outermost module that has no parameters but those of the blocks; where none runs the
    blocks, they run one after the other. None where a block is no module of its own."""
    from torch import nn

    own, inside = {block.path for block in blocks if block.path}, set[str]()
    for path in [path for block in blocks for path in block.weights.values()]:
        inside |= {path, f"{path.removesuffix('weight')}bias"}
    others = [
        path
        for path, _ in module.named_parameters()
        if path not in inside and not own & set(_above(path))
    ]
    (first, *_) = blocks
    inner = first.path or next(iter(first.weights.values()))
    for path in ("", *_above(inner)):
        stem = f"{path}." if path else ""
        every = all(at.startswith(stem) for block in blocks for at in block.weights.values())
        at = module.get_submodule(path)
        runs = not isinstance(at, nn.ModuleList | nn.ModuleDict | nn.ParameterList)
        if runs and every and not any(other.startswith(stem) for other in others):
            return at
    return _chain(held) if held else None


def _above(path: str) -> list[str]:
    """The modules in which it stands, the outermost first."""
    parts = path.split(".")[:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _chain(blocks: Sequence[nn.Module]) -> nn.Module:
    """The blocks one after the other; an equation's own takes the first state too."""
    from torch import nn

    from depthgauge.network.module import EquationBlock

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(blocks)

        def forward(self, h: Tensor) -> Any:
            h0 = h
            for block in self.blocks:
                h = block(h, h0) if isinstance(block, EquationBlock) else block(h)
            return h

    return Chain()


@dataclass
class _Ran:
    """Which blocks ran, in their order; the state that entered the first and the generator then;
    the state that left the last."""

    order: list[int] = field(default_factory=list)
    entered: Tensor | None = None
    generator: Tensor | None = None
    left: Tensor | None = None


def _ran(module: nn.Module, blocks: Sequence[nn.Module], batch: Any) -> _Ran:
    """What runs when the module does; modes, buffers and generators are left as they were."""
    import torch

    from depthgauge.trace.batches import call, tensors
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    found = _Ran()

    def entering(number: int) -> Any:
        def entered(_: nn.Module, given: Any, named: Any) -> None:
            found.order.append(number)
            if found.entered is None:
                first = next((x for _, x in tensors((*given, named))), None)
                found.entered = None if first is None else first.detach().clone()
                found.generator = torch.get_rng_state()

        return entered

    def left(_: nn.Module, __: Any, output: Any) -> None:
        found.left = next((x.detach() for _, x in tensors(output)), None)

    with ExitStack() as stack, untouched(inventory(module)), torch.no_grad():
        for number, block in enumerate(blocks):
            before = block.register_forward_pre_hook(entering(number), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(block.register_forward_hook(left).remove)
        call(module, batch)
    return found


def _order(order: Sequence[int], depth: int) -> Iterator[Change]:
    if list(order) != list(range(depth)):
        said = _spans(order) or "not at all"
        words = f"its blocks run {said}, and in what was commissioned each runs once: 1 to {depth}"
        yield Change("order", list(range(1, depth + 1)), [n + 1 for n in order], words)


def _spans(order: Sequence[int], most: int = 4) -> str:
    """``1 to 6, 1 to 6``, from 1."""
    spans: list[list[int]] = []
    for number in order:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = [f"{a + 1} to {b + 1}" if a < b else f"{a + 1}" for a, b in spans]
    return ", ".join([*said[:most], *(["..."] if len(said) > most else [])])


def _inside(
    built: nn.Module, module: nn.Module, blocks: Sequence[nn.Module], seed: int | None, batch: Any
) -> Iterator[Change]:
    """Of a module with layers of its own: which blocks run on its batch, and what they make of the
    state that reaches the first."""
    import torch

    from depthgauge.errors import ModelError

    try:
        ran = _ran(module, blocks, batch)
    except Exception as error:  # the user's code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ModelError(f"the module does not run on the batch given: {said}") from error
    if wrong := list(_order(ran.order, len(blocks))):
        yield from wrong
    elif seed is not None and ran.entered is not None and ran.left is not None:
        assert ran.generator is not None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ran.generator)
            wanted = _run(built, ran.entered)
        what = "the state that leaves its last block"
        yield from _output(wanted, ran.left, _roundings(blocks, len(blocks)), what, "")


def _output(wanted: Tensor, own: Tensor, roundings: int, what: str, more: str) -> Iterator[Change]:
    """How far ``own`` is from what the network built anew gives, ``|y - y0| / |y0|`` over all
    numbers, where that is more than rounding.

    The equation that a run shows has no options (``eps``, ``slope``), biases, gains.
    """
    import torch

    if wanted.shape != own.shape:
        yield from between(list(wanted.shape), list(own.shape), f"the shape of {what}")
        return
    # One that is not finite is compared as a number too, so that both have to be the same.
    wanted64, own64 = (torch.nan_to_num(y.double(), posinf=1e60, neginf=-1e60)
                       for y in (wanted, own))  # fmt: skip
    share = float((own64 - wanted64).norm() / wanted64.norm().clamp_min(1e-300))
    if share > roundings * torch.finfo(wanted.dtype).eps:
        words = f"{what} differs from what was commissioned by {100 * share:.3g} per cent {more}"
        yield Change("output", 0.0, share, words.rstrip())


def _run(module: nn.Module, batch: Tensor) -> Tensor:
    """The first tensor of the output; modes, buffers and generators are left as they were."""
    import torch

    from depthgauge.trace.batches import tensors
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    with untouched(inventory(module)), torch.no_grad():
        return next(tensor for _, tensor in tensors(module(batch)))


# --------------------------------------------------------------------------- built by code


def _of_code(stored: Subject, module: nn.Module, batch: Any) -> tuple[list[Change], bool]:
    """What is another, and whether the weights are those of a seed."""
    found: list[Change] = []
    if batch is not None:
        from depthgauge.trace.measuring import measure_module

        seen = measure_module(module, batch, instruments=["state_rms"])
        shown = {"equation": seen.equation, "depth": seen.depth, "width": seen.width}
        today = stored.model_copy(update={**shown, "dtype": seen.dtype, "branches": seen.branches})
        found += subject_changes(stored, today)
    at, names = _as_layered(stored, module)
    if not found and stored.layers and at is None:
        every = list(between(stored.layers, layers_of(module)))
        found += every[:_MOST]
        if (more := len(every) - _MOST) > 0:
            found.append(Change("layers", None, None, f"and {more} more layers like these"))
    dtype, known = _precision(stored, module if at is None else at, names)
    if dtype is not None and "dtype" not in {change.what for change in found}:
        found.append(dtype)
    return found, known


def _precision(
    stored: Subject, module: nn.Module, names: Mapping[str, str]
) -> tuple[Change | None, bool]:
    """Another precision of the weights, and whether they are those of a seed in it: in a narrower
    one they cannot be told."""
    import torch

    from depthgauge.record.subject import module_hash

    weights = stored.weights.values()
    if module_hash(module, names) in weights:
        return None, True
    every = {x.dtype for x in module.parameters() if x.is_floating_point()}
    wanted = getattr(torch, stored.dtype, None)
    if len(every) != 1 or wanted is None or wanted in every:
        return None, False
    (own,) = every
    (change,) = between(stored.dtype, str(own).removeprefix("torch."), "dtype")
    if module_hash(module, names, stored.dtype) in weights:
        return change, True
    if torch.finfo(own).bits < torch.finfo(wanted).bits:
        words = f"{change}, in which its weights cannot be compared"
        return replace(change, sentence=words), True
    return None, False


def _as_layered(stored: Subject, module: nn.Module) -> tuple[nn.Module | None, Mapping[str, str]]:
    """The outermost module in it whose layers are those of the record, and the names that the
    record has for its tensors; layers of the same shapes in the same order may be called otherwise.
    """
    count = sum(int(n) for text in stored.layers.values() for n in re.findall(r"(\d+) x ", text))
    held = Counter(above for path, _ in module.named_parameters() for above in ("", *_above(path)))
    renamed: tuple[nn.Module | None, Mapping[str, str]] = None, {}
    for path, part in module.named_modules() if count else ():
        if held[path] != count:
            continue
        layers = layers_of(part)
        if layers == stored.layers:
            return part, {}
        if renamed[0] is None and (names := _names(stored.layers, layers, part)):
            renamed = part, names
    return renamed


def _names(wanted: Mapping[str, str], own: Mapping[str, str], module: nn.Module) -> dict[str, str]:
    """The path that each tensor of a module has by other patterns of the same shapes and numbers,
    or none where they do not fit."""
    if list(wanted.values()) != list(own.values()):
        return {}
    if any(a.count("*") != b.count("*") for a, b in zip(wanted, own, strict=True)):
        return {}
    patterns, found, above = dict(zip(own, wanted, strict=True)), {}, dict[str, str]()
    for path, _ in module.named_parameters():
        texts = patterns[_pattern(path)].split("*")
        numbers = [*re.findall(r"(?<![^.])\d+(?![^.])", path), ""]
        found[path] = "".join(a + b for a, b in zip(texts, numbers, strict=True))
        mine, theirs = _above(path), _above(found[path])
        if len(mine) == len(theirs):
            above |= zip(mine, theirs, strict=True)
        elif mine and theirs:
            above[mine[-1]] = theirs[-1]
    for path, _ in module.named_buffers():
        stem, _, name = path.rpartition(".")
        if stem in above:
            found[path] = f"{above[stem]}.{name}"
    return found
