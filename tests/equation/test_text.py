"""Text and tree are the same thing: print then parse is the identity, on every tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from depthgauge.equation import parse, parse_init, parse_scalar, to_text
from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Arithmetic,
    Block,
    Constant,
    Init,
    Linear,
    Negative,
    Number,
    Opaque,
    Product,
    Scalar,
    Scale,
    State,
    Symbol,
    Update,
    Value,
    walk,
)
from depthgauge.errors import EquationError
from tests.equation.trees import NAMES, blocks, inits, scalars

h, L = State(), Symbol("L")


def _fits(text: str) -> bool:
    return len(text) <= 4_000


@settings(max_examples=600)
@given(blocks())
def test_the_text_of_a_block_parses_to_the_same_block(block: Block) -> None:
    text = to_text(block)
    if _fits(text):
        assert parse(text) == block
        assert str(block) == text


@settings(max_examples=500)
@given(scalars())
def test_the_text_of_a_scalar_parses_to_the_same_scalar(scalar: Scalar) -> None:
    assert parse_scalar(to_text(scalar)) == scalar


@settings(max_examples=200)
@given(inits())
def test_the_text_of_an_initialiser_parses_to_the_same_initialiser(init: Init) -> None:
    assert parse_init(to_text(init)) == init


@settings(max_examples=100)
@given(blocks())
def test_each_statement_prints_as_it_does_in_its_block(block: Block) -> None:
    assert to_text(block) == "; ".join(to_text(statement) for statement in block.statements)


def test_the_random_trees_reach_every_kind_of_node() -> None:
    """Otherwise the properties above say less than they seem to."""
    seen: set[str] = set()

    @settings(max_examples=200, derandomize=True, database=None)
    @given(blocks())
    def collect(block: Block) -> None:
        seen.update(type(node).__name__ for node in walk(block))

    collect()
    values = {kind.__name__ for kind in Value.__args__}
    statements = {"Let", "Define", "Update", "Block", "Init"}
    assert seen == values | statements | {kind.__name__ for kind in SCALARS}


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("h + W(h)", "h = h + W(h)"),
        (
            "h = h+1/sqrt( L )*W2(relu(W1(rmsnorm(h))))",
            "h = h + 1/sqrt(L) * W2(relu(W1(rmsnorm(h))))",
        ),
        ("h = h + W(h)/sqrt(L)", "h = h + 1/sqrt(L) * W(h)"),
        ("h = h*2*3/L", "h = 2*3/L * h"),
        ("h = (2*h)/3", "h = 2/3 * h"),
        ("h = -h/2", "h = 1/2 * -h"),
        ("h = -(h*2)", "h = -(2 * h)"),
        ("h = -1*h", "h = -h"),
        ("h = h - (-1)", "h = h + 1"),
        ("h = h - 2 - L", "h = h - 2 - L"),
        ("h = h + -2", "h = h - 2"),
        ("h = h - (h - h0)", "h = h - (h - h0)"),
        ("h = (1 - sigmoid(h))*h", "h = (1 - sigmoid(h)) * h"),
        ("h = h*(h*h)", "h = h * (h * h)"),
        ("h = (2*depth)**-0.25*h", "h = (2*depth)**-0.25 * h"),
        ("h = (-2)**L*h", "h = (-2)**L * h"),
        ("h = -2**L*h", "h = -2**L * h"),
        ("h = (2**3)**L*h", "h = (2**3)**L * h"),
        ("h = +h + 4.0*h + .00000001*h", "h = h + 4 * h + 1e-08 * h"),
        ("h = -0*h", "h = 0 * h"),
        ("h = swish(h)", "h = silu(h)"),
        ("h = leaky_relu(h, slope=0.01)", "h = leaky_relu(h)"),
        ("h = leaky_relu(h, slope=1/3)", "h = leaky_relu(h, slope=1/3)"),
        ("h = gelu(h, approximate='tanh')", 'h = gelu(h, approximate="tanh")'),
        ("h = layernorm(h, gain=True, bias=True)", "h = layernorm(h, gain=1, bias=True)"),
        ("h = layernorm(h, gain=False)", "h = layernorm(h)"),
        ('h = rmsnorm(h, axis="width+batch")', 'h = rmsnorm(h, axis="batch+width")'),
        ("h = dropout(h, 0.1)", "h = dropout(h, p=0.1)"),
        (
            "h = W(h, bias=True, out=4*n, init='kaiming')",
            'h = W(h, out=4*n, init="he", bias=True)',
        ),
        (
            "h = W(h, init=\"he('fan_out', gain=1)\")",
            "h = W(h, init=\"he(mode='fan_out', gain=1)\")",
        ),
        ("h = W_up(h, init='normal(0.02/sqrt(2*L))')",
         'h = W_up(h, init="normal(std=0.02/sqrt(2*L))")'),
        ("h = conv03(h, padding='circular', name='C1')",
         'h = conv3(h, padding="circular", name="C1")'),
        ("h = opaque('scan', rmsnorm(h), m=2.0)", 'h = opaque("scan", rmsnorm(h), m=2)'),
        ("h = opaque('it\\'s', h, h0, m=0)", 'h = opaque("it\'s", h, h0)'),
        ("h = h*opaque('say \"C:\\\\\"')/2", r'h = 1/2 * (h * opaque("say \"C:\\\""))'),
        ("h = attention(h, heads=8, causal=True)", "h = attention(h, heads=8, causal=True)"),
        ("F( x,y )=x*y\n\n a=2;;\nh=a*F(h,h0) # done", "F(x, y) = x * y; a = 2; h = a * F(h, h0)"),
    ],
)  # fmt: skip
def test_canonical_text(typed: str, canonical: str) -> None:
    assert to_text(parse(typed)) == canonical
    assert to_text(parse(canonical)) == canonical


@settings(max_examples=300)
@given(NAMES)
def test_every_printable_name_of_an_opaque_operation_survives(name: str) -> None:
    block = Block((Update(Add(h, Opaque(name, (h,), Number(2.0)))),))
    assert parse(to_text(block)) == block


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "", "x" * 81, "\xa0", "\x1b[1m", "\u202e"])
def test_and_no_other_name_does(name: str) -> None:
    with pytest.raises(EquationError):
        parse(to_text(Update(Opaque(name, (h,)))))


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (Number(4.0), "4"),
        (Number(-0.5), "-0.5"),
        (Number(1e22), "1e+22"),
        (Negative(Arithmetic("*", L, L)), "-(L*L)"),
        (Arithmetic("-", L, Arithmetic("-", L, L)), "L - (L - L)"),
        (Arithmetic("/", L, Arithmetic("*", L, L)), "L/(L*L)"),
        (Arithmetic("**", Negative(L), Negative(L)), "(-L)**-L"),
        (Arithmetic("-", L, Number(-2.0)), "L - -2"),
        (Add(Add(h, h), Add(h, h)), "h + h + (h + h)"),
        (Add(h, Constant(Negative(Arithmetic("+", L, L)))), "h - (L + L)"),
        (Add(h, Constant(Arithmetic("-", L, L))), "h + (L - L)"),
        (Scale(Number(-1.0), Add(h, h)), "-(h + h)"),
        (Scale(Negative(L), h), "-L * h"),
        (Scale(L, Scale(L, h)), "L * (L * h)"),
        (Product(Scale(L, h), Scale(L, h)), "L * h * (L * h)"),
        (Linear("W", Activation("relu", h), bias=True), "W(relu(h), bias=True)"),
        (Opaque("encoder"), 'opaque("encoder")'),
        (Opaque("scan", (Add(h, h),), Number(2.0)), 'opaque("scan", h + h, m=2)'),
        (Update(h), "h = h"),
    ],
)
def test_parentheses_only_where_they_change_the_tree(tree: Value, text: str) -> None:
    assert to_text(tree) == text
