"""Timing by turns: every job in a process of its own, one after the other in each round.

A slow moment of the machine hits all of them, and no job inherits another's warm allocator: the
same NumPy script takes 16 ms in a process whose heap another job has grown, and 26 ms in its own.

A benchmark prints a table in Markdown and writes it to ``benchmarks/results/NAME.md`` together with
the date, the versions and the number of rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Calls of one turn that are counted.
CALLS = 3

#: Seconds before each job: OpenMP's threads of the one before go on spinning for a while.
PAUSE = 0.1

RESULTS = Path(__file__).parent / "results"


def by_turns(
    jobs: Mapping[str, tuple[Callable[..., object], tuple[Any, ...]]],
    rounds: int = 9,
) -> dict[str, list[float]]:
    """Seconds of each job in each round: the median of ``CALLS`` after one that is not counted."""
    return clocked(jobs, rounds)[0]


def clocked(
    jobs: Mapping[str, tuple[Callable[..., object], tuple[Any, ...]]],
    rounds: int = 9,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """``by_turns``, and beside it the processor's own seconds, which leave out what others had."""
    context = multiprocessing.get_context("spawn")
    workers: dict[str, tuple[Connection, Any]] = {}
    for name, (function, arguments) in jobs.items():
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, function, arguments), daemon=True)
        process.start()
        workers[name] = here, process
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    of_processor: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (pipe, _process) in workers.items():
            time.sleep(PAUSE)
            pipe.send(True)
            taken, used = pipe.recv()
            seconds[name].append(taken)
            of_processor[name].append(used)
    for pipe, process in workers.values():
        pipe.send(False)
        process.join()
    return seconds, of_processor


def _serve(pipe: Connection, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    while pipe.recv():
        function(*arguments)  # memory that lay idle while the others ran is fetched back
        taken, used = [], []
        for _ in range(CALLS):
            start, before = time.perf_counter(), time.process_time()
            function(*arguments)
            used.append(time.process_time() - before)
            taken.append(time.perf_counter() - start)
        pipe.send((median(taken), median(used)))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(of: Sequence[float], to: Sequence[float]) -> str:
    """Of the round-by-round ratios the median, smallest and largest: ``2.31 [2.20, 2.45]``."""
    each = [a / b for a, b in zip(of, to, strict=True)]
    return f"{median(each):.2f} [{min(each):.2f}, {max(each):.2f}]"


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
    """Print the report and keep it beside the benchmark, apart where a BLAS kernel is forced."""
    kernel = os.environ.get("OPENBLAS_CORETYPE")
    name = f"{name}-{kernel.lower()}" if kernel else name
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy"))
    load = f", load average {os.getloadavg()[1]:.1f} at the end" if os.name == "posix" else ""
    blas = f"OPENBLAS_CORETYPE {kernel or 'unset'}"
    where = (
        f"{date.today()}, {processor()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {versions}, {blas}{load}. Medians of {rounds} rounds by "
        f"turns, in brackets the smallest and the largest."
    )
    text = "\n\n".join([f"# {title}", where, *parts]) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
