"""depthgauge measure examples/resnet.py:build --input "float 8x3x32x32" """

from torch import nn


class Block(nn.Module):
    def __init__(self, n, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or n != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


def build(blocks=2, widths=(16, 32, 64), classes=10):
    layers = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    for before, n in zip((widths[0], *widths), widths, strict=False):
        layers += [
            Block(before if i == 0 else n, n, 1 + (i == 0 and n > before)) for i in range(blocks)
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, classes))
