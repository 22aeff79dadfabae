"""Attention, fused or spelled out, as one word of the language.

Queries, keys and values read one tensor through a weight layer each; a product, a softmax and a
second product follow, and an output layer. What else is done on the way (rotary phases, masks,
norms of queries and keys, grouped heads, values that are changed or moved) is said in the name of
an opaque node, never left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from depthgauge.equation.nodes import Attention, LearnedScalar, Number, Opaque, Scalar, Value
from depthgauge.trace.blocks import Region, Unsayable
from depthgauge.trace.graph import Value as Traced
from depthgauge.trace.heads import ROLES, normed_operands
from depthgauge.trace.logits import Logits, factor, logits
from depthgauge.trace.manner import axis_of
from depthgauge.trace.norms import by_length
from depthgauge.trace.operations import NEGATIONS
from depthgauge.trace.roles import TURNS, displaces, drop_rate
from depthgauge.trace.split import Heads, Products, heads_of

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
    padded = value.options.get("key_padding_mask") is not None
    if padded or (value.options.get("attn_mask") is not None and not causal):
        return _opaque(region, value.index, ["masked"], query)
    bias = any(region.values[i].path.endswith("bias") for i in value.inputs)
    name = f"{value.inputs[3]}" if len(value.inputs) > 3 else f"{value.index}"
    rate = value.options.get("dropout_p", value.args[10] if len(value.args) > 10 else 0.0)
    if value.options.get("training", value.args[13] if len(value.args) > 13 else True) and rate:
        region.dropped.append(float(rate))
    return Attention(region.value(query), Number(float(heads)), causal, None, None, bias, name)


def _opaque(region: Region, i: int, features: list[str], source: int) -> Opaque:
    """Attention of a tensor of which value ``i`` is a product, with more than the word says."""
    x = region.value(source)
    name = "attention, " + ", ".join(dict.fromkeys(features))
    entry = (region.roles.graph.path(i), name)
    if entry not in region.opaque:
        region.opaque.append(entry)
    return Opaque(name, (x,), Number(4.0))


def attention(region: Region, value: Traced) -> Value | None:
    """The output layer of an attention spelled out in this region, or None."""
    if value.name not in ("linear", "addmm", "matmul") or region.roles.layers(value.index) != 1:
        return None
    entering = value.inputs[0 if value.name == "linear" else -2]
    at, rates = region.values[entering], list[float]()
    while at.kind in ("shape", "drop") and at.inputs and not displaces(at):
        rates += [drop_rate(at)] if at.kind == "drop" else []
        at = region.values[at.inputs[0]]
    if at.kind not in ("attend", "contract") or region.roles.layers(at.index) != 2:
        return None
    parts = _parts(region, at)
    if parts is None:
        return None
    features = parts.features
    found = {role: _projected(region, j, role, features) for role, j in parts.operands.items()}
    layers = {role: layer for role, layer in found.items() if layer is not None}
    if len(layers) != 3 or len({layer.source for layer in layers.values()}) != 1:
        return None
    if any(rates):
        features.append("results dropped out")
    shape = region.values[parts.operands["query"]].shape
    places = {role: layer.index for role, layer in layers.items()}
    split = heads_of(
        region.roles,
        Products(at.index, parts.scored, parts.operands, places, parts.weights, entering),
    )
    heads = _counted(region, parts.operands, split, features)
    features += _tied(layers)
    region.dropped += parts.dropped
    row = logits(region.roles, {}, [parts.soft])
    normed = None if _AFFINE in features else _normed(region, at, row)
    if normed is not None:
        features = [feature for feature in features if feature != _NORMED]
    elif row.learned:
        features.append("learned temperature")
    if math.isnan(row.number) and not features:
        features.append("scores changed")
    features = [feature for feature in features if feature != _AFFINE]
    if features:
        return _opaque(region, at.index, features, layers["query"].source)
    causal = bool(at.options.get("is_causal", len(at.args) > 5 and at.args[5] is True))
    bias = len(value.inputs) > 2
    weight = value.inputs[1 if value.name == "linear" else -1]
    usual = math.isclose(row.number, shape[-1] ** -0.5, rel_tol=1e-6)
    scale: Scalar | None = None if usual else Number(row.number)
    norm = None
    if normed is not None:
        norm, scale = normed[0], normed[1] or scale
    x = region.value(layers["query"].source)
    return Attention(x, Number(float(heads)), causal, scale, None, bias, f"{weight}", norm)


def _normed(region: Region, at: Traced, row: Logits) -> tuple[str, Scalar | None] | None:
    """The norm without gain that queries have, and keys, over the features of a head, and where the
    learned number of one by length begins; None where the language cannot say what is there."""
    found = normed_operands(region.roles, [at.index])
    if at.kind != "attend" or sorted(role for role, _ in found) != ["key", "query"]:
        return None
    kinds = {_kind(region, i, region.values[at.inputs[0]].shape[-1]) for _, i in found}
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
#: Products whose last axis of the first factor is summed over.
_PLAIN: Final = ("matmul", "bmm", "mm", "rmatmul")
_AFFINE: Final = "gain or bias of that norm"
_PLURAL: Final = {"query": "queries", "key": "keys", "value": "values"}


@dataclass(frozen=True, slots=True)
class _Layer:
    """The layer of queries, keys or values: what it reads, its weight, whether all of its
    output is used, and its value."""

    source: int
    weight: int
    whole: bool
    index: int = field(compare=False)


def _tied(layers: Mapping[str, _Layer]) -> list[str]:
    """Which of queries, keys and values are one, in words."""
    return [
        f"{_PLURAL[a]} and {_PLURAL[b]} tied"
        for a, b in pairwise(ROLES)
        if layers[a] == layers[b] and layers[a].whole
    ]


def _counted(
    region: Region, operands: Mapping[str, int], split: Heads | None, features: list[str]
) -> int:
    """How many heads queries have; notes where keys or values have others, and what heads are
    parts of but for channels."""
    shape, keys = (region.values[operands[role]].shape for role in ("query", "key"))
    if split is None:
        heads = shape[-3] if len(shape) > 3 else 1
        grouped = len(shape) == len(keys) == 4  # ``enable_gqa``
        kv = _heads(region, operands["value"]) or (keys[1] if grouped else 0)
        if kv and kv != heads and shape[-1:] == keys[-1:]:
            features.append(f"{kv} of {heads} key heads")
        return heads
    if split.words:
        features.append(split.words)
    elif split.key != split.query:
        features.append(f"{split.key} of {split.query} key heads")
    elif split.value != split.query:
        features.append(f"{split.value} of {split.query} value heads")
    return split.query


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


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a product of attention is made of: its operands by role, what else was done to scores
    and weights, the softmax, the product of queries and keys, the weights in the product with the
    values (-1 in one function), and with which rates weights are dropped."""

    operands: dict[str, int]
    features: list[str]
    soft: int
    scored: int
    weights: int = -1
    dropped: tuple[float, ...] = ()


