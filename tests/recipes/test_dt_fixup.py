"""DT-Fixup: new layers over a pre-trained encoder, scaled by the largest norm of what enters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.dt_fixup import DT_FIXUP, SCALE, dt_fixup
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.trace.layout import layout, rows_of
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import bert, encoder, gpt2, llama, mlp, transformer

BLOCK = "h = h + attention(layernorm(h), heads=4); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


class Related(nn.Module):
    """Attention with relations between tokens: tables for keys and for values, shared by heads."""

    def __init__(self, width: int = 32, heads: int = 4, relations: int = 40) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.keys, self.values = (nn.Embedding(relations, width // heads) for _ in range(2))

    def forward(self, x: Tensor, relations: Tensor) -> Tensor:
        b, t, n = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.mT + torch.einsum("bhid,bijd->bhij", q, self.keys(relations))
        share = (scores / (n // self.heads) ** 0.5).softmax(-1)
        y = share @ v + torch.einsum("bhij,bijd->bhid", share, self.values(relations))
        out: Tensor = self.o(y.transpose(1, 2).reshape(b, t, n))
        return out


class RelatedLayer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.attention, self.first = Related(width), nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, width))
        self.second = nn.LayerNorm(width)

    def forward(self, x: Tensor, relations: Tensor) -> Tensor:
        x = self.first(x + self.attention(x, relations))
        out: Tensor = self.second(x + self.ff(x))
        return out


class RelatedStack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RelatedLayer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 3)

    def forward(self, x: Tensor, relations: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, relations)
        out: Tensor = self.head(self.norm(x))
        return out


def related(layers: int = 3) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return RelatedStack(layers), (3 * torch.randn(2, 6, 32), torch.randint(40, (2, 6, 6)))


def over(pre: bool = False) -> tuple[nn.Module, Any]:
    """Four new layers over two that are pre-trained."""
    torch.manual_seed(0)
    with warnings.catch_warnings():  # of a fast path that pre-norm layers do not take
        warnings.simplefilter("ignore", UserWarning)
        layer = nn.TransformerEncoderLayer(
            32, 4, 128, dropout=0.1, batch_first=True, norm_first=pre
        )
        stacks = [nn.TransformerEncoder(layer, n, enable_nested_tensor=False) for n in (2, 4)]
    model = nn.Sequential()
    model.add_module("base", stacks[0])
    model.add_module("new", stacks[1])
    model.add_module("head", nn.Linear(32, 3))
    return model, torch.randn(4, 6, 32)


def longest(batch: Any) -> float:
    """The slow way: every row's norm."""
    first = batch[0] if isinstance(batch, tuple) else batch
    rows = first.reshape(-1, first.shape[-1]).tolist()
    return max(math.sqrt(sum(x * x for x in row)) for row in rows)


def test_numbers() -> None:
    assert number_of(SCALE.format(N=24, mu=1), {}) == pytest.approx(0.072169, abs=5e-7)
    for layers in (1, 6, 24):
        assert number_of(SCALE.format(N=layers, mu=1), {}) == pytest.approx((8 * layers) ** -0.5)


def test_the_largest_norm_of_what_enters() -> None:
    for build in (related, encoder):
        model, batch = build()
        assert rows_of(model, batch)[0] == pytest.approx(longest(batch), rel=1e-6)
    model, batch = over(pre=True)
    model.train()
    with torch.no_grad():
        model.eval()
        entering = model.get_submodule("base")(batch)
        model.train()
    rows = rows_of(model, batch)
    assert rows[4] == pytest.approx(longest(entering), rel=1e-6), "without dropout"
    assert all(module.training for module in model.modules()), "the mode is as it was"


def test_on_modules_whose_layers_are_all_new() -> None:
    for build in (encoder, lambda: encoder(pre=True, final=True), gpt2, llama, related):
        on_module("dt-fixup", build)
    applied, batch = on_module("dt-fixup", bert)
    kinds = [name for name, m in applied.model.named_modules() if isinstance(m, nn.LayerNorm)]
    # Those in front of the stack and in the head's own layer stay.
    assert kinds == ["bert.embeddings.LayerNorm", "cls.predictions.transform.LayerNorm"]
    assert rows_of(applied.model, batch)[0] == pytest.approx(32**0.5, rel=1e-3)


def test_values_of_relations_are_scaled_and_keys_are_not() -> None:
    model, batch = related(3)
    assert layout(model, batch).averaged == tuple(
        f"layers.{k}.attention.values.weight" for k in range(3)
    )
    applied = apply(model, batch, "dt-fixup", seed=1)
    scale = number_of(SCALE.format(N=3, mu=longest(batch)), {})
    for ending, fans in (("attention.values.weight", 48), ("ff.0.weight", 80), ("v.weight", 64)):
        pooled = torch.cat([p.detach().flatten() for name, p in applied.model.named_parameters()
                            if name.endswith(ending)])  # fmt: skip
        expected = scale * (2 / fans) ** 0.5
        error = 4 * expected / (2 * pooled.numel()) ** 0.5
        assert abs(float(pooled.std(correction=0)) - expected) < error
    before, after = (m.get_parameter("layers.1.attention.keys.weight") for m in
                     (model, applied.model))  # fmt: skip
    assert torch.equal(before, after)
    unscaled = scaled("attention.values.weight", 1 / scale)
    words = "3 of 3 values of relations: .*the scale was never applied"
    broken(applied.model, batch, "dt-fixup", unscaled, words)


