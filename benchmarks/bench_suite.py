"""The transport suite against plain NumPy, and against a bare chain of the same products.

Every time includes drawing the weights, but for the bare chain, which has none to draw.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from benchmarks import numpy_reference
from benchmarks.harness import by_turns, median, publish, ratio, said, table
from depthgauge.measurement import measure
from depthgauge.network.spec import Network
from depthgauge.study.transport import CONFIGURATIONS

ROUNDS, SEEDS = 9, 16
SHOWN = ["state_rms", "gradient_rms", "live_derivative_fraction"]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bare(depth: int, members: int, dtype: torch.dtype) -> None:
    """The products alone, forward and backward: two weights a block, one after the other."""
    shape = (128, 64) if members == 1 else (members, 128, 64)
    h = torch.randn(shape, dtype=dtype)
    weights = torch.randn(*shape[:-2], 64, 64, dtype=dtype) / 8
    for _ in range(2 * depth):
        h = torch.matmul(h, weights)
    for _ in range(2 * depth):
        h = torch.matmul(h, weights.mT)


def run(network: Network, seeds: int, dtype: str, count: int) -> None:
    with threads(count):
        seed = 7 if seeds == 1 else range(seeds)
        measure(network, seed=seed, dtype=dtype, instruments=SHOWN)


def run_bare(depth: int, members: int, dtype: torch.dtype, count: int) -> None:
    with threads(count):
        bare(depth, members, dtype)


def main() -> int:
    rows, chain = [], []
    totals: dict[str, list[float]] = {}
    for configuration, plain in zip(CONFIGURATIONS, numpy_reference.CONFIGURATIONS, strict=True):
        assert configuration.name == plain.name
        sequential = configuration.network
        keyed = Network(sequential.block, sequential.depth, 64, init=configuration.init)
        depth = sequential.depth
        jobs: dict[str, Callable[[], object]] = {
            "numpy": partial(numpy_reference.run, plain),
            "one": partial(run, sequential, 1, "float64", 1),
            "ensemble float64": partial(run, keyed, SEEDS, "float64", 2),
            "ensemble float32": partial(run, keyed, SEEDS, "float32", 2),
            "bare one": partial(run_bare, depth, 1, torch.float64, 1),
            "bare float64": partial(run_bare, depth, SEEDS, torch.float64, 2),
            "bare float32": partial(run_bare, depth, SEEDS, torch.float32, 2),
        }
        seconds = by_turns(jobs, ROUNDS)
        for name in seconds:
            if name not in ("numpy", "one", "bare one"):
                seconds[name] = [s / SEEDS for s in seconds[name]]
        for name, values in seconds.items():
            sums = totals.setdefault(name, [0.0] * ROUNDS)
            totals[name] = [a + b for a, b in zip(sums, values, strict=True)]
        rows.append(compared(configuration.name, seconds))
        chain.append(against_chain(configuration.name, seconds))
    rows.append(compared("the six together", totals))
    chain.append(against_chain("the six together", totals))
    publish(
        "suite",
        "The transport suite against NumPy",
        [
            f"Milliseconds a network (float64, one network at a time, one torch thread and one "
            f"that draws; NumPy one thread), and how many times faster than NumPy's float64 a "
            f"network is, alone and in an ensemble of {SEEDS} seeds (two torch threads).",
            table(
                [
                    "configuration",
                    "numpy ms",
                    "one ms",
                    "one",
                    f"of {SEEDS}, float64",
                    f"of {SEEDS}, float32",
                ],
                rows,
            ),
            "Fraction of our time that a bare chain of the same products takes (forward and "
            "backward, no draws, no statistics).",
            table(["configuration", "one", f"of {SEEDS}, float64", f"of {SEEDS}, float32"], chain),
        ],
        ROUNDS,
    )
    return 0


def compared(name: str, seconds: dict[str, list[float]]) -> list[str]:
    numpy = seconds["numpy"]
    return [
        name,
        f"{1e3 * median(numpy):.1f}",
        f"{1e3 * median(seconds['one']):.1f}",
        *(
            said(ratio(numpy, seconds[job]))
            for job in ("one", "ensemble float64", "ensemble float32")
        ),
    ]


def against_chain(name: str, seconds: dict[str, list[float]]) -> list[str]:
    pairs = [("one", "bare one"), *((f"ensemble {d}", f"bare {d}") for d in ("float64", "float32"))]
    return [name, *(said(ratio(seconds[bare], seconds[ours])) for ours, bare in pairs)]


if __name__ == "__main__":
    sys.exit(main())
