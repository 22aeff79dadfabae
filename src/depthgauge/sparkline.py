"""A curve in one line of text, on a logarithmic scale."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

__all__ = ["sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"
_FLAT = 1e-6  # decades: a curve that moves less than this is drawn as constant


def sparkline(values: Iterable[float], width: int = 48) -> str:
    """``log10`` of the values as at most ``width`` characters from ``▁`` to ``█``.

    The scale runs from the smallest to the largest value, so look at the numbers beside it; a
    constant curve is a flat line at the middle. ``·`` is zero and ``×`` what has no logarithm
    (inf, NaN, negative). A longer curve is cut into ``width`` buckets, each shown by the value
    farthest from the curve's median, ``·`` before any value and ``×`` before all: one odd block
    among thousands stays visible, and an extreme is lost only to a farther one on the other side.
    """
    assert width >= 1, width
    logs = [_log(float(value)) for value in values]
    shown = [x for x in logs if math.isfinite(x)]
    low, high, middle = (
        (min(shown), max(shown), statistics.median(shown)) if shown else (0.0, 0.0, 0.0)
    )
    count = min(width, len(logs))
    edges = [len(logs) * i // count for i in range(count + 1)] if count else []
    return "".join(
        _character(_representative(logs[a:b], middle), low, high)
        for a, b in itertools.pairwise(edges)
    )


def _log(value: float) -> float:
    """log10; minus infinity for zero; NaN for everything that has no logarithm."""
    if value == 0.0:
        return -math.inf
    return math.log10(value) if 0.0 < value < math.inf else math.nan


def _representative(logs: Sequence[float], middle: float) -> float:
    return max(logs, key=lambda x: (math.isnan(x), 0.0 if math.isnan(x) else abs(x - middle)))


def _character(log: float, low: float, high: float) -> str:
    if math.isnan(log):
        return "×"
    if math.isinf(log):
        return "·"
    if high - low < _FLAT:
        return _LEVELS[3]
    return _LEVELS[min(int((log - low) / (high - low) * len(_LEVELS)), len(_LEVELS) - 1)]
