"""Suites and profiles on a terminal or in a pipe: words and numbers, a small curve for each river.

A curve is the logarithm of its values over depth, from its own least to its own largest (see
``depthgauge.sparkline``); ``×`` is where it is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from depthgauge.profile import Profile
from depthgauge.profile_text import RIVERS, missing, nonfinite, number, power, steepest
from depthgauge.report.tables import GAP, Column, paragraph, plain, print_table, terminal
from depthgauge.sites import FloatArray
from depthgauge.sparkline import sparkline
from depthgauge.study.claims import SuiteResult
from depthgauge.study.corridor import Verdict
from depthgauge.summaries import spread

__all__ = ["print_profile", "print_suite", "profile_line", "suite_line"]

#: What the columns are called; any other key is its own name.
HEADERS = {
    "depth": "blocks",
    "branch_scale": "skip scale",
    "forward_end_rms": "end RMS",
    "forward_drift": "drift",
    "live_derivative_fraction": "live",
    "saturated_fraction": "saturated",
    "state_rms": "state RMS",
    "gradient_rms": "gradient RMS",
}

#: The columns of a suite whose names say the rest; other suites show every number they have.
SHOWN = {
    "transport": (
        "depth",
        "branch_scale",
        "forward_end_rms",
        "forward_drift",
        "gradient_ratio",
        "live_derivative_fraction",
    )
}

NOT_COLUMNS = ("name", "equation", "curves")
SHORTEST, LONGEST = 12, 48
SPARK = "log10 over the blocks, each from its least to its largest"


# ------------------------------------------------------------------------------- suites


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
        paragraph(console, f"curves: {SPARK}")
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
    why = f"{broken} of {len(result.claims)} claims do not hold" if broken else "no claim"
    return f"checks: FAIL ({why})"


def _settings(settings: Mapping[str, Any]) -> str:
    found = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())


def _configurations(result: SuiteResult) -> list[Column]:
    found = result.configurations
    keys = SHOWN.get(result.suite) or [
        key
        for key in dict.fromkeys(key for row in found for key in row)
        if key not in NOT_COLUMNS
        and not key.endswith("_reason")
        and not any(isinstance(row.get(key), Mapping | list | tuple) for row in found)
    ]
    return [
        Column("configuration", [str(row["name"]) for row in found], right=False),
        *(_numbers(key, [_cell(row, key) for row in found]) for key in keys),
    ]


def _numbers(key: str, cells: Sequence[str]) -> Column:
    words = any(cell[:1].isalpha() and cell not in ("yes", "no") for cell in cells)
    return Column(HEADERS.get(key, key.replace("_", " ")), cells, right=not words)


def _cell(row: Mapping[str, Any], key: str) -> str:
    """A number to four digits; ``-`` where there is none, or the reason that stands beside it."""
    match value := row.get(key):
        case None:
            return str(row.get(f"{key}_reason", "-"))
        case bool():
            return "yes" if value else "no"
        case int() | float() | np.number():
            return number(value)
        case _:
            return str(value)


def _curves(found: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    drawn = [row for row in found if row.get("curves")]
    keys = dict.fromkeys(key for row in drawn for key in row["curves"] if key != "block")
    names = Column("configuration", [str(row["name"]) for row in drawn], right=False)
    room = (width - names.width) // max(1, len(keys)) - GAP
    room = min(LONGEST, max(SHORTEST, room))
    return [
        names,
        *(
            Column(
                HEADERS.get(key, key.replace("_", " ")),
                [_spark(row["curves"].get(key, ()), room) for row in drawn],
                right=False,
            )
            for key in keys
        ),
    ]


def _spark(values: Iterable[float | None], room: int) -> str:
    return sparkline((np.nan if x is None else x for x in values), room)


def _claims(result: SuiteResult) -> list[Column]:
    claims = result.claims
    return [
        Column("", ["PASS" if claim.holds else "FAIL" for claim in claims], right=False),
        Column("value", [number(claim.value) for claim in claims]),
        Column("bound", [claim.bound for claim in claims], right=False),
        Column("claim", [claim.name for claim in claims], right=False, wraps=True),
    ]


# ------------------------------------------------------------------------------ profiles


def print_profile(
    profile: Profile, verdict: Verdict | None = None, console: Console | None = None
) -> None:
    """What was measured, the summaries with their spread, both rivers, gates, and the verdict."""
    console = console or terminal()
    for line in (profile.equation or profile.target).splitlines():
        plain(console, line, "bold")
    paragraph(console, _counted(profile))
    paragraph(console, _run(profile))
    tables = [
        _summaries(profile),
        _rivers(profile, console.width),
        _growth(profile),
        _gates(profile),
    ]
    for columns in tables:
        if columns[0].cells:
            plain(console)
            print_table(console, columns)
    if lines := [*nonfinite(profile)]:
        plain(console)
        for line in lines:
            paragraph(console, line)
    if missing(profile):
        plain(console)
    for reason, names in missing(profile).items():
        paragraph(console, f"{', '.join(names)} ({reason})", "not measured: ")
    if verdict is not None:
        plain(console)
        print_table(console, _judgements(verdict))
    plain(console)
    style = "" if verdict is None else "green" if verdict.state in ("pass", "warn") else "bold red"
    plain(console, profile_line(profile, verdict), style)


def profile_line(profile: Profile, verdict: Verdict | None = None) -> str:
    """The closing line: the corridor's verdict with its score and reason, or where it overflowed."""
    if verdict is None:
        found = "; ".join(nonfinite(profile)) or "every state and gradient is finite"
        if "state_rms" not in profile and "gradient_rms" not in profile and not nonfinite(profile):
            found = "measured"
        return f"{found}; no corridor was declared"
    score = "" if verdict.score is None else f", smallest margin {verdict.score:+.3g} decades"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"corridor: {_word(verdict.state)}{score}{reason}"


