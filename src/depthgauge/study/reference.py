"""Networks as the papers count them, as small as they can be: their depth is what they are for.

ResNets of He et al. (arXiv 1512.03385) with batch norm, CIFAR's of 6n + 2 layers in three stages
and ImageNet's in four; a Transformer is PyTorch's own. Channels do not matter for a count.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["resnet", "transformer"]

#: Blocks of each stage by depth, and whether a block is a bottleneck.
IMAGENET = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
WIDTH = 4


class Residual(nn.Module):
    """``relu(shortcut(x) + f(x))``: two 3 x 3 convolutions, or a bottleneck of three."""

    def __init__(self, entering: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        leaving = 4 * width if bottleneck else width
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        channels = (entering, *(width for _ in kernels[1:]), leaving)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, s, k // 2, bias=False)
            for a, b, k, s in zip(channels, channels[1:], kernels, strides, strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in channels[1:])
        self.shortcut = nn.Sequential()
        if stride > 1 or entering != leaving:
            projection = nn.Conv2d(entering, leaving, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(leaving))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for k, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            out = norm(conv(F.relu(out) if k else out))
        return F.relu(self.shortcut(x) + out)


class ResNet(nn.Module):
    def __init__(self, stages: tuple[int, ...], bottleneck: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.stages, entering = nn.ModuleList(), WIDTH
        for stage, blocks in enumerate(stages):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                made = Residual(entering, WIDTH, stride, bottleneck)
                self.stages.append(made)
                entering = 4 * WIDTH if bottleneck else WIDTH
        self.head = nn.Linear(entering, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.stem(x)))
        for block in self.stages:
            h = block(h)
        out: Tensor = self.head(h.mean((2, 3)))
        return out


def resnet(depth: int) -> tuple[nn.Module, Tensor]:
    """The ResNet of so many weight layers, with a batch."""
    torch.manual_seed(0)
    if depth in IMAGENET:
        model = ResNet(*IMAGENET[depth])
    else:
        model = ResNet(((depth - 2) // 6,) * 3, False)
    return model, torch.randn(2, 3, 8, 8)


def transformer(encoder: int, decoder: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """PyTorch's Transformer of so many layers, post-norm, with both its inputs."""
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, encoder, decoder, 16, dropout=0.0, batch_first=True)
    return model, (torch.randn(2, 5, 8), torch.randn(2, 4, 8))
