"""A callback of the Trainer of ``transformers``."""

from __future__ import annotations

from typing import Any

from depthgauge.extras import load
from depthgauge.integrations.monitor import Monitor
from depthgauge.integrations.sinks import sink_of

__all__ = ["DepthgaugeCallback"]

_transformers = load("transformers", "transformers", "depthgauge.integrations.transformers")


class DepthgaugeCallback(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Looks at the model every ``every`` global steps, on one batch for the whole run.

    ``batch``: what the model's ``forward`` takes, labels with it if its loss is to be followed
    back; the rest as ``Monitor`` takes it. What is seen stands in ``state.log_history`` beside the
    loss, and goes to ``log`` if it is given.
    """

    def __init__(self, batch: Any, every: int = 100, log: object = None, **options: Any) -> None:
        self.batch, self.every, self.options = batch, every, options
        self._sink = sink_of(log)
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        from depthgauge.trace.batches import mapped

        model = given["model"]
        batch = mapped(self.batch, lambda x: x.to(model.device))

        def write(numbers: Any, step: int) -> None:
            state.log_history.append({**numbers, "step": step})
            self._sink(numbers, step)

        self.monitor = Monitor(model, batch, every=self.every, log=write, **self.options)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.monitor is not None:
            self.monitor(state.global_step)
