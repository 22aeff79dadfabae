"""The backward pass goes to the first states and computes no gradient of a weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from depthgauge import ModelError, Profile, measure

WIDTH = 6


class Twice(torch.autograd.Function):
    """The identity; of what it is given second it says that no gradient comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.f(x)
        return out


class Stack(nn.Module):
    """Words or numbers, two blocks, a head; ``own`` puts a function of the user's in front."""

    def __init__(self, words: bool = False, own: bool = False) -> None:
        super().__init__()
        self.stem = nn.Embedding(10, WIDTH) if words else nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head, self.own = nn.Linear(WIDTH, 3), own

    def states(self, x: Tensor) -> list[Tensor]:
        h = self.stem(x)
        if self.own:
            h = Twice.apply(h, self.unused)
        found = [h]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.states(x)[-1])
        return out


class Two(nn.Module):
    """Two streams that meet in nothing but the output."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList(Block() for _ in range(2))
        self.right = nn.ModuleList(Block() for _ in range(2))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        for left, right in zip(self.left, self.right, strict=True):
            a, b = left(a), right(b)
        return a, b


def made(kind: type[nn.Module], **options: bool) -> nn.Module:
    torch.manual_seed(0)
    return kind(**options).double()


def numbers(seed: int = 1) -> Tensor:
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed)).double()


def words() -> Tensor:
    return torch.randint(10, (5, 4), generator=torch.Generator().manual_seed(1))


def weights_reached(model: nn.Module, batch: Any) -> tuple[set[str], Profile]:
    """The parameters whose gradient was computed, which a hook on them sees."""
    fired: set[str] = set()
    handles = [
        p.register_hook(lambda g, name=name: fired.add(name))
        for name, p in model.named_parameters()
    ]
    profile = measure(model, batch)
    for handle in handles:
        handle.remove()
    return fired, profile


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "words"])
@pytest.mark.parametrize("own", [False, True], ids=["plain", "a function of one's own"])
def test_gradients_are_those_of_a_pass_that_keeps_every_state(text: bool, own: bool) -> None:
    model = made(Stack, words=text, own=own)
    x = words() if text else numbers()
    assert isinstance(model, Stack)
    states = model.states(x)
    out = model.head(states[-1])
    draw = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    total = (out * (draw / draw.square().mean().sqrt()).to(out)).sum()
    expected = [g.square().mean().sqrt().item() for g in torch.autograd.grad(total, states)]
    profile = measure(model, x, instruments="rivers")
    found = profile["gradient_rms"].tolist()
    assert found[-3:] == pytest.approx(expected, rel=1e-6)


def test_no_weight_gets_a_gradient_unless_a_function_of_ones_own_may_withhold_it() -> None:
    fired, profile = weights_reached(made(Stack), numbers())
    assert not fired
    assert unreached(profile) == ["unused"]
    fired, profile = weights_reached(made(Stack, own=True), numbers())
    assert "stem.weight" in fired
    assert unreached(profile) == ["unused"]


def test_a_backward_pass_that_fails_on_the_way_to_a_weight_is_said() -> None:
    class Written(Stack):
        def states(self, x: Tensor) -> list[Tensor]:
            w = self.unused.exp()
            found = super().states(x)
            found[0] = found[0] * w
            w.mul_(2)  # which exp has saved
            return [found[0], *(block(found[0]) for block in self.blocks)]

    with pytest.raises(ModelError, match="the backward pass raised RuntimeError: one of the var"):
        measure(made(Written), numbers())


def unreached(profile: Profile) -> list[str]:
    return [path for path, why in profile.coverage["no_gradient"] if "this parameter" in why]


def test_streams_that_meet_nowhere_have_a_gradient_each() -> None:
    profile = measure(made(Two), (numbers(1), numbers(2)), instruments="rivers")
    assert len(profile.streams) == 2
    assert profile["gradient_rms"].size == profile["state_rms"].size == 6
    assert (profile["gradient_rms"] > 0).all()
