"""Mixtures of experts, whose weights lie in one stack: what is put in has the stream's width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import scope_of
from depthgauge.study.compare import compare
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module
from tests.recipes.models import _tokens, preactivation, resnet


def mixtral() -> tuple[nn.Module, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _tokens(MixtralForCausalLM, MixtralConfig, **experts)


class Experts(nn.Module):
    """Three of them for 16 channels, each token by all, weighed by a router; the router reads the
    norm last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.norm, self.router, self.last = nn.LayerNorm(16), nn.Linear(16, 3), last
        self.up = nn.Parameter(torch.randn(3, 16, 40) / 4)
        self.down = nn.Parameter(torch.randn(3, 40, 16) / 40**0.5)

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        first = None if self.last else self.router(u).softmax(-1)
        made = torch.relu(u @ self.up[:, None]) @ self.down[:, None]
        weights = self.router(u).softmax(-1) if first is None else first
        total: Tensor = x + (weights.movedim(-1, 0)[..., None] * made).sum(0)
        return total


class Aside(nn.Module):
    """A convolution over tokens, channels second inside of it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv, self.down = (
            nn.Linear(16, 24),
            nn.Conv1d(24, 24, 3, padding=1),
            nn.Linear(24, 16),
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv(torch.relu(self.up(x)).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.down(torch.relu(inner))
        return out


class Sequence(nn.Module):
    """Channels second, in sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(16, 24, 3, padding=1), nn.Conv1d(24, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(torch.relu(self.a(x)))
        return out


def _stack(make: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(make() for _ in range(3))), torch.randn(*shape)


WIDTHS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], list[int]]] = {
    "Mixtral": (mixtral, [32] * 6),
    "experts": (lambda: _stack(lambda: Experts(False), 4, 5, 16), [16] * 3),
    "a router behind them": (lambda: _stack(lambda: Experts(True), 3, 5, 16), [16] * 3),
    "a convolution aside": (lambda: _stack(Aside, 4, 5, 16), [16] * 3),
    "sequences": (lambda: _stack(Sequence, 4, 16, 5), [16] * 3),
    "images": (resnet, [8, 16, 16]),
    "bottlenecks": (lambda: preactivation(deep=True), [16] * 4),
}


@pytest.mark.parametrize(("build", "widths"), WIDTHS.values(), ids=WIDTHS)
def test_a_stream_is_as_wide_as_its_sums(
    build: Callable[[], tuple[nn.Module, Any]], widths: list[int]
) -> None:
    found = layout(*build())
    assert [branch.width for branch in found.branches] == widths
    assert [scope_of(found, branch)["n"] for branch in found.branches] == widths


@pytest.mark.parametrize("recipe", ["sandwich", "layerscale"])
def test_what_is_put_behind_experts_has_the_width_of_the_stream(recipe: str) -> None:
    applied, batch = on_module(recipe, mixtral)
    assert applied.model(**batch).logits.isfinite().all()
    experts = applied.model.get_submodule("model.layers.0.mlp.experts")
    own = [p for name, p in experts.named_parameters() if not name.startswith("module.")]
    assert [tuple(p.shape) for p in own] == [(32,)]

    def taken_out(model: nn.Module) -> None:
        mlp: Any = model.get_submodule("model.layers.0.mlp")
        mlp.experts = mlp.experts.module

    broken(applied.model, batch, recipe, taken_out, "5 of 6 branches")


@pytest.mark.parametrize("recipe", ["postnorm", "deepnorm", "admin"])
def test_a_norm_behind_the_sum_has_it_too(recipe: str) -> None:
    model, batch = mixtral()
    applied = apply(model, batch, recipe)
    norm = applied.model.get_submodule("model.layers.0.after")
    assert [tuple(p.shape) for p in norm.parameters()] == [(32,)]
    assert applied.model(**batch).logits.isfinite().all()
    found = audit(applied.model, batch, recipe)
    wrong = [finding.said for finding in found.findings if not finding.holds]
    assert wrong == list(applied.left[-len(wrong) :])


def test_no_norm_is_put_inside_experts_that_are_one_module() -> None:
    applied = apply(*mixtral(), "sub-ln")
    assert applied.left[0] == (
        "'model.layers.0.mlp.experts' is several layers in one module: no norm can be put inside it"
    )
    assert "3 of 6 branches with their norms in place" in applied.left[-1]


def test_it_is_compared() -> None:
    def build(depth: int, seed: int) -> tuple[nn.Module, Any]:
        return mixtral()

    found = compare(build, ["postnorm", "sandwich"], depth=3, seed=0)
    assert [row.name for row in found.rows][-2:] == ["postnorm", "sandwich"]
    for row in found.rows:
        assert row.quantities["forward_end_rms"]
        assert all(number > 0 for numbers in row.updates.values() for number in numbers)
