"""What a recipe says of one network: a form for each residual step, an initialiser for each weight.

Both are written in the language of equations, with its symbols (``L`` residual branches, ``depth``
blocks, ``l`` the block, ``n`` the width), so that one rule has three readers: it is put into an
equation as text, drawn into a module's weights as numbers, and held against what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from depthgauge.equation.nodes import Init
from depthgauge.equation.parse import parse_init, parse_scalar
from depthgauge.equation.scalars import evaluate

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.recipes.kernel_maps import Curve
    from depthgauge.trace.counted import Layout, Residual, Weight

__all__ = [
    "Around",
    "Count",
    "Form",
    "Group",
    "Plan",
    "Recipe",
    "Rule",
    "Target",
    "init_of",
    "number_of",
]


@cache
def init_of(text: str) -> Init:
    """The initialiser that a rule's text describes."""
    return parse_init(text)


def number_of(text: str, scope: Mapping[str, float]) -> float:
    """The value of a rule's scalar, ``"1/sqrt(L)"``."""
    return evaluate(_scalar(text), scope)


@cache
def _scalar(text: str) -> Any:
    return parse_scalar(text, ("d",))


@dataclass(frozen=True)
class Target:
    """One weight and its initialiser, ``"he(gain=sqrt(2)/sqrt(L))"``; ``mistakes``: others that are
    met in its place, each with the mistake that makes it. ``scope``: values of the symbols.
    ``beside``: mistakes that are made where the skip has weights of its own, and in all such
    branches.
    ``sized``: whether its size is held to too, or is left to what data ask for. ``raw``: where the
    law is to hold at every step, what the parameter that a module computes its weight from begins
    with."""

    weight: Weight
    init: str
    scope: Mapping[str, float] = field(repr=False)
    mistakes: tuple[tuple[str, str], ...] = ()
    sized: bool = True
    raw: str = ""
    beside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Rule:
    """A group of weights under one law, in words with its numbers. ``doubt``: what the law is not
    derived for and was met. ``vectors``: it is of gains and numbers, of no weight layer; ``bare``:
    of parameters as they lie, whatever a module computes of them."""

    group: str
    law: str
    targets: tuple[Target, ...]
    doubt: str = ""
    vectors: bool = False
    bare: bool = False

    @property
    def told(self) -> str:
        return f"{self.law}; {self.doubt}" if self.doubt else self.law


@dataclass(frozen=True)
class Form:
    """What one residual step is to look like; what is None is left as it is.

    ``skip``, ``factor``: fixed numbers in front of the skip and of the branch, ``"1/sqrt(2)"``.
    ``learned``: ``"scalar(0)"`` or ``"gain(1e-5)"`` in front of the branch, ``""`` for nothing;
    ``carried``: the same in front of the skip; ``"gain"`` where data say what it begins with.
    ``norms``: kinds by place (``in``, ``inner``, ``out``, ``stream``), the only ones there are to
    be, one at each place, but for norms of queries and keys; ``inner``: in front of the last weight
    layer; the kind ``""`` is whatever kind is there, a layer norm where there is none. ``gains``:
    what the gains of norms begin with, by place. ``inlet``: a fixed number that the branch's input
    is multiplied by, behind the norm in front; ``entered``: words for the activation there.
    ``shifts``: a learned number, 0, is added in front of each weight layer and activation, and at
    the branch's end, which a learned number, 1, multiplies. ``biased``: each of its weight layers
    has a bias. ``mistakes``: coefficients that are met in place of these, each (skip, factor,
    words); ``learned_mistakes`` and ``inlet_mistakes``: each (text, words); ``misplaced``: places
    of norms that are met in place of these, each (places, words). ``logits``: the number that
    products of queries and keys are multiplied by, in ``d``, the features of a head;
    ``logits_mistakes``: each (text, words). ``scored``: the kind of the norm of queries and of keys
    over the features of each head, values having none; ``temperature``: what the learned number
    begins with that multiplies the products too, its ``temperature_mistakes`` each (text, words).
    """

    skip: str | None = None
    factor: str | None = None
    learned: str | None = None
    norms: Mapping[str, str] | None = None
    gains: Mapping[str, str] = field(default_factory=dict)
    inlet: str | None = None
    entered: str = ""
    shifts: bool = False
    biased: bool = False
    mistakes: tuple[tuple[str, str, str], ...] = ()
    learned_mistakes: tuple[tuple[str, str], ...] = ()
    inlet_mistakes: tuple[tuple[str, str], ...] = ()
    misplaced: tuple[tuple[tuple[str, ...], str], ...] = ()
    carried: str | None = None
    logits: str | None = None
    logits_mistakes: tuple[tuple[str, str], ...] = ()
    scored: str | None = None
    temperature: str | None = None
    temperature_mistakes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Around:
    """One weight layer and the fixed numbers in front of it and behind it, ``"1/sqrt(4*n)"``.

    ``behind`` is None where the factor of its branch holds that number. ``mistakes``: what the
    product of both is met as, each (text, words)."""

    weight: Weight
    front: str
    behind: str | None
    scope: Mapping[str, float] = field(repr=False)
    mistakes: tuple[tuple[str, str], ...] = ()

    @property
    def asked(self) -> float:
        """The product of both numbers, or of the one that it says."""
        behind = 1.0 if self.behind is None else number_of(self.behind, self.scope)
        return number_of(self.front, self.scope) * behind

    @property
    def found(self) -> float:
        """What there is of it."""
        return self.weight.front * (1.0 if self.behind is None else self.weight.behind)


