"""A commission that is killed at any moment goes on, and ends as if it had not been."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import RecordError
from depthgauge.record.document import CURVES, CorridorPart, Verdict
from depthgauge.record.folder import Stored, read
from depthgauge.record.running import Running
from depthgauge.record.verify import verify
from tests.record import factory

PLAN = {"gates": list(factory.GATES), "depths": (12, 48, 96)}
CORRIDOR = CorridorPart(name="default", bounds={})


def commission(
    directory: Any,
    resume: bool = False,
    upto: int | None = None,
    pause: float = 0.0,
    overwrite: bool = False,
    **changes: Any,
) -> Stored | None:
    """Four gates of made-up numbers, each with two curves; ``upto``: interrupted after so many."""
    given = {"subject": factory.subject(), "plan": PLAN, **changes}
    with Running.open(
        directory, given["subject"], given["plan"], resume, overwrite=overwrite
    ) as running:
        if running.finished:
            return running.finished
        for place, name in list(enumerate(factory.GATES))[len(running.done) :]:
            if place == upto:
                return None
            time.sleep(pause)
            rng = np.random.default_rng(place)
            arrays = {"blocks": np.arange(97), "state": rng.normal(size=(97, 2)),
                      "gradient": rng.normal(size=(97, 2)) * np.inf}  # fmt: skip
            curves = [factory.curve(name, values=key, quantity=f"{key}_rms")
                      for key in ("state", "gradient")]  # fmt: skip
            gate = factory.gate(name, "warn" if place == 2 else "pass")
            running.add(gate, arrays, curves, seconds=time.perf_counter(), notes=[f"note {place}"])
        verdict = Verdict(state="warn", weakest="precision", score=0.2)
        return running.finish(verdict, CORRIDOR, notes=("the last",))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a commission that was not interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "record"
    assert commission(directory) is not None
    return directory


def assert_as_uninterrupted(directory: Path, whole: Path) -> None:
    assert sorted(os.listdir(directory)) == [CURVES, "record.json"]
    assert read(directory).record.fingerprint == read(whole).record.fingerprint
    assert (directory / CURVES).read_bytes() == (whole / CURVES).read_bytes()
    assert verify(directory).state == "valid"


def test_the_record_of_a_commission(whole: Path) -> None:
    found = read(whole)
    record = found.record
    assert [gate.name for gate in record.gates] == list(factory.GATES)
    assert [gate.curves for gate in record.gates] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [curve.gate for curve in record.curves] == [g for g in factory.GATES for _ in "ab"]
    assert record.notes == ("note 0", "note 1", "note 2", "note 3", "the last")
    assert list(record.provenance.wall_seconds) == list(factory.GATES)
    assert record.provenance.started <= record.provenance.finished
    state = found.arrays[record.curves[4].values]
    assert np.array_equal(state, np.random.default_rng(2).normal(size=(97, 2)))


@pytest.mark.parametrize("gates", range(5))
def test_interrupted_after_any_gate_it_goes_on(tmp_path: Path, whole: Path, gates: int) -> None:
    assert (commission(tmp_path, upto=gates) is None) == (gates < 4)
    if gates < 4:
        with pytest.raises(RecordError, match=rf"has not ended \({gates} gates done\)"):
            read(tmp_path)
        with Running.open(tmp_path, factory.subject(), PLAN, True) as running:
            assert [done.gate.name for done in running.done] == list(factory.GATES[:gates])
    assert commission(tmp_path, resume=True) is not None
    assert_as_uninterrupted(tmp_path, whole)


def test_a_finished_commission_is_not_run_again(tmp_path: Path) -> None:
    first = commission(tmp_path)
    assert first is not None
    before = (tmp_path / "record.json").read_bytes()
    again = commission(tmp_path, resume=True)
    assert again is not None
    assert again.record == first.record
    assert (tmp_path / "record.json").read_bytes() == before
    for changed, words in (
        ({"depths": [12]}, r"something else: plan: depths \[12, 48, 96\] -> \[12\]; leave"),
        ({"shallow": 6}, "something else: plan: shallow none -> 6; leave"),
    ):
        with pytest.raises(RecordError, match=words):
            commission(tmp_path, resume=True, plan={**PLAN, **changed})


def test_without_resume_it_begins_anew_and_the_old_record_stays(tmp_path: Path) -> None:
    first = commission(tmp_path)
    assert first is not None
    commission(tmp_path, upto=2, plan={**PLAN, "shallow": 6})
    assert read(tmp_path).record == first.record
    second = commission(tmp_path, plan={**PLAN, "shallow": 7})
    assert second is not None
    assert read(tmp_path).record.provenance.plan["shallow"] == 7
    assert not (tmp_path / "gates").exists()


def test_the_record_of_another_specification_is_not_replaced(tmp_path: Path) -> None:
    first = commission(tmp_path)
    assert first is not None
    other: Any = {"subject": factory.subject(width=32, depth=128)}
    for resume in (False, True):
        with pytest.raises(RecordError) as caught:
            commission(tmp_path, resume, **other)
        assert str(caught.value) == (
            f"{tmp_path} holds the record of another specification (depth 96 -> 128; width 64 -> "
            f"32); give another directory, or --overwrite to replace it"
        )
    assert sorted(os.listdir(tmp_path)) == [CURVES, "record.json"]
    commission(tmp_path, upto=2, overwrite=True, **other)
    assert read(tmp_path).record == first.record
    with pytest.raises(RecordError, match="holds the record of another specification"):
        commission(tmp_path, **other)
    assert commission(tmp_path, resume=True, **other) is not None  # as it was begun
    assert read(tmp_path).record.subject.width == 32
    # What its code or another torch makes of the same specification is its own.
    drawn = factory.subject(width=32, depth=128, weights={"0": "sha256:dd"}, data="sha256:ee")
    assert commission(tmp_path, subject=drawn) is not None


def test_a_record_that_cannot_be_read_is_not_replaced_either(tmp_path: Path) -> None:
    commission(tmp_path)
    path = tmp_path / "record.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(
        RecordError, match=r"a record that cannot be read .*its schema is 2.*--over"
    ):
        commission(tmp_path)
    assert commission(tmp_path, overwrite=True) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subject": factory.subject(depth=128)}, "begun with something else: depth 96 -> 128"),
        ({"subject": factory.subject(seeds=(0,))}, r"seeds \[0, 1\] -> \[0\]"),
        ({"subject": factory.subject(dtype="bfloat16")}, "dtype float32 -> bfloat16"),
        ({"plan": {**PLAN, "depths": [12, 48]}}, r"plan: depths \[12, 48, 96\] -> \[12, 48\]"),
        ({"plan": {**PLAN, "stop": True}}, "plan: stop none -> true"),
    ],
)  # fmt: skip
def test_what_is_another_is_not_resumed(tmp_path: Path, changes: Any, words: str) -> None:
    commission(tmp_path, upto=2)
    before = sorted(os.listdir(tmp_path / "gates"))
    with pytest.raises(RecordError, match=words) as caught:
        commission(tmp_path, resume=True, **changes)
    assert str(tmp_path) in str(caught.value)
    assert "leave --resume out to commission it anew" in str(caught.value)
    assert sorted(os.listdir(tmp_path / "gates")) == before
    assert commission(tmp_path, resume=True) is not None


def test_another_version_does_not_resume(tmp_path: Path) -> None:
    commission(tmp_path, upto=2)
    path = tmp_path / "gates" / "commission.json"
    begun = json.loads(path.read_text())
    begun["provenance"]["torch"] = "1.0"
    path.write_text(json.dumps(begun))
    with pytest.raises(RecordError, match=r"torch 1\.0 -> "):
        commission(tmp_path, resume=True)


def test_a_damaged_gate_is_measured_again_with_those_behind_it(tmp_path: Path, whole: Path) -> None:
    commission(tmp_path, upto=3)
    second = sorted((tmp_path / "gates").glob("*.npz"))[1]
    data = second.read_bytes()
    second.write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])
    with Running.open(tmp_path, factory.subject(), PLAN, True) as running:
        assert [done.gate.name for done in running.done] == ["block"]
        assert len(list((tmp_path / "gates").glob("*.npz"))) == 1
    assert commission(tmp_path, resume=True) is not None
    assert_as_uninterrupted(tmp_path, whole)


def test_two_commissions_of_one_directory(tmp_path: Path) -> None:
    with (
        Running.open(tmp_path, factory.subject(), PLAN),
        pytest.raises(RecordError, match=f"is being written by process {os.getpid()}"),
    ):
        commission(tmp_path, resume=True)
    assert commission(tmp_path, resume=True) is not None


@pytest.mark.parametrize("at", range(1, 14, 2))
def test_a_full_disk_and_ctrl_c_at_any_write(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    real = os.write
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()):
        directory, calls = tmp_path / type(error).__name__, 0

        def counted(*given: Any, error: BaseException = error) -> int:
            nonlocal calls
            calls += 1
            if calls == at:
                raise error
            return real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", counted)
            with contextlib.suppress(RecordError, KeyboardInterrupt):
                commission(directory)
        assert not list(directory.rglob("*.part"))
        assert commission(directory, resume=True) is not None
        assert_as_uninterrupted(directory, whole)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from tests.record.test_running import commission

def gates():
    return len(list(directory.glob("gates/*.npz")))


random.seed(7)
for attempt in range(20):
    directory = Path(sys.argv[1], str(attempt))
    for kill in (True, True, False):
        child = os.fork()
        if not child:
            commission(directory, resume=True, pause=0.01)
            os._exit(0)
        if kill:  # at some moment after some gate, or when the record is being written
            behind, until = random.randint(0, 4), time.monotonic() + 60
            while gates() < behind and not os.path.exists(directory / "record.json"):
                assert time.monotonic() < until
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in ((0, -signal.SIGKILL) if kill else (0,)), status
        if status:
            print(gates())
"""


