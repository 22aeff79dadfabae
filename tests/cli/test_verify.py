"""The commands about records: whether one holds, and what two of them differ in."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from depthgauge import arguments
from depthgauge.cli.main import main
from depthgauge.cli.verify import DTYPES
from depthgauge.errors import NotCommissionedError
from depthgauge.integrations.guard import require
from depthgauge.record.document import Verdict
from depthgauge.record.folder import read, write
from depthgauge.record.parts import CorridorPart
from depthgauge.record.provenance import torch_version
from depthgauge.record.same import OTHER_WORDS
from depthgauge.record.subject import builder_subject, source_of, subject_of
from depthgauge.record.verify import verify as verified
from depthgauge.study.commission.bounds import corridor_part
from depthgauge.study.corridors import NamedCorridor
from depthgauge.study.specification import Specification, read_specification
from depthgauge.trace.targets import load
from tests.cli.command import Command
from tests.cli.test_help import imported_by
from tests.record import factory

SPECIFICATION = """
[block]
equation = "h + a * W2(relu(W1(rmsnorm(h))))"
a = "1/sqrt(L)"
[init]
W1 = "he"
[network]
depth = 6
width = 8
[run]
batch = 4
seed = [0, 1]
[corridor]
forward_drift = { max = 3.0 }
"""
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def build(layers=3):
    print("building")
    return nn.Sequential(*[Block() for _ in range(layers)]), torch.randn(4, 8)
"""


def own_bounds(specification: Specification) -> CorridorPart:
    """Those that it declares itself, as a record holds them that was given no other."""
    assert specification.corridor is not None
    return corridor_part(NamedCorridor.of(specification.corridor), 6, "float32")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a specification, a model, and a record of each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPECIFICATION)
    (tmp_path / "model.py").write_text(MODEL)
    specification = read_specification("spec.toml")
    corridor = own_bounds(specification)
    subject = subject_of(specification, "spec.toml")
    write("record", factory.record(subject=subject, corridor=corridor), factory.arrays())

    built_anew()
    return tmp_path


def built_anew() -> None:
    """The record of what ``model.py`` builds, as it stands."""

    def build(seed: int) -> Any:
        found = load("model.py:build", {"layers": 3})
        return found.module, found.batch

    built = builder_subject(
        "model.py:build", build, (0, 1), arguments={"layers": 3}, source=source_of("model.py:build")
    )
    write("built", factory.record(subject=built), factory.arrays())


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_valid_record(command: Command, place: Path) -> None:
    shown = command("verify", "record")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        "record: spec.toml, depth 6, width 8, float32, 2 seeds; verdict pass",
        "no target given: only the files and the version of torch were looked at",
        "verify: valid",
    ]
    assert command("verify", "record", "spec.toml").out.endswith("verdict pass\nverify: valid\n")
    assert command("verify", "record", "h + a*W2(relu(W1(rmsnorm(h))))").status == 0
    found = command("verify", "record", "spec.toml", "--json").document
    assert (found["state"], found["reasons"], found["verdict"]) == ("valid", [], "pass")
    assert found["notes"] == []
    edit(place / "spec.toml", "a * W2", "factor * W2")
    edit(place / "spec.toml", '\na = "', '\nfactor = "')
    for target in ("spec.toml", "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"):
        renamed = command("verify", "record", target)
        assert renamed.status == 0
        assert " ".join(renamed.out.splitlines()[1:]) == f"{OTHER_WORDS} verify: valid"
    assert command("verify", "built", "model.py:build", "--quiet").out == "verify: valid\n"


def test_what_makes_it_stale(command: Command, place: Path) -> None:
    shown = command("verify", "record", "--depth", "128", "--dtype", "bfloat16")
    assert shown.status == 1
    assert shown.out.splitlines()[1:] == [
        "- depth 6 -> 128", "- dtype float32 -> bfloat16", "verify: stale (2 reasons)",
    ]  # fmt: skip
    assert "- depth 6 -> 7\n" in command("verify", "record", "spec.toml", "--depth", "7").out
    equation = command("verify", "record", "h + a * W2(gelu(W1(rmsnorm(h))))")
    assert equation.status == 1
    assert equation.out.splitlines()[1:] == [
        "- equation changed",
        "  - h = h + a * W2(relu(W1(rmsnorm(h))))",
        "  + h = h + a * W2(gelu(W1(rmsnorm(h))))",
        "verify: stale (1 reason)",
    ]
    edit(place / "spec.toml", "max = 3.0", "max = 2.0")
    edit(place / "spec.toml", '"he"', '"lecun"')
    found = command("verify", "record", "spec.toml", "--json")
    assert found.status == 1
    assert [reason["sentence"] for reason in found.document["reasons"]] == [
        "init.W1 he -> lecun",
        "corridor: forward_drift max 3, warn 0.1 -> max 2, warn 0.1",
    ]


