"""The fixup-first-step suite: its table against the figures asked for, and that it can fail."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from depthgauge.errors import ClaimError, NetworkError
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.study import fixup, suites
from depthgauge.study.claims import SuiteResult, by_name
from tests.cli.command import Command


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return suites.run_suite("fixup-first-step")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


#: Slopes that one seed gave for L = 16 to 1024 (ReZero's grows with depth: at 16 to 256), by
#: (scheme, m): under SGD.
SGD: dict[tuple[str, int], float] = {
    ("multiplier 1/sqrt(L)", 2): 0.06,
    ("multiplier 1/L", 2): -1.05,
    ("last init 1/sqrt(L)", 2): 1.05,
    ("last init 1/L", 2): 0.94,
    ("every init L^(-1/2m)", 2): 0.56,
    ("zero last layer", 2): 0.99,
    ("fixup", 2): -0.01,
    ("rezero", 2): 0.79,
    ("pre-norm", 2): 0.24,
    ("pre-norm, 1/sqrt(L)", 2): -0.07,
    ("multiplier 1/sqrt(L)", 3): 0.00,
    ("multiplier 1/L", 3): -1.06,
    ("last init 1/sqrt(L)", 3): 0.99,
    ("last init 1/L", 3): 0.93,
    ("every init L^(-1/2m)", 3): 0.34,
    ("zero last layer", 3): 1.01,
    ("fixup", 3): 0.01,
    ("rezero", 3): 0.81,
    ("pre-norm", 3): 0.23,
    ("pre-norm, 1/sqrt(L)", 3): -0.02,
}
SIGN: dict[tuple[str, int], float] = {
    ("multiplier 1/sqrt(L)", 2): 0.51,
    ("multiplier 1/L", 2): -0.03,
    ("last init 1/sqrt(L)", 2): 0.98,
    ("last init 1/L", 2): 0.96,
    ("every init L^(-1/2m)", 2): 0.76,
    ("zero last layer", 2): 0.99,
    ("fixup", 2): 0.49,
    ("rezero", 2): 0.77,
    ("pre-norm", 2): 0.57,
    ("pre-norm, 1/sqrt(L)", 2): 0.46,
}


@pytest.mark.parametrize(
    ("direction", "key"), [("sgd", key) for key in SGD] + [("sign", key) for key in SIGN]
)
def test_exponents_are_those_of_the_table(
    result: SuiteResult, direction: str, key: tuple[str, int]
) -> None:
    row = by_name(result.configurations)[fixup._name(*key)]
    wanted = (SGD if direction == "sgd" else SIGN)[key]
    assert row[f"{direction}_exponent"] == pytest.approx(wanted, abs=0.1)


def test_values_are_those_of_the_table(result: SuiteResult) -> None:
    rows = by_name(result.configurations)
    flat = rows["fixup, m=2"]
    # One seed gave 1.56, 1.16 and 1.48, and 209, 339 and 786 under sign steps.
    assert flat["sgd_updates"] == pytest.approx([1.4, 1.4, 1.4], rel=0.2)
    assert flat["sign_updates"] == pytest.approx([185, 370, 740], rel=0.2)
    assert flat["sgd_totals"] == pytest.approx([2.0, 1.95, 1.95], rel=0.2)
    assert rows["fixup, C = 0, m=2"]["sgd_totals"] == pytest.approx([0.75] * 3, rel=0.1)
    assert rows["fixup, C = 0, m=2"]["sign_totals"] == pytest.approx([12.0] * 3, rel=0.1)
    # A branch triples the square where every layer is He's: 2.97 between 64 and 256 for one seed.
    assert rows["he, m=2"]["sgd_growth"] == pytest.approx(2.97, rel=0.1)


def test_updates_align_but_for_rezero(result: SuiteResult) -> None:
    for row in result.configurations:
        if (alignment := row["sgd_alignment"]) is not None:
            rezero = row["name"].startswith("rezero")
            assert (0.1 < alignment < 0.4) if rezero else (0.75 < alignment <= 1), row["name"]


def test_every_claim_holds(result: SuiteResult) -> None:
    assert result.check() is result
    assert len(result.configurations) == 2 * len(fixup.SCHEMES)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    row = by_name(document["configurations"])["he, m=2"]
    assert row["sgd_exponent"] is None
    assert row["sgd_exponent_reason"].startswith("x3.0")
    keys = {key.removeprefix("sgd_").removesuffix("_reason") for key in row if key[:4] == "sgd_"}
    assert keys <= fixup.COLUMNS.keys()


def test_lessons_carry_the_numbers(result: SuiteResult) -> None:
    flat, alike, sign = result.lessons
    assert "a share like L^-1.00" in flat
    assert "L^0.01 in one and L^0.99 in the other" in alike
    assert "Fixup grows like L^0.50" in sign


# --------------------------------------------------------------------------- that it can fail

_NEEDED = {"fixup", "multiplier 1/sqrt(L)", "last init 1/sqrt(L)", "multiplier 1/L"}


def small(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Four schemes, two seeds, three shallow depths; ``changes`` of the Fixup scheme."""
    schemes = [s for s in fixup.SCHEMES if s.name in _NEEDED]
    monkeypatch.setattr(
        fixup,
        "SCHEMES",
        [dataclasses.replace(s, **changes) if s.name == "fixup" else s for s in schemes],
    )
    monkeypatch.setattr(fixup, "LAYERS", (3,))
    monkeypatch.setattr(fixup, "SEEDS", (0, 1))
    monkeypatch.setattr(fixup, "DEPTHS", (4, 16, 64))
    for lesson in ("_flat", "_alike_and_not", "_sign"):
        monkeypatch.setattr(fixup, lesson, lambda rows: "")


