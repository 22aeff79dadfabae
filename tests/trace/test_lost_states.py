"""States that are not finite: what is said of a module is what is said of its equation."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import Corridor, Network, Profile, measure
from depthgauge.network.draws import COTANGENT, draws

INSTRUMENTS = "fast,jacobian,directions,blocks,spectrum"
JACOBIAN = (
    "apjn",
    "direction_gain",
    "block_gain",
    "block_loss",
    "effective_rank_participation",
    "stable_rank",
)
#: What a module in half precision says of Jacobians anyway.
HALF = "Jacobians are taken in float32 or wider, and the states are float16"
PLAIN = Network("h = 1e3*relu(W(h))", 40, 8)
RESIDUAL = Network("h = h + 1e12*relu(W(h))", 40, 8)
HEALTHY = Network("h = h + 0.1*W2(relu(W1(h)))", 4, 8)
TOGETHER = Network("h = h + 0.1*W2(relu(batchnorm(W1(h))))", 4, 8)
GATES = Corridor.of(
    gradient_ratio={"min": 0.5, "max": 2.0},
    participation_share={"min": 0.3},
    nonfinite_fraction={"max": 0.0},
)


def rows(bad: int | None = None, count: int = 8) -> Tensor:
    """Gaussian examples, one of which has a NaN."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    if bad is not None:
        x[bad, 2] = math.nan
    return x


def both(
    network: Network, x: Tensor, dtype: str, instruments: str = INSTRUMENTS
) -> tuple[Profile, Profile]:
    """The equation, and the module of the same weights along the same cotangent."""
    equation = measure(network, x, dtype=dtype, instruments=instruments)
    numbers = draws(network.draws, 0).source(COTANGENT, "cotangent").normal(x.numel())
    cotangent = torch.from_numpy(numbers).reshape(x.shape)
    cotangent = (cotangent / cotangent.square().mean().sqrt()).to(getattr(torch, dtype))
    model = network.module(0, cotangent.dtype)

    def along(y: Tensor) -> Tensor:
        return (y * cotangent).float().sum()

    return equation, measure(model, x.to(cotangent), along, instruments=instruments)


def states(profile: Profile) -> dict[str, str]:
    return {j.name: j.state for j in GATES.judge(profile).judgements}


def document(profile: Profile) -> Any:
    return json.loads(json.dumps(profile.to_dict(), allow_nan=False))


def assert_forgotten(profile: Profile) -> None:
    for name, column in profile.columns.items():
        if name == "gradient_nonfinite_fraction":
            assert (column.values == 1).all()
        elif name.startswith("gradient_"):
            assert np.isnan(column.values).all(), name
    told = document(profile)
    assert all(site["gradient_rms"] is None for site in told["sites"] if site["role"] == "state")
    assert told["summary"]["gradient_ratio"]["value"] is None
    assert told["summary"]["gradient_ratio"]["value_reason"].startswith("not a number from")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("network", [PLAIN, RESIDUAL], ids=["plain", "residual"])
def test_overflow(network: Network, dtype: str) -> None:
    equation, module = both(network, rows(), dtype)
    for profile in (equation, module):
        assert profile.first_nonfinite() is not None
        assert_forgotten(profile)
        assert states(profile)["gradient_ratio"] == "fail"
        assert states(profile)["nonfinite_fraction"] == "fail"
        assert states(profile)["participation_share"] in ("fail", "not_measured")
    first = module.first_nonfinite()
    assert first is not None
    why = f"the states are not finite from state {first.block} on ({first.path})"
    for name in JACOBIAN:
        assert module.not_measured[name] == (why if dtype == "float32" else HALF)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bad", [0, 3, 7])
@pytest.mark.parametrize("network", [HEALTHY, TOGETHER], ids=["alone", "together"])
def test_one_example_that_is_not_a_number(network: Network, bad: int, dtype: str) -> None:
    """The first and the last are those whose Jacobians are followed, the fourth is not."""
    equation, module = both(network, rows(bad), dtype)
    for profile in (equation, module):
        assert_forgotten(profile)
        assert states(profile) == {
            "gradient_ratio": "fail",
            "participation_share": "not_measured",
            "nonfinite_fraction": "fail",
        }
        told = document(profile)["summary"]["participation_share"]
        assert (told["value"], told["n"]) == (None, 0)
        assert told["value_reason"] == profile.not_measured["effective_rank_participation"]
        assert "act on one another" not in json.dumps(document(profile))
    why = "the states are not finite from state 0 on (the input)"
    for name in JACOBIAN:
        assert equation.not_measured[name] == why
        assert module.not_measured[name] == (why if dtype == "float32" else HALF)


