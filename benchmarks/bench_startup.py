"""What a person waits for: help, a suite, and importing torch, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import by_turns, median, publish, ratio, table

ROUNDS = 9
PROGRAM = "from depthgauge.cli.main import main; main()"


def call(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def main() -> int:
    jobs = {
        "python -c pass": (call, ("-c", "pass")),
        "depthgauge --help": (call, ("-c", PROGRAM, "--help")),
        "import torch": (call, ("-c", "import torch")),
        "depthgauge suite": (call, ("-c", PROGRAM, "suite")),
    }
    seconds = by_turns(jobs, ROUNDS)
    rows = [
        [
            name,
            f"{median(s):.3f} [{min(s):.3f}, {max(s):.3f}]",
            ratio(s, seconds["import torch"]),
        ]
        for name, s in seconds.items()
    ]
    publish("startup", "Start-up", [table(["command", "seconds", "of import torch"], rows)], ROUNDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
