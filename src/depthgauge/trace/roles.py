"""What each value does on a path: weight layers, norms, what it carries on and with what factor.

Everything is read from functions and from how values hang together, never from a module's name.
Norms need not be modules: ``x * rsqrt(mean(x^2) + eps)`` is found as a product of a tensor and a
root of its own statistic, ``tanh(alpha x)`` with a learned number alpha as DyT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from depthgauge.trace.graph import Graph, Ref, Value

__all__ = ["KINDS_OF_PATH", "TURNS", "Roles", "Step", "displaces", "drop_rate", "worst"]

#: What a weight-free path does to what it carries, each hiding the ones before it.
KINDS_OF_PATH = ("identity", "scaled", "per-channel", "normed", "gated", "mixed", "projected")

#: Kinds of value that add neither weights nor a bend to a path.
_IDLE = frozenset(
    ("shape", "drop", "join", "norm", "choose", "source", "cut", "parameter", "input")
)
#: Copies in which elements have others' places, or are others.
_MOVED = (
    "roll", "flip", "fliplr", "flipud", "rot90", "index_select", "indexselect", "index", "gather",
    "take", "take_along_dim", "masked_fill", "masked_select", "channel_shuffle",
)  # fmt: skip
#: Views that exchange axes.
TURNS = frozenset(
    ("transpose", "permute", "swapaxes", "swapdims", "t", "T", "mT", "movedim", "moveaxis")
)
_PADS = ("pad", "constant_pad_nd", "constantpadnd")
_ROOTS = ("sqrt", "rsqrt")
_LENGTHS = ("std", "norm", "linalg_vector_norm", "linalg_norm", "vector_norm", "std_mean")
#: What may stand between attention's scores and what they weigh, and between those and a softmax.
_BESIDE = ("drop", "shape", "product", "point")
_UNDER = (*_BESIDE, "act", "sum", "choose")
_CHEAP = ("point", "shape", "product", "sum", "reduce")


def worst(*kinds: str) -> str:
    return max(kinds, key=KINDS_OF_PATH.index)


def displaces(value: Value) -> bool:
    """Whether a value of the kind ``shape`` has elements in other places than a view would, or
    other elements: turned, shifted, masked, taken by a tensor of places."""
    if value.name in _PADS:
        given = value.options.get("pad", value.args[1] if len(value.args) > 1 else (1,))
        return not isinstance(given, tuple) or any(type(size) is int and size for size in given)
    if value.name == "getitem" and len(value.args) > 1:
        at = value.args[1] if isinstance(value.args[1], tuple) else (value.args[1],)
        return any(isinstance(a, Ref) or (isinstance(a, tuple) and len(a) > 1) for a in at)
    return value.name in _MOVED


def drop_rate(value: Value) -> float:
    """The share that dropout drops: 0 where it is switched off."""
    p = value.args[1] if len(value.args) > 1 else value.options.get("p", 0.5)
    training = value.args[2] if len(value.args) > 2 else value.options.get("training", True)
    return float(p) if training and isinstance(p, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step back along a path: to ``value``, through something of this ``kind``."""

    value: int
    kind: str = "identity"


