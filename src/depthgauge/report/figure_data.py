"""The numbers of a figure as the JSON that stands in the page and that ``page.js`` draws.

    curves:  {"kind": "curves", "x": "block", "names": [..], "depths": [..], "panels":
             [{"label", "unit", "log", "lines": [{"name": index, "depth": index, "style":
             [colour, dash], "seeds", "x": [first] or [..], "middle": [..], "low": [..],
             "high": [..]}]}]}
    effects: {"kind": "effects", "names": [..], "changes": [..], "unit", "series":
             [[{"change": index, "value", "low", "high"}, ..] one list a name]}

A gap is ``null``; four digits are kept, which is finer than a screen; an ``x`` of one number says
that the blocks go on from it one by one. Inside a script element the only dangers are ``<`` and
``&``: they are written as their code, as are the two line ends that JSON allows and JavaScript
once did not.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from depthgauge.report.drawing import EffectFigure, Figure, Line
from depthgauge.sites import FloatArray

__all__ = ["data_of", "harmless"]

_CODES: Final = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def data_of(figure: Figure | EffectFigure) -> str:
    """The JSON text of a figure, safe inside a script element."""
    found = _effects(figure) if isinstance(figure, EffectFigure) else _curves(figure)
    return harmless(json.dumps(found, allow_nan=False, ensure_ascii=False, separators=(",", ":")))


def harmless(text: str) -> str:
    """JSON in which nothing can end the element that it stands in, or begin another."""
    return text.translate(_CODES)


def _curves(figure: Figure) -> dict[str, Any]:
    names = {name: i for i, name in enumerate(figure.names())}
    depths = {depth: i for i, depth in enumerate(figure.depths())}
    return {
        "kind": "curves",
        "x": figure.x,
        "names": list(names),
        "depths": list(depths),
        "panels": [
            {
                "label": panel.label,
                "unit": panel.unit,
                "log": panel.log,
                "lines": [
                    {
                        "name": names[line.configuration],
                        "depth": depths[line.depth],
                        **_line(line),
                    }
                    for line in panel.lines
                ],
            }
            for panel in figure.panels
        ],
    }


def _line(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {
        "style": list(line.style),
        "seeds": line.seeds,
        "x": _blocks(line.x),
        "middle": _numbers(line.middle),
    }
    if line.has_band:
        found |= {"low": _numbers(line.low), "high": _numbers(line.high)}
    return found


def _blocks(x: npt.NDArray[np.int64]) -> list[int]:
    listed: list[int] = x.tolist()
    return listed[:1] if listed == list(range(listed[0], listed[0] + len(listed))) else listed


def _numbers(values: FloatArray) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short


def _effects(figure: EffectFigure) -> dict[str, Any]:
    changes = {name: i for i, name in enumerate(figure.changes())}
    return {
        "kind": "effects",
        "names": list(figure.names()),
        "changes": list(changes),
        "unit": figure.unit,
        "series": [
            [
                {
                    "change": changes[effect.change],
                    "value": _short(effect.value),
                    "low": _short(effect.low),
                    "high": _short(effect.high),
                }
                for effect in figure.of(name)
            ]
            for name in figure.names()
        ],
    }
