"""Subjects built the short way: a recorded pass for a module, the blocks for an equation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.instruments.subject import Branch, Subject
from depthgauge.network.chain import Chain, chain_of_blocks
from depthgauge.network.module import EquationNetwork
from depthgauge.trace.again import chain
from depthgauge.trace.analysis import analyse
from depthgauge.trace.inventory import inventory
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run


def subject_of(
    network: nn.Module,
    data: Any,
    loss: Callable[..., Any] | None = None,
    branches: Sequence[Branch] = (),
) -> Subject:
    """The states of the first stream, the row of each being its number."""
    readings = Readings(("rms",), ("rms",), (), False)
    before = run(network, data, loss, readings)
    (track, *_) = analyse(before.graph, readings, dict(before.held.parameters)).tracks
    states = [track.stream.source, *(step.after for step in track.steps)]
    places = [readings.place(i) for i in states]

    def again(model: nn.Module | None = None, batch: Any = None) -> AbstractContextManager[Chain]:
        model = network if model is None else model
        now = dataclasses.replace(before, held=inventory(model))
        return chain(model, data if batch is None else batch, loss, places, now)

    paths = [before.graph.path(i) for i in places]
    return Subject(network, data, loss, range(len(places)), again, paths, branches)


def subject_of_equation(network: EquationNetwork, h: Tensor) -> Subject:
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(h.shape, generator=generator, dtype=torch.float64)

    @contextmanager
    def again(model: Any = None, batch: Any = None) -> Iterator[Chain]:
        model = network if model is None else model
        yield chain_of_blocks(model, h if batch is None else batch, cotangent)

    return Subject(network, h, None, range(len(network.blocks) + 1), again)
