"""The words of the language: each function's options with their defaults.

Only names, options and defaults; what a function computes is said by the readers
(``network/`` in PyTorch). A default equal to what PyTorch uses says so by being PyTorch's number.
"""

from __future__ import annotations

from typing import Final

from depthgauge.equation.nodes import Function, Number, Option, Symbol

STATE, INITIAL = "h", "h0"

#: Symbols every scalar expression may use: residual branches in the network, blocks, the block's
#: 1-based index, the state's width, and the circle's constant.
SYMBOLS: Final = ("L", "depth", "l", "n", "pi")

#: Scalar functions and the number of arguments each takes (None: two or more).
SCALAR_FUNCTIONS: Final[dict[str, int | None]] = {
    "sqrt": 1,
    "exp": 1,
    "log": 1,
    "abs": 1,
    "min": None,
    "max": None,
    "floor": 1,
    "ceil": 1,
}

ACTIVATIONS: Final[dict[str, dict[str, Option]]] = {
    "identity": {},
    "sigmoid": {},
    "tanh": {},
    "relu": {},
    "leaky_relu": {"slope": Number(0.01)},
    "elu": {"alpha": Number(1.0)},
    "selu": {},
    "gelu": {"approximate": "none"},
    "silu": {},
    "mish": {},
    "softplus": {"beta": Number(1.0)},
    "softsign": {},
    "erf": {},
}

#: Options every norm shares. ``axis``: None is the kind's own ("width"; "batchnorm": all but the
#: width; "groupnorm": a group of channels and space), else axis names joined by "+" out of
#: ``AXES``. ``gain``: None is no learnable gain, else its initial value (True is 1). ``bias``: a
#: learnable offset that starts at 0.
_AFFINE: Final[dict[str, Option]] = {"gain": None, "bias": False}
_EPS: Final[dict[str, Option]] = {"eps_at": "inside"}

NORMS: Final[dict[str, dict[str, Option]]] = {
    # (x - mean) / sqrt(var + eps), biased variance
    "layernorm": {"axis": None, "eps": Number(1e-5), **_EPS, **_AFFINE},
    # x / sqrt(mean(x^2) + eps)
    "rmsnorm": {"axis": None, "eps": Number(1e-6), **_EPS, **_AFFINE},
    "batchnorm": {"axis": None, "eps": Number(1e-5), **_EPS, **_AFFINE},
    "groupnorm": {"groups": Number(1.0), "eps": Number(1e-5), **_EPS, **_AFFINE},
    # g x / max(|x|, eps); g is one learnable scalar and starts at sqrt(n) (1910.05895)
    "scalenorm": {
        "axis": None,
        "eps": Number(1e-5),
        "gain": Function("sqrt", (Symbol("n"),)),
    },
    # tanh(alpha x), alpha learnable (2503.10622)
    "dyt": {"alpha": Number(0.5), **_AFFINE},
    # erf(alpha x + shift), alpha and shift learnable (2512.10938)
    "derf": {"alpha": Number(0.5), "shift": Number(0.0), **_AFFINE},
}

#: Names of the state's axes, and the words an option accepts.
AXES: Final = ("batch", "tokens", "width", "space")
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "approximate": ("none", "tanh"),
    "eps_at": ("inside", "outside"),
    "padding": ("zeros", "circular"),
    "mode": ("fan_in", "fan_out"),
    "norm": ("l2", "layernorm", "rmsnorm"),  # of attention's queries and keys
}

_GAIN: Final[dict[str, Option]] = {"gain": Number(1.0)}
_HE: Final[dict[str, Option]] = {"mode": "fan_in", "gain": Function("sqrt", (Number(2.0),))}

#: Initialisers. A gain multiplies the standard deviation (He: std = gain / sqrt(fan)).
INITS: Final[dict[str, dict[str, Option]]] = {
    "zeros": {},
    "constant": {"value": Number(0.0)},
    "normal": {"std": Number(0.02)},
    "trunc_normal": {"std": Number(0.02), "bound": Number(2.0)},
    "xavier": _GAIN,
    "xavier_uniform": _GAIN,
    "he": _HE,
    "he_uniform": _HE,
    "lecun": _GAIN,
    "lecun_uniform": _GAIN,
    "orthogonal": _GAIN,
    "delta_orthogonal": _GAIN,
    "identity": _GAIN,
    "standardised": _GAIN,
    "torch": {},
}

ALIASES: Final[dict[str, str]] = {
    "swish": "silu",
    "kaiming": "he",
    "kaiming_normal": "he",
    "he_normal": "he",
    "kaiming_uniform": "he_uniform",
    "glorot": "xavier",
    "glorot_normal": "xavier",
    "xavier_normal": "xavier",
    "glorot_uniform": "xavier_uniform",
    "lecun_normal": "lecun",
    "pytorch": "torch",
    "default": "torch",
}

#: The longest name of an ``opaque`` operation, which is printable text.
OPAQUE_NAME: Final = 80

ZERO: Final = Number(0.0)
ONE: Final = Number(1.0)
MINUS_ONE: Final = Number(-1.0)
