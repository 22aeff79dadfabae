"""Both rivers of a profile as one matplotlib figure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from depthgauge.extras import load
from depthgauge.sites import FloatArray
from depthgauge.summaries import spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["plot"]

_RIVERS = {"state_rms": ("state", "C0"), "gradient_rms": ("gradient", "C1")}


def plot(profile: Profile, ax: Any = None, seed: int | None = None) -> Any:
    """Median line and range band over seeds; gaps are marked at the block where they begin.

    A seed counts at a block only where its RMS is positive and finite. The gradient travels
    backward, so its gaps begin at their largest block.
    """
    if ax is None:
        pyplot = load("matplotlib.pyplot", "plot", "Profile.plot")
        ax = pyplot.subplots()[1]
    for name, (label, colour) in _RIVERS.items():
        if river := profile.by_block(name):
            blocks, values = river
            shown = values if seed is None else values[:, [seed]]
            _curve(ax, np.array(blocks), shown, label, colour, backward=name == "gradient_rms")
    ax.set(xlabel="block", ylabel="RMS", yscale="log")
    title = profile.equation or profile.target
    ax.set_title("\n".join(textwrap.wrap(title, 72)), fontsize="small")
    ax.xaxis.get_major_locator().set_params(integer=True)
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    return ax


def _curve(
    ax: Any, blocks: Any, values: FloatArray, label: str, colour: str, *, backward: bool
) -> None:
    usable = np.isfinite(values) & (values > 0)
    drawn = [
        spread(row[good]) if good.any() else (np.nan,) * 3
        for row, good in zip(values, usable, strict=True)
    ]
    median, low, high = np.array(drawn).T
    n = values.shape[1]
    ax.plot(blocks, median, color=colour, label=f"{label} RMS" + (f", n={n}" if n > 1 else ""))
    if n > 1:
        ax.fill_between(blocks, low, high, color=colour, alpha=0.2, linewidth=0)
    for bad, what in (
        (~np.isfinite(values), "not finite"),
        (np.isfinite(values) & (values <= 0), "zero"),
    ):
        if bad.any():
            places = np.flatnonzero(bad.any(axis=1))
            block = blocks[places[-1] if backward else places[0]]
            seeds = f" in {int(bad.any(axis=0).sum())} of {n} seeds" if n > 1 else ""
            ax.axvline(
                block,
                color=colour,
                linestyle=":" if what == "zero" else "--",
                label=f"{label} {what} from block {block}{' back' if backward else ' on'}{seeds}",
            )
