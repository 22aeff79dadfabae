"""What a sum does to its skip and to a branch: by the equation, or by the values themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from depthgauge.equation.count import count
from depthgauge.equation.nodes import LearnedGain, LearnedScalar
from depthgauge.equation.scalars import evaluate
from depthgauge.trace.analysis import Analysis, Step
from depthgauge.trace.coefficients import after_sum, weighed
from depthgauge.trace.links import Branch, Link

__all__ = ["Form", "read_form", "seen_form"]


@dataclass(frozen=True)
class Form:
    """What a sum does to its skip and to one branch."""

    skip: float = math.nan
    factor: float = math.nan
    learned: tuple[tuple[str, float], ...] = ()
    norms: tuple[tuple[str, str], ...] = ()
    inlet: float = math.nan
    carried: tuple[tuple[str, float], ...] = ()


def read_form(step: Step, branches: int) -> list[Form]:
    """From the step's equation: a form for each branch, in order; one without numbers where the
    equation does not have that many, or hides how a branch ends."""
    found = count(step.equation.block).merges if step.equation else ()
    if len(found) != 1 or len(found[0].branches) != branches:
        return [Form()] * branches
    forms = []
    for branch in found[0].branches:
        norms = tuple((at, norm.kind) for at, norm in branch.norms)
        hidden = branch.hidden and not branch.hidden.startswith(("attention", "cross attention"))
        learned, carried = _values(branch.learned), _values(found[0].learned)
        number = math.nan if hidden else branch.factor
        forms.append(Form(found[0].factor, number, learned, norms, branch.inlet, carried))
    return forms


def seen_form(
    analysis: Analysis, parameters: Mapping[str, Tensor], link: Link, branch: Branch, form: Form
) -> Form:
    """The form by the values themselves, of a sum that no equation says."""
    roles = analysis.roles
    after = after_sum(roles, link.after, link.merge.value)
    skip = weighed(roles, parameters, link.merge.skip, link.before)
    ends = {weighed(roles, parameters, term) for term in branch.terms}
    if len(ends) != 1 or len(roles.terms(link.merge.value)) != 1 + len(link.merge.terms):
        return form
    end = ends.pop()
    return replace(form, skip=skip.number * after, factor=end.number * after, learned=end.learned)


def _values(learned: Sequence[LearnedScalar | LearnedGain]) -> tuple[tuple[str, float], ...]:
    return tuple(
        ("scalar" if isinstance(x, LearnedScalar) else "gain", evaluate(x.initial, {}))
        for x in learned
    )
