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

    ``batch``: what the LightningModule's ``forward`` takes; the rest as ``Monitor`` takes it. What
    is seen goes to the Trainer's loggers, and to ``log`` if it is given.
    """

    def __init__(self, batch: Any, every: int = 100, log: object = None, **options: Any) -> None:
        super().__init__()
        self.batch, self.every, self.options = batch, every, options
        self._sink = sink_of(log)  # Lightning puts a function of its own at "log"
        self.monitor: Monitor | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        from depthgauge.trace.batches import mapped

        batch = mapped(self.batch, lambda x: x.to(pl_module.device))

        def write(numbers: Any, step: int) -> None:
            for logger in trainer.loggers:
                sink_of(logger)(numbers, step)
            self._sink(numbers, step)

        self.monitor = Monitor(pl_module, batch, every=self.every, log=write, **self.options)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        # Of several batches that one optimiser step gathers, only the last is looked at.
        if self.monitor is not None and step not in self.monitor.looks:
            self.monitor(step)
