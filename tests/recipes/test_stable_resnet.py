"""Stable ResNet's decreasing rule."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of
from depthgauge.recipes.stable_resnet import _form
from depthgauge.study.reference import resnet as reference
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import gpt2, mlp, resnet

MLP = "h + W2(relu(W1(h)))"


def test_on_equations() -> None:
    changed, _, _ = on_equation("stable-resnet", MLP)
    assert str(changed.block) == "h = h + 1/(sqrt(l)*log(l + 1)) * W2(relu(W1(h)))"
    changed, _, _ = on_equation("stable-resnet", "h = h + W(relu(h)); h = h + W(relu(h))")
    assert "sqrt(2*(l - 1) + 2)" in str(changed.block)


def test_golden_numbers() -> None:
    form = _form("l", 1)
    rule = [number_of(form.factor or "", {"l": float(k)}) for k in range(1, 1001)]
    printed = {1: "1.4427", 2: "0.64364", 3: "0.41647", 10: "0.13188", 51: "0.03544"}
    for l, text in printed.items():
        assert f"{rule[l - 1]:.{len(text) - 2}f}" == text
    for blocks, text in ((15, "3.0260"), (51, "3.1344"), (1000, "3.2430")):
        assert f"{math.fsum(x * x for x in rule[:blocks]):.4f}" == text


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ("1", "6 of 6 sums: 1 h . 1 F, expected 1 h . 1.443 F: the factor was never applied"),
        ("1/sqrt(l*log(l+1))", r"where the logarithm is squared: its sum diverges"),
        ("1/sqrt(L)", "the uniform rule"),
        ("1/(sqrt(l)*log(l+1)/log(2))", "the logarithm is to base 2"),
        ("1/(sqrt(l+1)*log(l+2))", "l was counted from 2"),
    ],
)
def test_mistakes_are_named(factor: str, words: str) -> None:
    model = Network(f"h + ({factor})*W2(relu(W1(h)))", 6, 16).module(seed=0)
    found = audit(model, torch.randn(4, 16), "stable-resnet")
    assert not found.holds
    assert re.search(words, said(found)), said(found)


def test_on_modules() -> None:
    applied, batch = on_module("stable-resnet", resnet)
    numbers = [branch.factor for branch in layout(applied.model, batch).branches]
    assert numbers == pytest.approx([1.4427, 0.64364, 0.41647], rel=1e-4)
    applied, batch = on_module("stable-resnet", lambda: reference(20))
    numbers = [branch.factor for branch in layout(applied.model, batch).branches]
    assert numbers[8] == pytest.approx(1 / (3 * math.log(10)), rel=1e-6)
    on_module("stable-resnet", mlp)
    applied, batch = on_module("stable-resnet", gpt2)
    numbers = [branch.factor for branch in layout(applied.model, batch).branches]
    assert numbers[2] == pytest.approx(0.41647, rel=1e-4)


def test_an_index_that_begins_anew_in_each_stage_is_named() -> None:
    model, batch = reference(20)
    applied = apply(model, batch, "stable-resnet")
    stages = layout(model, batch).branches

    def plant(changed: nn.Module) -> None:
        l = 0
        for branch in stages:
            l = 1 if branch.projected else l + 1
            end = branch.norms[-1].path
            left = changed.get_submodule(end)
            left.after.number = 1 / (math.sqrt(l) * math.log(l + 1))  # type: ignore[union-attr]

    words = "6 of 9 sums: .*l begins anew in each stage"
    broken(applied.model, batch, "stable-resnet", plant, words)


class Overwritten(nn.Module):
    """The norm's result is not what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4)
        self.wasted = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.a(torch.relu(x))
        normed = self.norm(out)
        total: Tensor = x + (out if self.wasted else normed)
        return total


def test_a_norm_that_is_overwritten_is_named() -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(Overwritten() for _ in range(3))), torch.randn(2, 4, 6, 6)
    assert "3 norms whose result nothing reads: computed, then over" in said(
        audit(model, batch, "stable-resnet")
    )
    for block in model:
        assert isinstance(block, Overwritten)
        block.wasted = False
    assert "nothing reads" not in said(audit(model, batch, "stable-resnet"))


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "stable-resnet")
