"""Whose Jacobians are followed: examples alone where they are alone, else the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from depthgauge import Profile, measure
from depthgauge.instruments.subject import Effort

N = 6


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(N, N) for _ in range(3))
        self.double()

    def read(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(self.read(x)))
        return x


class Causal(Blocks):
    """Every entry of the first axis reads those before it: a sequence without a batch."""

    def read(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Detached(Blocks):
    """Norms over the batch whose statistics carry no gradient."""

    def read(self, x: Tensor) -> Tensor:
        return (x - x.mean(0).detach()) / x.std(0).detach()


def spectrum(model: nn.Module, batch: Any, **effort: Any) -> Profile:
    return measure(model, batch, instruments="spectrum", effort=Effort(**effort))


def logs(profile: Profile) -> Tensor:
    return torch.from_numpy(profile.vectors["log_singular_values"][0][0])


def examples(profile: Profile) -> object:
    notes: Any = profile.settings["instruments"]
    said: object = notes["spectrum"]["examples"]
    return said


def dense(model: nn.Module, x: Tensor) -> Tensor:
    found: Any = jacobian(model, x)
    assert isinstance(found, Tensor)
    return found


def of_examples(model: nn.Module, x: Tensor, chosen: tuple[int, ...]) -> Tensor:
    j = dense(model, x)
    each = [torch.linalg.svdvals(j[i].reshape(N, *x.shape)[:, i].reshape(N, -1)) for i in chosen]
    return torch.stack(each).log().mean(0)


@pytest.mark.parametrize("kind", [Blocks, Detached])
def test_examples_alone_are_those_of_the_whole_pass(kind: type[Blocks]) -> None:
    model, x = kind(), torch.randn(7, N, dtype=torch.float64)
    profile = spectrum(model, x)
    assert torch.allclose(logs(profile), of_examples(model, x, (0, 6)), atol=1e-9)
    assert examples(profile) == 2


def test_what_reads_earlier_entries_is_one_state() -> None:
    model, x = Causal(), torch.randn(5, N, dtype=torch.float64)
    profile = spectrum(model, x)
    values = torch.linalg.svdvals(dense(model, x).reshape(5 * N, 5 * N)).log()
    assert torch.allclose(logs(profile), values, atol=1e-9)
    assert examples(profile) == "all at once: they act on one another"


class Lengths(Blocks):
    """No derivative of a length is finite at 0, which is none of what examples do to others."""

    reads_others = False

    def read(self, x: Tensor) -> Tensor:
        lengths = x.square().sum(-1, keepdim=True).sqrt()
        return x + lengths + (x.mean(0) if self.reads_others else 0)


@pytest.mark.parametrize("others", [False, True])
def test_a_derivative_that_is_not_finite_reaches_no_other_example(others: bool) -> None:
    model, x = Lengths(), torch.randn(5, N, dtype=torch.float64)
    model.reads_others = others
    x[1] = 0
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.data.zero_()
    profile = spectrum(model, x)
    if others:
        assert examples(profile) == "all at once: they act on one another"
        return
    assert torch.allclose(logs(profile), of_examples(model, x, (0, 4)), atol=1e-9)
    assert examples(profile) == 2


def test_a_list_beside_the_batch_does_not_shift() -> None:
    """Numbers for each example that are no tensor cannot be picked: the whole pass is followed."""

    class Listed(Blocks):
        gains: tuple[float, ...] = (0.1, 1.0, 2.0, 5.0)

        def read(self, x: Tensor) -> Tensor:
            return x * torch.tensor(self.gains[: len(x)]).to(x)[:, None]

    model, x = Listed(), torch.randn(4, N, dtype=torch.float64)
    assert torch.allclose(logs(spectrum(model, x)), of_examples(model, x, (0, 3)), atol=1e-9)
