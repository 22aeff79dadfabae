"""Models that are odd on purpose: each holds one trap for a tool that looks for streams.

A model's docstring says the trap; ``MODELS`` at the end says what its definition has. Where several
traps need no more than another sum, they share ``Merged``.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import PLAIN, Model, Stream
from benchmarks.zoo.plain import (
    BATCH,
    HEADS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    Attention,
    Chain,
    Decoder,
    FeedForward,
    GptBlock,
    Pooled,
    RmsNorm,
    conv_norm,
    images,
    pooled_head,
    rotate,
    rows,
    sequences,
    tokens,
)

__all__ = ["MODELS"]

DEPTH = 4
Merge = Callable[[Tensor, Tensor], Tensor]


def sides() -> Tensor:
    """A batch of conditions, of half the width."""
    return torch.randn(BATCH, WIDTH // 2)


def labels() -> Tensor:
    """A batch of class numbers."""
    return torch.randint(0, 5, (BATCH,))


def normed(branch: nn.Module) -> nn.Sequential:
    """A layer norm before the branch."""
    return nn.Sequential(nn.LayerNorm(WIDTH), branch)


class Merged(nn.Module):
    """A feed-forward branch and its input, put together by ``merge``."""

    def __init__(self, merge: Merge = torch.add, branch: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = FeedForward() if branch is None else branch
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(x, self.branch(x))


def chain(block: Callable[[], nn.Module], depth: int = DEPTH) -> Chain:
    """Blocks on vectors or sequences, between a linear stem and a linear head."""
    return Chain([block() for _ in range(depth)])


def image_chain(block: Callable[[], nn.Module], depth: int = DEPTH) -> Chain:
    """Blocks on feature maps of 16 channels and 8 x 8."""
    stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
    return Chain([block() for _ in range(depth)], stem, head=pooled_head(WIDTH))


# Other spellings of the sum


class InPlace(nn.Module):
    """``x += f(x)``: the tensor that is the stream is written over."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x += self.branch(0.5 * x)  # the product, so that no layer keeps what is written over
        return x


def added_to_branch(x: Tensor, y: Tensor) -> Tensor:
    """The stream is added in place to the branch's output."""
    y += x
    return y


def gained(x: Tensor, y: Tensor) -> Tensor:
    """The stream enters with a constant factor, by ``alpha`` on the second operand."""
    return torch.add(y, x, alpha=0.5)


def stacked(x: Tensor, y: Tensor) -> Tensor:
    """The sum is a reduction over a new axis."""
    return torch.stack([x, y]).sum(0)


def accumulated(x: Tensor, y: Tensor) -> Tensor:
    """The sum is the last term of a running sum."""
    return torch.stack([x, y]).cumsum(0)[-1]


def unfolded(x: Tensor, y: Tensor) -> Tensor:
    """Concatenated, but then summed over what was concatenated: a merge."""
    return torch.cat([x, y], dim=-1).view(*x.shape[:-1], 2, -1).sum(-2)


def python_sum(x: Tensor, y: Tensor) -> Tensor:
    """Python's ``sum``, which starts from the number 0."""
    total = sum([x, y])
    assert isinstance(total, Tensor)
    return total


def reduced(x: Tensor, y: Tensor) -> Tensor:
    """The sum by ``functools.reduce``."""
    return functools.reduce(operator.add, [x, y])


def contracted(x: Tensor, y: Tensor) -> Tensor:
    """The sum is a contraction with two constant coefficients."""
    return torch.einsum("k,k...->...", torch.tensor([0.9, 0.5]), torch.stack([x, y]))


def masked_sum(x: Tensor, y: Tensor) -> Tensor:
    """The sum is taken where a constant mask says so; elsewhere the stream stays."""
    return torch.where(torch.arange(x.shape[-1]) % 2 == 0, x + y, x)


def selected(x: Tensor, y: Tensor) -> Tensor:
    """A constant mask selects the stream or the branch: nothing is added."""
    return torch.where(torch.arange(x.shape[-1]) % 2 == 0, x, y)


def half_assigned(x: Tensor, y: Tensor) -> Tensor:
    """Half of the channels are updated, by assignment to a slice."""
    out = x.clone()
    out[..., : WIDTH // 2] = x[..., : WIDTH // 2] + y[..., : WIDTH // 2]
    return out


class Lerp(nn.Module):
    """``lerp`` from the stream to the branch with a weight that is computed from the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.branch(x), torch.sigmoid(self.gate(x)))


class Addcmul(nn.Module):
    """``addcmul``: product and sum in one operation; the product is the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, torch.sigmoid(self.gate(x)), self.branch(x))


class Addmm(nn.Module):
    """``addmm`` or ``baddbmm``: the branch's last layer and the sum are one operation."""

    def __init__(self, batched: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Parameter(torch.randn(2 * WIDTH, WIDTH) / math.sqrt(2 * WIDTH))
        self.batched = batched

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x))
        if self.batched:
            return torch.baddbmm(x, hidden, self.down.expand(len(x), -1, -1))
        return torch.addmm(x, hidden, self.down)


class SomeTokens(nn.Module):
    """Three of six tokens go through the branch and are added back by index.

    ``how``: ``index_add``, ``scatter_add`` or ``index_put``.
    """

    chosen: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.how = how
        self.register_buffer("chosen", torch.tensor([0, 2, 5]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x[:, self.chosen])
        if self.how == "index_add":
            return x.index_add(1, self.chosen, y)
        if self.how == "scatter_add":
            return x.scatter_add(1, self.chosen[None, :, None].expand_as(y), y)
        batch = torch.arange(len(x))[:, None]
        return x.index_put((batch, self.chosen[None]), y, accumulate=True)


class InHook(FeedForward):
    """The sum stands in a forward hook; the module's own code has none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, inputs, output: output + inputs[0])


class Residual(nn.Sequential):
    """A subclass of ``Sequential`` that adds its input."""

    def forward(self, input: Tensor) -> Tensor:
        x = input
        for layer in self:
            x = layer(x)
        return input + x


class Shortcut(nn.Module):
    """The skip is a module, an identity."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Identity()
        self.branch = FeedForward()
        self.after = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.shortcut(x) + self.branch(x))
        return x


# Kinds of skip


