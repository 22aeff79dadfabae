"""LayerNorm Scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import rewritten
from depthgauge.recipes.audit import audit
from depthgauge.recipes.wrappers import Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import bert, encoder, gpt2, llama, postnorm, transformer

BLOCK = "h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


def test_on_equations() -> None:
    changed, model, batch = on_equation("layernorm-scaling", BLOCK, depth=16, width=16)
    assert str(changed.block) == (
        "h = h + attention(1/sqrt(l) * layernorm(h)); "
        "h = h + W2(relu(W1(1/sqrt(l) * layernorm(h), out=4*n)))"
    )
    last = layout(model, batch).branches[-1]
    assert last.block == 16
    assert last.inlet == pytest.approx(0.25)
    on_equation("layernorm-scaling", "h = rmsnorm(h + W2(relu(W1(h, out=4*n))))")


def test_a_norm_with_a_name_is_scaled_behind_it() -> None:
    shared = Network("u = layernorm(h); h = h + W3(silu(W1(u)) * W2(u))", 4, 16)
    changed = rewritten(shared, "layernorm-scaling").network
    assert str(changed.block).startswith("u = 1/sqrt(l) * layernorm(h); ")
    assert str(rewritten(changed, "layernorm-scaling").network.block) == str(changed.block)


@pytest.mark.parametrize(
    "build", [gpt2, llama, bert, encoder, lambda: transformer(3, 3, pre=True), postnorm]
)
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("layernorm-scaling", build)


def test_what_a_module_computes() -> None:
    applied, _ = on_module("layernorm-scaling", gpt2)
    x = torch.randn(2, 32)
    for block in range(3):
        for name in ("ln_1", "ln_2"):
            norm = applied.model.get_submodule(f"transformer.h.{block}.{name}")
            plain = torch.nn.functional.layer_norm(x, (32,))
            torch.testing.assert_close(norm(x), plain / (block + 1) ** 0.5)
    final = applied.model.get_submodule("transformer.ln_f")
    torch.testing.assert_close(final(x), torch.nn.functional.layer_norm(x, (32,)))


def test_faults_are_named() -> None:
    applied, batch = on_module("layernorm-scaling", gpt2)

    def lost(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Times):
                module.number = 1.0

    words = "2 of 6 branches whose input is multiplied .*h.1.attn' has 1, expected 0.7071"
    broken(applied.model, batch, "layernorm-scaling", lost, words)
    counted = BLOCK.replace("layernorm(h)); h", "layernorm(h)/sqrt(2*l-1)); h").replace(
        "W1(layernorm(h)", "W1(layernorm(h)/sqrt(2*l)"
    )
    model = Network(counted, 4, 16).module()
    found = said(audit(model, torch.randn(2, 6, 16), "layernorm-scaling"))
    assert "1 of 8 branches" in found
    assert "has 0.7071, expected 1" in found
