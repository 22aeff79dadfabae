"""A commission: gates that pass beside gates that must fail, the record, interruption."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthgauge.errors import DepthgaugeError, RecordError, SpecificationError
from depthgauge.instruments.step import Step
from depthgauge.record.subject import subject_of
from depthgauge.record.verify import verify
from depthgauge.study.commission import run as running
from depthgauge.study.commission.run import GATES, commission, plan_of
from depthgauge.study.commission.transport import GATES as BY_GATE
from depthgauge.study.specification import read_specification
from depthgauge.summaries import SUMMARIES
from tests.record import factory

HEALTHY = "h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)"
UNSCALED = "h + W2(relu(W1(h)))"
SMALL: dict[str, Any] = {
    "depth": 12, "width": 16, "batch": 16, "seed": [0, 1], "depths": [4, 12],
    "init": {"default": "lecun"}, "step": Step("momentum", 0.1), "vary": ["norm=none", "scale*2"],
}  # fmt: skip


def gate(found, name):
    return next(g for g in found.gates if g.name == name)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return commission(HEALTHY, tmp_path_factory.mktemp("healthy") / "record", **SMALL)


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    options = {
        **SMALL,
        "depth": 64,
        "depths": [4, 64],
        "vary": ["scale=1/sqrt(L)", "activation=tanh"],
    }
    return commission(UNSCALED, tmp_path_factory.mktemp("sick") / "record", **options)


def test_every_gate_is_asked_in_order(healthy):
    assert [g.name for g in healthy.gates] == [q.name for q in GATES]
    assert all(g.question and g.leaves_open for g in healthy.gates)
    assert {g.state for g in healthy.gates if g.name in BY_GATE} <= {"pass", "warn"}


def test_what_was_not_run_is_not_passed(healthy):
    assert gate(healthy, "training boundary").state == "not_measured"
    assert healthy.state == "not_measured"
    verdict = healthy.stored.record.verdict
    assert verdict.weakest == "training boundary"
    assert verdict.score is not None


def test_the_smallest_margin_is_told_where_what_fails_has_one():
    """A number above zero beside a failure would say that all is inside."""
    inside, outside = factory.judgement(margin=0.2), factory.judgement(margin=-0.3)
    without = factory.judgement(margin=None, margin_reason="nothing was measured")
    names = [question.name for question in GATES]

    def found(**states):
        failing = {name.replace("_", " "): judged for name, judged in states.items()}
        gates = [
            factory.gate(
                name, "fail" if name in failing else "pass", judgements=failing.get(name, (inside,))
            )
            for name in names
        ]
        verdict = running.overall(gates)
        return verdict.state, verdict.score, verdict.score_reason

    assert found() == ("pass", 0.2, None)
    assert found(rivers=(inside, outside)) == ("fail", -0.3, None)
    assert found(first_update=(without, inside))[1:] == (
        None, "the gate 'first update' fails by no margin of the network itself",
    )  # fmt: skip
    assert found(rivers=(outside,), shallow_control=(outside,))[1:] == (
        None, "the gate 'shallow control' fails by no margin of the network itself",
    )  # fmt: skip


def test_a_network_that_explodes_fails_where_it_does(sick):
    assert sick.state == "fail"
    assert gate(sick, "rivers").state == "fail"
    assert "gradient_ratio" in gate(sick, "rivers").reason
    assert gate(sick, "first update").state == "fail"


def test_the_ablation_says_which_single_change_mends_it(sick):
    found = gate(sick, "ablation")
    assert found.state == "fail"
    assert "scale=1/sqrt(L) alone brings" in found.reason
    assert "activation=tanh alone" not in found.reason


def test_the_sick_networks_depths_discriminate_and_the_healthy_ones_do_not(healthy, sick):
    assert "did not discriminate" in gate(healthy, "depth").reason
    assert "did not discriminate" not in gate(sick, "depth").reason
    laws = gate(sick, "depth").tables[0]
    assert laws.kind == "laws"
    assert any("exp(" in str(row) for row in laws.rows)


def test_the_control_is_plain_shallow_and_inside(sick):
    found = gate(sick, "shallow control")
    assert found.state == "pass"
    assert "the control is h = W2(relu(W1(h)))" in found.notes


def test_a_rate_that_is_too_large_is_not_held_against_the_control(tmp_path):
    """It was chosen for the network, and a plain stack of its layers has another curvature."""
    found = commission(HEALTHY, tmp_path / "record", **{**SMALL, "step": Step("sgd", 300.0)})
    assert gate(found, "first update").state == "fail"
    control = gate(found, "shallow control")
    assert control.state == "pass"
    assert "first update" in control.leaves_open
    assert "first update" in gate(found, "ablation").leaves_open


def test_a_control_that_is_out_is_a_failure(tmp_path):
    corridor = {"gradient_ratio": {"min": 1e3}}
    found = commission(HEALTHY, tmp_path / "record", corridor=corridor, **SMALL)
    assert gate(found, "shallow control").state == "fail"
    assert "the control is out of the corridor" in gate(found, "shallow control").reason


def test_an_optimizer_that_a_record_cannot_name_is_refused(tmp_path):
    def made(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    with pytest.raises(SpecificationError) as caught:
        commission(HEALTHY, tmp_path / "record", **{**SMALL, "step": Step(made)})
    assert str(caught.value) == (
        "the optimizer of a commission is of type function, which a record cannot name; give one "
        "of sgd, momentum, nesterov, adam, adamw, and lr beside it"
    )
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize("depth", [0, -4, 2.5, "4"])
def test_depths_that_no_network_has_are_refused_before_anything_is_measured(tmp_path, depth):
    with pytest.raises(SpecificationError) as caught:
        commission(HEALTHY, tmp_path / "record", **{**SMALL, "depths": [4, depth]})
    assert str(caught.value) == (
        f"depths name {depth!r}, expected whole numbers of blocks, each at least 1"
    )
    assert not (tmp_path / "record").exists()


def test_the_rival_is_measured_by_the_same_bounds(healthy, sick):
    names = {row[0] for row in gate(healthy, "rival").tables[0].rows}
    assert names == {"baseline", "fixup"}
    assert gate(sick, "rival").state in ("fail", "warn")
    assert "fixup is inside and the network is not" in gate(sick, "rival").reason


def test_curves_of_every_configuration_are_kept(sick):
    stored = sick.stored
    held = {(c.configuration, c.quantity) for c in stored.record.curves}
    assert ("baseline, depth 4", "state_rms") in held
    assert ("scale=1/sqrt(L), depth 64", "gradient_rms") in held
    assert ("baseline, depth 64", "log_singular_values[1]") in held
    assert ("baseline, depth 64", "log_singular_values[16]") in held
    for curve in stored.record.curves:
        blocks, values = stored.arrays[curve.blocks], stored.arrays[curve.values]
        assert values.shape == (len(blocks), len(curve.seeds))


def test_the_record_is_valid_and_no_better_than_its_weakest_gate(healthy, sick):
    for found in (healthy, sick):
        assert verify(found.directory).state == "valid"


def test_a_verdict_that_was_made_better_is_broken(sick, tmp_path):
    copied = tmp_path / "record"
    shutil.copytree(sick.directory, copied)
    document = json.loads((copied / "record.json").read_text())
    document["verdict"]["state"] = "pass"
    (copied / "record.json").write_text(json.dumps(document))
    found = verify(copied)
    assert found.state == "broken"
    assert "better than its weakest gate" in str(found)


def test_every_summary_belongs_to_one_gate():
    named = [name for names in BY_GATE.values() for name in names]
    assert sorted(named) == sorted(SUMMARIES)


# ------------------------------------------------------------------------------ interruption


def test_a_resumed_commission_is_the_uninterrupted_one(healthy, tmp_path, monkeypatch):
    """At every gate an exception, then --resume: the same fingerprint and the same curves."""
    for stop in (0, 3, 6, 9):
        directory = tmp_path / str(stop)
        gates = list(GATES)

        def interrupted(plan, bench):
            raise KeyboardInterrupt

        gates[stop] = replace(gates[stop], run=interrupted)
        monkeypatch.setattr(running, "GATES", tuple(gates))
        with pytest.raises(KeyboardInterrupt):
            commission(HEALTHY, directory, **SMALL)
        monkeypatch.setattr(running, "GATES", GATES)
        found = commission(HEALTHY, directory, resume=True, **SMALL)
        assert found.stored.record.fingerprint == healthy.stored.record.fingerprint
        assert (directory / "curves.npz").read_bytes() == (
            Path(healthy.directory) / "curves.npz"
        ).read_bytes()


def test_another_plan_is_not_resumed(tmp_path, monkeypatch):
    def interrupted(plan, bench):
        raise KeyboardInterrupt

    gates = (*GATES[:2], replace(GATES[2], run=interrupted), *GATES[3:])
    monkeypatch.setattr(running, "GATES", gates)
    with pytest.raises(KeyboardInterrupt):
        commission(HEALTHY, tmp_path / "record", **SMALL)
    for change in ({"depth": 13}, {"rival": "orthogonal"}, {"step": Step("adam")}):
        with pytest.raises(RecordError, match="cannot be resumed"):
            commission(HEALTHY, tmp_path / "record", resume=True, **{**SMALL, **change})


TINY: dict[str, Any] = {
    **SMALL, "depth": 4, "width": 8, "batch": 8, "seed": [0], "depths": [2], "vary": ["scale*2"],
}  # fmt: skip

KILLER = """
import importlib, os, random, signal, sys, time
from pathlib import Path
from depthgauge.record.folder import read
from depthgauge.study.commission.run import GATES, commission
from tests.study.commission.test_run import HEALTHY, TINY


