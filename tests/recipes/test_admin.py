"""Admin, by its closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.recipes.admin import OMEGA
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import number_of
from tests.recipes.contract import broken, on_equation, on_module, parameter, redrawn, said
from tests.recipes.models import DEPTH, WIDTH, encoder

BLOCK = "h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


@pytest.mark.parametrize(
    ("n", "omega"),
    [
        (12, 2.01701),
        (24, 2.60129),
        (36, 3.04084),
        (48, 3.40448),
        (100, 4.56997),
        (200, 6.07461),
        (1000, 11.99536),
    ],
)
def test_numbers(n: int, omega: float) -> None:
    assert number_of(OMEGA["admin"].format(n=n), {}) == pytest.approx(omega, abs=6e-6)


def test_numbers_of_constant_change() -> None:
    assert number_of(OMEGA["admin-constant"].format(n="L"), {"L": 24}) == pytest.approx(4.89898)


def test_on_equations() -> None:
    changed, model, batch = on_equation("admin", BLOCK)
    assert str(changed.block) == (
        "h = layernorm(gain(sqrt((L + 1)/log(L + 1) - 1)) * h + attention(h)); "
        "h = layernorm(gain(sqrt((L + 1)/log(L + 1) - 1)) * h + W2(relu(W1(h, out=4*n))))"
    )
    broken(model, batch, "admin", redrawn("admin", batch, "constant(1)"), "omega was never set")
    on_equation("admin-constant", "h = gain(1) * h + W2(relu(W1(h)))")


class Carried(nn.Module):
    """Post-norm with a learned number a channel on the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.omega = nn.LayerNorm(WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.omega * x + self.down(torch.relu(self.up(x))))
        return out


def carried() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Carried() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


@pytest.mark.parametrize(
    ("name", "omega"), [("admin", (7 / 1.945910149 - 1) ** 0.5), ("admin-constant", 6**0.5)]
)
def test_on_modules_that_have_omegas(name: str, omega: float) -> None:
    applied, batch = on_module(name, carried)
    for p in parameter(applied.model, "omega"):
        torch.testing.assert_close(p.detach(), torch.full((WIDTH,), omega))
    other = "admin" if name == "admin-constant" else "admin-constant"
    text = OMEGA[other].format(n="L")
    plant = redrawn(name, batch, f"constant({text})")
    broken(applied.model, batch, name, plant, "6 of 6 omegas: .*the other of the two closed forms")
    applied, batch = on_module(name, carried)
    layers = redrawn(name, batch, f"constant({OMEGA[name].format(n='(L/2)')})")
    broken(applied.model, batch, name, layers, "n counts layers, not branches")


def test_one_channel_of_one_omega_is_found() -> None:
    applied, batch = on_module("admin", carried)

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            parameter(model, "omega")[2][5] = 1.0

    broken(applied.model, batch, "admin", plant, "1 of 6 omegas")


def test_a_skip_without_a_number_is_left_and_named() -> None:
    model, batch = encoder()
    applied = apply(model, batch, "admin")
    assert applied.left[0] == (
        "the skip beside '0.layers.0.self_attn' cannot be multiplied by a learned number from "
        "outside"
    )
    words = said(audit(applied.model, batch, "admin"))
    # sqrt(7 / log 7 - 1)
    assert "0 of 6 skips with a learned multiplier gain(1.612)" in words
