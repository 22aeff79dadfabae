"""Recipes in half precision: what is applied is audited clean, a fault of 2 per cent is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.first_steps import first_gradients
from depthgauge.recipes.rounding import coarsest, of_mean, rounding, wide
from tests.recipes.contract import said
from tests.recipes.models import encoder, mlp, preactivation

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("numbers", [4, 64, 1024])
def test_the_error_of_a_mean_is_within_the_bound_and_near_it(
    dtype: torch.dtype, numbers: int
) -> None:
    x = torch.randn(2000, numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    size = x.square().mean(1).sqrt()
    rounded = x.to(dtype).double()
    off = ((rounded.mean(1) - x.mean(1)).abs() / size).max()
    grown = ((rounded.square().mean(1).sqrt() / size - 1).abs()).max()
    bound = of_mean(dtype, numbers)
    assert bound / 10 < float(off) <= bound
    assert bound / 10 < float(grown) <= 2 * bound  # large numbers count twice in it


def test_the_numbers() -> None:
    assert rounding(torch.bfloat16) == 2**-8
    assert rounding(torch.float16) == 2**-11
    assert rounding(torch.int64) == 0
    assert of_mean(torch.bfloat16, 1) == 2**-8
    assert of_mean(torch.float32, 75) == pytest.approx(2**-24 / 3)
    parts = [torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)]
    assert coarsest(parts) == 2**-8
    assert coarsest([]) == 0
    assert [wide(x).dtype for x in parts] == [torch.float32, torch.float32]
    assert wide(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def _half(
    build: Callable[[], tuple[nn.Module, Any]], dtype: torch.dtype
) -> tuple[nn.Module, Tensor]:
    model, batch = build()
    return model.to(dtype), batch.to(dtype)


def deep() -> tuple[nn.Module, Any]:
    """Of 20 blocks, where LayerScale begins at 1e-5, which bfloat16 holds to 0.14 per cent."""
    return Network("h + W2(relu(W1(layernorm(h))))", 20, 16).module(0), torch.randn(4, 16)


def _weights(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(change(p))


def _bare(model: nn.Module) -> None:
    """The weights as they are now, no longer standardised, with 2 per cent of a mean."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    _weights(model, lambda p: p + 0.02 * p.double().square().mean().sqrt().to(p.dtype))


def _larger(model: nn.Module) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("gain"):
                p.mul_(1.02)


def _stretched(model: nn.Module) -> None:
    """By hand, in evaluation mode, where the vectors stand still."""
    model.eval()
    _weights(model, lambda p: p + 0.1 * p.flip(0))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("recipe", "build", "plant", "words"),
    [
        ("nfnet", mlp, _bare, "rows whose mean is not taken off"),
        ("nfnet", preactivation, _bare, "rows whose mean is not taken off"),
        ("sigma-reparam", mlp, _stretched, "weights whose spectral norm is gamma: "),
        ("sigma-reparam", encoder, _stretched, "weights whose spectral norm is gamma: "),
        ("layerscale", deep, _larger, "0 of 20 branches with a learned multiplier"),
    ],
)
def test_what_is_applied_in_half_precision_is_clean(
    dtype: torch.dtype,
    recipe: str,
    build: Callable[[], tuple[nn.Module, Any]],
    plant: Callable[[nn.Module], None],
    words: str,
) -> None:
    model, batch = _half(build, dtype)
    applied = apply(model, batch, recipe).model
    assert all(p.dtype == dtype for p in applied.parameters())
    found = audit(applied, batch, recipe)
    assert found.holds, said(found)
    applied(batch)  # also after a step of what follows the weight
    assert audit(applied, batch, recipe).holds
    plant(applied)
    assert words in said(audit(applied, batch, recipe))


@pytest.mark.parametrize("recipe", ["fixup", "rezero"])
def test_what_underflows_is_not_zero_by_design(recipe: str) -> None:
    """Gradients of the third step are below float16's least number."""
    model, batch = _half(preactivation, torch.float16)
    applied = apply(model, batch, recipe).model
    assert audit(applied, batch, recipe).holds
    zero = first_gradients(applied, batch)
    inner = [name for name in zero[0] if ".convs.0" in name and name.endswith("weight")]
    assert inner
    assert not any(zero[2][name] for name in inner)
    assert all(p.dtype == torch.float16 for p in applied.parameters())


def test_a_model_that_names_its_own_format_is_stepped_in_it() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Linear(4, 4, dtype=torch.bfloat16) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(self.a(x.bfloat16()))
            return out

    zero = first_gradients(Casts(), torch.randn(3, 4))
    assert not any(zero[0].values())