def test_over_a_pretrained_encoder() -> None:
    recipe = dt_fixup(pretrained="base")
    for pre in (False, True):
        model, batch = over(pre)
        applied = apply(model, batch, recipe, seed=1)
        assert not applied.left
        kept = zip(
            model.get_submodule("base").parameters(),
            applied.model.get_submodule("base").parameters(),
            strict=True,
        )
        assert all(torch.equal(a, b) for a, b in kept)
        norms = [name for name, m in applied.model.named_modules() if isinstance(m, nn.LayerNorm)]
        assert [name.partition(".")[0] for name in norms] == ["base"] * 4
        optimiser = torch.optim.Adam(applied.groups(lr=1e-3))
        assert [row["lr"] for row in optimiser.param_groups] == pytest.approx([1e-3, 8e-6])
        found = audit(applied.model, batch, recipe, optimiser)
        assert found.holds, said(found)
        assert not audit(model, batch, recipe).holds
        assert not audit(applied.model, batch, recipe, torch.optim.Adam(model.parameters())).holds
        # As if all six layers were new.
        whole = apply(model, batch, "dt-fixup", seed=1).model
        assert "'base.layers.0" not in said(audit(whole, batch, "dt-fixup"))
        assert not audit(whole, batch, recipe).holds


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (lambda mu: (4 * (4 * mu * mu + 2 * mu + 2)) ** 0.5, "the scale was never applied"),
        (lambda mu: 0.5**0.5, "branches were counted, not layers"),
        (lambda mu: (4 / 6) ** 0.5, "the pre-trained layers were counted too"),
        (lambda mu: ((4 * mu * mu + 2 * mu + 2) / 8) ** 0.5, "mu = 1: the norm was never measured"),
        (
            lambda mu: (
                ((4 * mu * mu + 2 * mu + 2) / (4 * mu * mu / 32 + 2 * mu / 32**0.5 + 2)) ** 0.5
            ),
            "the root mean square of a row in place of its norm",
        ),
        (
            lambda mu: 0.67 * 4**-0.25 * (4 * (4 * mu * mu + 2 * mu + 2)) ** 0.5,
            "T-Fixup's scale, which no data enter",
        ),
    ],
)
def test_planted_faults(factor: Callable[[float], float], words: str) -> None:
    model, batch = over()
    recipe = dt_fixup(pretrained="base")
    made = apply(model, batch, recipe, seed=1).model
    times = factor(rows_of(made, batch)[4])

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            for name, p in model.get_submodule("new").named_parameters():
                if name.endswith("in_proj_weight"):
                    p[64:].mul_(times)
                elif p.dim() > 1:
                    p.mul_(times)

    broken(made, batch, recipe, plant, f"16 of 16 values, outputs and feed-forward .*{words}")


def test_planted_faults_of_queries_and_of_other_data() -> None:
    model, batch = encoder()
    made = apply(model, batch, "dt-fixup", seed=1).model
    assert audit(made, batch, "dt-fixup").holds
    assert not audit(made, 3 * batch, "dt-fixup").holds, "another batch, another norm"
    scale = number_of(SCALE.format(N=3, mu=longest(batch)), {})
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name.endswith("in_proj_weight"):
                p[:64].mul_(scale)
    assert "scaled, where queries and keys are not" in said(audit(made, batch, "dt-fixup"))


def test_on_equations_with_the_norm_given() -> None:
    recipe = dt_fixup(mu=4)
    network = Network(BLOCK, 6, 32)
    gain = "xavier(gain=(L/2*(4*4**2 + 2*4 + 2))**-0.5)"
    before, after, *inits = rewritten(network, recipe).changes
    assert before == f"- {network.block}"
    assert after == "+ h = h + attention(h, heads=4); h = h + W2(relu(W1(h, out=4*n)))"
    assert sorted(inits) == sorted(
        f"{name}: lecun -> {init}"
        for name, init in (
            *((f"attention.1.{role}", gain) for role in "vo"),
            *((f"attention.1.{role}", "xavier") for role in "qk"),
            ("W1", gain),
            ("W2", gain),
        )
    )
    on_equation(recipe, BLOCK)
    with pytest.raises(NetworkError, match=r"cannot be put into an equation: its scale follows"):
        rewritten(network, "dt-fixup")


def test_what_it_does_not_cover() -> None:
    for build, why in (
        (mlp, "0 of which attend, and DT-Fixup is for one stack"),
        (transformer, "10 new branches in 2 streams were found"),
    ):
        model, batch = build()
        with pytest.raises(NetworkError, match=why):
            apply(model, batch, "dt-fixup")
    model, batch = over()
    with pytest.raises(NetworkError, match="no residual branch was found under 'bert'"):
        audit(model, batch, dt_fixup(pretrained="bert"))
    with pytest.raises(NetworkError, match="mu is 0, expected a finite number above 0"):
        dt_fixup(mu=0)
    with pytest.raises(NetworkError, match=r"the largest norm of a row in front of .* is 0"):
        audit(encoder()[0], torch.zeros(4, 6, 32), "dt-fixup")
    with pytest.raises(NetworkError, match="held against a network alone"):
        DT_FIXUP.plan(layout(*encoder()))
    assert recipe_named("dt-fixup") is DT_FIXUP
