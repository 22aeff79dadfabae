"""Causes that a pass names in a sentence: each faulty module has a healthy partner that says
nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.measurement import measure
from depthgauge.remarks import remarks
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import corridor_named


def causes(model: nn.Module, batch: Any, loss: Any = None) -> list[str]:
    found: Any = measure(model, batch, loss).settings["causes"]
    return list(found)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Causal attention of 4 heads of 16 features, spelled out or as one function; a scale of 0 is
    the one that PyTorch takes by itself."""

    def __init__(self, scale: float, fused: bool, width: int = 64) -> None:
        super().__init__()
        self.scale, self.fused = scale, fused
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        for p in self.parameters():
            nn.init.normal_(p, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (4, 16)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale or None)
        else:
            logits = q @ k.mT * self.scale
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            out = logits.masked_fill(later, -math.inf).softmax(-1) @ v
        made: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return made


class Block(nn.Module):
    def __init__(
        self, scale: float = 0.25, fused: bool = False, normed: tuple[int, ...] = (64,)
    ) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(normed), Attention(scale, fused)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        out: Tensor = x + self.down(self.up(x).relu())
        return out


def stack(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(**options) for _ in range(3)])


def test_copies_of_a_layer_are_named() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4)
    (said,) = causes(model, drawn(2, 5, 32))
    assert "24 of 24 pairs of drawn weights in one place hold the same numbers" in said
    assert "'layers.0.self_attn.in_proj_weight' and 'layers.1.self_attn.in_proj_weight'" in said
    for p in model.parameters():  # as nn.Transformer does, which leaves biases
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    assert causes(model, drawn(2, 5, 32)) == []


