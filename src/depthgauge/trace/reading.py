"""Reading back: what stands between two states as a block equation, each form of region once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from depthgauge.equation.nodes import Block, Node, Norm, Opaque, Scale, rewrite
from depthgauge.trace.blocks import bare, marks_of, owned, remarked, unbegun, unmarked
from depthgauge.trace.region import Region, Sources

__all__ = ["Equation", "Reader"]


@dataclass(frozen=True)
class Read:
    """What regions that read alike are read as, marked by the values of the first of them."""

    block: Block
    marked: Block
    marks: tuple[str, ...]
    opaque: tuple[tuple[str, str], ...]
    path: str
    #: The layers and learned numbers in order.
    learned: tuple[int, ...]
    #: With which rates weights of attention are dropped, which the block does not say.
    dropped: tuple[float, ...] = ()
    #: What is opaque since it was made before, under one name in all of them.
    elsewhere: tuple[tuple[str, str], ...] = ()

    @cached_property
    def outline(self) -> Block:
        """What blocks of one kind have in common: the form without options, factors and norms,
        for a rule may give each block its own."""

        def rule(node: Node) -> Node:
            match node:
                case Scale(value=inside) | Norm(value=inside):
                    return inside
                case Opaque(arguments=()):  # a tensor from before, another in each block
                    return replace(node, name="*")
                case Opaque(name=name):  # of one value in each block: 'blocks.3.gate'
                    return replace(node, name=re.sub(r"\d+", "*", name))
            return node

        found = rewrite(bare(self.form), rule)
        assert isinstance(found, Block)
        return found

    @cached_property
    def form(self) -> Block:
        """The block without what its learned numbers begin with."""
        return unmarked([unbegun(self.marked)])

    @cached_property
    def chosen(self) -> Block:
        """The block with what its learned numbers begin with where that can have been chosen: not
        where they differ from channel to channel."""
        return unmarked([unbegun(self.marked, "scalars")])

    @cached_property
    def gained(self) -> Block:
        """That without scalars: one number may be chosen or trained."""
        return unmarked([unbegun(self.marked, "gains")])


@dataclass(frozen=True)
class Equation:
    """One block read back, the path of the module around it, and what in it was opaque.

    In ``marked`` every layer and learned number is called by the value that it is, in ``block`` by
    a name of its own if it stands there twice. Equations that read alike share one ``read``, and
    ``own`` gives this one's values in the places of the first's.
    """

    read: Read
    own: Mapping[int, int]
    path: str
    opaque: tuple[tuple[str, str], ...] = ()

    @property
    def block(self) -> Block:
        return self.read.block

    @property
    def marked(self) -> Block:
        return remarked(self.read.marked, self.own)

    @property
    def marks(self) -> list[str]:
        """The layers and learned numbers in it, as often as they stand there."""
        return [owned(mark, self.own) for mark in self.read.marks]


@dataclass
class Reader(Sources):
    """Reads regions of one graph, each form once."""

    #: Blocks read so far, by what stands in their regions.
    _known: dict[object, Read] = field(default_factory=dict)

    def read(
        self,
        before: int,
        after: int,
        foreign: Mapping[int, str],
        branches: Sequence[Sequence[int]] = (),
        initial: int = -1,
        end: int = -1,
    ) -> Equation:
        """``h = ...`` for the value ``after``, with ``before`` as ``h``.

        ``foreign`` names values of other streams, which are leaves. ``branches``: the terms that a
        merge adds, each of which is hidden as a whole where little of it can be said. ``initial``
        is the stream's first tensor, ``h0``; ``end`` the sum, after which the stream may go on
        inside the next module.
        """
        region = Region(self, before, after, foreign, branches, initial, end)
        key, learned = region.key()
        path = region.path
        try:
            known = self._known.get(key)
        except TypeError:  # an argument that cannot be compared
            key, known = object(), None
        if known is None:
            marked = region.block()
            block = unmarked([marked])
            opaque, dropped = tuple(region.opaque), tuple(region.dropped)
            met = tuple(region.elsewhere)
            known = Read(block, marked, marks_of(marked), opaque, path, learned, dropped, met)
            self._known[key] = known
        # A region that reads like an earlier one hides the same, in its own modules, and has its
        # own layers.
        first = known.path
        here = tuple(
            [
                (f"{path}{place[len(first) :]}" if place.startswith(first) else place, name)
                for place, name in known.opaque
            ]
        )
        own = dict(zip(known.learned, learned, strict=True))
        return Equation(known, own, path, (*here, *known.elsewhere))
