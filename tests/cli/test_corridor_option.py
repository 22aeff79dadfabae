"""``measure --corridor``: an equation, a specification and code are judged alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command

SMALL = ("--depth", 4, "--width", 8, "--batch", 4)
EQUATION = "h + W2(relu(W1(h)))/sqrt(L)"
MINE = """
[bounds.gradient_ratio]
min = 0.2
max = 5.0
[[when]]
dtype = "float16"
[when.bounds.headroom_float16_bits]
min = 1.0
[[when]]
depth = { min = 5 }
[when.bounds.gradient_ratio]
max = 1e-3
"""
MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def build(layers=4, loss=True, bad=-1):
    model = nn.Sequential(*(Block(16) for _ in range(layers)), nn.Linear(16, 10))
    batch, labels = torch.randn(32, 16), torch.randint(10, (32,))
    if bad >= 0:
        batch[bad, 3] = float("nan")
    if not loss:
        return model, batch
    return model, batch, lambda y: F.cross_entropy(y, labels)
"""
GATES = "fast,spectrum,stiffness,updates"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def states(document: Any) -> dict[str, str]:
    return {found["name"]: found["state"] for found in document["corridor"]["judgements"]}


def test_an_equation(command: Command, folder: Path) -> None:
    ran = command("measure", EQUATION, *SMALL, "--corridor", folder / "mine.toml", "--json")
    assert (ran.status, ran.document["verdict"]) == (0, "pass")
    assert ran.document["corridor"]["name"] == "mine"
    deeper = command(
        "measure", EQUATION, *SMALL[2:], "--depth", 5, "--corridor", folder / "mine.toml", "--json"
    )
    assert (deeper.status, deeper.document["verdict"]) == (1, "fail")


def test_bounds_of_a_precision_hold_in_the_arithmetic_meant(command: Command, folder: Path) -> None:
    given = ("measure", EQUATION, *SMALL, "--corridor", folder / "mine.toml", "--json")
    assert "headroom_float16_bits" not in states(command(*given).document)
    for more in (("--instruments", "fast,precision"), ("--against", "float64")):
        ran = command(*given, "--dtype", "float16", *more)
        assert (ran.status, states(ran.document)["headroom_float16_bits"]) == (0, "pass")
    asked = command(*given, "--dtype", "float16")
    assert (asked.status, states(asked.document)["headroom_float16_bits"]) == (1, "not_measured")


NO_LOSS = (
    "no loss was given, and along a random cotangent its size says nothing; build a module with "
    "the loss it trains on"
)


def test_the_default_judges_what_was_asked_for(command: Command) -> None:
    ran = command("measure", EQUATION, *SMALL, "--corridor", "default", "--json")
    assert (ran.status, ran.document["verdict"]) == (1, "not_measured")
    reasons = {found["name"]: found["reason"] for found in ran.document["corridor"]["judgements"]}
    asked = "not among the instruments asked for"
    assert reasons == {
        "gradient_ratio": "",
        "participation_share": asked,
        "stiffness": asked,
        "functional_update": NO_LOSS,
        "nonfinite_fraction": "",
    }
    shown = command("measure", EQUATION, *SMALL, "--corridor", "transport", "--instruments", GATES)
    assert shown.status == 0
    assert shown.out.splitlines()[-1].startswith("corridor transport: PASS, smallest margin +")


def test_an_equation_has_no_loss_to_scale_a_step(command: Command) -> None:
    ran = command(
        *("measure", EQUATION, *SMALL, "--corridor", "default", "--instruments", GATES, "--json")
    )
    found = states(ran.document)
    assert {name for name, state in found.items() if state == "not_measured"} == {
        "functional_update"
    }
    assert ran.document["verdict_reason"].partition(": ")[2].startswith("no loss was given")


def test_a_specification_goes_before_the_corridor_named(command: Command, folder: Path) -> None:
    file = folder / "spec.toml"
    text = f'[block]\nequation = "{EQUATION}"\n[network]\ndepth = 4\nwidth = 8\n[run]\nbatch = 4\n'
    file.write_text(text)
    plain = command("measure", file, "--corridor", folder / "mine.toml", "--json")
    assert (plain.status, plain.document["verdict"]) == (0, "pass")
    file.write_text(f"{text}[corridor]\ngradient_ratio = {{ max = 1e-3 }}\n")
    for more in ((), ("--corridor", folder / "mine.toml")):
        ran = command("measure", file, *more, "--json")
        assert (ran.status, ran.document["verdict"]) == (1, "fail")
    file.write_text(f"{text}[corridor]\nstate_max = {{ max = 1e9 }}\n")
    both = command("measure", file, "--corridor", folder / "mine.toml", "--json")
    assert states(both.document) == {"gradient_ratio": "pass", "state_max": "pass"}


def test_code_with_its_loss_is_judged_by_every_gate(command: Command, folder: Path) -> None:
    given = ("measure", f"{folder / 'model.py'}:build", "--corridor", "default", "--json")
    ran = command(*given, "--instruments", GATES)
    assert set(states(ran.document).values()) <= {"pass", "warn"}
    assert (len(states(ran.document)), ran.status) == (5, 0)
    fast = command(*given, "--instruments", GATES, "--lr", 1e4)
    assert (fast.status, states(fast.document)["stiffness"]) == (1, "fail")
    lost = command(*given, "--instruments", GATES, "--arg", "loss=False")
    assert (lost.status, states(lost.document)["stiffness"]) == (1, "not_measured")


@pytest.mark.parametrize("bad", [0, 5])
@pytest.mark.parametrize("loss", [True, False])
def test_one_example_that_is_not_a_number_passes_no_gate(
    command: Command, folder: Path, bad: int, loss: bool
) -> None:
    given = ("measure", f"{folder / 'model.py'}:build", "--corridor", "default", "--json")
    ran = command(*given, "--instruments", GATES, "--arg", f"bad={bad}", "--arg", f"loss={loss}")
    assert (ran.status, ran.document["verdict"]) == (1, "fail")
    assert states(ran.document) == {
        "gradient_ratio": "fail",
        "participation_share": "not_measured",
        "stiffness": "not_measured",
        "functional_update": "not_measured",
        "nonfinite_fraction": "fail",
    }
    summary = ran.document["summary"]
    for name in ("gradient_ratio", "participation_share"):
        assert summary[name]["value"] is None
        assert summary[name]["value_reason"]


def test_what_is_no_corridor(command: Command, folder: Path) -> None:
    for given, sentence in (
        (
            "defualt",
            "corridor is 'defualt', expected one of commission, default, transport (did you mean",
        ),
        (folder / "absent.toml", "absent.toml cannot be read: no such file"),
        (
            folder / "model.py",
            "expected one of commission, default, transport, or a file such as mine.toml",
        ),
    ):
        ran = command("measure", EQUATION, *SMALL, "--corridor", given)
        assert (ran.status, ran.out) == (2, "")
        assert sentence in ran.err
