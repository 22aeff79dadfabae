"""Zeros that a later initialisation draws over are named where the tool builds the model; each
with a build that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.study.builders import BuilderCase
from depthgauge.trace.overwritten import watched

SAID = "initialisation overwritten: "


def causes(build: Callable[[], nn.Module]) -> list[str]:
    """What a case of this builder says of what was overwritten."""
    case = BuilderCase(lambda: (build(), torch.randn(4, 16)), seed=(0,))
    found: Any = case.measure().settings["causes"]
    return [line for line in found if line.startswith(SAID)]


class Added(nn.Module):
    """``x + a * W x``."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.layer, self.a = nn.Linear(16, 16), nn.Parameter(torch.full((1,), a))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.a * self.layer(x)
        return out


def test_zeros_of_data_and_a_gate_of_one_number_are_seen() -> None:
    def build(change: Callable[[Added], object]) -> nn.Module:
        blocks = [Added() for _ in range(2)]
        change(blocks[1])
        return nn.Sequential(*blocks)

    def over(block: Added) -> None:
        block.layer.weight.data.zero_()
        block.layer.weight.data.normal_(0, 0.1)

    def number(block: Added) -> None:
        nn.init.constant_(block.a, 0)
        nn.init.uniform_(block.a, 0.5, 1)

    (line,) = causes(lambda: build(over))
    assert line.startswith(f"{SAID}a parameter was set to zero")
    assert "'1.layer.weight'" in line
    (line,) = causes(lambda: build(number))
    assert "'1.a'" in line


@pytest.mark.parametrize(
    "change",
    [
        lambda b: (b.layer.weight.data.normal_(), b.layer.weight.data.zero_()),
        lambda b: (nn.init.zeros_(b.layer.bias), nn.init.normal_(b.layer.bias)),
        lambda b: (b.layer.weight.data[0].zero_(), nn.init.normal_(b.layer.weight)),
        lambda b: (nn.init.zeros_(b.layer.weight), nn.init.eye_(b.layer.weight)),
        lambda b: (nn.init.zeros_(b.a), nn.init.ones_(b.a), nn.init.uniform_(b.a)),
        lambda b: setattr(b, "a", nn.init.normal_(nn.Parameter(torch.zeros(1)))),
    ],
    ids=["zero last", "a bias", "a row", "an identity", "a constant between", "allocated"],
)
def test_what_nobody_meant_to_stay_at_zero_is_not_named(change: Callable[[Added], object]) -> None:
    def build() -> nn.Module:
        block = Added()
        with torch.no_grad():
            change(block)
        return nn.Sequential(Added(), block)

    assert causes(build) == []


def test_watching_changes_no_draw_and_ends_with_the_build() -> None:
    torch.manual_seed(0)
    plain = Added()
    torch.manual_seed(0)
    with watched() as watch:
        seen = Added()
    assert torch.equal(plain.layer.weight, seen.layer.weight)
    nn.init.zeros_(seen.layer.weight)
    nn.init.normal_(seen.layer.weight)
    assert watch.said(seen) == []
