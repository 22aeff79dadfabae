"""What makes attention of two products of data, however its weights are made of scores: layers in
series, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import count, measure, parse

#: Examples, tokens, heads, features of a head, width.
B, T, H, D = 2, 6, 4, 4
N = H * D


class Block(nn.Module):
    """Pre-norm attention, of which ``mixed`` makes what the output layer reads; the output layer is
    left out where ``bare``."""

    def __init__(self, mixed: Callable[[Block, Tensor], Tensor], bare: bool) -> None:
        super().__init__()
        self.norm, self.mixed, self.bare = nn.LayerNorm(N), mixed, bare
        self.q, self.k, self.v, self.o = (nn.Linear(N, N) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        made = self.mixed(self, self.norm(h))
        out: Tensor = h + (made if self.bare else self.o(made))
        return out


def heads(x: Tensor) -> Tensor:
    return x.view(B, T, H, D).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(B, T, N)


def weighing(weights: Callable[[Tensor], Tensor]) -> Callable[[Block, Tensor], Tensor]:
    """Attention whose weights are made of its scores so."""

    def mixed(block: Block, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x)) for layer in (block.q, block.k, block.v))
        return merged(weights(q @ k.transpose(-1, -2) / math.sqrt(D)) @ v)

    return mixed


def softmax_by_hand(a: Tensor) -> Tensor:
    e = (a - a.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def by_a_reciprocal(a: Tensor) -> Tensor:
    e = a.exp()
    return e * e.sum(-1, keepdim=True).reciprocal()


def by_a_logarithm(a: Tensor) -> Tensor:
    return (a - a.logsumexp(-1, keepdim=True)).exp()


def normalised_again(a: Tensor) -> Tensor:
    w = a.softmax(-1)
    return w / w.sum(-1, keepdim=True)


def squared_relu(a: Tensor) -> Tensor:
    w = a.relu().square()
    return w / (w.sum(-1, keepdim=True) + 1e-6)


def shifted_sigmoid(a: Tensor) -> Tensor:
    return torch.sigmoid(a - math.log(T))


def in_chunks(block: Block, x: Tensor) -> Tensor:
    q, k, v = (heads(layer(x)) for layer in (block.q, block.k, block.v))
    rows = [F.scaled_dot_product_attention(some, k, v) for some in q.chunk(2, 2)]
    return merged(torch.cat(rows, 2))


def dropped_and_merged(block: Block, x: Tensor) -> Tensor:
    q, k, v = (heads(layer(x)) for layer in (block.q, block.k, block.v))
    made = F.dropout(torch.sigmoid(q @ k.transpose(-1, -2)) @ v, 0.1).transpose(1, 2)
    return made.reshape(B, T, N)


def tokens_mixed(block: Block, x: Tensor) -> Tensor:
    """The output layer reads tokens of one channel side by side."""
    return weighing(torch.sigmoid)(block, x).transpose(1, 2).reshape(B, T, N)


def linear(block: Block, x: Tensor) -> Tensor:
    q, k, v = (heads(layer(x)) for layer in (block.q, block.k, block.v))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = 1 / (q @ k.sum(2, keepdim=True).transpose(-1, -2))
    return merged(q @ (k.transpose(-1, -2) @ v) * z)


def unprojected(block: Block, x: Tensor) -> Tensor:
    return (x @ x.transpose(-1, -2) / 4).softmax(-1) @ x


def unprojected_in_one(block: Block, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def values_projected(block: Block, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, block.v(x))


def queries_projected(block: Block, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(block.q(x), x, x)


def keys_shared(block: Block, x: Tensor) -> Tensor:
    q = block.q(x)
    return F.scaled_dot_product_attention(q, q, block.v(x))


def measured(mixed: Callable[[Block, Tensor], Tensor], bare: bool = False) -> tuple[int, str]:
    """Weight layers of each branch, and the equation of three blocks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(mixed, bare) for _ in range(3)))
    (stream,) = measure(model, torch.randn(B, T, N)).to_dict()["streams"]
    assert (stream["branches"], stream["norm_at"], stream["skip"]) == (3, ["in"], "identity")
    assert len(set(stream["m"])) == 1
    (block,) = stream["blocks"]
    assert block["times"] == 3
    # What is printed has as many layers as the tracer counted.
    (merge,) = count(parse(block["equation"])).merges
    assert [branch.m for branch in merge.branches] == stream["m"][:1]
    return stream["m"][0], block["equation"]


@pytest.mark.parametrize(
    "weights",
    [
        *(torch.sigmoid, shifted_sigmoid, torch.relu, squared_relu, softmax_by_hand),
        *(by_a_reciprocal, by_a_logarithm, normalised_again),
        pytest.param(lambda a: F.log_softmax(a, -1).exp(), id="exp of log softmax"),
        pytest.param(lambda a: torch.max(a, torch.tensor(-1e4)).softmax(-1), id="at least"),
        pytest.param(lambda a: torch.min(a, torch.tensor(30.0)).softmax(-1), id="at most"),
        pytest.param(lambda a: (5 * torch.tanh(a / 5)).softmax(-1), id="capped"),
    ],
)
def test_weights_of_scores_are_attention_whatever_makes_them(
    weights: Callable[[Tensor], Tensor],
) -> None:
    m, equation = measured(weighing(weights))
    assert m == 4
    assert "another axis" not in equation


@pytest.mark.parametrize("mixed", [in_chunks, linear, dropped_and_merged])
def test_other_products_of_queries_keys_and_values_are_attention(
    mixed: Callable[[Block, Tensor], Tensor],
) -> None:
    m, equation = measured(mixed)
    assert m == 4
    assert "another axis" not in equation


def test_layers_over_tokens_are_still_told_from_layers_over_channels() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.tokens = nn.LayerNorm(N), nn.Linear(T, T)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.tokens(self.norm(h).transpose(1, 2)).transpose(1, 2)
            return out

    profile = measure(nn.Sequential(Mixer(), Mixer()), torch.randn(B, T, N))
    assert "linear over another axis" in str(profile.to_dict()["equation"])
    assert measured(tokens_mixed)[0] == 4


@pytest.mark.parametrize(
    ("mixed", "m"),
    [
        (unprojected, 0),
        (unprojected_in_one, 0),
        (values_projected, 1),
        (queries_projected, 3),
        (keys_shared, 3),
    ],
)
def test_products_of_the_stream_itself_are_no_layers(
    mixed: Callable[[Block, Tensor], Tensor], m: int
) -> None:
    assert measured(mixed, bare=True)[0] == m
    assert measured(mixed)[0] == m + 1
