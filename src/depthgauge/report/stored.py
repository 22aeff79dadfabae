"""A record's directory as plain data: the document of ``record.json``, the arrays beside it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from depthgauge.errors import UsageError

__all__ = ["stored"]

FORMAT: Final = "depthgauge-record"
SCHEMA: Final = 1

Arrays = dict[str, npt.NDArray[Any]]


def stored(directory: str) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of a record, or a UsageError that says what is wrong with it.

    Nothing is unpickled.
    """
    folder = Path(directory)
    document = _document(folder)
    if document.get("format") != FORMAT:
        raise UsageError(f"{folder}/record.json is no record: its format is not '{FORMAT}'")
    if document.get("schema") != SCHEMA:
        raise UsageError(
            f"{folder}/record.json has the schema {document.get('schema')}, and this version of "
            f"depthgauge reads {SCHEMA}; install a newer one"
        )
    return document, _arrays(folder)


def _document(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "record.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} holds no record.json; give a directory that a commission wrote"
        ) from None
    except OSError as error:
        raise UsageError(f"{folder}/record.json cannot be read: {_reason(error)}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{folder}/record.json is not valid JSON, or not all of it") from None
    return found if isinstance(found, dict) else {}


def _arrays(folder: Path) -> Arrays:
    path = folder / "curves.npz"
    try:
        # In memory, since NumPy leaves the file of a damaged archive open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {_reason(error)}") from None
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile):
        raise UsageError(f"{path} is damaged: it does not hold arrays of numbers alone") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