@pytest.mark.parametrize(("dtype", "rel"), [("float32", 1e-4), ("float16", 1e-2)])
def test_the_finite_partner_is_measured(dtype: str, rel: float) -> None:
    equation, module = both(HEALTHY, rows(), dtype)
    for name in ("state_rms", "gradient_rms", "gradient_max"):
        assert module[name] == pytest.approx(equation[name], rel=rel), name
    assert (module["gradient_nonfinite_fraction"] == 0).all()
    assert set(states(equation).values()) == {"pass"}
    assert states(module)["gradient_ratio"] == "pass"
    for name in JACOBIAN[2:] if dtype == "float32" else ():
        assert module[name] == pytest.approx(equation[name], rel=rel), name


@pytest.mark.parametrize("bad", [None, 3])
def test_what_is_asked_for_does_not_change_the_gradient(bad: int | None) -> None:
    model = HEALTHY.module(0)
    whole = measure(model, rows(bad))["gradient_rms"]
    for instruments in ("gradient_rms", "gradient_rms,correlation", "gradient_rms,state_mean"):
        found = measure(model, rows(bad), instruments=instruments)
        assert set(found.columns) <= {"gradient_rms", "correlation", "state_mean"}
        assert found["gradient_rms"] == pytest.approx(whole, rel=1e-6, nan_ok=True)
    assert np.isnan(whole).all() == (bad is not None)


class Stack(nn.Module):
    """Residual ReLU blocks and what is done with their end."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.end = end

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.end(x)


class Cured(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nan_to_num()


class Root(nn.Module):
    """NaN below 0, where ReLU's gate is open at will."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + x.detach().sqrt())


class Masked(nn.Module):
    """Logits, some of which are ruled out."""

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(torch.arange(8) < 3, -math.inf)


def test_a_stream_that_is_lost_behind_an_output_that_is_finite() -> None:
    model = Stack(Cured())
    assert model(rows(3)).isfinite().all()
    assert_forgotten(measure(model, rows(3)))
    assert np.isfinite(measure(model, rows())["gradient_rms"]).all()


def test_an_output_that_is_lost_behind_a_stream_that_is_finite() -> None:
    profile = measure(Stack(Root()), rows())
    assert (profile["nonfinite_fraction"][:4] == 0).all()
    assert np.isnan(profile["gradient_rms"]).all()


def test_masked_logits_lose_nothing() -> None:
    """Their sum along a cotangent is NaN, and what comes back is right."""
    model, plain = Stack(Masked()), Stack(nn.Identity())
    plain.load_state_dict(model.state_dict())
    numbers = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    numbers /= numbers.square().mean().sqrt()
    numbers[:, :3] = 0
    wanted = measure(plain, rows(), lambda y: (y * numbers).sum())["gradient_rms"]
    found = measure(model, rows())["gradient_rms"]
    assert found[: len(wanted)] == pytest.approx(wanted, rel=1e-6)


def test_a_loss_that_is_not_a_number() -> None:
    """A hinge gives a gradient of 0 for a margin that is NaN."""
    labels = torch.ones(8)
    labels[2] = math.nan

    def hinge(y: Tensor, labels: Tensor = labels) -> Tensor:
        return F.relu(1 - labels * y[:, 0]).mean()

    assert_forgotten(measure(Stack(nn.Identity()), rows(), hinge))
    labels[2] = -1
    assert np.isfinite(measure(Stack(nn.Identity()), rows(), hinge)["gradient_rms"]).all()


def test_of_two_streams_the_one_that_is_finite_keeps_its_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Stack(Cured()), Stack(Cured())

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.other(y)

    profile = measure(Two(), (rows(3), rows()))
    assert len(profile.streams) == 2
    assert [stream["states"] for stream in profile.streams] == [4, 4]
    column = profile.columns["gradient_rms"]
    lost = [profile.sites[row].block < 4 for row in column.rows]
    assert lost.count(True) == lost.count(False) == 4
    assert np.isnan(column.values[:, 0]).tolist() == lost


@pytest.mark.parametrize("bad", [None, 3])
def test_precision_has_no_errors_of_what_is_lost(bad: int | None) -> None:
    names = ("relative_error_gradient", "flushed_gradient_fraction", "underflow_headroom_bits")
    for profile in both(HEALTHY, rows(bad), "float32", "precision"):
        for name in names:
            assert np.isnan(profile[name]).all() == (bad is not None), name
        notes: Any = profile.settings["instruments"]
        room = notes["precision"]["loss_scaling"]["float16"]
        assert (room["bits_of_every_gradient"] is None) == (bad is not None)
        document(profile)
