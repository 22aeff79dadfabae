"""A recipe applied to a copy of a module.

Weights are drawn anew; what the form asks for (numbers, norms) is put around its layers. What
cannot be reached from outside, an activation called as a function or a sum that no module returns,
is named in ``left``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.nn.modules.conv import _ConvNd

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import duplicate
from depthgauge.network.spec import seed_of
from depthgauge.recipes.audit import found_in
from depthgauge.recipes.drawing import draw
from depthgauge.recipes.forms_put import put_forms
from depthgauge.recipes.inside import headed
from depthgauge.recipes.rates import grouped
from depthgauge.recipes.registry import recipe_of
from depthgauge.recipes.rules import Group, Plan, Recipe
from depthgauge.recipes.work import Work
from depthgauge.recipes.wrappers import Scaled, Shifted
from depthgauge.trace.admission import uncompiled
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout
from depthgauge.trace.replaced import holds

__all__ = ["Applied", "apply"]


@dataclass(frozen=True)
class Applied:
    """The changed copy, a line for each kind of change, the names of the scalars that were put in,
    what could not be done, and the groups that the recipe asks of an optimiser."""

    model: nn.Module
    changes: tuple[str, ...]
    scalars: tuple[str, ...]
    left: tuple[str, ...]
    asked: tuple[Group, ...] = ()

    def __str__(self) -> str:
        from depthgauge.report.recipe_screen import print_changes
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_changes(self.changes, self.left, console))

    def __repr__(self) -> str:
        kind, left = type(self.model).__name__, f"{len(self.left)} left"
        return f"<Applied to a copy of {kind}: {len(self.changes)} kinds of change, {left}>"

    def groups(
        self, lr: float, weight_decay: float | None = None, eps: float | None = None
    ) -> list[dict[str, Any]]:
        """Groups for an optimiser: rates by the recipe; what no group names learns at ``lr``.
        ``eps``: Adam's."""
        return grouped(self.model, self.asked, lr, weight_decay, eps)


def apply(model: nn.Module, batch: Any, recipe: str | Recipe, seed: int = 0) -> Applied:
    """A copy of ``model`` built by the recipe; the model itself is left as it was. Of a model or
    a part in a wrapper that only places or compiles it the copy is of what is inside.

    ``batch`` shows the tracer what is counted; ``seed`` draws the weights. Raises
    SpecificationError, NetworkError for a network that the recipe does not cover, TargetError for
    an argument of another kind, ModelError.
    """
    rules, seed = recipe_of(recipe), seed_of(seed)
    given = uncompiled(model)
    copied = duplicate(given)
    _its_own({*model.modules(), *given.modules()}, copied)
    found = layout(copied, batch)
    rules = rules.on(copied, batch, found)
    plan = rules.plan(found)
    bare = tuple(dict.fromkeys(weight.owner for weight in plan.biased if not weight.bias))
    biased = [path for path in bare if _given_bias(copied.get_submodule(path))]
    moved = _moved(copied, found, plan)
    if biased or moved:
        found, plan = _again(rules, copied, batch)
    work = Work(copied, headed(found, plan), plan)
    work.changes += [f"{len(biased)} layers with a bias put in"] if biased else []
    work.changes += [f"norms moved in {moved} of PyTorch's layers"] if moved else []
    work.left += [f"'{path}' has no bias, and none can be put in" for path in bare
                  if path not in biased]  # fmt: skip
    draw(work, seed)
    put_forms(work)
    if rules.after is not None:
        work.changes.append(rules.after(work.model, batch))
    scalars = [
        f"{path}.{name}"
        for path, module in work.model.named_modules()
        if isinstance(module, Shifted | Scaled)
        for name, p in module._parameters.items()
        if p is not None
    ]
    made, after = _again(rules, work.model, batch)
    # What an audit of the copy finds, for whatever reason.
    seen = found_in(work.model, batch, rules, made, after)
    work.left += [finding.said for finding in seen if not finding.holds]
    groups = after.groups
    return Applied(
        work.model, tuple(work.changes), tuple(scalars), tuple(dict.fromkeys(work.left)), groups
    )


def _its_own(originals: set[nn.Module], copied: nn.Module) -> None:
    """Raises NetworkError where a forward that was put on a module runs those of the original, in
    a copy too: what is changed in the copy would change nothing."""
    replaced = [
        path
        for path, module in copied.named_modules()
        if "forward" in vars(module) and holds(module.forward, originals)
    ]
    if replaced:
        of = f"'{replaced[0]}'" if replaced[0] else "the model"
        raise NetworkError(
            f"the forward of {of} was replaced on the module itself by a function that holds the "
            f"module, so that a copy runs the original's layers and cannot be changed; apply the "
            f"recipe first, or give that forward to the class of {of}"
        )


def _again(rules: Recipe, changed: nn.Module, batch: Any) -> tuple[Layout, Plan]:
    """Layout and plan of the changed copy. Raises NetworkError where the copy can no longer be
    read: what it says is not true of the model that was given."""
    found = layout(changed, batch)
    try:
        return found, rules.plan(found)
    except NetworkError as error:
        raise NetworkError(
            f"{rules.title} was put into a copy of the network, and the copy was not read as it "
            f"was meant: of it was said that {error}"
        ) from error


def _given_bias(module: nn.Module) -> bool:
    """Put a bias into a linear layer or a convolution; whether it is one."""
    if not isinstance(module, nn.Linear | _ConvNd):
        return False
    out = module.out_features if isinstance(module, nn.Linear) else module.out_channels
    module.bias = nn.Parameter(module.weight.new_zeros(out))
    return True


_LAYERS: Final = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def _moved(model: nn.Module, found: Layout, plan: Plan) -> int:
    """How many of PyTorch's layers were turned, which have a switch for where norms stand."""
    modules = dict(model.named_modules())
    asked: dict[str, bool] = {}
    for branch, form in zip(found.branches, plan.forms, strict=False):
        if isinstance(modules.get(branch.within), _LAYERS) and form.norms is not None:
            places = {"in", "stream"} & set(form.norms)
            if len(places) == 1:  # of one that runs several times the first branch says it
                asked.setdefault(branch.within, "in" in places)
    turned = [path for path, first in asked.items() if modules[path].norm_first != first]
    for path in turned:
        modules[path].norm_first = asked[path]
    return len(turned)
