"""Directions: what of a state lies along those that matter, and what they gain on their way.

Index legend: states ``h_0 ... h_D`` of a chain, of width ``n``; ``P`` projects on the span of the
vectors given; ``m_c`` the mean state of class c, ``m`` that of all examples. Labels ``(B,)`` are
those of whole examples, ``(B, T)`` those of their positions; -100 is no class.

    component_gain_k  |P h_k| / |P h_0|, root mean squares over examples and positions
    direction_gain_k  |J_(0->k) d|, d of length 1 for each example: the loss gradient's direction
    class_gain_k      the root mean square over classes of |m_c - m| at h_k over that at h_0
    class_share_k     sum_c B_c |m_c - m|^2 / sum_b |h_b - m|^2: what of the variance lies between
                      the classes (1: only the class is left, 0: nothing of it)

A norm adds the squares of all directions, so a rotation that carries the answer into another
direction leaves it as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from depthgauge.instruments.jacobians import unfit
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.network.chain import Chain, Kept

__all__ = ["DIRECTIONS", "directions"]

#: The label of what belongs to no class, as in ``torch.nn.functional.cross_entropy``.
UNLABELLED = -100
DIRECTIONS = ("direction_gain", "component_gain", "component_gains", "class_gain", "class_share")


def directions(subject: Subject, effort: Effort) -> Found:
    """The gain along the loss gradient, along the directions given, and between classes."""
    found = Found()
    with subject.chain() as chain:
        _gradient(chain, subject.rows, effort, found)
        _components(chain, subject, found)
        _classes(chain, subject, found)
    found.notes["directions"] = {"gradient": "of the loss at the first state"}
    return found


def _gradient(chain: Chain, rows: Sequence[int], effort: Effort, found: Found) -> None:
    """What the direction of the loss gradient at the first state gains on its way forward."""
    if why := unfit(chain):
        found.missing["direction_gain"] = why
        return
    first = chain.states[0]
    try:
        (gradient,) = torch.autograd.grad(
            chain.total(), [first.edge], retain_graph=True, allow_unused=True
        )
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        found.missing["direction_gain"] = f"no gradient of a state can be taken: {line}"
        return
    if gradient is None or not bool((gradient != 0).any()):
        found.missing["direction_gain"] = "no gradient reaches the first state"
        return
    each = first.rows(gradient[None].double())
    lengths = torch.linalg.vector_norm(each, dim=-1, keepdim=True)
    unit = torch.where(lengths > 0, each / lengths.clamp_min(1e-300), 0.0)
    tangent = first.spread(unit.to(chain.dtype))
    alive = max(int((lengths > 0).sum()), 1)
    values = [1.0]
    try:
        for k in range(1, len(chain) + 1):
            effort.check(k - 1, len(chain))
            tangent = chain.push(k - 1, k, tangent)
            square = float(torch.linalg.vector_norm(tangent, dtype=torch.float64)) ** 2
            values.append(math.sqrt(square / alive))
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        found.missing["direction_gain"] = f"the backward pass has no derivative: {line}"
        return
    for row, value in zip(rows, values, strict=True):
        found.put("direction_gain", row, value)


def _components(chain: Chain, subject: Subject, found: Found) -> None:
    names = ("component_gain", "component_gains")
    if subject.directions is None:
        found.missing |= dict.fromkeys(names, "no directions were given")
        return
    vectors = subject.directions.double()
    widths = {state.shape[-1] for state in chain.states}
    if widths != {vectors.shape[1]}:
        found.missing |= dict.fromkeys(
            names,
            f"directions have {vectors.shape[1]} numbers, but the states of this stream are "
            f"{', '.join(map(str, sorted(widths)))} wide",
        )
        return
    unit = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    left, values, _ = torch.linalg.svd(unit.T, full_matrices=False)
    span = left[:, values > values[0] * 1e-10]  # orthonormal, (n, rank)
    first_span, first_each = 0.0, None
    for k, (state, row) in enumerate(zip(chain.states, subject.rows, strict=True)):
        h = state.value.double().reshape(-1, vectors.shape[1])
        whole, each = _rms(h @ span), (h @ unit.to(h).T).square().mean(0).sqrt()
        if k == 0:
            first_span, first_each = whole, each
            if first_span == 0:
                why = "the first state has no component along the directions given"
                found.missing |= dict.fromkeys(names, why)
                return
        assert first_each is not None
        found.put("component_gain", row, whole / first_span)
        found.vectors.setdefault("component_gains", {})[row] = (each / first_each).cpu().numpy()


def _rms(x: Tensor) -> float:
    return float(x.square().sum(-1).mean().sqrt())


def _labelled(state: Kept, labels: Tensor) -> Tensor | None:
    """The state's vectors, one a label: of whole examples, or of their positions where each has a
    label of its own; None where the state has other numbers of these."""
    if labels.dim() == 1:
        return state.rows(state.value[None])[0] if state.examples == len(labels) else None
    value = state.value if state.axis is None else state.value.movedim(state.axis, 0)
    if value.dim() != 3 or value.shape[:2] != labels.shape:
        return None
    return value.reshape(labels.numel(), -1)


def _classes(chain: Chain, subject: Subject, found: Found) -> None:
    names = ("class_gain", "class_share")
    if subject.labels is None:
        found.missing |= dict.fromkeys(names, "no labels were given")
        return
    labels = subject.labels
    labelled = [_labelled(state, labels) for state in chain.states]
    kept = labels.reshape(-1) != UNLABELLED
    _, which, counts = torch.unique(
        labels.reshape(-1)[kept], return_inverse=True, return_counts=True
    )
    what = "examples" if labels.dim() == 1 else "examples and positions"
    why = ""
    if any(h is None for h in labelled):
        count = " by ".join(map(str, labels.shape))
        why = f"there are {count} labels, but the states do not have that many {what}"
    elif len(counts) < 2:
        one = "have one label" if len(counts) else "have no label"
        why = f"all {'examples' if labels.dim() == 1 else 'positions'} {one}"
    if why:
        found.missing |= dict.fromkeys(names, why)
        return
    first = 0.0
    for k, (whole, row) in enumerate(zip(labelled, subject.rows, strict=True)):
        assert whole is not None
        h = whole[kept.to(whole.device)].double()
        h = h - h.mean(0)
        means = torch.zeros(len(counts), h.shape[1], dtype=h.dtype, device=h.device)
        means.index_add_(0, which.to(h.device), h)
        means /= counts.to(means)[:, None]
        squares = means.square().sum(1)
        apart = float(squares.mean().sqrt())
        between = float((squares * counts.to(squares)).sum())
        total = float(h.square().sum())
        first = apart if k == 0 else first
        found.put("class_gain", row, apart / first if first else math.nan)
        found.put("class_share", row, between / total if total else math.nan)
