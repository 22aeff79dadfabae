"""``depthgauge measure``: equations and specifications, verdicts and exit statuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import depthgauge
from depthgauge.study.specification import read_specification
from tests.cli.command import Command

SMALL = ("--depth", 6, "--width", 8, "--batch", 4)
EQUATION = "h + a * W2(relu(W1(rmsnorm(h))))"
SPECIFICATION = f"""
[block]
equation = "{EQUATION}"
a = "1/sqrt(L)"
[init]
W1 = "he"
[network]
depth = 6
width = 8
[run]
batch = 4
seed = [0, 1, 2]
dtype = "float64"
"""


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(corridor: str = "") -> Path:
        file = tmp_path / "spec.toml"
        file.write_text(f"{SPECIFICATION}{corridor}", encoding="utf-8")
        return file

    return write


# ----------------------------------------------------------------------------- equations


def test_json_is_what_measure_returns(command: Command) -> None:
    ran = command(
        *("measure", EQUATION, *SMALL, "--seed", "0..2", "--dtype", "float64", "--json"),
        *("--scalar", "a=1/sqrt(L)", "--init", "W1=he(gain=1)", "--init", "orthogonal"),
        *("--instruments", "rivers,gates", "--draws", "sequential-pcg64", "--device", "cpu"),
    )
    assert (ran.status, ran.err, ran.out.count("\n")) == (0, "", 1)
    profile = depthgauge.measure(
        EQUATION,
        4,
        depth=6,
        width=8,
        scalars={"a": "1/sqrt(L)"},
        init={"W1": "he(gain=1)", "default": "orthogonal"},
        draws="sequential-pcg64",
        seed=range(3),
        dtype="float64",
        instruments=["rivers", "gates"],
    )
    assert ran.document == json.loads(json.dumps(profile.to_dict()))
    assert ran.document["verdict"] == "not_measured"


def test_seeds(command: Command) -> None:
    for text, seeds in (("7", [7]), ("0..3", [0, 1, 2, 3]), ("0,3,5", [0, 3, 5])):
        ran = command("measure", "h + W(h)", *SMALL, "--seed", text, "--json")
        assert ran.document["seeds"] == seeds


def test_tokens_and_size_shape_the_state(command: Command) -> None:
    tokens = command(
        "measure", "layernorm(h + attention(h))", *SMALL, "--tokens", 5, "--json"
    ).document
    assert tokens["settings"]["state"] == [5, 8]
    images = command("measure", "h + conv3(h)", *SMALL, "--size", 4, "--json").document
    assert images["settings"]["state"] == [8, 4, 4]


def test_the_screen_names_what_was_measured(command: Command) -> None:
    ran = command("measure", EQUATION, *SMALL, "--scalar", "a=1/sqrt(L)", "--seed", "0..3")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "a = 1/sqrt(L); h = h + a * W2(relu(W1(rmsnorm(h))))"
    assert lines[1].startswith("6 blocks, 6 residual branches of 2 weight layers")
    assert lines[2].startswith("width 8, batch 4, float32, 4 seeds (0..3), ")
    assert lines[-1] == "measured 6 blocks; no corridor was declared"
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_overflow_is_a_result_and_says_where_it_began(command: Command, dtype: str) -> None:
    arguments = ("--depth", 150, "--width", 8, "--batch", 4, "--dtype", dtype)
    ran = command("measure", "h + 3*W2(relu(W1(h)))", *arguments)
    assert (ran.status, ran.err) == (0, "")
    document = command("measure", "h + 3*W2(relu(W1(h)))", *arguments, "--json").document
    began = document["summary"]["forward_end_rms"]["value_reason"].partition("from ")[2]
    block = int(began.split()[1])
    assert 1 < block < 150
    assert f"state is not finite from block {block} (blocks.{block - 1}) on" in ran.out
    assert "×" in ran.out
    quiet = command("measure", "h + 3*W2(relu(W1(h)))", *arguments, "--quiet")
    assert quiet.out.startswith(f"measured 150 blocks; state is not finite from block {block} ")


# ------------------------------------------------------------------------ specifications


def test_a_specification_is_measured_as_it_says(command: Command, toml: Any) -> None:
    document = command("measure", toml(), "--json").document
    assert (document["depth"], document["width"], document["batch"]) == (6, 8, 4)
    assert document["seeds"] == [0, 1, 2]
    assert document["dtype"] == "float64"
    assert document["settings"]["init"] == {"W1": "he", "W2": "lecun"}
    assert "corridor" not in document


def test_options_go_before_the_file(command: Command, toml: Any) -> None:
    file = toml()
    ran = command(
        *("measure", file, "--depth", 3, "--seed", "5", "--dtype", "float32", "--json"),
        *("--init", "W2=zeros", "--scalar", "a=0.5"),
    )
    document = ran.document
    assert (document["depth"], document["width"], document["seeds"]) == (3, 8, [5])
    assert document["dtype"] == "float32"
    assert document["settings"]["init"] == {"W1": "he", "W2": "zeros"}
    assert document["equation"].startswith("a = 0.5; ")
    assert read_specification(file).network.depth == 6


@pytest.mark.parametrize(
    ("corridor", "status", "verdict"),
    [
        ("forward_drift = { max = 100.0 }", 0, "pass"),
        ("forward_drift = { max = 100.0, warn = 5 }", 0, "warn"),
        ("forward_drift = { max = 1.001 }", 1, "fail"),
        ("forward_drift = { max = 100.0 }\nsaturated_fraction = { max = 1 }", 1, "not_measured"),
        ("", 1, "not_measured"),
    ],
)
def test_the_corridor_gives_the_exit_status(
    command: Command, toml: Any, corridor: str, status: int, verdict: str
) -> None:
    file = toml(f"[corridor]\n{corridor}")
    arguments = ("measure", file, "--instruments", "rivers")
    document = command(*arguments, "--json")
    assert (document.status, document.document["verdict"]) == (status, verdict)
    assert document.document["corridor"]["state"] == verdict
    ran = command(*arguments)
    word = verdict.replace("_", " ").upper()
    assert (ran.status, ran.err) == (status, "")
    assert ran.out.splitlines()[-1].startswith(f"corridor: {word}")
    assert command(*arguments, "--quiet").out == f"{ran.out.splitlines()[-1]}\n"


def test_a_network_that_overflows_is_outside_its_corridor(command: Command, toml: Any) -> None:
    file = toml("[corridor]\nforward_drift = { max = 10 }")
    ran = command("measure", file, "--scalar", "a=60000", "--dtype", "float16", "--quiet")
    assert ran.status == 1
    assert ran.out.startswith("corridor: FAIL, smallest margin -inf decades (forward_drift: ")
    assert "from block" in ran.out


# ------------------------------------------------------------------------------- --output


def test_output_is_the_json_document(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    ran = command("measure", "h + W(h)", *SMALL, "--json", "--output", file)
    assert file.read_text() == ran.out
    assert os.listdir(tmp_path) == ["profile.json"]
    mask = os.umask(0o022)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def test_output_through_a_link_keeps_the_link(command: Command, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert command("measure", "h + W(h)", *SMALL, "-o", tmp_path / "link").status == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["depth"] == 6


def test_output_to_a_device_leaves_the_device(command: Command) -> None:
    assert command("measure", "h + W(h)", *SMALL, "-o", os.devnull).status == 0
    assert not os.path.isfile(os.devnull)


def test_an_output_that_cannot_be_written_is_found_before_the_measurement(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("depthgauge.measurement.measure", never)
    ran = command("measure", "h + W(h)", *SMALL, "-o", tmp_path / "no" / "profile.json")
    assert (ran.status, ran.out) == (2, "")
    assert "cannot be written: no such file or directory" in ran.err
    assert command("measure", "h + W(h)", *SMALL, "-o", tmp_path / "a").status == 3


def test_a_measurement_that_fails_leaves_the_old_output(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "profile.json"
    file.write_text("old")

    def fails(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("depthgauge.measurement.measure", fails)
    ran = command("measure", "h + W(h)", *SMALL, "-o", file)
    assert (ran.status, ran.out, ran.err) == (130, "", "depthgauge: interrupted\n")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["profile.json"]
