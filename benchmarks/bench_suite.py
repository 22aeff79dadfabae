"""The transport suite against plain NumPy, and against a bare chain of the same products.

Two NumPy scripts: ``plain`` is what one writes down, an expression a line; ``careful``
(``numpy_reference.py``) works in place and keeps no more than the backward pass needs. Every time
includes drawing the weights, but for the bare chain, which has none to draw.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import numpy_plain, numpy_reference
from benchmarks.harness import by_turns, median, publish, ratio, table

ROUNDS, SEEDS = 9, 16
SHOWN = ["state_rms", "gradient_rms", "live_derivative_fraction"]


def plain(name: str) -> None:
    numpy_plain.run(name)


def careful(name: str) -> None:
    numpy_reference.run(next(c for c in numpy_reference.CONFIGURATIONS if c.name == name))


def ours(name: str, seeds: int, dtype: str, threads: int) -> None:
    import torch

    from depthgauge.measurement import measure
    from depthgauge.network.spec import Network
    from depthgauge.study.transport import CONFIGURATIONS

    torch.set_num_threads(threads)
    network = next(c for c in CONFIGURATIONS if c.name == name).network
    if seeds > 1:
        network = Network(network.block, network.depth, network.width, init=network.init)
    measure(network, seed=7 if seeds == 1 else range(seeds), dtype=dtype, instruments=SHOWN)


def bare(depth: int, members: int, dtype: str, threads: int) -> None:
    """The products alone, forward and backward: two weights a block, one after the other."""
    import torch

    torch.set_num_threads(threads)
    shape = (128, 64) if members == 1 else (members, 128, 64)
    h = torch.randn(shape, dtype=getattr(torch, dtype))
    weights = torch.randn(*shape[:-2], 64, 64, dtype=h.dtype) / 8
    for _ in range(2 * depth):
        h = torch.matmul(h, weights)
    for _ in range(2 * depth):
        h = torch.matmul(h, weights.mT)


def main() -> int:
    rows: list[list[str]] = []
    scripts: list[list[str]] = []
    chain: list[list[str]] = []
    totals: dict[str, list[float]] = {}
    for configuration in numpy_reference.CONFIGURATIONS:
        name, depth = configuration.name, configuration.blocks
        jobs: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "plain": (plain, (name,)),
            "careful": (careful, (name,)),
            "one": (ours, (name, 1, "float64", 1)),
            "of float64": (ours, (name, SEEDS, "float64", 2)),
            "of float32": (ours, (name, SEEDS, "float32", 2)),
            "bare one": (bare, (depth, 1, "float64", 1)),
            "bare of float64": (bare, (depth, SEEDS, "float64", 2)),
            "bare of float32": (bare, (depth, SEEDS, "float32", 2)),
        }
        seconds = by_turns(jobs, ROUNDS)
        for job in seconds:
            if " float" in job:
                seconds[job] = [s / SEEDS for s in seconds[job]]
            sums = totals.setdefault(job, [0.0] * ROUNDS)
            totals[job] = [a + b for a, b in zip(sums, seconds[job], strict=True)]
        for found, kind in ((rows, "plain"), (scripts, "careful")):
            found.append(compared(name, seconds, kind))
        chain.append(against_chain(name, seconds))
    for found, kind in ((rows, "plain"), (scripts, "careful")):
        found.append(compared("the six together", totals, kind))
    chain.append(against_chain("the six together", totals))
    head = ["configuration", "NumPy ms", "one ms", "one", "of 16 float64", "of 16 float32"]
    publish(
        "suite",
        "The transport suite against NumPy",
        [
            f"Milliseconds a network, and how many times faster than NumPy (float64, one thread) a "
            f"network is: one at a time in float64 (one thread, and one that "
            f"draws ahead), and in an ensemble of {SEEDS} seeds (two threads). Against the plain "
            f"script:",
            table(head, rows),
            "Both draw float64 weights with NumPy's generator when one network runs at a time; an "
            "ensemble's weights are keyed draws in float32. NumPy has one thread in all columns. "
            "Against the careful script:",
            table(head, scripts),
            "Fraction of our time that a bare chain of the same products takes (forward and "
            "backward, no draws, no statistics, the same threads):",
            table(["configuration", "one", "of 16 float64", "of 16 float32"], chain),
        ],
        ROUNDS,
    )
    return 0


def compared(name: str, seconds: dict[str, list[float]], kind: str) -> list[str]:
    numpy = seconds[kind]
    times = [f"{1e3 * median(numpy):.1f}", f"{1e3 * median(seconds['one']):.1f}"]
    return [name, *times, *(ratio(numpy, seconds[j]) for j in ("one", "of float64", "of float32"))]


def against_chain(name: str, seconds: dict[str, list[float]]) -> list[str]:
    jobs = ("one", "of float64", "of float32")
    return [name, *(ratio(seconds[f"bare {job}"], seconds[job]) for job in jobs)]


if __name__ == "__main__":
    sys.exit(main())
