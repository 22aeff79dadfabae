"""LayerScale."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.audit import audit
from depthgauge.recipes.layerscale import EPS
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import gpt2, mlp, resnet

BLOCK = "h = h + attention(rmsnorm(h)); h = h + W2(gelu(W1(rmsnorm(h))))"


def test_on_equations() -> None:
    changed, model, batch = on_equation("layerscale", "h + W2(relu(W1(h)))")
    assert "gain(" in str(changed.block)
    assert "W1(layernorm(h))" in str(changed.block)
    with torch.no_grad():
        assert float((model(batch) - batch).norm() / batch.norm()) < 0.3
    on_equation("layerscale", BLOCK, depth=4, tokens=5)
    on_equation("layerscale", "layernorm(h + W2(relu(W1(h))))")
    # Twelve blocks of two equal steps: depth is 12, not 24.
    equal = "h = h + W(relu(layernorm(h))); h = h + W(relu(layernorm(h)))"
    changed, model, batch = on_equation("layerscale", equal, depth=12)
    assert layout(model, batch).branches[0].learned[0][1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("depth", "eps"),
    [(1, 0.1), (12, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (36, 1e-6), (48, 1e-6)],
)
def test_eps_by_depth(depth: int, eps: float) -> None:
    assert number_of(EPS, {"depth": float(depth)}) == pytest.approx(eps, rel=1e-12)


@pytest.mark.parametrize(("depth", "eps"), [(18, 0.1), (24, 1e-5), (36, 1e-6)])
def test_a_network_of_that_depth_begins_there(depth: int, eps: float) -> None:
    model = rewritten(Network(BLOCK, depth, 8, tokens=4), "layerscale").network.module(seed=0)
    batch = torch.randn(2, 4, 8)
    found = audit(model, batch, "layerscale")
    assert found.holds, said(found)
    branches = layout(model, batch).branches
    assert len(branches) == 2 * depth
    values = [value for branch in branches for _, value in branch.learned]
    assert values == pytest.approx([eps] * 2 * depth, rel=1e-5)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("", "0 of 20 branches with a learned multiplier .*loader that renames what is called"),
        ("gain(1) * ", "the gains begin at 1"),
        ("gain(0.1) * ", "0.1, which is for up to 18 blocks"),
        ("gain(1e-4) * ", "the default of the authors' class"),
        ("gain(1e-6) * ", "1e-6, which is for more than 24 blocks"),
        ("scalar(1e-5) * ", "one number for all channels"),
    ],
)
def test_mistakes_are_named(by: str, words: str) -> None:
    model = Network(f"h + {by}W2(relu(W1(layernorm(h))))", 20, 8).module(seed=0)
    found = audit(model, torch.randn(4, 8), "layerscale")
    assert not found.holds
    assert re.search(words, said(found)), said(found)


def test_on_modules() -> None:
    applied, batch = on_module("layerscale", mlp)
    broken(applied.model, batch, "layerscale", _dropped, "5 of 6 branches .*drops them")
    applied, batch = on_module("layerscale", gpt2)
    applied, batch = on_module("layerscale", resnet)
    gains = [p for name, p in applied.model.named_parameters() if name.endswith("k.gain")]
    assert [tuple(p.shape) for p in gains] == [(8, 1, 1), (16, 1, 1), (16, 1, 1)]


def _dropped(model: nn.Module) -> None:
    block = model.get_submodule("3")
    block.down = block.get_submodule("down.module")


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "layerscale")
