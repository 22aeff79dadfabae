"""Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
AISTATS 2010.

    std = sqrt(2 / (fan_in + fan_out))

between ``1/sqrt(fan_in)``, which keeps the state, and ``1/sqrt(fan_out)``, which keeps the
gradient, through units that are odd and have slope 1 at 0. Uniform: within
``sqrt(6 / (fan_in + fan_out))``. Of a transposed convolution of kernel k and stride s an output is
reached by ``in k/s`` per axis, and an input reaches ``out k``.
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.layers import TORCH, derived_for, of_every_layer
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout, Weight

__all__ = ["XAVIER"]

_ODD = ("tanh", "softsign", "identity")


def _init(weight: Weight) -> str:
    """Of a transposed convolution one in so many of the places counts that reaches an output."""
    if weight.strides == 1:
        return "xavier"
    both = weight.fan_in + weight.fan_out
    return f"xavier(gain=sqrt({both}/({weight.fan_in}/{weight.strides}+{weight.fan_out})))"


def _mistakes(weight: Weight) -> list[tuple[str, str]]:
    found = [TORCH]
    if weight.strides > 1:
        words = f"one in {weight.strides} of the kernel's places reaches an output"
        found.append(("xavier", f"{words}, and all were counted as fan in"))
    if weight.stacked > weight.fan_out:
        stacked = f"normal(std=sqrt(2/{weight.fan_in + weight.stacked}))"
        found.append(
            (stacked, "of the stacked matrix, whose fan out is that of queries, keys and values")
        )
    if weight.groups > 1:
        # PyTorch divides the axis that its layout has divided: inputs, of a transposed one outputs.
        divided, whole = weight.fan_in, weight.fan_out
        if weight.axis:
            divided, whole = whole, divided
        both = f"normal(std=sqrt(2/{divided + whole * weight.groups}))"
        found.append((both, "one of the fans of all groups, as PyTorch counts it"))
    return [
        *found,
        ("he", "He, which is ReLU's"),
        ("lecun", "of the fan in alone"),
        ('he(mode="fan_out", gain=1)', "of the fan out alone"),
        ("xavier(gain=5/3)", "a gain of 5/3, PyTorch's for tanh"),
        ("xavier(gain=sqrt(2))", "a gain of sqrt(2), ReLU's"),
        ("xavier(gain=1/sqrt(2))", "the 2 of the formula was left out"),
    ]


def _plan(layout: Layout) -> Plan:
    law = "sqrt(2 / (fan in + fan out))"
    doubt = derived_for(layout, _ODD, "odd units of slope 1 at 0, tanh")
    return of_every_layer(layout, layout.layers, _init, law, _mistakes, doubt=doubt)


_NEEDS: Final = "odd activations of slope 1 at 0 (tanh, softsign), or none"

XAVIER = Recipe(
    "xavier",
    "Xavier (Glorot) initialisation",
    _NEEDS,
    (
        "every weight: normal of standard deviation sqrt(2 / (fan in + fan out)), or uniform of it",
        "biases zero",
    ),
    (
        "a stacked matrix of queries, keys and values is three: of the stack's shape its standard "
        "deviation is sqrt(2) smaller",
        "with ReLU the second moment halves at each layer; He is the rule there",
        "of a grouped convolution both fans are those of a group; PyTorch divides only one",
        "of a transposed convolution of stride s one in s^2 of the places reaches an output: that "
        "is its fan in, and the fan out counts them all",
        "PyTorch's gain of 5/3 for tanh is a rule of thumb; 1 / sqrt(E[tanh(z)^2]) is 1.593",
    ),
    "Glorot and Bengio, AISTATS 2010",
    _plan,
    judgement="a head that shares its weight with an embedding keeps the embedding's",
    unconfirmed=((_NEEDS, "recalled; the formula is that of PyTorch's documentation"),),
)
