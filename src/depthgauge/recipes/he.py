"""He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, equation 10.

    std = sqrt(2 / fan_in)

keeps the second moment through a layer that a ReLU follows. Through residual branches without a
norm the stream still doubles its variance at each sum.
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.rules import Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.layout import Layout

__all__ = ["HE", "MISTAKES", "he_rule"]

#: What is met in place of He's initialisation.
MISTAKES: Final = (
    ("torch", "PyTorch's default, kaiming_uniform with a = sqrt(5)"),
    ("lecun", "a gain of 1, where ReLU takes sqrt(2)"),
    ("xavier", "Xavier"),
    ('he(mode="fan_out")', "of the fan out"),
    ("he(gain=2)", "a gain of 2: the square root was left out"),
)


def he_rule(layout: Layout, group: str = "weights", *mistakes: tuple[str, str]) -> Rule:
    """He's initialisation for every weight of a branch, or of a network without one; ``mistakes``
    are looked for before the usual ones."""
    scope = scope_of(layout)
    targets = tuple(Target(w, "he", scope, (*mistakes, *MISTAKES)) for w in layout.hidden)
    return Rule(group, "sqrt(2 / fan in)", targets)


def _plan(layout: Layout) -> Plan:
    return Plan((he_rule(layout),))


HE = Recipe(
    "he",
    "He initialisation",
    "layers that a ReLU follows",
    ("every weight: normal of standard deviation sqrt(2 / fan in)", "biases zero"),
    (
        "fan in counts the kernel's places, and of a grouped convolution its own channels",
        "fan out keeps the gradient, fan in the state; torchvision's ResNets take fan out",
        "says nothing of sums: a residual stream without norms grows by a factor a branch",
    ),
    "He, Zhang, Ren and Sun, arXiv 1502.01852",
    _plan,
)
