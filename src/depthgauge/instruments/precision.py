"""One network in the arithmetic intended for it against float64, and how far each value is from the
ends of a number format.

Index legend: states ``h_k`` and gradients ``g_k`` of the intended run, ``h*_k`` and ``g*_k`` of the
same weights and batch in float64; norms over all elements of a state.

    relative_error_state     |h_k - h*_k| / |h*_k|
    relative_error_gradient  |g_k - g*_k| / |g*_k|
    headroom_FORMAT_bits     log2(largest number of the format / max |h*_k|); at a branch the least
                             over every value computed in its module
    last_binades_fraction    share of non-zero h*_k from half the last power of two up
    underflow_headroom_bits  log2(RMS of g*_k / smallest normal number of the format)
    flushed_gradient_fraction  share of the elements of g*_k that are not 0 and are 0 in g_k

Head-room is that of the float64 run, which does not overflow itself: negative by how much the value
is too large. A value that the intended arithmetic keeps wider (a norm's square taken in float32,
the stream under autocast) has the wider head-room; a float32 model is run in float16 to see which.
Of float8 the notes tell the head-room of the factors of products, which are what is rounded. The
last three take the intended arithmetic's format, float16 where that is float32 or wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import DepthgaugeError, NetworkError
from depthgauge.instruments.arithmetic import Arithmetic, arithmetic_named, not_autocast, own
from depthgauge.instruments.formats import (
    FORMATS,
    Format,
    headroom_bits,
    lost_updates,
    relative_distance,
    scaling_room,
    shares,
    underflow_bits,
)
from depthgauge.instruments.ranges import Extent, Place, Ranges, extent
from depthgauge.instruments.rivers import rms, wide
from depthgauge.instruments.step import Step, stepped
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.trace.inventory import inventory
from depthgauge.trace.operations import CASTS

__all__ = ["ERRORS", "HEADROOMS", "PRECISION", "Runs", "errors", "growth", "lost", "precision"]

_FLOATS: Final = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
HEADROOMS: Final[dict[str, str]] = {name: f"headroom_{name}_bits" for name in _FLOATS}
ERRORS: Final = (
    "relative_error_state",
    "relative_error_gradient",
    "flushed_gradient_fraction",
)
PRECISION: Final = (
    *ERRORS,
    *HEADROOMS.values(),
    "last_binades_fraction",
    "underflow_headroom_bits",
)
#: Formats whose head-room inside branches is told in the notes, beside the intended one.
_TOLD: Final = ("float16", "bfloat16")
_OTHERWISE: Final = (
    "in {} the model calls other functions than in its own precision, so that the gradients of its "
    "states cannot be followed"
)
#: Tensors named in a note, at most.
_NAMED: Final = 64


@dataclass
class _Ran:
    """One run: states, gradients at them (None: none came), gradients of parameters by name.
    ``no_states``, ``no_backward``: why there are none."""

    states: list[Tensor]
    ranges: Ranges
    gradients: list[Tensor | None] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    no_states: str = ""
    no_backward: str = ""


def precision(
    subject: Subject,
    effort: Effort,
    arithmetic: Arithmetic | None = None,
    *,
    updates: Mapping[str, Tensor] | None = None,
) -> Found:
    """Errors, head-room, flushed gradients and lost updates of the subject in ``arithmetic``.

    Without one it is ``effort.arithmetic``, or the model's own. ``updates``: what is added to each
    parameter, by name; without them that of ``effort.step``.
    """
    held = inventory(subject.model)
    chosen = arithmetic
    if chosen is None:
        chosen = own(held, subject.batch)
        if isinstance(effort.arithmetic, str):
            chosen = arithmetic_named(effort.arithmetic)
    runs = Runs(subject, products=chosen.rounds_factors)
    reference = runs.of(arithmetic_named("float64"))
    places = _places(reference) if reference else []
    intended = runs.of(chosen, keep=frozenset(filter(None, places)))
    widest = reference or (intended if chosen.name == "own" else runs.of(own(held, subject.batch)))
    found = Found()
    format = chosen.format if chosen.format.name in _FLOATS else FORMATS["float16"]
    told = list(dict.fromkeys([format.name, *_TOLD]))
    note: dict[str, Any] = {
        "arithmetic": chosen.format.name if chosen.name == "own" else chosen.name,
        "reference": "float64" if reference else None,
        "format": format.name,
    }
    found.notes["precision"] = note
    if reference and intended:
        errors(subject, reference, intended, found, note)
        if "relative_error_state" in found.missing:
            _errors_by_place(subject, reference, intended, places, found, note)
    else:
        why = runs.why["float64" if reference is None else chosen.name]
        found.missing |= dict.fromkeys(ERRORS, why)
    if widest is None:
        found.missing = dict.fromkeys(PRECISION, runs.why["float64"])
        return found
    kept = _Kept(widest, _narrow_run(runs, chosen, intended, widest))
    _headroom(subject, widest, kept, format, told, found, note)
    _scaling(widest, told, note)
    note["lost_updates"] = {}
    if updates is None:
        updates, note["lost_updates"] = _step(effort.step, dict(held.parameters), widest.parameters)
    for name in dict.fromkeys([chosen.stored.name, *_TOLD]) if updates else ():
        note["lost_updates"][name] = lost(dict(held.parameters), updates, name)
    said = [line for ran in (reference, intended) if ran for line in ran.notes]
    note["notes"] = [*dict.fromkeys(said), *runs.why.values()]
    return found


# ----------------------------------------------------------------------------------- runs


class Runs:
    """Runs of a subject; ``why`` one of them could not be, by the arithmetic's name."""

    def __init__(self, subject: Subject, *, products: bool = False) -> None:
        self.subject, self.products = subject, products
        self.why: dict[str, str] = {}

    def of(
        self,
        arithmetic: Arithmetic,
        *,
        model: nn.Module | None = None,
        keep: frozenset[Place] = frozenset(),
        backward: bool = True,
    ) -> _Ran | None:
        """The subject in the arithmetic, or another ``model`` of its structure. ``keep``: places
        whose tensors are kept, should the states not be found."""
        subject, given = self.subject, model or self.subject.model
        ranges = None
        try:
            model, batch = arithmetic.prepared(given, inventory(given), subject.batch)
            ranges = Ranges(model, products=self.products, keep=keep)
            return _run(subject, model, batch, arithmetic, ranges, backward)
        except DepthgaugeError as error:
            if ranges is not None and keep and keep <= ranges.kept.keys():
                return _Ran([], ranges, no_states=_OTHERWISE.format(arithmetic.name))
            self.why[arithmetic.name] = f"in {arithmetic.name}: {error}"
        return None


