"""What the heavier instruments are given, and what they give back.

A *subject* is one network with its batch, which can be run again: an instrument asks it for a
``Chain`` of states on their graph, or steps its parameters. What it *found* are numbers at rows of
the profile, with the reason for every quantity that it could not take.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from depthgauge.errors import SpecificationError
from depthgauge.instruments.arithmetic import arithmetic_named
from depthgauge.instruments.step import Step
from depthgauge.network.chain import Chain
from depthgauge.network.spec import whole_number
from depthgauge.sites import FloatArray

__all__ = ["Branch", "BudgetSpentError", "Effort", "Found", "Run", "Subject"]


class BudgetSpentError(Exception):
    """The seconds that were given are over; says how far an instrument came."""


@dataclass(frozen=True)
class Effort:
    """How much the instruments that run a network again may do.

    ``probes``: random vectors where an average is estimated; ``examples``: whose Jacobians are
    followed one by one; ``until``: the state that Jacobians lead to, counted along its stream from
    0 (None: the last); ``sites``: states at which a spectrum is written down, at most; ``exact``:
    the largest state all of whose directions are followed; ``rank``: leading directions of a larger
    one, or all of them where it has no more; ``iterations``: of its subspace; ``step``: the
    optimiser's, whose update is measured; ``steps``: real ones of it before stiffness is looked at
    again, 0 for one look; ``branches``: moved alone, at most; ``arithmetic``: the one intended for
    training, of ``arithmetic.ARITHMETICS``, or in its place a module or function of your own that
    takes the same batch, compiled or fused (None: the model's own); ``budget``: seconds for all of
    them, None for no end; ``seed``: of every random vector. Raises SpecificationError.
    """

    probes: int = 8
    examples: int = 2
    sites: int = 13
    until: int | None = None
    exact: int = 256
    rank: int = 16
    iterations: int = 3
    step: Step = field(default_factory=Step)
    steps: int = 3
    branches: int = 32
    arithmetic: str | nn.Module | Callable[..., Any] | None = None
    budget: float | None = None
    seed: int = 0
    began: float = field(default_factory=time.perf_counter, repr=False, compare=False)
    deadline: float | None = field(default=None, repr=False, compare=False)  # seconds of a share
    after: int = field(default=0, repr=False, compare=False)  # parts behind those shared out,
    kept: float = field(default=0.0, repr=False, compare=False)  # and the seconds that are theirs

    def __post_init__(self) -> None:
        ones = ("probes", "examples", "sites", "exact", "rank", "iterations", "branches")
        for name, least in (*dict.fromkeys(ones, 1).items(), ("steps", 0)):
            if (count := whole_number(getattr(self, name))) is None or count < least:
                raise SpecificationError(
                    f"{name} is {getattr(self, name)!r}, expected a whole number of at least "
                    f"{least}"
                )
        until = self.until
        if until is not None and ((count := whole_number(until)) is None or count < 1):
            raise SpecificationError(
                f"until is {until!r}, expected a whole number of at least 1: the state after so "
                f"many steps of the stream, or None for the last"
            )
        other = self.arithmetic
        if isinstance(other, type):
            raise SpecificationError(
                f"arithmetic is the class {other.__name__}, expected a module or function that "
                f"takes the batch; give an instance of it"
            )
        if isinstance(other, str) or not (other is None or callable(other)):
            arithmetic_named(other)
        if not isinstance(self.step, Step):
            raise SpecificationError(
                f"step is {self.step!r}, expected depthgauge.Step(optimizer, lr)"
            )
        if whole_number(self.seed) is None:
            raise SpecificationError(f"seed is {self.seed!r}, expected a whole number")
        budget = self.budget
        number = isinstance(budget, int | float) and not isinstance(budget, bool)
        if budget is not None and not (number and budget > 0):
            raise SpecificationError(
                f"budget is {budget!r}, expected seconds above 0, or None for no end"
            )

    @property
    def left(self) -> float:
        """Seconds that are left of this part's share; infinity where there is no end."""
        end = self.budget if self.deadline is None else self.deadline
        return math.inf if end is None else end - (time.perf_counter() - self.began)

    @property
    def spent(self) -> bool:
        return self.left < 0

    def share(self, parts: int) -> Effort:
        """The effort of the next of so many parts that are left: no part starves those after it."""
        if self.budget is None:
            return self
        gone = time.perf_counter() - self.began
        return dataclasses.replace(self, deadline=gone + (self.budget - self.kept - gone) / parts)

    def keeping(self, parts: int) -> Effort:
        """The effort of so many parts together: an equal share is kept for each one ``after`` them,
        however long a pass of theirs that nothing ends half-way."""
        if self.budget is None or not self.after:
            return self
        gone = time.perf_counter() - self.began
        kept = max(self.budget - gone, 0.0) * self.after / (parts + self.after)
        return dataclasses.replace(self, kept=kept)

    def fits(self, seconds: float) -> bool:
        """Whether so many more seconds end before the budget does."""
        gone = time.perf_counter() - self.began
        return self.budget is None or gone + seconds <= self.budget

    def check(self, done: int, total: int, parts: str = "blocks") -> None:
        """Raises BudgetSpentError when the time is over, ``done`` of ``total`` parts behind."""
        if self.spent:
            raise BudgetSpentError(self.spent_after(f"{done} of {total} {parts}"))

    def spent_after(self, done: str) -> str:
        """What is said where the time ended after what was ``done``."""
        return f"its share of the budget of {self.budget:g} seconds was spent after {done}"

    @property
    def spent_before(self) -> str:
        """What is said where nothing was left to begin with."""
        return (
            f"the budget of {self.budget:g} seconds was spent by the pass and the instruments "
            f"before it"
        )


@dataclass(frozen=True)
class Branch:
    """One residual branch: the profile's row where it is added (None if it has none), its module,
    the names of its parameters, the place in the chain of the state that it is added to make."""

    row: int | None
    path: str
    parameters: tuple[str, ...]
    makes: int | None = None


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
    """One network and its batch, of which nothing is changed.

    ``rows``: of the chain's states in the profile, -1 for a state that is not in it; ``paths``:
    where each is made; ``chain`` runs the network; ``loss`` as the user gave it (None:
    ``Chain.total`` is the loss among the outputs, or the output along a random cotangent, as
    ``cotangent`` says in words). ``seconds``: of a pass forward and back, 0 where none was timed.
    ``trained``: the same network with a loss that has a minimum, for
    what is of a loss; None where it is this one. ``few`` gives a batch of that many examples, where
    examples do not act on one another; None where they may, or where all have to be looked at.
    ``picked`` gives the batch with those examples alone, None where it cannot be taken apart.
    ``directions``: ``(k, n)`` and ``labels``: ``(B,)`` or ``(B, T)``, what the user wants to
    see arrive.
    """

    model: nn.Module
    batch: Any
    loss: Callable[..., Any] | None
    rows: Sequence[int]
    chain: Run
    paths: Sequence[str] = ()
    branches: Sequence[Branch] = ()
    few: Callable[[int], Any] | None = None
    picked: Callable[[Sequence[int]], Any] | None = None
    directions: Tensor | None = None
    labels: Tensor | None = None
    cotangent: str = ""
    seconds: float = 0.0
    trained: Callable[[], Subject] | None = None

    @property
    def has_loss(self) -> bool:
        """Whether ``Chain.total`` is a loss."""
        return self.loss is not None or self.cotangent.startswith("the gradient of")


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
