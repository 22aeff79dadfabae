"""What an audit says of a function that clips gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.clipping import AdaptivelyClipped, clip_gradients, units_of
from depthgauge.recipes.clipping_held import Clip, clipping_held
from tests.recipes.models import convolutions, gpt2, mlp, resnet


def words(model: nn.Module, batch: Any, clipping: Clip) -> str:
    found = clipping_held(model, batch, clipping)
    return " | ".join(finding.said for finding in found if not finding.holds)


def by_rule(*without: str, **options: float) -> Clip:
    return lambda model: clip_gradients(units_of(model, without), **options)


@pytest.mark.parametrize(
    ("build", "head"),
    [(mlp, "7"), (resnet, "6"), (convolutions, "10"), (gpt2, "lm_head")],
)
def test_the_rule_holds_of_every_kind_of_layer(
    build: Callable[[], tuple[nn.Module, Any]], head: str
) -> None:
    model, batch = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert words(model, batch, by_rule(head)) == ""
    assert "the classifier is to be left out" in words(model, batch, by_rule())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_weights_of_zeros_are_held_too() -> None:
    model, batch = mlp()
    zeros = apply(model, batch, "fixup").model
    assert words(zeros, batch, by_rule("7")) == ""
    assert "not by the rule" in words(zeros, batch, by_rule("7", eps=2e-3))


def test_an_optimiser_that_clips_is_one_way_to_clip() -> None:
    def step(model: nn.Module) -> None:
        # A rate of zero: what the step leaves behind are the gradients that it clipped.
        sgd = torch.optim.SGD(model.parameters(), 0.0)
        AdaptivelyClipped(sgd, units_of(model, ["7"])).step()

    assert words(*mlp(), step) == ""


@pytest.mark.parametrize(
    ("clipping", "said"),
    [
        (lambda model: None, "0 of 38 weights clipped unit by unit; '0.weight' is not clipped at"),
        (
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
            "is multiplied by the same number as all others, as one norm of all gradients has it",
        ),
        (
            by_rule("7", limit=0.02),
            "'0.weight' is clipped unit by unit at 0.02 times the weight's norm, expected 0.01",
        ),
        (by_rule("7", limit=0.1), "unit by unit at 0.1 times the weight's norm, expected 0.01"),
        (by_rule("7", limit=1e-3), "unit by unit at 0.001 times the weight's norm, expected 0.01"),
        (by_rule("7", "3"), "32 of 38 weights clipped unit by unit; '3.norm.weight' is not clipp"),
    ],
)
def test_other_ways_are_named(clipping: Clip, said: str) -> None:
    assert said in words(*mlp(), clipping)