def begun(directory, resume):
    child = os.fork()  # autograd has not run in this process, so a child may run it
    if not child:
        commission(HEALTHY, directory, resume=resume, **TINY)
        if not resume and directory.name == "whole":
            (directory.parent / "modules").write_text(" ".join(sys.modules))
        os._exit(0)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def done():
    return len(list(directory.glob("gates/*.npz")))


place, draw, kills = Path(sys.argv[1]), random.Random(0), 0
whole = place / "whole"
assert ended(begun(whole, False)) == 0
for name in (place / "modules").read_text().split():  # once, and not in every child
    if name.startswith(("depthgauge", "scipy", "torch.")) and name not in sys.modules:
        importlib.import_module(name)
expected, curves = read(whole).record, (whole / "curves.npz").read_bytes()
seconds = expected.provenance.wall_seconds
while kills < 20:
    directory = place / str(kills)
    behind = kills % (len(GATES) - 1)  # the last gate takes no time
    child, until = begun(directory, False), time.monotonic() + 60
    while done() < behind or not (directory / "gates").exists():
        if (directory / "record.json").exists():
            break
        assert time.monotonic() < until, (kills, done())
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, min(seconds[GATES[behind].name], 0.2)))
    os.kill(child, signal.SIGKILL)
    at, status = done(), ended(child)
    assert status in (0, -signal.SIGKILL), status
    if status == 0:  # it was faster
        os.rename(directory, place / f"faster {time.monotonic()}")
        continue
    kills += 1
    assert ended(begun(directory, True)) == 0
    assert read(directory).record.fingerprint == expected.fingerprint, (kills, at)
    assert (directory / "curves.npz").read_bytes() == curves, (kills, at)
    assert sorted(os.listdir(directory)) == ["curves.npz", "record.json"]
    print(at)
