"""Where a branch is added: at once, after another has read the sum, or a merge later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge import measure

WIDTH = 8


def branch() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH))


class Late(nn.Module):
    """Three blocks of ``function(self, block, x, outputs)``."""

    def __init__(self, function: Callable[[Late, int, Tensor, list[Any]], Tensor]) -> None:
        super().__init__()
        self.stem, self.function = nn.Linear(4, WIDTH), function
        self.f = nn.ModuleList(branch() for _ in range(9))
        self.aside, self.head = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Any:
        outputs: list[Any] = []
        x = self.stem(x)
        for block in range(3):
            x = self.function(self, block, x, outputs)
        return (self.head(x), *outputs)


def two(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    y: Tensor = x + c
    return y


def read_between(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    out.append(m.aside(x))
    y: Tensor = x + c
    return y


def logged_between(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    x.pow(2).mean()
    y: Tensor = x + c
    return y


def a_merge_later(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = x + m.f[3 * l + 1](x)
    y: Tensor = x + m.f[3 * l + 2](x) + c
    return y


def a_merge_later_at_once(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = x + m.f[3 * l + 1](x)
    y: Tensor = x + (m.f[3 * l + 2](x) + c)
    return y


def turned(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    x = x + m.f[l](x)
    return x + x.flip(0) if l == 2 else x


@pytest.mark.parametrize(
    ("function", "branches", "parallel"),
    [
        (two, 6, 3),
        (read_between, 6, 0),
        (logged_between, 6, 3),
        (a_merge_later, 9, 3),
        (a_merge_later_at_once, 9, 3),
        (turned, 3, 0),
    ],
)
def test_no_branch_is_lost(function: Any, branches: int, parallel: int) -> None:
    torch.manual_seed(0)
    profile = measure(Late(function), torch.randn(16, 4))
    (stream,) = profile.streams
    assert (stream["branches"], stream["parallel"]) == (branches, parallel)
    assert stream["norm_at"] == ["in"]
    assert stream["skip"] == "identity"
    assert stream["m"] == [2] * branches
    assert sum(profile.sites_of("branch_rms")[i].role == "branch" for i in range(3)) == 3


def test_a_bias_spread_over_the_stream_is_no_branch() -> None:
    """``bias.expand_as(x)`` takes the shape of x and nothing else."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.bias = branch(), nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + (self.f(x) + self.bias.expand_as(x))
            return y

    profile = measure(nn.Sequential(*(Biased() for _ in range(3))), torch.randn(16, WIDTH))
    assert profile.branches == 3
    assert profile.streams[0]["parallel"] == 0
