"""What was found at every depth, whoever found it: measured, predicted or read from a record.

Index legend: ``S`` sites where a quantity was measured, ``K`` seeds, ``B`` blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from depthgauge import profile_document, profile_plot, profile_text
from depthgauge.difference import Difference, subtract
from depthgauge.errors import UsageError, nearest
from depthgauge.sites import QUANTITIES, VECTORS, Column, FloatArray, Site
from depthgauge.summaries import SUMMARIES, summarise, why_incomplete

if TYPE_CHECKING:
    from depthgauge.profile_document import JudgedCorridor

__all__ = ["SUMMARIES", "Column", "Difference", "Profile"]


@dataclass(frozen=True, eq=False)
class Profile:
    """One result, many sources: sites in forward order, and columns of quantities measured there.

    ``depth`` counts blocks, ``branches`` the residual branches of the whole network. ``seed_axis``
    is False when the user asked for one integer seed: then arrays have no seed axis. ``settings``
    is what a record needs to repeat the run; ``not_measured`` gives a reason for each quantity
    that is missing. A value may be inf or NaN: that is a finding, never an exception or a warning.
    """

    target: str
    equation: str
    depth: int
    width: int
    branches: int
    streams: tuple[dict[str, Any], ...]
    dtype: str
    batch: int
    seeds: tuple[int, ...]
    seed_axis: bool
    sites: tuple[Site, ...]
    columns: Mapping[str, Column]
    settings: Mapping[str, object]
    not_measured: Mapping[str, str] = field(default_factory=dict)
    #: Quantities of several numbers at a site: quantity -> row -> ``(K, numbers)``.
    vectors: Mapping[str, Mapping[int, FloatArray]] = field(default_factory=dict)
    #: What was not seen, by the words of the JSON's ``coverage``: (path, reason) pairs.
    coverage: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    #: Where the two tests for a stream do not agree, with both counts.
    disagreements: tuple[Mapping[str, Any], ...] = ()
    #: How numbers grow with depth, where several depths were measured: name -> slope, interval, n.
    exponents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Seconds of the measured pass over those of the model's own work in it.
    overhead: float | None = None

    def __post_init__(self) -> None:
        assert self.seeds
        assert self.seed_axis or len(self.seeds) == 1, self.seeds
        assert [site.index for site in self.sites] == list(range(len(self.sites)))
        blocks = [site.block for site in self.sites]
        assert blocks == sorted(blocks), "sites are in forward order"
        for name, column in self.columns.items():
            assert name in QUANTITIES, name
            assert column.rows, name
            assert list(column.rows) == sorted(set(column.rows)), name
            assert column.values.shape == (len(column.rows), len(self.seeds)), name
            assert column.values.dtype == np.float64, name
            roles = QUANTITIES[name].roles
            assert all(self.sites[row].role in roles for row in column.rows), name
        for name, found in self.vectors.items():
            assert name in VECTORS, name
            assert all(values.shape[0] == len(self.seeds) for values in found.values()), name

    def __getitem__(self, name: str) -> FloatArray:
        """Shape (S,), or (K, S) when there is a seed axis; ``sites_of(name)`` says where."""
        return self._column(name).view(self.seed_axis)

    def __contains__(self, name: object) -> bool:
        """Was this quantity measured?"""
        return name in self.columns

    def sites_of(self, name: str) -> tuple[Site, ...]:
        """The sites at which ``name`` was measured, in forward order."""
        return tuple(self.sites[row] for row in self._column(name).rows)

    def blocks_of(self, name: str) -> tuple[int, ...]:
        """The block of each of those sites, 0 for the network's input."""
        return tuple(site.block for site in self.sites_of(name))

    def by_block(self, name: str) -> tuple[tuple[int, ...], FloatArray] | None:
        """The blocks and the values there, shape (B, K); ``None`` when it was not measured.

        Where a block has several sites, a state quantity is that of the last (what the block passes
        on) and a quantity of activations or branches is their mean.
        """
        if name not in self.columns:
            return None
        values = self.columns[name].values
        rows: dict[int, list[int]] = {}
        for i, block in enumerate(self.blocks_of(name)):
            rows.setdefault(block, []).append(i)
        last = QUANTITIES[name].roles[0] == "state"
        with np.errstate(all="ignore"):
            picked = [values[at[-1]] if last else values[at].mean(axis=0) for at in rows.values()]
        return tuple(rows), np.array(picked)

    def curve(self, name: str) -> dict[int, float | FloatArray]:
        """Block -> value (an array over seeds when there is a seed axis), see ``by_block``."""
        self._column(name)
        found = self.by_block(name)
        assert found is not None
        return {
            block: values if self.seed_axis else float(values[0])
            for block, values in zip(*found, strict=True)
        }

    def summary(self) -> dict[str, FloatArray]:
        """Name -> one value a seed, shape (K,); ``SUMMARIES`` holds the formulas.

        A summary is there only when its columns were measured, at every block where its formula
        says so; ``why_not`` gives the reason for the others.
        """
        return summarise(self)

    def why_not(self, name: str) -> str:
        """Why a quantity or a summary is not in this profile: a sentence, never empty."""
        if name in self.not_measured:
            return self.not_measured[name]
        if name in SUMMARIES and (name not in QUANTITIES or name in self.columns):
            return why_incomplete(self, name)
        if name in QUANTITIES and not any(s.role in QUANTITIES[name].roles for s in self.sites):
            return f"there is no {' or '.join(QUANTITIES[name].roles)} site in this profile"
        return "no instrument measured it"

    def first_nonfinite(self, seed: int = 0) -> Site | None:
        """The first state in forward order that holds an inf or NaN (or whose RMS is one).

        ``seed`` is a place on the seed axis, 0 for the first seed.
        """
        rows = self._lost_rows("state", seed)
        return self.sites[min(rows)] if rows else None

    def first_nonfinite_gradient(self, seed: int = 0) -> Site | None:
        """The same for the gradient, which travels backward: the site nearest to the output."""
        rows = self._lost_rows("gradient", seed)
        return self.sites[max(rows)] if rows else None

    def why_nonfinite(self, name: str, seed: int = 0) -> str:
        """Where what makes the summary ``name`` not finite began: ``"from block 57 on (...)"``."""
        state, back = self.first_nonfinite(seed), self.first_nonfinite_gradient(seed)
        forward = f"from {state.describe('on')}" if state else ""
        backward = f"from {back.describe('back')}" if back else ""
        if not name.startswith("gradient") and forward:
            return forward
        if backward and forward:
            return f"{backward} in the gradient; the state is not finite {forward}"
        if backward or forward:
            return f"{backward} in the gradient" if backward else forward
        if name == "gradient_ratio":
            return "because the gradient RMS at the output is too small to divide by"
        if own := self._where_lost(name, seed):
            return own
        if self.columns.keys() & {"state_rms", "nonfinite_fraction"}:
            return "although states and gradients are finite where they were looked at"
        return "and neither states nor gradients were looked at"

    def _where_lost(self, name: str, seed: int) -> str:
        """The same from what an instrument that runs the network again has seen; ``""`` if it
        has not."""
        notes = self.settings.get("instruments")
        notes = notes if isinstance(notes, Mapping) else {}
        if name == "stiffness" and seed == 0:  # the notes are those of the first seed
            why = notes.get("stiffness", {}).get("ratio_reason")
            return f"since {why}" if why else ""
        compared = name.startswith("relative_error")
        rows = self._nonfinite_rows("relative_error_state" if compared else name, seed)
        if rows:
            where = f"from {self.sites[min(rows)].describe('on')}"
        elif rows := self._nonfinite_rows(name, seed):  # of gradients, which travel backward
            where = f"from {self.sites[max(rows)].describe('back')}"
        else:
            return ""
        if name == "functional_update":
            return f"{where} after the step"
        note = notes.get("precision", {})
        over = compared and note.get("first_nonfinite")
        return f"{where}, where {note['arithmetic']} overflows" if over else where

    def to_dict(self, corridor_verdict: JudgedCorridor | None = None) -> dict[str, Any]:
        """The document of ``measure --json``: finite numbers, or null with a reason beside it.

        A number is the median over seeds. ``corridor_verdict`` fills ``verdict`` and ``corridor``.
        """
        return profile_document.document(self, corridor_verdict)

    def to_frame(self) -> Any:
        """A pandas table, one row a site (and seed, in the first column, on a seed axis)."""
        return profile_document.frame(self)

    def plot(self, ax: Any = None, seed: int | None = None) -> Any:
        """State and gradient RMS over blocks with matplotlib; returns the axes.

        The line is the median over seeds (or one seed, by its place), the band their range. Zero
        and non-finite values are gaps, marked where they begin.
        """
        if seed is not None:
            self._seed(seed)
        return profile_plot.plot(self, ax, seed)

    def __sub__(self, other: Profile) -> Difference:
        """Decades for magnitudes, plain differences for shares; the sites must agree."""
        if not isinstance(other, Profile):
            return NotImplemented
        return subtract(self, other)

    def __str__(self) -> str:
        return profile_text.text(self)

    def __repr__(self) -> str:
        return (
            f"<Profile of {self.target!r}: depth {self.depth}, width {self.width}, "
            f"{len(self.seeds)} seeds, {len(self.sites)} sites, {len(self.columns)} quantities>"
        )

    def _column(self, name: str) -> Column:
        if name in self.columns:
            return self.columns[name]
        if name in QUANTITIES:
            raise UsageError(f"'{name}' is not in this profile: {self.why_not(name)}")
        raise UsageError(
            f"'{name}' is not a quantity{nearest(name, QUANTITIES)}; "
            f"this profile holds {', '.join(self.columns) or 'none'}"
        )

    def _seed(self, seed: int) -> int:
        if not 0 <= seed < len(self.seeds):
            raise UsageError(
                f"seed {seed} is a place on the seed axis, which has {len(self.seeds)}; "
                f"give 0 to {len(self.seeds) - 1}"
            )
        return seed

    def _nonfinite_rows(self, name: str, seed: int, share: bool = False) -> list[int]:
        """Rows where a column is not finite, or as a share of such values not 0."""
        self._seed(seed)
        if (column := self.columns.get(name)) is None:
            return []
        values = column.values[:, seed]
        bad = ~np.isfinite(values) | (share & (values > 0))
        return [row for row, is_bad in zip(column.rows, bad, strict=True) if is_bad]

    def _lost_rows(self, part: str, seed: int) -> list[int]:
        """Rows where the river ``part`` holds values that are not finite, or its RMS is not."""
        share = "nonfinite_fraction" if part == "state" else f"{part}_nonfinite_fraction"
        rows = self._nonfinite_rows(share, seed, share=True)
        return [*rows, *self._nonfinite_rows(f"{part}_rms", seed)]
