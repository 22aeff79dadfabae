"""The classes in front of an equation and the classifier behind it."""

from __future__ import annotations

import math

import pytest
import torch

from depthgauge import Network
from depthgauge.instruments.stiffness import curvature
from depthgauge.network.classified import CLASSES, classified

BLOCK = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"


def test_the_input_has_unit_rms_and_the_classes_can_be_told_apart():
    task = classified(Network(BLOCK, depth=2, width=64), 0, 400)
    assert task.batch.square().mean().sqrt().item() == pytest.approx(1, abs=0.02)
    centres = torch.stack([task.batch[task.labels == y].mean(0) for y in range(CLASSES)])
    nearest = torch.cdist(task.batch, centres).argmin(1)
    assert (nearest == task.labels).float().mean() > 0.99


def test_the_blocks_have_the_weights_that_measure_gives_them():
    network = Network(BLOCK, depth=3, width=8)
    own = dict(network.module(5).named_parameters())
    task = dict(classified(network, 5, 20).module.blocks.named_parameters())
    assert all(torch.equal(task[name], p.to(task[name])) for name, p in own.items())


def test_a_classifier_at_the_start_knows_nothing_much():
    losses = []
    for seed in range(6):
        task = classified(Network("W1(h)", depth=1, width=64), seed, 200)
        losses.append(task.loss(task.module(task.batch)).item())
    # Logits of variance about 1 cost half a unit of loss over log 10.
    assert abs(sum(losses) / 6 - math.log(CLASSES) - 0.5) < 0.3


@pytest.mark.parametrize(
    ("block", "more"),
    [
        ("h + attention(h, heads=2)", {"tokens": 5}),
        ("h + conv3(h)", {"size": 4}),
    ],
)
def test_states_with_positions_are_averaged_over_them(block, more):
    task = classified(Network(block, depth=1, width=8, **more), 0, 12)
    assert task.module(task.batch).shape == (12, CLASSES)


def test_curvature_tells_a_healthy_network_from_one_that_explodes():
    """The partner that must fail: without the scale the loss leaves at once."""
    ratios = []
    for block in (BLOCK, "h + W2(relu(W1(h)))"):
        task = classified(Network(block, depth=48, width=16), 0, 32)
        found = curvature(task.module, task.batch, task.loss, lr=0.1, iterations=6)
        ratios.append(found["ratio"])
    assert ratios[0] < 1 < ratios[1]
