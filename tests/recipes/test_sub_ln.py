"""Sub-LN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply, rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.recipes.stacks import Stack
from depthgauge.recipes.sub_ln import GAMMA, gamma_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn
from tests.recipes.models import bert, encoder, gpt2, llama, mlp, postnorm


@pytest.mark.parametrize(
    ("layers", "gamma"),
    [(6, 1.57636), (12, 1.78271), (24, 1.96754), (48, 2.13643), (100, 2.30181)],
)
def test_numbers_of_one_stack(layers: int, gamma: float) -> None:
    assert number_of(GAMMA, {"L": 2.0 * layers}) == pytest.approx(gamma, abs=6e-6)


@pytest.mark.parametrize(("layers", "both"), [(6, (1.54729, 1.70011)), (12, (1.94839, 1.89302))])
def test_numbers_of_an_encoder_and_a_decoder(layers: int, both: tuple[float, float]) -> None:
    roles = ("encoder", "decoder")
    found = [number_of(gamma_of(Stack(role, "", ()), layers, layers), {}) for role in roles]
    assert found == pytest.approx(list(both), abs=6e-6)


def test_on_equations() -> None:
    changed, model, batch = on_equation("sub-ln", "h = h + W2(relu(W1(layernorm(h), out=4*n)))")
    assert str(changed.block) == "h = h + W2(layernorm(relu(W1(layernorm(h), out=4*n))))"
    words = "a gain of 1: gamma was never applied"
    broken(model, batch, "sub-ln", redrawn("sub-ln", batch, "xavier"), words)
    whole = Network("h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h))))", 2, 8)
    with pytest.raises(NetworkError, match="ends with no linear layer in front of which a norm"):
        rewritten(whole, "sub-ln")


@pytest.mark.parametrize("build", [gpt2, llama, bert, mlp, postnorm])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("sub-ln", build)


def test_the_inner_norm_stands_in_front_of_the_last_layer() -> None:
    applied, _ = on_module("sub-ln", gpt2)
    for path, width in (("attn", 32), ("mlp", 128)):
        norm = applied.model.get_submodule(f"transformer.h.1.{path}.c_proj.before")
        assert isinstance(norm, nn.LayerNorm)
        assert tuple(norm.normalized_shape) == (width,)


def test_attention_in_one_function_is_left_and_named() -> None:
    model, batch = encoder()
    left = apply(model, batch, "sub-ln").left
    assert left[0] == (
        "'0.layers.0.self_attn' is attention in one function: no norm can be put inside it"
    )


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("xavier(gain=1/sqrt(log(L)))", "1/gamma: Sub-LN's gain is above 1"),
        ("xavier(gain=(4*L)**-0.25)", "DeepNorm's beta"),
        ("xavier(gain=sqrt(log(2*L)))", "additions were counted as layers"),
    ],
)
def test_wrong_gains_are_named(init: str, words: str) -> None:
    applied, batch = on_module("sub-ln", gpt2)
    broken(applied.model, batch, "sub-ln", redrawn("sub-ln", batch, init), words)


def test_a_missing_inner_norm_is_named() -> None:
    applied, batch = on_module("sub-ln", gpt2)

    def plant(model: nn.Module) -> None:
        mlp = model.get_submodule("transformer.h.2.mlp")
        mlp.c_proj = mlp.get_submodule("c_proj.module")

    words = "5 of 6 branches .*: the norm in front of the branch's last layer is missing"
    broken(applied.model, batch, "sub-ln", plant, words)
