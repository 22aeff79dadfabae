"""depth-muP: branches over the root of the number of blocks. Its numbers and what it refuses are
tested with those of CompleteP, whose code has both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.depth_mup import depth_mup
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import llama, mlp, plain


def test_on_equations() -> None:
    changed, model, batch = on_equation("depth-mup", "h + W2(relu(W1(layernorm(h))))", depth=8)
    assert str(changed.block) == "h = h + sqrt(2/depth) * W2(relu(W1(layernorm(h))))"
    plant = redrawn("depth-mup", batch, "normal(std=0.02)")
    broken(model, batch, "depth-mup", plant, "16 of 16 hidden weights: .*the width was not counted")


@pytest.mark.parametrize("build", [llama, mlp])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, batch = on_module("depth-mup", build)
    assert not audit(applied.model, batch, "completep").holds


def test_completeps_multiplier_is_named() -> None:
    network = Network("h + 2/depth * W(relu(h))", 6, 32, init="normal(std=0.02/sqrt(n/256))")
    words = said(audit(network.module(seed=0), torch.randn(4, 32), "depth-mup"))
    assert words == ("6 of 6 sums: 1 h + 0.3333 F, expected 1 h + 0.5774 F: alpha = 1, CompleteP's")


def test_the_groups_of_an_optimiser() -> None:
    model, batch = mlp()
    recipe = depth_mup(6, 2)
    applied = apply(model, batch, recipe)
    rows = applied.groups(0.1, weight_decay=0.01, eps=1e-12)
    slow = 3**-0.5
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.025 * slow, 0.1 * slow])
    assert [row["weight_decay"] for row in rows] == pytest.approx([0.01, 0.04, 0.01])
    assert [row["eps"] * 1e12 for row in rows] == pytest.approx([1, slow / 4, slow / 4])
    assert audit(applied.model, batch, recipe, torch.optim.AdamW(rows)).holds
    rows[2]["lr"] = 0.1
    words = said(audit(applied.model, batch, recipe, torch.optim.AdamW(rows)))
    assert "0 of 24 biases and norms of branches learn at 0.57735 of the rate" in words


def test_what_it_does_not_cover() -> None:
    model, batch = plain()
    with pytest.raises(NetworkError, match="no residual branch was found, and depth-muP"):
        apply(model, batch, "depth-mup")
    with pytest.raises(NetworkError, match="base_width is 0"):
        depth_mup(0)
