"""How stiff the problem is for this optimiser: learning rate x largest curvature against its limit.

Index legend: ``w`` all trainable parameters, ``L`` the loss on the batch, ``g = dL/dw``,
``H = d2L/dw2``.

    largest, smallest     ends of the spectrum of H, by Lanczos, each with its residual bound
    along_gradient        g^T H g / g^T g: of the step that gradient descent takes first
    stiffness             lr lam / limit, lam the largest eigenvalue of H + wd, for Adam of
                          P^-1/2 (H + wd) P^-1/2; over 1 a quadratic of this curvature diverges

Limits, what P is, and groups that differ: ``depthgauge.instruments.stability``. Taken at step 0 and
again after a few real steps of the optimiser on the same batch, on a copy: a branch that is zero at
the start has no curvature in its weights there (Zhang et al., arXiv 1901.09321; Bachlechner et al.,
arXiv 2003.04887), and gets it at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import ModelError, NetworkError, SpecificationError
from depthgauge.instruments.curved import LOOK, Task, as_wide, cut, late, nothing, point
from depthgauge.instruments.hessian import DIFFERENCE, converted, duplicate, trainable, widened
from depthgauge.instruments.stability import FORMULAS, Rule, Rules, rule_of, rules_of
from depthgauge.instruments.step import check, foreign, twin_of
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.network.chain import Chain
from depthgauge.network.spec import whole_number
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.again import chain
from depthgauge.trace.backward import dense, gradients
from depthgauge.trace.inventory import inventory
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run

__all__ = ["PRODUCTS", "STIFFNESS", "curvature", "stiffness"]

STIFFNESS = ("stiffness",)
#: Products of Lanczos, at most, for each of ``Effort.iterations``.
PRODUCTS: Final = 10
#: How a product was taken: said once where it was the same at each look.
_HOW: Final = ("product", "product_reason", "finite_difference_step", "dtype")
_NO_LOSS: Final = (
    "no loss was given: a random cotangent has no minimum, so its curvature is no measure of a "
    "learning rate; return (module, batch, loss)"
)
_CONVENTIONS: Final = {
    "adaptive": (
        "P = sqrt(v_hat) + eps of the next step, held fixed; at step 0 of one gradient, |g| + eps, "
        "which the next steps change, so the ratio after the steps counts; parameters whose "
        "gradients were all exactly 0 are left out"
    ),
    "coupled": "weight decay is a part of the gradient and adds to every eigenvalue",
    "groups": (
        "the ratio is the largest eigenvalue of the Hessian scaled by each parameter's rate over "
        "its limit, which is 'scaled'; parameters that do not move have the rate 0"
    ),
    "decoupled": "weight decay is no part of the loss and lowers the limit by lr weight_decay / 2",
}


def stiffness(subject: Subject, effort: Effort, rule: Rule | None = None) -> Found:
    """``stiffness`` at the last state, of the whole network: the larger of step 0 and after
    ``Effort.steps``, for Adam that after the steps; the rest is ``Found.notes["stiffness"]``.
    Without a loss there is none, and the curvature is in the notes. ``rule``: the optimiser, that
    of ``Effort.step`` by default."""
    found = Found()
    why = _no_parameters(subject.model)
    why = why or check(effort.step, dict(subject.model.named_parameters()))
    rules = Rules(())
    if not why:
        try:
            rules = _rules(effort, subject.model, rule)
        except SpecificationError as error:  # other instruments can step it
            why = str(error)
    if not why and not rules.groups:
        why = "the optimizer given holds none of the trainable parameters"
    if why:
        found.missing = dict.fromkeys(STIFFNESS, why)
        return found
    optimizer = effort.step.optimizer
    own = optimizer if isinstance(optimizer, Optimizer) and rule is None else None
    seconds = _seconds(subject, effort)
    note = _looked(Task(subject, effort, rules, PRODUCTS * effort.iterations, own, seconds))
    if others := foreign(effort.step, dict(subject.model.named_parameters())):
        note["foreign_parameters"] = others
    found.notes["stiffness"] = note
    if not math.isnan(note["ratio"]):
        row = max((row for row in subject.rows if row >= 0), default=-1)
        found.put("stiffness", row, max(note["ratio"], 0.0))
    else:
        found.missing["stiffness"] = note["ratio_reason"]
    return found


def curvature(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    *,
    lr: float,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    steps: int = 3,
    iterations: int = 30,
    budget: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Learning rate x curvature of any module against the stability limit of its optimiser.

    ``optimizer``: a name of ``FORMULAS``, which uses those of the numbers that it has; ``steps``:
    real ones before the second look; ``iterations``: products of Lanczos at each look, at most;
    ``budget``: seconds. Gives what ``Found.notes["stiffness"]`` holds; a number that is not there
    is NaN, with its reason: the ratio too where there is no loss, neither given nor returned, and
    one look is all. The model is left as it was. Raises SpecificationError, and NetworkError for a
    model without trainable parameters.
    """
    rule = Rule(optimizer, lr, momentum, betas, eps, weight_decay)
    if (number := whole_number(iterations)) is None or number < 1:
        raise SpecificationError(
            f"iterations is {iterations!r}, expected a whole number of at least 1"
        )
    effort = Effort(steps=steps, budget=budget, seed=seed)
    model, _ = unwrapped(model)
    if why := _no_parameters(model):
        raise NetworkError(why)
    passed = run(model, batch, loss, Readings((), (), (), False), seed)
    if passed.no_backward:
        raise NetworkError(passed.no_backward)

    def again(other: nn.Module | None = None, data: Any = None) -> AbstractContextManager[Chain]:
        before = passed if other is None else replace(passed, held=inventory(other))
        ran, given = model if other is None else other, batch if data is None else data
        return chain(ran, given, loss, [], before, seed)

    subject = Subject(
        model,
        batch,
        loss,
        [],
        lambda model=None, batch=None: again(model, batch),
        cotangent=passed.cotangent,
        seconds=passed.theirs,
    )
    rules = Rules.same(rule, len(trainable(model)))
    return _looked(Task(subject, effort, rules, iterations, seconds=_seconds(subject, effort)))


