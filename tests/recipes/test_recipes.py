"""Recipes applied to modules and held to them: each audited clean, and dirty after each mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError, SpecificationError
from depthgauge.recipes.apply import Applied, apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.recipes.guess import guess
from depthgauge.trace.layout import layout
from tests.recipes.contract import said
from tests.recipes.models import DEPTH, WIDTH, gpt2, mlp, relu_gpt2, resnet


def weights(model: nn.Module, ending: str) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if name.endswith(ending)]


# -------------------------------------------------------------------------------- Fixup


@pytest.mark.parametrize("build", [mlp, resnet, relu_gpt2, gpt2])
def test_fixup_applied_is_audited_clean(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, batch = build()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    applied = apply(model, batch, "fixup", seed=1)
    found = audit(applied.model, batch, "fixup")
    assert found.holds, said(found)
    assert not applied.left
    assert found.branches == layout(model, batch).L
    for name, p in model.state_dict().items():
        assert torch.equal(p, before[name])
    assert not audit(model, batch, "fixup").holds


def test_fixup_begins_as_the_identity_and_its_scalars_learn_slowly() -> None:
    model, batch = mlp()
    applied = apply(model, batch, "fixup")
    assert isinstance(applied.model, nn.Sequential)
    h = applied.model[0](batch)
    assert torch.equal(applied.model[1:-1](h), h)
    assert torch.equal(applied.model(batch), torch.zeros(32, 3))
    slow = applied.groups(0.1)
    assert [group["lr"] for group in slow] == [0.1, pytest.approx(0.01)]
    assert len(slow[1]["params"]) == len(applied.scalars) == DEPTH * (2 + 1 + 2)
    assert all(p.numel() == 1 for p in slow[1]["params"])


def test_the_scale_is_that_of_the_branches_that_were_counted() -> None:
    model, batch = mlp()
    applied = apply(model, batch, "fixup", seed=3)
    pooled = torch.cat([p.detach().flatten() for p in weights(applied.model, "up.module.weight")])
    expected = math.sqrt(2 / (4 * WIDTH)) * DEPTH**-0.5
    assert float(pooled.std()) == pytest.approx(expected, rel=0.03)


#: A mistake made in a network that follows Fixup, and what the audit says of it.
MISTAKES: dict[str, tuple[Callable[[Applied], None], str]] = {
    "no scale": (
        lambda a: _times(a, DEPTH**0.5),
        f"{DEPTH} of {DEPTH} inner weights of branches: std .*the depth scale was never applied",
    ),
    "layers counted": (
        lambda a: _times(a, (2 * DEPTH) ** -0.5 / DEPTH**-0.5),
        f"L counts the {2 * DEPTH} layers, not the {DEPTH} branches",
    ),
    "the shortcut counted": (
        lambda a: _times(a, DEPTH**-0.25 / DEPTH**-0.5),
        "m = 3: the shortcut was counted",
    ),
    "the wrong sign": (lambda a: _times(a, float(DEPTH)), "the exponent has the wrong sign"),
    "a stage counted": (lambda a: _times(a, 2**-0.5 / DEPTH**-0.5), "L = 2: counted in a part"),
    "a last layer drawn": (
        lambda a: _draw(weights(a.model, "down.module.module.weight")[2]),
        f"1 of {DEPTH} last weights of branches: std up to .*, expected zero",
    ),
    "the head drawn": (
        lambda a: _draw(weights(a.model, "7.weight")[0]),
        "1 of 1 weights of the head: std up to .*, expected zero",
    ),
}


def _times(applied: Applied, factor: float) -> None:
    with torch.no_grad():
        for p in weights(applied.model, "up.module.weight"):
            p.mul_(factor)


def _draw(p: Tensor) -> None:
    with torch.no_grad():
        p.normal_(0, 0.1)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    model, batch = mlp()
    applied = apply(model, batch, "fixup")
    mistake, words = MISTAKES[name]
    mistake(applied)
    found = audit(applied.model, batch, "fixup")
    assert not found.holds
    assert re.search(words, said(found)), said(found)


def test_scalars_and_norms_are_counted() -> None:
    model, batch = mlp()
    applied = apply(model, batch, "fixup")
    block = applied.model.get_submodule("2")
    block.norm = nn.LayerNorm(WIDTH)
    for name in ("down", "relu"):
        setattr(block, name, block.get_submodule(f"{name}.module"))
    words = said(audit(applied.model, batch, "fixup"))
    assert "1 norms: Fixup takes their place" in words
    assert f"{DEPTH - 1} of {DEPTH} branches with a scalar multiplier" in words
    assert f"{DEPTH - 1} of {DEPTH} activations of branches with a scalar bias" in words


def test_what_fixup_does_not_cover() -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(NetworkError, match="no residual branch was found"):
        audit(plain, torch.randn(4, 8), "fixup")
    with pytest.raises(NetworkError, match="a branch of m = 1 weight layers has none"):
        fixup_scale(54, 1)
    with pytest.raises(
        SpecificationError, match=r"recipe is 'fixpu', expected one of .*he, .*fixup"
    ):
        apply(plain, torch.randn(4, 8), "fixpu")


# -------------------------------------------------------------------------------- GPT-2


def test_gpt2_as_its_library_builds_it_follows_gpt2() -> None:
    model, batch = gpt2()
    found = audit(model, batch, "gpt2")
    assert found.holds, said(found)
    assert (found.branches, found.layers) == (6, (2, 4))
    wide, batch = gpt2(initializer_range=0.1)
    assert "12 of 12 other weights of branches: std 0." in said(audit(wide, batch, "gpt2"))


@pytest.mark.parametrize(
    ("std", "words"),
    [
        (0.02, "6 of 6 residual projections: std 0.02.*, expected 0.0082 .*never applied"),
        (0.02 / math.sqrt(3), "N = 3 layers were counted, not 2N = 6 additions"),
        (0.02 / 6, r"1/\(2N\) instead of its root"),
    ],
)
def test_a_wrong_depth_scale_is_named(std: float, words: str) -> None:
    model, batch = gpt2()
    with torch.no_grad():
        for p in weights(model, "c_proj.weight"):
            p.normal_(0, std)
    found = audit(model, batch, "gpt2")
    assert not found.holds
    assert re.search(words, said(found)), said(found)
    fixed = apply(model, batch, "gpt2")
    assert audit(fixed.model, batch, "gpt2").holds


def test_one_layer_among_many_is_found() -> None:
    model, batch = gpt2()
    with torch.no_grad():
        weights(model, "c_proj.weight")[3].normal_(0, 0.02)
    (finding,) = [f for f in audit(model, batch, "gpt2").findings if not f.holds]
    assert (finding.matching, finding.of) == (5, 6)
    assert finding.said.startswith("1 of 6 residual projections: std 0.0198, expected 0.0082")


# -------------------------------------------------------------------------------- wrappers


def _compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize("wrap", [nn.DataParallel, _compiled])
def test_a_model_in_a_wrapper_is_the_model_inside(wrap: Callable[..., nn.Module]) -> None:
    model, batch = mlp()
    made = apply(wrap(model), batch, "fixup", seed=1)
    plain = apply(model, batch, "fixup", seed=1)
    assert made.changes == plain.changes
    assert made.left == plain.left == ()
    for (name, a), (other, b) in zip(
        made.model.named_parameters(), plain.model.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(a, b)
    inside = made.model
    optimizer = torch.optim.SGD(made.groups(lr=0.1))
    held = audit(wrap(inside), batch, "fixup", optimizer)
    assert held == audit(inside, batch, "fixup", optimizer)
    assert held.holds
    assert guess(wrap(inside), batch) == guess(inside, batch)
    with torch.no_grad():
        weights(inside, "weight")[1].mul_(3)
    assert not audit(wrap(inside), batch, "fixup").holds


# ------------------------------------------------------------- weights of the model itself


class Flat(nn.Module):
    """``h + relu(h A_i) B_i``, all in one module."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(3):
            self.register_parameter(f"up{i}", nn.Parameter(torch.randn(2 * WIDTH, WIDTH)))
            self.register_parameter(f"down{i}", nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)))

    def forward(self, h: Tensor) -> Tensor:
        for i in range(3):
            inner = torch.relu(F.linear(h, getattr(self, f"up{i}")))
            h = h + F.linear(inner, getattr(self, f"down{i}"))
        return h


