"""A model that Python code builds, measured: the code runs with its output diverted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthgauge.cli.work import Work, with_exponents
from depthgauge.errors import SpecificationError

if TYPE_CHECKING:
    from depthgauge.profile import Profile
    from depthgauge.study.builders import Built

__all__ = ["Code", "built", "diverted", "varied"]


@dataclass(frozen=True)
class Code:
    """A target in Python with the options that go with it."""

    target: str
    arguments: Sequence[str]
    inputs: Sequence[str]
    seed: str | None
    dtype: str | None
    device: str | None
    instruments: str | None
    include: str | None
    exclude: str | None
    labels: str | None
    work: Work
    batch_axis: int | None = None

    def measured(self) -> Profile:
        """Build the model that the code names and measure it, at several depths if they vary."""
        from depthgauge.study.specification import parse_seed
        from depthgauge.trace.measuring import measure_module
        from depthgauge.trace.overwritten import watched
        from depthgauge.trace.targets import arguments_of

        arguments, over = arguments_of(self.arguments), self.work.over
        given = 0 if self.seed is None else parse_seed(self.seed)
        seeds = (given,) if isinstance(given, int) else tuple(given)
        if len(seeds) > 1 and over is None:
            raise SpecificationError(
                f"--seed is '{self.seed}', but a model that code builds is measured under one "
                f"seed; several are for --depths, whose exponents are fitted to all of them"
            )
        seed = seeds[0]
        if over is not None:
            if over[0] in arguments:
                raise SpecificationError(
                    f"--arg gives '{over[0]}', which --depths varies; leave it out"
                )
            arguments[over[0]] = over[1][-1]
        with varied(self.target, over), watched() as watch:
            built = self._built(arguments, seed)
        effort = self.work.effort(seed, len(seeds))  # its clock runs from here
        profile = measure_module(
            *built,
            seed=seed,
            instruments=self.work.instruments(self.instruments) or "fast",
            labels=None if self.labels is None else _part(built.batch, self.labels),
            **self.work.given(effort),
            include=self.include,
            exclude=self.exclude,
            batch_axis=self.batch_axis,
            name=self.target,
        )
        profile = watch.noted(profile, built.module)
        if over is None:
            return profile
        from depthgauge.study.scaling import of_modules

        name, depths = over
        build = of_modules(lambda depth, seed: self._built({**arguments, name: depth}, seed))
        return with_exponents(profile, build, depths, seeds, effort)

    def _built(self, arguments: Mapping[str, object], seed: int) -> Built:
        return built(self.target, arguments, self.inputs, seed, self.dtype, self.device)


def built(
    target: str,
    arguments: Mapping[str, object],
    inputs: Sequence[str],
    seed: int,
    dtype: str | None = None,
    device: str | None = None,
) -> Built:
    """The module, its batch and loss, on the device and in the precision asked for; torch is
    imported here, not before."""
    from depthgauge.study.builders import built as build

    return build(target, arguments, inputs, seed, dtype, device)


@contextmanager
def varied(target: str, over: tuple[str, tuple[int, ...]] | None) -> Iterator[None]:
    """Says, where the callable has no argument of the name that --depths varies, which of its whole
    numbers it may."""
    try:
        yield
    except SpecificationError as error:
        if over is None or f"takes no argument '{over[0]}'" not in str(error):
            raise
        said = re.sub(r" \(did you mean '\w+'\?\)", "", str(error))  # which is no depth
        raise SpecificationError(f"{said}; {_named(target, over[1])}") from error


def _named(target: str, depths: Sequence[int]) -> str:
    from depthgauge.trace.targets import deep, whole_numbers

    names, numbers = whole_numbers(target), ",".join(map(str, depths))
    if not names:
        return "--depths varies a whole number by its name, and it has none"
    first = names[0] if deep(names[0]) or len(names) == 1 else "NAME"
    others = [name for name in names if name != first]
    more = f" (its whole numbers are {', '.join(names)})" if others else ""
    return f"--depths varies a whole number by its name: --depths {first}={numbers}{more}"


def _part(batch: Any, name: str) -> Any:
    """The tensor of that name in the batch."""
    from depthgauge.trace.batches import tensors

    parts = dict(tensors(batch))
    if name not in parts:
        names = ", ".join(part or "(one tensor without a name)" for part in parts)
        raise SpecificationError(
            f"--labels is '{name}', expected a part of the batch, which has {names}"
        )
    return parts[name]


@contextmanager
def diverted() -> Iterator[None]:
    """What the user's code writes to standard output goes to standard error, also from below
    Python: standard output is for the document."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        kept = -1
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept >= 0:
            os.dup2(kept, 1)
            os.close(kept)
