"""A network that an equation built, with a classifier behind it and classes in front: a loss whose
curvature and first step mean what those of training mean.

Index legend: ``B`` examples, ``n`` width, ``O`` classes.

    x = (c_y + s e) / sqrt(1 + s^2)    c_y: the centre of class y, e: noise, both N(0, 1) of the
                                       state's shape, so that the RMS of the input is 1
    logits = C mean(h_L)               C (O, n) with entries N(0, 1/n); the mean over positions
    loss = mean cross-entropy

A random cotangent, which is all that an equation has by itself, makes a loss without a minimum.
Of a batch that is given the examples are those, and the classes its labels, or 0 to O - 1 by turns.
Everything is drawn by seed and name: blocks of one seed have the weights that ``measure`` gives
them, whatever stands behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.network.draws import INPUT, draws
from depthgauge.network.norms import width_axis
from depthgauge.network.spec import Network

__all__ = ["CLASSES", "EXAMPLES", "Classified", "Task", "classified"]

CLASSES: Final = 10
#: Examples that are drawn, at most: curvature is that of a batch.
EXAMPLES: Final = 64
#: Of the noise about a centre: classes overlap a little, and each is more than a point.
NOISE: Final = 0.5


class Classified(nn.Module):
    """``blocks`` and a linear classifier over the mean of all positions; ``(B, O)``."""

    def __init__(self, blocks: nn.Module, head: Tensor, axis: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.head = nn.Parameter(head)
        self._axis = axis

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(x)
        others = [i for i in range(1, h.dim()) if i != self._axis % h.dim()]
        logits: Tensor = F.linear(h.mean(others) if others else h, self.head)
        return logits


@dataclass(frozen=True)
class Task:
    """A module, its batch ``(B, *state)``, labels ``(B,)``; ``loss`` is that of the logits."""

    module: Classified
    batch: Tensor
    labels: Tensor

    def loss(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.labels)


def classified(
    network: Network,
    seed: int,
    batch: int | Tensor,
    dtype: torch.dtype = torch.float32,
    labels: Tensor | None = None,
) -> Task:
    """The network under one seed with its classes.

    ``batch``: how many examples are drawn, or the examples ``(B, *state)``; ``labels``: ``(B,)``,
    the class of each of these. Raises NetworkError where the equation is no module.
    """
    source = draws("keyed", seed)
    shape = network.state_shape
    size = math.prod(shape)

    def normal(name: str, count: int) -> Tensor:
        return torch.from_numpy(source.source(INPUT, name).normal(count)).to(torch.float64)

    classes = CLASSES
    if isinstance(batch, Tensor):
        x, y = batch.detach(), torch.arange(len(batch), device=batch.device) % CLASSES
        if labels is not None and labels.dim() == 1:
            found, places = np.unique(labels.cpu().numpy(), return_inverse=True)
            classes, y = max(len(found), 2), torch.from_numpy(places.reshape(-1)).to(x.device)
    else:
        y = torch.arange(batch) % CLASSES
        centres = normal("centres", CLASSES * size).reshape(CLASSES, *shape)
        noise = normal("noise", batch * size).reshape(batch, *shape)
        x = (centres[y] + NOISE * noise) / math.sqrt(1 + NOISE**2)
    n = network.width
    head = normal("head", classes * n).reshape(classes, n) / math.sqrt(n)
    axis = width_axis(network.layout)
    module = Classified(network.module(seed, dtype), head.to(dtype), axis)
    return Task(module.train().to(x.device), x.to(dtype), y)
