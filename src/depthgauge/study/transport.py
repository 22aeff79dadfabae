"""The transport suite: six small networks at initialisation, both rivers through all of them.

Width 64, batch 128, float64, one NumPy generator consumed in order, so that any of the figures can
be had from a NumPy script. What a scale and a norm do to depth, with nothing trained.

    forward_drift             max / max(min, 1e-30) of the state RMS, over the input and every block
    gradient_ratio            gradient RMS at the input / at the output
    live_derivative_fraction  mean over blocks of the share of gates with |phi'(z)| > 0.1

The RMS is over every element; the gradient at the output has an RMS of exactly 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from depthgauge.equation.parse import parse_scalar
from depthgauge.equation.scalars import evaluate
from depthgauge.measurement import Progress, measure_all
from depthgauge.network.spec import Network
from depthgauge.profile import Profile
from depthgauge.study.claims import Assertion, SuiteResult, by_name

WIDTH, BATCH, SEED = 64, 128, 7

#: He for ReLU, LeCun (std = 1/sqrt(width)) for tanh, LeCun for the layer that ends the branch.
RELU: Final = {"W1": "he", "W2": "lecun"}
TANH: Final = {"W1": "lecun", "W2": "lecun"}


@dataclass(frozen=True)
class Configuration:
    """One row of the suite. ``branch_scale`` is text, ``1/sqrt(L)``; None without a skip."""

    name: str
    equation: str
    depth: int
    activation: str
    norm: str | None
    skip: bool
    branch_scale: str | None
    init: Mapping[str, str]

    @cached_property
    def network(self) -> Network:
        return Network(self.equation, self.depth, WIDTH, init=self.init, draws="sequential-pcg64")

    @property
    def scale(self) -> float | None:
        """The number that ``branch_scale`` is at this depth."""
        if self.branch_scale is None:
            return None
        return evaluate(parse_scalar(self.branch_scale), self.network.scope)


CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration("tanh_xavier_plain", "W2(tanh(W1(h)))", 96, "tanh", None, False, None, TANH),
    Configuration("relu_he_plain", "W2(relu(W1(h)))", 96, "relu", None, False, None, RELU),
    Configuration(
        "relu_residual_unscaled", "h + W2(relu(W1(h)))", 96, "relu", None, True, "1", RELU
    ),
    Configuration(
        "relu_residual_scaled",
        "h + W2(relu(W1(h)))/sqrt(L)",
        96,
        "relu",
        None,
        True,
        "1/sqrt(L)",
        RELU,
    ),
    Configuration(
        "relu_prenorm_scaled",
        "h + W2(relu(W1(rmsnorm(h, eps=1e-8))))/sqrt(L)",
        96,
        "relu",
        "rmsnorm",
        True,
        "1/sqrt(L)",
        RELU,
    ),
    Configuration("relu_he_plain_shallow", "W2(relu(W1(h)))", 8, "relu", None, False, None, RELU),
)


CLAIMS: tuple[Assertion, ...] = (
    Assertion("unscaled: forward drift", "relu_residual_unscaled", "forward_drift", min=1e8),
    Assertion("unscaled: gradient ratio", "relu_residual_unscaled", "gradient_ratio", min=1e8),
    Assertion("pre-norm, scaled: forward drift", "relu_prenorm_scaled", "forward_drift", max=3.0),
    Assertion(
        "pre-norm, scaled: gradient ratio", "relu_prenorm_scaled", "gradient_ratio", 0.5, 2.0
    ),
    Assertion("shallow control: forward drift", "relu_he_plain_shallow", "forward_drift", max=3.0),
    Assertion(
        "shallow control: gradient ratio", "relu_he_plain_shallow", "gradient_ratio", 0.5, 2.0
    ),
    Assertion("plain tanh: end RMS", "tanh_xavier_plain", "forward_end_rms", max=0.1),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Measure every configuration and hold the claims against what was measured."""
    profiles = measure_all(
        [configuration.network for configuration in CONFIGURATIONS],
        BATCH,
        seed=SEED,
        dtype="float64",
        instruments=["state_rms", "gradient_rms", "live_derivative_fraction"],
        progress=progress,
    )
    found = tuple(map(_row, CONFIGURATIONS, profiles))
    rows = by_name(found)
    return SuiteResult(
        suite="transport",
        about=(
            "State and gradient through six networks at initialisation, on synthetic data: what "
            "depth, scale and norm do before any training."
        ),
        configurations=found,
        claims=tuple(claim.about(found) for claim in CLAIMS),
        lessons=(
            _gates_and_state(rows["tanh_xavier_plain"]),
            _back_and_forth(rows["relu_he_plain"]),
        ),
        settings={
            "width": WIDTH,
            "batch": BATCH,
            "seed": SEED,
            "dtype": profiles[0].dtype,
            **{k: v for k, v in profiles[0].settings.items() if k not in ("init", "state")},
            "init": {configuration.name: configuration.init for configuration in CONFIGURATIONS},
        },
    )


def _row(configuration: Configuration, profile: Profile) -> dict[str, Any]:
    summary = {name: float(values[0]) for name, values in profile.summary().items()}
    return {
        "name": configuration.name,
        "depth": configuration.depth,
        "activation": configuration.activation,
        "norm": configuration.norm,
        "skip": configuration.skip,
        "branch_scale": configuration.scale,
        "forward_end_rms": summary["forward_end_rms"],
        "forward_drift": summary["forward_drift"],
        "gradient_ratio": summary["gradient_ratio"],
        "live_derivative_fraction": summary["live_derivative_fraction"],
        "curves": {
            "block": list(profile.blocks_of("state_rms")),
            "state_rms": profile["state_rms"].tolist(),
            "gradient_rms": profile["gradient_rms"].tolist(),
        },
        "equation": profile.equation,
    }


def _gates_and_state(row: Mapping[str, Any]) -> str:
    """Live gates beside the magnitude of the state; the moral only where the numbers carry it."""
    live, river = row["live_derivative_fraction"], row["curves"]["state_rms"]
    kept = river[-1] / river[0]
    change = (
        f"lost {100 * (1 - kept):.0f} per cent of its magnitude"
        if kept < 1
        else f"come to {kept:.3g} times its magnitude"
    )
    agree = (live > 0.9) == (0.5 < kept < 2)
    moral = "here the two agree" if agree else "no single health number is enough"
    return (
        f"{row['name']}: {live:.3f} of the derivatives are live and the state has {change} after "
        f"{row['depth']} blocks; {moral}."
    )


def _back_and_forth(row: Mapping[str, Any]) -> str:
    """A ratio of the gradient's two ends beside the range that the state goes through."""
    ratio, drift = row["gradient_ratio"], row["forward_drift"]
    fine, steady = 0.5 < ratio < 2, drift < 3
    looks = "looks fine" if fine else "is out of 0.5 to 2"
    moves = "stays within a range" if steady else "wanders over a range"
    moral = (
        "here the two agree"
        if fine == steady
        else "a ratio of two ends does not show the way between them"
    )
    return (
        f"{row['name']}: the gradient ratio {ratio:.2f} {looks} and the state {moves} that is "
        f"{drift:.2g}-fold; {moral}."
    )
