"""Threads that stay for the life of the process, each with one PyTorch thread.

A fresh thread allocates from memory of its own, which has to be fetched from the system page by
page: with threads that come and go an ensemble takes half as long again. Small products are run
here, so that the caller's number of PyTorch threads never has to change.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import torch

PREFIX = "depthgauge-"


@cache
def threads(purpose: str, count: int) -> ThreadPoolExecutor:
    """``count`` threads kept for one purpose: ``"passes"`` of ensembles, ``"draws"`` ahead."""
    before, all_here = torch.get_num_threads(), threading.Barrier(count)
    pool = ThreadPoolExecutor(count, PREFIX + purpose, lambda: torch.set_num_threads(1))
    wait([pool.submit(all_here.wait) for _ in range(count)])
    torch.set_num_threads(before)  # what a thread sets is what the next new thread starts with
    return pool


def inside() -> bool:
    """Whether the caller runs in one of these threads, and must not wait for another task there."""
    return threading.current_thread().name.startswith(PREFIX)


# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=threads.cache_clear)
