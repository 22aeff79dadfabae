"""``commission``: all gates in order, and the record that they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from depthgauge.errors import DepthgaugeError, SpecificationError
from depthgauge.instruments.step import Step
from depthgauge.record.folder import Stored
from depthgauge.record.parts import CorridorPart, Gate, State, Verdict
from depthgauge.record.running import Running
from depthgauge.study.cases import EquationCase, case_of, differences
from depthgauge.study.changes import Change
from depthgauge.study.commission import contrasts, transport, update
from depthgauge.study.commission.bounds import corridor_part
from depthgauge.study.commission.gated import Gated, curve_parts, part_of, worst
from depthgauge.study.commission.plan import Plan, planned
from depthgauge.study.commission.subject import defaults_of_plan, subject_of_plan
from depthgauge.study.commission.transport import Bench
from depthgauge.study.small import unshared

__all__ = ["GATES", "Commission", "commission", "plan_of"]


@dataclass(frozen=True)
class Question:
    """A gate: what it asks, what its answer leaves open, and what answers it."""

    name: str
    asks: str
    leaves_open: str
    run: Callable[[Plan, Bench], Gated]


def _training(plan: Plan, bench: Bench) -> Gated:
    return Gated("not_measured", "matched training runs are not part of this version")


GATES: Final = (
    Question(
        "block",
        "What exactly is commissioned: equation, axes, placement, scale, initialisation, "
        "precision, depth?",
        "whether the code that will be trained computes this equation: commission its builder, or "
        "verify the record against it",
        transport.block,
    ),
    Question(
        "rivers",
        "Do state and gradient keep their magnitude from end to end?",
        "which way they point, and what training makes of them",
        transport.rivers,
    ),
    Question(
        "gates",
        "Do the activations let state and gradient through?",
        "what the layers before and behind make of it: live gates say nothing of the magnitude",
        transport.local_gates,
    ),
    Question(
        "directions",
        "How many directions arrive, and are inputs still told apart?",
        "whether the directions that arrive are those that a task needs",
        transport.directions,
    ),
    Question(
        "precision",
        "Does the arithmetic meant for training carry state and gradient?",
        "accumulators, kernels and devices other than those that were run here",
        transport.precision,
    ),
    Question(
        "first update",
        "Does one step move the function by a fair amount, at a rate that the curvature allows?",
        "later steps: curvature moves in training, and schedules move the rate",
        update.first_update,
    ),
    Question(
        "ablation",
        "Which single feature does the network owe its health to, or its failure?",
        "pairs of features that act together, what a change does to the first update and in the "
        "arithmetic meant (each would take as long again as those gates), and what each is worth "
        "in training",
        contrasts.ablation,
    ),
    Question(
        "depth",
        "How does each number grow with depth, and do these depths tell healthy from unhealthy?",
        "depths beyond those measured: a law is a fit",
        contrasts.depth,
    ),
    Question(
        "shallow control",
        "Is a shallow plain stack of these layers inside the same bounds?",
        "nothing about depth: it shows that bounds and measurement accept a healthy network; its "
        "directions, of which each layer loses some, its arithmetic, and its first update, whose "
        "rate was chosen for another network, are not judged",
        contrasts.shallow,
    ),
    Question(
        "rival",
        "Does a recipe that does without this design stay further inside?",
        "which of the two learns more, for that takes matched training runs; and the arithmetic "
        "meant, in which the rival is not run against float64",
        contrasts.rival,
    ),
    Question(
        "training boundary",
        "Does a small matched run learn, over seeds, on both sides of the largest stable rate?",
        "everything that only training shows",
        _training,
    ),
)


@dataclass(frozen=True, eq=False)
class Commission:
    """A commission that has ended: what was planned, and the record as it stands on the disk."""

    plan: Plan
    directory: str
    stored: Stored

    @property
    def state(self) -> State:
        return self.stored.record.verdict.state

    @property
    def gates(self) -> tuple[Gate, ...]:
        return self.stored.record.gates

    def to_dict(self) -> dict[str, Any]:
        return self.stored.record.to_dict()

    def __repr__(self) -> str:
        state = self.state.replace("_", " ")
        return f"<Commission in {self.directory!r}: {state}, {len(self.gates)} gates>"

    def __str__(self) -> str:
        return str(self.stored.record)


def commission(
    target: Any,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    stop_early: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    command: Sequence[str] = (),
    **given: Any,
) -> Commission:
    """Run every gate in order and write the record into ``directory``.

    ``target`` and most of ``given`` as ``study.cases.case_of`` takes them; ``depths``, ``axis``,
    ``corridor``, ``step``, ``rival``, ``shallow`` and ``vary`` as ``study.commission.plan.planned``
    does; ``optimizer`` and ``lr`` replace each its own part of the step that is declared.
    ``resume``: go on where an interrupted commission of the same plan stopped. ``overwrite``:
    replace the record of another specification that stands there.
    ``stop_early``: leave the gates behind the first that fails not run, which is not passed.
    ``progress``: called with a gate's name, how many are behind, and of how many. A network whose
    products are small is run in one thread of PyTorch's, however many there are.

    Raises SpecificationError, NetworkError and RecordError; a number that is not finite is a
    finding.
    """
    plan = plan_of(target, **given)
    subject = subject_of_plan(plan)
    with Running.open(
        directory,
        subject,
        {**plan.to_dict(), "stop_early": stop_early},
        resume,
        overwrite=overwrite,
        command=command,
        defaults=defaults_of_plan(plan),
    ) as running:
        if running.finished is None:
            corridor = corridor_part(plan.corridor, subject.depth, subject.dtype)
            with unshared(plan.case):
                _run(plan, running, corridor, stop_early, progress)
        assert running.finished is not None
        return Commission(plan, os.fspath(directory), running.finished)


_PLANNED: Final = ("depths", "axis", "corridor", "step", "rival", "shallow", "vary")
_STEP: Final = ("optimizer", "lr")


def plan_of(target: Any, **given: Any) -> Plan:
    """The plan of a target, with what a specification's [commission] section says filled in."""
    own = {name: given.pop(name) for name in _PLANNED if name in given}
    replaced = {name: given.pop(name, None) for name in _STEP}
    case = case_of(target, **given)
    declared: dict[str, Any] = {}
    if isinstance(case, EquationCase):
        one = case.specification
        declared = {**one.commission, "step": one.step}
    declared |= {name: value for name, value in own.items() if value is not None}
    if parts := {name: value for name, value in replaced.items() if value is not None}:
        declared["step"] = replace(declared.get("step") or Step(), **parts)
    plan = planned(case, **declared)
    _varied(plan)
    return plan


