"""Corridors as files: named sets of bounds, each with its reason and its source.

    name = "mine"                      without one the file's
    about = "..."
    base = "default"                   whose bounds come before these, if any
    [bounds.gradient_ratio]            min, max, warn, reason, source
    [[when]]                           bounds that go before those above, the later the first,
    depth = { min = 200, max = 999 }   at these depths (both ends inside)
    dtype = "float16"                  and in this precision; either or both
    [when.bounds.gradient_ratio]

Every mistake is a SpecificationError of one sentence that names the file and the key.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from depthgauge.errors import SpecificationError, nearest
from depthgauge.network.spec import LARGEST_DEPTH, whole_number
from depthgauge.sites import FloatArray
from depthgauge.study.bound import Bound
from depthgauge.study.corridor import Corridor
from depthgauge.study.sections import toml_of

__all__ = ["CorridorFile", "Entry", "NamedCorridor", "corridor_named", "corridor_of", "names"]

_KEYS: Final = ("name", "about", "base", "bounds", "when")
_WHEN: Final = ("depth", "dtype", "bounds")


@dataclass(frozen=True)
class Entry:
    """One bound, and where it holds: from ``least`` to ``most`` blocks (None: no end), in the
    precision ``dtype`` ("": in any)."""

    name: str
    bound: Bound
    least: int = 0
    most: int | None = None
    dtype: str = ""

    def holds(self, depth: int, dtype: str) -> bool:
        inside = self.least <= depth <= (LARGEST_DEPTH if self.most is None else self.most)
        return inside and self.dtype in ("", dtype)

    @property
    def where(self) -> str:
        """In words: ``depth 200 and more, float16``; ``""`` for everywhere."""
        depth = ""
        if self.most is not None:
            depth = f"depth {self.least} to {self.most}"
        elif self.least > 1:
            depth = f"depth {self.least} and more"
        return ", ".join(filter(None, (depth, self.dtype)))

    def __str__(self) -> str:
        """``depth 200 and more: min 0.5, max 2, warn 0.1``."""
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.bound}, warn {self.bound.warn:g}"


@dataclass(frozen=True)
class CorridorFile(os.PathLike[str]):
    """The file of a corridor that a specification names: the one ``beside`` it, or where there is
    none the one that the same path leads to from ``here``, the current directory."""

    beside: str
    here: str

    def __fspath__(self) -> str:
        elsewhere = os.path.exists(self.here) and not os.path.exists(self.beside)
        return self.here if elsewhere else self.beside

    @property
    def missing(self) -> str:
        """``""``, or that neither is there."""
        if self.beside == self.here or os.path.lexists(self.beside) or os.path.lexists(self.here):
            return ""
        return (
            f"{self.beside} cannot be read: no such file, beside the specification that names it, "
            f"and none at {self.here} from the current directory ({os.getcwd()}) either"
        )


@dataclass(frozen=True)
class NamedCorridor:
    """Bounds with their reasons, in the order of the file; of two on one summary the later counts
    where both hold. ``origin``: what ``corridor_named`` finds it by; ``""`` for one that was given
    as numbers."""

    name: str
    about: str
    entries: tuple[Entry, ...]
    origin: str = ""

    @classmethod
    def of(cls, corridor: Corridor) -> NamedCorridor:
        """The same bounds at every depth and in every precision."""
        return cls(corridor.name, "", tuple(Entry(name, b) for name, b in corridor.bounds))

    @property
    def named(self) -> dict[str, Entry]:
        """The entries under their names; the second on one summary is ``NAME 2``: it goes before
        the first where both hold."""
        counts, found = Counter[str](), dict[str, Entry]()
        for entry in self.entries:
            counts[entry.name] += 1
            number = counts[entry.name]
            found[f"{entry.name} {number}" if number > 1 else entry.name] = entry
        return found

    def at(self, depth: int, dtype: str) -> Corridor:
        """The bounds that hold for this many blocks in this precision."""
        held = {entry.name: entry.bound for entry in self.entries if entry.holds(depth, dtype)}
        return Corridor(tuple(held.items()), self.name)

    def limits(
        self, name: str, depths: npt.NDArray[np.int64], dtype: str
    ) -> tuple[FloatArray, FloatArray]:
        """The least and the largest value of a summary at each of these depths, -inf and inf where
        nothing bounds it."""
        low, high = np.full(depths.shape, -math.inf), np.full(depths.shape, math.inf)
        for entry in self.entries:
            if entry.name != name or entry.dtype not in ("", dtype):
                continue
            last = LARGEST_DEPTH if entry.most is None else entry.most
            at, bound = (depths >= entry.least) & (depths <= last), entry.bound
            low[at] = -math.inf if bound.min is None else bound.min
            high[at] = math.inf if bound.max is None else bound.max
        return low, high

    def under(self, own: Corridor | None) -> NamedCorridor:
        """With bounds that go before these, bound by bound, such as a specification's own."""
        if own is None:
            return self
        more = NamedCorridor.of(own).entries
        name = f"{self.name}, with bounds of its own" if self.name else own.name
        return NamedCorridor(name, self.about, (*self.entries, *more), self.origin)


