"""Which recipe a module's numbers agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import EquationError, NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.guess import guess
from depthgauge.recipes.registry import RECIPES
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import Plan, Rule, Target, number_of
from depthgauge.trace.counted import Layout
from tests.recipes.contract import undone
from tests.recipes.models import (
    convolutions,
    encoder,
    gpt2,
    mlp,
    normed_preactivation,
    plain,
    resnet,
    stacked,
)


def test_gpt2_is_named_and_what_was_undone_speaks_against_it() -> None:
    model, batch = gpt2()
    found = guess(model, batch)
    assert found.named is not None
    assert found.named.name == "gpt2"
    first = found.candidates[0]
    assert first.share == 1
    undone("c_proj.weight", 0.02)(model)
    other = guess(model, batch)
    assert other.named is None or other.named.name != "gpt2"
    against = next(c for c in other.candidates if c.recipe.name == "gpt2")
    assert not against.agrees
    assert 0.5 < against.share < 1
    row = next(c for c in other.to_dict()["candidates"] if c["recipe"] == "gpt2")
    assert "the depth scale was never applied" in row["against"][0]
    assert len(row["for"]) >= 2


def test_what_was_applied_is_what_is_guessed() -> None:
    model, batch = mlp()
    for name in ("fixup", "rezero"):
        found = guess(apply(model, batch, name).model, batch)
        assert name in {c.recipe.name for c in found.candidates if c.agrees}


def test_pytorch_s_default_is_no_initialiser_of_a_recipe() -> None:
    model, batch = mlp()
    found = guess(model, batch)
    assert not [c.recipe.name for c in found.candidates if c.agrees and c.initialises]


def test_an_equation_s_weights() -> None:
    model = Network("h + W2(relu(W1(h)))", 6, 32, init="he").module(0)
    found = guess(model, torch.randn(8, 32))
    assert found.named is not None
    assert found.named.name == "he"
    assert found.to_dict()["branches"] == 6


def test_of_mup_something_of_its_own_has_to_show() -> None:
    """Its hidden weights are LeCun's: without a head, without attention, nothing else shows."""
    batch = torch.randn(8, 32)
    found = guess(Network("h + W2(relu(W1(h, out=4*n)))", 6, 32).module(0), batch)
    assert [c.recipe.name for c in found.candidates if c.agrees] == ["lecun"]
    (mup,) = (c for c in found.candidates if c.recipe.name == "mup")
    assert all(finding.holds for finding in mup.findings)
    row = next(c for c in found.to_dict()["candidates"] if c["recipe"] == "mup")
    assert row["agrees"] is False
    assert row["against"] == [
        "without a head and attention only its rates are its own, which an optimizer has"
    ]
    model, given = mlp()
    shown = guess(apply(model, given, "mup").model, given)
    assert "mup" in {c.recipe.name for c in shown.candidates if c.agrees}
    head = nn.Linear(256, 3)
    nn.init.normal_(head.weight, std=1 / 16)  # LeCun's
    wide = nn.Sequential(Network("h + W2(relu(W1(h)))", 6, 256).module(0), head)
    found = guess(wide, torch.randn(8, 256))
    (mup,) = (c for c in found.candidates if c.recipe.name == "mup")
    assert mup.bare == "at the base width, without attention, only its name is its own"
    assert not mup.agrees


@pytest.mark.parametrize(
    ("activation", "named", "other"), [("tanh", "xavier", "lecun"), ("selu", "lecun", "xavier")]
)
def test_of_two_that_ask_the_same_the_one_is_named_that_is_meant(
    activation: str, named: str, other: str
) -> None:
    """Square layers: both of Xavier's fans are LeCun's one."""
    found = guess(Network(f"W({activation}(h))", 8, 32).module(0), torch.randn(8, 32))
    assert found.named is not None
    assert found.named.name == named
    assert found.alike == (other,)
    first, second = found.candidates[:2]
    assert first.doubts == (f"{other} asks the same of these weights",)
    assert second.recipe.name == other
    assert second.doubts[0].startswith("derived for")
    oblong = guess(*_oblong(activation, named))
    assert oblong.named is not None
    assert oblong.named.name == named
    assert not oblong.alike


def _oblong(activation: str, recipe: str) -> tuple[nn.Module, torch.Tensor]:
    model, batch = plain({"tanh": nn.Tanh, "selu": nn.SELU}[activation])
    return apply(model, batch, recipe).model, batch


