"""What one step of the optimiser does: to the weights, to every state, branch by branch.

Index legend: ``w`` a parameter and ``dw`` its change in one step on this batch and loss; ``h_k``
the states of the network before the step and ``h_k'`` after it, ``h_D`` the last; ``L`` residual
branches; ``d_b`` the change of ``h_D`` when only the parameters of branch b have moved. ``|x|`` is
the root of the mean square over every element.

    update_to_weight     |dw| / |w|, of a tensor (in the notes) and of all parameters of a branch
    functional_update_k  |h_k' - h_k| / |h_k|
    branch_update_b      |d_b| / |h_D|
    update_alignment     |sum_b d_b| / sum_b |d_b|: 1 where the branches pull one way, 1/sqrt(L)
                         where their changes are orthogonal and of one size

The step is taken whole, with its curvature, as training would take it: nothing is linearised. So
``sum_b d_b`` and the change with all branches moved at once (``together``) differ by what the
branches do to one another; a step small enough makes them equal. Of more branches than
``Effort.branches`` that many are moved alone, spread evenly: then norms of sums are those of a
sample, and only ``together`` is of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.errors import SpecificationError
from depthgauge.instruments.step import Step, check, moved, stepped
from depthgauge.instruments.subject import Branch, BudgetSpentError, Effort, Found, Subject
from depthgauge.trace.backward import gradients
from depthgauge.trace.inventory import inventory

__all__ = ["UPDATES", "updates"]

UPDATES = ("update_to_weight", "functional_update", "branch_update", "update_alignment")
_OF_BRANCHES = ("branch_update", "update_alignment")


def updates(subject: Subject, effort: Effort) -> Found:
    """The four quantities; the model and the optimiser are left as they were.

    Raises SpecificationError where the optimiser given is bound to other parameters.
    """
    found, step = Found(), effort.step
    parameters = dict(inventory(subject.model).parameters)
    if why := check(step, parameters):
        raise SpecificationError(why)
    if not parameters:
        found.missing = dict.fromkeys(UPDATES, "the model has no parameters")
        return found
    if not any(p.requires_grad for p in parameters.values()):
        why = f"all {len(parameters)} parameters are frozen"
        found.missing = dict.fromkeys(UPDATES, why)
        return found
    with subject.chain() as chain:
        total = chain.total()
        each = _gradients(total, parameters)
        before, loss = [state.value for state in chain.states], float(total.detach())
        outputs = chain.outputs
        del total
    if why := _not_finite(each, "the gradient of"):
        return _nowhere(why, step)
    taken = stepped(step, parameters, each)
    if why := _not_finite(taken.values, "after the step"):
        return _nowhere(why, step)
    changes = {name: (parameters[name], value) for name, value in taken.values.items()}
    with moved(list(changes.values())), subject.chain() as chain:
        after, loss_after = [state.value for state in chain.states], float(chain.total().detach())
        output = _relative(outputs, chain.outputs)
    for row, old, new in zip(subject.rows, before, after, strict=True):
        found.put("functional_update", row, _relative([old], [new]))
    found.notes["updates"] = {
        "optimizer": taken.optimizer,
        "lr": taken.lr[0] if len(taken.lr) == 1 else taken.lr,
        "loss": {"before": loss, "after": loss_after, "given": subject.loss is not None},
        "output": output,
        "smallest_relative_change_that_shows": torch.finfo(before[-1].dtype).eps,
        "weights": [_weight(name, *pair) for name, pair in changes.items()],
        "not_moved": taken.stay,
        **({"sparse_made_dense": taken.dense} if taken.dense else {}),
        **({"foreign_parameters": taken.foreign} if taken.foreign else {}),
    }
    try:
        _branches(subject, effort, changes, before[-1], found)
    except BudgetSpentError as error:
        found.columns.pop("branch_update", None)
        found.missing |= dict.fromkeys(_OF_BRANCHES, str(error))
    return found


def _gradients(total: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None]:
    wanted = [name for name, p in parameters.items() if p.requires_grad]
    if not wanted or not total.requires_grad:
        return dict.fromkeys(parameters)
    each = gradients(total, [parameters[name] for name in wanted])
    return {**dict.fromkeys(parameters), **dict(zip(wanted, each, strict=True))}


def _not_finite(tensors: Mapping[str, Tensor | None], words: str) -> str:
    """``""``, or which of the tensors hold inf or NaN."""
    bad = []
    for name, tensor in tensors.items():
        values = tensor if tensor is None or not tensor.is_sparse else tensor.coalesce().values()
        if values is not None and not bool(values.isfinite().all()):
            bad.append(name)
    if not bad:
        return ""
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{words} '{bad[0]}'{others} of {len(tensors)} parameters is not finite"


def _nowhere(why: str, step: Step) -> Found:
    name = step.optimizer if isinstance(step.optimizer, str) else type(step.optimizer).__name__
    return Found(
        missing=dict.fromkeys(UPDATES, why),
        notes={"updates": {"optimizer": name, "not_finite": why}},
    )


def _square(tensors: Iterable[Tensor]) -> float:
    """The sum of squares over all of them, in float64."""
    return sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors)


def _relative(old: Sequence[Tensor], new: Sequence[Tensor]) -> float:
    """``|new - old| / |old|`` over every element of all; NaN for 0 / 0."""
    pairs = [
        (a, b)
        for a, b in zip(old, new, strict=True)
        if a.is_floating_point() and (a.numel() > 1 or len(old) == 1)
    ]
    return _ratio(_square(b.double() - a.double() for a, b in pairs), _square(a for a, _ in pairs))


def _ratio(change: float, whole: float) -> float:
    """The root of the ratio of two sums of squares."""
    if not whole:
        return math.inf if change else math.nan
    return math.sqrt(change / whole)


def _weight(name: str, parameter: nn.Parameter, value: Tensor) -> dict[str, Any]:
    """One tensor's update; a weight of zeros has no ratio."""
    old = parameter.detach()
    change, whole = _square([value.double() - old.double()]), _square([old])
    count = max(old.numel(), 1)
    found = {
        "path": name,
        "shape": list(old.shape),
        "update_rms": math.sqrt(change / count),
        "weight_rms": math.sqrt(whole / count),
        "ratio": _ratio(change, whole),
    }
    return found if whole else {**found, "ratio_reason": "every element of the weight is zero"}


