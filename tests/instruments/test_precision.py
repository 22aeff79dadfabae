"""Errors, head-room and lost updates against networks written out, and public failures."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import depthgauge as dg
from depthgauge.arguments import PRECISION as NAMES
from depthgauge.errors import NetworkError, SpecificationError
from depthgauge.instruments.arithmetic import arithmetic_named
from depthgauge.instruments.differences import growth
from depthgauge.instruments.losses import flushed, lost
from depthgauge.instruments.precision import PRECISION, precision
from depthgauge.instruments.runs import Runs
from depthgauge.instruments.step import Step
from depthgauge.instruments.subject import Branch, Effort, Found
from depthgauge.network.module import EquationNetwork
from depthgauge.sites import QUANTITIES
from tests.instruments.subjects import subject_of, subject_of_equation


class Block(nn.Module):
    """``h + W2 tanh(W1 h)``."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.w2(torch.tanh(self.w1(h)))
        return out


def blocks(depth: int, n: int = 6, scale: float = 1.0) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(n) for _ in range(depth)))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    return model, torch.randn(4, n)


def found_in(
    model: nn.Module, batch: Any, name: str | None = None, loss: Any = None, **given: Any
) -> Found:
    return precision(subject_of(model, batch, loss), Effort(arithmetic=name), **given)


def column(found: Found, quantity: str) -> dict[int, float]:
    return dict(zip(*found.columns[quantity], strict=True))


def half_square(y: Tensor) -> Tensor:
    return 0.5 * (y * y).sum()


# --------------------------------------------------------------------------- references


def by_loop(
    weights: list[tuple[np.ndarray, np.ndarray]], h: np.ndarray, kind: type
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """States and gradients of ``|h_D|^2 / 2`` with every array of one NumPy type."""
    states: list[np.ndarray] = [h.astype(kind)]
    inner: list[np.ndarray] = []
    for w1, w2 in weights:
        t = np.tanh(states[-1] @ w1.astype(kind).T)
        inner.append(t)
        states.append(states[-1] + t @ w2.astype(kind).T)
    gradients = [states[-1]]
    for (w1, w2), t in zip(reversed(weights), reversed(inner), strict=True):
        g = gradients[-1]
        gradients.append(g + ((g @ w2.astype(kind)) * (1 - t * t)) @ w1.astype(kind))
    return states, gradients[::-1]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b))


def test_errors_of_float32_are_those_of_a_loop() -> None:
    model, x = blocks(6)
    each = [p.detach().numpy() for p in model.parameters()]
    weights = list(zip(each[::2], each[1::2], strict=True))
    exact, exact_g = by_loop(weights, x.numpy(), np.float64)
    rough, rough_g = by_loop(weights, x.numpy(), np.float32)
    found = found_in(model, x, loss=half_square)
    states, gradients = (column(found, f"relative_error_{w}") for w in ("state", "gradient"))
    assert len(states) == 7
    for k in range(7):  # the loop rounds otherwise: of one size, not of one value
        assert states[k] == pytest.approx(distance(rough[k], exact[k]), rel=2, abs=1e-9)
        assert gradients[k] == pytest.approx(distance(rough_g[k], exact_g[k]), rel=2, abs=1e-9)
    tops = column(found, "headroom_float16_bits")
    for k in range(7):
        assert tops[k] == pytest.approx(math.log2(65504 / np.abs(exact[k]).max()), rel=1e-10)
        rms = np.sqrt(np.mean(exact_g[k] ** 2))
        assert column(found, "underflow_headroom_bits")[k] == pytest.approx(
            math.log2(rms / 2.0**-14), rel=1e-10
        )


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_errors_of_a_cast_are_those_of_the_cast_module(name: str) -> None:
    model, x = blocks(5)
    low = copy.deepcopy(model).to(getattr(torch, name))
    states = [x.to(getattr(torch, name))]
    exact = [x.double()]
    wide = copy.deepcopy(model).double()
    for a, b in zip(low, wide, strict=True):
        states.append(a(states[-1]))
        exact.append(b(exact[-1]))
    found = found_in(model, x, name)
    for k, (h, e) in enumerate(zip(states, exact, strict=True)):
        wanted = distance(h.detach().double().numpy(), e.detach().numpy())
        assert column(found, "relative_error_state")[k] == pytest.approx(wanted, rel=1e-10)
        assert wanted > 1e-5
    assert found.notes["precision"]["arithmetic"] == name
    assert found.notes["precision"]["format"] == name


def test_the_order_of_the_arithmetics() -> None:
    model, x = blocks(5)

    def last(name: str | None) -> float:
        return found_in(model, x, name).columns["relative_error_state"][1][-1]

    errors = [last(n) for n in ("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")]
    assert errors == sorted(errors)
    assert errors[0] < 1e-6 < 1e-4 < errors[1] < errors[2] / 4
    assert last(None) == errors[0]
    assert last("float64") == 0
    assert errors[0] < last("autocast-bfloat16") < 1.5 * errors[2]


