"""Weights drawn by a recipe's initialisers, into the parameters of a copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from depthgauge.network.draws import KeyedDraws
from depthgauge.network.init import INITIALISERS, options_of
from depthgauge.recipes.rules import Target, init_of
from depthgauge.recipes.work import Work
from depthgauge.recipes.wrappers import Standardised
from depthgauge.trace.counted import Weight

__all__ = ["draw", "drawn"]

#: In the path of a parameter that a module computes its weight from.
_MADE: Final = ".parametrizations."


def drawn(target: Target, parameter: Tensor, seed: int) -> Tensor:
    """What the rule's initialiser draws for this parameter, in its layout.

    Keyed by seed and path, as the weights of an equation are, so that no other weight changes it.
    """
    weight, init = target.weight, init_of(target.init)
    fresh = parameter.detach().clone()
    name = weight.path + (f".{weight.role}" if weight.rows is not None else "")
    names = [name, *(f"{name}.{group}" for group in range(2, weight.groups + 1))]
    draws, options = KeyedDraws(seed), options_of(init, target.scope)
    draw = INITIALISERS[init.kind]
    numbers = [draw(weight.group, options, draws.source(0, name)) for name in names]
    weight.put(fresh, torch.from_numpy(np.concatenate(numbers)).to(parameter))
    return fresh


def draw(work: Work, seed: int) -> None:
    drawn_before: set[tuple[str, str]] = set()
    for rule in work.plan.rules:
        left = 0
        for target in rule.targets:
            place = (target.weight.path, target.weight.role)
            if place in drawn_before:
                continue  # of a module that runs several times
            drawn_before.add(place)
            zeros = init_of(target.init).kind == "zeros"
            parameter: nn.Parameter | None = work.model.get_parameter(target.weight.path)
            if zeros and target.weight.looked_up:
                parameter = _own(work, target.weight)
            if parameter is None:
                left += 1
                continue
            with torch.no_grad():
                first = replace(target, init=target.raw) if target.raw else target
                parameter.copy_(drawn(first, parameter, seed))
                if zeros:
                    _zero_bias(work, target.weight.owner)
            if target.raw:
                _standardise(work, target)
        if len(rule.targets) > left:
            work.changes.append(f"{len(rule.targets) - left} {rule.group}: {rule.told}")


def _standardise(work: Work, target: Target) -> None:
    """Have the module compute its weight at each pass, so that the law outlives the steps."""
    weight, owner, _, name = target.weight, *target.weight.path.rpartition(".")
    module = work.model.get_submodule(owner)
    gain = float(options_of(init_of(target.init), target.scope)["gain"])
    made = work.found.computed.get(weight.path)
    if made is not None and made.reduced:
        return  # the model's own code does, and an audit says whether by this gain
    if parametrize.is_parametrized(work.model.get_submodule(owner.partition(_MADE)[0])):
        work.left.append(f"'{weight.path}' is computed by a parametrisation of its own already")
    elif weight.rows is not None:
        work.left.append(f"'{weight.path}' holds several weights: it was not standardised")
    else:
        groups = weight.groups if weight.axis else 1
        outputs = module.get_parameter(name).shape[weight.axis] * groups
        keeps = Standardised(outputs, gain, weight.axis, groups)
        keeps = keeps.to(module.get_parameter(name))
        parametrize.register_parametrization(module, name, keeps)


def _zero_bias(work: Work, path: str) -> None:
    bias = getattr(work.model.get_submodule(path), "bias", None)
    if isinstance(bias, nn.Parameter):
        bias.zero_()


def _own(work: Work, weight: Weight) -> nn.Parameter | None:
    """A parameter for the layer alone, in place of the table that embeddings look up as well, which
    they keep; None where the layer is none that holds the table without looking it up itself."""
    table, layer = work.model.get_parameter(weight.path), work.modules.get(weight.called)
    if layer is None or weight.called in work.found.lookups:
        return None
    names = [name for name, p in layer._parameters.items() if p is table]
    if not names:
        return None
    own = nn.Parameter(table.detach().clone(), table.requires_grad)
    for name in names:
        setattr(layer, name, own)
    return own
