"""Which stretches of autograd's graph are linear."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from depthgauge import Effort, Network, measure
from depthgauge.network.linear import linear

W = nn.Parameter(torch.randn(4, 4))
KERNEL = nn.Parameter(torch.randn(2, 4, 3))
BIAS = nn.Parameter(torch.randn(4))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda h: h, True),
        (lambda h: F.linear(h, W, BIAS), True),
        (lambda h: h + 3 * (h @ W) / 2 - h.mean(), True),
        (lambda h: torch.cat([h[:, :2], -h[:, 2:]], 1) * BIAS, True),
        (lambda h: h @ (W * BIAS.exp()) + BIAS.relu() * h, True),
        (lambda h: F.conv1d(h[None], KERNEL)[0], True),
        (lambda h: F.linear(h, W.detach()), False),  # for all that the graph says it is a mask
        (lambda h: torch.relu(h), False),
        (lambda h: h * h, False),
        (lambda h: h @ h.T, False),
        (lambda h: h * (h > 0), False),  # a mask is a constant of the graph
        (lambda h: (h > 0) * h, False),
        (lambda h: h / (h > 0), False),
        (lambda h: h @ (h > 0).to(h), False),
        (lambda h: torch.where(h > 0, h, 0 * h), False),
        (lambda h: BIAS / h, False),
        (lambda h: h + F.linear(torch.tanh(F.linear(h, W)), W), False),
        (lambda h: F.layer_norm(h, (4,)), False),
        (lambda h: h.nan_to_num(), False),
        (lambda h: F.linear(h, W * h.mean()), False),
    ],
)
def test_stretches(function: Callable[[Tensor], Tensor], wanted: bool) -> None:
    h = torch.randn(4, 4, requires_grad=True)
    low = h.clone()
    assert linear(get_gradient_edge(low), get_gradient_edge(function(low))) == wanted


def test_what_leads_nowhere_is_linear() -> None:
    h, other = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    assert linear(get_gradient_edge(h), get_gradient_edge(torch.relu(other)))


def test_deep() -> None:
    low = h = torch.randn(2, 2, requires_grad=True)
    for _ in range(20_000):
        h = h + 1
    assert linear(get_gradient_edge(low), get_gradient_edge(h))


@pytest.mark.parametrize("linear", [True, False])
def test_jacobians_beyond_the_range_of_the_states(linear: bool) -> None:
    """Those of a linear network are the same at every state, one that is not finite too."""
    equation = "1000*W(h)" if linear else "1000*relu(W(h)) + h"
    network, x = Network(equation, 120, 6), torch.randn(2, 6, dtype=torch.float64)
    effort = Effort(sites=2)
    wanted = ("state_rms", "spectrum")
    for profile in (
        measure(network, x, dtype="float64", instruments=wanted, effort=effort),
        measure(network.module(0, torch.float64), x, instruments=wanted, effort=effort),
    ):
        assert profile.first_nonfinite() is not None
        if not linear:
            assert "the states are not finite from" in profile.not_measured["stable_rank"]
            continue
        (logs,) = profile.vectors["log_singular_values"][0]
        # |det J| is the product of the blocks' own, which float64 holds as logarithms.
        module = network.module(0, torch.float64)
        each = [torch.linalg.svdvals(1000 * p.detach()).log().sum() for p in module.parameters()]
        assert logs.sum() == pytest.approx(float(sum(each)), rel=1e-10)
