"""Small profiles made by hand, for tests that judge, print and subtract them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from depthgauge.profile import Column, Profile
from depthgauge.sites import QUANTITIES, Site

ANY = st.floats(0) | st.just(math.nan)

NOT_MEASURED = {"dead_fraction": "no example was shown twice"}


def sites(depth: int) -> tuple[Site, ...]:
    """The input, then an activation and a state a block."""
    found = [Site(0, 0, "input", "state")]
    for block in range(1, depth + 1):
        path = f"blocks.{block - 1}"
        found.append(Site(len(found), block, f"{path}.relu", "activation"))
        found.append(Site(len(found), block, path, "state"))
    return tuple(found)


def profile(
    state: Sequence[Any] = (1.0, 2.0, 4.0),
    gradient: Sequence[Any] | None = None,
    *,
    extra: Mapping[str, Sequence[Any]] | None = None,
    seed_axis: bool | None = None,
    **fields: Any,
) -> Profile:
    """A profile whose RMS at the input and each block are given; a row is a number or one a seed.

    ``extra`` holds further quantities, one row for each site of their role.
    """
    given: dict[str, Sequence[Any]] = {"state_rms": state}
    if gradient is not None:
        given["gradient_rms"] = gradient
    given |= extra or {}
    where = sites(len(state) - 1)
    columns = {}
    for name, rows in given.items():
        values = np.array(rows, dtype=np.float64).reshape(len(rows), -1)
        at = [site.index for site in where if site.role in QUANTITIES[name].roles]
        columns[name] = Column(tuple(at), values)
        assert len(at) == len(rows), name
    seeds = columns["state_rms"].values.shape[1]
    made: dict[str, Any] = {
        "target": "h + a * W2(relu(W1(h)))",
        "equation": "h = h + a * W2(relu(W1(h)))",
        "depth": len(state) - 1,
        "width": 64,
        "branches": len(state) - 1,
        "streams": ({"name": "h", "branches": len(state) - 1},),
        "dtype": "float32",
        "batch": 128,
        "seeds": tuple(range(seeds)),
        "seed_axis": seeds > 1 if seed_axis is None else seed_axis,
        "sites": where,
        "columns": columns,
        "settings": {"init": {"W1": "he"}, "draws": "per-layer"},
        "not_measured": NOT_MEASURED,
    }
    return Profile(**(made | fields))


@st.composite
def profiles(draw: st.DrawFn, values: st.SearchStrategy[float] = ANY) -> Profile:
    """Any profile of up to 6 blocks and 3 seeds, also with values that are not finite."""
    depth, seeds = draw(st.integers(1, 6)), draw(st.integers(1, 3))

    def rows(n: int) -> list[list[float]]:
        row = st.lists(values, min_size=seeds, max_size=seeds)
        return draw(st.lists(row, min_size=n, max_size=n))

    extra = {
        name: rows(depth if "activation" in quantity.roles else depth + 1)
        for name, quantity in QUANTITIES.items()
        if quantity.roles != ("branch",)
        and name not in ("state_rms", "gradient_rms")
        and draw(st.booleans())
    }
    gradient = rows(depth + 1) if draw(st.booleans()) else None
    return profile(rows(depth + 1), gradient, extra=extra)
