"""Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep
linear neural networks", arXiv 1312.6120.

    W = gain Q,    Q^T Q = 1  or  Q Q^T = 1

with Q of the Haar measure: all singular values are the gain. A kernel is one matrix, ``(out, in k
k)``, each group of a convolution its own.
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.given import gain_text
from depthgauge.recipes.layers import TORCH, derived_for, of_every_layer
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout, Weight

__all__ = ["ORTHOGONAL", "orthogonal"]


_NEEDS: Final = "linear layers or tanh; with another gain other activations"


def orthogonal(gain: str | float = "1") -> Recipe:
    """Orthogonal weights of this gain: 1 for linear layers, a little more for tanh, sqrt(2) for
    ReLU. Raises NetworkError for what is no number above 0."""
    gain = gain_text(gain)
    one = gain == "1"
    init = "orthogonal" if one else f"orthogonal(gain={gain})"
    others = {"sqrt(2)": "a gain of sqrt(2), ReLU's", "5/3": "a gain of 5/3", "1": "a gain of 1"}
    mistakes = (
        *((f"orthogonal(gain={g})", words) for g, words in others.items() if g != gain),
        TORCH,
        ("he", "He, a Gaussian"),
    )

    def mistakes_of(weight: Weight) -> tuple[tuple[str, str], ...]:
        longest = max(weight.group[0], weight.fan_in)
        found = ((f"normal(std={gain}/sqrt({longest}))", "a Gaussian of the same size"), *mistakes)
        if weight.groups == 1:
            return found
        whole = f"normal(std={gain}/sqrt({max(weight.turned[0], weight.fan_in)}))"
        return (*found, (whole, "one matrix of all groups, where each group is its own"))

    def plan(layout: Layout) -> Plan:
        law = "all singular values 1" if one else f"all singular values {gain}"
        meant = ("tanh", "erf", "identity")
        doubt = derived_for(layout, meant, "linear layers and tanh") if one else ""
        return of_every_layer(layout, layout.layers, lambda _: init, law, mistakes_of, doubt=doubt)

    return Recipe(
        "orthogonal",
        "orthogonal initialisation",
        _NEEDS,
        (
            f"every weight: {gain} times a random matrix with orthonormal rows or columns",
            "biases zero",
        ),
        (
            "of a kernel the matrix is orthogonal, the convolution is no isometry: that is the "
            "delta-orthogonal recipe",
            "QR without the signs of R's diagonal is not uniform over orthogonal matrices",
            "a layer with more outputs than inputs keeps the length, so each output is smaller",
            "of a depthwise convolution one matrix of all channels has too small rows",
        ),
        "Saxe, McClelland and Ganguli, arXiv 1312.6120",
        plan,
        unconfirmed=((_NEEDS, "recalled; the matrices are those of PyTorch's documentation"),),
    )


ORTHOGONAL = orthogonal()
