"""The npz: the same bytes for the same arrays; what is read is numbers, never a pickle."""

from __future__ import annotations

import gc
import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from depthgauge.errors import RecordError
from depthgauge.record.arrays import pack, unpack

KINDS: list[Any] = [
    np.float64,
    np.float32,
    np.float16,
    np.int64,
    np.int8,
    np.uint8,
    np.bool_,
    ">f8",
    ">i2",
]
ANY = st.sampled_from(KINDS).flatmap(
    lambda kind: st_numpy.arrays(kind, st_numpy.array_shapes(min_dims=0, min_side=0))
)


@settings(max_examples=80)
@given(st.dictionaries(st.text("ab/.é ", min_size=1, max_size=5), ANY, max_size=4))
def test_arrays_come_back_and_numpy_reads_them_too(arrays: dict[str, Any]) -> None:
    data = pack(arrays)
    found = unpack(data)
    assert found.keys() == arrays.keys()
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        for name, array in arrays.items():
            for read in (found[name], loaded[name]):
                assert read.shape == array.shape
                assert read.dtype == array.dtype.newbyteorder("<")
                assert np.array_equal(read, array, equal_nan=array.dtype.kind == "f")
    assert pack(dict(reversed(arrays.items()))) == data
    assert pack(found) == data


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("early", [True, False])
def test_an_interruption_of_any_moment_is_that_interruption(
    call: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the handle of an array is closed: nothing raised on the way out covers it, nor
    is anything left that complains when it is collected."""
    closed, whole = 0, zipfile._ZipWriteFile.close  # type: ignore[attr-defined]

    def close(handle: Any) -> None:
        nonlocal closed
        closed += 1
        if not early:
            whole(handle)
        if closed == call:
            raise KeyboardInterrupt
        if early:
            whole(handle)

    monkeypatch.setattr(zipfile._ZipWriteFile, "close", close)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        pack({"a": np.arange(3.0), "b": np.arange(4.0), "c": np.arange(5.0)})
    assert closed >= call
    gc.collect()


def test_a_turned_array_is_the_same_array() -> None:
    turned = np.arange(6.0).reshape(2, 3).T
    assert pack({"a": turned}) == pack({"a": turned.copy()})
    assert np.array_equal(unpack(pack({"a": turned}))["a"], turned)
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    held = io.BytesIO()
    np.savez(held, a=fortran)
    assert np.array_equal(unpack(held.getvalue())["a"], fortran)


class Trap:
    """Says so when it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was loaded",)


def _zip(members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def _npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), **options)
    return out.getvalue()


def _objects() -> bytes:
    trap = np.empty(1, object)
    trap[0] = Trap()
    return _npy(trap)


def _promising(shape: str) -> bytes:
    head = _npy(np.ones(3))
    return head.replace(b"(3,)", shape.encode())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not a whole npz file"),
        (pack({"a": np.ones(3)})[:-30], "it is not a whole npz file"),
        (_zip({"a.npy": _objects()}), "its array 'a.npy' is an object array, a pickle; it was not"),
        (_zip({"a.pkl": pickle.dumps(Trap())}), "it holds 'a.pkl', which is no array"),
        (_zip({"a.npy": pickle.dumps(Trap())}), "its array 'a.npy' has no header that can be read"),
        (_zip({"a.npy": _npy(["text"])}), "its array 'a.npy' has the type <U4, which is no number"),
        (_zip({"a.npy": _npy(np.ones(3))[:-8]}), "has the shape (3,), which is not what follows"),
        (_zip({"a.npy": _promising("(9,)")}), "has the shape (9,), which is not what follows"),
        (_zip({"a.npy": _npy(np.ones(9))}, zipfile.ZIP_DEFLATED), "is compressed, which no record"),
    ],
)
def test_what_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RecordError) as caught:
        unpack(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_that_promises_terabytes_asks_for_no_memory() -> None:
    wide = _npy(np.ones(3)).replace(b"(3,), }      ", b"(3000000000,)}")
    assert b"3000000000" in wide
    with pytest.raises(RecordError, match="which is not what follows"):
        unpack(_zip({"a.npy": wide}))
