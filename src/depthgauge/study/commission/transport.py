"""Gates of what the network is and what goes through it: the block, both rivers, local gates,
directions, precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from depthgauge.errors import DepthgaugeError
from depthgauge.profile import Profile
from depthgauge.record.parts import Table
from depthgauge.study.ablation import Ablation, ablate
from depthgauge.study.cases import Case, EquationCase, measured
from depthgauge.study.commission.gated import Drawn, Gated, curves_of, judged, table
from depthgauge.study.commission.plan import Plan
from depthgauge.study.corridor import Corridor, Judgement
from depthgauge.summaries import SUMMARIES, spread

__all__ = ["GATES", "Bench", "block", "directions", "local_gates", "precision", "rivers"]

#: What one pass shows, and at little cost beside it.
CHEAP: Final = ("rivers", "quantiles", "gates", "branches", "correlation")
#: The summaries that each gate judges.
GATES: Final[dict[str, tuple[str, ...]]] = {
    "rivers": (
        "forward_end_rms", "forward_drift", "gradient_ratio", "gradient_drift",
        "nonfinite_fraction", "state_max",
    ),
    "gates": ("live_derivative_fraction", "saturated_fraction", "dead_fraction"),
    "directions": ("participation_share", "correlation"),
    "precision": (
        "headroom_float16_bits", "headroom_bfloat16_bits", "headroom_float8_e4m3_bits",
        "headroom_float8_e5m2_bits", "underflow_headroom_bits", "relative_error_state",
        "relative_error_gradient",
    ),
    "first update": ("functional_update", "stiffness"),
}  # fmt: skip
#: Instruments of every configuration that is held against the network, and what they can be judged
#: by.
SEEN: Final = ("rivers", "gates", "correlation", "spectrum")
JUDGED: Final = (*GATES["rivers"], *GATES["gates"], *GATES["directions"])
assert {name for names in GATES.values() for name in names} == set(SUMMARIES)

_RIVERS: Final = (
    "state_rms", "state_max", "gradient_rms", "gradient_max", "branch_rms", "branch_to_stream",
    "branch_stream_cosine",
)  # fmt: skip
_LOCAL: Final = (
    "live_derivative_fraction", "saturated_fraction", "dead_fraction", "derivative_q05",
    "derivative_q50", "derivative_q95",
)  # fmt: skip
_DIRECTIONS: Final = (
    "effective_rank_participation", "effective_rank_entropy", "stable_rank",
    "lost_direction_fraction", "apjn",
)  # fmt: skip
_PRECISION: Final = (*GATES["precision"], "flushed_gradient_fraction")


class Bench:
    """What several gates look at, measured once: always the same networks together, so that a
    commission that was interrupted finds the same numbers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def sweep(self) -> dict[int, Profile]:
        """The case at each depth, with what is cheap. Raises what the measurement raises."""
        cases = self.plan.cases
        found = measured(list(cases.values()), CHEAP)
        out = {}
        for depth, profile in zip(cases, found, strict=True):
            if isinstance(profile, DepthgaugeError):
                raise profile
            out[depth] = profile
        return out

    @property
    def full(self) -> Profile:
        """At the depth that is commissioned."""
        return self.sweep[self.plan.depths[-1]]

    @cached_property
    def ablations(self) -> dict[int, Ablation]:
        """The changes of the ablation at each depth, against what is measured with them."""
        corridor, vary = self.judging, self.plan.vary
        return {
            depth: ablate(case, vary=vary, corridor=corridor, instruments=SEEN)
            for depth, case in self.plan.cases.items()
        }

    @cached_property
    def first(self) -> list[Profile]:
        """The first update, one profile a seed."""
        from depthgauge.study.commission.update import updates

        return updates(self.plan, self.plan.cases[self.plan.depths[-1]])

    @property
    def seen(self) -> dict[int, Profile]:
        """The baselines of the ablations, by depth."""
        return {depth: one.baseline for depth, one in self.ablations.items()}

    @property
    def judging(self) -> Judging:
        return Judging(self.plan, self.judged)

    @property
    def judged(self) -> tuple[str, ...]:
        """What the gates of contrast are judged by: of activations only where there are any."""
        here = self.full.summary()
        return tuple(name for name in JUDGED if name not in GATES["gates"] or name in here)

    def judgements(self, profile: Profile, names: Iterable[str]) -> tuple[Judgement, ...]:
        """The bounds on these summaries, held against the profile."""
        wanted = set(names)
        verdict = self.plan.bounds(profile.depth, profile.dtype).judge(profile)
        return tuple(j for j in verdict.judgements if j.name in wanted)


