"""MetaInit."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.gradinit import gradinit
from depthgauge.recipes.guess import guess
from depthgauge.recipes.metainit import EPS, gradient_quotient, metainit
from depthgauge.recipes.rules import Recipe
from tests.recipes.contract import on_equation, on_module, said, scaled, undone
from tests.recipes.models import convolutions, encoder, mlp, plain, resnet

SHORT = metainit(steps=8)
WORDS = "1 search that lowers the gradient quotient"


@pytest.fixture(scope="module")
def searched() -> tuple[nn.Module, Any]:
    """A network with what the recipe of that name finds, audited clean."""
    applied, batch = on_module("metainit", plain)
    return applied.model, batch


def dirty(
    model: nn.Module, batch: Any, recipe: str | Recipe, plant: Callable[[nn.Module], None]
) -> str:
    """What the audit says of a copy, clean so far, after ``plant``."""
    other = deepcopy(model)
    plant(other)
    found = audit(other, batch, recipe)
    assert not found.holds
    return said(found)


def slowly(model: nn.Module, loss: Any) -> float:
    """The quotient with the whole Hessian, of parameters laid out in one vector."""
    parameters = list(model.parameters())
    g = torch.autograd.grad(loss(model), parameters, create_graph=True)
    flat = torch.cat([x.flatten() for x in g])
    rows = [torch.autograd.grad(x, parameters, retain_graph=True) for x in flat]
    hessian = torch.stack([torch.cat([x.flatten() for x in row]) for row in rows])
    first = flat.detach()
    sign = torch.tensor([1.0 if x >= 0 else -1.0 for x in first.tolist()]).to(first)
    return float((((first - hessian @ first) / (first + EPS * sign)) - 1).abs().mean())


def test_the_quotient_against_the_whole_hessian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x, labels = torch.randn(7, 3).double(), torch.tensor([0, 1, 2, 3, 0, 1, 2])

    def loss(m: nn.Module) -> Tensor:
        return F.cross_entropy(m(x), labels)

    found = float(gradient_quotient(loss(model), list(model.parameters())).detach())
    # A gradient near eps is divided by the difference of the two: 1e-10 of it is more there.
    assert found == pytest.approx(slowly(model, loss), rel=1e-8)


def test_it_is_zero_just_where_the_gradient_does_not_change_along_itself() -> None:
    w = torch.tensor([[2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    linear = float(gradient_quotient((w * 5).sum(), [w]))
    assert linear == pytest.approx(EPS / (5 + EPS), rel=1e-9)  # all that eps leaves
    curved = float(gradient_quotient((w * w).sum() / 2, [w]).detach())
    assert curved == pytest.approx(1, rel=1e-4)  # H = 1, so that g - H g = 0


def test_the_optimum_of_a_linear_network_has_equal_sizes() -> None:
    """Of loss w v: g = (v, w), H g = (w, v), GQ = (|w/v| + |v/w|) / 2, the least 1 at |w| = |v|."""

    def build() -> tuple[nn.Module, Tensor]:
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
        with torch.no_grad():
            model.get_parameter("0.weight").fill_(4.0)
            model.get_parameter("1.weight").fill_(-0.25)
        return model, torch.ones(1, 1, dtype=torch.float64)

    recipe = metainit(lambda output: output.sum())
    model, batch = build()
    found = said(audit(model, batch, recipe))
    assert found.startswith("1 search that lowers the gradient quotient of 8.031 by 5 per cent")
    applied, batch = on_module(recipe, build)
    w, v = (float(applied.model.get_parameter(f"{k}.weight").detach()) for k in (0, 1))
    assert abs(w / v) == pytest.approx(1, abs=0.35)  # 5 per cent of the least quotient
    assert (w > 0, v < 0) == (True, True)


def one_encoder() -> tuple[nn.Module, Any]:
    """With attention in one function, whose fused kernel has no second derivative."""
    return encoder(pre=True, layers=1)


def directions(model: nn.Module) -> dict[str, Tensor]:
    named = {n: p.detach().double() for n, p in model.named_parameters()}
    return {n: p / p.norm() if p.dim() > 1 else p for n, p in named.items()}


def few(build: Callable[[], tuple[nn.Module, Any]]) -> Callable[[], tuple[nn.Module, Any]]:
    """A module on few examples."""

    def made() -> tuple[nn.Module, Any]:
        model, batch = build()
        return model, batch[:2]

    return made


@pytest.mark.parametrize("build", [plain, few(resnet), few(convolutions), one_encoder])
def test_on_modules_sizes_alone_change(build: Any) -> None:
    applied, _ = on_module(metainit(steps=4), build)
    before, after = directions(build()[0]), directions(applied.model)
    assert before.keys() == after.keys()
    for name, direction in before.items():
        assert torch.allclose(direction, after[name], atol=1e-6), name
    sizes = [
        float(p.detach().norm() / q.detach().norm())
        for p, q in zip(applied.model.parameters(), build()[0].parameters(), strict=True)
        if p.dim() > 1
    ]
    assert min(sizes) > 0
    assert max(abs(size - 1) for size in sizes) > 0.05
    assert applied.model.training is build()[0].training
    assert f"sizes of {len(sizes)} weights searched" in applied.changes[-1]


def test_on_equations() -> None:
    changed, model, batch = on_equation(SHORT, "h + W2(relu(W1(h)))", depth=2, width=8)
    assert str(changed.block) == "h = h + W2(relu(W1(h)))"
    assert re.search(
        r"1 search that lowers the gradient quotient of [\d.]+ by 5 per cent: it reaches [\d.]+, "
        r"the sizes of weights are not those of MetaInit",
        dirty(model, batch, SHORT, scaled("W1.weight", 3)),
    )
    few = metainit(steps=4)
    on_equation(few, "h + attention(h, heads=2); h = h + W2(tanh(W1(h)))", depth=1, width=8)
    on_equation(few, "h + conv3(relu(h))", depth=2, width=4, size=4)


def test_faults(searched: tuple[nn.Module, Any]) -> None:
    for plant in (scaled("4.weight", 0.1), undone("4.weight", 3.0)):
        assert WORDS in dirty(*searched, "metainit", plant)


def everything(times: float) -> Callable[[nn.Module], None]:
    """Plant all weights so many times as large."""

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.mul_(times)

    return plant


PRENORM = "h + W2(gelu(W1(rmsnorm(h), out=4*n)))"


def prenorm(depth: int = 6, width: int = 16) -> tuple[nn.Module, Tensor]:
    batch = torch.randn(32, width, generator=torch.Generator().manual_seed(0))
    return Network(PRENORM, depth, width).module(0), batch


@pytest.mark.parametrize("times", [4, 0.25])
def test_all_weights_off_together_are_found(searched: tuple[nn.Module, Any], times: float) -> None:
    assert WORDS in dirty(*searched, "metainit", everything(times))


def test_all_weights_off_together_are_found_under_norms() -> None:
    """Norms take the size of what they are given away, but for a stack's own gradient."""
    applied, batch = on_module(SHORT, lambda: prenorm(3, 8))
    assert WORDS in dirty(applied.model, batch, SHORT, everything(4))


