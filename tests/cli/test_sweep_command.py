"""``depthgauge sweep``: equations, specifications and code; documents, screens, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import depthgauge as dg
import depthgauge.report.progress as progress_module
from tests.cli.command import Command

EQUATION = "h + W2(relu(W1(h)))/sqrt(L)"
SMALL = ("--width", 16, "--batch", 8, "--init", "he")
MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

print("the code speaks")


class Block(nn.Module):
    def __init__(self, n, scale):
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(n, n), nn.Linear(n, n), scale

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(x)))


def build(layers=4, scale=1.0):
    model = nn.Sequential(*(Block(16, scale) for _ in range(layers)), nn.Linear(16, 10))
    batch, labels = torch.randn(32, 16), torch.randint(10, (32,))
    return model, batch, lambda y: F.cross_entropy(y, labels)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "mine.toml").write_text("[bounds.gradient_ratio]\nmax = 50\n")
    return tmp_path


def test_the_document_is_that_of_python(command: Command) -> None:
    ran = command("sweep", EQUATION, *SMALL, "--depths", "3,6", "--seed", "0,1", "--json")
    assert (ran.status, ran.err, ran.out.count("\n")) == (0, "", 1)
    found = dg.sweep(EQUATION, (3, 6), seed=(0, 1), width=16, batch=8, init="he")
    expected = json.loads(json.dumps(found.to_dict()))
    document = ran.document
    for one in (expected, document):  # wall time
        for note in one["settings"]["instruments"].values():
            note.pop("seconds")
    assert document == expected


def test_the_depths_of_the_article_are_the_default(command: Command) -> None:
    ran = command(
        *("sweep", EQUATION, *SMALL, "--seed", 0, "--instruments", "rivers", "--json"),
        *("--corridor", "transport"),
    )
    assert ran.document["depths"] == [12, 48, 96]
    assert (ran.status, ran.document["verdict"]) == (1, "not_measured")  # no spectrum was asked for


def test_exit_statuses_and_the_closing_line(command: Command, folder: Path) -> None:
    mine = ("--corridor", folder / "mine.toml", "--instruments", "rivers", "--quiet")
    inside = command("sweep", EQUATION, *SMALL, "--depths", "3,6", *mine)
    assert (inside.status, inside.out.count("\n")) == (0, 1)
    assert inside.out.startswith("corridor mine: PASS; did not discriminate: everything passes at")
    outside = command("sweep", "h + W2(relu(W1(h)))", *SMALL, "--depths", "2,24", *mine)
    assert outside.status == 1
    assert outside.out == (
        "corridor mine: FAIL; discriminated: gradient_ratio holds at 2 and fails at 24\n"
    )


def test_code_with_its_argument(command: Command, folder: Path) -> None:
    target = f"{folder / 'model.py'}:build"
    ran = command("sweep", target, "--depths", "layers=2,4", "--seed", "0,1", "--json")
    assert ran.document["target"] == target
    assert ran.document["corridor"] == "default"
    assert len(ran.document["breaks"]) == 5
    assert "the code speaks" in ran.err  # and not in the document
    rate = command(
        *("sweep", target, "--depths", "layers=2,4", "--seed", 0, "--json", "--lr", 1e4),
        *("--arg", "scale=0.1", "--instruments", "fast,stiffness"),
    )
    found = {b["name"]: b["state"] for b in rate.document["breaks"]}
    assert (rate.status, found["stiffness"]) == (1, "broken")
    assert found["functional_update"] == "not_known"


def test_what_of_code_is_being_measured_is_told(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Told(progress_module.Steps):
        def now(self, what: str) -> None:
            told.append(what)

    @contextmanager
    def progress(label: str, **given: Any) -> Iterator[progress_module.Steps]:
        yield Told()

    monkeypatch.setattr(progress_module, "progress", progress)
    target = f"{folder / 'model.py'}:build"
    command(
        *("sweep", target, "--depths", "layers=2,4", "--seed", "0,1"),
        *("--instruments", "rivers", "--quiet"),
    )
    assert told == [f"layers {n}, seed {seed}" for n in (2, 4) for seed in (0, 1)]


def test_a_specification(command: Command, folder: Path) -> None:
    file = folder / "spec.toml"
    file.write_text(
        f'[block]\nequation = "{EQUATION}"\n[network]\nwidth = 16\n[run]\nbatch = 8\n'
        f"seed = [4, 5]\n[corridor]\ngradient_ratio = {{ max = 1e-6 }}\n"
    )
    ran = command("sweep", file, "--depths", "2,4", "--json")
    assert (ran.status, ran.document["seeds"]) == (1, [4, 5])
    assert ran.document["breaks"][0]["words"] == "already broken at 2"
    assert command("sweep", file, "--depths", "2,4", "--seed", 1, "--json").document["seeds"] == [1]


def test_a_file_gets_the_document(command: Command, folder: Path) -> None:
    path = folder / "out.json"
    given = ("sweep", EQUATION, *SMALL, "--depths", "2,4", "--instruments", "rivers")
    command(*given, "--output", path, "--quiet")
    assert json.loads(path.read_text())["depths"] == [2, 4]


def test_the_screen(command: Command, folder: Path) -> None:
    ran = command(
        *("sweep", "h + W2(relu(W1(h)))", *SMALL, "--depths", "2,24", "--instruments", "rivers"),
        *("--corridor", folder / "mine.toml"),
    )
    lines = ran.out.splitlines()
    assert lines[0] == "h = h + W2(relu(W1(h)))"
    assert lines[1] == "depths 2, 24; width 16, batch 8, float32, 3 seeds: medians"
    assert lines[3].split()[:3] == ["summary", "at", "2"]
    assert any(line.startswith("gradient_ratio ") and "undecided: " in line for line in lines)
    (row,) = [line for line in lines if line.startswith("gradient_ratio ") and "FAIL" in line]
    assert "breaks between 2 and 24, by the law" in " ".join(" ".join(lines).split())
    assert max(map(len, lines[:-1])) <= 100
    assert lines[-1].startswith("corridor mine: FAIL; discriminated")
    assert row.split()[1].startswith("+")


def test_what_was_not_judged_is_on_the_screen(command: Command) -> None:
    ran = command("sweep", EQUATION, *SMALL, "--depths", "2,4", "--corridor", "default")
    assert ran.status == 1
    shown = " ".join(ran.out.split())
    assert "not measured: functional_update: no loss was given" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((EQUATION, "--depths", "12"), "--depths is '12', expected two or more whole numbers"),
        ((EQUATION, "--depths", "layers=2,4"), "--depths varies 'layers', but an equation has a"),
        (
            (EQUATION, "--corridor", "defualt"),
            "corridor is 'defualt', expected one of commission, default",
        ),
        ((EQUATION, "--arg", "a=1"), "--arg is for Python code"),
        (("m.py:build", "--width", 3), "--width is for an equation"),
        (("absent.py:build", "--depths", "2,4"), "absent.py"),
        (("h + W(",), "this '(' is never closed"),
        (("absent.toml",), "absent.toml cannot be read: no such file"),
        ((EQUATION, "--instruments", "rivrs"), "did you mean 'rivers'?"),
        ((EQUATION, "--depth", "3"), "No such option: --depth"),
    ],
)
def test_bad_input_is_one_sentence(
    command: Command, arguments: tuple[object, ...], sentence: str
) -> None:
    ran = command("sweep", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.startswith("depthgauge: ")


def test_an_argument_is_not_given_twice(command: Command, folder: Path) -> None:
    target = f"{folder / 'model.py'}:build"
    ran = command("sweep", target, "--depths", "layers=2,4", "--arg", "layers=3")
    assert (ran.status, ran.out) == (2, "")
    assert "--arg gives 'layers', which --depths varies; leave it out" in ran.err
