"""A profile as lines: what was measured, both rivers, branches, gates, a corridor's verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console

from depthgauge.profile import Profile
from depthgauge.profile_text import (
    RIVERS,
    missing,
    nonfinite,
    not_seen,
    number,
    power,
    steepest,
)
from depthgauge.remarks import remarks
from depthgauge.report.tables import GAP, Column, curve, paragraph, plain, print_table, terminal
from depthgauge.sites import FloatArray, Site
from depthgauge.study.corridor import Verdict
from depthgauge.summaries import batch_words, spread

__all__ = ["print_profile", "profile_line"]

#: Of each activation, how a quantity becomes one number a seed.
_GATES: Final[dict[str, tuple[str, Callable[[FloatArray], FloatArray]]]] = {
    "live_derivative_fraction": ("live, mean", lambda values: values.mean(axis=0)),
    "saturated_fraction": ("saturated, max", lambda values: values.max(axis=0)),
    "dead_fraction": ("dead, max", lambda values: values.max(axis=0)),
}


#: Of each branch, how a quantity becomes one number a seed over its blocks.
_BRANCHES: Final[dict[str, dict[str, Callable[[FloatArray], FloatArray]]]] = {
    "branch_to_stream": {
        "to stream, first": lambda values: values[0],
        "last": lambda values: values[-1],
        "largest": lambda values: values.max(axis=0),
    },
    "branch_stream_cosine": {"cosine, mean": lambda values: values.mean(axis=0)},
}


#: Quantities at states beyond the rivers, and their labels.
_DEEPER: Final = {
    "correlation": "correlation of examples",
    "token_correlation": "correlation of tokens",
    "apjn": "averaged Jacobian norm",
    "direction_gain": "gain, loss gradient",
    "component_gain": "gain, directions given",
    "class_gain": "gain, class means",
    "class_share": "share between classes",
    "effective_rank_participation": "participation ratio",
    "effective_rank_entropy": "entropy rank",
    "stable_rank": "stable rank",
    "lost_direction_fraction": "directions lost",
    "block_gain": "largest gain of a block",
    "block_loss": "smallest gain of a block",
}

#: Precision, and its labels.
_PRECISION: Final = {
    "relative_error_state": "state error",
    "relative_error_gradient": "gradient error",
    "flushed_gradient_fraction": "gradients flushed",
    "headroom_float16_bits": "float16 bits to spare",
    "headroom_bfloat16_bits": "bfloat16 bits to spare",
    "headroom_float8_e4m3_bits": "float8 e4m3 bits",
    "headroom_float8_e5m2_bits": "float8 e5m2 bits",
    "last_binades_fraction": "in the last binades",
    "underflow_headroom_bits": "bits to underflow",
}
#: What one step of the optimiser does, and its labels.
_UPDATES: Final = {
    "functional_update": "state, relative change",
    "branch_update": "last state, by a branch alone",
    "update_to_weight": "weights of a branch",
    "update_alignment": "alignment of branches",
}


def print_profile(
    profile: Profile, verdict: Verdict | None = None, console: Console | None = None
) -> None:
    """What was measured, the summaries with their spread, both rivers, gates, and the verdict."""
    console = console or terminal()
    for line in (profile.equation or profile.target).splitlines():
        plain(console, line, "bold")
    for line in _counted(profile):
        paragraph(console, line)
    paragraph(console, _run(profile))
    tables = [
        _summaries(profile),
        _rivers(profile, console.width),
        _growth(profile),
        _branches(profile),
        _gates(profile),
        _deeper(profile, "direction", _DEEPER),
        _deeper(profile, _arithmetic(profile), _PRECISION),
        _deeper(profile, "one step", _UPDATES),
        _exponents(profile),
    ]
    for columns in tables:
        if columns[0].cells:
            plain(console)
            print_table(console, columns)
    if said := remarks(profile):
        plain(console)
        for line in said:
            paragraph(console, line)
    if missing(profile) or not_seen(profile):
        plain(console)
    for reason, names in missing(profile).items():
        paragraph(console, f"{', '.join(names)} ({reason})", "not measured: ")
    for label, lines in not_seen(profile).items():
        for line in lines:
            paragraph(console, line, f"{label}: ")
    if verdict is not None:
        plain(console)
        for line in nonfinite(profile):
            paragraph(console, line)
        print_table(console, _judgements(verdict))
    plain(console)
    style = "" if verdict is None else "green" if verdict.state in ("pass", "warn") else "bold red"
    plain(console, profile_line(profile, verdict), style)


def profile_line(profile: Profile, verdict: Verdict | None = None) -> str:
    """The closing line: the corridor's verdict, score and reason, or where it overflowed."""
    if verdict is None:
        measured = f"measured {profile.depth} block{'' if profile.depth == 1 else 's'}"
        if profile.overhead is not None:
            measured += f" in {profile.overhead:.2f} times the model's own time"
        return "; ".join([measured, *nonfinite(profile), "no corridor was declared"])
    score = "" if verdict.score is None else f", smallest margin {verdict.score:+.3g} decades"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    name = f" {verdict.name}" if verdict.name else ""
    return f"corridor{name}: {_word(verdict.state)}{score}{reason}"