def _word(state: str) -> str:
    return state.replace("_", " ").upper()


def _counted(profile: Profile) -> str:
    """How many branches and weight layers were found in the equation."""
    if not profile.branches:
        return f"{profile.depth} blocks, no residual branch"
    stream = profile.streams[0] if profile.streams else {}
    layers = sorted(set(stream.get("m", ())))
    parts = [f"{profile.depth} blocks, {profile.branches} residual branches"]
    if layers:
        plural = "" if layers == [1] else "s"
        parts.append(f"of {' or '.join(map(str, layers))} weight layer{plural}")
    described = [
        f"{label} {stream[key]}"
        for key, label in (("skip", "skip"), ("placement", "norm placement"))
        if stream.get(key)
    ]
    extra = [
        f"{stream[key]} {key}" for key in ("inner", "projected", "parallel") if stream.get(key)
    ]
    return ", ".join([" ".join(parts), *described, *extra])


def _run(profile: Profile) -> str:
    seeds = profile.seeds
    several = f"{len(seeds)} seeds ({_range(seeds)})" if len(seeds) > 1 else f"seed {seeds[0]}"
    parts = [f"width {profile.width}", f"batch {profile.batch}", profile.dtype, several]
    if init := profile.settings.get("init"):
        assert isinstance(init, Mapping)
        parts.append(f"init {', '.join(f'{name} {spec}' for name, spec in init.items())}")
    if device := profile.settings.get("device"):
        parts.append(f"on {device}")
    return ", ".join(parts)


def _range(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}..{seeds[-1]}"
    return ", ".join(map(str, seeds[:8])) + (", ..." if len(seeds) > 8 else "")


