"""Gains along the loss gradient, along vectors given, and between class means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from depthgauge.errors import SpecificationError
from depthgauge.instruments.subject import Effort
from depthgauge.measurement import measure
from depthgauge.network.spec import Network
from tests.instruments.test_jacobians import stack


def loss(output: Tensor) -> Tensor:
    return output.square().sum()


def states_of(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    states = [x]
    with torch.no_grad():
        for block in model:
            states.append(block(states[-1]))
    return states


def test_the_gain_of_the_loss_gradient_is_that_of_finite_differences() -> None:
    model, x = stack(), torch.randn(3, 5, dtype=torch.float64)
    profile = measure(model, x, loss, instruments="direction_gain")
    leaf = x.clone().requires_grad_()
    loss(model(leaf)).backward()
    assert leaf.grad is not None
    unit = leaf.grad / leaf.grad.norm(dim=1, keepdim=True)
    step = 1e-6
    forward, back = states_of(model, x + step * unit), states_of(model, x - step * unit)
    wanted = [
        ((a - b) / (2 * step)).norm(dim=1).square().mean().sqrt().item()
        for a, b in zip(forward, back, strict=True)
    ]
    assert profile["direction_gain"] == pytest.approx(wanted, rel=1e-7)


def test_components_within_a_span_and_along_each() -> None:
    model, x = stack(), torch.randn(6, 5, dtype=torch.float64)
    vectors = torch.randn(2, 5, dtype=torch.float64)
    profile = measure(model, x, instruments="state_rms", directions=vectors)
    projector = torch.linalg.pinv(vectors) @ vectors
    states = states_of(model, x)
    size = [(h @ projector).norm().item() for h in states]
    assert profile["component_gain"] == pytest.approx([s / size[0] for s in size])
    each = [[(h @ v).norm().item() for v in vectors] for h in states]
    wanted = np.array(each) / each[0]
    rows = [site.index for site in profile.sites if site.role == "state"]
    for row, gains in zip(rows, wanted, strict=True):
        assert profile.vectors["component_gains"][row][0] == pytest.approx(gains)


def test_no_length_and_no_repetition_of_a_direction_counts() -> None:
    model, x = stack(), torch.randn(4, 5, dtype=torch.float64)
    v, w = torch.randn(2, 5, dtype=torch.float64)
    one = measure(model, x, instruments="state_rms", directions=torch.stack([v, w]))
    same = measure(model, x, instruments="state_rms", directions=torch.stack([1e6 * w, v + w, -v]))
    assert same["component_gain"] == pytest.approx(one["component_gain"])
    whole = measure(model, x, instruments="state_rms", directions=torch.eye(5))
    rms = whole["state_rms"]
    assert whole["component_gain"] == pytest.approx(rms / rms[0])
    assert one["component_gain"] != pytest.approx(rms / rms[0], rel=1e-3)


def test_classes_that_a_layer_brings_together() -> None:
    """A projection on the complement of what tells two classes apart."""
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.diag(torch.tensor([0.5, 2.0])))
        model.get_parameter("1.weight").copy_(torch.diag(torch.tensor([0.0, 1.0])))
    profile = measure(model, x, instruments="state_rms", labels=labels)
    assert profile["class_gain"] == pytest.approx([1, 0.5, 0])
    assert profile["class_share"] == pytest.approx([0.5, 1 / 17, 0])
    other = measure(model, x, instruments="state_rms", labels=torch.tensor([0, 1, 0, 1]))
    assert other["class_gain"] == pytest.approx([1, 2, 2])


def test_class_shares_are_those_of_the_analysis_of_variance() -> None:
    model, x = stack(), torch.randn(9, 5, dtype=torch.float64)
    labels = torch.tensor([0, 2, 2, 7, 0, 7, 7, 7, 0])
    profile = measure(model, x, instruments="state_rms", labels=labels)
    for found, h in zip(profile["class_share"], states_of(model, x), strict=True):
        within = sum(
            (h[labels == c] - h[labels == c].mean(0)).square().sum().item() for c in (0, 2, 7)
        )
        total = (h - h.mean(0)).square().sum().item()
        assert found == pytest.approx(1 - within / total)


class Summed(nn.Module):
    """Every position gets the sum over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        out: torch.Tensor = self.last(h + h.sum(1, keepdim=True))
        return out


def test_labels_of_positions_are_classes_of_positions() -> None:
    torch.manual_seed(0)
    model, x = Summed().double(), torch.randn(4, 5, 3, dtype=torch.float64)
    labels = torch.randint(3, (4, 5))
    labels[0, :3] = -100  # no class
    profile = measure(model, x, instruments="state_rms", labels=labels)
    kept = labels != -100
    flat, which = x[kept], labels[kept]
    within = sum(
        (flat[which == c] - flat[which == c].mean(0)).square().sum().item() for c in range(3)
    )
    total = (flat - flat.mean(0)).square().sum().item()
    assert profile["class_share"][0] == pytest.approx(1 - within / total)
    by_example = measure(model, x, instruments="state_rms", labels=torch.tensor([0, 1, 0, 1]))
    assert by_example["class_share"][0] != pytest.approx(profile["class_share"][0], rel=1e-2)
    wrong = measure(model, x, instruments="state_rms", labels=labels[:, :4])
    assert wrong.not_measured["class_share"].startswith("there are 4 by 4 labels, but the states")