def _run(
    subject: Subject,
    model: nn.Module,
    batch: Any,
    arithmetic: Arithmetic,
    ranges: Ranges,
    backward: bool,
) -> _Ran:
    with arithmetic.around(model) as said, ExitStack() as opened:
        ranges.give(batch)
        with ranges:
            chain = opened.enter_context(subject.chain(model, batch))
        ran = _Ran([state.value for state in chain.states], ranges, notes=said)
        if not backward:
            return ran
        if subject.loss is None:
            total = chain.total()
        else:
            with ranges, ranges.inside("loss"):
                total = chain.total()
        named = [(n, p) for n, p in inventory(model).parameters if p.requires_grad]
        inputs: list[Any] = [*(state.edge for state in chain.states), *(p for _, p in named)]
        try:
            with not_autocast(chain.device):
                back = torch.autograd.grad(total, inputs, allow_unused=True)
        except RuntimeError as error:
            ran.no_backward = f"the backward pass raised: {str(error).partition(chr(10))[0]}"
            return ran
        ran.gradients = list(back[: len(ran.states)])
        pairs = zip(named, back[len(ran.states) :], strict=True)
        ran.parameters = {name: g for (name, _), g in pairs if g is not None}
    return ran


def _places(ran: _Ran) -> list[Place | None]:
    """Where each state is made: the first place, casts of it aside, that has its numbers."""
    first: dict[tuple[float, float], Place] = {}
    for place, seen in ran.ranges.values.items():
        if not place.factor and place.function not in CASTS:
            first.setdefault((seen.largest, seen.rms), place)
    return [first.get(extent(h)[:2]) for h in ran.states]


