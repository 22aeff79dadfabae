"""One block in other words: two texts of an equation that differ in nothing that is computed.

    a = 1/sqrt(L); h = h + a * W2(relu(W1(h)))        h = h + W2(relu(W1(h)))/sqrt(L)

Names of scalars and of values, definitions, and spellings of one number do not count, as they do
not in an ablation (``depthgauge.study.trees``); the names of layers do, for their weights are drawn
by them, and so does what is learned once and used twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from depthgauge.equation.nodes import (
    Attention,
    Block,
    Dropout,
    LearnedGain,
    LearnedScalar,
    Norm,
    walk,
)
from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.equation.written import WEIGHTS, written_out
from depthgauge.errors import DepthgaugeError
from depthgauge.network.layers import named

if TYPE_CHECKING:
    from depthgauge.record.parts import Subject

#: Options of a norm that are learned.
_LEARNED: Final = ("gain", "bias", "alpha", "shift")

__all__ = ["OTHER_WORDS", "as_written", "inits_in"]

OTHER_WORDS: Final = (
    "the equation is the same block in other words than those of the record: names, definitions "
    "and spellings of one number do not count"
)


def as_written(before: Subject, after: Subject) -> tuple[Subject, str]:
    """``after`` with the words of ``before``, and a note that they are others, where both are the
    same block of an equation; else ``after`` as it is and ``""``."""
    equations = before.kind == after.kind == "equation"
    if not equations or before.equation == after.equation or not _same(before, after):
        return after, ""
    words = {name: getattr(before, name) for name in ("equation", "equation_hash", "scalars")}
    return after.model_copy(update={**words, "latex": before.latex}), OTHER_WORDS


def inits_in(block: Block) -> dict[str, str]:
    """The initialisers that an equation itself names, by layer."""
    found: dict[str, str] = {}
    for node in walk(named(block)):
        if isinstance(node, WEIGHTS) and node.init is not None:
            parts = [f".{part}" for part in "qkvo"] if isinstance(node, Attention) else [""]
            found |= {f"{node.name}{part}": to_text(node.init) for part in parts}
    return found


def _same(before: Subject, after: Subject) -> bool:
    from depthgauge.study.trees import Tree

    try:
        blocks = parse(before.equation), parse(after.equation)
        ours, theirs = map(Tree, blocks)
        return (
            _told(after, blocks[1])
            and (shared := _shared(blocks[0])) is not None
            and shared == _shared(blocks[1])
            and not ours.differs(theirs, "activation", "norm")
            and not ours.rescaled(theirs, [*_scopes(before), *_scopes(after)])
        )
    except DepthgaugeError:  # a text of another version, or a block that no tree is made of
        return False


def _told(subject: Subject, block: Block) -> bool:
    """Whether what the text says of initialisers is what the subject's table says."""
    return all(subject.init.get(name) == text for name, text in inits_in(block).items())


def _scopes(subject: Subject) -> Sequence[Mapping[str, float]]:
    """What a scalar may name, at a few blocks of the network."""
    depth = subject.depth
    fixed = {"L": subject.branches, "depth": depth, "n": subject.width or 1}
    blocks = sorted({1, 2, 3, (depth + 1) // 2, depth})
    return [{**{k: float(x) for k, x in fixed.items()}, "l": float(l)} for l in blocks]


def _shared(block: Block) -> tuple[int, ...] | None:
    """Which of what is learned is one, by its places in the block written out; None where a name
    that is used twice and two calls are not the same although they read so: of dropout, which is
    drawn anew, and of a norm that gathers statistics."""
    found = [node for value in written_out(named(block)) for node in walk(value)]
    uses = Counter(node.name for node in found if isinstance(node, Dropout | Norm))
    places: dict[str, int] = {}
    shared = []
    for node in found:
        if isinstance(node, Dropout) or (isinstance(node, Norm) and _gathers(node)):
            if uses[node.name] > 1:
                return None
        elif isinstance(node, LearnedGain | LearnedScalar) or (
            isinstance(node, Norm) and _learns(node)
        ):
            shared.append(places.setdefault(node.name, len(places)))
    return tuple(shared)


def _gathers(norm: Norm) -> bool:
    return norm.kind == "batchnorm" or "batch" in str(dict(norm.options).get("axis"))


def _learns(norm: Norm) -> bool:
    options = dict(norm.options)
    return any(options.get(name) not in (None, False) for name in _LEARNED)