def test_labels_that_say_nothing_are_named() -> None:
    model, x = Summed().double(), torch.randn(4, 5, 3, dtype=torch.float64)
    nothing = torch.full((4, 5), -100)
    profile = measure(model, x, instruments="state_rms", labels=nothing)
    assert profile.not_measured["class_gain"] == "all positions have no label"
    images = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    channels = measure(
        images, torch.randn(4, 3, 5, 5), instruments="state_rms", labels=torch.arange(12).view(4, 3)
    )
    assert channels.not_measured["class_gain"].startswith("there are 4 by 3 labels")


def test_classes_need_no_gradient() -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for f in self.f:
                x = checkpoint(lambda z, f=f: z + f(z), x, use_reentrant=True)
            return x

    labels = torch.arange(6) % 2
    profile = measure(Checked(), torch.randn(6, 5), instruments="direction_gain", labels=labels)
    assert "class_gain" in profile
    assert "direction_gain" in profile.not_measured


def test_an_equation_sees_them_too() -> None:
    network = Network("W(h)", 8, 6, init="orthogonal")
    direction = torch.zeros(6)
    direction[0] = 1.0
    profile = measure(network, 16, seed=[0, 1], instruments="state_rms", directions=direction)
    assert profile["state_rms"][:, -1] == pytest.approx(profile["state_rms"][:, 0], rel=1e-5)
    assert (np.abs(profile["component_gain"][:, 1:] - 1) > 1e-3).any()
    classes = measure(network, 4, instruments="state_rms", labels=torch.tensor([0, 1, 0, 1]))
    assert classes["class_gain"] == pytest.approx(np.ones(9))


def test_no_gradient_and_no_component_are_reasons() -> None:
    model, x = stack(), torch.randn(3, 5, dtype=torch.float64)
    flat = measure(model, x, lambda output: (0 * output).sum(), instruments="direction_gain")
    assert flat.not_measured["direction_gain"] == "no gradient reaches the first state"
    x[:, 0] = 0
    direction = torch.eye(5)[0]
    lost = measure(model, x, instruments="state_rms", directions=direction)
    assert lost.not_measured["component_gain"] == (
        "the first state has no component along the directions given"
    )
    wide = measure(model, x, instruments="state_rms", directions=torch.eye(7))
    assert wide.not_measured["component_gain"] == (
        "directions have 7 numbers, but the states of this stream are 5 wide"
    )
    alike = measure(model, x, instruments="state_rms", labels=torch.zeros(3, dtype=torch.long))
    assert alike.not_measured["class_gain"] == "all examples have one label"
    few = measure(model, x, instruments="state_rms", labels=torch.tensor([0, 1]))
    assert few.not_measured["class_share"].startswith("there are 2 labels, but the states")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": torch.zeros(3)}, "directions have the shape (1, 3), expected one vector"),
        ({"directions": torch.ones(2, 2, 2)}, "directions have the shape (2, 2, 2), expected"),
        ({"directions": torch.tensor([1.0, math.nan])}, "of finite numbers that are not all zero"),
        (
            {"directions": torch.ones(8, dtype=torch.complex64)},
            "directions are complex64, expected a tensor of real numbers",
        ),
        (
            {"labels": torch.ones(4, dtype=torch.complex128)},
            "labels are complex128, expected a tensor of real numbers",
        ),
        ({"directions": [1.0]}, "directions is of type list, expected a tensor of real numbers"),
        ({"labels": torch.ones(3)}, "labels are float32 of the shape (3,), expected whole numbers"),
        ({"effort": 3}, "effort is of type int, expected depthgauge.Effort(...)"),
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        measure(stack(), torch.randn(3, 5, dtype=torch.float64), **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": 0}, "probes is 0, expected a whole number of at least 1"),
        ({"steps": -1}, "steps is -1, expected a whole number of at least 0"),
        ({"steps": 2.5}, "steps is 2.5, expected a whole number of at least 0"),
        ({"steps": True}, "steps is True, expected a whole number of at least 0"),
        ({"rank": 1.5}, "rank is 1.5, expected a whole number of at least 1"),
        ({"budget": 0}, "budget is 0, expected seconds above 0, or None for no end"),
        ({"budget": "1"}, "budget is '1', expected seconds above 0, or None for no end"),
    ],
)
def test_an_effort_that_makes_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        Effort(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
