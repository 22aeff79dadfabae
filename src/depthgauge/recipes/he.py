"""He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, equation 10.

    std = sqrt(2 / fan_in)

with fan_in the numbers that reach one output: of a transposed convolution of kernel k and stride s
``in k/s`` per axis, since the places between are empty. It keeps the second moment through a layer
that a ReLU follows. Through residual branches without a norm the stream still doubles its variance
at each sum.
"""

from __future__ import annotations

from typing import Final

from depthgauge.recipes.given import gain_text
from depthgauge.recipes.layers import TORCH, derived_for, of_every_layer
from depthgauge.recipes.rules import Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Weight

__all__ = ["HE", "MISTAKES", "he", "he_rule"]

#: What is met in place of He's initialisation.
MISTAKES: Final = (
    TORCH,
    ("lecun", "a gain of 1, where ReLU takes sqrt(2)"),
    ("xavier", "Xavier"),
    ('he(mode="fan_out")', "of the fan out, or of a weight that was read as (in, out)"),
    ("he(gain=2)", "the gain squared: the square root was left out"),
)


def _init(weight: Weight, gain: str) -> str:
    gain += f"*sqrt({weight.strides})" if weight.strides > 1 else ""
    return "he" if gain == "sqrt(2)" else f"he(gain={gain})"


def _ignored(weight: Weight, gain: str) -> tuple[tuple[str, str], ...]:
    """What a rule that does not know of a transposed convolution's stride draws."""
    if weight.strides == 1:
        return ()
    words = (
        f"one in {weight.strides} of the kernel's places reaches an output, and all were counted"
    )
    return ((f"he(gain={gain})", words),)


def he_rule(layout: Layout, group: str = "weights", *mistakes: tuple[str, str]) -> Rule:
    """He's initialisation for every weight of a branch, or of a network without one; ``mistakes``
    are looked for before the usual ones."""
    scope = scope_of(layout)
    targets = tuple(
        Target(w, _init(w, "sqrt(2)"), scope, (*_ignored(w, "sqrt(2)"), *mistakes, *MISTAKES))
        for w in layout.hidden
    )
    return Rule(group, "sqrt(2 / fan in)", targets)


def he(gain: str | float = "sqrt(2)") -> Recipe:
    """He initialisation; ``gain`` for other activations than ReLU, ``sqrt(2/(1+a**2))`` for a leaky
    one of slope a. Raises NetworkError for what is no number above 0."""
    gain = gain_text(gain)
    own = gain == "sqrt(2)"
    mistakes = (
        list(MISTAKES)
        if own
        else [
            TORCH,
            ("lecun", f"a gain of 1, where {gain} is asked"),
            ("xavier", "Xavier"),
            (f'he(mode="fan_out", gain={gain})', "of the fan out"),
            (f"he(gain=({gain})**2)", "the gain squared: the square root was left out"),
        ]
    )

    def mistakes_of(weight: Weight) -> list[tuple[str, str]]:
        ignored = _ignored(weight, gain)
        if weight.groups == 1:
            return [*ignored, *mistakes]
        whole = f"normal(std={gain}/sqrt({weight.fan_out * weight.groups}))"
        return [*ignored, *mistakes, (whole, "of the fan out of all groups, as PyTorch counts it")]

    def plan(layout: Layout) -> Plan:
        heads = {weight.path for weight in layout.heads}
        weights = [w for w in layout.layers if w.path not in heads]
        law, doubt = f"{gain} / sqrt(fan in)", ""
        if own:
            law = "sqrt(2 / fan in)"
            doubt = derived_for(layout, ("relu", "leaky_relu"), "ReLU")
        return of_every_layer(
            layout, weights, lambda w: _init(w, gain), law, mistakes_of, doubt=doubt
        )

    return Recipe(
        "he",
        "He initialisation",
        "layers that a ReLU follows",
        (
            f"every weight: normal of standard deviation {gain} / sqrt(fan in), or uniform of it",
            "biases zero",
            "another activation takes another gain, 1 / sqrt(E[phi(z)^2]): tanh 1.593, GELU 1.534, "
            "SiLU 1.677",
        ),
        (
            "fan in counts the kernel's places, and of a grouped convolution its own channels",
            "fan out keeps the gradient, fan in the state; torchvision's ResNets take fan out",
            "the weight of a transposed convolution has its inputs first; one in s^2 of its places "
            "reaches an output of stride s",
            "says nothing of sums: a residual stream without norms grows by a factor a branch",
        ),
        "He, Zhang, Ren and Sun, arXiv 1502.01852",
        plan,
        judgement="the head, which no ReLU follows, keeps what it has",
    )


HE = he()