"""


def test_killed_twenty_times_at_random_moments_it_ends_the_same(tmp_path):
    """kill -9 in every gate, each at a moment drawn from a seed, and then --resume: the same
    findings, and the curves byte by byte."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    stopped = [int(line) for line in ran.stdout.split()]
    assert len(stopped) == 20
    assert len(set(stopped)) >= 7, stopped  # in different gates


def test_stopping_early_leaves_gates_not_measured(tmp_path):
    options = {**SMALL, "depth": 64, "depths": [4, 64], "vary": ["scale*2"]}
    found = commission(UNSCALED, tmp_path / "record", stop_early=True, **options)
    behind = found.gates[2:]
    assert {g.state for g in behind} == {"not_measured"}
    assert all("'rivers' failed before it" in g.reason for g in behind)


# -------------------------------------------------------------------------------------- the plan


def test_the_specification_says_what_is_not_given(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(
        '[block]\nequation = "h + W2(relu(W1(h)))"\n[network]\ndepth = 24\nwidth = 8\n'
        '[run]\noptimizer = "adamw"\nlr = 0.003\n'
        "[corridor]\ngradient_ratio = { max = 2.0 }\n"
        '[commission]\ndepths = [6]\nrival = "orthogonal"\nshallow = 5\nvary = ["norm=rmsnorm"]\n'
    )
    plan = plan_of(str(file))
    assert plan.depths == (6, 24)
    assert (plan.step.optimizer, plan.step.rate) == ("adamw", 0.003)
    assert (plan.rival, plan.shallow, plan.vary) == ("orthogonal", 5, ("norm=rmsnorm",))
    assert dict(plan.bounds(24, "float32").bounds)["gradient_ratio"].max == 2
    assert plan_of(str(file), rival="fixup").rival == "fixup"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[commission]\ndepth = [6]\n", "commission.depth is not a key .did you mean 'depths'"),
        ('[commission]\nrival = "fixpu"\n', "rival is 'fixpu', expected fixup or orthogonal"),
        ('[run]\noptimizer = "adm"\n', "run.optimizer is 'adm', expected one of sgd"),
        ("[commission]\ndepths = [96]\n", "depths name 96, and the network has 24 blocks"),
        ('[commission]\ncorridor = "defualt"\n', "corridor is 'defualt'.*did you mean 'default'"),
    ],
)
def test_a_mistake_in_a_specification_is_one_sentence(tmp_path, text, words):
    file = tmp_path / "spec.toml"
    file.write_text(f'[block]\nequation = "h + W2(relu(W1(h)))"\n[network]\ndepth = 24\n{text}')
    with pytest.raises(SpecificationError, match=words) as caught:
        plan_of(str(file))
    assert "\n" not in str(caught.value)


