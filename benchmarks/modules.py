"""Models to time, a plain pass through them, and the least that one can hook into them by hand.

Nothing here knows depthgauge: a neighbour's environment imports it too.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MLP_DEPTH, MLP_WIDTH = 10_000, 64
#: What a measurement costs a layer hardly grows with the batch; a plain pass does.
MLP_BATCHES = (128, 512)


# ----------------------------------------------------------------------------------- models


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        y = self.out(y.transpose(1, 2).reshape(n, t, width))
        assert isinstance(y, Tensor)
        return y


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    """GPT-2: pre-norm blocks, learned positions, the head tied to the embedding, no dropout."""

    def __init__(self, depth: int, width: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                last = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        assert isinstance(logits, Tensor)
        return logits


@dataclass(frozen=True)
class Case:
    """A model to time, and where someone who knows it would hook: the modules that end a block."""

    title: str
    build: Callable[[], tuple[nn.Module, Tensor]]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]


def small_gpt() -> tuple[nn.Module, Tensor]:
    return GPT(12, 128, 4, 64, 256), torch.randint(256, (8, 64))


def gpt2_small() -> tuple[nn.Module, Tensor]:
    return GPT(12, 768, 12, 512, 50257), torch.randint(50257, (1, 512))


@torch.no_grad()
def deep_mlp(examples: int) -> tuple[nn.Module, Tensor]:
    """Linear and ReLU by turns, each weight a He draw divided by the RMS that it leaves.

    At width 64 He draws alone lose so much over 10,000 layers that float32 has nothing left (a
    draw's logarithm is below 0 on average); with the division every state has RMS 1.
    """
    h = batch = torch.randn(examples, MLP_WIDTH)
    layers: list[nn.Module] = []
    for _ in range(MLP_DEPTH):
        linear = nn.Linear(MLP_WIDTH, MLP_WIDTH)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        h = torch.relu(linear(h))
        rms = h.square().mean().sqrt()
        linear.weight /= rms
        h /= rms
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers), batch


def gpt_blocks(model: nn.Module) -> Sequence[nn.Module]:
    assert isinstance(model, GPT)
    return list(model.blocks)


def relus(model: nn.Module) -> Sequence[nn.Module]:
    return [module for module in model.children() if isinstance(module, nn.ReLU)]


CASES: Mapping[str, Case] = {
    "gpt": Case(
        "GPT, 12 blocks, width 128, 4 heads, 8 x 64 tokens, vocabulary 256", small_gpt, gpt_blocks
    ),
    "gpt2": Case(
        "GPT-2 small shape: 12 blocks, width 768, 12 heads, 1 x 512 tokens, vocabulary 50,257",
        gpt2_small,
        gpt_blocks,
    ),
    **{
        f"mlp-{examples}": Case(
            f"MLP of {MLP_DEPTH:,} layers, width {MLP_WIDTH}, batch {examples}",
            partial(deep_mlp, examples),
            relus,
        )
        for examples in MLP_BATCHES
    },
}


def built(case: str) -> tuple[nn.Module, Tensor]:
    """The model and its batch, with one torch thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = CASES[case].build()
    return model.train(), batch


# ----------------------------------------------------------------------------------- passes


def plain(model: nn.Module, batch: Any) -> None:
    """Forward, a fresh random cotangent, gradients of all parameters, and these dropped."""
    arguments, keywords = _arguments(batch)
    ends = [
        t
        for t in tensors(model(*arguments, **keywords))
        if t.requires_grad and t.is_floating_point()
    ]
    if ends:
        torch.autograd.backward(ends, [torch.randn_like(t) for t in ends])
    model.zero_grad(set_to_none=True)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a model's output."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors(item)
    elif hasattr(tree, "__dataclass_fields__"):
        for name in tree.__dataclass_fields__:
            yield from tensors(getattr(tree, name))


def lean(model: nn.Module, batch: Any, blocks: Sequence[nn.Module]) -> list[list[float]]:
    """State RMS, largest state and gradient RMS of every block, by whoever knows the blocks.

    Hooks are put on and taken off, numbers stay tensors until the end.
    """
    states: list[Tensor] = []
    largest: list[Tensor] = []
    gradients: list[Tensor] = []

    def back(gradient: Tensor) -> None:
        gradients.append(torch.linalg.vector_norm(gradient) / math.sqrt(gradient.numel()))

    def seen(module: nn.Module, inputs: Any, output: Tensor) -> None:
        state = output.detach()
        states.append(torch.linalg.vector_norm(state) / math.sqrt(state.numel()))
        largest.append(state.abs().amax())  # the norm of order infinity takes five times as long
        output.register_hook(back)  # type: ignore[no-untyped-call]

    handles = [block.register_forward_hook(seen) for block in blocks]
    plain(model, batch)
    for handle in handles:
        handle.remove()
    return [torch.stack(numbers).tolist() for numbers in (states, largest, gradients[::-1])]


def side_by_side(
    jobs: Mapping[str, Callable[[], object]], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Seconds of each job in each round, in this process by turns: the median of ``calls``.

    Each is called once before the first round. What the job before left is collected first.
    """
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            gc.collect()
            taken = []
            for _ in range(calls):
                start = time.perf_counter()
                job()
                taken.append(time.perf_counter() - start)
            seconds[name].append(median(taken))
    return seconds
