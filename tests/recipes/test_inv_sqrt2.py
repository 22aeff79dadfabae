"""Sums over sqrt(2)."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.study.reference import resnet as reference
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import mlp, postnorm, resnet


def test_on_equations() -> None:
    changed, _, _ = on_equation("inv-sqrt2", "h + W2(relu(W1(h, out=3*n)))")
    assert str(changed.block) == "h = 1/sqrt(2) * (h + W2(relu(W1(h, out=3*n))))"
    on_equation("inv-sqrt2", "h = h + W2(relu(W1(h))); h = h + conv3(relu(h))", size=4, width=6)
    on_equation("inv-sqrt2", "h = h + attention(h); h = h + W2(relu(W1(h)))", tokens=5)


def test_the_variance_stays_and_the_identity_dies() -> None:
    # Orthogonal branches: what each adds is exactly as large as the stream, and its Jacobian has
    # no part along the identity on average.
    network = rewritten(Network("h + W(h)", 12, 256, init="orthogonal"), "inv-sqrt2").network
    model = network.module(seed=0)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float(model(x).var() / x.var()) == pytest.approx(1, abs=0.05)
        plain = Network("h + W(h)", 12, 256, init="orthogonal").module(seed=0)
        assert float(plain(x).var() / x.var()) == pytest.approx(2**12, rel=0.05)
        jacobian = model(torch.eye(256))
    assert float(jacobian.diagonal().mean()) == pytest.approx(1.5625e-2, abs=4 / 256)
    assert 2 ** -(12 / 2) == 1.5625e-2
    assert pytest.approx(2.44e-4, rel=1e-3) == 2 ** -(24 / 2)


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("h + W2(relu(W1(h)))", "6 of 6 sums: 1 h . 1 F, expected 0.7071 .*never scaled"),
        ("h + 1/sqrt(2)*W2(relu(W1(h)))", "the branch alone is scaled"),
        ("1/sqrt(2)*h + W2(relu(W1(h)))", "the skip alone is scaled"),
        ("(h + W2(relu(W1(h))))/2", "1/2 instead of its root"),
        ("(h + W2(relu(W1(h))))/sqrt(L)", "belongs to the branch"),
    ],
)
def test_mistakes_are_named(equation: str, words: str) -> None:
    network = Network(equation, 6, 16)
    found = audit(network.module(seed=0), torch.randn(4, 16), "inv-sqrt2")
    assert not found.holds
    assert re.search(words, said(found)), said(found)


def test_on_modules() -> None:
    applied, batch = on_module("inv-sqrt2", mlp)
    broken(applied.model, batch, "inv-sqrt2", _unwrap, "1 of 6 sums: 1 h . 1 F")


def _unwrap(model: nn.Module) -> None:
    setattr(model, "2", model.get_submodule("2.module"))


@pytest.mark.parametrize("deep", [False, True])
def test_sums_that_no_module_returns_are_left(deep: bool) -> None:
    model, batch = reference(50) if deep else resnet()
    applied = apply(model, batch, "inv-sqrt2")
    assert len(applied.left) == (16 if deep else 3) + 1
    assert all("no module returns the sum after" in line for line in applied.left[:-1])
    found = audit(applied.model, batch, "inv-sqrt2")
    assert applied.left[-1] == said(found)
    assert "1 h + 1 F, expected 0.7071 h + 0.7071 F: the sum was never scaled" in said(found)


class Halved(nn.Module):
    """A strided block, as they are written by hand: the sum scaled inside."""

    def __init__(self, stride: int, factor: float) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, stride, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.shortcut = nn.Conv2d(4, 4, 1, stride) if stride > 1 else nn.Identity()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.shortcut(x) + self.b(torch.relu(self.a(x)))) * self.factor
        return torch.relu(out)


@pytest.mark.parametrize(("factor", "holds"), [(0.5**0.5, True), (0.5, False)])
def test_sums_of_strided_blocks_are_read(factor: float, holds: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Halved(1, factor), Halved(2, factor), Halved(1, factor))
    found = audit(model, torch.randn(2, 4, 8, 8), "inv-sqrt2")
    assert found.holds is holds
    assert "could not be read" not in " ".join(f.said for f in found.findings)


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "inv-sqrt2")
    with pytest.raises(NetworkError, match="a norm stands after the sum of"):
        apply(*postnorm(), "inv-sqrt2")
