"""The gates suite: the same pre-activations through tanh, ReLU and GELU, moved off their centre.

One draw z of N(0, 1), and z - 3: another mean, the same variance. Then a layernorm over the units,
before the gate (``phi(norm(z))``) and after the block (``norm(phi(z))``).

    live       share of pre-activations with |phi'(z)| > 0.1
    saturated  share with |phi'(z)| < 0.01
    passing    share with phi(z) < 0 and |phi'(z)| > 1e-6: a small negative value that still passes
               a gradient

A norm after the block mends the numbers that one sees downstream, and opens no gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments.gates import DEAD, LIVE, SATURATED
from depthgauge.instruments.rivers import rms
from depthgauge.measurement import Progress
from depthgauge.network.activations import Gate, gate
from depthgauge.network.norms import Normalise, normaliser
from depthgauge.study.claims import Assertion, Claim, SuiteResult, by_name

EXAMPLES, UNITS, SEED = 64, 4096, 7

ACTIVATIONS: Final[dict[str, dict[str, Any]]] = {
    "tanh": {},
    "relu": {},
    "gelu": {"approximate": "none"},
}
NORM_EPS = 1e-5

#: The sample's mean is off by 1/sqrt(262144) = 0.002, which a norm takes away; no share or mean
#: derivative here changes faster than 0.6 a unit of mean, so 0.005 is more than four such errors.
RETURNS = 0.005
#: Nothing is between the gate and what it got before: equal, but for a strict bound.
SAME = 1e-12

# N(-3, 1), by integration: E tanh = -0.972, E tanh' = 0.0486, 0.119 of tanh live (0.931 at the
# centre); P(z > 0) = 0.00135; E|gelu| = 0.0216, E|gelu'| = 0.0328, 0.990 of GELU passing.
CLAIMS: tuple[Assertion, ...] = (
    Assertion("tanh, mean -3: mean output", "tanh, mean -3", "mean_output", max=-0.9),
    Assertion("tanh, mean -3: mean derivative", "tanh, mean -3", "mean_derivative", max=0.1),
    Assertion("relu, mean -3: live", "relu, mean -3", "live_derivative_fraction", max=0.01),
    Assertion("gelu, mean -3: passing", "gelu, mean -3", "passing_fraction", min=0.9),
    Assertion("gelu, mean -3: mean |output|", "gelu, mean -3", "mean_output_magnitude", max=0.05),
    Assertion(
        "gelu, mean -3: mean |derivative|",
        "gelu, mean -3",
        "mean_derivative_magnitude",
        min=0.01,
        max=0.1,
    ),
)

Place = Literal["before the gate", "after the block"]

#: Mean of the pre-activations, and where the norm stands.
CASES: Final[tuple[tuple[str, float, Place | None], ...]] = (
    ("mean 0", 0.0, None),
    ("mean -3", -3.0, None),
    ("mean -3, norm before", -3.0, "before the gate"),
    ("mean -3, norm after", -3.0, "after the block"),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Send one draw through every gate, at both means, with the norm at both places."""
    z = torch.from_numpy(np.random.default_rng(SEED).standard_normal((EXAMPLES, UNITS)))
    norm = normaliser("layernorm", {"axis": None, "eps": NORM_EPS}, "rows")
    found: list[dict[str, Any]] = []
    for activation, options in ACTIVATIONS.items():
        rule = gate(activation, options)
        for case, mean, place in CASES:
            measured = observe(rule, z + mean, norm, place)
            found.append(
                {
                    "name": f"{activation}, {case}",
                    "activation": activation,
                    "mean": mean,
                    "norm": place,
                    **measured,
                }
            )
            if progress:
                progress(len(found), len(ACTIVATIONS) * len(CASES))
    return SuiteResult(
        suite="gates",
        about=(
            "The same pre-activations through three gates, their mean moved to -3 with the "
            "variance unchanged, and a norm before the gate or after the block."
        ),
        configurations=tuple(found),
        claims=(*(claim.about(found) for claim in CLAIMS), *_norm_claims(found)),
        lessons=(_shift_lesson(found), *_norm_lessons(found)),
        settings={
            "examples": EXAMPLES,
            "units": UNITS,
            "seed": SEED,
            "dtype": "float64",
            "draws": "numpy.random.default_rng(seed).standard_normal((examples, units))",
            "norm": f"layernorm over the units, eps {NORM_EPS:g} inside the root",
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
        },
    )


