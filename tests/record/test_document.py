"""The document: its keys, its text, its hashes, and the schema that is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.errors import RecordError
from depthgauge.record.document import (
    Record,
    equation_hash,
    fingerprint,
    parsed,
    schema,
    sealed,
    text,
)
from depthgauge.record.parts import CorridorPart, Judgement, Subject, Table, Verdict
from depthgauge.study.corridor import Corridor
from tests import factories
from tests.record import factory

ROOT = Path(__file__).resolve().parents[2]
FILES = {"curves.npz": "sha256:00"}


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((ROOT / "docs" / "record.schema.json").read_text(encoding="utf-8"))
    assert published == schema(), "write json.dumps(schema(), indent=1) into it"
    assert published["properties"]["schema"]["const"] == 1


def test_the_keys_stand_in_the_order_of_the_documentation() -> None:
    document = sealed(factory.record(), FILES).to_dict()
    assert " ".join(document) == (
        "format schema subject corridor gates verdict notes curves provenance files fingerprint "
        "checksum"
    )
    assert " ".join(key for key in document["subject"] if not key.endswith("_reason")) == (
        "target kind equation equation_hash latex scalars init depths depth width tokens size "
        "branches m placement draws batch dtype device seeds arguments source layers weights data"
    )
    assert list(document["corridor"]["bounds"]["gradient_ratio"]) == [
        "min", "max", "warn", "reason", "source",
    ]  # fmt: skip
    assert list(document["gates"][0]) == [
        "name", "question", "state", "reason", "judgements", "leaves_open", "notes", "tables",
        "curves",
    ]  # fmt: skip


def test_the_text_is_to_be_read_and_reads_back() -> None:
    record = sealed(factory.record(), FILES)
    written = text(record.to_dict())
    lines = written.splitlines()
    assert lines[1] == ' "format": "depthgauge-record",'
    assert '  "depths": [12, 48, 96],' in lines
    assert '   "gradient_ratio": {' in lines
    assert json.loads(written) == record.to_dict()
    assert parsed(written.encode()) == record


def test_a_judgement_is_held_as_it_is_written() -> None:
    corridor = Corridor.of(
        forward_drift={"max": 3.0},
        gradient_ratio={"min": 0.5, "max": 2.0},
        dead_fraction={"max": 1},
    )
    profiles = factories.profile(), factories.profile((1.0, float("inf"), 2.0), (1.0, 1.0, 1.0))
    for profile in profiles:
        for judgement in corridor.judge(profile).judgements:
            written = judgement.to_dict()
            held = Judgement(**written)
            assert held.model_dump(mode="json") == written
        verdict = corridor.judge(profile).to_dict()
        kept = ("state", "reason", "score", "score_reason")
        Verdict(**{name: verdict[name] for name in kept if name in verdict})


def test_the_fingerprint_is_of_the_findings_alone() -> None:
    first = sealed(factory.record(), FILES)
    elsewhere = factory.record(
        provenance=factory.provenance(platform="other", wall_seconds={"rivers": 2.5})
    )
    other = sealed(elsewhere, FILES)
    assert other.fingerprint == first.fingerprint
    assert other.checksum != first.checksum
    changed: list[tuple[Record, dict[str, str]]] = [
        (factory.record(notes=("a note",)), FILES),
        (factory.record(subject=factory.subject(depth=95)), FILES),
        (factory.record(), {"curves.npz": "sha256:01"}),
    ]
    for record, files in changed:
        assert sealed(record, files).fingerprint != first.fingerprint
    document = first.to_dict()
    assert fingerprint(dict(reversed(document.items()))) == first.fingerprint


def test_the_hash_of_an_equation_is_of_its_canonical_text_with_its_scalars() -> None:
    def found(equation: str, a: str) -> str:
        return equation_hash(to_text(parse(equation, {"a": a})))

    first = found("h + a * W(relu(h))", "1/sqrt(L)")
    assert first == found("h = h + a*W( relu(h) )  # the same", "1/sqrt(L)")
    assert first != found("h + a * W(relu(h))", "1/L")
    assert first != found("h + a * W(gelu(h))", "1/sqrt(L)")
    assert first.startswith("sha256:")
    assert equation_hash("") == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["subject"].pop("depth"), "subject.depth is missing"),
        (lambda d: d["subject"].update(depth="96"), "subject.depth is '96', but input should be"),
        (lambda d: d["subject"].update(deph=96), "subject.deph is not a key of schema 1"),
        (lambda d: d["verdict"].update(state="good"), "verdict.state is 'good', but input should"),
        (lambda d: d["gates"][0]["judgements"][0].update(value=None),
         "gates.0.judgements.0: value is null and value_reason does not say why"),
        (lambda d: d["gates"][0].update(tables=[
            {"kind": "laws", "title": "t", "columns": ["a"], "rows": [[1, 2]]}]),
         "gates.0.tables.0: row 1 of the table 't' has 2 cells, expected 1, one a column"),
        (lambda d: d.update(schema=2),
         "its schema is 2, and this version of depthgauge reads up to 1; install a newer"),
        (lambda d: d.update(schema=2, surprise=True), "its schema is 2, and this version"),
    ],
)  # fmt: skip
def test_what_a_document_may_not_be(change: Any, words: str) -> None:
    document = sealed(factory.record(), FILES).to_dict()
    change(document)
    with pytest.raises(RecordError) as caught:
        parsed(text(document).encode())
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff{}", "it is not UTF-8 text: byte 1 cannot be read"),
        (b"", "it is not valid JSON, or not all of it"),
        (b'{"format": "depthgauge-record", "sch', "it is not valid JSON, or not all of it"),
        (b"[" * 100_000, "it is nested too deep to be a record"),
        (b"[]", "it holds list, expected an object"),
        (b'{"score": NaN}', "its format is None, expected 'depthgauge-record'"),
        (b'{"format": "depthgauge-record"}', "its schema is None, expected a whole number up to 1"),
    ],
)
def test_what_is_no_document(data: bytes, words: str) -> None:
    with pytest.raises(RecordError) as caught:
        parsed(data)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_are_finite(number: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Verdict(state="pass", score=number)
    with pytest.raises(ValidationError, match="finite"):
        Table(kind="laws", title="", columns=("a",), rows=((number,),))
    with pytest.raises(ValidationError, match="finite"):
        factory.judgement(value=number)


def test_text_that_is_no_unicode_becomes_some() -> None:
    """What a command line holds need not be UTF-8."""
    record = factory.record(
        provenance=factory.provenance(command=("a\udcff.toml", "é")),
        subject=factory.subject(target="a\udcff.toml", arguments={"x": [{"\ud800": "\ud800"}]}),
    )
    assert record.provenance.command == ("a?.toml", "é")
    assert record.subject.target == "a?.toml"
    assert record.subject.arguments == {"x": [{"?": "?"}]}
    whole = sealed(record, FILES)
    assert parsed(text(whole.to_dict()).encode()) == whole


def test_what_is_null_says_why() -> None:
    subject = Subject(target="x", depth=3, batch=1, dtype="float32", seeds=(0,))
    assert subject.source_reason == "an equation has no module of its own"
    assert subject.model_dump()["tokens_reason"] == "the state has no axis of tokens"
    assert "width_reason" not in factory.subject().model_dump()
    assert factory.provenance().git_reason == "it was not looked for"
    with pytest.raises(ValidationError, match="median is null and median_reason does not say why"):
        factory.judgement(median=None)
    assert factory.judgement(median=None, median_reason="not measured").median is None


def test_lists_are_taken_and_texts_are_no_numbers() -> None:
    assert factory.subject(seeds=[0, 1]) == factory.subject(seeds=(0, 1))
    for wrong in ({"seeds": ["0"]}, {"depth": 96.5}, {"depth": True}, {"batch": "128"}):
        with pytest.raises(ValidationError):
            factory.subject(**wrong)
    bounds: dict[str, Any] = {"a": {"max": 3}}
    assert CorridorPart(name="x", bounds=bounds).bounds["a"].max == 3.0
    with pytest.raises(ValidationError):
        factory.provenance(platform=None)
