"""``curves.npz``: arrays of numbers in a zip of ``.npy`` files, the same bytes for the same arrays.

Written: sorted names, one fixed date, nothing compressed. Read: every number is asked how much
there is before it is believed, and nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from depthgauge.errors import RecordError

__all__ = ["Arrays", "pack", "unpack"]

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

#: Numbers and truth values; no objects, texts, dates or records.
_KINDS: Final = "biuf"
_DATE: Final = (1980, 1, 1, 0, 0, 0)
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def pack(arrays: Arrays) -> bytes:
    """The bytes of an npz; equal arrays give equal bytes.

    Raises RecordError for an array that is not of numbers.
    """
    out = io.BytesIO()
    archive = zipfile.ZipFile(out, "w", zipfile.ZIP_STORED)
    try:
        for name in sorted(arrays):
            array = np.asarray(arrays[name])
            if why := _no_numbers(array.dtype):
                raise RecordError(f"the array '{name}' {why}; give an array of numbers")
            if array.dtype.byteorder == ">":
                array = array.astype(array.dtype.newbyteorder("<"))
            held = io.BytesIO()
            np.lib.format.write_array(
                held, np.ascontiguousarray(array).reshape(array.shape), (1, 0), allow_pickle=False
            )
            info = zipfile.ZipInfo(f"{name}.npy", _DATE)
            info.create_system = 3  # not the machine's
            info.external_attr = 0o644 << 16
            archive.writestr(info, held.getvalue())
        archive.close()
    except BaseException:
        # Half an archive has no end to write, and closing it would raise over what stopped it.
        archive.fp = None
        raise
    return out.getvalue()


def unpack(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays in the bytes of an npz, read-only.

    Raises RecordError: no npz or half of one, an object array, a pickle, a header that promises
    something else than follows.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {
                info.filename.removesuffix(".npy"): _array(archive, info, len(data))
                for info in archive.infolist()
            }
    except RecordError:
        raise
    except Exception as error:  # what zipfile raises for damage has no end
        raise RecordError(f"it is not a whole npz file ({_said(error)})") from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> NDArray[Any]:
    name = info.filename
    if not name.endswith(".npy"):
        raise RecordError(f"it holds '{name}', which is no array; a pickle is never loaded")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
        raise RecordError(f"its array '{name}' is compressed, which no record is")
    held = io.BytesIO(archive.read(info))
    try:
        header = _HEADERS[np.lib.format.read_magic(held)]
        shape, fortran, dtype = header(held)
    except (KeyError, ValueError) as error:
        raise RecordError(
            f"its array '{name}' has no header that can be read ({_said(error)})"
        ) from None
    if why := _no_numbers(dtype):
        raise RecordError(f"its array '{name}' {why}; it was not loaded")
    body = held.getbuffer()[held.tell() :]
    if math.prod(shape) * dtype.itemsize != len(body):
        raise RecordError(
            f"its array '{name}' says that it has the shape {shape}, which is not what follows"
        )
    array: NDArray[Any] = np.frombuffer(bytes(body), dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _no_numbers(dtype: np.dtype[Any]) -> str:
    """``""``, or what an array holds that is no number."""
    if dtype.hasobject:
        return "is an object array, a pickle"
    return "" if dtype.kind in _KINDS else f"has the type {dtype}, which is no number"


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
