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
