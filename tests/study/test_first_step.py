"""The ensemble's first step against one module a seed, of which a block at a time is stepped."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.network.draws import INPUT, KeyedDraws
from depthgauge.network.module import EquationNetwork
from depthgauge.network.spec import Network
from depthgauge.study.first_step import DIRECTIONS, Head, first_step

SEEDS, BATCH, WIDTH, CLASSES = (0, 1, 5), 6, 8, 4

NETWORKS: dict[str, tuple[Network, Head]] = {
    "scaled": (
        Network("h + W2(relu(W1(h)))/sqrt(L)", 5, WIDTH, init={"default": "he"}),
        Head(CLASSES),
    ),
    "fixup": (
        Network("h + W3(relu(W2(relu(W1(h)))))", 4, WIDTH, init={"default": "he", "W3": "zeros"}),
        Head(CLASSES),
    ),
    "rezero": (
        Network("h + scalar(0)*W2(relu(W1(h)))", 5, WIDTH, init={"default": "he"}),
        Head(CLASSES),
    ),
    "pre-norm": (
        Network("h + W2(relu(W1(rmsnorm(h))))", 5, WIDTH, init={"default": "he"}),
        Head(CLASSES, norm=True),
    ),
}


class Slow(nn.Module):
    """One seed: the network as a module, and a classifier of the same draws."""

    def __init__(self, network: Network, head: Head, seed: int) -> None:
        super().__init__()
        source = KeyedDraws(seed)
        self.body, self.norm = network.module(seed, torch.float64), head.norm
        self.x = torch.from_numpy(source.source(INPUT, "input").normal(BATCH * WIDTH))
        self.x = self.x.reshape(BATCH, WIDTH).double()
        uniform = torch.from_numpy(source.source(INPUT, "labels").uniform(BATCH))
        self.labels = (uniform * CLASSES).long()
        numbers = torch.from_numpy(source.source(INPUT, "classifier").normal(CLASSES * WIDTH))
        self.classifier = nn.Parameter(numbers.reshape(CLASSES, WIDTH).double() / math.sqrt(WIDTH))

    def forward(self) -> Tensor:
        h = self.body(self.x)
        if self.norm:
            h = h / h.square().mean(-1, keepdim=True).sqrt()
        out: Tensor = h @ self.classifier.T
        return out

    def stepped(self, direction: Any, lr: float, only: str = "") -> Tensor:
        """The logits after a step of the parameters whose names begin with ``only``."""
        loss = F.cross_entropy(self(), self.labels)
        gradients = torch.autograd.grad(loss, list(self.parameters()))
        twin = copy.deepcopy(self)
        with torch.no_grad():
            for (name, p), g in zip(twin.named_parameters(), gradients, strict=True):
                if name.startswith(only):
                    p.add_(lr * direction(g))
            found: Tensor = twin()
        return found


def rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


@pytest.mark.parametrize("name", NETWORKS)
def test_shares_are_those_of_one_block_stepped_at_a_time(name: str) -> None:
    network, head = NETWORKS[name]
    found = first_step(network, SEEDS, batch=BATCH, lr=0.1, head=head)
    wanted: dict[str, list[list[float]]] = {}
    for kind, direction in DIRECTIONS.items():
        rows = []
        for seed in SEEDS:
            model, step = Slow(network, head, seed), 1e-6
            assert isinstance(model.body, EquationNetwork)
            before = model()
            shares = [
                (model.stepped(direction, step, f"body.blocks.{k}.") - before) / step
                for k in range(network.depth)
            ]
            norms = [rms(d) for d in shares]
            total = rms(model.stepped(direction, 0.1) - before) / 0.1
            rows.append([rms(torch.stack(shares).sum(0)), sum(norms), math.hypot(*norms), total])
        wanted[kind] = rows
    for kind, own in found.items():
        got = np.stack([own.norm_of_sum, own.sum_of_norms, own.root_sum_square, own.total], 1)
        np.testing.assert_allclose(got, wanted[kind], rtol=1e-4)
        np.testing.assert_allclose(got[:, 3], np.array(wanted[kind])[:, 3], rtol=1e-10)
        other = "sign" if kind == "sgd" else "sgd"
        assert not np.allclose(got, wanted[other], rtol=0.1)


def test_precision_changes_digits_only() -> None:
    network, head = NETWORKS["scaled"]
    one, two = (
        first_step(network, SEEDS, batch=BATCH, lr=0.1, head=head, dtype=dtype)["sgd"]
        for dtype in (torch.float32, torch.float64)
    )
    np.testing.assert_allclose(one.norm_of_sum, two.norm_of_sum, rtol=1e-4)
    assert not np.array_equal(one.norm_of_sum, two.norm_of_sum)


def test_a_zero_classifier_moves_alone() -> None:
    network, _ = NETWORKS["fixup"]
    found = first_step(network, SEEDS, batch=BATCH, lr=0.1, head=Head(CLASSES, zero=True))
    for shares in found.values():
        assert (shares.norm_of_sum == 0).all()
        assert (shares.total > 0).all()


def test_unit_variance_makes_every_output_one() -> None:
    """LSUV: then a branch adds 1 to a variance that began at 1, whatever came in."""
    from depthgauge.study.first_step import _Ensemble

    network = Network("h + 1*W2(relu(W1(h)))", 6, 32, init="orthogonal")
    run = _Ensemble(network, SEEDS, 64, Head(CLASSES), torch.float64)
    plain = run.forward()
    run.scale_to_unit_variance()
    scaled = run.forward()
    for k in range(6):
        deviation = (scaled[k + 1] - scaled[k]).flatten(1).std(1, correction=0)
        torch.testing.assert_close(deviation, torch.ones_like(deviation), rtol=1e-10, atol=0)
    before = (plain[1] - plain[0]).flatten(1).std(1, correction=0)
    assert ((before - 1).abs() > 0.05).all()
