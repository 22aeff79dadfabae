"""Modules that code builds: its arguments are the factors, and what they move is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from depthgauge.errors import SpecificationError, TargetError
from depthgauge.measurement import measure
from depthgauge.study.ablation import ablate
from depthgauge.study.builders import BuilderCase, stacked
from depthgauge.study.cases import differences
from depthgauge.study.changes import Change

BOUNDS = {"forward_drift": {"max": 2.0}}


class Bent(nn.Module):
    """A block of another form."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.up(x).tanh()
        return x + branch


class Block(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(width, width), nn.Linear(width, width), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + self.scale * branch


def build(layers: int = 6, width: int = 8, scale: float = 4.0, kind: str = "relu") -> Any:
    batch = torch.randn(5, width)
    return nn.Sequential(*(Block(width, scale) for _ in range(layers))), batch


def late(layers: int = 6) -> Any:
    model = nn.Sequential(*(Block(8, 1.0) for _ in range(layers)))
    return model, torch.randn(5, 8)


def test_the_arguments_of_a_function_are_its_factors() -> None:
    case = BuilderCase(build, {"width": 16})
    assert case.factors == {
        "layers": "6", "width": "16", "scale": "4.0", "kind": "relu", "precision": "as built",
    }  # fmt: skip
    changed = case.changed(Change.of("layers=12"))
    assert [str(d) for d in differences(case, changed)] == ["layers: 6 -> 12"]
    assert changed.arguments == {"width": 16, "layers": 12}
    assert changed.build(0).module(torch.zeros(1, 16)).shape == (1, 16)
    half = case.changed(Change.of("dtype=bfloat16"))
    assert [str(d) for d in differences(case, half)] == ["precision: as built -> bfloat16"]
    assert next(half.build(0).module.parameters()).dtype == torch.bfloat16
    found = ablate(build, ["scale=0.5"], dtype=torch.float64, seed=0, corridor=BOUNDS)
    assert (found.factors["precision"], found.baseline.dtype) == ("float64", "float64")


def test_one_argument_at_a_time_under_every_seed() -> None:
    found = ablate(build, ["scale=0.01", "layers=12", "kind='gelu'"], corridor=BOUNDS)
    assert found.seeds == (0, 1, 2)
    assert found.answer == (
        "forward_drift fails at the baseline: scale=0.01 alone brings it back inside and breaks "
        "nothing"
    )
    assert [str(row.differences[0]) for row in found.rows] == [
        "scale: 4.0 -> 0.01", "layers: 6 -> 12", "kind: relu -> gelu",
    ]  # fmt: skip
    unused = found.rows[2]
    assert all(effect.strength == 0 for effect in unused.effects)
    assert not any(row.notes for row in found.rows)
    by_hand = []
    for seed in range(3):
        torch.manual_seed(seed)
        model, batch = build()
        by_hand.append(measure(model, batch, seed=seed).summary()["forward_drift"][0])
    assert list(found.baseline.summary()["forward_drift"]) == by_hand


def test_data_drawn_after_the_weights_is_not_held_and_told() -> None:
    found = ablate(late, ["layers=12"], corridor=BOUNDS)
    assert (
        found.rows[0].notes[0].startswith("3 of 3 tensors of the batch of one name and shape are")
    )
    held = ablate(late, ["layers=12"], corridor=BOUNDS, input="float 5x8")
    assert held.rows[0].notes == ()
    assert "layers=12: 3 of 3 tensors of the batch" in str(found)


def bent(layers: int, width: int) -> Any:
    return nn.Sequential(*(Bent(width) for _ in range(layers))), torch.randn(5, width)


def test_a_size_that_is_more_than_one_factor_is_refused() -> None:
    """A table names no arguments; what was measured shows what its functions differ in."""

    def sizes(*made: Any) -> dict[int, Any]:
        return {n: lambda one=one: one for n, one in enumerate(made)}

    small = build()
    for other, words in (
        (build(layers=3, width=16), "(depth: 6 -> 3; width: 8 -> 16)"),
        (
            bent(6, 16),
            "(width: 8 -> 16; form: [h = h + # * W(relu(W(h)))] -> [h = h + tanh(W(h))])",
        ),
        (bent(3, 8), "(depth: 6 -> 3; form: "),
    ):
        with pytest.raises(SpecificationError) as caught:
            ablate(sizes(small, other), seed=0)
        assert f"'size=1' changes 2 factors at once {words}" in str(caught.value)
        (row,) = ablate(sizes(small, other), seed=0, comparison=True).rows
        assert row.differences[0].factor == "size"
        assert not row.single
    for other in (build(layers=3, scale=0.5), build(width=16), bent(6, 8)):
        (row,) = ablate(sizes(small, other), seed=0).rows
        assert [each.factor for each in row.differences] == ["size"]


def test_functions_by_size() -> None:
    sizes = {width: lambda width=width: build(width=width, scale=0.1) for width in (8, 16, 32)}
    found = ablate(sizes, corridor=BOUNDS)
    assert found.factors["size"] == "8"
    assert [row.change for row in found.rows] == ["size=16", "size=32"]
    assert [row.profile.width for row in found.rows if row.profile] == [16, 32]
    assert found.held
    with pytest.raises(SpecificationError, match=r"size is '64', expected one of 8, 16, 32"):
        ablate(sizes, ["size=64"])
    with pytest.raises(SpecificationError, match="'size=8' changes nothing"):
        ablate(sizes, ["size=8"])
    with pytest.raises(TargetError, match="a table of sizes has no function for each"):
        ablate({8: 3}, ["size=8"])
    with pytest.raises(SpecificationError, match=r"the table has one size, 8, .* a second size"):
        ablate({8: build})


def picky(width: int = 8, kind: str = "relu") -> Any:
    found = {"relu": torch.relu}[kind]
    if width > 32:
        raise TypeError(f"width {width}")
    return nn.Sequential(nn.Linear(width, 8), nn.Linear(8, 8)), found(torch.randn(4, width))


def test_a_change_that_the_builder_refuses_is_a_finding_of_its_row() -> None:
    """In a function in hand as in a file: one row without a profile, the others with theirs."""
    found = ablate(picky, ["kind=bent", "width=16", "width=64"], seed=0)
    first, kept, last = found.rows
    at = r"at .*test_builders\.py:\d+"
    assert re.fullmatch(rf"'picky' raised KeyError {at}: 'bent'", first.refused)
    assert re.fullmatch(rf"'picky' raised TypeError {at}: width 64", last.refused)
    assert kept.profile is not None
    with pytest.raises(TargetError, match="'picky' raised KeyError") as caught:
        ablate(picky, ["width=16"], arguments={"kind": "bent"}, seed=0)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_and_an_interruption_pass_through_a_builder() -> None:
    def measured(width: int = 8) -> Any:
        raise SpecificationError("our own words")

    def interrupted(width: int = 8) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(SpecificationError, match=r"^our own words$"):
        ablate(measured, ["width=16"], seed=0)
    with pytest.raises(KeyboardInterrupt):
        ablate(interrupted, ["width=16"], seed=0)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class B(nn.Module):\n    def __init__(s, w):\n        super().__init__()\n"
        "        s.f = nn.Linear(w, w)\n    def forward(s, x):\n        return x + s.f(x)\n\n\n"
        "def build(layers=3, width=8):\n"
        "    return nn.Sequential(*(B(width) for _ in range(layers)))\n"
        "fixed = build()\n"
    )
    target = f"{file}:build"
    found = ablate(target, ["layers=6"], input="float 4x8", seed=0, corridor=BOUNDS)
    assert found.target == target
    assert found.factors["layers"] == "3"
    assert found.rows[0].profile is not None
    assert found.rows[0].profile.depth == 6
    for change, sentence in (
        ("depth=3", r"takes no argument 'depth'.*its signature is build\(layers=3, width=8\)"),
        ("scale*2", r"a change of code is 'scale\*2', expected ARGUMENT=VALUE"),
        ("layers=true", r"a change is 'layers=true', which Python would read as text"),
    ):
        with pytest.raises(SpecificationError, match=sentence):
            ablate(target, [change], input="float 4x8", seed=0)
    with pytest.raises(SpecificationError, match=r"only its arguments can be varied \(layers, wid"):
        ablate(target, input="float 4x8")
    with pytest.raises(SpecificationError, match="gives no batch; return"):
        ablate(target, ["layers=6"])


def test_a_module_ready_made_has_nothing_to_vary() -> None:
    with pytest.raises(TargetError, match="a module ready made has nothing to vary"):
        ablate(nn.Linear(3, 3), ["width=4"])


def test_profiles_of_several_seeds_become_one() -> None:
    profiles = []
    for seed in (3, 5):
        torch.manual_seed(seed)
        profiles.append(measure(*build(), seed=seed, instruments="fast"))
    whole = stacked(profiles)
    assert whole.seeds == (3, 5)
    assert whole["state_rms"].shape == (2, 7)
    for k, one in enumerate(profiles):
        for name in one.columns:
            assert np.array_equal(whole[name][k], one[name], equal_nan=True), name
    assert stacked(profiles[:1]) is profiles[0]
    torch.manual_seed(0)
    deeper = measure(*build(layers=7), seed=7)
    with pytest.raises(SpecificationError, match="seeds 3 and 7 build networks of 19 and 22 "):
        stacked([profiles[0], deeper])
    fewer = measure(*build(), seed=5, instruments="rivers,gates,branches")
    lacking = stacked([profiles[0], fewer])
    assert "state_q50" in profiles[0]
    assert "state_q50" not in lacking
    assert lacking.why_not("state_q50") == "not among the instruments asked for"