def test_growth_is_the_slope_of_the_logarithm() -> None:
    found = growth([0.0, *(1e-7 * 1.3**k for k in range(9)), math.nan])
    assert found["factor_per_block"] == pytest.approx(1.3, rel=1e-12)
    assert found["log_standard_error"] == pytest.approx(0, abs=1e-12)
    assert found["states"] == 9
    assert growth([1e-7, 2e-7])["factor_per_block"] is None
    x = np.arange(20)
    logs = np.random.default_rng(0).standard_normal(20) + 0.2 * x
    fit, covariance = np.polyfit(x, logs, 1, cov=True)
    found = growth(list(np.exp(logs)))
    assert found["factor_per_block"] == pytest.approx(math.exp(fit[0]))
    assert found["log_standard_error"] == pytest.approx(math.sqrt(covariance[0, 0]))


def test_an_expanding_network_grows_its_error_and_a_contracting_one_does_not() -> None:
    grows = found_in(*blocks(30, scale=4.0), "bfloat16").notes["precision"]
    stays = found_in(*blocks(30, scale=0.1), "bfloat16").notes["precision"]
    assert grows["relative_error_state"]["factor_per_block"] > 1.1
    assert 0.9 < stays["relative_error_state"]["factor_per_block"] < 1.07


def test_every_quantity_is_declared_and_found() -> None:
    assert PRECISION == NAMES
    found = found_in(*blocks(3), "bfloat16")
    assert set(found.columns) == set(PRECISION) <= set(QUANTITIES)
    assert not found.missing


# --------------------------------------------------------------------- flushed, underflow


class Faint(nn.Module):
    """Its gradient is small by a factor in front of the output."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.factor = Block(8), factor

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.body(h) * self.factor
        return out


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_gradient_that_is_flushed(name: str) -> None:
    torch.manual_seed(0)
    model, x = Faint(1e-9), torch.randn(16, 8)
    found = found_in(model, x, name, loss=lambda y: (y.float() * 1.0).sum())
    most = max(found.columns["flushed_gradient_fraction"][1])
    note = found.notes["precision"]
    scaling = note["loss_scaling"]["float16"]
    assert scaling["flushed"] > 0.9
    assert scaling["flushed_when_scaled"] == 0
    assert scaling["bits"] > 20
    if name == "float16":
        assert most == 1
        assert note["flushed_parameters"]["body.w1.weight"] == 1
        assert column(found, "underflow_headroom_bits")[0] < -10
    else:
        assert most == 0
        assert note["flushed_parameters"] == {}
        assert column(found, "underflow_headroom_bits")[0] > 50


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_gradients_that_are_exactly_0_were_not_flushed(name: str) -> None:
    """Units of a ReLU that are dead pass a gradient of 0 on, in every arithmetic."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8), nn.Linear(8, 3)
    with torch.no_grad():
        first.bias[:4] = -100.0
    found = found_in(nn.Sequential(first, nn.ReLU(), last), torch.randn(16, 8), name, half_square)
    assert set(found.columns["flushed_gradient_fraction"][1]) == {0.0}
    assert found.notes["precision"]["flushed_parameters"] == {}
    exact = torch.tensor([0.0, 0.0, 1e-9, 1.0], dtype=torch.float64)
    assert flushed(exact.half(), exact) == 0.25
    assert flushed(exact.bfloat16(), exact) == 0


class Shifted(nn.Module):
    """A bias in front of a batch norm takes part in nothing; nor does one of attention's keys."""

    def __init__(self, attention: bool, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True) if attention else None
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.factor = factor
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.endswith("bias"):
                    p.normal_()

    def forward(self, h: Tensor) -> Tensor:
        if self.attend is not None:
            out: Tensor = h + self.attend(h, h, h, need_weights=False)[0] * self.factor
            return out
        out = h + self.last(torch.tanh(self.norm(self.first(h)))) * self.factor
        return out


def nowhere(name: str, g: Tensor) -> Tensor:
    """Which elements of a parameter's gradient are 0 but for rounding."""
    keys = torch.arange(len(g)) // 8 == 1
    if name == "attend.in_proj_bias":
        return keys
    return torch.full_like(g, name == "first.bias", dtype=torch.bool)


def weighed(y: Tensor) -> Tensor:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return (y.double() * weights).sum()


