"""Recipes side by side: the same block, depth, width, data and seeds, built by one recipe after the
other.

A rule is a claim about what depth does to state, gradient and the first step; here each is measured
where it stands beside its rivals, with what it needs and what it costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge.arguments import batch_of, network_of, seeds_of
from depthgauge.equation.nodes import Block
from depthgauge.errors import (
    DepthgaugeError,
    EquationError,
    NetworkError,
    SpecificationError,
    expect,
    expect_callable,
    expect_several,
)
from depthgauge.instruments.spectra import TOGETHER, own_rank
from depthgauge.instruments.subject import Effort
from depthgauge.jsonable import jsonable
from depthgauge.measurement import Progress, measure
from depthgauge.network.spec import Network
from depthgauge.network.threads import passes
from depthgauge.recipes.apply import apply
from depthgauge.recipes.held import held
from depthgauge.recipes.registry import recipe_of
from depthgauge.recipes.rewritten import Rewritten, rewritten
from depthgauge.recipes.rules import Group, Recipe
from depthgauge.study.functional_step import functional_step
from depthgauge.study.scaling import Exponent, exponent
from depthgauge.study.small import is_small
from depthgauge.summaries import spread
from depthgauge.trace.batches import call, tensors
from depthgauge.trace.layout import layout
from depthgauge.trace.measuring import followed

__all__ = [
    "QUANTITIES",
    "Build",
    "Built",
    "Comparison",
    "Row",
    "compare",
    "compare_built",
    "of_builder",
    "of_network",
]

#: What the row without a recipe is called.
PLAIN: Final = "as given"
#: Rounds of timed steps, one of every recipe in each.
ROUNDS: Final = 5
#: Seeds of the first step, at least: its exponent is over them.
_STEP_SEEDS: Final = 6
#: Steps in a row of one network, of which the shortest counts.
_REPEATS: Final = 3
_UPDATE: Final = "RMS change of 10 logits per unit learning rate, SGD at the recipe's rates"
#: What a recipe raises for a network that it does not cover, and a formula of it that is no real
#: number there: ``sqrt(1 - 2/L)`` of one branch.
_UNCOVERED: Final = (NetworkError, EquationError)
#: A slope past which an update follows no power of depth, and is told by its factor a branch.
_STEEP: Final = 6.0

#: What is measured of each, and what it says.
QUANTITIES: Final = {
    "forward_end_rms": "RMS of the last state",
    "forward_drift": "largest over smallest RMS of a state",
    "gradient_ratio": "RMS of the gradient at the input over that at the output",
    "effective_rank": "participation ratio of the end-to-end Jacobian, of the numbers of one "
    "example's last state by its own first",
    "headroom_float16_bits": "binary digits to overflow of float16, the least of any site",
    "underflow_headroom_bits": "binary digits to underflow of float16, the least of any site",
    "branch_to_stream": "RMS of a branch over the stream's, the mean over branches",
}


class Built(NamedTuple):
    """A network of one recipe: a module, what it is run on, what the recipe changed, what it could
    not, its groups for the optimiser, and whether the recipe wants a norm in front of the head that
    the module does not have."""

    model: nn.Module
    batch: Any
    changes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    norm: bool = False

    @property
    def rates(self) -> dict[str, float]:
        """The share of the learning rate, by parameter, where it is not 1."""
        return {path: group.rate for group in self.groups for path in group.paths}


#: ``build(recipe, depth, seed)``; without a recipe the network as it was given.
Build = Callable[[Recipe | None, int, int], Built]


@dataclass(frozen=True)
class Row:
    """One recipe. ``quantities`` have a value for each seed; ``updates`` those of all parameters
    at each depth, ``weight_updates`` those of matrices and kernels alone; ``step_time`` is relative
    to the network as given, a value a round. ``refused``: why it does not cover this network."""

    name: str
    title: str
    needs: str
    reference: str
    changes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    parameters: int = 0
    quantities: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    updates: dict[int, list[float]] = field(default_factory=dict)
    weight_updates: dict[int, list[float]] = field(default_factory=dict)
    update_exponent: Exponent | None = None
    weight_update_exponent: Exponent | None = None
    groups: tuple[str, ...] = ()
    step_time: tuple[float, ...] = ()
    refused: str = ""

    @property
    def steps(self) -> tuple[tuple[str, dict[int, list[float]], Exponent | None], ...]:
        """Both kinds of update: name, values at each depth, exponent."""
        return (
            ("update", self.updates, self.update_exponent),
            ("weight_update", self.weight_updates, self.weight_update_exponent),
        )

    @property
    def growth(self) -> float:
        """The factor of the update that one more block makes, between the least and largest
        depth."""
        depths = sorted(self.updates)
        first, last = (np.asarray(self.updates[d]) for d in (depths[0], depths[-1]))
        with np.errstate(all="ignore"):
            factor = np.exp(np.log(last / first).mean() / (depths[-1] - depths[0]))
        return float(factor)

    @property
    def steep(self) -> bool:
        """Whether the update grows or falls faster than a power that means anything."""
        found = self.update_exponent
        return found is not None and abs(found.slope) > _STEEP


@dataclass(frozen=True)
class Comparison:
    """The rows, the first that of the network as given, and what all of them share."""

    target: str
    depth: int
    depths: tuple[int, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    settings: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)  # of an equation: width, batch, ...

    def __str__(self) -> str:
        from depthgauge.report.compare_screen import print_comparison
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_comparison(self, console))

    def __repr__(self) -> str:
        names = ", ".join(row.name for row in self.rows[1:])
        return f"<Comparison of {self.target!r} at depth {self.depth}: {names}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: each quantity with its median, least and largest over seeds."""
        plain = self.rows[0].parameters
        rows = []
        for row in self.rows:
            document: dict[str, Any] = {
                "name": row.name,
                "title": row.title,
                "needs": row.needs,
                "reference": row.reference,
                "changes": list(row.changes),
            }
            if row.refused:
                rows.append({**document, "refused": row.refused})
                continue
            document |= {name: _spread(row, name) for name in QUANTITIES}
            for name, values, fitted in row.steps:
                document[f"{name}s"] = [
                    {"depth": depth, **_stated(each)} for depth, each in values.items()
                ]
                document[f"{name}_exponent"] = fitted.to_dict() if fitted else None
                if fitted is None:
                    document[f"{name}_exponent_reason"] = row.reasons[f"{name}_exponent"]
            if row.steep:
                document["update_growth_per_block"] = row.growth
            document["groups"] = list(row.groups)
            document["parameters"] = row.parameters
            document["extra_parameters"] = row.parameters - plain
            document["step_time"] = _stated(row.step_time)
            document["left"] = list(row.left)
            rows.append(document)
        found: dict[str, Any] = jsonable({
            "target": self.target,
            "depth": self.depth,
            "depths": list(self.depths),
            "seeds": list(self.seeds),
            "sizes": self.sizes,
            "settings": self.settings,
            "quantities": QUANTITIES,
            "recipes": rows,
        })  # fmt: skip
        return found


