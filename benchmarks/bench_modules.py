"""``measure`` on modules against one plain pass, and against the least that hooks by hand cost.

One process for each model, in which plain pass, lean hooks and ``measure`` run by turns; for peak
memory a process for each kind of pass.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.harness import median, publish, ratio, table

ROUNDS, MEMORY_ROUNDS = 5, 3
#: Calls a round, by model: many where a pass is short.
CALLS = {"gpt": 3}
LEAN = ("gpt", "mlp-128", "mlp-512")
#: What is measured: the instruments, their words in the table.
KINDS: dict[str, tuple[str, str]] = {
    "base": ("rivers,branches", "rivers, branches"),
    "gates": ("rivers,branches,gates", "rivers, branches, gates"),
    "full": ("fast", "fast, the default"),
}
#: The ratios to stay below; the default, which measures directions and causes too, has none.
BARS = {
    "gpt": {"base": 1.10, "gates": 1.20},
    "gpt2": {"base": 1.10, "gates": 1.20},
    "mlp-128": {"base": 1.60},
    "mlp-512": {"base": 1.60},
}
MEMORY_BAR = 1.05


def passes(case: str) -> dict[str, Callable[[], object]]:
    """What there is to time on this model, built in this process."""
    from benchmarks import modules
    from depthgauge import measure

    model, batch = modules.built(case)
    jobs: dict[str, Callable[[], object]] = {
        "plain": functools.partial(modules.plain, model, batch),
    }
    for kind, (instruments, _) in KINDS.items():
        jobs[kind] = functools.partial(measure, model, batch, instruments=instruments)
    if case in LEAN:
        blocks = modules.CASES[case].blocks(model)
        jobs["lean"] = functools.partial(modules.lean, model, batch, blocks)
    return jobs


def timed(case: str) -> dict[str, list[float]]:
    """Seconds by kind of pass, and under ``overhead`` what the measurement says of itself."""
    from benchmarks.modules import side_by_side

    jobs = passes(case)
    said: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def keeping(kind: str, job: Callable[[], object]) -> None:
        profile: Any = job()
        said[kind].append(profile.overhead)

    for kind in said:
        jobs[kind] = functools.partial(keeping, kind, jobs[kind])
    seconds = side_by_side(jobs, ROUNDS, CALLS.get(case, 1))
    return seconds | {f"overhead {kind}": values[1:] for kind, values in said.items()}


def peak(case: str, kind: str) -> float:
    """Peak memory in MB of this process after one pass."""
    passes(case)[kind]()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_in_a_process(case: str, kind: str, apart: bool) -> float:
    """``apart``: every tensor of 16 KB or more in pages of its own, so that what freed ones leave
    between small objects does not count."""
    command = [sys.executable, "-m", "benchmarks.bench_modules", case, kind]
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "16384"} if apart else {})
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: float = json.loads(done.stdout)
    return found


def spread(values: list[float], digits: int = 2) -> str:
    return f"{median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    if len(sys.argv) > 1:
        print(json.dumps(peak(*sys.argv[1:])))
        return 0
    from benchmarks.modules import CASES

    rows, floor, memory = [], [], []
    for case in CASES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(timed, (case,))
        title, plain = CASES[case].title, found["plain"]
        for kind, (_, words) in KINDS.items():
            bar = BARS[case].get(kind)
            rows.append(
                [
                    title,
                    words,
                    f"{1e3 * median(plain):.1f}",
                    f"{1e3 * median(found[kind]):.1f}",
                    ratio(found[kind], plain),
                    f"{bar:.2f}" if bar else "none",
                    spread(found[f"overhead {kind}"]),
                ]
            )
        if case in LEAN:
            floor.append(
                [
                    title,
                    f"{1e3 * median(found['lean']):.1f}",
                    ratio(found["lean"], plain),
                    ratio(found["base"], found["lean"]),
                    ratio(found["full"], found["lean"]),
                ]
            )
        for apart in (True, False):
            peaks: dict[str, list[float]] = {"plain": [], "full": []}
            for _ in range(MEMORY_ROUNDS):
                for kind, values in peaks.items():
                    values.append(peak_in_a_process(case, kind, apart))
            memory.append([
                title,
                "pages of their own" if apart else "as malloc places them",
                *(f"{median(values):.0f}" for values in peaks.values()),
                ratio(peaks["full"], peaks["plain"]),
                f"{MEMORY_BAR:.2f}",
            ])  # fmt: skip
    publish(
        "modules",
        "Measuring a module against a plain pass",
        [
            "A plain pass is forward and backward from a fresh random cotangent with the gradients "
            "of all parameters. float32, one torch thread. A model has a process of its own, in "
            "which the kinds of pass run by turns; a round is one pass of each (three of the first "
            "model), after one that is not counted. `overhead` is what the measurement says of "
            "itself, in each of its passes: over the model's own work in it. `measure` computes "
            "no gradient of a weight, which a plain pass, like a training step, does. A ratio is "
            "to stay below its bar.",
            table(
                ["model", "instruments", "plain ms", "measure ms", "ratio", "bar", "overhead"],
                rows,
            ),
            "Lean hooks: state RMS, largest state and gradient RMS of every block, written for "
            "these models by hand, which is the floor.",
            table(
                ["model", "lean ms", "lean to plain", "base to lean", "full to lean"],
                floor,
            ),
            f"Peak memory of a process of its own (Python, PyTorch and depthgauge imported in "
            f"each) after one pass with the default; {MEMORY_ROUNDS} rounds. Tensors in "
            f"pages of their own (MALLOC_MMAP_THRESHOLD_=16384) show what is held; as malloc "
            f"places them, the holes that freed ones leave between small objects count too.",
            table(["model", "tensors", "plain MB", "measure MB", "ratio", "bar"], memory),
        ],
        ROUNDS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
