"""A block read factor by factor: the same to another spelling of itself, another to others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from depthgauge.equation.nodes import Block
from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.equation.written import with_scalars
from depthgauge.study.trees import Tree
from tests.equation.trees import blocks

SCOPE = [{"L": 4.0, "depth": 4.0, "l": 1.0, "n": 8.0}]


@settings(max_examples=150)
@given(blocks())
def test_another_spelling_of_any_block_differs_in_nothing(block: Block) -> None:
    tree = Tree(block)
    for other in (Tree(parse(to_text(block))), Tree(with_scalars(block))):
        for kept in ((), ("activation", "norm"), ("gate", "place"), ("scale",)):
            assert not tree.differs(other, *kept)
            assert tree.text(*kept) == other.text(*kept)
        assert tree.activation == other.activation
        assert tree.norm == other.norm
        assert tree.scale == other.scale
        assert not tree.rescaled(other, SCOPE)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ((), "h = h + W2(W1(h))"),
        (("activation",), "h = h + W2(tanh(W1(h)))"),
        (("gate",), "h = h + W2(relu(W1(h)))"),
        (("norm",), "h = h + W2(W1(layernorm(h)))"),
        (("place",), "h = h + W2(W1(rmsnorm(h)))"),
        (("scale",), "h = h + 1/sqrt(L) * W2(W1(h))"),
        (
            ("activation", "norm", "scale"),
            "h = h + 1/sqrt(L) * W2(tanh(W1(layernorm(h))))",
        ),
    ],
)
def test_what_is_kept_is_shown(kept: tuple[str, ...], text: str) -> None:
    tree = Tree(parse("u = layernorm(h); h = h + a * W2(tanh(W1(u)))", {"a": "1/sqrt(L)"}))
    assert tree.text(*kept) == text


def test_the_same_numbers_are_no_other_scale() -> None:
    def tree(factor: str) -> Tree:
        return Tree(parse(f"h + {factor} * W(h)"))

    assert not tree("1/sqrt(L)").rescaled(tree("L**(-0.5)"), SCOPE)
    assert not tree("0.5").rescaled(tree("1/sqrt(L)"), SCOPE)
    assert tree("0.5").rescaled(tree("1/sqrt(L)"), [{"L": 9.0, "depth": 9.0, "l": 1.0, "n": 8.0}])
    assert tree("scalar(0)").rescaled(tree("scalar(1)"), SCOPE)
    assert tree("1/l").rescaled(tree("1"), [*SCOPE, {**SCOPE[0], "l": 4.0}])
    assert not tree("1/l").rescaled(tree("1"), SCOPE)
