"""Parts of another module under the names of the module that it is held against.

A module in a wrapper has other paths: ``net.0.weight`` for ``0.weight``. What is the very same
object in both has the name it has in the one that was measured; of the rest what all parameters
have in front of their names is taken off, or put on, where more of the names are the same then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TypeVar

from depthgauge.trace.inventory import Inventory

__all__ = ["matched", "strays"]

_Part = TypeVar("_Part")


def matched(ours: Inventory, theirs: Inventory) -> Inventory:
    """``theirs`` with the names of ``ours``; what has none keeps its own, in brackets where that
    is taken."""
    off, on = _change(ours, theirs)
    return Inventory(
        _renamed(ours.modules, theirs.modules, off, on),
        _renamed(ours.parameters, theirs.parameters, off, on),
        _renamed(ours.buffers, theirs.buffers, off, on),
    )


def strays(ours: Inventory, theirs: Inventory) -> str:
    """``""``, or which module of ours has no counterpart of its path."""
    known = {path for path, _ in theirs.modules}
    lacking = [path for path, _ in ours.modules if path not in known]
    if not lacking:
        return ""
    others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"it has no module called '{lacking[0]}'{others}"


def _renamed(
    ours: Sequence[tuple[str, _Part]], theirs: Sequence[tuple[str, _Part]], off: str, on: str
) -> list[tuple[str, _Part]]:
    same = {id(part): name for name, part in ours}
    found = {name: same[id(part)] for name, part in theirs if id(part) in same}
    taken = set(found.values())
    for name, part in theirs:
        if name in found:  # the wrapper of a compiled part has the name of what is inside
            continue
        new = _moved(name, off, on)
        if new is None or new in taken:
            new = f"({name or type(part).__name__})"
        taken.add(new)
        found[name] = new
    return [(found[name], part) for name, part in theirs]


def _change(ours: Inventory, theirs: Inventory) -> tuple[str, str]:
    """What is taken off their names and put in front of them for most to be ours; as little as
    that takes."""
    mine, other = _names(ours), _names(theirs)
    wanted = set(mine)
    pairs = sorted(product(_starts(other), _starts(mine)), key=lambda pair: sum(map(len, pair)))
    count = {pair: sum(_moved(name, *pair) in wanted for name in other) for pair in pairs}
    return max(pairs, key=lambda pair: count[pair])


def _names(held: Inventory) -> list[str]:
    """Of parameters; where there are none, of modules that hold no others."""
    names = [name for name, _ in held.parameters or held.modules]
    above = set() if held.parameters else {n.rpartition(".")[0] for n in names if n}
    return [name for name in names if name not in above]


def _starts(names: Iterable[str]) -> list[str]:
    """What stands in front of all of these names, in whole words, the shortest first."""
    words = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for column in zip(*words, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return [".".join(shared[:count]) for count in range(len(shared) + 1)]


def _moved(name: str, off: str, on: str) -> str | None:
    """``off.rest`` as ``on.rest``; None for what does not stand there."""
    words, front = name.split(".") if name else [], off.split(".") if off else []
    if words[: len(front)] != front:
        return None
    return ".".join([*(on.split(".") if on else []), *words[len(front) :]])
