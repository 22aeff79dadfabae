"""Weights held to a recipe's initialisers: how large, how shaped, and by which mistake not.

Each weight's root mean square is held to the recipe's,

    | rms / expected - 1 | <= 5 / sqrt(2 n) + 0.02

for n numbers: five standard errors of a normal sample's, and what a uniform or a truncated draw is
off. The mean of numbers that are drawn is zero, |mean| <= rms (5 / sqrt(n) + 0.02). Of what is not
drawn number by number, an orthogonal weight or a constant, |rms / expected - 1| is at most 0.002. A
weight that is to be zero must be exactly zero, one that is to be orthogonal must have equal
singular values.

What chance hides in one weight shows in all of one place: the weights in the same place of all
blocks, then those of all branches of one kind, as of cross-attention, are held as one sample, with
four standard errors and 0.02; then the whole group, with five.

A wrong count of the depth explains nearly all weights of a group, or all in one place of every
block: one weight among many has no depth of its own. One that counts the shortcut explains those
of all branches beside a shortcut with weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from depthgauge.network.init import options_of, rms_of
from depthgauge.recipes.finding import Finding
from depthgauge.recipes.rounding import of_mean, rounding
from depthgauge.recipes.rules import Rule, Target, init_of
from depthgauge.recipes.spots import Spot, Spots
from depthgauge.trace.graph import numberless

__all__ = ["EXACT", "is_constant", "rule_finding"]

#: Whose root mean square no chance enters, and how far it may lie from the recipe's (bfloat16).
EXACT: Final = ("constant", "orthogonal", "delta_orthogonal", "identity")
_ROUNDED: Final = 2e-3
#: Whose mean is not that of numbers drawn one by one.
_UNDRAWN: Final = ("zeros", "standardised", *EXACT)
#: Whose singular values are equal.
_EQUAL: Final = ("orthogonal", "delta_orthogonal")
#: The share of a group that a wrong count of the depth has to explain.
_MOST: Final = 0.8
#: How far ratios of measured over expected may lie apart to be told as one.
_APART: Final = 1.2
#: How far a learned number may lie from the recipe's.
_CLOSE: Final = 1e-3


def _rms(tensor: Tensor) -> float:
    wide = tensor.detach().double()
    return float(torch.linalg.vector_norm(wide)) / math.sqrt(max(tensor.numel(), 1))


def _near(rms: float, expected: float, numbers: int, errors: float = 5) -> bool:
    if expected == 0:
        return rms == 0
    return abs(rms / expected - 1) <= errors / math.sqrt(2 * numbers) + 0.02


def is_constant(tensor: Tensor, value: float) -> bool:
    """Whether all its numbers are this one, as its format can hold it."""
    close = (_CLOSE + rounding(tensor.dtype)) * abs(value)
    return bool(((tensor.detach().double() - value).abs() <= close).all())


@dataclass(frozen=True)
class _Seen:
    """A target, what of its parameter is meant, the root mean square of that, and where it
    stands."""

    target: Target
    tensor: Tensor
    rms: float
    spot: Spot

    @property
    def expected(self) -> float:
        return self.of(self.target.init)

    def of(self, init: str) -> float:
        return rms_of(init_of(init), self.target.weight.group, self.target.scope)

    @property
    def silences(self) -> bool:
        """Whether zeros are asked of what an embedding looks up too, which would silence it."""
        return self.kind == "zeros" and self.target.weight.looked_up

    def follows(self, init: str) -> bool:
        if self.silences:
            return False
        if not self.target.sized and init == self.target.init:
            return True
        if init_of(init).kind == "constant":  # of few numbers a size would say too little
            return is_constant(self.tensor, self.constant(init))
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

    @property
    def kind(self) -> str:
        return init_of(self.target.init).kind

    @property
    def follower(self) -> bool:
        """Whether its size is by the activation in front of it."""
        return self.kind == "standardised"

    def explained(self, init: str) -> bool:
        """Whether another initialiser made it: of its size, and equal singular values only where
        that one gives them."""
        alike = self.kind not in _EQUAL or (init_of(init).kind in _EQUAL) == (not self.shaped)
        return alike and self.follows(init)

    @property
    def place(self) -> str:
        """Its path, whichever block it stands in."""
        return numberless(self.target.weight.path)

    def deep(self, init: str) -> bool:
        """Whether it is the recipe's own at half or at twice the depth, or its ratio to that is
        another at another depth."""
        here, half, twice = self.of(init), self.at(0.5), self.at(2)
        if any(math.isclose(here, other.expected, rel_tol=1e-9) for other in (half, twice)):
            return not math.isclose(here, self.expected, rel_tol=1e-9)
        if not self.expected or not twice.expected:
            return False
        return not math.isclose(here / self.expected, twice.of(init) / twice.expected, rel_tol=1e-9)

    def at(self, times: float) -> _Seen:
        """The same at another depth."""
        scope = {**self.target.scope}
        scope |= {name: times * scope[name] for name in ("L", "depth") if name in scope}
        return replace(self, target=replace(self.target, scope=scope))

    def constant(self, init: str) -> float:
        return float(options_of(init_of(init), self.target.scope)["value"])

    @property
    def shaped(self) -> str:
        """``""``, or what is wrong with a weight of the right size."""
        kind = self.kind
        flat = self.tensor.detach().double()
        if kind == "delta_orthogonal":
            middle = flat
            for side in flat.shape[:1:-1]:
                middle = middle[..., side // 2]
            if float(flat.square().sum()) > float(middle.square().sum()) * (1 + 1e-6):
                return "numbers outside the kernel's centre"
            flat = middle
        if kind in _EQUAL:
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


def rule_finding(
    rule: Rule,
    parameters: Mapping[str, Tensor],
    kept: Collection[str] = (),
    spots: Spots | None = None,
) -> Finding:
    """How many tensors of a group follow its law; of the others the mistake that explains them.
    ``kept``: those that the model's own code brings to a law of its statistics at each pass.
    ``spots``: where weights of branches stand."""
    seen = []
    for target in rule.targets:
        weight = target.weight
        tensor = weight.part(parameters[weight.path])
        spot = (spots or {}).get((weight.path, weight.rows), Spot(None))
        seen.append(_Seen(target, tensor, _rms(tensor), spot))
    if broken := [s for s in seen if not math.isfinite(s.rms)]:
        path = broken[0].target.weight.path
        said = f"{len(broken)} of {len(seen)} {rule.group}: not finite ('{path}')"
        return Finding(rule.group, len(seen) - len(broken), len(seen), said)
    wrong = [s for s in seen if not s.follows(s.target.init)]
    sized = [s for s in seen if s.target.sized]
    wrong = _with_off_pools(wrong, seen)
    if not wrong and not _together(sized, [s.expected for s in sized]):
        wrong = sized  # each within its own error, and yet all of them off
    bent = [(s, why) for s in seen if s not in wrong and (why := s.shaped)]
    right = len(seen) - len(wrong) - len(bent)
    if wrong and all(s.kind in _EQUAL for s in seen):  # of another size by chance, or not
        wrong, bent = [s for s in seen if s in wrong or any(s is b for b, _ in bent)], []
    if bent and not wrong:
        first, why = bent[0]
        said = f"{len(bent)} of {len(seen)} {rule.group}: {why} ('{first.target.weight.path}')"
        return Finding(rule.group, right, len(seen), said, _ratio(seen))
    if not wrong:
        once = sum(
            s.target.raw != ""
            and ".parametrizations." not in s.target.weight.path
            and s.target.weight.path not in kept
            for s in seen
        )
        said = f"{rule.group}: {rule.told}"
        said += (
            f"; {once} of {len(seen)} at the start alone, no parametrisation keeps it"
            if once
            else ""
        )
        return Finding(rule.group, right, len(seen), said, _ratio(seen))
    head = f"{len(wrong)} of {len(seen)} {rule.group}: "
    one = wrong[0].target.weight
    behind = f", behind '{one.activation}'" if one.activation and wrong[0].follower else ""
    path = f" ('{one.path}'{behind})"
    if all(s.silences for s in wrong):
        said = f"{head}'{one.path}' is an embedding's table as well, where "
        said += "zeros leave the stream nothing to begin with; give the layer a weight of its own"
        return Finding(rule.group, right, len(seen), said)
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
        times = f"{ratio:.2g}" if abs(ratio - 1) > 0.1 else f"{ratio:.3g}"
        said = f"{head}std {_four(mean)}, expected {_four(wrong[0].expected)} ({times} times)"
    else:
        said = f"{head}std {_times(wrong)} times the expected one ({rule.told})"
    why = _mistake(wrong, seen) or _scaled(wrong)
    if why:
        said += f": {why}"
    return Finding(rule.group, right, len(seen), said + ("" if why and not right else path), ratio)


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


def _times(wrong: Sequence[_Seen]) -> str:
    """Measured over expected: one number, or where weights differ the least and the largest."""
    ratios = [s.rms / s.expected for s in wrong if s.expected > 0]
    if ratios and max(ratios) >= _APART * min(ratios):
        return f"{min(ratios):.3g} to {max(ratios):.3g}"
    return f"{_ratio(wrong):.3g}"


def _scaled(wrong: Sequence[_Seen]) -> str:
    """Words for weights that are orthogonal but for one number; ``""`` for others."""
    if not all(s.kind in _EQUAL and s.rms > 0 and not s.shaped for s in wrong):
        return ""
    return f"orthogonal, scaled by {_times(wrong)}"


def _share(wrong: Sequence[_Seen], seen: Sequence[_Seen]) -> bool:
    """Whether the weights that are wrong are most of a group, or all that stand in their place in
    every block, or in every branch of their kind."""
    if len(wrong) >= _MOST * len(seen):
        return True
    places, spots = {s.place for s in wrong}, {s.spot.place for s in wrong}
    listed = [s for s in seen if s.place in places]
    alike = [s for s in seen if s.spot.place in spots]
    inside = all(s.spot.branch is not None for s in wrong)
    return 1 < len(wrong) == len(listed) or (inside and 1 < len(wrong) == len(alike))


def _most(wrong: Sequence[_Seen], alike: Sequence[_Seen]) -> bool:
    return len(wrong) > 1 and len(wrong) >= _MOST * len(alike)


def _mistake(wrong: Sequence[_Seen], seen: Sequence[_Seen]) -> str:
    """The words of the mistake that makes every one of these tensors what it is; of several the
    one that comes closest, the first of equals, and a second that chance does not tell from it: one
    that comes as close but for two standard errors."""
    beside = [s for s in seen if s.target.beside]
    if len(beside) < len(seen) and all(s.target.beside for s in wrong) and _most(wrong, beside):
        why = _explained(beside, [s.target.beside for s in beside], whole=True)
        if why:
            return why
    return _explained(wrong, [s.target.mistakes for s in wrong], _share(wrong, seen))


def _explained(
    wrong: Sequence[_Seen], mistakes: Sequence[Sequence[tuple[str, str]]], whole: bool
) -> str:
    """Of the mistakes of each weight the one that explains all. ``whole``: whether one of the depth
    may."""
    tables = [{words: init for init, words in rows} for rows in mistakes]
    found: list[tuple[float, str]] = []
    told: set[tuple[str, ...]] = set()  # of two words for the same the first, which says more
    for words in tables[0] if tables else ():
        if not all(words in table for table in tables):
            continue
        inits = [table[words] for table in tables]
        if tuple(inits) in told:
            continue
        told.add(tuple(inits))
        if not whole and any(s.deep(init) for s, init in zip(wrong, inits, strict=True)):
            continue
        expected = [s.of(init) for s, init in zip(wrong, inits, strict=True)]
        each = all(s.explained(init) for s, init in zip(wrong, inits, strict=True))
        if each and _together(wrong, expected):
            found.append((round(abs(math.log(_pooled(wrong, expected)[0])), 9), words))
    found.sort(key=lambda row: row[0])
    chance = 2 / math.sqrt(2 * max(sum(s.tensor.numel() for s in wrong), 1))
    close = [words for off, words in found if off <= found[0][0] + chance]
    return ", or ".join(close[:2])


def _with_off_pools(wrong: Sequence[_Seen], seen: Sequence[_Seen]) -> list[_Seen]:
    """With those that are each within their own error, and together with the others in their place
    of all blocks, or in all branches of their kind, are not."""
    off = {id(s) for s in wrong}
    for level in (0, 1):
        pools: dict[Any, list[_Seen]] = {}
        for s in seen:
            if s.target.sized and s.spot.branch is not None and id(s) not in off:
                pools.setdefault(s.spot.branch if level else s.spot.place, []).append(s)
        for pool in pools.values():
            if len(pool) > 1 and not _together(pool, [s.expected for s in pool], errors=4):
                off |= {id(s) for s in pool}
    return [s for s in seen if id(s) in off]


def _together(seen: Sequence[_Seen], expected: Sequence[float], errors: float = 5) -> bool:
    """Whether the weights, as one sample of all their numbers, are of the size expected."""
    ratio, numbers = _pooled(seen, expected)
    return not numbers or _near(ratio, 1.0, numbers, errors)


def _pooled(seen: Sequence[_Seen], expected: Sequence[float]) -> tuple[float, int]:
    """Root mean square of all numbers over what is expected of them, where that is not zero, and
    how many they are; 1 of none. A weight that several blocks share counts once."""
    distinct = {
        (s.target.weight.path, s.target.weight.rows): (s, e)
        for s, e in zip(seen, expected, strict=True)
    }
    known = [(s, e) for s, e in distinct.values() if e > 0]
    numbers = sum(s.tensor.numel() for s, _ in known)
    if not numbers:
        return 1.0, 0
    mean = math.fsum(s.tensor.numel() * (s.rms / e) ** 2 for s, e in known) / numbers
    return math.sqrt(mean), numbers
