"""A suite as lines: configurations, their curves, the claims, the lessons."""

from __future__ import annotations

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
    "sgd_exponent": "exponent",
    "sgd_interval": "+-",
    "sgd_law": "law",
    "sgd_budget_exponent": "a branch",
    "sgd_alignment": "aligned",
    "sign_exponent": "sign step",
    "sign_law": "law",
    "branch_update": "branch step",
    "change_1": "step 1",
    "loss_sd": "sd",
}

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
        "sgd_interval",
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
        "loss_sd",
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
    print_table(console, _configurations(result))
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


def _configurations(result: SuiteResult) -> list[Column]:
    found = result.configurations
    keys = _SHOWN.get(result.suite) or [
        key
        for key in dict.fromkeys(key for row in found for key in row)
        if key not in _NOT_COLUMNS
        and not key.endswith("_reason")
        and not any(isinstance(row.get(key), Mapping | list | tuple) for row in found)
    ]
    return [
        Column("configuration", [str(row["name"]) for row in found], right=False),
        *(
            Column(
                _header(key),
                [_cell(row, key) for row in found],
                right=not any(isinstance(row.get(key), str) for row in found),
            )
            for key in keys
        ),
    ]


def _header(key: str) -> str:
    return _HEADERS.get(key, key.replace("_", " "))


def _cell(row: Mapping[str, Any], key: str) -> str:
    """A number to four digits; ``-`` where there is none, or the reason that stands beside it."""
    match value := row.get(key):
        case None:
            return str(row.get(f"{key}_reason", "-"))
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number(value)
        case _:
            return str(value)


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
