"""Ordinary models, small, in plain torch: what the tool must get right before anything odd.

The parts that several models share (attention, feed-forward, the stack) come first; each model then
stands beside what its definition says about its streams, in ``MODELS`` at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo import PLAIN, Model, Stream

__all__ = ["MODELS"]

BATCH = 4
TOKENS = 6
WIDTH = 16
HEADS = 2
VOCABULARY = 11
DEPTH = 3


def rows() -> Tensor:
    """A batch of vectors."""
    return torch.randn(BATCH, WIDTH)


def sequences() -> Tensor:
    """A batch of sequences of vectors."""
    return torch.randn(BATCH, TOKENS, WIDTH)


def tokens() -> Tensor:
    """A batch of sequences of token numbers."""
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS))


def images() -> Tensor:
    """A batch of colour images of 16 x 16."""
    return torch.randn(BATCH, 3, 16, 16)


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int = WIDTH, hidden: int = 2 * WIDTH) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Attention(nn.Module):
    """Self-attention with one layer for queries, keys and values."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


class SpelledAttention(nn.Module):
    """Causal attention as matrix products; the mask is an addition that is no merge."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((TOKENS, TOKENS), -1e9).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH / HEADS) + self.mask
        x = torch.softmax(scores, dim=-1) @ v
        x = self.out(x.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        return x


class Chain(nn.Module):
    """A stem, blocks in sequence, a last norm and a head."""

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        stem: nn.Module | None = None,
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH) if stem is None else stem
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm
        self.head = nn.Linear(WIDTH, 5) if head is None else head

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return x


class Decoder(Chain):
    """Token and position embedding, blocks, a last norm, logits."""

    def __init__(self, block: Callable[[], nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__(
            [block() for _ in range(DEPTH)],
            stem=nn.Embedding(VOCABULARY, WIDTH),
            norm=nn.LayerNorm(WIDTH) if norm is None else norm,
            head=nn.Linear(WIDTH, VOCABULARY, bias=False),
        )
        self.position = nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.position
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return x


class FunctionalMlp(nn.Module):
    """A multilayer perceptron whose activations are functions, not modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        x = self.head(x)
        return x


def mlp() -> nn.Module:
    """A multilayer perceptron with ReLU."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5))


def conv_norm(fan_in: int, fan_out: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch norm."""
    conv = nn.Conv2d(fan_in, fan_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(fan_out))


def pooled_head(width: int) -> nn.Sequential:
    """Global average pooling and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def cnn() -> nn.Module:
    """Convolutions, batch norm and ReLU in sequence, two of them strided."""
    widths = [(3, 16, 1), (16, 16, 2), (16, 24, 1), (24, 32, 2)]
    layers: list[nn.Module] = []
    for fan_in, fan_out, stride in widths:
        layers += [conv_norm(fan_in, fan_out, stride=stride), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, pooled_head(32))


def vgg() -> nn.Module:
    """Pairs of convolutions, max-pooling, and a classifier with dropout."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in [(3, 16), (16, 24), (24, 32)]:
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(fan_out, fan_out, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)]
    classifier = [nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 5)]
    return nn.Sequential(*layers, nn.Flatten(), *classifier)


class Recurrent(nn.Module):
    """An embedding, two recurrent layers of torch and a head on every step."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = layer(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.recurrent(self.embedding(x))
        x = self.head(x)
        return x


def encoder(norm_first: bool) -> nn.Module:
    """torch's own encoder on raw vectors: there is no stem, the stream begins at the input."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 2 * WIDTH, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(WIDTH) if norm_first else None
    return nn.TransformerEncoder(layer, DEPTH, norm, enable_nested_tensor=False)


def embedded_encoder(norm_first: bool) -> nn.Module:
    """torch's own encoder layers between an embedding and a head, without dropout."""

    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=norm_first
        )

    return Decoder(layer, nn.LayerNorm(WIDTH) if norm_first else nn.Identity())


