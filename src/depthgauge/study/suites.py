"""The built-in suites by name; each file is imported when its suite is run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from depthgauge.errors import SpecificationError, expect, nearest
from depthgauge.study.claims import SuiteResult

if TYPE_CHECKING:
    from depthgauge.measurement import Progress

    Run: TypeAlias = Callable[[Progress | None], SuiteResult]

__all__ = ["SUITES", "run_suite", "suite"]


def _later(module: str) -> Run:
    """A suite's ``run``, without importing torch before it is wanted."""

    def run(progress: Progress | None = None) -> SuiteResult:
        result: SuiteResult = import_module(f"depthgauge.study.{module}").run(progress)
        return result

    return run


SUITES: dict[str, Run] = {
    "transport": _later("transport"),
    "relay": _later("relay"),
    "scalar": _later("scalar"),
    "gates": _later("gates"),
    "fixup-counts": _later("fixup_counts"),
    "fixup-first-step": _later("fixup"),
    "fixup-goldilocks": _later("goldilocks"),
}


def run_suite(name: str, progress: Progress | None = None) -> SuiteResult:
    """What the suite of this name measured, whether or not its claims hold.

    Raises SpecificationError for a name that no suite has.
    """
    expect("suite", name, str, "the name of a suite")
    if name not in SUITES:
        raise SpecificationError(
            f"suite is '{name}', expected one of {', '.join(SUITES)}{nearest(str(name), SUITES)}"
        )
    return SUITES[name](progress)


def suite(name: str = "transport", *, show: bool = True) -> SuiteResult:
    """Run a built-in suite, print its report and hold it to its claims.

    ``show``: print the report, whatever it says. Raises ClaimError, which carries the result, when
    a claim does not hold, and SpecificationError for a name that no suite has.
    """
    result = run_suite(name)
    if show:
        from depthgauge.report.terminal import print_suite

        print_suite(result)
    return result.check()
