"""Blocks that repeat are shown as one, whatever training has done to their learned numbers; blocks
that were made otherwise are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure, parse
from depthgauge.trace.blocks import averaged

WIDTH, BLOCKS = 16, 6
Act = Callable[[Tensor], Tensor]


class Written(nn.Module):
    """A layer norm that is written out, with a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        root = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / root * self.weight + self.bias


class Branch(nn.Module):
    """``h + a W(relu(W(norm(h))))``, without ``a`` where there is none."""

    def __init__(
        self, norm: Callable[[int], nn.Module], a: float | None = None, act: Act = F.relu
    ) -> None:
        super().__init__()
        self.act = act
        self.norm = norm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.a = None if a is None else nn.Parameter(torch.tensor(a))

    def forward(self, h: Tensor) -> Tensor:
        y = self.outer(self.act(self.inner(self.norm(h))))
        out: Tensor = h + (y if self.a is None else self.a * y)
        return out


class Fixed(nn.Module):
    """In attention's place a mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *_: Tensor, need_weights: bool) -> tuple[Tensor, bool]:
        made: Tensor = self.layer(x.mean(1, keepdim=True).expand_as(x))
        return made, need_weights


class Wide(nn.Module):
    """A branch with a layer beside it where the width changes."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, out), nn.Linear(out, out)
        self.beside = nn.Linear(width, out) if width != out else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.beside(h) + self.outer(F.relu(self.inner(h)))
        return made


class Pair(nn.Module):
    """A mixing branch over tokens and one over channels: two steps a block, perhaps scaled."""

    def __init__(self, scale: float = 1.0, act: Act = F.gelu) -> None:
        super().__init__()
        self.scale, self.act = scale, act
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm1(h) * self.scale
        mixed: Tensor = self.attention(x, x, x, need_weights=False)[0]
        h = torch.add(h, mixed)
        made: Tensor = self.outer(self.act(self.inner(self.norm2(h) * self.scale)))
        return torch.add(h, made)


def read(blocks: Sequence[nn.Module], *shape: int) -> dict[str, Any]:
    torch.manual_seed(0)
    found = measure(nn.Sequential(*blocks), torch.randn(*(shape or (8, WIDTH))))
    return {"depth": found.depth, **found.to_dict()}


def times(found: dict[str, Any]) -> list[int]:
    return [block["times"] for block in found["streams"][0]["blocks"]]


def stack(norm: Callable[[int], nn.Module] = nn.LayerNorm, **options: Any) -> list[Branch]:
    torch.manual_seed(1)
    return [Branch(norm, **options) for _ in range(BLOCKS)]


def set_to(parameter: Any, number: float) -> None:
    with torch.no_grad():
        parameter.fill_(number)


