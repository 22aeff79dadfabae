"""Does a step of adaptive clipping keep to its rule? From gradients that are put there, never from
the code: what is left of them says over which numbers a norm was taken.

Every unit of every weight gets a gradient of 4 times the limit of the rule, but for each second
one, which gets half of it and is to be left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.instruments.hessian import duplicate
from depthgauge.recipes.clipping import EPS, LIMIT, Units, clip, units_of
from depthgauge.recipes.finding import Finding
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

__all__ = ["Clip", "clipping_held"]

#: Of a gradient's size, how far it may lie from the rule's.
_CLOSE: Final = 1e-4

_BY_NORM: Final = "multiplied by the same number as all others, as one norm of all gradients has it"

#: Times the usual gradients, past any limit that is in use.
_FAR: Final = 1e4

#: ``clip(model)``: clips the gradients that the model's parameters have, in place.
Clip = Callable[[nn.Module], Any]


def clipping_held(
    model: nn.Module, batch: Any, clipping: Clip, *, limit: float = LIMIT, eps: float = EPS
) -> tuple[Finding, ...]:
    """Whether ``clipping`` clips unit by unit and leaves the classifier alone; the model is left as
    it was.

    Raises ModelError for a model that cannot be copied, what ``layout`` raises.
    """
    heads = _of_heads(layout(model, batch))
    probe = _probed(model, clipping, limit, eps)
    own = [path for path in probe.named if path not in heads]
    if all(torch.equal(probe.given[path], probe.after[path]) for path in own):
        probe = _probed(model, clipping, limit, eps, times=_FAR)  # a larger limit shows there
    shared = _by_one_number(probe.given, probe.after)

    def wrong(path: str) -> str:
        head = path in heads
        words = _mistake(probe, path, head, limit, eps)
        return _BY_NORM if words and shared and not head else words

    yielded = [("weights clipped unit by unit", own)]
    yielded += [("weights of the classifier that are left alone", list(heads))] if heads else []
    return tuple(_finding(what, {path: wrong(path) for path in paths}) for what, paths in yielded)


@dataclass(frozen=True)
class _Probe:
    """Weights by path, their units, the gradients that were put there and what was left."""

    named: Mapping[str, nn.Parameter]
    units: Mapping[nn.Parameter, Units]
    given: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


def _probed(
    model: nn.Module, clipping: Clip, limit: float, eps: float, times: float = 1.0
) -> _Probe:
    """A copy whose gradients were clipped, each unit's ``times`` as large as usual."""
    other = duplicate(model)
    units = units_of(other)
    named = {path: p for path, p in other.named_parameters() if p in units}
    given = {path: times * _gradient(p, units[p], limit, eps) for path, p in named.items()}
    for path, p in named.items():
        p.grad = given[path].clone()
    clipping(other)
    after = {path: given[path] if p.grad is None else p.grad for path, p in named.items()}
    return _Probe(named, units, given, after)


def _of_heads(found: Layout) -> tuple[str, ...]:
    paths = {path for head in found.heads for path in (head.path, head.bias) if path}
    return tuple(path for path in found.parameters if path in paths)


def _gradient(p: Tensor, units: Units, limit: float, eps: float) -> Tensor:
    """Numbers whose units have 4 and 0.5 times the limit by turns."""
    generator = torch.Generator().manual_seed(p.numel())
    drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64) + 0.1
    most = limit * units.norms(p.detach().cpu().double()).clamp(min=eps)
    by = torch.full((most.numel(),), 4.0, dtype=torch.float64)
    if p.dim() > 1:  # a vector is one unit
        by[1::2] = 0.5
    return (drawn * by.reshape(most.shape) * most / units.norms(drawn)).to(p)


def _by_one_number(given: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> bool:
    """Whether all gradients are what they were times one number, not 1."""
    numbers = []
    for path, g in given.items():
        number = float((after[path].double() * g.double()).sum() / g.double().square().sum())
        if not torch.allclose(after[path], number * g, rtol=_CLOSE, atol=0):
            return False
        numbers.append(number)
    same = len(numbers) > 1 and max(numbers) <= min(numbers) * (1 + _CLOSE)
    return same and max(numbers) < 1 - _CLOSE


def _mistake(probe: _Probe, path: str, head: bool, limit: float, eps: float) -> str:
    """``""``, or what was done in the place of the rule."""
    given, after, p = probe.given[path], probe.after[path], probe.named[path].detach()
    units = probe.units[probe.named[path]]

    def of(clipped: Tensor) -> bool:
        scale = given.double().square().mean().sqrt()
        return bool(((after - clipped).double().square().mean().sqrt() <= _CLOSE * scale).item())

    by_unit = clip(given, p, units, limit=limit, eps=eps)
    if of(given if head else by_unit):
        return ""
    if head:
        return "clipped: the classifier is to be left out"
    for words, clipped in _others(given, p, units, limit, eps):
        if of(clipped):
            return words
    if (at := _limit_of(after, p, units, eps)) and of(clip(given, p, units, limit=at, eps=eps)):
        return f"clipped unit by unit at {at:.3g} times the weight's norm, expected {limit:g}"
    return "not by the rule"


def _limit_of(after: Tensor, p: Tensor, units: Units, eps: float) -> float:
    """The limit that the largest of what was left lies at, over the units of a weight that are
    larger than ``eps``; 0 where none is."""
    size = units.norms(p.detach().cpu().double())
    left = units.norms(after.detach().cpu().double())[size > eps] / size[size > eps]
    return float(left.max()) if left.numel() else 0.0


def _others(
    given: Tensor, p: Tensor, units: Units, limit: float, eps: float
) -> Iterator[tuple[str, Tensor]]:
    yield "not clipped at all", given
    flat, weight = given.flatten(), p.flatten()
    whole = clip(flat, weight, limit=limit, eps=eps).reshape_as(given)
    yield "clipped as one tensor, not unit by unit", whole
    if p.dim() > 1:
        other = Units(1 - units.axis) if units.groups == 1 else Units(0)
        words = f"clipped over the wrong axis: its outputs lie on axis {units.axis}"
        yield words, clip(given, p, other, limit=limit, eps=eps)


def _finding(what: str, wrong: Mapping[str, str]) -> Finding:
    bad = [path for path, words in wrong.items() if words]
    right = len(wrong) - len(bad)
    said = f"{right} of {len(wrong)} {what}"
    said += f"; '{bad[0]}' is {wrong[bad[0]]}" if bad else ""
    return Finding(what, right, len(wrong), said)
