"""The number in front of attention's softmax, however attention is written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.trace.layout import layout
from tests.recipes.models import encoder, llama

WIDTH, HEADS = 24, 3

Scores = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attends(nn.Module):
    def __init__(self, mix: Scores, normed: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.mix = nn.LayerNorm(WIDTH), mix
        head = WIDTH // HEADS
        self.qn, self.kn = (nn.RMSNorm(head) if normed else nn.Identity() for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = self.mix(self.qn(q), self.kn(k), v)
        out: Tensor = h + self.o(mixed.transpose(1, 2).flatten(2))
        return out


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _fused_by(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.125)


def _spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT) * 0.125, -1) @ v


def _divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 8
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


def _before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q / 2) @ (0.25 * k).mT, -1) @ v


def _bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def _negated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(-(q @ k.mT), -1) @ v


def _negative_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ (-k).mT / 8, -1) @ v


@pytest.mark.parametrize(
    ("mix", "number"),
    [
        (_fused, 8**-0.5),
        (_fused_by, 0.125),
        (_spelled, 0.125),
        (_divided, 0.125),
        (_before, 0.125),
        (_bare, 1.0),
        (_negated, -1.0),
        (_negative_keys, -0.125),
    ],
)
@pytest.mark.parametrize("normed", [False, True])
def test_the_number_is_read(mix: Scores, number: float, normed: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Attends(mix, normed) for _ in range(2)))
    for k, branch in enumerate(layout(model, torch.randn(2, 5, WIDTH)).branches):
        assert branch.logits == pytest.approx(number)
        assert branch.head == 8
        # Behind a norm a factor of the queries would be lost.
        assert branch.queries == ("" if normed else f"{k}.q")


def test_rotary_phases_do_not_count_and_attention_in_one_function_has_no_queries() -> None:
    model, batch = llama()
    found = layout(model, batch).branches
    assert found[0].logits == pytest.approx(8**-0.5)
    assert found[0].queries == "model.layers.0.self_attn.q_proj"
    assert math.isnan(found[1].logits)
    assert found[1].head == 0
    model, batch = encoder(pre=True)
    found = layout(model, batch).branches
    assert (found[0].logits, found[0].head, found[0].queries) == (8**-0.5, 8, "")
