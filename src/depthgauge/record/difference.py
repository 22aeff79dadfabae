"""Two records side by side: every judgement, every curve, and what stands in one of them only.

    decades    log10(left / right), for quantities that are magnitudes
    plain      left - right, for shares and signed means

The largest difference of a curve is over the blocks and seeds that both have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from depthgauge.difference import decades
from depthgauge.jsonable import jsonable
from depthgauge.record.changes import Change, between, corridor_changes, subject_changes
from depthgauge.record.folder import Stored
from depthgauge.record.parts import Curve, Gate, Judgement
from depthgauge.sites import QUANTITIES

__all__ = ["CurveDifference", "JudgementDifference", "RecordDifference", "difference"]

Unit: TypeAlias = Literal["decades", "plain"]
Numbers: TypeAlias = NDArray[np.float64]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class JudgementDifference:
    """One bound of one gate, judged in both records."""

    gate: str
    name: str
    left: Judgement
    right: Judgement

    @property
    def same(self) -> bool:
        return self.left == self.right

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"gate": self.gate, "name": self.name, "same": self.same}
        for name in ("state", "value", "margin"):
            for side in ("left", "right"):
                judgement = getattr(self, side)
                out[f"{side}_{name}"] = getattr(judgement, name)
                if reason := getattr(judgement, f"{name}_reason", None):
                    out[f"{side}_{name}_reason"] = reason
        return out


@dataclass(frozen=True)
class CurveDifference:
    """One curve that stands in both records.

    ``largest`` is the signed difference of largest magnitude, left against right, at ``block`` and
    ``seed``; NaN where only one of them is a number. ``note`` says what could not be compared.
    """

    gate: str
    configuration: str
    depth: int
    quantity: str
    largest: float
    unit: Unit
    block: int | None
    seed: int | None
    note: str = ""

    @property
    def same(self) -> bool:
        return self.largest == 0 and not self.note

    @property
    def size(self) -> float:
        return math.inf if math.isnan(self.largest) else abs(self.largest)

    def to_dict(self) -> dict[str, Any]:
        out = {
            "gate": self.gate,
            "configuration": self.configuration,
            "depth": self.depth,
            "quantity": self.quantity,
            "same": self.same,
            "largest": self.largest,
            "unit": self.unit,
            "block": self.block,
            "seed": self.seed,
            "note": self.note,
        }
        if math.isnan(self.largest):
            out["largest_reason"] = self.note or "only one of the two is a number there"
        if self.block is None:
            out["block_reason"] = out["seed_reason"] = "there is no difference at a block"
        found: dict[str, Any] = jsonable(out)
        return found


@dataclass(frozen=True)
class RecordDifference:
    """Left against right. ``subject``: what differs in the model or in how it was run; two records
    of different models are compared, and that stands first."""

    equal: bool
    subject: tuple[Change, ...]
    corridor: tuple[Change, ...]
    verdict: tuple[Change, ...]
    judgements: tuple[JudgementDifference, ...]
    curves: tuple[CurveDifference, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    others: tuple[Change, ...]

    @property
    def same_subject(self) -> bool:
        return not self.subject

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``depthgauge diff --json``."""
        return {
            "equal": self.equal,
            "same_subject": self.same_subject,
            "subject": [change.to_dict() for change in self.subject],
            "corridor": [change.to_dict() for change in self.corridor],
            "verdict": [change.to_dict() for change in self.verdict],
            "judgements": [each.to_dict() for each in self.judgements],
            "curves": [each.to_dict() for each in self.curves],
            "only_left": list(self.only_left),
            "only_right": list(self.only_right),
            "others": [change.to_dict() for change in self.others],
        }