@pytest.mark.parametrize("attention", [False, True])
def test_a_gradient_that_is_rounding_is_0(attention: bool) -> None:
    """And what is none stays as it is, bit for bit."""
    model, x = Shifted(attention), torch.randn(16, *(5,) * attention, 8)
    subject = subject_of(model, x, weighed)
    plain, exact = (
        Runs(subject, Effort()).of(arithmetic_named("float64"), exact=exact)
        for exact in (False, True)
    )
    assert plain is not None
    assert exact is not None
    rounding = 0
    for name, g in plain.parameters.items():
        none = nowhere(name, g)
        assert torch.equal(exact.parameters[name], g.where(~none, 0.0)), name
        assert (g[none].abs() < 1e-13).all()
        rounding += int((g[none] != 0).sum())
    assert rounding > 4, "there was some to be seen"
    assert exact.ranges.gradients == plain.ranges.gradients


@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("factor", [1.0, 1e-9])
def test_what_is_rounding_is_not_lost_and_what_is_faint_is(
    name: str, optimizer: str, factor: float
) -> None:
    model, x = Shifted(False, factor), torch.randn(16, 8)
    effort = Effort(arithmetic=name, step=Step(optimizer, 0.1))
    note = precision(subject_of(model, x, weighed), effort).notes["precision"]
    faint = factor < 1 and name == "float16"
    assert "first.bias" not in note["flushed_parameters"]
    assert (note["flushed_parameters"].get("first.weight", 0.0) > 0.9) == faint
    assert note["loss_scaling"]["float16"]["flushed"] == float(factor < 1)
    for each in ("float16", "bfloat16"):
        assert "first.bias" not in note["lost_updates"][each]["largest"]
        lost_ones = "first.weight" in note["lost_updates"][each]["frozen"]
        assert lost_ones == (factor < 1 and optimizer == "sgd")


def test_a_backward_pass_that_runs_once() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: Tensor) -> Tensor:
            ctx.held = [2.0]
            return 2 * h

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            out: Tensor = g * ctx.held.pop()
            return out

    class Doubles(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = Once.apply(h)
            return out

    model, x = nn.Sequential(Block(6), Doubles(), Block(6)), torch.randn(4, 6)
    ran = Runs(subject_of(model, x, weighed), Effort()).of(arithmetic_named("float64"), exact=True)
    assert ran is not None
    assert ran.no_backward == ""
    twin = copy.deepcopy(model).double()
    weighed(twin(x.double())).backward()
    for name, p in twin.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(ran.parameters[name], p.grad, rtol=1e-10, atol=0)


# ----------------------------------------------------- public case: feed-forward overflow


class FeedForward(nn.Module):
    """T5's: ``h + wo(gelu(wi0 u) * wi1 u)``, ``u = rmsnorm(h)``; ``careful``: the norm's square is
    taken in float32. ``inside`` and ``out`` are the scales of the gated product and of wo."""

    def __init__(self, n: int, inside: float, out: float, careful: bool = True) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))
        self.wi0, self.wi1 = nn.Linear(n, 4 * n, bias=False), nn.Linear(n, 4 * n, bias=False)
        self.wo = nn.Linear(4 * n, n, bias=False)
        self.careful = careful
        with torch.no_grad():
            self.wi0.weight.mul_(inside)
            self.wi1.weight.mul_(inside)
            self.wo.weight.mul_(out)

    def forward(self, h: Tensor) -> Tensor:
        square = (h.float() if self.careful else h).pow(2).mean(-1, keepdim=True)
        u = (h * torch.rsqrt(square + 1e-6)).to(self.gain.dtype) * self.gain
        out: Tensor = h + self.wo(F.gelu(self.wi0(u)) * self.wi1(u))
        return out


def t5(inside: float, out: float, careful: bool = True) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    each = [FeedForward(16, *((inside, out) if i == 3 else (1.0, 1.0)), careful) for i in range(5)]
    return nn.Sequential(*each), torch.randn(8, 16)


@pytest.mark.parametrize("name", [None, "float16", "autocast-float16"])
def test_an_overflow_inside_a_branch_is_named_there(name: str | None) -> None:
    model, x = t5(400.0, 1 / 160000)
    found = found_in(model, x, name)
    note = found.notes["precision"]
    first = note["headroom"]["float16"]["first_under_0"]
    assert (first["path"], first["function"]) == ("3", "mul")
    exact = t5(400.0, 1 / 160000, careful=False)[0].double()
    h = exact[:3](x.double())
    last = exact.get_submodule("3")
    assert isinstance(last, FeedForward)
    u = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    top = (F.gelu(last.wi0(u)) * last.wi1(u)).abs().max().item()
    assert first["largest"] == pytest.approx(top, rel=1e-12)
    assert first["bits"] == pytest.approx(math.log2(65504 / top))
    assert first["bits"] < 0
    # No state shows it: the branch's output is as small as the others'.
    assert min(found.columns["headroom_float16_bits"][1]) > 10
    assert note["headroom"]["bfloat16"]["first_under_0"] is None
    lost = note["first_nonfinite"]
    assert (lost is None) == (name is None)
    if lost is not None:
        assert (lost["path"], lost["function"], lost["of"]) == ("3", "mul", "value")


