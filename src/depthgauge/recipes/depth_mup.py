"""depth-muP (Yang, Yu, Zhu and Hayou, arXiv 2310.02244): muP, and branches by 1/sqrt(depth).

With m = width / base width, k = blocks / base depth:

    h = h + F(h) / sqrt(k)
    hidden matrices             variance std^2 / m, rate 1 / (m sqrt(k)), weight decay times m
    biases, norms of branches   rate 1 / sqrt(k)
    all of branches             Adam's epsilon times 1 / (m sqrt(k))

as the code of CompleteP (arXiv 2505.01618) has it, alpha = 1/2; what else it says is muP's.
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.completep import plan_of
from depthgauge.recipes.given import number, whole
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout

__all__ = ["DEPTH_MUP", "depth_mup"]


_RATES: Final = "rates are Adam's; by gradient descent they do not change with depth"


def depth_mup(base_width: int = 256, base_depth: int = 2, std: float = 0.02) -> Recipe:
    """depth-muP against a network of ``base_width`` and ``base_depth`` blocks, whose hidden weights
    have the standard deviation ``std``. Raises NetworkError for others than whole numbers of at
    least 1, and a deviation above 0."""
    base_width, base_depth = whole("base_width", base_width), whole("base_depth", base_depth)
    std = number("std", std)

    def plan(layout: Layout) -> Plan:
        return plan_of(layout, "depth-muP", 0.5, base_width, base_depth, std)

    return Recipe(
        "depth-mup",
        "depth-muP",
        f"one stream of residual branches of one width; Adam; rates that were found at the width "
        f"{base_width} and {base_depth} blocks",
        (
            f"m = width / {base_width}, k = blocks / {base_depth}: another base by "
            f"depthgauge.recipes.depth_mup.depth_mup",
            "h = h + F(h) / sqrt(k), of every branch",
            f"hidden matrices: normal of standard deviation {std:g} / sqrt(m); rate 1/(m sqrt(k)), "
            f"weight decay times m",
            "biases and norms of branches: rate 1/sqrt(k)",
            "Adam's epsilon of all that branches learn: times 1 / (m sqrt(k))",
            f"the input of the head is multiplied by 1/m, its standard deviation {std:g}",
            "attention logits: q k / d, d features in a head",
        ),
        (
            "k counts blocks, not residual branches",
            "it is derived for blocks of one layer; in deeper ones the first layer learns less and "
            "less with depth, which 'completep' is about",
            "a factor 1/sqrt(depth) without the rates is 'inv-sqrtL', not this",
            _RATES,
        ),
        "Yang, Yu, Zhu and Hayou, arXiv 2310.02244; by the code of arXiv 2505.01618",
        plan,
        tier=2,
        unconfirmed=((_RATES, "recalled; the code that was read is for Adam"),),
        judgement="base depth, initialiser, decay and epsilon are those of CompleteP's code at "
        "alpha = 1/2; rates, decay, epsilon and the kind of optimiser are held only where an audit "
        "is given the optimiser, against what it has for all other parameters",
    )


DEPTH_MUP = depth_mup()
