"""Small modules that recipes are applied to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "DEPTH",
    "WIDTH",
    "gpt2",
    "grouped",
    "mlp",
    "postnorm",
    "preactivation",
    "relu_gpt2",
    "resnet",
    "transformer",
]

WIDTH, DEPTH = 24, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(WIDTH), nn.ReLU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.relu(self.up(self.norm(x))))
        return out


class Conv(nn.Module):
    """Post-activation, with a projected shortcut where it strides."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(entering, leaving, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(leaving, leaving, 3, 1, 1, bias=False)
        self.n, self.k = nn.BatchNorm2d(leaving), nn.BatchNorm2d(leaving)
        self.inner, self.outer = nn.ReLU(), nn.ReLU()
        self.shortcut = nn.Conv2d(entering, leaving, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.shortcut(x) + self.k(self.b(self.inner(self.n(self.a(x))))))
        return out


class Pre(nn.Module):
    """Pre-activation, basic or a bottleneck; a transition's shortcut is taken after the norm and
    the activation."""

    def __init__(self, entering: int, width: int, stride: int, transition: bool, deep: bool):
        super().__init__()
        leaving = 2 * width if deep else width
        kernels = (1, 3, 1) if deep else (3, 3)
        strides = (1, stride, 1) if deep else (stride, 1)
        sizes = (entering, *(width for _ in kernels[1:]), leaving)
        self.norms = nn.ModuleList(nn.BatchNorm2d(a) for a in sizes[:-1])
        self.acts = nn.ModuleList(nn.ReLU() for _ in kernels)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, s, k // 2, bias=False)
            for a, b, k, s in zip(sizes, sizes[1:], kernels, strides, strict=False)
        )
        self.shortcut = nn.Conv2d(entering, leaving, 1, stride) if transition else None

    def forward(self, x: Tensor) -> Tensor:
        out = first = self.acts[0](self.norms[0](x))
        for k, conv in enumerate(self.convs):
            out = conv(self.acts[k](self.norms[k](out)) if k else out)
        total: Tensor = out + (x if self.shortcut is None else self.shortcut(first))
        return total


def preactivation(
    stages: tuple[int, ...] = (2, 2), deep: bool = False, width: int = 8
) -> tuple[nn.Module, Any]:
    """A pre-activation ResNet with batch norm, each stage beginning with a transition."""
    torch.manual_seed(0)
    blocks, entering = [], width
    for stage, number in enumerate(stages):
        for block in range(number):
            stride = 2 if stage and not block else 1
            blocks.append(Pre(entering, width, stride, not block, deep))
            entering = 2 * width if deep else width
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, 3))
    model = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, *head)
    return model, torch.randn(4, 3, 8, 8)


class Grouped(nn.Module):
    """Pre-activation, not square: a grouped convolution, then a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.norm = nn.ReLU(), nn.ReLU(), nn.BatchNorm2d(8)
        self.up = nn.Conv2d(8, 24, 3, 1, 1, groups=4, bias=False)
        self.down = nn.ConvTranspose2d(24, 8, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.norm(self.down(self.relu(self.up(self.first(x)))))
        return total


def grouped() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    blocks = [Grouped() for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 6, 6)


def mlp() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


def resnet() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Conv(8, 8, 1), Conv(8, 16, 2), Conv(16, 16, 1)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 8, 8)


def gpt2(**options: Any) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 64}
    sizes |= {"n_positions": 32, "bos_token_id": 1, "eos_token_id": 1, **options}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    return model, {"input_ids": torch.randint(64, (2, 16))}


def relu_gpt2() -> tuple[nn.Module, Any]:
    return gpt2(activation_function="relu")


class PostBlock(nn.Module):
    """Norms after the sums, each a module; the sum of the second is what the module returns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(WIDTH), nn.ReLU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.down(self.relu(self.up(x))))
        return out


def postnorm() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [PostBlock() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


def transformer(encoder: int = 2, decoder: int = 2, pre: bool = False) -> tuple[nn.Module, Any]:
    """PyTorch's own, with attention in one function."""
    torch.manual_seed(0)
    model = nn.Transformer(
        32, 4, encoder, decoder, 64, dropout=0.0, batch_first=True, norm_first=pre
    )
    return model, (torch.randn(2, 6, 32), torch.randn(2, 5, 32))
