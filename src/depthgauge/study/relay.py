"""The relay suite: a message through 96 hands, each almost right.

Gains: ``h = g h`` has the end-to-end gain g^L. One per cent a stage is a factor of 2.6 in either
direction.

Directions: stage k is a rotation in the plane of the answer's direction d and another one,

    R_k = I + sin(t_k) (e d' - d e') + (cos(t_k) - 1) (d d' + e e'),
    t_1 + ... + t_k = arccos(0.99^k),

so a state that starts as d keeps its length exactly while its component along d is 0.99^k. The norm
says perfect health; only an instrument that knows the direction sees the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.measurement import Progress, measure
from depthgauge.network.spec import Network
from depthgauge.profile import Profile
from depthgauge.study.claims import Claim, SuiteResult, quoted
from depthgauge.study.scalar import (
    AGREEMENT,
    WIDTH,
    closed_form_claims,
    gain_row,
    settings_of,
    stream,
)

DEPTH = 96

#: Gain a stage, and gain^96 as it is quoted (0.8^96 is 4.973e-10, so 4.99e-10 would be wrong).
GAINS: tuple[tuple[float, str], ...] = (
    (0.99, "0.381"),
    (1.01, "2.60"),
    (0.8, "4.97e-10"),
    (1.05, "108"),
)

#: What a stage keeps of the component along the answer, and keep^96 as it is quoted.
KEEP, KEPT = 0.99, "0.381"
ROTATION_WIDTH, ROTATION_SEED = 64, 7


def run(progress: Progress | None = None) -> SuiteResult:
    """Send a scalar through four gains and a direction through rotations."""
    profiles = gains([g for g, _ in GAINS], DEPTH, progress)
    found, claims = [], []
    for (g, printed), profile in zip(GAINS, profiles, strict=True):
        row = gain_row(f"gain {g:g}", g, g**DEPTH, profile)
        found.append(row)
        claims += closed_form_claims(row, printed)
    rotation = _rotation_row()
    return SuiteResult(
        suite="relay",
        about=(
            f"A message through {DEPTH} stages: what one per cent a stage leaves, and what a norm "
            f"does not see."
        ),
        configurations=(*found, rotation),
        claims=(*claims, *_rotation_claims(rotation)),
        lessons=(_gain_lesson(found), _direction_lesson(rotation)),
        settings={
            **settings_of(profiles[0]),
            "rotation": {"width": ROTATION_WIDTH, "seed": ROTATION_SEED, "keep": KEEP},
        },
    )


def gains(factors: Sequence[float], depth: int, progress: Progress | None = None) -> list[Profile]:
    """Both rivers through ``depth`` stages of ``h = g h``, for every g."""
    return stream([Network("g * h", depth, WIDTH, scalars={"g": g}) for g in factors], progress)


def plane(width: int = ROTATION_WIDTH, seed: int = ROTATION_SEED) -> tuple[Tensor, Tensor]:
    """Two orthonormal directions ``(n,)``, the answer's first; float64 and aligned with no axis."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(width, 2, generator=generator, dtype=torch.float64)
    answer, other = torch.linalg.qr(numbers).Q.T
    return answer, other


def rotations(answer: Tensor, other: Tensor, keep: float, depth: int) -> nn.Sequential:
    """A layer without bias for each stage: the rotation R_k."""
    swap = torch.outer(other, answer) - torch.outer(answer, other)
    within = torch.outer(answer, answer) + torch.outer(other, other)
    identity = torch.eye(len(answer), dtype=answer.dtype)
    stages = []
    for k in range(1, depth + 1):
        turn = math.acos(keep**k) - math.acos(keep ** (k - 1))
        stage = nn.Linear(len(answer), len(answer), bias=False, dtype=answer.dtype)
        stage.weight.data = identity + math.sin(turn) * swap + (math.cos(turn) - 1) * within
        stages.append(stage)
    return nn.Sequential(*stages)


def _rotation_row() -> dict[str, Any]:
    """The answer's direction sent through; its norm and its component as measured."""
    answer, other = plane()
    model = rotations(answer, other, KEEP, DEPTH)
    profile = measure(model, answer[None], instruments="state_rms", directions=answer)
    norms, components = profile["state_rms"].tolist(), profile["component_gain"].tolist()
    return {
        "name": "rotation",
        "depth": DEPTH,
        "keep": KEEP,
        "closed_form": KEEP**DEPTH,
        "norm_gain": norms[-1] / norms[0],
        "component_gain": components[-1],
        "curves": {
            "block": list(range(DEPTH + 1)),
            "state_rms": norms,
            "component": components,
        },
    }


def _rotation_claims(row: dict[str, Any]) -> list[Claim]:
    norms = row["curves"]["state_rms"]
    farthest = max(abs(norm / norms[0] - 1) for norm in norms)
    share, kept = row["component_gain"], row["closed_form"]
    return [
        Claim("rotation: norm, largest relative change at any stage", farthest, max=AGREEMENT),
        Claim(
            "rotation: component, relative error",
            abs(share / kept - 1),
            max=AGREEMENT,
        ),
        quoted(f"rotation: component, quoted as {KEPT}", share, KEPT),
        Claim(
            "rotation: the direction sees what the norm does not, component gain / norm gain",
            share / row["norm_gain"],
            max=0.5,
        ),
    ]


def _gain_lesson(found: Sequence[dict[str, Any]]) -> str:
    parts = [f"{row['factor']:g} becomes {row['forward_gain']:.3g}" for row in found]
    return (
        f"A gain a stage, after {DEPTH} stages: {', '.join(parts)}; gains multiply, so the "
        f"figure that counts is the one from end to end."
    )


def _direction_lesson(row: dict[str, Any]) -> str:
    norm, share = row["norm_gain"], row["component_gain"]
    numbers = (
        f"After {row['depth']} rotations the norm is {norm:.3f} of its start and the component "
        f"that carries the answer {share:.3f}"
    )
    if share / norm < 0.5 < norm < 2:
        return f"{numbers}: a norm that holds does not say that the answer arrives."
    return f"{numbers}: here the norm and the direction agree."
