"""Stability limits against what the optimisers do on a quadratic just below and just above them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import SpecificationError
from depthgauge.instruments.stability import Rule, rule_of, rules_of

CURVATURES = torch.tensor([1.0, 0.3, 0.05, 4.0], dtype=torch.float64)


def run(rule: Rule) -> float:
    """How far from the minimum of a quadratic the optimiser gets from 1 in 2,000 steps, or where it
    has passed 1,000; Adam's statistics are held at 1, so that P is the identity."""
    w = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = rule.made([w])
    if rule.adaptive:
        optimizer.state[w] = {
            "step": torch.tensor(1e12, dtype=torch.float64),
            "exp_avg": torch.zeros_like(w),
            "exp_avg_sq": torch.ones_like(w),
        }
    for _ in range(2000):
        w.grad = CURVATURES * w.detach()
        if rule.adaptive:
            optimizer.state[w]["exp_avg_sq"].fill_(1)
        optimizer.step()
        if float(w.detach().abs().max()) > 1000:
            break
    return float(w.detach().abs().max())


HELD = 1 - 1e-10

CASES: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "weight_decay": 0.5},
    {"name": "momentum", "momentum": 0.9},
    {"name": "momentum", "momentum": 0.5, "weight_decay": 0.5},
    {"name": "nesterov", "momentum": 0.9},
    {"name": "nesterov", "momentum": 0.3},
    {"name": "adam", "betas": (0.9, HELD), "eps": 0.0},
    {"name": "adam", "betas": (0.5, HELD), "eps": 0.0, "weight_decay": 0.5},
    {"name": "adamw", "betas": (0.9, HELD), "eps": 0.0},
    {"name": "adamw", "betas": (0.5, HELD), "eps": 0.0, "weight_decay": 0.2},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())))
def test_it_converges_just_below_the_limit_and_diverges_just_above(case: dict[str, Any]) -> None:
    def at(share: float) -> Rule:
        """The rate at which lr * curvature is this share of the limit."""
        rule = Rule(lr=1.0, **case)
        for _ in range(100):  # AdamW's limit depends on the rate
            top = float(CURVATURES.max()) + rule.coupled
            rule = Rule(lr=share * rule.limit / top, **case)
        return rule

    assert run(at(0.98)) < 1e-2
    assert run(at(1.02)) > 1e2


def test_the_known_numbers() -> None:
    assert Rule("adam", 1e-3).limit == pytest.approx(38.0, rel=1e-12)  # arXiv 2207.14484
    assert Rule("momentum", 0.1).limit == pytest.approx(3.8, rel=1e-12)
    assert Rule("sgd", 0.1).limit == 2.0
    assert Rule("nesterov", 0.1).limit < Rule("sgd", 0.1).limit


def test_p_is_what_pytorch_divides_the_next_step_by() -> None:
    torch.manual_seed(0)
    rule = Rule("adam", 1e-2, betas=(0.0, 0.9), eps=1e-3, weight_decay=0.1)
    w = nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = rule.made([w])
    for step in range(4):
        g = torch.randn(5, dtype=torch.float64)
        half = rule.preconditioner(w, g, optimizer.state.get(w, {}) if step else {})
        before, decayed = w.detach().clone(), g + 0.1 * w.detach()
        w.grad = g
        optimizer.step()
        assert torch.allclose(before - w.detach(), 1e-2 * decayed * half**2, rtol=1e-10)


def test_a_parameter_without_a_gradient_is_left_out() -> None:
    w, g = torch.ones(2), torch.tensor([0.0, 1e-3])
    half = Rule("adam").preconditioner(w, g, {})
    assert half[0] == 0.0
    assert half[1] == pytest.approx((1e-3 + 1e-8) ** -0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "adamm"}, "optimizer is 'adamm', expected one of .*did you mean 'adam'"),
        ({"lr": -1.0}, "lr is -1.0, expected a finite number of at least 0$"),
        ({"lr": math.nan}, "lr is nan"),
        ({"momentum": 1.0}, "momentum is 1.0, expected .* below 1"),
        ({"betas": (0.9, 1.0)}, "betas is 1.0, expected .* below 1"),
        ({"lr": "0.1"}, "lr is '0.1'"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        Rule(**given)


def test_pytorchs_optimisers_are_read() -> None:
    w = [nn.Parameter(torch.ones(1))]
    for rule in (
        Rule("sgd", 0.3, 0.0),
        Rule("momentum", 0.3, 0.7, weight_decay=0.1),
        Rule("nesterov", 0.3, 0.7),
        Rule("adam", 1e-3, 0.0, (0.8, 0.99), 1e-6, 0.1),
        Rule("adamw", 1e-3, 0.0, (0.8, 0.99), 1e-6, 0.1),
    ):
        assert rule_of(rule.made(w)) == rule
    w = [nn.Parameter(torch.ones(n)) for n in (1, 2, 3)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(w[:2], (0.1, 0.4), strict=True)]
    rules = rules_of(torch.optim.SGD(groups), w)
    assert rules.each == (Rule("sgd", 0.1, 0.0), Rule("sgd", 0.4, 0.0), None)
    assert rules.one is None
    made = rules.made(w)
    assert [(g["lr"], g["params"]) for g in made.param_groups] == [(0.1, [w[0]]), (0.4, [w[1]])]
    alike = [{**group, "lr": 0.4} for group in groups]
    assert rules_of(torch.optim.SGD(alike), w[:2]).one == Rule("sgd", 0.4, 0.0)
    with pytest.raises(SpecificationError, match="limit of RMSprop is not known"):
        rule_of(torch.optim.RMSprop(w))
    with pytest.raises(SpecificationError, match="limit of Adam with amsgrad is not known"):
        rule_of(torch.optim.Adam(w, amsgrad=True))
