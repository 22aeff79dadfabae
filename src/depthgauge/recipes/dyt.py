"""Dynamic Tanh (Zhu et al., "Transformers without Normalization", arXiv 2503.10622).

    y = gamma tanh(alpha x) + beta,  alpha = 0.5, gamma = 1, beta = 0 at the start

in the place of every norm, also of the final one; alpha is one learned number a site.
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Form, Group, Plan, Recipe, Rule, Target
from depthgauge.trace.counted import Layout, Weight

__all__ = ["DYT", "bounded_plan"]


def bounded_plan(layout: Layout, kind: str, title: str, starts: dict[str, str]) -> Plan:
    """A bounded function, ``dyt`` or ``derf``, in the place of every norm; ``starts``: what its
    learned numbers begin with, in order."""
    if not layout.every:
        raise NetworkError(
            f"no norm was found, and {title} takes the place of norms; give a network that has "
            f"them, or put them in with 'prenorm' first"
        )
    there = [norm for norm in layout.every if norm.kind == kind]
    rows = [
        (name, start, [n.numbers[place] for n in layout.every if len(n.numbers) > place])
        for place, (name, start) in enumerate(starts.items())
    ]
    rows.append(("gamma", "1", [norm.gain for norm in there if norm.gain]))
    rows.append(("beta", "0", [norm.offset for norm in there if norm.offset]))
    rules = []
    for name, start, paths in rows:
        targets = (
            Target(Weight(path, (1,), 0, 0, False, False), f"constant({start})", {})
            for path in dict.fromkeys(paths)
        )
        law = f"{start} at the start"
        rules.append(Rule(f"{name} of {title}", law, tuple(targets), vectors=True))
    numbers = tuple(dict.fromkeys(path for norm in layout.every for path in norm.numbers))
    forms = tuple(
        Form(norms=dict.fromkeys((n.at for n in branch.placed), kind) if branch.placed else None)
        for branch in layout.branches
    )
    return Plan(
        tuple(rules),
        forms,
        groups=(Group(f"numbers of {title}", numbers, decay=0),),
        everywhere=kind,
    )


def _plan(layout: Layout) -> Plan:
    return bounded_plan(layout, "dyt", "DyT", {"alpha": "0.5"})


DYT = Recipe(
    "dyt",
    "Dynamic Tanh (DyT)",
    "norms",
    (
        "gamma tanh(alpha x) + beta in the place of every norm, also of the final one",
        "alpha = 0.5, one number a site; gamma = 1 and beta = 0, one a channel",
    ),
    (
        "alpha is chosen by width, not by depth; wide language models take less than 0.5",
        "a Llama with DyT also learns a number, sqrt(d), in front of its embeddings",
        "scale is no longer divided out: DyT(c x) is not DyT(x)",
        "in the place of batch norm in convolutional networks it loses accuracy",
        "alpha is kept from weight decay",
    ),
    "Zhu et al., arXiv 2503.10622; jiachenzhu/DyT",
    _plan,
    judgement=(
        "alpha is 0.5 everywhere, as in all but the language models of the paper; weight decay is "
        "not meant for alpha"
    ),
)
