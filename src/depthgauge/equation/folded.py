"""The text that a run of a module gives: blocks that are alike folded, one line a stream.

12 x [h = h + attention(layernorm(h)); h = h + W(gelu(W(layernorm(h))))]
encoder.block: 3 x [h = h + W(h)]; h = conv1(h)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from depthgauge.equation.nodes import Block
from depthgauge.equation.parse import parse
from depthgauge.errors import EquationError

__all__ = ["Folded", "Repeated", "folded"]

_TIMES: Final = re.compile(r"(\d+) x \[")
#: A stream's name, which no equation begins with.
_NAME: Final = re.compile(r'([^"=;()\[\]\s]+): ')


@dataclass(frozen=True)
class Repeated:
    """A block, and how many of it stand one behind the other."""

    times: int
    block: Block


@dataclass(frozen=True)
class Folded:
    """What one stream runs through; ``name`` is ``""`` where there is only one stream."""

    name: str
    parts: tuple[Repeated, ...]


def folded(text: str) -> tuple[Folded, ...]:
    """The streams of a text that a run gave. Raises EquationError where it is none."""
    streams = []
    for line in text.splitlines():
        named = _NAME.match(line)
        rest = line[named.end() :] if named else line
        parts = tuple(Repeated(times, parse(part)) for times, part in _parts(rest))
        streams.append(Folded(named[1] if named else "", parts))
    return tuple(streams)


def _parts(line: str) -> Iterator[tuple[int, str]]:
    """``3 x [a]; b`` is ``(3, "a"), (1, "b")``."""
    start = at = 0
    while at < len(line):
        found = _TIMES.match(line, at)
        if found and (at == 0 or line[:at].endswith("; ")):
            if before := line[start:at].removesuffix("; "):
                yield 1, before
            end = _closed(line, found.end())
            yield int(found[1]), line[found.end() : end]
            start = at = end + 1 + 2 * line.startswith("; ", end + 1)
        else:
            at = _ended(line, at) if line[at] in "\"'" else at + 1
    if rest := line[start:]:
        yield 1, rest


def _closed(line: str, at: int) -> int:
    """Where the bracket closes that was opened before ``at``."""
    deep = 1
    while at < len(line):
        if line[at] in "\"'":
            at = _ended(line, at)
            continue
        deep += {"[": 1, "]": -1}.get(line[at], 0)
        if not deep:
            return at
        at += 1
    raise EquationError(f"'{line}' opens a bracket that nothing closes; write 3 x [h = ...]")


def _ended(line: str, at: int) -> int:
    """Behind the text in quotes that begins there."""
    end = line.find(line[at], at + 1)
    return len(line) if end < 0 else end + 1
