"""The command that holds a module to a recipe."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import Command

SOURCE = """
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def build(undone=False):
    config = GPT2Config(n_layer=12, n_embd=32, n_head=4, vocab_size=64, n_positions=32,
                        bos_token_id=1, eos_token_id=1)
    model = GPT2LMHeadModel(config).eval()
    if undone:
        for name, p in model.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, 0, 0.02)
    return model, {"input_ids": torch.randint(64, (2, 16))}
"""


def test_the_command(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    target = f"{tmp_path / 'model.py'}:build"
    held = command("audit", target, "--recipe", "gpt2")
    assert held.status == 0
    assert "audit: gpt2 holds" in held.out
    broken = command("audit", target, "--arg", "undone=True", "--recipe", "gpt2", "--json")
    assert broken.status == 1
    document = json.loads(broken.out)
    assert document["branches"] == 24
    assert document["findings"][0]["said"].startswith(
        "24 of 24 residual projections: std 0.0200, expected 0.0041 (4.9 times): the depth scale"
    )
    wrong = command("audit", target, "--recipe", "gpt3")
    assert wrong.status == 2
    assert "did you mean 'gpt2'" in wrong.err
    equation = command("audit", "h + W2(relu(W1(h)))", "--recipe", "fixup", "--depth", "4")
    assert equation.status == 1
    assert "FAIL  4 of 4 last weights of branches: std up to" in equation.out
    sized = command("audit", target, "--recipe", "gpt2", "--depth", "4")
    assert sized.status == 2
    assert "--depth is for an equation" in sized.err


GROUPED = """
import torch
from torch import nn

import depthgauge as dg


def build():
    torch.manual_seed(0)
    network = dg.rewritten(dg.Network("h + W2(relu(W1(h)))", depth=4, width=16), "fixup").network
    head = nn.Linear(16, 3)
    nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
    return nn.Sequential(network.module(0), head), torch.randn(8, 16)


def slow(model):
    scalars = [p for p in model.parameters() if p.numel() == 1]
    others = [p for p in model.parameters() if p.numel() > 1]
    return torch.optim.SGD([{"params": others}, {"params": scalars, "lr": 0.01}], lr=0.1)


def alike(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def nothing(model):
    alike(model)


def fails(model):
    return torch.optim.SGD(model.weights, lr=0.1)


number = 3
"""


def test_the_groups_of_an_optimizer(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(GROUPED)
    target = f"{tmp_path / 'model.py'}:build"
    held = command("audit", target, "--recipe", "fixup", "--optimizer", "slow")
    assert held.status == 0, held.out
    assert "PASS  20 of 20 scalars learn at 0.1 of the rate" in held.out
    whole = f"{tmp_path / 'model.py'}:alike"
    broken = command("audit", target, "--recipe", "fixup", "--optimizer", whole, "--json")
    assert broken.status == 1
    wrong = [f["said"] for f in json.loads(broken.out)["findings"] if not f["holds"]]
    assert len(wrong) == 1
    assert wrong[0].startswith("0 of 20 scalars learn at 0.1 of the rate; ")
    for name, words in (
        ("nothing", "model.py:nothing' gives None, expected an Optimizer; is its return missing?"),
        ("number", "model.py:number' is a value of type int, expected a callable; its callables"),
        ("fails", "model.py:fails' raised AttributeError at"),
        ("quick", "has no 'quick'"),
    ):
        refused = command("audit", target, "--recipe", "fixup", "--optimizer", name)
        assert refused.status == 2
        assert words in " ".join(refused.err.split()), refused.err
    alone = command("audit", target, "--optimizer", "slow")
    assert alone.status == 2
    assert "give --recipe too" in " ".join(alone.err.split())


STACKED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(16, 32, bias=False) for _ in range(4))
        self.down = nn.Parameter(torch.randn(4, 32, 16))
        for up in self.up:
            nn.init.kaiming_normal_(up.weight)

    def forward(self, h):
        for i, up in enumerate(self.up):
            h = h + torch.relu(up(h)) @ self.down[i]
        return h


def build():
    return Net(), torch.randn(8, 16)
"""


def test_what_could_not_be_checked_is_no_pass(command: Command, tmp_path: Path) -> None:
    (tmp_path / "stacked.py").write_text(STACKED)
    target = f"{tmp_path / 'stacked.py'}:build"
    held = command("audit", target, "--recipe", "inv-sqrtL-init")
    assert held.status == 1
    assert "NOT MEASURED  1 weights that the rule speaks of were not checked" in held.out
    assert "FAIL" not in held.out
    assert "audit: inv-sqrtL-init is not known to hold (1 parts not measured)" in held.out
