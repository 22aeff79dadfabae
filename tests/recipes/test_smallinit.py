"""SmallInit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from tests.recipes.contract import broken, on_equation, on_module, redrawn
from tests.recipes.models import bert, encoder, gpt2, llama, transformer

BLOCK = "h = h + attention(scalenorm(h)); h = h + W2(relu(W1(scalenorm(h), out=4*n)))"


@pytest.mark.parametrize(("width", "std"), [(512, 0.0279508), (768, 0.0228218), (1024, 0.0197642)])
def test_numbers(width: int, std: float) -> None:
    assert number_of("sqrt(2/(5*n))", {"n": width}) == pytest.approx(std, abs=6e-8)


def test_on_equations() -> None:
    changed, model, batch = on_equation("smallinit", BLOCK, width=48)
    assert str(changed.chosen["attention.1.q"]) == str(changed.chosen["attention.1.o"])
    weight = model.get_parameter("blocks.0.attention.1.v.weight").detach()
    assert float(weight.std()) == pytest.approx((2 / 240) ** 0.5, rel=0.06)
    words = "Xavier of each matrix by itself"
    broken(model, batch, "smallinit", redrawn("smallinit", batch, "xavier"), words)
    with pytest.raises(NetworkError, match="no attention was found, and SmallInit makes its"):
        rewritten(Network("h = h + W2(relu(W1(h)))", 2, 8), "smallinit")


@pytest.mark.parametrize("build", [encoder, transformer, gpt2, llama, bert])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("smallinit", build)


def test_packed_attention_as_it_is_built_is_named() -> None:
    for init, rule, words in (
        ("xavier(gain=1/sqrt(2))", 0, "Xavier of queries, keys and values stacked"),
        ("normal(std=sqrt(2/(5*n)))", 1, "sqrt.2/5d., which is for attention"),
    ):
        applied, batch = on_module("smallinit", transformer)
        broken(
            applied.model, batch, "smallinit", redrawn("smallinit", batch, init, rule=rule), words
        )
