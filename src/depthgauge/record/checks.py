"""What a whole record must be, beyond its keys: what it says of itself holds.

A check gives sentences; who reads raises the first one, who verifies lists them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from depthgauge.record.arrays import Arrays
from depthgauge.record.document import (
    CURVES,
    Record,
    checksum,
    equation_hash,
    fingerprint,
)
from depthgauge.record.parts import WORST_FIRST, Curve, State

__all__ = ["DOCUMENT", "NEWER", "Fault", "inconsistent", "unsealed", "unshaped"]

DOCUMENT = "record.json"

#: The check that a record of a newer schema does not pass: nothing is known to be wrong with it.
NEWER = "schema"


@dataclass(frozen=True)
class Fault:
    """What is wrong, in which file, and which check found it."""

    file: str
    check: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}: {self.check}: {self.sentence}"

    @property
    def lines(self) -> list[str]:
        return [str(self)]

    def to_dict(self) -> dict[str, str]:
        return {"file": self.file, "check": self.check, "sentence": self.sentence}


def inconsistent(record: Record) -> Iterator[Fault]:
    """Where the document contradicts itself."""
    names = [gate.name for gate in record.gates]
    for name in {name for name in names if names.count(name) > 1}:
        yield Fault(DOCUMENT, "gates", f"the gate '{name}' stands there twice")
    subject = record.subject
    if subject.equation_hash != equation_hash(subject.equation):
        yield Fault(
            DOCUMENT, "equation", "equation_hash is not that of the equation that stands above it"
        )
    for gate in record.gates:
        for place in gate.curves:
            if not 0 <= place < len(record.curves):
                yield Fault(
                    DOCUMENT,
                    "curves",
                    f"the gate '{gate.name}' names curve {place}, and there are "
                    f"{len(record.curves)}, counted from 0",
                )
    for curve in record.curves:
        if curve.gate not in names:
            yield Fault(DOCUMENT, "curves", f"{_named(curve)} is of '{curve.gate}', no gate here")
    yield from _verdict(record)


def _verdict(record: Record) -> Iterator[Fault]:
    states: dict[str, State] = {gate.name: gate.state for gate in record.gates}
    nothing: State = "not_measured"
    worst = min(states.values(), key=WORST_FIRST.index, default=nothing)
    verdict = record.verdict
    if WORST_FIRST.index(verdict.state) > WORST_FIRST.index(worst):
        gates = [name for name, state in states.items() if state == worst]
        why = f"'{gates[0]}' is {_word(worst)}" if gates else "there is no gate"
        yield Fault(
            DOCUMENT,
            "verdict",
            f"the verdict is {_word(verdict.state)}, better than its weakest gate: {why}",
        )
    if states and verdict.weakest and states.get(verdict.weakest) != worst:
        yield Fault(
            DOCUMENT, "verdict", f"'{verdict.weakest}' is named as the weakest gate and is not"
        )


def unshaped(record: Record, arrays: Arrays) -> Iterator[Fault]:
    """Curves whose arrays are missing or have another shape than the document says."""
    for curve in record.curves:
        for key in (curve.blocks, curve.values):
            if key not in arrays:
                yield Fault(CURVES, "array", f"{_named(curve)} needs the array '{key}', missing")
        if curve.blocks not in arrays or curve.values not in arrays:
            continue
        blocks, values = arrays[curve.blocks].shape, arrays[curve.values].shape
        expected = (*blocks, len(curve.seeds))
        if len(blocks) != 1 or values != expected:
            yield Fault(
                CURVES,
                "shape",
                f"{_named(curve)} has blocks of shape {blocks} and values of shape {values}, "
                f"expected (B,) and (B, {len(curve.seeds)})",
            )


def unsealed(record: Record) -> Iterator[Fault]:
    """Hashes in the document that are not those of the document."""
    document = record.to_dict()
    for name, found in (("fingerprint", fingerprint(document)), ("checksum", checksum(document))):
        if (said := getattr(record, name)) != found:
            what = "the findings are" if name == "fingerprint" else "the document is"
            yield Fault(
                DOCUMENT, name, f"it says {said[:19] or 'nothing'}..., but {what} {found[:19]}..."
            )
            return


def _named(curve: Curve) -> str:
    return f"the curve {curve.quantity} of {curve.configuration} ({curve.gate})"


def _word(state: State) -> str:
    return state.replace("_", " ")
