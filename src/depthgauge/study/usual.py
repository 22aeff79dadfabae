"""The changes of an equation that are tried where nobody names any."""

from __future__ import annotations

from depthgauge.equation.nodes import Norm, Symbol, walk
from depthgauge.network.spec import Network
from depthgauge.study.changes import Change, activations

__all__ = ["usual"]


def usual(network: Network) -> list[Change]:
    """What is varied where nobody says: the norm moved and taken away (or put in), the branches'
    scale halved and doubled (and by the depth, where nothing is), other activations, orthogonal
    weights."""
    norms = any(isinstance(node, Norm) for node in walk(network.block))
    own = {node.kind for node in activations(network.block)} - {"identity"}
    moved = "post" if network.count.placement == "pre" else "pre"
    found = []
    if network.branches:
        if norms:
            found.append(Change("placement", moved))
        found += [Change("norm", "none" if norms else "rmsnorm")]
        found += [Change("scale", "/2"), Change("scale", "*2")]
        if not {Symbol("L"), Symbol("depth"), Symbol("l")} & set(walk(network.block)):
            found.append(Change("scale", "1/sqrt(L)"))
    elif norms:
        found.append(Change("norm", "none"))
    if own:
        found += [Change("activation", k) for k in ("relu", "gelu", "tanh") if own != {k}]
    return [*found, Change("init", "orthogonal")]