def jolted(module: nn.Module, size: float) -> None:
    """Every parameter moved, as training does."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * torch.randn_like(parameter))


@pytest.mark.parametrize("size", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, Written])
def test_trained_numbers_of_channels_tell_no_blocks_apart(
    norm: Callable[[int], nn.Module], size: float
) -> None:
    blocks = stack(norm)
    for block in blocks:
        jolted(block, size)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [BLOCKS]
    word = "rmsnorm" if norm is nn.RMSNorm else "layernorm"
    assert found["equation"] == f"{BLOCKS} x [h = h + W(relu(W({word}(h))))]"


@pytest.mark.parametrize("size", [0.01, 0.3])
def test_trained_blocks_of_two_steps_are_one_each(size: float) -> None:
    torch.manual_seed(1)
    blocks = [Pair() for _ in range(BLOCKS)]
    for block in blocks:
        jolted(block, size)
    found = read(blocks, 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [BLOCKS]


def test_factors_of_their_own_leave_blocks_of_two_steps() -> None:
    found = read([Pair((k + 1) ** -0.5) for k in range(BLOCKS)], 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [1] * BLOCKS  # each is shown with its own factor


def test_a_gain_that_was_set_otherwise_is_shown() -> None:
    blocks = stack()
    set_to(blocks[3].norm.weight, 0.5)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [3, 1, 2]
    assert "gain=0.5" in found["streams"][0]["blocks"][1]["equation"]
    assert found["streams"][0]["blocks"][1]["paths"] == ["3"]


def test_a_layer_without_its_bias_is_shown_and_counts_as_a_block() -> None:
    blocks = [Pair() for _ in range(BLOCKS)]
    blocks[3].inner = nn.Linear(WIDTH, WIDTH, bias=False)
    found = read(blocks, 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    assert times(found) == [3, 1, 2]


def test_trained_scalars_are_shown_by_their_mean_and_it_says_so() -> None:
    blocks = [Branch(nn.LayerNorm, a=0.1 + 0.05 * k) for k in range(BLOCKS)]
    found = read(blocks)
    assert times(found) == [BLOCKS]
    assert "scalar(0.225)" in found["equation"]
    (entry,) = found["coverage"]["fallback"]
    assert entry["reason"] == (
        "6 blocks that differ in their learned numbers alone are shown as one, a number from 0.1 "
        "to 0.35 by its mean"
    )


def test_one_scalar_that_was_set_otherwise_is_shown() -> None:
    blocks = stack(a=0.0)
    set_to(blocks[2].a, 1.0)
    found = read(blocks)
    assert found["depth"] == BLOCKS
    assert times(found) == [2, 1, 3]
    assert not found["coverage"]["fallback"]


@pytest.mark.parametrize("numbers", [(1.0, 0.0), (0.3, -0.3)])
def test_scalars_that_were_set_by_turns_are_not_averaged(numbers: tuple[float, float]) -> None:
    found = read([Branch(nn.LayerNorm, a=numbers[k % 2]) for k in range(BLOCKS)])
    assert found["depth"] == BLOCKS
    assert times(found) == [BLOCKS // 2]
    assert all(f"scalar({number:g})" in found["equation"] for number in map(abs, numbers))


def test_gains_that_were_set_one_by_one_are_not_averaged() -> None:
    blocks = stack()
    for k, block in enumerate(blocks):
        set_to(block.norm.weight, (k + 1) ** -0.5)
    found = read(blocks)
    assert times(found) == [1] * BLOCKS


def test_a_gain_that_training_has_carried_far_is_said() -> None:
    blocks = stack()
    for block in blocks:
        jolted(block, 0.001)
    assert not read(blocks)["coverage"]["fallback"]
    set_to(blocks[3].norm.weight, 0.0)
    jolted(blocks[3], 0.001)
    found = read(blocks)
    assert times(found) == [BLOCKS]
    (entry,) = found["coverage"]["fallback"]
    assert "6 blocks that differ in their learned numbers alone are shown as one" in entry["reason"]


def test_a_gain_of_one_among_trained_ones_is_shown() -> None:
    blocks = stack()
    for block in blocks:
        jolted(block, 0.1)
    set_to(blocks[3].norm.weight, 1.0)
    assert times(read(blocks)) == [3, 1, 2]


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("odd", ["activation", "mixer", "kind"])
def test_one_odd_block_of_two_steps_is_a_block(odd: str, at: int) -> None:
    blocks = [Pair(act=torch.tanh if odd == "activation" and k == at else F.gelu)
              for k in range(BLOCKS)]  # fmt: skip
    if odd == "kind":
        blocks[at].outer = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH))  # type: ignore[assignment]
    elif odd == "mixer":
        blocks[at].attention = Fixed()  # type: ignore[assignment]
    found = read(blocks, 2, 5, WIDTH)
    assert found["depth"] == BLOCKS
    paths = [block["paths"] for block in found["streams"][0]["blocks"]]
    assert [str(at)] in paths
    assert times(found) == [n for n in (at, 1, BLOCKS - 1 - at) if n]


class Straight(nn.Module):
    """Sums that the network itself makes, one after another: no module holds a block."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, h: Tensor) -> Tensor:
        for branch in self.branches:
            h = h + branch(h)
        return h


def test_blocks_without_a_list_of_their_own_are_found_beside_an_odd_one() -> None:
    """Two sums are a block by what repeats alone; modules of a list are blocks by themselves."""
    torch.manual_seed(1)

    def branch(norm: Callable[[int], nn.Module], act: type[nn.Module]) -> nn.Module:
        return nn.Sequential(norm(WIDTH), nn.Linear(WIDTH, WIDTH), act(), nn.Linear(WIDTH, WIDTH))

    branches = [
        made
        for k in range(BLOCKS)
        for made in (
            branch(nn.LayerNorm, nn.ReLU), branch(nn.RMSNorm, nn.GELU if k == 3 else nn.Tanh)
        )
    ]  # fmt: skip
    found = read([Straight(branches), nn.Linear(WIDTH, 3)])
    assert found["depth"] == BLOCKS
    assert times(found) == [3, 1, 2]
    steps: list[nn.Module] = []
    for k in range(BLOCKS):
        steps += [Branch(nn.LayerNorm), Branch(nn.RMSNorm, act=F.gelu if k == 3 else torch.tanh)]
    found = read(steps)
    assert found["depth"] == 2 * BLOCKS
    assert times(found) == [3, 1, 1, 2]


def test_stages_with_transitions_count_every_sum() -> None:
    torch.manual_seed(1)
    widths = [WIDTH, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH]
    stages = [Wide(a, b) for a, b in pairwise(widths)]
    assert read(stages)["depth"] == 6


def test_what_only_turns_a_state_is_no_block() -> None:
    class Turned(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return torch.flatten(h.unflatten(-1, (2, WIDTH // 2)), -2)

    found = read([*stack()[:3], Turned(), *stack()[3:]])
    assert found["depth"] == BLOCKS
    assert "h = h]" not in found["equation"]


def test_two_blocks_with_scalars_of_their_own_are_not_averaged() -> None:
    found = read([Branch(nn.LayerNorm, a=0.1), Branch(nn.LayerNorm, a=0.3)])
    assert times(found) == [1, 1]
    assert not found["coverage"]["fallback"]


def test_means_are_over_numbers_that_differ_and_nothing_else() -> None:
    texts = ["h = h + scalar(0.1) * W(0.5 * h)", "h = h + scalar(0.4) * W(0.5 * h)"]
    assert averaged([parse(t) for t in texts]) == parse("h = h + scalar(0.25) * W(0.5 * h)")
    alike = parse("h = h + W(relu(h))")
    assert averaged([alike, alike]) is alike
