"""``depthgauge ablate``: the answer on top, its exit status, and wrong use in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Command

GROWS = "h + W2(relu(W1(h)))"
SIZES = ("--depth", 24, "--width", 8, "--batch", 8)


def test_out_of_the_corridor_is_one(command: Command) -> None:
    ran = command(
        "ablate", GROWS, "--init", "he", *SIZES, "--vary", "scale=1/L", "--vary", "scale*2"
    )
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.startswith(
        "gradient_ratio fails at the baseline: scale=1/L alone brings it back inside and breaks "
        "nothing\n\nh = h + W2(relu(W1(h)))\n"
    )
    assert "seed 0..2; corridor: default" in ran.out


def test_inside_it_is_none(command: Command) -> None:
    ran = command("ablate", f"{GROWS}/L", *SIZES, "--vary", "scale*2", "--quiet", "--seed", "0..1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(
        "ablate: nothing failed at the baseline; the nearest bound is that of"
    )
    assert ran.out.count("\n") == 1


def test_a_corridor_is_named(command: Command, tmp_path: Path) -> None:
    tight = tmp_path / "tight.toml"
    tight.write_text("[bounds.forward_drift]\nmax = 3.0\n")
    given = (
        "ablate",
        f"{GROWS}/sqrt(L)",
        "--init",
        "he",
        *SIZES,
        "--vary",
        "scale=0.01",
        "--quiet",
    )
    assert command(*given).status == 0
    ran = command(*given, "--corridor", tight)
    assert ran.status == 1
    assert "forward_drift fails at the baseline: scale=0.01 alone" in ran.out


def test_the_usual_set_and_the_document(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "ablation.json"
    ran = command("ablate", "h + W(tanh(rmsnorm(h)))", *SIZES, "--json", "-o", file)
    assert ran.err == ""
    changes = [change["change"] for change in ran.document["changes"]]
    assert changes == [
        "placement=post", "norm=none", "scale/2", "scale*2", "scale=1/sqrt(L)", "activation=relu",
        "activation=gelu", "init=orthogonal",
    ]  # fmt: skip
    assert file.read_text() == ran.out
    assert ran.document["corridor"] == "default"
    assert ran.status == (
        0 if ran.document["baseline"]["verdict"]["state"] in ("pass", "warn") else 1
    )


def test_what_the_default_corridor_could_not_judge_is_told(command: Command) -> None:
    ran = command("ablate", GROWS, *SIZES, "--vary", "scale/2", "--instruments", "rivers")
    assert "participation_share was not judged: not among the instruments asked for" in ran.out


def test_a_specification(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        f'[block]\nequation = "{GROWS}"\n[network]\ndepth = 12\nwidth = 8\n[run]\nbatch = 8\n'
        "seed = [0, 1]\n[corridor]\nforward_drift = { max = 2.0 }\n"
    )
    ran = command("ablate", file, "--vary", "scale=1/L", "--quiet")
    assert ran.status == 1
    assert "forward_drift fails at the baseline: scale=1/L alone" in ran.out
    assert command("ablate", file, "--vary", "norm=rmsnorm", "--depth", 1, "--quiet").status == 0


MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.layer(torch.relu(x))


def build(layers=3, width=8):
    print("built")
    data = torch.randn(4, width)
    return nn.Sequential(*(Block(width) for _ in range(layers))), data
"""


def test_python_code(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    ran = command(
        "ablate", f"{file}:build", "--arg", "width=16", "--vary", "width=8", "--vary", "layers=6",
        "--json", "--seed", "3,5",
    )  # fmt: skip
    assert ran.status == 0
    assert "built" in ran.err
    document = ran.document
    assert document["seeds"] == [3, 5]
    assert document["factors"] == {"layers": "3", "width": "16", "precision": "as built"}
    assert [c["differences"][0]["after"] for c in document["changes"]] == ["8", "6"]


WRONG: list[tuple[list[str], str]] = [
    ([GROWS, "--vary", "norm=layernrm"], r"norm is 'layernrm', expected one of .*'layernorm'"),
    ([GROWS, "--vary", "norm"], r"a change is 'norm', expected FACTOR=VALUE"),
    ([GROWS, "--vary", "norm=none"], r"'norm=none' changes nothing: the baseline has"),
    (
        [GROWS, "--vary", "equation=W2(tanh(W1(h)))"],
        r"changes 2 factors at once \(activation: relu -> tanh; form: .*--comparison\)$",
    ),
    ([GROWS, "--vary", "scale/2", "--vary", "scale / 2"], r"vary names 'scale/2' twice"),
    ([GROWS, "--depth", "x"], r"--depth is 'x', expected a whole number"),
    ([GROWS, "--seed", "-1"], r"seed is '-1'"),
    ([GROWS, "--input", "float 3"], r"input was given with an equation; it is for Python code"),
    ([GROWS, "--arg", "n=3"], r"arguments was given with an equation"),
    (["model.py:build"], r"'model\.py:build': no such file"),
    (["missing.toml"], r"missing\.toml cannot be read"),
    (["h + W(h"], r"never closed"),
    ([GROWS, "--instruments", "rivrs"], r"instruments names 'rivrs'"),
    ([], r"Missing argument 'TARGET'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_wrong_use_is_two(command: Command, arguments: list[str], sentence: str) -> None:
    import re

    ran = command("ablate", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert re.search(sentence, ran.err, re.M), ran.err
    assert "Traceback" not in ran.err


def test_an_equations_option_with_code(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    ran = command("ablate", f"{file}:build", "--depth", 4, "--vary", "layers=6")
    assert ran.status == 2
    assert "depth is for an equation, and the target is Python code" in ran.err
    ran = command("ablate", f"{file}:build", "--vary", "depth=6")
    assert ran.status == 2
    assert "takes no argument 'depth'" in ran.err
    ran = command("ablate", f"{file}:build")
    assert ran.status == 2
    assert "only its arguments can be varied (layers, width)" in ran.err


def test_a_comparison_is_taken_where_it_is_called_one(command: Command) -> None:
    given = (
        "ablate",
        GROWS,
        *SIZES,
        "--vary",
        "equation=W2(tanh(W1(h)))",
        "--comparison",
        "--quiet",
    )
    assert command(*given).status == 1