class Coefficient(nn.Module):
    """A learned factor on the branch or on the skip."""

    def __init__(self, on: str, start: float, size: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.factor = nn.Parameter(torch.full(size, start))
        self.on = on

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + self.factor * y if self.on == "branch" else self.factor * x + y


class DeepNorm(nn.Module):
    """``norm(a * x + f(x))``: a constant factor on the skip, a norm on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.norm = nn.LayerNorm(WIDTH)
        self.factor = (2 * DEPTH) ** 0.25

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.factor * x + self.branch(x))
        return x


class NormedSkip(nn.Module):
    """The norm stands on the skip alone; the branch reads the stream as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) + self.branch(x)
        return x


class OutNorm(nn.Module):
    """``x + norm(f(x))``, called post-norm too; the norm does not bound the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(Attention(), nn.LayerNorm(WIDTH))
        self.mlp = nn.Sequential(FeedForward(), nn.LayerNorm(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        x = x + self.mlp(x)
        return x


class Highway(nn.Module):
    """``t * f(x) + (1 - t) * x`` with the gate ``t`` computed from ``x``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.layer(x)) + (1 - gate) * x


class GatedUnit(nn.Module):
    """The GRU's update over depth: ``(1 - z) * x + z * tanh(W(r * x))``."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(WIDTH, 2 * WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        reset, update = torch.sigmoid(self.gates(x)).chunk(2, dim=-1)
        return (1 - update) * x + update * torch.tanh(self.layer(reset * x))


class CellOverDepth(nn.Module):
    """One ``GRUCell`` runs six times on the same condition; its state is the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.cell = nn.GRUCell(WIDTH // 2, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(6):
            x = self.cell(condition, x)
        x = self.head(x)
        return x


class CellAsSum(nn.Module):
    """A ``GRUCell`` in place of the sum: the branch is its input, the stream its state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.branch = FeedForward()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cell(self.branch(self.norm(x)), x)
        return x


class Concatenated(nn.Module):
    """``W(cat(x, f(x)))``: nothing is added, a linear layer mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(torch.cat([x, self.branch(x)], dim=-1))
        return x


class RepVggBlock(nn.Module):
    """Two convolutions and a norm of the input: two branches in one place, a normed skip."""

    def __init__(self) -> None:
        super().__init__()
        self.three = conv_norm(WIDTH, WIDTH, 3)
        self.one = conv_norm(WIDTH, WIDTH, 1)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.three(x) + self.one(x) + self.norm(x))


class PaddedSkip(nn.Module):
    """Where the shape changes, the skip takes every second pixel and pads channels with zeros."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(fan_in, fan_out, stride=stride)
        self.second = conv_norm(fan_out, fan_out)
        self.stride = stride
        self.more = fan_out - fan_in

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.first(x)))
        skip = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(skip + y)


def padded() -> nn.Module:
    """Five blocks, two of which halve the size."""
    stages = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]
    return Chain([PaddedSkip(*s) for s in stages], conv_norm(3, 16), head=pooled_head(32))


class Reversible(nn.Module):
    """``y1 = x1 + f(x2)``, ``y2 = x2 + g(y1)`` on the halves of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = FeedForward(WIDTH // 2, WIDTH)
        self.second = FeedForward(WIDTH // 2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        left = left + self.first(right)
        right = right + self.second(left)
        return torch.cat([left, right], dim=-1)


class ReversibleHalves(nn.Module):
    """The halves are split once, before the first block, and joined after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.first = nn.ModuleList(FeedForward(WIDTH // 2, WIDTH) for _ in range(DEPTH))
        self.second = nn.ModuleList(FeedForward(WIDTH // 2, WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=-1)
        for f, g in zip(self.first, self.second, strict=True):
            left = left + f(right)
            right = right + g(left)
        x = self.head(torch.cat([left, right], dim=-1))
        return x


class HyperConnections(nn.Module):
    """Two copies of the stream, mixed by a learned matrix before the branch is added to both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(normed(FeedForward()) for _ in range(DEPTH))
        self.read = nn.Parameter(torch.full((DEPTH, 2), 0.5))
        self.write = nn.Parameter(torch.ones(DEPTH, 2))
        self.mix = nn.Parameter(torch.eye(2).repeat(DEPTH, 1, 1))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        copies: Tensor = self.stem(x)[:, None].expand(-1, 2, -1)
        for l, branch in enumerate(self.branches):
            y = branch(torch.einsum("k,bkn->bn", self.read[l], copies))
            mixed = torch.einsum("jk,bkn->bjn", self.mix[l], copies)
            copies = mixed + self.write[l][:, None] * y[:, None]
        x = self.head(copies.sum(1))
        return x


# Executions


class Tied(nn.Module):
    """One block, run ``times`` times."""

    def __init__(self, block: nn.Module, times: int) -> None:
        super().__init__()
        self.block = block
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


def weight_normed() -> nn.Module:
    """A block whose layers norm their weights: that is no norm on the way of the state."""
    up, down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    return Merged(branch=nn.Sequential(weight_norm(up), nn.Tanh(), weight_norm(down)))


class Twice(nn.Module):
    """One submodule stands in two sums."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(x)
        x = x + self.branch(x)
        return x


class SharedLayer(nn.Module):
    """One layer stands twice in one branch: two weight layers in series."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer(torch.relu(self.layer(x)))
        return x


class StochasticDepth(nn.Module):
    """In training a fixed mask drops the branch for one example of four; in evaluation for none."""

    keep: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.register_buffer("keep", torch.tensor([[1.0], [0.0], [1.0], [1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y * self.keep / 0.75 if self.training else x + y


class LayerDrop(nn.Module):
    """In training the second and the fifth of six blocks do not run."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(6))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            if not (self.training and index % 3 == 1):
                x = block(x)
        x = self.head(x)
        return x


class EarlyExit(nn.Module):
    """Blocks are called by index, and the loop ends before the last two."""

    def __init__(self, exit_at: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(5))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(5))
        self.exit_at = exit_at

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        index = 0
        while index < self.exit_at:
            x = self.blocks[index](x)
            index += 1
        x = self.heads[index - 1](x)
        return x


class Siamese(nn.Module):
    """One net runs on two inputs: the same modules, two streams; their difference is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.net = chain(Merged)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        difference: Tensor = self.net(first) - self.net(second)
        return difference.pow(2).sum(-1)


# Opaque or unusual nodes


class Checkpointed(nn.Module):
    """Each block is recomputed in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 5)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        x = self.head(x)
        return x


class Square(torch.autograd.Function):
    """The squared ReLU with its own backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0).square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inner: Tensor = gradients[0] * 2 * x.clamp(min=0)
        return inner


class CustomActivation(nn.Module):
    """The activation is a custom function."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
        return y


class TwoLayers(torch.autograd.Function):
    """``tanh(x @ first) @ second`` as one node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        hidden = torch.tanh(x @ first)
        ctx.save_for_backward(x, first, second, hidden)
        return hidden @ second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, first, second, hidden = ctx.saved_tensors
        inner = (gradients[0] @ second.T) * (1 - hidden.square())
        return inner @ first.T, x.T @ inner, hidden.T @ gradients[0]


class CustomBranch(nn.Module):
    """The whole branch is one custom function of the state and two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))
        self.second = nn.Parameter(torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + TwoLayers.apply(x, self.first, self.second)  # type: ignore[no-untyped-call]
        return x


class Scriptable(nn.Module):
    """A block that TorchScript can read."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.tanh(self.up(x)))
        return x


def two_layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A branch as a function, for TorchScript."""
    return torch.matmul(torch.tanh(torch.matmul(x, first)), second)


def scripted(what: Any) -> Any:
    """TorchScript of a module or a function; torch warns that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(what)  # type: ignore[no-untyped-call, unused-ignore]


class ScriptedBranch(nn.Module):
    """The branch is a scripted function; the sum is not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))
        self.second = nn.Parameter(torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))
        self.branch = scripted(two_layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(x, self.first, self.second)
        return x


class FunctionalCall(nn.Module):
    """The block runs with weights that were computed from its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Merged()

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: 0.9 * value for name, value in self.block.named_parameters()}
        x = torch.func.functional_call(self.block, weights, (x,))
        return x


class Vmapped(nn.Module):
    """The branch is mapped over the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.func.vmap(self.branch)(x)
        return x


# Nesting and numerical schemes


class ResidualInResidual(nn.Module):
    """``x + 0.2 * body(x)``; the body has three residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Merged(), Merged(), Merged())

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.2 * self.body(x)
        return x


class LongSkip(nn.Module):
    """The state after the first of four blocks is added again after the last.

    The sum after the last block has blocks two to four in its branch: their merges are inner.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        x = self.head(first + x)
        return x


class LinkNet(nn.Module):
    """A U-Net whose two skips are sums: the deeper merge lies in the branch of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(16, 24, 3, 2, 1), nn.Conv2d(24, 32, 3, 2, 1)])
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(32, 24, 2, 2), nn.ConvTranspose2d(24, 16, 2, 2)]
        )
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        kept = []
        for down in self.down:
            kept.append(x)
            x = torch.relu(down(x))
        x = torch.relu(self.middle(x))
        for up in self.up:
            x = kept.pop() + torch.relu(up(x))
        x = self.head(x)
        return x