def test_where_steps_of_the_sign_stall_the_scale_of_all_weights_still_shows() -> None:
    """LeCun's weights are not MetaInit's here: a half of them has a ninth of the quotient, which no
    step of 5 per cent meets on its way."""
    model, batch = prenorm()
    found = re.search(
        r"of ([\d.]+) by 5 per cent: it reaches ([\d.]+)", said(audit(model, batch, SHORT))
    )
    assert found is not None
    start, reached = map(float, found.groups())
    assert reached < start / 9


def test_weights_of_zero_are_left_and_said() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    nn.init.zeros_(model.get_parameter("4.weight"))
    applied = apply(model, torch.randn(32, 6), SHORT)
    assert applied.changes[-1].endswith("1 are zero and have no size ('4.weight')")
    assert not applied.model.get_parameter("4.weight").any()


def test_what_it_does_not_cover() -> None:
    model, batch = plain()
    for p in model.parameters():
        nn.init.zeros_(p)
    with pytest.raises(NetworkError, match="every tensor is zero or frozen"):
        apply(model, batch, "metainit")
    one = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with pytest.raises(NetworkError, match=r"the outputs are \(8, 1\), expected \(examples, cla"):
        apply(one, torch.randn(8, 4), "metainit")
    with pytest.raises(NetworkError, match="steps is 0, expected a whole number of at least 1"):
        metainit(steps=0)


def test_what_cannot_be_differentiated_is_refused() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = Once.apply(x)
            return out

    model = nn.Sequential(nn.Linear(4, 4), Layer(), nn.Linear(4, 4))
    with pytest.raises(NetworkError, match="is marked as once differentiable, and a search"):
        apply(model, torch.randn(8, 4), SHORT)


def test_what_is_not_finite_is_no_pass() -> None:
    network = Network("h + W2(relu(W1(h)))", 4, 8, init="normal(std=1e18)")
    model, batch = network.module(seed=0), torch.randn(8, 8)
    found = said(audit(model, batch, SHORT))
    assert found == "0 of 1 gradient quotients that are finite: that of this batch is not"
    with pytest.raises(NetworkError, match="are not finite, and no search begins there"):
        apply(model, batch, SHORT)


def test_a_guess_does_not_search() -> None:
    model, batch = plain()
    assert "metainit" not in {c.recipe.name for c in guess(model, batch).candidates}


@pytest.mark.parametrize("recipe", [metainit, gradinit])
@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out.detach().square().mean(),
        lambda out: torch.tensor(out.mean().item()),
        lambda out: out.argmax(-1).double().mean(),
        lambda out: torch.ones((), requires_grad=True) * out.detach().mean(),
        lambda out: 0.0 * out.square().mean(),
    ],
    ids=["detached", "item", "classes", "of another parameter", "zero"],
)
def test_a_loss_without_a_gradient_is_refused_by_both_searches_alike(
    recipe: Callable[..., Recipe], loss: Callable[[Tensor], Tensor]
) -> None:
    words = (
        "the loss has no gradient in any parameter; return one that is computed from the outputs "
        "on their graph, without detach() or item()"
    )
    model, batch = plain()
    for verb in (apply, audit):
        with pytest.raises(NetworkError) as refused:
            verb(model, batch, recipe(loss))
        assert str(refused.value) == words
    if loss(torch.ones(2, 3, requires_grad=True)).requires_grad:
        return
    fixed, batch = apply(*mlp(), "fixup").model, mlp()[1]
    assert audit(fixed, batch, "fixup").holds
    with pytest.raises(NetworkError) as refused:
        audit(fixed, batch, "fixup", loss=loss)
    assert str(refused.value) == words


@pytest.mark.parametrize("recipe", [metainit, gradinit])
def test_a_loss_with_one_is_taken(recipe: Callable[..., Recipe]) -> None:
    model, batch = plain()
    applied = apply(model, batch, recipe(lambda out: out.square().mean(), steps=1))
    assert "searched" in applied.changes[0]
