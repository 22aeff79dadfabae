"""Records made by hand and by hypothesis, for tests that write, read, break and compare them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.record.arrays import Arrays
from depthgauge.record.document import (
    Bound,
    CorridorPart,
    Curve,
    Gate,
    Judgement,
    Limits,
    Provenance,
    Record,
    Subject,
    Table,
    Verdict,
    equation_hash,
)
from depthgauge.record.provenance import torch_version

EQUATION = to_text(parse("h + a * W2(relu(W1(rmsnorm(h))))", {"a": "1/sqrt(L)"}))
GATES = ("block", "rivers", "precision", "update")


def subject(**changes: Any) -> Subject:
    """A block of depth 96, with what else follows from that."""
    given: dict[str, Any] = {
        "target": "spec.toml",
        "equation": EQUATION,
        "scalars": {"a": "1/sqrt(L)"},
        "init": {"W1": "he", "W2": "lecun"},
        "depths": (12, 48, 96),
        "depth": 96,
        "width": 64,
        "branches": 96,
        "m": (2,) * 96,
        "placement": "pre",
        "draws": "keyed",
        "batch": 128,
        "dtype": "float32",
        "seeds": (0, 1),
        "weights": {"0": "sha256:aa", "1": "sha256:bb"},
        "data": "sha256:cc",
    }
    given |= changes
    return Subject(**{"equation_hash": equation_hash(given["equation"]), **given})


def provenance(**changes: Any) -> Provenance:
    given = {
        "depthgauge": "0.1.0",
        "torch": torch_version(),
        "numpy": "2",
        "python": "3.11",
        "platform": "Linux",
    }
    return Provenance(**{**given, **changes})


def judgement(name: str = "gradient_ratio", value: float = 1.2, **changes: Any) -> Judgement:
    given: dict[str, Any] = {"name": name, "state": "pass", "n": 2, "value": value}
    given |= {"median": value, "low": value, "high": value, "margin": 0.2}
    return Judgement(**{**given, "bound": Limits(min=0.5, max=2.0), **changes})


def gate(name: str = "rivers", state: Any = "pass", **changes: Any) -> Gate:
    return Gate(
        **{
            "name": name,
            "question": f"does {name} hold?",
            "state": state,
            "judgements": (judgement(),),
            "leaves_open": "whether it learns",
            **changes,
        }
    )


def curve(name: str = "rivers", **changes: Any) -> Curve:
    given: dict[str, Any] = {
        "gate": name,
        "configuration": "baseline, depth 96",
        "depth": 96,
        "quantity": "state_rms",
        "blocks": "blocks",
        "values": "state",
        "seeds": (0, 1),
    }
    return Curve(**{**given, **changes})


def arrays(blocks: int = 4) -> dict[str, Any]:
    values = np.linspace(1, 2, 2 * blocks).reshape(blocks, 2)
    return {"blocks": np.arange(blocks), "state": values}


def record(**changes: Any) -> Record:
    """One gate with one judgement and one curve; its arrays are ``arrays()``."""
    given: dict[str, Any] = {
        "subject": subject(),
        "corridor": CorridorPart(
            name="default", bounds={"gradient_ratio": Bound(min=0.5, max=2.0, source="ours")}
        ),
        "gates": (gate(curves=(0,)),),
        "verdict": Verdict(state="pass", weakest="rivers", score=0.2),
        "curves": (curve(),),
        "provenance": provenance(),
    }
    return Record(**{**given, **changes})


# ---------------------------------------------------------------------------- any record

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORD = st.text("abcdefghij-_.<>&\"'\\/é ", min_size=1, max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
CELL = st.none() | TEXT | st.integers(-(2**60), 2**60) | NUMBER | st.booleans()
SEEDS = st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = tuple(draw(st.lists(TEXT, min_size=1, max_size=3)))
    row = st.tuples(*[CELL for _ in columns])
    return Table(
        kind=draw(WORD),
        title=draw(TEXT),
        columns=columns,
        rows=tuple(draw(st.lists(row, max_size=3))),
    )


@st.composite
def judgements(draw: st.DrawFn) -> Judgement:
    """Numbers that are finite, or null with a reason."""
    changes: dict[str, Any] = {}
    for name in ("value", "median", "low", "high", "margin"):
        value = changes[name] = draw(st.none() | NUMBER)
        if value is None:
            changes[f"{name}_reason"] = draw(WORD)
    return judgement(draw(WORD), **changes)


@st.composite
def stored(draw: st.DrawFn) -> tuple[Record, Arrays]:
    """Any record that is consistent, and its arrays: gates, tables, curves of any numbers."""
    names = draw(st.lists(WORD, max_size=3, unique=True))
    curves, held = [], {}
    for place, name in enumerate(names):
        seeds, blocks = draw(SEEDS), draw(st.integers(0, 4))
        kind = draw(st.sampled_from([np.float64, np.float32, np.int64]))
        held[f"{place}/blocks"] = np.arange(blocks)
        held[f"{place}/values"] = draw(st_numpy.arrays(kind, (blocks, len(seeds))))
        curves.append(
            curve(name, blocks=f"{place}/blocks", values=f"{place}/values", seeds=seeds,
                  configuration=draw(TEXT))
        )  # fmt: skip
    gates = [
        gate(name, draw(st.sampled_from(["pass", "warn"])), reason=draw(TEXT), curves=[place],
             judgements=draw(st.lists(judgements(), max_size=2)),
             tables=draw(st.lists(tables(), max_size=2)))
        for place, name in enumerate(names)
    ]  # fmt: skip
    found = record(
        subject=subject(target=draw(TEXT), arguments=draw(st.dictionaries(WORD, CELL, max_size=2))),
        gates=gates,
        verdict=Verdict(state="not_measured", reason=draw(TEXT)),
        notes=draw(st.lists(TEXT, max_size=2)),
        curves=curves,
        provenance=provenance(command=draw(st.lists(TEXT, max_size=3)), git_reason="none"),
    )
    return found, held
