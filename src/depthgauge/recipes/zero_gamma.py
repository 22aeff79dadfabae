"""Zero gamma (Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677).

    h = h + gamma * (x - mean) / std + beta,  gamma = 0 at the start

of the norm that a branch ends with: every block begins as its skip.
"""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import reached, refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe
from depthgauge.trace.counted import Layout, Residual

__all__ = ["ZERO_GAMMA"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "zero gamma")
    for branch in layout.branches:
        _ends_with_norm(branch)
    form = Form(
        skip="1",
        factor="1",
        gains={"out": "0"},
        mistakes=(("1", "1/sqrt(L)", "a fixed 1/sqrt(L) as well: it is scaled twice"),),
    )
    wakes = {n.gain: 0 for b in reached(layout) for n in b.norms if n.at == "out" and n.gain}
    wakes |= {w.path: 1 for branch in reached(layout) for w in branch.weights}
    return Plan(forms=tuple(form for _ in layout.branches), silent=True, wakes=wakes)


def _ends_with_norm(branch: Residual) -> None:
    if not any(norm.at == "out" for norm in branch.norms):
        raise NetworkError(
            f"the branch '{branch.path}' does not end with a norm, whose gain would begin at 0; "
            f"give a network with norms at the ends of branches, or use rezero or skipinit"
        )


ZERO_GAMMA = Recipe(
    "zero-gamma",
    "Zero gamma: the last norm of each branch begins at 0",
    "residual branches that end with a norm, as those of ResNets with batch norm do",
    ("the gain of the norm at each branch's end begins at 0",),
    (
        "the last norm of the branch, not its first, and not that of the shortcut",
        "the norm's own bias has to be 0 as well, as it is by default",
        "inside branches the gradient of the first step is zero by design",
        "a pre-activation block ends with a weight, and has no such norm",
    ),
    "Goyal et al., arXiv 1706.02677",
    _plan,
)
