"""A recipe applied to a copy of a module: weights drawn anew, scalars put in, norms taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.instruments.hessian import duplicate
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.layout import Layout, layout

__all__ = ["Applied", "Scaled", "Shifted", "apply"]


class Shifted(nn.Module):
    """``module(x + bias)``, one learned number that begins at 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.bias = module, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, *others: Any, **options: Any) -> Any:
        return self.module(x + self.bias, *others, **options)


class Scaled(nn.Module):
    """``scale * module(x) + bias``: two learned numbers that begin at 1 and 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, *given: Any, **options: Any) -> Any:
        return self.scale * self.module(*given, **options) + self.bias


@dataclass(frozen=True)
class Applied:
    """The changed copy, a line for each kind of change, the names of the scalars that were put in
    (Fixup lets them learn at a tenth of the rate), and what could not be done."""

    model: nn.Module
    changes: tuple[str, ...]
    scalars: tuple[str, ...]
    left: tuple[str, ...]

    def groups(self, lr: float, share: float = 0.1) -> list[dict[str, Any]]:
        """Groups for an optimiser: the scalars at ``share`` of the rate ``lr``."""
        names = set(self.scalars)
        named = list(self.model.named_parameters())
        return [
            {"params": [p for name, p in named if name not in names], "lr": lr},
            {"params": [p for name, p in named if name in names], "lr": share * lr},
        ]


def apply(model: nn.Module, batch: Any, recipe: str | Recipe, seed: int = 0) -> Applied:
    """A copy of ``model`` built by the recipe; the model itself is left as it was.

    ``batch`` shows the tracer what is counted; ``seed`` draws the weights. Raises
    SpecificationError, NetworkError for a network that the recipe does not cover, ModelError.
    """
    rules = recipe_named(recipe) if isinstance(recipe, str) else recipe
    found = layout(model, batch)
    plan = rules.plan(found)
    copied = duplicate(model)
    changes = _drawn(copied, plan, seed)
    left: list[str] = []
    if plan.shifts:
        changes += _shifted(copied, found, left)
    scalars = [
        f"{path}.{name}"
        for path, module in copied.named_modules()
        if isinstance(module, Shifted | Scaled)
        for name in module._parameters
    ]
    return Applied(copied, tuple(changes), tuple(scalars), tuple(left))


def _drawn(model: nn.Module, plan: Plan, seed: int) -> list[str]:
    generator = torch.Generator("cpu").manual_seed(seed)
    changes = []
    for rule in plan.rules:
        for target in rule.targets:
            parameter = _untied(model, target.path)
            with torch.no_grad():
                if target.std:
                    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.copy_(target.std * draw)
                else:
                    parameter.zero_()
                    _zero_bias(model, target.path)
        changes.append(f"{len(rule.targets)} {rule.group}: {rule.law}")
    return changes


def _untied(model: nn.Module, path: str) -> nn.Parameter:
    """The parameter of that path; of a tied one what follows its first owner is parted from it."""
    parameter = model.get_parameter(path)
    owners = [
        (module, name)
        for module in model.modules()
        for name, p in module._parameters.items()
        if p is parameter
    ]
    if len(owners) < 2:
        return parameter
    parted = nn.Parameter(parameter.detach().clone())
    for module, name in owners[1:]:
        setattr(module, name, parted)
    return parted


def _zero_bias(model: nn.Module, path: str) -> None:
    owner = model.get_submodule(path.rpartition(".")[0])
    if isinstance(bias := getattr(owner, "bias", None), nn.Parameter):
        bias.zero_()


def _shifted(model: nn.Module, found: Layout, left: list[str]) -> list[str]:
    """Norms out; a scalar bias in front of layers and activations; a multiplier at the end."""
    for path in found.norms:
        if _leaf(model, path):
            _put(model, path, nn.Identity())
        else:
            left.append(f"the norm in '{path}' is no module of its own; take it out by hand")
    layers = {w.path.rpartition(".")[0]: w.last for b in found.branches for w in b.weights}
    bent = dict.fromkeys(path for branch in found.branches for path in branch.activations)
    for path in bent:
        if _leaf(model, path):
            _put(model, path, Shifted(model.get_submodule(path)))
        else:
            left.append(
                f"the activation in '{path}' is called as a function: no bias was put before it"
            )
    for path, last in layers.items():
        module: nn.Module = Shifted(model.get_submodule(path))
        _put(model, path, Scaled(module) if last else module)
    ends = sum(layers.values())
    return [
        f"{len(found.norms)} norms out",
        f"{len(layers)} layers and {len(bent)} activations with a scalar bias, {ends} multipliers",
    ]


def _leaf(model: nn.Module, path: str) -> bool:
    return bool(path) and not any(True for _ in model.get_submodule(path).children())


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
