"""LeCun initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.recipes.audit import audit
from tests.recipes.contract import broken, on_equation, on_module, scaled
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet


def test_on_equations() -> None:
    on_equation("lecun", "h + W2(selu(W1(h, out=4*n)))", init="he")
    _, model, batch = on_equation("lecun", "W(selu(h))", depth=8, init="torch")
    broken(model, batch, "lecun", scaled("weight", 0.75), "3/4, PyTorch's for SELU")


def test_on_modules() -> None:
    for build in (mlp, resnet, convolutions, gpt2):
        on_module("lecun", build)
    applied, batch = on_module("lecun", lambda: plain(nn.SELU))
    broken(applied.model, batch, "lecun", scaled("weight", 2**0.5), "He, which is ReLU's")
    for finding in audit(applied.model, batch, "lecun").findings:
        assert "was met" not in finding.said


@pytest.mark.parametrize(("gain", "stays"), [(1.0, True), (0.75, False)])
def test_mean_0_and_variance_1_are_a_fixed_point_of_selu(gain: float, stays: bool) -> None:
    changed, model, _ = on_equation("lecun", "W(selu(h))", depth=24, width=400, init="torch")
    scaled("weight", gain)(model)
    generator = torch.Generator().manual_seed(0)
    h = 1.5 * torch.randn(400, *changed.state_shape, generator=generator)
    with torch.no_grad():
        for block in model.get_submodule("blocks").children():
            h = block(h)
        out = torch.selu(h)
    near = abs(float(out.mean())) < 0.1 and abs(float(out.var()) - 1) < 0.15
    assert near is stays
