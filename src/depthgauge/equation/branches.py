"""What counting finds: residual branches and merges of one block, and words for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from depthgauge.equation.nodes import LearnedGain, LearnedScalar, Norm

NORM_AT = ("in", "inner", "out", "stream")
#: Skip kinds of a weight-free path, each hiding the ones before it.
PATH_KINDS = ("identity", "scaled", "per-channel", "normed", "mixed")
COEFFICIENTS = PATH_KINDS[:3]
_WORDS = {"in": "pre", "inner": "inner", "out": "out", "stream": "post"}
_PHRASES = {
    "none": "no norm",
    "pre": "pre-norm",
    "post": "post-norm",
    "out": "norm on the branch output",
    "inner": "norm inside the branch",
    "mixed": "mixed norm placement",
}


@dataclass(frozen=True, slots=True)
class Branch:
    """``m`` weight layers in series on the value path (in a sum or product, the longest).

    ``factor``: the fixed number that it is multiplied by, after a norm on the stream if there is
    one (NaN where no number says it); ``learned``: the scalars and gains that it is multiplied by;
    ``norms``: its norms, each with its place; ``hidden``: the name of the operation that it ends
    with, where the language cannot say that one; ``inlet``: the fixed number that what enters its
    first weight layers is multiplied by, behind a norm if there is one (NaN where not one is).
    """

    m: int
    norm_at: tuple[str, ...]  # subset of NORM_AT, in its order
    inner: int  # residual merges nested inside
    factor: float = field(default=1.0, compare=False)
    learned: tuple[LearnedScalar | LearnedGain, ...] = field(default=(), compare=False)
    norms: tuple[tuple[str, Norm], ...] = field(default=(), compare=False)
    hidden: str = field(default="", compare=False)
    inlet: float = field(default=1.0, compare=False)

    @property
    def placement(self) -> str:
        return placement_of(self.norm_at)


@dataclass(frozen=True, slots=True)
class Merge:
    """Branches added in one place; ``skip`` is identity, scaled, per-channel, normed, mixed,
    gated or projected, ``factor`` the fixed number in it (NaN where no number says it),
    ``learned`` the scalars and gains that it is multiplied by."""

    branches: tuple[Branch, ...]
    skip: str
    factor: float = field(default=1.0, compare=False)
    learned: tuple[LearnedScalar | LearnedGain, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Count:
    """What one block holds: residual merges, and ``plain`` layers (m of each) outside of them."""

    merges: tuple[Merge, ...]
    plain: tuple[int, ...]
    plain_norm_at: tuple[str, ...] = ()  # where the plain layers have norms, together

    @property
    def branches(self) -> int:
        return len(self._branches)

    @property
    def inner(self) -> int:
        return sum(branch.inner for branch in self._branches)

    @property
    def projected(self) -> int:
        return sum(merge.skip == "projected" for merge in self.merges)

    @property
    def parallel(self) -> int:
        return sum(len(merge.branches) > 1 for merge in self.merges)

    @property
    def has_skip(self) -> bool:
        return bool(self.merges)

    @property
    def m(self) -> tuple[int, ...]:
        """Weight layers in series per branch, in order; without a merge, per plain layer."""
        return tuple(branch.m for branch in self._branches) if self.merges else self.plain

    @property
    def norm_at(self) -> tuple[str, ...]:
        if not self.merges:
            return self.plain_norm_at
        return ordered(flag for branch in self._branches for flag in branch.norm_at)

    @property
    def skip(self) -> str:
        return common((merge.skip for merge in self.merges), default="none")

    @property
    def placement(self) -> str:
        words = (branch.placement for branch in self._branches)
        return common(words, default=placement_of(self.plain_norm_at))

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<Count: {self.describe()}>"

    def describe(self) -> str:
        """``1 residual branch, m = 2, pre-norm, identity skip``."""
        plain = _many(sum(self.plain), "weight layer")
        if not self.merges:
            return f"no residual branch, {plain}"
        lengths = self.m[:1] if len(set(self.m)) == 1 else self.m
        parts = [
            _many(self.branches, "residual branch", "residual branches"),
            "m = " + ", ".join(map(str, lengths)),
            _PHRASES.get(self.placement, f"{self.placement} norm"),
            f"{self.skip} skip" if self.skip != "mixed" else "mixed skips",
        ]
        if self.parallel:
            several = len(self.merges) > 1
            parts[0] += f" in {len(self.merges)} merges" if several else " in parallel"
        if self.inner:
            parts.append(_many(self.inner, "inner merge"))
        if self.plain:
            parts.append(f"{plain} outside the branches")
        return ", ".join(parts)

    @property
    def _branches(self) -> tuple[Branch, ...]:
        return tuple(branch for merge in self.merges for branch in merge.branches)


def ordered(flags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(flags), key=NORM_AT.index))


def placement_of(norm_at: tuple[str, ...]) -> str:
    if norm_at == ("in", "out"):
        return "sandwich"
    return "+".join(_WORDS[flag] for flag in norm_at) or "none"


def worst(*kinds: str) -> str:
    return max(kinds, key=PATH_KINDS.index)


def common(words: Iterable[str], default: str = "none") -> str:
    """The one word that all share, ``"mixed"``, or ``default`` when there is none."""
    found = set(words)
    return found.pop() if len(found) == 1 else "mixed" if found else default


def _many(number: int, one: str, several: str = "") -> str:
    plural = several or f"{one}s"
    return f"{number or 'no'} {one if number == 1 else plural}"
