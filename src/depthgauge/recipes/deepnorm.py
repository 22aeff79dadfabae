"""DeepNorm (Wang et al., "DeepNet", arXiv 2203.00555): post-norm with a heavier skip.

    x <- N(alpha x + F(x))
    values, output and feed-forward weights: Xavier, gain beta; queries and keys: gain 1

                     alpha                  beta
    one stack        (2N)^(1/4)             (8N)^(-1/4)             2N = L residual additions
    encoder          .81 (N^4 M)^(1/16)     .87 (N^4 M)^(-1/16)     N encoder, M decoder layers
    decoder          (3M)^(1/4)             (12M)^(-1/4)

One stack is an encoder or a decoder alone; both rules are then the same.

The paper's layer has two additions, so N is half of them. Of blocks with one addition each it does
not say what a layer is: 2N = L adds up as its bound does, N = L takes each block for a layer. The
first is applied; an audit takes the second where the weights are of that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from depthgauge.errors import NetworkError
from depthgauge.recipes.given import whole
from depthgauge.recipes.held import held
from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.stacks import Stack, factors, stacks
from depthgauge.trace.counted import Layout, Residual

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ALPHA", "BETA", "DEEPNORM", "constants", "deepnorm"]

ALPHA, BETA = "L**0.25", "(4*L)**-0.25"


def constants(stack: Stack, encoder: int, decoder: int, layers: int = 0) -> tuple[str, str]:
    """alpha and beta of a stack, as texts; of an encoder and a decoder in numbers of layers.
    ``layers``: N of one stack, 0 for half of its additions."""
    if layers and stack.role == "alone":
        return f"(2*{layers})**0.25", f"(8*{layers})**-0.25"
    if stack.role == "encoder":
        both = f"({encoder}**4*{decoder})"
        return f"0.81*{both}**(1/16)", f"0.87*{both}**(-1/16)"
    if stack.role == "decoder":
        return f"(3*{decoder})**0.25", f"(12*{decoder})**-0.25"
    return ALPHA, BETA


def _plan(layout: Layout, number: int = 0) -> Plan:
    found = stacks(layout, "DeepNorm")
    if number and len(found) > 1:
        raise NetworkError(
            f"DeepNorm was given {number} layers, and an encoder and a decoder were found, whose "
            f"layers are counted; leave the number out"
        )
    layers = {stack.role: stack.layers for stack in found}
    N, M = layers.get("encoder", 0), layers.get("decoder", 0)
    texts = {stack.stream: (stack, *constants(stack, N, M, number)) for stack in found}
    forms, scaled, plain = [], [], []
    for branch in layout.branches:
        stack, alpha, beta = texts[branch.stream]
        forms.append(_form(alpha, beta))
        scaled += _scaled(layout, branch, stack, alpha, beta, N, M)
        plain += [
            Target(w, "xavier", scope_of(layout, branch), _OF_QUERIES)
            for w in branch.weights
            if w.role in ("query", "key")
        ]
    laws = ", ".join(f"{beta}" for _, _, beta in texts.values())
    return Plan(
        (
            Rule(
                "values, outputs and feed-forward weights",
                f"Xavier times {laws}",
                tuple(scaled),
                _counted(layout, number),
            ),
            Rule("queries and keys", "Xavier", tuple(plain)),
        ),
        tuple(forms),
        final="none",
        scales=factors(scaled),
    )


_OF_QUERIES = (
    (f"xavier(gain={BETA})", "beta, which is for values, outputs and feed-forward weights"),
    ("xavier(gain=1/sqrt(2))", "Xavier of the stacked matrix, 1/sqrt(2) of that of the part"),
)


def _form(alpha: str, beta: str) -> Form:
    return Form(
        skip=alpha,
        factor="1",
        learned="",
        norms={"stream": ""},
        mistakes=(
            ("1", alpha, "alpha multiplies the branch, and belongs on the skip"),
            ("1", "1", "alpha was never applied"),
            (beta, "1", "beta stands on the skip: alpha and beta were swapped"),
            ("(2*L)**0.25", "1", "additions were counted as layers"),
            ("(L/2)**0.25", "1", "N layers were counted, not 2N additions"),
            ("(2*32)**0.25", "1", "2.8284, the number of 32 layers, at this depth too"),
        ),
        misplaced=(
            (("in",), "the norm stands in front of the branch: DeepNorm's is of the sum"),
            (("in", "stream"), "the norm in front of the branch was left"),
            ((), "the norm after the sum is missing"),
        ),
    )


def _scaled(
    layout: Layout, branch: Residual, stack: Stack, alpha: str, beta: str, N: int, M: int
) -> list[Target]:
    mistakes = [
        ("xavier", "a gain of 1: beta was never applied"),
        (f"xavier(gain=1/({beta}))", "the gain has the wrong sign in its exponent"),
        (f"xavier(gain={alpha})", "alpha, where beta belongs: alpha and beta were swapped"),
        ("torch", "PyTorch's default: beta was never applied"),
    ]
    if stack.role == "encoder":
        inverted = f"xavier(gain=1.15*({N}**4*{M})**(-1/16))"
        mistakes.append((inverted, "1.15 = 1/.87 where .87 belongs: the constant was inverted"))
    elif stack.role == "alone":
        mistakes.append(("xavier(gain=(8*L)**-0.25)", "additions were counted as layers"))
        mistakes.append(("xavier(gain=(2*L)**-0.25)", "N layers were counted in 8N as L/4"))
    found = []
    for weight in branch.weights:
        if weight.role not in ("query", "key") and weight.fan_in:
            where = "the values" + ("" if weight.rows is None else " in a fused matrix")
            own = [("xavier", f"a gain of 1: {where} were missed")]
            others = (*(own if weight.role == "value" else ()), *mistakes)
            found.append(Target(weight, f"xavier(gain={beta})", scope_of(layout, branch), others))
    return found


def _counted(layout: Layout, number: int) -> str:
    """``""``, or that N is another number than half of the additions."""
    if not number or 2 * number == layout.L:
        return ""
    return f"N = {number}, where half of the {layout.L} additions is {layout.L / 2:g}"


def deepnorm(layers: int | None = None) -> Recipe:
    """DeepNorm of one stack of N = ``layers`` layers; without a number N is half of its additions,
    and an audit of blocks with one addition each takes N = L where their weights are of that.
    Raises NetworkError for a number below 1."""
    if layers is not None:
        number = whole("layers", layers)
        return replace(_RECIPE, plan=lambda layout: _plan(layout, number), fitted=None)
    return _RECIPE


def _fitted(model: nn.Module, batch: Any, found: Layout) -> Recipe:
    """N = L where each block has one addition and the weights, not yet those of 2N = L, are so."""
    if not found.L or found.blocks != found.L or any(b.attends for b in found.branches):
        return _RECIPE
    other = deepnorm(found.L)
    first = [next(iter(held(model, found, r.plan(found))), None) for r in (_RECIPE, other)]
    right = [finding is not None and finding.holds for finding in first]
    return other if right == [False, True] else _RECIPE


_RECIPE = Recipe(
    "deepnorm",
    "DeepNorm",
    "residual branches with a norm after the sum",
    (
        "x <- N(alpha x + F(x)), no norm after the last",
        "values, output and feed-forward weights: Xavier normal with gain beta; queries and keys: "
        "gain 1",
        "one stack of N layers: alpha = (2N)^(1/4), beta = (8N)^(-1/4)",
        "encoder of N with decoder of M: alpha = .81 (N^4 M)^(1/16), beta = .87 (N^4 M)^(-1/16); "
        "its decoder (3M)^(1/4) and (12M)^(-1/4)",
    ),
    (
        "alpha on the branch, or without the norm, is not DeepNorm",
        "N and M count layers; 2N and 3M are their residual additions",
        "torchscale draws the encoder beside a decoder with 1.15 where the paper has .87",
        "values inside a fused matrix of queries, keys and values are easily missed",
        "gain (8N)^(+1/4), and 2.8284 for alpha at any depth, are met in baselines",
        "a filter by names such as 'fc1' also scales biases",
    ),
    "Wang et al., arXiv 2203.00555; the constants also in microsoft/torchscale",
    _plan,
    judgement=(
        "a number on the skip of a module is put in as branch / alpha, which the norm after the "
        "sum makes the same function up to its eps; the audit compares the ratio of the two; 2N is "
        "counted as L, also where a layer has another number of branches; where each block has "
        "one, an audit takes the blocks for N if the weights are of that"
    ),
    fitted=_fitted,
)

DEEPNORM = deepnorm()
