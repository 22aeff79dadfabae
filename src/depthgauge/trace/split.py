"""Where attention's heads come from: which tokens and which channels of the layers' outputs meet.

Heads are parts of the channels. Where a view takes ``(batch, tokens, heads * d)`` for ``(batch,
heads, tokens, d)`` with no exchange of axes, each head has pieces of all of them for a few tokens,
and nothing about shapes tells. So each number that leaves a layer is labelled by its place; labels
follow it through views, rotary phases and norms to the products, and from there to the output
layer. Linear in what the layers give; products are followed by their axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from depthgauge.trace.graph import Value
from depthgauge.trace.heads import ROLES, is_layer, replayed
from depthgauge.trace.operations import CASTS
from depthgauge.trace.roles import Roles, displaces

__all__ = ["Heads", "Products", "heads_of"]

SPLIT: Final = "heads split across tokens"
MERGED: Final = "heads merged across tokens"
_MATRICES: Final = ("matmul", "bmm", "mm", "rmatmul", "baddbmm")


class Products(NamedTuple):
    """An attention: its product with the values, that of queries and keys (the same where one
    function does all), what both are of, by role, with the layers that those come from, the weights
    in the product with the values (-1 in one function), and what enters the output layer."""

    mixed: int
    scored: int
    operands: Mapping[str, int]
    layers: Mapping[str, int]
    weights: int
    out: int


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads queries, keys and values have, and in a few words (``""``: nothing) what they
    are split and merged across but for channels."""

    query: int
    key: int
    value: int
    words: str


