"""Sub-LN (Wang et al., "Magneto", arXiv 2210.06423): pre-norm with a second norm inside.

x <- x + W N(f(N(x)))    a norm also in front of a branch's last layer
values, output and feed-forward weights: Xavier, gain gamma; queries and keys: gain 1

one stack    gamma = sqrt(ln 2N)                    2N = L residual additions
encoder      gamma = sqrt(ln(3M) ln(2N) / 3)        cross attention: no second norm, gain 1
decoder      gamma = sqrt(ln 3M)
"""

from __future__ import annotations

from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.stacks import Stack, factors, stacks
from depthgauge.trace.counted import Layout

__all__ = ["GAMMA", "SUB_LN", "gamma_of"]

GAMMA = "sqrt(log(L))"


def gamma_of(stack: Stack, encoder: int, decoder: int) -> str:
    """gamma of a stack, as a text; of an encoder and a decoder in numbers of layers."""
    if stack.role == "encoder":
        return f"sqrt(log(3*{decoder})*log(2*{encoder})/3)"
    return f"sqrt(log(3*{decoder}))" if stack.role == "decoder" else GAMMA


def _plan(layout: Layout) -> Plan:
    found = stacks(layout, "Sub-LN")
    layers = {stack.role: stack.layers for stack in found}
    by_stream = {stack.stream: stack for stack in found}
    forms, scaled, plain = [], [], []
    for branch in layout.branches:
        stack = by_stream[branch.stream]
        gamma = gamma_of(stack, layers.get("encoder", 0), layers.get("decoder", 0))
        crosses, scope = stack.crosses(branch), scope_of(layout, branch)
        forms.append(
            Form(
                norms={"in": ""} if crosses else {"in": "", "inner": ""},
                misplaced=(
                    (("in",), "the norm in front of the branch's last layer is missing"),
                    (("in", "out"), "the second norm stands behind the last layer, not in front"),
                    (("in", "stream"), "the second norm stands after the sum"),
                ),
            )
        )
        mistakes = (
            ("xavier", "a gain of 1: gamma was never applied"),
            (f"xavier(gain=1/{gamma})", "1/gamma: Sub-LN's gain is above 1"),
            ("xavier(gain=(4*L)**-0.25)", "DeepNorm's beta"),
            ("xavier(gain=sqrt(log(2*L)))", "additions were counted as layers"),
        )
        for weight in branch.weights:
            if crosses or weight.role in ("query", "key"):
                plain.append(Target(weight, "xavier", scope))
            elif weight.fan_in:
                scaled.append(Target(weight, f"xavier(gain={gamma})", scope, mistakes))
    law = "Xavier times sqrt(ln 2N)" if len(found) == 1 else "Xavier times gamma of its stack"
    return Plan(
        (
            Rule("values, outputs and feed-forward weights", law, tuple(scaled)),
            Rule("queries, keys and cross attention", "Xavier", tuple(plain)),
        ),
        tuple(forms),
        final="",
        scales=factors(scaled),
    )


SUB_LN = Recipe(
    "sub-ln",
    "Sub-LN (Magneto)",
    "residual branches of two weight layers or more",
    (
        "a norm in front of each branch, and one in front of its last layer; one final norm",
        "values, output and feed-forward weights: Xavier with gain gamma; queries and keys: gain 1",
        "one stack of N layers: gamma = sqrt(ln 2N)",
        "encoder of N with decoder of M: sqrt(ln(3M) ln(2N) / 3); its decoder sqrt(ln 3M)",
        "cross attention has no second norm and gain 1",
    ),
    (
        "gamma is above 1: it scales up, where DeepNorm scales down",
        "of the feed-forward layers the second norm stands behind the activation",
        "a filter by names such as 'fc1' also scales biases",
    ),
    "Wang et al., arXiv 2210.06423; microsoft/torchscale",
    _plan,
    tier=2,
    judgement="gamma is a gain of Xavier normal, as in DeepNorm; 2N is counted as L",
)
