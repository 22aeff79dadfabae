"""``record.json``: its model, its text, and the hashes that hold it together.

    fingerprint = sha256 of everything but the provenance, the fingerprint and the checksum
    checksum    = sha256 of everything but the checksum

The fingerprint is that of the findings: a commission that was interrupted and resumed has the same
one. The checksum is that of this very file. Both are taken of the canonical JSON (keys sorted, no
spaces, UTF-8); the file itself is written to be read: keys in the order of the model, one column of
indent, lists of plain values on one line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, ValidationError

from depthgauge.errors import NewerRecordError, RecordError
from depthgauge.record.parts import (
    Bound,
    CorridorPart,
    Curve,
    Gate,
    Git,
    Judgement,
    Limits,
    Many,
    Part,
    Provenance,
    Source,
    Subject,
    Table,
    Verdict,
)

__all__ = [
    "CURVES",
    "FORMAT",
    "SCHEMA",
    "Bound",
    "CorridorPart",
    "Curve",
    "Gate",
    "Git",
    "Judgement",
    "Limits",
    "Provenance",
    "Record",
    "Source",
    "Subject",
    "Table",
    "Verdict",
    "equation_hash",
    "fingerprint",
    "hashed",
    "parsed",
    "schema",
    "sealed",
    "text",
]

FORMAT: Final = "depthgauge-record"
#: Raised by a change that older readers would read wrongly.
SCHEMA: Final = 1

CURVES: Final = "curves.npz"

#: What stands outside of the fingerprint.
_OUTSIDE: Final = ("provenance", "fingerprint", "checksum")


class Record(Part):
    """One commission, whole. ``files``, ``fingerprint`` and ``checksum`` are filled in when it is
    written."""

    usual: ClassVar[Mapping[str, str]] = {}

    format: Literal["depthgauge-record"] = FORMAT
    schema_version: Literal[1] = Field(default=SCHEMA, alias="schema")
    subject: Subject
    corridor: CorridorPart
    gates: Many[Gate] = ()
    verdict: Verdict
    notes: Many[str] = ()
    curves: Many[Curve] = ()
    provenance: Provenance
    files: dict[str, str] = Field(default_factory=dict)
    """A hash of each file beside this one."""
    fingerprint: str = ""
    checksum: str = ""

    def __str__(self) -> str:
        worst = self.verdict
        lines = [f"{worst.state.replace('_', ' ')}: {worst.weakest}: {worst.reason}"]
        for gate in self.gates:
            said = f"  {gate.reason}" if gate.reason else ""
            lines.append(f"  {gate.state.replace('_', ' '):<13}{gate.name:<18}{said}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Record of {self.subject!r}: {self.verdict.state.replace('_', ' ')}>"

    def to_dict(self) -> dict[str, Any]:
        """The document, as ``record.json`` has it."""
        found: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        return found


def schema() -> dict[str, Any]:
    """The JSON Schema of ``record.json``, as published in ``docs/record.schema.json``."""
    found: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Record.model_json_schema(by_alias=True),
    }
    return found


def hashed(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def equation_hash(text: str) -> str:
    """Of the canonical text of an equation with its scalars; ``""`` where there is none."""
    return hashed(text.encode()) if text else ""


def canonical(document: object) -> bytes:
    """One text for equal documents, whatever the order of their keys."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def fingerprint(document: Mapping[str, Any]) -> str:
    """Of the findings in a record's document."""
    return hashed(canonical({k: v for k, v in document.items() if k not in _OUTSIDE}))


def checksum(document: Mapping[str, Any]) -> str:
    """Of a record's document, but for the checksum itself."""
    return hashed(canonical({k: v for k, v in document.items() if k != "checksum"}))


def sealed(record: Record, files: Mapping[str, str]) -> Record:
    """The record with the hashes of its files, its fingerprint and its checksum."""
    whole = record.model_copy(update={"files": dict(files)})
    whole = whole.model_copy(update={"fingerprint": fingerprint(whole.to_dict())})
    return whole.model_copy(update={"checksum": checksum(whole.to_dict())})


# ---------------------------------------------------------------------------------- text


def text(document: Mapping[str, Any]) -> str:
    """The document to be read by people; the same for equal documents of one order of keys."""
    return _text(document, 0) + "\n"


def _text(value: object, depth: int) -> str:
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, Mapping) and value:
        lines = [f"{_plain(str(key))}: {_text(item, depth + 1)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(lines)}{outer}}}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return f"[{inner}{f',{inner}'.join(_text(item, depth + 1) for item in value)}{outer}]"
    return _plain(value)


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def parsed(data: bytes) -> Record:
    """The record in the bytes of a ``record.json``; hashes are not looked at.

    Raises RecordError: no UTF-8, no JSON or half of it, a key that is missing or holds something
    else; NewerRecordError for a schema that is newer.
    """
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"it is not UTF-8 text: byte {error.start + 1} cannot be read") from None
    except RecursionError:
        raise RecordError("it is nested too deep to be a record") from None
    except ValueError as error:
        raise RecordError(f"it is not valid JSON, or not all of it: {error}") from None
    if not isinstance(document, dict):
        raise RecordError(f"it holds {type(document).__name__}, expected an object")
    if document.get("format") != FORMAT:
        raise RecordError(f"its format is {document.get('format')!r}, expected '{FORMAT}'")
    number = document.get("schema")
    if not isinstance(number, int) or number < 1:
        raise RecordError(f"its schema is {number!r}, expected a whole number up to {SCHEMA}")
    if number > SCHEMA:
        raise NewerRecordError(
            f"its schema is {number}, and this version of depthgauge reads up to {SCHEMA}; "
            f"install a newer depthgauge"
        )
    try:
        return Record.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(misfit(error)) from None


def misfit(error: ValidationError) -> str:
    """The first thing that a record is not, as a sentence: the key, what came, what is wrong."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the document"
    kind, came = first["type"], repr(first["input"])
    if kind == "missing":
        return f"{place} is missing"
    if kind == "extra_forbidden":
        return f"{place} is not a key of schema {SCHEMA}"
    if kind == "value_error":
        return f"{place}: {first['ctx']['error']}"
    said = first["msg"][:1].lower() + first["msg"][1:]
    return f"{place} is {came if len(came) <= 60 else came[:57] + '...'}, but {said}"
