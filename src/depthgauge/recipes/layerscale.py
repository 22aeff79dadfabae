"""LayerScale (Touvron et al., "Going deeper with Image Transformers", arXiv 2103.17239).

h = h + gain(eps) F(Norm(h))    a learned number for each channel, eps at the start

eps = 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["EPS", "LAYERSCALE"]

#: The exponent is -6, one more up to 24 blocks and four more up to 18.
EPS = "10**(-6+max(0,min(1,25-depth))+4*max(0,min(1,19-depth)))"


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "LayerScale")
    form = Form(
        skip="1",
        factor="1",
        learned=f"gain({EPS})",
        norms={"in": ""},
        learned_mistakes=(
            ("", "the gains are missing; a loader that renames what is called gamma drops them"),
            ("gain(1)", "the gains begin at 1, as those of norms do: they were filled anew"),
            (f"scalar({EPS})", "one number for all channels"),
            ("gain(1e-4)", "1e-4, the default of the authors' class, whatever the depth"),
            ("gain(0.1)", "0.1, which is for up to 18 blocks"),
            ("gain(1e-5)", "1e-5, which is for 19 to 24 blocks"),
            ("gain(1e-6)", "1e-6, which is for more than 24 blocks"),
        ),
    )
    return Plan(forms=tuple(form for _ in layout.branches))


_STARTS: Final = "they begin at 0.1 up to 18 blocks, at 1e-5 up to 24, at 1e-6 in deeper networks"

LAYERSCALE = Recipe(
    "layerscale",
    "LayerScale",
    "residual branches, pre-norm",
    (
        "each branch is multiplied by a learned number for each channel",
        _STARTS,
        "a norm in front of each branch, no other",
    ),
    (
        "depth counts blocks, of two branches each; the numbers of channels' gains are 2 depth",
        "loaders that rename what is called gamma drop the gains without a word",
        "weight decay is not meant for the gains",
        "the authors' own models deviate: XXS36 begins at 1e-5",
    ),
    "Touvron et al., arXiv 2103.17239",
    _plan,
    tier=2,
    judgement="depth counts the blocks of all streams; class attention is not told apart",
    unconfirmed=(
        (
            _STARTS,
            "0.1 and the depths are those of another's implementation; the authors' models have 24 "
            "blocks and more",
        ),
    ),
)
