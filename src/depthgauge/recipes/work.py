"""A copy of a module under change: what was put around its modules, and what could not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from depthgauge.recipes.rules import Form, Plan
from depthgauge.trace.counted import Layout, Residual, Weight
from depthgauge.trace.graph import common_path

__all__ = ["Work"]


@dataclass
class Work:
    """A copy under change; ``found`` is the layout of the model that it is a copy of."""

    model: nn.Module
    found: Layout
    plan: Plan
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)  # kinds of change, how often
    later: list[Callable[[], None]] = field(default_factory=list)
    put: dict[tuple[str, str], object] = field(default_factory=dict)
    normed: set[str] = field(default_factory=set)  # sums behind which a norm was put
    #: By the module of a layer, the first branch that it stands in, and the form of that.
    normed_by: dict[str, tuple[str, Form]] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(init=False)  # by the paths of the model as it was
    sample: Tensor | None = field(init=False)  # of the model's precision and place

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())
        real = (p for p in self.model.parameters() if p.is_floating_point())
        self.sample = next(real, None)

    def wrap(
        self,
        path: str,
        change: Callable[[nn.Module], nn.Module],
        what: str,
        amount: object = None,
        idle: bool = False,
    ) -> None:
        """Put a module around that of a path; one that runs several times in a pass, and so stands
        in several branches, is changed once. ``amount``: the number that the change puts in;
        ``idle``: it is that which changes nothing, so that nothing is put, nor anything later."""
        if not path:
            if not idle:
                self.left.append(
                    f"not done ({what}): the weights belong to the model itself, and nothing can "
                    f"be put around a part of it; give the branch a module of its own"
                )
            return
        if (path, what) in self.put:
            if self.put[path, what] != amount:
                self.left.append(
                    f"'{path}' runs in several branches and holds one number, where the recipe "
                    f"gives them different ones ({what}): it has that of the first"
                )
            return
        self.put[path, what] = amount
        if idle:
            return
        parent, _, name = path.rpartition(".")
        module = getattr(self.modules[parent], name)
        made = change(module)
        sample = next(module.parameters(), self.sample)
        if sample is not None:
            made.to(sample.device, sample.dtype)
        made.train(module.training)
        setattr(self.modules[parent], name, made)
        self.done[what] += 1

    def replace(self, path: str, make: Callable[[], nn.Module], what: str) -> None:
        if not self.leaf(path):
            self.left.append(f"the norm in '{path}' is no module of its own; take it out by hand")
            return
        parent, _, name = path.rpartition(".")
        if not isinstance(getattr(self.modules[parent], name), nn.Identity):
            self.wrap(path, lambda norm: _in_place(norm, make()), what)

    def end(
        self,
        branch: Residual,
        change: Callable[[nn.Module], nn.Module],
        what: str,
        amount: object,
        idle: bool = False,
    ) -> None:
        """Wrap the module that a branch ends with: its last norm, else its last layer."""
        outer = [norm.path for norm in branch.norms if norm.at == "out"]
        last = [w.called for w in branch.weights if w.last]
        if not last:
            why = f"the last layer of '{branch.path}' was not found"
        elif f"{branch.within}.".startswith(f"{last[-1]}."):
            why = f"the last layer of '{branch.path}' is no module of its own: nothing was put "
            why += "behind it"
        else:
            path = outer[-1] if outer and self.leaf(outer[-1]) else last[-1]
            self.wrap(path, change, what, amount, idle)
            return
        self.left += [] if idle else [why]

    def entrances(self, branch: Residual) -> list[str]:
        """The modules that what enters the branch is given to: that of all its first layers, if the
        sum is made outside of it, else each of them."""
        paths = list(dict.fromkeys(w.called for w in branch.weights if w.first))
        whole = common_path(paths)
        inside = f"{branch.within}.".startswith(f"{whole}.")
        listed = isinstance(self.modules[whole], nn.ModuleList | nn.ModuleDict)  # is not called
        return paths if len(paths) < 2 or not whole or inside or listed else [whole]

    def entering(self, weight: Weight) -> int:
        """Channels that enter the layer, of all groups."""
        return int(getattr(self.modules.get(weight.owner), "in_channels", weight.turned[1]))

    def axis(self, branch: Residual) -> int:
        return -3 if any(len(w.shape) == 4 for w in branch.weights) else -1

    def leaf(self, path: str) -> bool:
        """Whether a module of the model has this path, and none is inside of it."""
        module = self.modules.get(path) if path else None
        return module is not None and not any(True for _ in module.children())


def _in_place(norm: nn.Module, made: nn.Module) -> nn.Module:
    """What takes a norm's place, with something that answers for the gain: models ask it for the
    precision of the norm (``x.to(self.norm.weight.dtype)``). It is no parameter and used by none.
    """
    gain = getattr(norm, "weight", None)
    if isinstance(gain, Tensor) and not hasattr(made, "weight"):
        made.register_buffer("weight", torch.ones_like(gain), persistent=False)
    return made
