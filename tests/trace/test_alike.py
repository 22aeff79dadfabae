"""Values found again in a pass that calls other functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.trace.alike import alike, counterparts, uncast
from depthgauge.trace.graph import Graph
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run


class Half(nn.Module):
    """Scales, adds; in float16 it looks for inf, clamps, and adds once more than in float32."""

    def __init__(self, more: bool = False) -> None:
        super().__init__()
        self.w, self.more = nn.Linear(4, 4), more

    def forward(self, h: Tensor) -> Tensor:
        u = self.w(h) * 2
        if h.dtype == torch.float16:
            u = u.float().to(h.dtype)
            if self.more:
                u = u + 1
        h = h + u
        return h.clamp(-9, 9) if h.dtype == torch.float16 else h


def graph_of(model: nn.Module, dtype: torch.dtype) -> Graph:
    torch.manual_seed(0)
    batch: Any = torch.randn(2, 4).to(dtype)
    return run(model.to(dtype), batch, None, Readings(("rms",), (), (), False)).graph


def named(graph: Graph, *names: str) -> list[int]:
    return [v.index for v in graph.values if v.name in names]


def test_what_is_the_same_is_alike() -> None:
    model = nn.Sequential(Half(), Half())
    wide, again, half = (
        graph_of(model, dtype) for dtype in (torch.float32, torch.float32, torch.float16)
    )
    every = [v.index for v in wide.values if not v.name.startswith("to")]
    assert alike(wide, again, len(wide.values) - 1)
    assert counterparts(wide, again, every) == [uncast(wide, i) for i in every]
    assert not alike(wide, half, len(wide.values) - 1)
    assert alike(wide, half, named(wide, "mul")[0])  # up to there


@pytest.mark.parametrize("back", [False, True])
def test_sums_are_found_where_there_are_clamps(back: bool) -> None:
    model = nn.Sequential(Half(), Half())
    wide, half = graph_of(model, torch.float32), graph_of(model, torch.float16)
    sums = named(wide, "add")
    assert len(sums) == 2
    if back:
        assert counterparts(half, wide, named(half, "clamp")) == sums
    else:
        assert counterparts(wide, half, sums) == named(half, "add")


def test_one_more_sum_is_not_taken_for_the_next_module_s() -> None:
    model = nn.Sequential(Half(more=True), Half())
    wide, half = graph_of(model, torch.float32), graph_of(model, torch.float16)
    first, second = counterparts(wide, half, named(wide, "add"))
    assert first in named(half, "add")[:2]
    assert second == named(half, "add")[2]
    extra = [i for i in named(half, "add")[:2] if i != first]
    assert counterparts(half, wide, extra) == [None]


def test_another_shape_is_no_counterpart() -> None:
    class Wider(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return torch.cat([h, h]) * 2 if h.dtype == torch.float16 else h * 2

    wide, half = (graph_of(nn.Sequential(Wider()), d) for d in (torch.float32, torch.float16))
    assert counterparts(wide, half, named(wide, "mul")) == [None]
