"""``depthgauge commission``: the record it writes, what it refuses to replace, how it goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

import pytest

import depthgauge as dg
from depthgauge.errors import NotCommissionedError
from depthgauge.record.folder import read
from depthgauge.study import corridors
from depthgauge.study.commission import run as running
from depthgauge.study.corridor import Bound
from depthgauge.study.corridors import corridor_named
from tests.cli.command import Command, Ran

SPECIFICATION = """
[block]
equation = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"
[init]
default = "he"
[network]
depth = 4
width = 8
[run]
batch = 8
seed = [0, 1]
optimizer = "sgd"
lr = 0.01
[commission]
depths = [2]
vary = ["scale*2"]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPECIFICATION)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_record_of_another_specification_is_not_replaced(command: Command, place: Path) -> None:
    ran = command("commission", "spec.toml", "-o", "out", "--quiet")
    assert ran.status == 1  # no training runs
    first = read("out").record
    assert command("commission", "spec.toml", "-o", "out", "--quiet").status == 1  # its own
    assert read("out").record.fingerprint == first.fingerprint
    edit(place / "spec.toml", "relu", "gelu")
    refused = command("commission", "spec.toml", "-o", "out", "--quiet")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == (
        "depthgauge: out holds the record of another specification (equation changed: 'h = h + "
        "1/sqrt(L) * W2(relu(W1(rmsnorm(h))))' -> 'h = h + 1/sqrt(L) * W2(gelu(W1(rmsnorm(h))))'); "
        "give another directory, or --overwrite to replace it\n"
    )
    assert read("out").record.fingerprint == first.fingerprint
    assert command("commission", "spec.toml", "-o", "out", "--quiet", "--overwrite").status == 1
    assert "gelu" in read("out").record.subject.equation


BUILDER = """
import torch
from torch import nn

def build(depth=2, width=8):
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*layers), torch.randn(8, width)

def other(depth=2, width=8):
    return build(depth, width)
"""

#: Options beside which a builder is another specification, and what is then said.
ANOTHER = (
    (("--lr", "0.5"), "lr 0.1 -> 0.5"),
    (("--optimizer", "adam", "--lr", "0.1"), "optimizer sgd -> adam"),
    (("--arg", "depth=3"), "depth 2 -> 3; arguments.depth 2 -> 3"),
    (("--seed", "0,2"), "seeds [0, 1] -> [0, 2]"),
    (("--dtype", "float64"), "dtype float32 -> float64"),
    (("--corridor", "default"), "corridor commission -> default"),
    (("--input", "float 8x8"), "input none -> ['float 8x8']"),
    (("--input", "float 4x8"), "batch 8 -> 4; input none -> ['float 4x8']"),
)


def test_a_builders_record_is_not_replaced_by_another_specification(
    command: Command, place: Path
) -> None:
    (place / "net.py").write_text(BUILDER)
    given = ("commission", "net.py:build", "-o", "out", "--quiet")
    assert command(*given, "--seed", "0,1").status == 1
    first = (place / "out" / "record.json").read_bytes()

    def refused(words: str, *asked: str) -> None:
        for resume in ((), ("--resume",)):
            ran = command(*asked, *resume)
            assert (ran.status, ran.out) == (2, "")
            assert f"out holds the record of another specification ({words}); give an" in ran.err
        assert (place / "out" / "record.json").read_bytes() == first
        assert sorted(path.name for path in (place / "out").iterdir()) == [
            "curves.npz", "record.json",
        ]  # fmt: skip

    for more, words in ANOTHER:
        seeds = () if "--seed" in more else ("--seed", "0,1")
        refused(words, *given, *seeds, *more)
    refused("target build -> other", "commission", "net.py:other", *given[2:], "--seed", "0,1")
    (place / "its.py").write_text(BUILDER)
    named = "target net.py:build -> its.py:build"
    refused(named, "commission", "its.py:build", *given[2:], "--seed", "0,1")
    # An argument at its default is the same, on either side, and so is the same path made whole.
    whole = ("commission", f"{place}/net.py:build", *given[2:], "--seed", "0,1")
    for options in ("--arg width=8", "", "--lr 0.1", "--overwrite --lr 0.5"):
        assert command(*whole, *options.split()).status == 1, options
    assert read("out").record.provenance.plan["lr"] == 0.5


