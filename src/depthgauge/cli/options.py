"""Options that commands share, what they mean, and where the results go."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from depthgauge.errors import SpecificationError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Debug",
    "Json",
    "Output",
    "Quiet",
    "as_json",
    "initialisers",
    "named",
    "option",
    "output",
    "positive",
    "rate",
    "say",
    "screen",
    "seconds",
    "several",
    "whole",
]

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Only the closing line, and no progress.")
]
Output: TypeAlias = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="PATH", help="Write the JSON document to this file."),
]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", show_default=False)
]


def option(name: str, metavar: str, text: str) -> Any:
    """An option whose help says its default itself."""
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


# ----------------------------------------------------------------------- what was given


def whole(option: str, text: str | None) -> int | None:
    """The whole number in ``text``; what is too small or too large is said where it is used."""
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise SpecificationError(f"{option} is '{text}', expected a whole number")
    return int(text)


def positive(option: str, text: str | None, default: int) -> int:
    """A whole number of at least 1."""
    found = default if text is None else whole(option, text)
    if found is None or found < 1:
        raise SpecificationError(f"{option} is {found}, expected a whole number of at least 1")
    return found


def seconds(option: str, text: str | None) -> float | None:
    """The number in ``text``; what is out of range is said where it is used."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise SpecificationError(f"{option} is '{text}', expected a number of seconds") from None


def several(option: str, text: str | None) -> tuple[str, tuple[int, ...]] | None:
    """``[NAME=]4,16,64``: the name (``depth`` without one) and the whole numbers, ascending."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(?:([^\W\d]\w*)\s*=)?\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)\s*", text)
    numbers = sorted({int(n) for n in match.group(2).split(",")}) if match else []
    if not match or len(numbers) < 2 or numbers[0] < 1:
        raise SpecificationError(
            f"{option} is '{text}', expected two or more whole numbers of at least 1, such as "
            f"4,16,64, or with the callable's argument, layers=4,16,64"
        )
    return match.group(1) or "depth", tuple(numbers)


def rate(option: str, text: str | None) -> float | None:
    """The number in ``text``; what is out of range is said where it is used."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise SpecificationError(f"{option} is '{text}', expected a number") from None


def named(option: str, given: Iterable[str]) -> dict[str, str]:
    """``NAME=TEXT`` by name."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise SpecificationError(f"{option} is '{text}', expected NAME=VALUE, such as a=0.1")
        _once(option, name, found)
        found[name] = value
    return found


def initialisers(given: Iterable[str]) -> dict[str, str]:
    """``NAME=SPEC`` by name; a SPEC alone is for every weight that has no other."""
    found: dict[str, str] = {}
    for text in given:
        match = re.fullmatch(r"\s*([^\W\d][\w.]*)\s*=\s*(.+)", text, re.DOTALL)
        name, spec = match.groups() if match else ("default", text)
        _once("--init", name, found)
        found[name] = spec
    return found


def _once(option: str, name: str, found: Mapping[str, str]) -> None:
    if name in found:
        raise SpecificationError(f"{option} gives '{name}' twice; give it once")


# ---------------------------------------------------------------------- where results go


def as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False) + "\n"


def say(text: str) -> None:
    """To standard output; a reader who went away (``| head -1``) is no error."""
    out = sys.stdout
    if out is None:  # closed before we began
        return
    try:
        try:
            out.write(text)
        except UnicodeEncodeError:  # a terminal that has no curves: nothing was written yet
            encoding = out.encoding or "ascii"
            out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()
    except OSError as error:
        # Python flushes again when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            raise SpecificationError(
                f"standard output cannot be written: {_reason(error)}"
            ) from error


def screen(draw: Callable[[Console], None]) -> None:
    """What ``draw`` prints, in one piece, to standard output."""
    from depthgauge.report.tables import terminal

    console = terminal()
    console.file = drawn = io.StringIO()
    draw(console)
    say(drawn.getvalue())


@contextmanager
def output(path: str | None) -> Iterator[Callable[[str], None]]:
    """A callable that writes the file ``path``; without one it does nothing.

    Whether it can be written is found out at once. The text goes to a temporary file beside it,
    which takes its name when all of it is there: nobody sees half a document.
    """
    if path is None:
        yield lambda text: None
        return
    target = os.path.realpath(path)
    if not path or os.path.isdir(target):
        raise SpecificationError(f"--output is '{path}', a directory; give the name of a file")
    # A device or a pipe must not be replaced by a file.
    direct = os.path.exists(target) and not os.path.isfile(target)
    part = target if direct else os.path.join(os.path.dirname(target), f".depthgauge-{os.getpid()}")
    try:
        if os.path.isfile(target) and not os.access(target, os.W_OK):
            raise PermissionError(None, "it is read-only")
        file = open(part, "w" if direct else "x", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise _unwritable(path, error) from None

    def write(text: str) -> None:
        try:
            with file:
                file.write(text)
            if not direct:
                os.replace(part, target)
        except OSError as error:
            raise _unwritable(path, error) from None

    try:
        yield write
    finally:
        file.close()
        if not direct and os.path.exists(part):
            os.unlink(part)


def _unwritable(path: str, error: OSError) -> SpecificationError:
    return SpecificationError(f"--output {path} cannot be written: {_reason(error)}")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
