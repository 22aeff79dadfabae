"""What differs between two subjects or two plans, in words, the cause and not its consequences."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from depthgauge.jsonable import jsonable
from depthgauge.record.parts import CorridorPart, Subject

__all__ = [
    "Change",
    "between",
    "corridor_changes",
    "equation_change",
    "equations_agree",
    "filled",
    "some",
    "specification_changes",
    "subject_changes",
]


@dataclass(frozen=True)
class Change:
    """One thing that is another now: its name, what it was, what it is, and that as a sentence."""

    what: str
    before: Any
    after: Any
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    @property
    def lines(self) -> list[str]:
        """The sentence; of an equation the statements that are others, each in a line."""
        if self.what != "equation" or not isinstance(self.after, str):
            return [self.sentence]
        lines = ["equation changed"]
        for old, new in _apart(self.before or "none", self.after or "none"):
            lines += [*(f"  - {each}" for each in old), *(f"  + {each}" for each in new)]
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "sentence": self.sentence,
            "before": self.before,
            "after": self.after,
        }


#: A change of one of these changes all weights, and of those the batch.
_CAUSES: Final = ("depth", "width", "init", "draws", "arguments", "dtype", "tokens", "size")
_SHAPE: Final = ("width", "tokens", "size", "batch", "dtype", "draws")
_PLAIN: Final = ("depth", *_SHAPE, "device", "placement")


def subject_changes(before: Subject, after: Subject, within: bool = True) -> list[Change]:
    """What is another in ``after``, so that what was found for ``before`` does not hold for it.

    The target's name and place may differ; ``within``: and so may seeds and depths of a sweep, when
    they are among those of before. What follows from something else that differs (branches from
    depth, weights from an initialiser) is not said.
    """
    found: list[Change] = []
    folded = before.depth != after.depth and _unfolded(before) == _unfolded(after)
    if before.equation != after.equation and not folded:
        found.append(equation_change(before.equation, after.equation))
    if before.kind != after.kind:
        return [*_plain("kind", before.kind, after.kind), *found]
    told = ("latex", "placement", "scalars") if found else ()
    for name in (name for name in _PLAIN if name not in told):
        found += _plain(name, getattr(before, name), getattr(after, name))
    for name in ("seeds", "depths"):
        old, new = getattr(before, name), getattr(after, name)
        own = {after.depth} if name == "depths" else set()  # of which the depth itself tells
        if not (within and set(new) - own <= set(old)):
            found += _plain(name, old, new)
    for name in (name for name in ("init", "scalars", "arguments") if name not in told):
        found += _table(name, getattr(before, name), getattr(after, name))
    if not {"equation", "depth"} & _heads(found):
        found += _plain("branches", before.branches, after.branches)
        found += _plain("m", before.m, after.m)
    found += _source(before, after)
    if not {"equation", *_CAUSES} & _heads(found):
        found += _weights(before, after)
    # A builder may draw its batch after its weights, from the same generator.
    moved = (*_SHAPE, *_CAUSES, "weights") if before.kind == "builder" else _SHAPE
    if before.seeds == after.seeds and not {"equation", *moved} & _heads(found):
        found += _data(before, after)
    return found


def specification_changes(before: Subject, after: Subject) -> list[Change]:
    """What makes ``after`` the subject of another specification: not the depths of a sweep, nor
    what its code or another version of torch makes of the same words."""
    found = subject_changes(before, after, within=False)
    kept = [c for c in found if c.what not in ("source", "weights", "data", "depths")]
    return kept if before.kind != after.kind else [*_builder(before, after), *kept]


def filled(subject: Subject, defaults: Mapping[str, object]) -> Subject:
    """The subject with every argument that its builder runs with, given or not."""
    if subject.kind != "builder" or not defaults:
        return subject
    return subject.model_copy(update={"arguments": {**jsonable(defaults), **subject.arguments}})


def _builder(before: Subject, after: Subject) -> list[Change]:
    """Another callable, or one in a file of another name; seen from two places a path is told by
    the end that both have."""
    if before.kind != "builder":
        return []
    named = [subject.target.rpartition(":")[2] for subject in (before, after)]
    files = [subject.source.file if subject.source else "" for subject in (before, after)]
    old, new = (file.split("/") for file in files)
    shared = min(len(old), len(new))
    if not all(files) or old[-shared:] == new[-shared:]:
        return _plain("target", *named)
    return _plain("target", *(f"{file}:{name}" for file, name in zip(files, named, strict=True)))


def _unfolded(subject: Subject) -> str:
    """The equation without how often its blocks stand there, which a builder's has."""
    return re.sub(r"\b[0-9]+ x \[", "[", subject.equation)


def _heads(found: list[Change]) -> set[str]:
    return {change.what.partition(".")[0] for change in found}


def equation_change(before: str, after: str) -> Change:
    """The statements that are others, in full; both texts stand beside."""
    apart = [f"{_quoted(old)} -> {_quoted(new)}" for old, new in _apart(before, after)]
    said = f": {some(apart)}" if apart else ""
    return Change("equation", before, after, f"equation changed{said}")