def test_the_depths_give_an_argument_that_the_builder_needs(command: Command, place: Path) -> None:
    (place / "net.py").write_text(BUILDER.replace("depth=2", "depth"))
    given = ("commission", "net.py:build", "-o", "out", "--quiet", "--seed", "0")
    ran = command(*given)
    assert (ran.status, "needs the argument 'depth'" in ran.err) == (2, True)
    assert command(*given, "--depths", "depth=1,2").status == 1
    assert read("out").record.subject.arguments == {"depth": 2}
    ran = command(*given, "--depths", "layers=1,2")
    assert (ran.status, "takes no argument 'layers'" in ran.err) == (2, True)


def test_depths_beyond_the_one_that_was_given_are_refused(command: Command, place: Path) -> None:
    (place / "net.py").write_text(BUILDER)
    given = ("commission", "net.py:build", "-o", "out", "--quiet", "--seed", "0")
    ran = command(*given, "--arg", "depth=3", "--depths", "depth=1,4")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "depthgauge: depths name 4, and the network is given depth=3; give depths up to its own, "
        "or commission it at the larger one\n"
    )
    assert command(*given, "--arg", "depth=3", "--depths", "depth=1,2").status == 1
    found = read("out").record.subject
    assert (found.depth, found.arguments, found.depths) == (3, {"depth": 3}, (1, 2, 3))
    # At the default, which nobody gave, the depths say how deep.
    assert command(*given, "--depths", "depth=1,3", "--overwrite").status == 1
    assert read("out").record.subject.depth == 3


def test_an_option_changes_its_own_field_alone(command: Command, place: Path) -> None:
    edit(place / "spec.toml", '"sgd"', '"momentum"')
    given = ("commission", "spec.toml", "--quiet", "--exitfirst")

    def step(*more: str) -> tuple[object, object]:
        assert command(*given, "-o", "out", "--overwrite", *more).status == 1
        plan = read("out").record.provenance.plan
        assert read("out").record.subject.arguments == {k: plan[k] for k in ("optimizer", "lr")}
        return plan["optimizer"], plan["lr"]

    assert step() == ("momentum", 0.01)
    assert step("--lr", "0.2") == ("momentum", 0.2)
    assert step("--optimizer", "adam") == ("adam", 0.01)
    assert step("--optimizer", "adam", "--lr", "0.2") == ("adam", 0.2)
    edit(place / "spec.toml", "lr = 0.01", "")
    assert step("--optimizer", "adam") == ("adam", 0.001)  # the usual one of its own


def test_an_argument_at_its_default_is_resumed(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "net.py").write_text(BUILDER)
    given = ("commission", "net.py:build", "-o", "out", "--quiet", "--seed", "0")
    interrupt(given, command, monkeypatch)
    ran = command(*given, "--resume", "--arg", "width=9")
    assert (ran.status, "begun with something else: width 8 -> 9" in ran.err) == (2, True)
    assert command(*given, "--resume", "--arg", "width=8").status == 1
    assert command(*given, "--resume", "--arg", "depth=2").status == 1  # it has ended


