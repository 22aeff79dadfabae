"""A directory that is no record, or a damaged one, is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from depthgauge.errors import UsageError
from depthgauge.report.stored import stored
from tests.report.records import record


def folder(path: Path) -> Path:
    document, arrays = record(quantities=["state_rms"])
    (path / "record.json").write_text(json.dumps(document))
    np.savez(path / "curves.npz", **arrays)  # type: ignore[arg-type]
    return path


def test_a_record_comes_back(tmp_path: Path) -> None:
    document, arrays = record(quantities=["state_rms"])
    found, held = stored(str(folder(tmp_path)))
    assert found == document
    assert set(held) == set(arrays)
    np.testing.assert_array_equal(held["c0001_values"], arrays["c0001_values"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not valid JSON, or not all of it"),
        ("[" * 100_000, "is not valid JSON, or not all of it"),
        ("[]", "its format is not 'depthgauge-record'"),
        ('{"format": "other"}', "its format is not 'depthgauge-record'"),
        ('{"format": "depthgauge-record", "schema": 2}', "has the schema 2, .* install a newer"),
        ("\udcff", "is not valid JSON"),
    ],
)
def test_a_document_that_cannot_be_read(tmp_path: Path, text: str, reason: str) -> None:
    (folder(tmp_path) / "record.json").write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=reason):
        stored(str(tmp_path))


def test_no_record_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no record.json; give a directory that"):
        stored(str(tmp_path))
    with pytest.raises(UsageError, match=r"holds no record.json"):
        stored(str(tmp_path / "nowhere"))
    (tmp_path / "record.json").mkdir()
    with pytest.raises(UsageError, match=r"record.json cannot be read: is a directory"):
        stored(str(tmp_path))


def test_arrays_that_cannot_be_read(tmp_path: Path) -> None:
    path = folder(tmp_path) / "curves.npz"
    whole = path.read_bytes()
    np.savez(path, evil=np.array([{}], dtype=object))
    with pytest.raises(UsageError, match="does not hold arrays of numbers alone"):
        stored(str(tmp_path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="is damaged"):
        stored(str(tmp_path))
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is damaged"):
        stored(str(tmp_path))
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        stored(str(tmp_path))
