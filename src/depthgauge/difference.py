"""One profile minus another: decades for magnitudes, plain differences for shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from depthgauge.errors import UsageError, nearest
from depthgauge.sites import QUANTITIES, Column, FloatArray, Site

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["Difference", "decades", "subtract"]


def decades(a: FloatArray, b: FloatArray) -> FloatArray:
    """log10(a / b), elementwise: 0 where both are equal (also both 0 or both inf), -inf where
    only ``a`` is 0, +inf where only ``b`` is 0, NaN where either is; never warns."""
    with np.errstate(all="ignore"):
        ratio = a / b
        # A quotient that left the normal range is off; one inside it is exact near 1.
        safe = np.isfinite(ratio) & (ratio > np.finfo(np.float64).tiny)
        out = np.where(safe, np.log10(ratio), np.log10(a) - np.log10(b))
    return np.where(a == b, 0.0, out)


@dataclass(frozen=True, eq=False)
class Difference:
    """``left - right``, site by site.

    Quantities with a logarithmic scale are log10(left / right) in decades, the others left - right.
    ``not_compared`` says why a quantity (or a part of its sites) is missing.
    """

    left: str
    right: str
    sites: tuple[Site, ...]
    columns: Mapping[str, Column]
    seeds: int
    seed_axis: bool
    not_compared: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> FloatArray:
        """Shape (sites,), or (seeds, sites) when either profile had a seed axis."""
        if name not in self.columns:
            reason = self.not_compared.get(name)
            known = nearest(name, QUANTITIES)
            raise UsageError(
                f"'{name}' was not compared: {reason}"
                if reason
                else f"'{name}' is not a quantity of this difference{known}; "
                f"it holds {', '.join(self.columns) or 'none'}"
            )
        return self.columns[name].view(self.seed_axis)

    def worst(self, n: int = 3) -> list[tuple[str, Site, float]]:
        """The ``n`` largest |values| as (quantity, site, value), over all quantities.

        Each site counts once a quantity, with its worst seed. Decades and plain differences are
        ranked together; what is not a number comes first, then what is infinite.
        """
        found = []
        for name, column in self.columns.items():
            for row, values in zip(column.rows, column.values, strict=True):
                found.append((name, self.sites[row], max(map(float, values), key=_size)))
        return sorted(found, key=lambda item: _size(item[2]), reverse=True)[:n]

    def __str__(self) -> str:
        lines = [f"{self.left} - {self.right} (largest over sites, n = {self.seeds} seeds)"]
        for name in self.columns:
            only = Difference("", "", self.sites, {name: self.columns[name]}, self.seeds, True)
            for _, site, value in only.worst(1):
                lines.append(f"  {name:<28}{value:+.4g} {_unit(name)} at {site}")
        worst = [f"{name} {value:+.4g} at {site}" for name, site, value in self.worst()]
        lines.append(f"worst: {'; '.join(worst) or 'nothing was compared'}")
        lines += [f"not compared: {name}: {reason}" for name, reason in self.not_compared.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Difference of {len(self.columns)} quantities at {len(self.sites)} sites>"


def subtract(a: Profile, b: Profile) -> Difference:
    """``a - b``; the sites must agree, the seeds too or one profile has a single seed."""
    if sentence := _sites_differ(a.sites, b.sites):
        raise UsageError(sentence)
    many = {len(a.seeds), len(b.seeds)} - {1}
    if len(many) > 1:
        raise UsageError(
            f"{len(a.seeds)} seeds minus {len(b.seeds)} seeds; "
            "give both profiles the same number of seeds, or one of them a single seed"
        )
    columns: dict[str, Column] = {}
    not_compared: dict[str, str] = {}
    for name in [*a.columns, *(name for name in b.columns if name not in a.columns)]:
        here, there = a.columns.get(name), b.columns.get(name)
        if here is None or there is None:
            side, other = ("left", a) if here is None else ("right", b)
            not_compared[name] = f"not measured on the {side}: {other.why_not(name)}"
            continue
        rows = tuple(row for row in here.rows if row in set(there.rows))
        if missing := len(set(here.rows) ^ set(there.rows)):
            not_compared[name] = f"{missing} sites were measured on one side only"
        if not rows:
            continue
        x, y = _at(here, rows), _at(there, rows)
        with np.errstate(all="ignore"):
            log = QUANTITIES[name].scale == "log"
            plain = np.where(x == y, 0.0, x - y)
            columns[name] = Column(rows, decades(x, y) if log else plain)
    left, right = _labels(a, b)
    return Difference(
        left,
        right,
        a.sites,
        columns,
        max(len(a.seeds), len(b.seeds)),
        a.seed_axis or b.seed_axis,
        not_compared,
    )


def _labels(a: Profile, b: Profile) -> tuple[str, str]:
    """What to call the two sides: the targets, and what differs where those are the same."""
    if a.target != b.target:
        return a.target, b.target
    differing = [
        (name, first, second)
        for name, first, second in (
            ("dtype", a.dtype, b.dtype),
            ("width", a.width, b.width),
            ("batch", a.batch, b.batch),
            ("seeds", a.seeds, b.seeds),
            *(
                (key, a.settings.get(key), b.settings.get(key))
                for key in ("init", "draws", "input")
            ),
        )
        if first != second
    ]
    if not differing:
        return a.target, b.target
    words = [", ".join(f"{name} {d[side]}" for name, *d in differing) for side in (0, 1)]
    return f"{a.target} with {words[0]}", words[1]


def _at(column: Column, rows: tuple[int, ...]) -> FloatArray:
    where = {row: i for i, row in enumerate(column.rows)}
    return column.values[[where[row] for row in rows]]


def _sites_differ(left: tuple[Site, ...], right: tuple[Site, ...]) -> str:
    """``""`` or the sentence that says where two profiles stop describing the same places."""
    for a, b in zip(left, right, strict=False):
        if (a.block, a.role, a.path) != (b.block, b.role, b.path):
            return (
                f"site {a.index} is the {a.role} of {a} on the left and the {b.role} of {b} on the "
                "right; only profiles of the same blocks can be subtracted"
            )
    if len(left) != len(right):
        return (
            f"{len(left)} sites minus {len(right)} sites; "
            "only profiles of the same blocks can be subtracted"
        )
    return ""


def _size(value: float) -> tuple[bool, float]:
    """What is not a number is larger than everything."""
    return math.isnan(value), 0.0 if math.isnan(value) else abs(value)


def _unit(name: str) -> str:
    return "decades" if QUANTITIES[name].scale == "log" else QUANTITIES[name].unit