class _Kept:
    """Which values the intended arithmetic keeps narrow: those that ``run`` in it has, all where
    there is none. A state is known by its numbers, which every cast of it has too."""

    def __init__(self, widest: _Ran, run: _Ran | None) -> None:
        self._values: Mapping[Place, Extent] = run.ranges.values if run else {}
        self._states = [h.dtype for h in run.states] if run else []
        self._alike: dict[tuple[float, float], set[torch.dtype]] = {}
        for place, seen in widest.ranges.values.items():
            if place in self._values:
                kinds = self._alike.setdefault((seen.largest, seen.rms), set())
                kinds.add(self._values[place].dtype)

    def at(self, place: Place, format: Format) -> Format:
        here = self._values.get(place)
        return _narrow([here.dtype], format) if here and not place.factor else format

    def state(self, k: int, seen: Extent, format: Format) -> Format:
        kinds = self._alike.get((seen.largest, seen.rms)) or self._states[k : k + 1]
        return _narrow(kinds, format)


def _narrow(kinds: Iterable[torch.dtype], format: Format) -> Format:
    """The format, or float32 for what is kept in no narrower type."""
    wide = [kind in (torch.float32, torch.float64) for kind in kinds]
    return FORMATS["float32"] if wide and all(wide) else format


def _narrow_run(runs: Runs, chosen: Arithmetic, intended: _Ran | None, widest: _Ran) -> _Ran | None:
    """The run that shows which values are narrow; none in float8, which rounds factors alone."""
    if chosen.emulated:
        return None
    if chosen.format.name in _FLOATS:
        return intended
    made = [place for place in widest.ranges.values if place.path != "loss"]
    last = frozenset(made[-1:])  # when it is made, so was all before it
    return runs.of(arithmetic_named("float16"), keep=last, backward=False)


# --------------------------------------------------------------------------------- errors


def errors(
    subject: Subject, reference: _Ran, intended: _Ran, found: Found, note: dict[str, Any]
) -> None:
    """Relative errors of states and gradients, what was flushed, what grew, what was lost first."""
    note["first_nonfinite"] = _first_nonfinite(reference.ranges, intended.ranges)
    if differs := intended.no_states or _other_functions(reference.ranges, intended.ranges):
        found.missing |= dict.fromkeys(ERRORS, differs)
        return
    for row, h, exact in zip(subject.rows, intended.states, reference.states, strict=True):
        found.put("relative_error_state", row, relative_distance(h, exact))
    no_backward = reference.no_backward or intended.no_backward
    pairs = zip(subject.rows, intended.gradients, reference.gradients, strict=False)
    for row, g, exact_g in pairs:
        if g is not None and exact_g is not None:
            found.put("relative_error_gradient", row, relative_distance(g, exact_g))
            found.put("flushed_gradient_fraction", row, flushed(g, exact_g))
    for name, why in ((name, no_backward or "no gradient reaches a state") for name in ERRORS[1:]):
        if name not in found.columns:
            found.missing[name] = why
    for name in ERRORS[:2]:
        if name in found.columns:
            note[name] = growth(found.columns[name][1])
    gone = {
        name: share
        for name, g in intended.parameters.items()
        if name in reference.parameters and (share := flushed(g, reference.parameters[name])) > 0
    }
    note["flushed_parameters"] = _largest(gone)


def _errors_by_place(
    subject: Subject,
    reference: _Ran,
    intended: _Ran,
    places: Sequence[Place | None],
    found: Found,
    note: dict[str, Any],
) -> None:
    """Errors of states where the intended run calls further functions: at the places that make the
    states of the reference. Their gradients cannot be found so."""
    for row, place, exact in zip(subject.rows, places, reference.states, strict=True):
        h = intended.ranges.kept.get(place) if place else None
        if h is not None and h.shape == exact.shape:
            found.put("relative_error_state", row, relative_distance(h, exact))
    if "relative_error_state" in found.columns:
        note["relative_error_state"] = growth(found.columns["relative_error_state"][1])
        del found.missing["relative_error_state"]


