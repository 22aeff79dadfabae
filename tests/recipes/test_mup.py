"""muP: variances, logits and the head's factor, and the groups of an optimiser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.heads import QueryTimes
from depthgauge.recipes.mup import mup
from depthgauge.recipes.rates import grouped
from depthgauge.recipes.wrappers import Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import bert, encoder, gpt2, llama, mlp, neox, plain, resnet

BLOCK = "h = h + attention(layernorm(h), heads=4); h = h + W2(gelu(W1(layernorm(h), out=4*n)))"


def test_on_equations() -> None:
    changed, model, batch = on_equation("mup", BLOCK, init="he")
    assert "attention(layernorm(h), heads=4, scale=1/(n/4))" in str(changed.block)
    plant = redrawn("mup", batch, "normal(std=0.02)", lambda w: not w.last)
    broken(model, batch, "mup", plant, "24 of 36 hidden weights: .*0.02 at every width")
    on_equation("mup", "h + attention(h)")
    on_equation("mup", "h + W2(relu(W1(h)))", init="he")


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ("", "0 of 6 attention logits .*has 0.3536 for d = 8: the usual 1/sqrt.d."),
        (", scale=1/(n/4)**1.5", "divided by d and by sqrt.d."),
        (", scale=1", "not divided at all"),
        (", scale=1/n", "' has 0.03125 for d = 8$"),
    ],
)
def test_another_factor_of_the_logits_is_named(scale: str, words: str) -> None:
    network = Network(f"h + attention(h, heads=4{scale})", 6, 32)
    batch = torch.randn(4, *network.state_shape)
    found = said(audit(network.module(seed=1), batch, "mup"))
    assert re.search(words, found), found


@pytest.mark.parametrize("build", [llama, bert, mlp])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("mup", build)


def test_the_factors_are_where_they_are_said_to_be() -> None:
    applied, batch = on_module("mup", llama)
    found = layout(applied.model, batch)
    assert [b.logits for b in found.branches if b.head] == pytest.approx([1 / 8] * 3)
    assert found.outlets == (8.0,)  # 256/32, not tied here
    head = applied.model.get_submodule("lm_head")
    x, weight = torch.randn(2, 32), applied.model.get_parameter("lm_head.module.weight")
    assert torch.allclose(head(x), 8 * x @ weight.T)

    def bare(model: nn.Module) -> None:
        model.lm_head = head.get_submodule("module")

    broken(applied.model, batch, "mup", bare, "0 of 1 heads .* = 8; 'lm_head.weight' has 1")


def test_a_factor_that_was_put_in_by_hand_is_read() -> None:
    """Behind the queries, behind the keys, on the scores, and behind the head."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))
            self.norm = nn.LayerNorm(24)

        def forward(self, h: Tensor) -> Tensor:
            x = self.norm(h)
            q, k = 0.5 * self.q(x), self.k(x) / 4
            mixed = torch.softmax(q @ k.mT / 3, -1) @ self.v(x)
            out: Tensor = h + self.o(mixed)
            return out

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Head() for _ in range(2))
            self.head = nn.Linear(24, 5)

        def forward(self, h: Tensor) -> Tensor:
            for block in self.blocks:
                h = block(h)
            out: Tensor = self.head(h) * 0.25
            return out

    torch.manual_seed(0)
    model, batch = Whole(), torch.randn(2, 6, 24)
    found = layout(model, batch)
    assert found.branches[0].logits == pytest.approx(0.5 / 4 / 3)
    assert (found.branches[0].head, found.branches[0].queries) == (24, "blocks.0.q")
    assert found.outlets == (0.25,)
    applied = apply(model, batch, mup(12))
    assert audit(applied.model, batch, mup(12)).holds
    assert layout(applied.model, batch).outlets == pytest.approx((0.5,))


def test_a_head_that_shrinks_with_the_width_is_named_and_zero_is_a_recipe_of_its_own() -> None:
    applied, batch = on_module("mup", mlp)
    plant = redrawn("mup", batch, "torch", rule=1)
    broken(applied.model, batch, "mup", plant, "1 of 1 weights of the head: .*which shrinks")
    zero = apply(applied.model, batch, mup(head="zeros")).model
    assert audit(zero, batch, mup(head="zeros")).holds
    assert "weights of the head: zero, expected" in said(audit(zero, batch, "mup"))


