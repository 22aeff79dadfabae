"""How stiff the problem is for this optimiser: learning rate x largest curvature against its limit.

Index legend: ``w`` all trainable parameters, ``L`` the loss on the batch, ``g = dL/dw``,
``H = d2L/dw2``.

    largest, smallest     ends of the spectrum of H, by Lanczos, each with its residual bound
    along_gradient        g^T H g / g^T g: of the step that gradient descent takes first
    stiffness             lr lam / limit, lam the largest eigenvalue of H + wd, for Adam of
                          P^-1/2 (H + wd) P^-1/2; over 1 a quadratic of this curvature diverges

Limits and what P is: ``depthgauge.instruments.stability``. Taken at step 0 and again after a few
real steps of the optimiser on the same batch, on a copy: a branch that is zero at the start has no
curvature in its weights there (Zhang et al., arXiv 1901.09321; Bachlechner et al., arXiv 2003.04887),
and gets it at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import DepthgaugeError, NetworkError, SpecificationError
from depthgauge.instruments.hessian import (
    DIFFERENCE,
    Hessian,
    converted,
    duplicate,
    flat,
    hessian,
    trainable,
)
from depthgauge.instruments.lanczos import Ends, lanczos
from depthgauge.instruments.stability import FORMULAS, Rule
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.network.spec import whole_number

__all__ = ["STIFFNESS", "curvature", "stiffness"]

STIFFNESS = ("stiffness",)

#: Products of Lanczos, at most, for each of ``Effort.iterations``.
PRODUCTS: Final = 10
#: Steps of the optimiser before the second look.
STEPS: Final = 3
#: Numbers that the vectors of Lanczos may hold together.
_BASIS: Final = 2**29

_CONVENTIONS: Final = {
    "adaptive": (
        "P = sqrt(v_hat) + eps of the next step (at step 0 of one gradient, |g| + eps), held fixed; "
        "parameters whose gradients were all exactly 0 are left out"
    ),
    "coupled": "weight decay is a part of the gradient and adds to every eigenvalue",
    "decoupled": "weight decay is no part of the loss and lowers the limit by lr weight_decay / 2",
}


def stiffness(
    subject: Subject, effort: Effort, rule: Rule | None = None, steps: int = STEPS
) -> Found:
    """``stiffness`` at the last state, of the whole network, the larger of step 0 and after the
    steps; the rest is ``Found.notes["stiffness"]``. ``rule``: the optimiser, SGD at 0.1 by default;
    ``steps``: real ones before the second look, 0 for none."""
    found = Found()
    parameters = trainable(subject.model)
    if not parameters:
        held = sum(1 for _ in subject.model.parameters())
        why = f"all {held} parameters are frozen" if held else "the model has no parameters"
        found.missing = dict.fromkeys(STIFFNESS, why)
        return found
    note = _looked(subject, effort, rule or Rule(), steps)
    found.notes["stiffness"] = note
    ratio = note["ratio"]
    if math.isfinite(ratio):
        found.put("stiffness", subject.rows[-1] if len(subject.rows) else -1, ratio)
    else:
        found.missing["stiffness"] = note["ratio_reason"]
    return found


def _looked(subject: Subject, effort: Effort, rule: Rule, steps: int) -> dict[str, Any]:
    """What is said of the whole network: at step 0, after the steps, and of both."""
    model, batch, said = subject.model, subject.batch, ""
    narrow = [t for t in (*model.parameters(), *model.buffers()) if _half(t)]
    if narrow:
        kind = str(narrow[0].dtype).removeprefix("torch.")
        said = f"a copy in float32, of the same weights: second differences of {kind} say nothing"
        model, batch = converted(model, batch, torch.float32)
    after = f"after {steps}"
    points = {"step 0": _point(subject, effort, rule, model, batch, None, 0.5 if steps else 1.0)}
    if steps:
        points[after] = _later(subject, effort, rule, model, batch, steps)
    measured = [p for p in points.values() if math.isfinite(p["ratio"])]
    worst = max(measured, key=lambda p: p["ratio"], default=None)
    note: dict[str, Any] = {
        "optimizer": _numbers(rule),
        "learning_rate": rule.lr,
        "limit": rule.limit,
        "limit_formula": FORMULAS[rule.name],
        "ratio": worst["ratio"] if worst else math.nan,
        "margin_decades": worst["margin_decades"] if worst else math.nan,
        **points,
        "converged": all(p.get("converged", False) for p in points.values()),
        "parameters": sum(p.numel() for p in trainable(model)),
        "of": "the loss given"
        if subject.loss is not None
        else "the loss among the outputs if there is one, else the output along a random cotangent, "
        "whose curvature is that of no training loss; settings.cotangent says which",
        "conventions": _conventions(rule),
    }
    if worst is None:
        reasons = [p["ratio_reason"] for p in points.values() if p.get("ratio_reason")]
        note["ratio_reason"] = note["margin_decades_reason"] = reasons[0]
    for key in ("product", "reason", "step", "dtype"):
        each = {str(p[key]): p[key] for p in points.values() if key in p}
        if each:
            note["finite_difference_step" if key == "step" else key] = next(iter(each.values()))
    if said:
        note["precision"] = said
    return note


def _half(x: Tensor) -> bool:
    return x.is_floating_point() and x.dtype.itemsize < 4


def _numbers(rule: Rule) -> dict[str, Any]:
    """The optimiser's name and the numbers that it uses."""
    used = {"sgd": (), "momentum": ("momentum",), "nesterov": ("momentum",)}
    names = ("name", "lr", *used.get(rule.name, ("betas", "eps")), "weight_decay")
    return {name: value for name, value in asdict(rule).items() if name in names}