def transformer(norm_first: bool) -> nn.Transformer:
    """torch's own encoder and decoder, each with a last norm."""
    return nn.Transformer(
        WIDTH,
        HEADS,
        num_decoder_layers=DEPTH,
        dim_feedforward=2 * WIDTH,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, batch_first=True, norm_first=norm_first
            ),
            DEPTH,
            nn.LayerNorm(WIDTH),
            enable_nested_tensor=False,
        ),
        batch_first=True,
        norm_first=norm_first,
    )


class Translator(nn.Module):
    """torch's pre-norm Transformer with embeddings, positions, a causal mask and logits."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.body = transformer(norm_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source(source) + self.position
        y = self.target(target) + self.position
        logits: Tensor = self.head(self.body(x, y, tgt_mask=self.mask))
        return logits


def decoder() -> nn.Module:
    """torch's own decoder; the memory is an input and no stream."""
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    return nn.TransformerDecoder(layer, DEPTH)


class GptBlock(nn.Module):
    """The pre-norm block: attention, then feed-forward."""

    def __init__(
        self,
        attention: Callable[[], nn.Module] = lambda: Attention(causal=True),
        mlp: Callable[[], nn.Module] = FeedForward,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class BertBlock(nn.Module):
    """The post-norm block: the norm bounds the stream after each sum."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.mlp = FeedForward()
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        x = self.norm2(x + self.mlp(x))
        return x


class RmsNorm(nn.Module):
    """The RMS norm by hand: no operation in it is called a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding by hand: its sum is no merge."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + rotated * sin


class RotaryAttention(nn.Module):
    """Causal attention with rotated queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        x = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


class SwiGlu(nn.Module):
    """A gated feed-forward: the product of two layers, then a third."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(F.silu(self.gate(x)) * self.up(x))
        return x


class LlamaBlock(nn.Module):
    """RMS norms by hand, rotary attention, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = RmsNorm()
        self.attention = RotaryAttention()
        self.norm2 = RmsNorm()
        self.mlp = SwiGlu()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class GptjBlock(nn.Module):
    """Attention and feed-forward read one norm and are added in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(causal=True)
        self.mlp = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed) + self.mlp(normed)
        return x


class SandwichBlock(nn.Module):
    """A norm before and a norm after each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.attention = Attention(causal=True)
        self.mlp = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        x = x + self.norms[3](self.mlp(self.norms[2](x)))
        return x


class BasicBlock(nn.Module):
    """The ResNet block: two convolutions, a projected skip where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_norm(fan_in, fan_out, stride=stride)
        self.second = conv_norm(fan_out, fan_out)
        self.relu = nn.ReLU(inplace=True)
        self.skip: nn.Module | None = None
        if stride != 1 or fan_in != fan_out:
            self.skip = conv_norm(fan_in, fan_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.relu(self.first(x)))
        out += x if self.skip is None else self.skip(x)
        out = self.relu(out)
        return out


class Bottleneck(nn.Module):
    """The ResNet bottleneck: 1 x 1, 3 x 3 and 1 x 1 convolutions."""

    def __init__(self, fan_in: int, fan_out: int, stride: int = 1) -> None:
        super().__init__()
        hidden = fan_out // 4
        self.first = conv_norm(fan_in, hidden, 1)
        self.second = conv_norm(hidden, hidden, 3, stride)
        self.third = conv_norm(hidden, fan_out, 1)
        self.relu = nn.ReLU(inplace=True)
        self.skip: nn.Module | None = None
        if stride != 1 or fan_in != fan_out:
            self.skip = conv_norm(fan_in, fan_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.first(x))
        out = self.third(self.relu(self.second(out)))
        out += x if self.skip is None else self.skip(x)
        out = self.relu(out)
        return out


class PreActivation(nn.Module):
    """Norm and ReLU come first; where the shape changes, branch and skip both read their result."""

    def __init__(self, fan_in: int, fan_out: int, stride: int = 1) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(fan_in)
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.skip: nn.Module | None = None
        if stride != 1 or fan_in != fan_out:
            self.skip = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        skip = x if self.skip is None else self.skip(active)
        x = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return x + skip


