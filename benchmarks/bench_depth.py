"""Time a block and peak memory over depth: 100, 1,000 and 10,000 blocks, float32."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from benchmarks.harness import publish, table

DEPTHS, ROUNDS = (100, 1_000, 10_000), 3
EQUATION = "h + W2(relu(W1(h)))/sqrt(L)"


def once(depth: int) -> dict[str, float]:
    """Seconds of one measurement and the peak memory of the process, in MB."""
    import torch

    import depthgauge as dg

    torch.set_num_threads(1)
    dg.measure(EQUATION, depth=20, width=64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    profile = dg.measure(EQUATION, depth=depth, width=64)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    end = float(profile["state_rms"][-1])
    return {"seconds": seconds, "before": before, "peak": peak, "end": end}


def in_a_process(depth: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_depth", str(depth)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(once(int(sys.argv[1]))))
        return 0
    found: dict[int, list[dict[str, float]]] = {depth: [] for depth in DEPTHS}
    for _ in range(ROUNDS):
        for depth in DEPTHS:
            found[depth].append(in_a_process(depth))
    blocks = {d: sorted(1e6 * run["seconds"] / d for run in found[d]) for d in DEPTHS}
    first = blocks[DEPTHS[0]][ROUNDS // 2]
    rows = []
    for depth in DEPTHS:
        each, run = blocks[depth], found[depth][-1]
        middle = each[ROUNDS // 2]
        rows.append(
            [
                f"{depth:,}",
                f"{middle:.0f} [{each[0]:.0f}, {each[-1]:.0f}]",
                f"{middle / first:.2f}",
                f"{max(r['peak'] for r in found[depth]):.0f}",
                f"{run['before']:.0f}",
                f"{run['end']:.4f}",
            ]
        )
    publish(
        "depth",
        "Depth: time a block and peak memory",
        [
            f"`measure('{EQUATION}', width=64, batch=128)` with every instrument, one torch "
            f"thread, each run in a process of its own.",
            table(
                [
                    "blocks",
                    "us a block",
                    f"against {DEPTHS[0]} blocks",
                    "peak MB",
                    "MB before (Python, torch)",
                    "end RMS",
                ],
                rows,
            ),
        ],
        ROUNDS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
