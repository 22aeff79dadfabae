"""Nine networks whose true state is known: what a diagnosis has to tell apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, TOKENS, VOCABULARY = 64, 32, 100
HE = math.sqrt(2)


class Attention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape
        q, k, v = (
            y.reshape(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(y.transpose(1, 2).reshape(b, t, n))
        return out


class TransformerBlock(nn.Module):
    def __init__(self, post: bool) -> None:
        super().__init__()
        self.attention, self.post = Attention(), post
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x))
            out: Tensor = self.norm2(x + self.mlp(x))
            return out
        x = x + self.attention(self.norm1(x))
        out = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    def __init__(self, depth: int, post: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.embed, self.scale = nn.Embedding(VOCABULARY, WIDTH), scale
        self.place = nn.Parameter(0.5 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(TransformerBlock(post) for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = (self.embed(ids) + self.place[: ids.shape[1]]) * self.scale
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def mlp(
    depth: int,
    gain: float | None = None,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dead: int | None = None,
) -> nn.Sequential:
    """``gain``: the weights' standard deviation times sqrt(n), None for the framework's default;
    ``dead``: the layer whose units never open."""
    layers: list[nn.Module] = []
    for k in range(depth):
        layer = nn.Linear(WIDTH, WIDTH)
        if gain is not None:
            nn.init.normal_(layer.weight, std=gain / math.sqrt(WIDTH))
            nn.init.zeros_(layer.bias)
        if dead == k:
            nn.init.constant_(layer.bias, -1e3)
        layers += [layer, activation()]
    return nn.Sequential(*layers)


def rows() -> Tensor:
    return torch.randn(32, WIDTH)


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (8, TOKENS))


NINE: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]] = {
    "healthy pre-norm GPT": (lambda: GPT(12), tokens),
    "default initialisation": (lambda: mlp(48), rows),
    "1.5 times He": (lambda: mlp(48, 1.5 * HE), rows),
    "tanh of gain 4": (lambda: mlp(48, 4.0, nn.Tanh), rows),
    "one dead layer": (lambda: mlp(12, HE, dead=6), rows),
    "post-norm GPT": (lambda: GPT(48, post=True), tokens),
    "He, 48 layers": (lambda: mlp(48, HE), rows),
    "a stream of 1e5": (lambda: GPT(12, scale=1e5), tokens),
    "He, 300 layers": (lambda: mlp(300, HE), rows),
}
