"""What no network can be is refused before any tensor exists, in one sentence."""

import dataclasses

import pytest

import depthgauge as dg
from depthgauge.equation import parse
from depthgauge.errors import EquationError, NetworkError, UsageError
from depthgauge.network.layers import layers_of, named
from depthgauge.network.program import Program
from depthgauge.network.spec import Network

RESIDUAL = "h + W2(relu(W1(h)))"

BAD = [
    (dict(depth=0), "depth is 0, expected a whole number from 1"),
    (dict(depth=-3), "depth is -3, expected a whole number"),
    (dict(depth=2.5), "depth is 2.5, expected a whole number"),
    (dict(depth=True), "depth is True, expected a whole number"),
    (dict(width=-64), "width is -64, expected a whole number"),
    (dict(width=10**9), "width is 1000000000, expected a whole number from 1 to 1000000"),
    (dict(draws="keyd"), "draws is 'keyd', expected one of keyed, sequential-pcg64 (did you mean"),
    (dict(size=8), "size is given, but the equation has no conv"),
    (dict(tokens=0), "tokens is 0, expected a whole number"),
    (dict(init={"W9": "he"}), "init names 'W9', but the block has W1, W2, default"),
    (dict(init="hee"), "hee"),
    (dict(equation="h + W1(h, out=2*n)"), "adds widths 64 and 128: 'h' has 64"),
    (dict(equation="W1(h, out=2*n)"), "gives a state of width 128, but the state has width 64"),
    (dict(equation="W1(h, out=n/3)"), "out of W1 = n/3 is 21.3333, but a size is a whole number"),
    (dict(equation="h + W1(W2(h, out=l))"), "out of W2 = l has no value that every block shares"),
    (dict(equation="h + W1(W2(h, out=2*n)) + W1(h)"), "W1 stands twice in the block, with shapes"),
    (dict(equation="scalar(1)"), "gives no state"),
    (dict(equation="h + W1(scalar(1))"), "W1 takes a value computed from the state"),
    (dict(equation="h + attention(h, heads=5)"), "heads=5, which does not divide the width 64"),
    (dict(equation="h + attention(conv3(h))"), "both attention and conv"),
    (dict(equation="h + conv3(h)", tokens=4), "tokens is given, but conv works on"),
    (dict(equation="W1(h)/sqrt(L)"), "uses L, the number of residual branches, but"),
    (dict(equation="h + leaky_relu(W1(h), slope=1/l)"), "uses l, but it has to be the same"),
    (dict(equation="a = 1/l; h + leaky_relu(W1(h), slope=a)"), "uses l, but it has to be"),
    (dict(equation="h + W1(h)/(l - 5)", depth=5), "5"),
    (dict(equation="h + sqrt(-1)*W1(h)"), "sqrt"),
    (dict(equation="h + W1(h)*sqrt(4 - l)", depth=5), "sqrt"),
    (dict(equation="h + W1(h, init='he')", init={"W1": "lecun"}), "initialised twice"),
    (dict(equation="h + dropout(W1(h), p=1/n*n)"), "p=1; give a share in [0, 1)"),
    (dict(equation="h + leaky_relu(W1(h), slope=0.1*max(l, 2))"), "uses l, but it has to be"),
    (dict(equation="u = gain(1); h + W2(u*W1(h, out=2*n)) + u*h"), "beside widths 128 and 64"),
    (dict(equation="h + conv5(h, padding='circular')", size=1), "but the image has side 1"),
    (dict(equation="h + W2(W1(h, out=1e18))"), "a size is at most 10,000,000"),
    (dict(equation="h + conv999(h)"), "a kernel has side 999"),
    (
        dict(equation="h + opaque('scan', h, m=2)"),
        'opaque("scan") can be read but not built; write',
    ),
    (dict(equation="h + opaque('a', attention(conv3(h)))/sqrt(L)"), 'opaque("a") can be read'),
    (dict(equation="h + W1(h)*opaque('say \"x\"')"), r'opaque("say \"x\"") can be read but'),
    (dict(init=["he"]), "init is ['he'], expected an initialiser or a table"),
    (dict(init={"W1": 5}), "init of W1 is 5, expected an initialiser such as"),
]


@pytest.mark.parametrize(("given", "says"), BAD)
def test_bad_networks(given: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError) as caught:
        Network(**({"equation": RESIDUAL} | given))
    message = str(caught.value).split("\n")[0]
    assert says in message
    assert message.count(". ") == 0


def test_each_of_them_has_a_good_partner() -> None:
    for good in (
        dict(depth=1),
        dict(width=1),
        dict(init={"W1": "he", "default": "orthogonal"}),
        dict(equation="h + W2(W1(h, out=2*n))"),
        dict(equation="h + attention(h, heads=4)"),
        dict(equation="h + W1(h)/(l - 5)", depth=4),
        dict(equation="h + W1(h)*sqrt(4 - l)", depth=4),
        dict(equation="W1(h)/sqrt(depth)"),
        dict(equation="h + W1(h)", init={"W": "he"}),
    ):
        network = Network(**({"equation": RESIDUAL} | good))
        assert network.layers.weights
        assert len(network.program.coefficients(network.depth)) == 2


