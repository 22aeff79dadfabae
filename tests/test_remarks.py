"""Sentences about what numbers mean."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import depthgauge as dg
from depthgauge.remarks import remarks
from depthgauge.report.terminal import print_profile


def mlp(depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def loss(output: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.arange(len(output)) % 3)


def said(word: str, *given: Any, **options: Any) -> list[str]:
    profile = dg.measure(*given, **options)
    str(profile)
    assert profile.to_dict()["remarks"] == remarks(profile)
    return [line for line in remarks(profile) if word in line]


@pytest.mark.parametrize("equation", ["h + W2(relu(W1(h)))/sqrt(L)", "W2(relu(W1(h)))"])
def test_without_a_loss_sizes_of_steps_say_nothing(equation: str) -> None:
    (line,) = said("no loss was given", equation, 8, depth=12, width=16, instruments="thorough")
    assert "no training loss" in line
    (stiff,) = said("stiffness: ", equation, 8, depth=12, width=16, instruments="thorough")
    assert "10 classes behind a linear classifier" in stiff
    assert not said("no loss", equation, 8, depth=12, width=16, instruments="balanced")


def test_a_model_without_parameters_needs_no_loss() -> None:
    model, x = nn.Sequential(nn.Tanh(), nn.Tanh()), torch.randn(9, 8)
    assert not said("no loss was given", model, x, instruments="thorough")
    assert said("no loss was given", nn.Linear(8, 8), x, instruments="thorough")


def test_of_several_seeds_it_says_whose_numbers_they_are() -> None:
    given: dict[str, Any] = {"depth": 6, "width": 16, "instruments": "precision"}
    equation = "h + 1e4 * W2(relu(W1(h)))"
    several = said("cannot hold", equation, 8, seed=[3, 4], **given)
    assert several
    assert all(line.endswith("(seed 3)") for line in several)
    assert not any("(seed" in line for line in said("cannot hold", equation, 8, seed=3, **given))


def test_stiffness_with_the_curvature_that_it_is_made_of() -> None:
    x = torch.randn(9, 8)
    for optimizer, kind in (("sgd", "largest curvature"), ("adam", "preconditioned curvature")):
        effort = dg.Effort(step=dg.Step(optimizer))
        profile = dg.measure(mlp(), x, loss, instruments="stiffness", effort=effort)
        (line,) = remarks(profile)
        assert kind in line
        numbers = [float(word) for word in line.replace(",", "").split() if word[0].isdigit()]
        rate, curvature, ratio = numbers[:3]
        limit = {"sgd": 2.0, "adam": 38.0}[optimizer]
        assert rate * curvature / limit == pytest.approx(ratio, rel=0.02)


def test_steps_that_leave_what_is_finite() -> None:
    """Steps of a squared loss far beyond the limit overflow before the second look."""
    effort = dg.Effort(step=dg.Step("sgd", lr=1e25))
    (line,) = said(
        "finite",
        nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))),
        torch.randn(9, 8),
        lambda output: output.square().mean(),
        instruments="stiffness",
        effort=effort,
    )
    assert line.startswith("stiffness: sgd at learning rate 1e+25 leaves what is finite")


def test_positions_that_come_to_point_one_way() -> None:
    class Mixed(nn.Module):
        def __init__(self, share: float) -> None:
            super().__init__()
            self.w, self.share = nn.Linear(8, 8), share

        def forward(self, x: Tensor) -> Tensor:
            mean = self.share * x.mean(1, keepdim=True)
            out: Tensor = (1.2 - self.share) * x + mean + 0.1 * self.w(mean)
            return out

    for share, collapsed in ((1.0, True), (0.01, False)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), *(Mixed(share) for _ in range(4)))
        lines = said("collapse: all positions of an example come", model, torch.randn(5, 6, 8))
        assert (len(lines) == 1) == collapsed


def test_values_that_are_no_numbers_are_in_no_format() -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = float("nan")
    lines = said("finite", model, torch.randn(9, 8), instruments="precision")
    assert any(line.startswith("'0' (linear) makes values that are not finite") for line in lines)
    assert not said("cannot hold", model, torch.randn(9, 8), instruments="precision")


def test_stiffness_of_an_optimizer_of_another_model() -> None:
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    effort = dg.Effort(step=dg.Step(other))
    profile = dg.measure(mlp(), torch.randn(9, 8), loss, instruments="stiffness", effort=effort)
    assert "none of this model's" in profile.not_measured["stiffness"]


def test_stiffness_of_groups_and_of_a_part() -> None:
    model = mlp()
    groups = [
        {"params": [*model[0].parameters()], "lr": 1.0},
        {"params": [*model[2:].parameters()], "lr": 0.1},
    ]
    partly = torch.optim.SGD(model[0].parameters(), lr=0.1)
    found = []
    for optimizer in (torch.optim.SGD(groups), partly, torch.optim.SGD(model.parameters(), lr=0.1)):
        effort = dg.Effort(step=dg.Step(optimizer))
        profile = dg.measure(model, torch.randn(9, 8), loss, instruments="stiffness", effort=effort)
        found.append(profile["stiffness"][0])
        said = next(line for line in remarks(profile) if line.startswith("stiffness"))
        several = optimizer is not partly and len(optimizer.param_groups) > 1
        assert ("learning rate (0.1 to 1)" in said) is several, said
    assert found[1] < found[2] < found[0]


def test_updates_of_what_is_frozen_and_of_others() -> None:
    model = mlp().requires_grad_(False)
    profile = dg.measure(model, torch.randn(9, 8).requires_grad_(), loss, instruments="updates")
    assert profile.not_measured["functional_update"]
    other = mlp()
    effort = dg.Effort(step=dg.Step(lambda parameters: torch.optim.SGD(other.parameters(), lr=1)))
    with pytest.raises(dg.SpecificationError, match="holds none of the parameters"):
        dg.measure(mlp(), torch.randn(9, 8), loss, instruments="updates", effort=effort)


@pytest.mark.parametrize("instruments", ["updates", "stiffness", "precision"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_optimizer_that_holds_others_beside_the_models(instruments: str, count: int) -> None:
    model, others = mlp(), [*mlp().parameters()][:count]
    held = torch.optim.SGD([*model[0].parameters(), *others], lr=0.1)
    effort = dg.Effort(step=dg.Step(held))
    given: dict[str, Any] = {"instruments": instruments, "effort": effort}
    lines = said("not the model's", model, torch.randn(9, 8), loss, **given)
    wanted = {
        0: [],
        1: [
            "the optimizer holds 1 parameter that is not the model's: it stays where it is in the "
            "steps measured here"
        ],
        4: [
            "the optimizer holds 4 parameters that are not the model's: they stay where they are "
            "in the steps measured here"
        ],
    }
    assert lines == wanted[count]


def test_an_optimizer_made_of_others_too() -> None:
    others = [*mlp().parameters()]
    step = dg.Step(lambda parameters: torch.optim.SGD([*parameters, *others], lr=0.1))
    given: dict[str, Any] = {"instruments": "updates", "effort": dg.Effort(step=step)}
    (line,) = said("not the model's", mlp(), torch.randn(9, 8), loss, **given)
    assert f"holds {len(others)} parameters" in line


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + torch.fft.irfft(torch.fft.rfft(self.mix(h)), n=8)
        return out


class Solved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, h: Tensor) -> Tensor:
        twice = 2 * torch.eye(8, dtype=h.dtype)
        out: Tensor = h + torch.linalg.solve(twice, self.mix(h).T).T
        return out


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = g * x.cos()
        return out


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + _Once.apply(self.mix(h))
        return out


@pytest.mark.parametrize(
    ("block", "instrument", "arithmetic", "line"),
    [
        (
            Spectral,
            "precision",
            "bfloat16",
            "precision: fft_rfft in '0' and 2 more has no bfloat16 here: it was computed in "
            "float32 and rounded to bfloat16",
        ),
        (
            Solved,
            "precision",
            "float16",
            "precision: linalg_solve in '0' and 2 more has no float16 here: it was computed in "
            "float32 and rounded to float16",
        ),
        (
            Once,
            "precision",
            "float8_e5m2",
            "precision: float8_e5m2 is emulated: factors of products are cast to it and back, the "
            "products are taken in the model's own precision",
        ),
        (
            Once,
            "stiffness",
            None,
            "stiffness: products of the Hessian are finite differences of gradients, since a "
            "function in it is marked as once differentiable",
        ),
        (Spectral, "precision", "float64", ""),
        (Spectral, "stiffness", None, ""),
    ],
)
def test_what_was_emulated_or_replaced_is_on_every_screen(
    block: type[nn.Module], instrument: str, arithmetic: str | None, line: str
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(block() for _ in range(3))), torch.randn(9, 8)
    effort = dg.Effort(arithmetic=arithmetic)
    profile = dg.measure(model, x, loss, instruments=instrument, effort=effort)
    shown = io.StringIO()
    print_profile(profile, None, Console(file=shown, width=400))
    words = ("has no", "emulated", "finite differences")
    for screen in (shown.getvalue(), str(profile)):
        lines = [one for one in screen.splitlines() if any(word in one for word in words)]
        assert lines == ([line] if line else [])


def test_a_copy_in_float32_and_gradients_made_dense_are_said() -> None:
    half = mlp().bfloat16()
    given: dict[str, Any] = {"instruments": "stiffness"}
    (copied,) = said("a copy in float32", half, torch.randn(9, 8).bfloat16(), loss, **given)
    assert copied.startswith("stiffness: taken on a copy in float32 with the same weights")
    assert not said("a copy", mlp(), torch.randn(9, 8), loss, **given)
    model = nn.Sequential(nn.Embedding(9, 8, sparse=True), *(nn.Linear(8, 8) for _ in range(2)))
    for optimizer in ("adam", "sgd"):
        effort = dg.Effort(step=dg.Step(optimizer))
        lines = said("sparse", model, torch.arange(9), loss, instruments="updates", effort=effort)
        dense = ["updates: the sparse gradient of 0.weight was made dense"]
        assert lines == (dense if optimizer == "adam" else [])


class PreNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(torch.relu(self.up(self.norm(h))))
        return out


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("stem", [None, nn.Linear, nn.BatchNorm1d])
def test_examples_that_are_alike_from_the_start_do_not_collapse(kind: str, stem: Any) -> None:
    """Under many seeds: a product may round equal rows differently, a norm over the batch makes
    that as large as what it rounds."""
    dtype = getattr(torch, kind)
    for seed in range(12):
        torch.manual_seed(seed)
        first = [] if stem is None else [stem(16, 16) if stem is nn.Linear else stem(16)]
        model = nn.Sequential(*first, *(PreNorm() for _ in range(4))).to(dtype)
        x = torch.randn(1, 16).repeat(8, 1)
        profile = dg.measure(model, x.to(dtype))
        (line,) = remarks(profile)
        assert line.startswith("all examples are alike at the input already, so correlation, dead")
        assert line in " ".join(str(profile).split())
        if stem is None:
            equation = "h + W2(relu(W1(layernorm(h))))"
            found = dg.measure(equation, x, depth=4, width=16, seed=seed, dtype=kind)
            assert remarks(found) == [line]
            assert remarks(dg.measure(equation, 8, depth=4, width=16, seed=seed, dtype=kind)) == []


@pytest.mark.parametrize("apart", [1e-5, 1e-4, 1e-2])
def test_examples_that_are_almost_alike_are_judged_by_what_tells_them_apart(apart: float) -> None:
    """A pre-norm network keeps what tells them apart, at whatever size; layers that add more of a
    constant than they pass on do not."""
    for seed in range(12):
        torch.manual_seed(seed)
        x = torch.randn(1, 16) + apart * torch.randn(8, 16)
        assert remarks(dg.measure(nn.Sequential(*(PreNorm() for _ in range(4))), x)) == []
        lost = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
        for layer in lost:
            nn.init.ones_(layer.get_parameter("bias"))
        (line,) = remarks(dg.measure(lost, x))
        assert line.startswith("collapse: all examples come to point one way")


def test_positions_that_are_alike_from_the_start() -> None:
    model = nn.Sequential(*(PreNorm() for _ in range(4)))
    (line,) = remarks(dg.measure(model, torch.randn(5, 1, 16).repeat(1, 6, 1)))
    assert line.startswith("all positions of an example are alike at the input already")
