"""``depthgauge commission``: the record it writes, what it refuses to replace, how it goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

import pytest

from depthgauge.record.folder import read
from depthgauge.study.commission import run as running
from tests.cli.command import Command

SPECIFICATION = """
[block]
equation = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"
[init]
default = "he"
[network]
depth = 4
width = 8
[run]
batch = 8
seed = [0, 1]
optimizer = "sgd"
lr = 0.01
[commission]
depths = [2]
vary = ["scale*2"]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPECIFICATION)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_record_of_another_specification_is_not_replaced(command: Command, place: Path) -> None:
    ran = command("commission", "spec.toml", "-o", "out", "--quiet")
    assert ran.status == 1  # no training runs
    first = read("out").record
    assert command("commission", "spec.toml", "-o", "out", "--quiet").status == 1  # its own
    assert read("out").record.fingerprint == first.fingerprint
    edit(place / "spec.toml", "relu", "gelu")
    refused = command("commission", "spec.toml", "-o", "out", "--quiet")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == (
        "depthgauge: out holds the record of another specification (equation changed: 'relu' -> "
        "'gelu'); give another directory, or --overwrite to replace it\n"
    )
    assert read("out").record.fingerprint == first.fingerprint
    assert command("commission", "spec.toml", "-o", "out", "--quiet", "--overwrite").status == 1
    assert "gelu" in read("out").record.subject.equation


def test_what_is_another_in_the_plan_is_named(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of a commission that was interrupted and of one that has ended."""

    def interrupted(plan: object, bench: object) -> NoReturn:
        raise KeyboardInterrupt

    given = ("commission", "spec.toml", "-o", "out", "--quiet")
    gates = list(running.GATES)
    gates[2] = dataclasses.replace(gates[2], run=interrupted)
    with monkeypatch.context() as patch:
        patch.setattr(running, "GATES", tuple(gates))
        assert command(*given).status == 130
    for said in ("it was begun with something else: ", "the record of another specification ("):
        for more, words in (
            (("--shallow", 3), "plan: shallow 8 -> 3"),
            (("--vary", "norm=none"), "plan: vary [scale*2] -> [norm=none]"),
            (("--exitfirst",), "plan: stop_early false -> true"),
            (("--rival", "orthogonal"), "plan: rival fixup -> orthogonal"),
            (("--depths", "3"), "depths [2, 4] -> [3, 4]"),
            (("--lr", "0.5"), "arguments.lr 0.01 -> 0.5"),
            (("--corridor", "default"), "plan: corridor commission -> default"),
        ):
            ran = command(*given, "--resume", *more)
            assert ran.status == 2
            lr = more[0] == "--lr"  # of a record it is the specification
            assert f"{said if lr else 'it was begun with something else: '}{words}" in ran.err
            assert ran.err.count("\n") == 1
        assert command(*given, "--resume").status == 1  # goes on, and then has ended
    assert command(*given, "--resume").status == 1
