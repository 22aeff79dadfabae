"""Instruments that run a network again: what they find, beside what one pass has shown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from depthgauge.arguments import HEAVY, PARTS
from depthgauge.errors import ModelError, NetworkError
from depthgauge.instruments.differences import ERRORS
from depthgauge.instruments.directions import DIRECTIONS, directions
from depthgauge.instruments.jacobians import APJN, apjn
from depthgauge.instruments.parity import parity
from depthgauge.instruments.precision import PRECISION, precision
from depthgauge.instruments.spectra import BLOCKS, SPECTRUM, blocks, spectra
from depthgauge.instruments.stiffness import STIFFNESS, stiffness
from depthgauge.instruments.subject import BudgetSpentError, Effort, Found, Subject
from depthgauge.instruments.updates import UPDATES, updates
from depthgauge.network.module import EquationNetwork
from depthgauge.profile import Profile
from depthgauge.sites import Column, FloatArray

__all__ = ["Group", "deepened", "heavy"]

#: The subjects of one seed, one a stream, whose rows the instruments fill; or why there is none.
Group: TypeAlias = Sequence[Subject] | str


def _precision(subject: Subject, effort: Effort) -> Found:
    """``precision``; with a module or function in place of an arithmetic the errors are its own."""
    if (other := effort.arithmetic) is None or isinstance(other, str):
        return precision(subject, effort)
    found = precision(subject, dataclasses.replace(effort, arithmetic=None))
    compared = parity(subject, effort, other)
    for name in ERRORS:
        found.columns.pop(name, None)
        found.missing.pop(name, None)
        found.notes["precision"].pop(name, None)  # of the model in its own arithmetic
    found.columns |= compared.columns
    found.missing |= compared.missing
    found.notes |= compared.notes
    return found


#: Each instrument, with everything it may find.
INSTRUMENTS: Final[Mapping[str, tuple[Callable[[Subject, Effort], Found], tuple[str, ...]]]] = {
    "jacobian": (apjn, APJN),
    "directions": (directions, DIRECTIONS),
    "stiffness": (stiffness, STIFFNESS),
    "blocks": (blocks, BLOCKS),
    "spectrum": (spectra, SPECTRUM),
    "updates": (updates, UPDATES),
    "precision": (_precision, PRECISION),
}
assert tuple(INSTRUMENTS) == HEAVY
#: Of the whole network and its loss: taken once, however many streams there are.
WHOLE: Final = ("stiffness",)


def heavy(quantities: Iterable[str]) -> list[str]:
    """The instruments that these quantities need, in the order in which they run."""
    wanted = {PARTS[name][0] for name in quantities}
    return [name for name in HEAVY if name in wanted]


def deepened(
    profile: Profile,
    groups: Iterable[Group],
    quantities: Sequence[str],
    effort: Effort,
    without: Mapping[str, str] = MappingProxyType({}),
) -> Profile:
    """The profile with what the heavier of the ``quantities`` are; ``groups``: one a seed;
    ``without``: instruments that have nothing to take, whatever the streams are, and why.

    What an instrument cannot take, or the budget leaves no time for, is not measured, with the
    reason.
    """
    if not (names := heavy(quantities)):
        return profile
    each: dict[str, list[Found]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)
    left = len(profile.seeds) * len(names)
    effort = effort.keeping(left)
    ahead = iter(groups)
    for _ in profile.seeds:
        group = () if effort.share(left).spent else next(ahead)  # none is built for nothing
        given = _meant(effort, profile, group)
        for name in names:
            start = time.perf_counter()
            if name in without:
                each[name].append(Found(missing=dict.fromkeys(INSTRUMENTS[name][1], without[name])))
            else:
                each[name].append(_one(name, group, given.share(left)))
            left -= 1
            seconds[name] += time.perf_counter() - start
    columns, vectors = dict(profile.columns), dict(profile.vectors)
    missing = dict(profile.not_measured)
    notes: dict[str, Any] = {}
    for name in names:
        wanted = [q for q in INSTRUMENTS[name][1] if q in quantities or q not in PARTS]
        _merge(columns, vectors, missing, wanted, each[name])
        notes |= next((found.notes for found in each[name] if found.notes), {})
        notes.setdefault(name, {})["seconds"] = round(seconds[name], 3)
    settings = {**profile.settings, "instruments": notes}
    return dataclasses.replace(
        profile, columns=columns, vectors=vectors, not_measured=missing, settings=settings
    )


def _meant(effort: Effort, profile: Profile, group: Group) -> Effort:
    """What an equation built stands in float64, whichever precision was asked for: then that is the
    arithmetic intended."""
    built = not isinstance(group, str) and any(isinstance(s.model, EquationNetwork) for s in group)
    if effort.arithmetic is None and built:
        return dataclasses.replace(effort, arithmetic=profile.dtype)
    return effort


def _one(name: str, group: Group, effort: Effort) -> Found:
    """What an instrument finds under one seed, in all streams."""
    instrument, may_find = INSTRUMENTS[name]
    whole = Found()
    if isinstance(group, str):
        whole.missing = dict.fromkeys(may_find, group)
        return whole
    if effort.spent:
        whole.missing = dict.fromkeys(may_find, effort.spent_before)
        return whole
    subjects: Sequence[Subject] = group
    if name in WHOLE:
        (subject,) = group[-1:]
        subjects = [subject if subject.trained is None else subject.trained()]
    for done, subject in enumerate(subjects):
        found = _taken(instrument, may_find, subject, effort, (done, len(subjects)))
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


def _taken(
    instrument: Callable[[Subject, Effort], Found],
    may_find: Sequence[str],
    subject: Subject,
    effort: Effort,
    streams: tuple[int, int],
) -> Found:
    """``streams``: how many are done, of how many."""
    try:
        if streams[0]:
            effort.check(*streams, "streams")
        with np.errstate(all="ignore"):  # what is not finite is a finding
            return instrument(subject, effort)
    except (BudgetSpentError, NetworkError, ModelError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        ours = isinstance(error, BudgetSpentError | NetworkError | ModelError)
        why = line if ours else f"the model cannot be run for it ({line})"
        return Found(missing=dict.fromkeys(may_find, why))


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
        at = [dict(zip(*found.columns.get(quantity, ((), ())), strict=True)) for found in each]
        if rows := sorted(set.intersection(*(set(one) for one in at))):
            values = np.array([[one[row] for one in at] for row in rows], dtype=np.float64)
            columns[quantity] = Column(tuple(rows), values)
            continue
        lists = [found.vectors.get(quantity, {}) for found in each]
        if rows := sorted(set.intersection(*(set(one) for one in lists))):
            vectors[quantity] = {row: np.array([one[row] for one in lists]) for row in rows}
            continue
        if quantity not in PARTS:  # several numbers a site: what is one number there says why
            continue
        reasons = [found.missing.get(quantity, "") for found in each]
        missing[quantity] = next(filter(None, reasons), "nothing of its kind was found")
