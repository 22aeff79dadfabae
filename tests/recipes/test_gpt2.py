"""GPT-2's initialisation beyond GPT-2: equations, other Transformers, its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import number_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import (
    bert,
    encoder,
    gpt2,
    llama,
    mlp,
    postnorm,
    stacked,
    transformer,
)

BLOCK = "h = h + attention(layernorm(h)); h = h + W2(gelu(W1(layernorm(h), out=4*n)))"


@pytest.mark.parametrize(("layers", "std"), [(12, 0.0040825), (24, 0.0028868), (48, 0.0020412)])
def test_numbers(layers: int, std: float) -> None:
    assert number_of("0.02/sqrt(L)", {"L": 2.0 * layers}) == pytest.approx(std, abs=6e-8)


def test_on_equations() -> None:
    changed, model, batch = on_equation("gpt2", BLOCK, depth=12)
    weight = model.get_parameter("blocks.3.attention.1.o.weight").detach()
    assert float(weight.std()) == pytest.approx(0.0040825, rel=0.08)
    assert str(changed.block) == BLOCK
    plant = redrawn("gpt2", batch, "normal(std=0.02)")
    broken(model, batch, "gpt2", plant, "24 of 24 residual projections: .*never applied")


@pytest.mark.parametrize(
    "build", [llama, mlp, lambda: encoder(pre=True), lambda: transformer(pre=True)]
)
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("gpt2", build)


def _drawn(path: str, std: float) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(path).normal_(0, std)

    return plant


@pytest.mark.parametrize(
    ("path", "std", "words"),
    [
        ("transformer.wte.weight", 1, "1 of 2 embeddings: std .*default in PyTorch, N"),
        ("transformer.wpe.weight", 1, "1 of 2 embeddings: std .*default in PyTorch, N"),
        ("transformer.h.1.attn.c_attn.bias", 1, "1 of 12 biases: .*, expected zero"),
        ("transformer.h.2.mlp.c_proj.bias", 1, "1 of 12 biases: .*, expected zero"),
    ],
)
def test_embeddings_and_biases_are_held_too(path: str, std: float, words: str) -> None:
    model, batch = gpt2()
    broken(model, batch, "gpt2", _drawn(path, std), words)
    applied = apply(model, batch, "gpt2").model
    assert audit(applied, batch, "gpt2").holds
    assert applied.get_parameter("lm_head.weight") is applied.get_parameter(
        "transformer.wte.weight"
    )


def test_a_head_at_pytorchs_default_is_named() -> None:
    model, batch = gpt2(tie_word_embeddings=False)

    def plant(model: nn.Module) -> None:
        head = model.get_submodule("lm_head")
        assert isinstance(head, nn.Linear)
        head.reset_parameters()

    words = "1 of 1 weights outside of branches: std .*: PyTorch's default, kaiming_uniform"
    broken(model, batch, "gpt2", plant, words)
    assert audit(apply(model, batch, "gpt2").model, batch, "gpt2").holds


@pytest.mark.parametrize("layers", [1, 3])
def test_two_mistakes_that_come_to_the_same_are_both_named(layers: int) -> None:
    """Of one layer N = 1: whoever counts layers scales by nothing."""
    model, batch = gpt2(n_layer=layers)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("c_proj.weight"):
                p.normal_(0, 0.02)
    (finding,) = [f for f in audit(model, batch, "gpt2").findings if not f.holds]
    assert ": the depth scale was never applied" in finding.said
    assert finding.said.endswith(
        "applied" if layers > 1 else "applied, or N = 1 layers were counted, not 2N = 2 additions"
    )


@pytest.mark.parametrize("build", [bert, postnorm, stacked])
def test_a_network_without_a_norm_in_front_is_refused(
    build: Callable[[], tuple[nn.Module, Any]],
) -> None:
    model, batch = build()
    words = "no branch has a norm in front .*rule of pre-norm; put norms in with 'prenorm' first"
    for verb in (apply, audit):
        with pytest.raises(NetworkError, match=words):
            verb(model, batch, "gpt2")
    if build is not stacked:  # whose layers are no modules
        normed = apply(*build(), "prenorm").model
        assert audit(apply(normed, batch, "gpt2").model, batch, "gpt2").holds


def test_one_norm_that_is_missing_is_named_and_not_refused() -> None:
    model, batch = gpt2()
    assert audit(model, batch, "gpt2").holds
    model.transformer.h[1].ln_2 = nn.Identity()  # type: ignore[union-attr, index]
    words = said(audit(model, batch, "gpt2"))
    assert words == "1 branches without a norm in front: it is a rule of pre-norm"
