"""T-Fixup (Huang et al., "Improving Transformer Optimization Through Better Initialization", 2020).

    Xavier of every matrix, then, without any norm,
    encoder   values, outputs, feed-forward weights times .67 N^(-1/4)
    decoder   the same, of both attentions, times (9M)^(-1/4)
    embeddings normal of d^(-1/2), times (9N)^(-1/4), of a table of the decoder alone (9M)^(-1/4)

N and M count layers.
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Count, Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.stacks import Stack, embeddings, stacks, width_of
from depthgauge.trace.counted import Layout, Residual

__all__ = ["DECODER", "ENCODER", "T_FIXUP"]

#: Of one stack N = L/2, two branches a layer.
ENCODER, DECODER = "0.67*{N}**-0.25", "(9*{N})**-0.25"


def _scale(stack: Stack) -> str:
    if stack.role == "decoder":
        return DECODER.format(N=stack.layers)
    return ENCODER.format(N=stack.layers if stack.role == "encoder" else "(L/2)")


def _plan(layout: Layout) -> Plan:
    found = stacks(layout, "T-Fixup")
    if not any(branch.attends for branch in layout.branches):
        raise NetworkError(
            "no branch of the network attends, and T-Fixup is a rule about Transformers; give one "
            "with attention, or take Fixup"
        )
    scales = {stack.stream: _scale(stack) for stack in found}
    others = {stack.stream: _others(stack) for stack in found}
    scaled: list[Target] = []
    plain: list[Target] = []
    for branch in layout.branches:
        _targets(layout, branch, scales[branch.stream], others[branch.stream], scaled, plain)
    first = found[0]
    layers = first.layers if first.role != "alone" else "(L/2)"
    width = width_of(first.branches[0])
    later = {path for stack in found[1:] for path in layout.begun.get(stack.stream, ())}
    own = later - set(layout.begun.get(first.stream, ()))  # no table of the encoder's
    law = "d^(-1/2) times (9N)^(-1/4)" + (", of the decoder (9M)^(-1/4)" if own else "")
    tables = tuple(
        Target(
            weight,
            f"normal(std={DECODER.format(N=found[-1].layers if weight.path in own else layers)}"
            f"/sqrt({width}))",
            scope_of(layout),
            (
                (f"normal(std=1/sqrt({width}))", "the depth scale was never applied"),
                ("normal(std=1)", "PyTorch's default"),
            ),
        )
        for weight in embeddings(layout)
    )
    return Plan(
        (
            Rule("values, outputs and feed-forward weights",
                 f"Xavier times {', '.join(scales.values())}", tuple(scaled)),
            Rule("queries and keys", "Xavier", tuple(plain)),
            Rule("embeddings", law, tables),
        ),
        tuple(Form(skip="1", factor="1", norms={}) for _ in layout.branches),
        (Count("norms", len(layout.norms), 0, "T-Fixup takes their place"),),
    )  # fmt: skip


def _others(stack: Stack) -> tuple[tuple[str, str], ...]:
    """What else a stack's weights are scaled by: the other's constant, or its branches for N."""
    own, other = (DECODER, ENCODER) if stack.role == "decoder" else (ENCODER, DECODER)
    whose = "the encoder's" if stack.role == "decoder" else "the decoder's"
    alone = stack.role == "alone"
    layers, branches = ("(L/2)", "L") if alone else (stack.layers, len(stack.branches))
    counted = "branches were counted, not layers"
    swapped = f"{whose} constant, {'.67 N^(-1/4)' if other is ENCODER else '(9N)^(-1/4)'}"
    return (
        (f"xavier(gain={own.format(N=branches)})", counted),
        (f"xavier(gain={other.format(N=layers)})", swapped),
        (f"xavier(gain={other.format(N=branches)})", f"{swapped}, and {counted}"),
    )


def _targets(
    layout: Layout,
    branch: Residual,
    scale: str,
    others: tuple[tuple[str, str], ...],
    scaled: list[Target],
    plain: list[Target],
) -> None:
    scope = scope_of(layout, branch)
    stacked = "Xavier of queries, keys and values stacked, 1/sqrt(2) of that of the part"
    mistakes: tuple[tuple[str, str], ...]
    for weight in branch.weights:
        if weight.role in ("query", "key"):
            mistakes = (
                ("xavier(gain=1/sqrt(2))", stacked),
                (f"xavier(gain={scale})", "scaled, where queries and keys are not"),
            )
            plain.append(Target(weight, "xavier_uniform", scope, mistakes))
        elif weight.fan_in:
            mistakes = (
                ("xavier", "the depth scale was never applied"),
                (f"xavier(gain={scale}/sqrt(2))", stacked),
                (
                    f"xavier(gain={scale}*sqrt(2))",
                    "sqrt(2) too large: Xavier was of the part already",
                ),
                *others,
            )
            scaled.append(Target(weight, f"xavier_uniform(gain={scale})", scope, mistakes))


T_FIXUP = Recipe(
    "t-fixup",
    "T-Fixup",
    "a Transformer; no norm",
    (
        "no norm, no warm-up; every matrix Xavier, embeddings normal of d^(-1/2)",
        "values, outputs and feed-forward weights of an encoder times .67 N^(-1/4), of a decoder "
        "times (9M)^(-1/4)",
        "embeddings times (9N)^(-1/4), a table of the decoder alone times (9M)^(-1/4)",
    ),
    (
        "N and M count layers, not branches",
        "queries and keys keep Xavier's size",
        "of queries, keys and values in one matrix Xavier is of the part: the authors' code draws "
        "the stack, and multiplies values by sqrt(2), also where nothing was stacked",
    ),
    "Huang, Perez, Ba and Volkovs, ICML 2020; layer6ai-labs/T-Fixup",
    _plan,
    tier=2,
    judgement=(
        "the paper has an encoder and a decoder; one stack alone is taken for an encoder, N = L/2; "
        "queries and keys are drawn with gain 1, where the authors' code has 1/sqrt(2)"
    ),
)
