"""A state space, whose blocks ask their norms for the precision of the gain: norms go all the
same, and what a recipe cannot put inside the mixer is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module, scaled
from tests.recipes.models import mamba


@pytest.mark.parametrize("recipe", ["rezero", "deepnorm", "postnorm", "dyt", "prenorm-batchnorm"])
def test_a_norm_that_is_asked_for_its_gain_is_replaced(recipe: str) -> None:
    applied, batch = on_module(recipe, mamba)
    assert torch.isfinite(applied.model(**batch).logits).all()


def test_a_norm_that_comes_back_is_named() -> None:
    applied, batch = on_module("rezero", mamba)

    def back(model: nn.Module) -> None:
        model.get_submodule("backbone.layers.0").norm = nn.RMSNorm(16)

    broken(applied.model, batch, "rezero", back, "norm")


def test_deepnorm_is_held_to_its_sizes() -> None:
    applied, batch = on_module("deepnorm", mamba)
    broken(applied.model, batch, "deepnorm", scaled("in_proj.weight", 1.5), "1.5 times")


def test_fixup_takes_its_norms_out_and_names_what_it_cannot_reach() -> None:
    model, batch = mamba()
    applied = apply(model, batch, "fixup")
    found = layout(applied.model, batch)
    assert found.m == (5,)  # in, convolution, x, dt and out, the longest path
    assert not found.norms
    assert not any("attribute" in left for left in applied.left)
    assert any("0 of 6 activations of branches with a scalar bias" in left for left in applied.left)
    named = dict(applied.model.named_parameters())
    out = [p for path, p in named.items() if "out_proj" in path and p.dim() == 2]
    assert len(out) == 2
    assert not any(p.any() for p in out)
    assert not audit(applied.model, batch, "fixup").holds


def test_what_answers_for_a_gain_is_no_parameter() -> None:
    model, batch = mamba()
    applied = apply(model, batch, "rezero")
    asked = "backbone.layers.0.norm.weight"
    assert asked in dict(model.named_parameters())
    assert asked not in dict(applied.model.named_parameters())
    assert asked not in applied.model.state_dict()


def test_weight_normalisation_is_refused_in_a_sentence() -> None:
    words = "'backbone.layers.0.mixer.dt_proj' is computed in parts outside of its module"
    with pytest.raises(NetworkError, match=words):
        apply(*mamba(), "weight-norm")
