"""Mix-LN (Li et al., arXiv 2412.13795): post-norm in the first layers, pre-norm in the rest.

layers 1 ... floor(a n): x <- N(x + F(x));  the others: x <- x + F(N(x));  a = 0.25
"""

from __future__ import annotations

import math

from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.given import number, whole
from depthgauge.recipes.rules import Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["MIX_LN", "post_layers"]


def post_layers(layers: int, share: float = 0.25) -> int:
    """How many of the first layers are post-norm: ``floor(share * layers)``. Raises NetworkError
    for less than one layer, and a share that is not from 0 on and below 1."""
    layers, share = whole("layers", layers), number("share", share, least=0, below=1)
    return math.floor(share * layers)


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "Mix-LN")
    layers: dict[str, int] = {}
    for branch in layout.branches:
        layers[branch.stream] = max(layers.get(branch.stream, 0), branch.block)
    post = Form(
        norms={"stream": ""},
        misplaced=((("in",), "pre-norm in one of the first layers, which are post-norm"),),
    )
    pre = Form(
        norms={"in": ""},
        misplaced=((("stream",), "post-norm behind the first quarter of the layers"),),
    )
    forms = (post if b.block <= post_layers(layers[b.stream]) else pre for b in layout.branches)
    return Plan(forms=tuple(forms), final="")


MIX_LN = Recipe(
    "mix-ln",
    "Mix-LN",
    "residual branches",
    ("the first floor(n / 4) layers post-norm, the others pre-norm", "one final norm"),
    ("below four layers none is post-norm", "a is of the layers, not of the branches"),
    "Li et al., arXiv 2412.13795; pixeli99/MixLN",
    _plan,
    tier=2,
    unwritten="the blocks of an equation are all alike, and its first layers are post-norm and the "
    "others pre-norm; build the network and apply the recipe to the module",
)
