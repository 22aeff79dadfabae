"""Ablation: a baseline, and networks that differ from it in one causal factor.

Weights, data and seeds are held: a layer's numbers come from a generator keyed by seed, block and
name, so that a norm that moves, another activation or another scale leaves them as they were. A
change that turns out to change two factors is refused, since nobody could say which of the two made
the difference, unless it is called a comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from depthgauge.errors import DepthgaugeError, SpecificationError, expect
from depthgauge.jsonable import jsonable
from depthgauge.profile import Profile
from depthgauge.study.builders import BuilderCase
from depthgauge.study.cases import Case, case_of, differences, measured
from depthgauge.study.changes import Change
from depthgauge.study.corridor import Corridor, Verdict
from depthgauge.study.effects import Effect, effects
from depthgauge.study.factors import Difference
from depthgauge.study.judging import Bounds, Placed, bounds_of
from depthgauge.study.remedy import Remedy, answer, remedies
from depthgauge.study.small import unshared
from depthgauge.summaries import SUMMARIES, Spread, spread

if TYPE_CHECKING:
    from depthgauge.measurement import Progress

__all__ = ["Ablation", "Varied", "ablate"]


@dataclass(frozen=True, eq=False)
class Varied:
    """One change: what it differs in, what was measured, how it is judged, and its effects.

    ``refused``: why there is no profile. ``notes``: what it does not hold.
    """

    change: str
    differences: tuple[Difference, ...]
    profile: Profile | None = None
    verdict: Verdict | None = None
    effects: tuple[Effect, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""

    @property
    def single(self) -> bool:
        """Whether it changes one factor, so that the effect is that factor's."""
        return len(self.differences) == 1

    def summary(self) -> dict[str, Spread]:
        """Of each summary the median, least and largest over seeds."""
        found = self.profile.summary() if self.profile else {}
        return {name: spread(values) for name, values in found.items()}

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "change": self.change,
            "differences": [each.to_dict() for each in self.differences],
            "comparison": len(self.differences) > 1,
            "notes": list(self.notes),
        }
        if self.refused:
            return {**out, "refused": self.refused}
        return out | {
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "summary": _stated(self.profile),
            "effects": [effect.to_dict() for effect in self.effects],
        }


