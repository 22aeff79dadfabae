"""What every recipe has to show: applied and audited clean, then dirty after one planted fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import Applied, apply
from depthgauge.recipes.audit import Audit, audit
from depthgauge.recipes.drawing import drawn
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import Recipe
from depthgauge.trace.counted import Weight
from depthgauge.trace.layout import layout

__all__ = [
    "broken",
    "on_equation",
    "on_module",
    "parameter",
    "redrawn",
    "said",
    "scaled",
    "undone",
]


def said(found: Audit) -> str:
    """What does not hold, in one line."""
    return " | ".join(finding.said for finding in found.findings if not finding.holds)


def on_equation(
    recipe: str | Recipe,
    equation: str,
    depth: int = 6,
    width: int = 32,
    follows: bool = False,
    **options: Any,
) -> tuple[Network, nn.Module, Tensor]:
    """The recipe in an equation, audited clean in the module that is built of it.

    ``follows``: whether the network followed the recipe before, too.
    """
    network = Network(equation, depth, width, **options)
    put = rewritten(network, recipe)
    changed = put.network
    generator = torch.Generator().manual_seed(5)
    batch = torch.randn(8, *network.state_shape, generator=generator)
    model = put.module(batch, seed=1)
    found = audit(model, batch, recipe)
    assert found.holds, said(found)
    assert audit(network.module(seed=1), batch, recipe).holds is follows
    again = rewritten(changed, recipe).network
    assert str(again.block) == str(changed.block), "a second time it changes nothing"
    return changed, model, batch


def on_module(
    recipe: str | Recipe,
    build: Callable[[], tuple[nn.Module, Any]],
    follows: bool = False,
    seed: int = 1,
) -> tuple[Applied, Any]:
    """The recipe on a copy of a module, audited clean; the module itself left as it was."""
    model, batch = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    applied = apply(model, batch, recipe, seed=seed)
    assert not applied.left, applied.left
    found = audit(applied.model, batch, recipe)
    assert found.holds, said(found)
    assert audit(model, batch, recipe).holds is follows
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    return applied, batch


def broken(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe,
    plant: Callable[[nn.Module], None],
    pattern: str,
) -> None:
    """After ``plant`` the audit does not hold, and says why in these words."""
    assert audit(model, batch, recipe).holds
    plant(model)
    found = audit(model, batch, recipe)
    assert not found.holds
    assert re.search(pattern, said(found)), said(found)


# -------------------------------------------------------------------------------- faults


def parameter(model: nn.Module, ending: str) -> list[Tensor]:
    """The parameters whose paths end so; at least one."""
    found: list[Tensor] = [p for name, p in model.named_parameters() if name.endswith(ending)]
    assert found, ending
    return found


def scaled(ending: str, factor: float) -> Callable[[nn.Module], None]:
    """Parameters times a number."""

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            for p in parameter(model, ending):
                p.mul_(factor)

    return plant


def undone(ending: str, std: float, which: int | None = None) -> Callable[[nn.Module], None]:
    """Parameters (or one of them) drawn anew with another standard deviation."""

    def plant(model: nn.Module) -> None:
        found = parameter(model, ending)
        with torch.no_grad():
            for p in found if which is None else [found[which]]:
                p.normal_(0, std)

    return plant


def redrawn(
    recipe: str,
    batch: Any,
    init: str,
    where: Callable[[Weight], bool] = lambda _: True,
    rule: int = 0,
) -> Callable[[nn.Module], None]:
    """The weights of one of the recipe's rules drawn by another initialiser."""

    def plant(model: nn.Module) -> None:
        targets = recipe_named(recipe).plan(layout(model, batch)).rules[rule].targets
        chosen = [target for target in targets if where(target.weight)]
        assert chosen
        with torch.no_grad():
            for target in chosen:
                p = model.get_parameter(target.weight.path)
                p.copy_(drawn(replace(target, init=init), p, 7))

    return plant
