"""Mix-LN."""

from __future__ import annotations

import pytest
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.mix_ln import post_layers
from depthgauge.recipes.rewritten import rewritten
from tests.recipes.contract import broken, on_module
from tests.recipes.models import encoder, postnorm


def _layer(model: nn.Module, place: int) -> nn.TransformerEncoderLayer:
    found = model.get_submodule(f"0.layers.{place}")
    found = getattr(found, "module", found)  # the last is followed by a norm that was put in
    assert isinstance(found, nn.TransformerEncoderLayer)
    return found


def test_a_quarter_of_the_layers_rounded_down() -> None:
    assert [post_layers(n) for n in (3, 4, 12, 24, 32)] == [0, 1, 3, 6, 8]


def test_on_modules_and_faults() -> None:
    applied, batch = on_module("mix-ln", lambda: encoder(layers=9))
    layers = [_layer(applied.model, i) for i in range(9)]
    assert [layer.norm_first for layer in layers] == [False] * 2 + [True] * 7

    def plant(model: nn.Module) -> None:
        _layer(model, 1).norm_first = True

    broken(applied.model, batch, "mix-ln", plant, "pre-norm in one of the first layers")
    on_module("mix-ln", lambda: encoder(pre=True, final=True, layers=4))


def test_a_layer_too_many_is_named() -> None:
    applied, batch = on_module("mix-ln", lambda: encoder(layers=8))

    def plant(model: nn.Module) -> None:
        _layer(model, 2).norm_first = False

    words = "14 of 16 branches .*: post-norm behind the first quarter of the layers"
    broken(applied.model, batch, "mix-ln", plant, words)
    on_module("mix-ln", postnorm)


def test_no_equation_has_unequal_blocks() -> None:
    with pytest.raises(
        NetworkError,
        match="Mix-LN cannot be put into an equation: the blocks of an equation are all alike",
    ):
        rewritten(Network("h = h + W2(relu(W1(h)))", 8, 8), "mix-ln")
