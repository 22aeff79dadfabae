"""A suite as lines: configurations, their curves, the claims, the lessons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from depthgauge.profile_text import number
from depthgauge.report.tables import GAP, Column, curve, paragraph, plain, print_table, terminal
from depthgauge.study.claims import SuiteResult

__all__ = ["print_suite", "suite_line"]

#: What the columns are called; any other key is its own name.
_HEADERS: Final = {
    "depth": "blocks",
    "branch_scale": "skip scale",
    "forward_end_rms": "end RMS",
    "forward_drift": "drift",
    "live_derivative_fraction": "live",
    "saturated_fraction": "saturated",
    "state_rms": "state RMS",
    "gradient_rms": "gradient RMS",
    "sgd_exponent": "SGD step",
    "sgd_law": "its law",
    "sgd_budget_exponent": "a branch",
    "sgd_alignment": "aligned",
    "sign_exponent": "sign step",
    "sign_law": "sign law",
    "branch_update": "branch step",
    "change_1": "step 1",
}
#: What stands behind a number, after "+-".
_SPREADS: Final = {
    "sgd_exponent": "sgd_interval",
    "sign_exponent": "sign_interval",
    "run_loss": "run_loss_sd",
    "loss": "loss_sd",
}
#: And in one suite.
_OWN_HEADERS: Final = {"fixup-counts": {"branches": "L", "layers": "m"}}

#: The columns of a suite whose names say the rest; other suites show every number they have.
_SHOWN: Final = {
    "transport": (
        "depth",
        "branch_scale",
        "forward_end_rms",
        "forward_drift",
        "gradient_ratio",
        "live_derivative_fraction",
    ),
    "fixup-first-step": (
        "sgd_exponent",
        "sgd_law",
        "sgd_budget_exponent",
        "sgd_alignment",
        "sign_exponent",
        "sign_law",
    ),
    "fixup-goldilocks": (
        "branch_update",
        "change_1",
        "moving",
        "run_loss",
        "loss",
        "failed",
    ),
}

_NOT_COLUMNS: Final = ("name", "equation", "curves")
_CURVES: Final = "log10 over the blocks, each from its least to its largest"


def print_suite(result: SuiteResult, console: Console | None = None) -> None:
    """Configurations, their curves, the claims, the lessons, and whether all claims hold."""
    console = console or terminal()
    paragraph(console, f"suite {result.suite}: {result.about}")
    if settings := _settings(result.settings):
        paragraph(console, settings)
    plain(console)
    if row := result.legend.get(""):
        paragraph(console, row)
        plain(console)
    print_table(console, _configurations(result))
    _legend(result, console)
    if any(c.get("curves") for c in result.configurations):
        plain(console)
        paragraph(console, f"curves: {_CURVES}")
        print_table(console, _curves(result.configurations, console.width))
    if result.claims:
        plain(console)
        print_table(console, _claims(result))
    for lesson in result.lessons:
        plain(console)
        paragraph(console, lesson)
    plain(console)
    plain(console, suite_line(result), "green" if result.passed else "bold red")


def suite_line(result: SuiteResult) -> str:
    """The closing line: ``checks: PASS``, or which share of the claims does not hold."""
    broken = sum(not claim.holds for claim in result.claims)
    if result.passed:
        return "checks: PASS"
    verb = "does" if broken == 1 else "do"
    why = f"{broken} of {len(result.claims)} claims {verb} not hold" if broken else "no claim"
    return f"checks: FAIL ({why})"


def _settings(settings: Mapping[str, Any]) -> str:
    """Numbers and words; tables and sentences are in the JSON document."""
    found = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    found = {k: v for k, v in found.items() if ", " not in str(v)}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())


def _legend(result: SuiteResult, console: Console) -> None:
    """What the columns are, in the order in which they stand."""
    told = [(key, result.legend[key]) for key in _keys(result) if key in result.legend]
    if told:
        plain(console)
    for key, words in told:
        paragraph(console, f"{_header(key, result.suite)}: {words}", indent="  ")


def _keys(result: SuiteResult) -> Sequence[str]:
    found = result.configurations
    return _SHOWN.get(result.suite) or [
        key
        for key in dict.fromkeys(key for row in found for key in row)
        if key not in _NOT_COLUMNS
        and not key.endswith("_reason")
        and not any(isinstance(row.get(key), Mapping | list | tuple) for row in found)
    ]


def _configurations(result: SuiteResult) -> list[Column]:
    found, keys = result.configurations, _keys(result)
    return [
        Column("configuration", [str(row["name"]) for row in found], right=False),
        *(
            Column(
                _header(key, result.suite),
                [_cell(row, key) for row in found],
                right=not any(isinstance(row.get(key), str) for row in found),
            )
            for key in keys
        ),
    ]


def _header(key: str, suite: str = "") -> str:
    own = _OWN_HEADERS.get(suite, {})
    return own.get(key) or _HEADERS.get(key, key.replace("_", " "))


def _cell(row: Mapping[str, Any], key: str) -> str:
    """A number to four digits; ``-`` where there is none, or the reason that stands beside it."""
    match value := row.get(key):
        case None:
            return str(row.get(f"{key}_reason", "-"))
        case bool():
            return "yes" if value else "no"
        case int() | float():
            spread = row.get(_SPREADS.get(key, ""))
            return number(value) if spread is None else _with_spread(value, spread)
        case _:
            return str(value)


def _with_spread(value: float, spread: float) -> str:
    """``0.176 +- 0.041``: two digits of the spread, and as many places of the number."""
    if not (math.isfinite(value) and math.isfinite(spread) and 1e-6 < spread < 1e6):
        return f"{number(value)} +- {number(spread)}"
    places = max(0, 1 - math.floor(math.log10(spread)))
    return f"{value:.{places}f} +- {spread:.{places}f}"


def _curves(found: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    drawn = [row for row in found if row.get("curves")]
    keys = dict.fromkeys(key for row in drawn for key in row["curves"] if key != "block")
    names = Column("configuration", [str(row["name"]) for row in drawn], right=False)
    room = (width - names.width) // max(1, len(keys)) - GAP
    return [
        names,
        *(
            Column(
                _header(key),
                [curve(row["curves"].get(key, ()), room) for row in drawn],
                right=False,
            )
            for key in keys
        ),
    ]


def _claims(result: SuiteResult) -> list[Column]:
    claims = result.claims
    return [
        Column("", ["PASS" if claim.holds else "FAIL" for claim in claims], right=False),
        Column("value", [number(claim.value) for claim in claims]),
        Column("bound", [claim.bound for claim in claims], right=False),
        Column("claim", [claim.name for claim in claims], right=False, wraps=True),
    ]
