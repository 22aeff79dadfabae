"""The fixup-counts suite: what Fixup's rule counts, found by the tracer on networks that are built.

    scale = L^(-1/(2m - 2))    of each inner weight of a branch of m weight layers

L is the number of residual branches of the whole network: not layers, not blocks of a stage. m is
the number of weight layers in series in a branch: no shortcut, and four for attention (queries,
keys, values, output). Zhang, Dauphin and Ma, arXiv 1901.09321. A miscount of either is silent: the
network runs with another scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from depthgauge.measurement import Progress
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.study.claims import Claim, SuiteResult, quoted
from depthgauge.study.reference import resnet, transformer
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout

__all__ = ["run"]


@dataclass(frozen=True)
class Counted:
    """A network and what the paper counts in it: L, and for each m the exponent as it is quoted;
    ``scales``: factors that are quoted too, by m. ``layers`` are what its name counts."""

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    branches: int
    exponents: dict[int, str]
    scales: dict[int, str]
    layers: int


def _resnet(depth: int, branches: int, m: int, scale: str = "") -> Counted:
    exponent = {2: "-0.500000", 3: "-0.250000"}[m]
    scales = {m: scale} if scale else {}
    return Counted(f"ResNet-{depth}", lambda: resnet(depth), branches, {m: exponent}, scales, depth)


NETWORKS: Final = (
    _resnet(20, 9, 2),
    _resnet(32, 15, 2),
    _resnet(44, 21, 2),
    _resnet(56, 27, 2, "0.192450"),
    _resnet(110, 54, 2, "0.136083"),
    _resnet(1202, 600, 2),
    _resnet(18, 8, 2),
    _resnet(34, 16, 2),
    _resnet(50, 16, 3, "0.500000"),
    _resnet(101, 33, 3, "0.417226"),
    _resnet(152, 50, 3, "0.376060"),
    Counted(
        "Transformer, 6 + 6",
        lambda: transformer(6, 6),
        30,
        {2: "-0.500000", 4: "-0.166667"},
        {4: "0.567300"},
        12,
    ),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Trace every network and hold L, m, exponents and factors to what the paper counts."""
    found, claims = [], []
    for done, counted in enumerate(NETWORKS, 1):
        row, traced = _row(counted)
        found.append(row)
        claims += _claims(counted, traced)
        if progress is not None:
            progress(done, len(NETWORKS))
    return SuiteResult(
        suite="fixup-counts",
        about=(
            "L, m, exponents and factors of Fixup's rule, counted by the tracer on networks that "
            "are built, not taken from a table."
        ),
        configurations=tuple(found),
        claims=tuple(claims),
        lessons=(_lesson(found),),
        settings={"columns": dict(COLUMNS)},
        legend=LEGEND,
    )


COLUMNS: Final = {
    "branches": "L: residual branches of the whole network",
    "m": "weight layers in series in a branch, each number once; layers: the same in words",
    "exponents": "-1/(2m - 2) for each m",
    "scales": "L^(-1/(2m - 2)) for each m; scale: the same in words",
    "outside": "weights in no branch, which the rule leaves alone: stem, shortcuts, head",
    "scale_by_layers": "what counting weight layers for L would give, for the smallest m",
}


LEGEND: Final = {
    "": "A row is a network, built and traced once. Counts and what follows from them are exact: "
    "nothing is drawn, n = 1, no spread.",
    "branches": "residual branches of the whole network, as the tracer counts them",
    "layers": "weight layers in series in a branch; two numbers, where there are two kinds",
    "scale": "L^(-1/(2m - 2)), Fixup's factor for the inner weights of a branch, for each m",
    "outside": "weights in no branch, which the rule leaves alone: stem, shortcuts, head",
    "scale_by_layers": "the factor that comes of the mistake to count weight layers for L, for the "
    "smallest m",
}


def _row(counted: Counted) -> tuple[dict[str, Any], Layout]:
    traced = layout(*counted.build())
    scales = [fixup_scale(traced.L, m) for m in traced.m]
    return {
        "name": counted.name,
        "branches": traced.L,
        "m": list(traced.m),
        "exponents": [-1 / (2 * m - 2) for m in traced.m],
        "scales": scales,
        "layers": " and ".join(map(str, traced.m)),
        "scale": " and ".join(f"{scale:.4f}" for scale in scales),
        "outside": len(traced.outside),
        "scale_by_layers": fixup_scale(counted.layers, traced.m[0]),
    }, traced


def _claims(counted: Counted, traced: Layout) -> list[Claim]:
    name = counted.name
    found = [_exactly(f"{name}: L", traced.L, counted.branches)]
    found.append(_exactly(f"{name}: kinds of branch", len(traced.m), len(counted.exponents)))
    for m, (expected, printed) in zip(traced.m, sorted(counted.exponents.items()), strict=False):
        found.append(_exactly(f"{name}: m, {expected} in the paper", m, expected))
        found.append(quoted(f"{name}: exponent for m = {m}", -1 / (2 * m - 2), printed))
        if expected in counted.scales:
            scale = fixup_scale(traced.L, m)
            found.append(quoted(f"{name}: factor for m = {m}", scale, counted.scales[expected]))
    ends = sum(any(w.last for w in branch.weights) for branch in traced.branches)
    found.append(_exactly(f"{name}: branches whose last layer is found", ends, traced.L))
    return found


def _exactly(name: str, value: int, expected: int) -> Claim:
    return Claim(name, value, expected - 0.5, expected + 0.5)


def _lesson(found: list[dict[str, Any]]) -> str:
    row = next(row for row in found if row["name"] == "ResNet-110")
    right, wrong = row["scales"][0], row["scale_by_layers"]
    return (
        f"ResNet-110 has {row['branches']} residual branches, so its inner weights are scaled by "
        f"{right:.4f}; whoever counts its 110 layers gets {wrong:.4f}, {right / wrong:.2f} times "
        f"too small, and nothing in the run says so."
    )
