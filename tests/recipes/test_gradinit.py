"""GradInit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import duplicate
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.gradinit import FLOOR, gradinit
from depthgauge.recipes.guess import guess
from depthgauge.recipes.rules import Recipe
from tests.recipes.contract import broken, on_equation, on_module, said, scaled
from tests.recipes.models import encoder, mlp, plain, resnet

ADAM = gradinit(optimiser="adam", rate=1e-3, gamma=50.0)


def classified(batch: int = 24) -> tuple[nn.Module, dict[str, Tensor]]:
    """Three layers whose last is far too large, on examples with labels of their own."""
    torch.manual_seed(0)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            made = self.layers(x)
            return {"logits": made, "loss": F.cross_entropy(made, labels)}

    model = Classifier()
    with torch.no_grad():
        model.get_parameter("layers.4.weight").mul_(20)
    x = torch.randn(batch, 6)
    return model, {"x": x, "labels": (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()}


def taken(model: nn.Module, batch: dict[str, Tensor], adam: bool) -> tuple[float, float]:
    """The slow way: the norm of the gradient, and the loss after a step of PyTorch's optimiser."""
    stepped, third = duplicate(model), len(batch["x"]) // 3
    first = {name: value[: 2 * third] for name, value in batch.items()}
    second = {name: value[third : 3 * third] for name, value in batch.items()}
    stepped(**first)["loss"].backward()
    flat = torch.cat([p.grad.flatten() for p in stepped.parameters() if p.grad is not None])
    norm = float(flat.abs().sum() if adam else flat.norm())
    optimiser: torch.optim.Optimizer = torch.optim.Adam(stepped.parameters(), 1e-3, eps=1e-20)
    if not adam:
        optimiser = torch.optim.SGD(stepped.parameters(), 0.1 / norm)
    optimiser.step()
    return norm, float(stepped(**second)["loss"].detach())


@pytest.mark.parametrize(("recipe", "gamma"), [(gradinit(), 1.0), (ADAM, 50.0)])
def test_the_step_against_pytorchs_optimiser(recipe: Recipe, gamma: float) -> None:
    adam = gamma > 1
    before, _ = taken(*classified(), adam)
    assert before > gamma
    applied, batch = on_module(recipe, classified)
    norm, loss = taken(applied.model, batch, adam)
    assert norm <= gamma * 1.001
    told = float(applied.changes[-1].rpartition("-> ")[2].partition(";")[0])
    assert loss == pytest.approx(told, rel=1e-3)


@pytest.mark.parametrize("build", [classified, plain, mlp, resnet])
def test_on_modules_every_tensor_has_a_size_of_at_least_the_floor(build: Any) -> None:
    applied, _ = on_module(ADAM, build)
    fresh = build()[0]
    sizes = []
    for p, q in zip(applied.model.parameters(), fresh.parameters(), strict=True):
        size = float(p.detach().norm() / q.detach().norm()) if q.any() else 1.0
        assert torch.allclose(p, size * q, rtol=1e-4, atol=1e-7)
        sizes.append(size)
    assert min(sizes) >= FLOOR * (1 - 1e-5)
    assert max(abs(size - 1) for size in sizes) > 0.05
    named = [dict(m.named_buffers()) for m in (applied.model, fresh)]
    assert all(torch.equal(named[0][n], x) for n, x in named[1].items())  # running statistics


@pytest.mark.parametrize(("start", "end"), [(4.0, 0.1), (20.0, 0.2)])
def test_one_number_goes_where_the_formula_says_but_for_the_floor(start: float, end: float) -> None:
    """Of w^2 / 2 the step of 0.1 from |w| leaves |w| - 0.1: the best |w| is 0.1, of 20 w >= 0.2."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(model.get_parameter("0.weight"), start)
    batch = torch.ones(3, 1, dtype=torch.float64)
    recipe = gradinit(lambda output: output.square().mean() / 2)
    assert f"that of this batch has {start:g}" in said(audit(model, batch, recipe))
    applied = apply(model, batch, recipe)
    assert float(applied.model.get_parameter("0.weight").detach()) == pytest.approx(end, rel=0.02)


def test_on_equations() -> None:
    changed, model, batch = on_equation("gradinit", "h + W2(relu(W1(h)))", depth=4, width=16)
    assert str(changed.block) == "h = h + W2(relu(W1(h)))"
    plant = scaled("0.W1.weight", 4)
    broken(model, batch, "gradinit", plant, "0 of 1 gradients of a norm of at most 1: .* has ")
    on_equation(ADAM, "h + attention(h, heads=2); h = h + W2(tanh(W1(h)))", depth=2, width=8)
    on_equation(ADAM, "h + conv3(relu(batchnorm(h)))", depth=3, width=4)


def test_sizes_that_a_search_betters_are_named() -> None:
    applied, batch = on_module(ADAM, plain)
    broken(
        applied.model,
        batch,
        ADAM,
        scaled("0.weight", 0.2),
        r"1 search that lowers the loss after a step, [\d.]+, by 0.2 per cent: it reaches [\d.]+, "
        r"the sizes of tensors are not those of GradInit",
    )


def test_a_bound_that_no_size_keeps_is_said() -> None:
    """What enters the head behind a norm is of one size, and so is the gradient of its bias."""
    model, batch = encoder(pre=True, layers=1)
    applied = apply(model, batch, gradinit(gamma=0.05))
    assert applied.changes[-1].endswith("no sizes were met that bring the norm to 0.05")
    found = audit(applied.model, batch, gradinit(gamma=0.05))
    assert not found.holds
    assert list(applied.left) == [finding.said for finding in found.findings if not finding.holds]


def test_tensors_of_zero_are_left_and_said() -> None:
    model, batch = classified()
    nn.init.zeros_(model.get_parameter("layers.2.bias"))
    applied = apply(model, batch, "gradinit")
    assert "; 1 are zero and have no size ('layers.2.bias')" in applied.changes[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimiser": "lion"}, "optimiser is 'lion', expected 'sgd' or 'adam'"),
        ({"gamma": 0.0}, "gamma is 0.0, expected a finite number above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        gradinit(**options)


def test_what_it_does_not_cover() -> None:
    model, batch = classified(2)
    with pytest.raises(NetworkError, match="the batch has 2 examples, expected at least 3"):
        apply(model, batch, "gradinit")
    model, batch = classified()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e30)
    found = said(audit(model, batch, "gradinit"))
    assert found == "0 of 1 losses and gradients that are finite: those of this batch are not"
    with pytest.raises(NetworkError, match="are not finite, and no search begins there"):
        apply(model, batch, "gradinit")


def test_a_guess_does_not_search() -> None:
    model, batch = plain()
    assert "gradinit" not in {c.recipe.name for c in guess(model, batch).candidates}
