"""How sharp attention begins: the spread of its logits, its largest probability and its entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
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
#: The turns by which the sample goes along each axis: no two have a whole number in common, so that
#: it meets the places of every axis evenly, whatever their numbers.
_TURNS: Final = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
#: Of what is added to hide a key (-1e4, the least number of a format): it lies so much lower than
#: all logits of the sample, and so many times as far as those lie apart.
_HIDES: Final = 5e3
_APART: Final = 2.0
#: Below this no logit lies.
_NONE: Final = -1e8


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
    seen = _seen(logits)
    count = seen.sum(-1)
    several = count > 1
    logits, seen, count = logits[several], seen[several], count[several]
    if not len(logits) or not np.isfinite(logits[seen]).all():
        return None
    logits = np.where(seen, logits, 0.0)
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
    return _numbers(x.detach()[_places(x.shape[:-1])])


def _places(shape: Sequence[int]) -> tuple[Tensor, ...]:
    """The places of some queries on each of the axes: all where they are few."""
    if math.prod(shape) <= _QUERIES:
        return tuple(torch.from_numpy(np.indices(shape).reshape(len(shape), -1)))
    turns = np.resize(_TURNS, len(shape))
    at = (0.5 + np.arange(_QUERIES)[:, None] * turns) % 1 * np.array(shape)
    return tuple(torch.from_numpy(np.unique(at.astype(np.int64), axis=0).T.copy()))


def _seen(logits: FloatArray) -> npt.NDArray[np.bool_]:
    """Which keys a query sees, of logits ``(queries, keys)`` to which a mask may have been added.

    The masked lie together, far below all others: logits that are large lie apart as much. Above
    the gap have to be keys of more than a quarter of the queries; the others may see none.
    """
    seen: npt.NDArray[np.bool_] = ~(logits <= _NONE)
    rows = np.broadcast_to(np.arange(len(logits))[:, None], logits.shape)[seen]
    every = logits[seen]
    if not np.isfinite(every).all() or every.size < 3:
        return seen
    order = np.argsort(-every)
    every, rows = every[order], rows[order]
    gap, spread = every[:-1] - every[1:], every[0] - every[:-1]
    first = np.zeros(len(every) - 1, bool)
    first[np.unique(rows[:-1], return_index=True)[1]] = True
    enough = (4 * np.cumsum(first) > len(logits)) & (np.arange(1, len(every)) > 2)
    gaps = np.flatnonzero((gap >= _HIDES) & (gap >= _APART * spread) & enough)
    return seen & (logits >= every[gaps[0]]) if len(gaps) else seen


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
    picked = _numbers(rows[_places(rows.shape[:-1])])
    logits: FloatArray = picked @ _numbers(key.detach()[first]).T * scale
    return logits


def _numbers(x: Tensor) -> FloatArray:
    numbers: FloatArray = x.double().numpy()
    return numbers
