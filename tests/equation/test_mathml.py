"""Formulas that a browser draws: golden ones, and well-formed elements on every tree."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from depthgauge.equation import Block, parse, parse_scalar
from depthgauge.equation.mathml import to_mathml
from depthgauge.equation.nodes import Scalar
from tests.equation.trees import blocks, scalars

#: Elements of MathML Core that are used, and how many children each must have.
ARITY = {"mfrac": 2, "msub": 2, "msup": 2, "math": 1}
LEAVES = ("mi", "mn", "mo", "mtext", "mspace")
OTHERS = ("mrow", "msqrt", "mtable", "mtr", "mtd")


def said(mathml: str) -> str:
    """The formula as one line of text; a fraction is ``{a}/{b}``, a raised one ``^{b}``."""
    return _said(ElementTree.fromstring(mathml)).replace("\u2061", "")


def _said(element: ElementTree.Element) -> str:
    parts = [_said(child) for child in element]
    match element.tag:
        case "mfrac":
            return "{{{}}}/{{{}}}".format(*parts)
        case "msub":
            return "{}_{{{}}}".format(*parts)
        case "msup":
            return "{}^{{{}}}".format(*parts)
        case "msqrt":
            return f"√{{{''.join(parts)}}}"
        case "mspace":
            return " "
        case "mtr":
            return " ".join(parts) + "\n"
    return (element.text or "") + "".join(parts)


def wrong(mathml: str) -> str:
    """Why this is not the MathML that a browser lays out, or ``""``."""
    for element in ElementTree.fromstring(mathml).iter():
        if element.tag not in (*ARITY, *LEAVES, *OTHERS):
            return f"{element.tag} is not an element"
        if element.tag in LEAVES and len(element):
            return f"{element.tag} holds elements"
        if element.tag not in LEAVES and (element.text or "").strip():
            return f"{element.tag} holds text"
        if len(element) != ARITY.get(element.tag, len(element)):
            return f"{element.tag} holds {len(element)} elements"
    return ""


@pytest.mark.parametrize(
    ("equation", "formula"),
    [
        (
            "h + 1/sqrt(L) * W2(gelu(W1(rmsnorm(h))))",
            "h←h+{1}/{√{L}} W_{2} gelu(W_{1} RMSNorm(h))",
        ),
        ("h = layernorm(h + attention(h, name='A1'))", "h←LayerNorm(h+Attention_{A_{1}}(h))"),
        (
            "u = rmsnorm(h); h = h + W2(silu(W1(u)) * W_up(u))",
            "u =RMSNorm(h)\nh ←h+W_{2}(silu(W_{1} u)⊙W_{up} u)\n",
        ),
        (
            "F(x, y_2) = tanh(x) - y_2; h = F(h, h0)",
            "F(x,y_{2}) =tanh(x)−y_{2}\nh ←F(h,h_{0})\n",
        ),
        (
            "h = (1 - sigmoid(h)) * h - gain(1e-5) * (h - h0)",
            "h←(1−sigmoid(h))⊙h−gain(10^{−5})⊙(h−h_{0})",
        ),
        ("h = h + -2 * conv3(h, name='C1') - 1", "h←h−2 Conv_{3,C_{1}}(h)−1"),
        ("h = -(h + h0) + scalar(0) * dropout(h, 0.1)", "h←−(h+h_{0})+scalar(0)⊙dropout(h)"),
        (
            "h = h + opaque('a <b> & c', leaky_relu(h), m=2) + opaque('x')",
            "h←h+opaque_{a <b> & c}(leaky relu(h))+opaque_{x}",
        ),
        (
            "beta = (2*depth)**-0.25; h = h + beta/l * W(h + h0)",
            "β =(2 depth)^{−0.25}\nh ←h+{β}/{ℓ} W(h+h_{0})\n",
        ),
    ],
)
def test_golden_blocks(equation: str, formula: str) -> None:
    mathml = to_mathml(parse(equation))
    assert said(mathml) == formula
    assert mathml.startswith('<math display="block">')


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("2*3", "2·3"),
        ("2*L*pi", "2 L π"),
        ("L - (n - l)", "L−(n−ℓ)"),
        ("L - -n", "L−(−n)"),
        ("L + -n", "L−n"),
        ("L + -(2*n)", "L−2 n"),
        ("-(L + n)", "−(L+n)"),
        ("-L*n", "−L n"),
        ("-L**2", "−L^{2}"),
        ("(-L)**2", "(−L)^{2}"),
        ("(1/L)**2", "({1}/{L})^{2}"),
        ("2**L**n", "2^{L^{n}}"),
        ("(2**L)**n", "(2^{L})^{n}"),
        ("L*(n*l)", "L (n ℓ)"),
        ("L*2.5e-8", "L·(2.5·10^{−8})"),
        ("max(1, abs(L - 2), floor(n), ceil(n))", "max(1,|L−2|,⌊n⌋,⌈n⌉)"),
        ("alpha*w_up*beta1*_*a_b_3", "α w_{up} β_{1} _ a_{b,3}"),
    ],
)
def test_golden_scalars(text: str, formula: str) -> None:
    scalar = parse_scalar(text, names=["alpha", "beta1", "w_up", "_", "a_b_3"])
    assert said(to_mathml(scalar)) == formula


def test_the_check_of_elements_can_fail() -> None:
    assert wrong("<math><mfrac><mi>a</mi></mfrac></math>") == "mfrac holds 1 elements"
    assert wrong("<math><b>x</b></math>") == "b is not an element"
    assert wrong("<math><mrow>x</mrow></math>") == "mrow holds text"
    assert wrong("<math><mi>a</mi></math>") == ""
    with pytest.raises(ElementTree.ParseError):
        wrong("<math><mi>a</math>")


def test_what_a_name_says_is_never_an_element() -> None:
    mathml = to_mathml(parse("h = opaque('</mtext><script>alert(1)</script>', h)"))
    assert "<script" not in mathml
    assert "alert(1)" in said(mathml)


@settings(max_examples=200)
@given(blocks())
def test_every_block_is_well_formed(block: Block) -> None:
    mathml = to_mathml(block)
    assert wrong(mathml) == ""
    assert ("<mtable" in mathml) == (len(block.statements) > 1)
    assert not re.search("−[−+]", said(mathml))


@settings(max_examples=200)
@given(scalars())
def test_every_scalar_is_well_formed(scalar: Scalar) -> None:
    assert wrong(to_mathml(scalar)) == ""
