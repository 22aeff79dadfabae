"""A training run looked at every ``every`` steps, and what was seen written where the run logs.

    monitor = dg.Monitor(model, batch, loss=loss, every=100, log=writer)
    for step in range(steps):
        ...                     # forward, backward, optimizer.step()
        monitor(step)

A look is one measured pass of the model as it is then (``measure``): about one and a fifth of the
time of a training step on this batch (``benchmarks/bench_monitor.py``), so that at ``every=100`` it
costs about one per cent of a run whose batches are as large; of models whose step takes a few
milliseconds four steps and more (``docs/monitor.md``). The model, its gradients, its buffers
and the random numbers of the run are as before. One batch for the whole run: then a number changes
because the weights did.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex

from depthgauge.errors import (
    DepthgaugeError,
    ModelError,
    SpecificationError,
    TargetError,
    expect,
    expect_callable,
)
from depthgauge.integrations.sinks import Log, sink_of
from depthgauge.measurement import measure
from depthgauge.network.spec import whole_number
from depthgauge.study.corridor import Corridor, Verdict
from depthgauge.study.corridors import NamedCorridor, corridor_of

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.profile import Profile

__all__ = ["INSTRUMENTS", "Look", "Monitor"]

#: What one pass shows; sorting for quantiles would cost more than the rest together.
INSTRUMENTS: Final = ("rivers", "gates", "branches", "correlation")
#: Curves by block whose ends are logged beside the summaries.
_ENDS: Final = ("correlation", "branch_to_stream")


class Breach(Protocol):
    """Called with a look that lies outside the corridor."""

    def __call__(self, look: Look, /) -> object: ...


@dataclass(frozen=True)
class Look:
    """What was seen at one step: the profile, its numbers by name, and the corridor's verdict."""

    step: int
    profile: Profile
    numbers: Mapping[str, float]
    verdict: Verdict | None

    def __str__(self) -> str:
        judged = f"\n{self.verdict}" if self.verdict is not None else ""
        return f"step {self.step}\n{self.profile}{judged}"

    def __repr__(self) -> str:
        return f"<Look at step {self.step}: {self.profile!r}>"


class Monitor:
    """Measures ``model`` on ``batch`` every ``every`` steps.

    ``loss``: as ``measure`` takes it; ``log``: a function of ``(numbers, step)``, a TensorBoard
    ``SummaryWriter``, a Weights & Biases run, the ``mlflow`` module, or several in a list;
    ``corridor``: bounds whose margins are logged too, or the name or file of a corridor;
    ``on_breach``: called with each look that
    fails (raise there to stop the run); ``instruments``: as ``measure`` takes them; ``prefix``: of
    every name logged. ``looks`` keeps the numbers, no profile and no tensor.

    A model that raises in its measured pass does not end the run: the sentence is kept in
    ``failures`` and written as a warning once. Raises SpecificationError for what cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        loss: Callable[..., Any] | None = None,
        every: int = 100,
        log: Log | object | Sequence[object] | None = None,
        corridor: Corridor | NamedCorridor | Mapping[str, object] | str | None = None,
        on_breach: Breach | None = None,
        instruments: str | Sequence[str] = INSTRUMENTS,
        prefix: str = "depthgauge/",
        seed: int = 0,
    ) -> None:
        from torch import nn

        expect("model", model, nn.Module, "the nn.Module that is trained")
        expect_callable("loss", loss, "a function of the output, or of the output and the batch")
        expect_callable("on_breach", on_breach, "a function of a look")
        if (count := whole_number(every)) is None or count < 1:
            raise SpecificationError(
                f"every is {every!r}, expected a whole number of steps, at least 1"
            )
        if on_breach is not None and corridor is None:
            raise SpecificationError(
                "on_breach is given without a corridor, so nothing can lie outside; give one too"
            )
        self.model, self.batch, self.loss, self.every, self.seed = model, batch, loss, count, seed
        self.corridor = None if corridor is None else corridor_of(corridor, "transport")
        self.on_breach, self.instruments, self.prefix = on_breach, instruments, prefix
        self._log = sink_of(log)
        self.looks: dict[int, Mapping[str, float]] = {}
        self.failures: dict[int, str] = {}

    def __repr__(self) -> str:
        looks, failed = len(self.looks), len(self.failures)
        return (
            f"<Monitor of {type(self.model).__name__} every {self.every} steps: {looks} looks, "
            f"{failed} failed>"
        )

    def __call__(self, step: SupportsIndex) -> Look | None:
        """Look if the step is a multiple of ``every``; what was seen, or None."""
        return self.look(step) if _whole(step) % self.every == 0 else None

    def look(self, step: SupportsIndex) -> Look | None:
        """Look now, whatever the step; None where the model could not be measured."""
        at = _whole(step)
        try:
            profile = measure(
                self.model, self.batch, self.loss, seed=self.seed, instruments=self.instruments
            )
        except ModelError as error:
            self._failed(at, error)
            return None
        verdict = None
        if self.corridor is not None:
            verdict = self.corridor.at(profile.depth, profile.dtype).judge(profile)
        found = Look(at, profile, numbers_of(profile, verdict), verdict)
        self.looks[at] = found.numbers
        self._log({self.prefix + name: x for name, x in found.numbers.items()}, at)
        if verdict is not None and verdict.state == "fail" and self.on_breach is not None:
            self.on_breach(found)
        return found

    def _failed(self, step: int, error: DepthgaugeError) -> None:
        import warnings

        if not self.failures:
            warnings.warn(f"depthgauge could not look at step {step}: {error}", stacklevel=4)
        self.failures[step] = str(error)


def _whole(step: SupportsIndex) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TargetError(
            f"a step is {step!r}, expected a whole number, such as the count of the training loop"
        ) from None


def numbers_of(profile: Profile, verdict: Verdict | None = None) -> dict[str, float]:
    """What is logged: every summary, the ends of a few curves, the margins of a corridor. Numbers
    that are not finite stay as they are: they are what is looked for."""
    found = {name: float(values[0]) for name, values in profile.summary().items()}
    for name in _ENDS:
        river = profile.by_block(name)
        if river is not None:
            found[f"{name}_last"] = float(river[1][-1][0])
    if profile.overhead is not None:
        found["overhead"] = profile.overhead
    for judgement in verdict.judgements if verdict is not None else ():
        if not math.isnan(judgement.margin):
            found[f"margin/{judgement.name}"] = judgement.margin
    return found
