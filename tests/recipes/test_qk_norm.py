"""QK-norm: by length with a learned number, by layer norm, by RMS norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure
from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.heads import HeadNorms, NormedAttention
from depthgauge.recipes.qk_norm import TEMPERATURE
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, parameter, said
from tests.recipes.models import (
    bert,
    encoder,
    gpt2,
    llama,
    mlp,
    neox,
    olmo2,
    qwen3,
    t5,
    transformer,
)

NAMES = ("qk-norm", "qk-norm-layernorm", "qk-norm-rmsnorm")
BLOCK = "h = h + attention(layernorm(h), heads=4); h = h + W2(relu(W1(layernorm(h))))"
PRODUCTS = TEMPERATURE.format(T=32)


@pytest.mark.parametrize(
    ("keys", "number"), [(32, 9.9542), (64, 11.9773), (128, 13.9887), (512, 17.9972)]
)
def test_golden_numbers(keys: int, number: float) -> None:
    assert number_of(TEMPERATURE.format(T=keys), {}) == pytest.approx(number, abs=5e-5)


def test_on_equations() -> None:
    changed, model, _ = on_equation("qk-norm", BLOCK)
    assert str(changed.block).startswith(
        'h = h + attention(layernorm(h), heads=4, scale=log(32**2 - 32)/log(2), norm="l2");'
    )
    (scale, *_) = parameter(model, "attention.1.scale")
    assert float(scale.detach()) == pytest.approx(9.9542, abs=5e-5)
    for name, kind in (("qk-norm-layernorm", "layernorm"), ("qk-norm-rmsnorm", "rmsnorm")):
        changed, *_ = on_equation(name, BLOCK)
        assert f'heads=4, norm="{kind}")' in str(changed.block)


class Heads(nn.Module):
    """Attention as an equation has it, written out."""

    def __init__(self, block: nn.Module, kind: str, heads: int) -> None:
        super().__init__()
        self.block, self.kind, self.heads = block, kind, heads

    def forward(self, x: Tensor) -> Tensor:
        layers = self.block.get_submodule("attention.1")
        q, k, v = (
            layers.get_submodule(part)(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in "qkv"
        )
        d = q.shape[-1]
        number: Any = d**-0.5
        if self.kind == "l2":
            q, k = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k))
            number = layers.get_parameter("scale")
        elif self.kind == "rmsnorm":
            q, k = (t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
        else:
            q, k = ((t - t.mean(-1, keepdim=True)) for t in (q, k))
            q, k = (t / (t.square().mean(-1, keepdim=True) + 1e-5).sqrt() for t in (q, k))
        mixed = torch.softmax(number * (q @ k.mT), -1) @ v
        out: Tensor = layers.get_submodule("o")(mixed.transpose(1, 2).flatten(2))
        return x + out


@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
def test_what_an_equation_computes(kind: str) -> None:
    """A module, a stream of blocks and an ensemble of them agree with attention written out."""
    network = Network(f'h = h + attention(h, heads=2, scale=None, norm="{kind}")', 2, 16, tokens=5)
    models = [network.module(seed, dtype=torch.float64) for seed in (3, 4)]
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    for model in models:
        blocks = [Heads(model.get_submodule(f"blocks.{k}"), kind, 2) for k in range(2)]
        torch.testing.assert_close(model(x), blocks[1](blocks[0](x)))
        if kind == "l2":
            assert float(parameter(model, ".scale")[0].detach()) == pytest.approx(8**0.5)
    sizes = [float(model(x).detach().square().mean().sqrt()) for model in models]
    one = measure(network, batch=x, seed=3, dtype="float64")["state_rms"]
    assert float(one[-1]) == pytest.approx(sizes[0], rel=1e-10)
    both = measure(network, batch=x, seed=(3, 4), dtype="float64")["state_rms"]
    assert both.shape[0] == 2
    assert [float(row[-1]) for row in both] == pytest.approx(sizes, rel=1e-10)


def test_a_learned_number_by_block_and_a_wrong_norm() -> None:
    network = Network('h = h + attention(h, norm="l2", scale=l)', 3, 8)
    scales = [float(p.detach()) for p in parameter(network.module(), ".scale")]
    assert scales == [1.0, 2.0, 3.0]
    with pytest.raises(
        ValueError, match='norm of attention takes "l2" or "layernorm" or "rmsnorm"'
    ):
        Network('h = h + attention(h, norm="batchnorm")', 3, 8)


BUILDS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "three in one matrix": gpt2,
    "three in one matrix, head by head": neox,
    "apart, with fewer key heads and rotary phases": llama,
    "apart, post-norm": bert,
    "apart, to another stream, without 1/sqrt(d)": t5,
    "one function": encoder,
    "one function, to another stream": transformer,
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("name", NAMES)
def test_on_modules(name: str, build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, batch = on_module(name, build)
    found = layout(applied.model, batch)
    for branch in found.branches:
        assert bool(branch.scored) is branch.attends
        assert {role for role, *_ in branch.scored} <= {"query", "key"}


def test_queries_and_keys_of_a_fused_layer_are_unit_vectors_and_values_are_not() -> None:
    applied, batch = on_module("qk-norm", gpt2)
    layer = applied.model.get_submodule("transformer.h.1.attn.c_attn")
    made = []
    layer.register_forward_hook(lambda m, x, out: made.append((m.module(*x), out)))
    applied.model(**batch)
    (before, after) = made[0]
    (bq, bk, bv), (q, k, v) = before.split(32, -1), after.split(32, -1)
    assert torch.equal(bv, v)
    number = math.log2(16**2 - 16) * 8**0.5  # GPT-2 divides by sqrt(8) once more
    for old, new, times in ((bq, q, number), (bk, k, 1.0)):
        heads = new.unflatten(-1, (4, 8))
        torch.testing.assert_close(heads.norm(dim=-1), torch.full_like(heads[..., 0], times))
        torch.testing.assert_close(heads, times * F.normalize(old.unflatten(-1, (4, 8)), dim=-1))


def test_what_follows_already_is_left() -> None:
    applied, _ = on_module("qk-norm-rmsnorm", qwen3, follows=True)
    assert applied.changes == ()
    model, batch = olmo2()
    words = said(audit(model, batch, "qk-norm-rmsnorm"))
    assert "the norm of queries is over 32 numbers, and a head has 8" in words
    left = apply(model, batch, "qk-norm-rmsnorm").left
    assert "in 'model.layers.0.self_attn' have norms or numbers of their own" in left[0]
    again = apply(*_twice("qk-norm"), "qk-norm")
    assert (again.changes, again.left) == ((), ())


def _twice(name: str) -> tuple[nn.Module, Any]:
    model, batch = gpt2()
    applied = apply(model, batch, name).model
    with torch.no_grad():
        parameter(applied, "after.scale")[0].fill_(3.0)
    assert "'transformer.h.0.attn' has 3" in said(audit(applied, batch, name))
    return applied, batch


def test_a_network_without_attention_and_one_of_a_single_token_are_refused() -> None:
    with pytest.raises(NetworkError, match="no attention was found in a residual branch"):
        apply(*mlp(), "qk-norm")
    model, batch = gpt2()
    one = {"input_ids": batch["input_ids"][:, :1]}
    with pytest.raises(NetworkError, match="has 1 key, and QK-norm's number"):
        apply(model, one, "qk-norm")
    with pytest.raises(NetworkError, match="no attention was found"):
        rewritten(Network("h + W2(relu(W1(h)))", 2, 8), "qk-norm-rmsnorm")


# --------------------------------------------------------------------------------- faults


def _set(where: str, value: float) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            for p in parameter(model, where):
                p.fill_(value)

    return plant


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            math.log(16**2 - 16),
            "has 5.48064: the natural logarithm, where it is that to",
        ),
        (8.0, r"has 8: T\^2, where it is T\^2 - T"),
        (4.0, r"has 4: log2\(T\), where it is log2\(T\^2 - T\)"),
        (1.0, "has 1: it was never set"),
        (2.2, "has 2.2$"),
    ],
)
def test_a_number_that_begins_elsewhere(value: float, words: str) -> None:
    applied, batch = on_module("qk-norm", gpt2)
    broken(applied.model, batch, "qk-norm", _set("after.scale", value), words)


def _norms(model: nn.Module, path: str = "transformer.h.1.attn.c_attn") -> HeadNorms:
    found = model.get_submodule(path).after
    assert isinstance(found, HeadNorms)
    return found


def _scaled_again(model: nn.Module) -> None:
    for k in range(3):
        _norms(model, f"transformer.h.{k}.attn.c_attn").number = 1.0


def test_unit_vectors_over_sqrt_d_as_well() -> None:
    applied, batch = on_module("qk-norm", gpt2)
    words = r"0 of 3 attention logits that are 1 q k.* has 0.3536 for d = 8: 1/sqrt\(d\), which"
    broken(applied.model, batch, "qk-norm", _scaled_again, words)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (8**0.5, r"has 1 for d = 8: 1/sqrt\(d\) is missing"),
        (8**-0.5, r"has 0.125 for d = 8: 1/sqrt\(d\) stands there twice"),
    ],
)
def test_the_usual_number_missing_or_twice(number: float, words: str) -> None:
    applied, batch = on_module("qk-norm-rmsnorm", gpt2)

    def plant(model: nn.Module) -> None:
        for k in range(3):
            _norms(model, f"transformer.h.{k}.attn.c_attn").number = number

    broken(applied.model, batch, "qk-norm-rmsnorm", plant, words)


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_that_is_missing_of_values_or_over_all_heads(name: str) -> None:
    kind = {"qk-norm": "l2"}.get(name, name.removeprefix("qk-norm-"))

    def unkeyed(model: nn.Module) -> None:
        del _norms(model).norms["key"]

    def of_values(model: nn.Module) -> None:
        norms = _norms(model)
        norms.norms["value"] = norms.norms["key"]

    def whole(model: nn.Module) -> None:
        norms = _norms(model)
        norms.head = 32
        for role in ("query", "key"):
            if kind != "l2":
                made = nn.LayerNorm(32) if kind == "layernorm" else nn.RMSNorm(32)
                norms.norms[role] = made

    for plant, words in (
        (
            unkeyed,
            f"2 of 3 attentions with {kind} norms .*h.1.attn': keys have no norm",
        ),
        (of_values, "values are normed too"),
        (whole, "the norm of queries is over 32 numbers, and a head has 8"),
    ):
        applied, batch = on_module(name, gpt2)
        broken(applied.model, batch, name, plant, words)


def test_another_kind_of_norm_is_named() -> None:
    applied, batch = on_module("qk-norm-layernorm", llama)
    words = said(audit(applied.model, batch, "qk-norm-rmsnorm"))
    assert "0 of 3 attentions with rmsnorm norms" in words
    assert "the norm of queries is layernorm" in words
    words = said(audit(applied.model, batch, "qk-norm"))
    assert "has no learned numbers there" in words


# ------------------------------------------------------------------- attention in one function


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("case", ["self", "causal", "by head", "padded", "cross", "apart", "alone"])
def test_attention_in_several_functions_is_that_in_one(
    first: bool, weights: bool, case: str
) -> None:
    torch.manual_seed(0)
    sizes = {"kdim": 12, "vdim": 20} if case == "apart" else {}
    module = nn.MultiheadAttention(16, 4, batch_first=first, **sizes).eval()
    nn.init.normal_(module.out_proj.bias)
    query, key, value = torch.randn(3, 5, 16), torch.randn(3, 7, 16), torch.randn(3, 7, 16)
    if case == "apart":
        key, value = torch.randn(3, 7, 12), torch.randn(3, 7, 20)
    elif case != "cross":
        key = value = query
    if case == "alone":
        query = key = value = query[0]
    elif not first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        key, value = (query, query) if case in ("self", "causal", "by head") else (key, value)
    options: dict[str, Any] = {"need_weights": weights}
    if case == "causal":
        hidden = torch.ones(5, 5).triu(1).bool()
        options |= {"attn_mask": hidden, "is_causal": not weights}
    if case == "by head":
        options["attn_mask"] = torch.randn(12, 5, 5)
    if case == "padded":
        options["key_padding_mask"] = torch.tensor([[False] * 4 + [True]] * 3)
    bare = HeadNorms((("query", 16), ("key", 16), ("value", 16)), 4, "l2")
    bare.norms.clear()
    made, shares = NormedAttention(module, bare)(query, key, value, **options)
    expected, others = module(query, key, value, **options)
    torch.testing.assert_close(made, expected)
    assert (shares is None) is (others is None)
    if weights:
        torch.testing.assert_close(shares, others)
    real = HeadNorms((("query", 16), ("key", 16), ("value", 16)), 4, "l2", 2.0, 3.0)
    assert not torch.allclose(NormedAttention(module, real)(query, key, value, **options)[0], made)


def test_attention_with_keys_of_its_own_is_left_and_named() -> None:
    model, batch = encoder()
    layer = model.get_submodule("0.layers.1")
    layer.self_attn = nn.MultiheadAttention(32, 4, add_zero_attn=True, batch_first=True)
    applied = apply(model, batch, "qk-norm")
    assert applied.left[0] == (
        "'0.layers.1.self_attn' is left without norms: the attention has keys of its own beside "
        "those of its input"
    )
    assert " | ".join(applied.left[1:]) == said(audit(applied.model, batch, "qk-norm"))
    assert "2 of 3 attentions with l2 norms of queries and keys" in applied.left[2]


def test_a_placement_of_norms_leaves_those_of_queries_and_keys() -> None:
    block = 'h = layernorm(h + attention(h, heads=4, norm="rmsnorm"))'
    changed, *_ = on_equation("prenorm", block)
    assert str(changed.block) == 'h = h + attention(layernorm(h), heads=4, norm="rmsnorm")'
