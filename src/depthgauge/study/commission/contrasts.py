"""Gates that hold the network against others: one change at a time, other depths, a shallow plain
control, a serious rival.

They are read as the procedure asks. Every configuration stable at every depth: the test has not
discriminated. A change breaks a bound: what it changed has earned its place. A change leaves every
bound whole: what it took away has not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from depthgauge.errors import DepthgaugeError, NetworkError
from depthgauge.profile import Profile
from depthgauge.recipes.apply import apply
from depthgauge.recipes.rewritten import rewritten
from depthgauge.study.ablation import Ablation, Varied
from depthgauge.study.builders import BuilderCase, stacked
from depthgauge.study.cases import Case, EquationCase, measured
from depthgauge.study.commission.gated import Drawn, Gated, curves_of, table
from depthgauge.study.commission.plain import plain_control
from depthgauge.study.commission.plan import Plan
from depthgauge.study.commission.transport import GATES, SEEN, Bench, Judging, named
from depthgauge.study.commission.update import updates
from depthgauge.study.corridor import Verdict
from depthgauge.study.swept import swept

__all__ = ["ablation", "depth", "rival", "shallow"]

_DRAWN: Final = ("state_rms", "gradient_rms")
#: A bound that breaks before so many times the depth is near.
_SOON: Final = 2
#: A rival is better by more than this many decades of margin, or it is not.
_BETTER: Final = 0.1


def ablation(plan: Plan, bench: Bench) -> Gated:
    """Which single feature the network owes its health to, or its failure."""
    if isinstance(plan.vary, tuple) and not plan.vary:
        return Gated("not_measured", "no change was named for this ablation")
    full = bench.ablations[plan.depths[-1]]
    found = bench.ablations if plan.axis else {full.baseline.depth: full}
    curves: list[Drawn] = []
    for at, one in found.items():
        for row in one.rows:
            if row.profile is not None:
                curves += curves_of(row.profile, named(at, row.change), _DRAWN)
    tables = [_states(found), *(_effects(at, one) for at, one in found.items())]
    refused = [f"{row.change}: {row.refused}" for row in full.rows if row.refused]
    left = [f"{change} was left out: {why}" for change, why in full.left]
    more: dict[str, Any] = {
        "tables": tuple(tables),
        "curves": tuple(curves),
        "notes": (*_lessons(full), *refused, *left),
    }
    if full.verdict is None or full.verdict.state == "not_measured":
        return Gated("not_measured", full.answer, **more)
    if full.verdict.state == "fail":
        return Gated("fail", full.answer, **more)
    if not any(remedy.breaks for remedy in full.remedies):
        return Gated("warn", full.answer, **more)
    return Gated("pass", **{**more, "notes": (full.answer, *more["notes"])})


#: Factors that cost something, so that one which no bound needs has not earned its place.
_COSTLY: Final = ("norm", "placement")


def _lessons(found: Ablation) -> list[str]:
    """What each change says of the feature that it changed."""
    changed = {row.change: row.differences[0] for row in found.rows if row.single}
    said = []
    for remedy in found.remedies:
        if not remedy.single:
            continue
        factor, absent = changed[remedy.change].factor, changed[remedy.change].before == "none"
        if remedy.mends:
            words = f"brings {', '.join(remedy.mends)} back inside"
            rest = f", and breaks {', '.join(remedy.breaks)}" if remedy.breaks else ""
            said.append(f"{remedy.change} {words}{rest}: these bounds depend on the {factor}")
        elif remedy.breaks:
            what = "is better left out here" if absent else "has earned its place here"
            said.append(f"{remedy.change} breaks {', '.join(remedy.breaks)}: the {factor} {what}")
        elif remedy.whole:
            words = f"these bounds do not depend on the {factor} so far"
            if factor in _COSTLY and not absent:
                words = f"the {factor} has not earned its place by these bounds"
            said.append(
                f"{remedy.change} leaves every bound whole (score {remedy.score:+.3g}): {words}"
            )
    return said


def _states(found: dict[int, Ablation]) -> Any:
    """Each configuration at each depth: its verdict and its smallest margin."""
    rows: list[tuple[Any, ...]] = []
    for at, one in found.items():
        rows.append(("baseline", at, *_verdict(one.verdict)))
        rows += [(row.change, at, *_row(row)) for row in one.rows]
    columns = ("configuration", "depth", "state", "score", "reason")
    return table("configurations", "Configurations over depth", columns, rows)


def _row(row: Varied) -> tuple[str, float | None, str]:
    if row.refused:
        return "not_measured", None, row.refused
    return _verdict(row.verdict)


def _verdict(verdict: Verdict | None) -> tuple[str, float | None, str]:
    if verdict is None:
        return "not_measured", None, "the corridor bounds nothing here"
    return verdict.state, verdict.score, verdict.reason


def _effects(at: int, found: Ablation) -> Any:
    """Every effect, the largest for its spread first."""
    columns = ("change", "quantity", "unit", "n", "median", "min", "max", "note")
    rows = [(e.change, e.quantity, e.unit, e.n, *e.spread, e.note) for e in found.ranked]
    return table("ablation", f"Effects of single changes, depth {at}", columns, rows)


# ------------------------------------------------------------------------------------- depth


def depth(plan: Plan, bench: Bench) -> Gated:
    """How each number grows, where it will break its bound, and whether the depths told the
    configurations apart."""
    if len(plan.depths) < 2:
        return Gated("not_measured", "one depth was measured, and a law needs two")
    bounds = tuple(entry for entry in plan.corridor.entries if entry.name in bench.judged)
    corridor = replace(plan.corridor, entries=bounds)
    found = swept("", lambda at, _: bench.seen[at], plan.depths, corridor)
    breaks = {b.name: str(b) for b in found.breaks}
    rows = [
        (name, law.state, str(law), breaks.get(name, ""), len(found.seeds))
        for name, law in found.laws.items()
    ]
    made = table("laws", "Laws over depth", ("quantity", "law", "formula", "bound", "n"), rows)
    notes = tuple(f"{name}: {words}" for name, words in breaks.items())
    verdicts = [
        v
        for one in bench.ablations.values()
        for v in (one.verdict, *(row.verdict for row in one.rows))
        if v is not None
    ]
    soon = [b for b in found.breaks if b.depth <= _SOON * plan.depths[-1] and b.state != "broken"]
    if not any(v.state == "fail" for v in verdicts):
        why = (
            f"the test did not discriminate: every configuration stays inside its bounds at every "
            f"depth up to {plan.depths[-1]}"
        )
        return Gated("warn", why, tables=(made,), notes=notes)
    if not any(v.state in ("pass", "warn") for v in verdicts):
        why = (
            f"the test did not discriminate: no configuration is inside its bounds at any depth up "
            f"to {plan.depths[-1]}; what is wrong is not depth"
        )
        return Gated("warn", why, tables=(made,), notes=notes)
    if soon:
        return Gated("warn", f"{soon[0].name} {soon[0]}", tables=(made,), notes=notes)
    return Gated("pass", tables=(made,), notes=notes)


# ------------------------------------------------------------------------- control and rival


def shallow(plan: Plan, bench: Bench) -> Gated:
    """A plain stack of few blocks, which must be fine: if it is not, the block or the bounds are
    wrong, and depth is not to blame."""
    case = plan.equation
    if case is None:
        return _shallow_code(plan, bench)
    network = case.specification.network
    blocks = min(plan.shallow, network.depth)
    what, notes = f"plain control, {blocks} blocks", tuple[str, ...]()
    try:
        control = plain_control(network, blocks)
    except NetworkError as error:
        control, what = replace(network, depth=blocks), f"{blocks} blocks of its own"
        notes = (f"the control is the same block, since {error}",)
    held = EquationCase(replace(case.specification, network=control), what)
    return _held(plan, bench, held, (*notes, f"the control is {control.block}"))


def _shallow_code(plan: Plan, bench: Bench) -> Gated:
    if len(plan.depths) < 2:
        return Gated(
            "not_measured",
            "a model that code builds has a shallow control only where its depth is an argument",
        )
    first = plan.depths[0]
    case = plan.cases[first]
    return _held(plan, bench, case)


def _held(plan: Plan, bench: Bench, case: Case, notes: tuple[str, ...] = ()) -> Gated:
    (profile,) = measured([case], SEEN)
    if isinstance(profile, DepthgaugeError):
        return Gated("not_measured", str(profile))
    # Of directions a plain stack of random layers loses some with each, which is no fault of it.
    bounds = Judging(plan, [n for n in bench.judged if n not in GATES["directions"]])
    verdict = bounds.at(profile.depth, profile.dtype).judge(profile)
    curves = tuple(curves_of(profile, named(profile.depth, case.name), _DRAWN))
    if verdict.state in ("pass", "warn"):
        return Gated("pass", "", verdict.judgements, curves=curves, notes=notes)
    reason = f"the control is out of the corridor: {verdict.reason}"
    return Gated(verdict.state, reason, verdict.judgements, curves=curves, notes=notes)


def _apart(plan: Plan, bench: Bench, profile: Profile | DepthgaugeError) -> list[str]:
    """The bounds that say nothing of a network whose gradients are all zero: a ratio of two of them
    is no number, and its first step moves no state."""
    if isinstance(profile, DepthgaugeError) or "gradient_rms" not in profile.columns:
        return []
    if profile.columns["gradient_rms"].values.any():
        return []
    bounded = {name for name, _ in plan.bounds(profile.depth, profile.dtype).bounds}
    names = (*bench.judged, "functional_update")
    return [n for n in names if n in bounded and n.startswith(("gradient", "functional"))]


def _by_recipe(case: Case, recipe: str) -> tuple[Case, tuple[str, ...]]:
    """The case by a recipe, and what that changes. Raises NetworkError where the recipe cannot be
    put into all of it, and what ``recipes.apply`` raises."""
    if isinstance(case, EquationCase):
        made = rewritten(case.specification.network, recipe)
        given = replace(case.specification, network=made.network)
        return EquationCase(given, recipe), made.changes
    assert isinstance(case, BuilderCase)

    def code() -> tuple[nn.Module, Any, Any]:
        # The seed that stands before each build; the case's own build sets it again.
        built = case.build(seed := torch.initial_seed())
        applied = apply(built.module, built.batch, recipe, seed)
        if applied.left:
            raise NetworkError(f"of this module it leaves {applied.left[0]}")
        return applied.model, built.batch, built.loss

    built = case.build(case.seeds[0])
    changes = apply(built.module, built.batch, recipe, case.seeds[0]).changes
    return BuilderCase(code, seed=case.seeds, name=recipe), changes


def rival(plan: Plan, bench: Bench) -> Gated:
    """The same network by a recipe that claims to do without what it has."""
    case = plan.cases[plan.depths[-1]]
    try:
        against, changes = _by_recipe(case, plan.rival)
    except DepthgaugeError as error:
        return Gated("not_measured", f"{plan.rival} does not cover this network: {error}")
    profiles = measured([case, against], SEEN)
    steps = bench.first, updates(plan, against)
    rows, scores, curves = [], [], []
    apart = _apart(plan, bench, profiles[1])
    if apart:
        why = f"no gradient reaches the states of {plan.rival} in its first step, from a head of 0"
        changes = (f"{' and '.join(apart)} cannot be compared: {why}", *changes)
    for one, profile, step in zip((case, against), profiles, steps, strict=True):
        if isinstance(profile, DepthgaugeError):
            return Gated("not_measured", f"{one.name}: {profile}")
        seen = (
            (profile, Judging(plan, set(bench.judged) - set(apart))),
            (stacked(step), Judging(plan, set(GATES["first update"]) - set(apart))),
        )
        judged = [j for p, b in seen for j in b.at(p.depth, p.dtype).judge(p).judgements]
        scores.append(min((j.margin for j in judged if j.n), default=-math.inf))
        rows += [(one.name, j.name, j.median, j.low, j.high, j.n, j.margin) for j in judged]
        curves += curves_of(profile, named(profile.depth, one.name), _DRAWN)
    columns = ("configuration", "summary", "median", "least", "largest", "n", "margin")
    title = f"Against {plan.rival}"
    more: dict[str, Any] = {
        "tables": (table("rival", title, columns, rows),),
        "curves": tuple(curves),
        "notes": changes,
    }
    own, its = scores
    without = f", {' and '.join(apart)} aside" if apart else ""
    if unknown := list(dict.fromkeys(row[1] for row in rows if not row[5])):
        without += f", {' and '.join(unknown)} not measured at both"
    said = f"smallest margin {own:+.3g} decades, {plan.rival} {its:+.3g}{without}"
    if own < 0:
        if its < 0:
            return Gated("warn", f"both are outside: {said}", **more)
        return Gated("fail", f"{plan.rival} is inside and the network is not: {said}", **more)
    if its > own + _BETTER:
        return Gated("warn", f"{plan.rival} is further inside: {said}", **more)
    if unknown:
        return Gated("not_measured", f"by what could be compared, {said}", **more)
    more["notes"] = (said, *more["notes"])
    return Gated("pass", "", **more)
