"""The causal factors of a network that an equation describes, and which of them two networks differ
in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

from depthgauge.equation.text import to_text
from depthgauge.errors import SpecificationError
from depthgauge.network.spec import Network
from depthgauge.study.trees import NONE, Tree

__all__ = ["FACTORS", "Difference", "Factors", "differences", "seeds_text"]

#: In the order in which they are told.
FACTORS: Final = (
    "activation", "norm", "placement", "scale", "form", "init", "precision", "depth", "width",
    "batch", "tokens", "size", "draws", "seed",
)  # fmt: skip
_SHAPES: Final = ("tokens", "size")


@dataclass(frozen=True)
class Difference:
    """One factor, and its canonical text before and after."""

    factor: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.factor}: {self.before} -> {self.after}"

    def to_dict(self) -> dict[str, str]:
        return {"factor": self.factor, "before": self.before, "after": self.after}


class Compared(Protocol):
    """A case of one kind, which can be held against another of its kind."""

    @property
    def name(self) -> str: ...

    def against(self, other: Any) -> list[Difference]: ...


def differences(a: Compared, b: Compared) -> list[Difference]:
    """Every factor in which two cases differ, before and after.

    Raises SpecificationError for cases of two kinds, which share no factors.
    """
    if type(a) is not type(b):
        raise SpecificationError(
            f"'{a.name}' and '{b.name}' are cases of two kinds, an equation and Python code, which "
            f"have no factor in common"
        )
    return a.against(b)


@dataclass(frozen=True, eq=False)
class Factors:
    """What a network's equation, sizes, precision, data and seeds say, factor by factor."""

    network: Network
    batch: Any
    precision: str
    seeds: tuple[int, ...]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Every factor's canonical text, in the order of ``FACTORS``."""
        network, shape = self.network, self.network.state_shape
        found = {
            "activation": self._tree.activation,
            "norm": self._tree.norm,
            "placement": network.count.placement,
            "scale": self._tree.scale,
            "form": self._tree.text(),
            "init": _inits(self._chosen),
            "precision": self.precision,
            "depth": str(network.depth),
            "width": str(network.width),
            "batch": _batch(self.batch),
            "tokens": str(shape[0]) if network.layout == "tokens" else NONE,
            "size": str(shape[-1]) if network.layout == "images" else NONE,
            "draws": network.draws,
            "seed": seeds_text(self.seeds),
        }
        assert tuple(found) == FACTORS
        return found

    def differences(self, other: Factors) -> list[Difference]:
        """Every factor that ``other`` has another value of, in the order of ``FACTORS``.

        A norm that is taken away or put in is a difference of the norm alone, not also of its
        placement; an initialiser counts where both have the layer; two spellings of one number are
        the same number.
        """
        found = self._in_tree(other)
        if (init := self._init(other)) is not None:
            found["init"] = init
        for name in FACTORS[FACTORS.index("precision") :]:
            before, after = self.texts[name], other.texts[name]
            # A shape that one of them does not have follows from its form.
            if before != after and not (name in _SHAPES and NONE in (before, after)):
                found[name] = before, after
        return [Difference(name, *found[name]) for name in FACTORS if name in found]

    def _in_tree(self, other: Factors) -> dict[str, tuple[str, str]]:
        """Texts before and after of what the two trees differ in. Of two forms only the words can
        be compared, of one form every place."""
        a, b, ours, theirs = self._tree, other._tree, self.texts, other.texts
        found = set()
        if a.differs(b):
            found = {n for n in ("activation", "norm", "placement") if ours[n] != theirs[n]}
            found.add("form")
        else:
            gates = a.differs(b, "gate")
            # On the other side of an activation, a norm has moved in no tree without activations.
            if a.differs(b, "place") or (not gates and a.differs(b, "gate", "place")):
                found.add("placement")
            if a.differs(b, "activation"):
                found.add("activation")
            if a.norm != b.norm or ("placement" not in found and a.differs(b, "norm")):
                found.add("norm")
            if not found and a.differs(b, "activation", "norm"):
                found.add("form")
        if NONE in (a.norm, b.norm):
            found.discard("placement")
        scope, depth = self.network.scope, self.network.depth
        if a.rescaled(b, [{**scope, "l": float(l)} for l in (1, depth)]):
            found.add("scale")
        out = {}
        for name in found:
            out[name] = ours[name], theirs[name]
            if ours[name] == theirs[name]:  # the same words in other places
                out[name] = a.text("activation", "norm"), b.text("activation", "norm")
        return out

    def _init(self, other: Factors) -> tuple[str, str] | None:
        """The initialisers of layers that both networks have, where they differ; a layer that one
        of them lacks is a difference of the form."""
        layers = set(self._chosen) & set(other._chosen)
        names = dict.fromkeys([*self._chosen, *other._chosen])
        both = [n for n in names if n in layers or n.removesuffix(".bias") in layers]
        before, after = ({n: f._chosen.get(n, "zeros") for n in both} for f in (self, other))
        return None if before == after else (_inits(before), _inits(after))

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.network.block)

    @cached_property
    def _chosen(self) -> dict[str, str]:
        return {name: to_text(init) for name, init in self.network.chosen.items()}


def seeds_text(seeds: Iterable[int]) -> str:
    """``0..2`` for neighbours in order, else ``0, 3, 5``."""
    found = list(seeds)
    if len(found) > 1 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}..{found[-1]}"
    return ", ".join(map(str, found))


def _inits(texts: Mapping[str, str]) -> str:
    """``he`` where all are alike, else ``W1: he, W2: lecun``."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}: {text}" for name, text in texts.items()) or NONE


def _batch(batch: Any) -> str:
    if isinstance(batch, int):
        return str(batch)
    return f"given, {' x '.join(map(str, batch.shape))}"
