"""Sigma-reparametrisation (Zhai et al., "Stabilizing Transformer Training by Preventing Attention
Entropy Collapse", arXiv 2303.06296).

    W' = gamma W / sigma(W)

with sigma the largest singular value, by one step of power iteration in each training pass, and
gamma a learned number that begins at 1: however large W becomes, the layer's gain is gamma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from depthgauge.errors import NetworkError
from depthgauge.recipes.layers import place_of
from depthgauge.recipes.rounding import rounding, wide
from depthgauge.recipes.rules import Count, Plan, Recipe
from depthgauge.trace.counted import Layout, Weight
from depthgauge.trace.layout import layout

__all__ = ["SIGMA_REPARAM", "SigmaReparam"]

#: How far a spectral norm may lie from gamma, and gamma from 1.
_TOLERANCE: Final = 1e-3


class SigmaReparam(nn.Module):
    """``gamma W / (u . W v)``: u and v are the singular vectors of the largest singular value at
    the start, and follow it by a step of power iteration in each training pass. ``axis``: where the
    outputs lie. A weight of a narrow format is divided in float32 and rounded once."""

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor, axis: int = 0) -> None:
        super().__init__()
        self.axis, self.gamma = axis, nn.Parameter(weight.new_ones(()))
        left, _, right = torch.linalg.svd(self._flat(weight.detach()).double(), full_matrices=False)
        self.register_buffer("u", left[:, 0].to(weight))
        self.register_buffer("v", right[0].to(weight))

    def _flat(self, weight: Tensor) -> Tensor:
        return weight.transpose(0, self.axis).flatten(1)

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                flat = wide(self._flat(weight))
                v = normalize(flat.T @ wide(self.u), dim=0)
                self.u.copy_(normalize(flat @ v, dim=0))
                self.v.copy_(v)
        return self.divided(weight)

    def divided(self, weight: Tensor) -> Tensor:
        """``gamma W / (u . W v)`` as the vectors are now, without a step."""
        # New tensors, since the next pass writes over what this one keeps for its gradient; and of
        # length 1, which those of a narrow format are not.
        u, v = (normalize(wide(x.clone()), dim=0) for x in (self.u, self.v))
        sigma = u @ wide(self._flat(weight)) @ v
        return (wide(self.gamma) * wide(weight) / sigma).to(weight.dtype)


def _plan(layout: Layout) -> Plan:
    if not layout.layers:
        raise NetworkError("no weight layer was found, and sigma-reparametrisation is about them")
    return Plan()


def _places(model: nn.Module, batch: Any) -> dict[tuple[str, str], Weight]:
    """Every weight layer; queries, keys and values in one matrix are one."""
    return {place_of(weight): weight for weight in layout(model, batch).layers}


def _put(model: nn.Module, batch: Any) -> str:
    done, own = 0, []
    for (path, name), weight in _places(model, batch).items():
        module = model.get_submodule(path)
        if parametrize.is_parametrized(module, name):
            own.append(weight.path)
            continue
        made = SigmaReparam(getattr(module, name), weight.axis).train(module.training)
        parametrize.register_parametrization(module, name, made)
        done += 1
    words = f"{done} weights divided by their spectral norm, times a learned number 1"
    return f"{words}; {len(own)} are parametrised already ('{own[0]}')" if own else words


def _written(found: Layout, named: Mapping[str, Tensor], path: str) -> tuple[Tensor, Tensor] | None:
    """Of a weight that the model's own code computes, a multiple of its parameter by a statistic of
    that and one learned number: the number, and the weight. None of another."""
    made = found.computed.get(path)
    if made is None or not made.reduced or len(made.numbers) != 1:
        return None
    used, raw = made.weight.double(), named[path].detach().double()
    times = float((used * raw).sum() / raw.square().sum().clamp_min(1e-300))
    close = torch.allclose(used, times * raw, rtol=1e-2, atol=1e-3 * float(used.abs().max()))
    return (named[made.numbers[0]].detach(), made.weight) if close else None


def _norms(model: nn.Module, batch: Any) -> Sequence[Count]:
    """Which weights are reparametrised, with which numbers, and the norms that they have."""
    found, named = layout(model, batch), dict(model.named_parameters())
    places = {place_of(weight): weight for weight in found.layers}
    bare, begun, off = [], [], []
    for (path, name), weight in places.items():
        module = model.get_submodule(path)
        own = getattr(module, "parametrizations", {})
        made = own[name][0] if name in own else None
        if isinstance(made, SigmaReparam):
            number = made.gamma.detach()
            with torch.no_grad():
                used = made.divided(own[name].original)
        elif (given := _written(found, named, weight.path)) is not None:
            number, used = given
        else:
            bare.append(weight.path)
            continue
        gamma = float(number)
        if abs(gamma - 1) > _TOLERANCE + rounding(number.dtype):
            begun.append(f"that of '{weight.path}' is {gamma:.4g}")
        flat = used.detach().transpose(0, weight.axis).flatten(1)
        norm = float(torch.linalg.matrix_norm(flat.double(), 2))
        # Where singular values lie close, a rounding moves the largest by all that it is.
        if abs(norm - abs(gamma)) > (_TOLERANCE + rounding(used.dtype)) * abs(gamma):
            off.append(f"'{weight.path}' has {norm:.4g} and gamma {gamma:.4g}")
    whole, there = len(places), len(places) - len(bare)
    counts = [
        Count("weights divided by their spectral norm", there, whole,
              f"'{bare[0]}' is its own" if bare else "")
    ]  # fmt: skip
    if there:
        counts += [
            Count("learned numbers gamma that begin at 1", there - len(begun), there,
                  begun[0] if begun else ""),
            Count("weights whose spectral norm is gamma", there - len(off), there,
                  off[0] if off else ""),
        ]  # fmt: skip
    return counts


SIGMA_REPARAM = Recipe(
    "sigma-reparam",
    "sigma-reparametrisation",
    "linear layers and convolutions; made for Transformers",
    (
        "each weight is divided by its spectral norm and multiplied by a learned number, 1 at the "
        "start",
        "the norm by one step of power iteration in each training pass; initialisers as they are",
    ),
    (
        "in evaluation mode the vectors stand still: a weight that was changed by hand needs some "
        "training passes before its norm is right",
        "weight decay of W does nothing but change how fast it turns; gamma is a scale",
        "queries, keys and values in one matrix share one norm and one number",
        "a kernel's norm is that of its matrix, not of the convolution",
    ),
    "Zhai et al., arXiv 2303.06296",
    _plan,
    tier=2,
    judgement="every weight layer takes part, the head too unless an embedding shares its weight",
    after=_put,
    measured=_norms,
    unwritten="an equation's weights are numbers, not quotients; apply it to the module that is "
    "built of one",
)
