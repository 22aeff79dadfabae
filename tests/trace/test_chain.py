"""States kept on the graph of a second pass: Jacobians of parts of the depth against torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from depthgauge.errors import NetworkError
from depthgauge.network.chain import Chain, Kept
from depthgauge.trace.again import chain
from depthgauge.trace.measuring import measure_module
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import Pass, run


class InPlace(nn.Module):
    """A residual block that adds in place, so that its state is written over."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += torch.tanh(self.w(x.clone()))
        return x


def places_of(model: nn.Module, batch: Tensor) -> tuple[Pass, list[int]]:
    readings = Readings(("rms",), ("rms",), (), False)
    before = run(model, batch, None, readings)
    return before, sorted(readings.states)


@pytest.mark.parametrize("rows", [1, 3])
def test_pull_and_push_are_the_jacobian(rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(InPlace(5) for _ in range(4))).double()
    batch = torch.randn(rows, 5, dtype=torch.float64)
    before, places = places_of(model, batch)
    with chain(model, batch, None, places, before) as found:
        first, last = 0, len(found)
        direct = torch.func.jacrev(lambda h: model(h[None])[0])(batch[-1])
        for call, size in ((found.pull, 5), (found.push, 5)):
            vectors = torch.zeros(size, *found.states[last].shape, dtype=torch.float64)
            vectors[:, -1] = torch.eye(size)
            got = (
                call(last, first, vectors) if call == found.pull else call(first, last, vectors)
            )[:, -1]
            wanted = direct if call == found.pull else direct.T
            assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-14)
            assert not torch.allclose(got, wanted.T, rtol=1e-3)


def test_states_are_what_they_were_when_they_were_made() -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(InPlace(5), InPlace(5)), torch.randn(2, 5)
    before, places = places_of(model, batch)
    with chain(model, batch, None, places, before) as found:
        assert torch.equal(found.states[-1].value, model(batch))
        assert torch.equal(found.states[0].value, batch)


def test_attention_can_be_pushed_through() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    batch = torch.randn(2, 3, 8, dtype=torch.float64)
    before, places = places_of(model, batch)
    tangents = torch.randn(3, 2, 3, 8, dtype=torch.float64)
    with chain(model, batch, None, places, before) as found:
        got = found.push(0, len(found), tangents)
    step = 1e-6
    with torch.no_grad():
        wanted = torch.stack([
            (model(batch + step * v) - model(batch - step * v)) / (2 * step) for v in tangents
        ])  # fmt: skip
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-7)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Detached(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g.detach()


@pytest.mark.parametrize("function", [Once, Detached])
@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_a_backward_without_a_derivative_is_refused(
    function: type[torch.autograd.Function], skip: float
) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Linear(40, 40)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = skip * x + function.apply(self.w(x))
            return y

    torch.manual_seed(0)
    model, batch = nn.Sequential(Branch(), Branch()), torch.randn(2, 40)
    before, places = places_of(model, batch)
    with chain(model, batch, None, places, before) as found:
        v = torch.randn(1, 2, 40)
        assert torch.isfinite(found.pull(len(found), 0, v)).all()
        with pytest.raises(RuntimeError, match="derivative"):
            found.push(0, len(found), v)


def test_what_a_norm_keeps_nothing_of_is_not_refused() -> None:
    """Rounding is all that is left of it, forward and back, and agrees in nothing."""
    torch.manual_seed(0)
    h = torch.randn(2, 40, requires_grad=True)
    out = nn.functional.layer_norm(h, (40,))
    states = [Kept(get_gradient_edge(x), x.detach(), 0) for x in (h, out)]
    moved = Chain(states, out.sum).push(0, 1, torch.ones(1, 2, 40))
    assert moved.abs().max() < 1e-4
    assert not Chain(states, out.sum).push(0, 1, torch.zeros(1, 2, 40)).any()


def test_a_pass_that_differs_is_refused() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.calls = nn.Linear(4, 4), iter(range(100))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3 - min(next(self.calls), 2)):
                x = x + self.w(x).relu()
            return x[:, :2]

    model, batch = Changing(), torch.randn(2, 4)
    before, places = places_of(model, batch)
    with (
        pytest.raises(NetworkError, match="does not compute what the first did"),
        chain(model, batch, None, places, before),
    ):
        pass


def test_the_model_is_as_before() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Dropout(0.5), InPlace(5)).train()
    batch = torch.randn(4, 5)
    before, places = places_of(model, batch)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    drawn = torch.get_rng_state()
    with chain(model, batch, None, places, before) as found:
        found.total()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert measure_module(model, batch).branches == 1
