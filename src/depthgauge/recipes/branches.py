"""The residual branches of a network, as recipes ask for them."""

from __future__ import annotations

from depthgauge.errors import NetworkError
from depthgauge.trace.counted import Layout, Residual

__all__ = ["index_of", "reached", "refuse_plain"]


def refuse_plain(layout: Layout, title: str) -> None:
    """Raise for a network without a residual branch."""
    if not layout.branches:
        raise NetworkError(
            f"no residual branch was found, and {title} is a rule about them; give a network with "
            f"a skip connection, or look at what 'depthgauge measure' finds in it"
        )


def index_of(layout: Layout) -> tuple[str, ...]:
    """For each branch its place among all, from 1: in ``l`` where every block has as many, which is
    what an equation has, else as a number, since blocks of a ResNet fold as they repeat."""
    branches = layout.branches
    each = len(branches) // max(layout.blocks, 1)
    even = all(branch.block == k // max(each, 1) + 1 for k, branch in enumerate(branches))
    if not even:
        return tuple(str(k) for k in range(1, len(branches) + 1))
    if each == 1:
        return tuple("l" for _ in branches)
    return tuple(f"({each}*(l-1)+{k % each + 1})" for k in range(len(branches)))


def reached(layout: Layout) -> tuple[Residual, ...]:
    """The branches of the stream that ends last. What another stream gives it, an encoder's memory,
    passes through branches that may be silent, so that its own weights wake later."""
    last = layout.branches[-1].stream if layout.branches else ""
    return tuple(branch for branch in layout.branches if branch.stream == last)
