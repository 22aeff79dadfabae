"""Orthogonal initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.orthogonal import orthogonal
from tests.recipes.contract import broken, on_equation, on_module, scaled, undone
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet


def test_on_equations() -> None:
    on_equation("orthogonal", "h + W2(tanh(W1(h, out=4*n)))")
    _, model, batch = on_equation("orthogonal", "W(h)", depth=50)
    length = model(batch).norm(dim=-1) / batch.norm(dim=-1)
    assert torch.allclose(length, torch.ones(8), atol=1e-4)
    broken(model, batch, "orthogonal", scaled("weight", 1.01), "50 of 50 weights: std")


def test_on_modules() -> None:
    for build in (resnet, gpt2):
        on_module("orthogonal", build)
    applied, _ = on_module("orthogonal", mlp)
    up = applied.model.get_parameter("1.up.weight").detach()
    assert torch.allclose(up.T @ up, torch.eye(24), atol=1e-5)
    down = applied.model.get_parameter("1.down.weight").detach()
    assert torch.allclose(down @ down.T, torch.eye(24), atol=1e-5)


def test_faults() -> None:
    applied, batch = on_module("orthogonal", plain)
    plant = undone("2.weight", 40**-0.5)
    broken(applied.model, batch, "orthogonal", plant, "1 of 5 .* a Gaussian of the same size")
    applied, batch = on_module("orthogonal", plain)
    broken(applied.model, batch, "orthogonal", _stretched, "singular values from 0.748 to 1.2")
    applied, batch = on_module("orthogonal", plain)
    broken(applied.model, batch, "orthogonal", scaled("weight", 2**0.5), "sqrt.2., ReLU's")


def _stretched(model: nn.Module) -> None:
    """Two singular values turned away from 1, the size kept."""
    u, values, v = torch.linalg.svd(model.get_parameter("4.weight").detach(), full_matrices=False)
    values[0], values[1] = 1.2, 0.748
    model.get_parameter("4.weight").data.copy_(u @ torch.diag(values) @ v)


def test_each_group_is_a_matrix_of_its_own() -> None:
    applied, batch = on_module("orthogonal", convolutions)
    depthwise = applied.model.get_parameter("2.weight").detach()
    assert torch.allclose(depthwise.flatten(1).norm(dim=1), torch.ones(48), atol=1e-5)
    turned = applied.model.get_parameter("8.weight").detach()  # 32 channels in, 48 out, 8 groups
    for group in turned.unflatten(0, (8, 4)):
        flat = group.transpose(0, 1).flatten(1)
        assert torch.allclose(flat @ flat.T, torch.eye(6), atol=1e-5)
    broken(applied.model, batch, "orthogonal", _whole, "one matrix of all groups")


def _whole(model: nn.Module) -> None:
    nn.init.orthogonal_(model.get_parameter("2.weight"))


@pytest.mark.parametrize("gain", ["sqrt(2)", "1.05"])
def test_another_gain(gain: str) -> None:
    model, batch = plain(nn.ReLU)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=eval(gain, {"sqrt": lambda x: x**0.5}))
            nn.init.zeros_(module.bias)
    assert audit(model, batch, orthogonal(gain)).holds
    assert not audit(model, batch, "orthogonal").holds
    assert audit(apply(model, batch, orthogonal(gain)).model, batch, orthogonal(gain)).holds