def _no_parameters(model: nn.Module) -> str:
    """``""``, or why there is nothing that could be curved."""
    if trainable(model):
        return ""
    held = sum(1 for _ in model.parameters())
    return f"all {held} parameters are frozen" if held else "the model has no parameters"


def _seconds(subject: Subject, effort: Effort) -> float:
    """Of a pass forward and back, where there is a budget: of the one that was taken, or of one
    more."""
    if math.isinf(effort.left) or effort.spent:
        return 0.0
    if subject.seconds:
        return subject.seconds
    start = time.perf_counter()
    with subject.chain(subject.model, subject.batch) as states:
        gradients(states.total(), list(trainable(subject.model)))
    return time.perf_counter() - start


def _rules(effort: Effort, model: nn.Module, rule: Rule | None) -> Rules:
    """The rules of the step that is taken, or the one that was given in their place."""
    parameters, given = trainable(model), effort.step.optimizer
    if rule is not None:
        return Rules.same(rule, len(parameters))
    if isinstance(given, Optimizer):
        return rules_of(given, parameters)
    if isinstance(given, str):
        alone = rule_of(effort.step.made([nn.Parameter(torch.zeros(1))]))
        return Rules.same(alone, len(parameters))
    return rules_of(effort.step.made(parameters), parameters)


def _looked(task: Task) -> dict[str, Any]:
    """What is said of the whole network: at step 0, after the steps, and of both."""
    model = task.subject.model
    narrow = [t for t in (*model.parameters(), *model.buffers()) if _half(t)]
    if not narrow:
        return _twice(task, model, task.subject.batch)
    kind = str(narrow[0].dtype).removeprefix("torch.")
    said = f"a copy in float32 with the same weights: differences of {kind} say nothing"
    model, batch = converted(model, task.subject.batch, torch.float32)
    wide = replace(task.subject, chain=widened(task.subject.chain))
    try:
        return _twice(replace(task, subject=wide), model, batch) | {"precision": said}
    except ModelError as error:
        raise ModelError(
            f"curvature is taken on a float32 copy of this {kind} model, which does not run, also "
            f"with its casts to narrower types left out: {error}"
        ) from error