def _word(state: str) -> str:
    return state.replace("_", " ").upper()


def _counted(profile: Profile) -> list[str]:
    """How many branches and weight layers were found, a line for each stream."""
    if len(profile.streams) < 2:
        stream = profile.streams[0] if profile.streams else {}
        count = f"{profile.depth} block{'' if profile.depth == 1 else 's'}"
        return [f"{count}, {_described(stream, profile.branches)}"]
    return [f"{s['name']}: {_described(s, s['branches'])}" for s in profile.streams]


def _described(stream: Mapping[str, Any], branches: int) -> str:
    """``24 residual branches of 2 or 4 weight layers, skip identity, norm placement pre``."""
    if not branches:
        return ", ".join(["no residual branch", *_places(stream)])
    layers = sorted(set(stream.get("m", ())))
    parts = [f"{branches} residual branch{'' if branches == 1 else 'es'}"]
    if layers:
        plural = "" if layers == [1] else "s"
        parts.append(f"of {' or '.join(map(str, layers))} weight layer{plural}")
    described = [
        f"{label} {stream[key]}"
        for key, label in (("skip", "skip"), ("placement", "norm placement"))
        if stream.get(key)
    ]
    if stream.get("placement") == "mixed" and stream.get("norm_at"):
        described[-1] = f"norms {', '.join(stream['norm_at'])}"
    extra = [
        f"{stream[key]} {key}" for key in ("inner", "projected", "parallel") if stream.get(key)
    ]
    if stream.get("segments", 1) > 1:
        extra.append(f"{stream['segments']} segments")
    if (stream.get("fraction") or 1) < 1:
        extra.append(f"{number(stream['fraction'])} of the stream written")
    return ", ".join([" ".join(parts), *described, *extra, *_places(stream)])


def _places(stream: Mapping[str, Any]) -> list[str]:
    """Where a stream that was found in a module begins and ends: the modules of its blocks."""
    paths = [path for block in stream.get("blocks", ()) for path in block["paths"] if path]
    if not paths:
        return []
    return [paths[0] if len(set(paths)) == 1 else f"{paths[0]} to {paths[-1]}"]


def _run(profile: Profile) -> str:
    seeds = profile.seeds
    several = f"{len(seeds)} seeds ({_range(seeds)})" if len(seeds) > 1 else f"seed {seeds[0]}"
    parts = [f"width {profile.width}", batch_words(profile), profile.dtype, several]
    if mode := profile.settings.get("mode"):
        parts.append(f"{mode} mode")
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
    ends = [_end(list(rivers.values()), i) for i in (0, -1)] if rivers else []
    room = width - sum(column.width + GAP for column in (names, *ends))
    curves = [curve((value for _, value in river), room) for river in rivers.values()]
    return [names, Column("log10", curves, right=False), *ends]


def _end(rivers: Sequence[Sequence[tuple[int, float]]], i: int) -> Column:
    """The first or last value of each river; the header says where, if that is one place."""
    places = [f"block {river[i][0]}" if river[i][0] else "the input" for river in rivers]
    values = [number(river[i][1]) for river in rivers]
    if len(set(places)) == 1:
        return Column(f"at {places[0]}", values)
    cells = [f"{value} at {place}" for value, place in zip(values, places, strict=True)]
    return Column("last" if i else "first", cells, right=False)


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
    rows: dict[str, dict[str, str]] = {}
    for quantity in _GATES:
        if quantity in profile:
            for gate, values in _by_gate(profile, quantity).items():
                with np.errstate(all="ignore"):
                    reduced = _GATES[quantity][1](values)
                rows.setdefault(gate, {})[quantity] = number(spread(reduced).median)
    shown = [quantity for quantity in _GATES if any(quantity in row for row in rows.values())]
    return [
        Column("gate", list(rows), right=False),
        *(Column(_GATES[q][0], [row.get(q, "-") for row in rows.values()]) for q in shown),
    ]


