"""What is commissioned, as the record holds it and ``verify`` compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from depthgauge.record.parts import Subject
from depthgauge.record.subject import builder_subject, source_of, subject_of
from depthgauge.study.builders import BuilderCase
from depthgauge.study.commission.plan import Plan
from depthgauge.trace.targets import defaults

__all__ = ["defaults_of_plan", "subject_of_plan"]


def subject_of_plan(plan: Plan, target: str = "") -> Subject:
    """The subject of a plan; ``target``: what the user called it."""
    case = plan.case
    if plan.equation is not None:
        step = plan.step
        assert isinstance(step.optimizer, str)
        given = replace(plan.equation.specification, optimizer=step.optimizer, lr=step.lr)
        return subject_of(given, target, plan.depths)
    assert isinstance(case, BuilderCase)
    code = _code(case)
    named = code if isinstance(code, str) else getattr(code, "__name__", type(code).__name__)
    found = builder_subject(
        target or named,
        case.build,
        case.seeds,
        arguments=dict(case.arguments),
        source=source_of(code),
        depths=plan.depths,
    )
    return found if plan.axis else found.model_copy(update={"depths": (found.depth,)})


def defaults_of_plan(plan: Plan) -> dict[str, object]:
    """What the arguments of a plan's builder are that are not given."""
    case = plan.case
    if not isinstance(case, BuilderCase):
        return {}
    table = isinstance(case.target, Mapping)
    given = {k: v for k, v in case.arguments.items() if not (table and k == "size")}
    return defaults(_code(case), given)


def _code(case: BuilderCase) -> str | Callable[..., Any]:
    """What builds the case; of a table of sizes that of its size."""
    code = case.target
    if isinstance(code, str) or callable(code):
        return code
    return code[case.arguments["size"]]
