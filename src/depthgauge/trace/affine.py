"""Values that are another with fixed numbers: ``a x + b``."""

from __future__ import annotations

from depthgauge.trace.graph import Ref, Value
from depthgauge.trace.operations import NEGATIONS

__all__ = ["affine"]


def affine(value: Value) -> tuple[float, float] | None:
    """``(a, b)`` of a value that is ``a x + b`` of another with fixed numbers; None of others."""
    if value.kind in ("shape", "drop"):
        return (1.0, 0.0) if len(value.inputs) == 1 else None
    if value.name in NEGATIONS:
        return -1.0, 0.0
    if value.kind not in ("product", "sum") or len(value.inputs) != 1 or value.options:
        return None
    numbers = [a for a in value.args if isinstance(a, int | float) and not isinstance(a, Ref)]
    if len(numbers) != 1 or isinstance(numbers[0], bool):
        return None
    number, first = float(numbers[0]), isinstance(value.args[0], Ref)
    reverse = "rsub" in value.name or "rdiv" in value.name or "rtruediv" in value.name
    if value.kind == "product":
        if "div" not in value.name:
            return number, 0.0
        return (1 / number, 0.0) if first and not reverse and number else None
    if "sub" not in value.name:
        return 1.0, number
    return (1.0, -number) if first and not reverse else (-1.0, number)
