"""Reading back: what stands between two states as a block equation, each form of region once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from depthgauge.equation.nodes import Block
from depthgauge.trace.blocks import marks_of, owned, remarked, unmarked
from depthgauge.trace.region import Region, Sources

__all__ = ["Equation", "Reader"]


@dataclass(frozen=True)
class Equation:
    """One block read back, the path of the module around it, and what in it was opaque.

    In ``marked`` every layer and learned number is called by the value that it is, in ``block`` by
    a name of its own if it stands there twice. Of equations that read alike there is one ``first``
    in which they are marked, and ``own`` gives this one's values in the places of the first's.
    """

    block: Block
    first: Block
    own: Mapping[int, int]
    marks_of_first: tuple[str, ...]
    path: str
    opaque: tuple[tuple[str, str], ...] = ()

    @property
    def marked(self) -> Block:
        return remarked(self.first, self.own)

    @property
    def marks(self) -> list[str]:
        """The layers and learned numbers in it, as often as they stand there."""
        return [owned(mark, self.own) for mark in self.marks_of_first]


@dataclass(frozen=True)
class _Read:
    """What one region was read as, and the values of its layers and learned numbers in order."""

    block: Block
    marked: Block
    marks: tuple[str, ...]
    opaque: tuple[tuple[str, str], ...]
    path: str
    learned: tuple[int, ...]


@dataclass
class Reader(Sources):
    """Reads regions of one graph, each form once."""

    #: Blocks read so far, by what stands in their regions.
    _known: dict[object, _Read] = field(default_factory=dict)

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
            known = _Read(block, marked, marks_of(marked), tuple(region.opaque), path, learned)
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
        return Equation(known.block, known.marked, own, known.marks, path, here)
