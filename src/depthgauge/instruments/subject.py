"""What the heavier instruments are given, and what they give back.

A *subject* is one network with its batch, which can be run again: an instrument asks it for a
``Chain`` of states on their graph, or steps its parameters. What it *found* are numbers at rows of
the profile, with the reason for every quantity that it could not take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from depthgauge.network.chain import Chain
from depthgauge.sites import FloatArray

__all__ = ["Branch", "Effort", "Found", "Run", "Subject"]


@dataclass(frozen=True)
class Effort:
    """How much an instrument may do. ``probes``: random vectors where an average is estimated;
    ``examples``: whose Jacobians are taken one by one; ``sites``: states at which a spectrum is
    written down, at most; ``exact``: the largest state whose Jacobian is followed as a whole;
    ``rank``: leading directions of a larger one; ``iterations``: of its subspace; ``arithmetic``:
    the one intended for training, of ``arithmetic.ARITHMETICS`` (None: the model's own);
    ``budget``: seconds after which no further instrument is begun; ``seed``: of every random
    vector."""

    probes: int = 8
    examples: int = 1
    sites: int = 13
    exact: int = 256
    rank: int = 16
    iterations: int = 3
    arithmetic: str | None = None
    budget: float | None = None
    seed: int = 0
    began: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> bool:
        return self.budget is not None and time.perf_counter() - self.began > self.budget


@dataclass(frozen=True)
class Branch:
    """One residual branch: the profile's row where it is added (None if it has none), its module,
    the names of its parameters."""

    row: int | None
    path: str
    parameters: tuple[str, ...]


class Run(Protocol):
    """Runs the network once more and keeps its states on the graph while the block lasts.

    ``model``: another module of the same structure, run instead (a copy in another precision, with
    other weights); ``batch``: another batch of the same form. Both are left as they were.
    """

    def __call__(
        self, model: nn.Module | None = None, batch: Any = None
    ) -> AbstractContextManager[Chain]: ...


@dataclass(frozen=True)
class Subject:
    """One network and its batch. ``rows``: of the chain's states in the profile, -1 for a state
    that is not in it; ``chain`` runs it; ``loss`` as the user gave it (None: ``Chain.total`` is the
    loss among the outputs, or the output along a random cotangent); ``paths``: where each state is
    made. Nothing of ``model`` is changed."""

    model: nn.Module
    batch: Any
    loss: Callable[..., Any] | None
    rows: Sequence[int]
    chain: Run
    paths: Sequence[str] = ()
    branches: Sequence[Branch] = ()


@dataclass
class Found:
    """Columns: quantity -> rows and one number each. Vectors: quantity -> row -> numbers. Notes:
    what else has to be said, for the JSON's ``settings``. Missing: quantity -> why."""

    columns: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    vectors: dict[str, dict[int, FloatArray]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def put(self, quantity: str, row: int, value: float) -> None:
        rows, values = self.columns.setdefault(quantity, ([], []))
        rows.append(row)
        values.append(float(value))

    def __ior__(self, other: Found) -> Found:
        self.columns |= other.columns
        self.vectors |= other.vectors
        self.notes |= other.notes
        self.missing |= other.missing
        return self


Instrument = Callable[[Subject, Effort], Found]
Tensors = Mapping[str, Tensor]
