"""What an audit says of one part of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass

from depthgauge.recipes.rules import Count

__all__ = ["Finding", "counted_finding"]


@dataclass(frozen=True)
class Finding:
    """One part of a recipe: how many of its tensors or places are as they should be, and in a
    sentence what was found. ``ratio``: geometric mean of measured over expected standard deviation,
    NaN where zeros or counts are asked for. ``measured``: whether it could be judged at all; what
    could not never holds."""

    part: str
    matching: int
    of: int
    said: str
    ratio: float = math.nan
    measured: bool = True

    @property
    def holds(self) -> bool:
        return self.measured and self.matching == self.of

    @property
    def state(self) -> str:
        """``PASS``, ``FAIL`` or ``NOT MEASURED``."""
        if not self.measured:
            return "NOT MEASURED"
        return "PASS" if self.holds else "FAIL"


def counted_finding(count: Count) -> Finding:
    """What was counted against what was to be there, as a finding."""
    if count.expected:
        said = f"{count.found} of {count.expected} {count.what}"
        said += f": {count.why}" if count.why and count.found < count.expected else ""
        return Finding(count.what, min(count.found, count.expected), count.expected, said)
    why = f": {count.why}" if count.why and count.found else ""
    said = f"{count.found or 'no'} {count.what}{why}"
    return Finding(count.what, int(not count.found), 1, said)