def _stated(values: Sequence[float]) -> dict[str, Any]:
    median, low, high = spread(np.asarray(values, dtype=np.float64))
    return {"value": median, "n": len(values), "min": low, "max": high}


def _spread(row: Row, name: str) -> dict[str, Any]:
    if name not in row.quantities:
        return {"value": None, "value_reason": row.reasons[name], "n": 0}
    return _stated(row.quantities[name])


class _Written(NamedTuple):
    """What all seeds of a recipe at one depth share, and what is told of the first one built."""

    recipe: Recipe  # held, so that its id stays its own
    rewritten: Rewritten
    left: tuple[str, ...]
    groups: tuple[Group, ...]
    norm: bool


def of_network(network: Network, batch: int = 32) -> Build:
    """A builder for ``compare``: the recipe in the equation, on Gaussian examples.

    A structure is traced once for each recipe and depth: of another seed it is the same, and what
    could not be done is told of the first seed that is built.
    """
    shared: dict[tuple[int, int], _Written] = {}

    @cache
    def deep(depth: int) -> Network:
        return replace(network, depth=depth)

    def build(recipe: Recipe | None, depth: int, seed: int) -> Built:
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(batch, *network.state_shape, generator=generator)
        if recipe is None:
            return Built(deep(depth).module(seed), data)
        known = shared.get((id(recipe), depth))
        changed = known.rewritten if known else rewritten(deep(depth), recipe)
        model = changed.network.module(seed)
        after = (recipe.after(model, data),) if recipe.after is not None else ()
        if known is None:
            found = layout(model, data)
            plan = recipe.plan(found)
            left = tuple(part.said for part in held(model, found, plan) if not part.holds)
            # A network of blocks alone has no head: the norm in front of it is the head's.
            headed = plan.final not in (None, "none")
            known = _Written(recipe, changed, left, plan.groups, headed)
            shared[id(recipe), depth] = known
        changes = (*changed.changes, *after)
        return Built(model, data, changes, known.left, known.groups, known.norm)

    return build


