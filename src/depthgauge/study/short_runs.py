"""Short training runs of S networks at once, on a small task that each seed draws for itself.

Index legend: ``S`` seeds, ``B`` examples, ``d`` inputs, ``n`` width, ``O`` classes.

    h_0 = A x,    h_l = block_l(h_(l-1)),    logits = C h_L + c

A seed draws its clusters, its examples and its weights by their names: two networks of one seed see
the same task and, where an initialiser is the same, the same weights. So runs compare in pairs.
Everything in float64 on the CPU; a seed whose numbers overflow leaves the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.network.draws import INPUT, Draws, draws
from depthgauge.network.spec import Network
from depthgauge.network.tensors import TensorContext
from depthgauge.sites import FloatArray
from depthgauge.study.first_step import drawn_blocks, with_leaves

__all__ = ["Learner", "Step", "Task", "Trained", "train"]


@dataclass(frozen=True)
class Task:
    """Gaussian clusters about N(0, 1) centres in ``inputs`` dimensions, each of one class, several
    of each class: no linear classifier separates them. Batches are fresh; ``held_out`` is not seen.
    """

    inputs: int = 8
    classes: int = 4
    clusters: int = 16
    noise: float = 0.3
    batch: int = 64
    steps: int = 100
    held_out: int = 512

    @property
    def chance(self) -> float:
        """``log O``: the loss of who says the same of every class."""
        return math.log(self.classes)

    def drawn(self, sources: Sequence[Draws]) -> tuple[Tensor, Tensor]:
        """Inputs ``(S, batch * steps + held_out, d)`` and labels."""
        each = [self._one(source) for source in sources]
        return torch.stack([x for x, _ in each]), torch.stack([y for _, y in each])

    def _one(self, draw: Draws) -> tuple[Tensor, Tensor]:
        count = self.batch * self.steps + self.held_out
        centres = draw.source(INPUT, "centres").normal(self.clusters * self.inputs)
        cluster = (draw.source(INPUT, "clusters").uniform(count) * self.clusters).astype(int)
        noise = draw.source(INPUT, "noise").normal(count * self.inputs)
        x = centres.reshape(-1, self.inputs)[cluster] + self.noise * noise.reshape(count, -1)
        return torch.from_numpy(x).double(), torch.from_numpy(cluster % self.classes)


class Learner:
    """S networks with what they learn in ``tensors``, ``(S, ...)`` each, by name: ``stem``,
    ``classifier``, ``classifier.bias``, and for block 3 ``3.W1``, ``3.scalar.2``.

    ``stem`` is N(0, 1/d), the classifier zero, or N(0, 1/n) where ``drawn_classifier``.
    """

    def __init__(
        self, network: Network, seeds: Sequence[int], task: Task, *, drawn_classifier: bool = False
    ) -> None:
        assert len(seeds) > 1, seeds
        self._network, self._task = network, task
        self.sources = [draws(network.draws, seed) for seed in seeds]
        n, o, d = network.width, task.classes, task.inputs
        classifier = self._normal("classifier", o, n) * (float(drawn_classifier) / math.sqrt(n))
        self.tensors = {
            "stem": self._normal("stem", n, d) / math.sqrt(d),
            "classifier": classifier,
            "classifier.bias": torch.zeros(len(seeds), 1, o, dtype=torch.float64),
        }
        for tensor in self.tensors.values():
            tensor.requires_grad_()
        self.weights: dict[str, Tensor] = {}  #: of branches
        self.scalars: dict[str, Tensor] = {}
        self._blocks = []
        for l, drawn in enumerate(drawn_blocks(network, self.sources, torch.float64), 1):
            numbers, leaves = with_leaves(drawn)
            self._blocks.append(numbers)
            for name, leaf in leaves.items():
                own = self.weights if name in numbers.weights else self.scalars
                own[f"{l}.{name}"] = leaf
        self.tensors |= self.weights | self.scalars

    def _normal(self, name: str, *shape: int) -> Tensor:
        numbers = [s.source(INPUT, name).normal(math.prod(shape)) for s in self.sources]
        return torch.from_numpy(np.stack(numbers)).reshape(-1, *shape).double()

    def logits(self, x: Tensor) -> Tensor:
        """``(S, B, O)`` of ``(S, B, d)``."""
        context = TensorContext(self._network, len(self.sources), self.sources)
        h = torch.bmm(x, self.tensors["stem"].transpose(1, 2))
        for l, numbers in enumerate(self._blocks, 1):
            context.begin(l, h, h, numbers)
            h = self._network.program(context)
            context.end()
        found: Tensor = torch.bmm(h, self.tensors["classifier"].transpose(1, 2))
        return found + self.tensors["classifier.bias"]

    def losses(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of each seed ``(S,)``."""
        logits = self.logits(x).flatten(0, 1)
        each = F.cross_entropy(logits, labels.flatten(), reduction="none")
        return each.reshape(labels.shape).mean(1)

    def branch_update(self, x: Tensor, labels: Tensor) -> FloatArray:
        """RMS over examples and logits of what one gradient step of the branches' weights, and of
        nothing else, changes; per unit of learning rate, to first order; ``(S,)``.

        A derivative along the gradient, by a backward pass through a backward pass.
        """
        leaves = list(self.weights.values())
        gradients = torch.autograd.grad(self.losses(x, labels).sum(), leaves)
        out = self.logits(x)
        dummy = torch.zeros_like(out, requires_grad=True)
        back = torch.autograd.grad(out, leaves, dummy, create_graph=True)
        (moved,) = torch.autograd.grad(back, dummy, [-g for g in gradients])
        return _rms(moved)