def test_code_that_changed(command: Command, place: Path) -> None:
    deeper = command("verify", "built", "model.py:build", "--arg", "layers=5")
    assert deeper.status == 1
    assert "- depth 3 -> 5\n- arguments.layers 3 -> 5\n" in deeper.out
    assert "building" not in deeper.out
    edit(place / "model.py", "nn.ReLU", "nn.GELU")
    changed = command("verify", "built", "model.py:build")
    assert changed.status == 1
    before, after = re.findall(r"^- equation changed\n  - (.*)\n  \+ (.*)$", changed.out, re.M)[0]
    assert before.replace("relu", "gelu") == after
    assert "- source of model.py changed: sha256:" in changed.out


def test_depths_that_were_not_measured(command: Command, place: Path) -> None:
    specification = read_specification("spec.toml")
    subject = subject_of(specification, "spec.toml", (2, 4, 6))
    record = factory.record(subject=subject, corridor=own_bounds(specification))
    write("record", record, factory.arrays())
    for asked, said in (
        ("[4]", []),
        ("[6, 2]", []),
        ("[2, 3]", ["- depths [2, 4, 6] -> [2, 3, 6]"]),
        ("[2, 5, 6]", ["- depths [2, 4, 6] -> [2, 5, 6]"]),
    ):
        (place / "spec.toml").write_text(f"{SPECIFICATION}[commission]\ndepths = {asked}\n")
        shown = command("verify", "record", "spec.toml")
        assert [line for line in shown.out.splitlines() if line.startswith("-")] == said
        assert (
            shown.status,
            verified("record", subject_of(read_specification("spec.toml"))).state,
        ) == ((1, "stale") if said else (0, "valid"))
        if said:
            with pytest.raises(NotCommissionedError, match="stale: depths "):
                require("record", "spec.toml")
        else:
            require("record", "spec.toml")


def test_an_argument_is_compared_with_its_default(command: Command, place: Path) -> None:
    """Of ``scale`` and ``factors`` the record says nothing: they ran as they stand in the code."""
    edit(place / "model.py", "layers=3", "layers, scale=0.3, factors=(1, 2), act=nn.ReLU")

    built_anew()
    for same in ("scale=0.3", "factors=(1, 2)", "layers=3"):
        shown = command("verify", "built", "model.py:build", "--arg", same)
        assert (shown.status, shown.err.count("Error")) == (0, 0), shown.out
    for other, words in (
        ("scale=0.4", "- arguments.scale 0.3 -> 0.4"),
        ("factors=(1, 3)", "- arguments.factors [1, 2] -> [1, 3]"),
    ):
        shown = command("verify", "built", "model.py:build", "--arg", other)
        assert (shown.status, shown.out.splitlines()[1:]) == (
            1, [words, "verify: stale (1 reason)"],
        )  # fmt: skip


def test_an_equation_that_code_has_become(command: Command, place: Path) -> None:
    shown = command("verify", "record", "model.py:build", "--arg", "layers=4")
    assert (shown.status, "kind equation -> builder" in shown.out) == (1, True), shown.err
    other = command("verify", "built", "spec.toml")
    assert (other.status, "kind builder -> equation" in other.out) == (1, True)


def test_a_corridor_that_cannot_be_read_leaves_the_directory_its_name(place: Path) -> None:
    subject = subject_of(read_specification("spec.toml"), "spec.toml")
    for found in (
        verified("record", subject, "gone.toml cannot be read"),
        verified("record", None, "gone.toml cannot be read"),
    ):
        assert found.to_dict()["directory"] == "record"
        assert str(found).splitlines() == [
            "record: stale",
            f"  corridor {read('record').record.corridor.name} cannot be compared: gone.toml "
            f"cannot be read; the verdict is by the 1 bound that the record holds",
        ]