def flushed(g: Tensor, exact: Tensor) -> float:
    """The share of the elements of ``exact``, shapes alike, that are not 0 and are 0 in ``g``."""
    return ((g == 0) & (exact != 0)).double().mean().item() if g.numel() else 0.0


def growth(errors: Sequence[float]) -> dict[str, float | int | None]:
    """How errors ``e_k`` of consecutive states grow: the factor a block of a straight line through
    ``ln e_k`` over k, by least squares, with the standard error of its logarithm.

    Over the states whose error is finite and not 0; none where these are fewer than 3.
    """
    given = np.asarray(errors, dtype=np.float64)
    at = np.flatnonzero(np.isfinite(given) & (given > 0))
    out: dict[str, float | int | None] = {
        "first": float(given[0]),
        "last": float(given[-1]),
        "states": len(at),
        "factor_per_block": None,
        "log_standard_error": None,
    }
    if len(at) > 2:
        logs, x = np.log(given[at]), at - at.mean()
        slope = float(x @ logs / (x @ x))
        rest = logs - logs.mean() - slope * x
        out["factor_per_block"] = math.exp(slope)
        out["log_standard_error"] = math.sqrt(float(rest @ rest) / (len(at) - 2) / float(x @ x))
    return out


def _other_functions(reference: Ranges, intended: Ranges) -> str:
    """``""``, or where the intended run begins to call other functions than the reference."""
    for one, other in zip(reference.trail, intended.trail, strict=False):
        if one != other:
            return (
                f"in this arithmetic the model calls {other[1]} in '{other[0]}' where it calls "
                f"{one[1]} in '{one[0]}' in float64, so that states cannot be compared"
            )
    if len(reference.trail) != len(intended.trail):
        return "in this arithmetic the model calls more or fewer functions than in float64"
    return ""


def _first_nonfinite(reference: Ranges, intended: Ranges) -> dict[str, Any] | None:
    """Where the intended run first makes inf or NaN and the reference does not: on the way forward,
    or else on the way back."""
    for of in ("value", "gradient"):
        exact, seen = (r.values if of == "value" else r.gradients for r in (reference, intended))
        for place, here in seen.items():
            before = exact.get(place)
            if before is not None and here.lost > before.lost:
                return {**_document(place), "of": of, "fraction": here.lost - before.lost}
    return None


def _document(place: Place) -> dict[str, Any]:
    factor = f", factor {place.factor}" if place.factor else ""
    return {"path": place.path, "function": place.function + factor}


# ------------------------------------------------------------------------------- head-room


def _headroom(
    subject: Subject,
    widest: _Ran,
    kept: _Kept,
    format: Format,
    told: Iterable[str],
    found: Found,
    note: dict[str, Any],
) -> None:
    states = [extent(h) for h in widest.states]
    values = widest.ranges.values
    for name, quantity in HEADROOMS.items():
        for k, (row, h) in enumerate(zip(subject.rows, states, strict=True)):
            kind = kept.state(k, h, FORMATS[name])
            found.put(quantity, row, headroom_bits(h.largest, kind))
        for branch in subject.branches:
            bits = [
                headroom_bits(seen.largest, kept.at(place, FORMATS[name]))
                for place, seen in values.items()
                if branch.path and f"{place.path}.".startswith(f"{branch.path}.")
            ]
            if branch.row is not None and bits:
                found.put(quantity, branch.row, _least(bits))
    for row, state in zip(subject.rows, widest.states, strict=True):
        here = shares(state, format)
        found.put("last_binades_fraction", row, here.near + here.over)
    for row, g in zip(subject.rows, widest.gradients, strict=False):
        if g is not None:
            size = rms(wide(g).reshape(1, -1))[0]
            found.put("underflow_headroom_bits", row, underflow_bits(size, format))
    if "underflow_headroom_bits" not in found.columns:
        why = widest.no_backward or "no gradient reaches a state"
        found.missing["underflow_headroom_bits"] = why
    note["headroom"] = {}
    for name in told:
        note["headroom"][name] = _told([
            (place, seen, headroom_bits(seen.largest, kept.at(place, FORMATS[name])))
            for place, seen in values.items()
            if name in _TOLD or place.factor  # of float8 factors alone are rounded
        ])  # fmt: skip


