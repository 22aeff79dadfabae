"""T-Fixup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import number_of
from depthgauge.recipes.t_fixup import DECODER, ENCODER
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import bert, encoder, gpt2, llama, transformer

BLOCK = "h = h + attention(layernorm(h), heads=4); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


@pytest.mark.parametrize(
    ("layers", "encoder", "decoder"),
    [
        (6, 0.42809, 0.36889),
        (12, 0.35998, 0.31020),
        (24, 0.30271, 0.26085),
        (50, 0.25196, 0.21712),
        (100, 0.21187, 0.18257),
    ],
)
def test_numbers(layers: int, encoder: float, decoder: float) -> None:
    found = [number_of(text.format(N=layers), {}) for text in (ENCODER, DECODER)]
    assert found == pytest.approx([encoder, decoder], abs=6e-6)


def test_on_equations() -> None:
    changed, model, _ = on_equation("t-fixup", BLOCK, depth=6)
    assert str(changed.block) == ("h = h + attention(h, heads=4); h = h + W2(relu(W1(h, out=4*n)))")
    for name, gain in (("q", 1.0), ("k", 1.0), ("v", 0.42809), ("o", 0.42809)):
        pooled = torch.cat([model.get_parameter(f"blocks.{i}.attention.1.{name}.weight").detach()
                            for i in range(6)])  # fmt: skip
        assert float(pooled.std()) == pytest.approx(gain * 32**-0.5, rel=0.04)


@pytest.mark.parametrize("build", [encoder, lambda: transformer(2, 3), gpt2, llama, bert])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, _ = on_module("t-fixup", build)
    assert not any(isinstance(m, nn.LayerNorm) for m in applied.model.modules())


def test_embeddings_and_the_decoder_have_their_own() -> None:
    applied, batch = on_module("t-fixup", gpt2)
    table = applied.model.get_parameter("transformer.wte.weight").detach()
    assert float(table.std()) == pytest.approx(32**-0.5 * 27**-0.25, rel=0.06)
    head = applied.model.get_parameter("lm_head.weight") if hasattr(applied.model, "lm_head") else 0
    assert head is applied.model.get_parameter("transformer.wte.weight"), "the two are still tied"
    words = "2 of 2 embeddings: .*the depth scale was never applied"
    plant = redrawn("t-fixup", batch, "normal(std=1/sqrt(32))", rule=2)
    broken(applied.model, batch, "t-fixup", plant, words)
    applied, _ = on_module("t-fixup", lambda: transformer(2, 3))
    value = applied.model.get_parameter("decoder.layers.0.multihead_attn.in_proj_weight")
    expected = 32**-0.5 * 27**-0.25
    assert float(value.detach()[64:].std()) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize(
    ("init", "rule", "words"),
    [
        ("xavier", 0, "the depth scale was never applied"),
        ("xavier(gain=0.67*L**-0.25)", 0, "expected one .*: branches were counted, not layers"),
        ("xavier(gain=(9*L/2)**-0.25)", 0, r"the decoder's constant, \(9N\)\^\(-1/4\)$"),
        ("xavier(gain=(9*L)**-0.25)", 0, "the decoder's constant, .*, and branches were counted"),
        ("xavier(gain=0.67*(L/2)**-0.25/sqrt(2))", 0, "Xavier of queries, keys and values stacked"),
        (
            "xavier(gain=0.67*(L/2)**-0.25*sqrt(2))",
            0,
            r"sqrt\(2\) too large: Xavier was of the part",
        ),
        ("xavier(gain=1/sqrt(2))", 1, "Xavier of queries, keys and values stacked"),
        ("xavier(gain=0.67*(L/2)**-0.25)", 1, "scaled, where queries and keys are not"),
    ],
)
def test_wrong_weights_are_named(init: str, rule: int, words: str) -> None:
    applied, batch = on_module("t-fixup", lambda: encoder(layers=6))
    broken(applied.model, batch, "t-fixup", redrawn("t-fixup", batch, init, rule=rule), words)


@pytest.mark.parametrize(
    ("stack", "gain", "words"),
    [
        ("encoder", "(9*3)**-0.25", "the decoder's constant, (9N)^(-1/4)"),
        ("encoder", "0.67*6**-0.25", ": branches were counted, not layers"),
        ("decoder", "0.67*5**-0.25", "the encoder's constant, .67 N^(-1/4)"),
        ("decoder", "(9*15)**-0.25", ": branches were counted, not layers"),
        ("encoder", "0.67*3**-0.25", ""),
        ("decoder", "(9*5)**-0.25", ""),
    ],
)
def test_the_other_stack_s_constant_is_named(stack: str, gain: str, words: str) -> None:
    applied, batch = on_module("t-fixup", lambda: transformer(3, 5))
    init = f"xavier(gain={gain})"
    redrawn("t-fixup", batch, init, lambda w: w.path.startswith(stack))(applied.model)
    found = audit(applied.model, batch, "t-fixup")
    assert found.holds is (not words)
    assert words in said(found)


def test_a_norm_that_was_left_is_named() -> None:
    applied, batch = on_module("t-fixup", encoder)
    applied.model.get_submodule("0.layers.1").norm1 = nn.LayerNorm(32)
    words = said(audit(applied.model, batch, "t-fixup"))
    assert "1 norms: T-Fixup takes their place" in words


class Translator(nn.Module):
    """Three encoder and five decoder layers, of one table or of two."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.source = nn.Embedding(64, 32)
        self.target = self.source if shared else nn.Embedding(64, 32)
        self.inner, _ = transformer(3, 5)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(self.source(source), self.target(target))
        return out


@pytest.mark.parametrize("shared", [True, False])
def test_a_table_of_the_decoder_alone_counts_its_layers(shared: bool) -> None:
    tokens = torch.Generator().manual_seed(0)
    batch = tuple(torch.randint(0, 64, (2, n), generator=tokens) for n in (6, 5))
    applied, batch = on_module("t-fixup", lambda: (Translator(shared), batch))
    stds = [float(applied.model.get_parameter(f"{name}.weight").detach().std())
            for name in ("source", *(() if shared else ("target",)))]  # fmt: skip
    asked = [32**-0.5 * (9 * n) ** -0.25 for n in ((3,) if shared else (3, 5))]
    assert stds == pytest.approx(asked, rel=4 / (2 * 2048) ** 0.5)
    if not shared:
        with torch.no_grad():
            applied.model.get_parameter("target.weight").mul_((5 / 3) ** 0.25)
        assert "1 of 2 embeddings" in said(audit(applied.model, batch, "t-fixup"))
