"""The guard lets a run through that was commissioned, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import depthgauge as dg
from depthgauge.errors import NotCommissionedError, RecordError, SpecificationError, TargetError

SPECIFICATION = """
[block]
equation = "h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)"
[init]
default = "lecun"
[network]
depth = 6
width = 32
[run]
batch = 16
seed = [0, 1]
lr = 0.1
[commission]
depths = [3]
vary = ["norm=none"]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("guard")
    file = folder / "block.toml"
    file.write_text(SPECIFICATION)
    dg.commission(file, folder / "record")
    return folder / "record", file


def test_what_was_commissioned_runs(made: tuple[Path, Path]) -> None:
    record, file = made
    dg.require(record)
    dg.require(record, str(file))
    dg.require(record, dg.read_specification(file))
    dg.assert_commissioned(record, str(file))


def test_the_module_of_a_commissioned_seed_runs_and_another_does_not(
    made: tuple[Path, Path],
) -> None:
    record, file = made
    network = dg.read_specification(file).network
    dg.require(record, network.module(1))
    with pytest.raises(NotCommissionedError, match="weights are not those of the seeds"):
        dg.require(record, network.module(2))
    with pytest.raises(NotCommissionedError, match="weights are not those"):
        dg.require(record, nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("depth = 6", "depth = 7", "stale: depth 6 -> 7"),
        ("gelu", "relu", "stale: equation"),
        ("seed = [0, 1]", 'seed = [0, 1]\ndtype = "bfloat16"', "stale: dtype float32 -> bfloat16"),
    ],
)
def test_what_changed_since_is_refused_with_the_reason(
    made: tuple[Path, Path], tmp_path: Path, before: str, after: str, words: str
) -> None:
    file = tmp_path / "block.toml"
    file.write_text(SPECIFICATION.replace(before, after))
    with pytest.raises(NotCommissionedError, match=words):
        dg.require(made[0], str(file))
    with pytest.raises(AssertionError, match=words):
        dg.assert_commissioned(made[0], str(file))


def test_a_gate_that_fails_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(depth=48, width=8, batch=16, depths=[4], vary=["norm=rmsnorm"])
    dg.commission("h + W2(relu(W1(h)))", tmp_path / "record", **options)
    with pytest.raises(NotCommissionedError) as caught:
        dg.require(tmp_path / "record")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'record'} does not allow this run:\n")
    assert "  - the gate 'rivers' fails: gradient_ratio" in text


def test_what_was_not_measured_has_to_be_allowed(made: tuple[Path, Path]) -> None:
    with pytest.raises(NotCommissionedError, match="'training boundary' was not measured"):
        dg.require(made[0], unmeasured=())
    with pytest.raises(SpecificationError, match="unmeasured names 'trainig'"):
        dg.require(made[0], unmeasured=("trainig",))


def test_what_cannot_be_held_against_a_record(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="type int cannot be held against a record"):
        dg.require(made[0], 3)  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        dg.require(tmp_path / "none")