def _parts(region: Region, at: Traced) -> _Parts | None:
    """The parts of a product of attention."""
    if at.kind == "attend":
        features = []
        masked = at.inputs[3:] or at.options.get("attn_mask") is not None
        if masked:
            features.append("masked")
        if len(at.inputs) < 3:
            return None
        operands = dict(zip(ROLES, at.inputs[:3], strict=True))
        rate = at.options.get("dropout_p", at.args[4] if len(at.args) > 4 else 0.0)
        rates = [float(rate)] if isinstance(rate, int | float) else []
        dropped = tuple(filter(None, rates))
        return _Parts(operands, features, at.index, at.index, dropped=dropped)
    moving = region.roles.moving(at.inputs)
    if len(moving) != 2:
        return None
    for weights, values in (moving, moving[::-1]):
        features, inner = [], region.values[weights]
        soft, turned, rates = -1, at.name not in _PLAIN, []
        for _ in range(16):
            if inner.kind == "contract" and len(region.roles.moving(inner.inputs)) == 2:
                if soft < 0:
                    return None
                query, key = region.roles.moving(inner.inputs)
                operands = dict(zip(ROLES, (query, key, values), strict=True))
                dropped = tuple(filter(None, rates))
                return _Parts(operands, features, soft, inner.index, weights, dropped)
            below = region.roles.moving(inner.inputs)
            turned = turned or inner.name in TURNS
            if inner.kind == "softmax":
                axis = axis_of(inner.args, inner.options, -1)
                if not turned and axis not in (-1, len(inner.shape) - 1):
                    features.append("softmax over queries")
                if soft >= 0 or inner.name in ("softmin", "gumbel_softmax"):
                    features.append("scores changed")
                soft = inner.index
            elif inner.kind == "choose" or inner.name == "masked_fill":
                features.append("masked")
            elif inner.kind == "sum":
                features.append("masked" if soft >= 0 else "weights changed")
            elif inner.kind == "shape" and displaces(inner):
                features.append("scores moved" if soft >= 0 else "weights moved")
            elif inner.kind == "product" and soft < 0:
                features.append("weights changed")
            elif inner.kind == "product" and (done := _weighed(region, inner)):
                features.append(done)
            elif inner.kind == "drop" and soft >= 0:
                features += ["scores dropped out"] if drop_rate(inner) else []
            elif inner.kind == "drop":
                rates.append(drop_rate(inner))
            elif inner.kind not in ("shape", "product"):
                break
            if not below:
                break
            inner = region.values[below[0]]
    return None


def _weighed(region: Region, value: Traced) -> str:
    """What a product does to scores, in words; ``""`` for a fixed number."""
    if not math.isnan(factor(region.roles, value)):
        return ""
    scores = region.roles.moving(value.inputs)[:1]  # that the walk goes on with
    others = [region.values[j] for j in value.inputs if j not in scores]
    if any(other.data and other.grad for other in others):
        return "scores changed"
    if any(other.param for other in others):
        one = all(other.shape[-1:] in ((), (1,)) for other in others)
        return "learned temperature" if one else "scores changed"
    return "masked"


