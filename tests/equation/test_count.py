"""The counting reader: one row of words and numbers per equation, and what must not change it."""

import pytest

from depthgauge.equation.count import Branch, Count, Merge, count
from depthgauge.equation.parse import parse

FF = "W2(gelu(W1(h)))"  # a feed-forward branch, m = 2
RES3 = "conv3(relu(batchnorm(conv3(h))))"

# equation, m per branch, placement, skip, norm_at, inner, parallel, projected
MERGES = {
    # one branch
    "unscaled": (f"h + {FF}", (2,), "none", "identity", (), 0, 0, 0),
    "scaled": (
        "a = 1/sqrt(L); h = h + a * W2(relu(W1(rmsnorm(h))))",
        *((2,), "pre", "identity", ("in",), 0, 0, 0),
    ),
    "named": (
        "F(x) = W2(tanh(W1(x))); h = h + F(h)/sqrt(L)",
        *((2,), "none", "identity", (), 0, 0, 0),
    ),
    "one layer": ("h - W(h)", (1,), "none", "identity", (), 0, 0, 0),
    "sandwich": (
        "u = rmsnorm(h); h = h + 0.1 * rmsnorm(W2(silu(W1(u)) * W3(u)))",
        *((2,), "sandwich", "identity", ("in", "out"), 0, 0, 0),
    ),
    "out norm": (f"h + layernorm({FF})", (2,), "out", "identity", ("out",), 0, 0, 0),
    "inner norm": (
        "h + W2(rmsnorm(gelu(W1(h))))",
        *((2,), "inner", "identity", ("inner",), 0, 0, 0),
    ),
    "pre and post": (
        "layernorm(h + W2(gelu(W1(layernorm(h)))))",
        *((2,), "pre+post", "identity", ("in", "stream"), 0, 0, 0),
    ),
    "dyt, conv": (
        "h + derf(conv3(relu(conv1(dyt(h)))))",
        *((2,), "sandwich", "identity", ("in", "out"), 0, 0, 0),
    ),
    "dropout": (
        "h + dropout(W2(dropout(gelu(W1(layernorm(h))), 0.1)), 0.1)",
        *((2,), "pre", "identity", ("in",), 0, 0, 0),
    ),
    "ReZero": (f"h + scalar(0)*{FF}", (2,), "none", "identity", (), 0, 0, 0),
    "LayerScale": (
        "h + gain(1e-5)*W2(gelu(W1(layernorm(h))))",
        *((2,), "pre", "identity", ("in",), 0, 0, 0),
    ),
    "ResNet v1": (
        f"relu(h + batchnorm({RES3}))",
        *((2,), "inner+out", "identity", ("inner", "out"), 0, 0, 0),
    ),
    "Fixup": (
        "relu(h + scalar(1)*conv3(relu(conv3(h + scalar(0)) + scalar(0)) + scalar(0)) + scalar(0))",
        *((2,), "none", "identity", (), 0, 0, 0),
    ),
    # several
    "post-norm": (
        f"h = layernorm(h + attention(h)); h = layernorm(h + {FF})",
        *((4, 2), "post", "identity", ("stream",), 0, 0, 0),
    ),
    "post-norm by locals": (
        "u = layernorm(h + attention(h)); h = layernorm(u + W2(gelu(W1(u))))",
        *((4, 2), "post", "identity", ("stream",), 0, 0, 0),
    ),
    "norm by itself": (
        f"h = h + {FF}; h = layernorm(h)",
        *((2,), "post", "identity", ("stream",), 0, 0, 0),
    ),
    "norm that opens the block": (
        f"h = layernorm(h); h = h + {FF}",
        *((2,), "post", "identity", ("stream",), 0, 0, 0),
    ),
    "mixed placement": (
        f"h = h + attention(rmsnorm(h)); h = layernorm(h + {FF})",
        *((4, 2), "mixed", "identity", ("in", "stream"), 0, 0, 0),
    ),
    "parallel": (
        "u = layernorm(h); h = h + attention(u) + W2(gelu(W1(u)))",
        *((4, 2), "pre", "identity", ("in",), 0, 1, 0),
    ),
    "parallel in one scale": (
        "h + 0.5*(attention(h) + W(h))",
        *((4, 1), "none", "identity", (), 0, 1, 0),
    ),
    "three by locals": (
        "u = h + W1(h); v = u + W2(u); h = v + W3(v)",
        *((1, 1, 1), "none", "identity", (), 0, 0, 0),
    ),
    # skips
    "DeepNorm": (
        f"layernorm(2.0*h + {FF})",
        *((2,), "post", "scaled", ("stream",), 0, 0, 0),
    ),
    "1/sqrt(2)": (f"(h + {FF})/sqrt(2)", (2,), "none", "scaled", (), 0, 0, 0),
    "scaled by itself": (
        "h = h + W(h); h = gain(1)*h",
        *((1,), "none", "per-channel", (), 0, 0, 0),
    ),
    "learned": (f"scalar(1)*h + {FF}", (2,), "none", "scaled", (), 0, 0, 0),
    "per channel": (f"gain(1)*h + {FF}", (2,), "none", "per-channel", (), 0, 0, 0),
    "normed": (f"rmsnorm(h) + {FF}", (2,), "none", "normed", (), 0, 0, 0),
    "active": ("tanh(h) + W(h)", (1,), "none", "mixed", (), 0, 0, 0),
    "with a nonlinear path": ("h + tanh(h) + W(h)", (1,), "none", "mixed", (), 0, 0, 0),
    "twice": ("h + (h + W(h))", (1,), "none", "identity", (), 0, 0, 0),
    "minus minus": ("W1(h) - (W2(tanh(h)) - h)", (1, 1), "none", "identity", (), 0, 1, 0),
    "highway": (
        "t = sigmoid(W1(h)); h = t*W2(tanh(W3(h))) + (1 - t)*h",
        *((2,), "none", "gated", (), 0, 0, 0),
    ),
    "gated branch": ("h + h*sigmoid(W(h))", (1,), "none", "identity", (), 0, 0, 0),
    "gated stream": ("(h + W1(h))*sigmoid(W2(h))", (1,), "none", "gated", (), 0, 0, 0),
    "projected": (
        f"relu(batchnorm(conv1(h)) + {RES3})",
        *((2,), "inner", "projected", ("inner",), 0, 0, 1),
    ),
    "initial state": ("relu(W(h)) + h0", (1,), "none", "identity", (), 0, 0, 0),
    "initial and own": ("h + W(h) + 0.1*h0", (1,), "none", "mixed", (), 0, 0, 0),
    "initial and own, scaled": ("0.5*h + 0.5*h0 + W(h)", (1,), "none", "scaled", (), 0, 0, 0),
    "initial state passes by": (
        "u = h + attention(h); h = u + W(u) + h0",
        *((4, 1), "none", "identity", (), 0, 0, 0),
    ),
    "older state": (
        "x = h; h = h + attention(h); h = x + W(h)",
        *((4, 1), "none", "identity", (), 0, 0, 0),
    ),
    # merges inside
    "nested": (
        "u = W3(h); h = h + (u + W2(relu(W1(u))))",
        *((3,), "none", "identity", (), 1, 0, 0),
    ),
    "nested, another order": (
        "u = W3(h); h = u + h + W2(relu(W1(u)))",
        *((3,), "none", "identity", (), 1, 0, 0),
    ),
    "nested below": ("h + W2(h + relu(W1(h)))", (2,), "none", "identity", (), 1, 0, 0),
    "nested twice": (
        "u = W3(h); v = u + 0.5*W1(u); h = h + tanh(v + W2(v))",
        *((3,), "none", "identity", (), 2, 0, 0),
    ),
    "sum without a skip": ("h + W3(W1(h) + W2(h))", (2,), "none", "identity", (), 0, 0, 0),
    # operations that the language cannot say
    "opaque": (
        "h + opaque('scan', h, m=2)",
        *((2,), "none", "identity", (), 0, 0, 0),
    ),
    "opaque between layers": (
        "h + W2(opaque('scan', W1(rmsnorm(h)), m=3))",
        *((5,), "pre", "identity", ("in",), 0, 0, 0),
    ),
    "opaque without weights": ("h + opaque('fft2', h)", (0,), "none", "identity", (), 0, 0, 0),
    "opaque without weights, norms": (
        "layernorm(2*h + rmsnorm(opaque('a', rmsnorm(opaque('b', rmsnorm(h))))))",
        *((0,), "pre+inner+out+post", "scaled", ("in", "inner", "out", "stream"), 0, 0, 0),
    ),
    "opaque between norm and weights": (
        "h + rmsnorm(opaque('a', W(rmsnorm(opaque('b', h)))))",
        *((1,), "sandwich", "identity", ("in", "out"), 0, 0, 0),
    ),
    "opaque without weights, twice": (
        "h = h + opaque('a', h); h = h + opaque('b', h)",
        *((0, 0), "none", "identity", (), 0, 0, 0),
    ),
    "opaque by locals": (
        "u = h + opaque('a', h); h = u + opaque('b', u)",
        *((0, 0), "none", "identity", (), 0, 0, 0),
    ),
    "opaque in parallel": (
        "h + opaque('a', h) + W(h)",
        *((0, 1), "none", "identity", (), 0, 1, 0),
    ),
    "opaque nested": (
        "u = W(h); h = h + (u + opaque('a', u))",
        *((1,), "none", "identity", (), 1, 0, 0),
    ),
    "opaque skip and another": (
        "tanh(h) + opaque('a', h)",
        *((0,), "none", "mixed", (), 0, 0, 0),
    ),
    "opaque on the stream": (
        "h = h + W(h); h = opaque('permute', h)",
        *((1,), "none", "identity", (), 0, 0, 0),
    ),
    "opaque gate of the skip": (
        "h*opaque('gate', h) + W(h)",
        *((1,), "none", "gated", (), 0, 0, 0),
    ),
    "opaque gate of the branch": (
        "h + h*opaque('gate', h)",
        *((0,), "none", "identity", (), 0, 0, 0),
    ),
    "opaque constant": (
        "opaque('encoder', m=12) + h + W(h)",
        *((1,), "none", "identity", (), 0, 0, 0),
    ),
    "opaque coefficient": (
        "opaque('a')*h + opaque('b', m=3)*W(h)",
        *((1,), "none", "per-channel", (), 0, 0, 0),
    ),
    "opaque of no state": (
        "tanh(h*opaque('f', gain(1))) + W(h)",
        *((1,), "none", "mixed", (), 0, 0, 0),
    ),
    "opaque of two": (
        "h + opaque('cross', rmsnorm(h), opaque('encoder', m=12), m=4)",
        *((4,), "pre", "identity", ("in",), 0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", MERGES)
def test_merges(name):
    equation, *expected = MERGES[name]
    c = count(parse(equation))
    found = c.m, c.placement, c.skip, c.norm_at, c.inner, c.parallel, c.projected
    assert found == tuple(expected)
    assert c.branches == len(c.m)
    assert c.has_skip
    assert c.plain == ()


# equation, m of each plain layer, norm_at
PLAIN = [
    ("W(relu(h))", (1,), ()),
    ("h = conv3(relu(h)); h = W2(tanh(W1(h)))", (1, 2), ()),
    ("layernorm(W2(rmsnorm(relu(W1(dyt(h))))))", (2,), ("in", "inner", "out")),
    ("h = W(h); h = layernorm(h)", (1,), ("out",)),
    ("h = layernorm(h); h = W(h); h = relu(h)", (1,), ("in",)),
    ("W2(silu(W1(h)) * W3(h))", (2,), ()),
    ("W1(h) + W2(tanh(h))", (1,), ()),
    ("relu(W1(h) + scalar(0))", (1,), ()),
    ("h*sigmoid(W(h))", (1,), ()),
    ("h + tanh(h)", (), ()),
    ("h = rmsnorm(h); h = 0.5*h", (), ()),
    ("h + opaque('encoder')", (), ()),
    ("h + opaque('encoder', m=2)", (), ()),
    ("h + opaque('f', gain(1))", (), ()),
    ("opaque('fft2', h)", (), ()),
    ("opaque('scan', h, m=2)", (2,), ()),
    ("opaque('norm, perhaps', h) + W2(tanh(W1(h)))", (2,), ()),
]


@pytest.mark.parametrize(("equation", "m", "norm_at"), PLAIN)
def test_blocks_without_a_merge(equation, m, norm_at):
    c = count(parse(equation))
    assert c == Count(merges=(), plain=m, plain_norm_at=norm_at)
    assert (c.m, c.norm_at, c.branches, c.has_skip, c.skip) == (m, norm_at, 0, False, "none")


def test_plain_layers_beside_merges():
    """A merge under a weight layer, and a layer whose output is the stream that goes on."""
    branch = Branch(m=1, norm_at=("stream",), inner=0)
    one = Merge(branches=(branch,), skip="identity")
    assert count(parse("h = relu(layernorm(h + W1(h))); h = W2(h)")) == Count((one,), (1,))
    assert count(parse("W2(relu(h + W1(h)))")).plain == (1,)
    after = count(parse("u = W3(h); h = u + W2(relu(W1(u)))"))
    assert (after.m, after.plain, after.skip) == ((2,), (1,), "identity")


def test_merges_that_differ():
    c = count(parse(f"h = conv1(h) + {RES3}; h = layernorm(h + W(h) + attention(h))"))
    assert [merge.skip for merge in c.merges] == ["projected", "identity"]
    assert (c.skip, c.placement, c.branches, c.parallel, c.projected) == ("mixed", "mixed", 3, 1, 1)


SAME = {
    "names of locals": (
        "u = rmsnorm(h); h = h + W2(silu(W1(u)) * W3(u))",
        "norm_ed = rmsnorm(h); h = h + W2(silu(W1(norm_ed)) * W3(norm_ed))",
    ),
    "a local by hand": (
        "u = rmsnorm(h); h = h + W2(silu(W1(u)) * W3(u))",
        "h + W2(silu(W1(rmsnorm(h))) * W3(rmsnorm(h)))",
    ),
    "a definition by hand": (
        "G(x) = W1(rmsnorm(x)); F(x) = x + W2(relu(G(x))); h = layernorm(h + F(G(h)))",
        "h = layernorm(h + (W1(rmsnorm(h)) + W2(relu(W1(rmsnorm(W1(rmsnorm(h))))))))",
    ),
    "a state by hand": (
        "h = h + W1(h); h = layernorm(h + W2(h))",
        "layernorm(h + W1(h) + W2(h + W1(h)))",
    ),
    "the side of a factor": ("h + W2(tanh(W1(h)))/sqrt(L)", "h + 1/sqrt(L)*W2(tanh(W1(h)))"),
    "the name of a factor": ("h + 0.5*W(h)", "a = 0.5; h = h + a*W(h)"),
    "the order of a sum": ("h + attention(h) + W(h)", "attention(h) + (W(h) + h)"),
    "names of layers": ("h + W2(relu(W1(h)))", "h + W(relu(W(h)))"),
    "an argument by hand": (
        "u = 2*h; h = h + opaque('a', u) + W2(h + opaque('a', 2*h))",
        "h + opaque('a', 2*h) + W2(h + opaque('a', 2*h))",
    ),
    "the name of an operation": ("h + opaque('a', h, m=2)", "h + opaque('b', h, m=2)"),
    "an identity": ("h + W(h)", "h = identity(h + identity(W(h))) + scalar(0)"),
}


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_change_the_count(change):
    one, other = (count(parse(equation)) for equation in SAME[change])
    if change == "the order of a sum":
        assert set(one.m) == set(other.m)
        assert one.skip == other.skip
    else:
        assert one == other


def test_a_tied_layer_is_not_two_anonymous_ones():
    """``W`` is another layer each time, so the second sum does not hold the first."""
    tied = count(parse("h + W1(h) + W2(h + W1(h))"))
    assert (tied.branches, tied.parallel, tied.inner) == (2, 0, 0)
    untied = count(parse("h + W(h) + W2(h + W(h))"))
    assert (untied.branches, untied.parallel, untied.inner) == (2, 1, 1)


def test_a_number_is_read_through_dropout_behind_a_sum():
    for text in ("0.25 * dropout(h + W(h), p=0.1)", "dropout(0.25 * (h + W(h)), p=0.1)"):
        (merge,) = count(parse(text)).merges
        assert (merge.factor, merge.branches[0].factor) == (0.25, 0.25), text
    (behind,) = count(parse("0.25 * dropout(layernorm(h + W(h)), p=0.1)")).merges
    assert behind.factor == 1, "behind a norm it scales no sum"


def test_opaque_operations_are_layers_of_their_own_if_they_have_weights():
    """As above, the second sum holds the first only if its operation is the same one."""
    apart = count(parse("h + opaque('a', h, m=1) + W2(h + opaque('a', h, m=1))"))
    assert (apart.m, apart.parallel, apart.inner) == ((1, 2), 1, 1)
    same = count(parse("h + opaque('a', h) + W2(h + opaque('a', h))"))
    assert (same.m, same.parallel, same.inner) == ((0, 1), 0, 0)
    others = count(parse("h + opaque('a', h) + W2(h + opaque('b', h))"))
    assert (others.m, others.parallel, others.inner) == ((0, 1), 1, 1)
    once = count(parse("u = opaque('a', h, m=1); h = h + u + W2(h + u)"))
    assert (once.m, once.parallel, once.inner) == ((1, 1), 0, 0)


@pytest.mark.parametrize("local", [True, False])
def test_long_chains_of_locals_are_read_once(local):
    """Substituted as text, thirty locals would be 2^30 terms."""
    steps = [f"u{i + 1} = rmsnorm(u{i} + W2(relu(W1(u{i}))))" for i in range(30)]
    last = "h = u30" if local else "h = h + u30"
    c = count(parse("; ".join(["u0 = h", *steps, last])))
    assert (c.branches, c.inner) == ((30, 0) if local else (1, 30))
    assert c.norm_at == (("stream",) if local else ("inner", "out"))


def test_equal_terms_are_one():
    """Otherwise thirty doublings would be 2^30 terms, each looked at."""
    steps = [f"u{i + 1} = rmsnorm(u{i} + u{i}) + u{i} + u{i}" for i in range(30)]
    c = count(parse("; ".join(["u0 = h", *steps, "h = u30 + W1(h) + W1(h)"])))
    assert (c.m, c.skip, c.parallel) == ((1,), "mixed", 0)


DESCRIBED = {
    "h + W2(gelu(W1(rmsnorm(h))))": "1 residual branch, m = 2, pre-norm, identity skip",
    "W2(tanh(W1(h)))": "no residual branch, 2 weight layers",
    "tanh(h)": "no residual branch, no weight layers",
    "h + opaque('fft2', h)": "1 residual branch, m = 0, no norm, identity skip",
    "h + tanh(h)": "no residual branch, no weight layers",
    "u = layernorm(h); h = h + attention(u) + W(u)": (
        "2 residual branches in parallel, m = 4, 1, pre-norm, identity skip"
    ),
    "h = h + W1(h) + W2(relu(h)); h = layernorm(2*h + W3(h))": (
        "3 residual branches in 2 merges, m = 1, mixed norm placement, mixed skips"
    ),
    "h = h + W1(h + W2(h)); h = W3(h)": (
        "1 residual branch, m = 2, no norm, identity skip, 1 inner merge, "
        "1 weight layer outside the branches"
    ),
}


@pytest.mark.parametrize("equation", DESCRIBED)
def test_description(equation):
    assert count(parse(equation)).describe() == DESCRIBED[equation]


def test_a_definition_sees_the_statements_names_and_not_its_callers() -> None:
    inner = "x = W5(relu(W4(h))); G(y) = y*x; F(x) = G(W1(x)); h = h + F(h)"
    assert count(parse(inner)).m == (2,)


def test_a_norm_that_opens_a_block_stands_on_the_stream_of_its_last_merge() -> None:
    found = count(parse("h = layernorm(h); h = h + W1(h); h = h + W2(relu(W3(h)))"))
    assert [[b.norm_at for b in merge.branches] for merge in found.merges] == [[()], [("stream",)]]


@pytest.mark.parametrize(
    ("equation", "inlet"),
    [
        ("h + W(h)", 1.0),
        ("h + W2(tanh(3*W1(0.5*h)))", 0.5),  # what is inside is no inlet
        ("h + 4*W(0.5*layernorm(7*h))", 0.5),  # nor what a norm divides out
        ("h + W(0.5*relu(0.5*h))", 0.25),
        ("u = 2*rmsnorm(h); h = h + W3(W1(u)*W2(u))", 2.0),
        ("u = rmsnorm(h); h = h + W3(W1(u)*W2(2*u))", float("nan")),  # not one number
        ("h + attention(0.5*h)", 0.5),
    ],
)
def test_the_number_in_front_of_the_first_layers(equation: str, inlet: float) -> None:
    (merge,) = count(parse(equation)).merges
    assert [branch.inlet for branch in merge.branches] == [pytest.approx(inlet, nan_ok=True)]


def test_norms_of_queries_and_keys_are_inner() -> None:
    bare, normed = "h + attention(rmsnorm(h))", "h + attention(rmsnorm(h), norm='l2')"
    assert count(parse(bare)).norm_at == ("in",)
    assert count(parse(normed)).norm_at == ("in", "inner")
    assert count(parse("attention(h, norm='l2')")).norm_at == ("inner",)
