"""Threads that stay for the life of the process, each with one PyTorch thread.

A fresh thread allocates from memory of its own, which has to be fetched from the system page by
page: with threads that come and go an ensemble takes half as long again. Small products are run
here, so that the caller's number of PyTorch threads never has to change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

PREFIX = "depthgauge-"
T = TypeVar("T")


@cache
def threads(purpose: str, count: int) -> ThreadPoolExecutor:
    """``count`` threads kept for one purpose: ``"passes"`` of ensembles, ``"draws"`` ahead."""
    return ThreadPoolExecutor(count, PREFIX + purpose)


def inside() -> bool:
    """Whether the caller runs in one of these threads, and must not wait for another task there."""
    return threading.current_thread().name.startswith(PREFIX)


_lock = threading.Lock()
_using = 0
_before = 0


@contextmanager
def passes(count: int) -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
    """``submit`` for tasks in which PyTorch uses one thread.

    PyTorch's number of threads is partly the process's: it is noted before the first of any
    concurrent uses and put back after the last.
    """
    global _using, _before
    with _lock:
        if not _using:
            _before = torch.get_num_threads()
        _using += 1

    def alone(task: Callable[[], T]) -> T:
        torch.set_num_threads(1)
        return task()

    futures: list[Future[Any]] = []

    def submit(task: Callable[[], T]) -> Future[T]:
        future = threads("passes", count).submit(alone, task)
        futures.append(future)
        return future

    try:
        yield submit
    finally:
        for future in futures:  # none is left but after an error
            future.cancel()
        with _lock:
            _using -= 1
            if not _using:
                torch.set_num_threads(_before)


@contextmanager
def alone() -> Iterator[None]:
    """The caller's own operations in one thread of PyTorch's, whose number is put back after.

    Two threads that share a product of microseconds wait for one another longer than it takes, and
    where the cores are shared with other programs a thousand times as long.
    """
    global _using, _before
    with _lock:
        own = torch.get_num_threads()
        if not _using:
            _before = own
        _using += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _using -= 1
            torch.set_num_threads(own if _using else _before)


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _lock, _using
    threads.cache_clear()
    _lock, _using = threading.Lock(), 0  # another thread may have held it


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
