from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from hypothesis import settings

from depthgauge.study import suites
from depthgauge.study.claims import SuiteResult

# A slow machine is no failure of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def _longest_suites_run_once() -> Iterator[None]:
    """They take twenty seconds each, and give the same numbers each time."""
    names = ("fixup-first-step", "fixup-goldilocks")
    runs = {name: suites.SUITES[name] for name in names}
    suites.SUITES.update({name: _once(run) for name, run in runs.items()})
    yield
    suites.SUITES.update(runs)


def _once(run: suites.Run) -> suites.Run:
    @functools.cache
    def once() -> SuiteResult:
        return run(None)

    def kept(progress: object = None) -> SuiteResult:
        return once()

    return kept
