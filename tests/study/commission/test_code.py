"""A commission of a module that code builds: its rival is a recipe put into a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.instruments.step import Step
from depthgauge.record.verify import verify
from depthgauge.report.commission_screen import commission_text
from depthgauge.study.commission.run import Commission, commission
from depthgauge.study.commission.subject import subject_of_plan


class Block(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(width), scale
        self.up, self.act, self.down = nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + self.scale * y


def build(layers: int = 6, scale: float = 1.0, bad: int | None = None) -> Any:
    blocks = [Block(16, scale) for _ in range(layers)]
    labels = torch.arange(32) % 4
    batch = torch.randn(32, 16)
    if bad is not None:
        batch[bad, 2] = torch.nan
    return (
        nn.Sequential(*blocks, nn.Linear(16, 4)),
        batch,
        lambda logits: F.cross_entropy(logits, labels),
    )


def plain(layers: int = 4) -> Any:
    """No branch, so nothing that Fixup could be put into."""
    stack = [m for _ in range(layers) for m in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*stack), torch.randn(8, 8)


def gate(found: Commission, name: str) -> Any:
    return next(g for g in found.gates if g.name == name)


def run(target: Any, directory: Any, **given: Any) -> Commission:
    options: dict[str, Any] = dict(seed=[0, 1], vary=["layers=3"], step=Step("sgd", 0.1))
    return commission(target, directory, **{**options, **given})


def test_fixup_is_the_rival_of_a_module(tmp_path):
    found = gate(run(build, tmp_path / "record"), "rival")
    assert found.state in ("pass", "warn", "fail")
    assert any("6 last weights of branches: zero" in note for note in found.notes)
    (made,) = found.tables
    named = {(row[0], row[1]) for row in made.rows}
    assert {name for name, _ in named} == {"baseline", "fixup"}
    assert {("baseline", "stiffness"), ("fixup", "stiffness")} <= named
    # Its head begins at zero: what is 0 over 0 speaks against neither.
    assert not any(what in ("gradient_ratio", "functional_update") for _, what in named)
    said = "gradient_ratio and functional_update cannot be compared: no gradient reaches the states"
    assert any(note.startswith(said) for note in found.notes)
    assert "inf" not in found.notes[0]


def test_a_module_that_is_out_loses_to_its_rival(tmp_path):
    sick = run(build, tmp_path / "record", arguments={"scale": 300.0}, rival="orthogonal")
    assert gate(sick, "rivers").state == "fail"
    found = gate(sick, "rival")
    assert {row[1] for row in found.tables[0].rows} >= {"gradient_ratio", "stiffness"}
    fixup = gate(run(build, tmp_path / "other", arguments={"scale": 300.0}), "rival")
    assert fixup.state in ("fail", "warn")
    assert "outside" in fixup.reason or "the network is not" in fixup.reason


def test_an_example_that_is_not_a_number_passes_no_gate_of_the_transport(tmp_path):
    found = run(build, tmp_path / "record", arguments={"bad": 5})
    states = {g.name: g.state for g in found.gates}
    assert states["rivers"] == "fail"
    for name in ("directions", "first update", "precision"):
        assert states[name] in ("fail", "not_measured"), name
    assert found.state == "fail"


@pytest.mark.parametrize(("target", "words"), [(plain, "fixup does not cover this network: ")])
def test_a_module_that_the_recipe_does_not_cover_has_no_rival(tmp_path, target, words):
    found = gate(run(target, tmp_path / "record"), "rival")
    assert found.state == "not_measured"
    assert found.reason.startswith(words)
    assert found.reason != words


def without_loss(layers: int = 6) -> Any:
    module, batch, _ = build(layers)
    return module, batch


def test_what_was_measured_at_neither_is_not_won(tmp_path):
    found = gate(run(without_loss, tmp_path / "record"), "rival")
    assert found.state != "pass"
    assert "stiffness" in found.reason


def test_a_default_is_said_once(tmp_path):
    """As the reason of its gate; what else is not known stays among the notes."""
    found = run(build, tmp_path / "record", step=None, vary=["scale=0.5"])
    block = gate(found, "block")
    assert block.state == "warn"
    assert block.reason == "not everything is known: the learning rate was left to a default"
    assert commission_text(found).count("the learning rate was left to a default") == 1
    chosen = gate(run(build, tmp_path / "other", vary=["scale=0.5"]), "block")
    assert (chosen.state, chosen.reason) == ("pass", "")


def test_without_depths_to_sweep_the_depth_is_the_one_that_was_found(tmp_path):
    """Also where the ablation is told by depth: no network has depth 0."""
    found = run(build, tmp_path / "record", arguments={"layers": 3}, vary=["scale=0.5"], seed=0)
    record = found.stored.record
    assert (record.subject.depth, record.subject.depths) == (3, (3,))
    ablation = gate(found, "ablation")
    assert [table.title for table in ablation.tables] == [
        "Configurations over depth",
        "Effects of single changes, depth 3",
    ]
    assert [row[:2] for row in ablation.tables[0].rows] == [("baseline", 3), ("scale=0.5", 3)]
    curves = [record.curves[k] for k in ablation.curves]
    assert {curve.configuration for curve in curves} == {"scale=0.5, depth 3"}
    assert "depth 0" not in (tmp_path / "record" / "record.json").read_text()
    assert record.provenance.plan["depths"] == []
    assert verify(tmp_path / "record", subject_of_plan(found.plan)).state == "valid"
