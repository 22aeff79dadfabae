"""Modules that run several times, precisions, and sums that are not what they seem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.wrappers import Left
from tests.recipes.contract import on_equation, said
from tests.recipes.models import mlp


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.f, self.relu, self.g = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.g(self.relu(self.f(x)))
        return out


class Looped(nn.Module):
    """One block four times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.block(x)
        return x


@pytest.mark.parametrize("recipe", ["inv-sqrtL", "rezero", "skipinit", "fixup", "prenorm"])
def test_a_block_that_runs_four_times_is_changed_once(recipe: str) -> None:
    model, batch = Looped(), torch.randn(8, 16)
    applied = apply(model, batch, recipe)
    assert not applied.left
    found = audit(applied.model, batch, recipe)
    assert found.holds, said(found)
    if recipe == "inv-sqrtL":
        wrapped = applied.model.get_submodule("block.g")
        assert isinstance(wrapped, Left)
        assert isinstance(wrapped.module, nn.Linear)


def test_numbers_that_differ_by_block_cannot_be_put_into_one_module() -> None:
    left = apply(Looped(), torch.randn(8, 16), "stable-resnet").left
    assert left
    assert "'block.g' runs in several branches" in left[0]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_what_is_put_in_has_the_model_s_precision(kind: torch.dtype) -> None:
    model = nn.Sequential(*[Block() for _ in range(3)]).to(kind)
    applied = apply(model, torch.randn(4, 16, dtype=kind), "fixup")
    assert {p.dtype for p in applied.model.parameters()} == {kind}


@pytest.mark.parametrize("recipe", ["rezero", "fixup", "inv-sqrt2", "stable-resnet"])
def test_an_activation_on_the_stream_stays_where_it_is(recipe: str) -> None:
    changed, _, _ = on_equation(recipe, "relu(h + W2(relu(W1(h))))", depth=4, width=16)
    assert str(changed.block).startswith("h = relu(")


@pytest.mark.parametrize(
    "equation", ["sigmoid(W1(h))*h + (1 - sigmoid(W1(h)))*W2(h)", "W3(h + W2(relu(W1(h))))"]
)
def test_a_sum_that_cannot_be_changed_is_refused(equation: str) -> None:
    with pytest.raises(NetworkError, match=r"cannot be changed|no residual branch|forms for"):
        rewritten(Network(equation, 4, 8), "rezero")


def test_a_branch_by_a_name_is_a_branch() -> None:
    for equation in (
        "f = W2(relu(W1(layernorm(h)))); h = h + f",
        "y = relu(W1(h)); h = h + W2(y)",
    ):
        changed, _, _ = on_equation("fixup", equation, width=16)
        assert str(changed.block) == (
            "h = h + scalar(1) * W2(relu(W1(h + scalar(0)) + scalar(0)) + scalar(0)) + scalar(0)"
        )
    late = Network("f = W1(h); h = h + W2(relu(h)); h = h + relu(f)", 3, 8)
    assert str(rewritten(late, "rezero").network.block).startswith("f = W1(h); h = h + ")


def test_frozen_parameters_are_said() -> None:
    model, batch = mlp()
    applied = apply(model, batch, "rezero").model
    for p in applied.parameters():
        p.requires_grad_(False)
    assert "no parameter requires a gradient" in said(audit(applied, batch, "rezero"))


def test_weights_that_are_not_finite_are_said() -> None:
    model, batch = mlp()
    applied = apply(model, batch, "orthogonal").model
    with torch.no_grad():
        applied.get_parameter("2.up.weight")[0, 0] = torch.nan
    words = said(audit(applied, batch, "orthogonal"))
    assert "not finite ('2.up.weight')" in words


class Pooled(nn.Module):
    """Returns its last state and what a head makes of it."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.pooler, self.pooled = nn.Linear(16, 4), pooled

    def forward(self, x: Tensor) -> Any:
        h = self.blocks(x)
        return (h, self.pooler(h)) if self.pooled else self.pooler(h)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_state_that_is_returned_beside_the_head_has_a_gradient_at_once(pooled: bool) -> None:
    applied = apply(Pooled(pooled), torch.randn(4, 16), "fixup")
    found = audit(applied.model, torch.randn(4, 16), "fixup")
    assert found.holds, said(found)
    first = next(f for f in found.findings if f.part == "gradients at step 0")
    assert ("6 tensors are to have no gradient" in first.said) is not pooled


class Bounded(nn.Module):
    """A branch whose first layer has a spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 32))
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(torch.relu(self.up(x)))
        return made


@pytest.mark.parametrize("name", ["he", "fixup", "postnorm"])
def test_an_audit_in_training_mode_leaves_power_iterations_where_they_are(name: str) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(Bounded(), Bounded()), torch.randn(8, 16)
    before = {key: held.clone() for key, held in model.state_dict().items()}
    audit(model.train(), batch, name)
    assert all(torch.equal(held, before[key]) for key, held in model.state_dict().items())
    model(batch)  # the partner: a pass does move them
    assert not all(torch.equal(held, before[key]) for key, held in model.state_dict().items())


def test_fixup_put_into_a_module_twice_adds_no_second_scalar() -> None:
    model, batch = mlp()
    once = apply(model, batch, "fixup")
    twice = apply(once.model, batch, "fixup")
    count = [sum(p.numel() for p in made.model.parameters()) for made in (once, twice)]
    assert count[0] == count[1]
    assert not once.left
    assert all("has a learned multiplier already" in line for line in twice.left)
    assert audit(twice.model, batch, "fixup").holds