def test_what_was_nowhere_to_be_held_speaks_for_nothing() -> None:
    network = Network("h + W2(relu(W1(layernorm(h))))", 4, 16)
    found = guess(network.module(0), torch.randn(4, 16))
    assert not any("0 of 0" in f.said for c in found.candidates for f in c.findings)


def test_weights_of_all_blocks_in_one_parameter_end_no_guess() -> None:
    found = guess(*stacked())
    assert found.branches == 3
    assert {"lecun", "fixup"} <= {c.recipe.name for c in found.candidates}
    assert "unit-scaling" not in {c.recipe.name for c in found.candidates}


@pytest.mark.parametrize("late", [True, False])
def test_a_recipe_whose_numbers_are_none_here_ends_no_guess(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Raised where the plan is made, or where its text is held to the weights."""
    he = RECIPES["he"]

    def plan(layout: Layout) -> Plan:
        targets = tuple(Target(w, "normal(std=1/sqrt(0))", {}) for w in layout.hidden)
        if not late:
            number_of("1/sqrt(0)", {})
        return Plan((Rule("weights", "none", targets),))

    model, batch = mlp()
    before = [c.recipe.name for c in guess(model, batch).candidates]
    monkeypatch.setitem(RECIPES, "he", replace(he, plan=plan))
    with pytest.raises(EquationError, match="is not a real number: the divisor is zero"):
        audit(model, batch, "he")
    after = [c.recipe.name for c in guess(model, batch).candidates]
    assert "he" in before
    assert sorted(after) == sorted(set(before) - {"he"})


# ------------------------------------------------------------- the recipe that was put in


def square(act: type[nn.Module] | None, layers: int = 12) -> tuple[nn.Module, torch.Tensor]:
    """Layers in series of 64 by 64, whose two fans are the same."""
    torch.manual_seed(0)
    kinds = [] if act is None else [act]
    rows = [[nn.Linear(64, 64), *[kind() for kind in kinds]] for _ in range(layers)]
    return nn.Sequential(*[m for row in rows for m in row], nn.Linear(64, 64)), torch.randn(256, 64)


def vanilla() -> tuple[nn.Module, torch.Tensor]:
    """Kernels under tanh, from 8 channels to 24."""
    torch.manual_seed(0)
    sizes = [3, 8, 8, 16, 24]
    rows = [(nn.Conv2d(a, b, 3, padding=1), nn.Tanh()) for a, b in pairwise(sizes)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))
    return nn.Sequential(*[m for row in rows for m in row], *head), torch.randn(4, 3, 8, 8)


BUILDS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "residual": mlp,
    "oblong": plain,
    "square tanh": lambda: square(nn.Tanh),
    "square relu": lambda: square(nn.ReLU),
    "square gelu": lambda: square(nn.GELU),
    "linear": lambda: square(None, 6),
    "convolutions": convolutions,
    "vanilla": vanilla,
    "residual convolutions": resnet,
    "normed": normed_preactivation,
    "encoder": encoder,
}
#: What cannot be told from the recipe that was put in, and is named: the two fans of a square
#: layer, unit outputs of orthogonal layers with no activation between, and the kind of the norms
#: that were there anyway.
EQUIVALENT: dict[tuple[str, str], set[str]] = {
    **{("lecun", build): {"xavier"} for build in BUILDS if build.startswith(("square", "linear"))},
    ("orthogonal", "linear"): {"lsuv"},
    **{
        (name, build): {f"{name}-layernorm", f"{name}-batchnorm"}
        for name in ("prenorm", "postnorm", "sandwich")
        for build in BUILDS
    },
}
FIRST = [name for name, recipe in RECIPES.items() if recipe.tier == 1]


@pytest.mark.parametrize("name", [*FIRST, "dks", "tat"])
def test_the_first_name_is_that_of_what_was_applied(name: str) -> None:
    """In every one of these networks that the recipe can be put into, and there is one."""
    named = {}
    for build, made in BUILDS.items():
        model, batch = made()
        try:
            applied = apply(model, batch, name)
        except NetworkError:  # it does not cover this network
            continue
        if not applied.left:
            named[build] = guess(applied.model, batch).named
    assert named
    for build, found in named.items():
        assert found is not None, build
        assert found.name in {name} | EQUIVALENT.get((name, build), set()), build


@pytest.mark.parametrize(
    ("name", "build", "other"),
    [
        ("orthogonal", "square tanh", "xavier"),
        ("orthogonal", "square relu", "lecun"),
        ("dks", "square tanh", "lsuv"),
        ("prenorm-rmsnorm", "residual", "prenorm"),
    ],
)
def test_of_two_that_agree_the_one_that_says_more_is_named(
    name: str, build: str, other: str
) -> None:
    """Orthogonal matrices have the size of Xavier's as well, and a network that DKS shapes has the
    unit outputs of LSUV."""
    model, batch = BUILDS[build]()
    found = guess(apply(model, batch, name).model, batch)
    agree = {c.recipe.name: c for c in found.candidates if c.agrees}
    assert other in agree
    assert agree[name].special > agree[other].special
    assert found.candidates[0].recipe.name == name
    # What the other would have put in is no agreement of this one's.
    plainly = guess(apply(model, batch, other).model, batch)
    if name != "prenorm-rmsnorm":
        assert name not in {c.recipe.name for c in plainly.candidates if c.agrees}


# ------------------------------------------------------- what a recipe asks for beside its norms


class Attention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.o(mixed)
        return out


class Sum(nn.Module):
    """A branch beside its skip, a norm in front or behind or none; times a number."""

    def __init__(self, branch: nn.Module, where: str, times: float = 1.0) -> None:
        super().__init__()
        self.branch, self.where = branch, where
        self.norm = nn.LayerNorm(32) if where else nn.Identity()
        self.gain = nn.Parameter(torch.full((32,), times)) if times != 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.branch(self.norm(x) if self.where == "pre" else x)
        total: torch.Tensor = x + (added if self.gain is None else self.gain * added)
        return self.norm(total) if self.where == "post" else total


def stack(where: str, times: float = 1.0, layers: int = 4) -> tuple[nn.Module, torch.Tensor]:
    """Sub-layers in a list: of a Transformer with norms, without them of a residual MLP."""
    torch.manual_seed(0)
    body: list[nn.Module] = []
    for _ in range(layers):
        feed = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        body += [Sum(Attention(), where, times)] if where else []
        body.append(Sum(feed, where, times))
    final = [nn.LayerNorm(32)] if where == "pre" else []
    batch = torch.randn(4, 8, 8) if where else torch.randn(64, 8)
    return nn.Sequential(nn.Linear(8, 32), *body, *final, nn.Linear(32, 3)), batch


SAYING = [n for n, recipe in RECIPES.items() if recipe.tier <= 2 and not recipe.searches]
#: A placement of the kind of norm that is there is named by that kind.
SAME = {name: {f"{name}-layernorm", name} for name in ("prenorm", "postnorm", "sandwich")}


@pytest.mark.parametrize("name", SAYING)
@pytest.mark.parametrize("where", ["pre", "post", ""])
def test_the_name_is_that_of_the_recipe_and_not_of_its_norms(where: str, name: str) -> None:
    model, batch = stack(where)
    try:
        applied = apply(model, batch, name)
    except NetworkError:  # it does not cover this network
        return
    if applied.left:  # nor can it be put in from outside
        return
    found = guess(applied.model, batch)
    assert found.named is not None
    assert found.named.name in SAME.get(name, {name})


@pytest.mark.parametrize("times", [0.1, 1.0])
def test_gains_behind_branches_are_more_than_their_norms(times: float) -> None:
    found = guess(*stack("pre", times))
    agree = [c.recipe.name for c in found.candidates if c.agrees]
    assert agree[0] == ("prenorm-layernorm" if times == 1 else "layerscale")
    assert "prenorm-layernorm" in agree or times != 1


@pytest.mark.parametrize("init", ["lecun", "he"])
@pytest.mark.parametrize(
    "name", ["rezero", "layerscale", "inv-sqrtL", "stable-resnet", "layernorm-scaling", "deepnorm"]
)
def test_what_was_put_around_usual_weights_is_more_than_the_weights(name: str, init: str) -> None:
    """Weights of a usual size agree with an initialiser whatever else was built."""
    network = Network("h + W2(relu(W1(layernorm(h), out=4*n)))", 4, 32, init=init)
    plainly = guess(network.module(0), torch.randn(8, 32))
    assert plainly.named is not None
    assert plainly.named.name == init
    found = guess(rewritten(network, name).network.module(0), torch.randn(8, 32))
    assert found.named is not None
    assert found.named.name == name


def test_a_number_that_is_one_here_is_nothing_of_its_own() -> None:
    """In one block LayerNorm Scaling divides by one."""
    network = Network("h + W2(relu(W1(layernorm(h))))", 1, 32, init="torch")
    found = guess(network.module(0), torch.randn(8, 32))
    agree = {c.recipe.name: c for c in found.candidates if c.agrees}
    assert "layernorm-scaling" in agree
    assert not agree["layernorm-scaling"].speaks
    assert found.candidates[0].recipe.name == "prenorm-layernorm"