class Roles:
    """Facts about the values of one graph, each found when it is first asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = graph.values
        self.weights: dict[int, int] = {}  # filled by ``weight``
        self._norms: dict[int, int | None] = {}
        self._layers: dict[int, int] = {}
        self._back: dict[int, tuple[Step, ...]] = {}
        self.chains: dict[int, dict[int, str]] = {}  # filled by ``merges.chain``
        self.reaches: dict[tuple[int, int, int], dict[int, int]] = {}  # filled by ``merges.reach``
        self.flat: dict[int, tuple[list[tuple[int, str]], list[int]]] = {}  # by ``merges.find``

    @property
    def flow(self) -> list[tuple[int, ...]]:
        return self.graph.flow  # which may still grow

    # --------------------------------------------------------------------- weight layers

    def layers(self, i: int) -> int:
        """Weight layers in series that value ``i`` adds; attention counts its two products with
        queries and keys as two, so that with values and output it has four, as Fixup counts."""
        if (found := self._layers.get(i)) is None:
            found = self._layers[i] = self._count(self.values[i])
        return found

    def _count(self, value: Value) -> int:
        match value.kind:
            case "weights":
                if value.name == "multi_head_attention_forward":
                    return 4
                if value.name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
                    return self._stacked(value)
                return 1
            case "attend":
                return 2
            case "contract":
                if self.weighs(value):
                    return 1
                return 2 if any(self.scored(i) is not None for i in value.inputs) else 0
            case "reduce" if self._summed(value):
                inner = self.values[value.inputs[0]]
                return 2 if any(self.scored(i) is not None for i in inner.inputs) else 0
            case "cell":
                return 1
            case "opaque":
                return 1 if self.moving(value.inputs) else 0
        return 0

    @staticmethod
    def _stacked(value: Value) -> int:
        numbers = [a for a in value.args if isinstance(a, int) and not isinstance(a, bool | Ref)]
        return max(numbers[0], 1) if numbers else 1

    def weighs(self, value: Value) -> bool:
        """Whether a product of matrices has a factor of parameters alone."""
        return any(self.values[i].param and not self.values[i].data for i in value.inputs)

    def moves(self, i: int) -> bool:
        """Weights, or a mixing of positions: what makes a path a branch."""
        value = self.values[i]
        if value.kind == "mix" or self.layers(i) > 0:
            return True
        # A product with a constant matrix: a cosine transform, a fixed filter.
        return value.kind == "contract" and len(self.moving(value.inputs)) == 1

    def bends(self, i: int) -> bool:
        """Whether the value is no linear function of its inputs."""
        value = self.values[i]
        if value.kind in ("act", "point", "softmax", "attend", "cell", "opaque"):
            return True
        if value.name in ("multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu"):
            return True
        if value.kind not in ("product", "contract"):
            return False
        squared = value.kind == "product" and len(value.inputs) != len(set(value.inputs))
        return squared or len(self.moving(value.inputs)) > 1

    def weight(self, i: int) -> int:
        """What lies on a path through value ``i``: a weight layer or mixing (1), a bend (2)."""
        found = 0
        if self.values[i].kind not in _IDLE:
            found = (1 if self.moves(i) else 0) | (2 if self.bends(i) else 0)
        self.weights[i] = found
        return found

    def moving(self, inputs: tuple[int, ...]) -> list[int]:
        """The inputs that depend on the batch and that a gradient comes from."""
        found: list[int] = []
        for i in inputs:
            value = self.values[i]
            if value.data and value.floating and (value.grad or value.blind) and i not in found:
                found.append(i)
        return found

    def _summed(self, value: Value) -> bool:
        """Whether a sum over an axis makes a product of matrices of an elementwise product."""
        if value.name != "sum" or len(value.inputs) != 1:
            return False
        inner = self.values[value.inputs[0]]
        return inner.kind == "product" and len(self.moving(inner.inputs)) > 1

    def scored(self, i: int) -> int | None:
        """The product of two of data that value ``i``, attention's weights, was made of, also under
        a softmax with what masks and shifts its scores; None if it is none. A softmax of a layer's
        outputs weighs experts."""
        todo = [(i, False, False)]  # with whether a softmax, and a bend, lie on the way
        for _ in range(32):
            if not todo:
                break
            j, soft, bent = todo.pop()
            value, moving = self.values[j], self.moving(self.values[j].inputs)
            if value.kind == "contract" and (len(moving) > 1 or (soft and self._asked(value))):
                return j
            if self._summed(value):
                return j
            soft = soft or value.kind == "softmax"
            bent = bent or soft or value.kind in ("act", "point")
            if value.kind == "softmax" or (
                value.kind in (_UNDER if soft else _BESIDE) and (soft or len(moving) == 1)
            ):
                todo += [(k, soft, bent) for k in moving]
            elif value.kind in (_UNDER if bent else ("product",)):
                # By hand: what a row of scores is divided by, or less, is smaller than they are.
                whole = [k for k in moving if self.values[k].shape == value.shape]
                todo += [(k, soft, bent) for k in whole] if len(whole) == 1 else []
        return None

    def _asked(self, value: Value) -> bool:
        """Whether a product is of keys with queries that are learned, or made of what is learned
        by a layer: no layer of its own, whose weight stands behind what it multiplies."""
        held = [i for i in value.inputs if self.values[i].param and not self.values[i].data]
        made = any(self._projected(i) for i in held)
        return made or (value.name in ("matmul", "bmm") and value.inputs[:1] == tuple(held))

    def _projected(self, i: int) -> bool:
        """Whether a value, moved about, is what a weight layer makes."""
        for _ in range(8):
            value = self.values[i]
            if value.kind == "weights":
                return True
            if value.kind not in ("shape", "product", "sum", "drop") or not value.inputs:
                return False
            i = value.inputs[0]
        return False

    # ------------------------------------------------------------------------------ norms

    def norm_of(self, i: int) -> int | None:
        """What value ``i`` is a norm of, or None."""
        if i not in self._norms:
            self._norms[i] = self._normed(self.values[i])
        return self._norms[i]

    def _normed(self, value: Value) -> int | None:
        match value.kind:
            case "norm":
                return value.inputs[0] if value.inputs else None
            case "act" | "point" if value.name in ("tanh", "erf") and value.inputs:
                return self._bounded(value.inputs[0])
            case "product" if len(value.inputs) == 2 and value.floating:
                a, b = value.inputs
                dividing = value.name in ("div", "divide", "true_divide", "truediv", "floor_divide")
                for x, statistic in ((a, b),) if dividing else ((a, b), (b, a)):
                    if (base := self._base(x, statistic)) is not None:
                        inner = self.centred(base)
                        return base if inner is None else inner
        return None

    def _bounded(self, i: int) -> int | None:
        """``x`` where ``i`` is ``alpha x`` (``+ shift``) with learned numbers alpha and shift."""
        value = self.values[i]
        if value.kind == "sum" and len(moving := self.moving(value.inputs)) == 1:
            value = self.values[moving[0]]
        if value.kind == "product" and len(value.inputs) == 2:
            for x, alpha in (value.inputs, value.inputs[::-1]):
                a = self.values[alpha]
                if self.values[x].data and a.param and not a.data and prod(a.shape) == 1:
                    return x
        return None

    def _base(self, x: int, statistic: int) -> int | None:
        """What ``statistic`` is a root of a statistic of, if that is ``x``."""
        values = self.values
        if not values[statistic].data or not values[x].data:
            return None
        rooted, todo, reduced = False, [statistic], []
        for _ in range(16):  # to the statistic, through what is done to it
            if not todo:
                break
            value = values[todo.pop()]
            if value.kind == "reduce" or value.name in ("cosine_similarity",):
                rooted = rooted or value.name in _LENGTHS
                reduced.append(value)
                continue
            if value.name in _ROOTS or (value.name == "pow" and _half(value)):
                rooted = True
            if value.kind not in _CHEAP:
                return None
            todo += self.moving(value.inputs)
        if not rooted or not reduced or todo:
            return None
        below: set[int] = set()
        for value in reduced:
            below |= self.under(value)
        own = {x}
        at = x
        for _ in range(6):
            value = values[at]
            moving = self.moving(value.inputs)
            if value.kind == "shape" or self.centred(at) is not None:
                base = self.centred(at)
                at = base if base is not None else value.inputs[0]
            elif value.kind == "product" and len(moving) == 1:  # times a gain
                at = moving[0]
            else:
                break
            own.add(at)
        common = own & below
        return max(common) if common else None

    def under(self, value: Value) -> set[int]:
        """What a statistic is taken of: its input, through squares, casts and centring."""
        found: set[int] = set()
        todo = list(self.moving(value.inputs))
        for _ in range(12):
            if not todo:
                break
            i = todo.pop()
            found.add(i)
            inner = self.values[i]
            moving = self.moving(inner.inputs)
            base = self.centred(i)
            if base is not None:
                todo.append(base)
            elif inner.kind in ("point", "shape", "reduce", "product", "sum") and len(moving) == 1:
                todo += moving
        return found

    def centred(self, i: int) -> int | None:
        """``x`` where value ``i`` is ``x`` less a statistic of its own."""
        value = self.values[i]
        if value.kind != "sum" or value.name not in ("sub", "subtract", "isub"):
            return None
        if len(value.inputs) != 2:
            return None
        x, mean = value.inputs
        inner = self.values[mean]
        for _ in range(4):
            if inner.kind == "reduce":
                near = {x, *self._shapes(x)}
                return x if set(self.moving(inner.inputs)) & near else None
            moving = self.moving(inner.inputs)
            if inner.kind not in ("shape", "product") or len(moving) != 1:
                return None
            inner = self.values[moving[0]]
        return None

    def _shapes(self, i: int) -> list[int]:
        found: list[int] = []
        while self.values[i].kind == "shape" and self.values[i].inputs and len(found) < 6:
            i = self.values[i].inputs[0]
            found.append(i)
        return found

    # ------------------------------------------------------------------ one step back

    def back(self, i: int) -> tuple[Step, ...]:
        """Where value ``i`` leads back to without weights; nowhere from a sum of several."""
        if i not in self._back:
            self._back[i] = tuple(self._steps(i))
        return self._back[i]

    def carry(self, i: int, term: int) -> None:
        """Let the sum ``i`` carry its ``term`` on, with what is added to it."""
        self._back[i] = (Step(term, "mixed"),)
        self.chains.clear()

    def _steps(self, i: int) -> list[Step]:
        value = self.values[i]
        flow = [j for j in self.flow[i] if self.values[j].data or self._stateful(j)]
        if (base := self.norm_of(i)) is not None:
            return [Step(base, "normed")]
        match value.kind:
            case "shape" if displaces(value) and value.name != "masked_fill":
                # Elements that are taken out of a larger tensor are a slice of it.
                kept = flow and value.shape == self.values[flow[0]].shape
                return [Step(j, "mixed" if kept else "identity") for j in flow[:1]]
            case "shape" | "drop":
                return [Step(j) for j in flow[:1]]
            case "join":
                return [Step(j) for j in flow]
            case "choose":
                return [Step(j) for j in value.inputs[1:] if j in flow]
            case "act" | "point":
                return [Step(flow[0], "mixed")] if len(flow) == 1 else []
            case "sum":
                if (base := self.centred(i)) is not None:
                    return [Step(base, "normed")]
                moving = [j for j in flow if self.values[j].data] or flow[:1]
                if len(moving) == 1:
                    return [Step(moving[0])]
                return [Step(min(moving), "mixed")] if self._free(moving) else []
            case "product":
                return self._factors(value, flow)
        return []

    def _free(self, terms: list[int]) -> bool:
        """Whether the first of several terms is all that the others are made of, and without
        weights: ``x + mean(x)``."""
        base, seen = min(terms, default=-1), set(terms)
        todo = list(seen - {base})
        while todo:
            i = todo.pop()
            below = self.flow[i]
            if not below or self.moves(i) or min(below) < base:
                return False
            fresh = {j for j in below if self.values[j].data} - seen
            seen |= fresh
            todo += fresh
        return bool(terms)

    def _stateful(self, i: int) -> bool:
        """Parameters may be a stream's first tensor: latents, a class token."""
        return self.values[i].param

    def _factors(self, value: Value, flow: list[int]) -> list[Step]:
        if len(value.inputs) == 1:
            kind = "scaled" if len(flow) == 1 else "mixed"
            if value.inputs and len(value.args) > 1 and isinstance(value.args[1], Ref):
                kind = "mixed"  # x * x
            return [Step(j, kind) for j in flow]
        if len(value.inputs) != 2:
            return []
        a, b = value.inputs
        if a == b:
            return [Step(a, "mixed")]
        out = []
        for x, factor in ((a, b), (b, a)):
            if x in flow:
                if self.values[x].param and not self.values[x].data and self.values[factor].data:
                    continue  # a learned factor is not what is carried
                out.append(Step(x, self.factor(factor)))
        return out

    def terms(self, i: int) -> list[tuple[int, str]]:
        """What a sum adds, with the kind of factor that its function gives each term."""
        value = self.values[i]
        inputs = list(value.inputs)
        if value.name == "lerp" and len(inputs) > 1:
            kind = self.factor(inputs[2]) if len(inputs) > 2 else "scaled"
            out = [(inputs[0], kind), (inputs[1], kind)]
        elif value.name in ("mean", "einsum"):
            out = [(j, "scaled") for j in inputs]
        else:
            kinds = ["identity"] * len(inputs)
            alpha = value.options.get("alpha", value.options.get("value", 1)) != 1
            if len(inputs) == 2 and (value.name in ("sub", "subtract", "isub") or alpha):
                kinds[1] = "scaled"
            if len(inputs) == 2 and value.name == "rsub":
                kinds[0] = "scaled"
            out = list(zip(inputs, kinds, strict=True))
        flow = self.flow[i]
        return [(j, kind) for j, kind in out if j in flow]

    def factor(self, i: int) -> str:
        """What multiplying by value ``i`` does: a number, a number a channel, a gate."""
        value = self.values[i]
        if value.data and value.floating and (value.grad or value.blind):
            return "gated"
        if prod(value.shape) == 1:
            return "scaled"
        if value.param or value.kind == "buffer":
            return "per-channel"
        return "identity"  # a mask

    @cached_property
    def sums(self) -> dict[int, None]:
        """Values that add at least two tensors from which gradients come, in order."""
        return {
            v.index: None
            for v in self.values
            if v.kind == "sum" and v.floating and len(self.flow[v.index]) > 1
            and self.centred(v.index) is None
        }  # fmt: skip


def _half(value: Value) -> bool:
    exponent = value.args[1] if len(value.args) > 1 else value.options.get("exponent")
    return isinstance(exponent, float) and abs(exponent) == 0.5
