"""Which recipe a module's numbers agree with."""

from __future__ import annotations

import torch

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.guess import guess
from tests.recipes.contract import undone
from tests.recipes.models import gpt2, mlp


def test_gpt2_is_named_and_what_was_undone_speaks_against_it() -> None:
    model, batch = gpt2()
    found = guess(model, batch)
    assert found.named is not None
    assert found.named.name == "gpt2"
    first = found.candidates[0]
    assert first.share == 1
    undone("c_proj.weight", 0.02)(model)
    other = guess(model, batch)
    assert other.named is None or other.named.name != "gpt2"
    against = next(c for c in other.candidates if c.recipe.name == "gpt2")
    assert not against.agrees
    assert 0.5 < against.share < 1
    row = next(c for c in other.to_dict()["candidates"] if c["recipe"] == "gpt2")
    assert "the depth scale was never applied" in row["against"][0]
    assert len(row["for"]) >= 2


def test_what_was_applied_is_what_is_guessed() -> None:
    model, batch = mlp()
    for name in ("fixup", "rezero"):
        found = guess(apply(model, batch, name).model, batch)
        assert name in {c.recipe.name for c in found.candidates if c.agrees}


def test_pytorch_s_default_is_no_initialiser_of_a_recipe() -> None:
    model, batch = mlp()
    found = guess(model, batch)
    assert not [c.recipe.name for c in found.candidates if c.agrees and c.initialises]


def test_an_equation_s_weights() -> None:
    model = Network("h + W2(relu(W1(h)))", 6, 32, init="he").module(0)
    found = guess(model, torch.randn(8, 32))
    assert found.named is not None
    assert found.named.name == "he"
    assert found.to_dict()["branches"] == 6
