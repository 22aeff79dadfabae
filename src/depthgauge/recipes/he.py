"""He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, equation 10.

    std = sqrt(2 / fan_in)

keeps the second moment through a layer that a ReLU follows. Through residual branches without a
norm the stream still doubles its variance at each sum.
"""

from __future__ import annotations

from depthgauge.recipes.rules import Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.layout import Layout

__all__ = ["HE"]


def _plan(layout: Layout) -> Plan:
    scope = scope_of(layout)
    mistakes = (
        ("torch", "PyTorch's default, kaiming_uniform with a = sqrt(5)"),
        ("lecun", "a gain of 1, where ReLU takes sqrt(2)"),
        ("xavier", "Xavier"),
        ('he(mode="fan_out")', "of the fan out"),
        ("he(gain=2)", "a gain of 2: the square root was left out"),
    )
    targets = tuple(Target(w, "he", scope, mistakes) for w in layout.hidden)
    return Plan((Rule("weights", "sqrt(2 / fan in)", targets),))


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