def broken(result: SuiteResult) -> set[str]:
    return {c.name for c in result.claims if not c.holds and c.name.startswith("fixup, ")}


def test_fixup_itself_passes_when_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    assert not broken(fixup.run())


@pytest.mark.parametrize(
    "changes",
    [
        {"inner": "L**(-1/(2*{m}))"},  # -1/6 for -1/4
        {"inner": "L**(-1/(2*{m} - 1))"},
        {"inner": "1"},
        {"equation": "h + {F}/sqrt(L)"},
    ],
)
def test_a_wrong_exponent_fails(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> None:
    small(monkeypatch, **changes)
    result = fixup.run()
    assert broken(result) >= {
        "fixup, m=3, sgd: exponent",
        "fixup, m=3, sgd: exponent less the law's",
        "fixup, m=3, sgd: exponent of one branch, eta / L",
    }
    with pytest.raises(ClaimError, match="fixup, m=3, sgd: exponent"):
        result.check()


def test_a_last_layer_that_is_not_zero_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, last="1")
    assert "fixup, m=3, sgd: exponent" in broken(fixup.run())


def test_the_command_says_so(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    small(monkeypatch, inner="1")
    monkeypatch.setitem(suites.SUITES, "fixup-first-step", fixup.run)
    ran = command("suite", "fixup-first-step", "--quiet")
    assert ran.status == 1
    assert ran.out.startswith("checks: FAIL")


# ------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(("branches", "layers", "text"), fixup.SCALES)
def test_scales_as_quoted(branches: int, layers: int, text: str) -> None:
    digits = len(text.partition(".")[2])
    assert f"{fixup_scale(branches, layers):.{digits}f}" == text


@pytest.mark.parametrize("off", [1.0, 1.0001])
def test_scales_hold_to_six_digits_also_where_zeros_end_them(
    off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixup, "fixup_scale", lambda L, m: off * fixup_scale(L, m))
    found = [claim.holds for claim in fixup._scale_claims()]
    assert len(found) == len(fixup.SCALES)
    assert found == [off == 1] * len(found)


@pytest.mark.parametrize("m", [2, 3, 4, 7])
def test_inner_scales_multiply_to_one_over_root_L(m: int) -> None:
    assert fixup_scale(54, m) ** (m - 1) == pytest.approx(54**-0.5, rel=1e-12)


def test_a_branch_of_one_layer_has_nothing_to_scale() -> None:
    with pytest.raises(NetworkError, match="m = 1 weight layers has none; only its zero last"):
        fixup_scale(54, 1)
    with pytest.raises(NetworkError, match="L is 0"):
        fixup_scale(0, 2)


def slope(law: fixup.Law, m: int, direction: str) -> float:
    """Between two depths so large that (1 + 2/L)^L no longer moves."""
    low, high = (law(L, m, direction) for L in (1e8, 1e10))
    return math.log(high / low) / math.log(100)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_laws_have_the_limits_that_are_known(m: int) -> None:
    limits = {
        "multiplier 1/sqrt(L)": (0, 0.5),
        "multiplier 1/L": (-1, 0),
        "last init 1/sqrt(L)": (1, 1),
        "last init 1/L": (1, 1),
        "every init L^(-1/2m)": (1 / m, (m + 1) / (2 * m)),
        "zero last layer": (1, 1),
        "fixup": (0, 0.5),
    }
    laws = {s.name: s.law for s in fixup.SCHEMES}
    for name, wanted in limits.items():
        law = laws[name]
        assert isinstance(law, fixup.Law)
        got = slope(law, m, "sgd"), slope(law, m, "sign")
        assert got == pytest.approx(wanted, abs=1e-4), name


def test_the_law_of_growth_is_three_and_three_halves() -> None:
    laws = {s.name: s.law for s in fixup.SCHEMES if s.grows}
    for name, factor in (("he", 3), ("1/sqrt(2)", 1.5)):
        law = laws[name]
        assert isinstance(law, fixup.Law)
        ratio = law(101, 2, "sgd") / 101 / (law(100, 2, "sgd") / 100)
        assert ratio == pytest.approx(factor, rel=1e-12)
