"""What one look of ``Monitor`` costs in steps of the run, from small models to larger ones.

Processor time, a step and a look by turns on one model: what a look costs hardly depends on the
batch and the width, so that the smaller the step, the more of it a look is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.harness import median, publish, table

TURNS, STEPS = 15, 4
EVERY = 100


def models() -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    """By title what builds the model, its batch, and the batch's labels."""
    import torch
    from torch import Tensor, nn

    from benchmarks.modules import GPT

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm(width), nn.GELU()
            self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            branch: Tensor = self.down(self.act(self.up(self.norm(x))))
            return x + branch

    def mlp(width: int, batch: int) -> tuple[Any, Any, Any]:
        model = nn.Sequential(*(Block(width) for _ in range(12)), nn.Linear(width, 10))
        return model, torch.randn(batch, width), torch.arange(batch) % 10

    def gpt(depth: int, width: int, batch: int, tokens: int) -> tuple[Any, Any, Any]:
        ids = torch.randint(256, (batch, tokens))
        return GPT(depth, width, 4, tokens, 256), ids, ids.flatten()

    return {
        "MLP, 12 pre-norm blocks, width 64, batch 64": lambda: mlp(64, 64),
        "GPT, 6 blocks, width 64, 2 x 16 tokens": lambda: gpt(6, 64, 2, 16),
        "MLP, 12 pre-norm blocks, width 256, batch 512": lambda: mlp(256, 512),
        "GPT, 12 blocks, width 128, 8 x 64 tokens": lambda: gpt(12, 128, 8, 64),
    }


def row(title: str, build: Callable[[], tuple[Any, Any, Any]]) -> list[str]:
    import torch
    from torch.nn import functional as F

    from depthgauge import Monitor

    model, batch, labels = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, -2), labels)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    asked = {"all": Monitor(model, batch, loss=loss)}
    asked["rivers"] = Monitor(model, batch, loss=loss, instruments="rivers")
    steps, looks = list[float](), {name: list[float]() for name in asked}
    for turn in range(-2, TURNS):  # the first two are not counted
        for _ in range(STEPS):
            steps += _taken(step, turn)
        for name, monitor in asked.items():
            looks[name] += _taken(lambda monitor=monitor: monitor.look(0), turn)  # type: ignore[misc]
    each = median(steps)
    ratio = {name: median(found) / each for name, found in looks.items()}
    return [
        title,
        f"{1e3 * each:.1f}",
        f"{1e3 * median(looks['all']):.1f}",
        f"{ratio['all']:.1f}",
        f"{100 * ratio['all'] / EVERY:.1f} %",
        f"{100 * ratio['rivers'] / EVERY:.1f} %",
    ]


def _taken(function: Callable[[], object], turn: int) -> list[float]:
    start = process_time()
    function()
    return [process_time() - start] if turn >= 0 else []


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    publish(
        "looks",
        "A look in steps of the run",
        [
            f"Processor time in milliseconds: the median of {TURNS * STEPS} steps of AdamW and of "
            f"{TURNS} looks, by turns on one model. float32, one torch thread. The share is that "
            f"of looks at every {EVERY} steps; beside it that of looks at the rivers alone.",
            table(
                ["model", "step ms", "look ms", "steps a look", "share", "rivers alone"],
                [row(title, build) for title, build in models().items()],
            ),
        ],
        TURNS,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
