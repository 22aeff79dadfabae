"""What the public objects say when they are printed: the report of the command, in a line a name.

A raw dataclass holds ``name=value`` of its fields; no text here does.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

import depthgauge as dg
from depthgauge.recipes.registry import RECIPES
from depthgauge.report.audit_screen import print_audit

NETWORK = dg.Network("h + W2(relu(W1(rmsnorm(h))))", 2, 32, init="he")
MODEL, BATCH = NETWORK.module(0), torch.randn(4, 32)

#: Words of a printed object, and what no printed object holds.
_RAW = re.compile(r"\b[A-Z]\w+\([a-z_]+=")


def objects(folder: Path) -> dict[str, tuple[object, str]]:
    """An object by name, and what its text has to say."""
    profile = dg.measure(NETWORK, 4)
    corridor = dg.Corridor.of(forward_drift={"max": 3})
    specification = dg.Specification(NETWORK, batch=4)
    dg.commission(NETWORK, folder / "record", vary=["activation=tanh"], depths=[1])
    monitor = dg.Monitor(MODEL, BATCH)
    return {
        "audit that holds": (dg.audit(MODEL, BATCH, "he"), "he holds"),
        "audit that does not": (dg.audit(MODEL, BATCH, "lecun"), "lecun does not hold"),
        "guess": (dg.guess(MODEL, BATCH), "its numbers agree with he"),
        "applied": (dg.apply(MODEL, BATCH, "lecun"), "weights: 1 / sqrt(fan in)"),
        "rewritten": (dg.rewritten(NETWORK, "lecun"), "W1: he"),
        "recipe": (RECIPES["lecun"], "lecun: "),
        "comparison": (dg.compare(NETWORK, ["lecun"], seed=0, depths=[2]), "last state"),
        "sweep": (dg.sweep(NETWORK, [1, 2], seed=0), "depths 1, 2"),
        "ablation": (dg.ablate(NETWORK, "scale=1/2", batch=4, seed=0), "scale=1/2"),
        "network": (NETWORK, "depth 2, width 32; W1 he, W2 he"),
        "block": (NETWORK.block, "h = h + W2"),
        "count": (NETWORK.count, "1 residual branch, m = 2, pre-norm"),
        "specification": (specification, "batch 4, seed 0, float32"),
        "subject": (dg.subject_of(specification), "4, float32, seeds 0"),
        "corridor": (corridor, "forward_drift: max 3"),
        "verdict": (corridor.judge(profile), "forward_drift"),
        "record": (dg.read_record(folder / "record"), "training boundary"),
        "verification": (dg.verify(folder / "record"), "valid"),
        "monitor": (monitor, "Monitor of EquationNetwork every 100 steps"),
        "look": (monitor.look(0), "step 0"),
    }


def test_printed_objects_are_reports_and_no_raw_dataclasses(tmp_path: Path) -> None:
    for name, (found, word) in objects(tmp_path).items():
        text, line = str(found), repr(found)
        assert word in text, (name, text)
        assert not _RAW.search(text), (name, text)
        assert "\n" not in line, (name, line)
        assert len(line) < 300, (name, line)


def test_a_raw_dataclass_would_be_seen() -> None:
    assert _RAW.search(str(dg.Effort()))


def test_an_audit_prints_what_the_command_prints() -> None:
    found = dg.audit(MODEL, BATCH, "lecun")
    drawn = io.StringIO()
    print_audit(found, Console(file=drawn, width=100, color_system=None))
    assert str(found) == drawn.getvalue().rstrip("\n")
    assert "FAIL" in str(found)
    assert "FAIL" not in str(dg.audit(MODEL, BATCH, "he"))


@pytest.mark.parametrize("init", [None, {"W2": "zeros"}, "he(gain=2)"])
def test_the_repr_of_a_network_and_of_a_block_builds_it(init: object) -> None:
    network = dg.Network("h + W2(relu(W1(h, out=4*n)))", 3, 8, init=init, tokens=5)  # type: ignore[arg-type]
    names = {"Network": dg.Network, "parse": dg.parse}
    assert eval(repr(network), names).chosen == network.chosen
    assert eval(repr(network.block), names) == network.block
    assert "tokens=5" in repr(network)
