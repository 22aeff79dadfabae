"""Where a Transformer's norms stand: in front of a branch, after the sum, or around the branch.

    post       x <- N(x + F(x))          no norm after the last      Vaswani et al. 1706.03762
    pre        x <- x + F(N(x))          one norm after the last     Xiong et al. 2002.04745
    sandwich   x <- x + N(F(N(x)))       one norm after the last     Ding et al. 2105.13290

One function makes them all, for whatever kind of norm the network has and for each kind by name.
"""

from __future__ import annotations

from typing import Final

from depthgauge.errors import NetworkError, expect
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target
from depthgauge.trace.counted import Layout, Weight

__all__ = ["PLACEMENTS", "form_of", "placed"]

KINDS: Final = {
    "batchnorm": "batch norm",
    "layernorm": "layer norm",
    "groupnorm": "group norm",
    "rmsnorm": "RMS norm",
}

#: By name: places, the norm after the last sum, and what is met in their place, with its words.
_FORMS: Final[dict[str, tuple[tuple[str, ...], str, tuple[tuple[tuple[str, ...], str], ...]]]] = {
    "prenorm": (
        ("in",),
        "",
        (
            (
                ("stream",),
                "the residual is taken from the normed x: the skip has to carry x itself",
            ),
            (("in", "stream"), "a second norm stands after the sum"),
            (("in", "out"), "a second norm stands at the branch's end: a sandwich"),
            (("out",), "the norm stands at the branch's end"),
            ((), "the branch has no norm"),
        ),
    ),
    "postnorm": (
        ("stream",),
        "none",
        (
            (("in",), "the norm stands in front of the branch: pre-norm"),
            (("out",), "the norm is of the branch alone, and has to be of the sum"),
            (("in", "stream"), "a second norm stands in front of the branch"),
            ((), "the sum has no norm"),
        ),
    ),
    "sandwich": (
        ("in", "out"),
        "",
        (
            (("in", "stream"), "the second norm stands after the sum, not at the branch's end"),
            (("in",), "the norm at the branch's end is missing"),
            (("out",), "the norm in front is missing"),
            (("stream",), "the norm stands after the sum: post-norm"),
            ((), "the branch has no norm"),
        ),
    ),
}

_TITLES: Final = {"prenorm": "Pre-norm", "postnorm": "Post-norm", "sandwich": "Sandwich norm"}
_RULES: Final = {
    "prenorm": ("x <- x + F(N(x))", "one norm between the last sum and the layer that reads it"),
    "postnorm": ("x <- N(x + F(x))", "no norm after the last one"),
    "sandwich": (
        "x <- x + N(F(N(x)))",
        "one norm between the last sum and the layer that reads it",
    ),
}
_TRAPS: Final = {
    "prenorm": (
        "without a final norm the head reads a stream that grows with depth",
        "a residual taken from the normed x is post-norm under another name",
    ),
    "postnorm": (
        "PyTorch's nn.Transformer puts one more norm after each stack, also of post-norm layers",
        "gradients at the start are largest in the last layers: it needs a warm-up",
    ),
    "sandwich": (
        "drawn with its second norm after the sum it is another network",
        "the gain of the norm at the branch's end has to learn",
    ),
}
_REFERENCES: Final = {
    "prenorm": "Xiong et al., arXiv 2002.04745",
    "postnorm": "Vaswani et al., arXiv 1706.03762",
    "sandwich": "Ding et al., arXiv 2105.13290; as Peri-LN Kim et al., arXiv 2502.02732",
}
_JUDGEMENT: Final = {
    "prenorm": "a final norm is asked for where a layer reads the stream's end",
    "sandwich": "a final norm is asked for where a layer reads the stream's end, as in pre-norm",
}


_ENDS: Final = "recalled; the paper was not read"
_UNCONFIRMED: Final = {
    "prenorm": ((_RULES["prenorm"][1], _ENDS),),
    "postnorm": ((_RULES["postnorm"][1], _ENDS),),
}


def form_of(name: str, kind: str = "") -> Form:
    """The form of each branch by a placement, with norms of this kind: ``""`` for the kind that is
    there."""
    places, _, misplaced = _FORMS[name]
    return Form(norms=dict.fromkeys(places, kind), misplaced=misplaced)


def placed(name: str, kind: str = "") -> Recipe:
    """The recipe of a placement, with norms of this kind: ``""`` for the kind that is there.
    Raises NetworkError for a name or a kind that is none."""
    expect("name", name, str, f"one of {', '.join(_FORMS)}")
    expect("kind", kind, str, f"one of {', '.join(KINDS)}")
    if name not in _FORMS:
        raise NetworkError(f"placement is {name!r}, expected one of {', '.join(_FORMS)}")
    if kind not in ("", *KINDS):
        raise NetworkError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}, or none")
    form, final = form_of(name, kind), _FORMS[name][1]
    title = _TITLES[name] + (f" with {KINDS[kind]}" if kind else "")

    def plan(layout: Layout) -> Plan:
        refuse_plain(layout, title)
        last = final if final else kind
        lengths = () if kind else (_lengths(layout),)
        return Plan(lengths, tuple(form for _ in layout.branches), final=last)

    which = f"every norm is {KINDS[kind]}" if kind else "the kind that is there, else layer norm"
    which += "; norms of queries and keys are left as they are"
    lengths = () if kind else ("the learned number of a ScaleNorm begins at sqrt(d), d the width",)
    return Recipe(
        f"{name}-{kind}" if kind else name,
        title,
        "residual branches",
        (*_RULES[name], which, *lengths),
        _TRAPS[name],
        _REFERENCES[name],
        plan,
        judgement=_JUDGEMENT.get(name, ""),
        unconfirmed=_UNCONFIRMED.get(name, ()),
    )


def _lengths(layout: Layout) -> Rule:
    """What ScaleNorm's learned numbers begin with: the length of a state whose RMS is 1."""
    norms = [norm for branch in layout.branches for norm in branch.placed]
    norms += [norm for end in layout.ends for norm in end.norms]
    found = [n for n in norms if n.kind == "scalenorm" and n.gain]
    starts = {n.gain: f"sqrt({n.width})" + f"/{n.times:.12g}" * (n.times != 1) for n in found}
    others = (
        ("constant(1)", "g begins at 1, as the gains of other norms do; here it is a length"),
    )
    beside = ", over the fixed number behind it" if any(n.times != 1 for n in found) else ""
    return Rule(
        "gains of ScaleNorm",
        f"sqrt(d), d the width{beside}",
        tuple(
            Target(Weight(path, (1,), 0, 0, False, False), f"constant({start})", {}, others)
            for path, start in starts.items()
        ),
        vectors=True,
    )


PLACEMENTS: Final = tuple(placed(name, kind) for name in _FORMS for kind in ("", *KINDS))
