"""Adaptive gradient clipping (Brock, De, Smith and Simonyan, arXiv 2102.06171), unit by unit.

    G_i <- limit max(|W_i|, eps) / max(|G_i|, 1e-6) G_i    where |G_i| > limit max(|W_i|, eps)

Index legend: ``i`` a unit, which is all that one output of a layer is made from; ``|.|`` its
Euclidean norm. A unit is a slice across the *output* axis: of a linear layer's ``(out, in)`` and of
a convolution's ``(out, in, ...)`` axis 0, of a transposed convolution's ``(in, out / groups, ...)``
and of an embedding's ``(words, out)`` axis 1. A vector (bias, gain) is one unit, a scalar another.

The classifier is left out, by who calls. A weight of zeros has the limit ``limit * eps``: clipping
holds back what a recipe starts at zero. Under a loss scaler unscale the gradients first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import SpecificationError, nearest
from depthgauge.recipes.given import number

__all__ = ["LIMIT", "AdaptivelyClipped", "Units", "clip", "clip_gradients", "units_of"]

#: The paper's for a batch of 4096; a smaller batch stands a larger one.
LIMIT = 0.01
EPS, DIVISOR_EPS = 1e-3, 1e-6

#: Layers whose weight has its outputs on axis 1; of other layers it is axis 0.
_SECOND: Final = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
    nn.EmbeddingBag,
)


@dataclass(frozen=True)
class Units:
    """Where a weight has its outputs; with ``groups`` the same place of axis 1 is another output in
    each group of axis 0 (a transposed convolution in groups)."""

    axis: int = 0
    groups: int = 1

    def norms(self, x: Tensor) -> Tensor:
        """The norm of each unit, in float64, shaped to multiply x."""
        if x.dim() < 2:
            return _norms(x, list(range(x.dim())))
        if self.groups == 1:
            return _norms(x, [axis for axis in range(x.dim()) if axis != self.axis])
        assert self.axis == 1, self
        entering = len(x) // self.groups  # of one group
        own = x.reshape(self.groups, entering, *x.shape[1:])
        norms = _norms(own, [axis for axis in range(own.dim()) if axis not in (0, 2)])
        return norms.flatten(0, 1).repeat_interleave(entering, 0)


def _norms(x: Tensor, axes: list[int]) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=True, dtype=torch.float64)
    return found


def clip(
    gradient: Tensor,
    weight: Tensor,
    units: Units | None = None,
    *,
    limit: float = LIMIT,
    eps: float = EPS,
) -> Tensor:
    """The gradient of one weight with its units clipped; numbers that are not finite stay so."""
    found = units or Units()
    most = limit * found.norms(weight).clamp(min=eps)
    norms = found.norms(gradient)
    scaled = gradient * (most / norms.clamp(min=DIVISOR_EPS))
    return torch.where(norms > most, scaled.to(gradient.dtype), gradient)


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter] | Mapping[nn.Parameter, Units],
    *,
    limit: float = LIMIT,
    eps: float = EPS,
) -> None:
    """Clip the gradient of every parameter that has one, in place.

    ``parameters``: what ``units_of`` gives, or parameters whose outputs are all on axis 0. Raises
    SpecificationError for a limit or an eps that is not above 0, and for a sparse gradient.
    """
    number("limit", limit, error=SpecificationError)
    number("eps", eps, error=SpecificationError)
    for parameter, units in _known(parameters).items():
        if (gradient := parameter.grad) is None:
            continue
        if gradient.layout != torch.strided:
            raise SpecificationError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse and "
                f"cannot be clipped; use sparse=False in its embedding"
            )
        gradient.copy_(clip(gradient, parameter, units, limit=limit, eps=eps))


def _known(
    parameters: Iterable[nn.Parameter] | Mapping[nn.Parameter, Units],
) -> dict[nn.Parameter, Units]:
    if isinstance(parameters, Mapping):
        return dict(parameters)
    return {parameter: Units() for parameter in parameters}


def units_of(model: nn.Module, without: Iterable[str] = ()) -> dict[nn.Parameter, Units]:
    """The units of every parameter that learns, by the layer that owns it.

    ``without``: dotted names of modules or parameters that are not clipped, ``("fc",)`` for the
    classifier: whole names, no substrings. A tied parameter is that of its first owner, and left
    out where one of its names is. A parameter of no known layer has its outputs on axis 0. Raises
    SpecificationError for a name that the model does not have.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    left = (without,) if isinstance(without, str) else tuple(without)
    owners = {name for name, _ in model.named_modules(remove_duplicate=False)}
    known = [*owners, *(name for name, _ in named)]
    for name in left:
        if not name or name not in known:
            raise SpecificationError(
                f"without names '{name}', which the model does not have{nearest(name, known)}"
            )
    out = {p for name, p in named if any(f"{name}.".startswith(f"{x}.") for x in left)}
    found: dict[nn.Parameter, Units] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in out:
                found.setdefault(parameter, _units(module, name, parameter))
    return found


def _units(module: nn.Module, name: str, parameter: nn.Parameter) -> Units:
    if name != "weight":
        return Units()
    if isinstance(module, _SECOND):
        return Units(1, getattr(module, "groups", 1))
    # The linear layer of transformers' GPT-2, (in, out); an optional package, so known by its name.
    return Units(1 if type(module).__name__ == "Conv1D" and parameter.dim() == 2 else 0)


class AdaptivelyClipped:
    """Any optimiser, with gradients clipped before each step.

    ``optimiser`` is the one inside: a scheduler, and who saves its state, is given that one.
    ``parameters`` as for ``clip_gradients``.
    """

    def __init__(
        self,
        optimiser: torch.optim.Optimizer,
        parameters: Iterable[nn.Parameter] | Mapping[nn.Parameter, Units],
        *,
        limit: float = LIMIT,
        eps: float = EPS,
    ) -> None:
        number("limit", limit, error=SpecificationError)
        number("eps", eps, error=SpecificationError)
        self.optimiser, self.limit, self.eps = optimiser, limit, eps
        self.parameters = _known(parameters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clip, then step; with a closure after each time that it is called."""
        if closure is None:
            self._clip()
            return self.optimiser.step()

        def clipped() -> Any:
            loss = closure()
            self._clip()
            return loss

        return self.optimiser.step(clipped)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimiser.zero_grad(set_to_none)

    def _clip(self) -> None:
        clip_gradients(self.parameters, limit=self.limit, eps=self.eps)
