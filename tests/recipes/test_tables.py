"""Tables that attention's scores are shifted by are no layers: nobody's weights, without a bias."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.trace.layout import layout
from tests.recipes.contract import said
from tests.recipes.models import t5

TABLES = tuple(
    f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    for stack in ("encoder", "decoder")
)


@pytest.mark.parametrize("recipe", ["smallinit", "gpt2"])
def test_distances_keep_their_numbers(recipe: str) -> None:
    model, batch = t5()
    assert {w.path for b in layout(model, batch).branches for w in b.weights if w.table} == {
        *TABLES
    }
    applied = apply(model, batch, recipe)
    for path in TABLES:
        assert torch.equal(applied.model.get_parameter(path), model.get_parameter(path)), path
    # What is a layer of the same attention is drawn anew.
    beside = "encoder.block.0.layer.0.SelfAttention.q.weight"
    assert not torch.equal(applied.model.get_parameter(beside), model.get_parameter(beside))
    nn.init.normal_(applied.model.get_parameter(TABLES[0]), std=3.0)
    assert "relative_attention_bias" not in said(audit(applied.model, batch, recipe))
    nn.init.normal_(applied.model.get_parameter(beside), std=3.0)
    assert beside in said(audit(applied.model, batch, recipe))


def test_distances_have_no_bias() -> None:
    model, batch = t5()
    applied = apply(model, batch, "skipinit")
    assert not any("relative_attention_bias" in line for line in applied.left)
    found = said(audit(model, batch, "skipinit"))
    assert "0 of 32 weight layers of branches with a bias" in found
    assert "weight layers of branches with a bias" not in said(
        audit(applied.model, batch, "skipinit")
    )
