"""SkipInit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.first_steps import first_gradients
from depthgauge.recipes.rewritten import rewritten
from depthgauge.study.reference import resnet as reference
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import gpt2, mlp, resnet

CONV = "h + conv3(relu(batchnorm(conv3(h))))"


def test_on_equations() -> None:
    changed, model, batch = on_equation("skipinit", CONV, width=8, size=4)
    assert str(changed.block) == "h = h + scalar(0) * conv3(relu(conv3(h, bias=True)), bias=True)"
    assert torch.equal(model(batch), batch)
    broken(model, batch, "skipinit", scaled("weight", 2**-0.5), "a gain of 1, where ReLU takes")
    on_equation("skipinit", "u = layernorm(h); h = h + W2(relu(W1(u, out=3*n)))")
    attention = "h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h))))"
    on_equation("skipinit", attention, tokens=4)


def test_at_the_first_step_the_multipliers_alone_have_a_gradient() -> None:
    _, model, batch = on_equation("skipinit", CONV, width=8, size=4)
    zero = first_gradients(model, batch)
    assert {name: none for name, none in zero[0].items() if "scalar" in name}
    assert not any(none for name, none in zero[0].items() if "scalar" in name)
    assert all(none for name, none in zero[0].items() if "scalar" not in name)
    assert not any(none for name, none in zero[1].items() if name.endswith("weight"))


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("h + W2(relu(W1(h, bias=True)), bias=True)", "the multiplier is missing"),
        ("h + scalar(1) * W2(relu(W1(h, bias=True)), bias=True)", "begins at 1, as Fixup's"),
        ("h + gain(0) * W2(relu(W1(h, bias=True)), bias=True)", "one number a channel"),
        ("h + 1/sqrt(L) * (scalar(0) * W2(relu(W1(h, bias=True)), bias=True))", "scaled twice"),
        ("h + scalar(0) * W2(relu(W1(h)))", "0 of 12 weight layers of branches with a bias"),
        (
            "h + scalar(0) * W2(relu(layernorm(W1(h, bias=True))), bias=True)",
            "0 of 6 branches without a norm",
        ),
    ],
)
def test_mistakes_are_named(equation: str, words: str) -> None:
    model = Network(equation, 6, 32, init="he").module(seed=0)
    found = audit(model, torch.randn(8, 32), "skipinit")
    assert not found.holds
    assert words in said(found)


def test_on_modules() -> None:
    applied, batch = on_module("skipinit", resnet)
    assert "6 layers given a bias" in applied.changes
    assert len(applied.scalars) == 3
    broken(applied.model, batch, "skipinit", _unbiased, "5 of 6 weight layers .*'1.a.weight' has")
    applied, batch = on_module("skipinit", lambda: reference(50))
    assert not any("norm" in type(m).__name__.lower() for m in applied.model.modules())
    on_module("skipinit", mlp)
    on_module("skipinit", gpt2)


def _unbiased(model: nn.Module) -> None:
    layer = model.get_submodule("1.a")
    assert isinstance(layer, nn.Conv2d)
    layer.bias = None


def test_a_final_norm_that_was_left_is_named() -> None:
    model, batch = gpt2()
    left = apply(model, batch, "skipinit").model
    left.transformer.ln_f = nn.LayerNorm(32)  # type: ignore[union-attr]
    assert "1 norms: SkipInit takes their place" in said(audit(left, batch, "skipinit"))


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "skipinit")


@pytest.mark.parametrize("recipe", ["skipinit", "rezero"])
def test_behind_a_zero_head_all_wakes_a_step_later(recipe: str) -> None:
    model, batch = mlp()
    made = apply(model, batch, recipe).model
    head = made[-1]  # type: ignore[index]
    plain = [f.said for f in audit(made, batch, recipe).findings if "gradients" in f.part]
    nn.init.zeros_(head.weight)
    found = audit(made, batch, recipe)
    late = [f.said for f in found.findings if "gradients" in f.part]
    assert found.holds, said(found)
    assert [line.partition(": ")[2] for line in late[1:]] == [
        line.partition(": ")[2] for line in plain[:2]
    ]
    assert late[0].partition(": ")[2] == plain[0].partition(": ")[2]
    zero = first_gradients(made, batch)
    sleeping = [path for path in zero[1] if path.endswith("up.weight")]
    assert sleeping
    assert all(zero[1][path] for path in sleeping)
    assert not any(zero[2][path] for path in sleeping)
    with torch.no_grad():
        next(p for name, p in made.named_parameters() if p.numel() == 1).fill_(0.5)
    words = "has one already"
    assert words in said(audit(made, batch, recipe))
