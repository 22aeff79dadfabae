"""Adaptive clipping, its units found a second time by which weights an output depends on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import SpecificationError
from depthgauge.recipes.clipping import (
    AdaptivelyClipped,
    Units,
    clip,
    clip_gradients,
    units_of,
)

LIMIT, EPS = 0.01, 1e-3


def gpt2_linear() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    layer: nn.Module = Conv1D(5, 3)
    return layer


#: A layer, and what it can be given; outputs have their channels on axis 1.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(3, 5), lambda: torch.randn(4, 3)),
    "convolution": (lambda: nn.Conv2d(3, 5, 3), lambda: torch.randn(2, 3, 6, 6)),
    "in groups": (lambda: nn.Conv2d(6, 4, 3, groups=2), lambda: torch.randn(2, 6, 6, 6)),
    "volume": (lambda: nn.Conv3d(2, 3, 2), lambda: torch.randn(2, 2, 4, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 3), lambda: torch.randn(2, 3, 6, 6)),
    "transposed, line": (lambda: nn.ConvTranspose1d(3, 5, 3), lambda: torch.randn(2, 3, 6)),
    "transposed in groups": (
        lambda: nn.ConvTranspose2d(6, 4, 3, groups=2),
        lambda: torch.randn(2, 6, 6, 6),
    ),
    "embedding": (lambda: nn.Embedding(7, 3), lambda: torch.arange(7)),
    "gpt-2's linear": (gpt2_linear, lambda: torch.randn(4, 3)),
}


def masks(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """For each output channel the weights that it depends on."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs = layer(x)
    return [
        torch.autograd.grad(outputs[:, o].sum(), weight, retain_graph=True)[0] != 0
        for o in range(outputs.shape[1])
    ]


def slowly(gradient: Tensor, weight: Tensor, units: list[Tensor]) -> Tensor:
    """The formula, a unit at a time."""
    out = gradient.clone()
    for unit in units:
        norm, most = float(gradient[unit].norm()), LIMIT * max(float(weight[unit].norm()), EPS)
        if norm > most:
            out[unit] *= most / max(norm, 1e-6)
    return out


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", LAYERS)
def test_units_are_what_an_output_is_made_from(name: str) -> None:
    build, given = LAYERS[name]
    layer = build().double()
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    x = given()
    found = masks(layer, x.double() if x.is_floating_point() else x)
    units = units_of(layer)[weight]
    gradient = torch.randn_like(weight) * torch.logspace(-4, 1, weight.numel()).reshape_as(weight)
    clipped = clip(gradient, weight.detach(), units)
    torch.testing.assert_close(
        clipped, slowly(gradient, weight.detach(), found), rtol=1e-12, atol=0
    )
    wrong = clip(gradient, weight.detach(), Units(1 - units.axis))
    assert not torch.allclose(wrong, clipped, rtol=1e-3)
    whole = clip(gradient.flatten(), weight.detach().flatten()).reshape_as(gradient)  # a tensor
    assert not torch.allclose(whole, clipped, rtol=1e-3)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2), (5,), ()])
