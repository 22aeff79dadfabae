"""One change as text, what it makes of a network, and that it leaves every weight as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from depthgauge.errors import UsageError
from depthgauge.network.spec import Network
from depthgauge.study.cases import EquationCase, differences
from depthgauge.study.changes import Change, applied
from depthgauge.study.specification import Specification
from depthgauge.study.usual import usual

BASE = "h + a * W2(gelu(W1(rmsnorm(h))))"


def specification(text: str = BASE, **given: Any) -> Specification:
    given = {"depth": 3, "width": 8, **given}
    if "a *" in text:
        given.setdefault("scalars", {"a": "1/sqrt(L)"})
    return Specification(Network(text, **given), 4, (0, 1))


def changed(text: str, change: str, **given: Any) -> Network:
    return applied(specification(text, **given), Change.of(change)).network


@pytest.mark.parametrize(
    ("text", "factor", "value"),
    [
        ("norm=none", "norm", "none"),
        (" scale * 2 ", "scale", "*2"),
        ("scale/2", "scale", "/2"),
        ("scale=1/sqrt(L)", "scale", "1/sqrt(L)"),
        ("init.attention.o=zeros", "init.attention.o", "zeros"),
        ("equation=h + 2 * W(h, out=n)", "equation", "h + 2 * W(h, out=n)"),
    ],
)
def test_a_change_is_read_and_written(text: str, factor: str, value: str) -> None:
    change = Change.of(text)
    assert (change.factor, change.value) == (factor, value)
    assert Change.of(str(change)) == change
    assert Change.of(change) is change


@pytest.mark.parametrize(
    "text", ["", "norm", "norm=", "=none", "width*2", "scale*", "2*scale", "a b=c"]
)
def test_other_text_is_no_change(text: str) -> None:
    with pytest.raises(UsageError, match=r"^a change is .*, expected FACTOR=VALUE"):
        Change.of(text)


@pytest.mark.parametrize(
    ("text", "change", "block"),
    [
        (BASE, "activation=relu", "a = 1/sqrt(L); h = h + a * W2(relu(W1(rmsnorm(h))))"),
        (BASE, "activation=leaky_relu(slope=0.2)",
         "a = 1/sqrt(L); h = h + a * W2(leaky_relu(W1(rmsnorm(h)), slope=0.2))"),
        (BASE, "activation=none", "a = 1/sqrt(L); h = h + a * W2(W1(rmsnorm(h)))"),
        (BASE, "norm=none", "a = 1/sqrt(L); h = h + a * W2(gelu(W1(h)))"),
        (BASE, "norm=dyt(alpha=0.8)", "a = 1/sqrt(L); h = h + a * W2(gelu(W1(dyt(h, alpha=0.8))))"),
        (BASE, "placement=post", "a = 1/sqrt(L); h = rmsnorm(h + a * W2(gelu(W1(h))))"),
        (BASE, "placement=sandwich",
         "a = 1/sqrt(L); h = h + a * rmsnorm(W2(gelu(W1(rmsnorm(h)))))"),
        (BASE, "placement=inner", "a = 1/sqrt(L); h = h + a * W2(rmsnorm(gelu(W1(h))))"),
        (BASE, "placement=out", "a = 1/sqrt(L); h = h + a * rmsnorm(W2(gelu(W1(h))))"),
        (BASE, "scale*2", "h = h + 2/sqrt(L) * W2(gelu(W1(rmsnorm(h))))"),
        (BASE, "scale/2", "h = h + 0.5/sqrt(L) * W2(gelu(W1(rmsnorm(h))))"),
        (BASE, "scale*L", "h = h + L*(1/sqrt(L)) * W2(gelu(W1(rmsnorm(h))))"),
        (BASE, "scale/L", "h = h + 1/L*(1/sqrt(L)) * W2(gelu(W1(rmsnorm(h))))"),
        ("h + 0.5 * W(h)", "scale*2", "h = h + W(h)"),
        ("h + 3*sqrt(L) * W(h)", "scale*2", "h = h + 6*sqrt(L) * W(h)"),
        ("h + W(h)", "scale=0.1", "h = h + 0.1 * W(h)"),
        ("h + W(h)", "norm=layernorm", "h = h + W(layernorm(h))"),
        ("h + W(layernorm(h, gain=True, bias=True))", "norm=rmsnorm",
         "h = h + W(rmsnorm(h, gain=1, bias=True))"),
        ("W(relu(layernorm(h)))", "norm=none", "h = W(relu(h))"),
    ],
)  # fmt: skip
def test_the_equation_that_a_change_makes(text: str, change: str, block: str) -> None:
    assert str(changed(text, change).block) == block


def test_what_stands_beside_the_equation() -> None:
    base = specification(init={"W1": "he"})
    for text, field, value in (("dtype=bfloat16", "dtype", "bfloat16"), ("batch=7", "batch", 7)):
        found = applied(base, Change.of(text))
        assert getattr(found, field) == value
        assert dataclasses.replace(found, **{field: getattr(base, field)}) == base
    for text, value in (("depth=5", 5), ("width=16", 16), ("tokens=3", 3)):
        name = text.partition("=")[0]
        assert getattr(applied(base, Change.of(text)).network, name) == value
    assert changed(BASE, "draws=sequential-pcg64").draws == "sequential-pcg64"


def test_initialisers_of_all_and_of_one() -> None:
    base = 'h + W2(relu(W1(h, init="he", bias=True)))'
    kinds = {n: i.kind for n, i in changed(base, "init=orthogonal").chosen.items()}
    assert kinds == {"W1": "orthogonal", "W2": "orthogonal"}
    one = changed(base, "init.W2=zeros", init={"W1.bias": "normal(0.1)"}).chosen
    assert {n: i.kind for n, i in one.items()} == {"W1": "he", "W1.bias": "normal", "W2": "zeros"}
    bias = changed(base, "init.W1.bias=normal(0.5)").chosen
    assert bias["W1.bias"].kind == "normal"
    assert bias["W1"].kind == "he"
    shared = changed("h + attention(h) + W(h)", "init.attention.o=zeros").chosen
    assert [n for n, i in shared.items() if i.kind == "zeros"] == ["attention.1.o"]


def test_another_equation_keeps_what_stands_beside_the_first() -> None:
    network = changed(BASE, "equation=h + a * W2(relu(W1(h)))", init={"W1": "he"})
    assert network.chosen["W1"].kind == "he"
    assert str(network.block) == "a = 1/sqrt(L); h = h + a * W2(relu(W1(h)))"
    without = changed(BASE, "equation=h + W3(relu(h))", init={"W1": "he"})
    assert (without.depth, without.width) == (3, 8)
    assert set(without.chosen) == {"W3"}
    imaged = changed("h + conv3(h)", "equation=h + W(h)", size=5)
    assert imaged.size is None


@pytest.mark.parametrize(
    ("text", "change", "sentence"),
    [
        (BASE, "norm=layernrm", r"norm is 'layernrm', expected one of .*did you mean 'layernorm'"),
        (BASE, "activation=rel", r"activation is 'rel', expected one of .*did you mean 'relu'"),
        (BASE, "activation=relu(h)", r"activation is 'relu\(h\)'|relu"),
        (BASE, "activation=relu(); h = h", r"activation is 'relu\(\); h = h', expected one of"),
        (BASE, "placement=pst", r"placement is 'pst', expected one of pre, post, .*'post'"),
        (BASE, "depth=x", r"depth is 'x', expected a whole number"),
        (BASE, "width=0", r"width is 0, expected a whole number from 1"),
        (BASE, "batch=0", r"batch is 0, expected a whole number of examples"),
        (BASE, "dtype=float8", r"dtype is 'float8', expected one of"),
        (BASE, "seed=3", r"a change names the seeds, which are held"),
        (BASE, "init=hee", r"'hee'"),
        (BASE, "init.W3=he", r"init\.W3 names no weight: the block has W1, W2$"),
        (BASE, "lr=0.1", r"a change names 'lr', expected one of activation, norm"),
        (BASE, "scale/0", r"1/0 is not a real number"),
        (BASE, "scale*x", r"unknown name 'x'"),
        (BASE, "tokens=3x", r"tokens is '3x', expected a whole number"),
        (BASE, "size=4", r"size is given, but the equation has no conv"),
        (BASE, "equation=h + ", r"."),
        ("h + W(h)", "activation=relu", r"has no activation that could be another"),
        ("W(h)", "scale*2", r"has no residual branch that could be scaled"),
        ("W(h)", "norm=rmsnorm", r"has no residual branch in front of which a norm stands"),
        ("W(rmsnorm(h))", "placement=post", r"no residual branch whose norm could stand elsewhere"),
        ("0.5 * rmsnorm(h + W(h))", "scale*2", r"the form of .* cannot be changed"),
    ],
)
def test_what_cannot_be_changed_is_said(text: str, change: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        changed(text, change)


BLOCKS = [
    BASE,
    "h = layernorm(h + attention(h, heads=2)); h = layernorm(h + W2(relu(W1(h))))",
    "h = h + attention(layernorm(h), heads=2); h = h + W(gelu(W(layernorm(h), out=4*n)))",
    "u = rmsnorm(h); h = h + a * rmsnorm(W2(silu(W1(u)) * W3(u)))",
    "F(x) = W2(tanh(W1(x))); h = h + F(h)/sqrt(L)",
    "h + conv3(relu(batchnorm(conv3(relu(batchnorm(h))))))",
    "u = layernorm(h); h = h + attention(u) + W(gelu(W(u)))",
    "f = W2(gelu(W1(rmsnorm(h)))); g = W4(gelu(W3(rmsnorm(h)))); h = h + f + g",
    'h + W2(relu(W1(rmsnorm(h), init="torch", bias=True)), init="he")',
    "h + W3(rmsnorm(h) + W2(relu(W1(rmsnorm(h)))))",
]
CHANGES = [
    "norm=none", "norm=layernorm", "placement=pre", "placement=post", "placement=sandwich",
    "placement=out", "scale*2", "scale/2", "scale=0.3", "activation=relu", "activation=none",
    "depth=5",
]  # fmt: skip


@pytest.mark.parametrize("text", BLOCKS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_weight_stays_as_it_was_bit_by_bit(text: str, change: str) -> None:
    base = specification(text)
    before = dict(base.network.module(7).named_parameters())
    after = dict(applied(base, Change.of(change)).network.module(7).named_parameters())
    layers = [layer.name for layer in base.network.layers.weights]
    held = {n for n in before if n.split(".", 2)[2].startswith(tuple(layers))}
    assert len(held) >= 3 * len(layers)
    for name in held:
        assert torch.equal(before[name], after[name]), name


def test_other_weights_are_seen_to_be_others() -> None:
    base = specification()
    before = dict(base.network.module(7).named_parameters())
    after = applied(base, Change.of("init=orthogonal")).network.module(7)
    for name, weight in after.named_parameters():
        assert not torch.equal(before[name], weight)


def test_layers_that_would_trade_their_names_are_refused() -> None:
    text = "f = W(gelu(W(rmsnorm(h)))); g = W(gelu(W(rmsnorm(h)))); h = h + f + g"
    with pytest.raises(UsageError, match=r"cannot be changed|would trade their weights"):
        changed(text, "placement=sandwich")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE, "placement=post norm=none scale/2 scale*2 activation=relu activation=tanh "
               "init=orthogonal"),
        ("rmsnorm(h + W(tanh(W(h))))", "placement=pre norm=none scale/2 scale*2 scale=1/sqrt(L) "
                                       "activation=relu activation=gelu init=orthogonal"),
        ("h + W2(silu(W1(h)))/sqrt(L)", "norm=rmsnorm scale/2 scale*2 activation=relu "
                                        "activation=gelu activation=tanh init=orthogonal"),
        ("W(rmsnorm(h))", "norm=none init=orthogonal"),
        ("W(h)", "init=orthogonal"),
    ],
)  # fmt: skip
def test_the_usual_changes(text: str, expected: str) -> None:
    assert " ".join(map(str, usual(specification(text).network))) == expected


PAIRS = [
    ("norm=layernorm", "activation=elu", "activation norm"),
    ("norm=none", "scale=0.3", "norm scale"),
    ("placement=out", "activation=tanh", "activation placement"),
    ("placement=post", "scale=0.3", "placement scale"),
    ("scale=0.3", "activation=none", "activation scale"),
    ("init=orthogonal", "placement=out", "init placement"),
    ("depth=5", "init=orthogonal", "depth init"),
    ("dtype=float64", "batch=3", "batch precision"),
]


@pytest.mark.parametrize("text", [BASE, *BLOCKS[3:4], *BLOCKS[8:9]])
@pytest.mark.parametrize(("first", "second", "factors"), PAIRS)
def test_two_changes_are_two_differences(text: str, first: str, second: str, factors: str) -> None:
    base = EquationCase(specification(text))
    for one, other in ((first, second), (second, first)):
        once = base.changed(Change.of(one))
        twice = once.changed(Change.of(other))
        assert len(differences(base, once)) == 1
        assert sorted(d.factor for d in differences(base, twice)) == factors.split()
        assert differences(once, once) == []
        turned = [(d.factor, d.after, d.before) for d in differences(twice, base)]
        assert turned == [(d.factor, d.before, d.after) for d in differences(base, twice)]
