"""The command's options on instruments that run the network again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from depthgauge.arguments import HEAVY
from depthgauge.instruments.subject import Effort
from tests.cli.command import Command

RESIDUAL = ("h + W2(relu(W1(h)))/sqrt(L)", "--depth", 4, "--width", 8, "--batch", 6)

FILE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, depth, scale):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(8) for _ in range(depth)))
        self.head, self.scale = nn.Linear(8, 3), scale

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.blocks(x * self.scale)) / self.scale, labels)


def build(depth=3, scale=1.0):
    return Net(depth, scale), {"x": torch.randn(9, 8), "labels": torch.arange(9) % 3}
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FILE)
    return f"{tmp_path / 'net.py'}:build"


@pytest.mark.parametrize("equation", [True, False])
def test_all_instruments_in_one_document(command: Command, target: str, equation: bool) -> None:
    ran = command(
        "measure", *(RESIDUAL if equation else (target,)), "--instruments", "all", "--json"
    )
    assert (ran.status, ran.err) == (0, "")
    document = ran.document
    assert set(document["settings"]["instruments"]) == set(HEAVY)
    states = [site for site in document["sites"] if site["role"] == "state"]
    for name in ("correlation", "apjn", "direction_gain", "relative_error_state"):
        assert all(site[name] is not None for site in states), name
    assert len(states[0]["log_singular_values"]) == 8
    assert states[-1]["stiffness"] > 0
    of = document["settings"]["instruments"]["stiffness"]["of"]
    assert of.startswith("the cross-entropy of 10 classes" if equation else "the loss returned")
    assert states[-1]["functional_update"] > 0
    shown = command("measure", *(RESIDUAL if equation else (target,)), "--instruments", "all").out
    last = "no loss was given" if equation else "stiffness: learning rate 0.1 times"
    for word in ("participation ratio", "float32 against float64", "one step", last):
        assert word in shown


def test_bfloat16_against_float64(command: Command, target: str) -> None:
    errors = {}
    for dtype in ("bfloat16", "float16", "float32"):
        options = ("--dtype", dtype, "--against", "float64", "--json")
        document = command("measure", target, *options).document
        assert document["dtype"] == "float32"  # the module stays as it was built
        assert document["settings"]["instruments"]["precision"]["arithmetic"] == dtype
        errors[dtype] = document["sites"][-1]["relative_error_state"]
    assert errors["float32"] < 1e-6 < errors["float16"] < errors["bfloat16"] < 0.1
    equation = command(
        "measure", *RESIDUAL, "--dtype", "bfloat16", "--against", "float64", "--json"
    )
    assert equation.document["dtype"] == "bfloat16"
    emulated = command(
        "measure", *RESIDUAL, "--dtype", "float8_e4m3", "--against", "float64", "--json"
    ).document
    assert emulated["dtype"] == "float32"
    assert emulated["settings"]["instruments"]["precision"]["arithmetic"] == "float8_e4m3"


def test_autocast_of_an_equation_rounds_what_its_float32_module_would_round(
    command: Command,
) -> None:
    given = ("measure", *RESIDUAL, "--against", "float64", "--json", "--dtype")
    last = {
        dtype: command(*given, dtype).document["sites"][-1]["relative_error_state"]
        for dtype in ("float32", "autocast-float16", "autocast-bfloat16", "bfloat16")
    }
    assert 0 < last["float32"] < last["autocast-float16"] < last["autocast-bfloat16"] / 3
    assert last["autocast-bfloat16"] < 2 * last["bfloat16"]


@pytest.mark.parametrize(("scale", "held"), [("1.0", True), ("1e6", False)])
def test_what_float16_cannot_hold_is_a_sentence(
    command: Command, target: str, scale: str, held: bool
) -> None:
    ran = command("measure", target, "--arg", f"scale={scale}", "--against", "float64")
    assert ran.status == 0
    assert ("float16 cannot hold what" in ran.out) != held


def test_exponents_over_depths(command: Command, target: str) -> None:
    ran = command("measure", target, "--depths", "2,4,8", "--lr", "1e-3", "--json")
    found = ran.document["exponents"]
    assert {"functional_update", "branch_update", "together", "update_to_weight"} <= set(found)
    for one in found.values():
        assert one["over"] == [2, 4, 8]
        assert one["low"] < one["slope"] < one["high"]
    # He's branches at 1/sqrt(L): a branch alone changes less, all together neither more nor less.
    options = ("--width", 16, "--depths", "4,16", "--lr", "1e-6", "--seed", "0..3", "--json")
    scaled = command("measure", RESIDUAL[0], *options).document["exponents"]
    assert scaled["branch_update"]["slope"] < -0.6
    assert abs(scaled["together"]["slope"]) < 0.4
    plain = command("measure", "h + W2(relu(W1(h)))", *options).document["exponents"]
    assert plain["together"]["slope"] > 1
    assert "with depth" in command("measure", target, "--depths", "2,4").out
    assert ran.document["depth"] == 8


@pytest.mark.parametrize("code", [False, True])
def test_exponents_that_there_are_none_of_have_reasons(
    command: Command, target: str, code: bool
) -> None:
    """An option for more branches mends one of them; a network that overflows has none at all."""
    given = (target,) if code else (RESIDUAL[0], "--width", 8)
    ratio = "norm_of_sum_to_root_sum_square"
    options = (*given, "--depths", "2,6", "--lr", "1e-3")
    few = command("measure", *options, "--branches", 3, "--json").document
    assert "together" in few["exponents"]
    assert ratio not in few["exponents"]
    assert "3 of 6 branches were moved alone" in few["not_measured"][f"exponent of {ratio}"]
    shown = " ".join(command("measure", *options, "--branches", 3).out.split())
    assert f"exponent of {ratio} (at depth 6 3 of 6 branches were moved alone" in shown
    all_ = command("measure", *options, "--branches", 6, "--json").document
    assert ratio in all_["exponents"]
    assert f"exponent of {ratio}" not in all_["not_measured"]


def test_a_network_that_overflows_has_no_exponents_and_says_why(command: Command) -> None:
    options = ("h + 1e200 * W2(relu(W1(h)))", "--width", 8, "--depths", "1,2,3", "--init", "he")
    document = command("measure", *options, "--json").document
    assert document["exponents"] == {}
    for name in ("functional_update", "together", "update_to_weight"):
        assert document["not_measured"][f"exponent of {name}"].startswith("at depth ")
    shown = command("measure", *options).out
    assert "not measured: exponent of functional_update" in shown


@pytest.mark.parametrize("code", [False, True])
def test_a_budget_bounds_the_depths_and_names_those_left_out(
    command: Command, target: str, code: bool
) -> None:
    given = (target,) if code else (RESIDUAL[0], "--width", 8)
    options = (*given, "--depths", "2,4,8", "--budget", "1e-6")
    document = command("measure", *options, "--json").document
    assert document["exponents"] == {}
    for depth in (2, 4, 8):
        why = document["not_measured"][f"depth {depth}"]
        assert why == "the budget of 1e-06 seconds left no time for it"
    shown = command("measure", *options).out
    assert "depth 2, depth 4, depth 8 (the budget of 1e-06 seconds left no time for it)" in shown
    free = command("measure", *given, "--depths", "2,4,8", "--budget", "600", "--json").document
    assert "depth 8" not in free["not_measured"]
    assert free["exponents"]["together"]["over"] == [2, 4, 8]


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("code", [False, True])
def test_how_many_steps_before_stiffness_is_looked_at_again(
    command: Command, target: str, code: bool, steps: int
) -> None:
    given = (target,) if code else RESIDUAL
    document = command("measure", *given, "--steps", steps, "--lr", "1e-3", "--json").document
    note = document["settings"]["instruments"]["stiffness"]
    looks = [name for name in note if name.startswith(("step ", "after "))]
    assert looks == ["step 0", *(["after 5"] if steps else [])]
    assert len(note.get("after 5", {"losses": []})["losses"]) == steps


def test_labels_and_directions(command: Command, target: str, tmp_path: Path) -> None:
    ran = command("measure", target, "--labels", "labels", "--json")
    assert ran.document["sites"][0]["class_gain"] == 1
    np.save(tmp_path / "d.npy", np.eye(8)[:2])
    ran = command("measure", *RESIDUAL, "--directions", tmp_path / "d.npy", "--json")
    assert ran.document["sites"][0]["component_gains"] == [1, 1]


def test_the_axis_of_examples(command: Command, tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def build():\n    return nn.Linear(8, 8), torch.randn(5, 3, 8)\n"
    )
    target = f"{tmp_path / 'rows.py'}:build"
    assert command("measure", target, "--json").document["batch"] == 5
    document = command("measure", target, "--batch-axis", "1", "--json").document
    assert (document["batch"], document["settings"]["batch_axis"]) == (3, 1)
    assert "batch 3 (examples along axis 1)" in command("measure", target, "--batch-axis", "1").out
    for given, message in (
        ((target, "--batch-axis", "x"), "--batch-axis is 'x', expected a whole number"),
        ((target, "--batch-axis", "3"), "batch_axis is 3, expected the axis of the batch"),
        (("h + W(h)", "--batch-axis", "0"), "--batch-axis is for Python code"),
    ):
        ran = command("measure", *given)
        assert ran.status == 2
        assert message in ran.err


def test_exponents_of_a_builder_over_seeds(command: Command, target: str) -> None:
    options = ("--depths", "2,4,8", "--lr", "1e-3", "--json")
    several = command("measure", target, *options, "--seed", "0..2").document["exponents"]
    one = command("measure", target, *options, "--seed", "0").document["exponents"]
    for name, fitted in several.items():
        assert (fitted["seeds"], one[name]["seeds"]) == (3, 1)
        assert fitted["high"] > fitted["low"]
    ran = command("measure", target, "--seed", "0..2")
    assert ran.status == 2
    assert "several are for --depths" in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "y"], "--labels is 'y', expected a part of the batch, which has x, labels"),
        (
            ["--directions", "no.npy"],
            "--directions is 'no.npy', expected a .npy file of real numbers",
        ),
        (["--budget", "soon"], "--budget is 'soon', expected a number of seconds"),
        (["--budget", "-1"], "budget is -1.0, expected seconds above 0, or None for no end"),
        (["--probes", "x"], "--probes is 'x', expected a whole number"),
        (["--steps", "-1"], "steps is -1, expected a whole number of at least 0"),
        (["--steps", "1.5"], "--steps is '1.5', expected a whole number"),
        (["--branches", "0"], "branches is 0, expected a whole number of at least 1"),
        (["--rank", "0"], "rank is 0, expected a whole number of at least 1"),
        (["--lr", "fast"], "--lr is 'fast', expected a number"),
        (["--lr", "nan"], "lr is nan, expected a finite number of at least 0"),
        (["--optimizer", "adm"], "(did you mean 'adam'?)"),
        (["--against", "float32"], "--against is 'float32', expected float64"),
        (["--against", "float64", "--dtype", "float8"], "(did you mean 'float8_e4m3'?)"),
        (
            ["--dtype", "float8"],
            "dtype is 'float8', expected one of float64, float32, bfloat16, float16; "
            "'float8_e4m3' is compared with float64: Effort(arithmetic='float8_e4m3'), or "
            "depthgauge measure TARGET --dtype float8_e4m3 --against float64",
        ),
        *(
            (
                ["--dtype", name],
                f"dtype is '{name}', expected one of float64, float32, bfloat16, float16; "
                "'autocast-bfloat16' or 'autocast-float16' is compared with float64: "
                "Effort(arithmetic='autocast-bfloat16'), or depthgauge measure TARGET --dtype "
                "autocast-bfloat16 --against float64",
            )
            for name in ("autocast", "amp")
        ),
        (
            ["--against", "float64", "--dtype", "autocast"],
            "(write 'autocast-bfloat16' or 'autocast-float16')",
        ),
        (["--dtype", "float46"], "expected one of float64, float32, bfloat16, float16 (did you"),
        (["--against", "float64", "--dtype", "float15"], "the arithmetic is 'float15', expected"),
        (["--depths", "4"], "--depths is '4', expected two or more whole numbers"),
        (["--depths", "4,8", "--arg", "depth=3"], "--arg gives 'depth', which --depths varies"),
        (["--depths", "layers=4,8"], "layers"),
    ],
)
def test_bad_options_are_one_sentence(
    command: Command, target: str, options: list[str], message: str
) -> None:
    ran = command("measure", target, *options)
    assert ran.status == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.startswith("depthgauge: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["autocast-bfloat16", "autocast-float16"])
def test_what_is_to_be_written_for_autocast_runs(command: Command, target: str, name: str) -> None:
    ran = command("measure", target, "--dtype", name, "--against", "float64", "--json")
    note = ran.document["settings"]["instruments"]["precision"]
    assert (note["arithmetic"], note["format"]) == (name, name.removeprefix("autocast-"))


BUILDERS = """
import torch
from torch import nn

