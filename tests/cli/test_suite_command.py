"""``depthgauge suite``: the real suites, their exit statuses and where the results go."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from depthgauge.study import transport
from depthgauge.study.suites import SUITES, run_suite
from tests.cli.command import Command


def test_transport_is_the_default_and_shows_everything(command: Command) -> None:
    ran = command("suite")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[-1] == "checks: PASS"
    assert "\x1b" not in ran.out
    assert max(map(len, lines)) <= 100
    header = next(line for line in lines if line.startswith("configuration"))
    assert header.split("  ")[0] == "configuration"
    for word in ("blocks", "skip scale", "end RMS", "drift", "gradient ratio", "live"):
        assert word in header
    row = next(line for line in lines if line.startswith("relu_residual_unscaled"))
    assert row.split()[1:] == ["96", "1", "1.52e+14", "1.54e+14", "2.015e+14", "0.5019"]
    assert sum(line.startswith("PASS ") for line in lines) == len(transport.CLAIMS)
    assert "no single health number is enough" in " ".join(lines)
    assert command("suite", "transport") == ran


@pytest.mark.parametrize("name", SUITES)
def test_json_is_the_suites_document(command: Command, name: str) -> None:
    ran = command("suite", name, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("\n") == 1
    assert ran.document == json.loads(json.dumps(run_suite(name).to_dict()))
    assert ran.document["checks"] == "PASS"


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_fits_in_a_pipe(command: Command, name: str) -> None:
    ran = command("suite", name)
    assert (ran.status, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 100
    assert ran.out.endswith("\nchecks: PASS\n")


def test_quiet_is_the_closing_line(command: Command) -> None:
    assert command("suite", "relay", "--quiet").out == "checks: PASS\n"


def test_a_changed_claim_bound_makes_the_suite_fail(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = transport.CLAIMS
    monkeypatch.setattr(transport, "CLAIMS", (dataclasses.replace(first, min=1e20), *others))
    ran = command("suite")
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.endswith("\nchecks: FAIL (1 of 7 claims does not hold)\n")
    assert sum(line.startswith("FAIL ") for line in ran.out.splitlines()) == 1
    told = command("suite", "--json")
    assert (told.status, told.document["checks"]) == (1, "FAIL")
    assert command("suite", "--quiet").status == 1
    monkeypatch.undo()
    assert command("suite", "--quiet").status == 0


def test_output_holds_the_document_and_the_screen_is_still_there(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "relay.json"
    file.write_text("old")
    ran = command("suite", "relay", "-o", file)
    assert ran.out.endswith("checks: PASS\n")
    assert json.loads(file.read_text())["suite"] == "relay"
    assert os.listdir(tmp_path) == ["relay.json"]
    assert command("suite", "relay", "--json").out == file.read_text()


def test_standard_output_that_is_full_is_one_sentence() -> None:
    code = "import sys; from depthgauge.cli.main import main; sys.exit(main(['suite', 'relay']))"
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 2
    assert ran.stderr == (
        "depthgauge: standard output cannot be written: no space left on device\n"
    )


def test_a_reader_who_leaves_early_is_no_error() -> None:
    code = "import sys; from depthgauge.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "suite", "gates"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_a_terminal_without_curves_gets_question_marks() -> None:
    code = "import sys; from depthgauge.cli.main import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "suite", "relay"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert ran.stderr == b""
    assert b"gain 0.99" in ran.stdout
    assert b"????" in ran.stdout
