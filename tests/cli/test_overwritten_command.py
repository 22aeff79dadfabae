"""Of a model that a command builds: zeros that a later initialisation draws over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Command

SAID = "initialisation overwritten: "

GATED = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Tanh())
        nn.init.zeros_(layers[1].weight)

    def forward(self, x):
        return x + self.gate(x)


def draw(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.2)


def build(again=True):
    model = nn.Sequential(*[Gate(96) for _ in range(4)])
    model.apply(draw)
    if again:
        for block in model:
            nn.init.zeros_(block.gate[2].weight)
    return model, torch.randn(8, 96)
"""


def test_the_command_names_a_gate_that_was_drawn_over(tmp_path: Path, command: Command) -> None:
    (path := tmp_path / "gated.py").write_text(GATED)
    done = command("measure", f"{path}:build", "--arg", "again=False")
    assert done.status == 0
    text = " ".join(done.out.split())
    assert f"{SAID}4 parameters were set to zero while the model was built and drawn again" in text
    assert "('0.gate.2.weight', whose root mean square is 0.2" in text
    assert SAID not in " ".join(command("measure", f"{path}:build").out.split())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_of_a_model_that_is_cast_the_same_is_said(
    tmp_path: Path, command: Command, dtype: str
) -> None:
    (path := tmp_path / "gated.py").write_text(GATED)
    done = command("measure", f"{path}:build", "--arg", "again=False", "--dtype", dtype, "--json")
    assert "4 parameters were set to zero" in json.dumps(done.document)
