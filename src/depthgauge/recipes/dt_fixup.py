"""DT-Fixup (Xu et al., "Optimizing Deeper Transformers on Small Datasets", arXiv 2012.15355).

    Xavier of every matrix, then, without any norm,
    values, values of relations, outputs, feed-forward weights times (N (4 mu^2 + 2 mu + 2))^(-1/2)

N counts the new layers on top of a pre-trained encoder, mu is the largest norm of a row that enters
them over the data. What is pre-trained learns at 0.008 times the rate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from torch import nn

from depthgauge.errors import NetworkError, expect
from depthgauge.recipes.given import number
from depthgauge.recipes.rules import Form, Group, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.t_fixup import ENCODER
from depthgauge.trace.counted import Layout, Residual, Weight
from depthgauge.trace.layout import rows_of

__all__ = ["DT_FIXUP", "SCALE", "dt_fixup"]

#: The factor on Xavier's standard deviation.
SCALE: Final = "({N}*(4*{mu}**2+2*{mu}+2))**-0.5"
#: Of the rate of the new layers.
_RATE: Final = 0.008
_UNKNOWN: Final = (
    "its scale follows from the largest norm of the rows that enter the new layers, which only "
    "data show; give it, dt_fixup(mu=...), or apply the recipe to a module"
)


def dt_fixup(mu: float | None = None, pretrained: str = "") -> Recipe:
    """DT-Fixup for rows of norm ``mu`` at most; measured on the batch where it is not given.

    ``pretrained``: the path of the module that is pre-trained, which is left as it is and whose
    layers do not count; all layers are new without one. Raises NetworkError for a norm that is not
    above 0.
    """
    expect("pretrained", pretrained, str, "the path of a module")
    mu = None if mu is None else number("mu", mu)

    def plan(layout: Layout) -> Plan:
        if mu is None:
            raise NetworkError(f"DT-Fixup cannot be held against a network alone: {_UNKNOWN}")
        return _plan(layout, mu, pretrained)

    def fitted(model: nn.Module, batch: Any, found: Layout) -> Recipe:
        first = found.branches.index(_new(found, pretrained)[0])
        largest = rows_of(model, batch)[first]
        if not 0 < largest < math.inf:
            raise NetworkError(
                f"the largest norm of a row in front of '{found.branches[first].path}' is "
                f"{largest:g}; give it as dt_fixup(mu=...)"
            )
        return replace(dt_fixup(largest, pretrained), judgement=_JUDGEMENT)

    return Recipe(
        "dt-fixup",
        "DT-Fixup",
        "one stack of new Transformer layers, over a pre-trained encoder; a batch of data; no norm",
        (
            "the new layers have no norm, nor one behind them, no warm-up; their matrices Xavier",
            "values, values of relations, outputs and feed-forward weights times "
            "(N (4 mu^2 + 2 mu + 2))^(-1/2), mu the largest norm of a row that enters them",
            "what is pre-trained keeps its weights and norms and learns at 0.008 times the rate",
        ),
        (
            "N counts layers, not branches, and of the new ones alone",
            "mu is the norm of a token's vector, not its root mean square, and the largest over "
            "the data, not a mean",
            "queries, keys and the keys of relations keep Xavier's size",
            "another batch has another largest norm: an audit wants the data it was made with",
        ),
        "Xu et al., arXiv 2012.15355; BorealisAI/DT-Fixup",
        plan,
        tier=3,
        judgement=_JUDGEMENT,
        unwritten=_UNKNOWN if mu is None else "",
        fitted=fitted if mu is None else None,
    )


_JUDGEMENT: Final = (
    "the factor of the authors' code, for attention with relations, also where there are none; mu "
    "over the batch that is given, where they go through all of their data; Xavier normal"
)


def _new(layout: Layout, pretrained: str) -> tuple[Residual, ...]:
    """The branches of the new layers. Raises NetworkError where they are no stack of layers."""
    under = f"{pretrained}."
    found = tuple(b for b in layout.branches if not pretrained or not b.path.startswith(under))
    if pretrained and len(found) == len(layout.branches):
        raise NetworkError(
            f"no residual branch was found under '{pretrained}'; give the path of the pre-trained "
            f"module, or none where every layer is new"
        )
    attending = sum(branch.attends for branch in found)
    streams = {branch.stream for branch in found}
    if not attending or len(streams) > 1 or len(found) != 2 * attending:
        raise NetworkError(
            f"{len(found)} new branches in {len(streams)} streams were found, {attending} of which "
            f"attend, and DT-Fixup is for one stack whose layers have one branch with attention "
            f"and one without; give such a stack, and the path of what is pre-trained beside it"
        )
    return found


def _plan(layout: Layout, mu: float, pretrained: str) -> Plan:
    new = _new(layout, pretrained)
    layers = "(L/2)" if len(new) == layout.L else str(len(new) // 2)
    width = new[-1].width
    scale = SCALE.format(N=layers, mu=f"{mu:.7g}")
    mistakes = _mistakes(layers, mu, width)
    scaled: list[Target] = []
    plain: list[Target] = []
    for branch in new:
        scope = scope_of(layout, branch)
        for weight in branch.weights:
            if weight.role in ("query", "key"):
                words = "scaled, where queries and keys are not"
                plain.append(Target(weight, "xavier", scope, ((f"xavier(gain={scale})", words),)))
            elif weight.fan_in:
                scaled.append(Target(weight, f"xavier(gain={scale})", scope, mistakes))
    every = (*layout.outside, *(w for branch in new for w in branch.weights))
    tables = [w for w in every if w.path in layout.averaged and _owned(w, pretrained)]
    related = tuple(Target(w, f"xavier(gain={scale})", scope_of(layout), mistakes) for w in tables)
    kept = tuple(p for p in layout.parameters if pretrained and p.startswith(f"{pretrained}."))
    groups = (Group("pre-trained parameters", kept, _RATE),) if kept else ()
    law = f"Xavier times {scale}"
    return Plan(
        (
            Rule("values, outputs and feed-forward weights", law, tuple(scaled)),
            Rule("queries and keys", "Xavier", tuple(plain)),
            Rule("values of relations", law, related),
        ),
        tuple(
            Form(skip="1", factor="1", norms={}) if branch in new else Form()
            for branch in layout.branches
        ),
        groups=groups,
        final="none",
        inside=True,
    )


def _owned(weight: Weight, pretrained: str) -> bool:
    return not pretrained or not weight.path.startswith(f"{pretrained}.")


def _mistakes(layers: str, mu: float, width: int) -> tuple[tuple[str, str], ...]:
    def by(words: str, number: str = layers, norm: float = mu) -> tuple[str, str]:
        return f"xavier(gain={SCALE.format(N=number, mu=f'{norm:.7g}')})", words

    rows = [
        ("xavier", "the scale was never applied"),
        by("branches were counted, not layers", f"(2*{layers})"),
        by("the root mean square of a row in place of its norm", norm=mu / math.sqrt(width)),
        by("mu = 1: the norm was never measured", norm=1.0),
        (f"xavier(gain={ENCODER.format(N=layers)})", "T-Fixup's scale, which no data enter"),
    ]
    if layers != "(L/2)":
        rows.insert(1, by("the pre-trained layers were counted too", "(L/2)"))
    return tuple(rows)


DT_FIXUP = dt_fixup()