@pytest.mark.parametrize("name", ["bfloat16", "autocast-bfloat16"])
def test_the_same_in_bfloat16_is_not_flagged(name: str) -> None:
    note = found_in(*t5(400.0, 1 / 160000), name).notes["precision"]
    assert note["headroom"]["bfloat16"]["under_0"] == 0
    assert note["first_nonfinite"] is None


@pytest.mark.parametrize("name", [None, "float16"])
def test_a_healthy_one_in_float16_is_not_flagged(name: str | None) -> None:
    note = found_in(*t5(1.0, 1.0), name).notes["precision"]
    assert note["headroom"]["float16"]["under_0"] == 0
    assert note["headroom"]["float16"]["least"]["bits"] > 8
    assert note["first_nonfinite"] is None


@pytest.mark.parametrize("careful", [True, False])
@pytest.mark.parametrize("name", [None, "float16"])
def test_a_square_that_is_taken_in_float32_does_not_overflow(
    careful: bool, name: str | None
) -> None:
    model, x = t5(1.0, 1.0, careful)
    note = found_in(model, 2000 * x, name).notes["precision"]  # 2000^2 is above 65504
    first = note["headroom"]["float16"]["first_under_0"]
    if careful:
        assert first is None
        assert note["first_nonfinite"] is None
    else:
        assert (first["path"], first["function"]) == ("0", "pow")
        assert (note["first_nonfinite"] is None) == (name is None)


@pytest.mark.parametrize(("inside", "flagged"), [(3000.0, True), (1.0, False)])
def test_t5_of_the_library(inside: float, flagged: bool) -> None:
    """In half precision it clamps and casts further: it calls other functions there."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    model = transformers.T5EncoderModel(config).eval()
    layer = model.get_submodule("encoder.block.1.layer.1.DenseReluDense")
    with torch.no_grad():
        layer.get_parameter("wi_0.weight").mul_(inside)
        layer.get_parameter("wi_1.weight").mul_(inside)
        layer.get_parameter("wo.weight").div_(inside**2)
    ids = torch.randint(0, 50, (2, 9))
    for name in (None, "float16"):
        profile = dg.measure(
            model,
            batch={"input_ids": ids},
            instruments="precision,branches",
            effort=Effort(arithmetic=name),
        )
        note: Any = profile.settings["instruments"]
        first = note["precision"]["headroom"]["float16"]["first_under_0"]
        assert (first is not None) == flagged
        if flagged:
            assert first["path"].startswith("encoder.block.1.layer.1.DenseReluDense")
            assert profile["headroom_float16_bits"].min() < 0
        assert note["precision"]["headroom"]["bfloat16"]["first_under_0"] is None
        with_loss = found_in(
            model, {"input_ids": ids}, name, lambda y: half_square(y.last_hidden_state.float())
        )
        same = with_loss.notes["precision"]["headroom"]["float16"]["first_under_0"]
        assert same == first
        said = note["precision"]["notes"]
        assert (name is not None) == any("the model calls isinf in" in line for line in said)
        assert not {"relative_error_state", "relative_error_gradient"} & profile.not_measured.keys()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_gradient_of_a_state_before_its_cast(name: str) -> None:
    """A norm that casts up first: in float32 the cast gives the state itself, in half precision
    another tensor, to which the skip's gradient does not come."""
    model, x = t5(1.0, 1.0)
    low = copy.deepcopy(model).to(getattr(torch, name))
    gradients = []
    for network, h in (
        (low, x.to(getattr(torch, name))),
        (t5(1, 1, False)[0].double(), x.double()),
    ):
        h.requires_grad_()
        half_square(network(h).double()).backward()
        assert h.grad is not None
        gradients.append(h.grad.double().numpy())
    found = found_in(model, x, name, loss=lambda y: half_square(y.double()))
    wanted = distance(*gradients)
    assert column(found, "relative_error_gradient")[0] == pytest.approx(wanted, rel=1e-3)
    assert wanted < 0.1


def test_the_branch_of_a_profile_gets_the_least_of_its_values() -> None:
    class Residual(nn.Module):
        def __init__(self, inside: float) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.branch = nn.Sequential(self.a, nn.ReLU(), self.b)
            with torch.no_grad():
                self.a.weight.mul_(inside)
                self.b.weight.div_(inside)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.branch(h)
            return out

    for inside, flagged in ((1e6, True), (1.0, False)):
        torch.manual_seed(0)
        model = nn.Sequential(Residual(1.0), Residual(inside))
        branches = [Branch(100, "0.branch", ()), Branch(101, "1.branch", ())]
        subject = subject_of(model, torch.randn(4, 8), branches=branches)
        bits = column(precision(subject, Effort()), "headroom_float16_bits")
        assert bits[100] > 10
        assert (bits[101] < 0) == flagged
        assert all(value > 10 for row, value in bits.items() if row < 100)