def _varied(plan: Plan) -> None:
    """Refuse a change that cannot be tried before anything is measured."""
    for text in plan.vary or ():
        change = Change.of(text)
        if change.factor == plan.axis:
            raise SpecificationError(
                f"vary names '{text}', and {plan.axis} is the depth, which is swept; name it with "
                f"the depths"
            )
        found = differences(plan.case, plan.case.changed(change))
        if len(found) != 1:
            what = "; ".join(map(str, found)) or "nothing"
            raise SpecificationError(
                f"vary names '{text}', which changes {what}; a commission varies one factor at a "
                f"time"
            )


def _run(
    plan: Plan,
    running: Running,
    corridor: CorridorPart,
    stop_early: bool,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    bench = Bench(plan)
    failed = next((d.gate.name for d in running.done if d.gate.state == "fail"), "")
    for k, question in enumerate(GATES[len(running.done) :], len(running.done)):
        if progress is not None:
            progress(question.name, k, len(GATES))
        start = time.perf_counter()
        if stop_early and failed:
            gated = Gated("not_measured", f"not run: the gate '{failed}' failed before it")
        else:
            gated = _answered(question, plan, bench)
        failed = failed or (question.name if gated.state == "fail" else "")
        parts, arrays = curve_parts(question.name, gated.curves)
        gate = part_of(question.name, question.asks, question.leaves_open, gated)
        running.add(gate, arrays, parts, seconds=round(time.perf_counter() - start, 3))
    gates = tuple(done.gate for done in running.done)
    running.finish(overall(gates), corridor)


def _answered(question: Question, plan: Plan, bench: Bench) -> Gated:
    """What the gate finds; what stops it from looking is why it was not measured."""
    try:
        return question.run(plan, bench)
    except DepthgaugeError as error:
        if question.name == "block":
            raise
        return Gated("not_measured", f"it could not be run: {error}")


def overall(gates: Sequence[Gate]) -> Verdict:
    """As bad as the weakest gate; the score is the smallest margin of any judgement of the network
    itself, and none where a gate fails by something else."""
    state = worst(gate.state for gate in gates)
    weakest = next(gate for gate in gates if gate.state == state)
    margins = [j.margin for gate in gates[:6] for j in gate.judgements if j.margin is not None]
    infinite = [
        j for gate in gates[:6] for j in gate.judgements
        if j.margin is None and (j.margin_reason or "").startswith("minus")
    ]  # fmt: skip
    outside = _outside(gates[:6])
    untold = [gate.name for gate in gates if gate.state == "fail" and gate not in outside]
    why = f"the gate '{untold[0]}' fails by no margin of the network itself" if untold else None
    why = "a margin is minus infinity" if infinite else why
    score = min(margins) if margins and not why else None
    return Verdict(
        state=state,
        reason=weakest.reason,
        weakest=weakest.name,
        score=score,
        **({"score_reason": why} if why else {}),
    )


def _outside(gates: Sequence[Gate]) -> list[Gate]:
    """Those with a judgement that is outside its bound by a margin."""
    return [gate for gate in gates if any((j.margin or 0.0) < 0 for j in gate.judgements)]