def _twice(task: Task, model: nn.Module, batch: Any) -> dict[str, Any]:
    """At the weights of this model, and after the steps from there."""
    subject, rules, steps = task.subject, task.rules, task.effort.steps
    if not subject.has_loss:
        steps = 0
    first = 0.25 if rules.adaptive else 0.5  # of adaptive optimisers the second look counts
    if steps and (why := task.short(2 * LOOK + steps)):
        points = {"step 0": late(why), f"after {steps}": late(why)}
    else:
        points = {"step 0": point(task, model, batch, None, first if steps else 1.0)}
        wrong = _found_wrong(points["step 0"], "at step 0")
        if steps:
            points[f"after {steps}"] = later = _later(task, model, batch, wrong)
            if not wrong and (wrong := _found_wrong(later, f"after {steps} steps")):
                points["step 0"] = point(task, model, batch, None, 1.0, wrong)
    if not subject.has_loss:
        points = {name: _without_ratio(found) for name, found in points.items()}
    note: dict[str, Any] = {
        **_moved_by(rules, trainable(model)),
        **_worst(points, rules.adaptive),
        **points,
        "converged": all(p["converged"] for p in points.values()),
        "parameters": sum(p.numel() for p in trainable(model)),
        "of": _words(subject),
        "conventions": _conventions(rules),
    }
    for name in _HOW:
        each = {p[name] for p in points.values() if name in p}
        if len(each) == 1:
            note[name] = each.pop()
            for p in points.values():
                p.pop(name, None)
    return note


def _found_wrong(look: dict[str, Any], where: str) -> str:
    """Why double backward is not to be believed at the other look either, or ``""``: the reason
    says where that was found."""
    if look.get("product") != DIFFERENCE or "double_backward_error" not in look:
        return ""
    look["product_reason"] = why = f"{look['product_reason']}, {where}"
    return why


def _words(subject: Subject) -> str:
    """Which loss it is of."""
    if subject.loss is not None:
        return "the loss given"
    if subject.has_loss:
        return subject.cotangent.removeprefix("the gradient of ")
    return "the output along a random cotangent, whose curvature is that of no training loss"


def _without_ratio(found: dict[str, Any]) -> dict[str, Any]:
    """The curvature alone, of what no optimiser trains on."""
    kept = {k: v for k, v in found.items() if not k.startswith(("ratio", "margin"))}
    return kept | {"ratio": math.nan, "ratio_reason": found.get("ratio_reason") or _NO_LOSS}


def _worst(points: dict[str, dict[str, Any]], adaptive: bool) -> dict[str, Any]:
    """The larger ratio, where it was and its margin, or why there is none. Of adaptive optimisers
    the last: one gradient alone makes a P that the next will not. A look that was cut short may
    have hidden a larger one, which does not matter to a ratio over 1."""
    if adaptive:
        points = dict(list(points.items())[-1:])
    measured = {name: p for name, p in points.items() if not math.isnan(p["ratio"])}
    at = max(measured, key=lambda name: measured[name]["ratio"], default="")
    cut = [p for p in points.values() if p.get("stopped") == "budget" or "ratio_at_least" in p]
    cut = [p for p in cut if math.isnan(p["ratio"])]
    if at and (not cut or measured[at]["ratio"] >= 1):
        said = {k: v for k, v in measured[at].items() if k.startswith(("ratio", "margin"))}
        return {**said, "ratio_at": at}
    why = (cut or list(points.values()))[0]["ratio_reason"]
    each = [p.get("ratio_at_least", p["ratio"]) for p in points.values()]
    least = max((r for r in each if not math.isnan(r)), default=math.nan)
    known = {} if math.isnan(least) else {"ratio_at_least": least}
    return {"ratio": math.nan, "ratio_reason": why, **known}


