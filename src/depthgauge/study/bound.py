"""One bound of one summary: what lies inside it, and how far.

A margin is the distance to the nearest bound in decades, positive inside and negative outside:

    margin = min(log10(max / value), log10(value / min))

of a cosine and a bound that are both below 0 those of their sizes, and of a summary in bits, which
is a logarithm already, min(max - value, value - min) * log10(2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from depthgauge.errors import SpecificationError
from depthgauge.sites import Scale
from depthgauge.summaries import SUMMARIES

__all__ = ["KEYS", "Bound", "nearer", "wrong_for"]

#: What a bound may say, in a specification or a corridor's file.
KEYS: Final = ("min", "max", "warn", "reason", "source")

_BIT: Final = math.log10(2)


@dataclass(frozen=True)
class Bound:
    """The least and the largest value allowed (both are inside), at least one of them.

    A value inside whose margin is below ``warn`` decades is a warning. ``reason``: what a value
    outside means; ``source``: where the numbers come from.
    """

    min: float | None = None
    max: float | None = None
    warn: float = 0.1
    reason: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if sentence := _wrong_bound(self):
            raise SpecificationError(sentence)
        for name in ("min", "max", "warn"):  # 3 and 3.0 are one bound, and one record
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))

    def margin(self, value: float, scale: Scale = "log") -> float:
        """Decades to the nearest bound; -inf for what is not finite and for 0 under a ``min``.

        ``scale``: of the summary. In bits inf is inside every ``min``: zeros need none.
        """
        if scale == "bits" and not math.isnan(value):
            above = math.inf if self.max is None else (self.max - value) * _BIT
            below = math.inf if self.min is None else (value - self.min) * _BIT
            return min(above, below)
        if not math.isfinite(value):
            return -math.inf
        above = math.inf if self.max is None else _decades(self.max, value)
        below = math.inf if self.min is None else _decades(value, self.min)
        return min(above, below)

    def __str__(self) -> str:
        parts = ("min", self.min), ("max", self.max)
        return ", ".join(f"{name} {x:g}" for name, x in parts if x is not None)

    def to_dict(self) -> dict[str, float | str]:
        """What was declared, for JSON; ``Corridor.of`` takes it back."""
        found = {key: getattr(self, key) for key in KEYS}
        return {key: value for key, value in found.items() if value is not None and value != ""}


def nearer(bound: Bound, value: float, scale: Scale) -> str:
    """The bound that the margin was measured to."""
    if bound.min is None or bound.max is None:
        return str(bound)
    below = Bound(min=bound.min).margin(value, scale)
    above = Bound(max=bound.max).margin(value, scale)
    return f"min {bound.min:g}" if below < above else f"max {bound.max:g}"


def _decades(large: float, small: float) -> float:
    """log10(large / small): its sign is that of large - small, also near 1 and far from it.

    +inf when ``small`` is 0 or less and ``large`` is no less (even under ``large = 0``: 0 is inside
    both ``max = 0`` and ``min = 0``), else -inf when ``large`` is 0 or less. Of two below 0 the
    sizes count, and the smaller number has the larger one.
    """
    if small < 0 and large < 0:
        large, small = -small, -large
    if small <= 0:
        return math.inf if large >= small else -math.inf
    if large <= 0:
        return -math.inf
    far = math.log10(large) - math.log10(small)
    return far if abs(far) > 1 else math.log10(large / small)


def _wrong_bound(bound: Bound) -> str:
    """``""`` or what no bound can be, whatever it bounds."""
    for name in ("min", "max", "warn"):
        value: object = getattr(bound, name)
        if value is None and name != "warn":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not _usable(value):
            return f"{name} of a bound is {value!r}; give a finite number, or leave it out"
    for name in ("reason", "source"):
        if not isinstance(text := getattr(bound, name), str):
            return f"{name} of a bound is {text!r}; give text in quotes, or leave it out"
    if bound.min is None and bound.max is None:
        return "a bound has neither min nor max; give at least one of them"
    if bound.min is not None and bound.max is not None and bound.min > bound.max:
        return f"min {bound.min:g} is larger than max {bound.max:g}; nothing lies between them"
    if bound.warn < 0:
        return f"warn of a bound is {bound.warn:g} decades; give 0 or more"
    return ""


def _usable(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def wrong_for(name: str, bound: Bound) -> str:
    """``""`` or what this summary cannot be bounded by."""
    if SUMMARIES[name].scale == "bits":
        return ""
    log, unit = SUMMARIES[name].scale == "log", SUMMARIES[name].unit
    signed = unit == "cosine"
    for side, value in (("min", bound.min), ("max", bound.max)):
        if value is not None and ((value < 0 and not signed) or (log and value == 0)):
            allowed = "a positive number" if log else f"a {unit}, 0 or more"
            return f"{side} of {name} is {value:g}; give {allowed}"
    return _pointless(name, bound)


#: The least and the largest value of a summary, where its definition says so; by name, else by
#: unit. A drift below 1 is that of a river of zeros, which no bound lets through.
_RANGES: Final = {
    "forward_drift": (1.0, math.inf),
    "gradient_drift": (1.0, math.inf),
    "share": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
}


def _pointless(name: str, bound: Bound) -> str:
    """``""``, or which side of the bound no value can meet, or every value does.

    At the end of the range a side may still warn of the values that come near it.
    """
    unit = SUMMARIES[name].unit
    low, high = _RANGES.get(name) or _RANGES.get(unit) or (-math.inf, math.inf)
    least = -math.inf if bound.min is None else bound.min
    most = math.inf if bound.max is None else bound.max
    if math.isinf(low):
        return ""
    what = f"{low:g} or more" if math.isinf(high) else f"from {low:g} to {high:g}"
    for side, value, none, every in (
        ("min", least, least > high, bound.min is not None and least < low),
        ("max", most, most < low, bound.max is not None and most > high),
    ):
        if none or every:
            met = "no value can meet" if none else "every value meets"
            return f"{side} of {name} is {value:g}, which {met}; it is {what}"
    near = least != 0 and math.isfinite(least)  # a margin to 0 is infinite
    warns = bound.warn > 0 and (near or math.isfinite(most))
    if least <= low and most >= high and not warns:
        return f"the bound of {name} is {bound}, which every value meets; it is {what}"
    return ""
