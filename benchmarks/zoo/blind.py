"""A further set of models written before the tool saw them, small versions of architectures.

Nothing that the tool said had a part in choosing them or in what is expected of them: the
expectations in ``MODELS`` at the end were read off the definitions, and stayed as they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.zoo import PLAIN, Model, Stream
from benchmarks.zoo.plain import BATCH, HEADS, TOKENS, WIDTH, FeedForward, images

__all__ = ["MODELS"]

VOCABULARY = 20


class MultiHead(nn.Module):
    """Attention with queries apart from keys and values, to itself or to a context."""

    def __init__(self, d: int = WIDTH, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.kv(context).chunk(2, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = self.o(y.transpose(1, 2).flatten(2))
        return x


class PreBlock(nn.Module):
    """The pre-norm Transformer's block: attention, then a feed-forward."""

    def __init__(self, d: int = WIDTH, causal: bool = False) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn: nn.Module = MultiHead(d, causal=causal)
        self.ff: nn.Module = FeedForward(d, 2 * d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.n1(x))
        x = x + self.ff(self.n2(x))
        return x


# Vision


class SE(nn.Module):
    """Squeeze-and-excitation by linear layers: a gate on the channels from their means."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(c, max(c // 4, 4)), nn.ReLU(), nn.Linear(max(c // 4, 4), c), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.fc(x.mean((2, 3)))[:, :, None, None]
        return x


class NvaeCell(nn.Module):
    """NVAE's encoder cell: norm, swish, convolution, twice, a gate, a tenth of it added."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.op = nn.Sequential(
            nn.BatchNorm2d(c),
            nn.SiLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.SiLU(),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.se = SE(c)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * self.se(self.op(x))
        return x


class VdvaeBlock(nn.Module):
    """Very Deep VAE's bottleneck without a norm, with or without a skip."""

    def __init__(self, i: int, m: int, o: int, residual: bool = False) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(i, m, 1), nn.Conv2d(m, m, 3, padding=1)
        self.c3, self.c4 = nn.Conv2d(m, m, 3, padding=1), nn.Conv2d(m, o, 1)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        h = self.c1(F.gelu(x))
        h = self.c2(F.gelu(h))
        h = self.c3(F.gelu(h))
        h = self.c4(F.gelu(h))
        x = x + h if self.residual else h
        return x


def draw(mu: Tensor, logsigma: Tensor) -> Tensor:
    """A sample of a Gaussian, by its mean and logarithmic width."""
    return torch.exp(logsigma) * torch.randn_like(mu) + mu


class VdvaeDecoderBlock(nn.Module):
    """Very Deep VAE's top-down block: the prior's features, the latent, a residual block."""

    def __init__(self, w: int, z: int) -> None:
        super().__init__()
        self.zd, self.w = z, w
        self.enc = VdvaeBlock(2 * w, w, 2 * z)
        self.prior = VdvaeBlock(w, w, 2 * z + w)
        self.z_proj = nn.Conv2d(z, w, 1)
        self.resnet = VdvaeBlock(w, w, w, residual=True)

    def forward(self, x: Tensor, acts: Tensor) -> tuple[Tensor, Tensor]:
        qm, qv = self.enc(torch.cat([x, acts], 1)).chunk(2, 1)
        feats = self.prior(x)
        pm, pv, xpp = feats[:, : self.zd], feats[:, self.zd : 2 * self.zd], feats[:, 2 * self.zd :]
        z = draw(qm, qv)
        kl = -0.5 + pv - qv + 0.5 * (qv.exp() ** 2 + (qm - pm) ** 2) / (pv.exp() ** 2)
        x = x + xpp
        x = x + self.z_proj(z)
        x = self.resnet(x)
        return x, kl.mean()


class VdVae(nn.Module):
    """Very Deep VAE: residual blocks up, then down from a learned start."""

    def __init__(self, w: int = 8, z: int = 2) -> None:
        super().__init__()
        self.inp = nn.Conv2d(3, w, 3, padding=1)
        self.enc = nn.ModuleList(VdvaeBlock(w, w, w, residual=True) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(1, w, 8, 8) * 0.1)
        self.dec = nn.ModuleList(VdvaeDecoderBlock(w, z) for _ in range(2))
        self.out = nn.Conv2d(w, 3, 1)

    def forward(self, img: Tensor) -> tuple[Tensor, Tensor]:
        a = self.inp(img)
        for b in self.enc:
            a = b(a)
        x = self.bias.repeat(img.shape[0], 1, 1, 1)
        kls = []
        for b in self.dec:
            x, kl = b(x, a)
            kls.append(kl)
        return self.out(x), torch.stack(kls)


