"""A network that an equation built, as a subject of instruments that run it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.instruments.subject import Branch, Subject
from depthgauge.network.chain import Chain, chain_of_blocks, twice_differentiable
from depthgauge.network.classified import EXAMPLES as CLASSIFIED
from depthgauge.network.classified import classified
from depthgauge.network.draws import COTANGENT, INPUT, draws
from depthgauge.network.module import EquationNetwork
from depthgauge.network.spec import Network

__all__ = ["EXAMPLES", "subject_of"]

#: Examples of a Gaussian batch that are run again, at most, and numbers of their states.
EXAMPLES: Final = 32
NUMBERS: Final = 2**15


def subject_of(
    network: Network,
    seed: int,
    batch: int | Tensor,
    rows: tuple[int, ...],
    device: torch.device,
    directions: Tensor | None = None,
    labels: Tensor | None = None,
) -> Subject | str:
    """The network in float64 under one seed, or why it cannot be run as a module.

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
        h = given if batch is None else batch
        assert isinstance(ran, EquationNetwork)
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
        _branches(network, model),
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


def _branches(network: Network, model: nn.Module) -> list[Branch]:
    """One a block, with all of its parameters, where each block has one residual branch."""
    if network.branches != network.depth:
        return []
    blocks = model.get_submodule("blocks")
    return [
        Branch(
            None,
            f"blocks.{k}",
            tuple(f"blocks.{k}.{name}" for name, _ in block.named_parameters()),
            k + 1,
        )
        for k, block in enumerate(blocks.children())
    ]