class Denoiser(nn.Module):
    """``x - f(x)``, where ``x`` is the image itself and ``f`` five convolutions in sequence."""

    def __init__(self) -> None:
        super().__init__()
        middle = [nn.Sequential(conv_norm(16, 16), nn.ReLU()) for _ in range(3)]
        first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.noise = nn.Sequential(first, *middle, nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.noise(x)
        return x


class Solver(nn.Module):
    """A tied function integrated over depth, by Euler's or Runge and Kutta's method.

    A Runge-Kutta step has four terms; in three of them a state is moved by the term before.
    """

    def __init__(self, steps: int, order: int) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.f = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 5)
        self.steps = steps
        self.order = order

    def step(self, x: Tensor, h: float) -> Tensor:
        k1: Tensor = self.f(x)
        if self.order == 1:
            return x + h * k1
        k2: Tensor = self.f(x + h / 2 * k1)
        k3: Tensor = self.f(x + h / 2 * k2)
        k4: Tensor = self.f(x + h * k3)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(self.steps):
            x = self.step(x, 1 / self.steps)
        x = self.head(x)
        return x


# Several streams and side paths


class CrossAttention(nn.Module):
    """One sequence asks, another answers."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q = self.q(x)[:, None]
        k, v = self.kv(memory)[:, None].chunk(2, dim=-1)
        x = self.out(F.scaled_dot_product_attention(q, k, v)[:, 0])
        return x


class TwoStreamLayer(nn.Module):
    """Each stream attends to the other, then has a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.attention = nn.ModuleList(CrossAttention() for _ in range(2))
        self.mlps = nn.ModuleList(normed(FeedForward()) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention[0](self.norms[0](x), self.norms[1](y))
        y = y + self.attention[1](self.norms[2](y), self.norms[3](x))
        x = x + self.mlps[0](x)
        y = y + self.mlps[1](y)
        return x, y


class TwoStreams(nn.Module):
    """Two streams that attend to each other in both directions, and meet only in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Linear(WIDTH, WIDTH)
        self.text = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(TwoStreamLayer() for _ in range(3))
        self.head = nn.Linear(2 * WIDTH, 5)

    def forward(self, pictures: Tensor, text: Tensor) -> Tensor:
        x, y = self.pictures(pictures), self.text(text)
        for layer in self.layers:
            x, y = layer(x, y)
        logits: Tensor = self.head(torch.cat([x.mean(1), y.mean(1)], dim=-1))
        return logits


class Perceiver(nn.Module):
    """The stream begins at a parameter; the input is only attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))
        self.attention = nn.ModuleList(CrossAttention() for _ in range(DEPTH))
        self.mlps = nn.ModuleList(normed(FeedForward()) for _ in range(DEPTH))
        self.head = Pooled()

    def forward(self, inputs: Tensor) -> Tensor:
        memory = self.stem(inputs)
        x: Tensor = self.latents.expand(len(inputs), -1, -1)
        for norm, attention, mlp in zip(self.norms, self.attention, self.mlps, strict=True):
            x = x + attention(norm(x), memory)
            x = x + mlp(x)
        x = self.head(x)
        return x


class ValueResidual(nn.Module):
    """The first layer's values are added to the values of all later layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.mlps = nn.ModuleList(normed(FeedForward()) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        first: Tensor | None = None
        for norm, qkv, out, mlp in zip(self.norms, self.qkv, self.out, self.mlps, strict=True):
            q, k, v = qkv(norm(x))[:, None].chunk(3, dim=-1)
            if first is None:
                first = v
            else:
                v = v + first
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
            x = x + mlp(x)
        x = self.head(x)
        return x


class RepeatedPosition(nn.Module):
    """One position table is added to the stream before every layer: a sum that is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(GptBlock(Attention) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x + self.position)
        x = self.head(x)
        return x


