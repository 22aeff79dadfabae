"""Ensembles that train, against one module a seed and torch's own optimiser."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.network.draws import INPUT, KeyedDraws
from depthgauge.network.spec import Network
from depthgauge.study.short_runs import Learner, Task, train

SEEDS, WIDTH = (0, 1, 5), 8
TASK = Task(inputs=4, classes=3, clusters=6, batch=16, steps=6, held_out=32)
SCALARS = "h + scalar(1)*W2(relu(W1(h + scalar(0)) + scalar(0)) + scalar(0)) + scalar(0)"
NETWORK = Network(SCALARS, 4, WIDTH, init={"W1": "he(gain=sqrt(2)/sqrt(L))", "W2": "zeros"})
BARE = Network("h + W2(relu(W1(h)))/sqrt(L)", 4, WIDTH, init="he")


class Slow(nn.Module):
    """One seed, the body as a module that the network builds itself."""

    def __init__(self, network: Network, seed: int, drawn: bool) -> None:
        super().__init__()
        self.source = KeyedDraws(seed)
        self.body = network.module(seed, torch.float64)
        n, o, d = network.width, TASK.classes, TASK.inputs
        self.stem = nn.Parameter(self.normal("stem", n, d) / math.sqrt(d))
        self.classifier = nn.Parameter(drawn * self.normal("classifier", o, n) / math.sqrt(n))
        self.bias = nn.Parameter(torch.zeros(o, dtype=torch.float64))

    def normal(self, name: str, *shape: int) -> Tensor:
        numbers = self.source.source(INPUT, name).normal(math.prod(shape))
        return torch.from_numpy(numbers).reshape(shape).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x @ self.stem.T) @ self.classifier.T + self.bias
        return out

    def groups(self, rate: float, share: float) -> list[dict[str, Any]]:
        named = list(self.named_parameters())
        slow = [p for name, p in named if ".scalar." in name]
        fast = [p for name, p in named if ".scalar." not in name]
        return [{"params": fast, "lr": rate}, {"params": slow, "lr": share * rate}]


def slowly(network: Network, seed: int, share: float) -> tuple[list[float], float]:
    model = Slow(network, seed, False)
    x, y = (each[0] for each in TASK.drawn([model.source]))
    optimiser = torch.optim.SGD(
        [group for group in model.groups(0.1, share) if group["params"]], momentum=0.9
    )
    losses = []
    for t in range(TASK.steps):
        rows = slice(t * TASK.batch, (t + 1) * TASK.batch)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        return losses, float(F.cross_entropy(model(x[-32:]), y[-32:]))


def trained(network: Network, **changes: Any) -> Any:
    learner = Learner(network, SEEDS, TASK)
    options = {"rate": 0.1, "momentum": 0.9, "scalars": 0.1, "watched": 3, **changes}
    return train(learner, TASK.drawn(learner.sources), TASK, **options)


@pytest.mark.parametrize("network", [NETWORK, BARE])
def test_runs_are_those_of_one_module_a_seed(network: Network) -> None:
    found = trained(network)
    for place, seed in enumerate(SEEDS):
        losses, end = slowly(network, seed, 0.1)
        np.testing.assert_allclose(found.run[:, place], losses, rtol=1e-10)
        assert found.end[place] == pytest.approx(end, rel=1e-10)
    other = trained(network, scalars=1.0).end
    assert np.allclose(other, found.end, rtol=1e-10) == (network is BARE)
    assert not np.allclose(trained(network, momentum=0.0).end, found.end, rtol=1e-3)


def test_a_branch_update_is_what_moving_the_weights_of_branches_does() -> None:
    learner = Learner(BARE, SEEDS, TASK, drawn_classifier=True)
    x, y = (each[:, : TASK.batch] for each in TASK.drawn(learner.sources))
    found = learner.branch_update(x, y)
    whole = []
    for place, seed in enumerate(SEEDS):
        model, step = Slow(BARE, seed, True), 1e-6
        before = model(x[place]).detach()
        F.cross_entropy(model(x[place]), y[place]).backward()
        with torch.no_grad():
            for p in model.body.parameters():
                assert p.grad is not None
                p.sub_(step * p.grad)
            change = (model(x[place]) - before) / step
            assert found[place] == pytest.approx(float(change.square().mean().sqrt()), rel=1e-4)
            assert model.stem.grad is not None
            model.stem.sub_(step * model.stem.grad)
            change = (model(x[place]) - before) / step
            whole.append(float(change.square().mean().sqrt()))
    assert not np.allclose(found, whole, rtol=1e-2)


def test_the_first_steps_count_gradients_and_changes() -> None:
    first, second, third = trained(NETWORK).first
    assert (first.moving == 2).all()
    assert (second.moving == 3 + 2 * 4).all()
    assert (third.moving == 3 + 7 * 4).all()
    assert (first.branch_update == 0).all()
    assert (second.branch_update > 0).all()
    assert (first.change > 0).all()


def test_a_seed_that_overflows_leaves_the_others_alone() -> None:
    learner = Learner(NETWORK, SEEDS, TASK)
    with torch.no_grad():
        learner.tensors["stem"][1] = math.inf
    options = {"rate": 0.1, "momentum": 0.9, "scalars": 0.1}
    found = train(learner, TASK.drawn(learner.sources), TASK, watched=1, **options)
    clean = trained(NETWORK)
    assert not np.isfinite(found.end[1])
    np.testing.assert_array_equal(found.end[[0, 2]], clean.end[[0, 2]])
    assert len(found.run) == TASK.steps


def test_a_run_without_a_finite_seed_ends() -> None:
    learner = Learner(NETWORK, SEEDS, TASK)
    with torch.no_grad():
        learner.tensors["stem"].fill_(math.inf)
    options = {"rate": 0.1, "momentum": 0.9, "scalars": 0.1}
    found = train(learner, TASK.drawn(learner.sources), TASK, watched=3, **options)
    assert len(found.run) == len(found.first) == 1
    assert not np.isfinite(found.end).any()


def test_a_task_is_its_seeds_own_and_the_same_again() -> None:
    one, two = (TASK.drawn([KeyedDraws(seed) for seed in seeds]) for seeds in ((0, 1), (1, 2)))
    assert torch.equal(one[0][1], two[0][0])
    assert torch.equal(one[1][1], two[1][0])
    assert not torch.equal(one[0][0], one[0][1])
    assert one[0].shape == (2, 16 * 6 + 32, 4)
    assert set(one[1].unique().tolist()) == {0, 1, 2}
    assert TASK.chance == pytest.approx(math.log(3))