def _half(x: Tensor) -> bool:
    return x.is_floating_point() and x.dtype.itemsize < 4


def _moved_by(rules: Rules, parameters: list[nn.Parameter]) -> dict[str, Any]:
    """The optimiser, its rate and its limit; of one with several groups a list of these."""
    each = [
        {
            "optimizer": _numbers(rule),
            "learning_rate": rule.lr,
            "limit": rule.limit,
            "limit_formula": FORMULAS[rule.name],
        }
        for rule in rules.groups
    ]
    if rules.one is not None:
        return each[0]
    for said, places in zip(each, rules.groups.values(), strict=True):
        said["parameters"] = sum(parameters[place].numel() for place in places)
    left = sum(p.numel() for p, rule in zip(parameters, rules.each, strict=True) if rule is None)
    return {"groups": each, "parameters_not_moved": left}


def _numbers(rule: Rule) -> dict[str, Any]:
    """The optimiser's name and the numbers that it uses."""
    used = {"sgd": (), "momentum": ("momentum",), "nesterov": ("momentum",)}
    names = ("name", "lr", *used.get(rule.name, ("betas", "eps")), "weight_decay")
    return {name: value for name, value in asdict(rule).items() if name in names}


def _conventions(rules: Rules) -> list[str]:
    kinds = ["adaptive"] if rules.adaptive else []
    decaying = [rule for rule in rules.groups if rule.weight_decay]
    kinds += dict.fromkeys("decoupled" if r.name == "adamw" else "coupled" for r in decaying)
    if rules.one is None:
        kinds.append("groups")
    return [_CONVENTIONS[kind] for kind in kinds]


def _later(task: Task, model: nn.Module, batch: Any, wrong: str) -> dict[str, Any]:
    """The same after the steps of the optimiser, on a copy; the ratio is infinite where they lead
    to a loss that is not finite. ``wrong``: what the first look has found of double backward."""
    steps = task.effort.steps
    if why := task.short(steps + LOOK):
        return late(why)
    if task.effort.spent:
        return cut(task.effort, "before it")
    try:
        copied = duplicate(model)
    except NetworkError as error:
        return nothing(str(error))
    parameters = trainable(copied)
    optimizer = _made(task, parameters)
    losses: list[float] = []
    for step in range(steps):
        if task.effort.spent:
            return cut(task.effort, f"after {step} steps")
        with task.subject.chain(copied, batch) as states:
            total = states.total()
            each = gradients(total, list(parameters))
        losses.append(float(total.detach()))
        if not math.isfinite(losses[-1]):
            why = f"the loss is {losses[-1]}"
            if step:  # it came of the steps
                return nothing(f"{why} after step {step}") | {"ratio": math.inf, "losses": losses}
            return nothing(why)
        for p, g in zip(parameters, each, strict=True):
            p.grad = g if g is None else dense(g)
        optimizer.step()
        optimizer.zero_grad()
        del total, each, states
    found = point(task, copied, batch, optimizer, 1.0, wrong)
    if not math.isfinite(found.get("loss", 0.0)):
        found |= {"ratio": math.inf, "ratio_reason": f"{found['ratio_reason']} after step {steps}"}
    return {"losses": losses, **found}


def _made(task: Task, parameters: list[nn.Parameter]) -> Optimizer:
    """The optimiser of the steps, for a copy's parameters: that of the training run as it is, its
    state in the type of the copy, or a new one."""
    if task.given is None:
        return task.rules.made(parameters)
    own = trainable(task.subject.model)
    twin = twin_of(task.given, {id(p): q for p, q in zip(own, parameters, strict=True)})
    for p, q in zip(own, parameters, strict=True):
        if p.dtype != q.dtype and q in twin.state:
            twin.state[q] = as_wide(twin.state[q], q)
    return twin
