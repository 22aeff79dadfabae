"""The gate of the first step: how far it moves the function, and whether the rate is too large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from depthgauge.instruments.subject import Effort
from depthgauge.network.classified import EXAMPLES, classified
from depthgauge.profile import Profile
from depthgauge.record.difference import ITERATIONS
from depthgauge.record.parts import Table
from depthgauge.study.builders import stacked
from depthgauge.study.cases import Case, EquationCase
from depthgauge.study.commission.gated import Gated, curves_of, judged, table
from depthgauge.study.commission.plan import Plan
from depthgauge.study.commission.transport import GATES, Bench, named
from depthgauge.trace.measuring import measure_module

__all__ = ["first_update", "updates"]

_CURVES: Final = (
    "functional_update", "branch_update", "update_to_weight", "branch_rms", "branch_to_stream",
    "branch_stream_cosine",
)  # fmt: skip


def first_update(plan: Plan, bench: Bench) -> Gated:
    """The step that the optimiser would take, on a loss that has a minimum."""
    profiles = bench.first
    whole = stacked(profiles)
    return judged(
        bench.judgements(whole, GATES["first update"]),
        "the first update was measured",
        tables=(_looks(profiles),),
        curves=tuple(curves_of(whole, named(whole.depth), _CURVES)),
        notes=_notes(plan, profiles),
    )


def updates(plan: Plan, case: Case) -> list[Profile]:
    """The first update of a case: of an equation behind a classifier, a profile a seed."""
    asked = ("updates", "stiffness", "branches")
    if not isinstance(case, EquationCase):
        found = case.measure(asked, effort=Effort(step=plan.step, branches=1))
        return [found]
    given = case.specification
    batch = given.batch if isinstance(given.batch, int) else len(given.batch)
    out = []
    for seed in case.seeds:
        task = classified(given.network, seed, min(batch, EXAMPLES))
        effort = Effort(step=plan.step, branches=1, iterations=1, seed=seed)
        with torch.random.fork_rng():  # dropout draws from the process's generators
            torch.manual_seed(seed)
            out.append(
                measure_module(
                    task.module, task.batch, task.loss, seed=seed, instruments=asked,
                    effort=effort, name=case.name,
                )
            )  # fmt: skip
    return out


def _note(profile: Profile) -> dict[str, Any]:
    notes = profile.settings.get("instruments", {})
    found = notes.get("stiffness", {}) if isinstance(notes, dict) else {}
    return found if isinstance(found, dict) else {}


def _looks(profiles: Sequence[Profile]) -> Table:
    """The curvature at each look: over the limit, along the gradient, and whether it settled."""
    rows = []
    for profile in profiles:
        for look, said in _note(profile).items():
            if isinstance(said, dict) and "ratio" in said:
                rows.append(
                    (
                        ", ".join(map(str, profile.seeds)),
                        look,
                        said.get("loss"),
                        said["ratio"],
                        said.get("largest_magnitude"),
                        said.get("along_gradient"),
                        bool(said.get("converged", False)),
                    )
                )
    columns = (
        "seeds", "look", "loss", "rate x curvature over its limit", "largest curvature",
        "along the gradient", "settled",
    )  # fmt: skip
    return table("curvature", ITERATIONS, columns, rows)


def _notes(plan: Plan, profiles: Sequence[Profile]) -> tuple[str, ...]:
    step = plan.step
    notes = [f"the step is one of {step.optimizer} at a learning rate of {step.rate:g}"]
    if plan.equation is not None:
        notes.append(
            f"the loss is cross-entropy over ten Gaussian classes, {profiles[0].batch} examples, "
            f"behind a linear classifier; in training it will be another"
        )
    missing = {
        f"{name} was not measured: {profile.why_not(name)}"
        for profile in profiles
        for name in GATES["first update"]
        if name not in profile
    }
    return (*notes, *sorted(missing))