def names() -> tuple[str, ...]:
    """The corridors that come with the package."""
    folder = resources.files("depthgauge.study").joinpath("corridors")
    files = sorted(PurePath(file.name) for file in folder.iterdir())
    return tuple(file.stem for file in files if file.suffix == ".toml")


def corridor_named(given: str | os.PathLike[str]) -> NamedCorridor:
    """The corridor of this name, or the one in this file (a path, or a text that ends in .toml).

    Raises SpecificationError.
    """
    text = os.fspath(given)
    if text in names():
        return _packaged(text)
    if isinstance(given, str) and not text.endswith(".toml"):
        raise SpecificationError(
            f"corridor is '{text}', expected one of {', '.join(names())}{nearest(text, names())}, "
            f"or a file such as mine.toml"
        )
    if isinstance(given, CorridorFile) and given.missing:
        raise SpecificationError(given.missing)
    document = toml_of(text, "a corridor")
    return replace(_read(text, document, PurePath(text).stem), origin=text)


def corridor_of(given: Any, usual: str) -> NamedCorridor:
    """The corridor that was given: one, its name, its file, or bounds; ``usual`` where none was.

    Raises SpecificationError.
    """
    if given is None:
        return corridor_named(usual)
    if isinstance(given, NamedCorridor):
        return given
    if isinstance(given, Mapping):
        given = Corridor.of(given)
    if isinstance(given, Corridor):
        return replace(NamedCorridor.of(given), name=given.name or "as given")
    if not isinstance(given, str | os.PathLike):
        raise SpecificationError(
            f"corridor is of type {type(given).__name__}, expected a name, a file, a Corridor or "
            f"bounds such as {{'gradient_ratio': {{'max': 10}}}}"
        )
    return corridor_named(given)


@lru_cache
def _packaged(name: str) -> NamedCorridor:
    file = resources.files("depthgauge.study").joinpath("corridors", f"{name}.toml")
    with resources.as_file(file) as path:
        found = _read(f"{name}.toml", toml_of(os.fspath(path), "a corridor"), name)
    return replace(found, origin=name)


def _read(file: str, document: Mapping[str, Any], stem: str) -> NamedCorridor:
    _known(file, "", document, _KEYS)
    entries = list(_base(file, document.get("base")))
    entries += _bounds(file, "bounds", document.get("bounds", {}), Entry)
    whens = document.get("when", [])
    if not isinstance(whens, list):
        raise SpecificationError(f"{file}: when is one table; write [[when]], with two brackets")
    for i, when in enumerate(whens, 1):
        entries += _when(file, f"when {i}", when)
    if not entries:
        raise SpecificationError(
            f"{file}: no summary is bounded; write [bounds.gradient_ratio] and max = 10.0 under it"
        )
    for key in ("name", "about"):
        if not isinstance(text := document.get(key, ""), str):
            raise SpecificationError(f"{file}: {key} is {text!r}, expected text in quotes")
    name, about = document.get("name", stem), document.get("about", "")
    return NamedCorridor(name, " ".join(about.split()), tuple(entries))


