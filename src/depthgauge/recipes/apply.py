"""A recipe applied: to an equation, which gives another equation, or to a copy of a module.

A module's weights are drawn anew; what the form asks for (numbers, norms) is put around its layers.
What cannot be reached from outside, an activation called as a function or a sum that no module
returns, is named in ``left``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from depthgauge.equation.nodes import Attention, Block, Convolution, Init, Linear, Node, rewrite
from depthgauge.equation.text import to_text
from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import duplicate
from depthgauge.network.draws import KeyedDraws
from depthgauge.network.init import INITIALISERS, options_of
from depthgauge.network.spec import Network
from depthgauge.recipes.curves import bare as without_curves
from depthgauge.recipes.curves import by_kind, changes, written
from depthgauge.recipes.heads import with_norms
from depthgauge.recipes.held import held
from depthgauge.recipes.inside import headed
from depthgauge.recipes.rates import grouped
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.reshape import reshaped
from depthgauge.recipes.rules import (
    Around,
    Form,
    Group,
    Plan,
    Recipe,
    Target,
    init_of,
    number_of,
    scope_of,
)
from depthgauge.recipes.wrappers import (
    Entered,
    Left,
    PerChannel,
    Scaled,
    Shifted,
    Standardised,
    Times,
    Weighed,
    norm_of,
)
from depthgauge.trace.graph import common_path
from depthgauge.trace.heads import ROLES
from depthgauge.trace.layout import End, Layout, Normed, Residual, Weight, layout

#: In the path of a parameter that a module computes its weight from.
_MADE = ".parametrizations."

__all__ = ["Applied", "Rewritten", "apply", "drawn", "rewritten"]


@dataclass(frozen=True)
class Applied:
    """The changed copy, a line for each kind of change, the names of the scalars that were put in,
    what could not be done, and the groups that the recipe asks of an optimiser."""

    model: nn.Module
    changes: tuple[str, ...]
    scalars: tuple[str, ...]
    left: tuple[str, ...]
    asked: tuple[Group, ...] = ()

    def groups(
        self, lr: float, weight_decay: float | None = None, eps: float | None = None
    ) -> list[dict[str, Any]]:
        """Groups for an optimiser: rates by the recipe; what no group names learns at ``lr``.
        ``eps``: Adam's."""
        return grouped(self.model, self.asked, lr, weight_decay, eps)


@dataclass(frozen=True)
class Rewritten:
    """The network of another equation and initialisation, and a line for each difference."""

    network: Network
    changes: tuple[str, ...]
    recipe: Recipe

    def module(self, batch: Any, seed: int = 0) -> nn.Module:
        """The network as a module, with what the recipe does by looking at a batch."""
        model = self.network.module(seed)
        if self.recipe.after is not None:
            self.recipe.after(model, batch)
        return model


# ---------------------------------------------------------------------------- an equation


def rewritten(network: Network, recipe: str | Recipe) -> Rewritten:
    """The network with the recipe in its equation and its initialisation.

    Raises SpecificationError for a name that no recipe has, NetworkError for a network that the
    recipe does not cover.
    """
    rules = recipe_named(recipe) if isinstance(recipe, str) else recipe
    if rules.unwritten:
        raise NetworkError(f"{rules.title} cannot be put into an equation: {rules.unwritten}")
    block, inits = _rewritten(network, rules)
    bare = rewrite(block, _without_init)
    assert isinstance(bare, Block)
    changed = replace(network, equation=bare, scalars=None, init={**network.chosen, **inits})
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


# ------------------------------------------------------------------------------ a module


