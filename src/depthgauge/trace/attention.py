"""Attention, fused or spelled out, as one word of the language.

Queries, keys and values read one tensor through a weight layer each; a product, a softmax and a
second product follow, and an output layer. What else is done on the way (rotary phases, masks,
norms of queries and keys, grouped heads) is said in the name of an opaque node, never left out.
"""

from __future__ import annotations

import math
from typing import Final

from depthgauge.equation.nodes import Attention, LearnedScalar, Number, Opaque, Scalar, Value
from depthgauge.trace.blocks import Region, Unsayable
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.heads import normed_operands
from depthgauge.trace.logits import logits
from depthgauge.trace.norms import by_length

__all__ = ["attention", "fused"]


def fused(region: Region, value: Traced) -> Value:
    """``F.multi_head_attention_forward`` of one tensor with itself."""
    query, key, values = value.inputs[:3]
    if not query == key == values:
        raise Unsayable(value.index, "cross attention")
    heads = next((a for a in value.args[3:] if type(a) is int and a != region.width), 1)
    numbers = [a for a in value.args if type(a) is int]
    heads = numbers[1] if len(numbers) > 1 else heads
    causal = bool(value.options.get("is_causal"))
    bias = any(region.values[i].path.endswith("bias") for i in value.inputs)
    name = f"{value.inputs[3]}" if len(value.inputs) > 3 else f"{value.index}"
    return Attention(region.value(query), Number(float(heads)), causal, None, None, bias, name)


def attention(region: Region, value: Traced) -> Value | None:
    """The output layer of an attention spelled out in this region, or None."""
    if value.name not in ("linear", "addmm", "matmul") or region.roles.layers(value.index) != 1:
        return None
    at = region.values[value.inputs[0 if value.name == "linear" else -2]]
    while at.kind in ("shape", "drop") and at.inputs:
        at = region.values[at.inputs[0]]
    if at.kind not in ("attend", "contract") or region.roles.layers(at.index) != 2:
        return None
    parts = _parts(region, at)
    if parts is None:
        return None
    query, key, values, features = parts
    sources = [_projected(region, j, features) for j in (query, key, values)]
    if any(s is None for s in sources) or len(set(sources)) != 1:
        return None
    (source,) = {s for s in sources if s is not None}
    shape = region.values[query].shape
    heads = shape[-3] if len(shape) > 3 else 1
    if region.values[key].shape and shape[-1:] == region.values[key].shape[-1:]:
        kv = _heads(region, values)
        if kv and kv != heads:
            features.append(f"{kv} of {heads} key heads")
    x = region.value(source)
    normed = _normed(region, at)
    if normed is not None:
        features = [feature for feature in features if feature != _NORMED]
    if features:
        name = "attention, " + ", ".join(dict.fromkeys(features))
        entry = (region.roles.graph.path(at.index), name)
        if entry not in region.opaque:
            region.opaque.append(entry)
        return Opaque(name, (x,), Number(4.0))
    causal = bool(at.options.get("is_causal", len(at.args) > 5 and at.args[5] is True))
    bias = len(value.inputs) > 2
    weight = value.inputs[1 if value.name == "linear" else -1]
    given = at.options.get("scale", at.args[6] if len(at.args) > 6 else None)
    usual = isinstance(given, float) and math.isclose(given, shape[-1] ** -0.5)
    scale: Scalar | None = None if given is None or usual else Number(float(given))
    norm = None
    if normed is not None:
        norm, scale = normed[0], normed[1] or scale
    return Attention(x, Number(float(heads)), causal, scale, None, bias, f"{weight}", norm)


