"""Xiao et al., "Dynamical Isometry and a Mean Field Theory of CNNs: How to Train 10,000-Layer
Vanilla Convolutional Neural Networks", arXiv 1806.05393.

    K[:, :, centre] = sigma_w Q,  Q^T Q = 1,  zero elsewhere,    biases N(0, sigma_b)

A convolution of stride 1 with a border that wraps around is then ``sigma_w`` times an isometry;
sigma_w and sigma_b lie on the critical line of tanh. ``Q`` needs as many outputs as inputs or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from depthgauge.errors import NetworkError
from depthgauge.recipes.given import number
from depthgauge.recipes.layers import TORCH, derived_for
from depthgauge.recipes.mean_field import critical
from depthgauge.recipes.rules import Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Weight

__all__ = ["DELTA_ORTHOGONAL", "delta_orthogonal"]


def _kernels(layout: Layout) -> list[Weight]:
    """The convolutions that lead on. Raises NetworkError for what the paper does not cover."""
    if layout.branches:
        raise NetworkError(
            f"{layout.L} residual branches were found, and delta-orthogonal kernels on the "
            f"critical line are for plain convolutional networks; give one without a skip"
        )
    heads = {weight.path for weight in layout.heads}
    found = [w for w in layout.layers if len(w.shape) > 2]
    found = [w for w in found if w.path not in heads] or found
    if not found:
        raise NetworkError(
            "no convolution was found, and delta-orthogonal is for kernels; use orthogonal"
        )
    for weight in found:
        out, entering = weight.group[:2]
        if out < entering:
            raise NetworkError(
                f"'{weight.path}' leads {entering} channels to {out}, and delta-orthogonal needs "
                f"at least as many outputs as inputs: fewer cannot keep every direction; widen it"
            )
    return found


def delta_orthogonal(weight_variance: float = 1.05) -> Recipe:
    """Delta-orthogonal kernels with this ``sigma_w^2`` and the ``sigma_b`` of tanh's critical line.

    Raises NetworkError for a variance of at most 1, where tanh has no critical point.
    """
    weight_variance = number("weight_variance", weight_variance)
    variance = f"{weight_variance:.6g}"
    bias_variance = f"{critical('tanh', weight_variance=weight_variance).bias_variance:.5g}"

    def init(weight: Weight, gain: str) -> str:
        # A kernel of one place is a matrix.
        kind = "orthogonal" if set(weight.shape[2:]) == {1} else "delta_orthogonal"
        return f"{kind}(gain={gain})"

    def mistakes(weight: Weight) -> Sequence[tuple[str, str]]:
        return (
            (init(weight, f"sqrt(sqrt({variance}))"), "multiplied by the root of the gain"),
            (init(weight, variance), "the variance sigma_w^2 in place of sigma_w"),
            (init(weight, "1"), "a gain of 1: sigma_w was left out"),
            (
                init(weight, f"sqrt({variance}/{weight.fan_in})"),
                "divided by sqrt(fan in), which is for Gaussian weights",
            ),
            (f"lecun(gain=sqrt({variance}))", "a Gaussian kernel of that variance"),
            TORCH,
        )

    def plan(layout: Layout) -> Plan:
        kernels, scope = _kernels(layout), scope_of(layout)
        own = f"sqrt({variance})"
        others = (
            ("zeros", "that point is off the critical line"),
            (f"normal(std={bias_variance})", "the variance in place of the standard deviation"),
        )
        std = f"normal(std=sqrt({bias_variance}))"
        weights = tuple(Target(w, init(w, own), scope, tuple(mistakes(w))) for w in kernels)
        biases = tuple(Target(b, std, scope, others) for b in layout.biases_of(kernels))
        law = f"{own} times orthonormal columns at the centre, zero elsewhere"
        rules = (
            Rule("kernels", law, weights, derived_for(layout, ("tanh",), "tanh")),
            Rule("biases", f"normal of standard deviation sqrt({bias_variance})", biases),
        )
        return Plan(rules, biased=tuple(kernels))

    return Recipe(
        "delta-orthogonal",
        "delta-orthogonal initialisation on tanh's critical line",
        "a plain convolutional network of tanh, no layer with fewer outputs than inputs",
        (
            f"each kernel: sigma_w = sqrt({variance}) times a matrix with orthonormal columns at "
            f"its centre, zero elsewhere",
            f"biases: normal of standard deviation sigma_b = sqrt({bias_variance}), with sigma_w "
            f"on the critical line",
        ),
        (
            "the gain multiplies the matrix; some implementations take its root",
            "no division by sqrt(fan in): the kernel has one place that is not zero",
            "a kernel cut out of a larger orthogonal matrix for fewer outputs than inputs is not "
            "orthogonal",
            "an isometry at stride 1 with a border that wraps around; a border of zeros loses some",
            "a convolution without a bias has no sigma_b, and no critical point but sigma_w = 1",
        ),
        "Xiao, Bahri, Sohl-Dickstein, Schoenholz and Pennington, arXiv 1806.05393",
        plan,
        judgement=f"sigma_w^2 = {variance} is our choice of a point on the line; the head keeps "
        f"what it has",
    )


DELTA_ORTHOGONAL = delta_orthogonal()
