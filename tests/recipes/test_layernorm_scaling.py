"""LayerNorm Scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.network.spec import Network
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.wrappers import Left, Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import bert, encoder, gpt2, llama, postnorm, preactivation, transformer

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


def early() -> tuple[nn.Module, Any]:
    return preactivation(early=True)


def test_a_projection_that_reads_the_stream_itself_is_left_alone() -> None:
    """Transitions whose 1x1 convolution has no norm in front: it takes the stream as it is."""
    applied, batch = on_module("layernorm-scaling", early)
    assert [branch.inlet for branch in layout(applied.model, batch).branches] == pytest.approx(
        [1, 2**-0.5, 3**-0.5, 0.5]
    )
    shortcut, norm = applied.model.get_submodule("3.shortcut"), "3.norms.0"
    assert isinstance(shortcut, nn.Conv2d)
    x = torch.randn(2, 8, 4, 4)
    plain = early()[0].get_submodule(norm).eval()
    torch.testing.assert_close(applied.model.get_submodule(norm).eval()(x), plain(x) / 3**0.5)

    def lost(model: nn.Module) -> None:
        norm = model.get_submodule("3.norms.0")
        (times,) = [m for m in norm.modules() if isinstance(m, Times)]
        times.number = 1.0

    words = "3 of 4 branches .*'3.convs' takes 1 of its input, expected 0.5774: .* is lost"
    broken(applied.model, batch, "layernorm-scaling", lost, words)


def test_faults_are_named() -> None:
    applied, batch = on_module("layernorm-scaling", gpt2)

    def lost(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Times):
                module.number = 1.0

    words = "2 of 6 branches whose input is scaled as it is to be: .*h.1.attn' takes 1 of its input"
    broken(applied.model, batch, "layernorm-scaling", lost, f"{words}, expected 0.7071: .* is lost")


@pytest.mark.parametrize(
    ("first", "second", "number", "words"),
    [
        ("1", "1", 2, "takes 1 of its input, expected 0.7071: the factor is lost"),
        ("1/l", "1/l", 2, "takes 0.5 of its input, expected 0.7071: 1/l instead of its root"),
        ("1/sqrt(depth)", "1/sqrt(depth)", 2, ": 1/sqrt(L) in every layer, L the number of layers"),
        ("1/sqrt(L)", "1/sqrt(L)", 0, ": 1/sqrt(L) in every layer, L the number of branches"),
        ("1/sqrt(max(l-1, 1))", "1/sqrt(max(l-1, 1))", 2, ": l counted from 0"),
        ("1/sqrt(l+1)", "1/sqrt(l+1)", 0, ": l counted from 2"),
        ("1/sqrt(2*l-1)", "1/sqrt(2*l)", 1, "takes 0.7071 of its input, expected 1: branches"),
        ("0.3", "0.3", 0, "takes 0.3 of its input, expected 1"),
    ],
)
def test_mistakes_are_named_once(first: str, second: str, number: int, words: str) -> None:
    block = (
        f"h = h + attention({first} * layernorm(h)); "
        f"h = h + W2(relu(W1({second} * layernorm(h), out=4*n)))"
    )
    found = audit(Network(block, 4, 16).module(), torch.randn(2, 6, 16), "layernorm-scaling")
    (finding,) = [finding for finding in found.findings if not finding.holds]
    assert finding.said.startswith(f"{number} of 8 branches whose input is scaled")
    assert words in finding.said
    assert (finding.said.count(": ") == 1) is words.startswith("takes 0.3")
    assert sum("whose input" in row.said for row in found.findings) == 1


@pytest.mark.parametrize("depth", [2, 3])
def test_of_two_layers_two_mistakes_come_to_the_same(depth: int) -> None:
    model = Network("h = h + W2(relu(W1(layernorm(h), out=4*n)))", depth, 16).module()
    found = said(audit(model, torch.randn(2, 16), "layernorm-scaling"))
    assert ": the factor is lost" in found
    assert (", or l counted from 0" in found) is (depth == 2)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1.0, ""),
        (3**-0.5, "stands the last layer's number"),
        (0.5, "stands that of one layer more number"),
        (6**-0.5, "stands that of the last branch number"),
        (32**-0.5, ""),  # what a tied head has
    ],
)
def test_the_final_norm_is_not_scaled(number: float, words: str) -> None:
    applied, batch = on_module("layernorm-scaling", gpt2)
    body: Any = applied.model.get_submodule("transformer")
    body.ln_f = Left(body.ln_f, Times(number))
    found = audit(applied.model, batch, "layernorm-scaling")
    assert found.holds is (not words), said(found)
    if words:
        assert said(found).startswith("1 final norms scaled as a layer's are: in front of ")
        assert words in said(found)