def resnet(block: Callable[[int, int, int], nn.Module], stem_norm: bool = True) -> nn.Module:
    """A stem and three stages of two blocks."""
    stages = [(16, 16, 1), (16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]
    conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    stem = nn.Sequential(conv_norm(3, 16), nn.ReLU(inplace=True)) if stem_norm else conv
    norm = nn.Identity() if stem_norm else nn.Sequential(nn.BatchNorm2d(32), nn.ReLU())
    return Chain([block(*stage) for stage in stages], stem, norm, pooled_head(32))


def bottleneck_resnet() -> nn.Module:
    """A stem and three stages of two bottlenecks; every first one projects."""
    stages = [(16, 32, 1), (32, 32, 1), (32, 48, 2), (48, 48, 1), (48, 64, 2), (64, 64, 1)]
    stem = nn.Sequential(conv_norm(3, 16), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return Chain([Bottleneck(*stage) for stage in stages], stem, head=pooled_head(64))


def isotropic_preactivation() -> nn.Module:
    """A pre-activation net of one width and one size: every skip is an identity."""
    stem = nn.Conv2d(3, 16, 3, 2, 1)
    norm = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU())
    return Chain([PreActivation(16, 16) for _ in range(4)], stem, norm, pooled_head(16))


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """Depthwise convolution, norm, two linear layers on the channels, LayerScale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Two stages of two blocks; a norm and a strided convolution break the stream between them."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 2, 2), ChannelNorm(16))
    down = nn.Sequential(ChannelNorm(16), nn.Conv2d(16, 24, 2, 2))
    blocks = [ConvNextBlock(16), ConvNextBlock(16), down, ConvNextBlock(24), ConvNextBlock(24)]
    head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 5))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Chain(blocks, stem, pool, head)


class InvertedResidual(nn.Module):
    """The MobileNet block; it has a skip only where the shape stays."""

    def __init__(self, fan_in: int, fan_out: int, stride: int = 1) -> None:
        super().__init__()
        hidden = 2 * fan_in
        self.skip = stride == 1 and fan_in == fan_out
        self.layers = nn.Sequential(
            nn.Conv2d(fan_in, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(inplace=True),
            nn.Conv2d(hidden, fan_out, 1, bias=False),
            nn.BatchNorm2d(fan_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.skip else y


def mobilenet() -> nn.Module:
    """Five inverted residuals, of which the second, the fourth and the fifth have a skip."""
    stages = [(16, 24, 1), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 32, 1)]
    stem = nn.Sequential(conv_norm(3, 16, stride=2), nn.SiLU())
    return Chain([InvertedResidual(*stage) for stage in stages], stem, head=pooled_head(32))


class MixerBlock(nn.Module):
    """A feed-forward over tokens, then one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.over_tokens = FeedForward(TOKENS, 2 * TOKENS)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.over_channels = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.over_channels(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    """Patches by convolution, a class token in front, positions added, pre-norm blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, WIDTH))
        self.blocks = nn.ModuleList(GptBlock(Attention) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x)[:, 0])
        return x


class NormedResidual(nn.Module):
    """Group norm, SiLU and convolution, twice, beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layers(x)
        return x


def conv_relu(fan_in: int, fan_out: int) -> nn.Sequential:
    """A convolution and a ReLU, nothing beside them."""
    return nn.Sequential(nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    """Three levels; ``block`` stands once on each level of the way down and of the way up.

    The skips are concatenations and no merges. A strided and a transposed convolution, and the
    convolution that takes in the concatenation, have nothing beside them.
    """

    def __init__(self, block: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down1 = nn.Conv2d(16, 24, 3, 2, 1)
        self.down2 = nn.Conv2d(24, 32, 3, 2, 1)
        self.blocks = nn.ModuleList(block(width) for width in (16, 24, 32, 24, 16))
        self.up2 = nn.ConvTranspose2d(32, 24, 2, 2)
        self.fuse2 = nn.Conv2d(48, 24, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(24, 16, 2, 2)
        self.fuse1 = nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](self.stem(x))
        second = self.blocks[1](self.down1(first))
        x = self.blocks[2](self.down2(second))
        x = self.blocks[3](self.fuse2(torch.cat([self.up2(x), second], dim=1)))
        x = self.blocks[4](self.fuse1(torch.cat([self.up1(x), first], dim=1)))
        x = self.head(x)
        return x


class DenseLayer(nn.Module):
    """The DenseNet layer: what it computes is set beside its input, not added to it."""

    def __init__(self, width: int, growth: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], dim=1)


def densenet() -> nn.Module:
    """Two dense blocks of three layers with a transition between them."""
    transition = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.AvgPool2d(2))
    layers = [DenseLayer(8), DenseLayer(16), DenseLayer(24), transition]
    layers = [*layers, DenseLayer(16), DenseLayer(24), DenseLayer(32)]
    norm = nn.Sequential(nn.BatchNorm2d(40), nn.ReLU())
    return Chain(layers, nn.Conv2d(3, 8, 3, 2, 1), norm, pooled_head(40))


class InceptionBlock(nn.Module):
    """Four parallel paths whose results are concatenated."""

    def __init__(self, fan_in: int) -> None:
        super().__init__()
        self.one = nn.Sequential(conv_norm(fan_in, 8, 1), nn.ReLU())
        self.three = nn.Sequential(conv_norm(fan_in, 6, 1), nn.ReLU(), conv_norm(6, 8), nn.ReLU())
        self.five = nn.Sequential(conv_norm(fan_in, 4, 1), nn.ReLU(), conv_norm(4, 8, 5), nn.ReLU())
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(fan_in, 8, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def inception() -> nn.Module:
    """Three inception blocks after a strided stem."""
    stem = nn.Sequential(conv_norm(3, 16, stride=2), nn.ReLU())
    return Chain(
        [InceptionBlock(16), InceptionBlock(32), InceptionBlock(32)], stem, None, pooled_head(32)
    )


class MambaBlock(nn.Module):
    """A selective state space by hand: the scan adds over time, which is no merge.

    With ``direct`` the scan's input is added to its output, gained per channel: a merge inside
    the branch.
    """

    def __init__(self, direct: bool, state: int = 4) -> None:
        super().__init__()
        hidden = 2 * WIDTH
        self.norm = nn.LayerNorm(WIDTH)
        self.in_proj = nn.Linear(WIDTH, 2 * hidden, bias=False)
        self.conv = nn.Conv1d(hidden, hidden, 3, padding=2, groups=hidden)
        self.x_proj = nn.Linear(hidden, 1 + 2 * state, bias=False)
        self.dt_proj = nn.Linear(1, hidden)
        self.a_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(hidden, 1))
        self.direct = nn.Parameter(torch.ones(hidden)) if direct else None
        self.out_proj = nn.Linear(hidden, WIDTH, bias=False)
        self.state = state

    def scan(self, u: Tensor) -> Tensor:
        step, b, c = self.x_proj(u).split([1, self.state, self.state], dim=-1)
        step = F.softplus(self.dt_proj(step))
        decay = torch.exp(-step[..., None] * self.a_log.exp())
        inflow = (step * u)[..., None] * b[:, :, None, :]
        h = torch.zeros_like(inflow[:, 0])
        outputs = []
        for t in range(u.shape[1]):
            h = decay[:, t] * h + inflow[:, t]
            outputs.append((h * c[:, t, None, :]).sum(-1))
        y = torch.stack(outputs, dim=1)
        return y if self.direct is None else y + self.direct * u

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        u = self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + self.out_proj(self.scan(F.silu(u)) * F.silu(gate))
        return x


class LinearAttention(nn.Module):
    """Gated linear attention: a matrix state that decays and takes in key times value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.decay = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        decay = torch.sigmoid(self.decay(x))
        state = x.new_zeros(len(x), WIDTH, WIDTH)
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t, :, None] * state + k[:, t, :, None] * v[:, t, None, :]
            outputs.append(torch.einsum("bk,bkv->bv", q[:, t], state))
        x = self.out(torch.stack(outputs, dim=1))
        return x


class Experts(nn.Module):
    """The two best of four experts for each token: gathered, weighted, summed by index.

    The sum over experts starts from zeros and is no merge; the router only gives weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(FeedForward() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = torch.softmax(self.router(flat), dim=-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            where, rank = torch.nonzero(chosen == index, as_tuple=True)
            out.index_add_(0, where, weights[where, rank, None] * expert(flat[where]))
        return out.view_as(x)


class ConvGru(nn.Module):
    """A convolutional GRU: the hidden state begins at the first frame and is gated at each other.

    Written out, the state is a stream over time: ``h = (1 - z) * h + z * candidate(frame, h)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.gates = nn.Conv2d(19, 32, 3, padding=1)
        self.candidate = nn.Conv2d(19, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, frames: Tensor) -> Tensor:
        h: Tensor = self.stem(frames[:, 0])
        for t in range(1, frames.shape[1]):
            both = torch.cat([frames[:, t], h], dim=1)
            reset, update = torch.sigmoid(self.gates(both)).chunk(2, dim=1)
            new = torch.tanh(self.candidate(torch.cat([frames[:, t], reset * h], dim=1)))
            h = (1 - update) * h + update * new
        h = self.head(h)
        return h


def autoencoder() -> nn.Module:
    """Strided convolutions to a code and transposed ones back."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(384, 16),
        nn.Linear(16, 384),
        nn.Unflatten(1, (24, 4, 4)),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 16, 2, 2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 2, 2),
    )


class Pooled(nn.Module):
    """The mean over tokens, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.out(x.mean(dim=1))
        return x


def mixer() -> nn.Module:
    """An MLP-Mixer on tokens that are given."""
    return Chain([MixerBlock() for _ in range(DEPTH)], None, nn.LayerNorm(WIDTH), Pooled())


RECURRENT = (
    "Inside the layer a state is gated and added to over time: a tool that opens the layer may "
    "answer one gated stream of a branch a step for each layer, and says that it runs over time."
)

ATTENTION_AND_MLP = (2, 2) * DEPTH
RESNET = Stream(6, ("inner", "out"), "mixed", projected=2, m=(2,) * 6, segments=1)

MODELS: tuple[Model, ...] = (
    Model("mlp", lambda: (mlp(), rows()), (PLAIN,)),
    Model("mlp_functional", lambda: (FunctionalMlp(), rows()), (PLAIN,)),
    Model("cnn", lambda: (cnn(), images()), (PLAIN,)),
    Model("vgg", lambda: (vgg(), images()), (PLAIN,)),
    Model("lstm", lambda: (Recurrent(nn.LSTM), tokens()), (PLAIN,), limits=RECURRENT),
    Model("gru", lambda: (Recurrent(nn.GRU), tokens()), (PLAIN,), limits=RECURRENT),
    Model(
        "encoder_post",
        lambda: (encoder(norm_first=False), sequences()),
        (Stream(6, ("stream",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "encoder_pre",
        lambda: (encoder(norm_first=True), sequences()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "encoder_post_embedded",
        lambda: (embedded_encoder(norm_first=False), tokens()),
        (Stream(6, ("stream",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "encoder_pre_embedded",
        lambda: (embedded_encoder(norm_first=True), tokens()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "encoder_pre_eval",
        lambda: (encoder(norm_first=True), sequences()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
        training=False,
    ),
    Model(
        "transformer_post",
        lambda: (transformer(norm_first=False), (sequences(), sequences())),
        (Stream(6, ("stream",), segments=1), Stream(9, ("stream",), segments=1)),
    ),
    Model(
        "transformer_pre",
        lambda: (Translator(), (tokens(), tokens())),
        (Stream(6, ("in",), segments=1), Stream(9, ("in",), segments=1)),
    ),
    Model(
        "decoder_post",
        lambda: (decoder(), (sequences(), sequences())),
        (Stream(9, ("stream",), segments=1),),
    ),
    Model(
        "gpt",
        lambda: (Decoder(GptBlock), tokens()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "gpt_spelled",
        lambda: (Decoder(lambda: GptBlock(SpelledAttention)), tokens()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "bert",
        lambda: (Decoder(BertBlock, nn.Identity()), tokens()),
        (Stream(6, ("stream",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "llama",
        lambda: (
            Chain(
                [LlamaBlock() for _ in range(DEPTH)],
                nn.Embedding(VOCABULARY, WIDTH),
                RmsNorm(),
                nn.Linear(WIDTH, VOCABULARY, bias=False),
            ),
            tokens(),
        ),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "gptj",
        lambda: (Decoder(GptjBlock), tokens()),
        (Stream(6, ("in",), parallel=3, m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "sandwich",
        lambda: (Decoder(SandwichBlock), tokens()),
        (Stream(6, ("in", "out"), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model("resnet_basic", lambda: (resnet(BasicBlock), images()), (RESNET,)),
    Model("resnet_basic_eval", lambda: (resnet(BasicBlock), images()), (RESNET,), training=False),
    Model(
        "resnet_bottleneck",
        lambda: (bottleneck_resnet(), images()),
        (Stream(6, ("inner", "out"), "mixed", projected=3, m=(3,) * 6, segments=1),),
    ),
    Model(
        # Branch and projection of a stage's first block both read the normed stream.
        "resnet_preactivation",
        lambda: (resnet(PreActivation, stem_norm=False), images()),
        (Stream(6, ("in", "inner"), "mixed", projected=2, m=(2,) * 6, segments=1),),
    ),
    Model(
        "resnet_preactivation_isotropic",
        lambda: (isotropic_preactivation(), images()),
        (Stream(4, ("in", "inner"), m=(2,) * 4, segments=1),),
    ),
    Model(
        "convnext",
        lambda: (convnext(), images()),
        (Stream(4, ("inner",), m=(3,) * 4, segments=2),),
    ),
    Model(
        "mobilenet",
        lambda: (mobilenet(), images()),
        (Stream(3, ("inner", "out"), m=(3,) * 3, segments=2),),
    ),
    Model(
        "mixer",
        lambda: (mixer(), sequences()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    Model(
        "vit",
        lambda: (VisionTransformer(), images()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "unet_residual",
        lambda: (UNet(NormedResidual), images()),
        (Stream(5, ("in", "inner"), m=(2,) * 5, segments=5),),
    ),
    Model(
        "unet_plain",
        lambda: (UNet(lambda width: conv_relu(width, width)), images()),
        (PLAIN,),
    ),
    Model("densenet", lambda: (densenet(), images()), (PLAIN,)),
    Model("inception", lambda: (inception(), images()), (PLAIN,)),
    Model(
        "mamba",
        lambda: (Decoder(lambda: MambaBlock(direct=False)), tokens()),
        (Stream(3, ("in",), segments=1),),
    ),
    Model(
        "mamba_direct",
        lambda: (Decoder(lambda: MambaBlock(direct=True)), tokens()),
        (Stream(3, ("in",), inner=3, segments=1),),
    ),
    Model(
        "gated_linear_attention",
        lambda: (Decoder(lambda: GptBlock(LinearAttention)), tokens()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "mixture_of_experts",
        lambda: (Decoder(lambda: GptBlock(mlp=Experts)), tokens()),
        (Stream(6, ("in",), m=ATTENTION_AND_MLP, segments=1),),
    ),
    Model(
        "conv_gru",
        lambda: (ConvGru(), torch.randn(BATCH, 5, 3, 8, 8)),
        (Stream(4, (), "gated", segments=1),),
    ),
    Model("autoencoder", lambda: (autoencoder(), images()), (PLAIN,)),
)
