"""How sharp attention begins: the spread of its logits, its largest probability and its entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from depthgauge.sites import FloatArray

__all__ = ["MAKES", "WIDE", "sharpness"]

#: Functions that make attention's probabilities, or use them at once.
MAKES: Final = ("softmax", "scaled_dot_product_attention")
#: Logits of a smaller standard deviation than this are not looked at any closer.
WIDE: Final = 3.0
_CALM: Final = (math.nan, math.nan, math.nan)
#: Queries that are looked at.
_QUERIES: Final = 32
#: Below this a logit is masked: -inf, or the least number of a format.
_MASKED: Final = -3e4


def sharpness(
    name: str, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[float, float, float] | None:
    """Of a sample of queries the standard deviation of their logits over the keys that each sees,
    the largest probability, and the entropy over the most it can be: means over queries that see
    two keys or more, NaN where the logits are not ``WIDE``. None of what is no attention, of logits
    that are not finite, or off the CPU."""
    x = args[0] if args else options.get("input")
    if not isinstance(x, Tensor) or x.device.type != "cpu" or x.dim() < 3:
        return None
    logits = _given(x, args, options) if name == "softmax" else _made(x, args, options)
    if logits is None:
        return None
    if np.vdot(logits, logits) <= WIDE**2 * logits.size:
        return _CALM
    seen = logits > _MASKED
    count = seen.sum(-1)
    several = count > 1
    logits, seen, count = logits[several], seen[several], count[several]
    if not len(logits) or not np.isfinite(logits[seen]).all():
        return None
    mean = logits.sum(-1, where=seen) / count
    squares = np.square(logits - mean[:, None]).sum(-1, where=seen)
    std = math.sqrt((squares / count).mean())
    if std <= WIDE:
        return _CALM
    top = logits.max(-1, where=seen, initial=-math.inf)
    p = np.exp(logits - top[:, None], where=seen, out=np.zeros_like(logits))
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(-1) / np.log(count)
    return std, float(p.max(-1).mean()), float(entropy.mean())


def _given(x: Tensor, args: Sequence[Any], options: Mapping[str, Any]) -> FloatArray | None:
    """The logits of some queries that a softmax over the last axis is given."""
    axis = options.get("dim", args[1] if len(args) > 1 else -1)
    if axis not in (-1, x.dim() - 1):
        return None
    rows = x.detach().reshape(-1, x.shape[-1])
    return _numbers(rows[:: max(1, len(rows) // _QUERIES)])


def _made(query: Tensor, args: Sequence[Any], options: Mapping[str, Any]) -> FloatArray | None:
    """The logits of some queries of the first example's first head; a mask is not looked at."""
    key = args[1] if len(args) > 1 else options.get("key")
    if not isinstance(key, Tensor) or key.shape[-1] != query.shape[-1]:
        return None
    if key.shape[:-2] != query.shape[:-2]:
        return None
    scale = options.get("scale") or query.shape[-1] ** -0.5
    first = (0,) * (query.dim() - 2)
    rows = query.detach()[first]
    picked = _numbers(rows[:: max(1, len(rows) // _QUERIES)])
    logits: FloatArray = picked @ _numbers(key.detach()[first]).T * scale
    return logits


def _numbers(x: Tensor) -> FloatArray:
    numbers: FloatArray = x.double().numpy()
    return numbers
