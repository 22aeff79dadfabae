"""A progress bar for long work, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["progress"]

#: Work that ends sooner shows nothing.
PATIENCE = 0.5


@contextmanager
def progress(
    label: str, *, quiet: bool = False, file: TextIO | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A callable ``(done, total)`` that draws a bar on standard error, and wipes it at the end.

    Nothing is drawn in a pipe, when ``quiet``, or in the first half second after its first step.
    """
    stream = sys.stderr if file is None else file
    if quiet or stream is None or not stream.isatty():
        yield lambda done, total: None
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
    task = bar.add_task(label, total=None)

    began: list[float] = []  # at the first step: what is imported before it is not the work

    def step(done: int, total: int) -> None:
        if not began:
            began.append(time.monotonic())
        if not bar.live.is_started and time.monotonic() - began[0] > PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield step
    finally:
        bar.stop()
