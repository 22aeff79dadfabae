"""The bounds in force, as a record holds them, and those that would be in force today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depthgauge.errors import SpecificationError
from depthgauge.record.parts import Bound, CorridorPart
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import NamedCorridor, corridor_named

if TYPE_CHECKING:
    from depthgauge.record.document import Record
    from depthgauge.study.specification import Specification

__all__ = ["conditional_today", "corridor_part", "corridor_today"]


def corridor_part(corridor: NamedCorridor, depth: int, dtype: str) -> CorridorPart:
    """The bounds of a corridor at this depth and in this precision, with their reasons."""
    bounds = corridor.at(depth, dtype).bounds
    return CorridorPart(
        name=corridor.name,
        bounds={name: Bound.model_validate(bound.to_dict()) for name, bound in bounds},
    )


def corridor_today(record: Record, specification: Specification | None) -> CorridorPart | str:
    """The bounds that a commission of today would hold what was commissioned against, or why they
    cannot be told.

    The corridor is the one that the specification names, else the record's as it is there today,
    with the specification's own bounds before it, or without one those of the record. Bounds that
    were given as numbers, in Python, are those of the record. A change of depth or precision is
    said as such, not by its bounds.
    """
    subject, stored = record.subject, record.corridor
    own = _own(record, specification)
    origin = _origin(record, specification)
    if not origin:
        return CorridorPart(name=stored.name, bounds={**stored.bounds, **own})
    try:
        today = corridor_part(corridor_named(origin), subject.depth, subject.dtype)
    except SpecificationError as error:
        return str(error)
    return CorridorPart(name=today.name, bounds={**today.bounds, **own})


def conditional_today(record: Record, specification: Specification | None) -> dict[str, str] | None:
    """The bounds of the same corridor as a plan tells them, those at other depths and in other
    precisions among them, and the specification's own before them all; None where they cannot be
    told."""
    origin = _origin(record, specification)
    if not origin:
        return None
    try:
        found = corridor_named(origin)
    except SpecificationError:
        return None
    bounds = {
        name: {key: value for key, value in bound.model_dump().items() if value is not None}
        for name, bound in _own(record, specification).items()
    }
    return {k: str(e) for k, e in found.under(Corridor.of(bounds)).named.items()}


def _own(record: Record, specification: Specification | None) -> dict[str, Bound]:
    """The specification's own bounds; without one those that the record says were its own."""
    stored, subject = record.corridor.bounds, record.subject
    if specification is None:
        names = _texts(record.provenance.plan.get("own"))
        return {name: stored[name] for name in names if name in stored}
    if specification.corridor is None:
        return {}
    declared = NamedCorridor.of(specification.corridor)
    return dict(corridor_part(declared, subject.depth, subject.dtype).bounds)


def _origin(record: Record, specification: Specification | None) -> Any:
    """What ``corridor_named`` finds the corridor by; ``""`` where bounds were given as numbers."""
    named = {} if specification is None else specification.commission
    return named.get("corridor") or str(record.provenance.plan.get("corridor_from") or "")


def _texts(given: object) -> list[str]:
    return list(map(str, given)) if isinstance(given, list) else []
