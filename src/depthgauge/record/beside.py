"""A module run beside the network of a record, built anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError
from depthgauge.record.blocks import Block
from depthgauge.record.changes import Change, between, equation_change, equations_agree
from depthgauge.record.parts import Subject

if TYPE_CHECKING:
    from torch import Tensor, nn

    from depthgauge.network.spec import Network
from depthgauge.record.order import out_of_order, run_of

__all__ = ["measured", "modules_above", "seen"]

#: Examples of the batch on which two modules are read.
_EXAMPLES: Final = 4
#: Units in the last place: the same operations give outputs that differ by a few at most.
_ROUNDINGS: Final = 8
_ALIKE: Final = (
    "though equation and weights read alike (an option such as eps or slope, or a bias, differs, "
    "or what is done before and behind its blocks)"
)


def seen(
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
        order = run_of(part, held, given).order
    except Exception as error:  # the user's code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        words = f"it does not run on the batch that was commissioned: {said}"
        yield Change("output", list(given.shape), None, words)
        return
    if wrong := list(out_of_order(order, len(held))):
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
    if not equations_agree(*texts):
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
        if path not in inside and not own & set(modules_above(path))
    ]
    (first, *_) = blocks
    inner = first.path or next(iter(first.weights.values()))
    for path in ("", *modules_above(inner)):
        stem = f"{path}." if path else ""
        every = all(at.startswith(stem) for block in blocks for at in block.weights.values())
        at = module.get_submodule(path)
        runs = not isinstance(at, nn.ModuleList | nn.ModuleDict | nn.ParameterList)
        if runs and every and not any(other.startswith(stem) for other in others):
            return at
    return _chain(held) if held else None


def modules_above(path: str) -> list[str]:
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


def _inside(
    built: nn.Module, module: nn.Module, blocks: Sequence[nn.Module], seed: int | None, batch: Any
) -> Iterator[Change]:
    """Of a module with layers of its own: which blocks run on its batch, and what they make of the
    state that reaches the first."""
    import torch

    from depthgauge.errors import ModelError

    try:
        ran = run_of(module, blocks, batch)
    except Exception as error:  # the user's code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ModelError(f"the module does not run on the batch given: {said}") from error
    if wrong := list(out_of_order(ran.order, len(blocks))):
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