def _normed(region: Region, at: Traced) -> tuple[str, Scalar | None] | None:
    """The norm without gain that queries have, and keys, over the features of a head, and where the
    learned number of one by length begins; None where the language cannot say what is there."""
    found = normed_operands(region.roles, [at.index])
    if at.kind != "attend" or sorted(role for role, _ in found) != ["key", "query"]:
        return None
    kinds = {_kind(region, i, region.values[at.inputs[0]].shape[-1]) for _, i in found}
    row = logits(region.roles, {}, [at.index])
    if len(kinds) != 1 or "" in kinds:
        return None
    (kind,) = kinds
    if kind != "l2":
        return None if row.learned else (kind, None)
    starts = [
        region.learned(value.index)
        for value in region.values
        if value.kind == "parameter" and value.path in row.learned
    ]
    if len(starts) != 1 or not isinstance(starts[0], LearnedScalar) or row.number != 1:
        return None
    return kind, starts[0].initial


def _kind(region: Region, i: int, head: int) -> str:
    """The kind of a norm over the ``head`` numbers of the last axis; ``""`` of one with a gain or
    an eps of its own."""
    value = region.values[i]
    if by_length(region.roles, i) == (-1, head):
        return "l2"
    kind = value.name.replace("_", "")
    if len(value.inputs) > 1 or kind not in ("layernorm", "rmsnorm"):
        return ""
    eps = {a for a in (*value.args, value.options.get("eps")) if isinstance(a, float)}
    sizes = [a for a in (*value.args, value.options.get("normalized_shape")) if type(a) is tuple]
    usual = {"layernorm": 1e-5, "rmsnorm": 1e-6}[kind]
    return kind if sizes == [(head,)] and (eps or {1e-5}) == {usual} else ""


_NORMED: Final = "query and key norm"


def _heads(region: Region, i: int) -> int:
    """Heads before keys were repeated for groups of queries."""
    at = region.values[i]
    for _ in range(6):
        if at.kind != "shape" or not at.inputs:
            break
        below = region.values[at.inputs[0]]
        if at.name in ("expand", "repeat_interleave", "repeat") and len(below.shape) >= 4:
            return below.shape[1]
        at = below
    return 0


def _parts(region: Region, at: Traced) -> tuple[int, int, int, list[str]] | None:
    """Queries, keys and values of a product of attention, and what else was done to scores."""
    if at.kind == "attend":
        features = []
        masked = at.inputs[3:] or at.options.get("attn_mask") is not None
        if masked:
            features.append("masked")
        if len(at.inputs) < 3:
            return None
        query, key, values = at.inputs[:3]
        return query, key, values, features
    moving = region.roles.moving(at.inputs)
    if len(moving) != 2:
        return None
    for scores, values in (moving, moving[::-1]):
        features, inner = [], region.values[scores]
        soft = False
        for _ in range(16):
            if inner.kind == "contract" and len(region.roles.moving(inner.inputs)) == 2:
                query, key = region.roles.moving(inner.inputs)
                return (query, key, values, features) if soft else None
            below = region.roles.moving(inner.inputs)
            if inner.kind == "softmax":
                soft = True
            elif inner.kind in ("sum", "choose") or inner.name == "masked_fill":
                features.append("masked")
            elif inner.kind not in ("drop", "shape", "product"):
                break
            if not below:
                break
            inner = region.values[below[0]]
    return None


def _projected(region: Region, i: int, features: list[str]) -> int | None:
    """What the layer of queries, keys or values reads; notes rotary phases and norms."""
    at = region.values[i]
    for _ in range(24):
        if at.kind == "weights" and at.name == "linear":
            return at.inputs[0]
        if at.kind == "contract" and region.roles.layers(at.index) == 1:
            return at.inputs[-2]
        base = region.roles.norm_of(at.index)
        if base is not None:
            features.append(_NORMED)
            at = region.values[base]
            continue
        moving = [j for j in region.roles.moving(at.inputs) if j > region.before]
        if at.kind == "sum" and len(moving) == 2:
            features.append("rotary")
            at = region.values[min(moving)]
        elif at.kind == "join" and moving:
            if len(moving) > 1:  # halves that were turned; one alone went through a cache
                features.append("rotary")
            at = region.values[moving[0]]
        elif at.kind in ("shape", "product", "drop", "sum", "point") and len(moving) >= 1:
            at = region.values[moving[0]]
        else:
            return None
    return None
