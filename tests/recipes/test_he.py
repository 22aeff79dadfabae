"""He initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.recipes.contract import broken, on_equation, on_module, scaled
from tests.recipes.models import mlp, resnet


def test_on_equations() -> None:
    on_equation("he", "h + W2(relu(W1(h, out=4*n)))")
    _, model, batch = on_equation("he", "W(relu(h))", depth=8)
    broken(model, batch, "he", scaled("weight", 2**-0.5), "a gain of 1, where ReLU takes")


def test_on_modules_and_faults() -> None:
    applied, batch = on_module("he", resnet)
    kernel = applied.model.get_parameter("1.a.weight").detach()
    assert float(kernel.std()) == pytest.approx((2 / 72) ** 0.5, rel=0.1)
    applied, batch = on_module("he", mlp)
    broken(applied.model, batch, "he", _default, "6 of 12 weights: .*PyTorch's default")


def _default(model: nn.Module) -> None:
    for block in list(model.children())[1:-1]:
        layer = block.get_submodule("up")
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.reset_parameters()
