"""Sweeps over depth: laws and breaks of real networks, targets, and whether they discriminate."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import depthgauge as dg
from depthgauge.errors import EquationError, SpecificationError, TargetError
from depthgauge.study.corridors import corridor_named
from depthgauge.study.sweep import sweep
from depthgauge.study.swept import Sweep

SMALL: dict[str, Any] = {"width": 32, "batch": 16, "init": "he"}
UNSCALED, SCALED = "h + W2(relu(W1(h)))", "h + W2(relu(W1(h)))/sqrt(L)"
PRENORM = "h + 0.1*W2(relu(W1(rmsnorm(h))))"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return y


def build(depth: int, seed: int) -> Any:
    model = nn.Sequential(*(Block(16) for _ in range(depth)), nn.Linear(16, 10))
    batch, labels = torch.randn(16, 16), torch.randint(10, (16,))
    return model, batch, lambda y: F.cross_entropy(y, labels)


def rivers(target: Any, depths: tuple[int, ...], **more: Any) -> Sweep:
    return sweep(target, depths, instruments="rivers", **{**SMALL, **more})


# --------------------------------------------------------------------------------- laws


@pytest.mark.parametrize(
    ("equation", "last", "depths", "kind", "rate"),
    [
        # The square is kept and a branch adds 2 (He) or 1 (LeCun) times it: 3^L, 2^L.
        (UNSCALED, "he", (4, 8, 16, 32), "exponential", math.log(3) / 2),
        (UNSCALED, "lecun", (4, 8, 16, 32), "exponential", math.log(2) / 2),
        # Behind a norm a branch adds 2 to the square whatever it is: 1 + 2 L.
        ("h + W2(relu(W1(rmsnorm(h))))", "he", (12, 48, 96), "power", 0.5),
    ],
)
def test_the_laws_of_theory(
    equation: str, last: str, depths: tuple[int, ...], kind: str, rate: float
) -> None:
    found = rivers(equation, depths, seed=range(4), width=64, init={"W1": "he", "W2": last})
    law = found.laws["forward_end_rms"].law
    assert law is not None
    assert law.kind == kind
    assert law.rate == pytest.approx(rate, rel=0.1)  # of width 64 and four seeds
    scaled = rivers(f"{equation}/sqrt(L)", (12, 48, 96))
    first, last_ = scaled.laws["forward_end_rms"].within[0].at([12, 96])
    assert last_ / first < 1.5  # (1 + 2/L)^(L/2) or sqrt(3): no growth to speak of


def test_found_laws_are_in_the_document_and_in_words() -> None:
    found = rivers(UNSCALED, (4, 8, 16))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["depths"] == [4, 8, 16]
    assert document["laws"]["gradient_ratio"]["law"] == "exponential"
    assert list(document["summaries"]["gradient_ratio"]) == ["4", "8", "16"]
    assert [len(v) for v in document["summaries"]["gradient_ratio"].values()] == [3, 3, 3]
    assert set(document["verdicts"]) == {"4", "8", "16"}
    assert "gradient_ratio" in str(found)
    assert document["discrimination"] in str(found)


def test_a_sweep_is_what_measure_finds_at_each_depth() -> None:
    found = rivers(SCALED, (3, 6))
    for depth in (3, 6):
        alone = dg.measure(
            SCALED, 16, depth=depth, width=32, init="he", seed=range(3), instruments="rivers"
        )
        ours = found.profiles[depth]
        assert (ours["state_rms"] == alone["state_rms"]).all()
        assert (ours["gradient_rms"] == alone["gradient_rms"]).all()
        assert ours.seeds == (0, 1, 2)


# ---------------------------------------------------------------------- discrimination


def test_everything_passes_is_no_discrimination() -> None:
    found = sweep(SCALED, (4, 8), corridor={"gradient_ratio": {"min": 0.1, "max": 10}}, **SMALL)
    assert (found.state, found.discriminated) == ("pass", False)
    assert found.discrimination.startswith(
        "did not discriminate: everything passes at all depths tried (4, 8); "
    )
    assert found.to_dict()["discriminated"] is False


def test_a_bound_that_holds_and_fails_discriminates() -> None:
    found = rivers(UNSCALED, (2, 4, 24), corridor={"gradient_ratio": {"max": 100.0}})
    assert (found.state, found.discriminated) == ("fail", True)
    assert found.discrimination == "discriminated: gradient_ratio holds at 2, 4 and fails at 24"
    (broken,) = found.breaks
    assert (broken.state, broken.passed, broken.failed) == ("breaks", 4, 24)
    between = rivers(
        UNSCALED, (math.floor(broken.low) - 1, math.ceil(broken.high)),
        corridor={"gradient_ratio": {"max": 100.0}},
    )  # fmt: skip
    assert between.discriminated


def test_what_fails_everywhere_is_not_depth() -> None:
    found = rivers(UNSCALED, (12, 24), corridor={"gradient_ratio": {"max": 2.0}})
    assert not found.discriminated
    assert found.discrimination == (
        "did not discriminate between depths: gradient_ratio fails at all depths tried (12, 24); "
        "what is wrong is not depth"
    )


def test_what_was_not_judged_is_said() -> None:
    nothing = rivers(SCALED, (2, 4), corridor={"stiffness": {"max": 1.0}})
    assert (nothing.state, nothing.discriminated) == ("not_measured", False)
    assert nothing.discrimination == (
        "did not discriminate: nothing was judged at the depths tried (2, 4)"
    )
    some = rivers(
        SCALED, (2, 4), corridor={"stiffness": {"max": 1.0}, "gradient_ratio": {"max": 99.0}}
    )
    assert "(2, 4), of what was judged (not stiffness); " in some.discrimination


# ------------------------------------------------------------------- where it will break


def test_the_depth_foretold_is_the_depth_at_which_it_breaks() -> None:
    """The gradient ratio of an unscaled stream, whose law is exponential, reaches 1e6."""
    bound = {"gradient_ratio": {"max": 1e6}}
    told = rivers(UNSCALED, (3, 6, 12), corridor=bound, seed=range(6))
    (found,) = told.breaks
    assert found.state == "will_break"
    assert found.high < 60
    median = rivers(
        UNSCALED, (math.floor(found.low * 0.9), math.ceil(found.high * 1.1)),
        corridor=bound, seed=range(6),
    )  # fmt: skip
    ratios = [sorted(p.summary()["gradient_ratio"])[3] for p in median.profiles.values()]
    assert ratios[0] < 1e6 < ratios[1]


def test_a_prediction_of_a_law_that_bends_is_a_least_depth() -> None:
    """A pre-norm stream grows like sqrt(1 + s L): its law over 12 to 96 blocks breaks too early."""
    bound = {"forward_end_rms": {"max": 3.0}}
    told = rivers(PRENORM, (12, 48, 96), corridor=bound, width=64, batch=32)
    (found,) = told.breaks
    assert (found.state, found.high) == ("will_break", math.inf)
    assert "or later" in str(found)
    at = rivers(PRENORM, (12, round(found.depth)), corridor=bound, width=64, batch=32)
    assert at.state in ("pass", "warn")


# -------------------------------------------------------------------------------- targets


def test_a_builder_is_judged_by_the_default_corridor() -> None:
    found = sweep(build, (2, 4), seed=(0, 1))
    assert found.corridor == "default"
    assert [b.name for b in found.breaks] == [
        name for name, _ in corridor_named("default").at(4, "float32").bounds
    ]
    assert "not_measured" not in {s for b in found.breaks for s in b.states.values()}
    assert found.profiles[4].seeds == (0, 1)
    torch.manual_seed(1)
    model, batch, loss = build(4, 1)
    alone = dg.measure(model, batch, loss, seed=1, instruments="rivers")
    assert found.profiles[4]["state_rms"][1] == pytest.approx(alone["state_rms"], rel=1e-5)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_equation_is_judged_by_transport() -> None:
    found = sweep(SCALED, (2, 4), **SMALL)
    assert found.corridor == "transport"
    assert {b.name for b in found.breaks} == {
        "gradient_ratio", "participation_share", "nonfinite_fraction"
    }  # fmt: skip
    assert found.state == "pass"
    named = sweep(SCALED, (2, 4), "default", seed=0, **SMALL)
    states = {b.name: b.state for b in named.breaks}
    assert states["functional_update"] == "not_known"
    assert named.profiles[4]["stiffness"].shape == (1, 1)  # (seeds, the last state)
    assert "updates" not in named.profiles[4].settings["instruments"]  # type: ignore[operator]


def test_a_precision_brings_its_own_bounds() -> None:
    found = sweep(SCALED, (2, 4), dtype="float16", seed=0, **SMALL)
    assert "headroom_float16_bits" in found.laws
    assert {b.name: set(b.states.values()) for b in found.breaks}["headroom_float16_bits"] == {
        "pass"
    }


def test_a_specification_and_its_own_bounds(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    text = (
        f'[block]\nequation = "{SCALED}"\n[network]\ndepth = 7\nwidth = 16\n'
        '[run]\nbatch = 8\nseed = [3, 5]\ninstruments = "rivers"\n'
    )
    file.write_text(f"{text}[corridor]\ngradient_ratio = {{ max = 1.0001 }}\n")
    found = sweep(file, (2, 4))
    assert found.seeds == (3, 5)
    assert found.corridor == "transport, with bounds of its own"
    assert {b.name: b.state for b in found.breaks}["gradient_ratio"] == "broken"
    file.write_text(text)
    assert {b.name: b.state for b in sweep(str(file), (2, 4)).breaks}["gradient_ratio"] != "broken"
    same = sweep(dg.read_specification(file), (2, 4), seed=3)
    assert same.seeds == (3,)
    assert same.depths == (2, 4)


def test_one_seed_is_enough_to_run() -> None:
    found = rivers(SCALED, (2, 4, 8), seed=5)
    assert found.seeds == (5,)
    json.dumps(found.to_dict(), allow_nan=False)


def test_overflow_is_a_result() -> None:
    found = rivers("h + 100*W(h)", (4, 8, 30), corridor={"forward_end_rms": {"max": 1e30}})
    (end,) = found.breaks
    assert (end.state, end.failed) == ("breaks", 30)
    assert found.laws["forward_end_rms"].left_out == (30,)
    assert not math.isfinite(found.profiles[30].summary()["forward_end_rms"][0])
    json.dumps(found.to_dict(), allow_nan=False)


def test_progress_goes_up_to_its_end() -> None:
    seen: list[float] = []
    rivers(SCALED, (2, 4), progress=lambda done, total: seen.append(done / total))
    assert seen == sorted(seen)
    assert seen[-1] == 1
    seen.clear()
    sweep(build, (1, 2), instruments="rivers", progress=lambda d, t: seen.append(d / t))
    assert seen == sorted(seen)
    assert (len(seen), seen[-1]) == (6, 1)


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("depths", "corridor", "more", "error", "sentence"),
    [
        ((12,), None, {}, SpecificationError, "depths are (12,), expected two or more different"),
        ((4, 4), None, {}, SpecificationError, "depths are (4, 4), expected two or more"),
        ((4, 0), None, {}, SpecificationError, "depths are (4, 0)"),
        ("12,48", None, {}, SpecificationError, "depths are '12,48'"),
        (3, None, {}, SpecificationError, "depths are 3"),
        ((2, 4), "trnsport", {}, SpecificationError, "(did you mean 'transport'?)"),
        ((2, 4), 3, {}, SpecificationError, "corridor is of type int, expected a name, a file"),
        ((2, 4), {"gradient_ratoi": {"max": 1}}, {}, SpecificationError, "did you mean 'gradient"),
        ((2, 4), None, {"depth": 3}, SpecificationError, "'depth' is not what an equation takes"),
        ((2, 4), None, {"seed": -1}, SpecificationError, "seed is -1"),
        ((2, 4), None, {"dtype": "float23"}, SpecificationError, "did you mean 'float32'?"),
    ],
)
def test_what_cannot_be_swept(
    depths: Any, corridor: Any, more: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        sweep(SCALED, depths, corridor, **more)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_targets_of_other_kinds() -> None:
    with pytest.raises(TargetError, match="a target of type int cannot be swept over depths; give"):
        sweep(3, (2, 4))  # type: ignore[arg-type]
    with pytest.raises(SpecificationError, match="width is for an equation"):
        sweep(build, (2, 4), width=3)
    with pytest.raises(EquationError):
        sweep("h + W(", (2, 4))

    def differently(depth: int, seed: int) -> Any:
        return nn.Sequential(*(Block(8) for _ in range(depth + seed))), torch.randn(4, 8), None

    with pytest.raises(SpecificationError, match="seeds 0 and 1 build networks of 5 and 7 sites"):
        sweep(differently, (2, 4), instruments="rivers", corridor={"forward_drift": {"max": 9}})


def test_an_initialiser_for_all_layers_goes_before_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text('[block]\nequation = "h + W2(relu(W1(h)))"\n[network]\nwidth = 8\n')
    given: dict[str, Any] = dict(depths=(2, 4), seed=0, batch=8)
    named = sweep(file, init="orthogonal", **given).profiles[4]
    assert named.settings["init"] == {"W1": "orthogonal", "W2": "orthogonal"}
    assert sweep(file, **given).profiles[4].settings["init"] != named.settings["init"]
