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
from depthgauge.record.folder import read
from depthgauge.record.verify import Verification, verify

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.record.document import Record
    from depthgauge.study.specification import Specification

__all__ = ["UNMEASURED", "assert_commissioned", "objections", "require"]

#: Gates that may stand open: this version has no matched training runs.
UNMEASURED: Final = ("training boundary",)


def require(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    *,
    batch: Any = None,
    unmeasured: Collection[str] = UNMEASURED,
) -> None:
    """Nothing, if the record is valid for the target and no gate of it fails.

    ``target``: a specification or its TOML file, or a module at its initialisation, which must be
    what was commissioned, with the weights of a seed that was; None looks at the record alone.
    ``batch``: what the module's ``forward`` takes, to read the blocks of one that code builds;
    without it such a module is known by its layers and weights alone, and of one in which an
    equation's network stands beside other layers that network alone is run. ``unmeasured``: gates
    that may be not measured. Raises NotCommissionedError with every objection in a line,
    RecordError where there is no record, TargetError for another target.
    """
    if found := list(objections(record, target, unmeasured, batch)):
        raise NotCommissionedError(_text(record, found))


def assert_commissioned(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    *,
    batch: Any = None,
    unmeasured: Collection[str] = UNMEASURED,
) -> None:
    """The same as an assertion: a test fails with the objections as its message."""
    found = list(objections(record, target, unmeasured, batch))
    assert not found, _text(record, found)


def objections(
    record: str | os.PathLike[str],
    target: str | Specification | nn.Module | None = None,
    unmeasured: Collection[str] = UNMEASURED,
    batch: Any = None,
) -> Iterator[str]:
    """Everything that speaks against it: what is broken or stale, gates that fail or stand open."""
    from torch import nn

    from depthgauge.record.modules import module_changes

    found = verify(record)
    specification = None if isinstance(target, nn.Module) else _specification(target)
    if specification is not None and found.record is not None and found.state != "broken":
        found = _verified(record, found.record, specification)
    for reason in found.reasons:
        yield f"{found.state}: {reason}"
    if found.record is None:
        return
    known = {gate.name for gate in found.record.gates}
    if unknown := sorted(set(unmeasured) - known - set(UNMEASURED)):
        raise SpecificationError(
            f"unmeasured names '{unknown[0]}', and the gates are {', '.join(sorted(known))}"
        )
    if isinstance(target, nn.Module):
        kept = None if found.state in ("broken", "newer") else read(record)
        for change in module_changes(found.record.subject, target, batch, kept):
            yield f"stale: {change}"
    for gate in found.record.gates:
        if gate.state == "fail":
            yield f"the gate '{gate.name}' fails: {gate.reason}"
        elif gate.state == "not_measured" and gate.name not in unmeasured:
            yield f"the gate '{gate.name}' was not measured: {gate.reason}"


def _specification(target: Any) -> Specification | None:
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
    return target


def _verified(
    directory: str | os.PathLike[str], record: Record, specification: Specification
) -> Verification:
    """The record held against a specification, and against the corridor as it is today."""
    from depthgauge.record.subject import subject_of
    from depthgauge.study.commission.bounds import conditional_today, corridor_today

    return verify(
        directory,
        subject_of(specification),
        corridor_today(record, specification),
        conditional=conditional_today(record, specification),
    )


def _text(record: str | os.PathLike[str], found: list[str]) -> str:
    lines = [f"{os.fspath(record)} does not allow this run:", *(f"  - {line}" for line in found)]
    return "\n".join(lines)