def test_case_p01_bits_a_block() -> None:
    """Residual gated blocks whose output scale grows: each block's head-room falls, and the first
    block under 0 is the first that makes inf in float16."""
    torch.manual_seed(0)
    model = nn.Sequential(*(FeedForward(32, 1.0, 12.0 * 10**k) for k in range(6)))
    x = torch.randn(8, 32) * 10
    found = found_in(model, x, "float16")
    bits = list(column(found, "headroom_float16_bits").values())
    assert bits == sorted(bits, reverse=True)
    assert bits[-1] < 0 < bits[0]
    note = found.notes["precision"]
    first = note["headroom"]["float16"]["first_under_0"]
    assert first["path"] == note["first_nonfinite"]["path"]
    assert found_in(model, x, "bfloat16").notes["precision"]["first_nonfinite"] is None


# ------------------------------------------------ public case: the gains of a norm in bfloat16


class Normed(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm, self.w = nn.LayerNorm(n), nn.Linear(n, n)
        nn.init.normal_(self.w.weight, std=0.02)
        nn.init.normal_(self.w.bias, std=0.02)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.w(self.norm(h))
        return out


def adam_step(model: nn.Module, rate: float) -> dict[str, Tensor]:
    """The first step of Adam: the learning rate along the sign."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: rate * torch.randn(p.shape, generator=generator).sign()
        for name, p in model.named_parameters()
    }


def test_norm_gains_are_frozen_in_bfloat16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Normed(16), Normed(16)).bfloat16()
    x = torch.randn(8, 16).bfloat16()
    found = found_in(model, x, updates=adam_step(model, 1e-3))
    note = found.notes["precision"]["lost_updates"]["bfloat16"]
    assert note["frozen"] == ["0.norm.weight", "1.norm.weight"]
    with torch.no_grad():  # what PyTorch makes of the same step
        for name, p in model.named_parameters():
            before = p.clone()
            p.add_(adam_step(model, 1e-3)[name].bfloat16())
            assert bool((p == before).all()) == (name in note["frozen"])


@pytest.mark.parametrize(("name", "rate"), [("autocast-bfloat16", 1e-3), ("bfloat16", 2e-2)])
def test_norm_gains_move_with_float32_weights_or_a_larger_step(name: str, rate: float) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Normed(16), Normed(16)), torch.randn(8, 16)
    found = found_in(model, x, name, updates=adam_step(model, rate))
    stored = "float32" if "autocast" in name else "bfloat16"
    note = found.notes["precision"]["lost_updates"][stored]
    assert note["frozen"] == []
    assert note["share"] < 0.1


def test_the_updates_of_a_step_are_those_of_gradient_descent() -> None:
    model, x = blocks(2)
    effort = Effort(arithmetic="bfloat16", step=Step("sgd", 1e-3))
    found = precision(subject_of(model, x, half_square), effort)
    wide = copy.deepcopy(model).double()
    half_square(wide(x.double())).backward()
    updates = {n: -1e-3 * p.grad for n, p in wide.named_parameters() if p.grad is not None}
    wanted = lost(dict(model.named_parameters()), updates, "bfloat16")
    note = found.notes["precision"]["lost_updates"]
    assert note["bfloat16"] == wanted
    assert 0 < wanted["share"] < 1
    assert (note["optimizer"], note["lr"]) == ("sgd", [1e-3])


@pytest.mark.parametrize("half", [True, False])
def test_the_step_of_adam_freezes_gains_whoever_makes_it(half: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Normed(16), Normed(16)), torch.randn(8, 16)
    if half:
        model, x = model.bfloat16(), x.bfloat16()
    gains = ["0.norm.weight", "1.norm.weight"]
    for step in (Step("adam"), Step(lambda each: torch.optim.Adam(each, lr=1e-3))):
        found = precision(subject_of(model, x), Effort(step=step))
        assert found.notes["precision"]["lost_updates"]["bfloat16"]["frozen"] == gains
    bound = precision(subject_of(model, x), Effort(step=Step(torch.optim.Adam(model.parameters()))))
    note = bound.notes["precision"]["lost_updates"]
    if half:
        assert "steps in half precision" in note["not_measured"]
    else:
        assert note["bfloat16"]["frozen"] == gains
        assert note["float32"]["frozen"] == []


def test_an_update_for_no_parameter_is_refused() -> None:
    w = {"w": torch.ones(3)}
    with pytest.raises(NetworkError, match=r"an update of shape \(3,\) was given for 'v'"):
        lost(w, {"v": torch.ones(3)}, "bfloat16")
    with pytest.raises(NetworkError, match=r"an update of shape \(4,\)"):
        lost(w, {"w": torch.ones(4)}, "bfloat16")
    assert lost(w, {"w": torch.zeros(3)}, "bfloat16") == {
        "share": None,
        "frozen": [],
        "largest": {},
    }


# --------------------------------------------------------------------- the nine networks


@pytest.mark.parametrize(("size", "flagged"), [(1e5, True), (1.0, False)])
def test_a_stream_of_1e5_has_no_room_in_float16(size: float, flagged: bool) -> None:
    torch.manual_seed(0)
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True),
        12,
        enable_nested_tensor=False,
    )
    found = found_in(layers, size * torch.randn(2, 8, 16))
    bits = list(column(found, "headroom_float16_bits").values())
    assert (max(bits[:-1]) < 0) == flagged
    assert (min(bits) < 0) == flagged
    assert min(column(found, "headroom_bfloat16_bits").values()) > 100
    share = max(found.columns["last_binades_fraction"][1])
    assert (share > 0.5) == flagged
    first = found.notes["precision"]["headroom"]["float16"]["first_under_0"]
    assert (first is not None) == flagged
    assert found.notes["precision"]["first_nonfinite"] is None  # float32 holds it


def test_masks_are_no_overflow() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, h: Tensor) -> Tensor:
            scores = self.q(h) @ self.k(h).mT / 8**0.5
            mask = torch.full((5, 5), torch.finfo(h.dtype).min, dtype=h.dtype).triu(1)
            hidden: Tensor = (scores + mask).masked_fill(torch.ones(5, 5).triu(1) > 0, -math.inf)
            out: Tensor = F.softmax(hidden, -1) @ self.v(h)
            return h + out

    torch.manual_seed(0)
    model, x = nn.Sequential(Attends(), Attends()), torch.randn(2, 5, 8)
    for name in (None, "float16", "bfloat16"):
        note = found_in(model, x, name).notes["precision"]
        assert note["headroom"]["float16"]["under_0"] == 0
        assert note["first_nonfinite"] is None


# ------------------------------------------------------------------------------ equations


def test_an_equation_is_measured_as_a_module_is() -> None:
    network = dg.Network("h = h + 0.3 * W2(tanh(W1(h)))", depth=6, width=8)
    model = EquationNetwork(network, seed=0)
    h = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    found = precision(subject_of_equation(model, h), Effort(arithmetic="bfloat16"))
    assert set(found.columns) == set(PRECISION)
    low = copy.deepcopy(model).bfloat16()
    state, exact = h.bfloat16(), h.double()
    for k, (a, b) in enumerate(zip(low.blocks, copy.deepcopy(model).double().blocks, strict=True)):
        state, exact = a(state, h.bfloat16()), b(exact, h.double())
        wanted = distance(state.detach().double().numpy(), exact.detach().numpy())
        assert column(found, "relative_error_state")[k + 1] == pytest.approx(wanted, rel=1e-10)


# ------------------------------------------------------------------------------ bad input


def test_nan_states_are_findings() -> None:
    class Breaks(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + torch.log(h - 10)

    model, x = blocks(3)
    found = found_in(nn.Sequential(model[0], Breaks(), model[1]), x, "bfloat16")
    errors = column(found, "relative_error_state")
    assert math.isfinite(errors[0])
    assert math.isnan(errors[max(errors)])
    assert math.isnan(column(found, "headroom_float16_bits")[max(errors)])
    note = found.notes["precision"]
    assert note["first_nonfinite"] is None  # float64 has it too: no fault of the arithmetic
    assert note["headroom"]["float16"]["first_under_0"]["function"] == "log"


def test_one_example_and_no_parameters() -> None:
    model, x = blocks(3)
    assert not found_in(model, x[:1], "bfloat16").missing

    class Bare(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + torch.tanh(h)

    found = found_in(Bare(), x, "bfloat16")
    assert 0 < max(found.columns["relative_error_state"][1]) < 1e-2
    assert found.notes["precision"]["loss_scaling"] is None
    assert "no gradient" in found.notes["precision"]["lost_updates"]["not_measured"]
    assert found.notes["precision"]["arithmetic"] == "bfloat16"


def test_a_model_that_cannot_be_copied_keeps_its_headroom() -> None:
    class Alone(Block):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("cannot pickle a socket")

    torch.manual_seed(0)
    model, x = nn.Sequential(Alone(6), Alone(6)), torch.randn(4, 6)
    for name in (None, "float16", "autocast-bfloat16"):
        found = found_in(model, x, name)
        assert "cannot be copied" in found.missing["relative_error_state"]
        assert len(found.columns["headroom_float16_bits"][1]) == 3
        assert found.notes["precision"]["reference"] is None


def test_a_function_without_half_precision_is_emulated_and_named() -> None:
    class Far(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + torch.cdist(h, h) @ h / 10

    model, x = blocks(2)
    found = found_in(nn.Sequential(model[0], Far()), x, "float16")
    (said,) = found.notes["precision"]["notes"]
    assert said == (
        "cdist in '1' has no float16 here: it was computed in float32 and rounded to float16"
    )
    assert max(found.columns["relative_error_state"][1]) < 1e-2


def test_an_arithmetic_that_is_not_to_be_had_is_missing_with_its_reason() -> None:
    found = found_in(*blocks(2), "tf32")
    assert "tf32 is arithmetic of CUDA devices" in found.missing["relative_error_state"]
    assert "headroom_float16_bits" in found.columns
    with pytest.raises(SpecificationError, match="'float16'"):
        found_in(*blocks(2), "flaot16")


@pytest.mark.parametrize("first", [torch.float32, torch.float16])
def test_a_model_that_clamps_in_float16_is_compared_where_it_adds(first: torch.dtype) -> None:
    class Clamps(Block):
        def forward(self, h: Tensor) -> Tensor:
            h = super().forward(h)
            return h.clamp(-100, 100) if h.dtype == torch.float16 else h

    torch.manual_seed(0)
    model, x = nn.Sequential(Clamps(6), Clamps(6)).to(first), torch.randn(4, 6).to(first)
    found = found_in(model, x, "float16", half_square)
    (said,) = found.notes["precision"]["notes"]
    assert "calls clamp in '0' where it calls linear in '1.w1' in float64" in said
    each = []
    for kind in (torch.float16, torch.float64):
        states = [x.to(kind).requires_grad_()]
        for block in copy.deepcopy(model).to(kind):
            states.append(block(states[-1]))
        back = torch.autograd.grad(half_square(states[-1]), states)
        each.append([[t.detach().double().numpy() for t in ts] for ts in (states, back)])
    for i, quantity in enumerate(("relative_error_state", "relative_error_gradient")):
        errors = column(found, quantity)
        for k, (low, exact) in enumerate(zip(each[0][i], each[1][i], strict=True)):
            assert errors[k] == pytest.approx(distance(low, exact), rel=1e-10)
    if first is torch.float32:
        assert found_in(model, x, "bfloat16").notes["precision"]["notes"] == []


def test_states_stay_where_the_forward_pass_raises_after_them() -> None:
    class Head(nn.Linear):
        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h.float())  # whatever its weights are

    model, x = blocks(2)
    found = found_in(nn.Sequential(model, Head(6, 2)), x, "bfloat16")
    assert (
        "linear was given float32, which float in '1' made of bfloat16"
        in (found.missing["relative_error_gradient"])
    )
    assert len(found.columns["relative_error_state"][0]) == 3
    assert not found_in(nn.Sequential(model, nn.Linear(6, 2)), x, "bfloat16").missing


@pytest.mark.parametrize(
    ("runs", "has"),
    [(1, set()), (2, {"relative_error_state"}), (3, {"relative_error_state", "headroom"})],
)
def test_a_budget_ends_it_between_two_runs(
    runs: int, has: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64, float32, and float16 for the head-room: what had not run is missing, with why."""
    asked = itertools.count()
    monkeypatch.setattr(Effort, "spent", property(lambda self: next(asked) >= runs))
    found = precision(subject_of(*blocks(2)), Effort(budget=5.0))
    words = f"its share of the budget of 5 seconds was spent after {runs} run{'s' * (runs > 1)}"
    assert ("relative_error_state" in found.columns) == ("relative_error_state" in has)
    assert ("headroom_float16_bits" in found.columns) == ("headroom" in has)
    assert set(found.missing.values()) == (set() if runs == 3 else {f"{words} of the network"})
    assert found.columns.keys() | found.missing.keys() == set(PRECISION)
    assert ("lost_updates" in found.notes["precision"]) == (runs == 3)


def test_the_model_is_as_before() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), Block(6), nn.Dropout(0.3), Block(6))
    x = torch.randn(4, 6)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    drawn = torch.get_rng_state()
    for name in ("bfloat16", "float8_e4m3", "autocast-float16"):
        found = found_in(model, x, name)
        assert max(found.columns["relative_error_state"][1]) < 1  # the same masks
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


