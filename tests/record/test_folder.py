"""A record is written whole, read back equal, and every damage to it is found."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depthgauge.errors import RecordError
from depthgauge.record.arrays import Arrays
from depthgauge.record.document import CURVES, Record, Verdict
from depthgauge.record.folder import examined, read, write
from depthgauge.record.verify import verify
from tests.record import factory

DOCUMENT = "record.json"
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def _disk_that_never_waits() -> Iterator[None]:
    """A disk's own pace is no part of what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def contents(directory: Path) -> dict[str, bytes]:
    """Everything in a directory; nothing may be left lying there."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k], equal_nan=True) for k in a
    )


@SETTINGS
@given(factory.stored())
def test_what_is_written_is_read_back_equal(made: tuple[Record, Arrays]) -> None:
    record, arrays = made
    with tempfile.TemporaryDirectory() as directory:
        written = write(directory, record, arrays)
        assert sorted(os.listdir(directory)) == [CURVES, DOCUMENT]
        found = read(directory)
        first = contents(Path(directory))
        assert found.record == written.record
        assert (
            found.record.model_copy(update={"files": {}, "fingerprint": "", "checksum": ""})
            == record
        )
        assert same(found.arrays, {name: np.asarray(array) for name, array in arrays.items()})
        write(directory, record, dict(reversed([*arrays.items()])))
        assert contents(Path(directory)) == first
        assert verify(directory).state == "valid"


@settings(SETTINGS, max_examples=100)
@given(factory.stored(), st.data())
def test_any_flipped_byte_is_found(made: tuple[Record, Arrays], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write(directory, *made)
        path = Path(directory, data.draw(st.sampled_from([CURVES, DOCUMENT])))
        whole = path.read_bytes()
        place = data.draw(st.integers(0, len(whole) - 1))
        flipped = whole[place] ^ data.draw(st.integers(1, 255))
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        found = verify(directory)
        assert found.state == "broken"
        assert found.reasons
        assert all(reason.to_dict()["file"] == path.name for reason in found.reasons)
        with pytest.raises(RecordError, match="holds a broken record"):
            read(directory)
        path.write_bytes(whole)
        assert verify(directory).state == "valid"


@pytest.mark.parametrize("name", [CURVES, DOCUMENT])
def test_every_byte_of_a_small_record_counts(tmp_path: Path, name: str) -> None:
    write(tmp_path, factory.record(), factory.arrays())
    path = tmp_path / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        _, faults = examined(tmp_path)
        assert faults, place
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert examined(tmp_path)[1], end


# ------------------------------------------------------------------------ what is no record


def test_what_is_no_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / DOCUMENT).write_text('{"name": "somebody else\'s"}')
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("x")
    for name, words in {
        "missing": "does not exist; give a directory that depthgauge commission wrote",
        "file": "is a file",
        "plain": "is a directory without record.json, so it is no record",
        "other": "has a record.json that is none of depthgauge",
    }.items():
        with pytest.raises(RecordError, match=words):
            read(tmp_path / name)
        with pytest.raises(RecordError, match=words):
            verify(tmp_path / name)
    for name, words in {
        "file": "is a file; give the name of a directory",
        "plain": "is a directory that holds notes.txt and no record; give a new directory",
        "other": "holds record.json and no record",
    }.items():
        with pytest.raises(RecordError, match=words):
            write(tmp_path / name, factory.record(), factory.arrays())
    assert contents(tmp_path / "plain") == {"notes.txt": b"x"}


def test_a_directory_without_a_name_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is not set names the current directory to pathlib, and nobody meant that."""
    monkeypatch.chdir(tmp_path)
    words = "the name of the record's directory is empty; give one, or '.'"
    with pytest.raises(RecordError, match=words):
        write("", factory.record(), factory.arrays())
    assert list(tmp_path.iterdir()) == []
    write(".", factory.record(), factory.arrays())
    with pytest.raises(RecordError, match=words):
        read("")
    assert read(".").record.verdict.state == "pass"


@pytest.mark.parametrize("hidden", ["record.json", "commission.json"])
def test_what_may_not_be_read_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """Neither a record nor a directory that keeps others out, in which no path can be looked at."""
    write(tmp_path, factory.record(), factory.arrays())
    before = contents(tmp_path)

    def refused(real: Any) -> Any:
        def call(path: Path, *given: Any, **named: Any) -> Any:
            if path.name == hidden:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *given, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("read_bytes", "exists"):
            patch.setattr(Path, name, refused(getattr(Path, name)))
        with pytest.raises(RecordError) as caught:
            write(tmp_path, factory.record(), factory.arrays())
    assert str(caught.value) == f"{tmp_path} cannot be read: permission denied"
    assert contents(tmp_path) == before
    write(tmp_path, factory.record(), factory.arrays())