def interrupt(given: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command as far as its third gate, in which it is interrupted."""

    def interrupted(plan: object, bench: object) -> NoReturn:
        raise KeyboardInterrupt

    gates = list(running.GATES)
    gates[2] = dataclasses.replace(gates[2], run=interrupted)
    with monkeypatch.context() as patch:
        patch.setattr(running, "GATES", tuple(gates))
        assert command(*given).status == 130


def test_what_is_another_in_the_plan_is_named(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of a commission that was interrupted and of one that has ended."""

    given = ("commission", "spec.toml", "-o", "out", "--quiet")
    interrupt(given, command, monkeypatch)
    for said in ("it was begun with something else: ", "the record of another specification ("):
        for more, words in (
            (("--shallow", 3), "plan: shallow 8 -> 3"),
            (("--vary", "norm=none"), "plan: vary [scale*2] -> [norm=none]"),
            (("--exitfirst",), "plan: stop_early false -> true"),
            (("--rival", "orthogonal"), "plan: rival fixup -> orthogonal"),
            (("--depths", "3"), "depths [2, 4] -> [3, 4]"),
            (("--lr", "0.5"), "arguments.lr 0.01 -> 0.5"),
            (("--corridor", "default"), "plan: corridor commission -> default"),
        ):
            ran = command(*given, "--resume", *more)
            assert ran.status == 2
            own = more[0] in ("--lr", "--corridor")  # of a record they are the specification
            words = words.removeprefix("plan: ") if own and "record" in said else words
            assert f"{said if own else 'it was begun with something else: '}{words}" in ran.err
            assert ran.err.count("\n") == 1
        assert command(*given, "--resume").status == 1  # goes on, and then has ended
    assert command(*given, "--resume").status == 1


CORRIDOR = """
name = "mine"
[bounds.gradient_ratio]
min = 0.01
max = 100
[[when]]
depth = { min = 100 }
[when.bounds.gradient_ratio]
max = 10
"""


def reasons(ran: Ran) -> list[str]:
    return [reason["sentence"] for reason in ran.document["reasons"]]


def test_a_corridor_that_changed_makes_the_record_stale(command: Command, place: Path) -> None:
    (place / "mine.toml").write_text(CORRIDOR)
    edit(place / "spec.toml", "[commission]", "[corridor]\nstate_max = {max = 99}\n[commission]")
    given = ("commission", "spec.toml", "-o", "out", "--quiet", "--corridor", "mine.toml")
    assert command(*given).status == 1
    equation = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"
    for target in ("spec.toml", equation):
        found = command("verify", "out", target, "--json")
        assert (found.status, reasons(found)) == (0, [])
    edit(place / "mine.toml", "max = 10\n", "max = 9\n")  # where it was not commissioned
    elsewhere = (
        "corridor: gradient_ratio at depth 100 and more: max 10, warn 0.1 -> max 9, warn 0.1 (it "
        "judges what the laws foretell; depth 4 in float32 is judged as before)"
    )
    for target in ("spec.toml", equation):
        found = command("verify", "out", target, "--json")
        assert (found.status, reasons(found)) == (1, [elsewhere])
    with pytest.raises(NotCommissionedError, match="stale: corridor: gradient_ratio at depth 100"):
        dg.require("out", "spec.toml")
    assert command(*given).status == 2  # commission calls it another specification as well
    edit(place / "mine.toml", "max = 9\n", "max = 10\n")
    assert command("verify", "out", "spec.toml").status == 0
    edit(place / "mine.toml", "max = 100\n", 'max = 50\nreason = "a"\n')
    moved = "corridor: gradient_ratio min 0.01, max 100, warn 0.1 -> min 0.01, max 50, warn 0.1"
    for target in ("spec.toml", equation):
        found = command("verify", "out", target, "--json")
        assert (found.status, reasons(found)) == (1, [moved])
    edit(place / "spec.toml", "[corridor]\nstate_max = {max = 99}\n", "")
    found = command("verify", "out", "spec.toml", "--depth", "200", "--json")
    assert reasons(found) == [  # of the depth that was commissioned: the change of depth is said
        "depth 4 -> 200", moved, "corridor: state_max max 99, warn 0.1 -> no bound",
    ]  # fmt: skip
    (place / "mine.toml").unlink()
    found = command("verify", "out", "spec.toml", "--json")
    assert found.status == 1
    assert reasons(found)[-1].startswith(
        "corridor mine, with bounds of its own cannot be compared: mine.toml cannot be read: "
    )


COVERED = """
name = "mine"
[bounds.gradient_ratio]
max = 100
[[when]]
depth = { min = 4, max = 4 }
[when.bounds.gradient_ratio]
max = 50
[[when]]
dtype = "float16"
[when.bounds.gradient_ratio]
max = 20
"""


def test_a_bound_that_another_one_covers_where_it_was_commissioned(
    command: Command, place: Path
) -> None:
    """It judges the rest of the sweep, and the record is stale for that and says so; one that no
    depth is judged by in the precision of the record may move."""
    (place / "mine.toml").write_text(COVERED)
    given = ("commission", "spec.toml", "-o", "out", "--quiet", "--corridor", "mine.toml")
    assert command(*given).status == 1
    equation = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"

    def verified(before: str, after: str) -> list[str]:
        text = (place / "mine.toml").read_text()
        edit(place / "mine.toml", before, after)
        found = [command("verify", "out", target, "--json") for target in ("spec.toml", equation)]
        (place / "mine.toml").write_text(text)
        assert reasons(found[0]) == reasons(found[1])
        assert [ran.status for ran in found] == [int(bool(reasons(ran))) for ran in found]
        return reasons(found[0])

    assert verified("max = 100", "max = 100.0") == []
    kept = "depth 4 in float32 is judged as before)"
    moved = "100, warn 0.1 -> max 60, warn 0.1"
    assert verified("max = 100", "max = 60") == [
        f"corridor: gradient_ratio at depth 1 to 3: max {moved} (it judges depth 2; {kept}",
        f"corridor: gradient_ratio at depth 5 and more: max {moved} (it judges what the laws "
        f"foretell; {kept}",
    ]
    assert verified("max = 50", "max = 40") == [
        "corridor: gradient_ratio max 50, warn 0.1 -> max 40, warn 0.1",
    ]  # fmt: skip
    assert verified("max = 20", "max = 10") == []  # nothing of the record was run in float16
    everywhere = "depth = { min = 1 }"
    edit(place / "mine.toml", "depth = { min = 4, max = 4 }", everywhere)
    assert command(*given, "--overwrite").status == 1
    assert verified("max = 100", "max = 60") == []  # in force nowhere
    moved = "50, warn 0.1 -> max 100, warn 0.1"
    assert verified(everywhere, "depth = { min = 3 }") == [
        f"corridor: gradient_ratio at depth 1 to 2: max {moved} (it judges depth 2; {kept}",
    ]  # fmt: skip
    assert command(*given, "--overwrite", "--vary", "precision=float16").status == 1
    moved = "20, warn 0.1 -> max 10, warn 0.1"
    assert verified("max = 20", "max = 10") == [
        f"corridor: gradient_ratio at every depth, float16: max {moved} (it judges what the "
        f"ablation tried; {kept}",
    ]


def test_a_corridor_beside_its_specification(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs; one in the current directory counts where there is none beside."""
    (place / "sub").mkdir()
    (place / "sub" / "mine.toml").write_text(CORRIDOR)
    (place / "mine.toml").write_text("this is no corridor")
    text = (place / "spec.toml").read_text()
    named = text.replace("[commission]", '[commission]\ncorridor = "mine.toml"')
    (place / "sub" / "s.toml").write_text(named)
    assert command("commission", "sub/s.toml", "-o", "out", "--quiet").status == 1
    for folder, out, specification in ((".", "out", "sub/s.toml"), ("sub", "../out", "s.toml")):
        monkeypatch.chdir(place / folder)
        found = command("verify", out, specification, "--json")
        assert (found.status, reasons(found)) == (0, [])
        with pytest.raises(NotCommissionedError) as caught:
            dg.require(out, specification, unmeasured=())
        assert "corridor" not in str(caught.value).partition("the gate")[0]
    monkeypatch.chdir(place)
    equation = "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"
    assert reasons(command("verify", "out", equation, "--json")) == []
    (place / "sub" / "mine.toml").rename(place / "mine.toml")
    assert command("verify", "out", "sub/s.toml").status == 0
    (place / "mine.toml").unlink()
    (said,) = reasons(command("verify", "out", "sub/s.toml", "--json"))
    assert said.startswith("corridor mine cannot be compared: sub/mine.toml cannot be read: ")
    assert f", and none at mine.toml from the current directory ({place}) either" in said
    ran = command("commission", "sub/s.toml", "-o", "new", "--quiet")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"depthgauge: sub/mine.toml cannot be read: no such file, beside the specification that "
        f"names it, and none at mine.toml from the current directory ({place}) either\n"
    )
    assert not (place / "new").exists()
    assert said.endswith("; the verdict is by the 1 bound that the record holds")


def test_the_packages_own_corridor_may_change_too(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("commission", "spec.toml", "-o", "out", "--quiet").status == 1
    assert command("verify", "out", "spec.toml").status == 0
    now = corridor_named("commission")
    wider = tuple(
        dataclasses.replace(e, bound=Bound(max=0.5)) if e.name == "dead_fraction" else e
        for e in now.entries
    )
    other = dataclasses.replace(now, entries=wider)
    with monkeypatch.context() as patch:
        patch.setattr(corridors, "_packaged", lambda name: other)
        found = command("verify", "out", "spec.toml", "--json")
        with pytest.raises(NotCommissionedError, match="stale: corridor: dead_fraction max"):
            dg.require("out", "spec.toml")
    assert found.status == 1
    (words,) = reasons(found)
    assert words.startswith("corridor: dead_fraction max 0.99")
    assert words.endswith("-> max 0.5, warn 0.1")
    dg.require("out", "spec.toml")


def test_a_specification_that_names_another_corridor(command: Command, place: Path) -> None:
    assert command("commission", "spec.toml", "-o", "out", "--quiet").status == 1
    edit(place / "spec.toml", "[commission]\n", '[commission]\ncorridor = "transport"\n')
    found = command("verify", "out", "spec.toml", "--json")
    assert found.status == 1
    assert all(words.startswith("corridor: ") for words in reasons(found))
    assert any(words.endswith("-> no bound") for words in reasons(found))
