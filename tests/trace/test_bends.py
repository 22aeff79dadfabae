"""Activations one by one: in series or not, and the numbers around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.network.spec import Network
from depthgauge.trace.bends import Bends
from depthgauge.trace.layout import layout
from tests.recipes.models import (
    encoder,
    grouped,
    neox,
    normed_preactivation,
    plain,
    preactivation,
    resnet,
    transformer,
)


def of(equation: str, depth: int = 3) -> Bends:
    network = Network(equation, depth, 8)
    return layout(network.module(), torch.randn(4, *network.state_shape)).bends


@pytest.mark.parametrize(
    ("equation", "parts"),
    [
        ("tanh(W1(h))", (3,)),
        ("tanh(W1(relu(W2(layernorm(h)))))", (6,)),
        ("h + W2(relu(W1(h)))", (0, (0, 1), 0, (0, 1), 0, (0, 1), 0)),
        ("h + W2(relu(W1(relu(rmsnorm(h)))))", (0, (0, 2), 0, (0, 2), 0, (0, 2), 0)),
        ("h = tanh(W1(h)); h = h + W3(tanh(W2(h)))", (1, (0, 1), 1, (0, 1), 1, (0, 1), 0)),
    ],
)
def test_in_series(equation: str, parts: Sequence[Any]) -> None:
    found = of(equation)
    assert found.unfit == ""
    assert found.parts == parts


def test_in_modules() -> None:
    for build, parts in (
        (plain, (4,)),
        (preactivation, (1, (0, 1), 0, (0, 2), 0, (1, 2), 0, (0, 2), 1)),
        (grouped, (0, (0, 2), 0, (0, 2), 0, (0, 2), 0, (0, 2), 0)),
        (normed_preactivation, (0, (0, 2), 0, (0, 2), 0, (0, 2), 0)),
    ):
        assert layout(*build()).bends.parts == parts


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("h + W2(silu(W1(h)) * W3(h))", "'blocks.0' has a product of two values that both depend"),
        ("h + attention(h)", "has attention"),
        ("h + W2(relu(W1(h))) + W4(relu(W3(h)))", "2 branches share one sum"),
        ("h + tanh(W1(h))", "the branch of 'blocks.0' ends with an activation"),
        ("W3(relu(W1(h)) + tanh(W2(h)))", "activations stand beside each other in 'blocks.0'"),
        (
            "relu(h + W2(relu(W1(h))))",
            "the activation in 'blocks.1' reads what that in 'blocks.0' gives, past no weight",
        ),
        ("tanh(relu(W1(h)))", "reads what that in 'blocks.0' gives"),
    ],
)
def test_not_in_series(equation: str, why: str) -> None:
    found = of(equation)
    assert why in found.unfit
    assert found.parts == ()


def test_modules_not_in_series() -> None:
    assert "has attention" in layout(*encoder()).bends.unfit
    assert "2 streams were found" in layout(*transformer()).bends.unfit
    assert "2 branches share one sum" in layout(*neox()).bends.unfit
    assert "'3.outer' reads what that in '2.outer' gives" in layout(*resnet()).bends.unfit


def test_the_numbers_around() -> None:
    (row, *_) = of("1.5 * (tanh(0.07 * W1(h) + 0.55) - 0.5)").rows
    assert (row.alpha, row.beta, row.gamma, row.delta) == (0.07, 0.55, 1.5, -0.5)
    (row, *_) = of("h + W2(relu(W1(h)))").rows
    assert (row.kind, row.alpha, row.beta, row.gamma, row.delta) == ("relu", 1, 0, 1, 0)
    (row, *_) = of("2*leaky_relu(W1(h), slope=0.2)").rows
    assert (row.options, row.gamma) == ((("slope", 0.2),), 2)


class Spelled(nn.Module):
    """Numbers in other words, around an activation of several functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.gelu, self.b = nn.Linear(4, 6), Gelu(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b((1 - self.gelu(-(self.a(x) - 3) / 2)).flatten(1) * 4)
        return out


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def test_numbers_in_other_words() -> None:
    (row,) = layout(Spelled(), torch.randn(3, 4)).bends.rows
    # 4 (1 - phi(-(x - 3) / 2)) = -4 (phi(-x/2 + 3/2) - 1)
    assert (row.path, row.kind) == ("gelu", "gelu")
    assert (row.alpha, row.beta, row.gamma, row.delta) == (-0.5, 1.5, -4, -1)


def test_a_sum_that_an_activation_alone_reads() -> None:
    model, batch = preactivation()
    found = layout(model, batch).bends
    # Of the last sum, behind the last block; in front of a transition stands a norm.
    assert found.reader == (-1, -1, -1, 8)
    assert found.rows[8].spread == pytest.approx(2**0.5)
    assert {row.spread for row in found.rows[:8]} == {1.0}
    assert found.sums == ((1, 1),) * 4
    scaled = of("0.5 * (0.6*h + 0.8*W2(tanh(W1(tanh(h)))))")
    assert [number for weights in scaled.sums for number in weights] == pytest.approx(
        [0.3, 0.4] * 3
    )
    assert scaled.reader == (-1, -1, -1)
    (first, *_) = scaled.rows[2:]
    assert (first.alpha, first.spread) == (1, 1), "the skip reads the state, too"
