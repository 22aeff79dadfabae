"""Weights of one place, and of one kind of branch, held together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from depthgauge.recipes.audit import audit
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.recipes.held import held
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.spots import spots_of
from depthgauge.trace.layout import layout
from tests.recipes.contract import said

WIDTH = 64


def _numbers(n: int) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(n))


class Attention(nn.Module):
    def __init__(self, branches: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for layer in (self.q, self.k, self.v):
            nn.init.xavier_uniform_(layer.weight, fixup_scale(branches, 4))
        nn.init.zeros_(self.o.weight)
        self.biases, self.scale = _numbers(3), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.biases[0]
        y = x if memory is None else memory + self.biases[1]
        q, k, v = (
            layer(z).unflatten(-1, (4, -1)).transpose(1, 2)
            for layer, z in ((self.q, x), (self.k, y), (self.v, y))
        )
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.scale * self.o(mixed) + self.biases[2]
        return out


class Feed(nn.Module):
    def __init__(self, branches: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        nn.init.xavier_uniform_(self.up.weight, fixup_scale(branches, 2))
        nn.init.zeros_(self.down.weight)
        self.relu, self.biases, self.scale = nn.ReLU(), _numbers(4), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.up(x + self.biases[0]) + self.biases[1])
        out: Tensor = self.scale * self.down(inner + self.biases[2]) + self.biases[3]
        return out


class Sum(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        out: Tensor = x + self.branch(x, *memory)
        return out


class Layer(nn.Module):
    def __init__(self, **sums: nn.Module) -> None:
        super().__init__()
        for name, made in sums.items():
            setattr(self, name, Sum(made))


class Pair(nn.Module):
    """A Fixup Transformer of four encoder and three decoder layers, L = 17, in layers or in a flat
    list of sub-layers; ``crossing``: the L that cross-attention is drawn with."""

    def __init__(self, seed: int, flat: bool, crossing: int = 17) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder, self.decoder, self.flat = nn.ModuleList(), nn.ModuleList(), flat
        for _ in range(4):
            self.encoder += self._made(at=Attention(17), ff=Feed(17))
        for _ in range(3):
            self.decoder += self._made(at=Attention(17), cross=Attention(crossing), ff=Feed(17))
        self.head = nn.Linear(WIDTH, 5)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def _made(self, **sums: nn.Module) -> list[nn.Module]:
        return [Sum(made) for made in sums.values()] if self.flat else [Layer(**sums)]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.flat:
            for part in self.encoder:
                x = part(x)
            for place, part in enumerate(self.decoder):
                y = part(y, x) if place % 3 == 1 else part(y)
        else:
            for layer in self.encoder:
                x = layer.ff(layer.at(x))  # type: ignore[operator]
            for layer in self.decoder:
                y = layer.ff(layer.cross(layer.at(y), x))  # type: ignore[operator]
        out: Tensor = self.head(y)
        return out


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, n, WIDTH, generator=generator) for n in (6, 5))  # type: ignore[return-value]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("crossing", [8, 12, 17])
def test_a_wrong_count_in_cross_attention_is_named_in_any_list(crossing: int, flat: bool) -> None:
    """12^(-1/6) in place of 17^(-1/6) is 6 per cent off, which chance would hide in one weight."""
    for seed in range(3):
        found = audit(Pair(seed, flat, crossing), _batch(), "fixup")
        assert found.branches == 17
        assert found.holds is (crossing == 17), said(found)
        if crossing != 17:
            assert said(found).startswith("9 of 37 inner weights of branches: std")
            assert f": L = {crossing}: " in said(found)
            assert ("the branches of 'encoder' alone" in said(found)) is (crossing == 8)


@pytest.mark.parametrize("factor", [1.06, 1.0])
def test_all_weights_of_a_place_show_what_one_does_not(factor: float) -> None:
    model = Pair(0, flat=True)
    with torch.no_grad():
        for k in (1, 4, 7):
            model.get_parameter(f"decoder.{k}.branch.q.weight").mul_(factor)
    found = audit(model, _batch(), "fixup")
    assert found.holds is (factor == 1)
    assert factor == 1 or "3 of 37 inner weights" in said(found)
    alone = Pair(0, flat=True)
    with torch.no_grad():
        alone.get_parameter("decoder.1.branch.q.weight").mul_(1.06)
    assert audit(alone, _batch(), "fixup").holds


def test_right_builds_of_many_seeds_hold() -> None:
    batch = _batch()
    found = layout(Pair(0, flat=True), batch)
    plan = recipe_named("fixup").plan(found)
    for seed in range(40):
        wrong = [f.said for f in held(Pair(seed, flat=True), found, plan) if not f.holds]
        assert not wrong, seed


def test_kinds_of_branches() -> None:
    found = layout(Pair(0, flat=True), _batch())
    spots = spots_of(found)
    kinds = {branch.path: spots[branch.weights[0].path, None].branch for branch in found.branches}
    assert len(set(kinds.values())) == 5
    crossing = {path for path, kind in kinds.items() if kind == kinds["decoder.1.branch"]}
    assert crossing == {f"decoder.{k}.branch" for k in (1, 4, 7)}
    places = {spot.place for (path, _), spot in spots.items() if path.startswith("decoder.1.")}
    assert len(places) == 4
