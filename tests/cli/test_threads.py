"""How many threads NumPy may have in a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import os, pathlib
import torch
from torch import nn

def build(layers=1):
    told = os.environ.get("OPENBLAS_NUM_THREADS", "")
    pathlib.Path("told").write_text(told)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(4, 4)
"""


@pytest.mark.parametrize(("given", "told"), [("", "1"), ("2", "2")])
@pytest.mark.parametrize("command", ["commission", "ablate"])
def test_numpy_has_one_unless_another_number_is_given(
    tmp_path: Path, command: str, given: str, told: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    own = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    own |= {"OPENBLAS_NUM_THREADS": given} if given else {}
    where = ["-o", "out"] if command == "commission" else []
    options = ["--vary", "layers=2", *where]
    ran = subprocess.run(
        [sys.executable, "-m", "depthgauge", command, "model.py:build", *options],
        cwd=tmp_path, env=own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1, 2), ran.stderr
    assert (tmp_path / "told").read_text() == told, ran.stderr


def test_what_is_imported_already_is_left_alone() -> None:
    """The variable is read when NumPy is imported, and a child process would inherit it."""
    code = (
        "import os; os.environ.pop('OPENBLAS_NUM_THREADS', None); import numpy\n"
        "from depthgauge.cli.threads import numpy_alone\n"
        "numpy_alone(); assert 'OPENBLAS_NUM_THREADS' not in os.environ"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