# ------------------------------------------------------------------------------ branch by branch


def _branches(
    subject: Subject,
    effort: Effort,
    changes: Mapping[str, tuple[nn.Parameter, Tensor]],
    last: Tensor,
    found: Found,
) -> None:
    """Each branch's own share; of more than ``effort.branches``, that many spread evenly."""
    branches = subject.branches
    if not branches:
        why = "there is no residual branch whose parameters are known"
        found.missing |= dict.fromkeys(("update_to_weight", *_OF_BRANCHES), why)
        return
    rows = _rows(subject)
    ratios: list[float] = []
    for row, branch in zip(rows, branches, strict=True):
        if not (own := [changes[name] for name in branch.parameters if name in changes]):
            continue
        squares = _square(v.double() - p.detach().double() for p, v in own)
        ratios.append(_ratio(squares, _square(p.detach() for p, _ in own)))
        if row is not None:
            found.put("update_to_weight", row, ratios[-1])
    chosen = _spaced(len(branches), effort.branches)
    size, whole = last.numel(), _square([last])
    shares: list[float] = []  # sums of squares
    each: list[dict[str, Any]] = []
    summed = torch.zeros_like(last, dtype=torch.float64)
    for done, b in enumerate(chosen):
        effort.check(done, len(chosen), "branches")
        own = [changes[name] for name in branches[b].parameters if name in changes]
        change = _last(subject, own) - last.double() if own else torch.zeros_like(summed)
        shares.append(_square([change]))
        summed += change
        each.append({"path": branches[b].path, "branch_update": _ratio(shares[-1], whole)})
        if (row := rows[b]) is not None:
            found.put("branch_update", row, each[-1]["branch_update"])
    names = {name for branch in branches for name in branch.parameters if name in changes}
    together = _last(subject, [changes[name] for name in sorted(names)]) - last.double()
    norms = [math.sqrt(square / size) for square in shares]
    norm_of_sum = math.sqrt(_square([summed]) / size)
    note: dict[str, Any] = {
        "measured": len(chosen),
        "of": len(branches),
        "together": math.sqrt(_square([together]) / size),
        "norm_of_sum": norm_of_sum,
        "sum_of_norms": math.fsum(norms),
        "root_sum_square": math.hypot(*norms),
        "state_rms": math.sqrt(whole / size),
        **({"update_to_weight": math.fsum(ratios) / len(ratios)} if ratios else {}),
        "each": each,
    }
    found.notes["updates"]["branches"] = note
    if why := _no_alignment(branches, chosen, note):
        found.missing["update_alignment"] = why
        return
    note["alignment"] = norm_of_sum / note["sum_of_norms"]
    note["norm_of_sum_to_root_sum_square"] = norm_of_sum / note["root_sum_square"]
    found.put("update_alignment", subject.rows[-1], note["alignment"])


def _no_alignment(
    branches: Sequence[Branch], chosen: Sequence[int], note: Mapping[str, Any]
) -> str:
    """``""``, or why the shares cannot be compared."""
    names = [name for b in chosen for name in branches[b].parameters]
    if len(set(names)) < len(names):
        return "branches share parameters, so what one of them does alone cannot be told"
    if not note["sum_of_norms"]:
        return "no branch changes the last state in this step"
    return "" if math.isfinite(note["sum_of_norms"]) else "a share is not finite"


def _rows(subject: Subject) -> list[int | None]:
    """Each branch's own row, else that of the state which it alone is added to make."""
    made = Counter(branch.makes for branch in subject.branches)
    return [
        subject.rows[branch.makes]
        if branch.row is None and branch.makes is not None and made[branch.makes] == 1
        else branch.row
        for branch in subject.branches
    ]


def _last(subject: Subject, changes: Sequence[tuple[nn.Parameter, Tensor]]) -> Tensor:
    """The last state, in float64, when these parameters have moved."""
    with moved(changes), subject.chain() as chain:
        return chain.states[-1].value.double()


def _spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of ``0 ... count - 1``, evenly spaced, first and last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})
