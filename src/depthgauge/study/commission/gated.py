"""What a gate gives: a state with its reason, judgements, tables and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from depthgauge.profile import Profile
from depthgauge.record.parts import WORST_FIRST, Cell, Curve, Gate, Limits, State, Table
from depthgauge.record.parts import Judgement as JudgementPart
from depthgauge.study.corridor import Judgement

__all__ = ["Drawn", "Gated", "curves_of", "judged", "part_of", "table", "worst"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A curve with its numbers: blocks ``(B,)``, values ``(B, K)``."""

    configuration: str
    depth: int
    quantity: str
    blocks: Array
    values: Array
    seeds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Gated:
    """A gate that has run."""

    state: State
    reason: str = ""
    judgements: tuple[Judgement, ...] = ()
    tables: tuple[Table, ...] = ()
    curves: tuple[Drawn, ...] = ()
    notes: tuple[str, ...] = field(default=())


def worst(states: Iterable[State]) -> State:
    """Fail before not measured before warn before pass; of nothing, not measured."""
    return min(states, key=WORST_FIRST.index, default="not_measured")


def judged(judgements: Sequence[Judgement], what: str, **more: Any) -> Gated:
    """The gate of these judgements: as bad as the worst of them, for its reason.

    What was measured and is not bounded is a warning: nobody has said what it should be.
    """
    if not judgements:
        return Gated("warn", f"{what}, and the corridor bounds none of it", **more)
    state = worst(j.state for j in judgements)
    margins = [j for j in judgements if j.state == state]
    first = min(margins, key=lambda j: j.margin if np.isfinite(j.margin) else -np.inf)
    reason = f"{first.name}: {first.reason}" if first.reason else ""
    return Gated(state, reason, tuple(judgements), **more)


def curves_of(profile: Profile, configuration: str, quantities: Iterable[str]) -> list[Drawn]:
    """What of these the profile holds, by block."""
    found = []
    for name in quantities:
        river = profile.by_block(name)
        if river is not None:
            blocks = np.asarray(river[0], dtype=np.int64)
            found.append(Drawn(configuration, profile.depth, name, blocks, river[1], profile.seeds))
    return found


#: Cells of a table are exact to this many digits, so that a record can be read by people.
_DIGITS: Final = 9


def table(kind: str, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table whose cells are text, whole numbers or finite numbers; others are null."""
    made = [[_cell(cell) for cell in row] for row in rows]
    empty = any(cell is None for row in made for cell in row)
    return Table(
        kind=kind,
        title=title,
        columns=tuple(columns),
        rows=tuple(map(tuple, made)),
        rows_reason="not finite, or not measured" if empty else None,
    )


def _cell(cell: Any) -> Cell:
    if cell is None or isinstance(cell, str | bool | int):
        return cell
    number = float(cell)
    return float(f"{number:.{_DIGITS}g}") if np.isfinite(number) else None


def part_of(name: str, question: str, leaves_open: str, gated: Gated) -> Gate:
    """The gate as a record holds it."""
    return Gate(
        name=name,
        question=question,
        state=gated.state,
        reason=gated.reason,
        judgements=tuple(map(_judgement, gated.judgements)),
        leaves_open=leaves_open,
        notes=gated.notes,
        tables=gated.tables,
    )


def _judgement(judgement: Judgement) -> JudgementPart:
    """Why a bound is what it is stands once, in the record's corridor."""
    document = judgement.to_dict()
    bound = {k: v for k, v in document["bound"].items() if k in Limits.model_fields}
    return JudgementPart.model_validate({**document, "bound": bound})


def curve_parts(gate: str, curves: Sequence[Drawn]) -> tuple[list[Curve], dict[str, Array]]:
    """The curves of a gate and their arrays; equal blocks are one array."""
    arrays: dict[str, Array] = {}
    known: dict[bytes, str] = {}
    parts = []
    for k, curve in enumerate(curves):
        key = curve.blocks.tobytes()
        if key not in known:
            known[key] = f"blocks{len(known)}"
            arrays[known[key]] = curve.blocks
        arrays[f"values{k}"] = curve.values
        parts.append(
            Curve(
                gate=gate,
                configuration=curve.configuration,
                depth=curve.depth,
                quantity=curve.quantity,
                blocks=known[key],
                values=f"values{k}",
                seeds=curve.seeds,
            )
        )
    return parts, arrays
