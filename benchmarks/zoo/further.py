"""More models in many hands' styles, each a small version of a published architecture.

They are written as their authors might have written them, not as the tool would like to read them:
no model here was looked at by the tool before its expectation was written. ``MODELS`` at the end
says what each definition has.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.zoo import PLAIN, Model, Stream
from benchmarks.zoo.plain import (
    BATCH,
    HEADS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    Attention,
    FeedForward,
    Pooled,
    conv_norm,
    images,
    pooled_head,
    rows,
    sequences,
    tokens,
)

__all__ = ["MODELS"]

Shape = tuple[int, ...]


def stem(width: int = 16, stride: int = 2) -> nn.Sequential:
    """A convolution, its batch norm, a ReLU."""
    return nn.Sequential(conv_norm(3, width, 3, stride), nn.ReLU(inplace=True))


def signals(channels: int = 4, length: int = 16) -> Tensor:
    """A batch of signals, channels first."""
    return torch.randn(BATCH, channels, length)


# Convolutional networks


class SqueezeExcite(nn.Module):
    """A gate on the channels from their means, by two 1 x 1 convolutions."""

    def __init__(self, channels: int, reduced: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, reduced, 1)
        self.fc2 = nn.Conv2d(reduced, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.mean((2, 3), keepdim=True)
        scale = F.silu(self.fc1(scale), inplace=True)
        scale = self.fc2(scale)
        result: Tensor = x * scale.sigmoid()
        return result


class MBConv(nn.Module):
    """EfficientNet's block: expansion, depthwise convolution, gate, projection."""

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        hidden = inp * expand_ratio
        self.identity = stride == 1 and inp == oup
        layers: list[nn.Module] = []
        if expand_ratio != 1:
            layers += [nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.SiLU()]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(),
            SqueezeExcite(hidden),
            nn.Conv2d(hidden, oup, 1, bias=False),
            nn.BatchNorm2d(oup),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.identity:
            result: Tensor = x + self.conv(x)
            return result
        x = self.conv(x)
        return x


def efficientnet() -> nn.Module:
    """Six MBConv blocks of which the first, third, fourth and last keep their shape."""
    cfgs = [(16, 16, 1, 1), (16, 24, 2, 2), (24, 24, 1, 2), (24, 24, 1, 2)]
    cfgs += [(24, 32, 2, 2), (32, 32, 1, 2)]
    last = nn.Sequential(conv_norm(32, 48, 1), nn.SiLU())
    return nn.Sequential(stem(), *(MBConv(*c) for c in cfgs), last, pooled_head(48))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleaves the groups of channels."""
    b, c, h, w = x.size()
    x = x.view(b, groups, c // groups, h, w)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(b, -1, h, w)


class ShuffleUnit(nn.Module):
    """ShuffleNet V2's unit: half of the channels pass by and are concatenated, not added."""

    def __init__(self, inp: int, oup: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = oup // 2

        def dw_pw(i: int, first: bool) -> list[nn.Module]:
            head: list[nn.Module] = []
            if first:
                head = [nn.Conv2d(i, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(True)]
                i = half
            return [
                *head,
                nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False),
                nn.BatchNorm2d(i),
                nn.Conv2d(i, half, 1, bias=False),
                nn.BatchNorm2d(half),
                nn.ReLU(True),
            ]

        self.branch1 = nn.Sequential(*dw_pw(inp, False)) if stride > 1 else None
        self.branch2 = nn.Sequential(*dw_pw(inp if stride > 1 else half, True))

    def forward(self, x: Tensor) -> Tensor:
        if self.branch1 is None:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


def shufflenet() -> nn.Module:
    """A stage of four ShuffleNet units, the first of which halves the size."""
    units = [ShuffleUnit(16, 24, 2), *(ShuffleUnit(24, 24, 1) for _ in range(3))]
    return nn.Sequential(stem(), *units, pooled_head(24))


class Fire(nn.Module):
    """SqueezeNet's fire module; with ``bypass`` its input is added to its output."""

    def __init__(self, inplanes: int, squeeze: int, expand: int, bypass: bool = False) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inplanes, squeeze, kernel_size=1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze, expand, kernel_size=1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, kernel_size=3, padding=1)
        self.bypass = bypass

    def forward(self, x: Tensor) -> Tensor:
        s = self.squeeze_activation(self.squeeze(x))
        out = torch.cat([F.relu(self.expand1x1(s)), F.relu(self.expand3x3(s))], 1)
        if self.bypass:
            out = out + x
        return out


def squeezenet(bypass: bool) -> nn.Module:
    """Four fire modules in two pairs; the second of a pair may have a bypass."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 16, 3, 2, 1),
            relu=nn.ReLU(inplace=True),
            fire2=Fire(16, 8, 16),
            fire3=Fire(32, 8, 16, bypass),
            pool3=nn.MaxPool2d(3, 2, ceil_mode=True),
            fire4=Fire(32, 8, 24),
            fire5=Fire(48, 8, 24, bypass),
            conv10=nn.Conv2d(48, 5, 1),
            relu10=nn.ReLU(inplace=True),
            pool10=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )


class BasicConv2d(nn.Module):
    """Inception's convolution, norm and ReLU."""

    def __init__(self, i: int, o: int, k: int | tuple[int, int], p: int | Shape = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, padding=p, bias=False)  # type: ignore[arg-type]
        self.bn = nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class InceptionResnetBlock(nn.Module):
    """Paths of several sizes, concatenated, projected without a norm, scaled by 0.17, added."""

    def __init__(self, scale: float = 0.17) -> None:
        super().__init__()
        self.scale = scale
        self.branch0 = BasicConv2d(16, 8, 1)
        self.branch1 = nn.Sequential(BasicConv2d(16, 8, 1), BasicConv2d(8, 8, 3, 1))
        self.branch2 = nn.Sequential(
            BasicConv2d(16, 8, 1),
            BasicConv2d(8, 8, (1, 7), (0, 3)),
            BasicConv2d(8, 8, (7, 1), (3, 0)),
        )
        self.conv2d = nn.Conv2d(24, 16, kernel_size=1)
        self.relu = nn.ReLU(inplace=False)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.cat((self.branch0(x), self.branch1(x), self.branch2(x)), 1)
        out = self.conv2d(out)
        out = out * self.scale + x
        out = self.relu(out)
        result: Tensor = out
        return result


class WideBasic(nn.Module):
    """The wide residual block; where the width changes, the skip starts behind norm and ReLU."""

    def __init__(self, in_planes: int, out_planes: int, stride: int, drop: float = 0.1) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(in_planes), nn.BatchNorm2d(out_planes)
        self.conv1 = nn.Conv2d(in_planes, out_planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out_planes, out_planes, 3, 1, 1, bias=False)
        self.drop_rate = drop
        self.equal_in_out = in_planes == out_planes
        self.shortcut = (
            None if self.equal_in_out else nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            x = F.relu(self.bn1(x))
            out = F.relu(self.bn2(self.conv1(x)))
        else:
            out = F.relu(self.bn2(self.conv1(F.relu(self.bn1(x)))))
        out = F.dropout(out, p=self.drop_rate, training=self.training)
        out = self.conv2(out)
        return torch.add(x if self.shortcut is None else self.shortcut(x), out)


def wide_resnet() -> nn.Module:
    """Three groups of two wide blocks; every group's first block projects."""
    plan = [(16, 32, 1), (32, 32, 1), (32, 48, 2), (48, 48, 1), (48, 64, 2), (64, 64, 1)]
    end = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), pooled_head(64))
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *(WideBasic(*p) for p in plan), end)


