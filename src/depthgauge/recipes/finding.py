"""What an audit says of one part of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One part of a recipe: how many of its tensors or places are as they should be, and in a
    sentence what was found. ``ratio``: geometric mean of measured over expected standard deviation,
    NaN where zeros or counts are asked for."""

    part: str
    matching: int
    of: int
    said: str
    ratio: float = math.nan

    @property
    def holds(self) -> bool:
        return self.matching == self.of