class Judging:
    """The plan's bounds on some summaries, those that the gates of contrast measure."""

    def __init__(self, plan: Plan, names: Iterable[str] = JUDGED) -> None:
        self._plan, self._names = plan, frozenset(names)
        self.name = plan.corridor.name

    def at(self, depth: int, dtype: str) -> Corridor:
        bounds = self._plan.bounds(depth, dtype).bounds
        return Corridor(tuple((n, b) for n, b in bounds if n in self._names), self.name)


def named(depth: int, what: str = "baseline") -> str:
    return f"{what}, depth {depth}"


# --------------------------------------------------------------------------------- the block


def block(plan: Plan, bench: Bench) -> Gated:
    """What exactly is commissioned; a choice that nobody made is a warning."""
    case = plan.case
    if isinstance(case, EquationCase):
        return _equation(plan, case)
    profile = bench.full
    rows = [("equation", line) for line in profile.equation.splitlines() or [""]]
    rows += [(name, text) for name, text in case.factors.items()]
    for stream in profile.streams:
        rows.append((f"stream {stream['name']}", _stream(stream)))
    missing = [
        f"{path}: {reason}"
        for word in ("not_called", "opaque", "fallback")
        for path, reason in profile.coverage.get(word, ())
    ]
    missing += [f"{d['stream']}: {d['reason']}" for d in profile.disagreements]
    made = table("block", "What was commissioned", ("part", "as measured"), rows)
    if plan.step.lr is None:
        missing.append("the learning rate was left to a default")
    if missing:
        first, *more = missing  # a screen says both the reason and the notes
        reason = f"not everything is known: {first}"
        return Gated("warn", reason, tables=(made,), notes=tuple(more))
    return Gated("pass", tables=(made,))


def _stream(stream: dict[str, object]) -> str:
    return (
        f"{stream['branches']} branches, {stream['placement']} norm, {stream['skip']} skip, "
        f"{stream['states']} states"
    )


def _equation(plan: Plan, case: EquationCase) -> Gated:
    network = case.specification.network
    rows = [("equation", str(network.block)), *case.factors.items()]
    rows.append(("optimizer", f"{plan.step.optimizer}, learning rate {plan.step.rate:g}"))
    left = _left_open(case, plan)
    made = table("block", "What was commissioned", ("part", "as written"), rows)
    if left:
        return Gated("warn", f"left to a default: {', '.join(left)}", tables=(made,))
    return Gated("pass", tables=(made,))


def _left_open(case: EquationCase, plan: Plan) -> list[str]:
    """Choices that no one made, of those that decide."""
    network = case.specification.network
    given, left = network.inits, []
    if "default" not in given:
        loose = [
            layer.name
            for layer in network.layers.weights
            if layer.init is None and not any(alias in given for alias in layer.aliases)
        ]
        if loose:
            left.append(f"the initialisation of {', '.join(loose)}")
    if plan.step.lr is None:
        left.append("the learning rate")
    return left


# ------------------------------------------------------------------------------- both rivers


def rivers(plan: Plan, bench: Bench) -> Gated:
    """State and gradient from end to end at every depth; the full one is judged."""
    curves: list[Drawn] = []
    for profile in bench.sweep.values():
        curves += curves_of(profile, named(profile.depth), _RIVERS)
    return judged(
        bench.judgements(bench.full, GATES["rivers"]),
        "both rivers were measured",
        tables=(_over_depths(bench, GATES["rivers"], "Both rivers over depth"),),
        curves=tuple(curves),
        notes=_where(bench.full),
    )


def _over_depths(bench: Bench, names: Sequence[str], title: str) -> Table:
    """Median, least and largest over seeds of each summary at each depth."""
    rows = []
    for profile in bench.sweep.values():
        summary = profile.summary()
        for name in names:
            if name in summary:
                values = summary[name]
                median, low, high = spread(values)
                rows.append((profile.depth, name, median, low, high, len(values)))
    return table("summaries", title, ("depth", "summary", "median", "least", "largest", "n"), rows)


def _where(profile: Profile) -> tuple[str, ...]:
    """Where numbers stop being finite."""
    notes = []
    for k, seed in enumerate(profile.seeds):
        if site := profile.first_nonfinite(k):
            notes.append(f"seed {seed}: the state is not finite from {site.describe('on')}")
        if site := profile.first_nonfinite_gradient(k):
            notes.append(f"seed {seed}: the gradient is not finite from {site.describe('back')}")
    return tuple(notes)


