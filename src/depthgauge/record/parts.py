"""The parts of a record: what each key of ``record.json`` holds.

What a bound does not have (a ``min``, a ``max``) is left out; see ``base`` for what is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field, JsonValue, model_validator

from depthgauge.record.base import Many, Part

__all__ = [
    "WORST_FIRST",
    "Bound",
    "Cell",
    "CorridorPart",
    "Curve",
    "Gate",
    "Git",
    "Judgement",
    "Limits",
    "Many",
    "Part",
    "Provenance",
    "Source",
    "State",
    "Subject",
    "Table",
    "Verdict",
]

State: TypeAlias = Literal["pass", "warn", "fail", "not_measured"]
WORST_FIRST: tuple[State, ...] = ("fail", "not_measured", "warn", "pass")

Cell: TypeAlias = str | int | float | bool | None


class Source(Part):
    """The module that a builder stands in."""

    file: str
    """As seen from where the commission ran; no path of its machine outside of it."""
    hash: str
    """Of the file's bytes."""


class Subject(Part):
    """What was commissioned: everything that must be the same for its record to hold."""

    usual: ClassVar[Mapping[str, str]] = {
        "width": "the states have no axis of width",
        "tokens": "the state has no axis of tokens",
        "size": "the state is no image",
        "source": "an equation has no module of its own",
    }
    optional: ClassVar[tuple[str, ...]] = ("batches",)

    target: str
    kind: Literal["equation", "builder"] = "equation"
    equation: str = ""
    """Canonical text, the scalars given beside it in front; empty where none could be read."""
    equation_hash: str = ""
    latex: str = ""
    scalars: dict[str, str] = Field(default_factory=dict)
    init: dict[str, str] = Field(default_factory=dict)
    depths: Many[int] = ()
    """Of the depth sweep."""
    depth: int
    """Blocks."""
    width: int | None = None
    width_reason: str | None = None
    tokens: int | None = None
    tokens_reason: str | None = None
    size: int | None = None
    size_reason: str | None = None
    branches: int = 0
    """Residual branches in the whole network."""
    m: Many[int] = ()
    """Weight layers in series, branch by branch."""
    placement: str = ""
    draws: str = ""
    batch: int
    dtype: str
    device: str = "cpu"
    seeds: Many[int]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Of the builder; of an equation the optimiser and its learning rate."""
    source: Source | None = None
    source_reason: str | None = None
    layers: dict[str, str] = Field(default_factory=dict)
    """Of a builder: shapes of the weights, those whose paths differ in numbers alone counted
    together."""
    weights: dict[str, str] = Field(default_factory=dict)
    """By seed: a hash of every weight's name, shape, precision and numbers."""
    data: str = ""
    """A hash of the batches of all seeds."""
    batches: dict[str, str] | None = None
    """Of a builder, by seed: a hash of its batch."""

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"{self.target}\ndepth {self.depth}, width {self.width or '-'}, {self.branches} "
            f"branches, batch {self.batch}, {self.dtype}, seeds {seeds}"
        )

    def __repr__(self) -> str:
        return f"<Subject {self.target!r}: depth {self.depth}, seeds {self.seeds}>"


class Limits(Part):
    """The least and the largest value allowed, and the decades inside them that are a warning."""

    optional: ClassVar[tuple[str, ...]] = ("min", "max")

    min: float | None = None
    max: float | None = None
    warn: float = 0.1


class Bound(Limits):
    """Limits with why they are what they are."""

    reason: str = ""
    source: str = ""


class CorridorPart(Part):
    """The bounds that were in force."""

    name: str
    bounds: dict[str, Bound] = Field(default_factory=dict)


class Judgement(Part):
    """One bound held against one summary; numbers as in ``depthgauge.study.corridor.Judgement``."""

    name: str
    state: State
    n: int
    """Seeds."""
    value: float | None = None
    """Of the worst seed."""
    value_reason: str | None = None
    median: float | None = None
    median_reason: str | None = None
    low: float | None = None
    low_reason: str | None = None
    high: float | None = None
    high_reason: str | None = None
    margin: float | None = None
    """Decades to the nearest bound, negative outside."""
    margin_reason: str | None = None
    bound: Limits
    reason: str = ""


class Table(Part):
    """Numbers that are no curve: an ablation, laws over depth, configurations."""

    kind: str
    title: str
    columns: Many[str]
    rows: Many[Many[Cell]] = ()
    rows_reason: str | None = None
    """What the cells that are null would have been."""

    @model_validator(mode="after")
    def _rectangular(self) -> Table:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} of the table '{self.title}' has {len(row)} cells, expected "
                    f"{len(self.columns)}, one a column"
                )
        return self


class Gate(Part):
    """One gate of the commission: what was asked, what came, and what it leaves open."""

    name: str
    question: str
    state: State
    reason: str = ""
    judgements: Many[Judgement] = ()
    leaves_open: str = ""
    notes: Many[str] = ()
    tables: Many[Table] = ()
    curves: Many[int] = ()
    """Places in the record's list of curves, from 0."""


class Verdict(Part):
    """Of the whole commission; never better than that of its weakest gate."""

    usual: ClassVar[Mapping[str, str]] = {"score": "nothing was measured"}

    state: State
    reason: str = ""
    weakest: str = ""
    """The name of a gate whose state is the worst."""
    score: float | None = None
    """The smallest margin of what was measured, in decades."""
    score_reason: str | None = None


class Curve(Part):
    """One quantity over the blocks; its numbers stand in ``curves.npz``."""

    gate: str
    configuration: str
    depth: int
    quantity: str
    blocks: str
    """The array of the blocks' numbers, shape (B,)."""
    values: str
    """The array of the values, shape (B, K)."""
    seeds: Many[int]
    """K of them."""


class Git(Part):
    """The state of the repository that the target stands in."""

    commit: str
    dirty: bool
    """Whether a tracked file differed from that commit, or one was not tracked."""


class Provenance(Part):
    """When, where and with what; not part of the fingerprint."""

    usual: ClassVar[Mapping[str, str]] = {"git": "it was not looked for"}

    depthgauge: str
    torch: str
    numpy: str
    python: str
    platform: str
    command: Many[str] = ()
    git: Git | None = None
    git_reason: str | None = None
    plan: dict[str, JsonValue] = Field(default_factory=dict)
    """What the commission was to do; with another one it is not resumed."""
    started: str = ""
    """UTC, as in ISO 8601."""
    finished: str = ""
    wall_seconds: dict[str, float] = Field(default_factory=dict)
    """By gate."""
