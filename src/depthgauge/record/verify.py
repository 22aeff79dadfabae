"""``verify``: is a record whole, and does it still hold for what is there today?

    valid    the files are whole, and nothing that was looked at is another now
    stale    the files are whole, and something is: each reason is a sentence
    broken   the files are not what was written: which file, which check
    newer    the record has a schema that this version does not know: neither can be told

Without a subject of today only the files and the version of torch are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from depthgauge.record.bounds import elsewhere_changes
from depthgauge.record.changes import (
    Change,
    corridor_changes,
    filled,
    subject_changes,
)
from depthgauge.record.checks import NEWER, Fault
from depthgauge.record.document import Record
from depthgauge.record.folder import Place, examined
from depthgauge.record.parts import CorridorPart, Subject
from depthgauge.record.provenance import torch_version
from depthgauge.record.same import as_written

__all__ = ["Condition", "Verification", "verify"]

Condition: TypeAlias = Literal["valid", "stale", "broken", "newer"]


@dataclass(frozen=True)
class Verification:
    """What ``verify`` found. ``record`` is None when its document could not be read; ``compared``
    says whether there was a subject of today; ``notes``: what is another in words alone."""

    directory: str
    state: Condition
    reasons: tuple[Fault | Change, ...]
    record: Record | None
    compared: bool
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.state == "valid"

    def __repr__(self) -> str:
        return f"<Verification of {self.directory!r}: {self.state}>"

    def __str__(self) -> str:
        lines = [line for reason in self.reasons for line in reason.lines]
        lines += self.notes
        return "\n".join([f"{self.directory}: {self.state}", *(f"  {line}" for line in lines)])

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``depthgauge verify --json``."""
        out: dict[str, Any] = {
            "directory": self.directory,
            "state": self.state,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "compared_with_target": self.compared,
            "notes": list(self.notes),
        }
        if self.record is None:
            reason = "the record could not be read"
            return out | {"fingerprint": None, "fingerprint_reason": reason,
                          "verdict": None, "verdict_reason": reason}  # fmt: skip
        return out | {
            "fingerprint": self.record.fingerprint,
            "verdict": self.record.verdict.state,
        }


def verify(
    directory: Place,
    subject: Subject | None = None,
    corridor: CorridorPart | str | None = None,
    defaults: Mapping[str, object] = {},
    conditional: Mapping[str, str] | None = None,
) -> Verification:
    """Hold a record against its own hashes, and against the subject and corridor of today.

    ``subject``: of what is to be run now, from ``depthgauge.record.subject``; ``corridor``: the
    bounds that would be in force now, or why they cannot be told; ``defaults``: what arguments of a
    builder are that are not given, from ``depthgauge.trace.targets.defaults``; ``conditional``: the
    bounds of today's corridor as a plan tells them, with those that are not in force at the depth
    that was commissioned.

    Raises RecordError where there is no record: a directory that is none is not a broken one.
    """
    stored, faults = examined(directory)
    name = os.fspath(directory)
    record = stored.record if stored else None
    if faults or record is None:
        newer = any(fault.check == NEWER for fault in faults)
        return Verification(name, "newer" if newer else "broken", tuple(faults), record, False)
    changes, notes = list[Change](), list[str]()
    if subject is not None:
        subject, note = as_written(record.subject, subject)
        notes += filter(None, [note])
        changes += subject_changes(filled(record.subject, defaults), filled(subject, defaults))
    if isinstance(corridor, CorridorPart):
        moved = corridor_changes(record.corridor, corridor)
        changes += moved
        planned = record.provenance.plan.get("bounds")
        if conditional is not None and isinstance(planned, Mapping):
            told = [change.what.removeprefix("corridor.") for change in moved]
            changes += elsewhere_changes(record, planned, conditional, told)
    elif corridor is not None:
        words = f"corridor {record.corridor.name} cannot be compared: {corridor}; the verdict "
        words += f"is by the {_bounds(len(record.corridor.bounds))} that the record holds"
        changes.append(Change("corridor", record.corridor.name, None, words))
    changes += _torch(record)
    state: Condition = "stale" if changes else "valid"
    return Verification(name, state, tuple(changes), record, subject is not None, tuple(notes))


def _bounds(count: int) -> str:
    return f"{count} bound{'s' * (count != 1)}"


def _torch(record: Record) -> Sequence[Change]:
    before, after = record.provenance.torch, torch_version()
    if before == after:
        return ()
    return (Change("torch", before, after, f"torch version {before} -> {after}"),)