class ClassAttention(nn.Module):
    """CaiT's class attention: the class token alone asks."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, u: Tensor) -> Tensor:
        b, n, d = u.shape
        q = (
            self.q(u[:, 0]).reshape(b, 1, HEADS, d // HEADS).permute(0, 2, 1, 3)
            * (d // HEADS) ** -0.5
        )
        k = self.k(u).reshape(b, n, HEADS, d // HEADS).permute(0, 2, 1, 3)
        v = self.v(u).reshape(b, n, HEADS, d // HEADS).permute(0, 2, 1, 3)
        a = (q @ k.transpose(-2, -1)).softmax(-1)
        out: Tensor = self.proj((a @ v).transpose(1, 2).reshape(b, 1, d))
        return out


class CaitPatch(nn.Module):
    """CaiT's block on patches, with LayerScale."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(d), MultiHead(d), nn.LayerNorm(d)
        self.mlp = FeedForward(d, 2 * d)
        self.gamma_1, self.gamma_2 = (nn.Parameter(1e-4 * torch.ones(d)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        x = x + self.gamma_2 * self.mlp(self.norm2(x))
        return x


class CaitClass(nn.Module):
    """CaiT's block on the class token, which reads the patches that stay."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(d), ClassAttention(d), nn.LayerNorm(d)
        self.mlp = FeedForward(d, 2 * d)
        self.gamma_1, self.gamma_2 = (nn.Parameter(1e-4 * torch.ones(d)) for _ in range(2))

    def forward(self, x: Tensor, x_cls: Tensor) -> Tensor:
        u = torch.cat((x_cls, x), dim=1)
        x_cls = x_cls + self.gamma_1 * self.attn(self.norm1(u))
        x_cls = x_cls + self.gamma_2 * self.mlp(self.norm2(x_cls))
        return x_cls


class CaiT(nn.Module):
    """CaiT: two blocks on patches, then two on the class token alone."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.pos = nn.Parameter(torch.zeros(1, 16, d))
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.blocks = nn.ModuleList(CaitPatch() for _ in range(2))
        self.cls_blocks = nn.ModuleList(CaitClass() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        cls = self.cls.expand(x.shape[0], -1, -1)
        for b in self.blocks:
            x = b(x)
        for b in self.cls_blocks:
            cls = b(x, cls)
        x = self.norm(torch.cat((cls, x), 1))
        x = self.head(x[:, 0])
        return x


class CrossAttend(nn.Module):
    """CrossViT's cross attention, projected to the other width and back."""

    def __init__(self, d: int, inner: int) -> None:
        super().__init__()
        self.pin, self.pout = nn.Linear(d, inner), nn.Linear(inner, d)
        self.norm, self.attn = nn.LayerNorm(inner), MultiHead(inner)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = self.norm(self.pin(x))
        x = self.pout(self.attn(x, torch.cat((x, context), 1)))
        return x


class CrossVit(nn.Module):
    """CrossViT: two resolutions whose class tokens ask the patches of the other."""

    def __init__(self, ds: int = 16, dl: int = 24) -> None:
        super().__init__()
        self.sp, self.lp = nn.Conv2d(3, ds, 4, 4), nn.Conv2d(3, dl, 8, 8)
        self.sc, self.lc = nn.Parameter(torch.randn(1, 1, ds)), nn.Parameter(torch.randn(1, 1, dl))
        self.layers = nn.ModuleList(
            nn.ModuleList([PreBlock(ds), PreBlock(dl), CrossAttend(ds, dl), CrossAttend(dl, ds)])
            for _ in range(2)
        )
        self.sh = nn.Sequential(nn.LayerNorm(ds), nn.Linear(ds, 5))
        self.lh = nn.Sequential(nn.LayerNorm(dl), nn.Linear(dl, 5))

    def forward(self, img: Tensor) -> Tensor:
        s = self.sp(img).flatten(2).transpose(1, 2)
        l = self.lp(img).flatten(2).transpose(1, 2)
        s = torch.cat((self.sc.expand(len(s), -1, -1), s), 1)
        l = torch.cat((self.lc.expand(len(l), -1, -1), l), 1)
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            se, le, s2l, l2s = layer
            s, l = se(s), le(l)
            (s_cls, s_patch), (l_cls, l_patch) = ((t[:, :1], t[:, 1:]) for t in (s, l))
            s_cls = s2l(s_cls, l_patch) + s_cls
            l_cls = l2s(l_cls, s_patch) + l_cls
            s, l = torch.cat((s_cls, s_patch), 1), torch.cat((l_cls, l_patch), 1)
        out: Tensor = self.sh(s[:, 0]) + self.lh(l[:, 0])
        return out


class IrFfn(nn.Module):
    """CMT's inverted residual feed-forward, with a skip around its depthwise layer."""

    def __init__(self, c: int, m: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(c, m * c, 1), nn.GELU(), nn.BatchNorm2d(m * c))
        self.dw = nn.Conv2d(m * c, m * c, 3, padding=1, groups=m * c)
        self.act = nn.Sequential(nn.GELU(), nn.BatchNorm2d(m * c))
        self.conv2 = nn.Sequential(nn.Conv2d(m * c, c, 1), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        h = h + self.act(self.dw(h))
        x = self.conv2(h)
        return x


class CmtBlock(nn.Module):
    """CMT's block: local perception, attention to a smaller map, feed-forward."""

    def __init__(self, c: int = WIDTH) -> None:
        super().__init__()
        self.lpu = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.q, self.k, self.v, self.proj = (nn.Linear(c, c) for _ in range(4))
        self.down = nn.Conv2d(c, c, 2, 2, groups=c)
        self.ffn = IrFfn(c)

    def attention(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        b, n, c = x.shape
        q = self.q(x).view(b, n, HEADS, -1).transpose(1, 2)
        y = self.down(x.transpose(1, 2).reshape(b, c, *hw)).flatten(2).transpose(1, 2)
        k = self.k(y).view(b, -1, HEADS, c // HEADS).transpose(1, 2)
        v = self.v(y).view(b, -1, HEADS, c // HEADS).transpose(1, 2)
        a = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(c // HEADS), -1)
        x = self.proj((a @ v).transpose(1, 2).reshape(b, n, c))
        return x

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        x = self.lpu(x) + x
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm1(x), (h, w))
        y = self.norm2(x).transpose(1, 2).reshape(b, c, h, w)
        x = x + self.ffn(y).flatten(2).transpose(1, 2)
        return x.transpose(1, 2).reshape(b, c, h, w)


def cbr(i: int, o: int, k: int = 3, s: int = 1) -> nn.Sequential:
    """A convolution, its batch norm, a ReLU."""
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Fractal(nn.Module):
    """FractalNet's expansion: the mean of a convolution and of two smaller fractals."""

    def __init__(self, columns: int, c: int) -> None:
        super().__init__()
        self.conv = cbr(c, c)
        self.deep = (
            nn.Sequential(Fractal(columns - 1, c), Fractal(columns - 1, c)) if columns > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.deep is None:
            x = self.conv(x)
            return x
        return torch.stack([self.conv(x), self.deep(x)]).mean(0)


class RirUnit(nn.Module):
    """A unit of ResNet in ResNet: a residual and a transient stream, each read by both."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.rr, self.rt, self.tr, self.tt = (
            nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)) for _ in range(4)
        )

    def forward(self, r: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return F.relu(r + self.rr(r) + self.tr(t)), F.relu(self.rt(r) + self.tt(t))


class Rir(nn.Module):
    """ResNet in ResNet: three units of two streams that start as the same stem."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.stem, self.units = cbr(3, c), nn.ModuleList(RirUnit(c) for _ in range(3))
        self.head = nn.Linear(2 * c, 5)

    def forward(self, x: Tensor) -> Tensor:
        r = t = self.stem(x)
        for u in self.units:
            r, t = u(r, t)
        x = self.head(torch.cat([r, t], 1).mean((2, 3)))
        return x


class ShakeBlock(nn.Module):
    """Shake-Shake's block: two branches in a random mixture for each example."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.b1, self.b2 = (
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(c, c, 3, padding=1, bias=False),
                nn.BatchNorm2d(c),
                nn.ReLU(),
                nn.Conv2d(c, c, 3, padding=1, bias=False),
                nn.BatchNorm2d(c),
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        h1, h2 = self.b1(x), self.b2(x)
        alpha = torch.rand(x.size(0), 1, 1, 1) if self.training else 0.5
        x = x + alpha * h1 + (1 - alpha) * h2
        return x


class PyramidBlock(nn.Module):
    """PyramidNet's block: the skip is padded with channels of zeros."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, padding=1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(o)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(out)))
        out = self.bn3(out)
        b, c, h, w = out.shape
        padding = torch.zeros(b, c - x.shape[1], h, w)
        x = out + torch.cat((x, padding), 1)
        return x


def cbs(i: int, o: int, k: int = 1, s: int = 1) -> nn.Sequential:
    """A convolution, its batch norm, a SiLU."""
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class YoloBottleneck(nn.Module):
    """YOLOv5's bottleneck."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = cbs(c, c, 1), cbs(c, c, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.cv2(self.cv1(x))
        return x


class C3(nn.Module):
    """YOLOv5's cross-stage partial block: bottlenecks on one half of the channels."""

    def __init__(self, i: int, o: int, n: int) -> None:
        super().__init__()
        c = o // 2
        self.cv1, self.cv2, self.cv3 = cbs(i, c), cbs(i, c), cbs(2 * c, o)
        self.m = nn.Sequential(*(YoloBottleneck(c) for _ in range(n)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))
        return x


def luconv(c: int) -> nn.Sequential:
    """V-Net's convolution, norm and ELU."""
    return nn.Sequential(nn.Conv2d(c, c, 5, padding=2), nn.BatchNorm2d(c), nn.ELU())


class VNet(nn.Module):
    """V-Net on images: the image itself, repeated, is the first skip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.bn0 = nn.Conv2d(1, 8, 5, padding=2), nn.BatchNorm2d(8)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 2 * c, 2, 2), nn.BatchNorm2d(2 * c), nn.ELU())
            for c in (8, 16)
        )
        self.down_ops = nn.ModuleList(nn.Sequential(luconv(c), luconv(c)) for c in (16, 32))
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(i, o, 2, 2), nn.BatchNorm2d(o), nn.ELU())
            for i, o in ((32, 16), (32, 8))
        )
        self.up_ops = nn.ModuleList(nn.Sequential(luconv(c), luconv(c)) for c in (32, 16))
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn0(self.conv0(x))
        x16 = torch.cat((x,) * 8, 1)
        x = F.elu(out + x16)
        skips = []
        for down, ops in zip(self.down, self.down_ops, strict=True):
            skips.append(x)
            d = down(x)
            x = F.elu(ops(d) + d)
        for up, ops in zip(self.up, self.up_ops, strict=True):
            xcat = torch.cat((up(x), skips.pop()), 1)
            x = F.elu(torch.add(ops(xcat), xcat))
        x = self.out(x).log_softmax(1)
        return x


class LayerNorm2d(nn.Module):
    """A layer norm over channels by hand."""

    def __init__(self, c: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        y = (x - mu) / (var + self.eps).sqrt()
        return self.weight[:, None, None] * y + self.bias[:, None, None]


class NAFBlock(nn.Module):
    """NAFNet's block: gates of two halves instead of activations."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm2d(c), LayerNorm2d(c)
        self.conv1 = nn.Conv2d(c, 2 * c, 1)
        self.conv2 = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.conv3, self.conv4 = nn.Conv2d(c, c, 1), nn.Conv2d(c, 2 * c, 1)
        self.conv5 = nn.Conv2d(c, c, 1)
        self.sca = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c, 1))
        self.beta, self.gamma = (nn.Parameter(torch.zeros(1, c, 1, 1)) for _ in range(2))

    @staticmethod
    def gate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a * b

    def forward(self, inp: Tensor) -> Tensor:
        x = self.gate(self.conv2(self.conv1(self.norm1(inp))))
        x = self.conv3(x * self.sca(x))
        y = inp + x * self.beta
        x = self.conv5(self.gate(self.conv4(self.norm2(y))))
        out: Tensor = y + x * self.gamma
        return out


class NAFNet(nn.Module):
    """NAFNet: a U-Net of one level whose output is added to the image."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.intro, self.ending = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.enc, self.mid, self.dec = NAFBlock(c), NAFBlock(2 * c), NAFBlock(c)
        self.down = nn.Conv2d(c, 2 * c, 2, 2)
        self.up = nn.Sequential(nn.Conv2d(2 * c, 4 * c, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, inp: Tensor) -> Tensor:
        x = self.intro(inp)
        skip = x = self.enc(x)
        x = self.mid(self.down(x))
        x = self.up(x)
        x = x + skip
        x = self.ending(self.dec(x))
        out: Tensor = x + inp
        return out


class ModConv(nn.Module):
    """StyleGAN2's modulated convolution, with or without demodulation."""

    def __init__(self, i: int, o: int, k: int, style: int, demod: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, o, i, k, k))
        self.scale, self.demod, self.k = 1 / math.sqrt(i * k * k), demod, k
        self.mod = nn.Linear(style, i)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        b, c, h, w = x.shape
        s = self.mod(style).view(b, 1, c, 1, 1) + 1
        weight = self.scale * self.weight * s
        if self.demod:
            weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        x = x.view(1, b * c, h, w)
        out = F.conv2d(x, weight.view(-1, c, self.k, self.k), padding=self.k // 2, groups=b)
        return out.view(b, -1, h, w)


class StyledConv(nn.Module):
    """A modulated convolution, noise, a leaky ReLU, with or without upsampling."""

    def __init__(self, i: int, o: int, style: int, up: bool = False) -> None:
        super().__init__()
        self.conv, self.up = ModConv(i, o, 3, style), up
        self.noise = nn.Parameter(torch.full((1,), 0.1))
        self.bias = nn.Parameter(torch.zeros(1, o, 1, 1))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.conv(x, style)
        x = x + self.noise * torch.randn(x.shape[0], 1, *x.shape[2:])
        return F.leaky_relu(x + self.bias, 0.2) * math.sqrt(2)


class ToRGB(nn.Module):
    """StyleGAN2's colours of one level, added to the upsampled colours of the last."""

    def __init__(self, i: int, style: int) -> None:
        super().__init__()
        self.conv = ModConv(i, 3, 1, style, demod=False)
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))

    def forward(self, x: Tensor, style: Tensor, skip: Tensor | None = None) -> Tensor:
        x = self.conv(x, style) + self.bias
        if skip is not None:
            x = x + F.interpolate(skip, scale_factor=2, mode="bilinear", align_corners=False)
        return x


class StyleGan2(nn.Module):
    """StyleGAN2's generator of three levels: only the colours are added up."""

    def __init__(self, s: int = 16, c: int = 8) -> None:
        super().__init__()
        self.mapping = nn.Sequential(
            *(m for _ in range(3) for m in (nn.Linear(s, s), nn.LeakyReLU(0.2)))
        )
        self.const = nn.Parameter(torch.randn(1, c, 4, 4))
        self.conv1, self.rgb1 = StyledConv(c, c, s), ToRGB(c, s)
        self.convs = nn.ModuleList(
            nn.ModuleList([StyledConv(c, c, s, up=True), StyledConv(c, c, s), ToRGB(c, s)])
            for _ in range(2)
        )

    def forward(self, z: Tensor) -> Tensor:
        style = self.mapping(z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8))
        x = self.conv1(self.const.repeat(z.shape[0], 1, 1, 1), style)
        rgb = self.rgb1(x, style)
        for level in self.convs:
            assert isinstance(level, nn.ModuleList)
            up, conv, to_rgb = level
            x = conv(up(x, style), style)
            rgb = to_rgb(x, style, rgb)
        out: Tensor = rgb
        return out


# Flows and diffusion


class MaskedCoupling(nn.Module):
    """RealNVP's coupling behind a mask of every other number."""

    mask: Tensor

    def __init__(self, d: int, flip: int) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.arange(d) % 2 == flip).float())
        self.s = nn.Sequential(nn.Linear(d, 24), nn.LeakyReLU(), nn.Linear(24, d), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(d, 24), nn.LeakyReLU(), nn.Linear(24, d))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x_ = x * self.mask
        s = self.s(x_) * (1 - self.mask)
        t = self.t(x_) * (1 - self.mask)
        return x_ + (1 - self.mask) * (x * torch.exp(s) + t), s.sum(1)


class RealNvp(nn.Module):
    """RealNVP: four masked couplings and the sum of their log determinants."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MaskedCoupling(d, i % 2) for i in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, ld = layer(x)
            log_det = log_det + ld
        return x, log_det


def normalize(x: Tensor, dim: int | list[int] | None = None, eps: float = 1e-4) -> Tensor:
    """What has a root mean square of one over the dimensions, all but the first by default."""
    if dim is None:
        dim = list(range(1, x.ndim))
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float32)
    norm = torch.add(eps, norm, alpha=math.sqrt(norm.numel() / x.numel()))
    return x / norm.to(x.dtype)


def mp_silu(x: Tensor) -> Tensor:
    """A SiLU that keeps the magnitude."""
    return F.silu(x) / 0.596


def mp_sum(a: Tensor, b: Tensor, t: float = 0.5) -> Tensor:
    """A mixture of two tensors that keeps the magnitude."""
    return a.lerp(b, t) / math.sqrt((1 - t) ** 2 + t**2)


class MPConv(nn.Module):
    """EDM2's layer: its weight is brought to one length whenever it is used."""

    def __init__(self, i: int, o: int, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, *([k] * 2 if k else [])))

    def forward(self, x: Tensor, gain: float | Tensor = 1) -> Tensor:
        w = normalize(self.weight.float())
        w = (w * (gain / math.sqrt(w[0].numel()))).to(x.dtype)
        if w.ndim == 2:
            return x @ w.t()
        return F.conv2d(x, w, padding=w.shape[-1] // 2)


class Edm2Block(nn.Module):
    """EDM2's block: the state is normalised, branch and skip mixed at fixed magnitude."""

    def __init__(self, c: int, e: int) -> None:
        super().__init__()
        self.res0, self.res1, self.emb = MPConv(c, c, 3), MPConv(c, c, 3), MPConv(e, c, 0)
        self.emb_gain = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        x = normalize(x, dim=1)
        y = self.res0(mp_silu(x))
        c = self.emb(emb, gain=self.emb_gain) + 1
        y = mp_silu(y * c.unsqueeze(2).unsqueeze(3))
        y = F.dropout(y, 0.1, self.training)
        y = self.res1(y)
        return mp_sum(x, y, t=0.3)


class Edm2(nn.Module):
    """EDM2: magnitude-preserving blocks that the noise level conditions."""

    freqs: Tensor

    def __init__(self, c: int = WIDTH) -> None:
        super().__init__()
        self.inp, self.out = MPConv(4, c, 3), MPConv(c, 3, 3)
        self.noise = MPConv(c, c, 0)
        self.blocks = nn.ModuleList(Edm2Block(c, c) for _ in range(3))
        self.register_buffer("freqs", 2 * math.pi * torch.randn(c))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        emb = mp_silu(self.noise(torch.cos(sigma.log()[:, None] * self.freqs) * math.sqrt(2)))
        x = self.inp(torch.cat([x, torch.ones_like(x[:, :1])], 1))
        for b in self.blocks:
            x = b(x, emb)
        x = self.out(x)
        return x


class UResBlock(nn.Module):
    """A diffusion U-Net's block: norms, convolutions, the time between, a skip."""

    def __init__(self, i: int, o: int, e: int = WIDTH) -> None:
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.emb = nn.Linear(e, o)
        self.n2, self.c2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.c1(F.silu(self.n1(x)))
        h = h + self.emb(emb)[:, :, None, None]
        h = self.c2(F.silu(self.n2(h)))
        x = self.skip(x) + h
        return x


def zero(m: nn.Module) -> nn.Module:
    """The module, its parameters set to zero."""
    for p in m.parameters():
        nn.init.zeros_(p)
    return m


class ControlNet(nn.Module):
    """ControlNet: a U-Net, and a copy of its encoder that adds to its skips."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.time = nn.Linear(1, WIDTH)
        self.conv_in, self.b1, self.down, self.b2, self.mid = self.encoder(c)
        self.c_conv_in, self.c_b1, self.c_down, self.c_b2, self.c_mid = self.encoder(c)
        self.hint = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, c, 3, padding=1)
        )
        self.zeros = nn.ModuleList(zero(nn.Conv2d(c, c, 1)) for _ in range(3))
        self.u1, self.u2 = UResBlock(2 * c, c), UResBlock(2 * c, c)
        self.upconv = nn.Conv2d(c, c, 3, padding=1)
        self.out = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    @staticmethod
    def encoder(c: int) -> tuple[nn.Module, ...]:
        return (
            nn.Conv2d(3, c, 3, padding=1),
            UResBlock(c, c),
            nn.Conv2d(c, c, 3, 2, 1),
            UResBlock(c, c),
            UResBlock(c, c),
        )

    def forward(self, x: Tensor, t: Tensor, hint: Tensor) -> Tensor:
        emb = F.silu(self.time(t[:, None]))
        c = self.c_conv_in(x) + self.hint(hint)
        control = []
        c = self.c_b1(c, emb)
        control.append(self.zeros[0](c))
        c = self.c_b2(self.c_down(c), emb)
        control.append(self.zeros[1](c))
        c = self.c_mid(c, emb)
        control.append(self.zeros[2](c))
        hs = []
        h = self.b1(self.conv_in(x), emb)
        hs.append(h)
        h = self.b2(self.down(h), emb)
        hs.append(h)
        h = self.mid(h, emb)
        h = h + control.pop()
        h = self.u1(torch.cat([h, hs.pop() + control.pop()], 1), emb)
        h = self.upconv(F.interpolate(h, scale_factor=2, mode="nearest"))
        h = self.u2(torch.cat([h, hs.pop() + control.pop()], 1), emb)
        x = self.out(h)
        return x


# Speech


class TasBlock(nn.Module):
    """Conv-TasNet's block: a residual output and one that is summed over blocks."""

    def __init__(self, c: int, h: int, s: int, dilation: int, last: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(c, h, 1),
            nn.PReLU(),
            nn.GroupNorm(1, h, eps=1e-8),
            nn.Conv1d(h, h, 3, padding=dilation, dilation=dilation, groups=h),
            nn.PReLU(),
            nn.GroupNorm(1, h, eps=1e-8),
        )
        self.res = None if last else nn.Conv1d(h, c, 1)
        self.skip = nn.Conv1d(h, s, 1)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        y = self.body(x)
        return (None if self.res is None else self.res(y)), self.skip(y)


class ConvTasNet(nn.Module):
    """Conv-TasNet: a mask for each speaker from dilated blocks."""

    def __init__(self, n: int = 16, c: int = 8, layers: int = 4, speakers: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, n, 8, 4, bias=False)
        self.decoder = nn.ConvTranspose1d(n, 1, 8, 4, bias=False)
        self.norm, self.bottleneck = nn.GroupNorm(1, n), nn.Conv1d(n, c, 1)
        self.blocks = nn.ModuleList(
            TasBlock(c, 16, c, 2**i, i == layers - 1) for i in range(layers)
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(c, speakers * n, 1), nn.Sigmoid())
        self.speakers, self.n = speakers, n

    def forward(self, wave: Tensor) -> Tensor:
        w = self.encoder(wave)
        x = self.bottleneck(self.norm(w))
        out = 0.0
        for block in self.blocks:
            residual, skip = block(x)
            if residual is not None:
                x = x + residual
            out = out + skip
        m = self.mask(out).view(len(w), self.speakers, self.n, -1)
        masked = w.unsqueeze(1) * m
        y = self.decoder(masked.flatten(0, 1))
        result: Tensor = y.view(len(w), self.speakers, -1)
        return result


class HifiResBlock(nn.Module):
    """HiFi-GAN's residual block of dilated convolutions."""

    def __init__(self, c: int, k: int, dilations: tuple[int, ...] = (1, 3)) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(nn.Conv1d(c, c, k, dilation=d, padding=d * (k - 1) // 2)) for d in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(nn.Conv1d(c, c, k, padding=(k - 1) // 2)) for _ in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for c1, c2 in zip(self.convs1, self.convs2, strict=True):
            xt = F.leaky_relu(x, 0.1)
            xt = c1(xt)
            xt = F.leaky_relu(xt, 0.1)
            xt = c2(xt)
            x = xt + x
        return x


class HifiGan(nn.Module):
    """HiFi-GAN's generator: residual blocks of several sizes side by side, their mean."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.pre = nn.Conv1d(8, c, 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(c // 2**i, c // 2 ** (i + 1), 4, 2, 1) for i in range(2)
        )
        self.resblocks = nn.ModuleList(
            HifiResBlock(c // 2 ** (i + 1), k) for i in range(2) for k in (3, 5)
        )
        self.post = nn.Conv1d(c // 4, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre(x)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            xs = self.resblocks[2 * i](x)
            xs += self.resblocks[2 * i + 1](x)
            x = xs / 2
        return torch.tanh(self.post(F.leaky_relu(x)))


class TDNN(nn.Module):
    """A convolution over time, a ReLU, a batch norm."""

    def __init__(self, i: int, o: int, k: int = 1, d: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(i, o, k, padding=d * (k - 1) // 2, dilation=d)
        self.norm = nn.BatchNorm1d(o)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(self.conv(x)))
        return x


class Res2Conv(nn.Module):
    """Res2Net's groups over time, each computed from the one before."""

    def __init__(self, c: int, scale: int = 4, d: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TDNN(c // scale, c // scale, 3, d) for _ in range(scale - 1))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        y = []
        for i, x_i in enumerate(torch.chunk(x, self.scale, dim=1)):
            if i == 0:
                y_i = x_i
            elif i == 1:
                y_i = self.blocks[0](x_i)
            else:
                y_i = self.blocks[i - 1](x_i + y_i)
            y.append(y_i)
        return torch.cat(y, dim=1)


class SERes2(nn.Module):
    """ECAPA-TDNN's block: Res2Net's groups between two layers, then a gate."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.tdnn1, self.res2, self.tdnn2 = TDNN(c, c), Res2Conv(c), TDNN(c, c)
        self.se1, self.se2 = nn.Conv1d(c, 4, 1), nn.Conv1d(4, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.tdnn2(self.res2(self.tdnn1(x)))
        s = x.mean(2, keepdim=True)
        x = torch.sigmoid(self.se2(F.relu(self.se1(s)))) * x
        return x + residual


class Ecapa(nn.Module):
    """ECAPA-TDNN: three blocks, all of them read, statistics weighted by attention."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([TDNN(10, c, 5), *[SERes2(c) for _ in range(3)]])
        self.mfa = TDNN(3 * c, 2 * c)
        self.att = nn.Sequential(nn.Conv1d(2 * c, 8, 1), nn.Tanh(), nn.Conv1d(8, 2 * c, 1))
        self.bn, self.fc = nn.BatchNorm1d(4 * c), nn.Linear(4 * c, 12)

    def forward(self, x: Tensor) -> Tensor:
        xl = []
        for layer in self.blocks:
            x = layer(x)
            xl.append(x)
        x = self.mfa(torch.cat(xl[1:], 1))
        a = self.att(x).softmax(2)
        mean = (a * x).sum(2)
        std = torch.sqrt((a * (x - mean.unsqueeze(2)).pow(2)).sum(2).clamp(1e-9))
        x = self.fc(self.bn(torch.cat((mean, std), 1)))
        return x


class CSGU(nn.Module):
    """The convolutional spatial gating unit."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d // 2)
        self.conv = nn.Conv1d(d // 2, d // 2, 3, padding=1, groups=d // 2)

    def forward(self, x: Tensor) -> Tensor:
        r, g = x.chunk(2, -1)
        g = self.conv(self.norm(g).transpose(1, 2)).transpose(1, 2)
        x = r * g
        return x


class EBranchformerLayer(nn.Module):
    """E-Branchformer's layer: attention beside a gated MLP, merged by convolution."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norms = nn.ModuleDict(
            {n: nn.LayerNorm(d) for n in ("ff1", "mha", "mlp", "ff2", "final")}
        )
        self.ff1, self.ff2, self.attn = FeedForward(d, 2 * d), FeedForward(d, 2 * d), MultiHead(d)
        self.cgmlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), CSGU(4 * d), nn.Linear(2 * d, d))
        self.fusion = nn.Conv1d(2 * d, 2 * d, 3, padding=1, groups=2 * d)
        self.merge = nn.Linear(2 * d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.drop(self.ff1(self.norms["ff1"](x)))
        x1 = self.drop(self.attn(self.norms["mha"](x)))
        x2 = self.drop(self.cgmlp(self.norms["mlp"](x)))
        x_concat = torch.cat([x1, x2], dim=-1)
        x_tmp = self.fusion(x_concat.transpose(1, 2)).transpose(1, 2)
        x = x + self.drop(self.merge(x_concat + x_tmp))
        x = x + 0.5 * self.drop(self.ff2(self.norms["ff2"](x)))
        x = self.norms["final"](x)
        return x


# Language


class AdminLayer(nn.Module):
    """Admin's post-norm layer: the skip is scaled for each channel."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.attn, self.ff = MultiHead(d), FeedForward(d, 2 * d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.w1, self.w2 = (nn.Parameter(torch.full((d,), 1.5)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x * self.w1 + self.attn(x))
        x = self.n2(x * self.w2 + self.ff(x))
        return x


class Lm(nn.Module):
    """A language model with learned positions: blocks, a final norm or none."""

    def __init__(self, blocks: Iterable[nn.Module], final: bool = True, d: int = WIDTH) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, d)
        self.pos = nn.Parameter(0.02 * torch.randn(TOKENS, d))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(d) if final else nn.Identity()
        self.head = nn.Linear(d, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos
        for b in self.blocks:
            x = b(x)
        out: Tensor = self.head(self.norm(x))
        return out


class DenseFormer(nn.Module):
    """DenseFormer: behind each block a learned sum of all states so far."""

    def __init__(self, depth: int = 3, d: int = WIDTH) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, d)
        self.blocks = nn.ModuleList(PreBlock(causal=True) for _ in range(depth))
        self.alphas = nn.ParameterList(
            nn.Parameter(torch.tensor([0.1] * (i + 1) + [1.0])) for i in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        states = [x]
        for block, alpha in zip(self.blocks, self.alphas, strict=True):
            states.append(block(x))
            x = sum(a * s for a, s in zip(alpha, states, strict=True))
        out: Tensor = self.head(self.norm(x))
        return out


class HourglassTransformer(nn.Module):
    """Hourglass: the middle block sees pairs of tokens, and is added back."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, d)
        self.pre, self.middle, self.post = PreBlock(), PreBlock(), PreBlock()
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.pre(self.emb(ids))
        b, n, d = x.shape
        short = x.reshape(b, n // 2, 2, d).mean(2)
        short = self.middle(short)
        x = x + short.repeat_interleave(2, dim=1)
        x = self.post(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Canon(nn.Module):
    """A canon layer: a causal depthwise convolution over time, added to its input."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d, d, 4, groups=d, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return x


class CanonBlock(nn.Module):
    """A pre-norm block with canon layers behind its norms."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.canon_a, self.canon_c = Canon(), Canon()
        self.attn, self.ff = MultiHead(d, causal=True), FeedForward(d, 2 * d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.canon_a(self.n1(x)))
        x = x + self.ff(self.canon_c(self.n2(x)))
        return x


class ProductKeyMemory(nn.Module):
    """A product-key memory: a normed query picks a few of many values."""

    def __init__(
        self, d: int = WIDTH, keys: int = 6, k: int = 8, heads: int = 2, top: int = 3
    ) -> None:
        super().__init__()
        self.query = nn.Linear(d, heads * k)
        self.qn = nn.LayerNorm(k)
        self.keys = nn.Parameter(torch.randn(heads, 2, keys, k // 2) / math.sqrt(k))
        self.values = nn.Embedding(keys * keys, d)
        self.n, self.heads, self.k, self.top = keys, heads, k, top

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q = self.qn(self.query(x).view(b * t, self.heads, self.k))
        q1, q2 = q.chunk(2, -1)
        s1 = torch.einsum("nhd,hkd->nhk", q1, self.keys[:, 0])
        s2 = torch.einsum("nhd,hkd->nhk", q2, self.keys[:, 1])
        s1, i1 = s1.topk(self.top, -1)
        s2, i2 = s2.topk(self.top, -1)
        scores = (s1[..., :, None] + s2[..., None, :]).flatten(-2)
        index = (i1[..., :, None] * self.n + i2[..., None, :]).flatten(-2)
        scores, best = scores.topk(self.top, -1)
        index = index.gather(-1, best)
        w = scores.softmax(-1)
        out = F.embedding_bag(
            index.view(b * t, -1),
            self.values.weight,
            per_sample_weights=w.view(b * t, -1),
            mode="sum",
        )
        return out.view(b, t, d)


class PkmBlock(PreBlock):
    """A pre-norm block with a memory in place of its feed-forward."""

    def __init__(self) -> None:
        super().__init__(causal=True)
        self.ff = ProductKeyMemory()


class ResamplerLayer(nn.Module):
    """Perceiver resampler's layer: latents ask the media and themselves."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.nm, self.nl, self.attn = nn.LayerNorm(d), nn.LayerNorm(d), MultiHead(d)
        self.ff = nn.Sequential(nn.LayerNorm(d), FeedForward(d, 2 * d))

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        x, l = self.nm(x), self.nl(latents)
        latents = self.attn(l, torch.cat((x, l), 1)) + latents
        x = self.ff(latents) + latents
        return x


class GatedCross(nn.Module):
    """Flamingo's gated cross attention, whose gates start at zero."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d), MultiHead(d)
        self.ag = nn.Parameter(torch.tensor([0.0]))
        self.ff = nn.Sequential(nn.LayerNorm(d), FeedForward(d, 2 * d))
        self.fg = nn.Parameter(torch.tensor([0.0]))

    def forward(self, x: Tensor, media: Tensor) -> Tensor:
        x = self.attn(self.norm(x), media) * self.ag.tanh() + x
        x = self.ff(x) * self.fg.tanh() + x
        return x


class Flamingo(nn.Module):
    """Flamingo: a resampler of the media, gated layers in a frozen language model."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, d))
        self.proj = nn.Linear(12, d)
        self.resampler = nn.ModuleList(ResamplerLayer() for _ in range(2))
        self.rnorm = nn.LayerNorm(d)
        self.emb = nn.Embedding(VOCABULARY, d)
        self.cross = nn.ModuleList(GatedCross() for _ in range(2))
        self.blocks = nn.ModuleList(PreBlock(causal=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCABULARY)
        for m in (self.emb, self.blocks, self.norm, self.head):
            m.requires_grad_(False)

    def forward(self, ids: Tensor, media: Tensor) -> Tensor:
        m = self.proj(media)
        l = self.latents.expand(len(m), -1, -1)
        for layer in self.resampler:
            l = layer(m, l)
        l = self.rnorm(l)
        x = self.emb(ids)
        for cross, block in zip(self.cross, self.blocks, strict=True):
            x = block(cross(x, l))
        out: Tensor = self.head(self.norm(x))
        return out


class LadderSideTuning(nn.Module):
    """Ladder side-tuning: a small network reads every state of a frozen one."""

    def __init__(self, depth: int = 3, d: int = WIDTH, s: int = 8) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, d)
        self.blocks = nn.ModuleList(PreBlock() for _ in range(depth))
        self.emb.requires_grad_(False)
        self.blocks.requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(d, s) for _ in range(depth + 1))
        self.side = nn.ModuleList(PreBlock(s) for _ in range(depth))
        self.gate = nn.Parameter(torch.zeros(depth))
        self.norm, self.up, self.head = nn.LayerNorm(s), nn.Linear(s, d), nn.Linear(d, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(ids)
        side = self.down[0](h)
        for i, block in enumerate(self.blocks):
            h = block(h)
            mu = torch.sigmoid(self.gate[i] / 0.1)
            side = mu * side + (1 - mu) * self.down[i + 1](h)
            side = self.side[i](side)
        out: Tensor = self.head(self.up(self.norm(side)))
        return out


# Recurrence


class SRULayer(nn.Module):
    """A simple recurrent unit over time, and a highway around it."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.w = nn.Linear(d, 3 * d)

    def forward(self, x: Tensor) -> Tensor:
        u, f, r = self.w(x).chunk(3, -1)
        f, r = torch.sigmoid(f), torch.sigmoid(r)
        c = x.new_zeros(x.shape[0], x.shape[2])
        cs = []
        for t in range(x.shape[1]):
            c = f[:, t] * c + (1 - f[:, t]) * u[:, t]
            cs.append(c)
        c = torch.stack(cs, 1)
        return r * torch.tanh(c) + (1 - r) * x


class HandLstm(nn.Module):
    """An LSTM by hand, from zeros."""

    def __init__(self, i: int = 8, h: int = WIDTH) -> None:
        super().__init__()
        self.x2h, self.h2h, self.h = nn.Linear(i, 4 * h), nn.Linear(h, 4 * h), h
        self.out = nn.Linear(h, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], self.h)
        c = torch.zeros(x.shape[0], self.h)
        for t in range(x.shape[1]):
            i, f, g, o = (self.x2h(x[:, t]) + self.h2h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        x = self.out(h)
        return x


class DeltaNet(nn.Module):
    """The delta rule: a memory of keys and values, corrected at each step."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.beta, self.o = nn.Linear(d, 1), nn.Linear(d, d)
        self.norm = nn.RMSNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.silu(self.q(x)), F.silu(self.k(x)), F.silu(self.v(x))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        beta = torch.sigmoid(self.beta(x))
        s = x.new_zeros(x.shape[0], x.shape[2], x.shape[2])
        out = []
        for t in range(x.shape[1]):
            kt, vt = k[:, t], v[:, t]
            old = torch.einsum("bij,bj->bi", s, kt)
            s = s + torch.einsum("bi,bj->bij", beta[:, t] * (vt - old), kt)
            out.append(torch.einsum("bij,bj->bi", s, q[:, t]))
        x = self.o(self.norm(torch.stack(out, 1)))
        return x


class DeltaBlock(PreBlock):
    """A pre-norm block with the delta rule in place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = DeltaNet()


# Graphs and points


def adjacency(n: int) -> Tensor:
    """A ring's adjacency with loops, normalised by the degrees."""
    a = torch.eye(n) + torch.roll(torch.eye(n), 1, 0) + torch.roll(torch.eye(n), -1, 0)
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d


class Appnp(nn.Module):
    """APPNP: predictions, then their personalised propagation over a graph."""

    adj: Tensor

    def __init__(self, k: int = 4, alpha: float = 0.1, n: int = 8) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(10, WIDTH), nn.Linear(WIDTH, 5)
        self.k, self.alpha = k, alpha
        self.register_buffer("adj", adjacency(n))

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin2(F.relu(self.lin1(F.dropout(x, 0.5, self.training))))
        z = h
        for _ in range(self.k):
            z = (1 - self.alpha) * (self.adj @ z) + self.alpha * h
        return F.log_softmax(z, -1)


def edges(n: int) -> tuple[Tensor, Tensor]:
    """Both ends of every edge of a full graph."""
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    keep = i != j
    return i[keep], j[keep]


class PainnMessage(nn.Module):
    """PaiNN's message, to scalars and to vectors."""

    def __init__(self, f: int, rbf: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(f, f), nn.SiLU(), nn.Linear(f, 3 * f))
        self.filter = nn.Linear(rbf, 3 * f)

    def forward(
        self, s: Tensor, v: Tensor, i: Tensor, j: Tensor, rbf: Tensor, direction: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self.phi(s)[j] * self.filter(rbf)
        ds, dvv, dvr = x.chunk(3, -1)
        dv = v[j] * dvv.unsqueeze(-1) + dvr.unsqueeze(-1) * direction.unsqueeze(1)
        return torch.zeros_like(s).index_add(0, i, ds), torch.zeros_like(v).index_add(0, i, dv)


class PainnUpdate(nn.Module):
    """PaiNN's update, of scalars by the vectors' lengths, of vectors by gates."""

    def __init__(self, f: int) -> None:
        super().__init__()
        self.u, self.v = nn.Linear(f, f, bias=False), nn.Linear(f, f, bias=False)
        self.a = nn.Sequential(nn.Linear(2 * f, f), nn.SiLU(), nn.Linear(f, 3 * f))

    def forward(self, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        uv = self.u(v.transpose(1, 2)).transpose(1, 2)
        vv = self.v(v.transpose(1, 2)).transpose(1, 2)
        norm = torch.sqrt((vv**2).sum(-1) + 1e-8)
        avv, asv, ass = self.a(torch.cat([s, norm], -1)).chunk(3, -1)
        return ass + asv * (uv * vv).sum(-1), avv.unsqueeze(-1) * uv


class PaiNN(nn.Module):
    """PaiNN: three messages and updates of scalars and vectors, an energy."""

    def __init__(self, f: int = 12, rbf: int = 6, layers: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, f)
        self.messages = nn.ModuleList(PainnMessage(f, rbf) for _ in range(layers))
        self.updates = nn.ModuleList(PainnUpdate(f) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(f, f), nn.SiLU(), nn.Linear(f, 1))
        self.rbf = rbf

    def forward(self, z: Tensor, pos: Tensor) -> Tensor:
        i, j = edges(len(z))
        r = pos[j] - pos[i]
        d = r.norm(dim=-1, keepdim=True)
        direction = r / d
        rbf = torch.sin(torch.arange(1, self.rbf + 1) * math.pi * d / 5.0) / d
        s = self.emb(z)
        v = s.new_zeros(*s.shape, 3)
        for message, update in zip(self.messages, self.updates, strict=True):
            ds, dv = message(s, v, i, j, rbf, direction)
            s, v = s + ds, v + dv
            ds, dv = update(s, v)
            s, v = s + ds, v + dv
        out: Tensor = self.out(s).sum()
        return out


def normed_mlp(i: int, h: int, o: int) -> nn.Sequential:
    """Two layers and a layer norm behind them."""
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o), nn.LayerNorm(o))


class GraphNetBlock(nn.Module):
    """MeshGraphNet's block: edges first, then nodes, both with a skip."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.edge, self.node = normed_mlp(3 * d, d, d), normed_mlp(2 * d, d, d)

    def forward(self, x: Tensor, e: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        new_e = self.edge(torch.cat([x[i], x[j], e], -1))
        received = torch.zeros_like(x).index_add(0, i, new_e)
        new_x = self.node(torch.cat([x, received], -1))
        return x + new_x, e + new_e


class MeshGraphNet(nn.Module):
    """MeshGraphNet: encoders, three blocks on nodes and edges, a decoder."""

    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.enc_x, self.enc_e = normed_mlp(4, d, d), normed_mlp(3, d, d)
        self.blocks = nn.ModuleList(GraphNetBlock(d) for _ in range(3))
        self.dec = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 2))

    def forward(self, nodes: Tensor, edge_attr: Tensor) -> Tensor:
        i, j = edges(len(nodes))
        x, e = self.enc_x(nodes), self.enc_e(edge_attr)
        for block in self.blocks:
            x, e = block(x, e, i, j)
        out: Tensor = self.dec(x)
        return out


class ConvBnRelu1d(nn.Module):
    """A pointwise convolution, its batch norm, a ReLU."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.net(x)
        return x


class PointRes(nn.Module):
    """PointMLP's residual block."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.net1 = nn.Sequential(nn.Conv1d(c, c, 1), nn.BatchNorm1d(c), nn.ReLU(inplace=True))
        self.net2 = nn.Sequential(nn.Conv1d(c, c, 1), nn.BatchNorm1d(c))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.net2(self.net1(x)) + x)
        return x


class PointStage(nn.Module):
    """PointMLP's stage: neighbours relative to an anchor, blocks before and behind a maximum."""

    def __init__(self, i: int, o: int, groups: int, k: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, 1, 1, i))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, i))
        self.transfer, self.pre, self.pos = ConvBnRelu1d(2 * i, o), PointRes(o), PointRes(o)
        self.groups, self.k = groups, k

    def forward(self, xyz: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        b = len(xyz)
        center = xyz[:, : self.groups]
        idx = torch.cdist(center, xyz).topk(self.k, -1, largest=False).indices
        rows = torch.arange(b)[:, None, None]
        grouped, anchor = x[rows, idx], x[:, : self.groups].unsqueeze(2)
        std = torch.std((grouped - anchor).reshape(b, -1), dim=-1, keepdim=True)[..., None, None]
        grouped = (grouped - anchor) / (std + 1e-5)
        grouped = self.alpha * grouped + self.beta
        y = torch.cat([grouped, anchor.expand(-1, -1, self.k, -1)], -1)
        s, k, d = y.shape[1:]
        y = y.permute(0, 1, 3, 2).reshape(-1, d, k)
        y = self.pre(self.transfer(y))
        y = F.adaptive_max_pool1d(y, 1).view(b, s, -1).permute(0, 2, 1)
        y = self.pos(y)
        return center, y.permute(0, 2, 1)


class PointMLP(nn.Module):
    """PointMLP: two stages of fewer and fewer points."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = ConvBnRelu1d(3, 8)
        self.stages = nn.ModuleList([PointStage(8, 12, 6, 4), PointStage(12, 16, 3, 3)])
        self.head = nn.Sequential(
            nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4)
        )

    def forward(self, xyz: Tensor) -> Tensor:
        x = self.embed(xyz.transpose(1, 2)).transpose(1, 2)
        for stage in self.stages:
            xyz, x = stage(xyz, x)
        out: Tensor = self.head(x.max(1).values)
        return out


# Tables


class GhostNorm(nn.Module):
    """TabNet's batch norm over small parts of the batch."""

    def __init__(self, d: int, virtual: int = 4) -> None:
        super().__init__()
        self.bn, self.virtual = nn.BatchNorm1d(d), virtual

    def forward(self, x: Tensor) -> Tensor:
        chunks = x.chunk(math.ceil(x.shape[0] / self.virtual), 0)
        return torch.cat([self.bn(c) for c in chunks], dim=0)


class GluLayer(nn.Module):
    """A gated linear unit with a ghost norm; its layer may be shared."""

    def __init__(self, i: int, o: int, fc: nn.Linear | None = None) -> None:
        super().__init__()
        self.fc, self.bn, self.o = fc or nn.Linear(i, 2 * o, bias=False), GhostNorm(2 * o), o

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.fc(x))
        return x[:, : self.o] * torch.sigmoid(x[:, self.o :])


Shared = tuple[nn.Linear | None, nn.Linear | None]


class GluBlock(nn.Module):
    """Two gated linear units, each added to its input, times the root of a half."""

    def __init__(self, i: int, o: int, first: bool = False, shared: Shared = (None, None)) -> None:
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList([GluLayer(i, o, shared[0]), GluLayer(o, o, shared[1])])
        self.scale = math.sqrt(0.5)

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self.layers)
        if self.first:
            x = layers.pop(0)(x)
        for layer in layers:
            x = torch.add(x, layer(x))
            x = x * self.scale
        return x


def sparsemax(z: Tensor) -> Tensor:
    """The projection on the simplex, by sorting."""
    z = z - z.max(-1, keepdim=True).values
    s, _ = z.sort(-1, descending=True)
    k = torch.arange(1, z.shape[-1] + 1)
    cum = s.cumsum(-1) - 1
    support = (k * s > cum).sum(-1, keepdim=True)
    tau = cum.gather(-1, support - 1) / support
    return (z - tau).clamp(min=0)


class TabNet(nn.Module):
    """TabNet: three steps, each picks features by sparsemax and transforms them."""

    def __init__(self, i: int = 10, nd: int = 4, na: int = 4, steps: int = 3) -> None:
        super().__init__()
        o = nd + na
        self.nd, self.steps, self.gamma = nd, steps, 1.3
        self.bn = nn.BatchNorm1d(i, momentum=0.01)
        shared = (nn.Linear(i, 2 * o, bias=False), nn.Linear(o, 2 * o, bias=False))

        def ft() -> nn.Sequential:
            return nn.Sequential(GluBlock(i, o, True, shared), GluBlock(o, o))

        self.initial = ft()
        self.fts = nn.ModuleList(ft() for _ in range(steps))
        self.atts = nn.ModuleList(
            nn.Sequential(nn.Linear(na, i, bias=False), GhostNorm(i)) for _ in range(steps)
        )
        self.final = nn.Linear(nd, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(x)
        prior = torch.ones(x.shape)
        att = self.initial(x)[:, self.nd :]
        outputs = []
        for step in range(self.steps):
            m = sparsemax(self.atts[step](att) * prior)
            prior = prior * (self.gamma - m)
            out = self.fts[step](m * x)
            outputs.append(F.relu(out[:, : self.nd]))
            att = out[:, self.nd :]
        x = self.final(torch.sum(torch.stack(outputs, 0), 0))
        return x


class DcnV2(nn.Module):
    """DCN-V2: crossing layers beside a deep network."""

    def __init__(self, fields: int = 4, dense: int = 3, e: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, e) for _ in range(fields))
        n = fields * e + dense
        self.cross = nn.ModuleList(nn.Linear(n, n) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(n, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.out = nn.Linear(n + 16, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        x0 = torch.cat([*(t(ids[:, i]) for i, t in enumerate(self.tables)), dense], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(x0)], 1)))


class AutoIntLayer(nn.Module):
    """AutoInt's layer: attention between fields and a projected skip."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wr = (
            nn.Parameter(torch.randn(d, d) / math.sqrt(d)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.tensordot(x, w, dims=([-1], [0])) for w in (self.wq, self.wk, self.wv))
        q, k, v = (torch.stack(torch.split(t, WIDTH // HEADS, dim=2)) for t in (q, k, v))
        a = torch.einsum("hbik,hbjk->hbij", q, k).softmax(-1)
        y = torch.matmul(a, v)
        y = torch.cat(torch.split(y, 1), dim=-1).squeeze(0)
        y = y + torch.tensordot(x, self.wr, dims=([-1], [0]))
        return F.relu(y)


class AutoInt(nn.Module):
    """AutoInt: three layers of attention between embedded fields."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(AutoIntLayer() for _ in range(3))
        self.out = nn.Linear(5 * WIDTH, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for l in self.layers:
            x = l(x)
        out: Tensor = self.out(x.flatten(1))
        return out


# Planning, objects, refinement


class ZeroBlock(nn.Module):
    """MuZero's residual block."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return F.relu(out)


class MuZero(nn.Module):
    """MuZero unrolled: a representation, then one dynamics network three times."""

    def __init__(self, c: int = 8, unroll: int = 3) -> None:
        super().__init__()
        self.rep = nn.Sequential(
            nn.Conv2d(3, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            ZeroBlock(c),
            ZeroBlock(c),
        )
        self.conv, self.bn = nn.Conv2d(c + 1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.dyn = ZeroBlock(c)
        self.policy = nn.Sequential(
            nn.Conv2d(c, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 25, 4)
        )
        self.unroll = unroll

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        plane = action[:, None, None, None].expand(-1, 1, *state.shape[2:]) / 4
        x = self.bn(self.conv(torch.cat((state, plane), 1)))
        x += state
        out: Tensor = self.dyn(F.relu(x))
        return out

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        s = self.rep(obs)
        policies = [self.policy(s)]
        for t in range(self.unroll):
            s = self.dynamics(s, actions[:, t])
            policies.append(self.policy(s))
        return torch.stack(policies, 1)


class SlotAttention(nn.Module):
    """Slot attention: slots compete for the input and are updated by a GRU cell."""

    def __init__(self, slots: int = 3, d: int = WIDTH, iters: int = 3) -> None:
        super().__init__()
        self.slots, self.iters = slots, iters
        self.mu = nn.Parameter(torch.randn(1, 1, d))
        self.log_sigma = nn.Parameter(torch.zeros(1, 1, d))
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 24), nn.ReLU(), nn.Linear(24, d))
        self.norm_input, self.norm_slots, self.norm_ff = (nn.LayerNorm(d) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        b, _, d = inputs.shape
        slots = self.mu + self.log_sigma.exp() * torch.randn(b, self.slots, d)
        inputs = self.norm_input(inputs)
        k, v = self.k(inputs), self.v(inputs)
        for _ in range(self.iters):
            prev = slots
            q = self.q(self.norm_slots(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * d**-0.5
            attn = dots.softmax(dim=1) + 1e-8
            attn = attn / attn.sum(-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, attn)
            slots = self.gru(updates.reshape(-1, d), prev.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_ff(slots))
        return slots


class SepGru(nn.Module):
    """RAFT's convolutional GRU."""

    def __init__(self, h: int, i: int) -> None:
        super().__init__()
        self.z, self.r, self.q = (nn.Conv2d(h + i, h, 3, padding=1) for _ in range(3))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        hx = torch.cat([h, x], dim=1)
        z, r = torch.sigmoid(self.z(hx)), torch.sigmoid(self.r(hx))
        q = torch.tanh(self.q(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class Raft(nn.Module):
    """RAFT: correlations, then a recurrent unit that refines a flow."""

    def __init__(self, c: int = 8, iters: int = 3) -> None:
        super().__init__()
        self.fnet = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1)
        )
        self.cnet = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, padding=1)
        )
        self.start = nn.Conv2d(2 * c, 2, 3, padding=1)
        self.motion = nn.Sequential(nn.Conv2d(16 + 2, c, 3, padding=1), nn.ReLU())
        self.gru, self.iters = SepGru(c, 2 * c), iters
        self.head = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 2, 3, padding=1)
        )

    def forward(self, image1: Tensor, image2: Tensor) -> Tensor:
        f1, f2 = self.fnet(image1), self.fnet(image2)
        b, c, h, w = f1.shape
        corr = (
            (f1.flatten(2).transpose(1, 2) @ f2.flatten(2) / math.sqrt(c))
            .transpose(1, 2)
            .reshape(b, h * w, h, w)
        )
        net, inp = self.cnet(image1).chunk(2, 1)
        net, inp = torch.tanh(net), torch.relu(inp)
        flow = self.start(torch.cat([f1, f2], 1))
        flows = []
        for _ in range(self.iters):
            motion = self.motion(torch.cat([corr, flow], 1))
            net = self.gru(net, torch.cat([inp, motion], 1))
            flow = flow + self.head(net)
            flows.append(flow)
        return torch.stack(flows)


