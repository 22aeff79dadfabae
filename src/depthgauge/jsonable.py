"""JSON that other programs read: numbers are finite, or ``null`` with a reason beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from depthgauge.sites import QUANTITIES

__all__ = ["finite", "jsonable", "why_not_finite"]

_SUFFIX = "_reason"


def finite(x: float) -> float | None:
    """``x`` as a float, or ``None`` when it is inf, -inf or not a number."""
    value = float(x)
    return value if math.isfinite(value) else None


#: By the unit of what is no magnitude, the words for inf and for NaN: zeros need no bits, and of a
#: state of zeros a ratio or a cosine is 0 / 0.
_WORDS: Final = {
    "bits": ("all zero", "not a number"),
    "ratio": ("infinite", "undefined"),
    "cosine": ("infinite", "undefined"),
    "directions": ("infinite", "undefined"),
}
#: Ratios that are NaN only where what they compare is.
_COMPARED: Final = ("relative_error_state", "relative_error_gradient")


def why_not_finite(x: float, name: str = "") -> str:
    """``""`` for a finite number, else the words that stand beside its ``null``; ``name``: of the
    quantity, or of what a note holds (``ratio``, ``bits``)."""
    value = float(x)
    if math.isfinite(value):
        return ""
    unit = QUANTITIES[name].unit if name in QUANTITIES else name
    infinite, undefined = _WORDS.get(unit, ("overflow to inf", "not a number"))
    if math.isnan(value):
        return "not a number" if name in _COMPARED else undefined
    return infinite if value > 0 else "minus infinity"


def jsonable(value: object) -> Any:
    """``value`` as what ``json.dumps(..., allow_nan=False)`` takes.

    A non-finite number under ``key`` becomes ``null``, with its reason under ``key_reason`` of the
    same object (unless the caller put one there); inside a list the elements become ``null`` and
    the reason counts them. Mappings get text keys, tuples, sets and arrays become lists, and
    anything else becomes its text.
    """
    return _convert(value, Counter())


def _convert(value: object, reasons: Counter[str], name: str = "") -> Any:
    """``value``, under the key ``name``, converted; what became ``null`` is counted in
    ``reasons``."""
    match value:
        case None | bool() | str():
            return value
        case np.generic() | np.ndarray():
            return _convert(value.tolist(), reasons, name)
        case int():
            return int(value)
        case float():
            if reason := why_not_finite(value, name):
                reasons[reason] += 1
            return finite(value)
        case Mapping():
            return _convert_mapping(value)
        case Set():
            return _convert(sorted(value, key=str), reasons, name)
        case Sequence():
            return [_convert(item, reasons, name) for item in value]
        case _:
            return str(value)


def _convert_mapping(value: Mapping[Any, object]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        reasons: Counter[str] = Counter()
        out[str(key)] = _convert(item, reasons, str(key))
        if reasons and f"{key}{_SUFFIX}" not in value:
            out[f"{key}{_SUFFIX}"] = _sentence(reasons, item)
    return out


def _sentence(reasons: Counter[str], item: object) -> str:
    """``"not a number"`` for a number, ``"not a number at 3 of 97"`` inside a list."""
    if not isinstance(item, Sequence | Set | np.ndarray):
        return next(iter(reasons))
    total = _count(item)
    return ", ".join(f"{reason} at {count} of {total}" for reason, count in reasons.items())


def _count(item: object) -> int:
    if isinstance(item, np.ndarray):
        return int(item.size)
    if isinstance(item, Sequence | Set) and not isinstance(item, str):
        return sum(_count(inner) for inner in item)
    return 1
