"""DeepScaleLM (Kedia et al., "Transformers Get Stable", 2403.09635): unit variance throughout.

    x <- lambda x + beta F,   lambda^2 = 1 - 1/N,  beta^2 = 1/N     N = L/2 layers

    queries, keys        std = sqrt(1 / d)
    values, outputs      std = sqrt(sqrt((1 - p) / r) / d)
    feed-forward         std = sqrt(sqrt((1 - p) / 2) / d)          d_ff = 4 d
    k embedding tables   std = sqrt((1 - p) / k)

``p`` the dropout at a branch's end, ``r`` the correlation of tokens that enters the layer,
0.221 (1 - p) in front of the first and then, branch by branch,

    r_out = 1 - p                                                    attention
    r_out = (1 - p) (r + (sqrt(1 - r^2) - r acos r) / pi)            feed-forward
    r <- lambda^2 r + beta^2 r_out
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.stacks import embeddings, width_of
from depthgauge.trace.counted import Layout, Residual

__all__ = ["BETA", "DEEPSCALELM", "LAMBDA", "correlations", "feed_forward_std", "value_std"]

LAMBDA, BETA = "sqrt(1-2/L)", "sqrt(2/L)"
_ZIPF = 0.221


def correlations(attends: Iterable[bool], p: float, beta2: float) -> Iterator[float]:
    """The correlation of tokens that enters each branch, which is attention or feed-forward."""
    r = _ZIPF * (1 - p)
    for attention in attends:
        yield r
        out = 1.0 if attention else r + (math.sqrt(1 - r * r) - r * math.acos(r)) / math.pi
        r = (1 - beta2) * r + beta2 * (1 - p) * out


def value_std(d: int, p: float, r: float) -> str:
    """Of values and outputs, as a text."""
    return f"sqrt(sqrt({1 - p!r}/{r!r})/{d})"


def feed_forward_std(p: float, ratio: float = 4.0) -> str:
    """Of both feed-forward matrices, ``d_ff = ratio d``, as a text with ``n`` for d."""
    return f"sqrt(sqrt({2 * (1 - p)!r}/{ratio!r})/n)"


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "DeepScaleLM")
    if len(layout.streams) > 1 or layout.L < 2:
        raise NetworkError(
            f"{len(layout.streams)} streams with {layout.L} residual branches were found, and "
            f"DeepScaleLM is a rule of one stack of two branches or more; give the stack by itself"
        )
    bare = [branch.path for branch in layout.branches if not branch.placed]
    if bare:
        raise NetworkError(
            f"'{bare[0]}' has no norm, and DeepScaleLM keeps those of pre-norm or post-norm; put "
            f"them in with 'prenorm' first"
        )
    for branch in layout.branches:
        if not branch.attends and len(branch.weights) != 2:
            raise NetworkError(
                f"'{branch.path}' has {len(branch.weights)} weight layers, and DeepScaleLM has a "
                f"rule for attention and for feed-forward branches of two; it says nothing of "
                f"gated ones"
            )
    p = layout.branches[0].dropout
    kinds = [branch.attends for branch in layout.branches]
    entering = correlations(kinds, p, 2 / layout.L)
    groups: dict[str, list[Target]] = {"queries": [], "values": [], "feed-forward": []}
    for branch, r in zip(layout.branches, entering, strict=True):
        _targets(layout, branch, r, p, groups)
    tables = embeddings(layout)
    small = f"normal(std=sqrt({1 - p!r}/{len(tables)}))"
    embedded = tuple(Target(w, small, scope_of(layout), _OF_TABLES) for w in tables)
    return Plan(
        (
            Rule("queries and keys", "sqrt(1/d)", tuple(groups["queries"])),
            Rule("values and outputs", "sqrt(sqrt((1-p)/r)/d)", tuple(groups["values"])),
            Rule("feed-forward weights", "sqrt(sqrt((1-p)/2)/d)", tuple(groups["feed-forward"])),
            Rule("embeddings", f"sqrt((1-p)/{len(tables)})", embedded),
        ),
        tuple(_FORM for _ in layout.branches),
    )


_OF_TABLES = (("normal(std=1)", "PyTorch's default"), ("normal(std=0.02)", "0.02"))
_FORM = Form(
    skip=LAMBDA,
    factor=BETA,
    learned="",
    mistakes=(
        ("1", "1", "lambda and beta were never applied"),
        ("1", BETA, "lambda is missing on the skip"),
        (BETA, LAMBDA, "lambda and beta were swapped"),
        ("1-2/L", "2/L", "lambda^2 and beta^2 stand where lambda and beta belong"),
        ("sqrt(1-1/L)", "1/sqrt(L)", "N counts branches, not layers"),
        ("1/sqrt(2)", "1/sqrt(2)", "1/sqrt(2) on both, at any depth"),
    ),
)


def _targets(
    layout: Layout, branch: Residual, r: float, p: float, groups: dict[str, list[Target]]
) -> None:
    scope, d = scope_of(layout, branch), width_of(branch)
    mistakes: tuple[tuple[str, str], ...]
    for weight in branch.weights:
        if not weight.fan_in:
            continue
        if weight.role in ("query", "key"):
            mistakes = (("xavier", "Xavier"), ("normal(std=0.02)", "0.02"))
            groups["queries"].append(Target(weight, "normal(std=1/sqrt(n))", scope, mistakes))
        elif branch.attends:
            mistakes = (
                ("normal(std=1/sqrt(n))", "1/sqrt(d), as of queries and keys: r was left out"),
                ("xavier", "Xavier"),
            )
            init = f"normal(std={value_std(d, p, r)})"
            groups["values"].append(Target(weight, init, scope, mistakes))
        else:
            ratio = weight.fan_in * weight.fan_out / d**2
            own = f"normal(std={feed_forward_std(p, ratio)})"
            mistakes = (("he", "He"), ("xavier", "Xavier"), ("normal(std=1/sqrt(n))", "1/sqrt(d)"))
            groups["feed-forward"].append(Target(weight, own, scope, mistakes))


_SUM: Final = "x <- lambda x + beta F, lambda^2 = 1 - 1/N, beta^2 = 1/N, N layers"

DEEPSCALELM = Recipe(
    "deepscalelm",
    "DeepScaleLM (DSLM)",
    "one Transformer stack with norms, pre or post",
    (
        _SUM,
        "queries and keys sqrt(1/d), values and outputs sqrt(sqrt((1-p)/r)/d), feed-forward "
        "weights sqrt(sqrt((1-p)/2)/d), k embedding tables sqrt((1-p)/k)",
        "p: dropout at a branch's end; r: correlation of tokens that enters a layer, 0.221 (1-p) "
        "at first",
    ),
    (
        "lambda and beta are roots: lambda^2 + beta^2 = 1",
        "r, and with it values and outputs, is another in each layer",
        "0.221 was estimated from the frequencies of words in text",
    ),
    "Kedia et al., arXiv 2403.09635; akhilkedia/TranformersGetStable",
    _plan,
    judgement=(
        "beta^2 is 1/N; the authors' code has .005 for N = 192, which is .96/N; of a feed-forward "
        "layer of another width than 4d its width stands for the 4, and the 2 is ReLU's whatever "
        "the activation; one p for the whole stack; "
        "heads are left as they are"
    ),
    unconfirmed=((_SUM, "beta^2 = k/N is recalled, with k = 1 near the code's .005 for N = 192"),),
)