def test_each_reason_of_a_specification(command: Command, place: Path) -> None:
    for old, new, words in (
        ("depth = 6", "depth = 128", "- depth 6 -> 128"),
        ("batch = 4", 'batch = 4\ndtype = "bfloat16"', "- dtype float32 -> bfloat16"),
        ("relu", "tanh", "- equation changed"),
        ("rmsnorm(h)", "layernorm(h)", "- equation changed"),
        ("width = 8", "width = 16", "- width 8 -> 16"),
        ("batch = 4", "batch = 5", "- batch 4 -> 5"),
        ("seed = [0, 1]", "seed = [0, 2]", "- seeds [0, 1] -> [0, 2]"),
        ("seed = [0, 1]", "seed = [0, 1]\nlr = 3.0", "- arguments.lr 0.1 -> 3.0"),
        ('"1/sqrt(L)"', '"1/L"', "- equation changed"),
    ):
        (place / "spec.toml").write_text(SPECIFICATION)
        edit(place / "spec.toml", old, new)
        shown = command("verify", "record", "spec.toml")
        assert (shown.status, shown.err) == (1, "")
        assert shown.out.splitlines()[1] == words
        assert shown.out.endswith("verify: stale (1 reason)\n"), shown.out


def test_a_record_that_another_torch_made(command: Command, place: Path) -> None:
    whole = read("record")
    made = whole.record.provenance.model_copy(update={"torch": "1.13.1"})
    write("record", whole.record.model_copy(update={"provenance": made}), whole.arrays)
    for given in ((), ("spec.toml",)):
        shown = command("verify", "record", *given)
        assert shown.status == 1
        assert shown.out.splitlines()[-2:] == [
            f"- torch version 1.13.1 -> {torch_version()}", "verify: stale (1 reason)",
        ]  # fmt: skip


def test_a_source_that_changed_alone(command: Command, place: Path) -> None:
    edit(place / "model.py", "import torch\n", "import torch  # the same model\n")
    shown = command("verify", "built", "model.py:build")
    assert shown.status == 1
    assert [line.partition("sha256")[0] for line in shown.out.splitlines()[1:]] == [
        "- source of model.py changed: ", "verify: stale (1 reason)",
    ]  # fmt: skip


def test_a_broken_record(command: Command, place: Path) -> None:
    edit(place / "record" / "record.json", '"depth": 6', '"depth": 7')
    shown = command("verify", "record", "spec.toml")
    assert shown.status == 3
    assert "- record.json: fingerprint: it says sha256:" in shown.out
    assert shown.out.endswith("verify: broken (1 reason)\n")
    assert command("verify", "record", "--json").document["state"] == "broken"
    assert command("diff", "record", "built").status == 2
    (place / "record" / "record.json").write_text("{")
    assert command("verify", "record", "--quiet").out == "verify: broken (1 reason)\n"
    assert command("verify", "record").status == 3


def test_a_record_of_a_newer_schema(command: Command, place: Path) -> None:
    edit(place / "record" / "record.json", '"schema": 1', '"schema": 2')
    shown = command("verify", "record", "spec.toml")
    assert (shown.status, shown.err) == (3, "")
    assert shown.out.splitlines() == [
        "- record.json: schema: its schema is 2, and this version of depthgauge reads up to 1; "
        "install a",
        "  newer depthgauge",
        "verify: newer (1 reason)",
    ]
    assert command("verify", "record", "--json").document["state"] == "newer"
    for given in (("diff", "record", "built"), ("report", "record")):
        ran = command(*given)
        assert ran.status == 2
        assert "record holds the record of a newer depthgauge: record.json: schema: " in ran.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["verify", "nowhere"], "nowhere does not exist; give a directory that depthgauge"),
        (["verify", "model.py"], "model.py is a file; give a directory"),
        (["verify", "."], ". is a directory without record.json, so it is no record"),
        (["diff", "record", "nowhere"], "nowhere does not exist"),
        (["verify", "record", "built"], "'built' is a directory; give a file.toml"),
        (["verify", "record", "nothing.toml"], "nothing.toml cannot be read"),
        (["verify", "record", "h +"], "h +"),
        (["verify", "record", "--depth", "deep"], "--depth is 'deep', expected a whole number"),
        (["verify", "record", "--depth", "0"], "--depth is 0, expected a whole number of at least"),
        (["verify", "record", "--dtype", "float"], "--dtype is 'float', expected one of"),
        (["verify", "record", "spec.toml", "--dtype", "float"], "run.dtype is 'float', expected"),
        (["verify", "record", "--arg", "a=1"], "--arg is for Python code"),
        (["verify", "built", "model.py:build", "--depth", "9"], "--depth is for an equation"),
        (["verify", "built", "model.py:none"], "has no 'none'"),
    ],
)
def test_wrong_use(command: Command, place: Path, given: list[str], words: str) -> None:
    ran = command(*given)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.startswith("depthgauge: ")


