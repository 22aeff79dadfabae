"""What is commissioned, as the record holds it and ``verify`` compares it."""

from __future__ import annotations

from dataclasses import replace

from depthgauge.record.parts import Subject
from depthgauge.record.subject import builder_subject, source_of, subject_of
from depthgauge.study.builders import BuilderCase
from depthgauge.study.commission.plan import Plan

__all__ = ["subject_of_plan"]


def subject_of_plan(plan: Plan, target: str = "") -> Subject:
    """The subject of a plan; ``target``: what the user called it."""
    case = plan.case
    if plan.equation is not None:
        step = plan.step
        assert isinstance(step.optimizer, str)
        given = replace(plan.equation.specification, optimizer=step.optimizer, lr=step.lr)
        return subject_of(given, target, plan.depths)
    assert isinstance(case, BuilderCase)

    code = case.target
    if not isinstance(code, str) and not callable(code):
        code = code[case.arguments["size"]]
    named = code if isinstance(code, str) else getattr(code, "__name__", type(code).__name__)
    return builder_subject(
        target or named,
        case.build,
        case.seeds,
        arguments=dict(case.arguments),
        source=source_of(code),
        depths=plan.depths,
    )
