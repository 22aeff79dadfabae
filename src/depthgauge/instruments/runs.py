"""The runs of a subject that precision compares: the same weights and batch in an arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import DepthgaugeError
from depthgauge.instruments.arithmetic import Arithmetic, not_autocast
from depthgauge.instruments.ranges import Place, Ranges, extent
from depthgauge.instruments.rivers import wide
from depthgauge.instruments.subject import Effort, Subject
from depthgauge.network.chain import Chain
from depthgauge.trace.again import StatesLostError
from depthgauge.trace.backward import checkpointed, dense, gradients
from depthgauge.trace.inventory import inventory
from depthgauge.trace.operations import CASTS

__all__ = ["Ran", "Runs", "places_of"]

#: What the loss of another backward pass is multiplied by, so that it rounds otherwise: no power of
#: two, and no whole number.
_OTHERWISE: Final = 1.7
#: Up to so many times what two passes round otherwise a gradient is rounding: what both of them
#: round alike, on the way forward, is as large.
_ROUNDING: Final = 64


@dataclass
class Ran:
    """One run: states, gradients at them (None: none came), gradients of parameters by name.
    ``no_states``, ``no_backward``: why there are none. ``lost``: they came back through a NaN, and
    are NaN."""

    states: list[Tensor]
    ranges: Ranges
    gradients: list[Tensor | None] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    no_states: str = ""
    no_backward: str = ""
    lost: bool = False


class Runs:
    """Runs of a subject; ``why`` one of them could not be, by the arithmetic's name; ``late``: what
    ended them, where the budget of ``effort`` did; ``strayed``: whether one of them did not make
    the states."""

    def __init__(self, subject: Subject, effort: Effort, *, products: bool = False) -> None:
        self.subject, self.products, self._effort = subject, products, effort
        self.why: dict[str, str] = {}
        self.late = ""
        self.strayed = False
        self._begun = 0

    def of(
        self,
        arithmetic: Arithmetic,
        *,
        model: nn.Module | None = None,
        keep: frozenset[Place] = frozenset(),
        backward: bool = True,
        exact: bool = False,
    ) -> Ran | None:
        """The subject in the arithmetic, or another ``model`` of its structure. ``keep``: places
        whose tensors are kept, should the states not be found. ``exact``: gradients of parameters
        that are rounding alone are 0."""
        subject, given = self.subject, model or self.subject.model
        ranges = None
        if self._effort.spent:
            runs = f"{self._begun} run{'s' * (self._begun != 1)} of the network"
            self.late = self.late or self._effort.spent_after(runs)
            self.why[arithmetic.name] = self.late
            return None
        self._begun += 1
        try:
            model, batch = arithmetic.prepared(given, inventory(given), subject.batch)
            ranges = Ranges(model, products=self.products, keep=keep)
            return _run(subject, model, batch, arithmetic, ranges, backward, exact)
        except DepthgaugeError as error:
            self.strayed = self.strayed or isinstance(error, StatesLostError)
            if ranges is not None and keep and keep <= ranges.kept.keys():
                return Ran([], ranges, no_states=f"in {arithmetic.name}: {error}")
            self.why[arithmetic.name] = f"in {arithmetic.name}: {error}"
        return None


def _run(
    subject: Subject,
    model: nn.Module,
    batch: Any,
    arithmetic: Arithmetic,
    ranges: Ranges,
    backward: bool,
    exact: bool,
) -> Ran:
    with arithmetic.around(model) as said, ExitStack() as opened:
        ranges.give(batch)
        with ranges:
            chain = opened.enter_context(subject.chain(model, batch))
        ran = Ran([state.value for state in chain.states], ranges, notes=said)
        if not backward:
            return ran
        try:
            if subject.loss is None:
                total = chain.total()
            else:
                with ranges, ranges.inside("loss"):
                    total = chain.total()
            named = [(n, p) for n, p in inventory(model).parameters if p.requires_grad]
            _back(ran, chain, total, named, exact and not checkpointed(total))
            if _lost(chain, total, subject.loss is not None):
                _forget_gradients(ran)
        except DepthgaugeError as error:  # the loss's
            ran.no_backward = str(error)
        except Exception as error:
            ran.no_backward = f"the backward pass raised: {str(error).partition(chr(10))[0]}"
    return ran


def _back(
    ran: Ran,
    chain: Chain,
    total: Tensor,
    named: Sequence[tuple[str, nn.Parameter]],
    exact: bool,
) -> None:
    """The gradients at states that one reaches, and those of parameters."""
    edges = {k: state.reached for k, state in enumerate(chain.states) if state.reached is not None}
    wanted: list[Any] = [*edges.values(), *(p for _, p in named)]
    if not wanted or not total.requires_grad:
        ran.no_backward = "no gradient reaches a state"
        return
    with not_autocast(chain.device):
        back = gradients(total, wanted, keep=exact)
    found = dict(zip(edges, back, strict=False))
    ran.gradients = [found.get(k) for k in range(len(chain.states))]
    pairs = zip(named, back[len(edges) :], strict=True)
    ran.parameters = {name: g for (name, _), g in pairs if g is not None}
    if exact and ran.parameters:
        _drop_rounding(ran, chain, total, dict(named))
    inside = [state.path for state in chain.states if state.reached is None]
    if inside and checkpointed(total):
        ran.notes.append(
            f"no gradient was measured at {len(inside)} of {len(chain.states)} states, the first "
            f"in '{inside[0]}': a re-entrant checkpoint makes them without one; give it "
            f"use_reentrant=False"
        )


def _drop_rounding(
    ran: Ran, chain: Chain, total: Tensor, named: Mapping[str, nn.Parameter]
) -> None:
    """Make gradients of parameters 0 where all that is left of their terms is rounding, as at a
    bias in front of a batch norm: there a pass of another multiple of the loss finds other numbers.

    ``|g| <= 64 max(|d|, rms(d))`` for an element ``g`` and the distance ``d`` of the two passes at
    it, the root mean square over its tensor.
    """
    held = dict(ran.ranges.gradients)
    try:
        with not_autocast(chain.device):
            again = gradients(_OTHERWISE * total, [named[name] for name in ran.parameters])
    except Exception:  # an operation whose backward runs once: nothing is known to be rounding
        return
    finally:
        ran.ranges.gradients = held
    for (name, g), other in zip(ran.parameters.items(), again, strict=True):
        if other is None or g.layout != torch.strided or not g.numel():
            continue
        apart = (dense(other) - _OTHERWISE * g).abs()
        floor = _ROUNDING * apart.clamp_min(apart.square().mean().sqrt())
        ran.parameters[name] = g.where(~(g.abs() <= floor), 0.0)


def _lost(chain: Chain, total: Tensor, loss: bool) -> bool:
    """Whether gradients come back through a NaN: autograd gives numbers there too, as comparisons
    with NaN open and close gates at will. Along a cotangent infinities may add up to NaN, too."""
    if bool(chain.states[-1].value.isnan().any()):
        return True
    ends = [wide(x) for x in chain.outputs if x.is_floating_point()]
    return bool(total.isnan().any()) and (loss or any(bool(x.isnan().any()) for x in ends))


def _forget_gradients(ran: Ran) -> None:
    ran.lost = True
    ran.gradients = [g if g is None else torch.full_like(dense(g), nan) for g in ran.gradients]
    ran.parameters = {n: torch.full_like(dense(g), nan) for n, g in ran.parameters.items()}


def places_of(ran: Ran) -> list[Place | None]:
    """Where each state is made: the first place, casts of it aside, that has its numbers."""
    first: dict[tuple[float, float], Place] = {}
    for place, seen in ran.ranges.values.items():
        if not place.factor and place.function not in CASTS:
            first.setdefault((seen.largest, seen.rms), place)
    return [first.get(extent(h)[:2]) for h in ran.states]