def test_a_record_that_contradicts_itself_is_not_written(tmp_path: Path) -> None:
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "better than its weakest gate: 'rivers' is fail": (
            dict(gates=(factory.gate(state="fail", curves=(0,)),)), factory.arrays()),
        "better than its weakest gate: 'late' is not measured": (
            dict(gates=(factory.gate(curves=(0,)), factory.gate("late", "not_measured"))),
            factory.arrays()),
        "better than its weakest gate: there is no gate": (
            dict(gates=(), curves=()), factory.arrays()),
        "'block' is named as the weakest gate and is not": (
            dict(verdict=Verdict(state="warn", weakest="block"),
                 gates=(factory.gate("block"), factory.gate(state="warn", curves=(0,)))),
            factory.arrays()),
        "needs the array 'state', missing": ({}, {"blocks": np.arange(4)}),
        r"values of shape \(4, 3\), expected \(B,\) and \(B, 2\)": (
            {}, {**factory.arrays(), "state": np.ones((4, 3))}),
        "the gate 'rivers' names curve 5, and there are 1": (
            dict(gates=(factory.gate(curves=(5,)),)), factory.arrays()),
        "equation_hash is not that of the equation": (
            dict(subject=factory.subject(equation_hash="sha256:0")), factory.arrays()),
        "the gate 'rivers' stands there twice": (
            dict(gates=(factory.gate(), factory.gate())), factory.arrays()),
    }  # fmt: skip
    for words, (changes, arrays) in wrong.items():
        with pytest.raises(RecordError, match=words):
            write(tmp_path / "record", factory.record(**changes), arrays)
    worse = factory.record(verdict=Verdict(state="fail", weakest="rivers", score=0.2))
    write(tmp_path / "record", worse, factory.arrays())


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["a"]), np.array([1j])])
def test_only_arrays_of_numbers_are_written(tmp_path: Path, array: Any) -> None:
    with pytest.raises(RecordError, match=r"the array 'more' .*; give an array of numbers"):
        write(tmp_path / "record", factory.record(), {**factory.arrays(), "more": array})


# -------------------------------------------------------------------- full disks and ctrl-C


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupted(*_: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("raises", [_full, _interrupted])
def test_when_writing_fails_the_old_record_is_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: int, raises: Any
) -> None:
    write(tmp_path, factory.record(), factory.arrays())
    old = contents(tmp_path)
    real, calls = getattr(os, call), 0

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return raises() if calls == after + 1 else real(*given)

    monkeypatch.setattr(os, call, counted)
    new = factory.record(notes=("new",)), factory.arrays(5)
    said = ""
    try:
        write(tmp_path, *new)
        failed = False
    except (RecordError, KeyboardInterrupt) as caught:
        failed, said = True, str(caught)
    monkeypatch.undo()
    if said:
        assert said == (
            f"{tmp_path / (CURVES if calls == 1 else DOCUMENT)} cannot be written: no space left "
            f"on device; make room or give another directory, nothing there was changed"
        )
    if failed and calls <= 2:
        assert contents(tmp_path) == old
    else:  # both files were on the disk: the new record is there
        assert read(tmp_path).record.notes == ("new",)
    write(tmp_path, *new)
    assert sorted(contents(tmp_path)) == [CURVES, DOCUMENT]


@pytest.mark.parametrize("at", [1, 2])
def test_killed_between_two_renames_there_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    write(tmp_path, factory.record(notes=("old",)), factory.arrays())
    real, calls = os.replace, 0

    def counted(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(os, "replace", counted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, factory.record(notes=("new",)), factory.arrays(5))
    monkeypatch.undo()
    expected = "old" if at == 1 else "new"
    assert read(tmp_path).record.notes == (expected,)
    assert verify(tmp_path).state == "valid"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _full)
        with pytest.raises(RecordError, match="no space left"):
            write(tmp_path, factory.record(notes=("third",)), factory.arrays(6))
    assert read(tmp_path).record.notes == (expected,)
    write(tmp_path, factory.record(notes=("third",)), factory.arrays(6))
    assert sorted(contents(tmp_path)) == [CURVES, DOCUMENT]
