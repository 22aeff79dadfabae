"""What can go wrong, and whose fault it is.

    DepthgaugeError
    ├── UsageError (ValueError)        what the user gave cannot be used        exit 2
    │   ├── EquationError              a block equation; carries text and caret
    │   ├── NetworkError               depth, width, initialisation, shapes
    │   ├── SpecificationError         a TOML specification or a command option
    │   └── RecordError                a directory that is no record, or one that cannot be written
    │       └── NewerRecordError       a record of a schema that this version does not know
    ├── TargetError (TypeError)        a target or argument of another kind     exit 2
    ├── ModelError (RuntimeError)      the user's model failed, in this module  exit 2
    ├── MissingExtra (ImportError)     an optional package is not installed     exit 2
    ├── NotCommissionedError           a record does not allow a run            exit 1
    └── ClaimError                     a suite's claim does not hold            exit 1

Every message is one sentence (or two): what came, what was expected, what to do. Our own
invariants use ``assert``. A number that is not finite is a finding, never an exception.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from types import UnionType
from typing import TypeAlias

__all__ = [
    "ClaimError",
    "DepthgaugeError",
    "EquationError",
    "MissingExtra",
    "ModelError",
    "NetworkError",
    "NewerRecordError",
    "NotCommissionedError",
    "RecordError",
    "SpecificationError",
    "TargetError",
    "UsageError",
    "expect",
    "expect_callable",
    "expect_path",
    "expect_several",
    "nearest",
    "nearest_name",
]


#: What ``isinstance`` takes.
Kinds: TypeAlias = type | tuple[type, ...] | UnionType


class DepthgaugeError(Exception):
    """Base of every error that depthgauge raises on purpose."""


class UsageError(DepthgaugeError, ValueError):
    """What the user gave cannot be used; the command exits with status 2."""


class EquationError(UsageError):
    """A mistake in a block equation, shown with a caret under the word.

    ``message`` is the sentence, ``text`` the equation as typed, ``position`` the 0-based offset
    of the mistake in it (``None`` when the mistake has no single place).
    """

    def __init__(self, message: str, text: str = "", position: int | None = None) -> None:
        self.message, self.text, self.position = message, text, position
        super().__init__(message + _caret(text, position))


class NetworkError(UsageError):
    """A depth, width, initialisation or shape that no network can have."""


class SpecificationError(UsageError):
    """A specification file or a command option that does not say something usable."""


class RecordError(UsageError):
    """A directory that is no record, holds a broken one, or cannot be written to."""


class NewerRecordError(RecordError):
    """A record of a schema that a later version of depthgauge has brought."""


class NotCommissionedError(DepthgaugeError, RuntimeError):
    """A record is broken or stale, or a gate of it fails: every objection in a line."""


class TargetError(DepthgaugeError, TypeError):
    """A target, or another argument, of a kind that this verb does not take."""


class ModelError(DepthgaugeError, RuntimeError):
    """The user's model raised in its forward or backward pass; ``path`` names the module."""

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class MissingExtra(DepthgaugeError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"install it with: pip install 'depthgauge[{extra}]'"
        )


class ClaimError(DepthgaugeError):
    """A suite ran and one of its claims does not hold; ``result`` is what it measured."""

    def __init__(self, message: str, result: object) -> None:
        self.result = result
        super().__init__(message)


def expect(name: str, value: object, kinds: Kinds, expected: str, instead: str = "") -> None:
    """Raise TargetError unless ``value`` is of one of ``kinds``: the argument ``name``, what came,
    what was expected, and in ``instead`` what to do.

    A class is told apart from an instance of it, which is what was forgotten there.
    """
    if isinstance(value, kinds):
        return
    if isinstance(value, type):
        came, instead = f"the class {value.__name__}", instead or "give an instance of it"
    else:
        came = "None" if value is None else f"of type {type(value).__name__}"
    raise TargetError(
        f"{name} is {came}, expected {expected}" + (f"; {instead}" if instead else "")
    )


def expect_callable(name: str, value: object, expected: str) -> None:
    """The same for a function that may be left out."""
    if value is not None and not callable(value):
        expect(name, value, (), expected, "leave it out where there is none")


def expect_several(name: str, value: object, expected: str, instead: str = "") -> None:
    """The same for several of something: a text is one."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    expect(name, value, object if several else (), expected, instead)


def expect_path(name: str, value: object, expected: str) -> None:
    """The same for a place on the disk."""
    expect(name, value, (str, os.PathLike), f"{expected}, as text or a Path")


def nearest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'relu'?)"`` for the nearest known name, or ``""`` when none is near."""
    found = nearest_name(word, known)
    return f" (did you mean '{found}'?)" if found else ""


def nearest_name(word: str, known: Iterable[str]) -> str:
    """The nearest known name, of those that are near the first that begins with the word, or
    ``""``."""
    names = list(known)
    found = difflib.get_close_matches(word, names, n=max(len(names), 1), cutoff=0.6)
    longer = [name for name in names if name in found and name.startswith(word)]
    return next(iter((*longer, *found)), "")


def _caret(text: str, position: int | None, width: int = 72) -> str:
    """The line of ``text`` that holds ``position``, cut to ``width`` characters, and a caret."""
    if not text or position is None:
        return ""
    position = min(max(position, 0), len(text))
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line, column = text[start : end if end >= 0 else len(text)], position - start
    left = max(0, min(column - width // 2, len(line) - width))
    return f"\n  {line[left : left + width]}\n  {' ' * (column - left)}^"
