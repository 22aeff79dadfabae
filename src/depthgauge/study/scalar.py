"""The scalar suite: one local derivative j, and what depth makes of it.

    plain            h = j h            j^L
    skip             h = h + j h        (1 + j)^L
    opposed skip     h = h - j h        (1 - j)^L
    scaled by a      h = h +- a j h     (1 +- a j)^L,  a = 1/sqrt(L)

L stages, each one number. These equations have no residual branch with weights, so their L is
written ``depth``. The same product goes forward and backward: both rivers are measured and both
have to agree with the closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthgauge.measurement import Progress, measure_all
from depthgauge.network.spec import Network
from depthgauge.profile import Profile
from depthgauge.study.claims import Claim, SuiteResult, quoted

J, DEPTH = 0.2, 96
A = 1 / math.sqrt(DEPTH)

#: Every unit and example has the same gain: a few of them are enough.
WIDTH, BATCH, SEED = 4, 8, 0

#: Ninety-six float64 multiplications and a mean of 32 squares round off near 1e-14.
AGREEMENT = 1e-9


@dataclass(frozen=True)
class Recurrence:
    """``factor`` is what one stage multiplies by; ``printed`` is factor^L as people quote it."""

    name: str
    equation: str
    factor: float
    printed: str
    scaled: bool = False

    @property
    def network(self) -> Network:
        scalars: dict[str, str | float] = {"j": J}
        if self.scaled:
            scalars["a"] = "1/sqrt(depth)"
        return Network(self.equation, DEPTH, WIDTH, scalars=scalars)


RECURRENCES: tuple[Recurrence, ...] = (
    Recurrence("plain", "j * h", J, "7.9e-68"),
    Recurrence("skip", "h + j * h", 1 + J, "4.0e7"),
    Recurrence("opposed skip", "h - j * h", 1 - J, "5.0e-10"),
    Recurrence("scaled skip", "h + a * j * h", 1 + A * J, "6.96", scaled=True),
    Recurrence("scaled opposed skip", "h - a * j * h", 1 - A * J, "0.138", scaled=True),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Stream every recurrence and compare both rivers with the closed form."""
    profiles = stream([recurrence.network for recurrence in RECURRENCES], progress)
    found, claims = [], []
    for recurrence, profile in zip(RECURRENCES, profiles, strict=True):
        exact = recurrence.factor**DEPTH
        row = gain_row(recurrence.name, recurrence.factor, exact, profile)
        found.append(row)
        claims += closed_form_claims(row, recurrence.printed)
    return SuiteResult(
        suite="scalar",
        about=(
            f"One local derivative j = {J:g} through {DEPTH} stages: depth turns a number near 1 "
            f"into a power."
        ),
        configurations=tuple(found),
        claims=tuple(claims),
        lessons=(_lesson(found),),
        settings={"j": J, **settings_of(profiles[0])},
    )


def stream(networks: Sequence[Network], progress: Progress | None = None) -> list[Profile]:
    """Both rivers' RMS at every stage, in float64."""
    return measure_all(
        networks,
        BATCH,
        seed=SEED,
        dtype="float64",
        instruments=["state_rms", "gradient_rms"],
        progress=progress,
    )


def gain_row(name: str, factor: float, exact: float, profile: Profile) -> dict[str, Any]:
    """The end-to-end gains of both rivers beside the closed form."""
    states, gradients = profile["state_rms"], profile["gradient_rms"]
    return {
        "name": name,
        "equation": profile.equation,
        "depth": profile.depth,
        "factor": factor,
        "closed_form": exact,
        "forward_gain": float(states[-1] / states[0]),
        "gradient_ratio": float(gradients[0] / gradients[-1]),
        "curves": {
            "block": list(profile.blocks_of("state_rms")),
            "state_rms": states.tolist(),
            "gradient_rms": gradients.tolist(),
        },
    }


def closed_form_claims(row: Mapping[str, Any], printed: str) -> list[Claim]:
    """Both gains agree with the closed form, and the forward one with the figure that is quoted."""
    name, exact = row["name"], row["closed_form"]
    errors = [
        Claim(f"{name}: {river}, relative error", error, max=AGREEMENT)
        for river, error in (
            ("forward gain", abs(row["forward_gain"] / exact - 1)),
            ("gradient ratio", abs(row["gradient_ratio"] / exact - 1)),
        )
    ]
    return [
        *errors,
        quoted(f"{name}: forward gain, quoted as {printed}", row["forward_gain"], printed),
    ]


def settings_of(profile: Profile) -> dict[str, object]:
    """What repeats a run of a network without weights."""
    kept = {k: v for k, v in profile.settings.items() if k not in ("init", "state")}
    return {
        "width": profile.width,
        "batch": profile.batch,
        "seed": profile.seeds[0],
        "dtype": profile.dtype,
        **kept,
    }


def _lesson(found: Sequence[Mapping[str, Any]]) -> str:
    gains = {row["name"]: row["forward_gain"] for row in found}
    scaled = gains["scaled skip"], gains["scaled opposed skip"]
    kept = all(0.1 < gain < 10 for gain in scaled)
    moral = (
        "a scale of 1/sqrt(L) keeps both signs within one decade"
        if kept
        else "a scale of 1/sqrt(L) does not keep both signs within one decade here"
    )
    return (
        f"A local derivative of {J:g} through {DEPTH} stages is {gains['plain']:.2g} alone, "
        f"{gains['skip']:.2g} beside a skip and {gains['opposed skip']:.2g} against it; scaled, it "
        f"is {scaled[0]:.3g} and {scaled[1]:.3g}: {moral}."
    )
