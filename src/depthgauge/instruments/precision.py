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

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from depthgauge.instruments.arithmetic import Arithmetic, arithmetic_named, meant, own
from depthgauge.instruments.differences import ERRORS, errors, errors_by_place
from depthgauge.instruments.formats import FORMATS
from depthgauge.instruments.headroom import (
    FLOATS,
    HEADROOMS,
    TOLD,
    Kept,
    headroom,
    narrow_run,
    scaling,
)
from depthgauge.instruments.losses import lost, step_in_float64
from depthgauge.instruments.runs import Runs, places_of
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.trace.inventory import inventory

__all__ = ["PRECISION", "precision"]

PRECISION: Final = (
    *ERRORS,
    *HEADROOMS.values(),
    "last_binades_fraction",
    "underflow_headroom_bits",
)


def precision(
    subject: Subject,
    effort: Effort,
    arithmetic: Arithmetic | None = None,
    *,
    updates: Mapping[str, Tensor] | None = None,
) -> Found:
    """Errors, head-room, flushed gradients and lost updates of the subject in ``arithmetic``.

    Without one it is ``effort.arithmetic``, or the model's own. ``updates``: what is added to each
    parameter, by name; without them that of ``effort.step``. The time is looked at between runs;
    what the runs left out were for is missing, with that reason.
    """
    held = inventory(subject.model)
    chosen = arithmetic
    if chosen is None:
        chosen = own(held, subject.batch)
        if isinstance(effort.arithmetic, str):
            chosen = meant(effort.arithmetic, held, subject.batch)
    runs = Runs(subject, effort, products=chosen.rounds_factors)
    reference = runs.of(arithmetic_named("float64"), exact=True)
    places = places_of(reference) if reference else []
    intended = runs.of(chosen, keep=frozenset(filter(None, places)))
    widest = reference or (intended if chosen.name == "own" else runs.of(own(held, subject.batch)))
    found = Found()
    format = chosen.format if chosen.format.name in FLOATS else FORMATS["float16"]
    told = list(dict.fromkeys([format.name, *TOLD]))
    note: dict[str, Any] = {
        "arithmetic": chosen.words,
        "reference": "float64" if reference else None,
        "format": format.name,
    }
    found.notes["precision"] = note
    if reference and intended:
        errors(subject, reference, intended, found, note)
        if "relative_error_state" in found.missing:
            errors_by_place(subject, reference, intended, places, found, note)
    else:
        why = runs.why["float64" if reference is None else chosen.name]
        found.missing |= dict.fromkeys(ERRORS, why)
    if widest is None:
        found.missing = dict.fromkeys(PRECISION, runs.why["float64"])
        return found
    said = [line for ran in (reference, intended) if ran for line in ran.notes]
    note["notes"] = [*(chosen.instead if intended else []), *dict.fromkeys(said)]
    kept = Kept(widest, narrow_run(runs, chosen, intended, widest))
    if runs.late:  # which values are kept wider is not known
        rest = (name for name in PRECISION if name not in found.columns)
        found.missing |= dict.fromkeys(rest, runs.late)
        return found
    headroom(subject, widest, kept, format, told, found, note)
    scaling(widest, told, note)
    note["lost_updates"] = {}
    if updates is None:
        updates, note["lost_updates"] = step_in_float64(
            effort.step, dict(held.parameters), widest.parameters
        )
    if updates and chosen.mix:  # each weight as it is stored
        note["lost_updates"][chosen.words] = lost(dict(held.parameters), updates)
    for name in dict.fromkeys([chosen.stored.name, *TOLD]) if updates else ():
        note["lost_updates"][name] = lost(dict(held.parameters), updates, name)
    note["notes"] += runs.why.values()
    return found
