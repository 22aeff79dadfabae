"""Activations against PyTorch, derivatives against autograd."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.network.activations import gate

Z = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -1e-9, 1e-9])]).double()

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "identity": ({}, lambda z: z),
    "sigmoid": ({}, torch.sigmoid),
    "tanh": ({}, torch.tanh),
    "relu": ({}, torch.relu),
    "leaky_relu": ({"slope": 0.2}, lambda z: torch.where(z > 0, z, 0.2 * z)),
    "elu": ({"alpha": 1.5}, lambda z: torch.where(z > 0, z, 1.5 * (z.exp() - 1))),
    "selu": ({}, torch.selu),
    "gelu": ({"approximate": "none"}, lambda z: z * 0.5 * (1 + torch.erf(z / 2**0.5))),
    "silu": ({}, lambda z: z / (1 + (-z).exp())),
    "mish": ({}, lambda z: z * torch.tanh(torch.log1p(z.exp()))),
    "softplus": ({"beta": 2.0}, lambda z: torch.log1p((2 * z).exp()) / 2),
    "softsign": ({}, lambda z: z / (1 + z.abs())),
    "erf": ({}, torch.erf),
}


def test_every_activation_of_the_language_is_here() -> None:
    assert set(CASES) == set(ACTIVATIONS)


@pytest.mark.parametrize("kind", CASES)
def test_value(kind: str) -> None:
    options, formula = CASES[kind]
    assert torch.allclose(gate(kind, options).apply(Z), formula(Z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [*CASES, "gelu tanh"])
def test_derivative(kind: str) -> None:
    word, _, form = kind.partition(" ")
    options = {"approximate": form} if form else CASES[word][0]
    rule = gate(word, options)
    z = Z.clone().requires_grad_()
    y = rule.apply(z)
    (slope,) = torch.autograd.grad(y.sum(), z)
    # PyTorch's softplus turns linear at beta z = 20, where the sigmoid is 1 - 2e-9
    rtol = 1e-8 if kind == "softplus" else 1e-9
    assert torch.allclose(rule.derivative(Z, y.detach()), slope, rtol=rtol, atol=1e-12)


def test_the_two_forms_of_gelu_differ() -> None:
    tanh_form = gate("gelu", {"approximate": "tanh"}).apply(Z)
    assert torch.equal(tanh_form, F.gelu(Z, approximate="tanh"))
    assert 1e-5 < (tanh_form - F.gelu(Z)).abs().max() < 1e-3
