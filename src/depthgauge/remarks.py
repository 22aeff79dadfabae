"""What the numbers of a profile mean where their names alone would name the wrong cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from depthgauge.summaries import spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["remarks"]

#: What tells two examples apart, 1 - cosine, has collapsed below this share of what it was.
COLLAPSED: Final = 0.1

_SHOWN: Final = 3


def remarks(profile: Profile) -> list[str]:
    """A sentence each: collapse, values that a format cannot hold, updates that are lost, steps
    that are too long for the curvature."""
    found = profile.settings.get("instruments")
    notes = found if isinstance(found, Mapping) else {}
    return [
        *_collapse(profile),
        *_precision(notes.get("precision", {})),
        *_parity(notes.get("parity", {})),
        *_stiffness(notes.get("stiffness", {})),
    ]


def _collapse(profile: Profile) -> Iterator[str]:
    if not (found := profile.by_block("correlation")):
        return
    blocks, values = found
    apart = 1 - np.array([spread(row).median for row in values])  # NaN where a state is 0
    with np.errstate(invalid="ignore"):
        below = np.flatnonzero(apart < COLLAPSED * apart[0])
    if not below.size or not apart[-1] < COLLAPSED * apart[0]:
        return
    end = f"{1 - apart[-1]:.3f} at block {blocks[-1]}, {1 - apart[0]:.3f} at block {blocks[0]}"
    line = (
        f"collapse: all examples come to point one way (mean cosine {end}; a tenth of what told "
        f"them apart is left at block {blocks[int(below[0])]})"
    )
    dead = profile.by_block("dead_fraction")
    if dead and (dead[1] > 0).any():
        line += "; units that are dead are so because the examples are alike"
    yield line


def _precision(note: Mapping[str, Any]) -> Iterator[str]:
    if not note:
        return
    meant = note.get("arithmetic")
    if first := note.get("first_nonfinite"):
        yield f"{meant} against float64: not finite from {_place(first)} on"
    for name, room in note.get("headroom", {}).items():
        if not (under := room["first_under_0"]):
            continue
        more = f", and {room['under_0'] - 1} values after it" if room["under_0"] > 1 else ""
        size = f"{under['largest']:.3g}, {-under['bits']:.1f} binary digits"
        yield f"{name} cannot hold what {_place(under)} makes ({size} too large){more}"
    for name, scaling in (note.get("loss_scaling") or {}).items():
        if not (scaling["flushed"] or 0) > 0.01:
            continue
        least = scaling["flushed_when_scaled"]
        yield (
            f"{name} makes {scaling['flushed']:.0%} of the parameters' gradients zero; with the "
            f"loss scaled by 2^{scaling['bits']}, as far as they allow, {least:.0%}"
        )
    for name, lost in note.get("lost_updates", {}).items():
        if not isinstance(lost, Mapping) or not (frozen := lost.get("frozen")):
            continue
        others = f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else ""
        yield (
            f"in {name} weights a step of {note['lost_updates']['optimizer']} changes nothing of "
            f"{', '.join(frozen[:_SHOWN])}{others}: every update is under half a unit in the last "
            f"place"
        )


def _parity(note: Mapping[str, Any]) -> Iterator[str]:
    parts = [
        f"{word} by {max(errors.values()):.2g}"
        for word, key in (
            ("outputs", "output_error"),
            ("gradients of the input", "input_gradient_error"),
            ("of parameters", "parameter_gradient_error"),
        )
        if (errors := note.get(key))
    ]
    if parts:
        yield f"{note['against']} differs from float64, at most: {', '.join(parts)}"


def _stiffness(note: Mapping[str, Any]) -> Iterator[str]:
    if note.get("ratio") is None or "ratio_at" not in note:
        return
    ratio, where = note["ratio"], note["ratio_at"]
    loose = "" if note["converged"] else "; the curvature has not converged"
    yield (
        f"stiffness: learning rate {note['learning_rate']:g} times the largest curvature "
        f"{note[where]['largest']:.3g} of {note['of']} is {ratio:.3g} of the stability limit of "
        f"{note['optimizer']['name']}, {where if where == 'step 0' else f'{where} steps'}{loose}"
    )


def _place(found: Mapping[str, Any]) -> str:
    return f"'{found['path']}' ({found['function']})" if found["path"] else str(found["function"])
