"""The transport suite in plain NumPy: the benchmark's baseline and an independent check.

``python benchmarks/numpy_reference.py`` compares it with the published table, exit status 1 on a
mismatch; ``--time`` adds milliseconds per network. It shares no code with depthgauge.

A state is ``(batch, width)``, rows are examples, a layer is ``u @ W``, everything is float64:

    u = h or rmsnorm(h),   h' = W2(phi(W1(u)))  or  h + a * W2(phi(W1(u)))

RMS is over every element.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

WIDTH, BATCH, SEED = 64, 128, 7
NORM_EPS = 1e-8  # inside the square root
LIVE_TANH = 0.1  # a tanh gate is live when its derivative is above this
TOLERANCE = 1e-9  # relative: the order of summation may differ, the draws may not


@dataclass(frozen=True)
class Configuration:
    name: str
    blocks: int
    activation: str  # "relu" or "tanh"
    scale: float | None = None  # of the branch beside a skip; None: no skip
    norm: bool = False  # rmsnorm on the branch's input


CONFIGURATIONS = (
    Configuration("tanh_xavier_plain", 96, "tanh"),
    Configuration("relu_he_plain", 96, "relu"),
    Configuration("relu_residual_unscaled", 96, "relu", scale=1.0),
    Configuration("relu_residual_scaled", 96, "relu", scale=1 / math.sqrt(96)),
    Configuration("relu_prenorm_scaled", 96, "relu", scale=1 / math.sqrt(96), norm=True),
    Configuration("relu_he_plain_shallow", 8, "relu"),
)

FIGURES = ("forward_end_rms", "forward_drift", "gradient_ratio", "live_derivative_fraction")
EXPECTED = {
    "tanh_xavier_plain": (
        0.019848827295451947,
        61.393748120912335,
        0.025007457420017528,
        0.9991849263509115,
    ),
    "relu_he_plain": (
        0.43924782492815007,
        11.457023208133503,
        0.5705062789890037,
        0.5036481221516927,
    ),
    "relu_residual_unscaled": (
        151975966265235.7,
        153979966418752.66,
        201497545358183.4,
        0.5018526713053385,
    ),
    "relu_residual_scaled": (
        1.5574578569855875,
        1.5779949580891144,
        1.6297724035135437,
        0.5007069905598959,
    ),
    "relu_prenorm_scaled": (
        1.3735854346542284,
        1.3916979394769429,
        1.4525298663115516,
        0.5003013610839844,
    ),
    "relu_he_plain_shallow": (
        0.8639809354485174,
        1.3308712359078898,
        0.9350438456377238,
        0.48602294921875,
    ),
}


class Draws(NamedTuple):
    """Everything random about one network, drawn in the order of the fields."""

    state: Array
    weights: list[tuple[Array, Array]]
    gradient: Array


class Tape(NamedTuple):
    """What the backward pass through one block needs."""

    derivative: npt.NDArray[Any]  # of the activation; for ReLU the boolean z > 0
    normed: Array | None
    inverse_rms: Array | None


def rms(x: Array) -> float:
    return float(np.linalg.norm(x)) / math.sqrt(x.size)


def draw(configuration: Configuration) -> Draws:
    """PCG64 consumed in order: the input, W1 and W2 of each block, the terminal gradient."""
    generator = np.random.default_rng(SEED)
    first = math.sqrt((2 if configuration.activation == "relu" else 1) / WIDTH)
    second = math.sqrt(1 / WIDTH)
    state = generator.standard_normal((BATCH, WIDTH))
    weights = []
    for _ in range(configuration.blocks):
        W1 = generator.standard_normal((WIDTH, WIDTH))
        W1 *= first
        W2 = generator.standard_normal((WIDTH, WIDTH))
        W2 *= second
        weights.append((W1, W2))
    gradient = generator.standard_normal((BATCH, WIDTH))
    gradient /= rms(gradient)
    return Draws(state, weights, gradient)


def transport(configuration: Configuration, draws: Draws) -> dict[str, Any]:
    """Forward and backward through every block; the four figures and the two curves."""
    relu, scale = configuration.activation == "relu", configuration.scale
    h = draws.state
    state_rms, live, tape = [rms(h)], [], []

    for W1, W2 in draws.weights:
        normed = inverse_rms = None
        if configuration.norm:
            inverse_rms = 1 / np.sqrt(np.mean(h * h, axis=1, keepdims=True) + NORM_EPS)
            normed = h * inverse_rms
        z = (h if normed is None else normed) @ W1
        derivative: npt.NDArray[Any]
        if relu:
            derivative = z > 0
            live.append(np.count_nonzero(derivative) / z.size)
            np.maximum(z, 0, out=z)
        else:
            np.tanh(z, out=z)
            derivative = 1 - z * z
            live.append(np.count_nonzero(np.abs(derivative) > LIVE_TANH) / z.size)
        branch = z @ W2
        if scale is None:
            h = branch
        else:
            branch *= scale
            branch += h
            h = branch
        tape.append(Tape(derivative, normed, inverse_rms))
        state_rms.append(rms(h))

    g = draws.gradient
    gradient_rms = [rms(g)]
    for (W1, W2), saved in zip(reversed(draws.weights), reversed(tape), strict=True):
        d = g @ W2.T
        if scale is not None:
            d *= scale
        d *= saved.derivative
        d = d @ W1.T
        if saved.normed is not None:
            d -= saved.normed * np.mean(saved.normed * d, axis=1, keepdims=True)
            d *= saved.inverse_rms
        if scale is not None:
            d += g
        g = d
        gradient_rms.append(rms(g))
    gradient_rms.reverse()

    return {
        "forward_end_rms": state_rms[-1],
        "forward_drift": max(state_rms) / max(min(state_rms), 1e-30),
        "gradient_ratio": gradient_rms[0] / gradient_rms[-1],
        "live_derivative_fraction": statistics.fmean(live),
        "curves": {
            "block": list(range(configuration.blocks + 1)),  # 0 is the input
            "state_rms": state_rms,
            "gradient_rms": gradient_rms,
        },
    }


def run(configuration: Configuration) -> dict[str, Any]:
    """Draw one network and send both rivers through it."""
    return transport(configuration, draw(configuration))


def compare() -> bool:
    """Print every figure beside the published one; true when all agree."""
    agree = True
    for configuration in CONFIGURATIONS:
        result = run(configuration)
        for figure, expected in zip(FIGURES, EXPECTED[configuration.name], strict=True):
            error = abs(result[figure] / expected - 1)
            agrees = error <= TOLERANCE  # false for nan
            agree = agree and agrees
            print(
                f"{configuration.name:<24}{figure:<26}{result[figure]:>24.17g}{expected:>24.17g}"
                f"{error:>10.1e}  {'agrees' if agrees else 'DIFFERS'}"
            )
    return agree


def milliseconds(repeats: int = 7) -> dict[str, tuple[float, float]]:
    """Median time to draw a network and to send both rivers through it, by configuration."""
    times = {}
    for configuration in CONFIGURATIONS:
        drawing, transporting = [], []
        transport(configuration, draw(configuration))
        for _ in range(repeats):
            start = time.perf_counter()
            draws = draw(configuration)
            middle = time.perf_counter()
            transport(configuration, draws)
            end = time.perf_counter()
            drawing.append(1e3 * (middle - start))
            transporting.append(1e3 * (end - middle))
        times[configuration.name] = statistics.median(drawing), statistics.median(transporting)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description="The transport suite in plain NumPy.")
    parser.add_argument("--time", action="store_true", help="also time every configuration")
    arguments = parser.parse_args()
    agree = compare()
    print("every figure agrees" if agree else "some figures differ from the published table")
    if arguments.time:
        print(f"\nmedian of 7 runs, ms a network{'draw':>12}{'transport':>12}{'together':>12}")
        for name, (drawing, transporting) in milliseconds().items():
            together = drawing + transporting
            print(f"{name:<30}{drawing:>12.2f}{transporting:>12.2f}{together:>12.2f}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
