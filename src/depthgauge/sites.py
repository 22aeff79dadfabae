"""Where a profile looks, and what it may find there: sites, quantities, columns.

A *site* is one place in the network in forward order. A *quantity* is a number that an instrument
takes at a site; its definition names the convention that people get wrong. A *column* is one
quantity at all the sites where it was measured.

Index legend: ``S`` sites where a quantity was measured, ``K`` seeds, ``N`` elements of a tensor.
Every statistic is computed in float32 or wider and stored as float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALIKE",
    "QUANTITIES",
    "ROUNDINGS",
    "VECTORS",
    "Column",
    "FloatArray",
    "Quantity",
    "Scale",
    "Site",
]

#: What a profile's settings say of the examples of a batch that has only one.
ALIKE: Final = "all alike"
#: What differs by fewer units of rounding, relative to its size, does not differ.
ROUNDINGS: Final = 4

FloatArray: TypeAlias = npt.NDArray[np.float64]
Scale: TypeAlias = Literal["log", "linear", "bits"]


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the network, in forward order.

    ``index`` is its row in the profile; ``block`` is 0 for the network's input and 1..depth for
    what block 1..depth produced; ``path`` is ``"input"`` or the module path of what produced it
    (0-based, so block 1 is ``"blocks.0"``); ``role`` is ``"state"``, ``"branch"`` or
    ``"activation"``.
    """

    index: int
    block: int
    path: str
    role: str

    def describe(self, word: str) -> str:
        """``"block 57 on (blocks.56)"``: the place with a word that says which way it goes on."""
        return (
            f"the input {word}" if self.block == 0 else f"block {self.block} {word} ({self.path})"
        )

    def __str__(self) -> str:
        return "the input" if self.block == 0 else f"block {self.block} ({self.path})"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number's name, unit and definition; ``scale`` says how two of them are compared.

    ``"log"`` quantities are positive magnitudes whose differences are decades,
    ``"linear"`` ones (shares, signed means) are subtracted; ``"bits"``, of a summary, are
    logarithms already, a bit being log10(2) decades.
    """

    name: str
    unit: str
    definition: str
    scale: Scale
    roles: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Column:
    """One quantity: ``values[s, k]`` was measured at site ``rows[s]`` under seed number ``k``."""

    rows: tuple[int, ...]
    values: FloatArray

    def view(self, seed_axis: bool) -> FloatArray:
        """A copy of shape (K, S), or (S,) when the user asked for one seed."""
        return self.values.T.copy() if seed_axis else self.values[:, 0].copy()


_EVERY = "over every element (examples, tokens, width and space)"
_QUANTILE = (
    "the {part} quantile of magnitude {every}, by lower interpolation: an element that exists, "
    "the ceil({q} * N)-th smallest of N, never a mean of two neighbours; in a module of at most "
    "8,192 elements spread evenly"
)


def _river(prefix: str, name: str, unit: str, nonfinite: str) -> list[Quantity]:
    """The eight statistics of one river; ``name`` is what flows in it."""

    def of(suffix: str, text: str, scale: Scale = "log") -> Quantity:
        return Quantity(f"{prefix}_{suffix}", unit, f"{name}: {text}", scale, ("state",))

    rms = f"the root of the mean square {_EVERY}; no mean is subtracted, so it is no deviation"
    quantiles = {"q01": "0.01", "q50": "0.5", "q99": "0.99", "q999": "0.999"}
    return [
        of("rms", rms),
        of("mean", f"the mean {_EVERY}, with its sign", "linear"),
        of("max", f"the largest magnitude {_EVERY}, not the largest value"),
        *(
            of(suffix, _QUANTILE.format(part=q, q=q, every=_EVERY))
            for suffix, q in quantiles.items()
        ),
        Quantity(
            nonfinite,
            "share",
            f"{name}: the share of elements that are inf, -inf or not a number, {_EVERY}",
            "linear",
            ("state",),
        ),
    ]


_JACOBIAN = (
    "J is the Jacobian of the last state (or the one asked for with until) with respect to this "
    "one, of one example, over all numbers of its state; the mean over the examples followed"
)

_FLOAT64 = "the same weights and batch in float64, Euclidean norms over every element"
_HEADROOM = (
    "log2(largest finite number of {name} / largest magnitude), of the run in float64: negative by "
    "how much a value is too large; at a branch the least over every value computed in its module. "
    "What the arithmetic keeps in float32 has float32's"
)
_FORMAT = "the format is that of the arithmetic asked for, float16 where that is float32 or wider"

_ALL = [
    *_river(
        "state", "the state, after the block's whole update", "state units", "nonfinite_fraction"
    ),
    *_river(
        "gradient",
        "the gradient that reaches the state from behind (all paths summed; of the loss or of a "
        "unit-RMS cotangent, not divided by the batch)",
        "loss per state unit",
        "gradient_nonfinite_fraction",
    ),
    Quantity(
        "live_derivative_fraction",
        "share",
        "the share of pre-activations z, over examples and units, whose derivative has "
        "|phi'(z)| > 0.1; for ReLU this is z > 0. A saturated unit is not live; a small output is "
        "not a dead one",
        "linear",
        ("activation",),
    ),
    Quantity(
        "saturated_fraction",
        "share",
        "the share of pre-activations z, over examples and units, with |phi'(z)| < 0.01. For ReLU "
        "this is every closed gate, about one half in a healthy network",
        "linear",
        ("activation",),
    ),
    Quantity(
        "dead_fraction",
        "share",
        "the share of units (channels), not of pre-activations, for which |phi(z)| <= 1e-6 and "
        "|phi'(z)| <= 1e-6 on every example, token and position of this batch; a larger batch "
        "finds fewer",
        "linear",
        ("activation",),
    ),
    *(
        Quantity(
            f"derivative_{suffix}",
            "output per input",
            f"the {q} quantile of |phi'(z)| over examples and units, by lower interpolation: the "
            f"ceil({q} * N)-th smallest of N; a magnitude, so that a falling slope is no flat one",
            "linear",
            ("activation",),
        )
        for suffix, q in (("q05", "0.05"), ("q50", "0.5"), ("q95", "0.95"))
    ),
    Quantity(
        "branch_rms",
        "state units",
        f"what is added to the stream, after every factor and norm on the branch: its RMS {_EVERY}",
        "log",
        ("branch",),
    ),
    Quantity(
        "branch_to_stream",
        "ratio",
        "branch_rms divided by the RMS of the stream that it is added to, as it enters the sum "
        "(scaled, if the skip is); before the addition, not after it",
        "log",
        ("branch",),
    ),
    Quantity(
        "branch_stream_cosine",
        "cosine",
        "<branch, stream> / (|branch| |stream|) as both enter the sum, all examples and positions "
        "taken as one long vector; no mean is subtracted",
        "linear",
        ("branch",),
    ),
    Quantity(
        "correlation",
        "cosine",
        "the mean cosine between the states of two different examples, over all pairs; each state "
        "is one long vector, no mean is subtracted. 1: all inputs point one way",
        "linear",
        ("state",),
    ),
    Quantity(
        "token_correlation",
        "cosine",
        "the mean cosine between the states of two different positions of one example, over all "
        "pairs, then over examples; where a state is (examples, positions, width)",
        "linear",
        ("state",),
    ),
    Quantity(
        "apjn",
        "ratio",
        f"|J|_F^2 / (numbers of the last state): {_JACOBIAN}. Estimated with random signs at the "
        f"output; at the last state 1",
        "log",
        ("state",),
    ),
    Quantity(
        "apjn_standard_error",
        "ratio",
        "the standard error of apjn over its probes",
        "log",
        ("state",),
    ),
    Quantity(
        "effective_rank_participation",
        "directions",
        f"(sum s^2)^2 / sum s^4 of the singular values s of J: {_JACOBIAN}",
        "log",
        ("state",),
    ),
    Quantity(
        "effective_rank_entropy",
        "directions",
        f"exp(-sum p ln p), p = s / sum s, of the singular values s of J: {_JACOBIAN}",
        "log",
        ("state",),
    ),
    Quantity(
        "stable_rank",
        "directions",
        f"sum s^2 / max s^2 of the singular values s of J: {_JACOBIAN}",
        "log",
        ("state",),
    ),
    Quantity(
        "lost_direction_fraction",
        "share",
        f"the share of singular values of J, as many as its smaller end has numbers, below a tenth "
        f"of the largest: {_JACOBIAN}",
        "linear",
        ("state",),
    ),
    Quantity(
        "block_gain",
        "ratio",
        "the largest singular value of the Jacobian of this state with respect to the one before",
        "log",
        ("state",),
    ),
    Quantity(
        "block_loss",
        "ratio",
        "the smallest singular value of the Jacobian of this state with respect to the one before",
        "log",
        ("state",),
    ),
    Quantity(
        "direction_gain",
        "ratio",
        "|J d| for the direction d of length 1 of the loss gradient at the first state, J from "
        "there to this state: the root mean square over examples; without a loss the gradient is "
        "that of the output along the cotangent",
        "log",
        ("state",),
    ),
    Quantity(
        "component_gain",
        "ratio",
        "the root mean square of the state's component within the span of the directions given, "
        "over that at the first state",
        "log",
        ("state",),
    ),
    Quantity(
        "class_gain",
        "ratio",
        "the root mean square over classes of the distance between a class's mean state and the "
        "mean of all, over that at the first state",
        "log",
        ("state",),
    ),
    Quantity(
        "class_share",
        "share",
        "the variance between the class means over the variance of all states of the batch",
        "linear",
        ("state",),
    ),
    Quantity(
        "update_to_weight",
        "ratio",
        "after one step of the optimiser: the RMS of the update of all parameters of the branch "
        "over the RMS of these parameters before it; infinite where all are zero. Of each tensor: "
        "settings.instruments.updates.weights",
        "log",
        ("branch", "state"),
    ),
    Quantity(
        "functional_update",
        "ratio",
        f"after one step of the optimiser: the RMS of the state's change over its RMS before, on "
        f"the same batch, {_EVERY}; every parameter has moved, by its whole step",
        "log",
        ("state",),
    ),
    Quantity(
        "branch_update",
        "ratio",
        "the RMS of the last state's change when only this branch's parameters have moved, over "
        "the last state's RMS before; at the branch, or at the state that it makes where branches "
        "have no sites",
        "log",
        ("branch", "state"),
    ),
    Quantity(
        "update_alignment",
        "ratio",
        "at the last state: the RMS of the sum of its changes, one branch moved at a time, over "
        "the sum of their RMS. 1: all pull one way; 1/sqrt(branches): orthogonal and of one size",
        "linear",
        ("state",),
    ),
    Quantity(
        "relative_error_state",
        "ratio",
        f"|state - exact| / |exact|, exact being that of {_FLOAT64}; NaN where the state is",
        "log",
        ("state",),
    ),
    Quantity(
        "relative_error_gradient",
        "ratio",
        f"|gradient - exact| / |exact|, exact being that of {_FLOAT64}; NaN where the gradient is",
        "log",
        ("state",),
    ),
    Quantity(
        "flushed_gradient_fraction",
        "share",
        "the share of elements of the gradient that are not 0 in float64 and are 0 in the "
        "arithmetic asked for, by underflow or since terms cancel; of all elements",
        "linear",
        ("state",),
    ),
    *(
        Quantity(
            f"headroom_{name}_bits",
            "bits",
            _HEADROOM.format(name=name),
            "linear",
            ("state", "branch"),
        )
        for name in ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
    ),
    Quantity(
        "last_binades_fraction",
        "share",
        "the share of non-zero values of the state from half the last power of two of the format "
        f"up (float16: from 16384), those too large for it too; {_FORMAT}",
        "linear",
        ("state",),
    ),
    Quantity(
        "underflow_headroom_bits",
        "bits",
        "log2(RMS of the gradient over every element / smallest normal number of the format), "
        f"loss not scaled: under 0 a typical gradient loses digits; {_FORMAT}",
        "linear",
        ("state",),
    ),
    Quantity(
        "stiffness",
        "ratio",
        "learning rate x largest curvature of the loss on this batch, over the limit of the "
        "optimiser's stability; of the whole network, at the last state: the larger of step 0 and "
        "after some real steps, for Adam that after the steps. Over 1 a quadratic so curved "
        "diverges; 0: nothing curves upwards. Without a loss not measured; an equation is given "
        "that of classes. More: settings.instruments.stiffness",
        "log",
        ("state",),
    ),
]

#: Quantities that are several numbers at a site, and what these are.
VECTORS: dict[str, str] = {
    "block_log_singular_values": (
        "natural logarithms of the singular values of the Jacobian of this state with respect to "
        "the one before, the largest first; the mean over the examples followed"
    ),
    "component_gains": (
        "component_gain along each of the directions given, in their order: the root mean square "
        "of the component over that at the first state"
    ),
    "log_singular_values": (
        f"natural logarithms of the singular values of J, the largest first: {_JACOBIAN}; null "
        f"where a direction is gone"
    ),
}

QUANTITIES: dict[str, Quantity] = {quantity.name: quantity for quantity in _ALL}
"""Every quantity a profile may hold; the names are a contract with JSON and records."""
