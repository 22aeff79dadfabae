"""u-muP (Blake et al., arXiv 2407.17465): unit scaling, with rates that stay right as width and
depth grow, by Adam.

    h = (h + tau_i F(h)) / sqrt(1 + tau_i^2),   tau_i = rho / sqrt(L / 2 + (i - 1) rho^2)

Index legend: ``L`` residual branches, ``i`` the branch among them, from 1. At the last sum every
branch has the same share, and all together rho sqrt(2) times that of the state that entered.

    weights of branches           rate 1 / sqrt(fan in) / sqrt(blocks)
    biases and norms of branches  rate 1 / sqrt(blocks)
    stems, embeddings             rate 1 / sqrt(fan in), of an embedding its features
    all else, the head            rate 1
    weight decay                  of the same size at each step, whatever the rate
"""

from __future__ import annotations

from collections.abc import Iterator

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import index_of
from depthgauge.recipes.completep import vectors_of
from depthgauge.recipes.given import number
from depthgauge.recipes.rules import Group, Plan, Recipe
from depthgauge.recipes.unit_scaling import unit_plan
from depthgauge.trace.counted import Layout, Weight

__all__ = ["U_MUP", "u_mup"]


def _weighed(rho: str, i: str) -> tuple[tuple[str, str, str], ...]:
    """The skip's number and the branch's of branch ``i``, and what is met in their place."""
    square = "" if rho == "1" else f"*{rho}**2"
    before, after = f"(L/2+({i}-1){square})", f"(L/2+{i}{square})"
    skip, branch = f"sqrt({before}/{after})", f"{rho}/sqrt({after})"
    before_l, after_l = before.replace("L/2", "L"), after.replace("L/2", "L")
    return (
        (skip, branch, ""),
        (branch, skip, "tau weighs the skip, where it is to weigh the branch"),
        ("1/sqrt(2)", "1/sqrt(2)", "tau = 1 in every branch, unit scaling without u-muP"),
        ("1", f"{rho}/sqrt{before}", "the branch is weighed by tau, and the sum is not divided"),
        (f"sqrt({before_l}/{after_l})", f"{rho}/sqrt{after_l}", "L, where L / 2 is asked"),
    )


def _groups(layout: Layout) -> Iterator[Group]:
    """One for each rate; weight decay times its rate is the same for all."""
    slow = layout.blocks**-0.5
    inside = [w for branch in layout.branches for w in branch.weights]
    apart = {w.path for w in layout.heads} | set(layout.tables) | {w.path for w in inside}
    stems = [w for w in layout.outside if w.fan_in and w.path not in apart and not w.looked_up]
    for what, weights, times in (
        ("weights of branches", inside, slow),
        ("weights outside of branches", stems, 1.0),
    ):
        for fan in sorted({w.fan_in for w in weights}):
            rate = times * fan**-0.5
            paths = tuple(dict.fromkeys(w.path for w in weights if w.fan_in == fan))
            yield Group(f"{what}, fan in {fan}", paths, rate, 1 / rate)
    tables = {w.path: _features(w) for w in layout.outside if w.path in layout.tables}
    for width in sorted(set(tables.values())):
        paths = tuple(path for path, own in tables.items() if own == width)
        yield Group(f"embeddings of {width} features", paths, width**-0.5, width**0.5)
    yield Group("biases and norms of branches", vectors_of(layout), slow, 1 / slow)


def _features(weight: Weight) -> int:
    return weight.shape[1]


def u_mup(rho: float = 1.0) -> Recipe:
    """u-muP in which the branches together weigh ``rho`` sqrt(2) times the state that entered."""
    rho = number("rho", rho)

    def plan(layout: Layout) -> Plan:
        if len(layout.streams) > 1:
            raise NetworkError(
                f"{len(layout.streams)} streams were found, and u-muP counts the branches of one; "
                f"give an encoder or a decoder by itself"
            )
        places = index_of(layout) if layout.branches else ()
        found = unit_plan(layout, "u-muP", lambda k: _weighed(f"{rho:g}", places[k]))
        return Plan(
            found.rules,
            found.forms,
            outlet=found.outlet,
            around=found.around,
            groups=tuple(_groups(layout)),
            adaptive=True,
        )

    return Recipe(
        "u-mup",
        "u-muP",
        "one stream of residual branches of one width, of linear layers or convolutions in a row; "
        "Adam",
        (
            "weights, biases and the numbers around layers: those of 'unit-scaling'",
            f"h = (h + tau F(h)) / sqrt(1 + tau^2), tau = rho / sqrt(L/2 + (i-1) rho^2) for branch "
            f"i of L, rho = {rho:g}",
            "weights of branches: rate 1/sqrt(fan in)/sqrt(blocks); their biases and norms: "
            "1/sqrt(blocks)",
            "other weights and embeddings: rate 1/sqrt(fan in), of an embedding its features; the "
            "head: the full rate",
            "weight decay is divided by the rate of its group",
        ),
        (
            "tau counts branches, rates count blocks",
            "a larger tau weighs the branch more; a docstring of the authors' library has it the "
            "other way round",
            "the full rate is that of numbers of size 1: it is of the order of 1, not of 0.001",
            "an optimiser that multiplies weight decay by no rate takes it as it is",
            "gradient descent wants other rates",
        ),
        "Blake et al., arXiv 2407.17465; graphcore-research/unit-scaling",
        plan,
        tier=3,
        judgement="branches without attention are all of one kind, so that the ratio of attention "
        "to feed-forward layers does not enter; networks with attention are refused, as by "
        "'unit-scaling', whose judgement on backward factors holds here; rates and decay are held "
        "only where an audit is given the optimiser",
    )


U_MUP = u_mup()