def _projected(region: Region, i: int, role: str, features: list[str]) -> _Layer | None:
    """The layer of queries, keys or values; notes what is done to its output but for views, biases,
    factors that ``logits`` reads, and dropout that is off."""
    roles, at, least = region.roles, region.values[i], math.inf
    for _ in range(24):
        if at.index <= region.before:
            return None
        size = math.prod(at.shape)
        if at.kind == "weights" and at.name == "linear":
            return _Layer(at.inputs[0], at.inputs[1], least >= size, at.index)
        if at.kind == "contract" and roles.layers(at.index) == 1:
            return _Layer(at.inputs[-2], at.inputs[-1], least >= size, at.index)
        least = min(least, size)
        base = roles.norm_of(at.index)
        moving = [j for j in roles.moving(at.inputs) if j > region.before]
        if base is not None:
            features.append(_NORMED)
            at = region.values[base]
        elif (turned := _turned(region, at.index)) is not None:
            features.append("rotary" if role != "value" else "values changed")
            at = region.values[turned]
        elif not moving or at.kind not in ("shape", "product", "drop", "sum", "point", "join"):
            return None
        else:
            if (done := _done(region, at, role)) != "":
                features.append(done)
            at = region.values[min(moving) if at.kind == "sum" else moving[0]]
    return None


def _done(region: Region, at: Traced, role: str) -> str:
    """What one function on the way from a layer to the product of attention does to it, in words;
    ``""`` where it says nothing."""
    moving = [j for j in region.roles.moving(at.inputs) if j > region.before]
    changed = f"{_PLURAL[role]} changed"
    if at.kind == "shape":
        return f"{_PLURAL[role]} moved" if displaces(at) else ""
    if at.kind == "drop":
        return f"{_PLURAL[role]} dropped out" if drop_rate(at) else ""
    if at.kind == "join":  # a cache that is empty adds nothing
        whole = len(moving) == 1 and region.values[moving[0]].shape == at.shape
        return "" if whole else f"{_PLURAL[role]} joined with others"
    if at.kind not in ("product", "sum") or len(moving) != 1:
        return changed
    held = [region.values[j] for j in at.inputs if j != moving[0]]
    learned = len(held) == 1 and held[0].param and not held[0].data
    if learned and _of_norm(region, moving[0]):
        return _AFFINE if math.prod(held[0].shape) > 1 else ""
    if at.kind == "sum":  # a bias has a number a channel, a table of positions has more
        biased = learned and math.prod(held[0].shape) <= region.width
        return "" if biased else changed
    return "" if role != "value" and not math.isnan(factor(region.roles, at)) else changed


def _of_norm(region: Region, i: int) -> bool:
    """Whether value ``i`` is a norm, or one with a gain."""
    for _ in range(6):
        if region.roles.norm_of(i) is not None:
            return True
        moving = region.roles.moving(region.values[i].inputs)
        if region.values[i].kind not in ("shape", "product", "sum") or len(moving) != 1:
            return False
        i = moving[0]
    return False


def _turned(region: Region, i: int) -> int | None:
    """The one value that value ``i`` has the rotary phases of: parts of it times phases, which no
    gradient enters, added, and put beside each other and beside what is left."""
    leaves, phases, todo = set[int](), False, [i]
    for _ in range(64):
        if not todo:
            break
        value = region.values[todo.pop()]
        by = _phased(region, value)
        terms = [_phased(region, region.values[k]) for k in value.inputs]
        if value.kind == "sum" and len(terms) == 2 and None not in terms:
            phases = True
            todo += [k for k in terms if k is not None]
        elif by is not None and _complex(region, value.index):
            phases = True
            todo.append(by)
        elif value.kind in ("shape", "join") and not displaces(value):
            todo += region.roles.moving(value.inputs)
        elif value.name in NEGATIONS:
            todo += value.inputs
        else:
            leaves.add(value.index)
    return leaves.pop() if phases and len(leaves) == 1 and not todo else None


def _phased(region: Region, value: Traced) -> int | None:
    """What is multiplied by phases, if that is what a value is."""
    while value.kind in ("shape", "product") and len(value.inputs) == 1:
        value = region.values[value.inputs[0]]
    if value.kind != "product" or len(value.inputs) != 2:
        return None
    own = [j for j in value.inputs if region.values[j].grad]
    return own[0] if len(own) == 1 else None


def _complex(region: Region, i: int) -> bool:
    """Whether the numbers of a value are pairs that are seen as one complex number each."""
    todo = list(region.values[i].inputs)
    while todo:
        value = region.values[todo.pop()]
        if value.name == "view_as_complex":
            return True
        todo += value.inputs if value.kind == "shape" else ()
    return False