def _told(seen: Sequence[tuple[Place, Extent, float]]) -> dict[str, Any]:
    """Of all values of a pass in one format: the first whose head-room is negative, the least."""

    def said(item: tuple[Place, Extent, float]) -> dict[str, Any]:
        place, here, bits = item
        return {**_document(place), "bits": bits, "largest": here.largest}

    under = [item for item in seen if not item[2] >= 0]  # NaN is no head-room
    least = min(seen, key=lambda item: (item[2] >= item[2], item[2]), default=None)
    return {
        "values": len(seen),
        "under_0": len(under),
        "first_under_0": said(under[0]) if under else None,
        "least": said(least) if least else None,
    }


def _least(bits: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, bits)) else min(bits)


def _scaling(widest: _Ran, told: Iterable[str], note: dict[str, Any]) -> None:
    """How far the loss can be scaled up: until a parameter's gradient overflows, and until that of
    any value does."""
    if not widest.parameters:
        note["loss_scaling"] = None
        return
    every = [seen.largest for seen in widest.ranges.gradients.values()]
    note["loss_scaling"] = {}
    for name in told:
        room = scaling_room(widest.parameters.values(), name)
        bits = _least([headroom_bits(top, name) for top in every] or [math.inf])
        note["loss_scaling"][name] = {
            "bits": room.bits,
            "bits_of_every_gradient": math.floor(bits) if math.isfinite(bits) else None,
            "flushed": room.before,
            "flushed_when_scaled": room.flushed,
            "subnormal_or_flushed_when_scaled": room.under,
        }


# --------------------------------------------------------------------------------- updates


def _step(
    step: Step, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimiser adds, in float64, with its name and rate; nothing with the reason."""
    if not gradients:
        return {}, {"not_measured": "no gradient reached a parameter"}
    exact = {name: nn.Parameter(p.detach().double()) for name, p in parameters.items()}
    if isinstance(step.optimizer, Optimizer):  # holds these parameters and steps in their precision
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values()):
            why = "the optimizer given steps in half precision, where what is lost was never there"
            return {}, {"not_measured": f"{why}; name the optimizer or give a function"}
        own_precision = {name: g.to(parameters[name].dtype) for name, g in gradients.items()}
        taken = stepped(step, parameters, own_precision)
    else:
        taken = stepped(step, exact, {name: g.double() for name, g in gradients.items()})
    added = {name: value.double() - exact[name].detach() for name, value in taken.values.items()}
    return added, {"optimizer": taken.optimizer, "lr": taken.lr}


def lost(
    parameters: Mapping[str, Tensor], updates: Mapping[str, Tensor], format: str | Format
) -> dict[str, Any]:
    """Updates that leave the weights, stored in the format, as they are: the share over all, the
    tensors with the largest shares, and those that are ``frozen``: whose updates are all lost.

    ``updates``: what is added, by the name of its parameter. Raises NetworkError for a name that no
    parameter has, or another shape.
    """
    each: dict[str, float] = {}
    moved = gone = 0.0
    for name, update in updates.items():
        if name not in parameters or parameters[name].shape != update.shape:
            came = f"of shape {tuple(update.shape)}"
            raise NetworkError(
                f"an update {came} was given for '{name}', expected the name and shape of a "
                f"parameter"
            )
        count = int((update != 0).sum())
        if count:
            each[name] = lost_updates(parameters[name], update, format)
            moved, gone = moved + count, gone + count * each[name]
    return {
        "share": gone / moved if moved else None,
        "frozen": [name for name, share in each.items() if share == 1],
        "largest": _largest({name: share for name, share in each.items() if not share <= 0}),
    }


def _largest(each: Mapping[str, float]) -> dict[str, float]:
    """The largest of named shares, in order, NaN first; at most as many as a note may name."""
    ordered = sorted(each.items(), key=lambda item: (item[1] == item[1], -item[1]))
    return dict(ordered[:_NAMED])
