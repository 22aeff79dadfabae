"""Branches over sqrt(L), by a multiplier and by initialisation."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.study.reference import resnet as reference
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import gpt2, mlp, postnorm, resnet, transformer

MLP = "h + W2(relu(W1(h, out=2*n)))"


def test_on_equations() -> None:
    changed, model, batch = on_equation("inv-sqrtL", MLP)
    assert str(changed.block) == "h = h + 1/sqrt(L) * W2(relu(W1(h, out=2*n)))"
    broken(model, batch, "inv-sqrtL", scaled("W2.weight", 6**-0.5), "it is applied twice")
    on_equation("inv-sqrtL", "h = h + attention(h); h = h + W2(relu(W1(h)))", tokens=5)
    changed, model, batch = on_equation("inv-sqrtL-init", MLP)
    assert str(changed.block) == "h = h + W2(relu(W1(h, out=2*n)))"
    broken(model, batch, "inv-sqrtL-init", scaled("W2.weight", 6**0.5), "never applied, or lost")


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        (MLP, "6 of 6 sums: 1 h . 1 F, expected 1 h . 0.4082 F: the factor was never applied"),
        (MLP.replace("+ ", "+ 1/L*"), "1/L instead of its root"),
        (MLP.replace("+ ", "+ 1/sqrt(2*L)*"), "L counts the 12 layers, not the 6 branches"),
        (MLP.replace("+ ", "+ 1/sqrt(3)*"), "L = 3: counted in a part"),
        ("(h + W2(relu(W1(h))))/sqrt(L)", "the skip is scaled too"),
    ],
)
def test_mistaken_multipliers_are_named(equation: str, words: str) -> None:
    model = Network(equation, 6, 32, init="he").module(seed=0)
    found = audit(model, torch.randn(4, 32), "inv-sqrtL")
    assert not found.holds
    assert re.search(words, said(found)), said(found)


def test_mistaken_initialisations_are_named() -> None:
    _, model, batch = on_equation("inv-sqrtL-init", MLP)
    broken(model, batch, "inv-sqrtL-init", scaled("W2.weight", 6**-0.5), "1/L instead of its root")
    _, model, batch = on_equation("inv-sqrtL-init", MLP)
    broken(model, batch, "inv-sqrtL-init", scaled("W2.weight", 6), "the exponent has the wrong")
    _, model, batch = on_equation("inv-sqrtL-init", MLP)
    broken(model, batch, "inv-sqrtL-init", scaled("W1.weight", 6**-0.5), "every weight of a branch")
    blocks = "h = h + W2(relu(W1(h))); h = h + W4(relu(W3(h, out=2*n)))"
    _, model, batch = on_equation("inv-sqrtL-init", blocks, depth=4)
    words = "blocks were counted, not branches"

    def both(model: nn.Module) -> None:
        for name in ("W2", "W4"):
            scaled(f"{name}.weight", 2**0.5)(model)

    broken(model, batch, "inv-sqrtL-init", both, words)


def test_the_multiplier_is_not_the_initialisation() -> None:
    multiplied = rewritten(Network(MLP, 6, 32), "inv-sqrtL").network
    initialised = rewritten(Network(MLP, 6, 32), "inv-sqrtL-init").network
    a, b = multiplied.module(seed=3), initialised.module(seed=3)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(a(x), b(x), rtol=1e-4, atol=1e-5)
    assert "the factor multiplies the branch: another update" in said(audit(a, x, "inv-sqrtL-init"))
    assert "the factor was never applied, or lost" in said(audit(b, x, "inv-sqrtL"))
    last = "blocks.0.W2.weight"
    for model in (a, b):
        model(x).square().mean().backward()
    small, large = (model.get_parameter(last).grad for model in (a, b))
    assert small is not None
    assert large is not None
    assert torch.allclose(small * math.sqrt(6), large, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("depth", "printed"), [(10, "2.59374"), (100, "2.70481"), (1000, "2.71692")]
)
def test_the_variance_stays_below_e(depth: int, printed: str) -> None:
    assert f"{(1 + 1 / depth) ** depth:.5f}" == printed
    if depth == 100:
        network = Network("h + W(h)", depth, 64, init="orthogonal")
        model = rewritten(network, "inv-sqrtL").network.module(seed=0)
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
        # He's gain in front of a layer without a ReLU: a branch of variance 2.
        growth = (1 + 2 / depth) ** depth
        with torch.no_grad():
            assert float(model(x).var() / x.var()) == pytest.approx(growth, rel=0.15)
    assert f"{15**-0.5:.6f}" == "0.258199"


def test_on_modules() -> None:
    applied, batch = on_module("inv-sqrtL", resnet)
    broken(applied.model, batch, "inv-sqrtL", scaled("a.weight", 3), "3 of 6 weights: std 2.9")
    applied, batch = on_module("inv-sqrtL", lambda: reference(50))
    assert len([line for line in applied.changes if line.startswith("16 branches scaled")]) == 1
    on_module("inv-sqrtL", gpt2)
    on_module("inv-sqrtL", transformer)
    on_module("inv-sqrtL", mlp)
    on_module("inv-sqrtL", postnorm)
    applied, batch = on_module("inv-sqrtL-init", mlp)
    broken(applied.model, batch, "inv-sqrtL-init", scaled("down.weight", 6**0.5), "never applied")
    on_module("inv-sqrtL-init", gpt2)


def test_pytorchs_encoder_takes_no_way_past_what_was_put_in() -> None:
    model, batch = transformer(2, 2)
    changed = apply(model, batch, "inv-sqrtL").model.eval()
    with_gradients = changed(*batch)
    with torch.no_grad():
        assert torch.allclose(changed(*batch), with_gradients, atol=1e-6)
        assert not torch.allclose(model.eval()(*batch), with_gradients, atol=1e-2)


def test_what_they_do_not_cover() -> None:
    for name in ("inv-sqrtL", "inv-sqrtL-init"):
        with pytest.raises(NetworkError, match="no residual branch was found"):
            rewritten(Network("W(relu(h))", 4, 8), name)
    with pytest.raises(NetworkError, match=r"ends with a norm, .* use inv-sqrtL"):
        apply(*resnet(), "inv-sqrtL-init")
