"""Xavier initialisation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from depthgauge.network.init import rms_of
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import init_of
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet, transformer


def test_golden_numbers() -> None:
    std = rms_of(init_of("xavier"), (64, 64), {"L": 1.0})
    assert std == pytest.approx(0.125, rel=1e-12)
    assert 3**0.5 * std == pytest.approx(0.216506, abs=5e-7)
    stacked = rms_of(init_of("xavier"), (192, 64), {"L": 1.0})
    assert stacked == pytest.approx(0.088388, abs=5e-7)


def test_on_equations() -> None:
    on_equation("xavier", "h + W2(tanh(W1(h, out=4*n)))")
    on_equation("xavier", "h + attention(h, heads=4); h = h + W2(tanh(W1(h)))", init="torch")
    _, model, batch = on_equation("xavier", "h + W2(tanh(W1(h, out=4*n)))")
    broken(model, batch, "xavier", scaled("W1.weight", (2.5) ** 0.5), "of the fan in alone")
    _, model, batch = on_equation("xavier", "h + W2(tanh(W1(h, out=4*n)))")
    broken(model, batch, "xavier", scaled("W2.weight", (5 / 8) ** 0.5), "of the fan in alone")


def test_on_modules() -> None:
    on_module("xavier", mlp)
    on_module("xavier", resnet)
    on_module("xavier", convolutions)
    applied, batch = on_module("xavier", plain)
    broken(applied.model, batch, "xavier", scaled("weight", 5 / 3), "5/3, PyTorch's for tanh")


def test_queries_keys_and_values_are_three_matrices() -> None:
    for build in (gpt2, transformer):
        applied, batch = on_module("xavier", build)
        for name, p in applied.model.named_parameters():
            if name.endswith(("c_attn.weight", "in_proj_weight")):
                assert float(p.detach().std()) == pytest.approx(0.177, rel=0.03)
                stacked = p
        plant = _stacked(stacked.shape)
        broken(applied.model, batch, "xavier", plant, "weights: .*of the stacked matrix")


def _stacked(shape: torch.Size) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        torch.manual_seed(2)
        for p in model.parameters():
            if p.shape == shape:
                nn.init.xavier_uniform_(p)

    return plant


def test_pytorch_counts_one_fan_of_all_groups() -> None:
    applied, batch = on_module("xavier", convolutions)
    for name in ("4", "8"):
        model = applied.model
        before = model.get_parameter(f"{name}.weight").detach().clone()
        torch.manual_seed(2)
        nn.init.xavier_normal_(model.get_parameter(f"{name}.weight"))
        words = said(audit(model, batch, "xavier"))
        assert words.startswith("1 of 6 weights")
        assert "one of the fans of all groups, as PyTorch counts it" in words
        model.get_parameter(f"{name}.weight").data.copy_(before)


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (4, 1), (2, 4)])
def test_of_a_transposed_convolution_the_stride_counts(stride: int, groups: int) -> None:
    """``in k^2 / s^2`` reach an output, ``out k^2`` are reached: 128 and 512 at stride 2."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(0)
        up = nn.ConvTranspose2d(32, 32, 4, stride, 1, groups=groups)
        return nn.Sequential(nn.Conv2d(3, 32, 3), nn.Tanh(), up), torch.randn(2, 3, 8, 8)

    applied, batch = on_module("xavier", build)
    std = float(applied.model.get_parameter("2.weight").detach().std())
    reached, reach = 512 / stride**2 / groups, 512 / groups
    assert std == pytest.approx((2 / (reached + reach)) ** 0.5, rel=0.03)
    if (stride, groups) == (2, 1):
        assert std == pytest.approx(0.0559, rel=0.03)
    if stride > 1:
        ignored = ((reached + reach) / (2 * reach)) ** 0.5
        words = f"one in {stride**2} of the kernel's places reaches an output, and all were"
        broken(applied.model, batch, "xavier", scaled("2.weight", ignored), words)


def test_a_uniform_draw_of_pytorch_follows() -> None:
    model, batch = plain()
    for name, p in model.named_parameters():
        nn.init.zeros_(p) if name.endswith("bias") else nn.init.xavier_uniform_(p)
    assert audit(model, batch, "xavier").holds
    model.get_parameter("2.bias").data.fill_(1e-3)
    assert "1 of 5 biases" in said(audit(model, batch, "xavier"))


def test_a_tied_head_keeps_the_embedding() -> None:
    applied, _ = on_module("xavier", gpt2)
    named = dict(applied.model.named_parameters(remove_duplicate=False))
    assert named["lm_head.weight"] is named["transformer.wte.weight"]


def test_relu_is_told_that_it_is_not_meant() -> None:
    model, batch = plain(nn.ReLU)
    (weights, _) = audit(model, batch, "xavier").findings
    assert "PyTorch's default" in weights.said
    applied, batch = on_module("xavier", lambda: plain(nn.ReLU))
    (weights, _) = audit(applied.model, batch, "xavier").findings
    assert weights.said.endswith("derived for odd units of slope 1 at 0, tanh, and relu was met")
