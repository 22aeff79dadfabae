"""Heads are parts of the channels: what splits or merges them across tokens is said, and how many
heads keys have; dropout inside attention is said in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure

#: Examples, tokens, heads, features of a head, width.
B, T, H, D = 3, 5, 2, 4
N = H * D
#: The expected text around what an attention reads.
NORM = "layernorm(h, gain=1, bias=True)"


class Mixing(nn.Module):
    """Pre-norm attention as ``mixed`` does it; keys and values of ``kv`` channels."""

    def __init__(self, mixed: Callable[[Any, Tensor], Tensor], kv: int = N) -> None:
        super().__init__()
        self.norm, self.q, self.o = nn.LayerNorm(N), nn.Linear(N, N), nn.Linear(N, N)
        self.k, self.v, self.qkv = nn.Linear(N, kv), nn.Linear(N, kv), nn.Linear(N, 3 * N)
        self.mixed, self.drop = mixed, nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.o(self.mixed(self, self.norm(x)))
        return out


def read(
    mixed: Callable[[Any, Tensor], Tensor], kv: int = N, training: bool = True
) -> tuple[str, list[str]]:
    """The equation of a block, and what is said beside it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, N), *(Mixing(mixed, kv) for _ in range(2)))
    found = measure(model.train(training), torch.randn(B, T, 6))
    (block,) = found.to_dict()["streams"][0]["blocks"]
    assert block["times"] == 2
    notes = found.settings["notes"]
    assert isinstance(notes, list)
    return block["equation"], notes


def split(x: Tensor) -> Tensor:
    return x.view(B, T, -1, D).transpose(1, 2)


def straight(x: Tensor) -> Tensor:
    """The shape of ``split`` without the exchange of axes."""
    return x.view(B, -1, T, D)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(B, T, N)


def parts(m: Any, y: Tensor, cut: Callable[[Tensor], Tensor] = split) -> list[Tensor]:
    return [cut(m.q(y)), cut(m.k(y)), cut(m.v(y))]


def fused(*operands: Tensor, rate: float = 0.0) -> Tensor:
    q, k, v = operands
    return F.scaled_dot_product_attention(q, k, v, dropout_p=rate)


def weights(q: Tensor, k: Tensor) -> Tensor:
    found: Tensor = (q @ k.mT / D**0.5).softmax(-1)
    return found


def spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weights(q, k) @ v


def flat(x: Tensor) -> Tensor:
    """Heads beside the examples, one axis of both."""
    return x.reshape(B * H, T, D)


def turned(x: Tensor) -> Tensor:
    """Rotary phases, halves of the features turned by angles."""
    angle = torch.arange(float(T))[:, None]
    first, second = x.chunk(2, -1)
    return x * angle.cos() + torch.cat((-second, first), -1) * angle.sin()


def lettered(m: Any, y: Tensor, cut: Callable[[Tensor], Tensor], qk: str, wv: str) -> Tensor:
    q, k, v = parts(m, y, cut)
    made: Tensor = torch.einsum(wv, (torch.einsum(qk, q, k) / D**0.5).softmax(-1), v)
    return made.reshape(B, T, N)


def tokens_first(x: Tensor) -> Tensor:
    return x.view(B, T, -1, D)