def _summaries(profile: Profile) -> list[Column]:
    """Over the seeds whose value is finite; how many are not stands beside their number."""
    found = profile.summary()
    several = len(profile.seeds) > 1
    medians, ranges, counts = [], [], []
    for values in found.values():
        good = values[np.isfinite(values)]
        median, low, high = spread(good if good.size else values)
        medians.append(number(median))
        ranges.append(f"[{number(low)}, {number(high)}]" if good.size else "")
        bad = values.size - good.size
        counts.append(f"{good.size or bad}" + (f", {bad} not finite" if good.size and bad else ""))
    columns = [
        Column("summary", list(found), right=False),
        Column("median" if several else "value", medians),
    ]
    if several:
        columns.append(Column("[min, max]", ranges, right=False))
    return [*columns, Column("n", counts, right=False)]


def _rivers(profile: Profile, width: int) -> list[Column]:
    """The median over seeds, block by block."""
    rivers = {
        label: [(block, spread(row).median) for block, row in zip(*found, strict=True)]
        for name, label in RIVERS.items()
        if (found := profile.by_block(name))
    }
    names = Column("river", list(rivers), right=False)
    first = Column("first", [_at(river[0]) for river in rivers.values()], right=False)
    last = Column("last", [_at(river[-1]) for river in rivers.values()], right=False)
    room = width - sum(column.width + GAP for column in (names, first, last))
    room = min(LONGEST, max(SHORTEST, room))
    curves = [_spark((value for _, value in river), room) for river in rivers.values()]
    return [names, Column("log10 over the blocks", curves, right=False), first, last]


def _at(place: tuple[int, float]) -> str:
    block, value = place
    return f"{number(value)} at {f'block {block}' if block else 'the input'}"


def _growth(profile: Profile) -> list[Column]:
    found = steepest(profile)
    columns = [
        Column("steepest", [f"block {steep.block}" for steep in found], right=False),
        Column("river", [steep.river for steep in found], right=False),
        Column("factor", [power(steep.decades) for steep in found]),
    ]
    if len(profile.seeds) > 1:
        columns.append(Column("seed", [str(steep.seed) for steep in found]))
    return columns


def _gates(profile: Profile) -> list[Column]:
    """Each activation of the block: the mean of its live share, the largest of what is wrong."""
    rules = {
        "live_derivative_fraction": ("live, mean", np.mean),
        "saturated_fraction": ("saturated, max", np.max),
        "dead_fraction": ("dead, max", np.max),
    }
    rows: dict[str, dict[str, str]] = {}
    for quantity in rules:
        if quantity in profile:
            for gate, values in _by_gate(profile, quantity).items():
                with np.errstate(all="ignore"):
                    reduced = rules[quantity][1](values, axis=0)
                rows.setdefault(gate, {})[quantity] = number(spread(reduced).median)
    shown = [quantity for quantity in rules if any(quantity in row for row in rows.values())]
    return [
        Column("gate", list(rows), right=False),
        *(Column(rules[q][0], [row.get(q, "-") for row in rows.values()]) for q in shown),
    ]


def _by_gate(profile: Profile, quantity: str) -> dict[str, FloatArray]:
    """The values of each activation of the block, shape (blocks, K), by its name in the block."""
    values = profile.columns[quantity].values
    rows: dict[str, list[int]] = {}
    for i, site in enumerate(profile.sites_of(quantity)):
        rows.setdefault(site.path.removeprefix(f"blocks.{site.block - 1}."), []).append(i)
    return {gate: values[at] for gate, at in rows.items()}


def _judgements(verdict: Verdict) -> list[Column]:
    judged = verdict.judgements
    margins = [f"{j.margin:+.3g}" if j.n else "-" for j in judged]
    return [
        Column("corridor", [j.name for j in judged], right=False),
        Column("", [_word(j.state) for j in judged], right=False),
        Column("value", [number(j.value) if j.n else "-" for j in judged]),
        Column("bound", [str(j.bound) for j in judged], right=False),
        Column("margin", margins),
        Column("reason", [j.reason for j in judged], right=False, wraps=True),
    ]
