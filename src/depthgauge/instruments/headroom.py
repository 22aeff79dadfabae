"""How far the values of the widest run are from the ends of a format, and its gradients from both.

Head-room is that of a format for what the intended arithmetic keeps narrow, and that of float32 for
what it keeps wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from depthgauge.instruments.arithmetic import Arithmetic, arithmetic_named
from depthgauge.instruments.formats import (
    FORMATS,
    Format,
    headroom_bits,
    scaling_room,
    shares,
    underflow_bits,
)
from depthgauge.instruments.ranges import Extent, Place, document, extent
from depthgauge.instruments.rivers import rms, wide
from depthgauge.instruments.runs import Ran, Runs
from depthgauge.instruments.subject import Found, Subject
from depthgauge.trace.backward import dense

__all__ = ["FLOATS", "HEADROOMS", "TOLD", "Kept", "headroom", "narrow_run", "scaling"]

#: Formats that are narrower than float32.
FLOATS: Final = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
HEADROOMS: Final[dict[str, str]] = {name: f"headroom_{name}_bits" for name in FLOATS}
#: Formats whose head-room inside branches is told in the notes, beside the intended one.
TOLD: Final = ("float16", "bfloat16")


class Kept:
    """Which values the intended arithmetic keeps narrow: those that ``run`` in it has, all where
    there is none. A state is known by its numbers, which every cast of it has too."""

    def __init__(self, widest: Ran, run: Ran | None) -> None:
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


def narrow_run(runs: Runs, chosen: Arithmetic, intended: Ran | None, widest: Ran) -> Ran | None:
    """The run that shows which values are narrow; none in float8, which rounds factors alone."""
    if chosen.emulated:
        return None
    if chosen.format.name in FLOATS:
        return intended
    made = [place for place in widest.ranges.values if place.path != "loss"]
    last = frozenset(made[-1:])  # when it is made, so was all before it
    return runs.of(arithmetic_named("float16"), keep=last, backward=False)


def headroom(
    subject: Subject,
    widest: Ran,
    kept: Kept,
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
            if name in TOLD or place.factor  # of float8 factors alone are rounded
        ])  # fmt: skip


def _told(seen: Sequence[tuple[Place, Extent, float]]) -> dict[str, Any]:
    """Of all values of a pass in one format: the first whose head-room is negative, the least."""

    def said(item: tuple[Place, Extent, float]) -> dict[str, Any]:
        place, here, bits = item
        return {**document(place), "bits": bits, "largest": here.largest}

    under = [item for item in seen if not item[2] >= 0]  # NaN is no head-room
    least = min(seen, key=lambda item: (item[2] >= item[2], item[2]), default=None)
    told: dict[str, Any] = {"values": len(seen), "under_0": len(under)}
    told["first_under_0"] = said(under[0]) if under else None
    if not under:
        told["first_under_0_reason"] = "the format holds every value"
    told["least"] = said(least) if least else None
    return told if least else {**told, "least_reason": "there is no value"}


def _least(bits: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, bits)) else min(bits)


def scaling(widest: Ran, told: Iterable[str], note: dict[str, Any]) -> None:
    """How far the loss can be scaled up: until a parameter's gradient overflows, and until any
    does, that of a value or of a parameter."""
    if not widest.parameters:
        note["loss_scaling"] = None
        note.setdefault("loss_scaling_reason", "no gradient of a parameter was measured")
        return
    seen = widest.ranges.gradients.values()
    given = [dense(g) for g in widest.parameters.values()]
    every = [math.nan if widest.lost else one.largest for one in seen]
    every += [extent(g).largest for g in given]
    note["loss_scaling"] = {}
    for name in told:
        room = scaling_room(given, name)
        bits = _least([headroom_bits(top, name) for top in every] or [math.inf])
        every_reason = "some gradient is not finite" if math.isnan(bits) else "every one is 0"
        reason = {"bits_reason": "no gradient is above 0 and finite"} if room.bits is None else {}
        if not math.isfinite(bits):
            reason["bits_of_every_gradient_reason"] = every_reason
        note["loss_scaling"][name] = {
            **reason,
            "bits": room.bits,
            "bits_of_every_gradient": math.floor(bits) if math.isfinite(bits) else None,
            "flushed": room.before,
            "flushed_when_scaled": room.flushed,
            "subnormal_or_flushed_when_scaled": room.under,
        }
