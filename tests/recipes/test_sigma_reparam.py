"""Sigma-reparametrisation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from tests.recipes.contract import broken, on_module, said, scaled, undone
from tests.recipes.models import gpt2, mlp, plain, resnet, transformer


def spectral(module: nn.Module, name: str = "weight") -> float:
    weight = getattr(module, name).detach()
    return float(torch.linalg.matrix_norm(weight.flatten(1).double(), 2))


@pytest.mark.parametrize(
    ("build", "number"), [(mlp, 14), (plain, 5), (resnet, 9), (gpt2, 12), (transformer, 20)]
)
def test_on_modules(build: Any, number: int) -> None:
    applied, batch = on_module("sigma-reparam", build)
    seen = 0
    for module in applied.model.modules():
        for name in getattr(module, "parametrizations", {}):
            assert spectral(module, name) == pytest.approx(1, rel=1e-4)
            seen += 1
    assert seen == number
    copy.deepcopy(applied.model)
    out = applied.model(**batch) if isinstance(batch, dict) else None
    assert out is None or out.logits.isfinite().all()


def test_the_norm_follows_a_weight_that_grows() -> None:
    torch.manual_seed(0)
    applied = apply(nn.Sequential(nn.Linear(20, 30)), torch.randn(4, 20), "sigma-reparam")
    model = applied.model
    raw = model.get_parameter("0.parametrizations.weight.original")
    gamma = model.get_parameter("0.parametrizations.weight.0.gamma")
    with torch.no_grad():
        gamma.fill_(3.0)
        raw.add_(0.3 * torch.randn(30, 20)).mul_(50)
    assert spectral(model[0]) != pytest.approx(3, rel=1e-3)  # type: ignore[index]
    for _ in range(100):
        model(torch.randn(4, 20))
    assert spectral(model[0]) == pytest.approx(3, rel=1e-3)  # type: ignore[index]


def test_its_gradient_is_that_of_the_quotient() -> None:
    """Against autograd through the exact largest singular value."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(6, 5, bias=False)).double()
    batch, cotangent = torch.randn(7, 6).double(), torch.randn(7, 5).double()
    model = apply(layer, batch, "sigma-reparam").model
    (model(batch) * cotangent).sum().backward()
    weight = layer.get_parameter("0.weight").detach().clone().requires_grad_()
    exact = weight / torch.linalg.matrix_norm(weight, 2)
    (torch.nn.functional.linear(batch, exact) * cotangent).sum().backward()
    raw = model.get_parameter("0.parametrizations.weight.original")
    assert raw.grad is not None
    assert weight.grad is not None
    assert torch.allclose(raw.grad, weight.grad, atol=1e-10)


def test_what_is_parametrised_already_is_left_and_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    parametrizations.weight_norm(model[2])
    applied = apply(model, torch.randn(4, 8), "sigma-reparam")
    assert applied.changes[-1] == (
        "1 weights divided by their spectral norm, times a learned number 1; 1 are parametrised "
        "already ('2.parametrizations.weight.original1')"
    )
    words = said(audit(applied.model, torch.randn(4, 8), "sigma-reparam"))
    assert words.startswith("1 of 2 weights divided by their spectral norm: '2.param")


def test_two_passes_before_one_gradient() -> None:
    model = apply(nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4), "sigma-reparam").model
    (model(torch.randn(3, 4)).sum() + model(torch.randn(3, 4)).sum()).backward()


def test_faults() -> None:
    for plant, words in (
        (_bare, "13 of 14 weights divided by their spectral norm: '2.up.weight' is its own"),
        (scaled("1.down.parametrizations.weight.0.gamma", 0.5),
         "13 of 14 learned numbers gamma that begin at 1: that of '1.down"),
        (undone("4.up.parametrizations.weight.original", 0.1),
         "13 of 14 weights whose spectral norm is gamma: '4.up.*' has"),
    ):  # fmt: skip
        applied, batch = on_module("sigma-reparam", mlp)
        applied.model.eval()
        broken(applied.model, batch, "sigma-reparam", plant, words)


def _bare(model: nn.Module) -> None:
    parametrize.remove_parametrizations(model.get_submodule("2.up"), "weight")


def test_in_no_equation() -> None:
    with pytest.raises(
        NetworkError, match="sigma-reparametrisation cannot be put into an equation"
    ):
        rewritten(Network("h + W(h)", 2, 8), "sigma-reparam")
    network = Network("h + attention(h); h = h + W2(relu(W1(h)))", 2, 16, tokens=4)
    on_module("sigma-reparam", lambda: (network.module(), torch.randn(8, 4, 16)))