def heads_of(roles: Roles, found: Products) -> Heads | None:
    """The heads of an attention; None where what is done on the way cannot be followed."""
    values = roles.values
    axes = _axes(roles, found)
    if axes is None:
        return None
    counts, words, tokens = {}, dict[str, str](), None
    for role in ROLES:
        layer, rows, features = values[found.layers[role]], *axes[role]
        places = torch.arange(math.prod(layer.shape), dtype=torch.float64).view(layer.shape)
        labels = _followed(roles, layer.index, places, found.operands[role])
        if labels is None:
            return None
        width = layer.shape[-1]
        kept, across = _first(labels, features), _first(labels, rows)
        counts[role] = len(set((kept % width).flatten().tolist()))
        of_rows = tuple(_varies(x, rows) for x in (kept // width, kept % width))
        of_features = tuple(_varies(x, features) for x in (across // width, across % width))
        words[role] = _words(of_rows, of_features)
        if role == "query":
            tokens = kept // width
    if counts["key"] == counts["value"] == 1 and words["query"] == SPLIT:
        del words["query"]  # all queries of a token meet the same keys, in whatever order they are
    said = next(filter(None, words.values()), "")
    if not said and tokens is not None and _parted(roles, found, tokens):
        said = MERGED
    return Heads(counts["query"], counts["key"], counts["value"], said)


def _words(rows: Sequence[bool], features: Sequence[bool]) -> str:
    """What rows and features of an operand are, each by whether the token changes along them and
    whether the channel does; ``""`` for tokens and channels."""
    if not rows[1] and not features[0]:
        return ""
    if not rows[0] and not features[0]:
        return "over heads"
    return "over channels" if not rows[1] or not (rows[0] or features[1]) else SPLIT


def _parted(roles: Roles, found: Products, tokens: Tensor) -> bool:
    """Whether one token of the output layer's input has the results of several queries."""
    values = roles.values
    query = found.operands["query"]
    if found.weights < 0:
        labels: Tensor | None = tokens.expand(values[found.mixed].shape)
    else:
        letters = _subscripts(roles, values[found.scored])
        assert letters is not None
        own = letters[0] if query == values[found.scored].inputs[-2] else letters[1]
        labels = _onto(tokens, own, letters[2], values[found.scored].shape)
        labels = _followed(roles, found.scored, labels, found.weights)
        letters = _subscripts(roles, values[found.mixed])
        assert letters is not None
        if labels is not None:
            own = letters[0] if found.weights == values[found.mixed].inputs[-2] else letters[1]
            labels = _onto(labels, own, letters[2], values[found.mixed].shape)
    if labels is not None:
        labels = _followed(roles, found.mixed, labels.contiguous(), found.out)
    return labels is not None and _varies(labels, (labels.dim() - 1,))


# ---------------------------------------------------------------------------------- labels


def _followed(roles: Roles, root: int, labels: Tensor, top: int) -> Tensor | None:
    """The labels of value ``root`` as they stand in value ``top``."""
    found = {root: labels}
    for i in sorted(roles.graph.ancestors([top], root + 1)):
        if (moved := _moved(roles, roles.values[i], found)) is not None:
            found[i] = moved
    return found.get(top)


def _moved(roles: Roles, value: Value, found: Mapping[int, Tensor]) -> Tensor | None:
    """The labels of a value whose inputs may have some; None of what is made of several."""
    known = [j for j in value.inputs if j in found]
    if not known or is_layer(roles, value.index) or value.kind in ("contract", "attend"):
        return None
    if value.kind == "shape" and displaces(value):
        return None  # what is put in has no place
    if value.kind in ("shape", "join") and value.name not in CASTS:
        given = {j: found[j] for j in known}
        if (moved := replayed(value, given)) is not None:
            return moved
        if not any(0 in x.stride() for x in given.values()):  # as a norm makes its output
            given = {j: x.contiguous() for j, x in given.items()}
            if (moved := replayed(value, given)) is not None:
                return moved
    alike = [found[j] for j in known if roles.values[j].shape == value.shape]
    whole = value.kind != "shape" or value.name in CASTS
    return alike[0] if alike and whole else None


def _first(labels: Tensor, axes: Sequence[int]) -> Tensor:
    """The labels at the first place along some axes."""
    for axis in axes:
        labels = labels.narrow(axis, 0, 1)
    return labels


def _varies(labels: Tensor, axes: Sequence[int]) -> bool:
    return bool((labels != _first(labels, axes)).any())


def _onto(labels: Tensor, own: str, wanted: str, shape: tuple[int, ...]) -> Tensor:
    """Labels with these axes on a tensor of this shape with those; of an axis that it lacks the
    first place."""
    for axis in reversed(range(len(own))):
        if own[axis] not in wanted:
            labels = labels.select(axis, 0)
    kept = [letter for letter in own if letter in wanted]
    labels = labels.permute([kept.index(letter) for letter in wanted if letter in kept])
    for axis, letter in enumerate(wanted):
        if letter not in kept:
            labels = labels.unsqueeze(axis)
    return labels.contiguous().expand(shape)


# ------------------------------------------------------------------------------------ axes


def _axes(roles: Roles, found: Products) -> dict[str, tuple[list[int], list[int]]] | None:
    """For each role the axes of its operand that are its rows, tokens, and those that are the
    features of a head."""
    values, operands = roles.values, found.operands
    if found.weights < 0:
        sizes = {role: len(values[operands[role]].shape) for role in ROLES}
        return {role: ([size - 2], [size - 1]) for role, size in sizes.items()}
    scores, mixed = (_subscripts(roles, values[i]) for i in (found.scored, found.mixed))
    if scores is None or mixed is None:
        return None
    first = operands["query"] == values[found.scored].inputs[-2]
    query, key = scores[:2] if first else scores[1::-1]
    front = found.weights == values[found.mixed].inputs[-2]
    weights, value = mixed[:2] if front else mixed[1::-1]
    met, summed = set(query) & set(key) - set(scores[2]), set(weights) & set(value) - set(mixed[2])
    return {
        "query": (_at(query, set(query) - set(key)), _at(query, met)),
        "key": (_at(key, set(key) - set(query)), _at(key, met)),
        "value": (_at(value, summed), _at(value, set(value) - set(weights))),
    }


def _at(letters: str, wanted: set[str]) -> list[int]:
    return [axis for axis, letter in enumerate(letters) if letter in wanted]


def _subscripts(roles: Roles, value: Value) -> tuple[str, str, str] | None:
    """A product of two tensors as ``einsum`` writes it: a letter for each axis of its last two
    inputs and of what it makes; None of other functions."""
    if len(value.inputs) < 2:
        return None
    ranks = [len(roles.values[j].shape) for j in value.inputs[-2:]]
    if value.name in _MATRICES:
        if min(ranks) < 2:
            return None
        batch = "ABCDEFGHIJKLMNOP"[-(max(*ranks, 3) - 2) :]
        left, right = (batch[len(batch) - (rank - 2) :] for rank in ranks)
        if value.name == "rmatmul":
            return f"{left}jk", f"{right}ij", f"{batch[: len(value.shape) - 2]}ik"
        return f"{left}ij", f"{right}jk", f"{batch[len(batch) - (len(value.shape) - 2) :]}ik"
    return _parsed(_equation(value.args), ranks) if value.name == "einsum" else None


def _equation(args: Sequence[Any]) -> str:
    return next((a for a in args if isinstance(a, str)), "").replace(" ", "")


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[str, str, str] | None:
    """The three terms of an equation with letters in place of dots."""
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        return None
    dots = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(n < 0 or (n and "..." not in t) for t, n in zip(terms, dots, strict=True)):
        return None
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    batch = "".join(free[: max(dots)])
    first, second = (
        t.replace("...", batch[len(batch) - n :]) for t, n in zip(terms, dots, strict=True)
    )
    return first, second, out.replace("...", batch)
