"""What a sweep over depths has found: laws of growth, where bounds break, whether it discriminated.

A depth at which everything passes tells nothing about what would fail: the sweep says whether it
discriminated, that is whether some bound holds at one depth and fails at another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from depthgauge.jsonable import jsonable
from depthgauge.profile import Profile
from depthgauge.study.breaks import Break, break_of, first_to_break
from depthgauge.study.corridor import State, Verdict
from depthgauge.study.corridors import NamedCorridor
from depthgauge.study.growth import Growth, growth
from depthgauge.summaries import SUMMARIES

if TYPE_CHECKING:
    from depthgauge.measurement import Progress

__all__ = ["Measured", "Sweep", "swept"]

#: A profile at a depth, its seeds on a seed axis.
Measured: TypeAlias = Callable[[int, "Progress | None"], Profile]
_WORST: Final[tuple[State, ...]] = ("fail", "not_measured", "warn", "pass")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Profiles by depth, ascending; ``laws`` by summary, ``breaks`` by bound."""

    target: str
    corridor: str
    profiles: Mapping[int, Profile]
    verdicts: Mapping[int, Verdict]
    laws: Mapping[str, Growth]
    breaks: tuple[Break, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.profiles)

    @property
    def seeds(self) -> tuple[int, ...]:
        return next(iter(self.profiles.values())).seeds

    @property
    def state(self) -> State:
        """The worst of all depths: fail, then not measured, then warn, then pass."""
        return min((v.state for v in self.verdicts.values()), key=_WORST.index)

    @property
    def discriminated(self) -> bool:
        """Whether some bound holds at one depth and fails at another."""
        return any({"pass", "warn"} & set(b.states.values()) and _fails(b) for b in self.breaks)

    @property
    def discrimination(self) -> str:
        """That in words, a sentence."""
        tried = ", ".join(map(str, self.depths))
        judged = [b for b in self.breaks if set(b.states.values()) != {"not_measured"}]
        if not judged:
            return f"did not discriminate: nothing was judged at the depths tried ({tried})"
        if self.discriminated:
            parts = [
                _apart(b) for b in judged if _fails(b) and len(set(map(_inside, _seen(b)))) > 1
            ]
            return f"discriminated: {'; '.join(parts)}"
        if failing := [b.name for b in judged if _fails(b)]:
            return (
                f"did not discriminate between depths: {', '.join(failing)} "
                f"{'fails' if len(failing) == 1 else 'fail'} at all depths tried ({tried}); what "
                f"is wrong is not depth"
            )
        open_ = [b.name for b in self.breaks if b not in judged]
        rest = f", of what was judged (not {', '.join(open_)})" if open_ else ""
        further = "go deeper, or hold it to tighter bounds"
        if coming := first_to_break(self.breaks):
            will = "breaks" if coming.state == "will_break" else "may break"
            where = min(coming.crossings, key=lambda crossing: crossing.depth).place
            further = f"by its law {coming.name} {will} first, {where}"
        return f"did not discriminate: everything passes at all depths tried ({tried}){rest}; " + (
            further
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: finite numbers, or null with a reason beside it."""
        deepest = self.profiles[self.depths[-1]]
        out: dict[str, Any] = {
            "target": self.target,
            "equation": deepest.equation,
            "depths": list(self.depths),
            "width": deepest.width,
            "batch": deepest.batch,
            "dtype": deepest.dtype,
            "seeds": list(self.seeds),
            "corridor": self.corridor,
            "verdict": self.state,
            "discriminated": self.discriminated,
            "discrimination": self.discrimination,
            "summaries": {name: self._values(name) for name in self.laws},
            "laws": {name: found.to_dict() for name, found in self.laws.items()},
            "breaks": [found.to_dict() for found in self.breaks],
            "verdicts": {str(depth): v.to_dict() for depth, v in self.verdicts.items()},
            "settings": deepest.settings,
        }
        converted: dict[str, Any] = jsonable(out)
        return converted

    def _values(self, name: str) -> dict[str, list[float]]:
        """One number a seed, by depth."""
        return {str(d): profile.summary()[name].tolist() for d, profile in self.profiles.items()}

    def __repr__(self) -> str:
        state = self.state.replace("_", " ")
        return f"<Sweep of {self.target!r} over {self.depths}: {state} in {self.corridor}>"

    def __str__(self) -> str:
        lines = [self.target, f"depths {', '.join(map(str, self.depths))}, n = {len(self.seeds)}"]
        lines += [f"  {name:<26}{found}" for name, found in self.laws.items()]
        lines.append(f"corridor {self.corridor}: {self.state.replace('_', ' ')}")
        lines += [f"  {found.name:<26}{found}" for found in self.breaks]
        return "\n".join([*lines, self.discrimination])


def swept(
    target: str,
    measured: Measured,
    depths: Sequence[int],
    corridor: NamedCorridor,
    dtype: str = "",
    progress: Progress | None = None,
) -> Sweep:
    """The sweep of what ``measured`` gives at each depth; ``dtype``: the arithmetic that bounds are
    for, the profile's own by default."""
    profiles: dict[int, Profile] = {}
    for i, depth in enumerate(depths):
        profiles[depth] = measured(depth, _share(progress, i, len(depths)))
    verdicts = {
        depth: corridor.at(depth, dtype or profile.dtype).judge(profile)
        for depth, profile in profiles.items()
    }
    summaries = {depth: profile.summary() for depth, profile in profiles.items()}
    laws = {
        name: growth(depths, [summaries[d][name] for d in depths], quantity.scale)
        for name, quantity in SUMMARIES.items()
        if all(name in summary for summary in summaries.values())
    }
    precision = dtype or profiles[depths[-1]].dtype
    bounded = dict.fromkeys(j.name for v in verdicts.values() for j in v.judgements)
    breaks = []
    for name in bounded:
        here = {d: j for d, v in verdicts.items() for j in v.judgements if j.name == name}
        breaks.append(break_of(name, here, laws.get(name), corridor, precision))
    return Sweep(target, corridor.name, profiles, verdicts, laws, tuple(breaks))


def _share(progress: Progress | None, before: int, of: int) -> Progress | None:
    """Progress at one depth, as that of all in thousandths."""
    if progress is None:
        return None

    def step(done: int, total: int) -> None:
        progress(round(1000 * (before + done / total) / of), 1000)

    return step


def _seen(found: Break) -> list[State]:
    return [state for state in found.states.values() if state != "not_measured"]


def _inside(state: State) -> bool:
    return state in ("pass", "warn")


def _fails(found: Break) -> bool:
    return "fail" in found.states.values()


def _apart(found: Break) -> str:
    """``gradient_ratio holds at 12 and fails at 48, 96``."""
    held = ", ".join(str(d) for d, state in found.states.items() if _inside(state))
    failed = ", ".join(str(d) for d, state in found.states.items() if state == "fail")
    return f"{found.name} holds at {held} and fails at {failed}"
