"""The fixup-goldilocks suite: what it finds, and that each kind of claim can fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import ClaimError
from depthgauge.network.spec import Network
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.study import goldilocks, suites
from depthgauge.study.claims import SuiteResult, by_name
from depthgauge.study.goldilocks import FIXUP, HE, LARGE, NO_BIASES, SLOWED, SMALL, ZERO


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return suites.run_suite("fixup-goldilocks")


def test_every_claim_holds(result: SuiteResult) -> None:
    assert result.check() is result
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    rows = by_name(document["configurations"])
    assert list(rows) == [c.name for c in goldilocks.CONFIGURATIONS]
    keys = {
        key.removesuffix("_reason").rstrip("_123")
        for row in rows.values()
        for key in row.keys() - {"name", "equation", "c", "rate"}
    }
    known = {key.rstrip("_123") for key in goldilocks.COLUMNS} | {
        "run_above_fixup_interval",
        "run_loss_sd",
    }
    assert keys == known


def test_a_seed_that_is_lost_is_counted_and_said(result: SuiteResult) -> None:
    rows = by_name(result.to_dict()["configurations"])
    for name in (LARGE, HE):
        assert rows[name]["diverged"] == rows[name]["failed"] == len(goldilocks.SEEDS)
        assert rows[name]["loss"] is None
        assert rows[name]["loss_reason"] == "not finite"
        assert f"{name}: lost, 8 of 8 seeds not finite" in result.lessons[0]
    assert rows[FIXUP]["diverged"] == 0
    losses = np.array(rows[FIXUP]["losses"])
    assert rows[FIXUP]["loss"] == pytest.approx(losses.mean())
    assert rows[FIXUP]["loss_sd"] == pytest.approx(losses.std(ddof=1))
    apart = np.array(rows[SMALL]["losses"]) - losses
    assert rows[SMALL]["above_fixup"] == pytest.approx(apart.mean())
    # Student's t for 7 degrees of freedom
    half = 2.364624 * apart.std(ddof=1) / math.sqrt(8)
    assert rows[SMALL]["above_fixup_interval"] == pytest.approx(half, rel=1e-5)


def test_the_networks_are_fixups(result: SuiteResult) -> None:
    networks = {c.name: c.network() for c in goldilocks.CONFIGURATIONS}
    assert networks[FIXUP].branches == goldilocks.DEPTH
    for name, c in ((FIXUP, 1), (SMALL, 0.1), (LARGE, 10)):
        block = dict(networks[name].module(3).named_parameters())
        weights = np.stack(
            [block[f"blocks.{l}.W1.weight"].detach().numpy() for l in range(goldilocks.DEPTH)]
        )
        expected = c * math.sqrt(2 / goldilocks.WIDTH) * fixup_scale(goldilocks.DEPTH, 2)
        assert weights.std() == pytest.approx(expected, rel=0.02)
        assert not any(p.any() for name, p in block.items() if "W2" in name)
    assert "scalar" not in str(networks[NO_BIASES].equation).replace("scalar(1)", "")
    assert str(networks[FIXUP].equation).count("scalar(0)") == 4


# --------------------------------------------------------------------------- that it can fail

_original = goldilocks.Configuration.network


def small(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Twelve branches, five seeds, sixty steps; in thirty a linear classifier keeps up."""
    settings = {"DEPTH": 12, "WIDTH": 24, "SEEDS": tuple(range(5)), **changes}
    for name, value in settings.items():
        monkeypatch.setattr(goldilocks, name, value)
    task = dataclasses.replace(goldilocks.TASK, steps=60, held_out=128)
    monkeypatch.setattr(goldilocks, "TASK", task)


def built(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str, dict[str, str]], dict[str, str]]
) -> None:
    """Networks with initialisers changed, by the configuration's name."""

    def network(self: goldilocks.Configuration) -> Network:
        usual = _original(self)
        assert isinstance(usual.init, dict)
        return dataclasses.replace(usual, init=change(self.name, usual.init))

    monkeypatch.setattr(goldilocks.Configuration, "network", network)


def broken() -> str:
    result = goldilocks.run()
    with pytest.raises(ClaimError, match="suite fixup-goldilocks"):
        result.check()
    return " | ".join(c.name for c in result.claims if not c.holds)


