"""Valid, stale for each reason, broken for each damage; never one for the other."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import NewerRecordError
from depthgauge.record import verify as module
from depthgauge.record.arrays import Arrays, pack
from depthgauge.record.document import (
    CURVES,
    CorridorPart,
    Record,
    Source,
    Verdict,
    hashed,
    sealed,
    text,
)
from depthgauge.record.folder import read, write
from depthgauge.record.verify import verify
from tests.record import factory

BUILDER: dict[str, Any] = {
    "kind": "builder",
    "target": "model.py:build",
    "equation": "96 x [h = h + W(relu(W(layernorm(h))))]",
    "arguments": {"layers": 96},
    "scalars": {},
    "init": {},
    "draws": "",
    "source": Source(file="model.py", hash="sha256:1"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "record", factory.record(), factory.arrays())
    return tmp_path / "record"


def test_what_is_the_same_is_valid(directory: Path) -> None:
    for subject in (
        None,
        factory.subject(),
        factory.subject(target="elsewhere/other.toml"),
        factory.subject(seeds=(1,), weights={"1": "sha256:bb"}, data="sha256:of one seed"),
        factory.subject(depths=()),
    ):
        found = verify(directory, subject)
        assert (found.state, found.reasons, bool(found)) == ("valid", (), True)
        assert found.compared == (subject is not None)
    assert verify(directory, corridor=factory.record().corridor).state == "valid"


def _equation(change: str) -> dict[str, Any]:
    old, new = change.split("|")
    return {"equation": factory.EQUATION.replace(old, new)}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"depth": 128, "branches": 128, "m": (2,) * 128}, ["depth 96 -> 128"]),
        ({"dtype": "bfloat16"}, ["dtype float32 -> bfloat16"]),
        ({"width": 32}, ["width 64 -> 32"]),
        ({"batch": 64}, ["batch 128 -> 64"]),
        ({"device": "cuda:0"}, ["device cpu -> cuda:0"]),
        ({"tokens": 32}, ["tokens none -> 32"]),
        ({"draws": "sequential-pcg64"}, ["draws keyed -> sequential-pcg64"]),
        ({"seeds": (0, 1, 2)}, ["seeds [0, 1] -> [0, 1, 2]"]),
        ({"depths": (12, 200)}, ["depths [12, 48, 96] -> [12, 200]"]),
        ({"init": {"W1": "he"}}, ["init.W2 lecun -> none"]),
        ({"init": {"W1": "zeros", "W2": "lecun"}, "weights": {"0": "x", "1": "y"}},
         ["init.W1 he -> zeros"]),
        (_equation("relu|gelu"), [
            "equation changed: 'h = h + a * W2(relu(W1(rmsnorm(h))))' -> "
            "'h = h + a * W2(gelu(W1(rmsnorm(h))))'"]),
        (_equation("rmsnorm(h)|h"), [
            "equation changed: 'h = h + a * W2(relu(W1(rmsnorm(h))))' -> "
            "'h = h + a * W2(relu(W1(h)))'"]),
        ({**_equation("1/sqrt(L)|1/L"), "scalars": {"a": "1/L"}},
         ["equation changed: 'a = 1/sqrt(L)' -> 'a = 1/L'"]),
        ({"placement": "post"}, ["placement pre -> post"]),
        ({"size": 8}, ["size none -> 8"]),
        ({"scalars": {"a": "0.5"}}, ["scalars.a 1/sqrt(L) -> 0.5"]),
        ({"arguments": {"lr": 0.1}}, ["arguments.lr none -> 0.1"]),
        ({"branches": 97}, ["branches 96 -> 97"]),
        ({"weights": {"0": "sha256:aa", "1": "x"}}, ["weights differ under seed 1"]),
        ({"weights": {"0": "x", "1": "y"}}, ["weights differ under seeds 0, 1"]),
        ({"data": "sha256:dd"}, ["data differ: sha256:cc... -> sha256:dd..."]),
        ({"depth": 128, "dtype": "bfloat16", "weights": {"0": "x"}},
         ["depth 96 -> 128", "dtype float32 -> bfloat16"]),
    ],
)  # fmt: skip
def test_each_reason_to_be_stale(directory: Path, changes: Any, reasons: list[str]) -> None:
    found = verify(directory, factory.subject(**changes))
    assert found.state == "stale"
    assert not found
    assert [str(reason) for reason in found.reasons] == reasons
    document = found.to_dict()
    assert [reason["sentence"] for reason in document["reasons"]] == reasons
    json.dumps(document, allow_nan=False)


def test_an_equation_is_shown_as_it_was_and_is(directory: Path) -> None:
    today = factory.subject(**_equation("relu|gelu"))
    assert str(verify(directory, today)).splitlines() == [
        f"{directory}: stale",
        "  equation changed",
        "    - h = h + a * W2(relu(W1(rmsnorm(h))))",
        "    + h = h + a * W2(gelu(W1(rmsnorm(h))))",
    ]
    other = factory.subject(equation="h = tanh(W3(h0) + W4(tanh(W5(tanh(h)))))")
    assert str(verify(directory, other).reasons[0]) == (
        f"equation changed: '{factory.EQUATION}' -> '{other.equation}'"
    )


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"target": "moved/model.py:build", "source": Source(file="moved/model.py",
                                                             hash="sha256:1")}, []),
        ({"source": Source(file="model.py", hash="sha256:2")},
         ["source of model.py changed: sha256:1... -> sha256:2..."]),
        ({"source": Source(file="model.py", hash="sha256:2"), "weights": {"0": "x"}},
         ["source of model.py changed: sha256:1... -> sha256:2...",
          "weights differ under seed 0"]),
        ({"source": None, "source_reason": "the builder stands in no file"},
         ["source of model.py cannot be compared: the builder stands in no file"]),
        ({"depth": 48, "arguments": {"layers": 48}, "m": (2,), "weights": {},
          "equation": BUILDER["equation"].replace("96", "48")},
         ["depth 96 -> 48", "arguments.layers 96 -> 48"]),
        ({"m": (1,) * 96}, ["m [2, 2, 2, 2, ... (96)] -> [1, 1, 1, 1, ... (96)]"]),
    ],
)  # fmt: skip
def test_a_builder(tmp_path: Path, changes: Any, reasons: list[str]) -> None:
    write(tmp_path, factory.record(subject=factory.subject(**BUILDER)), factory.arrays())
    found = verify(tmp_path, factory.subject(**{**BUILDER, **changes}))
    assert [str(reason) for reason in found.reasons] == reasons
    assert found.state == ("stale" if reasons else "valid")


def test_a_subject_of_another_kind(directory: Path) -> None:
    found = verify(directory, factory.subject(**BUILDER))
    assert str(found.reasons[0]) == "kind equation -> builder"


@pytest.mark.parametrize(
    ("bounds", "reasons"),
    [
        ({"gradient_ratio": {"min": 0.5, "max": 2.0, "reason": "in other words"}}, []),
        ({"gradient_ratio": {"min": 0.5, "max": 4.0}},
         ["corridor: gradient_ratio min 0.5, max 2, warn 0.1 -> min 0.5, max 4, warn 0.1"]),
        ({}, ["corridor: gradient_ratio min 0.5, max 2, warn 0.1 -> no bound"]),
        ({"gradient_ratio": {"min": 0.5, "max": 2.0}, "forward_drift": {"max": 3}},
         ["corridor: forward_drift no bound -> max 3, warn 0.1"]),
    ],
)  # fmt: skip
def test_the_corridor(directory: Path, bounds: Any, reasons: list[str]) -> None:
    found = verify(directory, corridor=CorridorPart(name="default", bounds=bounds))
    assert [str(reason) for reason in found.reasons] == reasons


def test_another_torch_is_said_without_a_subject(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = factory.record().provenance.torch
    monkeypatch.setattr(module, "torch_version", lambda: "99.0")
    found = verify(directory)
    assert found.state == "stale"
    assert [str(reason) for reason in found.reasons] == [f"torch version {before} -> 99.0"]


# ---------------------------------------------------------------------------------- broken


def placed(directory: Path, record: Record, curves: bytes) -> None:
    """Files as a forger would write them: every hash is right."""
    directory.mkdir(exist_ok=True)
    whole = sealed(record, {CURVES: hashed(curves)})
    (directory / CURVES).write_bytes(curves)
    (directory / "record.json").write_text(text(whole.to_dict()), encoding="utf-8")


def _with(member: str, data: bytes) -> bytes:
    out = io.BytesIO(pack(factory.arrays()))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(member, data)
    return out.getvalue()


def _compressed() -> bytes:
    out = io.BytesIO(pack(factory.arrays()))
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.npy", b"0" * 99)
    return out.getvalue()


def _pickled() -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.array([{"a": 1}], object))
    return out.getvalue()


def _gates(**changes: Any) -> dict[str, Any]:
    return {"gates": (factory.gate(curves=(0,), **changes),)}


@pytest.mark.parametrize(
    ("changes", "curves", "reason"),
    [
        ({}, _with("more.npy", _pickled()),
         "curves.npz: arrays: its array 'more.npy' is an object array, a pickle; it was not "
         "loaded"),
        ({}, _with("more.pkl", b"x"),
         "curves.npz: arrays: it holds 'more.pkl', which is no array; a pickle is never loaded"),
        ({}, pack({"blocks": np.arange(4)}),
         "curves.npz: array: the curve state_rms of baseline, depth 96 (rivers) needs the array "
         "'state', missing"),
        ({}, pack({**factory.arrays(), "state": np.ones((2, 4))}),
         "curves.npz: shape: the curve state_rms of baseline, depth 96 (rivers) has blocks of "
         "shape (4,) and values of shape (2, 4), expected (B,) and (B, 2)"),
        (_gates(state="fail"), None,
         "record.json: verdict: the verdict is pass, better than its weakest gate: 'rivers' is "
         "fail"),
        (_gates(state="not_measured"), None,
         "record.json: verdict: the verdict is pass, better than its weakest gate: 'rivers' is "
         "not measured"),
        ({"curves": (factory.curve("nowhere"),)}, None,
         "record.json: curves: the curve state_rms of baseline, depth 96 (nowhere) is of "
         "'nowhere', no gate here"),
        ({}, _compressed(),
         "curves.npz: arrays: its array 'more.npy' is compressed, which no record is"),
        ({"gates": (factory.gate("block", "warn"), factory.gate(curves=(0,))),
          "verdict": Verdict(state="warn", weakest="rivers")}, None,
         "record.json: verdict: 'rivers' is named as the weakest gate and is not"),
    ],
)  # fmt: skip
def test_what_is_broken_although_every_hash_is_right(
    tmp_path: Path, changes: Any, curves: bytes | None, reason: str
) -> None:
    placed(tmp_path / "good", factory.record(), pack(factory.arrays()))
    assert verify(tmp_path / "good").state == "valid"
    placed(tmp_path / "bad", factory.record(**changes), curves or pack(factory.arrays()))
    found = verify(tmp_path / "bad", factory.subject(depth=1))
    assert found.state == "broken"
    assert [str(each) for each in found.reasons] == [reason]
    assert found.to_dict()["reasons"][0]["file"] == reason.partition(":")[0]


def test_what_was_changed_afterwards(directory: Path) -> None:
    path, curves = directory / "record.json", directory / CURVES
    whole, arrays = path.read_text(), curves.read_bytes()

    def reasons() -> list[str]:
        found = verify(directory)
        assert found.state == "broken"
        return [f"{each.file}: {each.check}" for each in found.reasons]  # type: ignore[union-attr]

    path.write_text(whole[: len(whole) // 2])
    assert reasons() == ["record.json: document"]
    assert verify(directory).to_dict()["fingerprint_reason"] == "the record could not be read"
    path.write_text(whole.replace('"depth": 96', '"depth": 97', 1))
    assert reasons() == ["record.json: fingerprint"]
    for old, new in (
        ('"values": "state"', '"values": "stale"'),
        (f'"{CURVES}": "sha', '"x": "sha'),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new))
        assert reasons() == ["record.json: fingerprint"]
    path.write_text(whole.replace('"python": "3.11"', '"python": "3.12"'))
    assert reasons() == ["record.json: checksum"]
    path.write_text(whole.replace("\n", "\r\n"), newline="")
    assert reasons() == ["record.json: text"]
    assert "the same as when it was written, in other characters" in str(verify(directory))
    path.write_text(whole)
    curves.write_bytes(pack(factory.arrays(5)))
    assert reasons() == ["curves.npz: hash"]
    curves.write_bytes(arrays[: len(arrays) // 2])
    assert reasons() == ["curves.npz: hash", "curves.npz: arrays"]
    curves.unlink()
    assert reasons() == ["curves.npz: file"]
    curves.write_bytes(arrays)
    assert verify(directory).state == "valid"


def test_a_record_of_a_newer_schema_is_called_that(directory: Path) -> None:
    path = directory / "record.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    found = verify(directory, factory.subject())
    assert str(found) == (
        f"{directory}: newer\n  record.json: schema: its schema is 2, and this version of "
        f"depthgauge reads up to 1; install a newer depthgauge"
    )
    assert not found
    assert found.to_dict()["state"] == "newer"
    with pytest.raises(NewerRecordError, match="holds the record of a newer depthgauge: "):
        read(directory)
    path.write_text(path.read_text().replace('"schema": 2', '"schema": "2"'))
    assert verify(directory).state == "broken"


def test_a_lost_file_of_arrays_is_not_said_for_every_curve(tmp_path: Path) -> None:
    held: Arrays = {"blocks": np.arange(4)}
    curves = [factory.curve(quantity=f"q{i}") for i in range(50)]
    placed(tmp_path, factory.record(curves=curves), pack(held))
    found = verify(tmp_path)
    assert len(found.reasons) == 6
    assert str(found.reasons[-1]) == "curves.npz: arrays: and 45 more like these"
