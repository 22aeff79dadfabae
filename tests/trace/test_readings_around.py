"""A module that is one known activation with fixed numbers around it: the activation has its name,
and the numbers are read apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.measurement import measure
from depthgauge.trace.layout import layout


class Spelled(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def network(function: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(16, 16), Spelled(function), nn.Linear(16, 16), Spelled(function)
    return nn.Sequential(*layers, nn.Linear(16, 4)), torch.randn(8, 16)


@pytest.mark.parametrize(
    ("function", "kind", "front"),
    [
        (lambda x: F.relu(x) * 1.7, "relu", 1.7),
        (lambda x: F.gelu(x) / 2, "gelu", 0.5),
        (lambda x: 3 * torch.tanh(2 * x), "tanh", 3.0),
        (lambda x: -F.silu(x), "silu", -1.0),
    ],
)
def test_numbers_around_one_activation(
    function: Callable[[Tensor], Tensor], kind: str, front: float
) -> None:
    weights = layout(*network(function)).outside
    assert [w.follows for w in weights] == ["", kind, kind]
    assert [w.front for w in weights[1:]] == [front, front]
    assert weights[1].activation == f"1.{kind}"


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        # One of several functions is one activation, by its values or under its module's name.
        (lambda x: 2 * torch.sigmoid(2 * x) - 1, "tanh"),
        (lambda x: x * torch.sigmoid(x), "silu"),
        (lambda x: x * F.relu6(x + 3) / 6, "Spelled"),
        (lambda x: F.relu(x) * x, "Spelled"),
        (lambda x: F.relu(x) - F.relu(-x - 1), "Spelled"),
    ],
)
def test_what_is_more_than_that_stays_one_activation(
    function: Callable[[Tensor], Tensor], kind: str
) -> None:
    weights = layout(*network(function)).outside
    assert [w.follows for w in weights] == ["", kind, kind]
    assert weights[1].activation == "1"


def test_its_gates_are_those_of_the_activation() -> None:
    model, batch = network(lambda x: F.relu(x) * 1.7)
    profile = measure(model, batch)
    assert "relu" in profile.equation
    rows = [site.path for site in profile.sites if site.role == "activation"]
    assert rows == ["1.relu", "3.relu"]
    plain, _ = network(F.relu)
    # Behind the first the numbers are others.
    first = profile["dead_fraction"].tolist()[0], profile["live_derivative_fraction"].tolist()[0]
    other = measure(plain, batch)
    assert first == (other["dead_fraction"].tolist()[0],
                     other["live_derivative_fraction"].tolist()[0])  # fmt: skip
