"""LeCun et al., "Efficient BackProp", 1998, section 4.6; for SELU Klambauer et al., 1706.02515.

    std = 1 / sqrt(fan_in)

The second moment passes a linear layer unchanged. SELU,

    selu(z) = 1.0507 z  for z > 0,  1.0507 * 1.6733 (e^z - 1)  else,

takes N(0, 1) to mean 0 and variance 1, so that with these weights mean 0 and variance 1 are a fixed
point of the depth, and an attracting one.
"""

from __future__ import annotations

from depthgauge.recipes.layers import TORCH, derived_for, of_every_layer
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout, Weight

__all__ = ["LECUN"]

_MISTAKES = (
    TORCH,
    ("lecun(gain=3/4)", "a gain of 3/4, PyTorch's for SELU, which leaves the fixed point"),
    ("he", "He, which is ReLU's"),
    ("xavier", "Xavier, of both fans"),
    ('he(mode="fan_out", gain=1)', "of the fan out, or of a weight that was read as (in, out)"),
)


def _init(weight: Weight) -> str:
    """Of a transposed convolution one in so many places of its kernel reaches an output."""
    return "lecun" if weight.strides == 1 else f"lecun(gain=sqrt({weight.strides}))"


def _mistakes(weight: Weight) -> tuple[tuple[str, str], ...]:
    ignored = ("lecun", "places of the kernel were counted that the stride leaves without an input")
    return _MISTAKES if weight.strides == 1 else (ignored, *_MISTAKES)


def _plan(layout: Layout) -> Plan:
    doubt = derived_for(layout, ("selu", "identity"), "SELU")
    law = "1 / sqrt(fan in)"
    return of_every_layer(layout, layout.layers, _init, law, _mistakes, doubt=doubt)


LECUN = Recipe(
    "lecun",
    "LeCun initialisation",
    "SELU, of which mean 0 and variance 1 are a fixed point, or no activation",
    (
        "every weight: normal of standard deviation 1 / sqrt(fan in), or uniform of it",
        "biases zero; alpha dropout in place of dropout",
    ),
    (
        "PyTorch's gain for SELU, 3/4, is not this: the self-normalising network takes 1",
        "the input has to be standardised, or the first layers are spent on it",
        "PyTorch's default has a third of this variance",
    ),
    "LeCun, Bottou, Orr and Mueller 1998, section 4.6; Klambauer et al., arXiv 1706.02515",
    _plan,
)
