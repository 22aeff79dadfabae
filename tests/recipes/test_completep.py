"""CompleteP: branches over the number of blocks, and what Adam is told of each group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.init import rms_of
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.completep import completep
from depthgauge.recipes.registry import RECIPES
from depthgauge.recipes.rules import Group, init_of, number_of
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import _tokens, bert, llama, mlp, plain, resnet, transformer

BLOCK = "h = h + attention(layernorm(h), heads=4); h = h + W2(gelu(W1(layernorm(h), out=4*n)))"


def _groups(name: str, depth: int, width: int = 256) -> tuple[Group, ...]:
    network = Network("h + W2(relu(W1(layernorm(h, gain=1))))", depth, width)
    found = layout(network.module(seed=0), torch.randn(2, width))
    assert found.blocks == depth
    return RECIPES[name].plan(found).groups


@pytest.mark.parametrize(
    ("name", "factor", "rate", "eps"),
    [("completep", 0.0625, 1.0, 0.0625), ("depth-mup", 0.25, 0.25, 0.25)],
)
def test_golden_numbers(name: str, factor: float, rate: float, eps: float) -> None:
    """Of 32 blocks at base depth 2 and the base width."""
    weights, vectors, outside = _groups(name, 32)
    network = Network("h + W2(relu(W1(layernorm(h))))", 2, 16)
    form = RECIPES[name].plan(layout(network.module(), torch.randn(2, 16))).forms[0]
    assert number_of(str(form.factor), {"depth": 32.0}) == pytest.approx(factor)
    assert [weights.rate, weights.decay] == pytest.approx([rate, 1.0])
    assert [vectors.rate, vectors.decay] == pytest.approx([rate, 1.0])
    assert weights.eps == vectors.eps == pytest.approx(eps)
    assert (len(weights.paths), len(vectors.paths), outside.paths) == (64, 32, ())


def test_width_counts_against_the_base() -> None:
    weights, vectors, _ = _groups("completep", 2, 32)
    assert (weights.rate, weights.decay, weights.eps) == (8.0, 0.125, 8.0)
    assert (vectors.rate, vectors.decay, vectors.eps) == (1.0, 1.0, 8.0)
    init = init_of("normal(std=0.02/sqrt(n/256))")
    assert rms_of(init, (1024, 1024), {"n": 1024.0}) == pytest.approx(0.01)


def test_on_equations() -> None:
    changed, model, batch = on_equation("completep", BLOCK, depth=8)
    assert str(changed.block) == (
        "h = h + 2/depth * attention(layernorm(h), heads=4, scale=1/(n/4)); "
        "h = h + 2/depth * W2(gelu(W1(layernorm(h), out=4*n)))"
    )
    weight = model.get_parameter("blocks.3.W1.weight").detach()
    assert float(weight.std()) == pytest.approx(0.02 * 8**0.5, rel=0.05)
    plant = redrawn("completep", batch, "normal(std=0.02)")
    broken(model, batch, "completep", plant, "48 of 48 hidden weights: .*the width was not counted")
    on_equation("completep", "h + W2(relu(W1(h)))")


@pytest.mark.parametrize("build", [llama, mlp])
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("completep", build)


def test_gpt2s_scale_as_well_is_named() -> None:
    applied, batch = on_module("completep", mlp)
    init = "normal(std=0.02/sqrt(n/256)/sqrt(L))"
    plant = redrawn("completep", batch, init, lambda w: w.last)
    broken(applied.model, batch, "completep", plant, "6 of 12 hidden .*GPT-2's 1/sqrt.2N. as well")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ("1", "12 of 12 sums: 1 h . 1 F, expected 1 h . 0.3333 F: the multiplier is missing"),
        ("sqrt(2/depth)", "alpha = 1/2, depth-muP's"),
        ("2/L", "branches were counted, not blocks"),
        ("1/depth", "without the base depth"),
    ],
)
def test_another_multiplier_is_named(factor: str, words: str) -> None:
    equation = f"h = h + {factor} * W(relu(h)); h = h + {factor} * W2(gelu(W1(h)))"
    if factor == "1/depth":  # with two branches in a block that is 2/L
        equation = "h = h + 1/depth * W(relu(h))"
    network = Network(equation, 6, 32, init="normal(std=0.02/sqrt(n/256))")
    found = audit(network.module(seed=0), torch.randn(4, 32), "completep")
    assert [f.part for f in found.findings if not f.holds] == ["factors of skip and branch"]
    assert words.replace("1 h . ", "1 h + ") in said(found)


def test_a_matrix_outside_of_branches_is_a_group_of_its_own() -> None:
    model, batch = bert()
    plan = completep().plan(layout(model, batch))
    assert plan.groups[2].paths == ("cls.predictions.transform.dense.weight",)


# ----------------------------------------------------------------------------- an optimiser


def _rows() -> tuple[nn.Module, Any, list[dict[str, Any]]]:
    model, batch = mlp()
    applied = apply(model, batch, completep(6, 2))
    return applied.model, batch, applied.groups(0.1, weight_decay=0.01, eps=1e-12)


def test_the_groups_of_an_optimiser() -> None:
    model, batch, rows = _rows()
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.025, 0.1])
    assert [row["weight_decay"] for row in rows] == pytest.approx([0.01, 0.04, 0.01])
    assert [row["eps"] for row in rows] == pytest.approx([1e-12, 1e-12 / 12, 1e-12 / 12])
    assert [len(row["params"]) for row in rows] == [4, 12, 24]
    found = audit(model, batch, completep(6, 2), torch.optim.AdamW(rows))
    assert found.holds, said(found)


@pytest.mark.parametrize(
    ("group", "change", "words"),
    [
        (1, {"lr": 0.1}, "0 of 12 hidden weights of branches learn at 0.25 of the rate"),
        (2, {"lr": 0.025}, "0 of 24 biases and norms of branches learn at 1 of the rate"),
        (1, {"weight_decay": 0.01}, "hidden weights of branches with 4 times the weight decay"),
        (2, {"eps": 1e-12}, "0 of 24 biases and norms of branches with 0.0833333 times the eps"),
        (1, {"eps": 1e-8}, "has 1e-08, expected 8.33333e-14"),
    ],
)
def test_a_wrong_group_is_named(group: int, change: dict[str, float], words: str) -> None:
    model, batch, rows = _rows()
    rows[group] |= change
    assert words in said(audit(model, batch, completep(6, 2), torch.optim.AdamW(rows)))


def test_decay_of_hidden_weights_alone_cannot_be_held_to_anything() -> None:
    model, batch, rows = _rows()
    rows[0]["weight_decay"] = rows[2]["weight_decay"] = 0.0
    words = said(audit(model, batch, completep(6, 2), torch.optim.AdamW(rows)))
    assert "weight decay of others, which have none that it could be held to" in words
    rows[1]["weight_decay"] = 0.0
    assert audit(model, batch, completep(6, 2), torch.optim.AdamW(rows)).holds


# ----------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (plain, "no residual branch was found, and CompleteP is a rule"),
        (resnet, "the stream has the widths 8, 16"),
        (transformer, "2 streams were found, and CompleteP counts the blocks of one"),
    ],
)
def test_what_it_does_not_cover(build: Callable[[], tuple[nn.Module, Any]], words: str) -> None:
    model, batch = build()
    with pytest.raises(NetworkError, match=words):
        apply(model, batch, "completep")


def test_a_base_below_one_is_refused() -> None:
    with pytest.raises(NetworkError, match="base_depth is 0, expected a whole number"):
        completep(base_depth=0)


def _step(depth: int, recipe: bool) -> float:
    """Root mean square of the change of the last state by one step of Adam, of branch weights."""
    network = Network("h + W2(relu(W1(layernorm(h))))", depth, 64, init="normal(std=0.04)")
    batch = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    model = network.module(seed=0)
    rows: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": 1e-3}]
    if recipe:
        applied = apply(model, batch, completep(64, 4, 0.04))
        model, rows = applied.model, applied.groups(1e-3, eps=1e-12)
    optimizer = torch.optim.Adam(rows)
    before = model(batch)
    (before * batch.roll(1, 1)).mean().backward()
    optimizer.step()
    with torch.no_grad():
        return float((model(batch) - before).square().mean().sqrt())


def test_the_first_step_changes_the_function_as_much_at_every_depth() -> None:
    depths = (4, 64)
    kept = [_step(depth, True) for depth in depths]
    grown = [_step(depth, False) for depth in depths]
    assert 0.5 < kept[1] / kept[0] < 2
    assert grown[1] / grown[0] > 6


def test_a_number_in_front_of_a_head_is_the_heads_not_the_last_sums() -> None:
    class Tail(nn.Module):
        def __init__(self, number: float) -> None:
            super().__init__()
            *body, last = mlp()[0].children()
            self.body, self.last, self.number = nn.Sequential(*body), last, number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.number * self.body(x))
            return out

    batch = mlp()[1]
    for number in (256 / 24, 3.0):
        applied = apply(Tail(number), batch, "completep")
        found = audit(applied.model, batch, "completep")
        assert found.holds, said(found)
    model = applied.model
    assert isinstance(model, Tail)
    model.number = 5.0
    wrong = said(audit(model, batch, "completep"))
    assert wrong.startswith("0 of 1 heads whose input is multiplied by 256/n = 10.67")
    assert "sums" not in wrong


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recipe", ["completep", "depth-mup"])
def test_the_head_is_held_to_its_deviation_also_where_it_is_the_embedding(
    recipe: str, tied: bool
) -> None:
    def build() -> tuple[nn.Module, Any]:
        from transformers import LlamaConfig, LlamaForCausalLM

        return _tokens(LlamaForCausalLM, LlamaConfig, tie_word_embeddings=tied)

    applied, batch = on_module(recipe, build)
    (head,) = layout(applied.model, batch).heads
    assert head.looked_up is tied

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(head.path).mul_(32**-0.5 / 0.02)

    broken(applied.model, batch, recipe, plant, "1 of 1 weights of the head: std 0.1.*0.02")
