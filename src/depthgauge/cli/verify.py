"""``depthgauge verify`` and ``depthgauge diff``: does a record still hold; two of them compared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from depthgauge.cli.code import built, diverted
from depthgauge.cli.options import Debug, Json, Quiet, as_json, option, positive, say, screen
from depthgauge.errors import SpecificationError, nearest
from depthgauge.trace.targets import defaults, is_code

if TYPE_CHECKING:
    from depthgauge.record.document import Record
    from depthgauge.record.parts import CorridorPart, Subject
    from depthgauge.record.verify import Verification

__all__ = ["diff", "verify"]

#: Those of ``depthgauge.arguments``, which imports torch.
DTYPES = ("float64", "float32", "bfloat16", "float16")

#: Exit statuses; that of a record that is broken is not that of a directory that is none, and
#: what this version cannot read, it cannot call valid or stale.
_STATUS = {"valid": 0, "stale": 1, "broken": 3, "newer": 3}


def verify(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The directory that commission wrote.")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="A file.toml, an equation or path/file.py:callable of today."
        ),
    ] = None,
    depth: Annotated[
        str | None, option("--depth", "N", "Blocks that are meant to run [as the target says].")
    ] = None,
    dtype: Annotated[
        str | None, option("--dtype", "NAME", "Precision that is meant [as the target says].")
    ] = None,
    arg: Annotated[
        list[str] | None,
        option("--arg", "KEY=VALUE", "Of the callable [those of the record]; repeatable."),
    ] = None,
    input: Annotated[
        list[str] | None, option("--input", "SPEC", '"float 8x3x32x32"; repeatable.')
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Say whether a record is whole, and whether it still holds for what is there today.

    Without TARGET the files and the version of torch are looked at, and --depth and --dtype where
    they are given. An equation is compared as one; a file.toml with its weights and data, a
    callable also with its source; and each with the bounds of the record's corridor as they are
    today.

    The exit status is 0 for valid, 1 for stale (each reason is said), 3 for broken (which file,
    which check) and for newer (a schema that this version cannot read), 2 where there is no record.
    """
    from depthgauge.record.verify import verify as verified

    found = verified(directory)
    if found.state in ("valid", "stale") and found.record is not None:
        with diverted():
            today = _today(found.record, target, depth, dtype, arg or (), input or ())
            if today is not None:
                found = verified(directory, *today)
    _show(found, json, quiet)
    return _STATUS[found.state]


def _show(found: Verification, json: bool, quiet: bool) -> None:
    if json:
        say(as_json(found.to_dict()))
        return
    from depthgauge.report.record_screen import print_verification, verification_line

    if quiet:
        say(verification_line(found) + "\n")
    else:
        screen(lambda console: print_verification(found, console))


#: The subject of today, its corridor, the defaults of what builds it, and all of its bounds.
_Today: TypeAlias = (
    "tuple[Subject, CorridorPart | str | None, Mapping[str, object], Mapping[str, str] | None]"
)


def _today(
    record: Record,
    target: str | None,
    depth: str | None,
    dtype: str | None,
    arg: Sequence[str],
    inputs: Sequence[str],
) -> _Today | None:
    """What a record is held against, or None when nothing was given to compare."""
    number = None if depth is None else positive("--depth", depth, 1)
    if target is not None and os.path.isdir(target):
        raise SpecificationError(
            f"'{target}' is a directory; give a file.toml, an equation or path/file.py:callable, "
            f"or compare two records with depthgauge diff"
        )
    if target is None or not is_code(target) or target.endswith(".toml"):
        for name, given in (("--arg", arg), ("--input", inputs)):
            if given:
                raise SpecificationError(f"{name} is for Python code; give path/file.py:callable")
    if target is None:
        if number is None and dtype is None:
            return None
        return _meant(record.subject, number, dtype), None, {}, None
    from depthgauge.study.commission.bounds import conditional_today, corridor_today

    if target.endswith(".toml"):
        return _specified(record, target, number, dtype)
    bounds, every = corridor_today(record, None), conditional_today(record, None)
    if is_code(target):
        if number is not None:
            raise SpecificationError(
                "--depth is for an equation; give the callable its depth with --arg KEY=VALUE"
            )
        subject = _of_code(record.subject, target, dtype, arg, inputs)
        return subject, bounds, defaults(target, subject.arguments), every
    from depthgauge.record.subject import equation_subject

    subject = _meant(equation_subject(record.subject, target), number, dtype)
    return subject, bounds, {}, every


def _meant(subject: Subject, depth: int | None, dtype: str | None) -> Subject:
    """The subject as it is meant to run, where that was said."""
    if dtype is not None and dtype not in DTYPES:
        raise SpecificationError(
            f"--dtype is '{dtype}', expected one of {', '.join(DTYPES)}{nearest(dtype, DTYPES)}"
        )
    given = {"depth": depth, "dtype": dtype}
    return subject.model_copy(update={k: v for k, v in given.items() if v is not None})


def _specified(record: Record, target: str, depth: int | None, dtype: str | None) -> _Today:
    from depthgauge.record.subject import subject_of
    from depthgauge.study.commission.bounds import conditional_today, corridor_today
    from depthgauge.study.specification import Changes, read_specification

    network = {} if depth is None else {"depth": depth}
    run = {} if dtype is None else {"dtype": dtype}
    specification = read_specification(target, Changes(network=network, run=run))
    bounds = corridor_today(record, specification)
    every = conditional_today(record, specification)
    return subject_of(specification, target), bounds, {}, every


def _of_code(
    stored: Subject, target: str, dtype: str | None, arg: Sequence[str], inputs: Sequence[str]
) -> Subject:
    """Built under the seeds of the record, from a builder's arguments where no others are given."""
    from depthgauge.record.subject import builder_subject, source_of
    from depthgauge.trace.targets import arguments_of

    kept = stored.arguments if stored.kind == "builder" else {}  # an equation's are its step's
    arguments = {**kept, **arguments_of(arg)}
    return builder_subject(
        target,
        lambda seed: built(target, arguments, inputs, seed, dtype),
        stored.seeds,
        arguments=arguments,
        source=source_of(target),
    )


def diff(
    left: Annotated[str, typer.Argument(metavar="DIR", help="One record.")],
    right: Annotated[str, typer.Argument(metavar="DIR", help="The other.")],
    every: Annotated[
        bool, typer.Option("--all", help="Every difference, not those that are largest.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Compare two records: every judgement, every curve, and what stands in one of them only.

    Two records of different models are compared too, and that is said first. The largest
    differences are shown, one of each quantity, and how many more there are; --json has them all.

    The exit status is 0 when both hold the same findings and 1 when they do not.
    """
    from depthgauge.record.difference import difference
    from depthgauge.record.folder import read

    a, b = read(left), read(right)
    found = difference(a, b)
    if json:
        say(as_json({"left": left, "right": right, **found.to_dict()}))
        return 0 if found.equal else 1
    from depthgauge.report.record_screen import difference_line, print_difference

    if quiet:
        say(difference_line(found) + "\n")
    else:
        screen(
            lambda console: print_difference(
                found, (left, a.record), (right, b.record), console, every
            )
        )
    return 0 if found.equal else 1
