"""Norms of queries and keys, head by head, and a number of queries, put behind the layers that make
them, also where one layer makes queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.recipes.wrappers import Around, Left
from depthgauge.trace.counted import Weight
from depthgauge.trace.heads import ROLES

__all__ = [
    "HeadNorms",
    "Length",
    "NormedAttention",
    "QueryTimes",
    "norm_of_head",
    "runs_of",
    "with_norms",
    "with_number",
]

_NORMED: Final = ("query", "key")


class Length(nn.Module):
    """``x / |x|`` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


def norm_of_head(kind: str, head: int) -> nn.Module:
    """A new norm of the ``head`` features of a head: ``l2``, ``layernorm`` or ``rmsnorm``.

    Raises NetworkError for another kind.
    """
    match kind:
        case "l2":
            return Length()
        case "layernorm":
            return nn.LayerNorm(head)
        case "rmsnorm":
            return nn.RMSNorm(head)
    raise NetworkError(f"queries and keys are normed by {kind}; use l2, layernorm or rmsnorm")


def runs_of(weights: Sequence[Weight]) -> tuple[tuple[str, int], ...]:
    """What a layer makes, from the first output on: roles, and how many outputs in a row have each.

    Raises NetworkError where it is not known of every output which role it has.
    """
    if len(weights) == 1 and weights[0].rows is None and weights[0].role in ("query", "key"):
        return ((weights[0].role, weights[0].turned[0]),)
    roles = {row: weight.role for weight in weights for row in weight.rows or ()}
    outputs = weights[0].shape[weights[0].axis]
    if set(roles) != set(range(outputs)):
        raise NetworkError(
            f"which outputs of '{weights[0].path}' are queries, keys and values was not found"
        )
    runs: list[tuple[str, int]] = []
    for row in range(outputs):
        if runs and runs[-1][0] == roles[row]:
            runs[-1] = roles[row], runs[-1][1] + 1
        else:
            runs.append((roles[row], 1))
    return tuple(runs)


def with_norms(
    module: nn.Module,
    weights: Sequence[Weight],
    head: int,
    kind: str,
    number: float,
    start: float | None,
) -> nn.Module:
    """The layer of these weights, or PyTorch's attention, with norms of queries and keys.

    Raises NetworkError where heads cannot be told apart.
    """
    norms = HeadNorms(runs_of(weights), head, kind, number, start)
    if isinstance(module, nn.MultiheadAttention):
        return NormedAttention(module, norms)
    return Left(module, norms)


def with_number(module: nn.Module, weights: Sequence[Weight], number: float) -> nn.Module:
    """The layer of these weights, or PyTorch's attention, whose queries are multiplied by a number:
    of a layer that makes keys and values too its queries alone, at every step, while weight and
    bias stay one parameter each, of one rate.

    Raises NetworkError where queries cannot be told apart.
    """
    times = QueryTimes(runs_of(weights), number)
    outer, inner = None, module
    while isinstance(inner, Around):  # a branch's factor may stand around it
        outer, inner = inner, inner.module
    if not isinstance(inner, nn.MultiheadAttention):
        return Left(module, times)
    attention = NormedAttention(inner, times)
    if outer is None:
        return attention
    outer.module = attention
    return module


def _by_role(
    x: Tensor, runs: Sequence[tuple[str, int]], change: Callable[[Tensor, str], Tensor]
) -> Tensor:
    """``change(part, role)`` of each run on the last axis, side by side again."""
    parts = torch.split(x, [size for _, size in runs], -1)
    made = [change(part, role) for part, (role, _) in zip(parts, runs, strict=True)]
    return made[0] if len(made) == 1 else torch.cat(made, -1)


