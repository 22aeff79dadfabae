"""Two records side by side: every judgement, every curve, and what stands in one of them only.

    decades    log10(left / right), for quantities that are magnitudes
    plain      left - right, for shares and signed means

The largest difference of a curve is over the blocks and seeds that both have. Numbers are the same
where they agree to 12 digits: float64 leaves more of a sum, but not of one taken in another order,
as by another number of threads. Where they are not the same to the last bit is said too.

Curvature is found by iterations, through steps of the optimiser, in the precision of the run: of
float32 the order of the sums is seen in the seventh digit, and each product with the Hessian passes
it on. It is the same where it agrees to 5 digits; the method claims 2 (``docs/stiffness.md``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from depthgauge.difference import decades
from depthgauge.jsonable import jsonable
from depthgauge.record.changes import Change, between, corridor_changes, subject_changes
from depthgauge.record.document import Record
from depthgauge.record.folder import Stored
from depthgauge.record.parts import Curve, Gate, Judgement
from depthgauge.record.same import as_written
from depthgauge.sites import QUANTITIES

__all__ = [
    "ITERATIONS",
    "CurveDifference",
    "JudgementDifference",
    "RecordDifference",
    "difference",
]

Unit: TypeAlias = Literal["decades", "plain"]
Numbers: TypeAlias = NDArray[np.float64]
#: Relative, and of margins absolute, for they are logarithms.
_DIGITS: Final = 1e-12
#: The same of what is found by iterations in less than float64.
_ITERATED_DIGITS: Final = 1e-5
#: The summary that is found by iterations, and the table of what it is made of.
ITERATED: Final = "stiffness"
ITERATIONS: Final = "Learning rate x curvature"
#: A rounding of what is of order 1 and has cancelled.
_NOTHING: Final = 1e-15
_MARGINS: Final = ("margin", "score")

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class JudgementDifference:
    """One bound of one gate, judged in both records; ``digits``: how far apart its numbers may be
    and be the same, relative."""

    gate: str
    name: str
    left: Judgement
    right: Judgement
    digits: float = _DIGITS

    @property
    def exact(self) -> bool:
        """To the last bit."""
        return self.left == self.right

    @property
    def changes(self) -> list[Change]:
        """What is another in ``right``, by the names of the record."""
        found = between(self.left.model_dump(), self.right.model_dump())
        return _beyond_rounding(found, lambda _: self.digits)

    @property
    def same(self) -> bool:
        return not self.changes

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"gate": self.gate, "name": self.name, "same": self.same}
        out["exact"] = self.exact
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
    ``seed``; NaN where only one of them is a number, 0 where they agree to 12 digits (``exact``: to
    the last bit). ``note`` says what could not be compared.
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
    exact: bool = False

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
            "exact": self.exact,
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

    @property
    def equal(self) -> bool:
        """Whether both hold the same findings; what their targets are called may differ."""
        apart = (self.subject, self.corridor, self.verdict, self.only_left, self.only_right)
        return not any((*apart, self.others)) and self.alike == self.compared

    @property
    def compared(self) -> int:
        """The judgements and curves that stand in both."""
        return len(self._both)

    @property
    def alike(self) -> int:
        """Those of them that are the same."""
        return sum(each.same for each in self._both)

    @property
    def rounded(self) -> int:
        """Those that are the same, but not to the last bit."""
        return sum(each.same and not each.exact for each in self._both)

    @property
    def coarse(self) -> int:
        """Those of them that are so to 5 digits only, found by iterations."""
        return sum(
            each.same and not each.exact
            and bool(_beyond_rounding(between(each.left.model_dump(), each.right.model_dump())))
            for each in self.judgements
        )  # fmt: skip

    @property
    def same_model(self) -> bool:
        """Whether both are of one equation, whatever it was run with."""
        return not {"equation", "kind"} & {change.what for change in self.subject}

    @property
    def _both(self) -> tuple[JudgementDifference | CurveDifference, ...]:
        return *self.judgements, *self.curves

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``depthgauge diff --json``."""
        return {
            "equal": self.equal,
            "same_model": self.same_model,
            "same_subject": self.same_subject,
            "compared": self.compared,
            "alike": self.alike,
            "rounded": self.rounded,
            "coarse": self.coarse,
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
    """What is another in ``right``."""
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
    narrow = "float64" not in (a.subject.dtype, b.subject.dtype)
    iterated = _ITERATED_DIGITS if narrow else _DIGITS
    by_curvature = narrow and all(_weakest_is_iterated(each) for each in (a, b))
    return RecordDifference(
        subject=tuple(
            subject_changes(a.subject, as_written(a.subject, b.subject)[0], within=False)
        ),
        corridor=tuple(corridor_changes(a.corridor, b.corridor)),
        verdict=tuple(
            _beyond_rounding(
                between(a.verdict.model_dump(), b.verdict.model_dump(), "verdict"),
                lambda _: _ITERATED_DIGITS if by_curvature else _DIGITS,
            )
        ),
        judgements=tuple(
            JudgementDifference(gate, name, x, y, iterated if name == ITERATED else _DIGITS)
            for (gate, name, _), (x, y) in judgements.items()
        ),
        curves=tuple(_compared(x, y, left, right) for x, y in curves.values()),
        only_left=only[0],
        only_right=only[1],
        others=tuple(
            _beyond_rounding(others, lambda c: iterated if _of_iterations(c) else _DIGITS)
        ),
    )


def _weakest_is_iterated(record: Record) -> bool:
    """Whether the score of the verdict is the margin of what is found by iterations."""
    judged = [j for gate in record.gates for j in gate.judgements if j.name == ITERATED]
    return record.verdict.score is not None and record.verdict.score in [j.margin for j in judged]


def _of_iterations(change: Change) -> bool:
    """Whether it is a row of what iterations found, or that of their summary in another table."""
    row = change.before if isinstance(change.before, list) else []
    return f".{ITERATIONS}.rows." in change.what or ITERATED in row


def _beyond_rounding(
    changes: Iterable[Change], digits: Callable[[Change], float] = lambda _: _DIGITS
) -> list[Change]:
    """Those of which the numbers differ in their first 12 digits, or as many as ``digits`` says."""
    return [
        change for change in changes
        if not _near(
            change.before, change.after, digits(change), change.what.rpartition(".")[2] in _MARGINS
        )
    ]  # fmt: skip


def _near(a: object, b: object, digits: float, margin: bool = False) -> bool:
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_near(x, y, digits) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        nothing = digits if margin else _NOTHING
        return math.isclose(a, b, rel_tol=digits, abs_tol=nothing)
    return a == b


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
    size, exact = np.abs(found), bool(np.array_equal(a, b, equal_nan=True))
    if not size.size or not size.any():
        return CurveDifference(*named, 0.0, unit, None, None, note, exact)
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
    with np.errstate(all="ignore"):
        size, apart = np.maximum(np.abs(a), np.abs(b)), np.abs(a - b)
        if known.scale == "log" if known else positive:
            return "decades", np.where(same | (apart <= _DIGITS * size), 0.0, decades(a, b))
        # What is signed may cancel: against the largest of the curve.
        most = np.max(size, initial=0.0, where=np.isfinite(size))
        return "plain", np.where(same | (apart <= _DIGITS * most + _NOTHING), 0.0, a - b)
