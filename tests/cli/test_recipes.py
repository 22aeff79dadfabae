"""The commands about recipes: list and explain, guess, compare."""

from __future__ import annotations

import json
from pathlib import Path

from depthgauge.recipes.registry import RECIPES
from tests.cli.command import Command

SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def build(layers=4):
    return nn.Sequential(*[Block() for _ in range(layers)]), torch.randn(16, 8)
"""


def test_every_recipe_is_listed_and_explained(command: Command) -> None:
    listed = command("recipes")
    assert listed.status == 0
    for name in RECIPES:
        assert f"\n{name} " in listed.out
        told = command("recipes", name).out
        for head in ("needs: ", "rule", "traps", "reference: "):
            assert head in told
        marked = " ".join(told.split()).count("(not confirmed: ")
        assert marked == len(RECIPES[name].unconfirmed)
    document = json.loads(command("recipes", "--json").out)
    assert [recipe["name"] for recipe in document["recipes"]] == list(RECIPES)
    (layerscale,) = (r for r in document["recipes"] if r["name"] == "layerscale")
    assert layerscale["unconfirmed"][0]["line"] == layerscale["rule"][1]
    assert "another's implementation" in layerscale["unconfirmed"][0]["why"]
    wrong = command("recipes", "fixp")
    assert wrong.status == 2
    assert "did you mean 'fixup'" in wrong.err


def test_compare_an_equation(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    shown = command(
        "compare", "h + W2(relu(W1(h)))", "--depth", "8", "--width", "16", "--seed", "0,1",
        "--recipes", "he,fixup,rezero", "-o", str(path),
    )  # fmt: skip
    assert shown.status == 0, shown.err
    assert "depth 8, width 16, batch 32, 2 seeds" in shown.out
    for words in ("as given", "step ~ L^", "+ h = h + scalar(0) * W2(relu(W1(h)))", "needs: "):
        assert words in shown.out
    document = json.loads(path.read_text())
    assert [row["name"] for row in document["recipes"]] == ["as given", "he", "fixup", "rezero"]
    quiet = command(
        "compare", "W(relu(h))", "--depth", "4", "--width", "8", "--recipes", "fixup,he",
        "--seed", "0", "--quiet",
    )  # fmt: skip
    assert quiet.out == "compare: 2 recipes at depth 4, 1 of them do not cover it\n"


def test_compare_code_at_several_depths(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    target = f"{tmp_path / 'model.py'}:build"
    found = command(
        "compare", target, "--recipes", "rezero", "--depths", "layers=2,4", "--seed", "0", "--json"
    )
    assert found.status == 0, found.err
    document = json.loads(found.out)
    assert (document["depth"], document["depths"]) == (4, [2, 4])
    assert document["recipes"][1]["changes"] == ["4 multipliers scalar(0)"]
    once = json.loads(command("compare", target, "--recipes", "he", "--json", "--seed", "0").out)
    assert once["depths"] == [4]
    assert "one depth" in once["recipes"][0]["update_exponent_reason"]
    wrong = command("compare", target, "--recipes", "he", "--depth", "4")
    assert wrong.status == 2
    assert "--depth is for an equation" in wrong.err
    for option in ("--depth", "--width", "--batch"):
        none = command("compare", "h + W(h)", "--recipes", "he", option, "0")
        assert none.status == 2
        assert f"{option} is 0, expected a whole number of at least 1" in none.err
    assert command("audit", "h + W(h)", "--depth", "0").status == 2
    twice = command("compare", target, "--recipes", "he,he")
    assert twice.status == 2
    assert "expected different names" in twice.err


def test_the_recipe_of_an_equation_is_guessed(command: Command) -> None:
    sizes = ("--depth", "6", "--width", "32")
    named = command("audit", "h + W2(relu(W1(h)))", "--init", "he", *sizes)
    assert named.status == 0
    assert "audit: its numbers agree with he" in named.out
    assert "against: " in named.out
    none = command("audit", "h + W2(relu(W1(h)))", "--init", "normal(1)", *sizes, "--json")
    assert none.status == 1
    document = json.loads(none.out)
    assert document["guess"] is None
    assert document["guess_reason"]
