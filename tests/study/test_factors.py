"""Which factors two networks differ in: one where one thing was changed, all where more were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from depthgauge.network.spec import Network
from depthgauge.study.factors import FACTORS, Factors, seeds_text

BASE = "h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)"


def factors(text: str = BASE, batch: Any = 8, precision: str = "float32", **given: Any) -> Factors:
    given = {"depth": 12, "width": 16, **given}
    return Factors(Network(text, **given), batch, precision, (0, 1, 2))


def apart(before: Factors, after: Factors) -> list[str]:
    return [str(difference) for difference in before.differences(after)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h + W2(relu(W1(rmsnorm(h))))/sqrt(L)", "activation: gelu -> relu"),
        ("h + W2(W1(rmsnorm(h)))/sqrt(L)", "activation: gelu -> none"),
        ('h + W2(gelu(W1(rmsnorm(h)), approximate="tanh"))/sqrt(L)',
         'activation: gelu -> gelu(approximate="tanh")'),
        ("h + gelu(W2(W1(rmsnorm(h))))/sqrt(L)",
         "activation: h = h + W2(gelu(W1(rmsnorm(h)))) -> h = h + gelu(W2(W1(rmsnorm(h))))"),
        ("h + W2(gelu(W1(layernorm(h))))/sqrt(L)", "norm: rmsnorm -> layernorm"),
        ("h + W2(gelu(W1(rmsnorm(h, eps=0.1))))/sqrt(L)", "norm: rmsnorm -> rmsnorm(eps=0.1)"),
        ("h + W2(gelu(W1(h)))/sqrt(L)", "norm: rmsnorm -> none"),
        ("rmsnorm(h + W2(gelu(W1(h)))/sqrt(L))", "placement: pre -> post"),
        ("h + rmsnorm(W2(gelu(W1(rmsnorm(h)))))/sqrt(L)", "placement: pre -> sandwich"),
        ("h + W2(rmsnorm(gelu(W1(h))))/sqrt(L)", "placement: pre -> inner"),
        ("h + 2*W2(gelu(W1(rmsnorm(h))))", "scale: 1/sqrt(L) -> 2"),
        ("h + scalar(0)*W2(gelu(W1(rmsnorm(h))))/sqrt(L)",
         "scale: 1/sqrt(L) -> 1/sqrt(L) * scalar(0)"),
        ("0.5*h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)", "scale: 1/sqrt(L) -> 1/sqrt(L), skip 0.5"),
        ("h + 0.1*h0 + W2(gelu(W1(rmsnorm(h))))/sqrt(L)",
         "scale: 1/sqrt(L) -> 1/sqrt(L), skip 1 and 0.1|form: h = h + W2(W1(h)) -> "
         "h = h + h0 + W2(W1(h))"),
        ("h + W2(gelu(W1(rmsnorm(h), out=4*n)))/sqrt(L)",
         "form: h = h + W2(W1(h)) -> h = h + W2(W1(h, out=4*n))"),
        ("W2(gelu(W1(rmsnorm(h))))", "form: h = h + W2(W1(h)) -> h = W2(W1(h))"),
        ("h + W2(gelu(W1(0.5*rmsnorm(h))))/sqrt(L)",
         "form: h = h + W2(W1(h)) -> h = h + W2(W1(0.5 * h))"),
        # Two things at once are two.
        ("layernorm(h + W2(gelu(W1(h)))/sqrt(L))",
         "norm: rmsnorm -> layernorm|placement: pre -> post"),
        ("h + W2(relu(W1(h)))/sqrt(L)", "activation: gelu -> relu|norm: rmsnorm -> none"),
        ("h + W2(relu(W1(rmsnorm(h))))", "activation: gelu -> relu|scale: 1/sqrt(L) -> 1"),
        # Another text of the same network is none.
        ("u = rmsnorm(h); f = W2(gelu(W1(u))); h = h + f/sqrt(L)", ""),
        ("F(x) = W2(gelu(W1(x))); h = h + L**-0.5 * F(rmsnorm(h))", ""),
    ],
)  # fmt: skip
def test_what_another_equation_differs_in(text: str, expected: str) -> None:
    assert apart(factors(), factors(text)) == (expected.split("|") if expected else [])
    turned = [f"{x[0]}: {x[1][1]} -> {x[1][0]}" for x in map(_parts, expected.split("|")) if x[0]]
    assert apart(factors(text), factors()) == turned


def _parts(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition(": ")
    return name, rest.split(" -> ")


def test_a_norm_on_the_other_side_of_an_activation_has_moved() -> None:
    before, after = factors("h + W2(gelu(rmsnorm(W1(h))))"), factors("h + W2(rmsnorm(gelu(W1(h))))")
    (found,) = before.differences(after)
    assert found.factor == "placement"
    assert found.before == "h = h + W2(gelu(rmsnorm(W1(h))))"


def test_norms_that_trade_their_places_are_a_difference_of_the_norm() -> None:
    one = factors("h + rmsnorm(W2(gelu(W1(layernorm(h)))))")
    other = factors("h + layernorm(W2(gelu(W1(rmsnorm(h)))))")
    assert [found.factor for found in one.differences(other)] == ["norm"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"init": "he"}, "init: lecun -> he"),
        ({"init": {"W2": "zeros"}}, "init: lecun -> W1: lecun, W2: zeros"),
        ({"precision": "bfloat16"}, "precision: float32 -> bfloat16"),
        ({"depth": 24}, "depth: 12 -> 24"),
        ({"width": 32}, "width: 16 -> 32"),
        ({"batch": 4}, "batch: 8 -> 4"),
        ({"batch": torch.zeros(8, 16)}, "batch: 8 -> given, 8 x 16"),
        ({"draws": "sequential-pcg64"}, "draws: keyed -> sequential-pcg64"),
    ],
)
def test_what_stands_beside_the_equation(change: dict[str, Any], expected: str) -> None:
    assert apart(factors(), factors(**change)) == [expected]


def test_tokens_differ_where_both_have_them() -> None:
    one, other = (factors("h + attention(h)", tokens=k) for k in (4, 8))
    assert apart(one, other) == ["tokens: 4 -> 8"]
    assert apart(factors(), factors("h + attention(h)", tokens=4))[-1].startswith("form")


def test_a_layer_that_one_of_them_lacks_is_a_difference_of_the_form_alone() -> None:
    one = factors("h + W2(relu(W1(h)))", init={"W1": "he", "W2": "zeros"})
    other = factors("h + W2(relu(W1(h))) + W3(h)", init={"W1": "he", "W2": "zeros"})
    assert [found.factor for found in one.differences(other)] == ["form"]


def test_coefficients_of_sums_that_cannot_be_read_are_part_of_the_form() -> None:
    one, other = (factors(f"0.5 * rmsnorm(h + {a}*W(h))") for a in (1, 2))
    assert one.texts["scale"] == "part of the form"
    assert [found.factor for found in one.differences(other)] == ["form"]


def test_every_factor_has_a_text() -> None:
    texts = factors().texts
    assert tuple(texts) == FACTORS
    assert texts["seed"] == "0..2"
    assert texts["form"] == "h = h + W2(W1(h))"
    assert factors("h + conv3(relu(h))", size=6).texts["size"] == "6"


@pytest.mark.parametrize(
    ("seeds", "text"), [((0,), "0"), ((0, 1, 2), "0..2"), ((3, 5), "3, 5"), ((2, 1), "2, 1")]
)
def test_seeds_as_text(seeds: tuple[int, ...], text: str) -> None:
    assert seeds_text(seeds) == text
