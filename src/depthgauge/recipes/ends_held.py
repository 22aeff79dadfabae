"""What follows a stream's last sum, held to a recipe: its final norm, the numbers of heads."""

from __future__ import annotations

import math
from typing import Final

from depthgauge.recipes.finding import Finding
from depthgauge.recipes.rules import Plan, number_of, scope_of
from depthgauge.trace.counted import End, Layout, Normed

__all__ = ["final_finding", "outlet_finding"]

#: How far a fixed number may lie from the recipe's.
_CLOSE: Final = 1e-3


def final_finding(found: Layout, plan: Plan) -> Finding:
    """The norm between the last sum of a stream and the layer that reads it."""
    part = "final norms"
    if plan.final == "none":
        extra = [norm.path for end in found.ends for norm in end.norms]
        said = f"{len(extra) or 'no'} norms after the last branch of a stream"
        said += f"; '{extra[0]}' stands behind a norm" if extra else ""
        return Finding(part, int(not extra), 1, said)
    read = [end for end in found.ends if end.readers]
    norms = [end.norms or _behind(found, end) for end in read]
    kinds = [[n.kind for n in here if not plan.final or n.kind == plan.final] for here in norms]
    right = sum(len(here) == 1 for here in kinds)
    said = f"{right} of {len(read)} streams with a final norm"
    if right < len(read):
        at = next(k for k, here in enumerate(kinds) if len(here) != 1)
        has = ", ".join(norm.kind for norm in norms[at]) or "none in front of its reader"
        said += f"; '{read[at].stream}' has {has}"
    return Finding(part, right, len(read), said)


def _behind(found: Layout, end: End) -> tuple[Normed, ...]:
    """The norm behind the last sum, which stands there as those behind the other sums do."""
    branch = next(b for b in reversed(found.branches) if b.stream == end.stream)
    return tuple(norm for norm in branch.norms if norm.at == "stream")


def outlet_finding(found: Layout, outlet: str) -> Finding:
    """The fixed number around each head."""
    asked = number_of(outlet, scope_of(found, found.branches[-1] if found.branches else None))
    right = [math.isclose(number, asked, rel_tol=_CLOSE) for number in found.outlets]
    said = f"{sum(right)} of {len(right)} heads whose input is multiplied by {outlet} = {asked:.4g}"
    if not all(right):
        at = right.index(False)
        said += f"; '{found.heads[at].path}' has {found.outlets[at]:.4g}"
        said += (
            ": on the path that this batch takes it is missing" if found.outlets[at] == 1 else ""
        )
    return Finding("multipliers of heads", sum(right), len(right), said)