def test_autocast_ends_where_it_was_opened() -> None:
    model, x = blocks(2)
    for name in ("autocast-bfloat16", "autocast-float16"):
        found_in(model, x, name)
        assert not torch.is_autocast_enabled("cpu")
        assert (x @ x.T).dtype == model(x).dtype == torch.float32


@pytest.mark.parametrize(("size", "flagged"), [(1e5, True), (10.0, False)])
def test_a_factor_that_autocast_rounds_overflows(size: float, flagged: bool) -> None:
    """The stream is kept in float32; the product casts it to float16 on its way in."""
    model, x = blocks(2, scale=1e-5)
    note = found_in(model, size * x, "autocast-float16").notes["precision"]
    first = note["headroom"]["float16"]["first_under_0"]
    assert (first is not None) == flagged
    if flagged:
        assert (first["path"], first["function"]) == ("0.w1", "linear, factor 1")
        assert note["first_nonfinite"]["path"] == "0.w1"


#: Of the nine networks: (head-room of the stream in float16 is negative, the gradient underflows,
#: errors in float32 grow to the size of the states).
NINE = {
    "MLP-48 default": (False, True, False),
    "MLP-48 1.5 He": (True, False, False),
    "MLP-48 tanh gain 4": (False, False, True),
    "MLP-48 He": (False, False, False),
    "MLP-12 He": (False, False, False),
}