def of_builder(build: Callable[[int, int], tuple[nn.Module, Any]]) -> Build:
    """A builder for ``compare`` from ``build(depth, seed)``: recipes on copies of its modules."""

    def made(recipe: Recipe | None, depth: int, seed: int) -> Built:
        pair = build(depth, seed)
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], nn.Module)):
            expect("what build(depth, seed) returns", pair, (), "(module, batch)")
        model, batch = pair
        if recipe is None:
            return Built(model, batch)
        applied = apply(model, batch, recipe, seed)
        return Built(applied.model, batch, applied.changes, applied.left, applied.asked)

    return made


def compare(
    target: str | Block | Network | Callable[[int, int], tuple[nn.Module, Any]],
    recipes: Sequence[str | Recipe],
    *,
    depth: int | None = None,
    width: int | None = None,
    batch: int = 32,
    seed: int | Iterable[int] = range(3),
    depths: Sequence[int] | None = None,
    progress: Progress | None = None,
    **sizes: Any,
) -> Comparison:
    """Put recipes side by side, each in the equation or in a copy of the module.

    ``target``: an equation (text or tree) or a Network, run on ``batch`` Gaussian examples, with
    ``depth``, ``width`` and the Network's other arguments as in ``measure``; or a function
    ``build(depth, seed)`` that gives ``(module, batch)``, with a ``depth``. The first step is taken
    at ``depths``, from an eighth of the depth to all of it by factors of two, under at least six
    seeds; one depth alone gives no exponent. Small networks run in one PyTorch thread.

    A recipe that does not cover the network has a row that says why. Raises SpecificationError for
    a name that no recipe has, what the network itself raises.
    """
    seeds, _ = seeds_of(seed)
    expect_callable("progress", progress, "a function of (done, total)")
    if depths is not None:
        expect_several("depths", depths, "a list of depths")
        depths = list(depths)
        for number in depths:
            expect("a depth of depths", number, Integral, "a whole number of blocks")
    if isinstance(target, str | Block | Network):
        expect("batch", batch, Integral, "a whole number of Gaussian examples")
        batch_of(batch, [])
        network = network_of(target, {"depth": depth, "width": width, **sizes})
        build, depth, named = of_network(network, batch), network.depth, str(network.block)
        shapes = {"width": network.width, "batch": batch}
    else:
        if isinstance(target, nn.Module) or not callable(target):
            wanted = "an equation (text or tree), a Network or a function build(depth, seed)"
            todo = "give the function that builds it" if isinstance(target, nn.Module) else ""
            expect("target", target, (), wanted, todo)
        if depth is None:
            raise SpecificationError("a function builds the network; give the depth to build it at")
        build, named, shapes = of_builder(target), "a module that a function builds", {}
    return compare_built(
        build, recipes, depth, seeds, depths, target=named, sizes=shapes, progress=progress
    )