class Numbered(nn.Module):
    """Two blocks in attributes of their own, by a name with a number in it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.names = [name.format(k) for k in (1, 2)]
        for own in self.names:
            layers = (nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
            self.add_module(own, nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        for own in self.names:
            x = x + self.get_submodule(own)(x)
        return x


@pytest.mark.parametrize("name", ["l{}", "block_{}", "part{}_of_two"])
def test_copies_in_numbered_attributes_are_named(name: str) -> None:
    torch.manual_seed(0)
    model = Numbered(name)
    assert causes(model, drawn(4, 8)) == []
    first, second = (model.get_submodule(own) for own in model.names)
    second.load_state_dict(first.state_dict())
    (said,) = causes(model, drawn(4, 8))
    assert said.startswith("layers begin as copies: 2 of 2 pairs of drawn weights in one place")
    assert f"'{model.names[0]}.0.weight' and '{model.names[1]}.0.weight'" in said


def test_copies_of_one_layer_inside_a_block_are_named() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    model = nn.Sequential()
    for name, part in (("fc1", first), ("act", nn.Tanh()), ("fc2", second)):
        model.add_module(name, part)
    assert causes(model, drawn(4, 8)) == []
    second.weight.data.copy_(first.weight.data)
    (said,) = causes(model, drawn(4, 8))
    assert "1 of 1 pairs" in said


@pytest.mark.parametrize("alike", ["shared", "zero", "frozen"])
def test_what_is_alike_by_design_is_no_copy(alike: str) -> None:
    blocks = [nn.Linear(8, 8) for _ in range(3)]
    for block in blocks[1:]:
        if alike == "shared":
            block.weight = blocks[0].weight
        else:
            block.weight.data.copy_(blocks[0].weight.data)
    for block in blocks:
        if alike == "zero":
            nn.init.zeros_(block.weight)
        block.weight.requires_grad_(alike != "frozen")
    assert causes(nn.Sequential(*blocks), drawn(4, 8)) == []


def _copied(made: Tensor) -> list[str]:
    """What is said of three convolutions that begin with this kernel."""
    layers = [nn.Conv1d(made.shape[1], made.shape[0], made.shape[2], padding=1) for _ in range(3)]
    for layer in layers:
        layer.weight.data.copy_(made)
    return causes(nn.Sequential(*layers), drawn(2, made.shape[1], 12))


def test_what_is_not_drawn_is_no_copy_of_a_draw() -> None:
    identity = nn.init.dirac_(torch.empty(8, 8, 3))
    assert _copied(identity) == []
    assert _copied(-2 * identity) == []
    assert _copied(torch.arange(1.0, 9).log()[:, None].expand(8, 8, 3)) == []
    assert _copied(torch.where(drawn(8, 8, 3) > 0, 0.1, -0.1)) == []  # signs
    (said,) = _copied(0.2 * drawn(8, 8, 3))
    assert "3 of 3 pairs of drawn weights" in said
    # A drawn matrix in the middle of a kernel of zeros, and one of a narrow format.
    middle = torch.zeros(8, 8, 3)
    middle[..., 1] = nn.init.orthogonal_(torch.empty(8, 8))
    assert "3 of 3 pairs" in "".join(_copied(middle))
    assert "3 of 3 pairs" in "".join(_copied((0.05 * drawn(64, 64, 3)).bfloat16().float()))


def test_a_mamba_whose_rates_are_alike_by_design_begins_with_no_copies() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 3, "vocab_size": 64}

    def said(copied: bool) -> str:
        torch.manual_seed(0)
        model = transformers.MambaModel(transformers.MambaConfig(**sizes))
        layers = list(model.layers)
        assert torch.equal(layers[0].mixer.A_log, layers[1].mixer.A_log)
        if copied:
            layers[1].mixer.out_proj.weight.data.copy_(layers[2].mixer.out_proj.weight.data)
        words = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
        return " ".join(causes(model, words))

    assert "copies" not in said(copied=False)
    assert "'layers.1.mixer.out_proj.weight' and 'layers.2.mixer.out_proj.weight'" in said(True)


@pytest.mark.parametrize("fused", [False, True])
def test_attention_without_its_factor_is_named(fused: bool) -> None:
    (said,) = causes(stack(scale=1.0, fused=fused), 2 * drawn(2, 24, 64))
    assert said.startswith("attention begins saturated in ")
    assert "of 3 places ('0.attention'): its logits have a standard deviation of " in said
    assert "sqrt(16), the features of a head: the factor 1/sqrt(16) is missing" in said
    assert causes(stack(fused=fused), 2 * drawn(2, 24, 64)) == []


def test_queries_that_are_too_large_are_another_cause() -> None:
    model = stack()
    for block in model.children():
        block.get_parameter("attention.q.weight").data.mul_(16)
    (said,) = causes(model, drawn(2, 24, 64))
    assert "queries and keys are too large for their product" in said
    assert "missing" not in said


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("times", [4, 16])
def test_a_factor_that_is_there_is_not_missing(fused: bool, times: int) -> None:
    """Of queries four times as large logits have the size that they have without the factor."""
    model = stack(scale=0.0 if fused else 0.25, fused=fused)
    for block in model.children():
        block.get_parameter("attention.q.weight").data.mul_(times)
    (said,) = causes(model, drawn(2, 24, 64))
    assert "queries and keys are too large for their product" in said
    assert "missing" not in said
    assert "scale" not in said


def test_another_scale_that_is_given_is_named() -> None:
    (said,) = causes(stack(scale=2.0, fused=True), drawn(2, 24, 64))
    assert "its scale was given as 2, and 1/sqrt(16) is 0.25" in said


def test_a_norm_over_positions_is_named_with_what_it_leaks() -> None:
    batch = drawn(2, 16, 64) * torch.linspace(0.1, 1.7, 16)[:, None]
    (said,) = causes(stack(normed=(16, 64)), batch)
    assert "3 norms are over positions and channels together ('0.norm', (16, 64))" in said
    assert "the last position changes the outputs before it by" in said
    assert "without these norms' statistics it does not" in said
    assert causes(stack(), batch) == []


def test_where_attention_sees_all_positions_a_norm_over_them_is_no_fault_of_cause() -> None:
    (said,) = causes(stack(normed=(16, 64), fused=True), drawn(2, 16, 64))
    assert said.endswith("each depends on all others: normalise the last axis alone")


class Convolved(nn.Module):
    """Of (batch, channels, time), with linear layers on channels in between if ``turned``."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned, self.norm = turned, nn.LayerNorm([24, 24])
        self.into, self.out = nn.Conv1d(24, 24, 3, padding=1), nn.Conv1d(24, 24, 3, padding=1)
        self.channels = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.turned:
            y = self.channels(y.transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.out(self.into(y).relu())
        return out


@pytest.mark.parametrize("turned", [False, True])
def test_a_norm_over_channels_and_time_of_convolutions_is_left_alone(turned: bool) -> None:
    torch.manual_seed(0)
    blocks = [Convolved(turned) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 10))
    assert causes(model, drawn(2, 24, 24)) == []


def test_a_norm_over_positions_next_to_attention_or_behind_an_embedding_is_named() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(50, 32), nn.LayerNorm([6, 32])
            self.layer = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, words: Tensor) -> Tensor:
            x = self.norm(self.table(words))
            out: Tensor = x + self.layer(x, x, x, need_weights=False)[0]
            return out

    torch.manual_seed(0)
    words = torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    (said,) = causes(Embedded(), words)
    assert "1 norms are over positions and channels together ('norm', (6, 32))" in said
    assert "changes the outputs" not in said


