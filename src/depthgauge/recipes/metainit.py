"""MetaInit (Dauphin and Schoenholz, NeurIPS 2019): sizes of weights at which the gradient changes
least along itself.

    GQ = 1/P sum_i | (g_i - (H g)_i) / (g_i + eps s_i) - 1 |,    eps = 1e-5

Index legend: ``P`` numbers in all parameters, ``g`` the gradient ``(P,)``, ``H g`` the Hessian's
product with it, ``s`` the sign of ``g``, 1 at 0, a constant. Steps of the sign, with momentum, in
the size of each tensor of two axes and more; directions, biases and gains stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError, expect_callable
from depthgauge.recipes.given import whole
from depthgauge.recipes.losses import slopes_of
from depthgauge.recipes.rules import Count, Plan, Recipe
from depthgauge.recipes.searched import Loss, Reached, Round, searched, settled, sized
from depthgauge.trace.counted import Layout

__all__ = ["EPS", "METAINIT", "gradient_quotient", "metainit"]

EPS: Final = 1e-5
_MOMENTUM: Final = 0.9
#: Rates of one search, of the logarithms of sizes, each for so many steps.
_RATES: Final = (0.05, 0.02, 0.005)
#: One size for all weights, from the best of which a search goes on: where all are off together the
#: quotient is too rough for its steps.
_SCALES: Final = (0.25, 0.5, 2.0, 4.0)
#: What a search is to gain, of the quotient, for another one.
_SHARE: Final = 0.05


def gradient_quotient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The quotient, on the graph of the loss: 0 where the gradient does not change along itself.
    Raises NetworkError where there is no gradient, or it cannot be differentiated."""
    g = slopes_of(loss, parameters)
    half = torch.stack([x.square().sum() for x in g]).sum() / 2
    if not half.requires_grad:  # a loss that is linear in all of them
        products: Sequence[Tensor] = [torch.zeros_like(x) for x in g]
    else:
        products = torch.autograd.grad(
            half, parameters, create_graph=True, allow_unused=True, materialize_grads=True
        )
    total = [
        ((x - product) / (x + EPS * torch.where(x.detach() >= 0, 1.0, -1.0)) - 1).abs().sum()
        for x, product in zip(g, products, strict=True)
    ]
    return torch.stack(total).sum() / sum(p.numel() for p in parameters)


def _search(
    model: nn.Module, batch: Any, loss: Loss | None, steps: int, least: Mapping[str, float]
) -> Round:
    with sized(model, batch, loss, matrices=True) as net:

        def evaluate(logs: Mapping[str, Tensor]) -> tuple[Reached, Tensor]:
            held = net.at({name: x.exp().to(net.parameters[name]) for name, x in logs.items()})
            quotient = gradient_quotient(net.of(held, net.batch), list(held.values()))
            return Reached(0.0, float(quotient.detach())), quotient

        return searched(
            net.names, steps, evaluate, [_Signed(rate) for rate in _RATES], least, _SCALES
        )


class _Signed:
    """Steps of the sign, with momentum."""

    def __init__(self, rate: float) -> None:
        self.rate, self.speed = rate, dict[str, float]()

    def __call__(self, slopes: Mapping[str, float]) -> Mapping[str, float]:
        for name, slope in slopes.items():
            sign = (slope > 0) - (slope < 0)
            self.speed[name] = _MOMENTUM * self.speed.get(name, 0.0) - self.rate * sign
        return self.speed


def _plan(layout: Layout) -> Plan:
    if not layout.layers:
        raise NetworkError("no weight layer was found, and MetaInit is about their sizes")
    return Plan()


def metainit(loss: Callable[..., Any] | None = None, steps: int = 25) -> Recipe:
    """MetaInit of a ``loss(output)`` or ``loss(output, batch)``; without one, of that among the
    outputs, or of the cross-entropy with labels that are drawn once. ``steps``: at each of three
    rates of a search."""
    expect_callable("loss", loss, "a function of the output, or of the output and the batch")
    steps = whole("steps", steps)
    search = partial(_search, loss=loss, steps=steps)

    def scaled(model: nn.Module, batch: Any) -> str:
        found = settled(model, lambda least: search(model, batch, least=least), _SHARE)
        names = found.last.sizes
        words = f"sizes of {len(names)} weights searched: gradient quotient "
        words += f"{found.first.start.value:.4g} -> {found.last.start.value:.4g}"
        zero = [n for n, p in model.named_parameters() if p.dim() > 1 and not bool(p.any())]
        words += f"; {len(zero)} are zero and have no size ('{zero[0]}')" if zero else ""
        return words + ("" if found.still else "; it still falls")

    def least(model: nn.Module, batch: Any) -> Sequence[Count]:
        found = search(model, batch, least={})
        if not found.start.finite:
            return (Count("gradient quotients that are finite", 0, 1, "that of this batch is not"),)
        what = f"search that lowers the gradient quotient of {found.start.value:.4g} by 5 per cent"
        gains = found.best.gained(found.start, _SHARE)
        why = f"it reaches {found.best.value:.4g}, the sizes of weights are not those of MetaInit"
        return (Count(what, int(gains), 0, why),)

    return Recipe(
        "metainit",
        "MetaInit",
        "a batch of data; an initialisation without zeros; a loss that can be differentiated three "
        "times",
        (
            "GQ = mean of |(g - H g) / (g + 1e-5 sign g) - 1| over all parameters, g the gradient",
            "the sizes of matrices and kernels go down GQ by steps of the sign with momentum 0.9",
            "directions, biases and gains of norms stay as they are",
        ),
        (
            "a weight of zeros has no size and stays zero",
            "of a gradient that is exactly zero the term is |H g| / 1e-5 off 1: dead units and few "
            "examples make the quotient large and rough",
            "the derivative of a backward pass that is written by hand is taken as it is given",
            "in training mode dropout and batch norm spoil it: evaluation mode",
            "another batch gives other sizes: an audit wants the batch that it was made with",
            "an audit sees what lowers the quotient by 5 per cent: all weights 1/4 to 4 times as "
            "large, or what a descent from the best of those reaches; one weight of many that is "
            "off may cost less, and a lower place behind a hill is not seen",
        ),
        "Dauphin and Schoenholz, NeurIPS 2019; google/init2winit",
        _plan,
        tier=3,
        judgement="the batch as it is with one draw of labels, where the paper draws Gaussian "
        "numbers and labels at each step; steps are of the logarithm of a size, since an absolute "
        "one of 0.1 turns small weights over, from the best of all weights at 1/4, 1/2, 1, 2 and 4 "
        "times their size; a search is repeated from the best that it met until "
        "it gains less than 5 per cent, and an audit runs that last one again",
        after=scaled,
        measured=least,
        searches=True,
    )


METAINIT = metainit()