def local_gates(plan: Plan, bench: Bench) -> Gated:
    """What every activation lets through: alive, saturated, dead."""
    curves: list[Drawn] = []
    for profile in bench.sweep.values():
        curves += curves_of(profile, named(profile.depth), _LOCAL)
    if not curves:
        return Gated("warn", "the network has no activation, so there is no gate to look at")
    return judged(
        bench.judgements(bench.full, GATES["gates"]),
        "the gates were measured",
        tables=(_over_depths(bench, GATES["gates"], "Gates over depth"),),
        curves=tuple(curves),
    )


# -------------------------------------------------------------------------------- directions


def directions(plan: Plan, bench: Bench) -> Gated:
    """How many directions arrive, and whether inputs are still told apart."""
    profile = plan.cases[plan.depths[-1]].measure(("correlation", "spectrum", "jacobian"))
    curves = curves_of(profile, named(profile.depth), _DIRECTIONS)
    curves += _spectra(profile, named(profile.depth))
    for found in bench.sweep.values():
        curves += curves_of(found, named(found.depth), ("correlation", "token_correlation"))
    return judged(
        bench.judgements(profile, GATES["directions"]),
        "the directions were measured",
        curves=tuple(curves),
        notes=_missing(profile, ("effective_rank_participation", "correlation")),
    )


#: Of all directions, those whose logarithms are kept as curves: the first, the last, and between.
_PARTS: Final = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


def _spectra(profile: Profile, configuration: str) -> list[Drawn]:
    """Logarithms of the Jacobian from each state to the last, by rank: ``log_singular_values[8]``
    is that of the eighth largest."""
    found = profile.vectors.get("log_singular_values", {})
    if not found:
        return []
    count = min(values.shape[1] for values in found.values())
    rows = sorted(found)
    blocks = np.array([profile.sites[row].block for row in rows], dtype=np.int64)
    ranks = dict.fromkeys(round(part * (count - 1)) for part in _PARTS)
    return [
        Drawn(
            configuration,
            profile.depth,
            f"log_singular_values[{rank + 1}]",
            blocks,
            np.stack([found[row][:, rank] for row in rows]),
            profile.seeds,
        )
        for rank in ranks
    ]


def _missing(profile: Profile, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{n} was not measured: {profile.why_not(n)}" for n in names if n not in profile)


# --------------------------------------------------------------------------------- precision


def precision(plan: Plan, bench: Bench) -> Gated:
    """The arithmetic intended against float64: errors, room to overflow and underflow."""
    case: Case = plan.cases[plan.depths[-1]]
    profile = case.measure(("precision",))
    note = profile.settings.get("instruments", {})
    assert isinstance(note, dict)
    said = note.get("precision", {})
    over = said.get("format") if said.get("first_nonfinite") else None  # the reason says so
    first = [
        f"{format}: {site}"
        for name in GATES["precision"]
        if (format := name.removeprefix("headroom_").removesuffix("_bits")) != over
        and (site := _first_without_room(profile, name))
    ]
    return judged(
        bench.judgements(profile, GATES["precision"]),
        f"{profile.dtype} was held against float64",
        tables=(_extremes(profile),),
        curves=tuple(curves_of(profile, named(profile.depth), _PRECISION)),
        notes=(*_missing(profile, ("relative_error_state",)), *first, *_text(said)),
    )


def _first_without_room(profile: Profile, name: str) -> str:
    """The first site that has no room left in a format."""
    if name not in profile.columns:
        return ""
    column = profile.columns[name]
    for row, values in zip(column.rows, column.values, strict=True):
        if values.min() < 0:
            return f"no room from {profile.sites[row]} on ({values.min():.3g} binary digits)"
    return ""


def _extremes(profile: Profile) -> Table:
    """The worst of each quantity over sites and seeds, and where."""
    rows = []
    for name in _PRECISION:
        column = profile.columns.get(name)
        if column is None or not np.isfinite(column.values).any():
            continue
        sign = -1.0 if name.endswith("bits") else 1.0
        each = np.where(np.isfinite(column.values), sign * column.values, -np.inf).max(axis=1)
        place = int(each.argmax())
        rows.append((name, sign * each[place], str(profile.sites[column.rows[place]])))
    return table(
        "precision", f"{profile.dtype} against float64", ("quantity", "worst", "where"), rows
    )


def _text(said: object) -> tuple[str, ...]:
    """What the instrument says in words: what is emulated, what was left out."""
    if not isinstance(said, dict):
        return ()
    return tuple(v for v in said.values() if isinstance(v, str) and " " in v)
