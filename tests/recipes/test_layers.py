"""Recipes that initialise every layer, held against one another."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from tests.recipes.models import mlp

EVERY = ("xavier", "he", "lecun", "orthogonal", "lsuv", "weight-norm", "sigma-reparam")


@pytest.mark.parametrize("applied", EVERY)
def test_a_network_of_one_follows_no_other(applied: str) -> None:
    model, batch = mlp()
    made = apply(model, batch, applied).model
    assert [name for name in EVERY if audit(made, batch, name).holds] == [applied]


def test_a_layer_that_cannot_be_counted_is_said() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.r = nn.Linear(6, 8), nn.LSTM(8, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.r(torch.tanh(self.f(x)))[0]
            return out

    torch.manual_seed(0)
    applied = apply(Recurrent(), torch.randn(3, 4, 6), "lecun")
    words = r"weights: .* 2 more have inputs that could not be counted \('r.weight_ih_l0'\)"
    assert re.search(words, applied.changes[0]), applied.changes
    held = audit(applied.model, torch.randn(3, 4, 6), "lecun")
    (weights, _, unseen) = held.findings
    assert re.search(words, weights.said), weights.said
    assert (weights.state, unseen.state) == ("PASS", "NOT MEASURED")
    assert not held.holds
    assert "2 weights that the rule speaks of were not checked: their inputs" in unseen.said
    assert applied.left == (unseen.said,)


def test_without_a_layer() -> None:
    model, batch = nn.Sequential(nn.Tanh()), torch.randn(3, 4)
    for name in EVERY:
        with pytest.raises(NetworkError, match="no weight layer was found"):
            audit(model, batch, name)


def test_the_seed_and_the_path_key_the_draws() -> None:
    model, batch = mlp()
    first, again, other = (apply(model, batch, "he", seed=seed).model for seed in (1, 1, 2))
    for name, p in first.named_parameters():
        assert torch.equal(p, again.get_parameter(name))
        if p.dim() > 1 and not name.startswith("7."):  # the head is He's to leave
            assert not torch.equal(p, other.get_parameter(name))
    assert not torch.equal(first.get_parameter("1.up.weight"), first.get_parameter("2.up.weight"))
