"""Does this module follow the recipe that it claims? From measurement, never from a configuration.

L, m and which weight is last come from the pass; each weight's root mean square is held to the
recipe's,

    | rms / expected - 1 | <= 5 / sqrt(2 n) + 0.02

for n numbers: five standard errors of a normal sample's, and what a uniform or a truncated draw is
off. The mean of numbers that are drawn is zero, |mean| <= rms (5 / sqrt(n) + 0.02). Of what is not
drawn number by number, an orthogonal weight or a constant, |rms / expected - 1| is at most 0.002. A
weight that is to be zero must be exactly zero, one that is to be orthogonal must have equal
singular values. Factors of skips and branches are read from the block equation, gradients of the
first steps from steps that are taken on a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.jsonable import jsonable
from depthgauge.network.init import options_of, rms_of
from depthgauge.recipes.clipping_held import Clip, clipping_held
from depthgauge.recipes.finding import Finding
from depthgauge.recipes.first_steps import first_gradients
from depthgauge.recipes.inside import counted, effective, headed, scaled_biases
from depthgauge.recipes.rates import groups_held
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.rounding import coarsest, of_mean, rounding
from depthgauge.recipes.rules import (
    Count,
    Form,
    Plan,
    Recipe,
    Rule,
    Target,
    init_of,
    number_of,
    scope_of,
)
from depthgauge.recipes.scored import scored_finding, temperature_finding
from depthgauge.trace.layout import Layout, Residual, layout
from depthgauge.trace.measuring import measure_module

__all__ = ["EXACT", "Audit", "Finding", "audit", "counted_finding", "held"]

#: Whose root mean square no chance enters, and how far it may lie from the recipe's (bfloat16).
EXACT, _ROUNDED = ("constant", "orthogonal", "delta_orthogonal", "identity"), 2e-3
#: Whose mean is not that of numbers drawn one by one.
_UNDRAWN = ("zeros", "standardised", *EXACT)
#: How far a fixed factor or a learned number may lie from the recipe's.
_CLOSE = 1e-3


@dataclass(frozen=True)
class Audit:
    """What an audit found; ``branches`` and ``layers`` are L and the numbers m, as counted."""

    recipe: str
    branches: int
    layers: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        rows = []
        for finding in self.findings:
            row: dict[str, Any] = {
                "part": finding.part,
                "holds": finding.holds,
                "matching": finding.matching,
                "of": finding.of,
                "said": finding.said,
            }
            if not math.isnan(finding.ratio):
                row["ratio"] = finding.ratio
            rows.append(row)
        document: dict[str, Any] = jsonable(
            {
                "recipe": self.recipe,
                "holds": self.holds,
                "branches": self.branches,
                "m": list(self.layers),
                "findings": rows,
            }
        )
        return document


def audit(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe,
    optimizer: Optimizer | None = None,
    loss: Callable[..., Any] | None = None,
    clip: Clip | None = None,
) -> Audit:
    """Hold a module to a recipe, by name or as one. The model is left as it was.

    ``optimizer``: held to the recipe's groups. ``loss``: of which the gradients of the first steps
    are taken; without one a fixed random cotangent's. ``clip(model)``, which clips the gradients of
    the model that it is given: held to adaptive clipping, on a copy. Raises
    SpecificationError for a name that no recipe has, NetworkError for a network that the recipe
    does not cover or that cannot be run, ModelError when the model raises.
    """
    rules = recipe_named(recipe) if isinstance(recipe, str) else recipe
    found = layout(model, batch)
    rules = rules.on(model, batch, found)
    plan = rules.plan(found)
    findings = list(held(model, found, plan))
    if rules.measured is not None:
        findings += [counted_finding(count) for count in rules.measured(model, batch)]
    if plan.silent:
        findings.append(_silent(model, batch))
    if plan.wakes:
        findings += _woken(model, batch, plan.wakes, loss)
    if optimizer is not None:
        findings += groups_held(model, plan, optimizer)
    if clip is not None:
        findings += clipping_held(model, batch, clip)
    return Audit(rules.name, found.L, found.m, tuple(findings))


def held(model: nn.Module, found: Layout, plan: Plan) -> Iterator[Finding]:
    """What the weights and the equations of a model say, without another pass."""
    found, parameters = headed(found, plan), dict(model.named_parameters())
    weights = effective(model, parameters)
    for rule in plan.rules:
        if rule.targets:
            yield _rule(rule, weights)
    yield from _forms(found, plan.forms, parameters, once=plan.everywhere is None)
    if plan.biased:
        bare = [weight for weight in plan.biased if not weight.bias]
        why = f"'{bare[0].path}' has none" if bare else ""
        have = len(plan.biased) - len(bare)
        yield counted_finding(Count("weight layers with a bias", have, len(plan.biased), why))
    if plan.everywhere is not None:
        others = [norm for norm in found.every if norm.kind != plan.everywhere]
        why = f"{plan.everywhere} takes their place"
        yield counted_finding(Count("norms of another kind", len(others), 0, why))
    if plan.outlet is not None and found.heads:
        yield _multiplied(found, plan.outlet)
    if plan.final is not None and found.ends:
        yield _final(found, plan)
    for count in (*counted(found, plan), *scaled_biases(parameters, plan.scales), *plan.counts):
        yield counted_finding(count)


# ------------------------------------------------------------------------------- weights


def _rms(tensor: Tensor) -> float:
    wide = tensor.detach().double()
    return float(torch.linalg.vector_norm(wide)) / math.sqrt(max(tensor.numel(), 1))


def _near(rms: float, expected: float, numbers: int) -> bool:
    if expected == 0:
        return rms == 0
    return abs(rms / expected - 1) <= 5 / math.sqrt(2 * numbers) + 0.02


def _is_constant(tensor: Tensor, value: float) -> bool:
    """Whether all its numbers are this one, as its format can hold it."""
    close = (_CLOSE + rounding(tensor.dtype)) * abs(value)
    return bool(((tensor.detach().double() - value).abs() <= close).all())


@dataclass(frozen=True)
class _Seen:
    """A target, what of its parameter is meant, and the root mean square of that."""

    target: Target
    tensor: Tensor
    rms: float

    @property
    def expected(self) -> float:
        return self.of(self.target.init)

    def of(self, init: str) -> float:
        return rms_of(init_of(init), self.target.weight.group, self.target.scope)

    def follows(self, init: str) -> bool:
        if not self.target.sized and init == self.target.init:
            return True
        if init_of(init).kind == "constant":  # of few numbers a size would say too little
            return _is_constant(self.tensor, self.constant(init))
        if init_of(init).kind in EXACT:
            return math.isclose(self.rms, self.of(init), rel_tol=_ROUNDED)
        # The size of standardised rows is no sample's.
        exact = init_of(init).kind == "standardised"
        return _near(self.rms, self.of(init), 10**12 if exact else self.tensor.numel())

    @property
    def farthest(self) -> float:
        """The number that lies farthest from a constant."""
        flat = self.tensor.detach().double().flatten()
        return float(flat[(flat - self.constant(self.target.init)).abs().argmax()])

    def constant(self, init: str) -> float:
        return float(options_of(init_of(init), self.target.scope)["value"])

    @property
    def shaped(self) -> str:
        """``""``, or what is wrong with a weight of the right size."""
        kind = init_of(self.target.init).kind
        flat = self.tensor.detach().double()
        if kind == "delta_orthogonal":
            middle = flat
            for side in flat.shape[:1:-1]:
                middle = middle[..., side // 2]
            if float(flat.square().sum()) > float(middle.square().sum()) * (1 + 1e-6):
                return "numbers outside the kernel's centre"
            flat = middle
        if kind in ("orthogonal", "delta_orthogonal"):
            parts = flat.reshape(self.target.weight.groups, self.target.weight.group[0], -1)
            tall = parts.mT if parts.shape[1] < parts.shape[2] else parts
            values = torch.linalg.eigvalsh(tall.mT @ tall).clamp(min=0).sqrt()
            if float(values.min()) < 0.99 * float(values.max()):
                low, high = float(values.min()), float(values.max())
                return f"singular values from {low:.3g} to {high:.3g}, expected equal ones"
        if kind == "standardised":
            row = flat.reshape(flat.shape[0], -1)
            sizes = row.square().mean(1).sqrt()
            off = of_mean(self.tensor.dtype, row.shape[1])
            if float((row.mean(1).abs() / sizes).max()) > 1e-3 + off:
                return "rows whose mean is not taken off, expected standardised ones"
            if float(sizes.min()) < (0.99 - 2 * off) * float(sizes.max()):
                return "rows of different sizes, expected standardised ones"
        chance = 5 / math.sqrt(max(flat.numel(), 1)) + 0.02
        if kind not in _UNDRAWN and abs(float(flat.mean())) > self.rms * chance:
            return "numbers whose mean is not zero"
        return ""


def _rule(rule: Rule, parameters: Mapping[str, Tensor]) -> Finding:
    """How many tensors of a group follow its law; of the others the mistake that explains them."""
    seen = []
    for target in rule.targets:
        tensor = target.weight.part(parameters[target.weight.path])
        seen.append(_Seen(target, tensor, _rms(tensor)))
    if broken := [s for s in seen if not math.isfinite(s.rms)]:
        path = broken[0].target.weight.path
        said = f"{len(broken)} of {len(seen)} {rule.group}: not finite ('{path}')"
        return Finding(rule.group, len(seen) - len(broken), len(seen), said)
    wrong = [s for s in seen if not s.follows(s.target.init)]
    sized = [s for s in seen if s.target.sized]
    if not wrong and not _together(sized, [s.expected for s in sized]):
        wrong = sized  # each within its own error, and yet all of them off
    bent = [(s, why) for s in seen if s not in wrong and (why := s.shaped)]
    right = len(seen) - len(wrong) - len(bent)
    if bent and not wrong:
        first, why = bent[0]
        said = f"{len(bent)} of {len(seen)} {rule.group}: {why} ('{first.target.weight.path}')"
        return Finding(rule.group, right, len(seen), said, _ratio(seen))
    if not wrong:
        once = sum(
            s.target.raw != "" and ".parametrizations." not in s.target.weight.path for s in seen
        )
        said = f"{rule.group}: {rule.told}"
        said += (
            f"; {once} of {len(seen)} at the start alone, no parametrisation keeps it"
            if once
            else ""
        )
        return Finding(rule.group, right, len(seen), said, _ratio(seen))
    head = f"{len(wrong)} of {len(seen)} {rule.group}: "
    path = f" ('{wrong[0].target.weight.path}')"
    if all(s.expected == 0 for s in wrong):
        size = "std" if any(s.tensor.numel() > 1 for s in wrong) else "size"
        largest = max(s.rms for s in wrong)
        said = f"{head}{size} up to {largest:.4g}, expected zero{path}"
        return Finding(rule.group, right, len(seen), said)
    ratio = _ratio(wrong)
    values = [s.rms for s in wrong]
    if all(init_of(s.target.init).kind == "constant" for s in wrong):
        said = f"{head}{wrong[0].farthest:.4g}, expected {rule.told}"
    elif ratio == 0:
        said = f"{head}zero, expected {rule.told}"
    elif len({round(s.expected, 12) for s in wrong}) == 1 and max(values) < 1.2 * min(values):
        mean = math.fsum(values) / len(values)
        said = f"{head}std {_four(mean)}, expected {_four(wrong[0].expected)} ({ratio:.2g} times)"
    else:
        said = f"{head}std {ratio:.3g} times the expected one ({rule.told})"
    why = _mistake(wrong)
    return Finding(rule.group, right, len(seen), said + (f": {why}" if why else path), ratio)


def _four(std: float) -> str:
    """Four decimals, or four digits of what is too small for them."""
    return f"{std:.4f}" if std >= 0.001 else f"{std:.4g}"


def _ratio(seen: Sequence[_Seen]) -> float:
    """Geometric mean of measured over expected; 0 if any is zero, NaN if no size is expected."""
    ratios = [s.rms / s.expected for s in seen if s.expected > 0 and s.target.sized]
    if not ratios:
        return math.nan
    if min(ratios) == 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _mistake(wrong: Sequence[_Seen]) -> str:
    """The words of the mistake that makes every one of these tensors what it is; of several the
    one that comes closest, the first of equals, and a second that chance does not tell from it: one
    that comes as close but for two standard errors."""
    tables = [{words: init for init, words in s.target.mistakes} for s in wrong]
    found: list[tuple[float, str]] = []
    for words in tables[0] if tables else ():
        if not all(words in table for table in tables):
            continue
        inits = [table[words] for table in tables]
        expected = [s.of(init) for s, init in zip(wrong, inits, strict=True)]
        each = all(s.follows(init) for s, init in zip(wrong, inits, strict=True))
        if each and _together(wrong, expected):
            found.append((round(abs(math.log(_pooled(wrong, expected)[0])), 9), words))
    found.sort(key=lambda row: row[0])
    chance = 2 / math.sqrt(2 * max(sum(s.tensor.numel() for s in wrong), 1))
    close = [words for off, words in found if off <= found[0][0] + chance]
    return ", or ".join(close[:2])


def _together(seen: Sequence[_Seen], expected: Sequence[float]) -> bool:
    """Whether the weights, as one sample of all their numbers, are of the size expected."""
    ratio, numbers = _pooled(seen, expected)
    return not numbers or _near(ratio, 1.0, numbers)


def _pooled(seen: Sequence[_Seen], expected: Sequence[float]) -> tuple[float, int]:
    """Root mean square of all numbers over what is expected of them, where that is not zero, and
    how many they are; 1 of none."""
    known = [(s, e) for s, e in zip(seen, expected, strict=True) if e > 0]
    numbers = sum(s.tensor.numel() for s, _ in known)
    if not numbers:
        return 1.0, 0
    mean = math.fsum(s.tensor.numel() * (s.rms / e) ** 2 for s, e in known) / numbers
    return math.sqrt(mean), numbers


# --------------------------------------------------------------------------------- forms


@dataclass(frozen=True)
class _Step:
    """A branch as it was found, its form, and the symbols there."""

    branch: Residual
    form: Form
    scope: Mapping[str, float]
    close: float = _CLOSE

    def number(self, text: str | None, other: float) -> float:
        return other if text is None else number_of(text, self.scope)

    @property
    def readable(self) -> bool:
        return not (math.isnan(self.branch.skip) or math.isnan(self.branch.factor))

    def multiplied(self, text: str, here: Sequence[tuple[str, float]]) -> bool:
        """Whether ``here`` is this learned multiplier, ``"gain(1e-5)"``, and no other; ``"gain"``
        is one of any size."""
        kind, _, initial = text.removesuffix(")").partition("(")
        if kind and not initial:
            return self.readable and [word for word, _ in here] == [kind]
        asked = ((kind, number_of(initial, self.scope)),) if kind else ()
        return (
            self.readable
            and len(asked) == len(here)
            and all(
                a == b and math.isclose(x, y, rel_tol=self.close, abs_tol=1e-12)
                for (a, x), (b, y) in zip(asked, here, strict=True)
            )
        )

    def scored(self, text: str) -> bool:
        """Whether attention multiplies its logits by this number, ``"1/d"``."""
        asked = number_of(text, {**self.scope, "d": float(self.branch.head)})
        return math.isclose(self.branch.logits, asked, rel_tol=_CLOSE)

    def weighed(self, skip: str | None, factor: str | None) -> bool:
        """Whether skip and branch have these factors; before a norm, whether their ratio has."""
        has = self.branch.skip, self.branch.factor
        asked = self.number(skip, has[0]), self.number(factor, has[1])
        if any(norm.at == "stream" for norm in self.branch.norms):
            return math.isclose(has[0] * asked[1], has[1] * asked[0], rel_tol=_CLOSE)
        return all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(has, asked, strict=True))


def _forms(
    found: Layout, forms: Sequence[Form], parameters: Mapping[str, Tensor], once: bool
) -> Iterator[Finding]:
    """``once``: whether one norm is to stand at each place, or as many as there are."""
    close = _CLOSE + coarsest(parameters.values())
    steps = [
        _Step(branch, form, scope_of(found, branch), close)
        for branch, form in zip(found.branches, forms, strict=False)
    ]
    weighed = [s for s in steps if s.form.skip is not None or s.form.factor is not None]
    if weighed:
        yield _weighed(weighed)
    if attending := [s for s in steps if s.form.logits is not None and s.branch.head]:
        yield _scored(attending)
    if scored := [s for s in steps if s.form.scored is not None]:
        yield scored_finding([(s.branch, s.form) for s in scored])
        if any(s.form.temperature is not None for s in scored):
            yield temperature_finding([(s.branch, s.form) for s in scored], parameters)
    if learned := [s for s in steps if s.form.learned is not None and not s.form.shifts]:
        yield _learned([(s, s.form.learned or "", s.branch.learned) for s in learned], "branches")
    if carried := [s for s in steps if s.form.carried is not None]:
        yield _learned([(s, s.form.carried or "", s.branch.carried) for s in carried], "skips")
    if normed := [s for s in steps if s.form.norms is not None]:
        yield _placed(normed, once)
    gains = [
        (norm.gain, number_of(s.form.gains[norm.at], s.scope), norm.at)
        for s in steps
        for norm in s.branch.norms
        if norm.at in s.form.gains
    ]
    if wanted := sum(len(s.form.gains) for s in steps):
        yield _gains(gains, wanted, parameters)
    shifted = [s.branch for s in steps if s.form.shifts]
    if shifted:
        # Of attention the whole sub-layer is shifted, not its output layer apart.
        layers = [w for b in shifted for w in b.weights if w.role != "output" and not w.table]
        for what, number, of in (
            ("weight layers of branches with a scalar bias in front",
             sum(w.shifted for w in layers), len(layers)),
            ("activations of branches with a scalar bias in front",
             sum(branch.shifted for branch in shifted),
             sum(len(branch.activations) for branch in shifted)),
            ("branches with a scalar multiplier",
             sum(branch.multipliers > 0 for branch in shifted), len(shifted)),
        ):  # fmt: skip
            yield counted_finding(Count(what, number, of))


def _weighed(steps: Sequence[_Step]) -> Finding:
    """Fixed factors in front of skips and branches."""
    part = "factors of skip and branch"
    read = [s for s in steps if s.readable]
    wrong = [s for s in read if not s.weighed(s.form.skip, s.form.factor)]
    right = len(read) - len(wrong)
    if not wrong:
        unread = len(steps) - len(read)
        said = f"{right} of {len(steps)} sums: {_sum_of(steps[0])}"
        said += f"; {unread} could not be read" if unread else ""
        return Finding(part, right, len(steps), said)
    one = wrong[0]
    skip, factor = one.branch.skip, one.branch.factor
    said = (
        f"{len(wrong)} of {len(steps)} sums: {skip:.4g} h + {factor:.4g} F, expected {_sum_of(one)}"
    )
    tables = [{words: texts for *texts, words in s.form.mistakes} for s in wrong]
    for words in tables[0]:
        if all(words in t and s.weighed(*t[words]) for s, t in zip(wrong, tables, strict=True)):
            return Finding(part, right, len(steps), f"{said}: {words}")
    return Finding(part, right, len(steps), f"{said} ('{one.branch.path}')")


def _scored(steps: Sequence[_Step]) -> Finding:
    """The number that products of queries and keys are multiplied by."""
    right = [s.scored(s.form.logits or "1") for s in steps]
    said = f"{sum(right)} of {len(steps)} attention logits that are {steps[0].form.logits} q k"
    if not all(right):
        wrong = [s for s, ok in zip(steps, right, strict=True) if not ok]
        branch = wrong[0].branch
        has = "what is not read" if math.isnan(branch.logits) else f"{branch.logits:.4g}"
        said += f", d features in a head; '{branch.path}' has {has} for d = {branch.head}"
        for text, words in wrong[0].form.logits_mistakes:
            if all(s.scored(text) for s in wrong):
                said += f": {words}"
                break
    return Finding("attention logits", sum(right), len(steps), said)


def _sum_of(step: _Step) -> str:
    skip = step.number(step.form.skip, step.branch.skip)
    factor = step.number(step.form.factor, step.branch.factor)
    return f"{skip:.4g} h + {factor:.4g} F"


def _learned(
    rows: Sequence[tuple[_Step, str, tuple[tuple[str, float], ...]]], what: str
) -> Finding:
    """Learned multipliers of branches or of skips: what is asked for, and what is there."""
    part = "learned multipliers" + (" of skips" if what == "skips" else "")
    right = [step.multiplied(text, here) for step, text, here in rows]
    text = rows[0][1]
    said = f"{sum(right)} of {len(rows)} {what} with a learned multiplier {text}"
    if not text:
        said = f"{sum(right)} of {len(rows)} {what} without a learned multiplier"
    if not all(right):
        step, _, here = rows[right.index(False)]
        has = " ".join(f"{kind}({number:.4g})" for kind, number in here) or "none"
        said += f"; '{step.branch.path}' has {has if step.readable else 'one that is not read'}"
        wrong = [row for row, ok in zip(rows, right, strict=True) if not ok]
        for other, words in step.form.learned_mistakes if what == "branches" else ():
            if all(s.multiplied(other, there) for s, _, there in wrong):
                said += f": {words}"
                break
    return Finding(part, sum(right), len(rows), said)


def _placed(steps: Sequence[_Step], once: bool) -> Finding:
    """Norms: where they stand, one at each place, and which."""
    right = []
    for step in steps:
        wanted, norms = step.form.norms or {}, step.branch.placed
        kinds = all(wanted.get(n.at) in ("", n.kind) for n in norms)
        here = {n.at for n in norms}
        alone = not once or (len(here) == len(norms) and not _astray(step))
        right.append(set(wanted) == here and alone and kinds)
    asked = ", ".join(f"{kind or 'norm'} {at}" for at, kind in (steps[0].form.norms or {}).items())
    said = f"{sum(right)} of {len(steps)} branches with their norms in place ({asked})"
    if not asked:
        said = f"{sum(right)} of {len(steps)} branches without a norm"
    if not all(right):
        step = steps[right.index(False)]
        found = ", ".join(f"{n.kind} {n.at}" for n in step.branch.placed) or "no norm"
        said += f"; '{step.branch.path}' has {found}"
        places = {n.at for n in step.branch.placed}
        words = [words for others, words in step.form.misplaced if set(others) == places]
        said += f": {words[0]}" if words else ""
        if places == set(step.form.norms or {}) and len(places) < len(step.branch.placed):
            said += ": one norm is to stand at each place"
        elif places == set(step.form.norms or {}) and _astray(step):
            said += ": the inner norm does not stand directly in front of the branch's last layer"
    return Finding("norms", sum(right), len(steps), said)


def _astray(step: _Step) -> bool:
    """Whether an inner norm stands elsewhere than in front of the last layer."""
    return any(norm.at == "inner" and not norm.last for norm in step.branch.placed)


def _final(found: Layout, plan: Plan) -> Finding:
    """The norm between the last sum of a stream and the layer that reads it."""
    part = "final norms"
    if plan.final == "none":
        extra = [norm.path for end in found.ends for norm in end.norms]
        said = f"{len(extra) or 'no'} norms after the last branch of a stream"
        said += f"; '{extra[0]}' stands behind a norm" if extra else ""
        return Finding(part, int(not extra), 1, said)
    read = [end for end in found.ends if end.readers]
    kinds = [[n.kind for n in end.norms if not plan.final or n.kind == plan.final] for end in read]
    right = sum(len(here) == 1 for here in kinds)
    said = f"{right} of {len(read)} streams with a final norm"
    if right < len(read):
        end = next(e for e, here in zip(read, kinds, strict=True) if len(here) != 1)
        has = ", ".join(norm.kind for norm in end.norms) or "none in front of its reader"
        said += f"; '{end.stream}' has {has}"
    return Finding(part, right, len(read), said)


def _multiplied(found: Layout, outlet: str) -> Finding:
    """The fixed number around each head."""
    asked = number_of(outlet, scope_of(found, found.branches[-1] if found.branches else None))
    right = [math.isclose(number, asked, rel_tol=_CLOSE) for number in found.outlets]
    said = f"{sum(right)} of {len(right)} heads whose input is multiplied by {outlet} = {asked:.4g}"
    if not all(right):
        at = right.index(False)
        said += f"; '{found.heads[at].path}' has {found.outlets[at]:.4g}"
        said += (
            ": on the path that this batch takes it is missing" if found.outlets[at] == 1 else ""
        )
    return Finding("multipliers of heads", sum(right), len(right), said)


def _gains(
    gains: Sequence[tuple[str, float, str]], wanted: int, parameters: Mapping[str, Tensor]
) -> Finding:
    """Gains of norms that are to begin at a number."""
    right = [bool(path) and _is_constant(parameters[path], value) for path, value, _ in gains]
    value = f"{gains[0][1]:g}" if gains else "a number"
    said = f"{sum(right)} of {wanted} gains of norms begin at {value}"
    if not all(right):
        said += f"; '{gains[right.index(False)][0]}' does not"
    elif len(gains) < wanted:
        said += f"; {wanted - len(gains)} branches have no norm there"
    return Finding("gains of norms", sum(right), wanted, said)


# -------------------------------------------------------------------------------- counts


def counted_finding(count: Count) -> Finding:
    """What was counted against what was to be there, as a finding."""
    if count.expected:
        said = f"{count.found} of {count.expected} {count.what}"
        said += f": {count.why}" if count.why and count.found < count.expected else ""
        return Finding(count.what, min(count.found, count.expected), count.expected, said)
    why = f": {count.why}" if count.why and count.found else ""
    said = f"{count.found or 'no'} {count.what}{why}"
    return Finding(count.what, int(not count.found), 1, said)


def _silent(model: nn.Module, batch: Any) -> Finding:
    """Whether every branch adds exactly zero."""
    profile = measure_module(model, batch, instruments=["branch_rms"])
    sizes: list[float] = profile["branch_rms"].tolist() if "branch_rms" in profile else []
    zero = sum(size == 0 for size in sizes)
    said = f"{zero} of {len(sizes)} branches add exactly zero at the start"
    return Finding("branches that are zero at the start", zero, len(sizes), said)


def _woken(
    model: nn.Module, batch: Any, wakes: Mapping[str, int], loss: Callable[..., Any] | None
) -> Iterator[Finding]:
    """Whose gradient is zero at which of the first three steps, as the recipe has it."""
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = [path for path in wakes if path not in learning]
    wakes = {path: first for path, first in wakes.items() if path in learning}
    zero = first_gradients(model, batch, loss)
    if not wakes or not zero:
        said = "no parameter requires a gradient, so the first steps could not be taken"
        yield Finding("gradients of the first steps", 0, max(len(frozen), 1), said)
        return
    for step, gradients in enumerate(zero):
        asleep = [path for path, first in wakes.items() if first > step]
        awake = [path for path, first in wakes.items() if first <= step]
        early = [path for path in asleep if not gradients.get(path, True)]
        late = [path for path in awake if gradients.get(path, True)]
        wrong = [*early, *late]
        said = f"step {step}: {len(asleep)} tensors are to have no gradient, {len(awake)} one"
        said += f", {len(frozen)} frozen" if frozen else ""
        if early:
            said += f"; '{early[0]}' has one already ({len(early)} in all)"
        if late:
            said += f"; '{late[0]}' has none ({len(late)} in all)"
        yield Finding(f"gradients at step {step}", len(wakes) - len(wrong), len(wakes), said)