def build(layers=3, width=8):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))
    return net, torch.randn(5, width), lambda out: out.square().mean()

def underscored(width=8, depth_=3): return build(depth_, width)
def annotated(width: int, num_layers: "int | None" = None): return build(num_layers, width)
def bare(n_layer, name="x"): return build(n_layer)
def either(a=4, b=8, sizes: list[int] = (), flag=True): return build(a, b)
def neither(name="x", rate=0.1, flag=True, sizes: list[int] = ()): return build()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("build", "by its name: --depths layers=2,4,8 (its whole numbers are layers, width)"),
        ("underscored", "--depths depth_=2,4,8 (its whole numbers are depth_, width)"),
        ("annotated", "--depths num_layers=2,4,8 (its whole numbers are num_layers, width)"),
        ("bare", "by its name: --depths n_layer=2,4,8"),
        ("either", "by its name: --depths NAME=2,4,8 (its whole numbers are a, b)"),
        ("neither", "--depths varies a whole number by its name, and it has none"),
    ],
)
@pytest.mark.parametrize("verb", ["measure", "sweep", "commission", "compare"])
def test_depths_of_a_builder_that_calls_them_otherwise(
    command: Command, tmp_path: Path, verb: str, name: str, said: str
) -> None:
    (tmp_path / "builders.py").write_text(BUILDERS)
    target = f"{tmp_path / 'builders.py'}:{name}"
    more = {"commission": ("-o", tmp_path / "record"), "compare": ("--recipes", "he")}
    ran = command(verb, target, "--depths", "2,4,8", *more.get(verb, ()))
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"depthgauge: '{target}' takes no argument 'depth'; its signature is {name}(" in ran.err
    assert ran.err.rstrip("\n").endswith(said)


