"""The transport suite as one writes it down in NumPy: an expression a line, everything kept."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from benchmarks.numpy_reference import BATCH, CONFIGURATIONS, EXPECTED, FIGURES, SEED, WIDTH

Array = NDArray[np.float64]


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2)))


def run(name: str) -> dict[str, float]:
    """The four figures of one configuration."""
    configuration = next(c for c in CONFIGURATIONS if c.name == name)
    relu, norm, scale = configuration.activation == "relu", configuration.norm, configuration.scale
    rng = np.random.default_rng(SEED)
    h = rng.standard_normal((BATCH, WIDTH))
    s1, s2 = np.sqrt((2 if relu else 1) / WIDTH), np.sqrt(1 / WIDTH)
    states, live, tape = [rms(h)], [], []
    for _ in range(configuration.blocks):
        W1 = rng.standard_normal((WIDTH, WIDTH)) * s1
        W2 = rng.standard_normal((WIDTH, WIDTH)) * s2
        root = np.sqrt(np.mean(h**2, axis=1, keepdims=True) + 1e-8) if norm else np.ones(1)
        u = h / root if norm else h
        z = u @ W1
        y = np.maximum(z, 0) if relu else np.tanh(z)
        derivative = (z > 0) * 1.0 if relu else 1 - y**2
        live.append(np.mean(np.abs(derivative) > 0.1))
        branch = y @ W2
        h = branch if scale is None else h + scale * branch
        tape.append((W1, W2, derivative, u, root))
        states.append(rms(h))
    g = rng.standard_normal((BATCH, WIDTH))
    g = g / rms(g)
    gradients = [rms(g)]
    for W1, W2, derivative, u, root in reversed(tape):
        d = g if scale is None else scale * g
        d = (d @ W2.T) * derivative
        d = d @ W1.T
        if norm:
            d = (d - u * np.mean(u * d, axis=1, keepdims=True)) / root
        g = d if scale is None else g + d
        gradients.append(rms(g))
    return {
        "forward_end_rms": states[-1],
        "forward_drift": max(states) / max(min(states), 1e-30),
        "gradient_ratio": gradients[-1] / gradients[0],
        "live_derivative_fraction": float(np.mean(live)),
    }


def main() -> int:
    """Exit status 0 when every figure is the published one."""
    worst = 0.0
    for configuration in CONFIGURATIONS:
        found = run(configuration.name)
        for figure, expected in zip(FIGURES, EXPECTED[configuration.name], strict=True):
            worst = max(worst, abs(found[figure] / expected - 1))
    print(f"largest relative difference from the published figures: {worst:.1e}")
    return 0 if worst < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
