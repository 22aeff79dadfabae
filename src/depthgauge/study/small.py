"""Whether a network is too small to be worth sharing among PyTorch's threads.

A commission of such a network runs in one: its numbers are then the same to the last bit whatever
number of threads the process has, and it does not wait for threads that have nothing to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from depthgauge.measurement import SHARED_PRODUCT
from depthgauge.network.stream import elements_of
from depthgauge.network.threads import alone
from depthgauge.study.builders import BuilderCase
from depthgauge.study.cases import Case, EquationCase
from depthgauge.trace.batches import examples

if TYPE_CHECKING:
    from torch import nn

__all__ = ["is_small", "unshared"]


@contextmanager
def unshared(case: Case) -> Iterator[None]:
    """One thread of PyTorch's where the products of a case are small, else those that there are."""
    if _is_small(case):
        with alone():
            yield
    else:
        yield


def is_small(module: nn.Module, batch: Any) -> bool:
    """Whether its largest product is; ``batch``: what it takes."""
    largest = max((p.numel() for p in module.parameters()), default=0)
    return largest * examples(batch) < SHARED_PRODUCT


def _is_small(case: Case) -> bool:
    """The multiplications of the largest product: each weight meets every place of every example
    once."""
    if isinstance(case, BuilderCase):
        with torch.random.fork_rng():
            built = case.build(case.seeds[0])
        return is_small(built.module, built.batch)
    assert isinstance(case, EquationCase)
    run = case.specification
    places = elements_of(run.network, run.batch) // run.network.width
    weights = (math.prod(layer.shape) for layer in run.network.layers.weights)
    return max(weights, default=0) * places < SHARED_PRODUCT
