"""One change at a time: what it does is that change's doing, and the answer stands on top."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import depthgauge as dg
from depthgauge.errors import NetworkError, SpecificationError, TargetError
from depthgauge.study.ablation import Ablation, ablate
from depthgauge.study.cases import EquationCase, differences
from depthgauge.study.specification import Specification

BASE = "h + a * W2(gelu(W1(rmsnorm(h))))"
BOUNDS = {"forward_drift": {"max": 3.0}, "gradient_ratio": {"min": 0.5, "max": 2.0}}
GROWS = "h + W2(relu(W1(h)))"


def run(target: Any = BASE, vary: Any = None, **given: Any) -> Ablation:
    given = {"depth": 24, "width": 16, "batch": 16, "corridor": BOUNDS, **given}
    if isinstance(target, str) and "a *" in target:
        given.setdefault("scalars", {"a": "1/sqrt(L)"})
    return ablate(target, vary, **given)


@pytest.fixture(scope="module")
def unscaled() -> Ablation:
    return run(GROWS, init="he", depth=48)


def test_the_change_that_mends_stands_on_top(unscaled: Ablation) -> None:
    assert not unscaled.held
    assert unscaled.answer.startswith("forward_drift and gradient_ratio fail at the baseline: ")
    best = unscaled.remedies[0]
    assert best.change == "scale=1/sqrt(L)"
    rows = {row.change: row for row in unscaled.rows}
    states = {name: row.verdict.state for name, row in rows.items() if row.verdict}
    assert states["scale*2"] == "fail"
    assert "scale=1/sqrt(L) comes nearest" in unscaled.answer
    mended = run(GROWS, ["scale=1/sqrt(L)", "scale*2"], depth=48)
    assert mended.answer == (
        "forward_drift and gradient_ratio fail at the baseline: scale=1/sqrt(L) alone brings all "
        "of them back inside and breaks nothing"
    )
    assert mended.remedies[0].whole
    assert mended.remedies[1].fails == ("forward_drift", "gradient_ratio")


def test_a_change_that_mends_one_bound_and_breaks_another() -> None:
    bounds = {"forward_drift": {"max": 3.0}, "live_derivative_fraction": {"min": 0.4, "max": 0.9}}
    found = run(GROWS, ["activation=none", "scale=0.01", "init=zeros"], corridor=bounds)
    broken = {r.change: r.breaks for r in found.remedies}
    assert broken["init=zeros"] == ("live_derivative_fraction",)
    assert "init=zeros brings it back inside, but it breaks live_derivative_fraction" in (
        found.answer
    )
    assert "scale=0.01 alone brings it back inside and breaks nothing" in found.answer


def test_no_change_mends(unscaled: Ablation) -> None:
    found = run(GROWS, ["scale*2", "activation=gelu"], depth=48)
    assert "no single change of those tried brings all of them back inside" in found.answer
    assert not any(remedy.mends for remedy in found.remedies)


def test_nothing_failed() -> None:
    found = run(vary=["norm=none", "scale*8"])
    assert found.held
    assert found.answer.startswith("nothing failed at the baseline; the nearest bound is that of ")
    assert "scale*8 alone breaks forward_drift and gradient_ratio" in found.answer
    quiet = run(vary=["activation=relu"])
    assert quiet.answer.endswith(
        "no single change breaks a bound either, so this test tells none of them apart"
    )


def test_a_bound_that_nobody_measured_is_no_pass() -> None:
    bounds = {**BOUNDS, "saturated_fraction": {"max": 0.5}}
    found = run(vary=["scale/2"], corridor=bounds, instruments="rivers")
    assert not found.held
    assert "but saturated_fraction was not measured; the nearest bound is that of" in found.answer
    mends = run(GROWS, ["scale=1/L"], depth=48, corridor=bounds, instruments="rivers")
    assert mends.answer.endswith("and breaks nothing; saturated_fraction was not measured")
    lost = run(vary=["activation=none"], corridor=bounds)
    assert lost.remedies[0].unknown == ("saturated_fraction",)
    assert not lost.remedies[0].whole
    alone = run(
        vary=["scale/2"], corridor={"saturated_fraction": {"max": 0.5}}, instruments="rivers"
    )
    assert alone.answer == "nothing was judged: saturated_fraction was not measured"


def test_effects_are_those_of_the_networks_themselves() -> None:
    """Against two measurements by hand: pairing, units and order."""
    found = run(vary=["scale*2"], seed=(3, 4, 5))
    row = found.rows[0]
    shared = dict(depth=24, width=16, seed=(3, 4, 5), batch=16)
    before = dg.measure(BASE, scalars={"a": "1/sqrt(L)"}, **shared)  # type: ignore[arg-type]
    after = dg.measure(BASE, scalars={"a": "2/sqrt(L)"}, **shared)  # type: ignore[arg-type]
    by_name = {effect.quantity: effect for effect in row.effects}
    for name in ("forward_drift", "gradient_ratio"):
        expected = np.log10(after.summary()[name] / before.summary()[name])
        assert by_name[name].values == pytest.approx(expected, abs=1e-5)
    assert by_name["forward_drift"].spread.low > 0


def test_data_and_weights_are_held() -> None:
    found = run(vary=["norm=none", "placement=post", "activation=relu", "scale*2", "depth=12"])
    first = found.baseline["state_rms"][:, 0]
    for row in found.rows:
        assert row.profile is not None
        assert (row.profile["state_rms"][:, 0] == first).all(), row.change
        assert row.notes == ()
    other = run(vary=["norm=none"], seed=(7, 8, 9)).baseline["state_rms"][:, 0]
    assert not (other == first).any()


def test_what_one_generator_in_order_does_not_hold_is_told() -> None:
    found = run(vary=["batch=8", "norm=none"], draws="sequential-pcg64")
    moved, held = found.rows
    assert "another batch takes more or fewer numbers" in moved.notes[0]
    assert held.notes == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            "equation=layernorm(h + a * W2(gelu(W1(h))))",
            "norm: rmsnorm -> layernorm; placement: pre -> post",
        ),
        (
            "equation=h + W2(relu(W1(rmsnorm(h))))",
            "activation: gelu -> relu; scale: 1/sqrt(L) -> 1",
        ),
    ],
)
def test_a_change_of_two_factors_is_refused_unless_it_is_a_comparison(
    change: str, named: str
) -> None:
    with pytest.raises(SpecificationError) as error:
        run(vary=[change])
    assert f"changes 2 factors at once ({named})" in str(error.value)
    assert "--comparison" in str(error.value)
    found = run(vary=[change, "scale/2"], comparison=True)
    assert not found.rows[0].single
    assert found.rows[1].single
    assert found.to_dict()["changes"][0]["comparison"] is True
    assert found.rows[0].change not in found.answer.partition("comparison")[0]


def test_a_comparison_that_mends_is_called_one() -> None:
    mends, fails = "equation=h + W2(tanh(W1(h)))/L", "equation=2*h + W2(tanh(W1(h)))"
    found = run(GROWS, [mends, fails], comparison=True, depth=48)
    assert found.answer == (
        f"forward_drift and gradient_ratio fail at the baseline: the comparison {mends}, of "
        f"activation and scale at once, brings all of them back inside; the comparison {fails}, of "
        f"activation and scale at once, brings none of them back inside; no single change was "
        f"tried, and a comparison does not tell which of its factors does it"
    )
    both = run(GROWS, [mends, "scale=1/sqrt(L)"], comparison=True, depth=48)
    assert "scale=1/sqrt(L) alone brings all of them back inside" in both.answer
    assert both.answer.endswith("; a comparison does not tell which of its factors does it")
    assert "no single change" not in both.answer
    single = run(GROWS, ["scale=1/sqrt(L)"], comparison=True, depth=48)
    assert "comparison" not in single.answer


def test_a_comparison_that_breaks_is_called_one() -> None:
    breaks, holds = "equation=3*h + W2(tanh(W1(h)))", "equation=h + W2(tanh(W1(rmsnorm(h))))/L"
    found = run(vary=[breaks, holds], comparison=True)
    assert f"; the comparison {breaks}, of " in found.answer
    assert " at once, breaks forward_drift and gradient_ratio" in found.answer
    said = f"the comparison {holds}, of activation and scale at once, breaks no bound either"
    assert said in found.answer
    assert found.answer.endswith("a comparison does not tell which of its factors does it")
    assert "no single change" not in found.answer


@pytest.mark.parametrize("change", ["norm=rmsnorm", "scale=1/sqrt(24)", "depth=24", "batch=16"])
def test_a_change_of_nothing_is_refused(change: str) -> None:
    with pytest.raises(SpecificationError) as error:
        run(vary=[change])
    said = f"'{change}' changes nothing: the baseline has activation gelu, norm rmsnorm, placement"
    assert str(error.value).startswith(said)


def test_a_change_is_named_once_and_there_is_one() -> None:
    with pytest.raises(SpecificationError, match="vary names 'norm=none' twice"):
        run(vary=["norm=none", "norm=none"])
    with pytest.raises(SpecificationError, match="vary names no change"):
        run(vary=[])


def test_usual_changes_that_have_no_place_are_told() -> None:
    found = run("0.5 * rmsnorm(h + W(tanh(h)))", corridor=None)
    left = dict(found.left)
    assert "cannot be changed" in left["scale*2"]
    assert {row.change for row in found.rows} >= {"norm=none", "activation=relu"}
    assert "not tried: scale*2: " in str(found)
    with pytest.raises(NetworkError, match="cannot be changed"):
        run("0.5 * rmsnorm(h + W(tanh(h)))", ["scale*2"])


def test_overflow_is_a_finding() -> None:
    found = run(GROWS, ["dtype=float16", "scale*1e9", "scale=0"], init="he", depth=48)
    lost = {row.change: row for row in found.rows}
    notes = {e.quantity: e.note for e in lost["scale*1e9"].effects}
    assert "not finite after the change in 3 of 3 seeds" in notes["forward_end_rms"]
    assert found.ranked[0].note
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["changes"][1]["verdict"]["state"] == "fail"
    assert "not finite" in str(found)


def test_ranked_by_size_over_spread(unscaled: Ablation) -> None:
    ranks = [effect.rank for effect in unscaled.ranked]
    assert ranks == sorted(ranks, reverse=True)
    assert len(ranks) == sum(len(row.effects) for row in unscaled.rows)
    assert all(effect.n == 3 for effect in unscaled.ranked)


def test_the_document(unscaled: Ablation) -> None:
    document = json.loads(json.dumps(unscaled.to_dict(), allow_nan=False))
    assert document["target"] == "h = h + W2(relu(W1(h)))"
    assert document["answer"] == unscaled.answer
    assert document["factors"]["activation"] == "relu"
    assert document["seeds"] == [0, 1, 2]
    assert document["baseline"]["verdict"]["state"] == "fail"
    first = document["changes"][0]
    assert first["differences"] == [{"factor": "norm", "before": "none", "after": "rmsnorm"}]
    effect = first["effects"][0]
    assert {"change", "quantity", "unit", "n", "median", "min", "max", "interval"} <= set(effect)
    assert effect["interval"][0] <= effect["median"] <= effect["interval"][1]
    assert document["ranked"][0] == [unscaled.ranked[0].change, unscaled.ranked[0].quantity]
    assert set(document["summaries"]) == set(unscaled.baseline.summary())


def test_one_seed(unscaled: Ablation) -> None:
    found = run(vary=["scale*2"], seed=4)
    assert found.seeds == (4,)
    effect = found.rows[0].effects[0]
    assert (effect.n, effect.interval) == (1, None)
    assert "By size: one seed has no spread." in str(found)


# ---------------------------------------------------------------------------- where it starts


def test_a_specification_brings_its_own_corridor_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        f'[block]\nequation = "{BASE}"\na = "1"\n[network]\ndepth = 12\nwidth = 8\n[run]\n'
        f"batch = 8\nseed = [4, 5]\n[corridor]\nforward_drift = {{ max = 1.5 }}\n"
    )
    found = ablate(str(file), ["scale=1/L"])
    assert found.seeds == (4, 5)
    assert found.corridor == "the specification's own"
    assert found.answer.startswith("forward_drift fails at the baseline: scale=1/L alone")
    shallow = ablate(file, ["norm=none"], depth=1, seed=0, scalars={"a": "0.01"})
    assert (shallow.seeds, shallow.factors["depth"], shallow.factors["scale"]) == (
        (0,),
        "1",
        "0.01",
    )
    assert shallow.held
    assert ablate(file, ["norm=none"], init="he", seed=0).factors["init"] == "he"
    wider = ablate(file, ["scale=1/L"], corridor={"forward_drift": {"max": 9e9},
                                                  "gradient_ratio": {"max": 1.01}})  # fmt: skip
    assert {j.name for j in wider.verdict.judgements} == {"forward_drift", "gradient_ratio"}  # type: ignore[union-attr]
    assert "forward_drift" in wider.answer  # the file's own bound, not the wider one


def test_a_network_a_tree_and_a_case() -> None:
    network = dg.Network(GROWS, 4, 8)
    given: dict[str, Any] = {"vary": ["scale/2"], "batch": 4, "corridor": BOUNDS}
    texts = [ablate(t, depth=4, width=8, **given).to_dict() for t in (GROWS, dg.parse(GROWS))]
    texts += [ablate(network, **given).to_dict()]
    assert texts[0] == texts[1] == texts[2]
    case = EquationCase(Specification(network, 4, (0, 1, 2)))
    assert ablate(case, ["scale/2"], corridor=BOUNDS).to_dict() == texts[0]
    assert ablate(case, ["scale/2"], seed=7).seeds == (7,)


def test_a_tensor_is_the_data() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    found = ablate(GROWS, ["scale/2", "width=16"], depth=4, width=8, batch=x, corridor=BOUNDS)
    assert found.factors["batch"] == "given, 6 x 8"
    assert found.baseline.batch == 6
    refused = found.rows[1]
    assert "batch has the shape (6, 8)" in refused.refused
    assert f"width=16 was not measured: {refused.refused}" in " ".join(str(found).split())
    assert [remedy.change for remedy in found.remedies] == ["scale/2"]
    assert "refused" in found.to_dict()["changes"][1]


class Deep:
    """Bounds that a network of 20 blocks and more has to keep."""

    name = "deep"

    def at(self, depth: int, dtype: str) -> dg.Corridor:
        return dg.Corridor.of(forward_drift={"max": 1e30 if depth < 20 else 3.0})


def test_bounds_of_the_depth_and_the_precision() -> None:
    found = run(GROWS, ["depth=12"], corridor=Deep())
    assert found.corridor == "deep"
    assert found.answer == (
        "forward_drift fails at the baseline: depth=12 alone brings it back inside and breaks "
        "nothing"
    )


@pytest.mark.parametrize(
    ("target", "given", "error", "sentence"),
    [
        (
            GROWS,
            {"arguments": {"n": 1}},
            SpecificationError,
            "arguments was given with an equation",
        ),
        (7, {}, TargetError, "a target of type int cannot be varied"),
        (GROWS, {"batch": 0}, SpecificationError, "batch is 0"),
        (GROWS, {"dtype": "float8"}, SpecificationError, "dtype is 'float8'"),
        (GROWS, {"device": "gpu"}, SpecificationError, "device is 'gpu'"),
        (GROWS, {"seed": [1, 1]}, SpecificationError, "names a seed twice"),
        (GROWS, {"corridor": {"drift": {"max": 3}}}, SpecificationError, "'drift' cannot be bound"),
        (lambda: None, {"depth": 3}, SpecificationError, "depth is for an equation"),
    ],
)
def test_wrong_use(target: Any, given: dict[str, Any], error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        ablate(target, ["scale/2"], **given)


def test_cases_of_two_kinds_have_no_difference() -> None:
    from depthgauge.study.builders import BuilderCase

    with pytest.raises(SpecificationError, match="cases of two kinds"):
        differences(EquationCase(Specification(dg.Network(GROWS, 2, 4))), BuilderCase(lambda: None))


def test_six_changes_at_depth_96_take_seconds() -> None:
    changes = ["norm=none", "placement=post", "scale*2", "scale/2", "activation=relu",
               "init=orthogonal"]  # fmt: skip
    run(vary=changes, depth=2)
    start = time.perf_counter()
    found = run(vary=changes, depth=96, width=64, batch=128, instruments="rivers")
    assert len(found.rows) == 6
    assert time.perf_counter() - start < 30  # five on a quiet machine
    assert math.isfinite(found.ranked[0].strength)


def test_a_specification_brings_its_instruments() -> None:
    network = dg.Network(GROWS, 4, 8)
    rivers = Specification(network, 4, (0, 1), instruments="rivers")
    found = ablate(rivers, ["scale/2"], corridor=BOUNDS)
    assert "saturated_fraction" not in found.baseline
    more = ablate(rivers, ["scale/2"], corridor=BOUNDS, instruments="rivers,gates")
    assert "saturated_fraction" in more.baseline