# Dynamics


class HamiltonianNet(nn.Module):
    """A Hamiltonian network: steps along the gradient of a learned energy."""

    def __init__(self, n: int = 4, steps: int = 3, dt: float = 0.1) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 2 * n), nn.Linear(2 * n, 3)
        self.energy = nn.Sequential(nn.Linear(2 * n, 16), nn.Tanh(), nn.Linear(16, 1))
        self.n, self.steps, self.dt = n, steps, dt

    def field(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            if not z.requires_grad:
                z = z.requires_grad_()
            g = torch.autograd.grad(self.energy(z).sum(), z, create_graph=True)[0]
        dq, dp = g.chunk(2, -1)
        return torch.cat([dp, -dq], -1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.enc(x)
        for _ in range(self.steps):
            z = z + self.dt * self.field(z)
        x = self.dec(z)
        return x


class MomentumNet(nn.Module):
    """A momentum ResNet: a velocity that forgets, and a state that it moves."""

    def __init__(self, depth: int = 4, gamma: float = 0.9, d: int = WIDTH) -> None:
        super().__init__()
        self.stem, self.head, self.gamma = nn.Linear(8, d), nn.Linear(d, 3), gamma
        self.functions = nn.ModuleList(
            nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        v = torch.zeros_like(x)
        for f in self.functions:
            v = self.gamma * v + (1 - self.gamma) * f(x)
            x = x + v
        x = self.head(x)
        return x


class PirateBlock(nn.Module):
    """PirateNet's block: two gates between fixed features, an adaptive skip."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.f, self.g, self.h = (nn.Linear(d, d) for _ in range(3))
        self.alpha = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        f = torch.tanh(self.f(x))
        z = f * u + (1 - f) * v
        g = torch.tanh(self.g(z))
        z = g * u + (1 - g) * v
        h = torch.tanh(self.h(z))
        return self.alpha * h + (1 - self.alpha) * x


class PirateNet(nn.Module):
    """PirateNet: random features, then blocks that start as the identity."""

    freq: Tensor

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.register_buffer("freq", torch.randn(2, d // 2))
        self.u, self.v = nn.Linear(d, d), nn.Linear(d, d)
        self.blocks = nn.ModuleList(PirateBlock(d) for _ in range(3))
        self.out = nn.Linear(d, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        p = x @ self.freq
        x = torch.cat([torch.cos(p), torch.sin(p)], -1)
        u, v = torch.tanh(self.u(x)), torch.tanh(self.v(x))
        for b in self.blocks:
            x = b(x, u, v)
        x = self.out(x)
        return x


def pictures(channels: int = 3, size: int = 8) -> Tensor:
    """A batch of small pictures."""
    return torch.randn(BATCH, channels, size, size)


def tokens() -> Tensor:
    """A batch of sequences of token numbers."""
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS))


def classifier(stem: nn.Module, *layers: nn.Module, width: int = WIDTH) -> nn.Sequential:
    """A stem, layers, the mean over pixels, logits."""
    return nn.Sequential(stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def nvae() -> nn.Module:
    """NVAE's cells between two convolutions."""
    stem = nn.Conv2d(3, WIDTH, 3, padding=1)
    return nn.Sequential(stem, *(NvaeCell(WIDTH) for _ in range(3)), nn.Conv2d(WIDTH, 3, 1))


def cmt() -> nn.Module:
    """CMT: a stem that halves the image, two blocks."""
    stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
    return classifier(stem, nn.GELU(), CmtBlock(), CmtBlock())


def fractalnet() -> nn.Module:
    """FractalNet: two fractals of three columns, a maximum between them."""
    return classifier(cbr(3, 8), Fractal(3, 8), nn.MaxPool2d(2), Fractal(3, 8), width=8)


def shake_shake() -> nn.Module:
    """Shake-Shake: three blocks behind a convolution."""
    stem = nn.Conv2d(3, WIDTH, 3, padding=1)
    return classifier(stem, *(ShakeBlock(WIDTH) for _ in range(3)), nn.ReLU())


def pyramidnet() -> nn.Module:
    """PyramidNet: each of four blocks has three channels more than the one before."""
    stem = nn.Conv2d(3, 8, 3, padding=1)
    blocks = [PyramidBlock(i, o) for i, o in pairwise([8, 11, 14, 17, 20])]
    return classifier(stem, *blocks, nn.BatchNorm2d(20), nn.ReLU(), width=20)


def yolo_csp() -> nn.Module:
    """YOLOv5's backbone of two stages."""
    return nn.Sequential(
        cbs(3, 8, 3),
        cbs(8, 16, 3, 2),
        C3(16, 16, 2),
        cbs(16, 24, 3, 2),
        C3(24, 24, 2),
        nn.Conv2d(24, 6, 1),
    )


def e_branchformer() -> nn.Module:
    """E-Branchformer: two layers between two linear ones."""
    return nn.Sequential(
        nn.Linear(10, WIDTH),
        EBranchformerLayer(),
        EBranchformerLayer(),
        nn.Linear(WIDTH, VOCABULARY),
    )


def sru() -> nn.Module:
    """A language model of three simple recurrent units."""
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        SRULayer(),
        SRULayer(),
        SRULayer(),
        nn.Linear(WIDTH, VOCABULARY),
    )


def slot_attention() -> nn.Module:
    """Slot attention between an encoder and a decoder of its slots."""
    return nn.Sequential(
        nn.Linear(6, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        SlotAttention(),
        nn.Linear(WIDTH, 4),
    )


_VISION = (
    Model(  # no norm behind the last convolution
        "nvae_cells",
        lambda: (nvae(), pictures()),
        (Stream(3, ("in", "inner")),),
    ),
    Model(  # the prior's features and the latent are added in one place
        "vdvae",
        lambda: (VdVae(), pictures()),
        (Stream(2), Stream(6, parallel=2)),
    ),
    Model(  # patches, then the class token, which is a parameter
        "cait",
        lambda: (CaiT(), images()),
        (Stream(4, ("in",)), Stream(4, ("in",))),
    ),
    Model(  # each resolution: attention, feed-forward and a cross attention, twice
        "crossvit",
        lambda: (CrossVit(), images()),
        (Stream(6, ("in", "inner")), Stream(6, ("in", "inner"))),
    ),
    Model(  # inner: the feed-forward adds its own depthwise layer
        "cmt",
        lambda: (cmt(), images()),
        (Stream(6, ("in", "inner", "out"), inner=2),),
    ),
    Model(  # the mean of two columns, neither of which is the input
        "fractalnet",
        lambda: (fractalnet(), pictures()),
        (PLAIN,),
    ),
    Model(  # two branches in one place; the transient stream has no skip
        "resnet_in_resnet",
        lambda: (Rir(), pictures()),
        (Stream(6, ("out",), parallel=3),),
    ),
    Model(
        "shake_shake",
        lambda: (shake_shake(), pictures()),
        (Stream(6, ("inner", "out"), parallel=3),),
    ),
    Model(
        "pyramidnet",
        lambda: (pyramidnet(), pictures()),
        (Stream(4, ("in", "inner", "out")),),
    ),
    Model(
        "yolo_csp",
        lambda: (yolo_csp(), images()),
        (Stream(4, ("inner", "out"), segments=2),),
    ),
    Model(  # the image, two levels down, two up on concatenations
        "vnet",
        lambda: (VNet(), pictures(1, 16)),
        (Stream(5, ("inner", "out")),),
    ),
    Model(  # inner: three blocks of two branches and the skip of the U-Net
        "nafnet",
        lambda: (NAFNet(), pictures()),
        (Stream(1, ("inner",), inner=7),),
    ),
    Model(  # a sum of outputs is no stream
        "stylegan2",
        lambda: (StyleGan2(), torch.randn(BATCH, 16)),
        (PLAIN,),
    ),
)

_FLOWS_AND_DIFFUSION = (
    Model("real_nvp", lambda: (RealNvp(), torch.randn(BATCH, 8)), (Stream(4, (), "gated"),)),
    Model(
        "edm2",
        lambda: (Edm2(), (pictures(), torch.rand(BATCH) + 0.5)),
        (Stream(3, ("stream",), "scaled"),),
    ),
    Model(  # the copy; the U-Net, with two projections behind concatenations
        "controlnet",
        lambda: (ControlNet(), (pictures(), torch.rand(BATCH), pictures(1))),
        (Stream(3, ("in", "inner")), Stream(5, ("in", "inner"), "mixed", projected=2)),
    ),
)

_SPEECH = (
    Model(  # the last block has no residual; the sum of the other outputs is no stream
        "conv_tasnet",
        lambda: (ConvTasNet(), torch.randn(BATCH, 1, 64)),
        (Stream(3, ("inner",)),),
    ),
    Model(  # two stages, two blocks side by side in each, two branches in each block
        "hifigan",
        lambda: (HifiGan(), torch.randn(BATCH, 8, 6)),
        (Stream(8),),
    ),
    Model(  # inner: in each block the third and the fourth group take in the group before
        "ecapa_tdnn",
        lambda: (Ecapa(), torch.randn(BATCH, 10, 12)),
        (Stream(3, ("inner", "out"), inner=6),),
    ),
    Model(  # inner: attention and gated MLP are added to their convolution
        "e_branchformer",
        lambda: (e_branchformer(), torch.randn(BATCH, 8, 10)),
        (Stream(6, ("in", "inner", "stream"), inner=2),),
    ),
)

_LANGUAGE = (
    Model(
        "admin",
        lambda: (Lm([AdminLayer() for _ in range(3)], final=False), tokens()),
        (Stream(6, ("stream",), "per-channel"),),
    ),
    Model(  # the last sum spans all; inner: three blocks of two and two earlier sums
        "denseformer",
        lambda: (DenseFormer(), tokens()),
        (Stream(1, ("in", "inner"), "scaled", inner=8),),
    ),
    Model(  # inner: the block on pairs of tokens, with the norms that make it ``inner``
        "hourglass_transformer",
        lambda: (HourglassTransformer(), tokens()),
        (Stream(5, ("in", "inner"), inner=2),),
    ),
    Model(
        "canon_layers",
        lambda: (Lm([CanonBlock() for _ in range(3)]), tokens()),
        (Stream(6, ("in",), inner=6),),
    ),
    Model(  # inner: the norm of the memory's query
        "product_key_memory",
        lambda: (
            Lm([PreBlock(causal=True), PkmBlock(), PreBlock(causal=True)]),
            tokens(),
        ),
        (Stream(6, ("in", "inner")),),
    ),
    Model(
        "flamingo",
        lambda: (Flamingo(), (tokens(), torch.randn(BATCH, 7, 12))),
        (Stream(4, ("in",)), Stream(8, ("in",))),
    ),
    Model(  # the frozen network, then the small one; what mixes them is no merge
        "ladder_side_tuning",
        lambda: (LadderSideTuning(), tokens()),
        (Stream(6, ("in",)), Stream(6, ("in",))),
    ),
)

_RECURRENT = (
    Model("sru", lambda: (sru(), tokens()), (Stream(3, (), "gated"),)),
    Model(  # of five steps the first starts at zeros
        "hand_lstm",
        lambda: (HandLstm(), torch.randn(BATCH, 5, 8)),
        (Stream(4, (), "gated"),),
    ),
    Model(
        "delta_net",
        lambda: (Lm([DeltaBlock(), DeltaBlock()]), tokens()),
        (Stream(4, ("in", "inner")),),
    ),
)

_GRAPHS_AND_POINTS = (
    Model(  # the first tensor is added four times: the last sum spans all
        "appnp",
        lambda: (Appnp(), torch.randn(8, 10)),
        (Stream(1, (), "scaled", inner=3),),
    ),
    Model(  # scalars; vectors, which start at zeros and whose last update leads nowhere
        "painn",
        lambda: (PaiNN(), (torch.randint(0, 10, (5,)), torch.randn(5, 3))),
        (Stream(6), Stream(4)),
    ),
    Model(  # nodes, whose branch passes the edges' norm; edges, whose last update leads nowhere
        "mesh_graph_net",
        lambda: (MeshGraphNet(), (torch.randn(5, 4), torch.randn(20, 3))),
        (Stream(3, ("inner", "out")), Stream(2, ("out",))),
    ),
    Model(
        "point_mlp",
        lambda: (PointMLP(), torch.randn(BATCH, 12, 3)),
        (Stream(4, ("inner", "out")),),
    ),
)

_TABLES = (
    Model(  # four transformers of three units with a skip
        "tabnet",
        lambda: (TabNet(), torch.randn(8, 10)),
        (Stream(12, ("out",)),),
    ),
    Model(
        "dcn_v2",
        lambda: (DcnV2(), (torch.randint(0, 12, (8, 4)), torch.randn(8, 3))),
        (Stream(3),),
    ),
    Model(
        "autoint",
        lambda: (AutoInt(), torch.randint(0, 40, (8, 5))),
        (Stream(3, (), "projected", projected=3),),
    ),
)

_REFINED_AND_DYNAMIC = (
    Model(  # the representation's two blocks, then three steps of two merges
        "muzero",
        lambda: (
            MuZero(),
            (torch.randn(BATCH, 3, 5, 5), torch.randint(0, 4, (BATCH, 3)).float()),
        ),
        (Stream(8, ("inner", "out")),),
    ),
    Model(
        "slot_attention",
        lambda: (slot_attention(), torch.randn(BATCH, 9, 6)),
        (Stream(6, ("in",), "mixed"),),
    ),
    Model(  # the recurrent unit's state, then the flow
        "raft",
        lambda: (Raft(), (pictures(), pictures())),
        (Stream(3, (), "gated"), Stream(3)),
    ),
    Model("hamiltonian", lambda: (HamiltonianNet(), torch.randn(BATCH, 6)), (Stream(3),)),
    Model(  # the state; the velocity, which starts at zeros
        "momentum_net",
        lambda: (MomentumNet(), torch.randn(BATCH, 8)),
        (Stream(4), Stream(3, (), "scaled")),
    ),
    Model(
        "pirate_net",
        lambda: (PirateNet(), torch.rand(8, 2)),
        (Stream(3, (), "scaled", inner=5),),
    ),
)

MODELS: tuple[Model, ...] = (
    *_VISION,
    *_FLOWS_AND_DIFFUSION,
    *_SPEECH,
    *_LANGUAGE,
    *_RECURRENT,
    *_GRAPHS_AND_POINTS,
    *_TABLES,
    *_REFINED_AND_DYNAMIC,
)