@pytest.mark.parametrize(
    "recipe", ["fixup", "nfnet", "prenorm", "sandwich", "layerscale", "sub-ln", "layernorm-scaling"]
)
def test_nothing_can_be_put_around_a_part_of_the_model_itself(recipe: str) -> None:
    made = apply(Flat(), torch.randn(8, WIDTH), recipe)
    assert any(
        "the weights belong to the model itself, and nothing can be put around a part of it; "
        "give the branch a module of its own" in line
        for line in made.left
    )
    assert not any("attention" in line for line in made.left)
    assert not audit(made.model, torch.randn(8, WIDTH), recipe).holds


class Stacked(nn.Module):
    """``h + relu(U_i h) B_i``, all B in one parameter, whose inputs cannot be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(6))
        self.down = nn.Parameter(torch.randn(6, 2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, h: Tensor) -> Tensor:
        for i, up in enumerate(self.up):
            h = h + torch.relu(up(h)) @ self.down[i]
        out: Tensor = self.head(h)
        return out


@pytest.mark.parametrize(
    "recipe", ["inv-sqrtL-init", "inv-sqrtL", "he", "lecun", "mup", "deepnorm"]
)
def test_a_weight_that_could_not_be_counted_is_no_pass(recipe: str) -> None:
    torch.manual_seed(0)
    batch = torch.randn(8, WIDTH)
    made = apply(Stacked(), batch, recipe)
    unseen = "1 weights that the rule speaks of were not checked: their inputs could not be counted"
    assert f"{unseen} ('down')" in made.left
    held = audit(made.model, batch, recipe)
    assert not held.holds
    assert [f.said for f in held.findings if f.state == "NOT MEASURED"] == [f"{unseen} ('down')"]
    assert not guess(made.model, batch).named


def test_what_no_rule_speaks_of_may_be_uncounted() -> None:
    batch = torch.randn(8, WIDTH)
    for recipe in ("prenorm", "rezero"):
        made = apply(Stacked(), batch, recipe)
        assert not any("not checked" in line for line in made.left)
    with pytest.raises(NetworkError, match="inputs of the layer of 'down' could not be counted"):
        apply(Stacked(), batch, "u-mup")
