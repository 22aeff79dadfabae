"""A training run with ``Monitor`` at every 100 steps beside the same run without it.

The two runs go on by turns, a step of one and then a step of the other, so that a slow moment of
the machine (some per cent from one minute to the next) hits both, and the difference is what the
looks took: what they do to the steps behind them is in it too.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import median, publish, table

if TYPE_CHECKING:
    from depthgauge import Monitor

EVERY, STEPS, ROUNDS = 100, 200, 5
BAR = 1.02


class Run:
    """A model in training; ``step(n)`` adds its seconds to ``seconds``, those of a look to
    ``looks`` as well."""

    def __init__(self, monitored: bool) -> None:
        import torch
        from torch.nn import functional as F

        from benchmarks import modules
        from depthgauge import Monitor

        self.model, self.batch = modules.built("gpt")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.loss: Callable[[torch.Tensor], torch.Tensor] = lambda logits: F.cross_entropy(
            logits.flatten(0, 1), self.batch.flatten()
        )
        self.monitor: Monitor | None = None
        if monitored:
            self.monitor = Monitor(self.model, self.batch, loss=self.loss, every=EVERY)
        self.seconds, self.looks = 0.0, list[float]()

    def step(self, number: int) -> None:
        start = perf_counter()
        self.optimizer.zero_grad()
        self.loss(self.model(self.batch)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.monitor is not None:
            before = perf_counter()
            if self.monitor(number) is not None:
                self.looks.append(perf_counter() - before)
        self.seconds += perf_counter() - start


def by_turns() -> tuple[Run, Run]:
    """Both runs after ``STEPS`` steps; who goes first changes from step to step."""
    plain, monitored = Run(False), Run(True)
    gc.collect()
    for number in range(1, STEPS + 1):
        pair = (plain, monitored) if number % 2 else (monitored, plain)
        for run in pair:
            run.step(number)
    return plain, monitored


def shown(values: list[float], places: int) -> str:
    low, high = min(values), max(values)
    return f"{median(values):.{places}f} [{low:.{places}f}, {high:.{places}f}]"


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    from benchmarks import modules

    rounds = [by_turns() for _ in range(ROUNDS)]
    ratio = [looked.seconds / plain.seconds for plain, looked in rounds]
    looks = [[look / (plain.seconds / STEPS) for look in run.looks] for plain, run in rounds]
    title = modules.CASES["gpt"].title
    publish(
        "monitor",
        "A training run that is looked at",
        [
            f"{STEPS} steps of AdamW on the {title}; `Monitor` at every {EVERY} steps. float32, "
            f"one torch thread. A round is the run with looks and the run without, a step of each "
            f"by turns in one process, on the same batch. A look is given in steps of the run "
            f"without; the very first of the process imports what it needs.",
            table(
                ["without s", "with s", "ratio", "bar", "first look", "second look"],
                [
                    [
                        f"{median([plain.seconds for plain, _ in rounds]):.2f}",
                        f"{median([run.seconds for _, run in rounds]):.2f}",
                        shown(ratio, 4),
                        f"{BAR:.2f}",
                        shown([first for first, *_ in looks], 2),
                        shown([last for *_, last in looks], 2),
                    ]
                ],
            ),
        ],
        ROUNDS,
    )
    return 0 if median(ratio) < BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
