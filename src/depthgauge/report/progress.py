"""A progress bar for long work, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Steps", "progress"]

#: Work that ends sooner shows nothing.
PATIENCE = 0.5


class Steps:
    """``steps(done, total)`` says how far it is, ``steps.now(what)`` what is being done; here both
    say nothing."""

    def __call__(self, done: int, total: int) -> None:
        pass

    def now(self, what: str) -> None:
        pass


class _Drawn(Steps):
    def __init__(self, label: str, bar: Progress) -> None:
        self._label, self._bar = label, bar
        self._task = bar.add_task(label, total=None)
        self._began: float | None = None  # at the first step: imports before it are not the work

    def __call__(self, done: int, total: int) -> None:
        self._start()
        self._bar.update(self._task, completed=done, total=total)

    def now(self, what: str) -> None:
        self._start()
        self._bar.update(self._task, description=f"{self._label} {what}")

    def _start(self) -> None:
        if self._began is None:
            self._began = time.monotonic()
        if not self._bar.live.is_started and time.monotonic() - self._began > PATIENCE:
            self._bar.start()


@contextmanager
def progress(label: str, *, quiet: bool = False, file: TextIO | None = None) -> Iterator[Steps]:
    """A bar on standard error with what is being done beside it, wiped at the end.

    Nothing is drawn in a pipe, when ``quiet``, or in the first half second after its first step.
    """
    stream = sys.stderr if file is None else file
    if quiet or stream is None or not stream.isatty():
        yield Steps()
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
    try:
        yield _Drawn(label, bar)
    finally:
        bar.stop()
