"""No training without a commission: for the start of a training script, and for a test.

    dg.require("commissions/block", "block.toml")               raises NotCommissionedError
    dg.assert_commissioned("commissions/block", "block.toml")   raises AssertionError, for pytest

Both read the record, hold it against what is there today, and look at every gate.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import NotCommissionedError, SpecificationError, TargetError
from depthgauge.record.verify import Verification, verify

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.record.parts import Subject
    from depthgauge.study.specification import Specification

__all__ = ["UNMEASURED", "assert_commissioned", "objections", "require"]

#: Gates that may stand open: this version has no matched training runs.
UNMEASURED: Final = ("training boundary",)


def require(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    *,
    unmeasured: Collection[str] = UNMEASURED,
) -> None:
    """Nothing, if the record is valid for the target and no gate of it fails.

    ``target``: a specification or its TOML file, or a module at its initialisation, whose weights
    must be those of a seed that was commissioned; None looks at the record alone. ``unmeasured``:
    gates that may be not measured. Raises NotCommissionedError with every objection in a line,
    RecordError where there is no record, TargetError for another target.
    """
    if found := list(objections(record, target, unmeasured)):
        raise NotCommissionedError(_text(record, found))


def assert_commissioned(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    *,
    unmeasured: Collection[str] = UNMEASURED,
) -> None:
    """The same as an assertion: a test fails with the objections as its message."""
    found = list(objections(record, target, unmeasured))
    assert not found, _text(record, found)


def objections(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    unmeasured: Collection[str] = UNMEASURED,
) -> Iterator[str]:
    """Everything that speaks against it: what is broken or stale, gates that fail or stand open."""
    from torch import nn

    module = target if isinstance(target, nn.Module) else None
    found = verify(record, None if module is not None else _subject(target))
    for reason in found.reasons:
        yield f"{found.state}: {' '.join(reason.lines)}"
    if found.record is None:
        return
    known = {gate.name for gate in found.record.gates}
    if unknown := sorted(set(unmeasured) - known - set(UNMEASURED)):
        raise SpecificationError(
            f"unmeasured names '{unknown[0]}', and the gates are {', '.join(sorted(known))}"
        )
    if module is not None:
        yield from _weights(found, module)
    for gate in found.record.gates:
        if gate.state == "fail":
            yield f"the gate '{gate.name}' fails: {gate.reason}"
        elif gate.state == "not_measured" and gate.name not in unmeasured:
            yield f"the gate '{gate.name}' was not measured: {gate.reason}"


def _subject(target: Any) -> Subject | None:
    from depthgauge.record.subject import subject_of
    from depthgauge.study.specification import Specification, read_specification

    if target is None:
        return None
    if isinstance(target, str | os.PathLike):
        target = read_specification(target)
    if not isinstance(target, Specification):
        raise TargetError(
            f"a target of type {type(target).__name__} cannot be held against a record; give a "
            f"specification, the path of one in TOML, or a module"
        )
    return subject_of(target)


def _weights(found: Verification, module: nn.Module) -> Iterator[str]:
    """Whether the module begins with the weights of a seed that was commissioned."""
    from depthgauge.record.subject import drawn_hash, module_hash

    assert found.record is not None
    subject = found.record.subject
    held = subject.weights
    own = drawn_hash(module) if subject.kind == "equation" else module_hash(module)
    if own not in held.values():
        yield (
            f"stale: the module's weights are not those of the seeds that were commissioned "
            f"({', '.join(held)}); ask before the first step, and build it under one of them"
        )


def _text(record: str | os.PathLike[str], found: list[str]) -> str:
    lines = [f"{os.fspath(record)} does not allow this run:", *(f"  - {line}" for line in found)]
    return "\n".join(lines)