def test_numbers_that_are_not_finite_are_findings(tmp_path):
    options = {**SMALL, "depth": 300, "depths": [4, 300], "vary": ["scale*2"]}
    found = commission("h + 1e3*W2(relu(W1(h)))", tmp_path / "record", **options)
    assert found.state == "fail"
    assert "not finite" in " ".join(gate(found, "rivers").notes)
    assert np.isinf(next(iter(found.stored.arrays.values())).astype(float)).any() or any(
        not np.isfinite(a).all() for a in found.stored.arrays.values()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nrm=none", "a change names 'nrm'"),
        ("norm=foo", "foo"),
        ("activation=gelu", "which changes nothing"),
        ("depth=3", "depth is the depth, which is swept"),
        ("equation=h + W2(relu(W1(h)))", "which changes .*; a commission varies one factor"),
    ],
)
def test_a_change_that_cannot_be_tried_is_refused_before_anything_runs(tmp_path, change, words):
    with pytest.raises(DepthgaugeError, match=words):
        commission(HEALTHY, tmp_path / "record", **{**SMALL, "vary": ["norm=none", change]})
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize(
    ("block", "more"),
    [
        ("h + W3(silu(W1(rmsnorm(h)))*W2(rmsnorm(h)))/sqrt(L)", {}),
        ("h + conv3(relu(batchnorm(h)))/sqrt(L)", {"size": 2, "width": 8}),
        ("h + attention(layernorm(h), heads=2)/sqrt(L)", {"tokens": 4}),
    ],
)
def test_a_block_whose_plain_stack_is_not_healthy_is_its_own_control(tmp_path, block, more):
    options = {**SMALL, "vary": ["scale*2"], **more}
    found = gate(commission(block, tmp_path / "record", **options), "shallow control")
    assert found.state == "pass"
    assert found.notes[0].startswith("the control is the same block, since")