def test_the_ratio_is_the_limit_and_the_direction_stays(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, dtype=torch.float64)
    units = Units()
    gradient = torch.randn(shape, dtype=torch.float64)
    gradient = gradient * 2 * LIMIT * units.norms(weight) / units.norms(gradient)
    clipped = clip(gradient, weight)
    ratio = units.norms(clipped) / units.norms(weight)
    torch.testing.assert_close(ratio, torch.full_like(ratio, LIMIT), rtol=1e-12, atol=0)
    torch.testing.assert_close(clipped, gradient / 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(clip(clipped, weight), clipped, rtol=1e-12, atol=0)
    inside = gradient * 0.499
    assert torch.equal(clip(inside, weight), inside)


def test_only_the_units_above_the_limit_change() -> None:
    weight = torch.ones(3, 4)
    gradient = torch.full((3, 4), 1e-3)
    gradient[1] = 1.0
    clipped = clip(gradient, weight)
    assert torch.equal(clipped[[0, 2]], gradient[[0, 2]])
    assert float(clipped[1].norm()) == pytest.approx(LIMIT * 2)


def test_a_weight_of_zeros_has_the_limit_of_eps() -> None:
    gradient = torch.randn(3, 4, dtype=torch.float64)
    for weight in (torch.zeros(3, 4), torch.full((3, 4), 1e-5)):
        norms = Units().norms(clip(gradient, weight))
        torch.testing.assert_close(norms, torch.full_like(norms, LIMIT * 1e-3), rtol=1e-12, atol=0)
    other = Units().norms(clip(gradient, torch.zeros(3, 4), eps=1e-2))
    torch.testing.assert_close(other, torch.full_like(other, LIMIT * 1e-2), rtol=1e-12, atol=0)
    # Below 1e-6 the divisor is 1e-6, which only a limit below 1e-3 can meet.
    tiny = torch.tensor([[1e-7]], dtype=torch.float64)
    assert float(clip(tiny, torch.zeros(1, 1), limit=1e-5)) == pytest.approx(
        1e-5 * 1e-3 / 1e-6 * 1e-7
    )


def test_large_numbers_are_clipped_and_lost_ones_stay_lost() -> None:
    weight = torch.ones(2, 4)
    gradient = torch.full((2, 4), 1e30)  # its square is no float32
    norms = Units().norms(clip(gradient, weight))
    torch.testing.assert_close(norms, torch.full_like(norms, LIMIT * 2), rtol=1e-6, atol=0)
    gradient[0, 0] = math.nan
    gradient[1, 1] = math.inf
    clipped = clip(gradient, weight)
    assert clipped[0, 0].isnan()
    assert not clipped[1, 1].isfinite()


def test_half_precision_keeps_what_its_numbers_can_hold() -> None:
    gradient = torch.full((1, 4), 6e4, dtype=torch.float16)
    clipped = clip(gradient, torch.zeros(1, 4, dtype=torch.float16))
    assert clipped.dtype == torch.float16
    assert float(clipped[0, 0]) == pytest.approx(LIMIT * EPS / 2, rel=0.02)  # a subnormal


# ----------------------------------------------------------------------------------- of a model


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.fc2 = nn.ConvTranspose1d(3, 4, 2), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.scale * self.fc2(self.up(x).mean(-1)).relu())
        return out


def backward(model: nn.Module, size: float = 1e3) -> None:
    for p in model.parameters():
        p.grad = None
    (size * model(torch.randn(8, 3, 5)).square().mean()).backward()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters()}
    return {name: g.clone() for name, g in found.items() if g is not None}


def test_the_classifier_is_left_alone() -> None:
    model = Net()
    backward(model)
    before = gradients(model)
    clip_gradients(units_of(model, without=["fc"]))
    after = gradients(model)
    for name in ("fc.weight", "fc.bias"):
        assert torch.equal(after[name], before[name])
    for name in ("up.weight", "up.bias", "fc2.weight", "scale"):  # fc2 is another name than fc
        assert not torch.equal(after[name], before[name])
    clip_gradients(units_of(model))
    assert not torch.equal(gradients(model)["fc.weight"], before["fc.weight"])
    assert set(units_of(model, without="fc.bias")) == set(model.parameters()) - {model.fc.bias}


def test_units_of_a_model() -> None:
    model = Net()
    units = units_of(model)
    assert [u for p, u in units.items() if p is model.up.weight] == [Units(1)]
    assert all(u == Units() for p, u in units.items() if p is not model.up.weight)
    assert set(units) == set(model.parameters())
    model.fc2.weight.requires_grad_(False)
    assert model.fc2.weight not in units_of(model)


def test_a_tied_classifier_is_left_out_under_either_name() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    head, embedding = model["head"], model["embedding"]
    assert isinstance(head, nn.Linear)
    assert isinstance(embedding, nn.Embedding)
    head.weight = embedding.weight
    assert units_of(model) == {head.weight: Units(1)}
    assert not units_of(model, without=["head"])


