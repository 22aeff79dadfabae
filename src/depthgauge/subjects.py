"""A network that an equation built, as a subject of instruments that run it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from depthgauge.equation.nodes import Block
from depthgauge.errors import ModelError, NetworkError
from depthgauge.instruments.subject import Branch, Subject
from depthgauge.network.chain import Chain, chain_of_blocks, twice_differentiable
from depthgauge.network.classified import EXAMPLES as CLASSIFIED
from depthgauge.network.classified import classified
from depthgauge.network.draws import COTANGENT, INPUT, draws
from depthgauge.network.module import EquationBlock, EquationNetwork
from depthgauge.network.spec import Network
from depthgauge.trace.inventory import Renamed

__all__ = ["EXAMPLES", "Part", "parts_of", "subject_of"]

#: Examples of a Gaussian batch that are run again, at most, and numbers of their states.
EXAMPLES: Final = 32
NUMBERS: Final = 2**15
#: What stands before the names of a block that is run by itself.
_BLOCK: Final = "block."


def subject_of(
    network: Network,
    seed: int,
    batch: int | Tensor,
    rows: tuple[int, ...],
    device: torch.device,
    directions: Tensor | None = None,
    labels: Tensor | None = None,
    branch_rows: tuple[int, ...] = (),
) -> Subject | str:
    """The network in float64 under one seed, or why it cannot be run as a module. ``rows`` and
    ``branch_rows``: of its states and its branches in the profile.

    Of a Gaussian batch it sees the first ``EXAMPLES`` or fewer, unless they act on one another. Of
    a batch that is not finite none is left out: the one that is not may be among the others.
    """
    try:
        model = network.module(seed, torch.float64).to(device)
    except NetworkError as error:
        return str(error)
    together = bool(network.program.batch_norms)
    source = draws(network.draws, seed)

    def gaussian(place: int, name: str, count: int) -> Tensor:
        shape = (count, *network.state_shape)
        numbers = source.source(place, name).normal(torch.Size(shape).numel())
        return torch.from_numpy(numbers).reshape(shape).to(device, torch.float64)

    if isinstance(batch, Tensor):
        given = batch.detach().to(device, torch.float64)
    else:
        whole = gaussian(INPUT, "input", batch)
        shown = max(2, min(EXAMPLES, NUMBERS // whole[0].numel()))
        given = whole if together or labels is not None else whole[:shown]
    g = gaussian(COTANGENT, "cotangent", len(given))
    cotangent = g / g.square().mean().sqrt()

    @contextmanager
    def chain(model_: nn.Module | None = None, batch: Any = None) -> Iterator[Chain]:
        ran = model if model_ is None else model_
        ran = ran.model if isinstance(ran, Renamed) else ran
        h = given if batch is None else batch
        if not isinstance(ran, EquationNetwork):
            raise NetworkError(
                f"the states of an equation are followed in what its Network.module() makes, and "
                f"{type(ran).__name__} is none; measure a module to compare it with another"
            )
        before = [(b, b.clone()) for b in ran.buffers()]
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)  # of dropout
                found = chain_of_blocks(ran, h, cotangent[: len(h)].to(h))
            yield found
        finally:
            for b, held in before:
                b.copy_(held)

    def few(count: int) -> Tensor:
        places = torch.linspace(0, len(given) - 1, min(count, len(given))).round().long()
        return given[places]

    return Subject(
        model,
        given,
        None,
        rows,
        lambda model=None, batch=None: chain(model, batch),
        ["input", *(f"blocks.{k}" for k in range(network.depth))],
        _branches(network, branch_rows),
        few if not together and bool(given.isfinite().all()) else None,
        directions=directions,
        labels=labels,
        trained=partial(_trained, network, seed, batch, rows, device, labels),
    )


def _trained(
    network: Network,
    seed: int,
    batch: int | Tensor,
    rows: tuple[int, ...],
    device: torch.device,
    labels: Tensor | None,
) -> Subject:
    """The network between classes and a classifier, in float64."""
    given = min(batch, CLASSIFIED) if isinstance(batch, int) else batch.to(device, torch.float64)
    task = classified(network, seed, given, torch.float64, labels)
    model, own = task.module.to(device), task.batch.to(device)
    y = task.labels.to(device)

    @contextmanager
    def chain(model_: nn.Module | None = None, batch: Any = None) -> Iterator[Chain]:
        ran = model if model_ is None else model_
        before = [(b, b.clone()) for b in ran.buffers()]
        try:
            with torch.random.fork_rng(devices=[]), twice_differentiable(), torch.enable_grad():
                torch.manual_seed(seed)  # of dropout
                logits = ran(own if batch is None else batch)
            yield Chain((), lambda: nn.functional.cross_entropy(logits, y), [logits.detach()])
        finally:
            for b, held in before:
                b.copy_(held)

    cotangent = (
        f"the gradient of the cross-entropy of {model.head.shape[0]} classes behind a linear "
        f"classifier, on {len(own)} examples: an equation has no loss of its own"
    )
    return Subject(
        model,
        own,
        None,
        rows,
        lambda model=None, batch=None: chain(model, batch),
        cotangent=cotangent,
    )


class Part(NamedTuple):
    """A residual branch of one block: where it is added, and the parameters it uses, by their names
    within the block."""

    path: str
    parameters: tuple[str, ...]


def parts_of(network: Network) -> tuple[Part, ...]:
    """The residual branches of a block, in order; nothing where they cannot be told apart. What a
    single one cannot be told from counts as its own."""
    count = network.count.branches
    if not count or network.draws != "keyed":
        return ()
    found = _parts(network.block, network.depth, network.width, network.tokens, network.size)
    if len(found) == count or count > 1:
        return found if len(found) == count else ()
    block = EquationBlock(network, draws(network.draws, 0), 1, torch.float64)
    return (Part("", tuple(name for name, _ in block.named_parameters())),)


@lru_cache(64)
def _parts(
    block: Block, depth: int, width: int, tokens: int | None, size: int | None
) -> tuple[Part, ...]:
    """As they are found in the first block, run by itself, as in any module."""
    from depthgauge.trace.measuring import followed

    network = Network(block, depth, width, tokens=tokens, size=size)
    model = _First(EquationBlock(network, draws("keyed", 0), 1, torch.float64))
    generator = torch.Generator("cpu").manual_seed(0)
    h = torch.randn(2, *network.state_shape, generator=generator, dtype=torch.float64)
    try:
        found = followed(model, h)
    except (ModelError, NetworkError, RuntimeError):
        return ()
    if isinstance(found, str) or len(found) != 1:
        return ()
    return tuple(
        Part(
            branch.path.removeprefix(_BLOCK),
            tuple(name.removeprefix(_BLOCK) for name in branch.parameters),
        )
        for branch in found[0].branches
    )


class _First(nn.Module):
    """The first block alone."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.block(h, h)
        return out


def _branches(network: Network, rows: Sequence[int]) -> list[Branch]:
    """Of every block; ``rows``: of all branches in the profile, in order, where they have any."""
    places = [(k, part) for k in range(network.depth) for part in parts_of(network)]
    return [
        Branch(
            row,
            ".".join(filter(None, (f"blocks.{k}", part.path))),
            tuple(f"blocks.{k}.{name}" for name in part.parameters),
            k + 1,
        )
        for row, (k, part) in zip_longest(rows, places)
    ]
