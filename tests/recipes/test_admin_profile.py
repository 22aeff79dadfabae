"""Admin by a profile of the branches' variances on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.admin_profile import omegas
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from tests.recipes.contract import broken, on_equation, on_module, parameter, said
from tests.recipes.models import encoder, mlp, neox
from tests.recipes.test_admin import Carried, carried

BLOCK = "h = h + attention(layernorm(h)); h = h + W2(relu(W1(layernorm(h), out=4*n)))"


def test_each_omega_has_the_variances_in_front_of_it() -> None:
    assert omegas([0.5, 1.0, 2.0]) == [1.0, math.sqrt(1.5), math.sqrt(2.5)]
    # The published profile of 100 layers begins with these.
    assert omegas([1.319**2 - 1, 1.455**2 - 1.319**2, 1])[1:] == pytest.approx([1.319, 1.455])


def test_on_equations() -> None:
    changed, model, batch = on_equation("admin-profile", BLOCK)
    assert str(changed.block) == (
        "h = layernorm(gain(1) * h + attention(h)); "
        "h = layernorm(gain(1) * h + W2(relu(W1(h, out=4*n))))"
    )
    gains = [float(p.detach().mean()) for p in parameter(model, "gain.1")]
    assert gains[0] == 1
    assert gains == sorted(gains)
    broken(model, batch, "admin-profile", _filled(lambda k, _: 1.0), "omega was never set")


def _filled(value: Callable[[int, float], float]) -> Callable[[nn.Module], None]:
    """Each omega in order by a function of its place and of what it is."""

    def plant(model: nn.Module) -> None:
        found = [p for n, p in model.named_parameters() if n.endswith("omega") or ".gain." in n]
        with torch.no_grad():
            for k, p in enumerate(found):
                p.fill_(value(k, float(p.mean())))

    return plant


def reference(model: Sequence[Carried], x: Tensor) -> list[float]:
    """omega of each block, a pass at 1 written out."""
    squares, total = [], 1.0
    for block in model:
        squares.append(total)
        added = block.down(torch.relu(block.up(x)))
        total += float(added.detach().double().var(correction=0))
        x = block.norm(x + added)
    return [math.sqrt(square) for square in squares]


def _parts(model: nn.Module) -> tuple[nn.Module, list[Carried]]:
    first, *others = model.children()
    return first, [block for block in others if isinstance(block, Carried)]


def test_on_a_module_it_is_the_profile_at_omega_one() -> None:
    applied, batch = on_module("admin-profile", carried)
    stem, blocks = _parts(applied.model)
    with torch.no_grad():
        expected = reference(blocks, stem(batch))
    found = [float(p.detach().mean()) for p in parameter(applied.model, "omega")]
    assert found == pytest.approx(expected, rel=1e-5)
    assert applied.changes[-1] == f"6 omegas set by a profile on the batch, 1 to {found[-1]:.4g}"
    again = apply(applied.model, batch, "admin-profile")
    assert [float(p.detach().mean()) for p in parameter(again.model, "omega")] == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda k, w: 1.0, "1 of 6 omegas .*: omega was never set"),
        (lambda k, w: w * w, "1 of 6 omegas .*: the sum itself, where its root belongs"),
        (lambda k, w: w if k != 4 else 3.7, r"5 of 6 omegas .*'5.down' is 3.7, expected \d.\d+$"),
    ],
)
def test_omegas_that_are_others(value: Callable[[int, float], float], words: str) -> None:
    applied, batch = on_module("admin-profile", carried)
    broken(applied.model, batch, "admin-profile", _filled(value), words)


def test_its_own_variance_counted_too() -> None:
    applied, batch = on_module("admin-profile", carried)
    found = [float(p.detach().mean()) for p in parameter(applied.model, "omega")]
    stem, blocks = _parts(applied.model)
    with torch.no_grad():
        x = stem(batch)
        added = [block.omega.fill_(1.0) for block in blocks]
        assert len(added) == 6
        for block in blocks[:-1]:
            x = block(x)
        last = float(blocks[-1].down(torch.relu(blocks[-1].up(x))).double().var(correction=0))
        later = [*found[1:], math.sqrt(found[-1] ** 2 + last)]
        for block, omega in zip(blocks, later, strict=True):
            block.omega.fill_(omega)
    words = said(audit(applied.model, batch, "admin-profile"))
    assert "0 of 6 omegas" in words
    assert "the branch's own variance is counted too" in words


class Both(nn.Module):
    """Two stacks, the second of which adds what the first ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.ModuleList(Carried() for _ in range(3)) for _ in range(2))
        self.stem, self.other = nn.Linear(8, 24), nn.Linear(8, 24)
        self.mix = nn.MultiheadAttention(24, 2, batch_first=True)
        self.norm, self.omega = nn.LayerNorm(24), nn.Parameter(torch.ones(24))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.stem(x), self.other(y)
        for block in self.one:
            x = block(x)
        y = self.two[0](y)
        y = self.norm(self.omega * y + self.mix(y, x, x)[0])
        for block in list(self.two)[1:]:
            y = block(y)
        return y


def test_stacks_are_profiled_by_themselves() -> None:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        return Both(), (torch.randn(4, 5, 8), torch.randn(4, 3, 8))

    applied, batch = on_module("admin-profile", build)
    omega = {n: float(p.detach().mean()) for n, p in applied.model.named_parameters()}
    assert (omega["one.0.omega"], omega["two.0.omega"]) == (1, 1)
    assert omega["omega"] > 1
    whole = omega["one.2.omega"]
    torch_model = applied.model

    def plant(model: nn.Module) -> None:
        names = ("two.0.omega", "omega", "two.1.omega", "two.2.omega")
        end = _end(torch_model, batch)
        with torch.no_grad():
            for name in names:
                model.get_parameter(name).fill_(math.sqrt(omega[name] ** 2 + end - 1))

    assert whole > 1
    broken(applied.model, batch, "admin-profile", plant, "the branches of 'one' are counted too")


def _end(model: nn.Module, batch: Any) -> float:
    """1 and the variances of all branches of the first stack."""
    x, total = model.get_submodule("stem")(batch[0]), 1.0
    for block in model.one:  # type: ignore[union-attr]
        added = block.down(torch.relu(block.up(x)))
        total += float(added.detach().double().var(correction=0))
        x = block.norm(x + added)
    return total


def test_what_cannot_be_done_is_said() -> None:
    model, batch = encoder()
    applied = apply(model, batch, "admin-profile")
    assert "the skip beside '0.layers.0.self_attn' cannot be multiplied" in applied.left[0]
    words = said(audit(applied.model, batch, "admin-profile"))
    assert "0 of 6 skips with a learned multiplier gain" in words
    assert "no skip has an omega" in words
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with pytest.raises(NetworkError, match="no residual branch was found, and Admin"):
        apply(plain, torch.randn(4, 8), "admin-profile")
    with torch.no_grad():
        lost, batch = carried()
        parameter(lost, "2.down.weight")[0].fill_(torch.inf)
    with pytest.raises(NetworkError, match="makes of this batch is not finite"):
        apply(lost, batch, "admin-profile")
    assert "skips with a learned multiplier" in said(audit(*mlp(), "admin-profile"))
    assert "norms in place" in said(audit(*neox(), "admin-profile"))
