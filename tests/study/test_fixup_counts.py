"""The fixup-counts suite: every count of the paper, and claims that can fail."""

from __future__ import annotations

import dataclasses

import pytest

from depthgauge.study import fixup_counts
from depthgauge.study.claims import SuiteResult
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

#: As the papers give them: L, and m.
FIGURES = {
    "ResNet-20": (9, [2]),
    "ResNet-32": (15, [2]),
    "ResNet-44": (21, [2]),
    "ResNet-56": (27, [2]),
    "ResNet-110": (54, [2]),
    "ResNet-1202": (600, [2]),
    "ResNet-18": (8, [2]),
    "ResNet-34": (16, [2]),
    "ResNet-50": (16, [3]),
    "ResNet-101": (33, [3]),
    "ResNet-152": (50, [3]),
    "Transformer, 6 + 6": (30, [2, 4]),
}


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return fixup_counts.run()


def test_the_counts_are_those_of_the_papers(result: SuiteResult) -> None:
    assert {c["name"]: (c["branches"], c["m"]) for c in result.configurations} == FIGURES
    assert result.passed
    assert "54 residual branches" in result.lessons[0]


def test_factors_are_the_rule_of_the_counts(result: SuiteResult) -> None:
    rows = {c["name"]: c for c in result.configurations}
    for name, m, factor in (
        ("ResNet-110", 0, 0.136083),
        ("ResNet-101", 0, 0.417226),
        ("Transformer, 6 + 6", 1, 0.567300),
    ):
        assert rows[name]["scales"][m] == pytest.approx(factor, abs=5e-7)
    assert rows["ResNet-110"]["scale_by_layers"] != pytest.approx(0.136083, rel=0.1)


def test_exponents_and_factors_hold_to_six_digits(result: SuiteResult) -> None:
    quoted = [c for c in result.claims if ": exponent" in c.name or ": factor" in c.name]
    assert len(quoted) == 13 + 6
    for claim in quoted:
        assert not dataclasses.replace(claim, value=1.0001 * claim.value).holds, claim.name


def _per_stage(found: Layout) -> Layout:
    return dataclasses.replace(found, branches=found.branches[: len(found.branches) // 3])


def _with_a_shortcut(found: Layout) -> Layout:
    more = tuple(dataclasses.replace(b, m=b.m + 1) for b in found.branches)
    return dataclasses.replace(found, branches=more)


def _without_a_last(found: Layout) -> Layout:
    bare = tuple(
        dataclasses.replace(b, weights=tuple(dataclasses.replace(w, last=False) for w in b.weights))
        for b in found.branches
    )
    return dataclasses.replace(found, branches=bare)


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (_per_stage, (": L", "factor")),
        (_with_a_shortcut, (": m, 2 in the paper", "exponent", "factor")),
        (_without_a_last, ("last layer is found",)),
    ],
)
def test_a_wrong_count_fails(
    wrong: object, broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(wrong)
    monkeypatch.setattr(fixup_counts, "layout", lambda *given: wrong(layout(*given)))
    monkeypatch.setattr(fixup_counts, "NETWORKS", fixup_counts.NETWORKS[4:5])
    found = fixup_counts.run()
    assert not found.passed
    for word in broken:
        assert any(word in claim.name and not claim.holds for claim in found.claims), word
