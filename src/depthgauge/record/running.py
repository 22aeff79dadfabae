"""A commission while it runs: each gate that is done is one file, so that it can go on later.

    DIR/gates/commission.json       the subject, the plan, when and with what it began
    DIR/gates/01-block.npz, ...     a gate, its curves and their arrays

A gate's file is there whole or not at all. At the end the record is written out of these files
alone, in memory or read back, so that an interrupted commission and one that ran through give the
same record; then they are removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from depthgauge.errors import RecordError, expect_path
from depthgauge.record.arrays import Arrays, pack, unpack
from depthgauge.record.changes import (
    Change,
    between,
    filled,
    some,
    specification_changes,
    subject_changes,
)
from depthgauge.record.checks import DOCUMENT
from depthgauge.record.document import CorridorPart, Record, canonical, misfit
from depthgauge.record.files import dropped, locked, made, placed, sweep
from depthgauge.record.folder import (
    GATES,
    PLAN,
    Place,
    Stored,
    commit,
    examined,
    folder_of,
    opened,
    read,
    recovered,
)
from depthgauge.record.parts import Curve, Gate, Many, Part, Provenance, Subject, Verdict
from depthgauge.record.provenance import begun, now

__all__ = ["Done", "Running"]

#: The member of a gate's file that holds its document.
_DOCUMENT: Final = "gate.json"

#: Of a plan, what makes it that of another specification; what else it holds (depths, changes, the
#: rival) is how the same one is looked at.
_SPECIFIED: Final = ("input", "optimizer", "lr", "corridor", "bounds")

_ANEW: Final = "leave --resume out to commission it anew, or give another directory"


class _Begun(Part):
    """``commission.json``."""

    subject: Subject
    provenance: Provenance


class _Finished(Part):
    """The document in a gate's file."""

    gate: Gate
    curves: Many[Curve]
    notes: Many[str]
    seconds: float


@dataclass(frozen=True, eq=False)
class Done:
    """A gate that is done: its document, its curves in their order, and their arrays."""

    gate: Gate
    curves: tuple[Curve, ...]
    arrays: Arrays
    notes: tuple[str, ...]
    seconds: float


