"""One block seen factor by factor: its tree with everything erased but the factors that are asked
for, and the words for each factor.

What is left when all are erased, the form, is the same for a block and for one in which an
activation was exchanged, a norm moved or taken away, a branch scaled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from depthgauge.equation.functions import NORMS, ONE
from depthgauge.equation.nodes import (
    Activation,
    Block,
    Dropout,
    LearnedGain,
    LearnedScalar,
    Node,
    Norm,
    Scalar,
    State,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.scalars import evaluate
from depthgauge.equation.text import to_text
from depthgauge.equation.written import with_scalars, without_inits, written_out
from depthgauge.errors import EquationError, NetworkError
from depthgauge.network.layers import named
from depthgauge.recipes.reshape import Multipliers, multipliers, reshaped
from depthgauge.recipes.rules import Form

__all__ = ["NONE", "Tree"]

NONE: Final = "none"
#: Where the sums of a block cannot be taken apart, its coefficients are part of its form.
_IN_FORM: Final = "part of the form"
_RMS: Final = tuple(NORMS["rmsnorm"].items())
_UNSCALED: Final = Form(skip="1", factor="1", learned="", carried="")


@dataclass(frozen=True, eq=False)
class Tree:
    """A block equation, read for what can be changed in it without changing its form."""

    equation: Block

    @cached_property
    def block(self) -> Block:
        """Layers by their names, scalars as numbers, initialisers left out."""
        out = rewrite(without_inits(with_scalars(named(self.equation))), _nameless)
        assert isinstance(out, Block)
        return out

    @property
    def sums(self) -> tuple[Multipliers, ...] | None:
        """The coefficients of each residual branch, or None where they cannot be read."""
        return self._apart[0]

    def values(self, *kept: str) -> tuple[Value, ...]:
        """What is assigned to the state, with those of ``activation``, ``gate`` (activations, all
        of one kind), ``norm``, ``place`` (norms, all of one kind) and ``scale`` that are kept."""

        def rule(node: Node) -> Node:
            if isinstance(node, Activation) and node.kind == "identity":
                return node.value
            if isinstance(node, Activation) and "activation" not in kept:
                return Activation("relu", node.value) if "gate" in kept else node.value
            if isinstance(node, Norm) and "norm" not in kept:
                return Norm("rmsnorm", node.value, _RMS) if "place" in kept else node.value
            return node

        out = []
        for value in written_out(self.block if "scale" in kept else self._apart[1]):
            changed = rewrite(value, rule)
            assert isinstance(changed, Value)
            out.append(changed)
        return tuple(out)

    def text(self, *kept: str) -> str:
        """The same as text, its states all called h."""
        values = (to_text(value) for value in self.values(*kept))
        return "; ".join(re.sub(r"\bh\.[0-9]+", "h", f"h = {value}") for value in values)

    def differs(self, other: Tree, *kept: str) -> bool:
        scale = () if self.sums is not None and other.sums is not None else ("scale",)
        return self.values(*kept, *scale) != other.values(*kept, *scale)

    @cached_property
    def activation(self) -> str:
        """The activations in their order in the text."""
        found = [node for node in walk(self.block) if isinstance(node, Activation)]
        return ", ".join(_word(node) for node in found if node.kind != "identity") or NONE

    @cached_property
    def norm(self) -> str:
        """The kinds of norms, each once."""
        found = {_word(node) for node in walk(self.block) if isinstance(node, Norm)}
        return ", ".join(sorted(found)) or NONE

    @cached_property
    def scale(self) -> str:
        """What stands in front of the branches, once where it is the same for all."""
        if self.sums is None:
            return _IN_FORM
        texts = [_multiplier(each) for each in self.sums]
        return ", ".join(texts[:1] if len(set(texts)) == 1 else texts) or NONE

    def rescaled(self, other: Tree, scopes: Iterable[Mapping[str, float]]) -> bool:
        """Whether both have coefficients, and they are not the same numbers in each scope: two
        spellings of one number are no difference."""
        if self.scale == other.scale or {NONE, _IN_FORM} & {self.scale, other.scale}:
            return False
        assert self.sums is not None
        assert other.sums is not None
        if len(self.sums) != len(other.sums):
            return True
        scopes = list(scopes)
        return any(not _same(x, y, scopes) for x, y in zip(self.sums, other.sums, strict=True))

    @cached_property
    def _apart(self) -> tuple[tuple[Multipliers, ...] | None, Block]:
        """The coefficients and the block without them, or None and the block as it is."""
        try:
            found = multipliers(self.block)
            return found, reshaped(self.block, [_UNSCALED] * len(found))
        except NetworkError:
            return None, self.block


def _nameless(node: Node) -> Node:
    """Without a name that only a reader gives."""
    nameless = Norm | LearnedScalar | LearnedGain | Dropout
    return replace(node, name="") if isinstance(node, nameless) else node


def _word(node: Activation | Norm) -> str:
    """``gelu`` or ``leaky_relu(slope=0.2)``: the kind and the options that are not its defaults."""
    text = to_text(replace(node, value=State()))
    return text.replace("(h)", "", 1).replace("(h, ", "(", 1)


def _multiplier(found: Multipliers) -> str:
    """``1/sqrt(L)``, ``scalar(0)``, ``0.5, skip 0.5``."""
    text = _product(found.factor, found.learned)
    skips = [_product(factor, learned) for factor, learned in found.skips]
    return text if set(skips) == {"1"} else f"{text}, skip {' and '.join(skips)}"


def _product(factor: Scalar, learned: Iterable[Value]) -> str:
    parts = [to_text(value) for value in learned]
    if factor != ONE or not parts:
        parts.insert(0, to_text(factor))
    return " * ".join(parts)


def _same(a: Multipliers, b: Multipliers, scopes: Iterable[Mapping[str, float]]) -> bool:
    ours = ((a.factor, a.learned), *a.skips)
    theirs = ((b.factor, b.learned), *b.skips)
    if [learned for _, learned in ours] != [learned for _, learned in theirs]:
        return False
    pairs = list(zip(ours, theirs, strict=True))
    return all(_equal(x, y, scope) for scope in scopes for (x, _), (y, _) in pairs)


def _equal(a: Scalar, b: Scalar, scope: Mapping[str, float]) -> bool:
    try:
        x, y = evaluate(a, scope), evaluate(b, scope)
    except EquationError:
        return a == b
    return abs(x - y) <= 1e-12 * max(abs(x), abs(y))
