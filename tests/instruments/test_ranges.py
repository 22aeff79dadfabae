"""The range of every value against values that were kept."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from depthgauge.instruments.ranges import Ranges, extent


class Gated(nn.Module):
    """``h + c (silu(a h) * b h)``, its inner values kept in a list."""

    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.kept = kept

    def forward(self, h: Tensor) -> Tensor:
        gate, value = nn.functional.silu(self.a(h)), self.b(h)
        product = gate * value
        product.retain_grad()
        self.kept.append(product)
        out: Tensor = h + self.c(product)
        return out


def test_extents_are_taken_in_float32() -> None:
    x = torch.tensor([1e-3, -70000.0, 3.0], dtype=torch.bfloat16)
    found = extent(x)
    assert found.largest == abs(x.float()).max().item()
    assert found.rms == pytest.approx(x.double().square().mean().sqrt().item(), rel=1e-6)
    assert (found.lost, found.dtype) == (0, torch.bfloat16)
    assert extent(torch.zeros(0)).largest == 0


@pytest.mark.parametrize(
    "mask", [-math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_are_no_values(mask: float, dtype: torch.dtype) -> None:
    found = extent(torch.tensor([1.0, -5.0, mask, mask], dtype=dtype))
    assert (found.largest, found.lost) == (5.0, 0.5)


def test_what_is_lost_is_no_mask() -> None:
    assert extent(torch.tensor([1.0, math.inf])).largest == math.inf
    assert math.isnan(extent(torch.tensor([1.0, math.nan])).largest)
    assert extent(torch.tensor([1.0, math.nan])).lost == 0.5
    assert extent(torch.tensor([1.0, -1e37])).largest == pytest.approx(1e37)


def test_values_and_gradients_inside_a_branch() -> None:
    torch.manual_seed(0)
    kept: list[Tensor] = []
    model = nn.Sequential(Gated(kept), Gated(kept))
    x = torch.randn(3, 4)
    with Ranges(model) as seen:
        out = model(x)
    out.square().sum().backward()
    products = [place for place in seen.values if place.function == "mul"]
    assert [place.path for place in products] == ["0", "1"]
    for place, tensor in zip(products, kept, strict=True):
        assert seen.values[place].largest == tensor.detach().abs().max().item()
        assert tensor.grad is not None
        assert seen.gradients[place].largest == tensor.grad.abs().max().item()
    names = [(place.path, place.function) for place in seen.values]
    assert names[:5] == [("0.a", "linear"), ("0", "silu"), ("0.b", "linear"), ("0", "mul"),
                         ("0.c", "linear")]  # fmt: skip
    assert not any(place.factor for place in seen.values)


def test_a_module_that_is_called_twice_has_two_places() -> None:
    torch.manual_seed(0)
    block = Gated([])
    with Ranges(nn.Sequential(block, block)) as seen:
        nn.Sequential(block, block)(torch.randn(2, 4))
    calls = [(place.call, place.nth) for place in seen.values if place.function == "mul"]
    assert calls == [(0, 0), (1, 0)]


def test_factors_of_products() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    with Ranges(model, products=True) as seen:
        y = model(x)
    assert [(place.function, place.factor) for place in seen.values] == [
        ("linear", 1),
        ("linear", 2),
        ("linear", 0),
    ]
    tops = [t.abs().max().item() for t in (x, model.weight, y)]
    assert [seen.largest for seen in seen.values.values()] == tops


def test_what_runs_outside_of_the_model_is_not_read_but_a_loss_is() -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    with Ranges(model) as seen:
        y = model(x * 3)
        y * 1e9
        with seen.inside("loss"):
            (y * 2).sum()
        y * 1e9
    assert [(p.path, p.function) for p in seen.values] == [
        ("", "linear"),
        ("loss", "mul"),
        ("loss", "sum"),
    ]


def test_hooks_are_gone_also_after_an_exception() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    model = nn.Sequential(nn.ReLU(), Raises())
    before = dict(module_hooks._global_forward_hooks), dict(module_hooks._global_forward_pre_hooks)
    with pytest.raises(ValueError, match="no"), Ranges(model):
        model(torch.ones(1, 2))
    after = dict(module_hooks._global_forward_hooks), dict(module_hooks._global_forward_pre_hooks)
    assert before == after
    assert "_depthgauge_value" not in model.__dict__


def test_a_module_that_raised_and_was_caught_leaves_the_right_path() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fails()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return torch.as_tensor(self.inner(x))
            except ValueError:
                return x * 2

    model = nn.Sequential(Tries(), nn.Tanh())
    with Ranges(model) as seen:
        model(torch.ones(1, 2))
    assert [p.path for p in seen.values][-1] == "1"
