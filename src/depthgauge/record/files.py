"""Files that are there whole or not at all, and a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from depthgauge.errors import RecordError

__all__ = ["LOCK", "dropped", "locked", "made", "placed", "settled", "staged", "sweep", "unlinked"]

LOCK: Final = ".lock"

#: Bytes that are handed to the system at once.
_PIECE: Final = 2**24


def placed(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` is the old file or all of the new one, whenever this ends."""
    os.replace(staged(path, data), path)
    settled(path.parent)


def staged(path: Path, data: bytes) -> Path:
    """``data`` on the disk beside ``path``, under a name that only its rename makes true.

    Nothing stays when it cannot be written, or when it is interrupted.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest[:_PIECE]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        unlinked(part)
        why = (error.strerror or str(error)).lower()
        raise RecordError(
            f"{path} cannot be written: {why}; make room or give another directory, nothing "
            f"there was changed"
        ) from error
    except BaseException:  # ctrl-C
        unlinked(part)
        raise
    return part


def sweep(folder: Path) -> None:
    """Remove what a killed writer left half-written; for the holder of the lock."""
    for part in folder.glob(".*.part"):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            unlinked(part)


def dropped(folder: Path) -> None:
    """Remove a folder so that it is there whole or not at all."""
    if folder.is_dir():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        os.replace(folder, part)
        shutil.rmtree(part, ignore_errors=True)


def made(folder: Path) -> None:
    """Make the folder and those above it, where they are missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RecordError(f"{folder} cannot be made: {why}") from None


def unlinked(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def settled(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # a file system that has no such thing; the file itself is on the disk
        pass
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other writers; the system lets go when this process ends.

    Raises RecordError with the other's name. The file is removed at the end: whoever opened it
    before finds that it is no longer the one with that name, and opens again.
    """
    path = folder / LOCK
    descriptor = _taken(path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        unlinked(path)
        os.close(descriptor)


def _taken(path: Path) -> int:
    import fcntl  # here, because a record can be read where there is none

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RecordError(f"{path.parent} cannot be written to: {why}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except FileNotFoundError:  # removed by its last holder between the two calls
            pass
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if re.fullmatch("[0-9]+", holder) else "another process"
            raise RecordError(
                f"{path.parent} is being written by {who}; wait for it, or give another directory"
            ) from None
        except OSError as error:
            os.close(descriptor)
            why = (error.strerror or str(error)).lower()
            raise RecordError(f"{path.parent} cannot be locked: {why}") from None
        os.close(descriptor)