def apply(model: nn.Module, batch: Any, recipe: str | Recipe, seed: int = 0) -> Applied:
    """A copy of ``model`` built by the recipe; the model itself is left as it was.

    ``batch`` shows the tracer what is counted; ``seed`` draws the weights. Raises
    SpecificationError, NetworkError for a network that the recipe does not cover, ModelError.
    """
    rules = recipe_named(recipe) if isinstance(recipe, str) else recipe
    copied = duplicate(model)
    found = layout(copied, batch)
    rules = rules.on(copied, batch, found)
    plan = rules.plan(found)
    bare = tuple(dict.fromkeys(weight.owner for weight in plan.biased if not weight.bias))
    given = [path for path in bare if _given_bias(copied.get_submodule(path))]
    moved = _moved(copied, found, plan)
    if given or moved:
        found, plan = _again(rules, copied, batch)
    work = _Work(copied, headed(found, plan), plan)
    work.changes += [f"{len(given)} layers with a bias put in"] if given else []
    work.changes += [f"norms moved in {moved} of PyTorch's layers"] if moved else []
    work.left += [f"'{path}' has no bias, and none can be put in" for path in bare
                  if path not in given]  # fmt: skip
    work.draw(seed)
    work.form()
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
    work.left += [said.said for said in held(work.model, made, after) if not said.holds]
    groups = after.groups
    return Applied(
        work.model, tuple(work.changes), tuple(scalars), tuple(dict.fromkeys(work.left)), groups
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


_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


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


@dataclass
class _Work:
    """A copy under change; ``found`` is the layout of the model that it is a copy of."""

    model: nn.Module
    found: Layout
    plan: Plan
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
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

    # --------------------------------------------------------------------------- weights

    def draw(self, seed: int) -> None:
        drawn_before: set[tuple[str, str]] = set()
        for rule in self.plan.rules:
            for target in rule.targets:
                place = (target.weight.path, target.weight.role)
                if place in drawn_before:
                    continue  # of a module that runs several times
                drawn_before.add(place)
                zeros = init_of(target.init).kind == "zeros"
                find = _untied if zeros else nn.Module.get_parameter
                parameter = find(self.model, target.weight.path)
                with torch.no_grad():
                    first = replace(target, init=target.raw) if target.raw else target
                    parameter.copy_(drawn(first, parameter, seed))
                    if zeros:
                        self._zero_bias(target.weight.owner)
                if target.raw:
                    self._standardise(target)
            if rule.targets:
                self.changes.append(f"{len(rule.targets)} {rule.group}: {rule.told}")

    def _standardise(self, target: Target) -> None:
        """Have the module compute its weight at each pass, so that the law outlives the steps."""
        weight, owner, _, name = target.weight, *target.weight.path.rpartition(".")
        module = self.model.get_submodule(owner)
        gain = float(options_of(init_of(target.init), target.scope)["gain"])
        if parametrize.is_parametrized(self.model.get_submodule(owner.partition(_MADE)[0])):
            self.left.append(f"'{weight.path}' is computed by a parametrisation of its own already")
        elif weight.rows is not None:
            self.left.append(f"'{weight.path}' holds several weights: it was not standardised")
        else:
            groups = weight.groups if weight.axis else 1
            outputs = module.get_parameter(name).shape[weight.axis] * groups
            made = Standardised(outputs, gain, weight.axis, groups)
            made = made.to(module.get_parameter(name))
            parametrize.register_parametrization(module, name, made)

    def _zero_bias(self, path: str) -> None:
        bias = getattr(self.model.get_submodule(path), "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.zero_()

    # ------------------------------------------------------------------------------ form

    def form(self) -> None:
        plan = self.plan
        done: Counter[str] = Counter()
        normless = plan.forms and all(f.norms is not None and not f.norms for f in plan.forms)
        if (normless and not plan.inside) or plan.curves:
            for path in self.found.norms:
                self._replace(path, nn.Identity, done, "norms out")
        if plan.everywhere is not None:
            for norm in self.found.every:
                if norm.kind != plan.everywhere:
                    self._exchange(norm, plan.everywhere, done)
        kept = self._final(done) if plan.final is not None else set()
        for k, (branch, form) in enumerate(zip(self.found.branches, plan.forms, strict=False)):
            if plan.curves and self.found.bends.reader[k] >= 0:  # which takes the sum's factor
                form = replace(form, skip=None, factor=None)
            form = self._shared(branch, form)
            inside = "in" not in branch.norm_at  # what is put around later comes first
            if inside and form.inlet is not None:
                self._inlet(branch, form, form.inlet, done)
            if plan.everywhere is None:
                self._norms(branch, form, done, kept)
            if not inside and form.inlet is not None:
                self._inlet(branch, form, form.inlet, done)
            self._coefficients(branch, form, done)
            if form.scored is not None:
                self._scored(branch, form, form.scored, done)
            elif form.logits is not None:
                self._logits(branch, form.logits, done)
            if form.shifts:
                self._shifts(branch, done)
            if form.biased:
                self._biases(branch, done)
        for row in plan.around:
            self._around(row, done)
        if plan.outlet is not None:
            self._outlets(plan.outlet, done)
        if plan.curves:
            self._curves(done)
        for put in self.later:  # behind all that is put around the last sum
            put()
        for module in self.model.modules():
            _slowed(module)
        self.changes += [f"{number} {what}" for what, number in done.items()]

    def _shared(self, branch: Residual, form: Form) -> Form:
        """The form with the norms of the first branch that runs through the same layers: a module
        that runs several times has one form."""
        first = [self.normed_by.setdefault(w.called, (branch.path, form)) for w in branch.weights]
        others = [(path, one) for path, one in first if one.norms != form.norms]
        if not others:
            return form
        path, one = others[0]
        self.left.append(
            f"'{path}' runs in several branches, to which the recipe gives norms at different "
            f"places: it has those of the first"
        )
        return replace(form, norms=one.norms)

    def _final(self, done: Counter[str]) -> set[str]:
        """The norm between a stream's last sum and its readers put in, or taken out. One that stood
        behind the last sum of a post-norm stack is the final norm of a pre-norm one: the paths of
        those."""
        kept: set[str] = set()
        kind = self.plan.final or self._usual()
        for end in self.found.ends:
            if kind == "none":
                for norm in end.norms:
                    self._replace(norm.path, nn.Identity, done, "norms out")
                continue
            for norm in end.norms[:1]:
                if self.plan.final and norm.kind != kind:
                    self._exchange(norm, kind, done)
            if end.norms or not end.readers:
                continue
            branches = [b for b in self.found.branches if b.stream == end.stream]
            own = [norm for norm in branches[-1].norms if norm.at == "stream"]
            width = next((w.turned[0] for w in reversed(branches[-1].weights) if w.last), 1)
            axis, path = self._axis(branches[-1]), branches[-1].sum
            what = f"final {kind} put in"
            if own and self._leaf(own[-1].path) and self.found.runs[own[-1].path] == 1:
                kept.add(own[-1].path)
                if self.plan.final and own[-1].kind != kind:
                    self._exchange(own[-1], kind, done)
            elif path and self.found.runs[path] == 1:
                norm_after = partial(_followed, kind=kind, width=width, axis=axis)
                self.later.append(partial(self._wrap, path, norm_after, done, what))
            elif self._readers(end, width):
                put = partial(Entered, before=norm_of(kind, width))
                for reader in end.readers:
                    self.later.append(partial(self._wrap, reader, put, done, what))
            else:
                which = f"'{path}' returns other sums than" if path else "no module returns"
                self.left.append(
                    f"{which} the end of '{end.stream}', and what reads it is no linear layer of "
                    f"its width: no final norm there"
                )
        return kept

    def _readers(self, end: End, width: int) -> bool:
        """Whether each layer that reads the stream's end is a linear one of its width, which a norm
        can stand in front of."""
        modules = [self.modules.get(path) for path in end.readers if self.found.runs[path] == 1]
        linear = [m for m in modules if isinstance(m, nn.Linear) and m.in_features == width]
        return len(linear) == len(end.readers)

    def _norms(
        self, branch: Residual, form: Form, done: Counter[str], kept: Collection[str] = ()
    ) -> None:
        for norm in branch.norms:
            if norm.at in form.gains and form.norms is None:
                self._gain(branch, norm, form.gains[norm.at], done)
        if form.norms is None:
            missing = set(form.gains) - {norm.at for norm in branch.placed}
            for at in sorted(missing):
                self.left.append(
                    f"'{branch.path}' has no norm at its '{at}' whose gain could be set"
                )
            return
        if not form.norms:  # of some branches alone; where it is of all, norms are out already
            for norm in branch.placed:
                self._replace(norm.path, nn.Identity, done, "norms out")
            return
        here: dict[str, list[Normed]] = {}
        for norm in branch.placed:
            here.setdefault(norm.at, []).append(norm)
        for at, found in here.items():
            stays = _staying(found) if at in form.norms else None
            for norm in found:
                if stays is not None and norm is not stays and norm.path == stays.path:
                    self.left.append(f"'{norm.path}' norms twice; take one out by hand")
                elif norm is not stays and norm.path not in kept:
                    self._replace(norm.path, nn.Identity, done, "norms out")
            here[at] = [stays] if stays is not None else []
        for at, kind in form.norms.items():
            present = here.get(at)
            if not present:
                self._insert(branch, at, kind or self._usual(), done)
            elif kind and kind != present[0].kind:
                self._exchange(present[0], kind, done)

    def _exchange(self, norm: Normed, kind: str, done: Counter[str]) -> None:
        make = partial(norm_of, kind, norm.width, norm.axis)
        self._replace(norm.path, make, done, f"norms replaced by {kind}")

    def _usual(self) -> str:
        kinds = [norm.kind for branch in self.found.branches for norm in branch.placed]
        return kinds[0] if kinds else "layernorm"

    def _axis(self, branch: Residual) -> int:
        return -3 if any(len(w.shape) == 4 for w in branch.weights) else -1

    def _gain(self, branch: Residual, norm: Normed, text: str, done: Counter[str]) -> None:
        if not norm.gain:
            self.left.append(f"the norm in '{norm.path}' has no gain")
            return
        with torch.no_grad():
            owner, _, name = norm.gain.rpartition(".")
            gain = getattr(self.modules[owner], name)
            gain.fill_(number_of(text, scope_of(self.found, branch)))
        done[f"gains of norms begin at {text}"] += 1

    def _insert(self, branch: Residual, at: str, kind: str, done: Counter[str]) -> None:
        first = [w for w in branch.weights if w.first]
        last = [w for w in branch.weights if w.last]
        axis, what = self._axis(branch), f"{kind} put in ({at})"
        if at == "stream":
            if not branch.sum or not last:
                self.left.append(
                    f"no module returns the sum after '{branch.path}': no norm put there"
                )
                return
            if branch.sum in self.normed:
                return  # of parallel branches, which share one sum
            self.normed.add(branch.sum)
            width = self._leaving(last[-1])
            self._wrap(branch.sum, lambda m: Left(m, norm_of(kind, width, axis)), done, what)
        elif at == "in":
            norm = norm_of(kind, self._entering(first[0]), axis)
            for path in self._entrances(branch):
                self._wrap(path, lambda m: Entered(m, norm), done, what)
        elif last:
            path = last[-1].called
            if at == "inner" and len({w.called for w in branch.weights}) == 1:
                self.left.append(
                    f"'{path}' is attention in one function: no norm can be put inside it"
                )
            elif at == "out":
                width = self._leaving(last[-1])
                self._wrap(path, lambda m: Left(m, norm_of(kind, width, axis)), done, what)
            else:
                width = self._entering(last[-1])
                self._wrap(path, lambda m: Entered(m, norm_of(kind, width, axis)), done, what)

    def _coefficients(self, branch: Residual, form: Form, done: Counter[str]) -> None:
        scope = scope_of(self.found, branch)
        skip = branch.skip if form.skip is None else number_of(form.skip, scope)
        factor = branch.factor if form.factor is None else number_of(form.factor, scope)
        asked = form.skip is not None or form.factor is not None
        if asked and (math.isnan(branch.factor) or math.isnan(branch.skip)):
            self.left.append(
                f"the sum after '{branch.path}' could not be read: no factor was put in"
            )
        elif asked:
            self._weigh(branch, form, skip / branch.skip, factor / branch.factor, done)
        if form.carried and not branch.carriers:
            self.left.append(
                f"the skip beside '{branch.path}' cannot be multiplied by a learned number from "
                f"outside"
            )
        if form.learned and not form.shifts:
            self._learned(branch, form.learned, scope, done)

    def _inlet(self, branch: Residual, form: Form, text: str, done: Counter[str]) -> None:
        """What enters times a number: behind the norm in front, else in front of the layers."""
        number = number_of(text, scope_of(self.found, branch)) / branch.inlet
        if math.isnan(number):
            self.left.append(f"what enters '{branch.path}' could not be read: it was not scaled")
        elif number != 1:
            stays = form.norms is None or "in" in form.norms
            front = [norm.path for norm in branch.norms if norm.at == "in" and stays]
            if len(front) == 1 and self._leaf(front[0]):
                change: Callable[[nn.Module], nn.Module] = lambda m: Left(m, Times(number))  # noqa: E731
                self._wrap(front[0], change, done, "branch inputs scaled", number)
                return
            across = (w.called for w in branch.across if w.first)
            what = "branch inputs scaled"
            for path in dict.fromkeys((*self._entrances(branch), *across)):
                self._wrap(path, lambda m: Entered(m, Times(number)), done, what, number)

    def _logits(self, branch: Residual, text: str, done: Counter[str]) -> None:
        """Attention's logits times a number: where queries have a layer of their own, behind it."""
        scope = {**scope_of(self.found, branch), "d": float(branch.head or 1)}
        ratio = number_of(text, scope) / branch.logits
        if not branch.head or math.isclose(ratio, 1):
            return
        if not branch.queries or math.isnan(ratio):
            self.left.append(
                f"in '{branch.path}' no layer makes the queries alone, whose output could be "
                f"multiplied: its attention logits keep their factor"
            )
            return
        what = f"attention logits scaled to {text}"
        self._wrap(branch.queries, lambda m: Left(m, Times(ratio)), done, what)

    def _curves(self, done: Counter[str]) -> None:
        """Activations transformed, each in the module that it is."""
        asked = changes(self.found.bends.rows, self.plan.curves, self.modules)
        for path, change, curve in asked:
            if isinstance(change, str):
                self.left.append(change)
            else:
                self._wrap(path, change, done, "activations transformed", curve)

    def _around(self, row: Around, done: Counter[str]) -> None:
        """The fixed numbers in front of a weight layer and behind it."""
        weight = row.weight
        front = number_of(row.front, row.scope) / weight.front
        behind = 1.0 if row.behind is None else number_of(row.behind, row.scope) / weight.behind
        if math.isnan(front * behind):
            self.left.append(f"the numbers around the layer of '{weight.path}' could not be read")
        elif not self._alone(weight) and not math.isclose(front * behind, 1):
            self.left.append(
                f"the layer of '{weight.path}' is no module of its own: its number was not put in"
            )
        else:
            if not math.isclose(front, 1):
                put_in: Callable[[nn.Module], nn.Module] = lambda m: Entered(m, Times(front))  # noqa: E731
                self._wrap(weight.called, put_in, done, "inputs of layers scaled", front)
            if not math.isclose(behind, 1):
                put_on: Callable[[nn.Module], nn.Module] = lambda m: Left(m, Times(behind))  # noqa: E731
                self._wrap(weight.called, put_on, done, "outputs of layers scaled", behind)

    def _alone(self, weight: Weight) -> bool:
        """Whether the layer is a module that does nothing else."""
        module = self.modules.get(weight.called)
        matrices = [p for p in module.parameters() if p.dim() > 1] if module is not None else []
        return weight.called == weight.owner and self._leaf(weight.called) and len(matrices) == 1

    def _scored(self, branch: Residual, form: Form, kind: str, done: Counter[str]) -> None:
        """Norms of queries and keys behind the layers that make them, logits by their number."""
        scope = {**scope_of(self.found, branch), "d": float(branch.head or 1)}
        number = number_of(form.logits or "1/sqrt(d)", scope) / branch.logits
        start = None if form.temperature is None else number_of(form.temperature, scope)
        wanted = {("query", kind, branch.head), ("key", kind, branch.head)}
        if (
            wanted == set(branch.scored)
            and math.isclose(number, 1)
            and (start is None or branch.temperatures)
        ):
            if start is not None:
                with torch.no_grad():
                    self.model.get_parameter(branch.temperatures[0]).fill_(start)
            return
        if branch.scored or branch.temperatures or math.isnan(number):
            why = "are not read" if math.isnan(number) else "have norms or numbers of their own"
            self.left.append(f"queries and keys in '{branch.path}' {why}: nothing was put there")
            return
        made: dict[str, list[Weight]] = {}
        for weight in branch.weights:
            if weight.role in ROLES or weight.role == "projection":
                made.setdefault(weight.called, []).append(weight)
        what = f"{kind} norms of queries and keys"
        for path, weights in made.items():
            if {weight.role for weight in weights} == {"value"}:
                continue
            change = partial(
                with_norms, weights=weights, head=branch.head, kind=kind, number=number, start=start
            )
            try:
                self._wrap(path, change, done, what)
            except NetworkError as error:
                self.left.append(f"'{path}' is left without norms: {error}")

    def _outlets(self, text: str, done: Counter[str]) -> None:
        """What enters each head times a number."""
        branches = self.found.branches
        number = number_of(text, scope_of(self.found, branches[-1] if branches else None))
        for head, here in zip(self.found.heads, self.found.outlets, strict=True):
            ratio = number / here
            if math.isnan(ratio):
                self.left.append(f"the factor of the head '{head.path}' could not be read")
            elif not math.isclose(ratio, 1):
                self._wrap(head.called, partial(_timed, ratio), done, "heads scaled")

    def _entrances(self, branch: Residual) -> list[str]:
        """The modules that what enters the branch is given to: that of all its first layers, if the
        sum is made outside of it, else each of them."""
        paths = list(dict.fromkeys(w.called for w in branch.weights if w.first))
        whole = common_path(paths)
        inside = f"{branch.within}.".startswith(f"{whole}.")
        listed = isinstance(self.modules[whole], nn.ModuleList | nn.ModuleDict)  # is not called
        return paths if len(paths) < 2 or not whole or inside or listed else [whole]

    def _weigh(
        self, branch: Residual, form: Form, skip: float, factor: float, done: Counter[str]
    ) -> None:
        """Bring the sum to ``skip`` times its skip plus ``factor`` times its branch."""
        normed = any(norm.at == "stream" for norm in branch.norms) or bool(branch.sum)
        if normed and "stream" in (form.norms if form.norms is not None else branch.norm_at):
            skip, factor = 1.0, factor / skip  # the norm after the sum sees their ratio alone
        ratio = factor / skip
        if skip != 1 and not branch.sum:
            whole = "sum" if math.isclose(skip, factor) else "skip"
            self.left.append(
                f"no module returns the sum after '{branch.path}': its {whole} was not scaled"
            )
            return
        if not math.isclose(ratio, 1):
            self._end(branch, lambda m: Left(m, Times(ratio)), done, "branches scaled", ratio)
        if skip != 1:
            self._wrap(branch.sum, lambda m: Left(m, Times(skip)), done, "sums scaled", skip)

    def _learned(
        self, branch: Residual, text: str, scope: Mapping[str, float], done: Counter[str]
    ) -> None:
        kind, _, initial = text.removesuffix(")").partition("(")
        start = number_of(initial, scope)
        if branch.learned:
            self.left.append(f"'{branch.path}' has a learned multiplier already")
            return
        width = next((self._leaving(w) for w in reversed(branch.weights) if w.last), 1)
        axis = self._axis(branch)
        self._end(
            branch,
            (lambda m: PerChannel(m, start, width, axis))
            if kind == "gain"
            else (lambda m: Scaled(m, start, bias=False)),
            done,
            f"multipliers {text}",
            start,
        )

    def _end(
        self,
        branch: Residual,
        change: Callable[[nn.Module], nn.Module],
        done: Counter[str],
        what: str,
        amount: object,
    ) -> None:
        """Wrap the module that a branch ends with: its last norm, else its last layer."""
        outer = [norm.path for norm in branch.norms if norm.at == "out"]
        last = [w.called for w in branch.weights if w.last]
        if not last:
            self.left.append(f"the last layer of '{branch.path}' was not found")
        elif f"{branch.within}.".startswith(f"{last[-1]}."):
            self.left.append(
                f"the last layer of '{branch.path}' is no module of its own: nothing was put "
                f"behind it"
            )
        else:
            path = outer[-1] if outer and self._leaf(outer[-1]) else last[-1]
            self._wrap(path, change, done, what, amount)

    def _shifts(self, branch: Residual, done: Counter[str]) -> None:
        """A scalar bias in front of layers and activations; a multiplier at the end."""
        layers = {w.called: w.last for w in branch.weights if not w.table}
        if branch.learned:  # a second one would double its rate
            self.left.append(
                f"'{branch.path}' has a learned multiplier already: no scalar was put in"
            )
            return
        for path in dict.fromkeys(branch.activations):
            if self._leaf(path):
                self._wrap(path, Shifted, done, "activations with a scalar bias")
            else:
                self.left.append(
                    f"the activation in '{path}' is called as a function: no bias was put before it"
                )
        outputs = {w.called for w in branch.weights if w.role == "output"}
        enters = {w.called for w in branch.weights if w.first}
        for path, last in layers.items():
            if path not in outputs or path in enters:
                self._wrap(path, Shifted, done, "layers with a scalar bias")
            if last:
                self._wrap(path, Scaled, done, "multipliers")

    def _biases(self, branch: Residual, done: Counter[str]) -> None:
        for weight in branch.weights:
            module = self.modules.get(weight.owner)
            if weight.bias or getattr(module, "bias", None) is not None:
                continue
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                outputs = module.out_features if isinstance(module, nn.Linear) else (
                    module.out_channels
                )  # fmt: skip
                module.bias = nn.Parameter(module.weight.new_zeros(outputs))
                done["layers given a bias"] += 1
            else:
                self.left.append(f"the layer of '{weight.path}' takes no bias")

    def _wrap(
        self,
        path: str,
        change: Callable[[nn.Module], nn.Module],
        done: Counter[str],
        what: str,
        amount: object = None,
    ) -> None:
        """Put a module around that of a path; one that runs several times in a pass, and so stands
        in several branches, is changed once. ``amount``: the number that the change puts in."""
        if (path, what) in self.put:
            if self.put[path, what] != amount:
                self.left.append(
                    f"'{path}' runs in several branches, to which the recipe gives different "
                    f"numbers ({what}): it has that of the first"
                )
            return
        self.put[path, what] = amount
        parent, _, name = path.rpartition(".")
        module = getattr(self.modules[parent], name)
        made = change(module)
        sample = next(module.parameters(), self.sample)
        if sample is not None:
            made.to(sample.device, sample.dtype)
        made.train(module.training)
        setattr(self.modules[parent], name, made)
        done[what] += 1

    def _entering(self, weight: Weight) -> int:
        """Channels that enter the layer, of all groups."""
        return int(getattr(self.modules.get(weight.owner), "in_channels", weight.turned[1]))

    def _leaving(self, weight: Weight) -> int:
        """Channels that leave the layer, of all groups."""
        return int(getattr(self.modules.get(weight.owner), "out_channels", weight.turned[0]))

    def _leaf(self, path: str) -> bool:
        return bool(path) and not any(True for _ in self.modules[path].children())

    def _replace(
        self, path: str, make: Callable[[], nn.Module], done: Counter[str], what: str
    ) -> None:
        if not self._leaf(path):
            self.left.append(f"the norm in '{path}' is no module of its own; take it out by hand")
            return
        parent, _, name = path.rpartition(".")
        if not isinstance(getattr(self.modules[parent], name), nn.Identity):
            self._wrap(path, lambda _: make(), done, what)


def _slowed(module: nn.Module) -> None:
    """PyTorch's encoder has a faster way without gradients, which passes what was put around its
    layers by: this copy does not take it."""
    if isinstance(module, nn.TransformerEncoder):
        module.enable_nested_tensor = module.use_nested_tensor = False
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0


def _timed(ratio: float, module: nn.Module) -> nn.Module:
    """What enters a layer times a number: of a linear one behind its weight, since a number in
    front of it would stand on the stream, and be one of its last sum."""
    if isinstance(module, nn.Linear):
        return Weighed(module, ratio)
    return Entered(module, Times(ratio))


def _staying(norms: Sequence[Normed]) -> Normed | None:
    """The one of those at a place that a form wants there: the outermost, inside a branch one in
    front of its last layer, if there is any."""
    fitting = [norm for norm in norms if norm.at != "inner" or norm.last]
    return fitting[-1] if fitting else None


def _followed(module: nn.Module, kind: str, width: int, axis: int) -> Left:
    return Left(module, norm_of(kind, width, axis))


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
