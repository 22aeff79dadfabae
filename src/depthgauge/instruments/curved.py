"""The curvature of the loss at one point, plain and scaled by the optimiser, within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.instruments.hessian import Hessian, flat, hessian, trainable
from depthgauge.instruments.lanczos import Ends, lanczos
from depthgauge.instruments.stability import Rules
from depthgauge.instruments.subject import Effort, Subject

__all__ = ["LOOK", "Task", "as_wide", "cut", "late", "nothing", "point"]

#: Passes, forward and back, that a product takes: 1.6 to 2.1 where they were counted.
PRODUCT: Final = 2
#: And a look, at the least: the pass with a graph of its gradient, a first product to see whether
#: there is one, that of the gradient and two of Lanczos.
LOOK: Final = 2 + 4 * PRODUCT

#: Numbers that the vectors of Lanczos may hold together.
_BASIS: Final = 2**29
_NOT_TAKEN: Final = Ends(math.nan, math.nan, math.nan, math.nan, 0, "budget")


@dataclass(frozen=True)
class Task:
    """Which network under which optimiser; ``products`` of Lanczos, at most."""

    subject: Subject
    effort: Effort
    rules: Rules
    products: int
    given: Optimizer | None = None  # of a training run, with what it has gathered
    seconds: float = 0.0  # of a pass forward and back, where there is a budget

    def short(self, passes: float) -> str:
        """``""``, or why so many passes do not fit in the time that is left, if some is."""
        need, left = passes * self.seconds, self.effort.left
        if not 0 < left < need:
            return ""
        return (
            f"it needs about {need:.2g} seconds at the least, {passes:g} times a pass of "
            f"{self.seconds:.2g}, and its share of the budget of {self.effort.budget:g} seconds "
            f"has {left:.2g} left"
        )


def point(
    task: Task,
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer | None,
    share: float,
    wrong: str = "",
) -> dict[str, Any]:
    """What the curvature is at one point; ``share``: of the time that is left; ``wrong``: why
    double backward is not to be believed, if that is known."""
    if task.effort.spent:
        return cut(task.effort, "before it")
    if why := task.short(LOOK):
        return late(why)
    until = _deadline(task, share)
    with hessian(task.subject.chain, model, batch, wrong) as h:
        if not math.isfinite(h.loss):
            return {"loss": h.loss, **nothing(f"the loss is {h.loss}")}
        if not bool(h.gradient.isfinite().all()):
            return {"loss": h.loss, **nothing("the gradient has inf or NaN in it")}
        return _curved(task, model, h, optimizer, until)


def _curved(
    task: Task,
    model: nn.Module,
    h: Hessian,
    optimizer: Optimizer | None,
    until: Callable[[], bool],
) -> dict[str, Any]:
    """The spectrum that the ratio is made of comes first: what is left of the time is for H's."""
    length = float(torch.linalg.vector_norm(h.gradient, dtype=torch.float64))
    out: dict[str, Any] = {"loss": h.loss, "gradient_norm": length}
    one, scaled = task.rules.one, None
    said: dict[str, Any] = {}
    if one is None or one.adaptive:
        half, decay = _scales(task.rules, model, h, _states(task, model, optimizer))

        def product(v: Tensor) -> Tensor:
            return half * (h.times(half * v) + decay * half * v)

        scaled, _ = _ends(task, product, half * h.gradient, until)
        name = "scaled" if one is None else "preconditioned"
        said[name] = _said(scaled) | {"left_out": int((half == 0).sum())}
    if scaled is None or not until():
        ends, out["along_gradient"] = _ends(task, h.times, h.gradient, until)
        if not length > 0:
            out["along_gradient_reason"] = "the gradient is 0"
    else:
        ends, why = _NOT_TAKEN, _spent(task.effort, "on the scaled curvature, which comes first")
        out |= {"along_gradient": math.nan, "along_gradient_reason": why, "largest_reason": why}
    out |= _said(ends) | said | _ratio(task, ends if scaled is None else scaled)
    out["converged"] = ends.converged and (scaled is None or scaled.converged)
    out |= {"product": h.product, "dtype": str(h.dtype).removeprefix("torch.")}
    if h.reason:
        out["product_reason"] = h.reason
    if h.step is not None:
        out["finite_difference_step"] = h.step
    if h.apart is not None:
        out["double_backward_error"] = h.apart
    return out