class Running:
    """A commission that is being written; hold it in a ``with``.

        with Running.open(directory, subject, plan, resume) as running:
            for gate in gates[len(running.done):]:
                running.add(gate, arrays, curves)
            running.finish(verdict, corridor)

    ``done``: the gates that are behind, in order. ``finished``: the record, when the same
    commission was asked for again with ``resume`` and had ended already.
    """

    def __init__(
        self, folder: Path, begun: _Begun, stack: ExitStack, defaults: Mapping[str, object]
    ) -> None:
        self._folder, self._begun, self._stack = folder, begun, stack
        self._defaults = defaults
        self.done: list[Done] = []
        self.finished: Stored | None = None

    @classmethod
    def open(
        cls,
        directory: Place,
        subject: Subject,
        plan: Mapping[str, Any],
        resume: bool = False,
        *,
        overwrite: bool = False,
        command: Sequence[str] = (),
        place: Place = ".",
        defaults: Mapping[str, object] = {},
    ) -> Running:
        """Begin a commission, or go on with it; the directory is locked until it is closed.

        ``plan``: what the gates are and do, as JSON: whatever must be the same for the gates that
        are done to hold. ``command`` and ``place``: the command line, and where the target stands,
        whose repository is looked at. ``defaults``: what arguments of a builder are that are not
        given, so that one given as its default is no other. Without ``resume`` the gates of an
        earlier attempt are removed; a record of the same specification, with ``overwrite`` of any,
        stays until the new one takes its place.

        Raises RecordError: the directory holds something else, another writer is at it, what it
        holds was begun with another subject, plan or version, or is another's record.
        """
        expect_path("directory", directory, "where the record is to be written")
        folder, planned = folder_of(directory), json.loads(canonical(plan))
        provenance = begun(command, place, directory).model_copy(update={"plan": planned})
        opened(folder)
        with ExitStack() as stack:
            stack.enter_context(locked(folder))
            recovered(folder)
            running = cls(folder, _Begun(subject=subject, provenance=provenance), stack, defaults)
            if not (resume and running._continued()):
                if not overwrite:
                    running._spare()
                running._start()
            running._stack = stack.pop_all()
            return running
        raise AssertionError  # an ExitStack lets every exception pass

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other writers at the directory; gates that are done stay."""
        self._stack.close()

    # ------------------------------------------------------------------------- beginning

    def _spare(self) -> None:
        """Raise where a record stands that is not of this specification."""
        if not (self._folder / DOCUMENT).exists():
            return
        wanted = "give another directory, or --overwrite to replace it"
        stored, faults = examined(self._folder)
        if stored is None:
            raise RecordError(
                f"{self._folder} holds a record that cannot be read ({faults[0]}); {wanted}"
            )
        if changes := self._another(stored.record):
            raise RecordError(
                f"{self._folder} holds the record of another specification ({some(changes)}); "
                f"{wanted}"
            )

    def _another(self, record: Record) -> list[Change]:
        """What makes the specification of a record another one than that of today."""
        subjects = record.subject, self._begun.subject
        found = specification_changes(*(filled(each, self._defaults) for each in subjects))
        told = {change.what.rpartition(".")[2] for change in found}  # the step of an equation
        before, after = (
            {key: made.plan[key] for key in _SPECIFIED if key in made.plan}
            for made in (record.provenance, self._begun.provenance)
        )
        planned = list(between(before, after))
        if any(change.what == "corridor" for change in planned):
            told.add("bounds")  # those of another corridor
        return [*found, *(c for c in planned if c.what.partition(".")[0] not in told)]

    def _start(self) -> None:
        """Make the folder of gates, with what began in it or not at all."""
        document = json.dumps(self._begun.model_dump(mode="json"), indent=1, ensure_ascii=False)
        dropped(self._folder / GATES)
        part = self._folder / f".{GATES}.part"
        made(part)
        try:
            placed(part / PLAN, document.encode())
            os.replace(part, self._folder / GATES)
        finally:
            sweep(self._folder)

    def _continued(self) -> bool:
        """Whether there was something to go on with."""
        path = self._folder / GATES / PLAN
        if not path.exists():
            return self._ended()
        try:
            before = _Begun.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise RecordError(
                f"{self._folder} cannot be resumed, {path.name} in it cannot be read, "
                f"{misfit(error)}; {_ANEW}"
            ) from None
        self._same(before.subject, before.provenance)
        self._begun = before
        for number, path in enumerate(sorted((self._folder / GATES).glob("*.npz")), start=1):
            found = _gate(path)
            if found is None or not path.name.startswith(f"{number:02}-"):
                break  # damaged, or one before it is missing: measured again from here on
            self.done.append(found)
        for path in sorted((self._folder / GATES).glob("*.npz"))[len(self.done) :]:
            path.unlink()
        return True

    def _ended(self) -> bool:
        """Whether the directory holds the record of this very commission; that of another
        specification is not looked at."""
        if not (self._folder / DOCUMENT).exists():
            return False
        stored = read(self._folder)
        if self._another(stored.record):
            return False
        self._same(stored.record.subject, stored.record.provenance)
        self.finished = stored
        return True

    def _same(self, subject: Subject, made: Provenance) -> None:
        """Raise where what the directory holds is not what is asked for now."""
        today = self._begun
        before, after = (filled(each, self._defaults) for each in (subject, today.subject))
        found = subject_changes(before, after, within=False)
        told = {change.what.rpartition(".")[2] for change in found}  # the step, the depths
        changes = list(map(str, found))
        planned = between(made.plan, today.provenance.plan)
        for change in sorted(planned, key=lambda change: change.what.count(".")):
            changes += [f"plan: {change}"] * (change.what not in told)
        for name in ("depthgauge", "torch", "numpy"):
            changes += map(str, between(getattr(made, name), getattr(today.provenance, name), name))
        if changes:
            raise RecordError(
                f"{self._folder} cannot be resumed, it was begun with something else: "
                f"{some(changes)}; {_ANEW}"
            )

    # --------------------------------------------------------------------------- running

    def add(
        self,
        gate: Gate,
        arrays: Arrays | None = None,
        curves: Sequence[Curve] = (),
        *,
        seconds: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        """Put the next gate on the disk. ``curves`` name their arrays by the keys of ``arrays``,
        which are this gate's own; where they stand in the record is filled in here.

        Raises RecordError when it cannot be written: the gates before it stay.
        """
        assert self.finished is None
        assert gate.name not in [done.gate.name for done in self.done], gate.name
        first = sum(len(done.curves) for done in self.done)
        places = tuple(range(first, first + len(curves)))
        named = {_key(gate, name): np.asarray(array) for name, array in (arrays or {}).items()}
        moved = tuple(
            curve.model_copy(
                update={"blocks": _key(gate, curve.blocks), "values": _key(gate, curve.values)}
            )
            for curve in curves
        )
        gate = gate.model_copy(update={"curves": places})
        document = _Finished(gate=gate, curves=moved, notes=tuple(notes), seconds=seconds)
        words = json.dumps(document.model_dump(mode="json"), ensure_ascii=False)
        held = {**named, _DOCUMENT: np.frombuffer(words.encode(), np.uint8)}
        slug = re.sub(r"[^a-z0-9]+", "-", gate.name.lower()).strip("-") or "gate"
        path = self._folder / GATES / f"{len(self.done) + 1:02}-{slug}.npz"
        placed(path, pack(held))
        self.done.append(Done(gate, moved, named, tuple(notes), seconds))

    def finish(self, verdict: Verdict, corridor: CorridorPart, notes: Sequence[str] = ()) -> Stored:
        """Write the record of the gates that are done, and remove their files.

        Raises RecordError when it cannot be written: gates, and a record of before, stay.
        """
        assert self.finished is None
        wall = {done.gate.name: done.seconds for done in self.done}
        record = Record(
            subject=self._begun.subject,
            corridor=corridor,
            gates=tuple(done.gate for done in self.done),
            verdict=verdict,
            notes=(*(note for done in self.done for note in done.notes), *notes),
            curves=tuple(curve for done in self.done for curve in done.curves),
            provenance=self._begun.provenance.model_copy(
                update={"finished": now(), "wall_seconds": wall}
            ),
        )
        arrays = {name: array for done in self.done for name, array in done.arrays.items()}
        self.finished = commit(self._folder, record, arrays)
        dropped(self._folder / GATES)
        return self.finished


def _key(gate: Gate, name: str) -> str:
    return f"{gate.name}/{name}"


def _gate(path: Path) -> Done | None:
    """The gate in a file, or None when it is damaged."""
    try:
        arrays = unpack(path.read_bytes())
        words = arrays.pop(_DOCUMENT).tobytes()
        found = _Finished.model_validate_json(words)
    except (RecordError, KeyError, ValidationError):
        return None
    return Done(found.gate, found.curves, arrays, found.notes, found.seconds)
