"""GPT-2's initialisation beyond GPT-2: equations, other Transformers, its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from depthgauge.recipes.rules import number_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn
from tests.recipes.models import encoder, llama, mlp, transformer

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