def test_the_precisions_are_those_of_a_specification() -> None:
    assert tuple(arguments.DTYPES) == DTYPES


def test_two_records(command: Command, place: Path) -> None:
    same = command("diff", "record", "record")
    assert same.status == 0
    assert same.out.endswith("\n\ndiff: equal (2 judgements and curves)\n")
    arrays = factory.arrays()
    arrays["state"][2, 1] *= 100
    gates = (factory.gate(state="warn", curves=(0,), judgements=(
        factory.judgement(value=1.9, state="warn", margin=0.02),)),)  # fmt: skip
    subject = subject_of(read_specification("spec.toml"), "spec.toml")
    record = factory.record(
        subject=subject,
        gates=gates,
        verdict=Verdict(state="warn", weakest="rivers", score=0.02),
        corridor=own_bounds(read_specification("spec.toml")),
    )  # fmt: skip
    write("other", record, arrays)
    shown = command("diff", "record", "other")
    assert shown.status == 1
    assert "different models" not in shown.out
    assert "rivers  gradient_ratio  pass -> warn  1.2 -> 1.9  0.2 -> 0.02\n" in shown.out
    assert "state_rms  -2 decades      2     1  baseline, depth 96  rivers\n" in shown.out
    assert "- verdict.state pass -> warn\n" in shown.out
    found = command("diff", "record", "other", "--json")
    assert found.status == 1
    assert found.document["curves"][0]["block"] == 2
    line = command("diff", "record", "other", "--quiet").out
    counted = "1 of 1 judgements and 1 of 1 curves differ, 0 are equal, 0 stand in one only"
    assert line == f"diff: {counted}\n"


def test_two_records_of_different_models(command: Command, place: Path) -> None:
    shown = command("diff", "record", "built")
    assert shown.status == 1
    head, _, rest = shown.out.partition("\n\n")
    first, *records = head.splitlines()
    hashes = [read(name).record.subject.equation_hash[:19] for name in ("record", "built")]
    assert first == f"different models: equation {hashes[0]}... -> {hashes[1]}..."
    assert len(records) == 2
    assert rest.startswith("what differs in them:\n")
    assert "- kind equation -> builder\n" in rest
    assert command("diff", "record", "built", "--quiet").out.startswith("diff: different models, ")
    document = command("diff", "record", "built", "--json").document
    assert (document["same_model"], document["equal"]) == (False, False)
    write("deeper", factory.record(subject=factory.subject(depth=7)), factory.arrays())
    write("other", factory.record(), factory.arrays())
    shown = command("diff", "deeper", "other")  # one equation
    assert "different models" not in shown.out
    assert "\n\nthe model was run in another way:\n- depth 7 -> 96\n" in shown.out


@pytest.mark.parametrize(
    "given",
    [
        ["verify", "record"],
        ["verify", "record", "--json"],
        ["verify", "record", "--depth", "128"],
        ["diff", "record", "built"],
        ["verify", "--help"],
    ],
)
def test_torch_is_imported_for_a_target_alone(place: Path, given: list[str]) -> None:
    code = f"from depthgauge.cli.main import main\nassert main({given}) in (0, 1)"
    assert imported_by(code, "torch").splitlines()[-1] == "[]"
    if given == ["verify", "record"]:
        seen = imported_by(code.replace("'record'", "'record', 'spec.toml'"), "torch")
        assert seen.splitlines()[-1] == "['torch']"


def test_the_packages_parts_import_no_torch() -> None:
    parts = "document folder running verify difference subject provenance changes checks arrays"
    code = "\n".join(f"import depthgauge.record.{name}" for name in parts.split())
    assert imported_by(f"{code}\nimport depthgauge.report.record_screen", "torch") == "[]"


def test_interrupted(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("depthgauge.record.subject.subject_of", interrupt)
    assert main(["verify", "record", "spec.toml"]) == 130
    assert capsys.readouterr().err == "depthgauge: interrupted\n"
    assert json.loads((place / "record" / "record.json").read_text())
    assert "torch" in sys.modules