def _conventions(rule: Rule) -> list[str]:
    kinds = ["adaptive"] if rule.adaptive else []
    if rule.weight_decay:
        kinds.append("decoupled" if rule.name == "adamw" else "coupled")
    return [_CONVENTIONS[kind] for kind in kinds]


def _later(
    subject: Subject, effort: Effort, rule: Rule, model: nn.Module, batch: Any, steps: int
) -> dict[str, Any]:
    """The same after ``steps`` of the optimiser, on a copy."""
    try:
        copied = duplicate(model)
    except NetworkError as error:
        return _nothing(str(error))
    optimizer = rule.made(trainable(copied))
    losses = []
    for step in range(steps):
        if effort.spent:
            return _nothing(f"the budget of {effort.budget:g} seconds was spent after {step} steps")
        with subject.chain(copied, batch) as chain:
            total, parameters = chain.total(), trainable(copied)
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        losses.append(float(total))
        del total, chain
        if not math.isfinite(losses[-1]):
            return _nothing(f"the loss is {losses[-1]} after {step} steps", losses)
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, **_point(subject, effort, rule, copied, batch, optimizer, 1.0)}


def _nothing(why: str, losses: list[float] | None = None) -> dict[str, Any]:
    given = {"losses": losses} if losses else {}
    return {"ratio": math.nan, "ratio_reason": why, **given, "converged": False}


def _point(
    subject: Subject,
    effort: Effort,
    rule: Rule,
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer | None,
    share: float,
) -> dict[str, Any]:
    """What the curvature is at one point; ``share``: of the time that is left."""
    if effort.spent:
        return _nothing(f"the budget of {effort.budget:g} seconds was spent before it")
    until = _deadline(effort, share)
    with hessian(subject.chain, model, batch) as h:
        if not (math.isfinite(h.loss) and bool(h.gradient.isfinite().all())):
            what = f"the loss is {h.loss}" if not math.isfinite(h.loss) else "the gradient has inf or NaN"
            return {"loss": h.loss, **_nothing(what)}
        length = torch.linalg.vector_norm(h.gradient, dtype=torch.float64)
        out: dict[str, Any] = {"loss": h.loss, "gradient_norm": float(length)}
        if float(length) > 0:
            unit = h.gradient / length.to(h.gradient)
            out["along_gradient"] = float(torch.dot(unit.double(), h.times(unit).double()))
        else:
            out |= {"along_gradient": math.nan, "along_gradient_reason": "the gradient is 0"}
        ends = _ends(h, effort, lambda v: h.times(v), until)
        out |= _said(ends)
        curved, top = ends, ends.largest + rule.coupled
        if rule.adaptive:
            half = _half_inverse(rule, model, h, optimizer)
            curved = _ends(
                h, effort, lambda v: half * (h.times(half * v) + rule.coupled * half * v), until
            )
            out["preconditioned"] = _said(curved) | {"left_out": int((half == 0).sum())}
            top = curved.largest
        out["ratio"] = rule.lr * top / rule.limit
        out["margin_decades"] = -math.log10(out["ratio"]) if out["ratio"] > 0 else math.inf
        out["converged"] = ends.converged and curved.converged
        if not math.isfinite(out["ratio"]):
            out["ratio_reason"] = "a product of the Hessian has inf or NaN"
        out |= {"product": h.product, "dtype": str(h.dtype).removeprefix("torch.")}
        if h.product == DIFFERENCE:
            out |= {"reason": h.reason, "step": h.step}
        return out


def _deadline(effort: Effort, share: float) -> Callable[[], bool]:
    """True when this share of the time that is left now is over."""
    if effort.budget is None:
        return lambda: False
    now = time.perf_counter()
    end = now + share * (effort.began + effort.budget - now)
    return lambda: time.perf_counter() > end


def _ends(
    h: Hessian, effort: Effort, product: Callable[[Tensor], Tensor], spent: Callable[[], bool]
) -> Ends:
    """Lanczos from a random vector of this seed."""
    size = h.gradient.numel()
    generator = torch.Generator("cpu").manual_seed(effort.seed)
    start = torch.randn(size, generator=generator, dtype=torch.float32).to(h.gradient)
    products = max(2, min(PRODUCTS * effort.iterations, _BASIS // size))
    return lanczos(product, start, products, spent=spent)


def _said(ends: Ends) -> dict[str, Any]:
    return {
        "largest": ends.largest,
        "largest_residual": ends.largest_residual,
        "smallest": ends.smallest,
        "smallest_residual": ends.smallest_residual,
        "largest_magnitude": ends.largest_magnitude,
        "products": ends.products,
        "stopped": ends.stopped,
        "converged": ends.converged,
    }


def _half_inverse(
    rule: Rule, model: nn.Module, h: Hessian, optimizer: Optimizer | None
) -> Tensor:
    """``P^-1/2`` of every parameter, ``(N,)``."""
    parameters = trainable(model)
    pieces = h.gradient.split([p.numel() for p in parameters])
    gradients = [g.reshape(p.shape).to(p) for g, p in zip(pieces, parameters, strict=True)]
    return flat(rule.preconditioner(parameters, gradients, optimizer)).to(h.gradient)