def test_what_is_opaque_is_built_nowhere() -> None:
    says = (
        r'^opaque\("selective scan"\) can be read but not built; '
        "write its equation in the language$"
    )
    text = "h + opaque('selective scan', rmsnorm(h), m=2)"
    written = "h + W2(silu(W1(rmsnorm(h))))"
    assert dg.count(parse(text)).m == dg.count(parse(written)).m == (2,)
    for build in (
        lambda text: Network(text, depth=2, width=4).module(),
        lambda text: dg.measure(text, depth=2, width=4),
        lambda text: layers_of(parse(text), 4, {"n": 4.0}),
    ):
        build(written)
        with pytest.raises(NetworkError, match=says):
            build(text)
    network = Network(written, width=4)
    Program(network.layers, "rows", network.scope)
    with pytest.raises(NetworkError, match=says):
        Program(dataclasses.replace(network.layers, block=parse(text)), "rows", network.scope)


def test_free_scalars_stand_beside_the_equation() -> None:
    network = Network("h + a*W1(h)", depth=4, scalars={"a": "1/sqrt(L)"})
    assert str(network.block) == "a = 1/sqrt(L); h = h + a * W1(h)"
    assert network.branches == 4
    assert network.program.coefficients(1)[0] == [0.5]
    with pytest.raises(EquationError):
        Network("h + a*W1(h)")
    with pytest.raises(NetworkError, match="beside a parsed equation"):
        Network(network.block, scalars={"a": 1})


def test_the_most_specific_initialiser_is_chosen() -> None:
    network = Network(
        "h + W2(W1(h)) + attention(h) + W(h)",
        init={"W1": "he", "W": "orthogonal", "attention.o": "zeros", "default": "xavier"},
    )
    assert {name: init.kind for name, init in network.chosen.items()} == {
        "W1": "he",
        "W2": "orthogonal",
        "attention.1.q": "xavier",
        "attention.1.k": "xavier",
        "attention.1.v": "xavier",
        "attention.1.o": "zeros",
        "W.1": "orthogonal",
    }


def test_anonymous_weights_count_by_word() -> None:
    names = [
        layer.name for layer in Network("h + W(relu(W(h))) + W1(W(h))", width=4).layers.weights
    ]
    assert names == ["W.1", "W.2", "W.3", "W1"]


def test_naming_is_stable_under_other_edits() -> None:
    plain = Network("h + W(relu(W(h)))", width=4)
    edited = Network("u = rmsnorm(h); h = h + 0.5*W(gelu(W(layernorm(u))))", width=4)
    assert [w.name for w in plain.layers.weights] == [w.name for w in edited.layers.weights]


def test_shapes_and_memory_of_a_block() -> None:
    network = Network("h + W2(relu(W1(h, out=4*n)))", width=8)
    assert [w.shape for w in network.layers.weights] == [(32, 8), (8, 32)]
    assert network.layers.weight_elements == 512
    assert network.layers.elements == 32 + 32 + 8 + 8  # W1, relu, W2, the sum


def test_a_gain_takes_the_width_it_stands_beside() -> None:
    layers = Network("h + gain(1)*W2(gain(2)*relu(W1(h, out=3*n)) + gain(0))", width=4).layers
    assert {v.name: v.shape for v in layers.vectors} == {
        "gain.1": (4,),
        "gain.2": (12,),
        "gain.3": (12,),
    }


def test_layers_of_and_named_are_pure() -> None:
    block = Network(RESIDUAL).block
    assert named(named(block)) == named(block)
    assert layers_of(block, 8, {"n": 8.0}) == layers_of(block, 8, {"n": 8.0})


def test_a_definition_inside_a_definition_sees_the_outer_width() -> None:
    text = "x = W1(h, out=2*n); G(y) = y*x; F(x) = G(W2(x, out=2*n)); h = h + W3(F(h))"
    shapes = {w.name: w.shape for w in Network(text, width=8).layers.weights}
    assert shapes == {"W1": (16, 8), "W2": (16, 8), "W3": (8, 16)}
    with pytest.raises(NetworkError, match="multiplies widths 8 and 16"):
        Network("x = W1(h, out=2*n); G(y) = y*x; F(x) = G(x); h = h + W3(F(h))", width=8)


def test_a_gain_bound_to_a_name_takes_the_width_it_stands_beside() -> None:
    network = Network("u = gain(0.5); h = h + W2(u*W1(h, out=2*n))", depth=2, width=4)
    assert [v.shape for v in network.layers.vectors] == [(8,)]
    import torch

    assert network.module()(torch.ones(3, 4)).shape == (3, 4)
