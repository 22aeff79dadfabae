"""Suites by name: what a user calls, prints and catches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from depthgauge.errors import ClaimError, SpecificationError
from depthgauge.study import suites
from depthgauge.study.claims import Claim, SuiteResult


def returning(result: SuiteResult) -> Callable[..., SuiteResult]:
    def run(progress: object = None) -> SuiteResult:
        return result

    return run


def made(value: float = 1.0) -> SuiteResult:
    claim = Claim("drift", value, max=2.0)
    return SuiteResult("made", "by hand", ({"name": "one"},), (claim,))


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[SuiteResult]:
    """What was printed, in place of the terminal report."""
    seen: list[SuiteResult] = []
    terminal = ModuleType("depthgauge.report.terminal")
    terminal.print_suite = seen.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "depthgauge.report.terminal", terminal)
    return seen


@pytest.mark.parametrize("name", suites.SUITES)
def test_every_suite_passes_and_is_json(name: str) -> None:
    result = suites.run_suite(name)
    assert result.suite == name
    assert result.passed
    assert len({c["name"] for c in result.configurations}) == len(result.configurations)
    assert len({claim.name for claim in result.claims}) == len(result.claims)
    assert all(re.search(r"\d", lesson) and lesson.endswith(".") for lesson in result.lessons)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["checks"] == "PASS"


def test_names() -> None:
    # Others may be added; transport comes first, it is the default.
    assert next(iter(suites.SUITES)) == "transport"
    assert {"transport", "relay", "scalar", "gates"} <= set(suites.SUITES)


@pytest.mark.parametrize("call", [suites.run_suite, suites.suite])
def test_an_unknown_name_gets_the_nearest_and_all(call: object) -> None:
    with pytest.raises(SpecificationError) as error:
        call("transprot")  # type: ignore[operator]
    assert str(error.value) == (
        f"suite is 'transprot', expected one of {', '.join(suites.SUITES)} "
        f"(did you mean 'transport'?)"
    )
    with pytest.raises(SpecificationError, match="suite is 'xyz', expected one of"):
        call("xyz")  # type: ignore[operator]


def test_progress_is_passed_on() -> None:
    seen: list[tuple[int, int]] = []
    suites.run_suite("scalar", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2 * 96 * 5, 2 * 96 * 5)


def test_suite_shows_and_returns(
    monkeypatch: pytest.MonkeyPatch, printed: list[SuiteResult]
) -> None:
    result = made()
    monkeypatch.setitem(suites.SUITES, "transport", returning(result))
    assert suites.suite() is result
    assert printed == [result]
    assert suites.suite(show=False) is result
    assert printed == [result]


@pytest.mark.parametrize("show", [True, False])
def test_a_claim_that_does_not_hold_raises_after_the_report(
    monkeypatch: pytest.MonkeyPatch, printed: list[SuiteResult], show: bool
) -> None:
    broken = made(3.0)
    monkeypatch.setitem(suites.SUITES, "made", returning(broken))
    with pytest.raises(ClaimError, match=r"suite made: drift is 3, claimed < 2") as error:
        suites.suite("made", show=show)
    assert error.value.result is broken
    assert printed == ([broken] if show else [])
    assert suites.run_suite("made") is broken  # measured all the same


def test_naming_the_suites_does_not_import_torch() -> None:
    code = (
        "import sys, depthgauge.study.suites as s; assert s.SUITES\n"
        "assert not {'torch', 'depthgauge.study.transport'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