class Language(nn.Module):
    def __init__(self, std: float, words: int = 500, width: int = 64) -> None:
        super().__init__()
        self.table, self.block = nn.Embedding(words, width), Block()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.head.weight, std=std)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.block(self.table(words))))
        return out


def cross_entropy(output: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), words.flatten().roll(-1))


def test_a_head_that_begins_far_from_even_odds_is_named() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 500, (4, 12), generator=torch.Generator().manual_seed(0))
    (said,) = causes(Language(1.0), words, cross_entropy)
    assert "ln 500 = 6.21" in said
    assert "'head.weight' has a standard deviation of 0.996, and 64^-1/2 = 0.125" in said
    assert causes(Language(1 / 8), words, cross_entropy) == []
    # A squared error of as large outputs is no cross entropy.
    squared = causes(Language(4.0), words, lambda output, words: output.square().mean())
    assert squared == []


class Contracted(nn.Module):
    def __init__(self, kernel: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        for name, shape in {"into": (64, 4, 32), "out": (4, 32, 64)}.items():
            weight = torch.empty(shape)
            flat = weight.view(64, -1) if name == "into" else weight.view(-1, 64)
            nn.init.xavier_uniform_(weight if kernel else flat)
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("btd,dhe->bthe", self.norm(x), self.get_parameter("into"))
        return x + torch.einsum("bthe,hed->btd", y.relu(), self.get_parameter("out"))


def test_fans_read_off_a_kernel_are_named() -> None:
    torch.manual_seed(0)
    (said,) = causes(nn.Sequential(*[Contracted(True) for _ in range(3)]), drawn(2, 5, 64))
    assert "6 weights that einsum contracts have the size that Xavier gives" in said
    assert "'0.into' of shape (64, 4, 32)" in said
    assert "have fans 64 and 128 and ask for 0.102" in said
    healthy = nn.Sequential(*[Contracted(False) for _ in range(3)])
    assert causes(healthy, drawn(2, 5, 64)) == []
    # A convolution's kernel is one.
    convolution = nn.Sequential(nn.Conv1d(16, 16, 3), nn.ReLU(), nn.Conv1d(16, 16, 3))
    for p in convolution.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    assert causes(convolution, drawn(2, 16, 12)) == []


def test_a_loss_that_a_norm_hides_the_output_from_is_no_failure_of_the_network() -> None:
    torch.manual_seed(0)
    layers = [Block() for _ in range(2)]
    model = nn.Sequential(*layers, nn.LayerNorm(64), nn.LayerNorm(64))
    target = drawn(2, 8, 64, seed=1)

    def judged(loss: Callable[[Tensor], Tensor]) -> tuple[str, str]:
        found = corridor_named("default").at(2, "float32")
        verdict = found.judge(measure(model, drawn(2, 8, 64), loss, instruments="thorough"))
        return verdict.state, verdict.reason

    state, reason = judged(lambda output: output.square().mean())
    assert state == "not_measured"
    assert "the loss does not see the output" in reason
    state, _ = judged(lambda output: F.mse_loss(output, target))
    assert state in ("pass", "warn")


class Zeros(nn.Module):
    """Blocks whose last layer is zero, and a zero head; ``dead``: a ReLU behind it."""

    def __init__(self, dead: bool) -> None:
        super().__init__()
        self.up, self.head, self.dead = nn.Linear(16, 16), nn.Linear(16, 10, bias=False), dead
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.up(x).relu())
        return out.relu() if self.dead else out


def test_a_zero_last_layer_is_said_to_be_by_design() -> None:
    labels = torch.arange(8) % 10
    torch.manual_seed(0)
    corridor = Corridor.of(gradient_ratio={"min": 0.1, "max": 10})

    def verdict(dead: bool) -> tuple[str, list[str]]:
        profile = measure(Zeros(dead), drawn(8, 16), lambda out: F.cross_entropy(out, labels))
        return corridor.judge(profile).reason, remarks(profile)

    reason, said = verdict(dead=False)
    assert "'head.weight' is zero at the start" in reason
    assert "by design of a zero last layer" in reason
    assert any("by design of a zero last layer" in line for line in said)
    reason, said = verdict(dead=True)  # which nothing wakes
    assert reason
    assert "by design" not in reason
    assert not any("by design" in line for line in said)