def _repeated(runs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The shortest beginning of which ``runs`` are copies."""
    lengths = (n for n in range(1, len(runs) + 1) if len(runs) % n == 0)
    return next(runs[:n] for n in lengths if runs[:n] * (len(runs) // n) == runs)


class QueryTimes(nn.Module):
    """``number * q`` of the queries among what a layer makes, keys and values as they are; ``runs``
    as ``runs_of`` finds them."""

    def __init__(self, runs: Sequence[tuple[str, int]], number: float) -> None:
        super().__init__()
        # Where each head has its queries, keys and values together, one head's runs: so that it is
        # one product, not one a head.
        self.runs, self.number = _repeated(tuple(runs)), number

    def forward(self, x: Tensor) -> Tensor:
        heads = x.reshape(*x.shape[:-1], -1, sum(size for _, size in self.runs))
        return _by_role(heads, self.runs, self.changed).flatten(-2)

    def changed(self, part: Tensor, role: str) -> Tensor:
        """What has one role."""
        return self.number * part if role == "query" else part

    def extra_repr(self) -> str:
        return f"{self.number:g}"


class HeadNorms(nn.Module):
    """What a layer makes, its queries and keys normed over the ``head`` features of each head.

    ``runs``: what lies on the last axis, as ``runs_of`` finds it. Normed queries are multiplied by
    ``number``, and where ``start`` is given by a learned number that begins there.
    """

    def __init__(
        self,
        runs: Sequence[tuple[str, int]],
        head: int,
        kind: str,
        number: float = 1.0,
        start: float | None = None,
    ) -> None:
        super().__init__()
        self.runs, self.head, self.number = tuple(runs), head, number
        for role, size in self.runs:
            if size % head and role in _NORMED:
                raise NetworkError(
                    f"{size} outputs in a row have one role (a {role}), expected whole heads of "
                    f"{head} features"
                )
        made = {role for role, _ in self.runs}
        self.norms = nn.ModuleDict({r: norm_of_head(kind, head) for r in _NORMED if r in made})
        learns = start is not None and "query" in made
        self.scale = nn.Parameter(torch.full((1,), float(start or 0.0))) if learns else None

    def forward(self, x: Tensor) -> Tensor:
        return _by_role(x, self.runs, self.changed)

    def changed(self, part: Tensor, role: str) -> Tensor:
        """What has one role, with the heads on the last axis."""
        if role not in self.norms:
            return part
        normed: Tensor = self.norms[role](part.reshape(*part.shape[:-1], -1, self.head)).flatten(-2)
        if role == "query" and self.number != 1:
            normed = self.number * normed
        return normed if role != "query" or self.scale is None else self.scale * normed


class NormedAttention(Around):
    """``nn.MultiheadAttention``, which is one function, in several, with ``between`` behind its
    projections. ``is_causal`` is a hint about ``attn_mask``, which says it all.

    Raises NetworkError for one with learned or zero keys beside those of its input.
    """

    def __init__(self, module: nn.MultiheadAttention, between: HeadNorms | QueryTimes) -> None:
        if module.bias_k is not None or module.add_zero_attn:
            raise NetworkError("the attention has keys of its own beside those of its input")
        super().__init__()
        self.between = between
        self.module = module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        own = self.module
        alone = query.dim() == 2
        if alone:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not own.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        mask = _added(attn_mask, key_padding_mask, q, own.num_heads)
        dropout = own.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            mixed = F.dropout(weights, dropout) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        out = own.out_proj(mixed.transpose(1, 2).flatten(-2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if alone:
            return out[0], None if weights is None else weights[0]
        return (out if own.batch_first else out.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values, each ``(batch, heads, tokens, features)``."""
        own = self.module
        bias = own.in_proj_bias
        if query is key and key is value and own.in_proj_weight is not None:
            made = self.between(F.linear(query, own.in_proj_weight, bias)).chunk(3, -1)
        else:
            apart = (own.q_proj_weight, own.k_proj_weight, own.v_proj_weight)
            rows = apart if own.in_proj_weight is None else own.in_proj_weight.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            each = zip((query, key, value), rows, biases, ROLES, strict=True)
            made = [self.between.changed(F.linear(x, w, b), role) for x, w, b, role in each]
        return [x.reshape(*x.shape[:-1], own.num_heads, -1).transpose(1, 2) for x in made]


def _added(mask: Tensor | None, padding: Tensor | None, q: Tensor, heads: int) -> Tensor | None:
    """Both masks as one that is added to scores ``(batch, heads, queries, keys)``."""
    found = None
    for given in (mask, padding):
        if given is None:
            continue
        shaped = given if given.dim() < 3 else given.reshape(-1, heads, *given.shape[1:])
        if given is padding:
            shaped = given[..., None, None, :] if given.dim() > 1 else given
        if shaped.dtype == torch.bool:
            shaped = q.new_zeros(shaped.shape).masked_fill(shaped, -torch.inf)
        found = shaped if found is None else found + shaped
    return found
