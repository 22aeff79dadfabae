"""A training run with ``Monitor`` at every 100 steps against the same run without it."""

from __future__ import annotations

import functools
import os

from benchmarks.harness import median, publish, table

EVERY, STEPS, ROUNDS = 100, 200, 5
BAR = 1.02


def trained(monitored: bool) -> None:
    import torch
    from torch.nn import functional as F

    from benchmarks import modules
    from depthgauge import Monitor

    model, batch = modules.built("gpt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), batch.flatten())

    monitor = Monitor(model, batch, loss=loss, every=EVERY) if monitored else None
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss(model(batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if monitor is not None:
            monitor(step)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    from benchmarks import modules

    jobs = {
        "without": functools.partial(trained, False),
        "with": functools.partial(trained, True),
    }
    seconds = modules.side_by_side(jobs, ROUNDS, 1)
    each = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    title = modules.CASES["gpt"].title
    publish(
        "monitor",
        "A training run that is looked at",
        [
            f"{STEPS} steps of AdamW on the {title}; `Monitor` at every {EVERY} steps. float32, "
            f"one torch thread; a run of each by turns, after one that is not counted.",
            table(
                ["model", "without s", "with s", "ratio", "bar"],
                [
                    [
                        title,
                        f"{median(seconds['without']):.2f}",
                        f"{median(seconds['with']):.2f}",
                        f"{median(each):.3f} [{min(each):.3f}, {max(each):.3f}]",
                        f"{BAR:.2f}",
                    ]
                ],
            ),
        ],
        ROUNDS,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