class Packed(nn.Module):
    """Attention whose queries, keys and values are one layer, in the ``order`` of its outputs."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.norm = order, nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, h: Tensor) -> Tensor:
        made = self.qkv(self.norm(h))
        if self.order == "head by head":
            heads = made.unflatten(-1, (4, 24)).transpose(1, 2).chunk(3, -1)
        else:
            heads = [x.unflatten(-1, (4, 8)).transpose(1, 2) for x in made.chunk(3, -1)]
        q, k, v = heads if self.order != "keys first" else (heads[1], heads[0], heads[2])
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        total: Tensor = h + self.out(mixed)
        return total


def packed(order: str = "in turn") -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Packed(order) for _ in range(2)]
    return nn.Sequential(*blocks, nn.Linear(32, 5)), torch.randn(2, 6, 32)


@pytest.mark.parametrize(
    ("recipe", "build"),
    [
        ("completep", gpt2),
        ("mup", neox),
        ("depth-mup", lambda: encoder(pre=True)),
        ("mup", packed),
        ("depth-mup", lambda: packed("keys first")),
        ("completep", lambda: packed("head by head")),
    ],
    ids=["gpt2", "neox", "encoder", "in turn", "keys first", "head by head"],
)
def test_where_one_layer_makes_queries_keys_and_values(
    recipe: str, build: Callable[[], tuple[nn.Module, Any]]
) -> None:
    applied, batch = on_module(recipe, build)
    attending = [b for b in layout(applied.model, batch).branches if b.head]
    assert [b.logits for b in attending] == pytest.approx([1 / 8] * len(attending))
    assert f"{len(attending)} attention logits scaled to 1/d" in applied.changes
    numbers = [m for m in applied.model.modules() if isinstance(m, QueryTimes)]
    assert len(numbers) == len(attending)

    def undone(model: nn.Module) -> None:
        numbers[0].number = 1.0

    words = f"{len(attending) - 1} of {len(attending)} attention logits .*the usual 1/sqrt.d."
    broken(applied.model, batch, recipe, undone, words)


@pytest.mark.parametrize("order", ["in turn", "keys first", "head by head"])
def test_of_a_packed_layer_the_queries_alone_are_multiplied(order: str) -> None:
    applied, _ = on_module("mup", lambda: packed(order))
    layer = applied.model.get_submodule("0.qkv")
    x = torch.randn(5, 32)
    ratio = layer(x) / layer.get_submodule("module")(x)
    queries = torch.zeros(96, dtype=torch.bool)
    first = 32 if order == "keys first" else 0
    queries[first : first + 32] = True
    if order == "head by head":
        queries = (torch.arange(96) % 24) < 8
    assert torch.allclose(ratio[:, queries], torch.tensor(8**-0.5))
    assert torch.equal(ratio[:, ~queries], torch.ones(5, 64))
    hidden = applied.groups(0.1)[1]["params"]  # weight and rows have one rate, all of them
    assert any(p is applied.model.get_parameter("0.qkv.module.weight") for p in hidden)


def test_keys_that_were_multiplied_too_are_seen() -> None:
    applied, batch = on_module("mup", packed)

    def plant(model: nn.Module) -> None:
        layer = model.get_submodule("0.qkv")
        layer.register_module("after", Times(8**-0.5))

    broken(applied.model, batch, "mup", plant, "1 of 2 attention logits .*has 0.04419 for d = 8")


def test_what_cannot_be_scaled_from_outside_is_said() -> None:
    model, batch = encoder(pre=True)
    for layer in model.get_submodule("0.layers").children():
        layer.self_attn = nn.MultiheadAttention(32, 4, add_bias_kv=True, batch_first=True)
    applied = apply(model, batch, "mup")
    *left, unseen, last = applied.left
    assert [line.rpartition(": ")[2] for line in left] == [
        f"which outputs of '0.layers.{k}.self_attn.in_proj_weight' are queries, keys and values "
        f"was not found"
        for k in range(3)
    ]
    assert "keeps the factor of its logits" in left[0]
    assert last.endswith("the usual 1/sqrt(d)")
    assert said(audit(applied.model, batch, "mup")) == f"{unseen} | {last}"


# ----------------------------------------------------------------------------- an optimiser


def _groups(base: int = 6) -> tuple[nn.Module, Any, list[dict[str, Any]]]:
    model, batch = mlp()
    applied = apply(model, batch, mup(base))
    return applied.model, batch, applied.groups(0.1, weight_decay=0.01)


def test_hidden_matrices_learn_at_a_quarter_and_decay_four_times() -> None:
    model, batch, groups = _groups()
    assert [row["lr"] for row in groups] == [0.1, pytest.approx(0.025)]
    assert [row["weight_decay"] for row in groups] == [0.01, pytest.approx(0.04)]
    assert len(groups[1]["params"]) == 12
    assert all(p.dim() == 2 for p in groups[1]["params"])
    found = audit(model, batch, mup(6), torch.optim.AdamW(groups))
    assert found.holds, said(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.1}, "0 of 12 hidden weights learn at 0.25 of the rate"),
        ({"weight_decay": 0.01}, "0 of 12 hidden weights with 4 times the weight decay"),
        ({"weight_decay": 0.0}, "has 0, expected 0.04"),
    ],
)
def test_a_wrong_group_is_named(change: dict[str, float], words: str) -> None:
    model, batch, groups = _groups()
    groups[1] |= change
    assert words in said(audit(model, batch, mup(6), torch.optim.AdamW(groups)))


def test_a_slow_head_and_another_optimiser_are_named() -> None:
    model, batch, groups = _groups()
    sgd = torch.optim.SGD(groups)
    assert "SGD: the rates are for Adam" in said(audit(model, batch, mup(6), sgd))
    head = model.get_parameter("7.module.weight")
    groups[0]["params"] = [p for p in groups[0]["params"] if p is not head]
    groups.append({"params": [head], "lr": 0.025, "weight_decay": 0.01})
    words = said(audit(model, batch, mup(6), torch.optim.AdamW(groups)))
    assert words == ("27 of 28 other parameters learn at the full rate; '7.module.weight' does not")


def test_without_a_parameter_at_the_full_rate_no_share_of_it_is_held() -> None:
    network = Network("h + W2(relu(W1(h)))", 4, 32)
    model, batch = network.module(seed=0), torch.randn(4, 32)
    groups = grouped(model, mup(8).plan(layout(model, batch)).groups, 0.1)
    assert "no parameter learns at the full rate" in said(
        audit(model, batch, mup(8), torch.optim.Adam(groups))
    )


# ----------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("build", "words"),
    [(plain, "no residual branch was found"), (resnet, "the stream has the widths 8, 16")],
)
def test_what_it_does_not_cover(build: Callable[[], tuple[nn.Module, Any]], words: str) -> None:
    model, batch = build()
    with pytest.raises(NetworkError, match=words):
        apply(model, batch, "mup")


def test_a_base_width_below_one_is_refused() -> None:
    with pytest.raises(NetworkError, match="base_width is 0"):
        mup(0)


def _step(width: int, recipe: bool) -> float:
    """Root mean square of the change of the logits by one step of Adam."""
    torch.manual_seed(0)
    network = Network("h + W2(relu(W1(h)))", 3, width, init="lecun")
    model: nn.Module = nn.Sequential(
        nn.Linear(8, width), network.module(seed=0), nn.Linear(width, 4)
    )
    batch, target = torch.randn(64, 8), torch.randn(64, 4)
    rows: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": 1e-3}]
    if recipe:
        applied = apply(model, batch, mup(32))
        model, rows = applied.model, applied.groups(1e-3)
    optimizer = torch.optim.Adam(rows)
    before = model(batch)
    (before - target).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        return float((model(batch) - before).square().mean().sqrt())


def test_the_first_step_changes_the_function_as_much_at_every_width() -> None:
    widths = (32, 512)
    kept = [_step(width, True) for width in widths]
    grown = [_step(width, False) for width in widths]
    assert 0.5 < kept[1] / kept[0] < 2
    assert grown[1] / grown[0] > 6
