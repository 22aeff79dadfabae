"""Do different inputs still give different states? The mean cosine between them.

    correlation         mean over pairs a != b of <h_a, h_b> / (|h_a| |h_b|), h_a the whole state of
                        example a; no mean is subtracted
    token_correlation   the same between the positions of one example, mean over examples

With ``u_a = h_a / |h_a|`` it is ``(|sum_a u_a|^2 - B) / (B (B - 1))``: one pass, no table of pairs.
Near 1 that difference is rounding, and there it is ``1 - sum_a |u_a - u|^2 / (B - 1)``, u the mean,
in float64: how far apart examples are, ``1 - cosine``, is then known to 1e-16.
Once all inputs point one way, half of the units of a ReLU layer are off for the whole batch: what
looks like dead units is this. Source: Poole et al., arXiv 1606.05340, equation 4 (the correlation
map c -> c'); Dong, Cordonnier and Loukas, arXiv 2103.03404, for tokens.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.sites import ROUNDINGS, FloatArray

__all__ = ["STATISTICS", "between", "of_examples", "of_tokens", "same"]

STATISTICS = ("correlation", "token_correlation")

#: From here on what is left to 1 is taken by itself: a thousandth of it is float32's rounding.
_NEAR: Final = 1 - 1e-3


def between(x: Tensor) -> list[float]:
    """Of each group of ``(G, M, N)`` the mean cosine between its M vectors; NaN for a group with a
    vector that is zero or not finite, or with M < 2. ``x`` is float32 or wider."""
    groups, count = x.shape[:2]
    if count < 2 or not x.numel():
        return [math.nan] * groups
    sums = _sums(x) if x.device.type == "cpu" else _on_device(x)
    means = (np.array(sums) - count) / (count * (count - 1))
    if (near := np.flatnonzero(means > _NEAR)).size:
        means[near] = 1 - _apart(x if near.size == groups else x[near.tolist()])
    found: list[float] = means.tolist()
    return found


def of_examples(x: Tensor) -> list[float]:
    """``(E, B, ...)``: of each member, between its examples."""
    return between(x.reshape(*x.shape[:2], -1))


def of_tokens(x: Tensor) -> list[float]:
    """``(E, B, T, n)``: of each member, between the positions of an example; NaN for a state of
    another form."""
    if x.dim() != 4:
        return [math.nan] * len(x)
    found = np.array(between(x.reshape(-1, *x.shape[2:]))).reshape(len(x), -1)
    means: list[float] = found.mean(1).tolist()
    return means


def same(x: Tensor) -> bool:
    """Whether the examples of ``(B, ...)``, two or more, are one to within ``ROUNDINGS``."""
    if len(x) < 2 or not x.numel() or x.layout != torch.strided:
        return False
    x = x.detach()
    if not (x.is_floating_point() or x.is_complex()):
        return bool((x == x[:1]).all())
    apart = (x - x[:1]).abs().max()
    return bool(apart <= ROUNDINGS * torch.finfo(x.dtype).eps * x.abs().max())


def _sums(x: Tensor) -> list[float]:
    """``|sum of unit vectors|^2`` of each group."""
    a = x.numpy()
    squares = np.einsum("gmn,gmn->gm", a, a)
    low, high = squares.min(), squares.max()
    if not (low > 1e-30 and high < 1e30):  # near the ends digits are lost; NaN
        a = a.astype(np.float64)
        with np.errstate(all="ignore"):
            a = a / np.abs(a).max(axis=2, keepdims=True)
        squares = np.einsum("gmn,gmn->gm", a, a)
    with np.errstate(all="ignore"):
        inverse = (1 / np.sqrt(squares)).astype(a.dtype)
        total = np.matmul(inverse[:, None], a)[:, 0].astype(np.float64)
    found: list[float] = np.einsum("gn,gn->g", total, total).tolist()
    return found


def _apart(x: Tensor) -> FloatArray:
    """``sum_a |u_a - u|^2 / (M - 1)`` of each group: 1 - the mean cosine."""
    top = x.abs().amax(2, keepdim=True).double()
    unit = x.double() / top  # a new tensor, which is then written over: half of the time is memory
    unit /= torch.linalg.vector_norm(unit, dim=2, keepdim=True)
    unit -= unit.mean(1, keepdim=True)
    squares = unit.square_().sum((1, 2)) / (x.shape[1] - 1)
    found: FloatArray = squares.cpu().numpy()
    return found


def _on_device(x: Tensor) -> list[float]:
    double = x.double()
    double = double / double.abs().amax(2, keepdim=True)
    unit = double / torch.linalg.vector_norm(double, dim=2, keepdim=True)
    found: list[float] = unit.sum(1).square().sum(1).tolist()
    return found
