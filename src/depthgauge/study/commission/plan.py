"""What a commission will do, decided before anything is measured.

The plan is part of the record: a commission that is resumed goes on only if every line of it is the
same, and then ends with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from depthgauge.equation.count import count
from depthgauge.errors import SpecificationError
from depthgauge.instruments.step import OPTIMIZERS, Step
from depthgauge.network.spec import whole_number
from depthgauge.study.builders import BuilderCase
from depthgauge.study.cases import Case, EquationCase
from depthgauge.study.changes import Change
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import NamedCorridor, corridor_of

__all__ = ["DEPTHS", "RIVALS", "SHALLOW", "Plan", "planned"]

#: Depths of the sweep, where neither the specification nor the caller says.
DEPTHS: Final = (12, 48, 96)
#: Blocks of the shallow control.
SHALLOW: Final = 8
#: The depths of a model whose builder is not told any.
AS_BUILT: Final = (0,)
#: Recipes that a block may be measured against.
RIVALS: Final = ("fixup", "orthogonal")


@dataclass(frozen=True, eq=False)
class Plan:
    """``case`` at its full depth, the depths to measure it at (the last is its own), the corridor
    with the specification's own bounds before it, the step whose update is measured, the rival's
    recipe, the blocks of the shallow control, the changes of the ablation (None: the usual ones),
    and what the depth is called where a builder makes the model (``""``: it has none)."""

    case: Case
    depths: tuple[int, ...]
    corridor: NamedCorridor
    step: Step
    rival: str = "fixup"
    shallow: int = SHALLOW
    vary: tuple[str, ...] | None = None
    axis: str = "depth"

    @property
    def equation(self) -> EquationCase | None:
        return self.case if isinstance(self.case, EquationCase) else None

    @cached_property
    def cases(self) -> dict[int, Case]:
        """The case at each depth; under its own depth it is the case itself."""
        if not self.axis:
            return {AS_BUILT[0]: self.case}
        own = self.depths[-1]
        return {
            d: self.case if d == own else self.case.changed(Change(self.axis, str(d)))
            for d in self.depths
        }

    def bounds(self, depth: int, dtype: str) -> Corridor:
        """The corridor there."""
        return self.corridor.at(depth, dtype)

    def to_dict(self) -> dict[str, Any]:
        """Everything that the numbers of the gates depend on and the subject does not say."""
        step, bounds, own = self.step, self.corridor.named, self.case.corridor
        given = self.case.input if isinstance(self.case, BuilderCase) else ()
        return {
            **({"input": list(given)} if given else {}),
            "depths": list(self.depths) if self.axis else [],
            "corridor": self.corridor.name,
            "corridor_from": self.corridor.origin,
            "own": [name for name, _ in own.bounds] if own is not None else [],
            "bounds": {name: str(entry) for name, entry in bounds.items()},
            "reasons": {
                name: "; ".join(filter(None, (entry.bound.reason, entry.bound.source)))
                for name, entry in bounds.items()
            },
            "optimizer": str(step.optimizer),
            "lr": step.rate,
            "rival": self.rival,
            "shallow": self.shallow,
            "vary": list(self.vary) if self.vary is not None else None,
        }


def planned(
    case: Case,
    *,
    depths: Iterable[int] | None = None,
    axis: str = "",
    corridor: str | NamedCorridor | Corridor | Mapping[str, object] | None = None,
    step: Step | None = None,
    rival: str | None = None,
    shallow: int | None = None,
    vary: Iterable[str] | None = None,
) -> Plan:
    """The plan of a commission, what is not given filled in. Raises SpecificationError.

    ``depths``: 12, 48 and 96 by default, those above the case's own depth left out and its own put
    in; of 12 blocks or fewer a quarter, a half and all of them; of a builder its argument ``axis``,
    up to what it was given.
    ``rival``: Fixup where every branch of an equation has two weight layers or more and for a
    builder, else orthogonal weights.
    """
    if isinstance(case, EquationCase):
        own = case.specification.network.depth
        depths, axis = _checked(depths), "depth"
        usual_depths = [d for d in DEPTHS if d < own] or [d for d in (own // 4, own // 2) if d]
        wanted = tuple(sorted(set(depths or usual_depths)))
        if wanted and wanted[-1] > own:
            raise SpecificationError(
                f"depths name {wanted[-1]}, and the network has {own} blocks; give depths up to "
                f"its own, or commission it at the larger one"
            )
        wanted = (*(d for d in wanted if d < own), own)
        counted = count(case.specification.network.block)
        usual = "fixup" if counted.m and min(counted.m) > 1 and counted.has_skip else "orthogonal"
    else:
        usual, wanted = "fixup", tuple(sorted(set(depths or ())))
        if wanted:
            axis = axis or "depth"
            wanted = _within(case, axis, wanted)
            case = case.changed(Change(axis, str(wanted[-1])))
            case = replace(case, name="baseline") if isinstance(case, BuilderCase) else case
        else:
            axis, wanted = "", AS_BUILT
    if rival is not None and rival not in RIVALS:
        raise SpecificationError(f"rival is '{rival}', expected {' or '.join(RIVALS)}")
    if step is not None and not isinstance(step.optimizer, str):
        raise SpecificationError(
            f"the optimizer of a commission is of type {type(step.optimizer).__name__}, which a "
            f"record cannot name; give one of {', '.join(OPTIMIZERS)}, and lr beside it"
        )
    least = SHALLOW if shallow is None else whole_number(shallow)
    if least is None or least < 1:
        raise SpecificationError(
            f"shallow is {shallow!r}, expected a whole number of blocks, at least 1"
        )
    return Plan(
        case,
        wanted,
        corridor_of(corridor, "commission").under(case.corridor),
        step or Step(),
        rival or usual,
        least,
        tuple(vary) if vary is not None else None,
        axis,
    )


def _within(case: Case, axis: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The depths with the one that a builder was given beside them, which is the largest."""
    if not isinstance(case, BuilderCase) or isinstance(case.target, Mapping):
        return wanted
    own = whole_number(case.arguments.get(axis))
    if own is None:
        return wanted
    if wanted[-1] > own:
        raise SpecificationError(
            f"depths name {wanted[-1]}, and the network is given {axis}={own}; give depths up to "
            f"its own, or commission it at the larger one"
        )
    return (*(d for d in wanted if d < own), own)


def _checked(depths: Iterable[int] | None) -> tuple[int, ...]:
    given = () if depths is None else tuple(depths)
    for depth in given:
        if (whole_number(depth) or 0) < 1:
            raise SpecificationError(
                f"depths name {depth!r}, expected whole numbers of blocks, each at least 1"
            )
    return given