#: How heads are made, and what attention is then besides; ``""``: attention of two heads.
HEADS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "as they should be": (lambda m, y: merge(fused(*parts(m, y))), ""),
    "written out": (lambda m, y: merge(spelled(*parts(m, y))), ""),
    "beside the examples": (
        lambda m, y: merge(spelled(*map(flat, parts(m, y))).view(B, H, T, D)),
        "",
    ),
    "of one matrix": (
        lambda m, y: merge(fused(*m.qkv(y).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4))),
        "",
    ),
    "in parts of one matrix": (
        lambda m, y: merge(fused(*map(split, m.qkv(y).chunk(3, -1)))),
        "",
    ),
    "features first": (  # other weights of the same attention
        lambda m, y: (
            fused(*parts(m, y, lambda x: x.view(B, T, D, H).permute(0, 3, 1, 2)))
            .permute(0, 2, 3, 1)
            .reshape(B, T, N)
        ),
        "",
    ),
    "by letters": (
        lambda m, y: lettered(m, y, tokens_first, "bthd,bshd->bhts", "bhts,bshd->bthd"),
        "",
    ),
    "by letters and dots": (
        lambda m, y: lettered(m, y, split, "...td,...sd->...ts", "bhts,bhsd->bthd"),
        "",
    ),
    "of normed queries": (
        lambda m, y: merge(fused(F.layer_norm(split(m.q(y)), (D,)), *parts(m, y)[1:])),
        "query and key norm",
    ),
    "split straight": (
        lambda m, y: merge(fused(*parts(m, y, straight))),
        "heads split across tokens",
    ),
    "split and merged straight": (
        lambda m, y: fused(*parts(m, y, straight)).reshape(B, T, N),
        "heads split across tokens",
    ),
    "split straight, written out": (
        lambda m, y: merge(spelled(*parts(m, y, straight))),
        "heads split across tokens",
    ),
    "split straight beside the examples": (
        lambda m, y: spelled(*parts(m, y, lambda x: x.view(B * H, T, D))).view(B, T, N),
        "heads split across tokens",
    ),
    "split straight by letters": (
        lambda m, y: lettered(m, y, straight, "bhtd,bhsd->bhts", "bhts,bhsd->bthd"),
        "heads split across tokens",
    ),
    "queries split straight": (
        lambda m, y: merge(fused(straight(m.q(y)), *parts(m, y)[1:])),
        "heads split across tokens",
    ),
    "values split straight": (
        lambda m, y: merge(fused(split(m.q(y)), split(m.k(y)), straight(m.v(y)))),
        "heads split across tokens",
    ),
    "split straight with phases": (
        lambda m, y: merge(
            fused(turned(straight(m.q(y))), turned(straight(m.k(y))), straight(m.v(y)))
        ),
        "rotary, heads split across tokens",
    ),
    "merged straight": (
        lambda m, y: fused(*parts(m, y)).reshape(B, T, N),
        "heads merged across tokens",
    ),
    "merged straight, written out": (
        lambda m, y: spelled(*parts(m, y)).reshape(B, T, N),
        "heads merged across tokens",
    ),
    "merged straight beside the examples": (
        lambda m, y: spelled(*map(flat, parts(m, y))).view(B, T, N),
        "heads merged across tokens",
    ),
    "never turned": (
        lambda m, y: fused(*parts(m, y, tokens_first)).reshape(B, T, N),
        "over heads",
    ),
    "turned too far": (
        lambda m, y: merge(spelled(*(x.mT for x in parts(m, y))).mT),
        "over channels",
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_are_no_parts_of_the_channels_are_said(name: str) -> None:
    mixed, word = HEADS[name]
    scale = f", scale={T**-0.5}" if name == "turned too far" else ""
    plain = f"h = h + attention({NORM}, heads=2{scale}, bias=True)"
    expected = f'h = h + opaque("attention, {word}", {NORM}, m=4)' if word else plain
    assert read(mixed) == (expected, [])


def test_one_head_has_no_axes_to_mix() -> None:
    """The view without an exchange of axes is then the right one."""

    def alone(x: Tensor) -> Tensor:
        return x.view(B, 1, T, N)

    found, _ = read(lambda m, y: fused(*parts(m, y, alone)).reshape(B, T, N))
    assert found == f"h = h + attention({NORM}, bias=True)"


#: Keys and values of one head, which all queries meet.
SHARED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "in one function": lambda m, y: merge(fused(*parts(m, y))),
    "of size one": lambda m, y: merge(spelled(*parts(m, y))),
    "without an axis": lambda m, y: merge(spelled(split(m.q(y)), m.k(y)[:, None], m.v(y)[:, None])),
    "expanded": lambda m, y: merge(
        spelled(split(m.q(y)), *(x.expand(B, H, T, D) for x in parts(m, y)[1:]))
    ),
    "repeated": lambda m, y: merge(
        spelled(split(m.q(y)), *(x.repeat(1, H, 1, 1) for x in parts(m, y)[1:]))
    ),
    "by letters": lambda m, y: torch.einsum(
        "bhts,bsd->bthd",
        (torch.einsum("bthd,bsd->bhts", tokens_first(m.q(y)), m.k(y)) / D**0.5).softmax(-1),
        m.v(y),
    ).reshape(B, T, N),
    "queries one after another": lambda m, y: spelled(
        m.q(y).view(B, T * H, D), m.k(y), m.v(y)
    ).view(B, T, N),
}


