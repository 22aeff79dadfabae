"""One writer at a time; a lock dies with its holder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from depthgauge.errors import RecordError
from depthgauge.record.document import CURVES
from depthgauge.record.files import LOCK, locked
from depthgauge.record.folder import read, write
from tests.record import factory

HOLDER = """
import sys, time
from pathlib import Path
from depthgauge.record.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_by_name_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            words = f"{tmp_path} is being written by process {other.pid}; wait for it"
            with pytest.raises(RecordError, match=words):
                write(tmp_path, factory.record(), factory.arrays())
            assert sorted(os.listdir(tmp_path)) == [LOCK]
        finally:
            other.kill()
    write(tmp_path, factory.record(), factory.arrays())
    assert sorted(os.listdir(tmp_path)) == [CURVES, "record.json"]


def test_a_lock_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder may remove the file between our opening and our locking it."""
    real, path = fcntl.flock, tmp_path / LOCK

    def removed_once(descriptor: int, how: int) -> None:
        real(descriptor, how)
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()

    monkeypatch.setattr(fcntl, "flock", removed_once)
    with locked(tmp_path):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(RecordError, match="is being written by"), locked(tmp_path):
            pass
    assert not path.exists()


WRITER = """
import sys
from depthgauge.errors import RecordError
from depthgauge.record.folder import write
from tests.record import factory
done = 0
while done < 20:
    try:
        write(sys.argv[1], factory.record(notes=(sys.argv[2],) * done), factory.arrays(done + 2))
        done += 1
    except RecordError as error:
        assert "is being written by" in str(error), error
"""


def test_two_writers_and_a_reader_see_whole_records_only(tmp_path: Path) -> None:
    write(tmp_path, factory.record(), factory.arrays())
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen([*command, "a"]) as one, subprocess.Popen([*command, "b"]) as two:
        seen = 0
        while one.poll() is None or two.poll() is None:
            assert len(set(read(tmp_path).record.notes)) <= 1
            seen += 1
    assert (one.returncode, two.returncode) == (0, 0)
    assert seen
    assert sorted(os.listdir(tmp_path)) == [CURVES, "record.json"]
