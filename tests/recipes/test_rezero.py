"""ReZero."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.first_steps import first_gradients
from tests.recipes.contract import broken, on_equation, on_module, parameter, said
from tests.recipes.models import DEPTH, gpt2, mlp, transformer


def test_on_equations() -> None:
    changed, model, batch = on_equation("rezero", "h + W2(relu(W1(layernorm(h))))")
    assert str(changed.block) == "h = h + scalar(0) * W2(relu(W1(h)))"
    assert torch.equal(model(batch), batch)
    broken(model, batch, "rezero", _half, "0 of 6 branches with a learned multiplier scalar.0.")


def test_at_the_first_step_the_multipliers_alone_have_a_gradient() -> None:
    _, model, batch = on_equation("rezero", "h + W2(relu(W1(h)))")
    zero = first_gradients(model, batch)
    assert not any(none for name, none in zero[0].items() if "scalar" in name)
    assert all(none for name, none in zero[0].items() if "W" in name)
    assert not any(zero[1].values())


def test_on_modules_and_faults() -> None:
    applied, batch = on_module("rezero", mlp)
    assert len(applied.scalars) == DEPTH
    groups = applied.groups(0.1, weight_decay=0.01)
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    optimizer = torch.optim.SGD(groups)
    assert audit(applied.model, batch, "rezero", optimizer).holds
    decayed = torch.optim.SGD(applied.model.parameters(), 0.1, weight_decay=0.01)
    assert "without weight decay" in said(audit(applied.model, batch, "rezero", decayed))
    broken(applied.model, batch, "rezero", _half, "multiplier")
    on_module("rezero", gpt2)


def test_a_norm_that_was_left_is_named() -> None:
    model, batch = mlp()
    left = apply(model, batch, "rezero").model
    left.get_submodule("2").norm = nn.LayerNorm(24)
    assert "norm" in said(audit(left, batch, "rezero"))


def _half(model: nn.Module) -> None:
    names = [name for name, p in model.named_parameters() if p.numel() == 1]
    with torch.no_grad():
        for name in names:
            parameter(model, name)[0].fill_(0.5)


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("h + W2(relu(W1(h)))", "the multiplier is missing"),
        ("h + scalar(1) * W2(relu(W1(h)))", "it begins at 1, as Fixup's does"),
        ("h + gain(0) * W2(relu(W1(h)))", "one number a channel"),
        ("h + 1/sqrt(L) * (scalar(0) * W2(relu(W1(h))))", "it is scaled twice"),
        ("1/sqrt(2) * h + 1/sqrt(2) * (scalar(0) * W2(relu(W1(h))))", "the sum is scaled too"),
    ],
)
def test_mistakes_are_named(equation: str, words: str) -> None:
    found = audit(Network(equation, 6, 16).module(seed=0), torch.randn(4, 16), "rezero")
    assert words in said(found)


def test_a_final_norm_that_was_left_is_named() -> None:
    model, batch = gpt2()
    left = apply(model, batch, "rezero").model
    left.transformer.ln_f = nn.LayerNorm(32)  # type: ignore[union-attr]
    assert "1 norms: ReZero does without" in said(audit(left, batch, "rezero"))


def test_an_encoders_weights_wake_later_than_a_decoders() -> None:
    applied, batch = on_module("rezero", transformer)
    zero = first_gradients(applied.model, batch)
    path = "encoder.layers.0.linear1.weight"
    assert [row[path] for row in zero] == [True, True, False]
    assert [row[path.replace("en", "de", 1)] for row in zero][:2] == [True, False]