def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path, whole: Path) -> None:
    killer = [sys.executable, "-c", KILLER, str(tmp_path)]
    done = subprocess.run(killer, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for attempt in range(20):
        assert_as_uninterrupted(tmp_path / str(attempt), whole)
    stopped = [int(line) for line in done.stdout.split()]
    assert len(stopped) >= 20
    assert len(set(stopped)) > 2, stopped  # after different gates


STEPPER = """
import os, shutil, signal, sys
from pathlib import Path
from tests.record import factory
from tests.record.test_running import CURVES, commission, read

directory, expected = Path(sys.argv[1], "record"), read(sys.argv[2])
old = Path(sys.argv[1], "old")
commission(old, subject=factory.subject(width=32))
curves = Path(sys.argv[2], CURVES).read_bytes()
os.fsync = lambda descriptor: None
CALLS = ("open", "write", "pwrite", "replace", "unlink", "mkdir", "rmdir", "ftruncate")


def killing(number):
    count = 0

    def wrapped(real):
        def call(*given, **named):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


number, status = 0, -signal.SIGKILL
while status == -signal.SIGKILL:
    number += 1
    shutil.rmtree(directory, ignore_errors=True)
    if sys.argv[3] == "over":
        shutil.copytree(old, directory)
    child = os.fork()
    if not child:
        killing(number)
        commission(directory, resume=sys.argv[3] == "new", overwrite=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if sys.argv[3] == "over":  # the old record or the new one
        assert read(directory).record.subject.width in (32, 64), number
    commission(directory, resume=True, overwrite=True)
    assert read(directory).record.fingerprint == expected.record.fingerprint, number
    assert (directory / CURVES).read_bytes() == curves, number
    assert sorted(os.listdir(directory)) == [CURVES, "record.json"], number
assert status == 0, status
print(number)
"""


@pytest.mark.parametrize("place", ["new", "over"])
def test_killed_before_any_call_to_the_system_it_ends_the_same(
    tmp_path: Path, whole: Path, place: str
) -> None:
    """In a new directory, and over an old record, which stays until the new one counts."""
    program = [sys.executable, "-c", STEPPER, str(tmp_path), str(whole), place]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 40