class SharedBias(nn.Module):
    """One table of relative positions is added to the scores of every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, WIDTH)
        self.bias = nn.Embedding(2 * TOKENS - 1, HEADS)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mlps = nn.ModuleList(normed(FeedForward()) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        place = torch.arange(TOKENS)
        bias = self.bias(place[:, None] - place + TOKENS - 1).permute(2, 0, 1)
        for norm, qkv, out, mlp in zip(self.norms, self.qkv, self.out, self.mlps, strict=True):
            q, k, v = qkv(norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            x = x + out(y.transpose(1, 2).flatten(2))
            x = x + mlp(x)
        x = self.head(x)
        return x


class WaveNet(nn.Module):
    """Every layer gives to the stream and to a sum of outputs; that sum is no stream.

    The last layer gives to the outputs alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, WIDTH)
        self.filters = nn.ModuleList(
            nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=2**l, padding=2**l) for l in range(4)
        )
        self.residual = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3))
        self.outputs = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(4))
        self.head = nn.Conv1d(WIDTH, VOCABULARY, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).transpose(1, 2)
        given = torch.zeros_like(x)
        for l, layer in enumerate(self.filters):
            value, gate = layer(x)[..., :TOKENS].chunk(2, dim=1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            given = given + self.outputs[l](y)
            if l < len(self.residual):
                x = x + self.residual[l](y)
        x = self.head(torch.relu(given))
        return x


class ClassTokenOnly(nn.Module):
    """Only the class token is updated; it asks all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = CrossAttention()
        self.mlp = normed(FeedForward())

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = torch.cat([x[:, :1] + self.attention(y[:, :1], y), x[:, 1:]], dim=1)
        x = torch.cat([x[:, :1] + self.mlp(x[:, :1]), x[:, 1:]], dim=1)
        return x


class TokenMerging(nn.Module):
    """Two stages; between them two tokens become one, with a norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.first = nn.ModuleList(GptBlock(Attention) for _ in range(2))
        self.merge = nn.Sequential(nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))
        self.second = nn.ModuleList(GptBlock(Attention) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = Pooled()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.first:
            x = block(x)
        x = self.merge(x.reshape(len(x), TOKENS // 2, 2 * WIDTH))
        for block in self.second:
            x = block(x)
        x = self.head(self.norm(x))
        return x


class Messages(nn.Module):
    """Messages along the edges of a graph are summed by index into zeros, then added."""

    source: Tensor
    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("source", torch.tensor([0, 1, 1, 2, 3, 4, 5, 5]))
        self.register_buffer("target", torch.tensor([1, 0, 2, 3, 4, 5, 0, 3]))

    def forward(self, x: Tensor) -> Tensor:
        sent = self.layer(x)[:, self.source]
        received = torch.zeros_like(x).index_add(1, self.target, sent)
        return x + torch.relu(received)


# Norms that are no modules


def hand_norm(x: Tensor) -> Tensor:
    """Layer norm by hand: ``x - mean`` is no merge."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def var_mean_norm(x: Tensor) -> Tensor:
    """Layer norm by hand from ``var_mean``."""
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def weightless_norm(x: Tensor) -> Tensor:
    """The functional layer norm without weights."""
    return F.layer_norm(x, (WIDTH,))


def scale_norm(x: Tensor) -> Tensor:
    """The direction of the state, at a fixed length."""
    return math.sqrt(WIDTH) * F.normalize(x, dim=-1)


class HandNormed(nn.Module):
    """A norm that is a function, on the branch's input or on the stream."""

    def __init__(self, norm: Callable[[Tensor], Tensor], on_stream: bool = False) -> None:
        super().__init__()
        self.branch = FeedForward()
        self.norm = norm
        self.on_stream = on_stream

    def forward(self, x: Tensor) -> Tensor:
        if self.on_stream:
            return self.norm(x + self.branch(x))
        x = x + self.branch(self.norm(x))
        return x


class DyT(nn.Module):
    """``gain * tanh(a * x) + shift``, which stands where a norm would."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.tanh(self.factor * x) + self.shift


class NormedQueries(nn.Module):
    """Norms on queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm = nn.LayerNorm(WIDTH // HEADS)
        self.k_norm = nn.LayerNorm(WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


# Sums that are no merges, and branches with something in them


class AdaptiveNorm(nn.Module):
    """A condition gives shift, scale and gate; the shift is added and is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Linear(WIDTH // 2, 6 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.attention = Attention()
        self.mlp = FeedForward()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.condition(F.silu(condition))[:, None].chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attention(self.norm(x) * (1 + scale1) + shift1)
        x = x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)
        return x


class Film(nn.Module):
    """A condition scales and shifts the feature maps between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Linear(WIDTH // 2, 2 * WIDTH)
        self.first = conv_norm(WIDTH, WIDTH)
        self.second = conv_norm(WIDTH, WIDTH)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.condition(condition)[:, :, None, None].chunk(2, dim=1)
        x = x + self.second(torch.relu((1 + scale) * self.first(x) + shift))
        return x


class Conditioned(nn.Module):
    """A stem, blocks that take a condition, a head."""

    def __init__(self, stem: nn.Module, block: Callable[[], nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = head

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, condition)
        x = self.head(x)
        return x


class ParallelConvolutions(nn.Module):
    """Two convolutions of different sizes, each with its ReLU, summed: there is no skip."""

    def __init__(self) -> None:
        super().__init__()
        self.three = conv_norm(WIDTH, WIDTH, 3)
        self.five = conv_norm(WIDTH, WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.three(x)) + torch.relu(self.five(x))


class ExpertSum(nn.Module):
    """All experts run; their weighted sum is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(FeedForward() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), dim=-1)
        out: Tensor = weights[..., :1] * self.experts[0](x)
        for index in (1, 2):
            out = out + weights[..., index : index + 1] * self.experts[index](x)
        return out


class RotaryWithoutSkip(nn.Module):
    """Rotary attention and a ReLU with nothing beside them: the only sums are the rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        return torch.relu(F.scaled_dot_product_attention(rotate(q), rotate(k), v)[:, 0])


class Rounded(nn.Module):
    """Activations are rounded, with the gradient of the identity: a sum that is no merge."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.round(4 * x) / 4 - x).detach()


class LowRank(nn.Module):
    """A frozen layer and a low-rank update of it, summed: no merge, for neither is the input."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(fan_in, fan_out).requires_grad_(False)
        self.down = nn.Linear(fan_in, 2, bias=False)
        self.up = nn.Linear(2, fan_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) + 2.0 * self.up(self.down(x))
        return x


def low_rank() -> nn.Module:
    """A residual block whose two layers have low-rank updates."""
    branch = nn.Sequential(LowRank(WIDTH, 2 * WIDTH), nn.GELU(), LowRank(2 * WIDTH, WIDTH))
    return Merged(branch=branch)


class Pooling(nn.Module):
    """``pool(x) - x`` as a branch: the difference is a merge of its own, inside."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x.mT, 3, 1, 1, count_include_pad=False).mT - x


class Fourier(nn.Module):
    """A Fourier transform over tokens and channels: it mixes positions and has no weights."""

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = torch.fft.fft2(x).real
        return mixed


class FourierBlock(nn.Module):
    """FNet's block: the transform in attention's place, post-norm."""

    def __init__(self, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing = mixing
        self.norm1 = nn.LayerNorm(WIDTH)
        self.mlp = FeedForward()
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.mixing(x))
        x = self.norm2(x + self.mlp(x))
        return x


class Squeezed(nn.Module):
    """Squeeze and excitation: a gate from the pooled branch on the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv_norm(WIDTH, WIDTH)
        self.second = conv_norm(WIDTH, WIDTH)
        self.gate = nn.Sequential(
            nn.Linear(WIDTH, WIDTH // 4), nn.ReLU(), nn.Linear(WIDTH // 4, WIDTH), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x)))
        y = y * self.gate(y.mean((2, 3)))[:, :, None, None]
        return torch.relu(x + y)


class Broadcast(nn.Module):
    """The branch is one vector for all tokens and is broadcast in the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(x.mean(1, keepdim=True))
        return x


class Macaron(nn.Module):
    """Half a feed-forward, attention, half a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.before = normed(FeedForward())
        self.attention = normed(Attention())
        self.after = normed(FeedForward())

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x)
        x = x + 0.5 * self.after(x)
        return x


class Dropped(nn.Module):
    """Dropout on the embedding, on the weights of attention, in the branches, on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(2 * WIDTH, WIDTH),
            nn.Dropout(0.1),
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = self.drop(x + F.dropout(self.attention(y, y, y)[0], 0.1, self.training))
        x = self.drop(x + self.mlp(x))
        return x


class NoisyLayer(nn.Module):
    """Noise is added between plain layers: a sum that is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.size = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(x)) + self.size * torch.randn(BATCH, WIDTH)
        return x


class Variational(nn.Module):
    """An autoencoder whose code is a mean plus noise times a deviation: a sum, no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU())
        self.mean = nn.Linear(2 * WIDTH, 4)
        self.deviation = nn.Linear(2 * WIDTH, 4)
        self.decoder = nn.Sequential(
            nn.Linear(4, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x)
        mean, log_deviation = self.mean(hidden), self.deviation(hidden)
        made = self.decoder(mean + log_deviation.exp() * torch.randn_like(mean))
        divergence = (mean.square() + (2 * log_deviation).exp() - 2 * log_deviation).mean()
        return {"loss": F.mse_loss(made, x) + 0.1 * divergence, "made": made}


class Quantised(nn.Module):
    """A code is replaced by its nearest entry, with a gradient straight through: no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = FeedForward()
        self.book = nn.Parameter(torch.randn(8, WIDTH))
        self.decoder = FeedForward()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encoder(x)
        entry = self.book[torch.cdist(code, self.book).argmin(-1)]
        made = self.decoder(code + (entry - code).detach())
        commitment = F.mse_loss(code, entry.detach()) + F.mse_loss(code.detach(), entry)
        return {"made": made, "loss": F.mse_loss(made, x) + commitment}


# Inputs, outputs, modes


@dataclass
class Output:
    """What ``DataclassOutput`` returns."""

    logits: Tensor
    last: Tensor
    note: str = ""


class DataclassOutput(nn.Module):
    """The output is a dataclass that holds the logits and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = chain(Merged)
        self.net.head = nn.Identity()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Output:
        last = self.net(x)
        return Output(self.head(last), last)


class AllStates(nn.Module):
    """The output is a tuple: the logits, then every state."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        states = [self.stem(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return self.head(states[-1]), states


class TwoLosses(nn.Module):
    """Two losses, one of which compares with the input: neither subtraction is a merge."""

    def __init__(self) -> None:
        super().__init__()
        self.net = chain(Merged)
        self.net.head = nn.Identity()
        self.classes = nn.Linear(WIDTH, 5)
        self.back = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        last = self.net(x)
        return {
            "classes": F.cross_entropy(self.classes(last), target),
            "back": (self.back(last) - x).square().mean(),
        }


class LossAndLogits(nn.Module):
    """A decoder that returns its loss in front of the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(GptBlock)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        logits = self.net(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class DeepSupervision(nn.Module):
    """Every state has a loss and the output is their sum, which is no merge."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(DEPTH))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(DEPTH))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.stem(x)
        loss = torch.zeros(())
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x)
            loss = loss + F.cross_entropy(head(x), target)
        return loss


class NamedInputs(nn.Module):
    """Several inputs by name, some for the keyword only: tokens, types and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, *, kinds: Tensor, mask: Tensor) -> Tensor:
        x: Tensor = self.norm(self.words(ids) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask)
        x = self.head(x[:, 0])
        return x


class KeywordsOnly(nn.Module):
    """Forward takes nothing by position, and one input has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.net = chain(Merged)

    def forward(self, *, features: Tensor, factor: float = 1.0) -> Tensor:
        x: Tensor = self.net(features) * factor
        return x


class HalfWithoutGradient(nn.Module):
    """The first two of four blocks run under ``no_grad``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Merged() for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.blocks[1](self.blocks[0](self.stem(x)))
        x = self.head(self.blocks[3](self.blocks[2](x)))
        return x


def frozen(modules: Callable[[Chain], list[nn.Module]]) -> nn.Module:
    """A chain of four residual blocks, some of it frozen: a frozen weight is still a weight."""
    net = chain(Merged)
    for module in modules(net):
        module.requires_grad_(False)
    return net


class TiedEmbedding(nn.Module):
    """The head is the embedding's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(GptBlock() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        x = F.linear(self.norm(x), self.embedding.weight)
        return x


class DetachedSkip(nn.Module):
    """``x.detach() + f(x)``: no gradient passes the skip, so it carries one river of two."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach() + self.branch(x)
        return x


class TwoLayouts(nn.Module):
    """A convolution on images, then attention on the same tensor as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.attention = normed(Attention())

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.relu(self.conv(x))
        sequence: Tensor = x.flatten(2).transpose(1, 2)
        sequence = sequence + self.attention(sequence)
        x = sequence.transpose(1, 2).reshape(x.shape)
        return x


class HalfPrecisionBranch(nn.Module):
    """The branch computes in bfloat16, the stream stays in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.branch = FeedForward().to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(self.norm(x).to(torch.bfloat16)).float()
        return x


class Widened(nn.Module):
    """The stream itself becomes float64 after the second block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.narrow = nn.ModuleList(Merged() for _ in range(2))
        self.wide = nn.ModuleList(Merged().double() for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.narrow:
            x = block(x)
        x = x.double()
        for block in self.wide:
            x = block(x)
        x = self.head(x.float())
        return x


class Autocast(nn.Module):
    """Forward opens autocast: casts stand everywhere, also on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(lambda: GptBlock(Attention))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.net(x)
        return x.float()


class ZeroLast(nn.Module):
    """Batch norms in the branch; the gain of the last one starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
        )
        last = self.branch[-1]
        assert isinstance(last, nn.BatchNorm1d)
        nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.branch(x))


class OneLayer(nn.Module):
    """``x + W(x)``: a branch of one linear layer, with or without an activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.activation(self.layer(x))
        return x


class AroundLstm(nn.Module):
    """A recurrent layer in the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer(self.norm(x))[0]
        return x


# What each has


def odd(
    name: str,
    block: Callable[[], nn.Module],
    stream: Stream,
    batch: Callable[[], Any] = rows,
    *,
    limits: str = "",
) -> Model:
    """A model of four such blocks."""
    return Model(name, lambda: (chain(block), batch()), (stream,), limits=limits)


FOUR = Stream(4, m=(2,) * 4, segments=1)
SCALED = Stream(4, (), "scaled", m=(2,) * 4, segments=1)

MODELS: tuple[Model, ...] = (
    # Other spellings of the sum
    odd("add_in_place", InPlace, FOUR),
    odd("add_to_branch", lambda: Merged(added_to_branch), FOUR),
    odd("add_alpha", lambda: Merged(lambda x, y: torch.add(x, y, alpha=0.5)), FOUR),
    odd("add_alpha_on_skip", lambda: Merged(gained), SCALED),
    odd("sub", lambda: Merged(torch.sub), FOUR),
    odd("sub_from_branch", lambda: Merged(lambda x, y: y - x), SCALED),
    odd("lerp", lambda: Merged(lambda x, y: torch.lerp(x, y, 0.3)), SCALED),
    odd("lerp_gated", Lerp, Stream(4, (), "gated", segments=1)),
    odd("addcmul", Addcmul, Stream(4, segments=1)),
    odd("addmm", lambda: Addmm(batched=False), FOUR),
    odd("baddbmm", lambda: Addmm(batched=True), FOUR, sequences),
    odd("slice_assignment", lambda: Merged(half_assigned), FOUR),
    odd("index_add", lambda: SomeTokens("index_add"), FOUR, sequences),
    odd("scatter_add", lambda: SomeTokens("scatter_add"), FOUR, sequences),
    odd("index_put", lambda: SomeTokens("index_put"), FOUR, sequences),
    odd("stack_and_sum", lambda: Merged(stacked), FOUR),
    odd("running_sum", lambda: Merged(accumulated), FOUR),
    odd("cat_and_sum", lambda: Merged(unfolded), FOUR),
    odd("python_sum", lambda: Merged(python_sum), FOUR),
    odd("functools_reduce", lambda: Merged(reduced), FOUR),
    odd("einsum", lambda: Merged(contracted), SCALED),
    odd("where_sum", lambda: Merged(masked_sum), FOUR),
    odd(
        "where_select",
        lambda: Merged(selected),
        PLAIN,
        limits="A channel is the stream or the branch and nothing is added, but a constant mask is "
        "a gate of zeros and ones: the tool may answer four branches with a skip that is not an "
        "identity.",
    ),
    odd("hook", InHook, FOUR),
    odd("sequential_subclass", lambda: Residual(*FeedForward()), FOUR),
    odd("identity_modules", Shortcut, FOUR),
    # Kinds of skip
    odd(
        "sum_over_root_two",
        lambda: Merged(lambda x, y: (x + y) / math.sqrt(2)),
        FOUR,
        limits="The factor stands on the stream after the sum and the skip is an identity, but "
        "over a whole block the state is scaled: the tool may answer a scaled skip.",
    ),
    odd("rezero", lambda: Coefficient("branch", 0.0), FOUR),
    odd("layer_scale", lambda: Coefficient("branch", 1e-6, (WIDTH,)), FOUR),
    odd("scalar_on_skip", lambda: Coefficient("skip", 1.0), SCALED),
    odd(
        "gain_on_skip",
        lambda: Coefficient("skip", 1.0, (WIDTH,)),
        Stream(4, (), "per-channel", m=(2,) * 4, segments=1),
    ),
    odd("deep_norm", DeepNorm, Stream(4, ("stream",), "scaled", m=(2,) * 4, segments=1)),
    odd("normed_skip", NormedSkip, Stream(4, (), "normed", m=(2,) * 4, segments=1)),
    odd("out_norm", OutNorm, Stream(8, ("out",), m=(2,) * 8, segments=1), sequences),
    odd("highway", Highway, Stream(4, (), "gated", m=(1,) * 4, segments=1)),
    odd("gated_unit", GatedUnit, Stream(4, (), "gated", segments=1)),
    Model(
        "gru_cell_over_depth",
        lambda: (CellOverDepth(), (rows(), sides())),
        (Stream(6, (), "gated", segments=1),),
    ),
    odd(
        "gru_cell_as_sum",
        CellAsSum,
        Stream(4, ("in",), "gated", segments=1),
        limits="Inside the cell a layer of the state is added to a layer of the branch, before an "
        "activation: the tool may count these sums as inner merges.",
    ),
    odd("cat_and_linear", Concatenated, PLAIN),
    Model(
        "repvgg",
        lambda: (image_chain(RepVggBlock), images()),
        (Stream(8, ("out",), "normed", parallel=4, m=(1,) * 8, segments=1),),
    ),
    Model(
        "padded_skip",
        lambda: (padded(), images()),
        (Stream(5, ("inner", "out"), m=(2,) * 5, segments=1),),
    ),
    odd("reversible", Reversible, Stream(8, m=(2,) * 8, segments=1)),
    Model(
        "reversible_halves",
        lambda: (ReversibleHalves(), rows()),
        (FOUR, FOUR),
        limits="Each half has its own skips, but they are halves of one tensor: the tool may "
        "answer one stream of eight branches.",
    ),
    Model(
        "hyper_connections",
        lambda: (HyperConnections(), rows()),
        (Stream(4, ("in",), "projected", projected=4, m=(2,) * 4, segments=1),),
        limits="A learned 2 x 2 matrix over the copies is a small weight layer on the skip: the "
        "tool may call the skip scaled and count no projection.",
    ),
    # Executions
    Model(
        "tied_block",
        lambda: (Chain([Tied(Merged(), 6)]), rows()),
        (Stream(6, m=(2,) * 6, segments=1),),
    ),
    Model(
        "looped_weight_norm",
        lambda: (Chain([Tied(weight_normed(), 5)]), rows()),
        (Stream(5, m=(2,) * 5, segments=1),),
    ),
    odd("module_twice", Twice, Stream(8, m=(2,) * 8, segments=1)),
    odd("layer_twice", SharedLayer, FOUR),
    odd("stochastic_depth", StochasticDepth, FOUR),
    Model(
        "stochastic_depth_eval", lambda: (chain(StochasticDepth), rows()), (FOUR,), training=False
    ),
    Model("layer_drop", lambda: (LayerDrop(), rows()), (FOUR,)),
    Model(
        "layer_drop_eval",
        lambda: (LayerDrop(), rows()),
        (Stream(6, m=(2,) * 6, segments=1),),
        training=False,
    ),
    Model("early_exit", lambda: (EarlyExit(), rows()), (Stream(3, m=(2,) * 3, segments=1),)),
    Model("siamese", lambda: (Siamese(), (rows(), rows())), (FOUR, FOUR)),
    # Opaque or unusual nodes
    Model("checkpoint", lambda: (Checkpointed(reentrant=False), rows()), (FOUR,)),
    Model(
        "checkpoint_reentrant",
        lambda: (Checkpointed(reentrant=True), rows()),
        (FOUR,),
        limits="A re-entrant checkpoint is one node with the sum inside: the tool opens it, or "
        "lists four blocks as opaque in its coverage.",
    ),
    odd(
        "custom_activation",
        lambda: Merged(
            branch=nn.Sequential(
                nn.Linear(WIDTH, WIDTH), CustomActivation(), nn.Linear(WIDTH, WIDTH)
            )
        ),
        FOUR,
    ),
    odd("custom_branch", CustomBranch, Stream(4, segments=1)),
    odd(
        "scripted_block",
        lambda: scripted(Scriptable()),
        FOUR,
        limits="A scripted block may run as one node with the sum inside: the tool opens it, or "
        "lists it as opaque in its coverage.",
    ),
    odd("scripted_branch", ScriptedBranch, Stream(4, segments=1)),
    odd("functional_call", FunctionalCall, FOUR),
    odd("vmap", Vmapped, FOUR),
    # Nesting and numerical schemes
    Model(
        "residual_in_residual",
        lambda: (chain(ResidualInResidual, 3), rows()),
        (Stream(3, inner=9, segments=1),),
    ),
    Model("long_skip", lambda: (LongSkip(), rows()), (Stream(2, inner=3, segments=1),)),
    Model("linknet", lambda: (LinkNet(), images()), (Stream(1, inner=1, segments=1),)),
    Model("denoiser", lambda: (Denoiser(), images()), (Stream(1, ("inner",), m=(5,), segments=1),)),
    Model("euler", lambda: (Solver(6, 1), rows()), (Stream(6, m=(2,) * 6, segments=1),)),
    Model("runge_kutta", lambda: (Solver(3, 4), rows()), (Stream(3, inner=9, segments=1),)),
    # Several streams and side paths
    Model(
        "two_streams",
        lambda: (TwoStreams(), (sequences(), tokens())),
        (
            Stream(6, ("in",), m=(2,) * 6, segments=1),
            Stream(6, ("in",), m=(2,) * 6, segments=1),
        ),
    ),
    Model(
        "perceiver",
        lambda: (Perceiver(), sequences()),
        (Stream(8, ("in",), m=(2,) * 8, segments=1),),
    ),
    Model(
        "value_residual",
        lambda: (ValueResidual(), tokens()),
        (Stream(8, ("in",), m=(2,) * 8, segments=1),),
        limits="The first layer's values are no tensor of the stream, but later values are "
        "computed from them through weights: the tool may count three inner merges.",
    ),
    Model(
        "repeated_position",
        lambda: (RepeatedPosition(), tokens()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    Model(
        "shared_bias",
        lambda: (SharedBias(), tokens()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    Model("wavenet", lambda: (WaveNet(), tokens()), (Stream(3, m=(2,) * 3, segments=1),)),
    odd("class_token_only", ClassTokenOnly, Stream(8, ("in",), m=(2,) * 8, segments=1), sequences),
    Model(
        "token_merging",
        lambda: (TokenMerging(), sequences()),
        (Stream(8, ("in",), m=(2,) * 8, segments=2),),
    ),
    odd("graph_messages", Messages, Stream(4, m=(1,) * 4, segments=1), sequences),
    # Norms that are no modules
    odd("norm_by_hand", lambda: HandNormed(hand_norm), Stream(4, ("in",), m=(2,) * 4, segments=1)),
    odd(
        "norm_by_hand_post",
        lambda: HandNormed(hand_norm, on_stream=True),
        Stream(4, ("stream",), m=(2,) * 4, segments=1),
    ),
    odd(
        "norm_var_mean",
        lambda: HandNormed(var_mean_norm),
        Stream(4, ("in",), m=(2,) * 4, segments=1),
    ),
    odd(
        "norm_functional",
        lambda: HandNormed(weightless_norm),
        Stream(4, ("in",), m=(2,) * 4, segments=1),
    ),
    odd(
        "norm_functional_post",
        lambda: HandNormed(weightless_norm, on_stream=True),
        Stream(4, ("stream",), m=(2,) * 4, segments=1),
    ),
    odd("scale_norm", lambda: HandNormed(scale_norm), Stream(4, ("in",), m=(2,) * 4, segments=1)),
    odd(
        "rms_norm_post_by_hand",
        lambda: nn.Sequential(Merged(), RmsNorm()),
        Stream(4, ("stream",), m=(2,) * 4, segments=1),
    ),
    odd(
        "dyt",
        lambda: Merged(branch=nn.Sequential(DyT(), FeedForward())),
        Stream(4, ("in",), m=(2,) * 4, segments=1),
        limits="DyT is a norm by its use and an activation by its formula: the tool may find no "
        "norm.",
    ),
    odd(
        "query_key_norm",
        lambda: GptBlock(NormedQueries),
        Stream(8, ("in", "inner"), m=(2,) * 8, segments=1),
        sequences,
    ),
    # Sums that are no merges, and branches with something in them
    Model(
        "adaptive_norm",
        lambda: (
            Conditioned(nn.Linear(WIDTH, WIDTH), AdaptiveNorm, nn.Linear(WIDTH, 5)),
            (sequences(), sides()),
        ),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    Model(
        "film",
        lambda: (
            Conditioned(nn.Conv2d(3, WIDTH, 3, 2, 1), Film, pooled_head(WIDTH)),
            (images(), sides()),
        ),
        (Stream(3, ("inner", "out"), m=(2,) * 3, segments=1),),
    ),
    Model("parallel_convolutions", lambda: (image_chain(ParallelConvolutions), images()), (PLAIN,)),
    odd("expert_sum", ExpertSum, PLAIN),
    odd("expert_sum_residual", lambda: Merged(branch=ExpertSum()), FOUR),
    odd("rotary_without_skip", RotaryWithoutSkip, PLAIN, sequences),
    odd(
        "straight_through",
        lambda: Merged(
            branch=nn.Sequential(nn.Linear(WIDTH, WIDTH), Rounded(), nn.Linear(WIDTH, WIDTH))
        ),
        FOUR,
    ),
    odd(
        "straight_through_plain",
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Rounded(), nn.ReLU()),
        PLAIN,
    ),
    odd("low_rank_updates", low_rank, Stream(4, segments=1)),
    odd(
        "pool_former",
        lambda: nn.Sequential(
            Merged(branch=normed(Pooling())), Merged(branch=normed(FeedForward()))
        ),
        Stream(8, ("in",), inner=4, segments=1),
        sequences,
    ),
    odd("fnet", lambda: FourierBlock(Fourier()), Stream(8, ("stream",), segments=1), sequences),
    Model(
        "squeeze_and_excitation",
        lambda: (image_chain(Squeezed), images()),
        (Stream(4, ("inner", "out"), segments=1),),
    ),
    odd("broadcast_branch", Broadcast, FOUR, sequences),
    odd("macaron", Macaron, Stream(12, ("in",), m=(2,) * 12, segments=1), sequences),
    Model(
        "dropout_everywhere",
        lambda: (
            Chain(
                [Dropped() for _ in range(3)],
                nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.1)),
                nn.LayerNorm(WIDTH),
            ),
            tokens(),
        ),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    odd("noise", NoisyLayer, PLAIN),
    Model("variational", lambda: (Variational(), rows()), (PLAIN,)),
    Model("quantised_code", lambda: (Quantised(), rows()), (PLAIN,)),
    # Inputs, outputs, modes
    Model("output_dataclass", lambda: (DataclassOutput(), rows()), (FOUR,)),
    Model("output_all_states", lambda: (AllStates(), rows()), (FOUR,)),
    Model("two_losses", lambda: (TwoLosses(), (rows(), labels())), (FOUR,)),
    Model(
        "loss_in_output",
        lambda: (LossAndLogits(), tokens()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    Model("deep_supervision", lambda: (DeepSupervision(), (rows(), labels())), (FOUR,)),
    Model(
        "named_inputs",
        lambda: (
            NamedInputs(),
            {
                "ids": tokens(),
                "kinds": torch.zeros(BATCH, TOKENS, dtype=torch.long),
                "mask": torch.arange(TOKENS).expand(BATCH, -1) == TOKENS - 1,
            },
        ),
        (Stream(6, ("stream",), m=(2,) * 6, segments=1),),
    ),
    Model("keywords_only", lambda: (KeywordsOnly(), {"features": rows()}), (FOUR,)),
    Model(
        "half_without_gradient",
        lambda: (HalfWithoutGradient(), rows()),
        (Stream(2, m=(2,) * 2, segments=1),),
        limits="The first two blocks carry no gradient and are no part of the stream by its "
        "definition: the tool lists their modules as without gradient.",
    ),
    Model(
        "frozen_first_half",
        lambda: (frozen(lambda net: [net.stem, *net.blocks[:2]]), rows()),
        (FOUR,),
    ),
    Model("frozen_middle", lambda: (frozen(lambda net: [*net.blocks[1:3]]), rows()), (FOUR,)),
    Model("frozen_all", lambda: (frozen(lambda net: [net.stem, *net.blocks]), rows()), (FOUR,)),
    Model(
        "tied_embedding",
        lambda: (TiedEmbedding(), tokens()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    odd("detached_skip", DetachedSkip, PLAIN),
    Model(
        "two_layouts",
        lambda: (image_chain(TwoLayouts, 3), images()),
        (Stream(6, ("in",), m=(1, 2) * 3, segments=1),),
    ),
    odd("bfloat16_branch", HalfPrecisionBranch, Stream(4, ("in",), m=(2,) * 4, segments=1)),
    Model("float64_half", lambda: (Widened(), rows()), (FOUR,)),
    Model(
        "autocast",
        lambda: (Autocast(), tokens()),
        (Stream(6, ("in",), m=(2,) * 6, segments=1),),
    ),
    odd("zero_last_norm", ZeroLast, Stream(4, ("inner", "out"), m=(2,) * 4, segments=1)),
    odd("one_layer", lambda: OneLayer(nn.Tanh()), Stream(4, m=(1,) * 4, segments=1)),
    odd("one_layer_linear", lambda: OneLayer(nn.Identity()), Stream(4, m=(1,) * 4, segments=1)),
    odd(
        "residual_lstm",
        AroundLstm,
        Stream(4, ("in",), segments=1),
        sequences,
        limits="A recurrent layer adds to its state over time: a tool that opens the layer may "
        "count inner merges.",
    ),
)
