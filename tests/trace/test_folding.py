"""Blocks that repeat are shown as one, whatever training has done to their learned numbers; blocks
that were made otherwise are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure, parse
from depthgauge.trace.blocks import averaged

WIDTH, BLOCKS = 16, 6


class Written(nn.Module):
    """A layer norm that is written out, with a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        root = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / root * self.weight + self.bias


class Branch(nn.Module):
    """``h + a W(relu(W(norm(h))))``, without ``a`` where there is none."""

    def __init__(self, norm: Callable[[int], nn.Module], a: float | None = None) -> None:
        super().__init__()
        self.norm = norm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.a = None if a is None else nn.Parameter(torch.tensor(a))

    def forward(self, h: Tensor) -> Tensor:
        y = self.outer(F.relu(self.inner(self.norm(h))))
        out: Tensor = h + (y if self.a is None else self.a * y)
        return out


class Pair(nn.Module):
    """A mixing branch over tokens and one over channels: two steps a block, perhaps scaled."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm1(h) * self.scale
        mixed: Tensor = self.attention(x, x, x, need_weights=False)[0]
        h = torch.add(h, mixed)
        made: Tensor = self.outer(F.gelu(self.inner(self.norm2(h) * self.scale)))
        return torch.add(h, made)


def read(blocks: Sequence[nn.Module], *shape: int) -> dict[str, Any]:
    torch.manual_seed(0)
    found = measure(nn.Sequential(*blocks), torch.randn(*(shape or (8, WIDTH))))
    return {"depth": found.depth, **found.to_dict()}


def times(found: dict[str, Any]) -> list[int]:
    return [block["times"] for block in found["streams"][0]["blocks"]]


def stack(norm: Callable[[int], nn.Module] = nn.LayerNorm, **options: Any) -> list[Branch]:
    torch.manual_seed(1)
    return [Branch(norm, **options) for _ in range(BLOCKS)]


def set_to(parameter: Any, number: float) -> None:
    with torch.no_grad():
        parameter.fill_(number)


def jolted(module: nn.Module, size: float) -> None:
    """Every parameter moved, as training does."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * torch.randn_like(parameter))


@pytest.mark.parametrize("size", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, Written])
def test_trained_numbers_of_channels_tell_no_blocks_apart(
    norm: Callable[[int], nn.Module], size: float
) -> None:
    blocks = stack(norm)
    for block in blocks:
        jolted(block, size)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [BLOCKS]
    word = "rmsnorm" if norm is nn.RMSNorm else "layernorm"
    assert found["equation"] == f"{BLOCKS} x [h = h + W(relu(W({word}(h))))]"


@pytest.mark.parametrize("size", [0.01, 0.3])
def test_trained_blocks_of_two_steps_are_one_each(size: float) -> None:
    torch.manual_seed(1)
    blocks = [Pair() for _ in range(BLOCKS)]
    for block in blocks:
        jolted(block, size)
    found = read(blocks, 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [BLOCKS]


def test_factors_of_their_own_leave_blocks_of_two_steps() -> None:
    found = read([Pair((k + 1) ** -0.5) for k in range(BLOCKS)], 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [1] * BLOCKS  # each is shown with its own factor


def test_a_gain_that_was_set_otherwise_is_shown() -> None:
    blocks = stack()
    set_to(blocks[3].norm.weight, 0.5)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [3, 1, 2]
    assert "gain=0.5" in found["streams"][0]["blocks"][1]["equation"]
    assert found["streams"][0]["blocks"][1]["paths"] == ["3"]


def test_a_layer_without_its_bias_is_shown_and_counts_as_a_block() -> None:
    blocks = [Pair() for _ in range(BLOCKS)]
    blocks[3].inner = nn.Linear(WIDTH, WIDTH, bias=False)
    found = read(blocks, 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [3, 1, 2]


def test_trained_scalars_are_shown_by_their_mean_and_it_says_so() -> None:
    blocks = [Branch(nn.LayerNorm, a=0.1 + 0.05 * k) for k in range(BLOCKS)]
    found = read(blocks)
    assert times(found) == [BLOCKS]
    assert "scalar(0.225)" in found["equation"]
    (entry,) = found["coverage"]["fallback"]
    assert "6 blocks that differ in their learned numbers alone" in entry["reason"]


def test_one_scalar_that_was_set_otherwise_is_shown() -> None:
    blocks = stack(a=0.0)
    set_to(blocks[2].a, 1.0)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [2, 1, 3]
    assert not found["coverage"]["fallback"]


def test_two_blocks_with_scalars_of_their_own_are_not_averaged() -> None:
    found = read([Branch(nn.LayerNorm, a=0.1), Branch(nn.LayerNorm, a=0.3)])
    assert times(found) == [1, 1]
    assert not found["coverage"]["fallback"]


def test_means_are_over_numbers_that_differ_and_nothing_else() -> None:
    texts = ["h = h + scalar(0.1) * W(0.5 * h)", "h = h + scalar(0.4) * W(0.5 * h)"]
    assert averaged([parse(t) for t in texts]) == parse("h = h + scalar(0.25) * W(0.5 * h)")
    alike = parse("h = h + W(relu(h))")
    assert averaged([alike, alike]) is alike