def test_what_is_to_be_written_for_depths_runs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "builders.py").write_text(BUILDERS)
    target = f"{tmp_path / 'builders.py'}:"
    for name, depths in (("build", "layers=2,4,8"), ("underscored", "depth_=2,4,8")):
        ran = command("measure", f"{target}{name}", "--depths", depths, "--json")
        assert ran.status == 0
        assert ran.document["exponents"]
    ran = command("measure", f"{target}build", "--depths", "layer=2,4,8")
    assert "'layer'; its signature" in ran.err
    assert "--depths layers=2,4,8" in ran.err
    ran = command("measure", f"{target}build", "--arg", "depth=3")
    assert ran.status == 2
    assert "--depths" not in ran.err  # which was not given


@pytest.mark.parametrize("real", [0.0, 1.0])
def test_directions_that_are_complex_are_refused_by_that(
    command: Command, tmp_path: Path, real: float
) -> None:
    np.save(tmp_path / "d.npy", (real + 1j) * np.ones(8))
    ran = command("measure", *RESIDUAL, "--directions", tmp_path / "d.npy")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "expected a .npy file of real numbers (it holds complex128, whose" in ran.err


def test_a_budget_leaves_the_rivers(command: Command, target: str) -> None:
    ran = command("measure", target, "--instruments", "thorough", "--budget", "1e-6", "--json")
    document = ran.document
    assert document["sites"][0]["state_rms"] > 0
    assert document["not_measured"]["apjn"].startswith("the budget of 1e-06 seconds was spent by")
    json.dumps(document, allow_nan=False)


def test_instruments_leave_each_depth_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 parts the last 8 are depths: what the first 4 may not use is theirs, however long one
    of them took. Without depths it is shared among those that are left."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    for after, spent in ((8, True), (0, False)):
        now[0] = 0.0
        effort = Effort(budget=12, after=after, began=0.0).keeping(4)
        assert not effort.share(4).spent
        now[0] = 5.0  # the first one, where 4 seconds are for all of them
        assert effort.share(3).spent == spent
        assert effort.fits(6.9)
