"""DeepScaleLM: its numbers, unit variance at depth, and what it cannot be put into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.deepscalelm import BETA, LAMBDA, correlations, feed_forward_std, value_std
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import bert, encoder, gpt2, llama, mlp, postnorm

FEED_FORWARD = "h = h + dropout(W2(relu(W1(layernorm(h), out=4*n))), p=0.1)"
ATTENDS = "h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


def test_numbers() -> None:
    assert number_of(feed_forward_std(0.1), {"n": 1024}) == pytest.approx(0.0255949, abs=6e-8)
    assert number_of("1/sqrt(n)", {"n": 1024}) == 0.03125
    assert number_of("sqrt((1-0.1)/3)", {}) == pytest.approx(0.547723, abs=6e-7)
    entering = list(correlations([True, False] * 192, 0.1, 0.005))
    first, last = (number_of(value_std(1024, 0.1, r), {}) for r in (entering[0], entering[-2]))
    assert [first, last] == pytest.approx([0.045578, 0.033788], abs=6e-7)


@pytest.mark.parametrize(("r", "out"), [(0.0, 0.31831), (0.5, 0.60900), (0.9, 0.90954)])
def test_the_correlation_behind_a_feed_forward_layer(
    r: float, out: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depthgauge.recipes.deepscalelm._ZIPF", r)
    assert list(correlations([False, False], 0.0, 1.0))[1] == pytest.approx(out, abs=6e-6)


def test_skip_and_branch_keep_the_variance() -> None:
    for L in (2.0, 12.0, 384.0):
        squares = number_of(LAMBDA, {"L": L}) ** 2 + number_of(BETA, {"L": L}) ** 2
        assert squares == pytest.approx(1, abs=1e-12)


def test_on_equations() -> None:
    changed, model, batch = on_equation("deepscalelm", FEED_FORWARD)
    assert str(changed.block).startswith("h = sqrt(1 - 2/L) * h + sqrt(2/L) * dropout(W2(")
    weight = model.get_parameter("blocks.2.W2.weight").detach()
    assert float(weight.std()) == pytest.approx((0.9 / 2) ** 0.25 / 32**0.5, rel=0.04)
    broken(model, batch, "deepscalelm", redrawn("deepscalelm", batch, "he", rule=2), ": He")
    on_equation("deepscalelm", "h = rmsnorm(h + W2(gelu(W1(h, out=2*n))))")


def test_the_variance_stays_one_through_192_layers() -> None:
    equation = "h = h + W2(relu(W1(layernorm(h), out=4*n)))"
    network = rewritten(Network(equation, 192, 64), "deepscalelm").network
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for block in network.module(seed=3).get_submodule("blocks").children():
        with torch.no_grad():
            x = block(x, x)
        assert 0.8 < float(x.square().mean()) < 1.25


@pytest.mark.parametrize("build", [encoder, lambda: encoder(dropout=0.1, layers=6), mlp, postnorm])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("deepscalelm", build)


def test_dropout_and_three_tables_are_seen() -> None:
    applied, _ = on_module("deepscalelm", bert)  # dropout 0.1, switched off
    table = applied.model.get_parameter("bert.embeddings.word_embeddings.weight").detach()
    assert float(table.std()) == pytest.approx(0.3**0.5, rel=0.06)
    assert "3 embeddings: sqrt((1-p)/3)" in applied.changes


def test_values_of_an_equation_have_no_formula_in_the_block() -> None:
    with pytest.raises(NetworkError, match=r"gives attention.1.v another standard deviation"):
        rewritten(Network(ATTENDS, 4, 16), "deepscalelm")
    post = ATTENDS.replace("layernorm(h)", "h").replace("h = ", "h = layernorm(").replace(";", ");")
    model = Network(post + ")", 4, 32).module()
    batch = torch.randn(4, 6, 32)
    applied = apply(model, batch, "deepscalelm").model
    stds = [
        float(p.detach().std()) for n, p in applied.named_parameters() if n.endswith("1.v.weight")
    ]
    assert stds == sorted(stds, reverse=True)


def test_what_it_does_not_cover() -> None:
    bare = Network("h = h + W2(relu(W1(h)))", 2, 8)
    with pytest.raises(NetworkError, match=r"'blocks.0.W2' has no norm, and DeepScaleLM keeps"):
        rewritten(bare, "deepscalelm")
    model, batch = gpt2()
    left = apply(model, batch, "deepscalelm").left
    assert left[0] == (
        "no module returns the sum after 'transformer.h.0.attn': its skip was not scaled"
    )


def test_gated_branches_are_refused() -> None:
    model, batch = llama()
    with pytest.raises(NetworkError, match=r"'model.layers.0.mlp' has 3 weight layers, and DeepS"):
        apply(model, batch, "deepscalelm")


@pytest.mark.parametrize(
    ("sum_", "words"),
    [
        ("h + F", "lambda and beta were never applied"),
        ("h + sqrt(2/L)*F", "lambda is missing on the skip"),
        ("sqrt(2/L)*h + sqrt(1-2/L)*F", "lambda and beta were swapped"),
        ("(1-2/L)*h + (2/L)*F", "lambda^2 and beta^2 stand where"),
        ("sqrt(1-1/L)*h + 1/sqrt(L)*F", "N counts branches, not layers"),
        ("(h + F)/sqrt(2)", "1/sqrt(2) on both, at any depth"),
    ],
)
def test_wrong_numbers_are_named(sum_: str, words: str) -> None:
    equation = "h = " + sum_.replace("F", "W2(relu(W1(layernorm(h), out=4*n)))")
    model = Network(equation, 8, 32).module()
    assert words in said(audit(model, torch.randn(8, 32), "deepscalelm"))


def test_wrong_weights_are_named() -> None:
    applied, batch = on_module("deepscalelm", encoder)
    plant = redrawn("deepscalelm", batch, "normal(std=1/sqrt(32))", rule=1)
    broken(applied.model, batch, "deepscalelm", plant, "as of queries and keys: r was left out")