@pytest.mark.parametrize("name", NINE)
def test_plain_networks_of_the_nine(name: str) -> None:
    torch.manual_seed(0)
    gain = {"MLP-48 1.5 He": 1.5 * 2**0.5, "MLP-48 tanh gain 4": 4.0, "MLP-48 default": None}
    layers: list[nn.Module] = []
    for _ in range(12 if "12" in name else 48):
        linear = nn.Linear(64, 64)
        if (factor := gain.get(name, 2**0.5)) is not None:
            nn.init.normal_(linear.weight, std=factor / 8)
            nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh() if "tanh" in name else nn.ReLU()]
    found = found_in(nn.Sequential(*layers), torch.randn(16, 64))
    overflows, underflows, chaotic = NINE[name]
    assert (min(found.columns["headroom_float16_bits"][1]) < 0) == overflows
    assert (min(found.columns["underflow_headroom_bits"][1]) < 0) == underflows
    assert (found.columns["relative_error_state"][1][-1] > 1e-2) == chaotic


def test_through_the_profile() -> None:
    equation = "h = h + 0.3 * W2(tanh(W1(h)))"
    for dtype, low, high in (("float32", 1e-9, 1e-6), ("bfloat16", 1e-3, 1e-1)):
        profile = dg.measure(
            equation, depth=4, width=8, batch=8, seed=0, dtype=dtype, instruments="precision"
        )
        note: Any = profile.settings["instruments"]
        assert note["precision"]["arithmetic"] == dtype
        error = profile.columns["relative_error_state"].values[-1, 0]
        assert low < error < high
    model, x = t5(400.0, 1 / 160000)
    profile = dg.measure(
        model, batch=x, instruments="precision", effort=Effort(arithmetic="float16")
    )
    document: Any = profile.to_dict()
    json.dumps(document, allow_nan=False)
    note = document["settings"]["instruments"]["precision"]
    assert note["first_nonfinite"]["path"] == "3"
    bits = {
        (site["path"], site["role"]): site["headroom_float16_bits"]
        for site in document["sites"]
        if "headroom_float16_bits" in site
    }
    assert min(bits.values()) > 10 or min(bits, key=lambda key: bits[key])[1] == "branch"