def _deeper(profile: Profile, head: str, labels: Mapping[str, str]) -> list[Column]:
    """What was found at the states beyond the rivers: at both ends, the least and the largest, all
    medians over seeds; with the standard error of an average that was estimated."""
    shown = {name: profile.by_block(name) for name in labels if name in profile}
    names, firsts, lasts, least, most = [], [], [], [], []
    for name, label in labels.items():
        if not (found := shown.get(name)):
            continue
        blocks, values = found
        medians = np.array([spread(row).median for row in values])
        names.append(label)
        error = _error(profile, name)
        firsts.append(f"{number(medians[0], name)}{error} at {_place(blocks[0])}")
        lasts.append(f"{number(medians[-1], name)} at {_place(blocks[-1])}")
        with np.errstate(all="ignore"):
            low, high = np.fmin.reduce(medians), np.fmax.reduce(medians)
        least.append(number(float(low), name))
        most.append(number(float(high), name))
    return [
        Column(head, names, right=False),
        Column("first", firsts, right=False),
        Column("last", lasts, right=False),
        Column("least", least),
        Column("most", most),
    ]


def _exponents(profile: Profile) -> list[Column]:
    """How what one step changes grows with depth: the power of the depth and its interval."""
    found = profile.exponents
    return [
        Column("with depth", [name.replace("_", " ") for name in found], right=False),
        Column("exponent", [number(e["slope"]) for e in found.values()]),
        Column(
            "interval",
            [
                "none" if e["low"] is None else f"[{number(e['low'])}, {number(e['high'])}]"
                for e in found.values()
            ],
            right=False,
        ),
        Column("depths", [str(e["depths"]) for e in found.values()]),
        Column("n", [str(e["seeds"]) for e in found.values()]),
    ]


def _arithmetic(profile: Profile) -> str:
    notes = profile.settings.get("instruments")
    found = notes.get("precision", {}) if isinstance(notes, dict) else {}
    return f"{found.get('arithmetic', 'precision')} against float64"


def _place(block: int) -> str:
    return f"block {block}" if block else "the input"


def _error(profile: Profile, name: str) -> str:
    """`` ± `` and the standard error of the first value: over probes or the examples followed, the
    larger one; of a block's gain what the last iterations changed at most."""
    if name == "apjn" and (found := profile.by_block("apjn_standard_error")):
        return _more(spread(found[1][0]).median)
    notes = profile.settings.get("instruments")
    if name == "block_gain" and (found := profile.by_block(name)) and isinstance(notes, dict):
        change = notes.get("blocks", {}).get("relative_change_of_the_largest") or 0.0
        return _more(change * spread(found[1][0]).median)
    spectrum = notes.get("spectrum", {}) if isinstance(notes, dict) else {}
    ends = spectrum.get("from_end_to_end", {})
    if name not in ends:
        return ""
    over_probes = spectrum.get("standard_error_over_probes", {}).get(name, 0.0)
    over_examples = ends[name]["standard_error"] if ends[name]["n"] > 1 else 0.0
    return _more(max(over_examples, over_probes))


def _more(error: float) -> str:
    """Nothing for what is exact."""
    return f" ± {error:.2g}" if error > 0 else ""


def _by_gate(profile: Profile, quantity: str) -> dict[str, FloatArray]:
    """The values of each activation of the block, shape (blocks, K), by its name in the block."""
    values = profile.columns[quantity].values
    rows: dict[str, list[int]] = {}
    for i, site in enumerate(profile.sites_of(quantity)):
        rows.setdefault(_alike(site, "mode" in profile.settings), []).append(i)
    return {gate: values[at] for gate, at in rows.items()}


def _alike(site: Site, module: bool) -> str:
    """A name that the sites of all blocks share: ``transformer.h.*.mlp.act``, of an equation's
    ``blocks.3.relu`` the layer's own."""
    if module:
        return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", site.path)
    own = site.path.removeprefix(f"blocks.{site.block - 1}.")
    return own


def _branches(profile: Profile) -> list[Column]:
    """Each branch of the block: what it adds, beside the stream that it is added to."""
    found = {name: _by_gate(profile, name) for name in _BRANCHES if name in profile}
    paths = list(next(iter(found.values()), {}))
    columns = [Column("branch", paths, right=False)]
    for name, rows in found.items():
        for label, pick in _BRANCHES[name].items():
            cells = [number(spread(pick(rows[path])).median, name) for path in paths]
            columns.append(Column(label, cells))
    if paths:
        blocks = next(iter(found.values()))
        columns.append(Column("n", [str(len(blocks[path])) for path in paths]))
    return columns


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
