"""A record as a directory: ``DIR/record.json`` and ``DIR/curves.npz``, written as one.

Both files are on the disk under other names before either gets its own. The curves get theirs
first; from then on the new record counts, also where its document still has the other name: a
reader finds the document that belongs to the curves. So there is the old record or the new one,
whenever the writer is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from depthgauge.errors import NewerRecordError, RecordError, expect_path
from depthgauge.record.arrays import Arrays, pack, unpack
from depthgauge.record.checks import DOCUMENT, NEWER, Fault, inconsistent, unsealed, unshaped
from depthgauge.record.document import CURVES, FORMAT, Record, hashed, parsed, sealed, text
from depthgauge.record.files import LOCK, locked, made, settled, staged, sweep, unlinked

__all__ = [
    "GATES",
    "PLAN",
    "Place",
    "Stored",
    "commit",
    "examined",
    "folder_of",
    "held",
    "opened",
    "read",
    "recovered",
    "write",
]

Place: TypeAlias = str | os.PathLike[str]

#: Where the gates of a commission lie until it ends.
GATES, PLAN = "gates", "commission.json"
_NEXT = f".{DOCUMENT}.part"


@dataclass(frozen=True, eq=False)
class Stored:
    """A record and the arrays that its curves name."""

    record: Record
    arrays: Arrays

    def __str__(self) -> str:
        return f"{self.record.subject}\n{self.record}"

    def __repr__(self) -> str:
        return repr(self.record)


def read(directory: Place) -> Stored:
    """The record in a directory, all of it checked.

    Raises RecordError: there is none, or it is broken (file, check, what is wrong);
    NewerRecordError for one of a newer schema.
    """
    stored, faults = examined(directory)
    if faults or stored is None:
        name = os.fspath(directory)
        if faults[0].check == NEWER:
            raise NewerRecordError(f"{name} holds the record of a newer depthgauge: {faults[0]}")
        raise RecordError(f"{name} holds a broken record: {faults[0]}")
    return stored


def write(directory: Place, record: Record, arrays: Arrays) -> Stored:
    """Write the record, in place of one that may be there; what was written, with its hashes.

    Raises RecordError: the directory holds something else, another writer is at it, the disk is
    full, or the record contradicts itself. The old record is untouched then.
    """
    folder = folder_of(directory)
    opened(folder)
    with locked(folder):
        recovered(folder)
        return commit(folder, record, arrays)


def commit(folder: Path, record: Record, arrays: Arrays) -> Stored:
    """Write both files; for the holder of the lock."""
    for fault in (*inconsistent(record), *unshaped(record, arrays)):
        raise RecordError(f"the record cannot be written, because {fault.sentence}")
    curves = pack(arrays)
    whole = sealed(record, {CURVES: hashed(curves)})
    document = text(whole.to_dict()).encode()
    assert parsed(document) == whole
    parts = []
    try:
        for name, data in ((CURVES, curves), (DOCUMENT, document)):
            parts.append((staged(folder / name, data), folder / name))
    except BaseException:
        for part, _ in parts:
            unlinked(part)
        raise
    for part, path in parts:  # from the first one on the record counts, see held
        os.replace(part, path)
    settled(folder)
    return Stored(whole, unpack(curves))


def folder_of(directory: Place) -> Path:
    """The directory of a record; an empty name, as of a variable that is not set, is none."""
    if not os.fspath(directory):
        raise RecordError("the name of the record's directory is empty; give one, or '.'")
    return Path(directory)


def opened(folder: Path) -> None:
    """Make the directory of a record, or see that it is one that may be written to."""
    try:
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder} is a file; give the name of a directory")
        made(folder)
        if (folder / GATES / PLAN).exists() or (folder / _NEXT).exists() or _is_ours(folder):
            return
        there = sorted(p.name for p in folder.iterdir() if p.name != LOCK and p.suffix != ".part")
    except OSError as error:  # not ours to read, so not ours to replace
        raise RecordError(f"{folder} cannot be read: {_why(error)}") from None
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise RecordError(
            f"{folder} is a directory that holds {', '.join(there[:3])}{more} and no record; "
            f"give a new directory"
        )


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _is_ours(folder: Path) -> bool:
    data = _bytes(folder / DOCUMENT)
    return data is not None and FORMAT.encode() in data


def recovered(folder: Path) -> None:
    """End what a killed writer had decided, and remove the rest; for the holder of the lock."""
    following = _bytes(folder / _NEXT)
    if following is not None and following == _pair(folder)[0]:
        os.replace(folder / _NEXT, folder / DOCUMENT)
    sweep(folder)


# ------------------------------------------------------------------------------- reading


def held(directory: Place) -> tuple[bytes, bytes | None]:
    """The bytes of the document and of the curves that belong together.

    Raises RecordError where there is no record, whether or not it would be a good one.
    """
    expect_path("directory", directory, "the directory of a record")
    folder = folder_of(directory)
    try:
        document, curves = _pair(folder)
    except OSError as error:
        raise RecordError(f"{folder} cannot be read: {_why(error)}") from None
    if document is None:
        raise RecordError(_no_record(folder))
    return document, curves


def _pair(folder: Path) -> tuple[bytes | None, bytes | None]:
    for _ in range(3):  # a writer may pass in between
        document, curves = _bytes(folder / DOCUMENT), _bytes(folder / CURVES)
        if _belong(document, curves):
            break
        following = _bytes(folder / _NEXT)
        if _belong(following, curves):
            return following, curves
    return document, curves


def _belong(document: bytes | None, curves: bytes | None) -> bool:
    if document is None or curves is None:
        return False
    try:
        return parsed(document).files.get(CURVES) == hashed(curves)
    except RecordError:
        return False


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _no_record(folder: Path) -> str:
    wanted = "give a directory that depthgauge commission wrote"
    if not folder.exists():
        return f"{folder} does not exist; {wanted}"
    if not folder.is_dir():
        return f"{folder} is a file; {wanted}"
    if (folder / GATES / PLAN).exists():
        done = len(list((folder / GATES).glob("*.npz")))
        return (
            f"{folder} holds a commission that has not ended ({done} gates done) and no record "
            f"yet; run it again with --resume"
        )
    return f"{folder} is a directory without {DOCUMENT}, so it is no record; {wanted}"


def examined(directory: Place) -> tuple[Stored | None, list[Fault]]:
    """The record as far as it can be read, and everything that is wrong with it.

    Raises RecordError where there is no record at all.
    """
    document, curves = held(directory)
    if _is_foreign(document):
        raise RecordError(
            f"{os.fspath(directory)} has a {DOCUMENT} that is none of depthgauge; give a directory "
            f"that depthgauge commission wrote"
        )
    try:
        record = parsed(document)
    except RecordError as error:
        check = NEWER if isinstance(error, NewerRecordError) else "document"
        return None, [Fault(DOCUMENT, check, str(error))]
    unlike = list(unsealed(record))
    if not unlike and text(record.to_dict()).encode() != document:
        unlike.append(
            Fault(DOCUMENT, "text", "it says the same as when it was written, in other characters")
        )
    arrays, faults = _arrays(record, curves, believed=not unlike)
    return Stored(record, arrays), [*unlike, *inconsistent(record), *faults]


def _is_foreign(document: bytes) -> bool:
    """Whether this is a whole document of somebody else, not ours with damage."""
    if FORMAT.encode() in document or b'"fingerprint"' in document:
        return False
    try:
        json.loads(document)
    except (ValueError, RecursionError):
        return False
    return True


def _arrays(record: Record, curves: bytes | None, believed: bool) -> tuple[Arrays, list[Fault]]:
    """The arrays, and what is wrong with their file; a document that was changed itself is not
    ``believed`` in what it says of them."""
    if curves is None:
        return {}, [Fault(CURVES, "file", "it is missing")]
    faults = []
    said, found = record.files.get(CURVES, ""), hashed(curves)
    if believed and found != said:
        words = f"it is {found[:19]}..., but {DOCUMENT} says {said[:19] or 'none'}..."
        faults.append(Fault(CURVES, "hash", words))
    try:
        arrays = unpack(curves)
    except RecordError as error:
        return {}, [*faults, Fault(CURVES, "arrays", str(error))]
    return arrays, [*faults, *_listed(unshaped(record, arrays) if believed else iter(()))]


def _listed(faults: Iterator[Fault], most: int = 5) -> list[Fault]:
    """The first few: a missing file of arrays has one fault for every curve."""
    found = list(faults)
    more = len(found) - most
    kept = found[:most]
    return [*kept, Fault(CURVES, "arrays", f"and {more} more like these")] if more > 0 else kept
