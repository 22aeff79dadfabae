"""The shallow plain control: what is left of a block without its skip and its norms."""

from __future__ import annotations

import pytest

from depthgauge import Network
from depthgauge.errors import NetworkError
from depthgauge.study.commission.plain import plain_control


@pytest.mark.parametrize(
    ("block", "plain"),
    [
        ("h + W2(gelu(W1(rmsnorm(h), out=4*n)))/sqrt(L)", "h = W2(gelu(W1(h, out=4*n)))"),
        ("layernorm(h + W2(relu(W1(h))))", "h = W2(relu(W1(h)))"),
        ("h + scalar(0)*W2(tanh(W1(h)))", "h = W2(tanh(W1(h)))"),
        ("h + gain(1e-5)*rmsnorm(W2(relu(W1(rmsnorm(h)))))", "h = W2(relu(W1(h)))"),
        ("tanh(W(h))", "h = tanh(W(h))"),
    ],
)
def test_skip_norms_and_factors_go(block, plain):
    found = plain_control(Network(block, depth=96, width=8), 8)
    assert str(found.block) == plain
    assert found.depth == 8


def test_a_scalar_that_nothing_uses_any_more_goes_too():
    network = Network("h + a * W2(relu(W1(h)))", depth=96, width=8, scalars={"a": "1/sqrt(L)"})
    assert str(plain_control(network, 4).block) == "h = W2(relu(W1(h)))"


def test_layers_in_front_of_an_activation_that_halves_are_he():
    found = plain_control(Network("h + W2(gelu(W1(h)))", depth=9, width=8), 8)
    assert {name: init.kind for name, init in found.chosen.items()} == {"W1": "he", "W2": "lecun"}
    found = plain_control(Network("h + W2(tanh(W1(h)))", depth=9, width=8), 8)
    assert {init.kind for init in found.chosen.values()} == {"lecun"}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("h + attention(layernorm(h), heads=2)", "attention without a skip collapses"),
        ("h + W1(h) + W2(h)", "no skip plus branches"),
    ],
)
def test_what_cannot_be_plain_is_refused(block, words):
    tokens = 4 if "attention" in block else None
    with pytest.raises(NetworkError, match=words):
        plain_control(Network(block, depth=2, width=8, tokens=tokens), 8)