def test_plain_parameters_have_their_outputs_on_axis_0() -> None:
    one, two = Net(), Net()
    two.load_state_dict(one.state_dict())
    x = torch.randn(8, 3, 5)
    for model in (one, two):
        (1e3 * model(x).square().mean()).backward()
    clip_gradients(one.parameters())
    clip_gradients(units_of(two))
    for name, g in gradients(one).items():
        assert torch.equal(g, gradients(two)[name]) == (name != "up.weight"), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: units_of(m, ["fc1"]), "without names 'fc1', which the model does not have"),
        (lambda m: units_of(m, ["f"]), "without names 'f', which the model does not have"),
        (lambda m: units_of(m, [""]), "without names '', which the model does not have"),
        (lambda m: clip_gradients(m.parameters(), limit=0), "limit is 0, expected a finite"),
        (lambda m: clip_gradients(m.parameters(), eps=math.nan), "eps is nan, expected a finite"),
        (lambda m: AdaptivelyClipped(sgd(m), [], limit=-1), "limit is -1, expected a finite"),
    ],
)
def test_what_is_asked_wrongly_is_said(call: Callable[[nn.Module], Any], words: str) -> None:
    model = Net()
    with pytest.raises(SpecificationError, match=words):
        call(model)


def test_a_sparse_gradient_is_said() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(SpecificationError, match=r"shape \(4, 2\) is sparse"):
        clip_gradients(layer.parameters())


# ------------------------------------------------------------------------------ with an optimiser


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.1)


def steps(model: nn.Module, step: Callable[[], Any]) -> Tensor:
    x = torch.randn(3, 8, 3, 5, generator=torch.Generator().manual_seed(1))
    for batch in x:
        model.zero_grad()
        (1e3 * model(batch).square().mean()).backward()
        step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("build", [sgd, adam])
def test_a_wrapped_optimiser_clips_before_it_steps(
    build: Callable[[nn.Module], torch.optim.Optimizer],
) -> None:
    wrapped, by_hand, plain = (copy.deepcopy(model) for model in [Net()] * 3)
    clipped = AdaptivelyClipped(build(wrapped), units_of(wrapped, ["fc"]))
    inner, bare = build(by_hand), build(plain)
    units = units_of(by_hand, ["fc"])

    def step() -> None:
        clip_gradients(units)
        inner.step()

    found = steps(wrapped, clipped.step)
    assert torch.equal(found, steps(by_hand, step))
    assert not torch.equal(found, steps(plain, bare.step))
    clipped.zero_grad()
    assert all(p.grad is None for p in wrapped.parameters())


class Twice(torch.optim.SGD):
    """Asks for the gradient two times a step, as a line search does, and keeps its norms."""

    def step(self, closure: Any = None) -> Any:
        self.norms = []
        for _ in range(2):
            loss = closure()
            (parameter,) = self.param_groups[0]["params"]
            self.norms.append(float(parameter.grad.norm()))
            super().step()
        return loss


def test_a_closure_is_clipped_each_time_it_is_called() -> None:
    model, x = nn.Linear(3, 1, bias=False), torch.randn(16, 3)
    twice = Twice(model.parameters(), lr=1.0)
    optimiser = AdaptivelyClipped(twice, model.parameters())

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = 1e3 * F.mse_loss(model(x), torch.ones(16, 1))
        loss.backward()
        return loss.detach()

    first = float(model.weight.detach().norm())
    assert float(optimiser.step(closure)) > 0
    one, two = twice.norms
    assert one == pytest.approx(LIMIT * first)
    assert LIMIT * first * 0.99 < two < LIMIT * first * 1.01 * (1 + 1e-5)
    twice.step(closure)
    assert min(twice.norms) > 100 * LIMIT * first


def test_a_scheduler_takes_the_optimiser_inside() -> None:
    model = Net()
    optimiser = AdaptivelyClipped(sgd(model), units_of(model))
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser.optimiser, 1, 0.5)
    backward(model)
    optimiser.step()
    scheduler.step()
    assert optimiser.optimiser.param_groups[0]["lr"] == 0.05
