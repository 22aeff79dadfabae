"""GradInit (Zhu et al., arXiv 2102.08098): sizes of tensors from which the first step goes far.

    least  L(S'; w - eta A[g])    subject to  |g|_p <= gamma,    g the gradient of L(S; w)

Index legend: ``w`` every tensor times its size s, ``S`` and ``S'`` two parts of the batch that
share half. Of SGD ``A[g] = g / |g|`` and p = 2, of Adam ``A[g] = sign g`` and p = 1. Where |g|_p is
above gamma, a step goes down |g|_p, else down the loss; no size falls below 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError, expect_callable
from depthgauge.recipes.given import number, whole
from depthgauge.recipes.losses import slopes_of
from depthgauge.recipes.rules import Count, Plan, Recipe
from depthgauge.recipes.searched import Loss, Reached, Round, Sized, searched, settled, sized
from depthgauge.trace.batches import examples, mapped
from depthgauge.trace.counted import Layout

__all__ = ["FLOOR", "GRADINIT", "gradinit"]

#: The smallest size of a tensor.
FLOOR: Final = 0.01
#: Rates of Adam in the logarithms of sizes, one after the other in a search.
_RATES: Final = (0.1, 0.03, 0.01)
_STEPS: Final = 20
#: What a search is to gain for another one: of the loss, or of the norm above gamma.
_SHARE: Final = 0.002
#: How far above gamma the norm may be: rounding of tensors that were multiplied.
_CLOSE: Final = 1e-3


@dataclass(frozen=True)
class _Step:
    """The first step of an optimiser: ``power`` is the norm's, 1 of Adam, 2 of SGD."""

    power: int
    rate: float
    gamma: float

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        if self.power == 1:
            return torch.stack([g.abs().sum() for g in gradients]).sum()
        return torch.stack([g.square().sum() for g in gradients]).sum().sqrt()

    def after(
        self, held: Mapping[str, Tensor], gradients: Sequence[Tensor], norm: Tensor
    ) -> dict[str, Tensor]:
        """The parameters after it."""
        moved = [g.sign() if self.power == 1 else g / norm for g in gradients]
        return {n: p - self.rate * a for (n, p), a in zip(held.items(), moved, strict=True)}


def _parts(batch: Any) -> tuple[Any, Any]:
    """The first two thirds of the examples and the last two. Raises NetworkError of fewer than
    three."""
    count = examples(batch)
    if count < 3:
        raise NetworkError(
            f"the batch has {count} examples, expected at least 3, of which two parts share some"
        )
    third = count // 3

    def part(chosen: slice) -> Any:
        return mapped(batch, lambda x: x[chosen] if x.dim() and len(x) == count else x)

    return part(slice(0, 2 * third)), part(slice(third, 3 * third))


def _reached(net: Sized, step: _Step, logs: Mapping[str, Tensor]) -> tuple[Reached, Tensor]:
    first, second = _parts(net.batch)
    held = net.at({name: x.exp().to(net.parameters[name]) for name, x in logs.items()})
    gradients = slopes_of(net.of(held, first), list(held.values()))
    norm = step.norm(gradients)
    above = float(norm.detach()) / step.gamma - 1
    if not above <= _CLOSE:
        return Reached(above, math.inf if math.isnan(above) else 0.0), norm
    later = net.of(step.after(held, gradients, norm), second)
    return Reached(0.0, float(later.detach())), later / step.rate