@dataclass(frozen=True)
class Count:
    """Something that the recipe wants so often, how often it is there, and why it has to be."""

    what: str
    found: int
    expected: int
    why: str = ""


@dataclass(frozen=True)
class Group:
    """Parameters that learn at ``rate`` times the rate of the others, decay by ``decay`` times
    their weight decay (0: it is not meant for them), and have ``eps`` times their epsilon of Adam.
    """

    what: str
    paths: tuple[str, ...]
    rate: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What a recipe asks of one network.

    ``rules``: initialisers. ``forms``: one for each residual branch, in the layout's order, or
    none. ``counts``: what else is counted. ``silent``: every branch adds exactly zero at the start.
    ``wakes``: the first step, from 0, at which a parameter's gradient is not zero, by its path;
    what is not named is not held to a step, and where no head is named, a head that is zero at the
    start delays all by a step. ``groups``: for the optimiser. ``biased``: weight
    layers that are to have a bias; one that has none gets one, and the plan is made anew.
    ``final``: the kind of the norm between a stream's last sum and the layer that reads it
    (``""``: whatever kind is there, ``"none"``: no norm). ``everywhere``: the kind that takes the
    place of every norm, also of those that stand in no branch. ``outlet``: the fixed number around
    each head. ``adaptive``: the groups' rates are for Adam and its like. ``curves``: what each
    activation becomes, in the layout's order, or none; norms go. ``inside``: where no branch is to
    have a norm, those that stand in none stay. ``around``: fixed numbers in front of weight layers
    and behind them. ``scales``: weights that the recipe scales, each with its factor, whose biases
    it leaves at PyTorch's size or at zero. ``bare``: why nothing that is the recipe's own shows in
    this network, if nothing does. ``second``: whether the sum of all branches may be kept beside
    the stream, and join it at its end. ``ends``: a rule is about the last weight of each branch.
    """

    rules: tuple[Rule, ...] = ()
    forms: tuple[Form, ...] = ()
    counts: tuple[Count, ...] = ()
    silent: bool = False
    wakes: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    biased: tuple[Weight, ...] = ()
    final: str | None = None
    everywhere: str | None = None
    outlet: str | None = None
    adaptive: bool = False
    curves: tuple[Curve, ...] = ()
    inside: bool = False
    around: tuple[Around, ...] = ()
    scales: tuple[tuple[Weight, float], ...] = ()
    bare: str = ""
    second: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Recipe:
    """``tier``: 1 what every deep network meets, 2 what Transformers do, 3 the rest. ``needs``:
    what it asks of the network; ``rule`` and ``traps`` in lines of words; ``reference``: the paper.
    ``plan`` raises NetworkError for a network that it does not cover. ``after``: what is done to a
    module once the plan is in it, with its batch (initialisers that look at data), returning a line
    of words. ``measured``: what an audit counts on the batch. ``unwritten``: why no equation can
    say it, if none can. ``whole``: its numbers follow from the depth by no formula of the language:
    those in an equation are for the network's own depth. ``unconfirmed``: lines of ``needs``,
    ``rule`` and ``traps`` that neither the paper nor the authors' code was seen to say, each with
    where it is from. ``fitted``: the recipe with the numbers
    that it takes from a batch, what is applied and audited. ``searches``: to measure is to search,
    which is too long for a guess."""

    name: str
    title: str
    needs: str
    rule: Sequence[str]
    traps: Sequence[str]
    reference: str
    plan: Callable[[Layout], Plan]
    tier: int = 1
    judgement: str = ""
    after: Callable[[nn.Module, Any], str] | None = None
    measured: Callable[[nn.Module, Any], Sequence[Count]] | None = None
    unwritten: str = ""
    searches: bool = False
    whole: bool = False
    unconfirmed: Sequence[tuple[str, str]] = ()
    fitted: Callable[[nn.Module, Any, Layout], Recipe] | None = None

    def __str__(self) -> str:
        from depthgauge.report.recipe_screen import print_recipe
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_recipe(self, console))

    def __repr__(self) -> str:
        return f"<Recipe {self.name}: {self.title}>"

    def marked(self, line: str) -> str:
        """A line of it, and behind one that was not confirmed where it is from."""
        why = dict(self.unconfirmed).get(line)
        return line if why is None else f"{line} (not confirmed: {why})"

    def on(self, model: nn.Module, batch: Any, layout: Layout) -> Recipe:
        """The recipe for this batch; ``layout``: the model's."""
        return self if self.fitted is None else self.fitted(model, batch, layout)


def scope_of(layout: Layout, residual: Residual | None = None) -> dict[str, float]:
    """The symbols of a rule in this network: ``l`` is the branch's block, ``S`` no symbol of the
    language: branches of a stream are given as numbers."""
    width = residual.width if residual and residual.weights else 1
    return {
        "L": float(max(layout.L, 1)),
        "depth": float(max(layout.blocks, 1)),
        "l": float(residual.block if residual else 1),
        "n": float(width),
    }