def test_another_learning_rate_makes_the_record_stale(tmp_path):
    file = tmp_path / "spec.toml"
    text = f'[block]\nequation = "{HEALTHY}"\n[network]\ndepth = 4\nwidth = 16\n[run]\nbatch = 8\n'
    file.write_text(f'{text}optimizer = "momentum"\nlr = 0.1\n[commission]\nvary = ["scale*2"]\n')
    commission(str(file), tmp_path / "record", depths=[2])
    assert verify(tmp_path / "record", subject_of(read_specification(file))).state == "valid"
    file.write_text(f'{text}optimizer = "sgd"\nlr = 50.0\n')
    found = verify(tmp_path / "record", subject_of(read_specification(file)))
    assert found.state == "stale"
    assert "lr 0.1 -> 50" in str(found)
    assert "optimizer momentum -> sgd" in str(found)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_overflow_is_one_finding_that_says_what_overflows_where(tmp_path, dtype):
    options = {**SMALL, "depth": 40, "vary": ["scale=1/sqrt(L)"], "dtype": dtype}
    options |= {"init": {"default": "he"}, "step": Step("sgd", 0.1)}
    found = commission(UNSCALED, tmp_path / "record", **options)
    assert "although" not in (tmp_path / "record" / "record.json").read_text()
    precision = gate(found, "precision")
    said = [precision.reason, *(j.reason for j in precision.judgements), *precision.notes]
    where = "from block 20 on (blocks.19), where float16 overflows; 2 of 2 seeds outside"
    assert precision.state == ("fail" if dtype == "float16" else "pass")
    assert (f"relative_error_state: not a number {where}" == precision.reason) is (
        dtype == "float16"
    )
    assert any("overflows" in line for line in said) is (dtype == "float16")
    assert not any(line.startswith("float16: no room") for line in said) or dtype == "float32"
    # The step blows the function up in both: the loss behind it is not finite.
    first = {j.name: j.reason for j in gate(found, "first update").judgements}
    assert first["stiffness"] == "infinite since the loss is nan after step 1; 2 of 2 seeds outside"
    assert first["functional_update"].startswith("undefined from block ")
    assert "after the step" in first["functional_update"]


def test_dropout_draws_the_same_whatever_the_process_has_drawn(tmp_path):
    found = []
    for k, seed in enumerate((1, 2)):
        torch.manual_seed(seed)
        where = tmp_path / f"record{k}"
        equation = "h + W2(dropout(gelu(W1(h)),p=0.1))/sqrt(L)"
        commission(equation, where, **{**SMALL, "vary": ["scale*2"]})
        found.append((where / "curves.npz").read_bytes())
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.manual_seed(seed)))
    assert found[0] == found[1]


def test_lessons_agree_with_the_answer(sick, tmp_path):
    notes = gate(sick, "ablation").notes
    mended = [note for note in notes if note.startswith("scale=1/sqrt(L) brings")]
    assert len(mended) == 1
    assert mended[0].endswith("these bounds depend on the scale")
    assert not any("whole" in note for note in notes if note.startswith("scale=1/sqrt(L)"))
    # What the baseline does not have cannot have earned a place.
    bare = {**SMALL, "vary": ["norm=layernorm"]}
    added = gate(commission("h + 0.1*W2(relu(W1(h)))", tmp_path / "bare", **bare), "ablation")
    assert not any("earned its place" in note for note in added.notes)
    normed = gate(
        commission(HEALTHY, tmp_path / "normed", **{**SMALL, "vary": ["norm=none"]}), "ablation"
    )
    assert any("earned its place" in note for note in normed.notes)


def test_depths_at_which_nothing_is_healthy_do_not_discriminate(tmp_path):
    given = {**SMALL, "vary": ["scale*2"], "corridor": {"gradient_ratio": {"min": 1e30}}}
    found = gate(commission(HEALTHY, tmp_path / "record", **given), "depth")
    assert found.state == "warn"
    assert "no configuration is inside its bounds at any depth" in found.reason


def test_a_network_of_few_blocks_is_measured_at_fewer(tmp_path):
    given = {k: v for k, v in SMALL.items() if k not in ("depth", "depths")}
    found = commission(HEALTHY, tmp_path / "record", depth=8, **given)
    assert found.plan.depths == (2, 4, 8)
    assert gate(found, "depth").state != "not_measured"
    alone = commission(HEALTHY, tmp_path / "alone", depth=1, **given)
    assert gate(alone, "depth").state == "not_measured"