class ResNeXtBlock(nn.Module):
    """The bottleneck with a grouped middle; ``gate`` may follow the last norm."""

    expansion = 2

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        cardinality: int = 4,
        gate: nn.Module | None = None,
        avg_down: bool = False,
    ) -> None:
        super().__init__()
        outplanes = planes * self.expansion
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, groups=cardinality, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outplanes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outplanes)
        self.gate = gate
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inplanes != outplanes:
            pool = [nn.AvgPool2d(2, stride, ceil_mode=True)] if avg_down and stride > 1 else []
            self.downsample = nn.Sequential(
                *pool,
                nn.Conv2d(inplanes, outplanes, 1, 1 if avg_down else stride, bias=False),
                nn.BatchNorm2d(outplanes),
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.gate is not None:
            out = self.gate(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        y: Tensor = out
        return y


def resnext() -> nn.Module:
    """Two stages of two grouped bottlenecks, both of which begin with a projection."""
    blocks = [ResNeXtBlock(16, 16), ResNeXtBlock(32, 16)]
    blocks += [ResNeXtBlock(32, 24, 2), ResNeXtBlock(48, 24)]
    return nn.Sequential(stem(), *blocks, pooled_head(48))


def se_resnet() -> nn.Module:
    """Bottlenecks with a squeeze-and-excitation gate behind the last norm."""
    make = partial(ResNeXtBlock, cardinality=1)
    blocks = [
        make(16, 16, gate=SqueezeExcite(32)),
        make(32, 16, gate=SqueezeExcite(32)),
        make(32, 24, 2, gate=SqueezeExcite(48)),
        make(48, 24, gate=SqueezeExcite(48)),
    ]
    return nn.Sequential(stem(), *blocks, pooled_head(48))


def resnet_d() -> nn.Module:
    """ResNet-D: three convolutions as stem, average pooling before the skip's convolution."""
    make = partial(ResNeXtBlock, cardinality=1, avg_down=True)
    deep = nn.Sequential(stem(8), conv_norm(8, 8), nn.ReLU(), conv_norm(8, 16), nn.ReLU())
    blocks = [make(16, 8), make(16, 16, 2), make(32, 16), make(32, 24, 2), make(48, 24)]
    return nn.Sequential(deep, *blocks, pooled_head(48))


class Res2NetBlock(nn.Module):
    """Four groups of channels; a group adds the result of the group before to its own input."""

    def __init__(self, width: int = 16, scale: int = 4) -> None:
        super().__init__()
        self.scale = scale
        self.w = width // scale
        self.reduce = nn.Sequential(conv_norm(width, width, 1), nn.ReLU(True))
        self.convs = nn.ModuleList(conv_norm(self.w, self.w) for _ in range(scale - 1))
        self.expand = conv_norm(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        spx = torch.split(self.reduce(x), self.w, 1)
        outs = [spx[0]]
        for i, conv in enumerate(self.convs):
            sp = spx[i + 1] if i == 0 else outs[-1] + spx[i + 1]
            outs.append(F.relu(conv(sp)))
        return F.relu(self.expand(torch.cat(outs, 1)) + x)


class EcaBlock(nn.Module):
    """A basic block with a gate from a convolution over the channels' means."""

    def __init__(self, c: int, k: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(c, c), nn.ReLU(), conv_norm(c, c))
        self.conv = nn.Conv1d(1, 1, k, padding=(k - 1) // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        w = F.adaptive_avg_pool2d(y, 1).squeeze(-1).transpose(-1, -2)
        w = self.conv(w).transpose(-1, -2).unsqueeze(-1).sigmoid()
        return F.relu(x + y * w.expand_as(y))


class CbamBlock(nn.Module):
    """A basic block, then a gate on channels from two poolings and a gate on places."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(c, c), nn.ReLU(), conv_norm(c, c))
        self.mlp = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        attention = self.mlp(out.mean((2, 3))) + self.mlp(out.amax((2, 3)))
        out = out * torch.sigmoid(attention)[:, :, None, None]
        places = torch.cat([out.max(1, keepdim=True)[0], out.mean(1, keepdim=True)], dim=1)
        out = out * torch.sigmoid(self.spatial(places))
        out = out.add(x)
        return F.relu(out)


class Basic(nn.Module):
    """The basic block of one shape."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(c, c), nn.ReLU(), conv_norm(c, c))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + x)


class HrModule(nn.Module):
    """A block on each of two resolutions, then each is added to the other."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([Basic(wide), Basic(narrow)])
        self.fuse_layers = nn.ModuleDict(
            {
                "up": nn.Sequential(conv_norm(narrow, wide, 1), nn.Upsample(scale_factor=2)),
                "down": conv_norm(wide, narrow, 3, 2),
            }
        )

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        xs = [branch(x) for branch, x in zip(self.branches, xs, strict=True)]
        high = F.relu(xs[0] + self.fuse_layers["up"](xs[1]))
        low = F.relu(self.fuse_layers["down"](xs[0]) + xs[1])
        return [high, low]


class HrNet(nn.Module):
    """Two resolutions side by side from the stem to the head, exchanged after each module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = stem(12)
        self.transition = nn.Sequential(conv_norm(12, 20, 3, 2), nn.ReLU())
        self.stages = nn.ModuleList(HrModule(12, 20) for _ in range(3))
        self.classifier = nn.Conv2d(32, 4, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        xs = [x, self.transition(x)]
        for stage in self.stages:
            xs = stage(xs)
        x = torch.cat([xs[0], F.interpolate(xs[1], scale_factor=2.0)], dim=1)
        x = self.classifier(x)
        result: Tensor = x
        return result


class FpnSegmenter(nn.Module):
    """A small ResNet whose levels come back by lateral 1 x 1 convolutions; the finest is read.

    A lateral convolution is a projected skip around all that is deeper than its level.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = stem(16)
        self.layer1 = Basic(16)
        self.layer2 = nn.Sequential(conv_norm(16, 24, 3, 2), nn.ReLU(), Basic(24))
        self.layer3 = nn.Sequential(conv_norm(24, 32, 3, 2), nn.ReLU(), Basic(32))
        self.laterals = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in (16, 24, 32))
        self.smooth = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        c2 = self.layer1(self.stem(x))
        c3 = self.layer2(c2)
        c4 = self.layer3(c3)
        p4 = self.laterals[2](c4)
        p3 = F.interpolate(p4, size=c3.shape[-2:], mode="nearest") + self.laterals[1](c3)
        p2 = F.interpolate(p3, size=c2.shape[-2:], mode="nearest") + self.laterals[0](c2)
        out: Tensor = self.head(F.relu(self.smooth(p2)))
        return out


class HourglassResidual(nn.Module):
    """Batch norm, ReLU and convolution, twice, and the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(dim), nn.Conv2d(dim, dim, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(dim), nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        result: Tensor = residual + out
        return result


class Hourglass(nn.Module):
    """Down, a smaller hourglass, up, and the input: recursion over the resolutions."""

    def __init__(self, n: int, dim: int) -> None:
        super().__init__()
        self.low1 = HourglassResidual(dim)
        self.low2: nn.Module = Hourglass(n - 1, dim) if n > 1 else HourglassResidual(dim)
        self.low3 = HourglassResidual(dim)

    def forward(self, x: Tensor) -> Tensor:
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2))))
        return x + F.interpolate(low, scale_factor=2.0, mode="nearest")


class DenseCell(nn.Module):
    """ESRGAN's dense block: convolutions of all that came before, then 0.2 times it is added."""

    def __init__(self, nf: int = 12, gc: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(nf, gc, 3, 1, 1)
        self.conv2 = nn.Conv2d(nf + gc, gc, 3, 1, 1)
        self.conv3 = nn.Conv2d(nf + 2 * gc, nf, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.lrelu(self.conv1(x))
        x2 = self.lrelu(self.conv2(torch.cat((x, x1), 1)))
        x3 = self.conv3(torch.cat((x, x1, x2), 1))
        result: Tensor = x3.mul(0.2) + x
        return result


class Rrdb(nn.Module):
    """Three dense blocks, each residual, in one residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.RDB1, self.RDB2, self.RDB3 = DenseCell(), DenseCell(), DenseCell()

    def forward(self, x: Tensor) -> Tensor:
        out = self.RDB3(self.RDB2(self.RDB1(x)))
        result: Tensor = out * 0.2 + x
        return result


class Esrgan(nn.Module):
    """Two RRDBs and a convolution beside a global skip, then upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_first = nn.Conv2d(3, 12, 3, 1, 1)
        self.RRDB_trunk = nn.Sequential(Rrdb(), Rrdb())
        self.trunk_conv = nn.Conv2d(12, 12, 3, 1, 1)
        self.upconv = nn.Conv2d(12, 12, 3, 1, 1)
        self.conv_last = nn.Conv2d(12, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fea = self.conv_first(x)
        trunk = self.trunk_conv(self.RRDB_trunk(fea))
        fea = fea + trunk
        fea = F.leaky_relu(self.upconv(F.interpolate(fea, scale_factor=2.0, mode="nearest")), 0.2)
        out: Tensor = self.conv_last(fea)
        return out


class ResidualDense(nn.Module):
    """RDN's block: dense layers, a 1 x 1 fusion, the local skip."""

    def __init__(self, nf: int, growth: int, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(nf + i * growth, growth, 3, padding=1) for i in range(layers)
        )
        self.lff = nn.Conv2d(nf + layers * growth, nf, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for conv in self.layers:
            features.append(torch.relu(conv(torch.cat(features, 1))))
        result: Tensor = x + self.lff(torch.cat(features, 1))
        return result


class Rdn(nn.Module):
    """Shallow features, three residual dense blocks, all fused, plus the shallow features."""

    def __init__(self, nf: int = 12) -> None:
        super().__init__()
        self.sfe1, self.sfe2 = nn.Conv2d(3, nf, 3, padding=1), nn.Conv2d(nf, nf, 3, padding=1)
        self.rdbs = nn.ModuleList(ResidualDense(nf, 6) for _ in range(3))
        self.gff = nn.Sequential(nn.Conv2d(3 * nf, nf, 1), nn.Conv2d(nf, nf, 3, padding=1))
        self.upscale = nn.Sequential(nn.Conv2d(nf, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        shallow = self.sfe1(x)
        x = self.sfe2(shallow)
        local = []
        for rdb in self.rdbs:
            x = rdb(x)
            local.append(x)
        x = self.gff(torch.cat(local, 1)) + shallow
        x = self.upscale(x)
        return x


def dncnn(depth: int = 5, width: int = 16) -> nn.Module:
    """DnCNN as a subclass made on the spot: the noise is estimated and subtracted."""

    class DnCnn(nn.Sequential):
        """The layers predict the noise in the image that they read."""

        def forward(self, input: Tensor) -> Tensor:
            noise = input
            for layer in self:
                noise = layer(noise)
            return input - noise

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(depth - 2):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(inplace=True)]
    return DnCnn(*layers, nn.Conv2d(width, 3, 3, padding=1))


class SrResNet(nn.Module):
    """Residual blocks with PReLU, one more convolution with norm, a global skip, pixel shuffle."""

    def __init__(self, n_blocks: int = 3) -> None:
        super().__init__()
        self.conv_input = nn.Conv2d(3, 16, 9, 1, 4, bias=False)
        self.relu = nn.PReLU()
        for i in range(n_blocks):
            block = nn.ModuleDict(
                {"c1": conv_norm(16, 16), "act": nn.PReLU(), "c2": conv_norm(16, 16)}
            )
            setattr(self, f"block{i}", block)
        self.n_blocks = n_blocks
        self.conv_mid = nn.Conv2d(16, 16, 3, 1, 1, bias=False)
        self.bn_mid = nn.BatchNorm2d(16)
        self.upscale = nn.Sequential(nn.Conv2d(16, 12, 3, 1, 1), nn.PixelShuffle(2), nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.conv_input(x))
        residual = out
        for i in range(self.n_blocks):
            b = getattr(self, f"block{i}")
            out = torch.add(b["c2"](b["act"](b["c1"](out))), out)
        out = self.bn_mid(self.conv_mid(out))
        out = torch.add(out, residual)
        out = self.upscale(out)
        result: Tensor = out
        return result


class EdsrBlock(nn.Module):
    """Two convolutions without norm, times 0.1, added in place."""

    def __init__(self, n_feats: int, res_scale: float = 0.1) -> None:
        super().__init__()
        m: list[nn.Module] = []
        for i in range(2):
            m.append(nn.Conv2d(n_feats, n_feats, 3, padding=1))
            if i == 0:
                m.append(nn.ReLU(True))
        self.body = nn.Sequential(*m)
        self.res_scale = res_scale

    def forward(self, x: Tensor) -> Tensor:
        res = self.body(x).mul(self.res_scale)
        res += x
        out: Tensor = res
        return out


class Edsr(nn.Module):
    """Four such blocks and a convolution beside a global skip."""

    def __init__(self, n_feats: int = 16) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, n_feats, 3, padding=1))
        blocks: list[nn.Module] = [EdsrBlock(n_feats) for _ in range(4)]
        self.body = nn.Sequential(*blocks, nn.Conv2d(n_feats, n_feats, 3, padding=1))
        self.tail = nn.Conv2d(n_feats, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        res = self.body(x)
        res += x
        x = self.tail(res)
        return x


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sines and cosines of the time step."""
    freqs = torch.exp(-math.log(10000.0) * torch.arange(dim // 2) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class DiffusionResBlock(nn.Module):
    """Norm, swish, convolution, the time embedding, norm, swish, convolution; 1 x 1 skip."""

    def __init__(self, ch_in: int, ch_out: int, temb: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, ch_in)
        self.conv1 = nn.Conv2d(ch_in, ch_out, 3, 1, 1)
        self.temb_proj = nn.Linear(temb, ch_out)
        self.norm2 = nn.GroupNorm(4, ch_out)
        self.conv2 = nn.Conv2d(ch_out, ch_out, 3, 1, 1)
        self.nin_shortcut = nn.Conv2d(ch_in, ch_out, 1) if ch_in != ch_out else nn.Identity()

    def forward(self, x: Tensor, temb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.temb_proj(F.silu(temb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        out: Tensor = self.nin_shortcut(x) + h
        return out


class DiffusionAttention(nn.Module):
    """One head of attention over the pixels, with 1 x 1 convolutions and bmm."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, c)
        self.q, self.k, self.v = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.proj_out = nn.Conv2d(c, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        h_ = self.norm(x)
        b, c, h, w = x.shape
        q = self.q(h_).reshape(b, c, h * w).permute(0, 2, 1)
        k = self.k(h_).reshape(b, c, h * w)
        w_ = torch.bmm(q, k) * int(c) ** (-0.5)
        w_ = F.softmax(w_, dim=2).permute(0, 2, 1)
        h_ = torch.bmm(self.v(h_).reshape(b, c, h * w), w_).reshape(b, c, h, w)
        result: Tensor = x + self.proj_out(h_)
        return result


class DiffusionUnet(nn.Module):
    """DDPM's U-Net of two levels, with attention on the lower one and concatenated skips."""

    def __init__(self, ch: int = 16, temb: int = 24) -> None:
        super().__init__()
        self.ch = ch
        self.temb = nn.Sequential(nn.Linear(ch, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.conv_in = nn.Conv2d(3, ch, 3, 1, 1)
        self.down0 = DiffusionResBlock(ch, ch, temb)
        self.downsample = nn.Conv2d(ch, ch, 3, 2, 1)
        self.down1 = DiffusionResBlock(ch, 2 * ch, temb)
        self.attn1 = DiffusionAttention(2 * ch)
        self.mid_1 = DiffusionResBlock(2 * ch, 2 * ch, temb)
        self.mid_attn = DiffusionAttention(2 * ch)
        self.mid_2 = DiffusionResBlock(2 * ch, 2 * ch, temb)
        self.up1 = DiffusionResBlock(4 * ch, 2 * ch, temb)
        self.upsample = nn.Conv2d(2 * ch, 2 * ch, 3, 1, 1)
        self.up0 = DiffusionResBlock(3 * ch, ch, temb)
        self.norm_out = nn.GroupNorm(4, ch)
        self.conv_out = nn.Conv2d(ch, 3, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        temb = self.temb(timestep_embedding(t, self.ch))
        hs = [self.down0(self.conv_in(x), temb)]
        h = self.down1(self.downsample(hs[-1]), temb)
        h = self.attn1(h)
        hs.append(h)
        h = self.mid_2(self.mid_attn(self.mid_1(h, temb)), temb)
        h = self.up1(torch.cat([h, hs.pop()], dim=1), temb)
        h = self.upsample(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        h = self.up0(torch.cat([h, hs.pop()], dim=1), temb)
        out: Tensor = self.conv_out(F.silu(self.norm_out(h)))
        return out


class StdConv2d(nn.Conv2d):
    """A convolution whose kernel is standardised: no norm on the way of the state."""

    def forward(self, input: Tensor) -> Tensor:
        v, m = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
        w = (self.weight - m) / torch.sqrt(v + 1e-10)
        return F.conv2d(input, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class BitBottleneck(nn.Module):
    """BiT's pre-activation bottleneck with group norm; a projection reads the normed input."""

    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        cmid = cout // 4
        self.gn1, self.conv1 = nn.GroupNorm(4, cin), StdConv2d(cin, cmid, 1, bias=False)
        self.gn2 = nn.GroupNorm(4, cmid)
        self.conv2 = StdConv2d(cmid, cmid, 3, stride, 1, bias=False)
        self.gn3, self.conv3 = nn.GroupNorm(4, cmid), StdConv2d(cmid, cout, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        if stride != 1 or cin != cout:
            self.downsample = StdConv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.gn1(x))
        residual = x
        if hasattr(self, "downsample"):
            residual = self.downsample(out)
        out = self.conv1(out)
        out = self.conv2(self.relu(self.gn2(out)))
        out = self.conv3(self.relu(self.gn3(out)))
        result: Tensor = residual + out
        return result


def bit_resnet() -> nn.Module:
    """Two stages of two bottlenecks; each stage begins with a projection."""
    body = OrderedDict(
        root=nn.Sequential(StdConv2d(3, 16, 3, 2, 1, bias=False)),
        unit1=BitBottleneck(16, 32),
        unit2=BitBottleneck(32, 32),
        unit3=BitBottleneck(32, 48, 2),
        unit4=BitBottleneck(48, 48),
        head=nn.Sequential(nn.GroupNorm(4, 48), nn.ReLU(), pooled_head(48)),
    )
    return nn.Sequential(body)


class ScaledStdConv2d(nn.Module):
    """NF-Net's convolution: a kernel of zero mean and scaled variance, with a gain."""

    def __init__(self, i: int, o: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, k, k) / math.sqrt(i * k * k))
        self.gain = nn.Parameter(torch.ones(o, 1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(o))
        self.stride, self.pad = stride, k // 2

    def forward(self, x: Tensor) -> Tensor:
        fan_in = self.weight[0].numel()
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        scale = torch.rsqrt(torch.clamp(var * fan_in, min=1e-4)) * self.gain
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, self.stride, self.pad)


class NfBlock(nn.Module):
    """The normaliser-free block: ``beta`` divides before, ``alpha`` and a gain multiply after."""

    def __init__(self, i: int, o: int, stride: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.conv0 = ScaledStdConv2d(i, o // 2, 1)
        self.conv1 = ScaledStdConv2d(o // 2, o // 2, 3, stride)
        self.conv2 = ScaledStdConv2d(o // 2, o, 1)
        self.shortcut = ScaledStdConv2d(i, o, 1) if i != o or stride > 1 else None
        self.stride = stride
        self.skip_gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x) * 1.7139588594436646 * self.beta
        shortcut = x
        if self.shortcut is not None:
            shortcut = self.shortcut(F.avg_pool2d(out, 2) if self.stride > 1 else out)
        out = self.conv0(out)
        out = self.conv1(F.relu(out) * 1.7139588594436646)
        out = self.conv2(F.relu(out) * 1.7139588594436646)
        result: Tensor = out * self.skip_gain * self.alpha + shortcut
        return result


def nf_resnet() -> nn.Module:
    """Five normaliser-free blocks; the expected variance grows until a transition resets it."""
    blocks: list[nn.Module] = []
    expected, width = 1.0, 16
    for out, stride in [(32, 1), (32, 1), (48, 2), (48, 1), (48, 1)]:
        blocks.append(NfBlock(width, out, stride, 0.2, expected**-0.5))
        expected = (1.0 if width != out else expected) + 0.2**2
        width = out
    return nn.Sequential(ScaledStdConv2d(3, 16, 3, 2), *blocks, nn.ReLU(), pooled_head(48))


class FixupBlock(nn.Module):
    """Fixup's basic block: four scalar biases, a scalar factor, no norm, a zero last layer."""

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.bias1a = nn.Parameter(torch.zeros(1))
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bias1b = nn.Parameter(torch.zeros(1))
        self.bias2a = nn.Parameter(torch.zeros(1))
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.bias2b = nn.Parameter(torch.zeros(1))
        nn.init.constant_(self.conv2.weight, 0)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x + self.bias1a)
        out = F.relu(out + self.bias1b)
        out = self.conv2(out + self.bias2a)
        out = out * self.scale + self.bias2b
        out += identity
        return F.relu(out)


class DropPathResNet(nn.Module):
    """Basic blocks whose branches are dropped for whole examples, by a seeded generator."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.stem = stem()
        self.bodies = nn.ModuleList(
            nn.Sequential(conv_norm(16, 16), nn.ReLU(), conv_norm(16, 16)) for _ in range(depth)
        )
        self.rates = torch.linspace(0.1, 0.5, depth).tolist()
        self.fc = pooled_head(16)

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        x = self.stem(x)
        for body, rate in zip(self.bodies, self.rates, strict=True):
            y = body(x)
            if self.training and rate > 0.0:
                keep = 1 - rate
                mask = torch.rand(len(x), 1, 1, 1, generator=generator).add_(keep).floor_()
                y = y.div(keep) * mask
            x = F.relu(x + y)
        x = self.fc(x)
        return x


class ConvHighway(nn.Module):
    """A highway layer with 3 x 3 convolutions for transform and gate."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.h = nn.Conv2d(c, c, 3, padding=1)
        self.t = nn.Conv2d(c, c, 3, padding=1)
        nn.init.constant_(self.t.bias, -2.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        gate = self.t(x).sigmoid_()
        result: Tensor = gate.mul(F.relu(self.h(x))).add((1.0 - gate).mul(x))
        return result


class GhostModule(nn.Module):
    """Half of the channels by a convolution, half by a cheap one of that half."""

    def __init__(self, inp: int, oup: int, relu: bool) -> None:
        super().__init__()
        act: Callable[[], nn.Module] = nn.ReLU if relu else nn.Identity
        self.primary = nn.Sequential(conv_norm(inp, oup // 2, 1), act())
        self.cheap = nn.Sequential(
            nn.Conv2d(oup // 2, oup // 2, 3, 1, 1, groups=oup // 2, bias=False),
            nn.BatchNorm2d(oup // 2),
            act(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary(x)
        return torch.cat([x1, self.cheap(x1)], dim=1)


class GhostBottleneck(nn.Module):
    """GhostNet's block; where the size halves, the skip has two convolutions of its own."""

    def __init__(self, inp: int, hid: int, oup: int, stride: int = 1) -> None:
        super().__init__()
        self.ghost1 = GhostModule(inp, hid, relu=True)
        self.dw = nn.Sequential()
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.dw.append(nn.Conv2d(hid, hid, 3, stride, 1, groups=hid, bias=False))
            self.dw.append(nn.BatchNorm2d(hid))
        self.ghost2 = GhostModule(hid, oup, relu=False)
        if inp != oup or stride > 1:
            self.shortcut.append(nn.Conv2d(inp, inp, 3, stride, 1, groups=inp, bias=False))
            self.shortcut.append(nn.BatchNorm2d(inp))
            self.shortcut.append(conv_norm(inp, oup, 1))

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.ghost2(self.dw(self.ghost1(x)))
        x += self.shortcut(residual)
        return x


def ghostnet() -> nn.Module:
    """Four ghost bottlenecks; the second halves the size."""
    plan = [(16, 24, 16, 1), (16, 24, 24, 2), (24, 32, 24, 1), (24, 32, 24, 1)]
    return nn.Sequential(stem(), *(GhostBottleneck(*p) for p in plan), pooled_head(24))


class DualPath(nn.Module):
    """A dual-path block: some of its output is added to the state, the rest set beside it."""

    def __init__(self, res: int, dense: int, inc: int) -> None:
        super().__init__()
        self.res = res
        self.net = nn.Sequential(
            nn.BatchNorm2d(res + dense),
            nn.ReLU(),
            nn.Conv2d(res + dense, 16, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, res + inc, 3, padding=1, bias=False),
        )

    def forward(self, xs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        out = self.net(torch.cat(xs, dim=1))
        return xs[0] + out[:, : self.res], torch.cat([xs[1], out[:, self.res :]], dim=1)


class Dpn(nn.Module):
    """Three dual-path blocks; the head reads both paths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 20, 3, 2, 1)
        self.blocks = nn.Sequential(DualPath(12, 8, 4), DualPath(12, 12, 4), DualPath(12, 16, 4))
        self.head = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), pooled_head(32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.head(torch.cat(self.blocks((x[:, :12], x[:, 12:])), dim=1))
        return x


class ConvMixerResidual(nn.Module):
    """The function and its input."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fn(x) + x
        return y


def convmixer(h: int = 16, d: int = 4, k: int = 5, p: int = 2) -> nn.Module:
    """ConvMixer in one expression; the pointwise layers have nothing beside them."""
    return nn.Sequential(
        nn.Conv2d(3, h, p, p),
        nn.GELU(),
        nn.BatchNorm2d(h),
        *[
            nn.Sequential(
                ConvMixerResidual(
                    nn.Sequential(
                        nn.Conv2d(h, h, k, groups=h, padding="same"), nn.GELU(), nn.BatchNorm2d(h)
                    )
                ),
                nn.Conv2d(h, h, 1),
                nn.GELU(),
                nn.BatchNorm2d(h),
            )
            for _ in range(d)
        ],
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(h, 5),
    )


class MetaFormer(nn.Module):
    """PoolFormer's block on images, with group norm and two layer scales."""

    def __init__(self, dim: int, pool: int = 3) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, dim), nn.GroupNorm(1, dim)
        self.pool = nn.AvgPool2d(pool, 1, pool // 2, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1))
        self.layer_scale_1 = nn.Parameter(1e-5 * torch.ones(dim))
        self.layer_scale_2 = nn.Parameter(1e-5 * torch.ones(dim))

    def token_mixer(self, x: Tensor) -> Tensor:
        result: Tensor = self.pool(x) - x
        return result

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer_scale_1[:, None, None] * self.token_mixer(self.norm1(x))
        x = x + self.layer_scale_2[:, None, None] * self.mlp(self.norm2(x))
        return x


class RepMlpBlock(nn.Module):
    """RepMLP: a gate from the global mean, a layer over all places, convolutions beside it."""

    def __init__(self, c: int, size: int) -> None:
        super().__init__()
        self.gp = nn.Sequential(nn.Conv2d(c, c // 4, 1), nn.ReLU(), nn.Conv2d(c // 4, c, 1))
        self.fc3 = nn.Conv2d(size * size, size * size, 1, bias=False)
        self.fc3_bn = nn.BatchNorm2d(1)
        for k in (1, 3):
            conv = nn.Conv2d(1, 1, k, padding=k // 2, bias=False)
            self.add_module(f"repconv{k}", nn.Sequential(conv, nn.BatchNorm2d(1)))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        gate = torch.sigmoid(self.gp(F.adaptive_avg_pool2d(x, 1)))
        planes = x.reshape(n * c, 1, h, w)
        out = self.fc3(planes.reshape(-1, h * w, 1, 1)).reshape(n * c, 1, h, w)
        out = self.fc3_bn(out)
        conv_out = 0
        for k in (1, 3):
            conv_out = self.get_submodule(f"repconv{k}")(planes) + conv_out
        out = (out + conv_out).reshape(n, c, h, w)
        result: Tensor = out * gate
        return result


class RepMlpUnit(nn.Module):
    """RepMLP and a feed-forward, each with a norm before it."""

    def __init__(self, c: int, size: int) -> None:
        super().__init__()
        self.bn1, self.repmlp = nn.BatchNorm2d(c), RepMlpBlock(c, size)
        self.bn2 = nn.BatchNorm2d(c)
        self.ffn = nn.Sequential(conv_norm(c, 2 * c, 1), nn.GELU(), conv_norm(2 * c, c, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.repmlp(self.bn1(x))
        result: Tensor = y + self.ffn(self.bn2(y))
        return result


class LargeKernelAttention(nn.Module):
    """A gate for each place and channel from a large decomposed kernel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.conv_spatial = nn.Conv2d(dim, dim, 3, padding=3, groups=dim, dilation=3)
        self.conv1 = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        u = x.clone()
        attn = self.conv1(self.conv_spatial(self.conv0(x)))
        result: Tensor = u * attn
        return result


class VanAttention(nn.Module):
    """Projection, large-kernel gate, projection, and its own input added: a merge inside."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj_1 = nn.Conv2d(d_model, d_model, 1)
        self.spatial_gating_unit = LargeKernelAttention(d_model)
        self.proj_2 = nn.Conv2d(d_model, d_model, 1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x.clone()
        x = self.spatial_gating_unit(F.gelu(self.proj_1(x)))
        x = self.proj_2(x)
        x = x + shortcut
        return x


class VanBlock(nn.Module):
    """VAN's block: attention and a feed-forward with a depthwise layer, both scaled."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.BatchNorm2d(dim), VanAttention(dim)
        self.norm2 = nn.BatchNorm2d(dim)
        self.mlp = nn.Sequential(
            nn.Conv2d(dim, 2 * dim, 1),
            nn.Conv2d(2 * dim, 2 * dim, 3, padding=1, groups=2 * dim),
            nn.GELU(),
            nn.Conv2d(2 * dim, dim, 1),
        )
        self.ls1 = nn.Parameter(1e-2 * torch.ones(dim))
        self.ls2 = nn.Parameter(1e-2 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1.unsqueeze(-1).unsqueeze(-1) * self.attn(self.norm1(x))
        x = x + self.ls2.unsqueeze(-1).unsqueeze(-1) * self.mlp(self.norm2(x))
        return x


class FocalModulation(nn.Module):
    """Contexts of growing size, each computed from the one before, gated and summed."""

    def __init__(self, dim: int, levels: int = 2) -> None:
        super().__init__()
        self.levels, self.dim = levels, dim
        self.f = nn.Linear(dim, 2 * dim + levels + 1)
        self.h = nn.Conv2d(dim, dim, 1)
        self.proj = nn.Linear(dim, dim)
        self.focal_layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(dim, dim, 3 + 2 * k, padding=1 + k, groups=dim, bias=False), nn.GELU()
            )
            for k in range(levels)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.f(x).permute(0, 3, 1, 2).contiguous()
        q, ctx, gates = torch.split(x, [self.dim, self.dim, self.levels + 1], 1)
        ctx_all: Any = 0
        for level in range(self.levels):
            ctx = self.focal_layers[level](ctx)
            ctx_all = ctx_all + ctx * gates[:, level : level + 1]
        ctx_global = F.gelu(ctx.mean(2, keepdim=True).mean(3, keepdim=True))
        ctx_all = ctx_all + ctx_global * gates[:, self.levels :]
        x = (q * self.h(ctx_all)).permute(0, 2, 3, 1).contiguous()
        x = self.proj(x)
        return x


class FocalBlock(nn.Module):
    """Focal modulation, then a feed-forward, channels last."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.modulation = nn.LayerNorm(dim), FocalModulation(dim)
        self.norm2, self.mlp = nn.LayerNorm(dim), FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.modulation(self.norm1(x))
        x = shortcut + x
        x = x + self.mlp(self.norm2(x))
        return x


class Permute(nn.Module):
    """A permutation of the axes as a module."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


def focalnet() -> nn.Module:
    """Three focal blocks on patches."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        Permute(0, 2, 3, 1),
        nn.LayerNorm(16),
        *(FocalBlock(16) for _ in range(3)),
        nn.LayerNorm(16),
        Permute(0, 3, 1, 2),
        pooled_head(16),
    )


class CriticBlock(nn.Module):
    """A critic's block: ReLU and convolution twice; it may pool, and then the skip projects."""

    def __init__(self, i: int, o: int, down: bool, first: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.down, self.first = down, first
        self.sc = nn.Conv2d(i, o, 1) if down else None

    def residual(self, x: Tensor) -> Tensor:
        h = x if self.first else F.relu(x)
        h = self.conv2(F.relu(self.conv1(h)))
        return F.avg_pool2d(h, 2) if self.down else h

    def shortcut(self, x: Tensor) -> Tensor:
        if self.sc is None:
            return x
        x = self.sc(F.avg_pool2d(x, 2)) if self.first else F.avg_pool2d(self.sc(x), 2)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)


class WganCritic(nn.Module):
    """The critic has no stem: the first skip projects the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = CriticBlock(3, 16, down=True, first=True)
        self.block2 = CriticBlock(16, 16, down=True)
        self.block3 = CriticBlock(16, 16, down=False)
        self.block4 = CriticBlock(16, 16, down=False)
        self.l5 = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block4(self.block3(self.block2(self.block1(x))))
        out: Tensor = self.l5(F.relu(h).sum(dim=(2, 3)))
        return out


class GeneratorBlock(nn.Module):
    """Norm, ReLU, transposed convolution, norm, ReLU, convolution; the skip is transposed too."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.bn1, self.up = nn.BatchNorm2d(i), nn.ConvTranspose2d(i, o, 4, 2, 1)
        self.bn2, self.conv = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.ConvTranspose2d(i, o, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.bn1(x).relu_())
        h = self.conv(self.bn2(h).relu_())
        out: Tensor = h + self.skip(x)
        return out


def generator() -> nn.Module:
    """A code, a linear layer, three blocks that double the size, an image."""
    return nn.Sequential(
        nn.Linear(WIDTH, 24 * 4),
        nn.Unflatten(1, (24, 2, 2)),
        GeneratorBlock(24, 20),
        GeneratorBlock(20, 16),
        GeneratorBlock(16, 12),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 3, 3, padding=1),
        nn.Tanh(),
    )


class Capsules(nn.Module):
    """Capsules with three rounds of routing; only the last round carries a gradient."""

    def __init__(self, n_in: int = 16, n_out: int = 5, d_in: int = 4, d_out: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)
        self.primary = nn.Conv2d(16, 4, 3, 2, 1)
        self.W = nn.Parameter(0.2 * torch.randn(n_out, n_in, d_out, d_in))

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        n = s.norm(dim=-1, keepdim=True)
        result: Tensor = n**2 / (1 + n**2) * s / (n + 1e-8)
        return result

    def forward(self, x: Tensor) -> Tensor:
        u = self.primary(F.relu(self.conv(x)))
        u = self.squash(u.permute(0, 2, 3, 1).reshape(len(x), -1, 4))
        u_hat = torch.einsum("oipd,bid->boip", self.W, u)
        frozen = u_hat.detach()
        b = torch.zeros(u_hat.shape[:-1])
        for i in range(3):
            c = b.softmax(dim=1).unsqueeze(-1)
            if i == 2:
                result: Tensor = self.squash((c * u_hat).sum(2)).norm(dim=-1)
                return result
            v = self.squash((c * frozen).sum(2))
            b = b + torch.einsum("boip,bop->boi", frozen, v)
        raise AssertionError


# Transformers for language


@dataclass
class GPTConfig:
    """The sizes of a small GPT."""

    block_size: int = TOKENS
    vocab_size: int = VOCABULARY
    n_layer: int = 3
    n_head: int = HEADS
    n_embd: int = WIDTH
    dropout: float = 0.0
    bias: bool = False


class CausalSelfAttention(nn.Module):
    """Causal attention, fused projection, view and transpose."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        result: Tensor = y
        return result


class NanoBlock(nn.Module):
    """nanoGPT's block."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return x


class NanoGPT(nn.Module):
    """nanoGPT with its tied head; ``forward`` gives logits and, with targets, a loss."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([NanoBlock(config) for _ in range(config.n_layer)]),
                ln_f=nn.LayerNorm(config.n_embd, bias=config.bias),
            )
        )
        head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head = head
        self.transformer["wte"].weight = head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](pos))
        for block in self.transformer["h"]:  # type: ignore[attr-defined]
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    """The weightless RMS norm as one line."""
    result: Tensor = x / (x.norm(dim=-1, keepdim=True) * x.size(-1) ** -0.5 + eps)
    return result


class RMSNorm(nn.Module):
    """RMS norm in float32 with a gain of ``1 + weight``."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class OldLayerNorm(nn.Module):
    """Layer norm in the annotated Transformer's spelling."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


Block = Callable[[], nn.Module]


class Language(nn.Module):
    """Embedding, blocks, a final norm, logits."""

    def __init__(self, blocks: Iterable[nn.Module], final: nn.Module | None = None) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH) if final is None else final
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.embed_tokens(input_ids)
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.lm_head(self.norm(h))
        return out


class ReZeroLayer(nn.Module):
    """No norm; each branch times a scalar that starts at zero, one scalar a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.resweight = nn.Parameter(torch.zeros(1))
        self.self_attn = Attention(causal=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, src: Tensor) -> Tensor:
        src2 = self.self_attn(src)
        src2 = src2 * self.resweight
        src = src + F.dropout(src2, 0.1, self.training)
        src2 = self.linear2(F.relu(self.linear1(src)))
        src2 = src2 * self.resweight
        src = src + F.dropout(src2, 0.1, self.training)
        return src


class DeepNormLayer(nn.Module):
    """Post-norm with the skip times ``alpha``, which belongs to the depth."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.alpha = math.pow(2.0 * depth, 0.25)
        self.attn, self.mlp = Attention(causal=True), FeedForward()
        self.ln1, self.ln2 = OldLayerNorm(WIDTH), OldLayerNorm(WIDTH)

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual * self.alpha + x

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln1(self.residual_connection(self.attn(x), x))
        x = self.ln2(self.residual_connection(self.mlp(x), x))
        return x


class SublayerConnection(nn.Module):
    """A residual connection around any sublayer, with the norm behind it."""

    def __init__(self, size: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = OldLayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Any]) -> Tensor:
        x = self.norm(x + self.dropout(sublayer(x)))
        return x


class AnnotatedDecoderLayer(nn.Module):
    """Self-attention, attention to a memory, feed-forward, by lambdas."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.src_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.feed_forward = FeedForward()
        self.sublayer = nn.ModuleList([SublayerConnection(WIDTH) for _ in range(3)])

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, attn_mask=mask)[0])
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, need_weights=False)[0])
        x = self.sublayer[2](x, self.feed_forward)
        return x


class AnnotatedDecoder(nn.Module):
    """A post-norm decoder of three cloned layers; the memory comes from outside."""

    def __init__(self, N: int = 3) -> None:
        super().__init__()
        layer = AnnotatedDecoderLayer()
        self.lut = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(N)])
        self.proj = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tgt: Tensor, memory: Tensor) -> Tensor:
        mask = torch.triu(torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool), diagonal=1)
        x = self.lut(tgt) * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x, memory, mask)
        return F.log_softmax(self.proj(x), dim=-1)


class BottomToTop(nn.Module):
    """Post-norm, but the layer's input passes by all norms of the layer except the last."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ffn = Attention(causal=True), FeedForward()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mid = self.ln1(x + self.attn(x))
        x = self.ln2(x + (mid + self.ffn(mid)))
        return x


class PeriLayer(nn.Module):
    """A norm before and behind each module, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.mods = nn.ModuleDict({"attn": Attention(causal=True), "mlp": FeedForward()})
        self.pre = nn.ModuleDict({k: nn.RMSNorm(WIDTH) for k in self.mods})
        self.post = nn.ModuleDict({k: nn.RMSNorm(WIDTH) for k in self.mods})

    def forward(self, x: Tensor) -> Tensor:
        for name, module in self.mods.items():
            x = x + self.post[name](module(self.pre[name](x)))
        return x


class SubLnLayer(nn.Module):
    """Sub-LN: a norm before a module and a second one before its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(WIDTH)
        self.qkv_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.inner_attn_ln = nn.LayerNorm(WIDTH)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.final_layer_norm = nn.LayerNorm(WIDTH)
        self.fc1, self.ffn_layernorm = nn.Linear(WIDTH, 32), nn.LayerNorm(32)
        self.fc2 = nn.Linear(32, WIDTH)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        w = torch.softmax(torch.einsum("bid,bjd->bij", q, k) / 4.0, dim=-1)
        x = self.out_proj(self.inner_attn_ln(torch.einsum("bij,bjd->bid", w, v)))
        return x

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = residual + self.attention(self.self_attn_layer_norm(x))
        residual = x
        x = self.fc1(self.final_layer_norm(x))
        x = self.fc2(self.ffn_layernorm(F.gelu(x)))
        x = residual + x
        return x


class NormFormerLayer(nn.Module):
    """Pre-norm, gains on the heads, a norm behind attention and one inside the feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_attn, self.post_attn_ln = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head_scale = nn.Parameter(torch.ones(HEADS))
        self.ln_ffn, self.mid_ffn_ln = nn.LayerNorm(WIDTH), nn.LayerNorm(32)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(x).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = torch.einsum("bhtd,h->bthd", y, self.head_scale).reshape(b, t, WIDTH)
        out: Tensor = self.out(y)
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attn_ln(self.attend(self.ln_attn(x)))
        x = x + self.fc2(self.mid_ffn_ln(F.gelu(self.fc1(self.ln_ffn(x)))))
        return x


class MixLnLayer(nn.Module):
    """One class for both kinds: the first layers norm the stream, the later ones the input."""

    def __init__(self, post: bool) -> None:
        super().__init__()
        self.post = post
        self.subs = nn.ModuleList([Attention(causal=True), FeedForward()])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        for sub, norm in zip(self.subs, self.norms, strict=True):
            x = norm(x + sub(x)) if self.post else x + sub(norm(x))
        return x


class ResiDual(nn.Module):
    """Two residual streams: every branch reads the post-norm one and is added to both."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.subs = nn.ModuleList()
        for _ in range(depth):
            self.subs.extend([Attention(causal=True), FeedForward()])
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in self.subs)
        self.dual_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        post = dual = self.embed(ids)
        for sub, norm in zip(self.subs, self.norms, strict=True):
            y = sub(post)
            post = norm(post + y)
            dual = dual + y
        out: Tensor = self.head(post + self.dual_norm(dual))
        return out


class ReluSquaredMlp(nn.Module):
    """Two layers with a squared ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.c_fc(x)).square()
        x = self.c_proj(x)
        return x


class SpeedrunAttention(nn.Module):
    """Normed queries and keys; a value embedding of the token is mixed into the values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_w = nn.Parameter(torch.randn(3, WIDTH, WIDTH) * WIDTH**-0.5)
        self.lambdas = nn.Parameter(torch.tensor([0.5, 0.5]))
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, ve: Tensor | None) -> Tensor:
        B, T = x.size(0), x.size(1)
        qkv = F.linear(x, self.qkv_w.flatten(end_dim=1)).view(B, T, 3 * HEADS, -1)
        q, k, v = qkv.chunk(3, dim=-2)
        q, k = rms(q), rms(k)
        v = self.lambdas[0] * v if ve is None else self.lambdas[0] * v + self.lambdas[1] * ve
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        ).transpose(1, 2)
        out: Tensor = self.c_proj(y.contiguous().view(B, T, -1))
        return out


class Speedrun(nn.Module):
    """Value embeddings, the embedding mixed in again before each block, one learned long skip.

    The last mixing spans all that ran before it, so the merges before it are inside its branch.
    """

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.value_embeds = nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH) for _ in range(2)])
        self.attn = nn.ModuleList([SpeedrunAttention() for _ in range(depth)])
        self.mlp = nn.ModuleList([ReluSquaredMlp() for _ in range(depth)])
        self.lambdas = nn.Parameter(torch.tensor([[1.0, 0.1]]).repeat(depth, 1))
        self.skip_weight = nn.Parameter(torch.ones(1))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        ve = [e(ids).view(*ids.shape, HEADS, -1) for e in self.value_embeds]
        values = [ve[0], None, None, ve[1]]
        x = x0 = rms(self.embed(ids))
        kept: Tensor | None = None
        for i, (attn, mlp) in enumerate(zip(self.attn, self.mlp, strict=True)):
            if i == 3 and kept is not None:
                x = x + self.skip_weight * kept
            x = self.lambdas[i, 0] * x + self.lambdas[i, 1] * x0
            x = x + attn(rms(x), values[i])
            x = x + mlp(rms(x))
            if i == 0:
                kept = x
        logits: Tensor = self.lm_head(rms(x))
        return 15.0 * torch.tanh(logits / 15.0)


class NormalisedGptBlock(nn.Module):
    """nGPT: every state has unit length and moves towards the branch by a learned share."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.sqk = nn.Parameter(torch.ones(WIDTH // HEADS))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 64, bias=False)
        self.down = nn.Linear(32, WIDTH, bias=False)
        self.alpha_a = nn.Parameter(torch.full((WIDTH,), 0.05))
        self.alpha_m = nn.Parameter(torch.full((WIDTH,), 0.05))

    def attn(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.sqk * F.normalize(q, dim=-1), self.sqk * F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(WIDTH / HEADS) ** 0.5)
        h = self.out(y.transpose(1, 2).flatten(2))
        return h

    def mlp(self, h: Tensor) -> Tensor:
        u, v = self.up(h).chunk(2, dim=-1)
        h = self.down(u * F.silu(v))
        return h

    def forward(self, h: Tensor) -> Tensor:
        h = F.normalize(torch.lerp(h, F.normalize(self.attn(h), dim=-1), self.alpha_a), dim=-1)
        h = F.normalize(torch.lerp(h, F.normalize(self.mlp(h), dim=-1), self.alpha_m), dim=-1)
        return h


class GemmaLikeLayer(nn.Module):
    """Four norms a layer with gains of ``1 + w``, capped scores, a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        for name in names:
            self.add_module(f"{name}_layernorm", RMSNorm(WIDTH))
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_proj = nn.Linear(WIDTH, 40, bias=False)
        self.up_proj = nn.Linear(WIDTH, 40, bias=False)
        self.down_proj = nn.Linear(40, WIDTH, bias=False)

    def attention(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = self.kv_proj(x).view(b, t, 1, -1).transpose(1, 2).chunk(2, dim=-1)
        k, v = k.expand(-1, HEADS, -1, -1), v.expand(-1, HEADS, -1, -1)
        scores = torch.matmul(q, k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5
        scores = torch.tanh(scores / 50.0) * 50.0
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        x = torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).reshape(b, t, -1)
        x = self.o_proj(x)
        return x

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.get_submodule("input_layernorm")(hidden_states)
        hidden_states = self.attention(hidden_states)
        hidden_states = self.get_submodule("post_attention_layernorm")(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.get_submodule("pre_feedforward_layernorm")(hidden_states)
        gate = F.gelu(self.gate_proj(hidden_states), approximate="tanh")
        hidden_states = self.down_proj(gate * self.up_proj(hidden_states))
        hidden_states = self.get_submodule("post_feedforward_layernorm")(hidden_states)
        return residual + hidden_states


class PalmBlock(nn.Module):
    """One norm, one fused layer for both, two output layers, both added here."""

    def __init__(self, inner: int = 24) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("beta", torch.zeros(WIDTH))
        self.splits = (WIDTH, WIDTH // HEADS, WIDTH // HEADS, 2 * inner)
        self.fused = nn.Linear(WIDTH, sum(self.splits), bias=False)
        self.attn_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ff_out = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = F.layer_norm(x, x.shape[-1:], self.gamma, self.get_buffer("beta"))
        q, k, v, ff = self.fused(n).split(self.splits, dim=-1)
        q = q.view(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3)
        sim = torch.einsum("bhid,bjd->bhij", q * q.shape[-1] ** -0.5, k)
        mask = torch.ones(sim.shape[-2:], dtype=torch.bool).triu(1)
        attn = sim.masked_fill(mask, -torch.finfo(sim.dtype).max).softmax(dim=-1)
        out = torch.einsum("bhij,bjd->bhid", attn, v).permute(0, 2, 1, 3).flatten(2)
        a, gate = ff.chunk(2, dim=-1)
        result: Tensor = x + self.attn_out(out) + self.ff_out(F.silu(gate) * a)
        return result


class HybridHeads(nn.Module):
    """Attention and a gated recurrence read one projection; their normed mean is one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.decay = nn.Linear(WIDTH, WIDTH)
        self.norm_a, self.norm_s = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, s = self.in_proj(x).chunk(4, dim=-1)
        attended = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        a = torch.sigmoid(self.decay(x))
        carry = torch.zeros_like(s[:, 0])
        states = []
        for t in range(x.shape[1]):
            carry = a[:, t] * carry + s[:, t]
            states.append(carry)
        scanned = torch.stack(states, dim=1)
        x = self.out_proj((self.norm_a(attended) + self.norm_s(scanned)) / 2)
        return x


class PreNorm(nn.Module):
    """A norm, then the function."""

    def __init__(self, fn: nn.Module, dim: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        x = self.fn(self.norm(x), **kwargs)
        return x


class AddInput(nn.Module):
    """The function and its input."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        result: Tensor = x + self.fn(x, **kwargs)
        return result


def pre_norm(*branches: nn.Module) -> nn.Sequential:
    """Each branch with a norm before it and its input added."""
    return nn.Sequential(*(AddInput(PreNorm(b)) for b in branches))


class SharedExpertMoe(nn.Module):
    """Routed experts by a loop over all of them, and one expert that every token uses."""

    def __init__(self, n: int = 4, k: int = 2) -> None:
        super().__init__()
        self.k = k
        self.gate = nn.Linear(WIDTH, n, bias=False)
        self.experts = nn.ModuleList([FeedForward(WIDTH, 24) for _ in range(n)])
        self.shared_experts = FeedForward(WIDTH, 24)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, WIDTH)
        probs = F.softmax(self.gate(flat), dim=-1)
        top, where = torch.topk(probs, self.k, dim=-1)
        weight = torch.zeros_like(probs).scatter(1, where, top / top.sum(-1, keepdim=True))
        routed = sum(weight[:, i : i + 1] * e(flat) for i, e in enumerate(self.experts))
        out: Tensor = (routed + self.shared_experts(flat)).reshape(hidden.shape)
        return out


class DepthRouter(nn.Module):
    """Mixture of depths: the best tokens alone pass the feed-forward and are added back."""

    def __init__(self, capacity: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 1)
        self.norm, self.mlp = nn.LayerNorm(WIDTH), FeedForward()
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x).squeeze(-1)
        top, index = logits.topk(self.capacity, dim=1, sorted=False)
        index, order = index.sort(dim=1)
        weight = torch.sigmoid(top.gather(1, order)).unsqueeze(-1)
        index = index.unsqueeze(-1).expand(-1, -1, x.size(-1))
        chosen = torch.gather(x, 1, index)
        return torch.scatter_add(x, 1, index, weight * self.mlp(self.norm(chosen)))


class DepthRoutedBlock(nn.Module):
    """The chosen tokens pass a whole pre-norm block and are written back in their places."""

    def __init__(self, capacity: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 1)
        self.block = pre_norm(Attention(), FeedForward())
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        index = self.router(x).squeeze(-1).topk(self.capacity, dim=1).indices
        index = index.unsqueeze(-1).expand(-1, -1, x.size(-1))
        return x.scatter(1, index, self.block(x.gather(1, index)))


class TwoExits(nn.Module):
    """A head after the second and one after the fourth block; both logits are given."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(pre_norm(Attention(True), FeedForward()) for _ in range(4))
        self.exits = nn.ModuleDict(
            {
                str(i): nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
                for i in (2, 4)
            }
        )

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.emb(ids)
        out: dict[str, Tensor] = {}
        for i, block in enumerate(self.blocks, start=1):
            x = block(x)
            if str(i) in self.exits:
                out[f"logits_{i}"] = self.exits[str(i)](x)
        return out


class LayerSkip(nn.Module):
    """One shared head reads every layer; in training the third of four layers does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(pre_norm(Attention(True), FeedForward()) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.skipped = (False, False, True, False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(ids)
        losses = []
        for layer, skip in zip(self.layers, self.skipped, strict=True):
            if self.training and skip:
                continue
            h = layer(h)
            logits = self.head(self.norm(h[:, :-1]))
            losses.append(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
        weights = torch.arange(1.0, len(losses) + 1)
        return (torch.stack(losses) * weights / weights.sum()).sum()


class LoopedTransformer(nn.Module):
    """One block, run four times; before each run the embedding is added to the state again."""

    def __init__(self, loops: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.block = pre_norm(Attention(causal=True), FeedForward())
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.loops = loops

    def forward(self, ids: Tensor) -> Tensor:
        e = self.emb(ids)
        h: Tensor | None = None
        for _ in range(self.loops):
            h = self.block(e if h is None else h + e)
        logits: Tensor = self.out(h)
        return logits


class UniversalTransformer(nn.Module):
    """A tied post-norm block; each step adds a signal for places and for the step."""

    steps: Tensor
    places: Tensor

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.attn, self.transition = Attention(), FeedForward()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("places", timestep_embedding(torch.arange(TOKENS), WIDTH))
        self.register_buffer("steps", timestep_embedding(torch.arange(n), WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        state = self.emb(ids)
        for step in self.steps:
            state = state + self.places + step
            state = self.ln1(state + self.attn(state))
            state = self.ln2(state + self.transition(state))
        state = self.out(state)
        out: Tensor = state
        return out


class DifferentialAttention(nn.Module):
    """The difference of two attention maps, normed for each head."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.lambdas = nn.ParameterList(nn.Parameter(0.1 * torch.randn(4)) for _ in range(4))
        self.subln = nn.RMSNorm(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, 2 * HEADS, -1).transpose(1, 2) * 0.5
        k = self.k_proj(x).view(b, n, 2 * HEADS, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, n, HEADS, -1).transpose(1, 2)
        maps = (q @ k.transpose(-1, -2)).softmax(-1).view(b, HEADS, 2, n, n)
        q1, k1, q2, k2 = self.lambdas
        lam = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + self.lambda_init
        y = self.subln((maps[:, :, 0] - lam * maps[:, :, 1]) @ v) * (1 - self.lambda_init)
        x = self.out_proj(y.transpose(1, 2).reshape(b, n, -1))
        return x


class RealFormer(nn.Module):
    """The scores of attention are added to the scores of the layer before; post-norm."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        for name, out in (("q", WIDTH), ("k", WIDTH), ("v", WIDTH), ("o", WIDTH)):
            setattr(self, name, nn.ModuleList(nn.Linear(WIDTH, out) for _ in range(depth)))
        self.mlps = nn.ModuleList(FeedForward() for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * depth))
        self.depth = depth
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        prev: Tensor | None = None
        for i in range(self.depth):
            q, k, v = (getattr(self, name)[i](x) for name in "qkv")
            scores = q.bmm(k.mT) * WIDTH**-0.5
            if prev is not None:
                scores = scores + prev
            prev = scores
            y = self.get_submodule(f"o.{i}")(scores.softmax(-1).bmm(v))
            x = self.norms[2 * i](x + y)
            x = self.norms[2 * i + 1](x + self.mlps[i](x))
        out: Tensor = self.head(x)
        return out


class Adapter(nn.Module):
    """A small bottleneck with its own skip, at the end of a branch."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, size), nn.Linear(size, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.up(F.relu(self.down(x)))
        return result


class AdaptedLayer(nn.Module):
    """A frozen pre-norm layer with an adapter inside each of its branches."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.attn, self.adapter1 = nn.LayerNorm(WIDTH), Attention(True), Adapter()
        self.ln2, self.mlp, self.adapter2 = nn.LayerNorm(WIDTH), FeedForward(), Adapter()
        for module in (self.attn, self.mlp):
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.adapter1(self.attn(self.ln1(x)))
        x = x + self.adapter2(self.mlp(self.ln2(x)))
        return x


class GruGate(nn.Module):
    """GTrXL's gate, which stands where the sum would."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.u = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.ug = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bg = nn.Parameter(torch.full((WIDTH,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        wr, wz, wg = self.w(y).chunk(3, -1)
        ur, uz = self.u(x).chunk(2, -1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz - self.bg)
        h = torch.tanh(wg + self.ug(r * x))
        return (1.0 - z) * x + z * h


class GtrxlLayer(nn.Module):
    """Pre-norm branches behind a ReLU, gated into the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.attn, self.gate1 = nn.LayerNorm(WIDTH), Attention(True), GruGate()
        self.ln2, self.mlp, self.gate2 = nn.LayerNorm(WIDTH), FeedForward(), GruGate()

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate1(x, F.relu(self.attn(self.ln1(x))))
        x = self.gate2(x, F.relu(self.mlp(self.ln2(x))))
        return x


class MegaLayer(nn.Module):
    """A moving average, an attention that reads it, and an update gate by ``addcmul``."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(WIDTH))
        self.proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.h = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        alpha = torch.sigmoid(self.alpha)
        ema = torch.zeros_like(x[:, 0])
        steps = []
        for xt in x.unbind(1):
            ema = alpha * xt + (1 - alpha) * ema
            steps.append(ema)
        u, q, r = self.proj(torch.stack(steps, 1)).chunk(3, dim=-1)
        u, r = torch.sigmoid(u), F.silu(r)
        y = F.scaled_dot_product_attention(q[:, None], q[:, None], self.v(x)[:, None])[:, 0]
        h = F.silu(self.h(y * r))
        x = self.norm(torch.addcmul(residual, u, h - residual))
        return x


# Linear attention, recurrences, state spaces, mixers


class KernelAttention(nn.Module):
    """Linear attention with the kernel ``elu + 1`` and a running normaliser."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (t.reshape(b, n, HEADS, d // HEADS) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum("bnhd,bnhe->bnhde", k, v).cumsum(dim=1)
        z = 1 / (torch.einsum("bnhd,bnhd->bnh", q, k.cumsum(dim=1)) + 1e-6)
        out = torch.einsum("bnhde,bnhd,bnh->bnhe", context, q, z).reshape(b, n, d)
        x = self.to_out(out)
        return x


class LinformerAttention(nn.Module):
    """Keys and values are projected along the tokens, to three of them."""

    def __init__(self, k: int = 3) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.proj_k = nn.Parameter(torch.empty(TOKENS, k).uniform_(-0.4, 0.4))
        self.proj_v = nn.Parameter(torch.empty(TOKENS, k).uniform_(-0.4, 0.4))
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        keys = torch.einsum("bnd,nk->bkd", self.to_k(x), self.proj_k)
        values = torch.einsum("bnd,nk->bkd", self.to_v(x), self.proj_v)
        q = self.to_q(x).reshape(b, n, HEADS, -1).transpose(1, 2)
        keys, values = (t.reshape(b, -1, HEADS, d // HEADS).transpose(1, 2) for t in (keys, values))
        attn = (torch.einsum("bhnd,bhkd->bhnk", q, keys) * (d // HEADS) ** -0.5).softmax(dim=-1)
        out = torch.einsum("bhnk,bhkd->bhnd", attn, values).transpose(1, 2).reshape(b, n, d)
        x = self.to_out(out)
        return x


class Reformer(nn.Module):
    """Two copies of the embedding, each updated from the other."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.f = nn.ModuleList(PreNorm(Attention(True)) for _ in range(depth))
        self.g = nn.ModuleList(PreNorm(FeedForward()) for _ in range(depth))
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        x1, x2 = torch.cat([x, x], dim=-1).chunk(2, dim=-1)
        for f, g in zip(self.f, self.g, strict=True):
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
            x1, x2 = y1, y2
        out: Tensor = self.head(torch.cat([x1, x2], dim=-1))
        return out


class Retention(nn.Module):
    """Retention with a decay for each head, a group norm of the heads and a swish gate."""

    decay: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.w_g, self.w_o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.group_norm = nn.GroupNorm(HEADS, WIDTH)
        gamma = 1 - torch.exp(torch.linspace(math.log(1 / 8), math.log(1 / 32), HEADS))
        n, m = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
        self.register_buffer("decay", ((n >= m) * gamma[:, None, None] ** (n - m).clamp(min=0)))

    def forward(self, x: Tensor) -> Tensor:
        split = partial(torch.unflatten, dim=-1, sizes=(HEADS, WIDTH // HEADS))
        q, k, v = (split(w(x)).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        y = ((q @ k.mT) * self.decay) @ v
        y = y.transpose(1, 2).flatten(2)
        y = self.group_norm(y.flatten(0, 1)).view_as(x)
        x = self.w_o(F.silu(self.w_g(x)) * y)
        return x


def time_shift(x: Tensor) -> Tensor:
    """Every token replaced by the one before it."""
    return F.pad(x, (0, 0, 1, -1))


class Rwkv4TimeMix(nn.Module):
    """RWKV-4's time mixing: mixed with the token before, then a decaying weighted mean."""

    def __init__(self) -> None:
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-3, 1, WIDTH))
        self.time_first = nn.Parameter(torch.full((WIDTH,), 0.3))
        self.time_mix = nn.ParameterDict({c: nn.Parameter(torch.rand(1, 1, WIDTH)) for c in "krv"})
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.receptance, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        xx = time_shift(x)
        xk, xr, xv = (x * self.time_mix[c] + xx * (1 - self.time_mix[c]) for c in "krv")
        k, v, r = self.key(xk), self.value(xv), torch.sigmoid(self.receptance(xr))
        w = torch.exp(-torch.exp(self.time_decay))
        num = den = torch.zeros_like(v[:, 0])
        out = []
        for t in range(x.size(1)):
            now = torch.exp(self.time_first + k[:, t])
            out.append((num + now * v[:, t]) / (den + now + 1e-6))
            num = w * num + torch.exp(k[:, t]) * v[:, t]
            den = w * den + torch.exp(k[:, t])
        x = self.output(r * torch.stack(out, dim=1))
        return x


class Rwkv4ChannelMix(nn.Module):
    """RWKV-4's channel mixing: a gated feed-forward with a squared ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.time_mix_k = nn.Parameter(torch.rand(WIDTH))
        self.time_mix_r = nn.Parameter(torch.rand(WIDTH))
        self.key, self.value = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.receptance = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        xx = time_shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        xr = x * self.time_mix_r + xx * (1 - self.time_mix_r)
        kv = self.value(torch.square(torch.relu(self.key(xk))))
        result: Tensor = torch.sigmoid(self.receptance(xr)) * kv
        return result


class Rwkv7TimeMix(nn.Module):
    """RWKV-7's time mixing: a state that decays, forgets along a normed key, and takes in.

    The value of the present token is added once more to what the state gives: a merge inside.
    """

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.n, self.h = n, WIDTH // n
        self.mix = nn.Parameter(torch.rand(6, WIDTH))
        self.r, self.w, self.k, self.v, self.a, self.g = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)
        )
        self.r_k = nn.Parameter(torch.full((self.h, n), 0.1))
        self.ln_x = nn.GroupNorm(self.h, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        xx = time_shift(x) - x
        xr, xw, xk, xv, xa, xg = (torch.addcmul(x, xx, m) for m in self.mix)
        shape = (b, t, self.h, self.n)
        r, k, v = (f(y).view(shape) for f, y in ((self.r, xr), (self.k, xk), (self.v, xv)))
        w = torch.exp(-0.6 * torch.sigmoid(self.w(xw))).view(shape)
        a, g = torch.sigmoid(self.a(xa)).view(shape), torch.sigmoid(self.g(xg))
        kk = F.normalize(k, dim=-1)
        state = x.new_zeros(b, self.h, self.n, self.n)
        ys = []
        for i in range(t):
            forget = (state @ -kk[:, i, :, :, None]) @ (kk * a)[:, i, :, None]
            state = state * w[:, i, :, None] + forget + v[:, i, :, :, None] @ k[:, i, :, None]
            ys.append((state @ r[:, i, :, :, None]).squeeze(-1))
        y = torch.stack(ys, dim=1)
        y = self.ln_x(y.view(b * t, c)).view(b, t, c)
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * v).view(b, t, c)
        x = self.output(y * g)
        return x


def fft_conv(u: Tensor, k: Tensor, d: Tensor) -> Tensor:
    """A causal convolution as long as the input, by FFT, plus ``d * u``; channels first."""
    length = u.shape[-1]
    k_f = torch.fft.rfft(k, n=2 * length) / (2 * length)
    y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * k_f, n=2 * length, norm="forward")
    result: Tensor = y[..., :length] + u * d.unsqueeze(-1)
    return result


class HyenaOperator(nn.Module):
    """Three short convolutions, a gate, an implicit long convolution with its skip, a gate."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.short_filter = nn.Conv1d(3 * WIDTH, 3 * WIDTH, 3, padding=2, groups=3 * WIDTH)
        self.implicit = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("positions", timestep_embedding(torch.arange(TOKENS), 4))

    def forward(self, u: Tensor) -> Tensor:
        length = u.size(-2)
        uc = self.short_filter(self.in_proj(u).transpose(1, 2))[..., :length]
        x0, x1, v = uc.split(WIDTH, dim=1)
        k = self.implicit(self.positions).T * torch.exp(-0.3 * torch.arange(length))
        v = fft_conv(v * x1, k, self.bias)
        u = self.out_proj((v * x0).transpose(1, 2))
        return u


class S4D(nn.Module):
    """A diagonal state space as a long convolution, its skip ``D * u``, GELU, a gated layer."""

    def __init__(self, h: int = WIDTH, n: int = 4) -> None:
        super().__init__()
        self.D = nn.Parameter(torch.randn(h))
        self.C = nn.Parameter(torch.randn(h, n, 2) * 0.5**0.5)
        self.log_dt = nn.Parameter(torch.rand(h) * 2 - 3)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(h, n)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(n).float().repeat(h, 1))
        self.output_linear = nn.Sequential(nn.Conv1d(h, 2 * h, kernel_size=1), nn.GLU(dim=-2))

    def kernel(self, length: int) -> Tensor:
        a = torch.complex(-torch.exp(self.log_A_real), self.A_imag)
        dt_a = a * torch.exp(self.log_dt).unsqueeze(-1)
        powers = dt_a.unsqueeze(-1) * torch.arange(length)
        c = torch.view_as_complex(self.C) * (torch.exp(dt_a) - 1.0) / a
        return 2 * torch.einsum("hn,hnl->hl", c, torch.exp(powers)).real

    def forward(self, u: Tensor) -> Tensor:
        y = fft_conv(u, self.kernel(u.size(-1)), self.D)
        y = self.output_linear(F.gelu(y))
        result: Tensor = y
        return result


class S4Model(nn.Module):
    """S4's example: layers that work channels first, a norm behind each sum."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.s4_layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        self.dropouts = nn.ModuleList()
        for _ in range(n_layers):
            self.s4_layers.append(S4D())
            self.norms.append(nn.LayerNorm(WIDTH))
            self.dropouts.append(nn.Dropout(0.1))
        self.decoder = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x).transpose(-1, -2)
        for layer, norm, dropout in zip(self.s4_layers, self.norms, self.dropouts, strict=True):
            z = layer(x)
            x = dropout(z) + x
            x = norm(x.transpose(-1, -2)).transpose(-1, -2)
        x = x.transpose(-1, -2).mean(dim=1)
        x = self.decoder(x)
        return x


class MinGru(nn.Module):
    """The minimal GRU: neither gate nor candidate reads the state before."""

    def __init__(self) -> None:
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        hidden = torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid())
        gate = gate.sigmoid()
        prev = torch.zeros_like(hidden[:, 0])
        out = []
        for h, z in zip(hidden.unbind(1), gate.unbind(1), strict=True):
            prev = (1 - z) * prev + z * h
            out.append(prev)
        x = self.to_out(torch.stack(out, dim=1))
        return x


class MinLstm(nn.Module):
    """The minimal LSTM, in closed form: cumulative products and sums instead of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.i, self.h = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        f, i = torch.sigmoid(self.f(x)), torch.sigmoid(self.i(x))
        log_decay = torch.log(f / (f + i)).cumsum(1)
        weighted = (i / (f + i)) * self.h(x)
        h = torch.exp(log_decay) * torch.cumsum(weighted * torch.exp(-log_decay), dim=1)
        x = self.out(h)
        return x


class SpatialGatingUnit(nn.Module):
    """Half of the channels, normed and mixed over the tokens, gate the other half."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Conv1d(TOKENS, TOKENS, 1)
        nn.init.uniform_(self.proj.weight, -1e-3, 1e-3)
        nn.init.constant_(self.proj.bias, 1.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor, attended: Tensor | None = None) -> Tensor:
        res, gate = x.chunk(2, dim=-1)
        gate = self.proj(self.norm(gate))
        if attended is not None:
            gate = gate + attended
        result: Tensor = gate * res
        return result


class GmlpBlock(nn.Module):
    """gMLP's block; with ``tiny`` a small attention is added to the gate."""

    def __init__(self, tiny: int = 0, hidden: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.proj_in = nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU())
        self.sgu = SpatialGatingUnit(hidden // 2)
        self.proj_out = nn.Linear(hidden // 2, WIDTH)
        self.tiny = tiny
        if tiny:
            self.to_qkv = nn.Linear(WIDTH, 3 * tiny)
            self.to_out = nn.Linear(tiny, hidden // 2)

    def attended(self, x: Tensor) -> Tensor | None:
        if not self.tiny:
            return None
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        sim = torch.einsum("bid,bjd->bij", q, k) * self.tiny**-0.5
        out: Tensor = self.to_out(torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v))
        return out

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(x)
        gate = self.attended(x)
        x = self.proj_out(self.sgu(self.proj_in(x), gate))
        return x + shortcut


class CosineMixing(nn.Module):
    """The real part of a Fourier transform over tokens and channels, by constant matrices."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in (("t", TOKENS), ("d", WIDTH)):
            angle = 2 * math.pi * torch.outer(torch.arange(size), torch.arange(size)) / size
            self.register_buffer(f"cos_{name}", angle.cos() / size**0.5)
            self.register_buffer(f"sin_{name}", angle.sin() / size**0.5)

    def forward(self, x: Tensor) -> Tensor:
        get = self.get_buffer
        return get("cos_t") @ x @ get("cos_d") - get("sin_t") @ x @ get("sin_d")


class FnetLayer(nn.Module):
    """FNet's layer with norms spelled by ``var_mean``."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.ff = CosineMixing(), FeedForward()
        self.g = nn.Parameter(torch.ones(2, WIDTH))
        self.b = nn.Parameter(torch.zeros(2, WIDTH))

    def norm(self, x: Tensor, i: int) -> Tensor:
        var, mean = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
        return torch.addcmul(self.b[i], (x - mean) * (var + 1e-12).rsqrt(), self.g[i])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.mixing(x), 0)
        return self.norm(x + self.ff(x), 1)


# Speech, time series, tables


class ConformerConv(nn.Module):
    """Pointwise layer with a gate, depthwise convolution, batch norm, swish, pointwise layer."""

    def __init__(self, dim: int, kernel: int = 3, norm: bool = True) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(dim) if norm else None
        self.pointwise_conv1 = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise_conv = nn.Conv1d(dim, dim, kernel, padding="same", groups=dim, bias=False)
        self.batch_norm = nn.BatchNorm1d(dim)
        self.pointwise_conv2 = nn.Conv1d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(1, 2)
        x = F.glu(self.pointwise_conv1(x), dim=1)
        x = F.silu(self.batch_norm(self.depthwise_conv(x)))
        result: Tensor = self.pointwise_conv2(x).transpose(1, 2)
        return result


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, a norm on the stream."""

    def __init__(self, dim: int = WIDTH) -> None:
        super().__init__()
        self.ffn1 = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 32), nn.SiLU(), nn.Linear(32, dim)
        )
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.self_attn = nn.MultiheadAttention(dim, HEADS, batch_first=True)
        self.conv_module = ConformerConv(dim)
        self.ffn2 = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 32), nn.SiLU(), nn.Linear(32, dim)
        )
        self.final_layer_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.ffn1(x)
        x = x * 0.5 + residual
        residual = x
        x = self.self_attn_layer_norm(x)
        x, _ = self.self_attn(query=x, key=x, value=x, need_weights=False)
        x = x + residual
        residual = x
        x = residual + self.conv_module(x)
        residual = x
        x = self.ffn2(x)
        x = x * 0.5 + residual
        x = self.final_layer_norm(x)
        return x


class Rescale(nn.Module):
    """Squeezeformer's learned scale and bias, which stand where a norm was."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.bias


class SqueezeformerBlock(nn.Module):
    """Attention, feed-forward, convolution, feed-forward, each rescaled before, normed behind."""

    def __init__(self, dim: int = WIDTH) -> None:
        super().__init__()
        units = [Attention(), FeedForward(), ConformerConv(dim, norm=False), FeedForward()]
        self.units = nn.ModuleList(nn.Sequential(Rescale(dim), unit) for unit in units)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in units)

    def forward(self, x: Tensor) -> Tensor:
        for unit, norm in zip(self.units, self.norms, strict=True):
            x = norm(x + unit(x))
        return x


class Chomp1d(nn.Module):
    """Cuts the padding off the right end."""

    def __init__(self, chomp_size: int) -> None:
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions with normed weights; a 1 x 1 skip where widths differ."""

    def __init__(self, n_in: int, n_out: int, dilation: int, k: int = 2) -> None:
        super().__init__()
        pad = (k - 1) * dilation
        conv1 = weight_norm(nn.Conv1d(n_in, n_out, k, padding=pad, dilation=dilation))
        conv2 = weight_norm(nn.Conv1d(n_out, n_out, k, padding=pad, dilation=dilation))
        self.net = nn.Sequential(
            conv1, Chomp1d(pad), nn.ReLU(), nn.Dropout(0.1),
            conv2, Chomp1d(pad), nn.ReLU(), nn.Dropout(0.1),
        )  # fmt: skip
        self.downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        y: Tensor = self.relu(out + res)
        return y


class Tcn(nn.Module):
    """Four temporal blocks on the raw signal; two of them change the width."""

    def __init__(self, channels: Sequence[int] = (12, 12, 16, 16)) -> None:
        super().__init__()
        sizes = [4, *channels]
        self.network = nn.Sequential(
            *(TemporalBlock(sizes[i], sizes[i + 1], 2**i) for i in range(len(channels)))
        )
        self.linear = nn.Linear(channels[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.network(x)[:, :, -1])
        return x


class Cbhg(nn.Module):
    """Tacotron's encoder: a bank of convolutions, a residual, highway layers, a GRU."""

    def __init__(self, d: int = WIDTH, K: int = 3) -> None:
        super().__init__()
        self.prenet = nn.Sequential(nn.Embedding(VOCABULARY, d), nn.Linear(d, d), nn.ReLU())
        self.bank = nn.ModuleList(
            nn.Sequential(nn.Conv1d(d, d, k, padding="same"), nn.BatchNorm1d(d), nn.ReLU())
            for k in range(1, 2 * K, 2)
        )
        self.proj1 = nn.Sequential(nn.Conv1d(K * d, d, 3, padding=1), nn.BatchNorm1d(d), nn.ReLU())
        self.proj2 = nn.Sequential(nn.Conv1d(d, d, 3, padding=1), nn.BatchNorm1d(d))
        self.highways = nn.ModuleList(
            nn.ModuleDict({"H": nn.Linear(d, d), "T": nn.Linear(d, d)}) for _ in range(3)
        )
        self.gru = nn.GRU(d, d // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(d, 8)

    def forward(self, ids: Tensor) -> Tensor:
        inputs = self.prenet(ids)
        x = inputs.transpose(1, 2)
        x = torch.cat([conv(x) for conv in self.bank], dim=1)
        x = F.max_pool1d(x, 3, 1, 1)
        x = self.proj2(self.proj1(x)).transpose(1, 2)
        x = x + inputs
        for layer in self.highways:
            assert isinstance(layer, nn.ModuleDict)
            h, t = F.relu(layer["H"](x)), torch.sigmoid(layer["T"](x))
            x = h * t + x * (1.0 - t)
        out: Tensor = self.head(self.gru(x)[0])
        return out


class GatedResidualNetwork(nn.Module):
    """The temporal fusion Transformer's unit: two layers, a gated linear unit, add, norm."""

    def __init__(self, d_in: int, d: int, d_context: int) -> None:
        super().__init__()
        self.skip = nn.Linear(d_in, d) if d_in != d else None
        self.fc1, self.context = nn.Linear(d_in, d), nn.Linear(d_context, d, bias=False)
        self.fc2, self.glu = nn.Linear(d, d), nn.Linear(d, 2 * d)
        self.norm = nn.LayerNorm(d)

    def forward(self, a: Tensor, c: Tensor) -> Tensor:
        residual = a if self.skip is None else self.skip(a)
        x = F.elu(self.fc1(a) + self.context(c))
        x = F.glu(self.glu(F.dropout(self.fc2(x), 0.1, self.training)), dim=-1)
        x = self.norm(x + residual)
        result: Tensor = x
        return result


class GrnStack(nn.Module):
    """Four such units under one context; the first reads the raw input and projects it."""

    def __init__(self) -> None:
        super().__init__()
        self.grns = nn.ModuleList(
            GatedResidualNetwork(8 if i == 0 else WIDTH, WIDTH, 4) for i in range(4)
        )
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        for grn in self.grns:
            x = grn(x, context)
        x = self.out(x)
        return x


class NBeatsBlock(nn.Module):
    """Four layers, then coefficients of a polynomial basis for the past and the future."""

    basis: Tensor

    def __init__(self, backcast: int, forecast: int, degree: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(backcast, 24), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(24, 24), nn.ReLU()]
        self.fc = nn.Sequential(*layers)
        self.theta = nn.Linear(24, 2 * degree, bias=False)
        grid = torch.linspace(-1, forecast / backcast, backcast + forecast)
        self.register_buffer("basis", torch.stack([grid**p for p in range(degree)]))
        self.cut = backcast

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        past, future = self.theta(self.fc(x)).chunk(2, dim=-1)
        return past @ self.basis[:, : self.cut], future @ self.basis[:, self.cut :]


class NBeats(nn.Module):
    """Every block's backcast is subtracted from the series, its forecast summed up; both given."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NBeatsBlock(WIDTH, 4) for _ in range(blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        residuals = x.flip(dims=(1,))
        forecast = torch.zeros(len(x), 4)
        for block in self.blocks:
            backcast, block_forecast = block(residuals)
            residuals = residuals - backcast
            forecast = forecast + block_forecast
        return residuals, forecast


class TideBlock(nn.Module):
    """TiDE's residual block: two layers beside a linear skip, a norm behind."""

    def __init__(self, i: int, h: int, o: int) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o), nn.Dropout(0.1))
        self.skip = nn.Linear(i, o)
        self.layer_norm = nn.LayerNorm(o)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x) + self.skip(x)
        x = self.layer_norm(x)
        return x


class Tide(nn.Module):
    """Encoder and decoder of such blocks, and a linear layer from the past beside them all."""

    def __init__(self, horizon: int = 6) -> None:
        super().__init__()
        self.encoders = nn.Sequential(TideBlock(WIDTH, 24, 12), TideBlock(12, 24, 12))
        self.decoders = nn.Sequential(TideBlock(12, 24, 12), TideBlock(12, 24, horizon))
        self.lookback_skip = nn.Linear(WIDTH, horizon)

    def forward(self, past: Tensor) -> Tensor:
        decoded = self.decoders(self.encoders(past))
        out: Tensor = decoded + self.lookback_skip(past)
        return out


class TransposedBatchNorm(nn.Sequential):
    """Batch norm over the channels of a sequence."""

    def __init__(self, d: int) -> None:
        super().__init__(Permute(0, 2, 1), nn.BatchNorm1d(d), Permute(0, 2, 1))


class PatchTst(nn.Module):
    """Instance norm of the series, patches as tokens, batch norm behind each sum, denormed."""

    def __init__(self, patch: int = 4, depth: int = 3, horizon: int = 5) -> None:
        super().__init__()
        self.patch = patch
        self.W_P = nn.Linear(patch, WIDTH)
        self.W_pos = nn.Parameter(0.02 * torch.randn(4, WIDTH))
        self.attns = nn.ModuleList(Attention() for _ in range(depth))
        self.ffs = nn.ModuleList(FeedForward() for _ in range(depth))
        self.norms = nn.ModuleList(TransposedBatchNorm(WIDTH) for _ in range(2 * depth))
        self.head = nn.Linear(4 * WIDTH, horizon)

    def forward(self, z: Tensor) -> Tensor:
        b, c, _ = z.shape
        mean = z.mean(-1, keepdim=True)
        std = torch.sqrt(z.var(-1, keepdim=True, unbiased=False) + 1e-5)
        z = (z - mean) / std
        x = z.unfold(-1, self.patch, self.patch).reshape(b * c, 4, self.patch)
        x = F.dropout(self.W_P(x) + self.W_pos, 0.1, self.training)
        for i, (attn, ff) in enumerate(zip(self.attns, self.ffs, strict=True)):
            x = self.norms[2 * i](x + F.dropout(attn(x), 0.1, self.training))
            x = self.norms[2 * i + 1](x + F.dropout(ff(x), 0.1, self.training))
        y = self.head(x.flatten(1)).view(b, c, -1)
        y = y * std + mean
        out: Tensor = y
        return out


class ITransformerLayer(nn.Module):
    """An encoder layer whose feed-forward is two convolutions of size 1."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d, HEADS, batch_first=True)
        self.conv1, self.conv2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(2 * d, d, 1)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        new_x, _ = self.attention(x, x, x)
        x = x + new_x
        y = x = self.norm1(x)
        y = F.gelu(self.conv1(y.transpose(-1, 1)))
        y = self.conv2(y).transpose(-1, 1)
        x = self.norm2(x + y)
        return x


class ITransformer(nn.Module):
    """Each series is one token; the level and size of each are taken off and put on again."""

    def __init__(self, seq_len: int = 16, pred_len: int = 6) -> None:
        super().__init__()
        self.enc_embedding = nn.Linear(seq_len, WIDTH)
        self.layers = nn.ModuleList(ITransformerLayer(WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.projector = nn.Linear(WIDTH, pred_len)

    def forward(self, x_enc: Tensor) -> Tensor:
        means = x_enc.mean(2, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=2, keepdim=True, unbiased=False) + 1e-5)
        x_enc = x_enc / stdev
        enc_out = self.enc_embedding(x_enc)
        for layer in self.layers:
            enc_out = layer(enc_out)
        dec_out: Tensor = self.projector(self.norm(enc_out))
        dec_out = dec_out * stdev
        dec_out = dec_out + means
        return dec_out


# Vision and diffusion Transformers, sets


def window_partition(x: Tensor, size: int) -> Tensor:
    """Windows of an image that has its channels last."""
    B, H, W, C = x.shape
    x = x.view(B, H // size, size, W // size, size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, C)


def window_reverse(windows: Tensor, size: int, H: int, W: int) -> Tensor:
    """The image again."""
    B = windows.shape[0] // (H * W // size // size)
    x = windows.view(B, H // size, W // size, size, size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class BiasedAttention(nn.Module):
    """Attention within windows, with a table of relative positions."""

    relative_index: Tensor

    def __init__(self, dim: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(0.02 * torch.randn((2 * size - 1) ** 2, heads))
        grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"))
        flat = grid.flatten(1)
        rel = (flat[:, :, None] - flat[:, None, :]) + size - 1
        self.register_buffer("relative_index", rel[0] * (2 * size - 1) + rel[1])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.relative_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = (attn + bias.unsqueeze(0)).softmax(dim=-1)
        x = self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
        return x


class SwinBlock(nn.Module):
    """Swin's block: windows, shifted in every second block."""

    def __init__(self, dim: int, res: int, shift: int, size: int = 2) -> None:
        super().__init__()
        self.res, self.shift, self.size = res, shift, size
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = BiasedAttention(dim, 2, size)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        H = W = self.res
        B, L, C = x.shape
        shortcut = x
        x = self.norm1(x).view(B, H, W, C)
        if self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = window_reverse(self.attn(window_partition(x, self.size)), self.size, H, W)
        if self.shift:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        x = shortcut + x.view(B, L, C)
        x = x + self.mlp(self.norm2(x))
        return x


class PatchMerging(nn.Module):
    """Four neighbours become one token of twice the width: a norm and a linear layer."""

    def __init__(self, res: int, dim: int) -> None:
        super().__init__()
        self.res = res
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, _, C = x.shape
        x = x.view(B, self.res, self.res, C)
        quarters = [x[:, i::2, j::2, :] for j in (0, 1) for i in (0, 1)]
        x = self.reduction(self.norm(torch.cat(quarters, -1).view(B, -1, 4 * C)))
        return x


def swin() -> nn.Module:
    """Two stages of two blocks with a patch merging between them."""
    patches = nn.Sequential(nn.Conv2d(3, 12, 2, 2), nn.Flatten(2), Permute(0, 2, 1))
    first = [SwinBlock(12, 8, 0), SwinBlock(12, 8, 1)]
    second = [SwinBlock(24, 4, 0), SwinBlock(24, 4, 1)]
    end = nn.Sequential(nn.LayerNorm(24), Permute(0, 2, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return nn.Sequential(
        patches, nn.LayerNorm(12), *first, PatchMerging(8, 12), *second, end, nn.Linear(24, 5)
    )


class SpatialReduction(nn.Module):
    """PVT's attention: keys and values from a strided convolution with a norm behind it."""

    def __init__(self, dim: int, res: int, sr: int) -> None:
        super().__init__()
        self.res = res
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.sr, self.norm = nn.Conv2d(dim, dim, sr, sr), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q = self.q(x).reshape(B, N, 2, C // 2).permute(0, 2, 1, 3)
        x_ = x.permute(0, 2, 1).reshape(B, C, self.res, self.res)
        x_ = self.norm(self.sr(x_).reshape(B, C, -1).permute(0, 2, 1))
        k, v = self.kv(x_).reshape(B, -1, 2, 2, C // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(y)
        return x


class ToSequence(nn.Module):
    """Patches by convolution, flattened, with positions."""

    def __init__(self, dim: int, patch: int, places: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn(places, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).mT + self.pos
        return x


def pvt() -> nn.Module:
    """Three pre-norm blocks with spatial reduction at one resolution."""
    blocks = [pre_norm(SpatialReduction(WIDTH, 4, 2), FeedForward()) for _ in range(3)]
    return nn.Sequential(ToSequence(WIDTH, 4, 16), *blocks, nn.LayerNorm(WIDTH), Pooled())


class MaxVitConv(nn.Module):
    """MaxViT's convolution: a norm first; where the size halves, the skip pools and projects."""

    def __init__(self, i: int, o: int, stride: int, last_norm: bool = False) -> None:
        super().__init__()
        h = 2 * o
        layers: list[nn.Module] = [nn.BatchNorm2d(i), conv_norm(i, h, 1), nn.GELU()]
        layers += [nn.Conv2d(h, h, 3, stride, 1, groups=h, bias=False), nn.BatchNorm2d(h)]
        layers += [nn.GELU(), SqueezeExcite(h), nn.Conv2d(h, o, 1)]
        if last_norm:
            layers.append(nn.BatchNorm2d(o))
        self.layers = nn.Sequential(*layers)
        self.proj: nn.Module = nn.Identity()
        if stride > 1 or i != o:
            self.proj = nn.Sequential(nn.AvgPool2d(3, stride, 1), nn.Conv2d(i, o, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(x) + self.layers(x)
        return y


class PartitionAttention(nn.Module):
    """Attention in blocks or over a grid, then a feed-forward, channels first outside."""

    def __init__(self, dim: int, grid: bool, size: int = 2) -> None:
        super().__init__()
        self.grid, self.size = grid, size
        self.layers = pre_norm(BiasedAttention(dim, 2, size), FeedForward(dim, 2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        p = self.size
        if self.grid:
            x = x.reshape(B, C, p, H // p, p, W // p).permute(0, 3, 5, 2, 4, 1)
        else:
            x = x.reshape(B, C, H // p, p, W // p, p).permute(0, 2, 4, 3, 5, 1)
        x = self.layers(x.reshape(-1, p * p, C))
        x = x.reshape(B, H // p, W // p, p, p, C)
        x = x.permute(0, 5, 3, 1, 4, 2) if self.grid else x.permute(0, 5, 1, 3, 2, 4)
        return x.reshape(B, C, H, W)


def maxvit() -> nn.Module:
    """Two MaxViT blocks; the first halves the size."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1)]
    for stride in (2, 1):
        layers.append(MaxVitConv(16, 16, stride))
        layers += [PartitionAttention(16, grid=False), PartitionAttention(16, grid=True)]
    return nn.Sequential(*layers, pooled_head(16))


class CoAtTransformer(nn.Module):
    """Attention over all places; with ``down`` both its input and its skip are pooled first."""

    def __init__(self, i: int, o: int, size: int, down: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(i), nn.LayerNorm(o)
        self.widen = nn.Linear(i, o) if i != o else nn.Identity()
        self.attn, self.ff = BiasedAttention(o, 2, size), FeedForward(o, 2 * o)
        self.proj = nn.Conv2d(i, o, 1, bias=False) if down else None

    @staticmethod
    def tokens(x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.proj is not None:
            normed = self.norm1(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            pooled = F.max_pool2d(normed, 3, 2, 1)
            skip = self.proj(F.max_pool2d(x, 3, 2, 1))
            y = self.tokens(skip) + self.attn(self.widen(self.tokens(pooled)))
            side = skip.shape[-1]
        else:
            y = self.tokens(x)
            side = x.shape[-1]
            y = y + self.attn(self.norm1(y))
        y = y + self.ff(self.norm2(y))
        out: Tensor = y.transpose(1, 2).unflatten(2, (side, side))
        return out


def coatnet() -> nn.Module:
    """A stage of convolutions, then a stage of attention; each halves the size first."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 1, 1),
        MaxVitConv(12, 16, 2, last_norm=True),
        MaxVitConv(16, 16, 1, last_norm=True),
        CoAtTransformer(16, 24, 4, down=True),
        CoAtTransformer(24, 24, 4, down=False),
        pooled_head(24),
    )


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """DiT's modulation."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    """Adaptive norms whose modulation starts at zero, gates on both branches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.mlp = FeedForward(dim, 2 * dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        for p in self.adaLN_modulation.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(
            c
        ).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


class DiT(nn.Module):
    """Patches, a condition from time and class, blocks, a modulated last layer, unpatchified."""

    pos_embed: Tensor

    def __init__(self, dim: int = WIDTH, depth: int = 3, patch: int = 4) -> None:
        super().__init__()
        self.patch = patch
        self.x_embedder = nn.Conv2d(3, dim, patch, patch)
        self.register_buffer("pos_embed", timestep_embedding(torch.arange(16), dim))
        self.t_embedder = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.y_embedder = nn.Embedding(6, dim)
        self.blocks = nn.ModuleList([DiTBlock(dim) for _ in range(depth)])
        self.norm_final = nn.LayerNorm(dim, elementwise_affine=False)
        self.ada_final = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.linear = nn.Linear(dim, patch * patch * 3)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.t_embedder(timestep_embedding(t, WIDTH)) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada_final(c).chunk(2, dim=1)
        x = self.linear(modulate(self.norm_final(x), shift, scale))
        x = x.reshape(len(x), 4, 4, self.patch, self.patch, 3)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), 3, 16, 16)


class JointBlock(nn.Module):
    """MMDiT's block: image and text have their own weights and attend over both together.

    In the last block (``pre_only``) the text only gives keys and values.
    """

    def __init__(self, dim: int, pre_only: bool) -> None:
        super().__init__()
        self.pre_only = pre_only
        kinds = ("image", "text")
        self.ada = nn.ModuleDict({k: nn.Linear(dim, 6 * dim) for k in kinds})
        self.qkv = nn.ModuleDict({k: nn.Linear(dim, 3 * dim) for k in kinds})
        self.q_norm = nn.ModuleDict({k: nn.RMSNorm(dim // HEADS) for k in kinds})
        self.k_norm = nn.ModuleDict({k: nn.RMSNorm(dim // HEADS) for k in kinds})
        updated = kinds[:1] if pre_only else kinds
        self.proj = nn.ModuleDict({k: nn.Linear(dim, dim) for k in updated})
        self.mlp = nn.ModuleDict({k: FeedForward(dim, 2 * dim) for k in updated})

    def pre(self, kind: str, x: Tensor, c: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        mods = self.ada[kind](F.silu(c)).chunk(6, dim=-1)
        h = modulate(F.layer_norm(x, x.shape[-1:]), mods[0], mods[1])
        q, k, v = self.qkv[kind](h).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return [self.q_norm[kind](q), self.k_norm[kind](k), v], mods

    def post(self, kind: str, x: Tensor, a: Tensor, mods: tuple[Tensor, ...]) -> Tensor:
        x = x + mods[2].unsqueeze(1) * self.proj[kind](a)
        h = modulate(F.layer_norm(x, x.shape[-1:]), mods[3], mods[4])
        result: Tensor = x + mods[5].unsqueeze(1) * self.mlp[kind](h)
        return result

    def forward(self, x: Tensor, text: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        image_qkv, image_mods = self.pre("image", x, c)
        text_qkv, text_mods = self.pre("text", text, c)
        q, k, v = (torch.cat(p, dim=2) for p in zip(image_qkv, text_qkv, strict=True))
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        a_image, a_text = torch.split(a, [x.shape[1], text.shape[1]], dim=1)
        x = self.post("image", x, a_image, image_mods)
        if not self.pre_only:
            text = self.post("text", text, a_text, text_mods)
        return x, text


class MMDiT(nn.Module):
    """Three joint blocks; the head reads the image alone."""

    def __init__(self, dim: int = WIDTH, depth: int = 3) -> None:
        super().__init__()
        self.image_in = ToSequence(dim, 4, 16)
        self.text_in = nn.Embedding(VOCABULARY, dim)
        self.blocks = nn.ModuleList(JointBlock(dim, i == depth - 1) for i in range(depth))
        self.final = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 48))

    def forward(self, image: Tensor, text: Tensor, t: Tensor) -> Tensor:
        c = timestep_embedding(t, WIDTH)
        x, y = self.image_in(image), self.text_in(text)
        for block in self.blocks:
            x, y = block(x, y, c)
        x = self.final(x)
        result: Tensor = x
        return result


class UViT(nn.Module):
    """A Transformer whose early states are concatenated to late ones and mixed by a layer."""

    def __init__(self, dim: int = WIDTH) -> None:
        super().__init__()
        self.embed = ToSequence(dim, 4, 16)
        self.in_blocks = nn.ModuleList(pre_norm(Attention(), FeedForward()) for _ in range(2))
        self.mid_block = pre_norm(Attention(), FeedForward())
        self.skip_linears = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(2))
        self.out_blocks = nn.ModuleList(pre_norm(Attention(), FeedForward()) for _ in range(2))
        self.decoder_pred = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 48))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        skips: deque[Tensor] = deque()
        for blk in self.in_blocks:
            x = blk(x)
            skips.append(x)
        x = self.mid_block(x)
        for linear, blk in zip(self.skip_linears, self.out_blocks, strict=True):
            x = blk(linear(torch.cat([x, skips.pop()], dim=-1)))
        x = self.decoder_pred(x)
        return x


class Attend(nn.Module):
    """Attention from one set of vectors to another."""

    def __init__(self, d_q: int, d_kv: int) -> None:
        super().__init__()
        self.norm_q, self.norm_kv = nn.LayerNorm(d_q), nn.LayerNorm(d_kv)
        self.to_q = nn.Linear(d_q, d_q, bias=False)
        self.to_kv = nn.Linear(d_kv, 2 * d_q, bias=False)
        self.to_out = nn.Linear(d_q, d_q)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        x = self.norm_q(x)
        q = self.to_q(x)
        k, v = self.to_kv(x if context is None else self.norm_kv(context)).chunk(2, dim=-1)
        sim = torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5
        x = self.to_out(torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v))
        return x


class PerceiverIO(nn.Module):
    """Latents ask the input once, then themselves; output queries ask them, without a skip."""

    def __init__(self, d: int = WIDTH, latents: int = 4, queries: int = 3) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, d))
        self.cross, self.cross_ff = Attend(d, 8), PreNorm(FeedForward())
        self.layers = nn.ModuleList(
            nn.ModuleList([Attend(d, d), PreNorm(FeedForward())]) for _ in range(2)
        )
        self.queries = nn.Parameter(torch.randn(queries, d))
        self.decoder, self.decoder_ff = Attend(d, d), PreNorm(FeedForward())
        self.to_logits = nn.Linear(d, 5)

    def forward(self, data: Tensor) -> Tensor:
        x = self.latents.unsqueeze(0).repeat(len(data), 1, 1)
        x = self.cross(x, data) + x
        x = self.cross_ff(x) + x
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            attn, ff = layer
            x = attn(x) + x
            x = ff(x) + x
        y = self.decoder(self.queries.expand(len(data), -1, -1), context=x)
        y = y + self.decoder_ff(y)
        out: Tensor = self.to_logits(y)
        return out


class Mab(nn.Module):
    """The set Transformer's block: the projected query is the skip of the attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.fc_q, self.fc_k, self.fc_v = (nn.Linear(dim, dim) for _ in range(3))
        self.ln0, self.ln1 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fc_o = nn.Linear(dim, dim)

    def forward(self, Q: Tensor, K: Tensor) -> Tensor:
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)
        d = self.dim // self.heads
        Q_, K_, V_ = (torch.cat(torch.split(t, d, 2), 0) for t in (Q, K, V))
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dim), 2)
        O = torch.cat(torch.chunk(Q_ + A.bmm(V_), self.heads, 0), 2)
        O = self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        O = self.ln1(O)
        result: Tensor = O
        return result


class SetTransformer(nn.Module):
    """Two self-attention blocks on a set, the mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(WIDTH, WIDTH)
        self.sab1, self.sab2 = Mab(WIDTH, HEADS), Mab(WIDTH, HEADS)
        self.dec = Pooled()

    def forward(self, X: Tensor) -> Tensor:
        X = self.enc(X)
        X = self.sab1(X, X)
        X = self.sab2(X, X)
        X = self.dec(X)
        return X


class TriangleMultiplication(nn.Module):
    """AlphaFold's update of pairs along triangles, with gates and a norm before the last layer."""

    def __init__(self, c: int, outgoing: bool, hidden: int = 8) -> None:
        super().__init__()
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.layer_norm_in, self.layer_norm_out = nn.LayerNorm(c), nn.LayerNorm(hidden)
        self.ab_p, self.ab_g = nn.Linear(c, 2 * hidden), nn.Linear(c, 2 * hidden)
        self.g, self.z = nn.Linear(c, c), nn.Linear(hidden, c)

    def forward(self, z: Tensor) -> Tensor:
        z = self.layer_norm_in(z)
        a, b = (self.ab_p(z) * self.ab_g(z).sigmoid()).chunk(2, dim=-1)
        x = self.layer_norm_out(torch.einsum(self.equation, a, b))
        result: Tensor = torch.sigmoid(self.g(z)) * self.z(x)
        return result


class PairStack(nn.Module):
    """Triangle updates and a transition on a pair representation, alone."""

    def __init__(self, c: int = 12, depth: int = 2) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, c), nn.Linear(WIDTH, c)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(TriangleMultiplication(c, outgoing=True))
            self.layers.append(TriangleMultiplication(c, outgoing=False))
            self.layers.append(nn.Sequential(nn.LayerNorm(c), FeedForward(c, 2 * c)))
        self.distogram = nn.Linear(c, 6)

    def forward(self, s: Tensor) -> Tensor:
        z = self.left(s)[:, :, None] + self.right(s)[:, None, :]
        for layer in self.layers:
            z = z + F.dropout(layer(z), 0.1, self.training)
        out: Tensor = self.distogram(z + z.transpose(1, 2))
        return out


class MsaAttention(nn.Module):
    """Gated attention along rows, with a bias from the pairs, or along columns."""

    def __init__(self, c_m: int, c_z: int = 0, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(c_m)
        self.qkv, self.gate, self.out = (
            nn.Linear(c_m, 3 * c_m),
            nn.Linear(c_m, c_m),
            nn.Linear(c_m, c_m),
        )
        self.bias = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, heads)) if c_z else None

    def forward(self, m: Tensor, z: Tensor | None = None) -> Tensor:
        m = self.norm(m)
        q, k, v = self.qkv(m).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.bias is not None:
            scores = scores + self.bias(z).permute(0, 3, 1, 2).unsqueeze(1)
        y = (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)
        m = self.out(torch.sigmoid(self.gate(m)) * y)
        return m


class OuterProductMean(nn.Module):
    """From the alignment to the pairs."""

    def __init__(self, c_m: int, c_z: int, hidden: int = 4) -> None:
        super().__init__()
        self.norm, self.ab = nn.LayerNorm(c_m), nn.Linear(c_m, 2 * hidden)
        self.out = nn.Linear(hidden * hidden, c_z)

    def forward(self, m: Tensor) -> Tensor:
        a, b = self.ab(self.norm(m)).chunk(2, dim=-1)
        outer = torch.einsum("bsic,bsjd->bijcd", a, b) / m.shape[1]
        m = self.out(outer.flatten(3))
        return m


class EvoformerBlock(nn.Module):
    """Rows with pair bias, columns, transition; outer product, triangles, transition."""

    def __init__(self, c_m: int, c_z: int) -> None:
        super().__init__()
        self.row, self.col = MsaAttention(c_m, c_z), MsaAttention(c_m)
        self.msa_transition = nn.Sequential(nn.LayerNorm(c_m), FeedForward(c_m, 2 * c_m))
        self.opm = OuterProductMean(c_m, c_z)
        self.tri_out = TriangleMultiplication(c_z, outgoing=True)
        self.tri_in = TriangleMultiplication(c_z, outgoing=False)
        self.pair_transition = nn.Sequential(nn.LayerNorm(c_z), FeedForward(c_z, 2 * c_z))

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.row(m, z)
        m = m + self.col(m.transpose(1, 2)).transpose(1, 2)
        m = m + self.msa_transition(m)
        z = z + self.opm(m)
        z = z + self.tri_out(z)
        z = z + self.tri_in(z)
        z = z + self.pair_transition(z)
        return m, z


class Evoformer(nn.Module):
    """Two such blocks; both representations are given."""

    def __init__(self, c_m: int = 12, c_z: int = 8) -> None:
        super().__init__()
        self.msa_in, self.pair_in = nn.Linear(WIDTH, c_m), nn.Linear(4, c_z)
        self.blocks = nn.ModuleList(EvoformerBlock(c_m, c_z) for _ in range(2))
        self.msa_head, self.pair_head = nn.Linear(c_m, 6), nn.Linear(c_z, 6)

    def forward(self, msa: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        m, z = self.msa_in(msa), self.pair_in(pair)
        for block in self.blocks:
            m, z = block(m, z)
        return self.msa_head(m), self.pair_head(z)


# Graphs, points, fields


class Edges(NamedTuple):
    """A graph: where its edges begin and end."""

    src: Tensor
    dst: Tensor


RING = Edges(torch.tensor([0, 1, 1, 2, 3, 4, 5, 5]), torch.tensor([1, 0, 2, 3, 4, 5, 0, 3]))


class GcnResPlus(nn.Module):
    """Norm, ReLU, graph convolution with a normalised adjacency, add."""

    adj: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.lin = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        a = torch.eye(TOKENS)
        a[RING.dst, RING.src] = 1.0
        d = a.sum(1).rsqrt()
        self.register_buffer("adj", d[:, None] * a * d)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.adj @ self.lin(self.ln(x).relu())
        return result


class GinLayer(nn.Module):
    """Isomorphism: itself times ``1 + eps`` plus its neighbours, a network, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.nn = nn.Sequential(
            nn.Linear(WIDTH, 32), Permute(0, 2, 1), nn.BatchNorm1d(32), Permute(0, 2, 1), nn.ReLU(),
            nn.Linear(32, WIDTH),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        agg = torch.zeros_like(x).index_add_(1, RING.dst, x[:, RING.src])
        result: Tensor = x + self.nn((1 + self.eps) * x + agg)
        return result


class GatLayer(nn.Module):
    """Attention over the edges, softmax by sums over targets, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Linear(WIDTH, WIDTH, bias=False)
        self.att_src = nn.Parameter(0.3 * torch.randn(HEADS, WIDTH // HEADS))
        self.att_dst = nn.Parameter(0.3 * torch.randn(HEADS, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        h = self.W(x).view(b, n, HEADS, -1)
        a_src, a_dst = (h * self.att_src).sum(-1), (h * self.att_dst).sum(-1)
        e = F.leaky_relu(a_src[:, RING.src] + a_dst[:, RING.dst], 0.2).exp()
        norm = torch.zeros(b, n, HEADS).index_add(1, RING.dst, e)
        alpha = e / (norm[:, RING.dst] + 1e-9)
        out = torch.zeros_like(h).index_add(1, RING.dst, alpha.unsqueeze(-1) * h[:, RING.src])
        return x + F.elu(out.flatten(2))


class GraphTransformerLayer(nn.Module):
    """Nodes and edges are both updated by one attention; batch norm behind every sum."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.Q, self.K, self.V, self.E = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.O_h, self.O_e = nn.Linear(d, d), nn.Linear(d, d)
        self.ffn_h, self.ffn_e = FeedForward(d, 2 * d), FeedForward(d, 2 * d)
        self.bn = nn.ModuleList(nn.BatchNorm1d(d) for _ in range(4))

    def norm(self, i: int, x: Tensor) -> Tensor:
        result: Tensor = self.bn[i](x.flatten(0, -2)).view_as(x)
        return result

    def forward(self, h: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        score = self.K(h)[:, RING.src] * self.Q(h)[:, RING.dst] / math.sqrt(WIDTH) * self.E(e)
        w = torch.exp(score.sum(-1, keepdim=True).clamp(-5, 5))
        wv = torch.zeros_like(h).index_add(1, RING.dst, w * self.V(h)[:, RING.src])
        z = torch.zeros(*h.shape[:2], 1).index_add(1, RING.dst, w)
        h = self.norm(0, h + self.O_h(wv / (z + 1e-6)))
        e = self.norm(1, e + self.O_e(score))
        h = self.norm(2, h + self.ffn_h(h))
        e = self.norm(3, e + self.ffn_e(e))
        return h, e


class GraphTransformer(nn.Module):
    """Two such layers; a head reads the nodes and another the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_h, self.embed_e = nn.Linear(WIDTH, WIDTH), nn.Linear(5, WIDTH)
        self.layers = nn.ModuleList(GraphTransformerLayer() for _ in range(2))
        self.head_h, self.head_e = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        h, e = self.embed_h(nodes), self.embed_e(edges)
        for layer in self.layers:
            h, e = layer(h, e)
        return self.head_h(h), self.head_e(e)


class Egcl(nn.Module):
    """An equivariant layer: messages move the coordinates and update the features."""

    def __init__(self, nf: int) -> None:
        super().__init__()
        act = nn.SiLU()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * nf + 1, nf), act, nn.Linear(nf, nf), act)
        self.node_mlp = nn.Sequential(nn.Linear(2 * nf, nf), act, nn.Linear(nf, nf))
        self.coord_mlp = nn.Sequential(nn.Linear(nf, nf), act, nn.Linear(nf, 1, bias=False))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        row, col = RING.src, RING.dst
        diff = x[row] - x[col]
        m = self.edge_mlp(torch.cat([h[row], h[col], diff.square().sum(1, keepdim=True)], dim=1))
        move = torch.zeros_like(x).index_add(0, row, diff * self.coord_mlp(m))
        x = x + move / 2
        agg = torch.zeros(len(h), m.size(1)).index_add(0, row, m)
        h = h + self.node_mlp(torch.cat([h, agg], dim=1))
        return h, x


class Egnn(nn.Module):
    """Three such layers on one graph; features and coordinates are both given."""

    def __init__(self, nf: int = WIDTH) -> None:
        super().__init__()
        self.embedding_in, self.embedding_out = nn.Linear(5, nf), nn.Linear(nf, 2)
        for i in range(3):
            self.add_module(f"gcl_{i}", Egcl(nf))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embedding_in(h)
        for i in range(3):
            h, x = self._modules[f"gcl_{i}"](h, x)  # type: ignore[misc]
        return self.embedding_out(h), x


class GatedGraph(nn.Module):
    """Messages go into a GRU cell whose state is the node; one cell, four rounds."""

    def __init__(self, rounds: int = 4) -> None:
        super().__init__()
        self.inp, self.msg = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cell, self.out = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for _ in range(self.rounds):
            m = torch.zeros_like(h).index_add(0, RING.dst, self.msg(h)[RING.src])
            h = self.cell(m, h)
        h = self.out(h)
        out: Tensor = h
        return out


class TNet(nn.Module):
    """A matrix for each cloud, as a deviation from the identity."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.conv, self.bn = nn.Conv1d(k, 16, 1), nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, k * k)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x))).max(2)[0]
        x = self.fc(x).view(-1, self.k, self.k)
        return x + torch.eye(self.k)


class PointNet(nn.Module):
    """PointNet: clouds turned by a matrix of their own, layers for each point, the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(16)
        self.conv1 = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.conv2 = nn.Sequential(nn.Conv1d(16, 32, 1), nn.BatchNorm1d(32))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.bmm(x.transpose(2, 1), self.stn(x)).transpose(2, 1)
        x = self.conv1(x)
        x = torch.bmm(x.transpose(2, 1), self.fstn(x)).transpose(2, 1)
        x = self.head(torch.max(self.conv2(x), 2)[0])
        return F.log_softmax(x, dim=1)


class DeepSets(nn.Module):
    """A network for each element, the sum, a network for the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(WIDTH, 24), nn.ELU(), nn.Linear(24, 24), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(24, 24), nn.ELU(), nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.rho(self.phi(x).sum(dim=1)).squeeze(-1)
        return x


class NeRF(nn.Module):
    """Points in Fourier features; they are concatenated again before the fifth layer."""

    def __init__(self, freqs: int = 4, w: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.freqs = freqs
        ch, self.skips = 3 + 6 * freqs, (3,)
        self.pts_linears = nn.ModuleList(
            [nn.Linear(ch, w)]
            + [nn.Linear(w + ch if i in self.skips else w, w) for i in range(depth - 1)]
        )
        self.alpha, self.feature = nn.Linear(w, 1), nn.Linear(w, w)
        self.views, self.rgb = nn.Linear(w + 3, w // 2), nn.Linear(w // 2, 3)

    def forward(self, pts: Tensor, dirs: Tensor) -> Tensor:
        bands = [pts]
        for i in range(self.freqs):
            bands += [torch.sin(2.0**i * pts), torch.cos(2.0**i * pts)]
        inputs = h = torch.cat(bands, -1)
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(h))
            if i in self.skips:
                h = torch.cat([inputs, h], -1)
        view = F.relu(self.views(torch.cat([self.feature(h), dirs], -1)))
        return torch.cat([self.rgb(view), self.alpha(h)], -1)


class SineLayer(nn.Module):
    """SIREN's layer."""

    def __init__(self, i: int, o: int, first: bool = False, omega: float = 30.0) -> None:
        super().__init__()
        self.omega, self.linear = omega, nn.Linear(i, o)
        bound = 1 / i if first else math.sqrt(6 / i) / omega
        with torch.no_grad():
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * self.linear(x))


class SpectralConv1d(nn.Module):
    """Complex weights on the lowest frequencies."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        x_ft = torch.fft.rfft(x)
        out_ft = torch.zeros_like(x_ft)
        out_ft[..., : self.modes] = torch.einsum(
            "bix,iox->box", x_ft[..., : self.modes], torch.view_as_complex(self.weight)
        )
        result: Tensor = torch.fft.irfft(out_ft, n=x.size(-1))
        return result


class Fno(nn.Module):
    """A Fourier neural operator: each layer is a spectral and a pointwise layer, summed.

    With ``residual`` the layer's input is added as well.
    """

    def __init__(self, residual: bool, width: int = 12, modes: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.fc0 = nn.Linear(2, width)
        self.convs = nn.ModuleList(SpectralConv1d(width, modes) for _ in range(depth))
        self.ws = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.fc1, self.fc2 = nn.Linear(width, 24), nn.Linear(24, 1)
        self.residual = residual

    def forward(self, a: Tensor) -> Tensor:
        grid = torch.linspace(0, 1, a.size(1)).repeat(len(a), 1)
        x = self.fc0(torch.stack([a, grid], dim=-1)).permute(0, 2, 1)
        for conv, w in zip(self.convs, self.ws, strict=True):
            y = F.gelu(conv(x) + w(x))
            x = x + y if self.residual else y
        out: Tensor = self.fc2(F.gelu(self.fc1(x.permute(0, 2, 1))))
        return out


class DeepONet(nn.Module):
    """A network for the function and one for the place; their inner product."""

    def __init__(self, p: int = 12) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, p))
        self.trunk = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, p), nn.Tanh())
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bp,qp->bq", self.branch(u), self.trunk(y)) + self.b


class OdeFunc(nn.Module):
    """The right-hand side, with the time as one more input."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d + 1, 32), nn.Tanh(), nn.Linear(32, d))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        y = self.net(torch.cat([y, t.expand(len(y), 1)], dim=-1))
        return y


def euler_step(f: nn.Module, t: Tensor, dt: Tensor, y: Tensor) -> Tensor:
    """One step of Euler's method."""
    dy: Tensor = f(t, y)
    return y + dt * dy


def midpoint_step(f: nn.Module, t: Tensor, dt: Tensor, y: Tensor) -> Tensor:
    """One step of the midpoint method."""
    half_dt = 0.5 * dt
    y_mid = y + f(t, y) * half_dt
    result: Tensor = y + dt * f(t + half_dt, y_mid)
    return result


class NeuralOde(nn.Module):
    """A tied right-hand side integrated over given times."""

    times: Tensor

    def __init__(self, step: Callable[..., Tensor], n: int = 5) -> None:
        super().__init__()
        self.encoder, self.func = nn.Linear(WIDTH, 12), OdeFunc(12)
        self.decoder = nn.Linear(12, 3)
        self.step = step
        self.register_buffer("times", torch.linspace(0, 1, n))

    def forward(self, x: Tensor) -> Tensor:
        y = self.encoder(x)
        for t0, t1 in zip(self.times[:-1], self.times[1:], strict=True):
            y = self.step(self.func, t0, t1 - t0, y)
        out: Tensor = self.decoder(y)
        return out


class Equilibrium(nn.Module):
    """``z = tanh(W z + U x)`` iterated six times from zero: the projected input comes in again.

    From the second round on the input is added to what was computed from it, so each such sum
    stands inside the branch of the next.
    """

    def __init__(self, rounds: int = 6) -> None:
        super().__init__()
        self.U, self.W = nn.Linear(WIDTH, 12), nn.Linear(12, 12, bias=False)
        self.out = nn.Linear(12, 5)
        self.rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        injected = self.U(x)
        z = torch.tanh(injected)
        for _ in range(self.rounds - 1):
            z = torch.tanh(self.W(z) + injected)
        z = self.out(z)
        out: Tensor = z
        return out


class KanLayer(nn.Module):
    """Splines on every edge, as a linear layer of B-spline values, and a SiLU layer beside it."""

    knots: Tensor

    def __init__(self, i: int, o: int, grid: int = 4, order: int = 3) -> None:
        super().__init__()
        self.order = order
        self.base = nn.Parameter(torch.randn(o, i) / math.sqrt(i))
        self.spline = nn.Parameter(0.1 * torch.randn(o, i, grid + order))
        self.register_buffer("knots", torch.arange(-order, grid + order + 1) * (2 / grid) - 1)

    def b_splines(self, x: Tensor) -> Tensor:
        x, g = x.unsqueeze(-1), self.knots
        bases = ((x >= g[:-1]) & (x < g[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)]) * bases[..., :-1]
            right = (g[k + 1 :] - x) / (g[k + 1 :] - g[1:-k]) * bases[..., 1:]
            bases = left + right
        return bases

    def forward(self, x: Tensor) -> Tensor:
        base_output = F.linear(F.silu(x), self.base)
        spline_output = F.linear(self.b_splines(x).flatten(1), self.spline.flatten(1))
        return base_output + spline_output


# Pairs of networks, generative models, recurrent models, the rest


class Tower(nn.Module):
    """A pre-norm Transformer after any embedding; the first token or the mean is its feature."""

    def __init__(self, embed: nn.Module, depth: int, causal: bool, first: bool) -> None:
        super().__init__()
        self.embed, self.first = embed, first
        self.blocks = pre_norm(
            *(m for _ in range(depth) for m in (Attention(causal), FeedForward()))
        )
        self.ln, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln(self.blocks(self.embed(x)))
        x = self.proj(x[:, 0] if self.first else x.mean(1))
        return F.normalize(x, dim=-1)


class ClipPair(nn.Module):
    """An image tower and a text tower that meet in a matrix of similarities."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = Tower(ToSequence(WIDTH, 4, 16), 2, causal=False, first=False)
        self.text = Tower(nn.Embedding(VOCABULARY, WIDTH), 3, causal=True, first=True)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logit_scale.exp() * self.visual(image) @ self.text(text).t()
        return logits, logits.t()


class ResMlpBlock(nn.Module):
    """Linear, batch norm, ReLU, linear, batch norm, the input, ReLU: a skip every two layers."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.lin1, self.bn1 = nn.Linear(d, d, bias=False), nn.BatchNorm1d(d)
        self.lin2, self.bn2 = nn.Linear(d, d, bias=False), nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        x = F.relu(self.bn1(self.lin1(x)))
        x = self.bn2(self.lin2(x))
        x += h
        return x.relu_()


def res_mlp(depth: int = 3) -> nn.Sequential:
    """A stem and blocks."""
    return nn.Sequential(nn.Linear(WIDTH, 20), *(ResMlpBlock(20) for _ in range(depth)))


class Byol(nn.Module):
    """Two views pass one online network; a slow copy without gradient gives the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(res_mlp(), nn.Linear(20, 8))
        self.predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        p1, p2 = self.predictor(self.online(one)), self.predictor(self.online(two))
        with torch.no_grad():
            z1, z2 = self.target(one), self.target(two)
        loss = 4 - 2 * F.cosine_similarity(p1, z2) - 2 * F.cosine_similarity(p2, z1)
        return loss.mean()


class ResVae(nn.Module):
    """Residual encoder, a sampled code, residual decoder: one chain, broken at the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = res_mlp()
        self.fc_mu, self.fc_logvar = nn.Linear(20, 4), nn.Linear(20, 4)
        self.decoder_in = nn.Linear(4, 20)
        self.decoder = nn.Sequential(*(ResMlpBlock(20) for _ in range(3)))
        self.decoder_out = nn.Linear(20, WIDTH)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        return torch.randn_like(std).mul(std).add_(mu)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.fc_mu(h), self.fc_logvar(h)
        z = self.reparameterize(mu, logvar)
        return self.decoder_out(self.decoder(self.decoder_in(z))), mu, logvar


class VqResBlock(nn.Sequential):
    """VQ-VAE's residual layer: ReLU first, 3 x 3 and 1 x 1 convolutions."""

    def __init__(self, c: int) -> None:
        super().__init__(
            nn.ReLU(), nn.Conv2d(c, c // 2, 3, 1, 1, bias=False),
            nn.ReLU(), nn.Conv2d(c // 2, c, 1, bias=False),
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = input + super().forward(input)  # type: ignore[no-untyped-call]
        return result


class VqVae(nn.Module):
    """Residual encoder, nearest entry of a book with a straight-through gradient, decoder."""

    def __init__(self, c: int = 12, d: int = 4) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, c, 4, 2, 1), VqResBlock(c), VqResBlock(c))
        self.pre_vq = nn.Conv2d(c, d, 1)
        self.book = nn.Embedding(8, d)
        self.dec = nn.Sequential(nn.Conv2d(d, c, 3, 1, 1), VqResBlock(c), VqResBlock(c))
        self.up = nn.ConvTranspose2d(c, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.pre_vq(self.enc(x)).permute(0, 2, 3, 1)
        index = torch.cdist(z.flatten(0, 2), self.book.weight).argmin(1)
        quantized = self.book(index).view_as(z)
        loss = F.mse_loss(quantized, z.detach()) + 0.25 * F.mse_loss(quantized.detach(), z)
        quantized = z + (quantized - z).detach()
        return self.up(self.dec(quantized.permute(0, 3, 1, 2))), loss


class AdditiveCoupling(nn.Module):
    """NICE's coupling: one half is moved by a function of the other."""

    def __init__(self, flip: bool, scaled: bool) -> None:
        super().__init__()
        self.flip, self.scaled = flip, scaled
        half = WIDTH // 2
        self.net = nn.Sequential(
            nn.Linear(half, 16), nn.Tanh(), nn.Linear(16, 2 * half if scaled else half)
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        if self.scaled:
            log_s, t = self.net(a).chunk(2, dim=1)
            b = b * torch.exp(torch.tanh(log_s)) + t
        else:
            b = b + self.net(a)
        return torch.cat([b, a] if self.flip else [a, b], dim=1)


def flow(scaled: bool) -> nn.Module:
    """Four couplings between a linear stem and a linear head."""
    couplings = [AdditiveCoupling(i % 2 == 1, scaled) for i in range(4)]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *couplings, nn.Linear(WIDTH, 3))


class ResidualLstm(nn.Module):
    """Recurrent layers, each with its input added from the second on, as in translation once."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.lstms = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(layers))
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for i, lstm in enumerate(self.lstms):
            y, _ = lstm(self.drop(x))
            x = y if i == 0 else x + y
        x = self.out(x)
        out: Tensor = x
        return out


class AttentiveDecoder(nn.Module):
    """A bidirectional GRU reads; a GRU cell writes and asks by a bilinear score."""

    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.GRU(WIDTH, 8, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, last = self.encoder(self.src(src))
        state = torch.cat([last[0], last[1]], dim=-1)
        logits = []
        for step in self.tgt(tgt).unbind(1):
            weights = torch.bmm(memory, self.score(state).unsqueeze(-1)).softmax(1)
            context = (weights * memory).sum(1)
            state = self.cell(torch.cat([step, context], dim=-1), state)
            logits.append(self.out(torch.cat([state, context], dim=-1)))
        return torch.stack(logits, dim=1)


class AdditiveSeq2Seq(nn.Module):
    """Two LSTMs; the second's states ask the first's by ``v tanh(W m + U s)``, all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.decoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.W, self.U = nn.Linear(WIDTH, 12, bias=False), nn.Linear(WIDTH, 12)
        self.v, self.out = nn.Linear(12, 1, bias=False), nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, hc = self.encoder(self.emb(src))
        states, _ = self.decoder(self.emb(tgt), hc)
        energy = self.v(torch.tanh(self.W(memory)[:, None] + self.U(states)[:, :, None]))
        context = energy.squeeze(-1).softmax(-1) @ memory
        out: Tensor = self.out(torch.cat([states, context], dim=-1))
        return out


class HyperBlocks(nn.Module):
    """A small network writes both weights of each block from the block's own code."""

    def __init__(self, depth: int = 4, hidden: int = 12) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.codes = nn.Parameter(torch.randn(depth, 6))
        self.hyper = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2 * WIDTH * hidden))
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for code in self.codes:
            w1, w2 = self.hyper(code).mul(0.2).chunk(2)
            h = F.relu(F.linear(x, w1.view(self.hidden, WIDTH)))
            x = x + F.linear(h, w2.view(WIDTH, self.hidden))
        x = self.out(x)
        return x


class Maxout(nn.Module):
    """The largest of several linear layers."""

    def __init__(self, i: int, o: int, pieces: int = 3) -> None:
        super().__init__()
        self.lin = nn.Linear(i, o * pieces)
        self.shape = (-1, o, pieces)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin(x).view(self.shape).amax(-1)
        return x


class RepeatMixin:
    """Gives a class the loop over its layers."""

    layers: nn.ModuleList

    def run(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class ConvSeqOutput:
    """What ``ConvSeqEncoder`` gives: the states, and the states with the embedding added."""

    last: Tensor
    logits: Tensor
    shapes: dict[str, Shape] = field(default_factory=dict)


class GatedConv(nn.Module):
    """A gated convolution and its input, times the root of one half."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(d, 2 * d, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return (F.glu(self.conv(x), dim=1) + x) * math.sqrt(0.5)


class ConvSeqEncoder(RepeatMixin, nn.Module):
    """A convolutional encoder of translation; its output is a dataclass."""

    def __init__(self, depth: int = 4) -> None:
        nn.Module.__init__(self)
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(GatedConv(WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> ConvSeqOutput:
        x = self.run(self.emb(ids).transpose(1, 2)).transpose(1, 2)
        return ConvSeqOutput(x, self.head(x), {"last": tuple(x.shape)})


# What each has


def stacked(block: Block, depth: int = 3) -> nn.Module:
    """Blocks on sequences between a linear stem and a pooled head."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(block() for _ in range(depth)), Pooled())


def pictured(block: Block, depth: int = 3) -> nn.Module:
    """Blocks on feature maps of 16 channels, after a stem."""
    return nn.Sequential(stem(), *(block() for _ in range(depth)), pooled_head(16))


def language(name: str, block: Block, *streams: Stream, depth: int = 3, limits: str = "") -> Model:
    """A language model of such blocks."""
    return Model(
        name, lambda: (Language(block() for _ in range(depth)), tokens()), streams, limits=limits
    )


def mixing(name: str, mixer: Block, stream: Stream, limits: str = "") -> Model:
    """Pre-norm blocks of the mixer and a feed-forward, on sequences."""
    return Model(
        name,
        lambda: (stacked(lambda: pre_norm(mixer(), FeedForward())), sequences()),
        (stream,),
        limits=limits,
    )


def times() -> Tensor:
    """A time step for each example."""
    return torch.tensor([1, 5, 9, 20])


def classes() -> Tensor:
    """A class for each example."""
    return torch.randint(0, 5, (BATCH,))


SIX = Stream(6, ("in",), m=(2,) * 6, segments=1)
SIX_POST = Stream(6, ("stream",), m=(2,) * 6, segments=1)
RECURRENT = (
    "Inside a recurrent layer a state is gated and added to over time: a tool that opens the layer "
    "may count merges for each step, and says that they run over time."
)
REINJECTED = (
    "The sum with the first tensor spans all that ran before it, so by the definition the merges "
    "before the last such sum are inner; a tool that counts every block as outer, and the sums "
    "apart, has seen the same additions."
)
TWO_PARALLEL = (
    "Two layers of the same input are summed and one of them is the 1 x 1 convolution or linear "
    "layer that elsewhere is called a projected skip: the tool may see no merge in it, or one."
)
TWO_IN_ONE = (
    "Encoder and decoder stand in one chain, broken at the code: the tool may call them one stream "
    "of two segments or two streams of half the branches."
)
EXCHANGE = (
    "The exchange adds the other resolution, computed from an earlier state of both: the tool may "
    "count these sums as branches or leave them out."
)
COPIES = (
    "Both halves begin as the same tensor and each reads the other: the tool may answer one stream "
    "with all branches."
)

_CONVOLUTIONAL = (
    Model(
        "mbconv_efficientnet",
        lambda: (efficientnet(), images()),
        (Stream(4, ("inner", "out"), segments=3),),
    ),
    Model("shufflenet_v2", lambda: (shufflenet(), images()), (PLAIN,)),
    Model("squeezenet", lambda: (squeezenet(bypass=False), images()), (PLAIN,)),
    Model(
        "squeezenet_bypass",
        lambda: (squeezenet(bypass=True), images()),
        (Stream(2, m=(2, 2), segments=2),),
    ),
    Model(
        "inception_resnet",
        lambda: (pictured(InceptionResnetBlock), images()),
        (Stream(3, ("inner",), segments=1),),
    ),
    Model(
        "wide_resnet",
        lambda: (wide_resnet(), images()),
        (Stream(6, ("in", "inner"), "mixed", projected=3, m=(2,) * 6, segments=1),),
    ),
    Model(
        "resnext",
        lambda: (resnext(), images()),
        (Stream(4, ("inner", "out"), "mixed", projected=2, m=(3,) * 4, segments=1),),
    ),
    Model(
        "se_resnet",
        lambda: (se_resnet(), images()),
        (Stream(4, ("inner", "out"), "mixed", projected=2, segments=1),),
    ),
    Model(
        "resnet_d",
        lambda: (resnet_d(), images()),
        (Stream(5, ("inner", "out"), "mixed", projected=2, m=(3,) * 5, segments=1),),
    ),
    Model(  # in each block the third and the fourth group take in the group before
        "res2net",
        lambda: (pictured(lambda: Res2NetBlock()), images()),
        (Stream(3, ("inner", "out"), inner=6, segments=1),),
    ),
    Model(
        "eca_net",
        lambda: (pictured(lambda: EcaBlock(16)), images()),
        (Stream(3, ("inner", "out"), segments=1),),
    ),
    Model(
        "cbam",
        lambda: (pictured(lambda: CbamBlock(16)), images()),
        (Stream(3, ("inner", "out"), segments=1),),
    ),
    Model(  # a block and an exchange in each of three modules
        "hrnet",
        lambda: (HrNet(), images()),
        (Stream(6, ("inner", "out")), Stream(6, ("inner", "out"))),
        limits=EXCHANGE,
    ),
    Model(  # the first block, then the finest lateral; inner: two blocks and the middle lateral
        "fpn_finest",
        lambda: (FpnSegmenter(), images()),
        (Stream(2, ("inner", "out"), "mixed", inner=3, projected=1, segments=1),),
    ),
    Model(  # inner in each: three blocks around a smaller hourglass, which has four of its own
        "hourglass",
        lambda: (
            nn.Sequential(stem(), Hourglass(2, 16), Hourglass(2, 16), nn.Conv2d(16, 4, 1)),
            images(),
        ),
        (Stream(2, ("in", "inner"), inner=12, segments=1),),
    ),
    Model("esrgan", lambda: (Esrgan(), images()), (Stream(1, inner=8, segments=1),)),
    Model("rdn", lambda: (Rdn(), images()), (Stream(1, inner=3, segments=1),)),
    Model(
        "dncnn",
        lambda: (dncnn(), images()),
        (Stream(1, ("inner",), m=(5,), segments=1),),
    ),
    Model(
        "srresnet",
        lambda: (SrResNet(), images()),
        (Stream(1, ("inner", "out"), inner=3, segments=1),),
    ),
    Model("edsr", lambda: (Edsr(), images()), (Stream(1, inner=4, segments=1),)),
    Model(  # projected: where the width changes, on the way down and behind both concatenations
        "ddpm_unet",
        lambda: (DiffusionUnet(), (images(), times())),
        (Stream(8, ("in", "inner"), "mixed", projected=3, m=(2,) * 8),),
    ),
    Model(
        "bit_resnet",
        lambda: (bit_resnet(), images()),
        (Stream(4, ("in", "inner"), "mixed", projected=2, m=(3,) * 4, segments=1),),
    ),
    Model(
        "nf_resnet",
        lambda: (nf_resnet(), images()),
        (Stream(5, (), "mixed", projected=2, m=(3,) * 5, segments=1),),
    ),
    Model(
        "fixup_resnet",
        lambda: (pictured(lambda: FixupBlock(16), 4), images()),
        (Stream(4, m=(2,) * 4, segments=1),),
    ),
    Model(
        "drop_path_resnet",
        lambda: (DropPathResNet(), images()),
        (Stream(4, ("inner", "out"), m=(2,) * 4, segments=1),),
    ),
    Model(
        "drop_path_resnet_eval",
        lambda: (DropPathResNet(), images()),
        (Stream(4, ("inner", "out"), m=(2,) * 4, segments=1),),
        training=False,
    ),
    Model(
        "highway_convolutions",
        lambda: (pictured(lambda: ConvHighway(16), 4), images()),
        (Stream(4, (), "gated", m=(1,) * 4, segments=1),),
    ),
    Model(
        "ghostnet",
        lambda: (ghostnet(), images()),
        (Stream(4, ("inner", "out"), "mixed", projected=1, segments=1),),
    ),
    Model(
        "dual_path_network",
        lambda: (Dpn(), images()),
        (Stream(3, ("in", "inner"), m=(2,) * 3, segments=1),),
    ),
    Model(
        "convmixer", lambda: (convmixer(), images()), (Stream(4, ("out",), m=(1,) * 4, segments=4),)
    ),
    Model(
        "metaformer_images",
        lambda: (pictured(lambda: MetaFormer(16)), images()),
        (Stream(6, ("in",), inner=3, segments=1),),
    ),
    Model(
        "rep_mlp",
        lambda: (pictured(lambda: RepMlpUnit(16, 8)), images()),
        (Stream(6, ("in", "inner", "out"), segments=1),),
    ),
    Model(  # inner: attention adds its own input
        "van",
        lambda: (pictured(lambda: VanBlock(16)), images()),
        (Stream(6, ("in",), inner=3, segments=1),),
    ),
    Model(
        "focalnet_by_hand",
        lambda: (focalnet(), images()),
        (Stream(6, ("in",), segments=1),),
        limits="The contexts are gated terms of one sum and each is computed from the one before: "
        "the tool may count two inner merges for each modulation.",
    ),
    Model(
        "wgan_critic",
        lambda: (WganCritic(), images()),
        (Stream(4, (), "mixed", projected=2, m=(2,) * 4, segments=1),),
    ),
    Model(
        "gan_generator",
        lambda: (generator(), rows()),
        (Stream(3, ("in", "inner"), "projected", projected=3, m=(2,) * 3, segments=1),),
    ),
    Model("capsules", lambda: (Capsules(), images()), (PLAIN,)),
)

_LANGUAGE = (
    Model("nanogpt", lambda: (NanoGPT(GPTConfig()), (tokens(), tokens())), (SIX,)),
    language("rezero_decoder", ReZeroLayer, Stream(6, m=(2,) * 6, segments=1)),
    language(
        "deepnorm_decoder",
        lambda: DeepNormLayer(3),
        Stream(6, ("stream",), "scaled", m=(2,) * 6, segments=1),
    ),
    Model(
        "annotated_decoder",
        lambda: (AnnotatedDecoder(), (tokens(), sequences())),
        (Stream(9, ("stream",), m=(2,) * 9, segments=1),),
    ),
    Model(  # the layer's input is the skip; inner: attention's sum and the feed-forward's
        "bottom_to_top",
        lambda: (Language((BottomToTop() for _ in range(3)), nn.Identity()), tokens()),
        (Stream(3, ("inner", "stream"), inner=6, segments=1),),
    ),
    language("peri_ln", PeriLayer, Stream(6, ("in", "out"), m=(2,) * 6, segments=1)),
    language("sub_ln", SubLnLayer, Stream(6, ("in", "inner"), m=(2,) * 6, segments=1)),
    language(
        "normformer", NormFormerLayer, Stream(6, ("in", "inner", "out"), m=(2,) * 6, segments=1)
    ),
    Model(
        "mix_ln",
        lambda: (Language(MixLnLayer(post=i < 2) for i in range(4)), tokens()),
        (Stream(8, ("in", "stream"), m=(2,) * 8, segments=1),),
    ),
    Model(
        "residual_dual",
        lambda: (ResiDual(), tokens()),
        (SIX_POST, Stream(6)),
        limits="Both streams take in the same branches, which read the first alone: the tool may "
        "answer one stream, or order the two otherwise.",
    ),
    Model(  # outer: the last mixing and the last block's two; inner: two mixings, six, a long skip
        "speedrun_gpt",
        lambda: (Speedrun(), tokens()),
        (Stream(3, ("in", "inner"), "mixed", inner=9),),
        limits=REINJECTED,
    ),
    language(
        "normalised_gpt",
        NormalisedGptBlock,
        Stream(6, ("inner", "out", "stream"), "per-channel", m=(2,) * 6, segments=1),
    ),
    language("gemma_like", GemmaLikeLayer, Stream(6, ("in", "out"), m=(2,) * 6, segments=1)),
    language("palm_like", PalmBlock, Stream(6, ("in",), parallel=3, m=(2,) * 6, segments=1)),
    language(
        "hybrid_heads",
        lambda: pre_norm(HybridHeads(), FeedForward()),
        Stream(6, ("in", "inner"), m=(2,) * 6, segments=1),
    ),
    language("shared_expert", lambda: pre_norm(Attention(True), SharedExpertMoe()), SIX),
    language(
        "mixture_of_depths", lambda: nn.Sequential(pre_norm(Attention(True)), DepthRouter()), SIX
    ),
    language("mixture_of_depths_written_back", DepthRoutedBlock, SIX),
    Model(
        "two_exits",
        lambda: (TwoExits(), tokens()),
        (Stream(8, ("in",), m=(2,) * 8, segments=1),),
    ),
    Model("layer_skip", lambda: (LayerSkip(), tokens()), (SIX,)),
    Model(
        "layer_skip_eval",
        lambda: (LayerSkip(), tokens()),
        (Stream(8, ("in",), m=(2,) * 8, segments=1),),
        training=False,
    ),
    Model(  # outer: the last sum with the embedding and the last run's two
        "looped_reinjection",
        lambda: (LoopedTransformer(), tokens()),
        (Stream(3, ("in",), inner=8, segments=1),),
        limits=REINJECTED,
    ),
    Model(
        "universal_transformer",
        lambda: (UniversalTransformer(), tokens()),
        (Stream(8, ("stream",), m=(2,) * 8, segments=1),),
    ),
    Model(
        "differential_transformer",
        lambda: (
            Language(pre_norm(DifferentialAttention(i), FeedForward()) for i in range(3)),
            tokens(),
        ),
        (Stream(6, ("in", "inner"), m=(2,) * 6, segments=1),),
    ),
    Model(
        "realformer",
        lambda: (RealFormer(), tokens()),
        (SIX_POST,),
        limits="Scores of one layer are added to scores of the next, which are computed from them "
        "by way of the stream: the tool may count two inner merges.",
    ),
    language("adapters", AdaptedLayer, Stream(6, ("in",), inner=6, segments=1)),
    language(
        "gated_transformer_xl",
        GtrxlLayer,
        Stream(6, ("in",), "gated", segments=1),
        limits="Inside the gate a layer of the state is added to a layer of the branch, before an "
        "activation: the tool may count these sums as inner merges.",
    ),
    Model(
        "mega",
        lambda: (stacked(MegaLayer), sequences()),
        (Stream(3, ("stream",), "gated", segments=1),),
        limits="The update is spelled as the state plus a gate times a difference from the state: "
        "the tool may count the difference as an inner merge.",
    ),
)

_SEQUENCES = (
    mixing("performer", KernelAttention, SIX),
    mixing("linformer", LinformerAttention, Stream(6, ("in",), segments=1)),
    Model(
        "reformer",
        lambda: (Reformer(), tokens()),
        (
            Stream(3, ("in",), m=(2,) * 3, segments=1),
            Stream(3, ("in",), m=(2,) * 3, segments=1),
        ),
        limits=COPIES,
    ),
    mixing("retnet", Retention, Stream(6, ("in", "inner"), m=(2,) * 6, segments=1)),
    Model(
        "rwkv_4",
        lambda: (stacked(lambda: pre_norm(Rwkv4TimeMix(), Rwkv4ChannelMix())), sequences()),
        (SIX,),
    ),
    mixing(  # inner: the present token's value, added to what the state gives
        "rwkv_7",
        Rwkv7TimeMix,
        Stream(6, ("in", "inner"), inner=3, segments=1),
        limits="The state forgets by a product with itself, and tokens are mixed with the token "
        "before by a difference: the tool may count such sums as inner merges over time.",
    ),
    mixing("hyena", HyenaOperator, Stream(6, ("in",), inner=3, segments=1)),
    Model(
        "s4d",
        lambda: (S4Model(), sequences()),
        (Stream(3, ("stream",), inner=3, segments=1),),
    ),
    mixing("min_gru", MinGru, SIX),
    mixing("min_lstm", MinLstm, SIX),
    Model(
        "gmlp",
        lambda: (stacked(GmlpBlock), sequences()),
        (Stream(3, ("in", "inner"), segments=1),),
    ),
    Model(
        "amlp",
        lambda: (stacked(lambda: GmlpBlock(tiny=4)), sequences()),
        (Stream(3, ("in", "inner"), segments=1),),
    ),
    Model(
        "fnet_matrices",
        lambda: (stacked(FnetLayer), sequences()),
        (Stream(6, ("stream",), segments=1),),
    ),
    Model(
        "conformer",
        lambda: (stacked(ConformerBlock, 2), sequences()),
        (Stream(8, ("in", "inner", "stream"), segments=1),),
    ),
    Model(
        "squeezeformer",
        lambda: (stacked(SqueezeformerBlock, 2), sequences()),
        (Stream(8, ("inner", "stream"), segments=1),),
    ),
    Model(
        "tcn",
        lambda: (Tcn(), signals()),
        (Stream(4, (), "mixed", projected=2, m=(2,) * 4, segments=1),),
    ),
    Model(
        "tacotron_cbhg",
        lambda: (Cbhg(), tokens()),
        (Stream(4, ("inner", "out"), "mixed", m=(3, 1, 1, 1), segments=1),),
        limits=RECURRENT,
    ),
    Model(
        "gated_residual_networks",
        lambda: (GrnStack(), (torch.randn(BATCH, 8), torch.randn(BATCH, 4))),
        (Stream(4, ("stream",), "mixed", projected=1, m=(3,) * 4, segments=1),),
    ),
    Model("n_beats", lambda: (NBeats(), rows()), (Stream(4, segments=1),)),
    Model(  # the outermost skip is the linear layer from the past; each block's is inner
        "tide",
        lambda: (Tide(), rows()),
        (Stream(1, ("inner", "out"), "projected", inner=4, projected=1, segments=1),),
    ),
    Model("patch_tst_batch_norm", lambda: (PatchTst(), torch.randn(BATCH, 3, 16)), (SIX_POST,)),
    Model("i_transformer", lambda: (ITransformer(), torch.randn(BATCH, 3, 16)), (SIX_POST,)),
)

_IMAGES_AND_SETS = (
    Model(
        "swin_by_hand",
        lambda: (swin(), images()),
        (Stream(8, ("in",), m=(2,) * 8, segments=2),),
    ),
    Model(
        "pvt_by_hand",
        lambda: (pvt(), images()),
        (Stream(6, ("in", "inner"), segments=1),),
    ),
    Model(
        "maxvit",
        lambda: (maxvit(), images()),
        (Stream(10, ("in", "inner"), "mixed", projected=1, segments=1),),
    ),
    Model(
        "coatnet",
        lambda: (coatnet(), images()),
        (Stream(6, ("in", "inner", "out"), "mixed", projected=2, segments=1),),
    ),
    Model("dit", lambda: (DiT(), (images(), times(), classes())), (SIX,)),
    Model(
        "mm_dit",
        lambda: (MMDiT(), (images(), tokens(), times())),
        (
            Stream(6, ("in", "inner"), m=(2,) * 6, segments=1),
            Stream(4, ("in", "inner"), m=(2,) * 4, segments=1),
        ),
    ),
    Model(
        "u_vit",
        lambda: (UViT(), images()),
        (Stream(10, ("in",), m=(2,) * 10, segments=3),),
    ),
    Model(  # six on the latents; the decoder's feed-forward stands behind a layer without a skip
        "perceiver_io",
        lambda: (PerceiverIO(), torch.randn(BATCH, 9, 8)),
        (Stream(7, ("in",), m=(2,) * 7, segments=2),),
    ),
    Model(  # the skip of each attention is the projected query
        "set_transformer",
        lambda: (SetTransformer(), sequences()),
        (Stream(4, ("stream",), "mixed", projected=2, m=(1,) * 4, segments=1),),
        limits="The projected query is both the skip and what the scores are computed from: the "
        "tool may take the projection for a layer of the stream and the skip for an identity.",
    ),
    Model(
        "triangle_multiplication",
        lambda: (PairStack(), sequences()),
        (Stream(6, ("in", "inner"), m=(2,) * 6, segments=1),),
    ),
    Model(
        "evoformer",
        lambda: (
            Evoformer(),
            (torch.randn(2, 3, TOKENS, WIDTH), torch.randn(2, TOKENS, TOKENS, 4)),
        ),
        (
            Stream(6, ("in",), m=(2,) * 6, segments=1),
            Stream(8, ("in", "inner"), m=(2,) * 8, segments=1),
        ),
    ),
)

_GRAPHS_AND_FIELDS = (
    Model(
        "gcn_residual",
        lambda: (stacked(GcnResPlus), sequences()),
        (Stream(3, ("in",), m=(1,) * 3, segments=1),),
    ),
    Model(  # inner: a node's own features plus the sum over its neighbours
        "gin_residual",
        lambda: (stacked(GinLayer), sequences()),
        (Stream(3, ("inner",), inner=3, m=(2,) * 3, segments=1),),
    ),
    Model(
        "gat_residual",
        lambda: (stacked(GatLayer), sequences()),
        (Stream(3, m=(1,) * 3, segments=1),),
    ),
    Model(
        "graph_transformer",
        lambda: (GraphTransformer(), (sequences(), torch.randn(BATCH, 8, 5))),
        (Stream(4, ("stream",), segments=1), Stream(4, ("stream",), segments=1)),
    ),
    Model(  # a layer moves the coordinates first
        "egnn",
        lambda: (Egnn(), (torch.randn(TOKENS, 5), torch.randn(TOKENS, 3))),
        (Stream(3, segments=1), Stream(3, segments=1)),
    ),
    Model(
        "gated_graph",
        lambda: (GatedGraph(), torch.randn(TOKENS, WIDTH)),
        (Stream(4, (), "gated", segments=1),),
        limits="Inside the cell a layer of the state is added to a layer of the message, before an "
        "activation: the tool may count these sums as inner merges.",
    ),
    Model("pointnet", lambda: (PointNet(), torch.randn(BATCH, 3, 10)), (PLAIN,)),
    Model("deep_sets", lambda: (DeepSets(), sequences()), (PLAIN,)),
    Model("nerf", lambda: (NeRF(), (torch.randn(8, 3), torch.randn(8, 3))), (PLAIN,)),
    Model(
        "siren",
        lambda: (
            nn.Sequential(
                SineLayer(2, 24, first=True),
                *(SineLayer(24, 24) for _ in range(3)),
                nn.Linear(24, 3),
            ),
            torch.rand(16, 2) * 2 - 1,
        ),
        (PLAIN,),
    ),
    Model(
        "fno",
        lambda: (Fno(residual=False), rows()),
        (Stream(4, (), "projected", projected=4, m=(1,) * 4, segments=1),),
        limits=TWO_PARALLEL,
    ),
    Model(
        "fno_residual",
        lambda: (Fno(residual=True), rows()),
        (Stream(4, (), inner=4, m=(1,) * 4, segments=1),),
        limits=TWO_PARALLEL,
    ),
    Model("deep_o_net", lambda: (DeepONet(), (rows(), torch.rand(7, 1))), (PLAIN,)),
    Model(
        "neural_ode_euler",
        lambda: (NeuralOde(euler_step), rows()),
        (Stream(4, m=(2,) * 4, segments=1),),
    ),
    Model(
        "neural_ode_midpoint",
        lambda: (NeuralOde(midpoint_step), rows()),
        (Stream(4, inner=4, segments=1),),
    ),
    Model(
        "equilibrium",
        lambda: (Equilibrium(), rows()),
        (Stream(1, inner=4, segments=1),),
        limits=REINJECTED,
    ),
    Model(
        "kan",
        lambda: (nn.Sequential(KanLayer(WIDTH, 8), KanLayer(8, 8), KanLayer(8, 5)), rows() * 0.4),
        (PLAIN,),
        limits=TWO_PARALLEL,
    ),
)

_PAIRS_AND_THE_REST = (
    Model(
        "clip_pair",
        lambda: (ClipPair(), (images(), tokens())),
        (Stream(4, ("in",), m=(2,) * 4, segments=1), SIX),
    ),
    Model(
        "mlp_skip_every_two",
        lambda: (nn.Sequential(res_mlp(), nn.Linear(20, 5)), rows()),
        (Stream(3, ("inner", "out"), m=(2,) * 3, segments=1),),
    ),
    Model(
        "byol",
        lambda: (Byol(), (rows(), rows())),
        (
            Stream(3, ("inner", "out"), m=(2,) * 3, segments=1),
            Stream(3, ("inner", "out"), m=(2,) * 3, segments=1),
        ),
    ),
    Model(
        "residual_vae",
        lambda: (ResVae(), rows()),
        (Stream(6, ("inner", "out"), m=(2,) * 6, segments=2),),
        limits=TWO_IN_ONE,
    ),
    Model(
        "residual_vq_vae",
        lambda: (VqVae(), images()),
        (Stream(4, m=(2,) * 4, segments=2),),
        limits=TWO_IN_ONE,
    ),
    Model(
        "additive_flow",
        lambda: (flow(scaled=False), rows()),
        (Stream(4, m=(2,) * 4, segments=1),),
    ),
    Model(
        "affine_flow",
        lambda: (flow(scaled=True), rows()),
        (Stream(4, (), "gated", m=(2,) * 4, segments=1),),
    ),
    Model(  # the first layer has no skip
        "residual_lstm_stack",
        lambda: (ResidualLstm(), tokens()),
        (Stream(3, segments=1),),
        limits=RECURRENT,
    ),
    Model(
        "attentive_decoder",
        lambda: (AttentiveDecoder(), (tokens(), tokens())),
        (PLAIN,),
        limits=RECURRENT,
    ),
    Model(
        "additive_seq2seq",
        lambda: (AdditiveSeq2Seq(), (tokens(), tokens())),
        (PLAIN,),
        limits=RECURRENT,
    ),
    Model(
        "hypernetwork_blocks",
        lambda: (HyperBlocks(), rows()),
        (Stream(4, m=(2,) * 4, segments=1),),
    ),
    Model(
        "maxout",
        lambda: (nn.Sequential(Maxout(WIDTH, 16), Maxout(16, 16), nn.Linear(16, 5)), rows()),
        (PLAIN,),
    ),
    Model(
        "conv_seq_encoder",
        lambda: (ConvSeqEncoder(), tokens()),
        (Stream(4, m=(1,) * 4, segments=1),),
        limits="The factor stands on the stream after the sum and the skip is an identity, but "
        "over a whole block the state is scaled: the tool may answer a scaled skip.",
    ),
)

MODELS: tuple[Model, ...] = (
    *_CONVOLUTIONAL,
    *_LANGUAGE,
    *_SEQUENCES,
    *_IMAGES_AND_SETS,
    *_GRAPHS_AND_FIELDS,
    *_PAIRS_AND_THE_REST,
)
