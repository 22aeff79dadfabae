"""Timing by turns: every job once a round, so that a slow moment of the machine hits all of them.

A benchmark prints a table in Markdown and writes it to ``benchmarks/results/NAME.md`` together with
the date, the versions and the number of rounds.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


def by_turns(jobs: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, list[float]]:
    """Seconds of each job in each round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(of: Sequence[float], to: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of the round-by-round ratios."""
    each = [a / b for a, b in zip(of, to, strict=True)]
    return median(each), min(each), max(each)


def said(triple: tuple[float, float, float]) -> str:
    """``2.31 [2.20, 2.45]``"""
    middle, low, high = triple
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else ():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def publish(name: str, title: str, parts: Sequence[str], rounds: int) -> None:
    """Print the report and keep it beside the benchmark."""
    blas = "OPENBLAS_CORETYPE=" + os.environ.get("OPENBLAS_CORETYPE", "unset")
    where = (
        f"{date.today()}, {processor()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, {blas}. "
        f"Medians of {rounds} rounds by turns in one process, in brackets the smallest and the "
        f"largest."
    )
    text = "\n\n".join([f"# {title}", where, *parts]) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
