"""What recipes share that initialise every layer: its weights by one law, its biases zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Count, Plan, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Weight

__all__ = ["TORCH", "derived_for", "of_every_layer", "place_of"]

Mistakes = Sequence[tuple[str, str]]

#: The mistake of having done nothing.
TORCH = ("torch", "PyTorch's default, kaiming_uniform with a = sqrt(5)")


def of_every_layer(
    layout: Layout,
    weights: Sequence[Weight],
    init: Callable[[Weight], str],
    law: str,
    mistakes: Callable[[Weight], Mistakes],
    sized: bool = True,
    doubt: str = "",
) -> Plan:
    """These weights by ``init``, their biases zero. Raises NetworkError without a weight."""
    if not weights:
        raise NetworkError(
            "no weight layer was found whose inputs could be counted; look at what 'depthgauge "
            "measure' finds in the network"
        )
    if layout.uncounted:
        law += f"; {len(layout.uncounted)} more have inputs that could not be counted"
        law += f" ('{layout.uncounted[0]}')"
    scope = scope_of(layout)
    targets = tuple(Target(w, init(w), scope, tuple(mistakes(w)), sized) for w in weights)
    biases = tuple(Target(b, "zeros", scope) for b in layout.biases_of(weights))
    normed = [weight for weight in weights if weight.lengths]
    why = "their lengths say how large they are; take weight normalisation off"
    counts = (Count("weights of lengths and directions", len(normed), 0, why),) if normed else ()
    return Plan(
        (Rule("weights", law, targets, doubt), Rule("biases", "zero", biases)), counts=counts
    )


def place_of(weight: Weight) -> tuple[str, str]:
    """The module and the name of a weight, also of one that is computed by a parametrisation."""
    path, _, rest = weight.path.partition(".parametrizations.")
    if rest:
        return path, rest.partition(".")[0]
    return weight.owner, weight.path.rpartition(".")[2]


def derived_for(layout: Layout, kinds: Sequence[str], words: str) -> str:
    """``""``, or that the network has other activations than those the law is derived for."""
    others = [kind for kind in layout.activations if kind not in kinds]
    return f"derived for {words}, and {', '.join(others)} was met" if others else ""
