"""muP (Yang et al., arXiv 2203.03466): rates that stay right as the width grows, by Adam.

With m = width / base width:

    hidden matrices     variance 1 / fan in, rate 1 / m, weight decay times m
    head                variance 1 / base width (or zero), its input times 1 / m
    attention           logits q k / d, d features in a head
    all else            rate 1
"""

from __future__ import annotations

from depthgauge.errors import NetworkError, expect
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.given import whole
from depthgauge.recipes.layers import TORCH
from depthgauge.recipes.rules import Form, Group, Plan, Recipe, Rule, Target, init_of, scope_of
from depthgauge.trace.counted import Layout, Weight

__all__ = ["LOGITS_MISTAKES", "MUP", "bare", "head_rule", "matrices", "mup", "width_of"]

#: What attention multiplies its logits by in place of 1/d.
LOGITS_MISTAKES = (
    ("1/sqrt(d)", "the usual 1/sqrt(d)"),
    ("1/(d*sqrt(d))", "divided by d and by sqrt(d)"),
    ("1", "not divided at all"),
)


def width_of(layout: Layout, title: str) -> int:
    """The one width of all branches. Raises NetworkError without a branch, or of several widths."""
    refuse_plain(layout, title)
    widths = {branch.width for branch in layout.branches if branch.weights}
    if len(widths) != 1:
        raise NetworkError(
            f"the stream has the widths {', '.join(map(str, sorted(widths)))}, and {title} "
            f"compares one width with one base width; give a network of one width"
        )
    return widths.pop()


def matrices(layout: Layout, width: int) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
    """Matrices that grow with the width in both directions: those of branches, and those outside
    that take the stream, but for heads and tables."""
    hidden = tuple(w for branch in layout.branches for w in branch.weights if w.fan_in)
    inside = {w.path for w in hidden}
    others = {w.path for w in layout.heads} | set(layout.tables) | inside
    outside = tuple(
        w
        for w in layout.outside
        if w.path not in others and w.fan_in and not w.looked_up and w.turned[1] == width
    )
    return hidden, outside


def _mistakes(weight: Weight) -> tuple[tuple[str, str], ...]:
    return (
        TORCH,
        ("he", "He's gain of sqrt(2)"),
        ("normal(std=0.02)", "0.02 at every width"),
        (f"normal(std=1/{weight.fan_in})", "1 / fan in, where its root is asked"),
        (f"normal(std=1/sqrt({weight.fan_in}*L))", "GPT-2's 1/sqrt(2N) as well"),
    )


def head_rule(layout: Layout, init: str, law: str, tied: bool = False) -> Rule:
    """The weights of heads, whose variance is to be the same at every width; what a head shares
    with an embedding is the embedding's, unless the recipe gives both the same (``tied``)."""
    mistakes = (
        (TORCH[0], f"{TORCH[1]}, which shrinks with the width"),
        ("lecun", "1 / sqrt(fan in), which shrinks with the width"),
        ("zeros", "zero"),
    )
    scope = scope_of(layout)
    shared = {w.path for w in layout.heads if w.looked_up} | set(layout.tables)
    own = [w for w in layout.heads if w.fan_in and (tied or w.path not in shared)]
    return Rule("weights of the head", law, tuple(Target(w, init, scope, mistakes) for w in own))


def bare(layout: Layout, width: int, base_width: int) -> str:
    """``""``, or why the network does not show what muP asks for beside initialisers and rates."""
    if any(branch.head for branch in layout.branches):
        return ""
    if not layout.heads:
        return "without a head and attention only its rates are its own, which an optimizer has"
    if width == base_width:
        return "at the base width, without attention, only its name is its own"
    return ""


def mup(base_width: int = 256, head: str = "") -> Recipe:
    """muP against a network of ``base_width``, at which rates were found. ``head``: the head's
    initialiser, ``"zeros"`` or one that is the same at every width. Raises NetworkError, and
    EquationError for an initialiser that is none."""
    base_width = whole("base_width", base_width)
    expect("head", head, str, "an initialiser as text, such as 'zeros'")
    if head:
        init_of(head)
    last = head or f"normal(std=1/sqrt({base_width}))"

    def plan(layout: Layout) -> Plan:
        width = width_of(layout, "muP")
        m = width / base_width
        hidden, outside = matrices(layout, width)
        scope = scope_of(layout, layout.branches[-1])
        targets = tuple(Target(w, "lecun", scope, _mistakes(w)) for w in (*hidden, *outside))
        paths = tuple(dict.fromkeys(w.path for w in (*hidden, *outside)))
        form = Form(logits="1/d", logits_mistakes=LOGITS_MISTAKES)
        return Plan(
            (
                Rule("hidden weights", "1 / sqrt(fan in)", targets),
                head_rule(layout, last, "the same at every width"),
            ),
            tuple(form for _ in layout.branches),
            groups=(Group("hidden weights", paths, 1 / m, decay=m),),
            outlet=f"{base_width}/n",
            adaptive=True,
            bare=bare(layout, width, base_width),
        )

    return Recipe(
        "mup",
        "muP",
        f"residual branches of one width; Adam; rates that were found at the width {base_width}",
        (
            f"m = width / {base_width}, the base width: another by depthgauge.recipes.mup.mup",
            "hidden matrices: normal of variance 1 / fan in; rate 1/m, weight decay times m",
            f"the input of the head is multiplied by 1/m, its weight: {last} at every width",
            "attention logits: q k / d, d features in a head, not q k / sqrt(d)",
            "embeddings, biases, norms and the head: the full rate",
        ),
        (
            "an optimiser that multiplies weight decay by no rate takes it as it is, not times m",
            "groups are made after the initialisation, from the parameters that will be trained",
            "initialisers that run again afterwards undo it",
            "where queries, keys and values are one layer, its queries alone are multiplied: the "
            "rows of its weight cannot have a rate of their own",
            "a learning rate is found at the base width, and then kept",
        ),
        "Yang et al., arXiv 2203.03466; microsoft/mup",
        plan,
        tier=2,
        judgement="the constants of variances are 1 for hidden weights and 1 / base width for the "
        "head, which may be zero as well (mup(head='zeros')); a tied head keeps what its embedding "
        "has; a weight outside of branches that takes "
        "as many inputs as the stream is wide counts as hidden; rates, decay and the kind of "
        "optimiser are held only where an audit is given the optimiser",
    )


MUP = mup()
