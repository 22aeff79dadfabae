"""A callback of Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from depthgauge.extras import load
from depthgauge.integrations.monitor import Monitor
from depthgauge.integrations.sinks import sink_of

__all__ = ["DepthgaugeCallback"]

_lightning = load("lightning.pytorch", "lightning", "depthgauge.integrations.lightning")


class DepthgaugeCallback(_lightning.Callback):  # type: ignore[misc, name-defined]
    """Looks at the module every ``every`` global steps, on one batch for the whole run.

    A step is one of the optimiser: of the batches whose gradients are gathered for one, the last is
    behind it, and the module is looked at there. Where several optimisers step in one batch, each
    counts, as Lightning counts them, and the look is at the first batch that reaches a multiple.

    ``batch``: what the LightningModule's ``forward`` takes; the rest as ``Monitor`` takes it. What
    is seen goes to the Trainer's loggers, and to ``log`` if it is given.
    """

    def __init__(self, batch: Any, every: int = 100, log: object = None, **options: Any) -> None:
        super().__init__()
        self.batch, self.every, self.options = batch, every, options
        self._sink = sink_of(log)  # Lightning puts a function of its own at "log"
        self.monitor: Monitor | None = None
        self._step = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        from depthgauge.trace.batches import mapped

        batch = mapped(self.batch, lambda x: x.to(pl_module.device))

        def write(numbers: Any, step: int) -> None:
            for logger in trainer.loggers:
                sink_of(logger)(numbers, step)
            self._sink(numbers, step)

        self.monitor = Monitor(pl_module, batch, every=self.every, log=write, **self.options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step  # not 0 where a checkpoint is gone on from

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._step = self._step, trainer.global_step
        if self.monitor is None:
            return
        every = self.monitor.every
        if self._step // every > before // every:
            self.monitor.look(self._step)