@dataclass(frozen=True)
class Step:
    """One step: of the branches' weights alone before it, the change of the logits by all of it
    over the rate, and how many tensors had a gradient that was not zero; ``(S,)`` each."""

    branch_update: FloatArray
    change: FloatArray
    moving: FloatArray


@dataclass(frozen=True)
class Trained:
    """The first steps, the loss of each batch before its step ``(T, S)`` and at the end the loss of
    what was held out ``(S,)``. A run ends early where no seed's loss is finite."""

    first: tuple[Step, ...]
    run: FloatArray
    end: FloatArray


def train(
    learner: Learner,
    examples: tuple[Tensor, Tensor],
    task: Task,
    *,
    rate: float,
    momentum: float,
    scalars: float,
    watched: int,
) -> Trained:
    """SGD with momentum; ``scalars``: their share of the rate; ``watched``: how many first steps
    are looked at."""
    x, y = examples
    others = [p for name, p in learner.tensors.items() if name not in learner.scalars]
    groups = [{"params": others, "lr": rate}]
    if learner.scalars:
        groups.append({"params": [*learner.scalars.values()], "lr": scalars * rate})
    optimiser = torch.optim.SGD(groups, momentum=momentum)
    first, losses = [], []
    for t in range(task.steps):
        batch = x[:, t * task.batch : (t + 1) * task.batch]
        labels = y[:, t * task.batch : (t + 1) * task.batch]
        if t < watched:
            update = learner.branch_update(batch, labels)
            before = learner.logits(batch).detach()
        optimiser.zero_grad()
        loss = learner.losses(batch, labels)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.detach().numpy())
        if t < watched:
            change = _rms(learner.logits(batch).detach() - before) / rate
            first.append(Step(update, change, _moving(learner)))
        if not np.isfinite(losses[-1]).any():
            break
    with torch.no_grad():
        end = learner.losses(x[:, -task.held_out :], y[:, -task.held_out :]).numpy()
    return Trained(tuple(first), np.stack(losses), end)


def _moving(learner: Learner) -> FloatArray:
    gradients = [p.grad for p in learner.tensors.values()]
    each = [(g.flatten(1) != 0).any(1) for g in gradients if g is not None]
    found: FloatArray = torch.stack(each).sum(0).double().numpy()
    return found


def _rms(x: Tensor) -> FloatArray:
    found: FloatArray = x.square().mean((1, 2)).sqrt().numpy()
    return found