@pytest.mark.parametrize("name", SHARED)
def test_one_head_of_keys_for_all_queries_is_said(name: str) -> None:
    expected = f'h = h + opaque("attention, 1 of 2 key heads", {NORM}, m=4)'
    assert read(SHARED[name], D) == (expected, [])


def test_one_head_of_keys_does_not_hide_what_queries_are_merged_across() -> None:
    found, _ = read(lambda m, y: spelled(*parts(m, y)).reshape(B, T, N), D)
    assert found == f'h = h + opaque("attention, heads merged across tokens", {NORM}, m=4)'


#: Dropout at one place of attention, what it is then besides, and the rate said beside it.
DROPPED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str, str]] = {
    "weights": (lambda m, y: merge(m.drop(weights(*parts(m, y)[:2])) @ parts(m, y)[2]), "", "0.25"),
    "weights in one function": (
        lambda m, y: merge(
            fused(split(m.q(y)), split(m.k(y)), split(m.v(y)), rate=0.25 * m.training)
        ),
        "",
        "0.25",
    ),
    "queries": (
        lambda m, y: merge(spelled(m.drop(split(m.q(y))), *parts(m, y)[1:])),
        "queries dropped out",
        "",
    ),
    "scores": (
        lambda m, y: merge(
            m.drop(split(m.q(y)) @ split(m.k(y)).mT / D**0.5).softmax(-1) @ split(m.v(y))
        ),
        "scores dropped out",
        "",
    ),
    "results": (lambda m, y: m.drop(merge(spelled(*parts(m, y)))), "results dropped out", ""),
}


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_inside_attention_is_said(name: str) -> None:
    mixed, word, rate = DROPPED[name]
    plain = f"h = h + attention({NORM}, heads=2, bias=True)"
    expected = f'h = h + opaque("attention, {word}", {NORM}, m=4)' if word else plain
    said = f"attention's weights are dropped out (p={rate}), which the equation does not say: *"
    assert read(mixed) == (expected, [said] if rate else [])
    assert read(mixed, training=False) == (plain, [])


class Whole(nn.Module):
    """PyTorch's attention in one function, of a mask or none."""

    def __init__(self, rate: float, **mask: Tensor) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(N)
        self.mix = nn.MultiheadAttention(N, H, dropout=rate, batch_first=True)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        out: Tensor = x + self.mix(y, y, y, need_weights=False, **self.mask)[0]
        return out


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_dropout_inside_pytorch_s_attention_is_said(rate: float, training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, N), Whole(rate), Whole(rate)).train(training)
    found = measure(model, torch.randn(B, T, 6))
    assert found.equation == "2 x [h = h + attention(layernorm(h))]"
    said = "attention's weights are dropped out (p=0.1), which the equation does not say: *"
    assert found.settings["notes"] == ([said] if rate and training else [])
    assert (said in str(found)) == bool(rate and training)


@pytest.mark.parametrize(
    "mask",
    [
        {"attn_mask": torch.eye(T).logical_not()},
        {"key_padding_mask": torch.arange(T).expand(B, T) > 2},
    ],
)
def test_a_mask_of_pytorch_s_attention_is_said(mask: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, N), Whole(0.0, **mask), Whole(0.0, **mask))
    found = measure(model, torch.randn(B, T, 6)).equation
    assert found == '2 x [h = h + opaque("attention, masked", layernorm(h), m=4)]'
