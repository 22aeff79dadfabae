"""LayerNorm Scaling (Sun et al., "The Curse of Depth", arXiv 2502.05795).

    x <- x + F(N(x) / sqrt(l))

``l`` the layer's index from 1; both norms of a layer share it, the final norm has none.
"""

from __future__ import annotations

import math

from depthgauge.recipes.branches import index_of, refuse_plain
from depthgauge.recipes.rules import Count, Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["LAYERNORM_SCALING"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "LayerNorm Scaling")
    forms = tuple(
        Form(norms={"in": ""}, inlet="1/sqrt(l)", inlet_mistakes=_mistakes(place))
        for place in index_of(layout)
    )
    return Plan(forms=forms, counts=(_final(layout),), final="")


def _final(layout: Layout) -> Count:
    """Heads in front of which the norm is scaled as that of a layer is; another number there, as
    that of a tied head, is the head's own."""
    depth = layout.blocks
    numbers = {
        depth: "the last layer's",
        depth + 1: "that of one layer more",
        layout.L: "that of the last branch",
        layout.L + 1: "that of one branch more",
    }
    scaled = [
        (w.path, words)
        for w, number in zip(layout.heads, layout.outlets, strict=True)
        for l, words in numbers.items()
        if l > 1 and math.isclose(number, l**-0.5, rel_tol=1e-3)
    ]
    paths = tuple(dict.fromkeys(path for path, _ in scaled))
    why = f"in front of '{scaled[0][0]}' stands {scaled[0][1]} number" if scaled else ""
    return Count("final norms scaled as a layer's are", len(paths), 0, why)


def _mistakes(place: str) -> tuple[tuple[str, str], ...]:
    """Of the branch at ``place`` among all, from 1."""
    return (
        ("1", "the factor is lost"),
        ("0", "the factor is zero, a buffer that nothing filled"),
        ("1/l", "1/l instead of its root"),
        ("1/sqrt(depth)", "1/sqrt(L) in every layer, L the number of layers"),
        ("1/sqrt(L)", "1/sqrt(L) in every layer, L the number of branches"),
        ("1/sqrt(max(l-1, 1))", "l counted from 0"),
        ("1/sqrt(l+1)", "l counted from 2"),
        (f"1/sqrt({place})", "branches counted, not layers"),
    )


LAYERNORM_SCALING = Recipe(
    "layernorm-scaling",
    "LayerNorm Scaling (LNS)",
    "residual branches with a norm in front",
    (
        "the output of a norm in front of a branch times 1/sqrt(l), l the layer from 1",
        "the final norm as it is",
    ),
    (
        "both norms of a layer share l: it counts layers, not branches",
        "not together with GPT-2's 1/sqrt(2N)",
        "a factor kept in a buffer that is not saved is lost when a model is made on the meta "
        "device and then filled",
    ),
    "Sun et al., arXiv 2502.05795; lmsdss/LayerNorm-Scaling",
    _plan,
    tier=2,
    judgement="l counts the blocks of a stream, so in an equation one block is to be one layer",
)