def compare_built(
    build: Build,
    recipes: Sequence[str | Recipe],
    depth: int,
    seeds: Sequence[int] = (0, 1, 2),
    depths: Sequence[int] | None = None,
    *,
    target: str = "",
    sizes: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """``compare`` for a builder of its own kind; ``sizes``: what else the header names."""
    expect_several("recipes", recipes, "a list of recipes", "give ['he', 'fixup'], of one ['he']")
    chosen = [recipe_of(recipe) for recipe in recipes]
    over = tuple(depths or sorted({max(depth // by, 1) for by in (8, 4, 2, 1)}))

    def rows() -> tuple[Row, ...]:
        return _rows(build, chosen, depth, seeds, over, progress)

    first = build(None, depth, seeds[0])
    if is_small(first.model, first.batch):
        with passes(1) as submit:
            found = submit(rows).result()
    else:
        found = rows()
    settings = {"timed_rounds": ROUNDS, "update": _UPDATE}
    if recipes and all(row.refused for row in found[1:]):
        raise NetworkError(f"no recipe covers this network: {found[1].refused}")
    return Comparison(target, depth, over, tuple(seeds), found, settings, sizes or {})


def _rows(
    build: Build,
    recipes: Sequence[Recipe],
    depth: int,
    seeds: Sequence[int],
    depths: Sequence[int],
    progress: Progress | None,
) -> tuple[Row, ...]:
    rows: list[Row] = []
    built: list[tuple[int, Built]] = []
    for done, recipe in enumerate([None, *recipes], 1):
        row, made = _row(build, recipe, depth, seeds, depths)
        rows.append(row)
        if made is not None:
            built.append((len(rows) - 1, made))
        if progress is not None:
            progress(done, len(recipes) + 1)
    for place, times in _timed(built).items():
        rows[place] = replace(rows[place], step_time=tuple(times))
    return tuple(rows)


def _row(
    build: Build,
    recipe: Recipe | None,
    depth: int,
    seeds: Sequence[int],
    depths: Sequence[int],
) -> tuple[Row, Built | None]:
    head = (
        Row(PLAIN, "the network as given", "", "")
        if recipe is None
        else Row(recipe.name, recipe.title, recipe.needs, recipe.reference)
    )
    try:
        built = [build(recipe, depth, seed) for seed in seeds]
    except _UNCOVERED as error:
        if recipe is None:
            raise
        return replace(head, refused=str(error)), None
    quantities: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for seed, made in zip(seeds, built, strict=True):
        for name, value in _measured(made, seed, reasons).items():
            quantities.setdefault(name, []).append(value)
    updates: dict[int, list[float]] = {}
    of_weights: dict[int, list[float]] = {}
    more = [seed for seed in range(_STEP_SEEDS + len(seeds)) if seed not in seeds]
    stepped = (*seeds, *more[: max(_STEP_SEEDS - len(seeds), 0)])
    for at in depths:
        try:
            known = dict(zip(seeds, built, strict=True)) if at == depth else {}
            networks = [known[s] if s in known else build(recipe, at, s) for s in stepped]
            moved = [
                functional_step(network.model, network.batch, seed, network.rates, network.norm)
                for seed, network in zip(stepped, networks, strict=True)
            ]
        except _UNCOVERED as error:  # one layer alone may be what the rule leaves out
            reasons[f"updates at depth {at}"] = str(error)
            continue
        updates[at] = [update.all for update in moved]
        of_weights[at] = [update.weights for update in moved]
    first = built[0]
    row = replace(
        head,
        changes=first.changes,
        left=first.left,
        parameters=sum(p.numel() for p in first.model.parameters()),
        quantities={name: v for name, v in quantities.items() if len(v) == len(seeds)},
        reasons=reasons,
        updates=updates,
        weight_updates=of_weights,
        update_exponent=_fitted("update", updates, reasons),
        weight_update_exponent=_fitted("weight_update", of_weights, reasons),
        groups=tuple(
            f"{len(group.paths)} {group.what} at {group.rate:g} of the rate"
            + ("" if group.decay else ", no weight decay")
            for group in first.groups
            if group.paths
        ),
    )
    return row, first


def _measured(built: Built, seed: int, reasons: dict[str, str]) -> dict[str, float]:
    """One seed's numbers; why there is none is put into ``reasons``."""
    effort = Effort(sites=1, seed=seed)  # from end to end alone: the other sites are not shown
    profile = measure(
        built.model,
        built.batch,
        seed=seed,
        effort=effort,
        instruments=[
            "rivers",
            "branches",
            "effective_rank_participation",
            "headroom_float16_bits",
            "underflow_headroom_bits",
        ],
    )
    summary = profile.summary()
    found: dict[str, float] = {}
    for name in ("forward_end_rms", "forward_drift", "gradient_ratio"):
        if name in summary:
            found[name] = float(summary[name][0])
        else:
            reasons[name] = profile.why_not(name)
    if math.isnan(found.get("gradient_ratio", 0.0)) and not profile["gradient_rms"].any():
        del found["gradient_ratio"]
        reasons["gradient_ratio"] = "no gradient enters the stream: the head begins at zero"
    for name, column, reduce in (
        ("effective_rank", "effective_rank_participation", lambda v: v[0]),
        ("headroom_float16_bits", "headroom_float16_bits", np.nanmin),
        ("underflow_headroom_bits", "underflow_headroom_bits", np.nanmin),
        ("branch_to_stream", "branch_to_stream", np.nanmean),
    ):
        if column in profile:
            found[name] = float(reduce(profile[column]))
        else:
            reasons[name] = profile.why_not(column)
    notes: dict[str, Any] = profile.settings["instruments"]  # type: ignore[assignment]
    if notes.get("spectrum", {}).get("examples") == TOGETHER:
        # What was found is of the whole batch, as one state of so many times the numbers.
        del found["effective_rank"]
        try:
            found["effective_rank"] = _own_rank(built, seed, effort)
        except (DepthgaugeError, RuntimeError) as error:
            reasons["effective_rank"] = str(error).strip().partition("\n")[0]
    for name in ("headroom_float16_bits", "underflow_headroom_bits"):
        if found.get(name) == math.inf:  # nothing but zeros, which no format loses
            del found[name]
            reasons[name] = reasons.get("gradient_ratio") or "there are only zeros"
    return found


def _own_rank(built: Built, seed: int, effort: Effort) -> float:
    """The effective rank of a network whose examples act on one another, of its first stream."""
    streams = followed(built.model, built.batch, seed=seed)
    if isinstance(streams, str):
        raise NetworkError(streams)
    return own_rank(streams[0], effort)


def _fitted(name: str, updates: dict[int, list[float]], reasons: dict[str, str]) -> Exponent | None:
    """The exponent, or None with why in ``reasons``."""
    key = f"{name}_exponent"
    if len(updates) < 2:
        reasons[key] = "the network was built at one depth; an exponent needs two"
    elif not any(value for values in updates.values() for value in values):
        reasons[key] = "nothing of it moves at the first step"
    else:
        try:
            return exponent(list(updates), list(updates.values()))
        except DepthgaugeError as error:
            reasons[key] = str(error)
    return None


# ---------------------------------------------------------------------------------- time


def _timed(built: Sequence[tuple[int, Built]]) -> dict[int, list[float]]:
    """Seconds of a forward and a backward pass over the first network's in the same round."""
    found: dict[int, list[float]] = {place: [] for place, _ in built}
    for _, made in built:
        _step(made)
    for _ in range(ROUNDS):
        seconds = {place: _step(made) for place, made in built}
        for place, taken in seconds.items():
            found[place].append(taken / seconds[built[0][0]])
    return found


def _step(built: Built) -> float:
    for p in built.model.parameters():
        p.grad = None
    taken = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        output = call(built.model, built.batch)
        reals: list[Tensor] = [t for _, t in tensors(output) if t.requires_grad]
        torch.autograd.backward([t.float().mean() for t in reals])
        taken.append(time.perf_counter() - start)
        for p in built.model.parameters():
            p.grad = None
    return min(taken)