def difference(left: Stored, right: Stored) -> RecordDifference:
    """What is another in ``right``; equal when both have one fingerprint."""
    a, b = left.record, right.record
    judgements, alone = _matched(_judgements(a.gates), _judgements(b.gates))
    curves, undrawn = _matched(_curves(left), _curves(right))
    gates, missing = _matched(*({gate.name: gate for gate in x.gates} for x in (a, b)))
    only = [
        (
            *(f"gate {name}" for name in missing[side]),
            *(f"judgement {name} of gate {gate}" for gate, name, _ in alone[side]),
            *(f"curve {q} of {c}, depth {d} (gate {gate})" for gate, c, d, q in undrawn[side]),
        )
        for side in (0, 1)
    ]
    others = [c for name, (x, y) in gates.items() for c in between(_rest(x), _rest(y), name)]
    others += between(list(a.notes), list(b.notes), "notes")
    return RecordDifference(
        equal=a.fingerprint == b.fingerprint,
        subject=tuple(subject_changes(a.subject, b.subject, within=False)),
        corridor=tuple(corridor_changes(a.corridor, b.corridor)),
        verdict=tuple(between(a.verdict.model_dump(), b.verdict.model_dump(), "verdict")),
        judgements=tuple(
            JudgementDifference(gate, name, x, y) for (gate, name, _), (x, y) in judgements.items()
        ),
        curves=tuple(_compared(x, y, left, right) for x, y in curves.values()),
        only_left=only[0],
        only_right=only[1],
        others=tuple(others),
    )


def _matched(
    left: Mapping[K, V], right: Mapping[K, V]
) -> tuple[dict[K, tuple[V, V]], tuple[list[K], list[K]]]:
    """What both have, and the keys that only one has."""
    both = {key: (left[key], right[key]) for key in left if key in right}
    return both, ([k for k in left if k not in right], [k for k in right if k not in left])


def _judgements(gates: Sequence[Gate]) -> dict[tuple[str, str, int], Judgement]:
    """By gate and name; a name that a gate judges several times is counted."""
    found: dict[tuple[str, str, int], Judgement] = {}
    for gate in gates:
        for judgement in gate.judgements:
            place = next(i for i in count() if (gate.name, judgement.name, i) not in found)
            found[gate.name, judgement.name, place] = judgement
    return found


def _curves(stored: Stored) -> dict[tuple[str, str, int, str], Curve]:
    return {(c.gate, c.configuration, c.depth, c.quantity): c for c in stored.record.curves}


def _rest(gate: Gate) -> dict[str, Any]:
    """What of a gate is neither judgement nor curve, the rows of a table by their places."""
    found = gate.model_dump(exclude={"judgements", "curves", "name"})
    found["tables"] = {
        table.title: {
            **table.model_dump(exclude={"title", "rows"}),
            "rows": {str(i): row for i, row in enumerate(table.rows, start=1)},
        }
        for table in gate.tables
    }
    return found


def _compared(left: Curve, right: Curve, at: Stored, to: Stored) -> CurveDifference:
    """Over the blocks and seeds that both curves have."""
    blocks, rows, others = _common(at.arrays[left.blocks], to.arrays[right.blocks])
    seeds, columns, matching = _common(np.array(left.seeds), np.array(right.seeds))
    a = np.asarray(at.arrays[left.values], np.float64)[np.ix_(rows, columns)]
    b = np.asarray(to.arrays[right.values], np.float64)[np.ix_(others, matching)]
    notes = [
        f"only {len(both)} {word} in both"
        for word, both, x, y in (
            ("blocks are" if len(blocks) != 1 else "block is", blocks,
             at.arrays[left.blocks], to.arrays[right.blocks]),
            ("seeds are" if len(seeds) != 1 else "seed is", seeds, left.seeds, right.seeds),
        )
        if not len(both) == len(x) == len(y)
    ]  # fmt: skip
    unit, found = _differences(left.quantity, a, b)
    named = (left.gate, left.configuration, left.depth, left.quantity)
    note = ", ".join(notes)
    size = np.abs(found)
    if not size.size or not size.any():
        return CurveDifference(*named, 0.0, unit, None, None, note)
    row, column = np.unravel_index(int(size.argmax()), size.shape)  # NaN before all numbers
    largest = float(found[row, column])
    return CurveDifference(*named, largest, unit, int(blocks[row]), int(seeds[column]), note)


def _common(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """What both have, in the order of ``a``, and where it stands in each."""
    where = {value: i for i, value in enumerate(b.tolist())}
    rows = [i for i, value in enumerate(a.tolist()) if value in where]
    others = [where[value] for value in a[rows].tolist()]
    return a[rows], np.array(rows, int), np.array(others, int)


def _differences(quantity: str, a: Numbers, b: Numbers) -> tuple[Unit, Numbers]:
    known = QUANTITIES.get(quantity)
    positive = bool((a >= 0).all() and (b >= 0).all())
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if known.scale == "log" if known else positive:
        return "decades", np.where(same, 0.0, decades(a, b))
    with np.errstate(all="ignore"):
        return "plain", np.where(same, 0.0, a - b)
