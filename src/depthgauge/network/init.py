"""Initialisers: the only place that knows fan and axis order.

A weight has PyTorch's axis order, ``(out, in)`` for a linear layer and ``(out, in, k, k)`` for a
convolution, so ``fan_in = in k k`` and ``fan_out = out k k``. Numbers are drawn for row vectors
(``u @ W``), hence in the order ``(in, ..., out)``, and seen transposed.

The gain multiplies the standard deviation.

    normal            N(0, std)
    trunc_normal      N(0, std) cut at +-bound standard deviations (bound in units of std)
    xavier[_uniform]  std = gain sqrt(2 / (fan_in + fan_out))             Glorot and Bengio 2010
    he[_uniform]      std = gain / sqrt(fan), fan by mode, gain sqrt(2)   He et al. 1502.01852
    lecun[_uniform]   std = gain / sqrt(fan_in)                           LeCun et al. 1998
    orthogonal        gain Q, Haar (QR with the signs of R's diagonal)    Saxe et al. 1312.6120
    delta_orthogonal  orthonormal columns at the kernel's centre          Xiao et al. 1806.05393
    identity          gain I (at the kernel's centre)
    standardised      each output's row with mean 0 and rms gain / sqrt(fan_in), of a normal draw:
                      what scaled weight standardisation gives   Brock et al. 2101.08692
    torch             uniform +-1/sqrt(fan_in): std = 1/sqrt(3 fan_in)    nn.Linear, nn.ConvNd
    zeros, constant

``INITIALISERS[kind](shape, options, source)`` gives a weight in the precision of the source, with
any strides; it raises NetworkError where the initialiser does not exist for the shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from depthgauge.equation.nodes import SCALARS, Init
from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.draws import Source

Shape = tuple[int, ...]
Options = Mapping[str, Any]
Array = NDArray[Any]


def fans(shape: Shape) -> tuple[int, int]:
    """``(fan_in, fan_out)`` of a weight in PyTorch's axis order."""
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def options_of(init: Init, scope: Mapping[str, float]) -> dict[str, Any]:
    """The options as numbers and words; ``scope`` has ``L, depth, l, n, pi`` and the Lets."""
    return {
        name: evaluate(option, scope) if isinstance(option, SCALARS) else option
        for name, option in init.options
    }


def positive(kind: str, std: float) -> float:
    if std < 0:
        raise NetworkError(f"{kind} has a standard deviation of {std:g}; give one of at least 0")
    return std


def rows(numbers: Array, shape: Shape) -> Array:
    """Numbers drawn in the order ``(in, ..., out)``, seen as ``(out, in, ...)``.

    An axis in front of the numbers stays in front.
    """
    front = numbers.shape[:-1]
    drawn = numbers.reshape(*front, *shape[1:], shape[0])
    last = drawn.ndim - 1
    return drawn.transpose(*range(len(front)), last, *range(len(front), last))


# ------------------------------------------------------------------ standard deviations


def _he(shape: Shape, options: Options) -> float:
    fan_in, fan_out = fans(shape)
    fan = fan_in if options["mode"] == "fan_in" else fan_out
    return float(options["gain"]) / math.sqrt(fan)


def _xavier(shape: Shape, options: Options) -> float:
    return float(options["gain"]) * math.sqrt(2 / sum(fans(shape)))


def _lecun(shape: Shape, options: Options) -> float:
    return float(options["gain"]) / math.sqrt(fans(shape)[0])


#: Initialisers that are normal draws times a standard deviation.
NORMAL_STD: Final[dict[str, Callable[[Shape, Options], float]]] = {
    "normal": lambda shape, options: float(options["std"]),
    "he": _he,
    "xavier": _xavier,
    "lecun": _lecun,
}


def rms_of(init: Init, shape: Shape, scope: Mapping[str, float]) -> float:
    """The root mean square of a weight of this shape that the initialiser draws.

    ``shape`` is (out, in, ...); that of a vector is (n,), of which only constants are known.
    """
    options, kind = options_of(init, scope), init.kind.removesuffix("_uniform")
    match kind:
        case "zeros" | "constant":
            return abs(float(options.get("value", 0.0)))
        case "torch":
            return _GAIN_OF_TORCH * _lecun(shape, {"gain": 1.0})
        case "trunc_normal":
            bound = float(options["bound"])
            density = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
            inside = math.erf(bound / math.sqrt(2))
            return float(options["std"]) * math.sqrt(1 - 2 * bound * density / inside)
        case "orthogonal":
            return abs(float(options["gain"])) / math.sqrt(max(shape[0], math.prod(shape[1:])))
        case "delta_orthogonal" | "identity":
            longest = max(shape[0], shape[1])
            return abs(float(options["gain"])) / math.sqrt(longest * math.prod(shape[2:]))
        case "standardised":
            return abs(_lecun(shape, options))
    return NORMAL_STD[kind](shape, options)


# ------------------------------------------------------------------------- initialisers


def _normal(rule: Callable[[Shape, Options], float], kind: str) -> Callable[..., Array]:
    def fill(shape: Shape, options: Options, source: Source) -> Array:
        std = positive(kind, rule(shape, options))
        return rows(source.normal(math.prod(shape), std), shape)

    return fill


