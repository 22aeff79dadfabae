"""Help is quick, imports nothing heavy and lists what there is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import depthgauge
from tests.cli.command import Command

HEAVY = ("torch", "numpy", "pandas", "pydantic", "rich", "matplotlib", "depthgauge.measurement")
OPTIONS = {
    "suite": "--debug --help --json --output --quiet",
    "measure": "--against --arg --batch --batch-axis --branches --budget --corridor --debug "
    "--depth --depths --device --directions --draws --dtype --examples --exclude --help --include "
    "--init --input --instruments --json --labels --lr --optimizer --output --probes "
    "--quiet --rank --scalar --seed --size --steps --tokens --until --width",
    "sweep": "--arg --batch --budget --corridor --debug --depths --device --dtype --examples "
    "--help --init --input --instruments --json --lr --optimizer --output --probes --quiet "
    "--scalar --seed --size --tokens --width",
    "recipes": "--debug --help --json",
    "audit": "--arg --debug --depth --help --init --input --json --optimizer --output --quiet "
    "--recipe --seed --width",
    "compare": "--arg --batch --debug --depth --depths --help --init --input --json --output "
    "--quiet --recipes --scalar --seed --size --tokens --width",
    "ablate": "--arg --batch --comparison --corridor --debug --depth --device --draws --dtype "
    "--help --init --input --instruments --json --output --quiet --scalar --seed --size --tokens "
    "--vary --width",
    "commission": "--arg --batch --corridor --debug --depth --depths --device --draws --dtype "
    "--exitfirst --help --init --input --json --lr --optimizer --overwrite --quiet --resume "
    "--rival --scalar --seed --shallow --size --tokens --vary --width",
    "verify": "--arg --debug --depth --dtype --help --input --json --quiet",
    "diff": "--all --debug --help --json --quiet",
    "report": "--debug --format --help --output --quiet --summary",
}


def imported_by(code: str, *heavy: str) -> str:
    """Which of the modules a fresh interpreter has after ``code``, and what that printed."""
    check = f"import sys\n{code}\nprint([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return ran.stderr.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported_by("import depthgauge", *HEAVY, "typer") == "[]"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY),
        # typer itself reads the options before a command with pydantic
        ([], [name for name in HEAVY if name != "pydantic"]),
        (["--version"], [name for name in HEAVY if name != "pydantic"]),
        (["suite", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["measure", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["sweep", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["verify", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["audit", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["ablate", "--help"], [name for name in HEAVY if name != "pydantic"]),
        (["report", "--help"], [name for name in HEAVY if name != "pydantic"]),
    ],
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], heavy: list[str]) -> None:
    code = f"from depthgauge.cli.main import main\nassert main({arguments}) == 0"
    assert imported_by(code, *heavy) == "[]"


def test_what_is_imported_is_seen() -> None:
    assert imported_by("import numpy", *HEAVY) == "['numpy']"


def test_help_lists_the_commands_and_version_is_the_packages(command: Command) -> None:
    ran = command("--help")
    assert (ran.status, ran.err) == (0, "")
    assert re.findall(r"^  (\w+) ", ran.out.partition("Commands:")[2], re.M) == list(OPTIONS)
    assert '\n  depthgauge measure "h + ' in ran.out
    assert command() == ran
    assert command("--version").out == f"depthgauge {depthgauge.__version__}\n"


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_a_command(command: Command, name: str) -> None:
    ran = command(name, "--help")
    assert (ran.status, ran.err) == (0, "")
    listed = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", ran.out.partition("Options:")[2], re.M)
    assert " ".join(sorted(listed)) == OPTIONS[name]


def test_the_example_in_the_help_runs(command: Command) -> None:
    (line,) = re.findall(r"^  depthgauge (measure .*)$", command("--help").out, re.M)
    verb, rest = line.split(" ", 1)
    equation, rest = re.fullmatch(r'"(.*)" (.*)', rest).groups()  # type: ignore[union-attr]
    assert command(verb, equation, *rest.split(), "--batch", 4, "--width", 8).status == 0
