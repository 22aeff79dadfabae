"""depthgauge measure examples/unet.py:build"""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.GroupNorm(4, n), nn.SiLU(), nn.Conv2d(n, n, 3, padding=1)),
            *(nn.GroupNorm(4, n), nn.SiLU(), nn.Conv2d(n, n, 3, padding=1)),
        )

    def forward(self, x):
        return x + self.layers(x)


class UNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, n, 3, padding=1), nn.Conv2d(n, 3, 1)
        self.down, self.middle, self.up = Block(n), Block(2 * n), Block(n)
        self.shrink = nn.Conv2d(n, 2 * n, 3, 2, 1)
        self.grow = nn.ConvTranspose2d(2 * n, n, 2, 2)
        self.fuse = nn.Conv2d(2 * n, n, 1)

    def forward(self, x):
        x = self.down(self.stem(x))
        y = self.grow(self.middle(self.shrink(x)))
        return self.head(self.up(self.fuse(torch.cat([x, y], dim=1))))


def build(width=16, size=16):
    return UNet(width), torch.randn(4, 3, size, size)
