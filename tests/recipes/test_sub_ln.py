"""Sub-LN."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.recipes.stacks import Stack
from depthgauge.recipes.sub_ln import GAMMA, gamma_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import WIDTH, bert, encoder, gpt2, llama, mlp, postnorm, qwen3


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
    bare = Network("h = h + relu(W(layernorm(h)))", 2, 8)
    with pytest.raises(NetworkError, match="ends with no linear layer in front of which a norm"):
        rewritten(bare, "sub-ln")


def test_in_front_of_attention_s_output_layer_the_module_takes_the_norm() -> None:
    """An equation has attention as one word; the module that it builds has its output layer."""
    text = "h = h + attention(layernorm(h), heads=4); h = h + W2(relu(W1(layernorm(h), out=4*n)))"
    network, batch = Network(text, 3, 16), torch.randn(4, 6, 16)
    words = (
        r"'attention\(layernorm\(h\), heads=4\)' has its output layer inside, .* apply the recipe"
    )
    with pytest.raises(NetworkError, match=words):
        rewritten(network, "sub-ln")
    applied = apply(network.module(0), batch, "sub-ln")
    assert applied.left == ()
    assert audit(applied.model, batch, "sub-ln").holds
    output = next(path for path in dict(applied.model.named_modules()) if path.endswith("o.before"))
    plant = output.rpartition(".")[0]
    applied.model.get_submodule(plant).before = nn.Identity()
    found = audit(applied.model, batch, "sub-ln")
    assert not found.holds
    assert "5 of 6 branches with their norms in place" in said(found)


@pytest.mark.parametrize("build", [gpt2, llama, bert, mlp, postnorm, qwen3])
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


class Inside(nn.Module):
    """A branch of two layers or three, with its second norm at a place of its own."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        middle = (32,) if place == "in front of a middle layer" else ()
        sizes = (WIDTH, *middle, 40, WIDTH)
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.ReLU()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.inner = nn.LayerNorm(sizes[1])

    def forward(self, x: Tensor) -> Tensor:
        first, *others, last = self.layers
        y = first(self.norm(x))
        y = self.act(self.inner(y) if self.place == "in front of the activation" else y)
        if self.place != "in front of the activation":
            y = self.inner(y)
        for layer in others:
            y = self.act(layer(y))
        total: Tensor = x + last(y)
        return total


def inside(place: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Inside(place) for _ in range(3)]
    stem, head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
    return nn.Sequential(stem, *blocks, nn.LayerNorm(WIDTH), head), torch.randn(16, 8)


@pytest.mark.parametrize("place", ["in front of the activation", "in front of a middle layer"])
def test_an_inner_norm_elsewhere_than_in_front_of_the_last_layer(place: str) -> None:
    model, batch = inside(place)
    words = "'1.layers.*' has layernorm in, layernorm inner: the inner norm does not stand directly"
    assert re.search(words, said(audit(model, batch, "sub-ln")))
    applied, _ = on_module("sub-ln", lambda: inside(place))
    assert isinstance(applied.model.get_submodule("2.inner"), nn.Identity)
    last = len(model.get_submodule("2.layers")) - 1  # type: ignore[arg-type]
    front = applied.model.get_submodule(f"2.layers.{last}.before")
    assert isinstance(front, nn.LayerNorm)
    assert tuple(front.normalized_shape) == (40,)


def test_an_inner_norm_in_front_of_the_last_layer_stays() -> None:
    model, batch = inside("in front of the last layer")
    assert "norms" not in said(audit(model, batch, "sub-ln"))
    applied, _ = on_module("sub-ln", lambda: inside("in front of the last layer"))
    assert isinstance(applied.model.get_submodule("2.inner"), nn.LayerNorm)
    assert not any("norm" in change for change in applied.changes)
