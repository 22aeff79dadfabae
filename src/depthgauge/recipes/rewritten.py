"""A recipe put into an equation, which gives another equation and another initialisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from depthgauge.equation.nodes import Attention, Block, Convolution, Init, Linear, Node, rewrite
from depthgauge.equation.text import to_text
from depthgauge.errors import EquationError, NetworkError, expect
from depthgauge.network.spec import Network
from depthgauge.recipes.curves import bare as without_curves
from depthgauge.recipes.curves import by_kind, written
from depthgauge.recipes.registry import recipe_of
from depthgauge.recipes.reshape import reshaped
from depthgauge.recipes.rules import Recipe, init_of
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

__all__ = ["Rewritten", "rewritten"]


@dataclass(frozen=True)
class Rewritten:
    """The network of another equation and initialisation, and a line for each difference."""

    network: Network
    changes: tuple[str, ...]
    recipe: Recipe

    def __str__(self) -> str:
        from depthgauge.report.recipe_screen import print_changes
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_changes(self.changes, (), console))

    def __repr__(self) -> str:
        return f"<Rewritten by {self.recipe.name}: {self.network!r}>"

    def module(self, batch: Any, seed: int = 0) -> nn.Module:
        """The network as a module, with what the recipe does by looking at a batch."""
        model = self.network.module(seed)
        if self.recipe.after is not None:
            self.recipe.after(model, batch)
        return model


def rewritten(network: Network, recipe: str | Recipe) -> Rewritten:
    """The network with the recipe in its equation and its initialisation.

    Raises SpecificationError for a name that no recipe has, NetworkError for a network that the
    recipe does not cover, TargetError for an argument of another kind.
    """
    module = isinstance(network, nn.Module)
    todo = (
        "apply() puts a recipe into a module"
        if module
        else "Network(equation, depth, width) makes one"
    )
    expect("network", network, Network, "a depthgauge.Network", todo)
    rules = recipe_of(recipe)
    if rules.unwritten:
        raise NetworkError(f"{rules.title} cannot be put into an equation: {rules.unwritten}")
    block, inits = _rewritten(network, rules)
    bare = rewrite(block, _without_init)
    assert isinstance(bare, Block)
    try:
        changed = replace(network, equation=bare, scalars=None, init={**network.chosen, **inits})
    except EquationError as error:  # a formula of the recipe, of this L, is no real number
        raise NetworkError(
            f"{rules.title} cannot be put into a network of {network.depth} "
            f"block{'s' * (network.depth > 1)}: {error.message}"
        ) from error
    lines = [f"- {network.block}", f"+ {block}"] if block != network.block else []
    for name, init in inits.items():
        before = to_text(network.chosen[name]) if name in network.chosen else "zeros"
        if before != to_text(init):
            lines.append(f"{name}: {before} -> {to_text(init)}")
    return Rewritten(changed, tuple(lines), rules)


def _rewritten(network: Network, rules: Recipe) -> tuple[Block, dict[str, Init]]:
    """The block by the recipe, and the initialisers that it asks for."""
    # Two blocks show all that one says: its last layer leads on, and is no head.
    depth = network.depth if rules.whole else 2
    block = without_curves(network.block) if rules.whole else network.block
    some = replace(network, equation=block, scalars=None, depth=depth, draws="keyed")
    found = _laid_out(some)
    each = max(len(found.branches) // depth, 1)  # equal steps of a block look like several
    placed = (replace(b, block=k // each + 1) for k, b in enumerate(found.branches))
    plan = rules.plan(replace(found, branches=tuple(placed)))
    if any(not weight.bias for weight in plan.biased):
        biased = rewrite(network.block, _biased)
        assert isinstance(biased, Block)
        return _rewritten(replace(network, equation=biased, scalars=None), rules)
    inits: dict[str, Init] = {}
    for target in (target for rule in plan.rules for target in rule.targets):
        block_path, _, path = target.weight.path.removeprefix("blocks.").partition(".")
        name, init = path.removesuffix(".weight"), init_of(target.init)
        if len(target.weight.shape) == 1 and name not in network.chosen:
            if name.endswith(".bias") and init.kind != "zeros" and block_path == "0":
                inits[name] = init
            continue  # what is not drawn, the form says
        if inits.setdefault(name, init) != init:
            raise NetworkError(
                f"{rules.title} gives {name} another standard deviation in each block, which no "
                f"formula in l says; build the network and apply the recipe to the module"
            )
    forms = plan.forms[: len(plan.forms) // depth]
    if plan.forms != forms * depth and rules.whole:
        raise NetworkError(
            f"{rules.title} gives the sums of each block other weights, which no formula in l "
            f"says; build the network and apply the recipe to the module"
        )
    numbers = {id(row.weight): (row.front, row.behind) for row in plan.around}
    around = [[numbers[id(w)] for w in b.weights if id(w) in numbers] for b in found.branches]
    block = reshaped(block, forms, around) if forms else block
    if plan.curves:
        block = written(block, by_kind(found.bends.rows, plan.curves))
        after = rules.plan(_laid_out(replace(some, equation=block)))
        if wrong := [count.why for count in after.counts if count.found < count.expected]:
            raise NetworkError(
                f"{rules.title} cannot be put into '{network.block}', where {wrong[0]}; write each "
                f"activation and what multiplies it as one value"
            )
    return block, inits


def _laid_out(network: Network) -> Layout:
    shape = (4, *network.state_shape)
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return layout(network.module(), batch)


def _biased(node: Node) -> Node:
    return replace(node, bias=True) if isinstance(node, Linear | Convolution | Attention) else node


def _without_init(node: Node) -> Node:
    """Initialisers stand beside the equation, all of them."""
    return replace(node, init=None) if isinstance(node, Linear | Convolution | Attention) else node