def test_float8_by_the_largest_value_does_not_saturate() -> None:
    model, x = t5(400.0, 1 / 160000)
    plain, scaled = (
        precision(subject_of(model, x), Effort(), arithmetic_named("float8_e4m3", scaling))
        for scaling in ("plain", "amax")
    )
    first = plain.notes["precision"]["headroom"]["float8_e4m3"]["first_under_0"]
    assert (first["path"], first["function"]) == ("3.wo", "linear, factor 1")
    errors = [max(f.columns["relative_error_state"][1]) for f in (plain, scaled)]
    assert errors[0] > 2 * errors[1]


def test_the_page_prints_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "precision.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    (shown,) = re.findall(r"```\n(float16.*?)```", page, flags=re.S)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == shown


class Sixfold(nn.Module):
    """``h + 6 down(relu(up(h)))``: a parameter's gradient sums over examples and is larger."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + 6 * self.down(F.relu(self.up(h)))
        return out


@pytest.mark.parametrize("depth", [1, 14])
def test_the_loss_is_scaled_until_any_gradient_overflows(depth: int) -> None:
    """Against every gradient of the pass, that of the loss itself among them."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Sixfold(16) for _ in range(depth))), torch.randn(64, 16)

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out.float(), torch.arange(64) % 10)

    room = found_in(model, x, "float16", loss=loss).notes["precision"]["loss_scaling"]["float16"]
    double, h = copy.deepcopy(model).double(), x.double()
    made = [h.requires_grad_()]
    for block in double:
        assert isinstance(block, Sixfold)
        made += [up := block.up(h), active := F.relu(up), down := block.down(active)]
        made += [six := 6 * down, h := h + six]
    total = F.cross_entropy(h, torch.arange(64) % 10)
    parameters = list(double.parameters())
    each = [g.abs().max() for g in torch.autograd.grad(total, [*parameters, *made, total])]
    most = 65504.0
    bits = math.floor(math.log2(most / float(max(each[: len(parameters)]))))
    every = math.floor(math.log2(most / float(max(each))))
    assert (room["bits"], room["bits_of_every_gradient"]) == (bits, every)
    assert every <= bits
