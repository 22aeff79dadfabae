"""Threads that stay for the life of the process.

A fresh thread allocates from memory of its own, which has to be fetched from the system page by
page: with threads that come and go an ensemble takes half as long again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def threads(purpose: str, count: int) -> ThreadPoolExecutor:
    """``count`` threads kept for one purpose: ``"passes"`` of ensembles, ``"draws"`` ahead."""
    return ThreadPoolExecutor(count, f"depthgauge-{purpose}")
