"""Values of parameters and numbers alone, computed again: the same, the model left as it was."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depthgauge.trace.constants import constant
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import Pass, run


class Scaled(nn.Module):
    """Its gain is made of two parameters, numbers, and a buffer that it counts up in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(12))
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("count").add_(1)
        gain = (1 + self.a) * self.b.chunk(2)[1].exp() / self.get_buffer("count")
        return x * gain


def passed(model: nn.Module) -> Pass:
    return run(model, torch.randn(3, 6), None, Readings((), (), (), False))


def test_it_is_what_the_pass_made_and_nothing_is_done_to_the_model() -> None:
    torch.manual_seed(0)
    model = Scaled()
    found = passed(model)
    graph, held = found.graph, dict([*found.held.parameters, *found.held.buffers])
    before = {name: x.clone() for name, x in model.state_dict().items()}
    held["count"] = torch.zeros(6)  # as it was when the pass began
    made = {v.name: constant(graph, v.index, held) for v in graph.values if not v.data}
    expected = (1 + model.a) * model.b[6:].exp()
    last = max(v.index for v in graph.values if not v.data)
    gain = constant(graph, last, held)
    assert gain is not None
    assert torch.allclose(gain, expected.detach())
    assert all(x is not None for x in made.values())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not held["count"].any()


def test_what_data_enter_is_none() -> None:
    found = passed(Scaled())
    held = dict(found.held.parameters)
    assert [constant(found.graph, i, held) for i in found.graph.outputs] == [None]
    # Nor what is made of a tensor that is not at hand.
    last = max(v.index for v in found.graph.values if not v.data)
    assert constant(found.graph, last, {}) is None
