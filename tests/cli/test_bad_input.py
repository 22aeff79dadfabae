"""Bad input: one clear sentence on standard error, exit status 2, nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.command import Command, Ran

GOOD = "h + W2(relu(W1(h)))"
BLOCK = f'[block]\nequation = "{GOOD}"\n'

#: (arguments, a pattern that the sentence must match); no pattern has the whole sentence.
EQUATIONS: list[tuple[Sequence[str], str]] = [
    (["h + W2(rel(W1(h)))"], r"unknown function 'rel' \(did you mean 'relu'\?\)$"),
    (["h + W2(relu(W1(x)))"], r"'x'"),
    (["h + W2(relu(W1(h))"], r"this '\(' is never closed"),
    (["h + W1(h, out=2*n)"], r"adds widths 64 and 128"),
    (["h + sqrt(-1)*W(h)"], r"sqrt\(-1\) is not a real number: sqrt takes a number >= 0"),
    (["W(h)/sqrt(L)"], r"uses L, the number of residual branches, but .* has none; use depth"),
    (["__import__('os')"], r"unknown function '__import__'|text in quotes"),
    (["h.shape"], r"an attribute \(a name after a dot\) is not part of the language"),
    (["h + " * 2500 + "h"], r"the equation is 10,001 characters long and the limit is 4,000"),
    ([""], r"the equation is empty"),
    (["u = W(h)"], r"the equation never assigns h"),
    (["h + W(h, out=)"], r"."),
]
OPTIONS: list[tuple[Sequence[str], str]] = [
    (["--depth", "0"], r"depth is 0, expected a whole number from 1 to"),
    (["--depth", "ten"], r"--depth is 'ten', expected a whole number"),
    (["--depth", "1e3"], r"--depth is '1e3', expected a whole number"),
    (["--width", "-5"], r"width is -5, expected a whole number from 1 to"),
    (["--batch", "0"], r"batch is 0, expected a whole number of examples from 1"),
    (["--tokens", "0"], r"tokens is 0, expected a whole number from 1 to"),
    (["--size", "4"], r"size is given, but the equation has no conv"),
    (["--dtype", "float23"], r"dtype is 'float23', expected one of float64, .*'float32'\?"),
    (["--device", "gpu"], r"device is 'gpu', which this PyTorch cannot use"),
    (["--draws", "key"], r"draws is 'key', expected one of keyed, sequential-pcg64"),
    (["--seed", "-1"], r"seed is '-1', expected a whole number of at least 0, a range such"),
    (["--seed", "5..2"], r"seed is '5\.\.2', but 2 is below 5"),
    (["--seed", "0..99999999"], r"which is more than 100,000 seeds"),
    (["--seed", "1,1"], r"names a seed twice"),
    (["--instruments", "rivrs"], r"instruments names 'rivrs', .*'rivers'\?"),
    (["--init", "hee"], r"'hee'.*'he'"),
    (["--init", "W3=he"], r"init names 'W3', but the block has W1, W2, default"),
    (["--init", "he", "--init", "zeros"], r"--init gives 'default' twice"),
    (["--scalar", "a"], r"--scalar is 'a', expected NAME=VALUE"),
    (["--scalar", "a=1"], r"the scalar 'a' is given beside the equation, which never uses it"),
    (["--scalar", "a=1/"], r"the scalar 'a'"),
    (["--output", "no/such/folder/file"], r"--output no/such/folder/file cannot be written: no su"),
    (["--output", "."], r"--output is '\.', a directory; give the name of a file"),
    (["--output", ""], r"--output is '', a directory|give the name of a file"),
    (["--dept", "3"], r"No such option: --dept .*--depth.*; see depthgauge measure --help"),
    (["--depth"], r"Option '--depth' requires an argument"),
    (["second"], r"unexpected extra argument"),
]
TARGETS: list[tuple[Sequence[str], str]] = [
    (["measure"], r"Missing argument 'TARGET'"),
    (["measure", "model.py:build"], r"'model\.py:build': no such file"),
    (["measure", "package.module:build"], r"no module named 'package' in the current directory"),
    (
        ["measure", "./"],
        r"'\./' is a file or directory; give an equation, a specification\.toml or",
    ),
    (["measure", "model.py:build", "--depth", "3"], r"--depth is for an equation, and 'model\.py"),
    (["measure", "h + W(h)", "--input", "float 3"], r"--input is for Python code \(path/file\.py"),
    (["measure", "model.py:build", "--seed", "0..3"], r"--seed is '0\.\.3', but a model that code"),
    (["measure", "missing.toml"], r"missing\.toml cannot be read: no such file or directory"),
    (["suite", "transprot"], r"suite is 'transprot', expected one of .*'transport'\?"),
    (["suite", "--seed", "7"], r"No such option: --seed"),
    (["suite", "-o", "no/such/folder/file"], r"cannot be written"),
    (["suit"], r"No such command 'suit'\. Did you mean 'suite', 'audit'\?; see depthgauge --help"),
    (["--verion"], r"No such option: --verion"),
]
FILES: list[tuple[str, str]] = [
    ("", r"spec\.toml is empty; write \[block\]"),
    ("[block\n", r"spec\.toml is not valid TOML: .*line 1"),
    ("[network]\ndepth = 3\n", r"spec\.toml: the section \[block\] is missing"),
    ("[block]\nequaton = 'h'\n", r"block\.equation is missing; is block\.equaton meant to be it\?"),
    (BLOCK + "[netwrok]\ndepth = 3\n", r"'netwrok' is not a section \(did you mean 'network'\?\)"),
    (
        BLOCK + "[network]\ndetph = 3\n",
        r"network\.detph is not a key \(did you mean 'depth'\?\).*depth, width, tokens, size",
    ),
    (BLOCK + "[network]\ndepth = 0\n", r"network\.depth is 0, expected a whole number from 1 to"),
    (BLOCK + "[run]\ndtype = 'float23'\n", r"run\.dtype is 'float23', expected .*'float32'\?"),
    (BLOCK + "[run]\ndevice = 'gpu'\n", r"spec\.toml: run\.device is 'gpu', which this PyTorch"),
    (BLOCK + "[init]\nW1 = 'normal(-1)'\n", r"spec\.toml: normal has a standard deviation of -1"),
    (
        "[block]\nequation = 'h + W(h)/(l - 2)'\n[network]\ndepth = 4\n",
        r"spec\.toml: 1/\(l - 2\) with l = 2 is not a real number: the divisor is zero",
    ),
    (
        BLOCK + "[corridor]\nforward_drfit = { max = 3 }\n",
        r"corridor\.forward_drfit: .*'forward_drift'",
    ),
    (
        "[block]\nequation = 'h + W(rel(h))'\n",
        r"spec\.toml: block\.equation: unknown function 'rel'",
    ),
]


def assert_one_sentence(ran: Ran, pattern: str) -> None:
    """Nothing on standard output, and on standard error a sentence, with its caret at most."""
    assert ran.status == 2, ran
    assert ran.out == ""
    sentence, *caret = ran.err.splitlines()
    assert ran.err.endswith("\n")
    assert "Traceback" not in ran.err
    assert sentence.startswith("depthgauge: ")
    assert re.search(pattern, sentence), sentence
    assert len(sentence) < 400
    if caret:
        text, mark = caret
        assert text.startswith("  ")
        assert len(text) < 80
        assert re.fullmatch(r" {2,}\^", mark)


@pytest.mark.parametrize(("arguments", "pattern"), EQUATIONS)
def test_equations(command: Command, arguments: Sequence[str], pattern: str) -> None:
    assert_one_sentence(command("measure", *arguments, "--depth", 2), pattern)


@pytest.mark.parametrize(("arguments", "pattern"), OPTIONS)
def test_options(command: Command, arguments: Sequence[str], pattern: str) -> None:
    assert_one_sentence(command("measure", GOOD, *arguments), pattern)


@pytest.mark.parametrize(("arguments", "pattern"), TARGETS)
def test_commands_and_targets(command: Command, arguments: Sequence[str], pattern: str) -> None:
    assert_one_sentence(command(*arguments), pattern)


@pytest.mark.parametrize(("text", "pattern"), FILES)
def test_files(command: Command, tmp_path: Path, text: str, pattern: str) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(text, encoding="utf-8")
    ran = command("measure", file)
    assert_one_sentence(ran, pattern)
    assert str(file) in ran.err


def test_an_option_that_spoils_a_file_is_told_from_the_file(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(BLOCK, encoding="utf-8")
    ran = command("measure", file, "--depth", 0)
    assert_one_sentence(ran, r"spec\.toml with the options given: depth is 0, expected")


def test_the_good_equation_and_the_good_file_are_good(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(BLOCK, encoding="utf-8")
    for target in (GOOD, str(file)):
        ran = command("measure", target, "--depth", 2, "--width", 4, "--batch", 2)
        assert (ran.status, ran.err) == (0, "")


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback_and_the_sentence(command: Command, where: str) -> None:
    arguments = ["measure", GOOD, "--depth", "0"]
    ran = command(*(["--debug", *arguments] if where == "before" else [*arguments, "--debug"]))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.splitlines()[-1].startswith("depthgauge: depth is 0, expected")


def test_a_failure_of_the_tool_is_status_3(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("depthgauge.measurement.measure", fails)
    ran = command("measure", GOOD)
    assert (ran.status, ran.out) == (3, "")
    assert ran.err == (
        "depthgauge: the tool failed with ZeroDivisionError: by zero; --debug shows where\n"
    )
    assert "in fails" in command("measure", GOOD, "--debug").err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.64 TiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_what_does_not_fit_in_memory_was_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("depthgauge.measurement.measure", fails)
    assert_one_sentence(command("measure", GOOD), r"not enough memory: .*; give a smaller width")


def test_no_error_is_written_into_the_json(command: Command) -> None:
    ran = command("measure", "h + W(rel(h))", "--json")
    assert (ran.status, ran.out) == (2, "")
    ran = command("measure", "h + W(h)", "--json", "--depth", 2, "--width", 4, "--batch", 2)
    assert json.loads(ran.out)["depth"] == 2