class _Adam:
    """Steps of Adam in the logarithms of sizes."""

    def __init__(self, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self.mean, self.square = dict[str, float](), dict[str, float]()

    def __call__(self, slopes: Mapping[str, float]) -> Mapping[str, float]:
        self.steps += 1
        found = {}
        for name, slope in slopes.items():
            self.mean[name] = 0.9 * self.mean.get(name, 0.0) + 0.1 * slope
            self.square[name] = 0.999 * self.square.get(name, 0.0) + 0.001 * slope * slope
            mean = self.mean[name] / (1 - 0.9**self.steps)
            root = math.sqrt(self.square[name] / (1 - 0.999**self.steps))
            found[name] = -self.rate * mean / (root + 1e-12)
        return found


def _plan(layout: Layout) -> Plan:
    if not layout.layers:
        raise NetworkError("no weight layer was found, and GradInit is about their sizes")
    return Plan()


def gradinit(
    loss: Loss | None = None,
    optimiser: str = "sgd",
    rate: float = 0.1,
    gamma: float = 1.0,
    steps: int = _STEPS,
) -> Recipe:
    """GradInit of a ``loss(output)`` or ``loss(output, batch)``; without one, of that among the
    outputs, or of the cross-entropy with labels that are drawn once. ``optimiser``: ``"sgd"`` or
    ``"adam"``, whose first step has this ``rate``; ``gamma``: the largest norm of the gradient;
    ``steps``: at each of three rates of a search. Raises NetworkError."""
    if optimiser not in ("sgd", "adam"):
        raise NetworkError(f"optimiser is {optimiser!r}, expected 'sgd' or 'adam'")
    expect_callable("loss", loss, "a function of the output, or of the output and the batch")
    rate, gamma, steps = number("rate", rate), number("gamma", gamma), whole("steps", steps)
    step = _Step(1 if optimiser == "adam" else 2, rate, gamma)

    def search(model: nn.Module, batch: Any, least: Mapping[str, float]) -> Round:
        with sized(model, batch, loss, matrices=False, normalised=True) as net:

            def evaluate(logs: Mapping[str, Tensor]) -> tuple[Reached, Tensor]:
                return _reached(net, step, logs)

            floors = {name: least.get(name, FLOOR) for name in net.names}
            return searched(net.names, steps, evaluate, [_Adam(r) for r in _RATES], floors)

    def scaled(model: nn.Module, batch: Any) -> str:
        found = settled(model, lambda least: search(model, batch, least), _SHARE, FLOOR)
        first, last = found.first.start, found.last.start
        words = f"sizes of {len(found.last.sizes)} tensors searched: norm of the gradient "
        words += f"{_norm(first, gamma)} -> {_norm(last, gamma)}, loss after a step "
        words += f"{_loss(first)} -> {_loss(last)}"
        zero = [n for n, p in model.named_parameters() if not bool(p.any())]
        words += f"; {len(zero)} are zero and have no size ('{zero[0]}')" if zero else ""
        if last.missed:
            words += f"; no sizes were met that bring the norm to {gamma:g}"
        return words + ("" if found.still else "; it still falls")

    def least(model: nn.Module, batch: Any) -> Sequence[Count]:
        found = search(model, batch, {})
        start, best = found.start, found.best
        if not start.finite:
            why = "those of this batch are not"
            return (Count("losses and gradients that are finite", 0, 1, why),)
        bound = f"gradients of a norm of at most {gamma:g}"
        why = f"that of this batch has {_norm(start, gamma)}"
        within = Count(bound, int(not start.missed), 1, why)
        if start.missed:
            return (within,)
        what = f"search that lowers the loss after a step, {start.value:.4g}, by 0.2 per cent"
        why = f"it reaches {best.value:.4g}, the sizes of tensors are not those of GradInit"
        return (within, Count(what, int(best.gained(start, _SHARE)), 0, why))

    kind = "Adam" if optimiser == "adam" else "gradient descent"
    norm = "sum of magnitudes" if optimiser == "adam" else "Euclidean norm"
    return Recipe(
        "gradinit",
        "GradInit",
        f"a batch of data and a loss; {kind} at a rate of {rate:g}, or another by "
        f"depthgauge.recipes.gradinit.gradinit",
        (
            f"every tensor has a size, at least {FLOOR:g} times what it had",
            f"the sizes go down the loss after one step of {kind} at {rate:g}, "
            + ("sign g" if optimiser == "adam" else "g / |g|"),
            f"where the {norm} of the gradient is above {gamma:g}, they go down that first",
            "the step is taken on two thirds of the batch, the loss on another two, which share "
            "half; batch norms take their batch",
        ),
        (
            "a tensor of zeros has no size and stays zero",
            "what is large and lowers the loss by its size alone, a head, grows as far as the norm "
            "of the gradient lets it",
            "one step of another optimiser or rate asks for other sizes",
            "another batch gives other sizes: an audit wants the batch that it was made with",
        ),
        "Zhu et al., arXiv 2102.08098; zhuchen03/gradinit",
        _plan,
        tier=3,
        judgement="one batch is all the data; its loss is the one among the outputs or that of "
        "labels that are drawn, unless one is given; the derivative goes through the step's "
        "gradient too, which the authors' code leaves out; sizes move by Adam in their "
        "logarithms, a search is repeated from the best that it met until it gains less than "
        "0.2 per cent, and an audit runs that last one again",
        after=scaled,
        measured=least,
        searches=True,
    )


def _norm(reached: Reached, gamma: float) -> str:
    return f"{(1 + reached.missed) * gamma:.4g}" if reached.missed else f"at most {gamma:g}"


def _loss(reached: Reached) -> str:
    return "not taken" if reached.missed else f"{reached.value:.4g}"


GRADINIT = gradinit()
