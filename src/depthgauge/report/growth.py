"""How a network's ends grow with its depth: one point a depth, one line a configuration.

    end RMS = state_rms of the last block        gradient ratio = gradient_rms, first / last block

The points that the laws are fitted to, whatever the laws say; both axes logarithmic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from depthgauge.report.curves import Curves, band
from depthgauge.report.drawing import Figure, Line, Panel, Style
from depthgauge.sites import FloatArray

__all__ = ["growth"]

#: Label, unit, the quantity, and from its values (B, K) to one a seed.
_ENDS: tuple[tuple[str, str, str, Callable[[FloatArray], FloatArray]], ...] = (
    ("RMS of the last state", "state units", "state_rms", lambda values: values[-1]),
    ("Gradient ratio, input to output", "ratio", "gradient_rms", lambda v: v[0] / v[-1]),
)


def growth(curves: Curves) -> Figure | None:
    """The figure, of the configurations measured at two depths or more; ``None`` without any."""
    panels = []
    for label, unit, quantity, end in _ENDS:
        lines = tuple(_lines(curves, quantity, end))
        if lines:
            panels.append(Panel(label, unit, True, lines))
    if not panels:
        return None
    seeds = Figure("", "", tuple(panels), "").seeds()
    return Figure("growth", "The ends over depth", tuple(panels), seeds, x="depth")


def _lines(curves: Curves, quantity: str, end: Callable[[FloatArray], FloatArray]) -> list[Line]:
    found = []
    for configuration, measured in curves.by_depth(quantity).items():
        if len(measured) < 2:
            continue
        depths = sorted(measured)
        with np.errstate(all="ignore"):
            ends = [end(measured[depth][1]) for depth in depths]
        # As many seeds as every depth has.
        seeds = min(map(len, ends))
        middle, low, high = band(np.array([values[:seeds] for values in ends]), True)
        gaps = int((~np.isfinite(middle)).sum())
        note = f"no finite value at {gaps} of {len(depths)} depths" if gaps else ""
        colour = measured[depths[-1]][0].colour
        style = Style(colour, colour)  # depths are no dashes here
        x = np.array(depths)
        found.append(
            Line(configuration, configuration, 0, style, x, middle, low, high, seeds, x.size, note)
        )
    return found