def test_it_passes_when_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    seen: list[tuple[int, int]] = []
    result = goldilocks.run(lambda done, total: seen.append((done, total)))
    assert result.passed, [c.name for c in result.claims if not c.holds]
    assert seen[-1] == (8, 8)


def test_the_power_is_that_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, LAYERS=3)
    result = goldilocks.run()
    ratios = {c.name: c for c in result.claims if "by c^(2m - 2)" in c.name}
    assert len(ratios) == 4
    assert all(c.holds for c in ratios.values())
    large = ratios["inner x 10: branch step over fixup's, by c^(2m - 2)"]
    assert large.value == pytest.approx(1e4)
    moving = by_name(result.configurations)[FIXUP]["moving_3"]
    assert moving == 3 + 10 * goldilocks.DEPTH


def test_fixup_without_its_scale_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """L^(1/2) too large, which is not ten times: the steps of the others have other ratios."""
    small(monkeypatch)

    def unscaled(name: str, init: dict[str, str]) -> dict[str, str]:
        return init | {"W1": "he"} if name == FIXUP else init

    built(monkeypatch, unscaled)
    names = broken()
    for name in (SMALL, LARGE):
        assert f"{name}: branch step over fixup's" in names
        assert f"{name}: the same at step 2" in names


def test_a_last_layer_that_is_not_zero_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)

    def drawn(name: str, init: dict[str, str]) -> dict[str, str]:
        return init | {"W2": "normal(0.01)"}

    built(monkeypatch, drawn)
    names = broken()
    assert "fixup: tensors with a gradient at step 2" in names
    assert f"{ZERO}: tensors with a gradient at step 2" in names
    assert f"{ZERO}: largest weight after the run" in names
    assert f"{LARGE}: step 1 over fixup's" in names


def test_zeros_that_are_not_zeros_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """With inner weights it is Fixup's network: it learns, and no lower than itself."""
    small(monkeypatch)

    def scaled(name: str, init: dict[str, str]) -> dict[str, str]:
        return init | {"W1": "he(gain=sqrt(2)/sqrt(L))"} if name == ZERO else init

    built(monkeypatch, scaled)
    names = broken()
    assert f"{ZERO}: branch step" in names
    assert f"that end below {ZERO}" in names


def test_a_rate_that_is_too_large_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network diverges: none is in the window any more."""
    small(monkeypatch)
    monkeypatch.setattr(
        goldilocks,
        "CONFIGURATIONS",
        tuple(dataclasses.replace(c, rate=100 * c.rate) for c in goldilocks.CONFIGURATIONS),
    )
    names = broken()
    assert f"{FIXUP}: seeds of 5 that diverge" in names
    assert f"{SLOWED}: seeds of 5 that diverge" in names


def test_a_rate_that_is_too_small_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times too large is then no ruin."""
    small(monkeypatch)
    monkeypatch.setattr(
        goldilocks,
        "CONFIGURATIONS",
        tuple(dataclasses.replace(c, rate=c.rate / 100) for c in goldilocks.CONFIGURATIONS),
    )
    assert f"{LARGE}: seeds of 5 that diverge" in broken()


# ------------------------------------------------------------------------------------ counting


def test_the_sign_test() -> None:
    assert [goldilocks.needed(n) for n in (5, 6, 8, 16)] == [5, 6, 7, 12]
    with pytest.raises(AssertionError, match="4 seeds can show nothing"):
        goldilocks.needed(4)


def test_what_is_not_finite_is_above_everything() -> None:
    nan, inf = math.nan, math.inf
    assert goldilocks.below([1, 2, 1, nan, nan, inf], [2, 1, nan, 1, nan, nan]) == 2


# --------------------------------------------------------------------------------- the page


def test_the_table_of_the_page_is_what_the_suite_finds(result: SuiteResult) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    table = page.partition("| configuration |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == len(result.configurations)
    for line, row in zip(table, result.configurations, strict=True):
        shown = [cell.strip() for cell in line.strip("| ").split(" | ")][1:]
        step = row["branch_update"]
        assert shown[0] == (f"{step:.0e}".replace("+", "") if step > 1e6 else f"{step:.3g}")
        for cell, key in zip(shown[1:], ("run_loss", "loss"), strict=True):
            if row["loss"] is None:
                assert cell == f"lost, {row['failed']} of 8"
            else:
                assert cell == f"{row[key]:.3f} ({row[f'{key}_sd']:.3f})"