def _ratio(task: Task, ends: Ends) -> dict[str, Any]:
    """The ratio of the curvature that the step meets, and its margin, or why it is not known and
    what it is at the least."""
    one = task.rules.one
    ratio = ends.largest
    if one is not None:
        ratio = one.lr * (ends.largest + (0.0 if one.adaptive else one.coupled)) / one.limit
    if math.isnan(ratio):
        return {"ratio": ratio, "ratio_reason": "a product of the Hessian has inf or NaN in it"}
    if not ends.settled:
        taken = f"{ends.products} product{'s' if ends.products != 1 else ''}"
        why = f"after {taken}, the curvature had not settled"
        if ends.stopped == "budget":
            why = _spent(task.effort, why)
        why += f"; the ratio is at least {ratio:.3g}" if ratio > 0 else ""
        return {"ratio": math.nan, "ratio_reason": why, "ratio_at_least": ratio}
    if ratio > 0:
        return {"ratio": ratio, "margin_decades": -math.log10(ratio)}
    why = "the ratio is not above 0"
    return {"ratio": ratio, "margin_decades": math.inf, "margin_decades_reason": why}


def _ends(
    task: Task,
    product: Callable[[Tensor], Tensor],
    direction: Tensor,
    spent: Callable[[], bool],
) -> tuple[Ends, float]:
    """Lanczos from a random vector of this seed, and the curvature along ``direction``: no largest
    eigenvalue is below that, so that it counts where Lanczos did not come so far."""
    along, rest = _along(product, direction)
    size = direction.numel()
    generator = torch.Generator("cpu").manual_seed(task.effort.seed)
    start = torch.randn(size, generator=generator, dtype=torch.float32).to(direction)
    products = max(2, min(task.products, _BASIS // size))
    return lanczos(product, start, products, spent=spent).at_least(along, rest), along


def _along(product: Callable[[Tensor], Tensor], direction: Tensor) -> tuple[float, float]:
    """``u^T A u`` and ``|A u - (u^T A u) u|`` for the unit vector of a direction; NaN for 0."""
    length = torch.linalg.vector_norm(direction, dtype=torch.float64)
    if not length > 0:
        return math.nan, math.nan
    unit = direction / length.to(direction)
    times = product(unit)
    along = torch.dot(unit.double(), times.double())
    rest = torch.linalg.vector_norm(times - along.to(times) * unit, dtype=torch.float64)
    return float(along), float(rest)


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


def _states(task: Task, model: nn.Module, optimizer: Optimizer | None) -> list[Mapping[str, Any]]:
    """What the optimiser holds of each trainable parameter: nothing at step 0, unless it comes from
    a training run."""
    parameters = trainable(model)
    if optimizer is None and task.given is not None:
        optimizer, parameters = task.given, trainable(task.subject.model)
    if optimizer is None:
        return [{}] * len(parameters)
    every = zip(parameters, trainable(model), strict=True)
    return [as_wide(optimizer.state.get(p, {}), q) for p, q in every]


def as_wide(state: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """What an optimiser holds of a parameter, its moments in the type of the parameter's copy."""
    return {
        name: value.to(p.dtype)
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == p.shape
        else value
        for name, value in state.items()
    }


def _scales(
    rules: Rules, model: nn.Module, h: Hessian, states: Sequence[Mapping[str, Any]]
) -> tuple[Tensor, Tensor]:
    """``S^1/2 P^-1/2`` and W of every parameter, ``(N,)``; S is 1 where one rule holds for all."""
    parameters, one = trainable(model), rules.one
    pieces = torch.split(h.gradient, [p.numel() for p in parameters])
    scales, decay = [], []
    reached = h.reached or (True,) * len(parameters)
    every = zip(parameters, pieces, rules.each, states, reached, strict=True)
    for p, piece, rule, state, moves in every:
        scale = torch.zeros_like(p) if rule is None or not moves else torch.ones_like(p)
        if rule is not None and rule.adaptive and moves:
            scale = rule.preconditioner(p, piece.reshape(p.shape).to(p), state)
        if rule is not None and one is None:
            scale = scale * math.sqrt(rule.lr / rule.limit)
        scales.append(scale)
        decay.append(torch.full_like(p, rule.coupled if rule is not None else 0.0))
    return flat(scales).to(h.gradient), flat(decay).to(h.gradient)


def nothing(why: str) -> dict[str, Any]:
    """No ratio, and why."""
    return {"ratio": math.nan, "ratio_reason": why, "converged": False}


def late(why: str) -> dict[str, Any]:
    """No ratio, because the time is too short to begin."""
    return nothing(why) | {"stopped": "budget"}


def cut(effort: Effort, when: str) -> dict[str, Any]:
    """No ratio, because the time is spent."""
    return late(_spent(effort, when))


def _spent(effort: Effort, when: str) -> str:
    return f"its share of the budget of {effort.budget:g} seconds was spent {when}"


def _deadline(task: Task, share: float) -> Callable[[], bool]:
    """True when another product would not end within this share of the time that is left now."""
    left = task.effort.left
    end = (1 - share) * left if math.isfinite(left) else -math.inf
    return lambda: task.effort.left - PRODUCT * task.seconds < end