def _apart(before: str, after: str) -> list[tuple[list[str], list[str]]]:
    """Runs of statements that stand in one of two equations only, beside each other."""
    old, new = _statements(before), _statements(after)
    codes = difflib.SequenceMatcher(None, old, new, False).get_opcodes()
    return [(old[i:j], new[k:l]) for tag, i, j, k, l in codes if tag != "equal"]


def _statements(equation: str) -> list[str]:
    """Those of a block, and of a folded text how often a block stands there and where it ends."""
    return [part for part in re.split(r"\s*[;\n]\s*|(?<=\[)\s+|\s+(?=\])", equation) if part]


def _quoted(statements: Sequence[str]) -> str:
    return f"'{'; '.join(statements)}'" if statements else "nothing"


#: What a number of an equation may be off by: float32 carries no more.
_NUMBERS: Final = 1e-6
_NUMBER: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?!\w)")


def equations_agree(a: str, b: str) -> bool:
    """Whether two equations are one but for the rounding of their numbers: 1/sqrt(12) and
    12**-0.5 are two float64 numbers. Every word is the same; so are counts, for below a million no
    two are that close."""
    left, right = _NUMBER.split(a), _NUMBER.split(b)
    return left[::2] == right[::2] and all(
        math.isclose(float(x), float(y), rel_tol=_NUMBERS)
        for x, y in zip(left[1::2], right[1::2], strict=True)
    )


def _plain(name: str, before: object, after: object) -> list[Change]:
    if before == after:
        return []
    old, new = _jsonable(before), _jsonable(after)
    return [Change(name, old, new, f"{name} {_shown(before)} -> {_shown(after)}")]


def _table(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    found = []
    for key in {**before, **after}:
        found += _plain(f"{name}.{key}", before.get(key), after.get(key))
    return found


def _source(before: Subject, after: Subject) -> list[Change]:
    old, new = before.source, after.source
    if old is None or (new is not None and old.hash == new.hash):
        return []
    if new is None:
        sentence = f"source of {old.file} cannot be compared: {after.source_reason}"
        return [Change("source", old.hash, None, sentence)]
    sentence = f"source of {new.file} changed: {old.hash[:19]}... -> {new.hash[:19]}..."
    return [Change("source", old.hash, new.hash, sentence)]


def _weights(before: Subject, after: Subject) -> list[Change]:
    differ = [
        seed
        for seed, found in before.weights.items()
        if seed in after.weights and after.weights[seed] != found
    ]
    if not differ:
        return []
    words = f"weights differ under seed{'s' * (len(differ) > 1)} {', '.join(differ)}"
    old, new = ({seed: each.weights[seed] for seed in differ} for each in (before, after))
    return [Change("weights", old, new, words)]


def _data(before: Subject, after: Subject) -> list[Change]:
    if not before.data or not after.data or before.data == after.data:
        return []
    sentence = f"data differ: {before.data[:19]}... -> {after.data[:19]}..."
    return [Change("data", before.data, after.data, sentence)]


def corridor_changes(before: CorridorPart, after: CorridorPart) -> list[Change]:
    """Bounds that came, went or moved; their reasons may be told in other words."""
    found = []
    for name in {**before.bounds, **after.bounds}:
        old, new = (_limits(each, name) for each in (before, after))
        if old != new:
            sentence = f"corridor: {name} {_bound(old)} -> {_bound(new)}"
            found.append(Change(f"corridor.{name}", old, new, sentence))
    return found


def _limits(corridor: CorridorPart, name: str) -> dict[str, float] | None:
    bound = corridor.bounds.get(name)
    if bound is None:
        return None
    given = {"min": bound.min, "max": bound.max, "warn": bound.warn}
    return {key: value for key, value in given.items() if value is not None}


def _bound(limits: Mapping[str, float] | None) -> str:
    if limits is None:
        return "no bound"
    return ", ".join(f"{key} {value:g}" for key, value in limits.items())


def between(before: object, after: object, at: str = "") -> Iterator[Change]:
    """Where two JSON values differ, from the first place on."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from between(before.get(key), after.get(key), f"{at}.{key}".lstrip("."))
    elif before != after:
        sentence = f"{at or 'it'} {_shown(before)} -> {_shown(after)}"
        yield Change(at, _jsonable(before), _jsonable(after), sentence)


def some(changes: Sequence[object], most: int = 4) -> str:
    """The first few, and how many others there are."""
    shown = "; ".join(map(str, changes[:most]))
    return f"{shown}; and {len(changes) - most} more" if len(changes) > most else shown


def _jsonable(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    """A value as the user wrote it: text bare, a long list by its ends."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if re.fullmatch(r"\S+", value) else f"'{value}'"
    if isinstance(value, list | tuple) and len(value) > 12:
        return f"[{', '.join(map(_shown, value[:4]))}, ... ({len(value)})]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)
