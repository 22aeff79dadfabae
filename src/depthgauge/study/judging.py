"""The bounds that profiles of one study are judged by: a specification's own, and a corridor's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from depthgauge.errors import expect
from depthgauge.profile import Profile
from depthgauge.study.corridor import Corridor, Verdict
from depthgauge.study.corridors import corridor_named

__all__ = ["Bounds", "Placed", "bounds_of"]

#: The bounds where nobody declares any.
DEFAULT = "default"


class Placed(Protocol):
    """Bounds that depend on depth and precision."""

    @property
    def name(self) -> str: ...

    def at(self, depth: int, dtype: str) -> Corridor: ...


@dataclass(frozen=True, eq=False)
class Bounds:
    """``own`` go before those of ``other``, bound by bound.

    ``only``: the summaries that are judged, all of them where it is None. ``notes``: what is not
    judged, and why.
    """

    name: str
    own: Corridor | None
    other: Corridor | Placed | None
    only: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    def judge(self, profile: Profile) -> Verdict | None:
        """The verdict at the profile's depth and precision; None where nothing is declared."""
        other = self.other
        if other is not None and not isinstance(other, Corridor):
            other = other.at(profile.depth, profile.dtype)
        found = dict(self.own.bounds) if self.own else {}
        found = {**(dict(other.bounds) if other else {}), **found}
        kept = {n: b for n, b in found.items() if self.only is None or n in self.only}
        return Corridor(tuple(kept.items())).judge(profile) if kept else None


def bounds_of(
    given: Corridor | Placed | Mapping[str, Any] | str | None,
    own: Corridor | None,
    profile: Profile,
) -> Bounds:
    """The bounds to judge by: those given, as they are, in a table, or by the name or file of a
    corridor, behind a specification's own.

    Where nobody declares any, those of the default corridor that this profile can be judged by;
    the notes name the others.
    """
    if given is None and own is not None:
        return Bounds("the specification's own", own, None)
    if given is None:
        found = corridor_named(DEFAULT)
        judged = found.at(profile.depth, profile.dtype).judge(profile).judgements
        here = frozenset(j.name for j in judged if j.state != "not_measured")
        notes = [f"{j.name} was not judged: {j.reason}" for j in judged if j.name not in here]
        return Bounds(DEFAULT, None, found, here, tuple(notes))
    if isinstance(given, str):
        given = corridor_named(given)
    elif isinstance(given, Mapping):
        given = Corridor.of(given)
    elif not isinstance(given, Corridor) and not hasattr(given, "at"):
        wanted = "a name, a file, a Corridor or bounds such as {'gradient_ratio': {'max': 10}}"
        expect("corridor", given, (), wanted)
    return Bounds(getattr(given, "name", "as given"), own, given)