@dataclass(frozen=True, eq=False)
class Ablation:
    """A baseline with its verdict, and the changes in the order in which they were named.

    ``corridor``: whose bounds they are, ``""`` where there are none. ``left``: changes that were to
    be tried and cannot be, each with why.
    """

    target: str
    factors: Mapping[str, str]
    seeds: tuple[int, ...]
    baseline: Profile
    verdict: Verdict | None
    rows: tuple[Varied, ...]
    corridor: str = ""
    left: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def ranked(self) -> tuple[Effect, ...]:
        """All effects, by size over spread; what is no longer finite, or again, comes first."""
        found = [effect for row in self.rows for effect in row.effects]
        return tuple(sorted(found, key=lambda effect: effect.rank, reverse=True))

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """What each change mends of the baseline's failing bounds, and which it breaks; those that
        mend all and break none come first."""
        return remedies(self)

    @property
    def answer(self) -> str:
        """Which single change brings the failing bounds back inside, in a sentence or two."""
        return answer(self)

    @property
    def held(self) -> bool:
        """Whether the baseline is inside its corridor, if it has one."""
        return self.verdict is None or self.verdict.state in ("pass", "warn")

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: finite numbers, or null with a reason beside it."""
        found: dict[str, Any] = jsonable({
            "target": self.target,
            "answer": self.answer,
            "factors": dict(self.factors),
            "seeds": list(self.seeds),
            "corridor": self.corridor or None,
            "baseline": {
                "verdict": self.verdict.to_dict() if self.verdict else None,
                "summary": _stated(self.baseline),
            },
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "changes": [row.to_dict() for row in self.rows],
            "ranked": [[effect.change, effect.quantity] for effect in self.ranked],
            "left": [{"change": change, "reason": reason} for change, reason in self.left],
            "notes": list(self.notes),
            "summaries": {
                name: {"definition": quantity.definition, "scale": quantity.scale}
                for name, quantity in SUMMARIES.items()
                if name in self.baseline.summary()
            },
        })  # fmt: skip
        return found

    def __str__(self) -> str:
        from depthgauge.report.ablation_screen import print_ablation
        from depthgauge.report.tables import text_of

        return text_of(lambda console: print_ablation(self, console))

    def __repr__(self) -> str:
        changes = f"{len(self.rows)} change{'s' * (len(self.rows) != 1)}"
        return f"<Ablation of {self.target!r}: {changes}, corridor {self.corridor or 'none'}>"


def ablate(
    target: Any,
    vary: Iterable[str | Change] | None = None,
    *,
    corridor: Corridor | Placed | Mapping[str, Any] | str | None = None,
    comparison: bool = False,
    instruments: str | Iterable[str] | None = None,
    seed: int | Iterable[int] | None = None,
    arguments: Mapping[str, object] | None = None,
    input: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    effort: Any = None,
    **given: Any,
) -> Ablation:
    """Vary one causal factor at a time from a baseline, with weights, data and seeds held.

    ``target``, ``arguments``, ``input``, ``seed`` and the sizes and settings of an equation
    (``depth``, ``width``, ``batch``, ``init``, ``dtype``, ...) as in ``study.cases.case_of``: an
    equation, a specification, a function that builds a module, or functions by size. ``vary``:
    changes such as ``"norm=none"`` (``study.changes``), of code ``"width=128"``; without it the
    norm moved and taken away, the branches' scale halved and doubled, other activations and
    orthogonal weights, of sizes all others. ``corridor``: bounds, a table of them, the name or file
    of a corridor; a specification's own bounds go before it. ``instruments``: those of the
    specification, else the cheap ones.

    Raises SpecificationError for a change that changes nothing, and for one that changes two
    factors unless ``comparison``; NetworkError for one that this network has no place for. A number
    that is not finite is a finding.
    """
    base = case_of(target, arguments=arguments, input=input, seed=seed, **given)
    left: list[tuple[str, str]] = []
    if vary is None:
        changes = _possible(base, left)
    else:
        expect("vary", vary, Iterable | Change, "changes such as 'norm=none'")
        given_changes = [vary] if isinstance(vary, str | Change) else list(vary)
        changes = [_case(base, Change.of(change), comparison) for change in given_changes]
    if not changes:
        raise SpecificationError("vary names no change; name one, such as norm=none")
    names = [case.name for case, _ in changes]
    for name in names:
        if names.count(name) > 1:
            raise SpecificationError(f"vary names '{name}' twice; name it once")
    work = {} if effort is None else {"effort": effort}
    cases = [base, *(case for case, _ in changes)]
    with unshared(base):
        first, *others = measured(cases, instruments or base.instruments, progress, **work)
    if isinstance(first, DepthgaugeError):
        raise first
    changes = [
        (case, _seen(base, case, found, (first, profile), comparison))
        for (case, found), profile in zip(changes, others, strict=True)
    ]
    bounds = bounds_of(corridor, base.corridor, first)
    rows = tuple(
        _row(base, case, found, first, profile, bounds)
        for (case, found), profile in zip(changes, others, strict=True)
    )
    return Ablation(
        first.target,
        dict(base.factors),
        base.seeds,
        first,
        bounds.judge(first),
        rows,
        bounds.name,
        tuple(left),
        bounds.notes,
    )


def _possible(base: Case, left: list[tuple[str, str]]) -> list[tuple[Case, list[Difference]]]:
    """The usual changes, but for those that this network has no place for."""
    found = []
    for change in base.usual():
        try:
            found.append(_case(base, change, False))
        except DepthgaugeError as error:
            left.append((str(change), str(error)))
    return found


def _case(base: Case, change: Change, comparison: bool) -> tuple[Case, list[Difference]]:
    """The changed case and its one difference; several of a comparison."""
    case = base.changed(change)
    found = differences(base, case)
    if not found:
        known = ", ".join(f"{name} {text}" for name, text in base.factors.items() if name != "form")
        raise SpecificationError(f"'{change}' changes nothing: the baseline has {known}")
    if not comparison:
        _one(str(change), found)
    return case, found


def _one(change: str, found: Sequence[Difference]) -> None:
    """Refuse a change of more than one factor."""
    if len(found) > 1:
        raise SpecificationError(
            f"'{change}' changes {len(found)} factors at once ({'; '.join(map(str, found))}), so "
            f"that no effect could be told to be of one; change one, or call it a comparison "
            f"(comparison=True, --comparison)"
        )


def _seen(
    base: Case,
    case: Case,
    found: list[Difference],
    profiles: tuple[Profile, Profile | DepthgaugeError],
    comparison: bool,
) -> list[Difference]:
    """The differences, with those that only the measured networks of a table of sizes show."""
    before, after = profiles
    if not isinstance(base, BuilderCase) or isinstance(after, DepthgaugeError):
        return found
    seen = base.seen(before, after)
    if not comparison:
        _one(case.name, seen)
    return [*found, *seen]


def _row(
    base: Case,
    case: Case,
    found: Sequence[Difference],
    before: Profile,
    after: Profile | DepthgaugeError,
    bounds: Bounds,
) -> Varied:
    if isinstance(after, DepthgaugeError):
        return Varied(case.name, tuple(found), refused=str(after))
    return Varied(
        case.name,
        tuple(found),
        after,
        bounds.judge(after),
        tuple(effects(case.name, before, after)),
        tuple(base.not_held(case)),
    )


def _stated(profile: Profile | None) -> dict[str, Any]:
    """Each summary with its median, least, largest and n."""
    out = {}
    for name, values in profile.summary().items() if profile else ():
        median, low, high = spread(values)
        out[name] = {"median": median, "min": low, "max": high, "n": len(values)}
    return out
