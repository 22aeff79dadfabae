"""CompleteP (Dey et al., arXiv 2505.01618): rates that stay right as width and depth grow.

With m = width / base width, k = blocks / base depth, and alpha = 1:

    h = h + k^-alpha F(h)
    hidden matrices             variance std^2 / m, rate k^(alpha-1) / m, weight decay times m
    biases, norms of branches   rate k^(alpha-1)
    all of branches             Adam's epsilon times k^-alpha / m
    head                        variance std^2, its input times 1 / m
    attention                   logits q k / d, d features in a head
"""

from __future__ import annotations

from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.recipes.given import number, whole
from depthgauge.recipes.layers import TORCH
from depthgauge.recipes.mup import LOGITS_MISTAKES, bare, head_rule, matrices, width_of
from depthgauge.recipes.rules import Form, Group, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout

__all__ = ["COMPLETEP", "completep", "plan_of", "vectors_of"]

#: By alpha: the branch's multiplier, with ``{base}`` for the base depth.
_FACTOR: Final = {1.0: "{base}/depth", 0.5: "sqrt({base}/depth)"}
_WORDS: Final = {1.0: "alpha = 1, CompleteP's", 0.5: "alpha = 1/2, depth-muP's"}


def plan_of(
    layout: Layout, title: str, alpha: float, base_width: int, base_depth: int, std: float
) -> Plan:
    """Both parametrisations of depth, ``alpha`` 1 or 1/2."""
    width = width_of(layout, title)
    if len(layout.streams) > 1:
        raise NetworkError(
            f"{len(layout.streams)} streams were found, and {title} counts the blocks of one; give "
            f"an encoder or a decoder by itself"
        )
    m, k = width / base_width, layout.blocks / base_depth
    hidden, outside = matrices(layout, width)
    scope = scope_of(layout, layout.branches[-1])
    init = f"normal(std={std:g}/sqrt(n/{base_width}))"
    mistakes = (
        (f"normal(std={std:g})", "the width was not counted"),
        (f"normal(std={std:g}/(n/{base_width}))", "divided by m, where its root is asked"),
        (f"normal(std={std:g}/sqrt(n/{base_width})/sqrt(L))", "GPT-2's 1/sqrt(2N) as well"),
        TORCH,
    )
    targets = tuple(Target(w, init, scope, mistakes) for w in (*hidden, *outside))
    inside = tuple(dict.fromkeys(w.path for w in hidden))
    eps = k**-alpha / m
    groups = (
        Group("hidden weights of branches", inside, k ** (alpha - 1) / m, m, eps),
        Group("biases and norms of branches", vectors_of(layout), k ** (alpha - 1), 1.0, eps),
        Group("hidden weights outside of branches", tuple(w.path for w in outside), 1 / m, m),
    )
    return Plan(
        (
            Rule("hidden weights", f"{std:g} / sqrt(m), m = {m:g}", targets),
            head_rule(layout, f"normal(std={std:g})", f"{std:g} at every width", tied=True),
        ),
        tuple(_form(alpha, base_depth) for _ in layout.branches),
        groups=groups,
        outlet=f"{base_width}/n",
        adaptive=True,
        bare=bare(layout, width, base_width) if layout.blocks == base_depth else "",
    )


def _form(alpha: float, base: int) -> Form:
    other = 1.5 - alpha
    count = _FACTOR[alpha].replace("depth", "L")
    return Form(
        skip="1",
        factor=_FACTOR[alpha].format(base=base),
        learned="",
        logits="1/d",
        mistakes=(
            ("1", "1", "the multiplier is missing"),
            ("1", _FACTOR[other].format(base=base), _WORDS[other]),
            ("1", count.format(base=base), "branches were counted, not blocks"),
            ("1", _FACTOR[alpha].format(base=1), "without the base depth"),
        ),
        logits_mistakes=LOGITS_MISTAKES,
    )


def vectors_of(layout: Layout) -> tuple[str, ...]:
    """Biases of branches, and what their norms learn."""
    inside = tuple(w for branch in layout.branches for w in branch.weights)
    biases = [w.bias for w in inside if w.bias]
    gains = [norm.gain for branch in layout.branches for norm in branch.norms if norm.gain]
    owners = {gain.rpartition(".")[0] for gain in gains}
    paths = {w.path for w in inside}
    beside = [p for p in layout.parameters if p.rpartition(".")[0] in owners and p not in paths]
    return tuple(dict.fromkeys((*biases, *gains, *beside)))


def completep(base_width: int = 256, base_depth: int = 2, std: float = 0.02) -> Recipe:
    """CompleteP against a network of ``base_width`` and ``base_depth`` blocks, whose hidden weights
    have the standard deviation ``std``. Raises NetworkError for others than whole numbers of at
    least 1, and a deviation above 0."""
    base_width, base_depth = whole("base_width", base_width), whole("base_depth", base_depth)
    std = number("std", std)

    def plan(layout: Layout) -> Plan:
        return plan_of(layout, "CompleteP", 1.0, base_width, base_depth, std)

    return Recipe(
        "completep",
        "CompleteP",
        f"one stream of residual branches of one width; Adam; rates that were found at the width "
        f"{base_width} and {base_depth} blocks",
        (
            f"m = width / {base_width}, k = blocks / {base_depth}: another base by "
            f"depthgauge.recipes.completep.completep",
            "h = h + F(h) / k, of every branch, attention and feed-forward",
            f"hidden matrices: normal of standard deviation {std:g} / sqrt(m); rate 1/m, weight "
            f"decay times m",
            "Adam's epsilon of all that branches learn: times 1 / (m k)",
            f"the input of the head is multiplied by 1/m, its standard deviation {std:g}, also "
            "where it is the embedding's",
            "attention logits: q k / d, d features in a head",
            "embeddings, biases, norms and the head: the full rate",
        ),
        (
            "k counts blocks, not residual branches",
            "together with GPT-2's 1/sqrt(2N) it scales twice",
            "weight decay times m is for hidden matrices alone",
            "with an epsilon that is not scaled Adam stops adapting in a deep network",
            "a generation path of its own may forget the head's factor",
            "the paper's table scales the epsilon of branches, its code that of every group",
        ),
        "Dey et al., arXiv 2505.01618; EleutherAI/nanoGPT-mup, branch completep",
        plan,
        tier=2,
        judgement="epsilon goes by the paper's table; the standard deviation at the base is the "
        "caller's, 0.02 as GPT-2's; rates, decay, epsilon and the kind of optimiser are held only "
        "where an audit is given the optimiser, against what it has for all other parameters",
    )


COMPLETEP = completep()
