"""The parts of a record: what each key of ``record.json`` holds.

Numbers are finite, or ``null`` with the reason under ``NAME_reason``. What a bound does not have
(a ``min``, a ``max``) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

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

T = TypeVar("T")
#: A list in JSON; a list and a tuple are both taken.
Many: TypeAlias = Annotated[tuple[T, ...], Strict(False)]


class Part(BaseModel):
    """Frozen, and exact: text is no number, and a key that is not known is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    #: Fields that are left out when there is nothing to say.
    optional: ClassVar[tuple[str, ...]] = ()
    #: Why a field is null, where its maker does not say.
    usual: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found: dict[str, Any] = _unicode(given)
        for name, field in cls.model_fields.items():
            reason = f"{name}_reason"
            absent = found.get(name, None if field.is_required() else field.default) is None
            if reason not in cls.model_fields or not absent or found.get(reason):
                continue
            if name not in cls.usual:
                raise ValueError(f"{name} is null and {reason} does not say why")
            found[reason] = cls.usual[name]
        return found

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in handler(self).items()
            if value is not None or not (name.endswith("_reason") or name in self.optional)
        }


def _unicode(value: Any) -> Any:
    """Text as UTF-8 can hold it: a command line may bring bytes that are none, which become '?'."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case Mapping():
            return {_unicode(key): _unicode(item) for key, item in value.items()}
        case list():
            return [_unicode(item) for item in value]
        case tuple():
            return tuple(_unicode(item) for item in value)
        case _:
            return value


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

    target: str
    kind: Literal["equation", "builder"] = "equation"
    equation: str = ""
    """Canonical text, the scalars given beside it in front; empty where none could be read."""
    equation_hash: str = ""
    latex: str = ""
    scalars: dict[str, str] = {}
    init: dict[str, str] = {}
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
    arguments: dict[str, JsonValue] = {}
    """Of the builder."""
    source: Source | None = None
    source_reason: str | None = None
    weights: dict[str, str] = {}
    """By seed: a hash of every weight's name, shape, precision and numbers."""
    data: str = ""
    """A hash of the batches of all seeds."""


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
    bounds: dict[str, Bound] = {}


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
    """The array of the values, shape (B, K); (B, K, N) where there are N numbers at a block."""
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
    plan: str = ""
    """A hash of the plan of the commission, by which it is known when it is asked for again."""
    started: str = ""
    """UTC, as in ISO 8601."""
    finished: str = ""
    wall_seconds: dict[str, float] = Field(default_factory=dict)
    """By gate."""
