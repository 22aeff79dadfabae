"""Mixup and Cutout: batches changed before a step, for short training runs.

Index legend: ``B`` examples, ``C`` channels, ``H`` and ``W`` rows and columns.

Both leave what they are given as it is, and draw from the CPU generator that they are given, so
that an accelerator's run draws what a CPU's draws. Evaluate on examples that are not mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from depthgauge.errors import SpecificationError
from depthgauge.recipes.given import number, whole

__all__ = ["Mixed", "cutout", "mixup", "symmetric_beta"]


@dataclass(frozen=True)
class Mixed:
    """``share x + (1 - share) x[partner]``, the labels of both, and the batch's one ``share``."""

    inputs: Tensor
    labels: Tensor
    partners: Tensor
    share: float

    def loss(
        self, outputs: Tensor, of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    ) -> Tensor:
        """``share of(outputs, labels) + (1 - share) of(outputs, partners)``."""
        return self.share * of(outputs, self.labels) + (1 - self.share) * of(outputs, self.partners)


def mixup(inputs: Tensor, labels: Tensor, alpha: float, generator: torch.Generator) -> Mixed:
    """Every example mixed with another of its batch by one share ~ Beta(alpha, alpha).

    ``inputs`` and ``labels`` have the examples on their first axis; inputs are numbers that can be
    averaged, no token indices. ``alpha = 0``: nothing is mixed, and nothing drawn. The paper takes
    1 on CIFAR-10 and 0.2 on ImageNet; small networks want less than 1. Raises SpecificationError.

    Zhang, Cisse, Dauphin and Lopez-Paz, arXiv 1710.09412.
    """
    alpha = number("alpha", alpha, least=0, error=SpecificationError)
    if not inputs.is_floating_point():
        raise SpecificationError(
            f"inputs are {inputs.dtype}, expected floating-point numbers; mix what the embedding "
            f"gives out where they are indices"
        )
    if len(inputs) != len(labels):
        raise SpecificationError(
            f"there are {len(inputs)} inputs and {len(labels)} labels; give as many of both"
        )
    if alpha == 0:
        return Mixed(inputs, labels, labels, 1.0)
    share = symmetric_beta(alpha, generator)
    order = torch.randperm(len(inputs), generator=generator)
    partners = order.to(inputs.device)
    mixed = share * inputs + (1 - share) * inputs[partners]
    return Mixed(mixed, labels, labels[order.to(labels.device)], share)


def symmetric_beta(alpha: float, generator: torch.Generator) -> float:
    """One draw of Beta(alpha, alpha), alpha > 0, from two uniform numbers U and V.

        (1 + t / sqrt(2 alpha + t^2)) / 2,    t = sqrt(2 alpha (U^(-1/alpha) - 1)) cos(2 pi V)

    with t of Student's distribution of 2 alpha degrees of freedom (Bailey, Mathematics of
    Computation 62, 1994); written so that no power overflows, however small alpha is.
    """
    assert alpha > 0, alpha
    u, v = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    log_power = math.log1p(-u) / alpha  # of U^(1/alpha), with U in (0, 1]
    power, rest = math.exp(log_power), -math.expm1(log_power)
    cosine = math.cos(2 * math.pi * v)
    below = math.sqrt(power + cosine**2 * rest)
    return (1 + cosine * math.sqrt(rest) / below) / 2


def cutout(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A square hole of zeros in every image ``(B, C, H, W)``, the same in all channels.

    Its centre is uniform over the pixels and the border cuts it off, so its area is smaller than
    ``side^2`` in the mean: 0.191406 of a 32 x 32 image, not 0.25, for side 16. It begins
    ``side // 2`` before the centre. Images come normalised, so that 0 is their mean. The paper
    takes 16 on CIFAR-10 and 8 on CIFAR-100. Raises SpecificationError.

    DeVries and Taylor, arXiv 1708.04552.
    """
    if images.dim() != 4:
        raise SpecificationError(
            f"images have the shape {tuple(images.shape)}, expected (batch, channels, rows, "
            f"columns)"
        )
    side = whole("side", side, least=0, error=SpecificationError)
    rows, columns = (
        _inside(len(images), size, side, generator).to(images.device) for size in images.shape[2:]
    )
    hole = rows[:, None, :, None] & columns[:, None, None, :]
    return images.masked_fill(hole, 0.0)


def _inside(count: int, size: int, side: int, generator: torch.Generator) -> Tensor:
    """For each image which pixels of one axis the hole covers, ``(B, size)``."""
    first = torch.randint(size, (count, 1), generator=generator) - side // 2
    place = torch.arange(size)
    return (first <= place) & (place < first + side)