def _uniform(rule: Callable[[Shape, Options], float], kind: str) -> Callable[..., Array]:
    """Uniform on +-sqrt(3) std, which has this standard deviation."""

    def fill(shape: Shape, options: Options, source: Source) -> Array:
        bound = math.sqrt(3) * positive(kind, rule(shape, options))
        numbers = source.uniform(math.prod(shape))
        numbers -= numbers.dtype.type(0.5)
        numbers *= numbers.dtype.type(2 * bound)
        return rows(numbers, shape)

    return fill


def _truncated(shape: Shape, options: Options, source: Source) -> Array:
    """By inverting the distribution function, so that the number of draws is fixed.

    The bound is in units of std: 2 cuts at two standard deviations, unlike
    ``torch.nn.init.trunc_normal_``, whose a and b are absolute.
    """
    import torch

    std, bound = positive("trunc_normal", options["std"]), float(options["bound"])
    if bound <= 0:
        raise NetworkError(f"trunc_normal has bound={bound:g}; give a positive number of std")
    tail = 0.5 * math.erfc(bound / math.sqrt(2))
    uniform = source.uniform(math.prod(shape))
    levels = torch.from_numpy(tail + (1 - 2 * tail) * uniform.astype(np.float64))
    numbers = torch.special.ndtri(levels).clamp(-bound, bound).numpy() * std
    return rows(numbers.astype(uniform.dtype), shape)


def _haar(rows_: int, columns: int, source: Source) -> Array:
    """A ``(rows, columns)`` matrix, orthonormal along its shorter side, Haar distributed."""
    tall = rows_ >= columns
    long, short = max(rows_, columns), min(rows_, columns)
    numbers = source.normal(long * short)
    q, r = np.linalg.qr(numbers.astype(np.float64).reshape(long, short))
    # Without the signs of R's diagonal Q is not Haar: Mezzadri, math-ph/0609050, section 5.
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.ascontiguousarray(q if tall else q.T).astype(numbers.dtype)


def _orthogonal(shape: Shape, options: Options, source: Source) -> Array:
    matrix = _haar(shape[0], math.prod(shape[1:]), source)
    scaled: Array = matrix * matrix.dtype.type(options["gain"])
    return scaled.reshape(shape)


def _centre(shape: Shape, matrix: Array) -> Array:
    if len(shape) == 2:
        return matrix
    kernel = np.zeros(shape, matrix.dtype)
    centre: tuple[Any, ...] = tuple(side // 2 for side in shape[2:])
    kernel[(slice(None), slice(None), *centre)] = matrix
    return kernel


def _delta_orthogonal(shape: Shape, options: Options, source: Source) -> Array:
    out, fan = shape[:2]
    if len(shape) == 2:
        raise NetworkError(
            f"delta_orthogonal is for convolutions, not for a linear layer {fan} -> {out}; "
            f"use orthogonal"
        )
    if out < fan:
        raise NetworkError(
            f"delta_orthogonal needs at least as many outputs as inputs, not {fan} -> {out}: a "
            f"kernel with fewer cannot keep every direction"
        )
    matrix = _haar(out, fan, source)
    return _centre(shape, matrix * matrix.dtype.type(options["gain"]))


def _identity(shape: Shape, options: Options, source: Source) -> Array:
    out, fan = shape[:2]
    if out != fan:
        raise NetworkError(
            f"identity needs as many outputs as inputs, not {fan} -> {out}; use orthogonal"
        )
    return _centre(shape, np.eye(out) * float(options["gain"]))


def _standardised(shape: Shape, options: Options, source: Source) -> Array:
    fan_in = math.prod(shape[1:])
    if fan_in < 2:
        raise NetworkError(
            f"standardised takes the mean off what enters each output, which is {fan_in} number "
            f"here; use another initialiser for this layer"
        )
    drawn = rows(source.normal(math.prod(shape)), shape)
    over = tuple(range(1, len(shape)))
    centred = drawn - drawn.mean(over, keepdims=True, dtype=np.float64)
    centred *= _lecun(shape, options) / np.sqrt(np.square(centred).mean(over, keepdims=True))
    found: Array = centred.astype(drawn.dtype)
    return found


def _constant(shape: Shape, options: Options, source: Source) -> Array:
    return np.full(shape, float(options.get("value", 0.0)))


_GAIN_OF_TORCH = 1 / math.sqrt(3)

INITIALISERS: Final[dict[str, Callable[[Shape, Options, Source], Array]]] = {
    "zeros": _constant,
    "constant": _constant,
    "normal": _normal(NORMAL_STD["normal"], "normal"),
    "trunc_normal": _truncated,
    "xavier": _normal(_xavier, "xavier"),
    "xavier_uniform": _uniform(_xavier, "xavier_uniform"),
    "he": _normal(_he, "he"),
    "he_uniform": _uniform(_he, "he_uniform"),
    "lecun": _normal(_lecun, "lecun"),
    "lecun_uniform": _uniform(_lecun, "lecun_uniform"),
    "orthogonal": _orthogonal,
    "delta_orthogonal": _delta_orthogonal,
    "identity": _identity,
    "standardised": _standardised,
    "torch": _uniform(
        lambda shape, options: _GAIN_OF_TORCH * _lecun(shape, {"gain": 1.0}), "torch"
    ),
}
