"""Instruments that run a network again: what they find, beside what one pass has shown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from depthgauge.arguments import HEAVY, PARTS
from depthgauge.instruments.jacobians import APJN, DIRECTIONS, SPECTRUM, apjn, gains, spectra
from depthgauge.instruments.precision import PRECISION, precision
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.profile import Profile
from depthgauge.sites import Column, FloatArray

__all__ = ["deepened", "heavy"]

#: Each instrument, with everything it may find.
INSTRUMENTS: Final[Mapping[str, tuple[Callable[[Subject, Effort], Found], tuple[str, ...]]]] = {
    "jacobian": (apjn, APJN),
    "directions": (gains, DIRECTIONS),
    "spectrum": (spectra, SPECTRUM),
    "precision": (precision, PRECISION),
}
assert tuple(INSTRUMENTS) == HEAVY


def heavy(quantities: Iterable[str]) -> list[str]:
    """The instruments that these quantities need, in the order in which they run."""
    wanted = {PARTS[name][0] for name in quantities}
    return [name for name in HEAVY if name in wanted]


def deepened(
    profile: Profile,
    subjects: Sequence[Sequence[Subject] | str],
    quantities: Sequence[str],
    effort: Effort,
) -> Profile:
    """The profile with what the heavier of the ``quantities`` are.

    ``subjects``: for each seed those whose rows the instruments fill, one a stream; or why there is
    none. An instrument that the budget leaves no time for is not measured.
    """
    columns, vectors = dict(profile.columns), dict(profile.vectors)
    missing = dict(profile.not_measured)
    notes: dict[str, Any] = {}
    for name in heavy(quantities):
        measured, may_find = INSTRUMENTS[name]
        wanted = [q for q in may_find if q in quantities or q not in PARTS]
        if effort.spent:
            why = f"the budget of {effort.budget:g} seconds was spent before it"
            missing |= dict.fromkeys(wanted, why)
            continue
        start = time.perf_counter()
        each = [_one(measured, group, effort, may_find) for group in subjects]
        _merge(columns, vectors, missing, wanted, each)
        said = [found.notes for found in each if found.notes]
        notes |= said[0] if said else {}
        notes.setdefault(name, {})["seconds"] = round(time.perf_counter() - start, 3)
    settings = {**profile.settings, "instruments": notes} if notes else profile.settings
    return dataclasses.replace(
        profile, columns=columns, vectors=vectors, not_measured=missing, settings=settings
    )


def _one(
    measured: Callable[[Subject, Effort], Found],
    group: Sequence[Subject] | str,
    effort: Effort,
    may_find: Sequence[str],
) -> Found:
    """What an instrument finds under one seed, in all streams."""
    whole = Found()
    if isinstance(group, str):
        whole.missing = dict.fromkeys(may_find, group)
        return whole
    for subject in group:
        found = measured(subject, effort)
        for quantity, (rows, values) in found.columns.items():
            for row, value in zip(rows, values, strict=True):
                if row >= 0:
                    whole.put(quantity, row, value)
        for quantity, numbers in found.vectors.items():
            whole.vectors.setdefault(quantity, {}).update(
                {row: values for row, values in numbers.items() if row >= 0}
            )
        whole.notes = whole.notes or found.notes
        whole.missing = {**found.missing, **whole.missing}
    return whole


def _merge(
    columns: dict[str, Column],
    vectors: dict[str, Mapping[int, FloatArray]],
    missing: dict[str, str],
    wanted: Sequence[str],
    each: Sequence[Found],
) -> None:
    """One column a quantity over all seeds, where every seed has it."""
    for quantity in wanted:
        missing.pop(quantity, None)
        if all(quantity in found.columns for found in each):
            rows = sorted(set.intersection(*(set(f.columns[quantity][0]) for f in each)))
            at = [dict(zip(*found.columns[quantity], strict=True)) for found in each]
            if rows:
                values = np.array([[one[row] for one in at] for row in rows])
                columns[quantity] = Column(tuple(rows), values)
                continue
        elif all(quantity in found.vectors for found in each):
            rows = sorted(set.intersection(*(set(f.vectors[quantity]) for f in each)))
            vectors[quantity] = {
                row: np.array([found.vectors[quantity][row] for found in each]) for row in rows
            }
            continue
        reasons = [found.missing.get(quantity, "") for found in each]
        missing[quantity] = next(filter(None, reasons), "nothing of its kind was found")