def observe(rule: Gate, z: Tensor, norm: Normalise, place: Place | None) -> dict[str, float]:
    """One block of a gate and perhaps a norm; the gate is observed where it stands in the block.

    ``z``: ``(examples, units)``. ``preactivation_...`` are of what the gate got, ``block_rms`` of
    what the block passes on, everything else of the gate.
    """
    got = norm(z) if place == "before the gate" else z
    y = rule.apply(got)
    out = norm(y) if place == "after the block" else y
    slope = rule.derivative(got, y)
    steepness = slope.abs()
    return {
        "preactivation_mean": float(got.mean()),
        "preactivation_std": float(got.std(correction=0)),
        "mean_output": float(y.mean()),
        "mean_output_magnitude": float(y.abs().mean()),
        "output_rms": rms(y.reshape(1, -1))[0],
        "mean_derivative": float(slope.mean()),
        "mean_derivative_magnitude": float(steepness.mean()),
        "live_derivative_fraction": _share(steepness > LIVE),
        "saturated_fraction": _share(steepness < SATURATED),
        "negative_output_fraction": _share(y < 0),
        "passing_fraction": _share((y < 0) & (steepness > DEAD)),
        "block_rms": rms(out.reshape(1, -1))[0],
    }


def _share(marks: Tensor) -> float:
    return float(marks.double().mean())


def _norm_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The shift leaves the variance, a norm before the gate undoes it, one after does not."""
    rows, claims = by_name(found), []
    for activation in ACTIVATIONS:
        centre, shifted, before, after = (rows[f"{activation}, {case}"] for case, _, _ in CASES)
        live, slope = "live_derivative_fraction", "mean_derivative"

        def far(a: Mapping[str, Any], b: Mapping[str, Any], quantity: str) -> float:
            return float(abs(a[quantity] - b[quantity]))

        claims += [
            Claim(
                f"{activation}: the shift changes the standard deviation by",
                far(shifted, centre, "preactivation_std"),
                max=SAME,
            ),
            Claim(
                f"{activation}: norm before the gate, live from its value at mean 0 by",
                far(before, centre, live),
                max=RETURNS,
            ),
            Claim(
                f"{activation}: norm before the gate, mean derivative from its value at mean 0 by",
                far(before, centre, slope),
                max=RETURNS,
            ),
            Claim(
                f"{activation}: norm after the block, live from its value at mean -3 by",
                far(after, shifted, live),
                max=SAME,
            ),
            Claim(
                f"{activation}: norm after the block, live from its value at mean 0 by",
                far(after, centre, live),
                min=0.3,  # 0.81, 0.50 and 0.71 by integration
            ),
        ]
    return claims


def _shift_lesson(found: Sequence[Mapping[str, Any]]) -> str:
    rows = by_name(found)
    tanh, relu, gelu = (rows[f"{activation}, mean -3"] for activation in ACTIVATIONS)
    return (
        f"At mean -3 tanh puts out {tanh['mean_output']:.3f} on average with a mean derivative of "
        f"{tanh['mean_derivative']:.3f}, ReLU keeps {relu['live_derivative_fraction']:.4f} of its "
        f"gates open, and GELU passes small negative values, {gelu['mean_output']:.3f} on average, "
        f"at {gelu['passing_fraction']:.3f} of its units with a mean |derivative| of "
        f"{gelu['mean_derivative_magnitude']:.3f}."
    )


def _norm_lessons(found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = by_name(found)
    live = {
        case: [
            rows[f"{activation}, {case}"]["live_derivative_fraction"] for activation in ACTIVATIONS
        ]
        for case, _, _ in CASES
    }
    outputs = [
        rows[f"{activation}, mean -3, norm after"]["block_rms"] for activation in ACTIVATIONS
    ]
    names = ", ".join(ACTIVATIONS)
    closed = live["mean -3, norm after"] == live["mean -3"]
    moral = "what is seen downstream of a norm says nothing of the gates before it"
    return [
        f"Live derivatives of {names} are {_numbers(live['mean 0'])} at mean 0, "
        f"{_numbers(live['mean -3'])} at mean -3, and with a norm before the gate "
        f"{_numbers(live['mean -3, norm before'])}.",
        f"The same norm after the block gives its output an RMS of {_numbers(outputs)} and "
        f"{'leaves' if closed else 'brings'} the live derivatives "
        f"{'at' if closed else 'to'} {_numbers(live['mean -3, norm after'])}"
        f"{f': {moral}' if closed else ''}.",
    ]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