def _base(file: str, given: Any) -> tuple[Entry, ...]:
    """The entries of the corridor that this one begins with."""
    if given is None:
        return ()
    if not isinstance(given, str) or given not in names() or f"{given}.toml" == file:
        raise SpecificationError(
            f"{file}: base is {given!r}, expected one of {', '.join(names())}"
            f"{nearest(str(given), names())}"
        )
    return corridor_named(given).entries


def _when(file: str, key: str, when: Any) -> Iterator[Entry]:
    """The entries of one ``[[when]]``."""
    if not isinstance(when, Mapping):
        raise SpecificationError(f"{file}: {key} is {when!r}, expected a table under [[when]]")
    _known(file, f"{key}.", when, _WHEN)
    if "depth" not in when and "dtype" not in when:
        raise SpecificationError(
            f"{file}: {key} says neither depth nor dtype; write depth = {{ min = 200 }} or dtype = "
            f'"float16", or put its bounds under [bounds]'
        )
    if not when.get("bounds"):
        raise SpecificationError(
            f"{file}: {key} bounds no summary; write [when.bounds.gradient_ratio] under it"
        )
    least, most = _depths(file, f"{key}.depth", when.get("depth", {"min": 1}))
    dtype = _dtype(file, f"{key}.dtype", when["dtype"]) if "dtype" in when else ""

    def entry(name: str, bound: Bound) -> Entry:
        return Entry(name, bound, least, most, dtype)

    return _bounds(file, f"{key}.bounds", when["bounds"], entry)


def _bounds(
    file: str, key: str, declared: Any, entry: Callable[[str, Bound], Entry]
) -> Iterator[Entry]:
    if not isinstance(declared, Mapping):
        table = "when.bounds" if key.startswith("when") else key
        raise SpecificationError(
            f"{file}: {key} is {declared!r}, expected tables such as [{table}.gradient_ratio]"
        )
    for name, value in declared.items():
        try:
            ((_, bound),) = Corridor.of({name: value}).bounds
        except SpecificationError as error:
            raise SpecificationError(f"{file}: {key}.{name}: {error}") from None
        yield entry(name, bound)


def _depths(file: str, key: str, given: Any) -> tuple[int, int | None]:
    """The least and the most blocks of ``{ min = 200, max = 999 }``."""
    if not isinstance(given, Mapping) or not given:
        raise SpecificationError(f"{file}: {key} is {given!r}, expected {{ min = 200 }}")
    _known(file, f"{key}.", given, ("min", "max"))
    for side, value in given.items():
        if (whole_number(value) or 0) < 1:
            raise SpecificationError(
                f"{file}: {key}.{side} is {value!r}, expected a whole number of blocks, at least 1"
            )
    least, most = given.get("min", 1), given.get("max")
    if most is not None and most < least:
        raise SpecificationError(f"{file}: {key} is from {least} to {most}; swap them")
    return least, most


def _dtype(file: str, key: str, given: Any) -> str:
    from depthgauge.instruments.arithmetic import ARITHMETICS

    if not isinstance(given, str) or given not in ARITHMETICS:
        raise SpecificationError(
            f"{file}: {key} is {given!r}, expected one of {', '.join(ARITHMETICS)}"
            f"{nearest(str(given), ARITHMETICS)}"
        )
    return given


def _known(file: str, prefix: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in given:
        if key not in keys:
            raise SpecificationError(
                f"{file}: {prefix}{key} is not a key{nearest(key, keys)}; the keys are "
                f"{', '.join(keys)}"
            )
