"""What a commission takes: the block of the first article, from the command to the record.

Pre-RMSNorm, GELU, branches divided by the root of their number, width 64, depths 12, 48 and 96, the
usual ablation, a rival, three seeds; no training runs. Each round is a process of its own, as a
person starts it; "threads as it finds them" has no OMP_NUM_THREADS set, whatever this one has.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import median, publish, table
from depthgauge.record.folder import read

ROUNDS = 3
#: Seconds that a commission of this block may take on two cores.
BAR = 60.0
SPECIFICATION = Path(__file__).parents[1] / "examples" / "pre-rmsnorm.toml"
THREADS = {"as it finds them": None, "one": "1"}
#: What fixes the number of threads from outside.
_GIVEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Ran:
    """Seconds on the clock and of the processor, by gate on the clock, and what was found."""

    seconds: float
    processor: float
    gates: dict[str, float]
    fingerprint: str


def ran(threads: str | None, folder: Path) -> Ran:
    """One commission; an exit status other than that of an open gate ends the benchmark."""
    environment = {k: v for k, v in os.environ.items() if k not in _GIVEN}
    environment |= dict.fromkeys(_GIVEN, threads) if threads else {}
    command = [sys.executable, "-m", "depthgauge", "commission", str(SPECIFICATION)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*command, "-o", str(folder), "--quiet"], env=environment, check=False)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 1:  # the training boundary stands open
        raise SystemExit(f"the commission ended with exit status {done.returncode}, expected 1")
    record = read(folder).record
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(seconds, used, dict(record.provenance.wall_seconds), record.fingerprint)


def said(each: list[float]) -> str:
    return f"{median(each):.1f} [{min(each):.1f}, {max(each):.1f}]"


def main() -> int:
    found: dict[str, list[Ran]] = {name: [] for name in THREADS}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(ROUNDS):
            for number, (name, threads) in enumerate(THREADS.items()):
                found[name].append(ran(threads, Path(folder) / f"{round_}-{number}"))
    rows = [
        [name, said([r.seconds for r in each]), said([r.processor for r in each])]
        for name, each in found.items()
    ]
    usual = found["as it finds them"]
    gates = [[g, said([r.gates[g] for r in usual])] for g in usual[0].gates]
    same = len({r.fingerprint for each in found.values() for r in each}) == 1
    taken = median([r.seconds for r in usual])
    about = (
        f"`depthgauge commission {SPECIFICATION.parent.name}/{SPECIFICATION.name}`: n = {ROUNDS}. "
        f"The bar is {BAR:.0f} s: {'met' if taken < BAR else 'not met'}, {taken:.1f} s. The "
        f"records {'are the same to the last bit' if same else 'are not the same'}."
    )
    parts = [
        about,
        table(["threads", "seconds", "of the processor"], rows),
        table(["gate", "seconds, threads as it finds them"], gates),
    ]
    publish("commission", "A commission, from the command to the record", parts, ROUNDS)
    return 0 if taken < BAR and same else 1


if __name__ == "__main__":
    sys.exit(main())
