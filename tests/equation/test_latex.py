"""Formulas: golden ones, and brackets that close on every tree."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from depthgauge.equation import Block, parse, parse_scalar, to_latex
from depthgauge.equation.nodes import Scalar
from tests.equation.trees import blocks, scalars


@pytest.mark.parametrize(
    ("equation", "latex"),
    [
        (
            "h + 1/sqrt(L) * W2(gelu(W1(rmsnorm(h))))",
            r"h \leftarrow h + \frac{1}{\sqrt{L}}\, "
            r"W_2\,\mathrm{gelu}\!\left(W_1\,\mathrm{RMSNorm}(h)\right)",
        ),
        (
            "h = layernorm(h + attention(h, name='A1'))",
            r"h \leftarrow \mathrm{LayerNorm}\!\left(h + \mathrm{Attention}_{A_1}(h)\right)",
        ),
        (
            "u = rmsnorm(h); h = h + W2(silu(W1(u)) * W_up(u))",
            "\\begin{aligned}\n"
            "u &= \\mathrm{RMSNorm}(h) \\\\\n"
            "h &\\leftarrow h + W_2\\!\\left(\\mathrm{silu}\\!\\left(W_1\\,u\\right) \\odot "
            "W_{\\mathrm{up}}\\,u\\right)\n"
            "\\end{aligned}",
        ),
        (
            "F(x, y_2) = tanh(x) - y_2; h = F(h, h0)",
            "\\begin{aligned}\n"
            "F(x, y_2) &= \\tanh(x) - y_2 \\\\\n"
            "h &\\leftarrow F(h, h_0)\n"
            "\\end{aligned}",
        ),
        (
            "h = (1 - sigmoid(h)) * h - gain(1e-5) * (h - h0)",
            r"h \leftarrow \left(1 - \mathrm{sigmoid}(h)\right) \odot h - "
            r"\mathrm{gain}(10^{-5}) \odot \left(h - h_0\right)",
        ),
        (
            "h = h + -2 * conv3(h, name='C1') - 1",
            r"h \leftarrow h - 2\, \mathrm{Conv}_{3, C_1}(h) - 1",
        ),
        (
            "h = -(h + h0) + scalar(0) * dropout(h, 0.1)",
            r"h \leftarrow -\left(h + h_0\right) + \mathrm{scalar}(0) \odot \mathrm{dropout}(h)",
        ),
        (
            "h = h + opaque('selective scan', rmsnorm(h), m=2)",
            r"h \leftarrow h + \mathrm{opaque}_{\text{selective scan}}"
            r"\!\left(\mathrm{RMSNorm}(h)\right)",
        ),
        (
            "h = opaque('a_b {50%} $&#', h, h0) - opaque('x--y ~^\\\\')",
            r"h \leftarrow \mathrm{opaque}_{\text{a\_b \{50\%\} \$\&\#}}(h, h_0) - "
            r"\mathrm{opaque}_{\text{x{-}{-}y \textasciitilde{}\textasciicircum{}"
            r"\textbackslash{}}}",
        ),
        (
            "beta = (2*depth)**-0.25; h = h + beta/l * W(h + h0)",
            "\\begin{aligned}\n"
            "\\beta &= \\left(2\\,\\mathrm{depth}\\right)^{-0.25} \\\\\n"
            "h &\\leftarrow h + \\frac{\\beta}{\\ell}\\, W\\!\\left(h + h_0\\right)\n"
            "\\end{aligned}",
        ),
    ],
)
def test_golden_blocks(equation: str, latex: str) -> None:
    assert to_latex(parse(equation)) == latex


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("2*3", r"2 \cdot 3"),
        ("2*L*pi", r"2\,L\,\pi"),
        ("L - (n - l)", r"L - \left(n - \ell\right)"),
        ("L - -n", r"L - \left(-n\right)"),
        ("L + -n", r"L - n"),
        ("-(L + n)", r"-\left(L + n\right)"),
        ("-L**2", r"-L^{2}"),
        ("(-L)**2", r"\left(-L\right)^{2}"),
        ("(1/L)**2", r"\left(\frac{1}{L}\right)^{2}"),
        ("2**L**n", r"2^{L^{n}}"),
        ("(2**L)**n", r"\left(2^{L}\right)^{n}"),
        ("L*(n*l)", r"L\,\left(n\,\ell\right)"),
        ("2.5e-8*L", r"2.5 \cdot 10^{-8}\,L"),
        ("max(1, abs(L - 2))", r"\max\!\left(1, \left|L - 2\right|\right)"),
        ("alpha*w_up*beta1*_", r"\alpha\,w_{\mathrm{up}}\,\beta_1\,\mathrm{\_}"),
    ],
)
def test_golden_scalars(text: str, latex: str) -> None:
    assert to_latex(parse_scalar(text, names=["alpha", "beta1", "w_up", "_"])) == latex


def _unbalanced(latex: str) -> str:
    """Why brackets do not match, or ``""``; ``\\left`` and ``\\right`` are brackets too."""
    closes = {"}": "{", r"\right": r"\left", r"\end": r"\begin"}
    opened: list[str] = []
    for word in re.findall(r"\\[A-Za-z]+|\\.|[{}]", latex, re.DOTALL):
        if word in closes.values():
            opened.append(word)
        elif word in closes and (not opened or opened.pop() != closes[word]):
            return f"{word} closes nothing"
    return f"{opened} stay open" if opened else ""


def test_the_check_of_brackets_can_fail() -> None:
    assert _unbalanced(r"\frac{1}{2") == "['{'] stay open"
    assert _unbalanced(r"\left(\frac{1\right)}{2}") == r"\right closes nothing"
    assert _unbalanced(r"\left(\frac{1}{2}\right)^{2}") == ""


@settings(max_examples=300)
@given(blocks())
def test_brackets_close_on_every_block(block: Block) -> None:
    latex = to_latex(block)
    assert _unbalanced(latex) == ""
    assert ("aligned" in latex) == (len(block.statements) > 1)
    assert "--" not in latex.replace(" ", "")


@settings(max_examples=300)
@given(scalars())
def test_brackets_close_on_every_scalar(scalar: Scalar) -> None:
    assert _unbalanced(to_latex(scalar)) == ""
