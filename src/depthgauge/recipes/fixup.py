"""Fixup (Zhang, Dauphin and Ma, arXiv 1901.09321): residual networks without norms.

    scale = L^(-1/(2m - 2))

of every inner weight of a branch of m weight layers, on top of its standard initialisation; the
last weight of each branch and the classifier zero; a learned number (at 0) added in front of each
layer and activation of a branch, one multiplier (at 1) at its end. L: residual branches of the
whole network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.network.init import rms_of
from depthgauge.recipes.branches import reached, refuse_plain
from depthgauge.recipes.given import whole
from depthgauge.recipes.layers import TORCH
from depthgauge.recipes.rules import (
    Count,
    Form,
    Group,
    Plan,
    Recipe,
    Rule,
    Target,
    init_of,
    scope_of,
)
from depthgauge.trace.counted import Layout, Residual, Weight
from depthgauge.trace.graph import LISTED

__all__ = ["FIXUP", "fixup_scale"]

_NEVER: Final = "the depth scale was never applied"
#: What weights are drawn by where no recipe is.
_USUAL: Final = {"lecun": "LeCun's", "torch": "PyTorch's default", "xavier": "Xavier's"}


def fixup_scale(branches: int, layers: int) -> float:
    """``L^(-1/(2m - 2))``, of each inner weight of a branch of ``m = layers`` in series.

    Raises NetworkError for one layer, which has no inner weight, and for what is no whole number.
    """
    _refuse(whole("m", layers))
    return float(whole("L", branches) ** (-1 / (2 * layers - 2)))


def _refuse(layers: int) -> None:
    if layers < 2:
        raise NetworkError(
            f"Fixup scales the inner weights of a branch by L^(-1/(2m - 2)), and a branch of "
            f"m = {layers} weight layers has none; only its zero last layer applies"
        )


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "Fixup")
    for branch in layout.branches:
        _refuse(branch.m)
    attends = any(branch.attends for branch in layout.branches)
    last = [w for branch in layout.branches for w in branch.weights if w.last]
    laws = ", ".join(f"{fixup_scale(layout.L, m):.4f} for m = {m}" for m in layout.m)
    base = "Xavier" if attends else "He (fan out)"
    scope, biases = scope_of(layout), layout.biases_of(layout.heads)
    shortcuts, vectors = _shortcuts(layout), _vectors(layout)
    rules = (
        Rule(
            "inner weights of branches",
            f"{base} times L^(-1/(2m-2)), L = {layout.L}: {laws}",
            tuple(_inner(layout, attends)),
        ),
        Rule("last weights of branches", "zero", tuple(Target(w, "zeros", scope) for w in last)),
        Rule(
            "weights of shortcuts",
            f"{base}, with no factor of the depth",
            tuple(_shortcut(weight, layout, branch, attends) for weight, branch in shortcuts),
        ),
        Rule(
            "vector biases of branches",
            "zero, as Fixup has none",
            tuple(Target(b, "zeros", scope) for b in vectors),
        ),
        Rule("weights of the head", "zero", tuple(Target(w, "zeros", scope) for w in layout.heads)),
        Rule("biases of the head", "zero", tuple(Target(b, "zeros", scope) for b in biases)),
        Rule("scalar biases", "zero", _numbers(layout, "sum", "zeros")),
        Rule("scalar multipliers", "one", _numbers(layout, "product", "constant(1)")),
    )
    form = Form(
        skip="1",
        factor="1",
        norms={},
        shifts=True,
        mistakes=(
            ("1/sqrt(2)", "1/sqrt(2)", "the sum is scaled too"),
            ("1/sqrt(2)", "1", "the shortcut is scaled, which keeps what it has"),
            ("1", "1/sqrt(L)", "the branch over sqrt(L) as well: the depth is counted twice"),
        ),
    )
    return Plan(
        rules,
        tuple(form for _ in layout.branches),
        (Count("norms", len(layout.norms), 0, "Fixup takes their place"),),
        silent=True,
        wakes=_wakes(layout),
        groups=(Group("scalars", layout.scalars, 0.1),),
        ends=True,
    )


def _shortcuts(layout: Layout) -> list[tuple[Weight, Residual]]:
    """The weights of skips that no branch holds as well, each with the branch beside it."""
    inside = {w.path for branch in layout.branches for w in branch.weights}
    rows = {w: b for b in layout.branches for w in b.across if w.fan_in and w.path not in inside}
    return list(rows.items())


def _shortcut(weight: Weight, layout: Layout, branch: Residual, attends: bool) -> Target:
    mistakes = [
        (
            _drawn(weight, _scale("L", branch.m), attends),
            "the shortcut is scaled as the inner weights of its branch are",
        ),
        TORCH,
    ]
    if not attends:
        mistakes.append(("he", "He of the fan in, where Fixup takes the fan out"))
    return Target(weight, _drawn(weight, "1", attends), scope_of(layout, branch), tuple(mistakes))


def _vectors(layout: Layout) -> list[Weight]:
    """The biases of the layers in branches and beside them that are no scalars of Fixup."""
    weights = [w for branch in layout.branches for w in (*branch.weights, *branch.across)]
    return [b for b in layout.biases_of(weights) if b.path not in layout.scalars]


def _numbers(layout: Layout, kind: str, init: str) -> tuple[Target, ...]:
    """The learned numbers of branches that are added (``"sum"``) or multiply (``"product"``)."""
    paths = dict.fromkeys(p for b in layout.branches for p, by in b.numbers if by == kind)
    return tuple(Target(Weight(p, (1,), 0, 0, False, False), init, {}) for p in paths)


def _scale(branches: str, m: int) -> str:
    return f"{branches}**(-1/{2 * m - 2})"


def _drawn(weight: Weight, scale: str, attends: bool) -> str:
    """The standard initialisation times ``scale``: Xavier of the matrix as it is stacked."""
    if not attends:
        return f'he(mode="fan_out", gain=sqrt(2)*{scale})'
    if weight.stacked == weight.fan_out:
        return f"xavier(gain={scale})"
    return f"normal(std=sqrt(2/{weight.fan_in + weight.stacked})*{scale})"


def _inner(layout: Layout, attends: bool) -> list[Target]:
    """The inner weights of all branches, each with what else it is met as."""
    L, layers = layout.L, sum(b.m for b in layout.branches)
    stages = [n for n in _stages(layout) if n < L]
    rows = [(w, b) for b in layout.branches for w in b.weights if not w.last and w.fan_in]
    plain = _plain([(w, b.m) for w, b in rows], stages, attends)
    found = []
    for weight, branch in rows:
        m = branch.m
        counted = dict.fromkeys((*stages, *(n for n in range(2, L) if n not in plain.counts)))
        others = {
            **{_scale(str(n), m): f"L = {n}: counted in a part of the network" for n in counted},
            **{
                _scale(str(n), m): f"L = {n}: the branches of '{name}' alone"
                for name, n in layout.streams.items()
                if n < L
            },
            _scale(str(layers), m): f"L counts the {layers} layers, not the {L} branches",
            f"L**(1/{2 * m - 2})": "the exponent has the wrong sign",
        }
        shortcut = (_scale("L", m + 1), f"m = {m + 1}: the shortcut was counted")
        mistakes = [(_drawn(weight, "1", attends), _NEVER)]
        mistakes += [(_drawn(weight, s, attends), words) for s, words in others.items()]
        mistakes[1 + len(stages) : 1 + len(stages)] = plain.mistakes
        beside: tuple[tuple[str, str], ...] = ()
        if not attends:
            counts_it = (_drawn(weight, shortcut[0], attends), shortcut[1])
            mistakes.append(counts_it)
            beside = (counts_it,) if branch.projected else ()
            words = "He of the fan in, where Fixup takes the fan out"
            mistakes.append((f"he(gain=sqrt(2)*{_scale('L', m)})", words))
        init, scope = _drawn(weight, _scale("L", m), attends), scope_of(layout, branch)
        found.append(Target(weight, init, scope, tuple(mistakes), beside=beside))
    return found


def _stages(layout: Layout) -> tuple[int, ...]:
    """How many branches the parts of the network have: its streams, the stages of one width, and
    the lists that hold its blocks."""
    streams = Counter(b.stream for b in layout.branches)
    widths = Counter((b.stream, b.width) for b in layout.branches)
    lists = Counter(
        (b.stream, b.path[: number.start()])
        for b in layout.branches
        for number in LISTED.finditer(b.path)
    )
    sizes = (*streams.values(), *widths.values(), *lists.values())
    return tuple(sorted({n for n in sizes if n > 1}))


@dataclass(frozen=True)
class _Plain:
    """Initialisations that know of no depth, and the numbers n whose L = n is of the same size."""

    mistakes: tuple[tuple[str, str], ...]
    counts: tuple[int, ...]


def _plain(weights: Sequence[tuple[Weight, int]], stages: Sequence[int], attends: bool) -> _Plain:
    """LeCun's weights under ReLU are He's over sqrt(2), which L = 2 would make of two layers, and
    PyTorch's are He's over sqrt(6): no count, unless a part of the network has so many branches."""
    kinds: dict[tuple[float, ...], list[str]] = {}
    for init in _USUAL:
        kinds.setdefault(tuple(_ratio(w, init, attends) for w, _ in weights), []).append(init)
    kinds.pop(tuple(1.0 for _ in weights), None)  # what Fixup begins with
    mistakes, counts = [], []
    for sizes, inits in kinds.items():
        words = f"{' or '.join(_USUAL[init] for init in inits)}: {_NEVER}"
        mistakes.append((inits[0], words))
        same = {round(r ** (2 - 2 * m), 6) for r, (_, m) in zip(sizes, weights, strict=True)}
        counts += [int(n) for n in same if len(same) == 1 and n == int(n) and n not in stages]
    return _Plain(tuple(mistakes), tuple(counts))


def _ratio(weight: Weight, init: str, attends: bool) -> float:
    asked = rms_of(init_of(_drawn(weight, "1", attends)), weight.group, {})
    return round(rms_of(init_of(init), weight.group, {}) / asked, 9)


def _wakes(layout: Layout) -> dict[str, int]:
    """A zero layer passes no gradient on: first the head moves, then last layers, then the rest.
    A stream that the model returns beside its head takes a gradient at once."""
    returned = {end.stream for end in layout.ends if end.returned}
    found = {w.path: 0 for w in layout.heads}
    for branch in reached(layout):
        late = 1 if layout.heads and branch.stream not in returned else 0
        found |= {w.path: late + (0 if w.last else 1) for w in branch.weights}
    return found


FIXUP = Recipe(
    "fixup",
    "Fixup initialisation",
    "residual branches of two weight layers or more; no norm",
    (
        "inner weights of a branch of m layers: standard initialisation times L^(-1/(2m-2))",
        "last weight of each branch and the classifier: zero",
        "a scalar bias (0) before each layer and activation of a branch and at its end, a "
        "multiplier (1) at its end",
        "weights of shortcuts: standard initialisation, with no factor of the depth",
        "no vector biases in branches: those that layers have begin at zero",
        "standard initialisation: He of the fan out; in a Transformer Xavier of the stacked matrix",
        "scalars learn at a tenth of the rate",
    ),
    (
        "L counts residual branches of the whole network, not layers and not those of a stage",
        "m does not count the shortcut; attention has m = 4, and so may have what is none, as "
        "squeeze and excitation behind two layers",
        "m = 1 has no inner weight: the rule says nothing but the zero",
        "an encoder's and a decoder's branches are counted together, 30 in a 6 + 6 Transformer, "
        "for cross-attention too",
        "the stem and the skip keep what they have",
        "the first scalar bias belongs to the branch: an identity skip takes x without it",
        "no norm is left, not even a final one",
        "a filter for 'bias' in names puts the classifier's bias among the slow scalars as well",
        "zero gradients inside branches at the first two steps are the design, no disease",
    ),
    "Zhang, Dauphin and Ma, arXiv 1901.09321",
    _plan,
)
