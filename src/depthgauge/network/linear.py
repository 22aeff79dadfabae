"""Whether a stretch of autograd's graph is linear: then its Jacobian is the same at every state,
one that is not finite too."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

__all__ = ["linear"]

#: Operations that are linear in all that they are given together, by the names of their nodes.
_SUMS: Final = frozenset({
    "AddBackward0", "SubBackward0", "NegBackward0", "SumBackward0", "SumBackward1",
    "MeanBackward0", "MeanBackward1", "CatBackward0", "StackBackward0", "ViewBackward0",
    "UnsafeViewBackward0", "ReshapeAliasBackward0", "TBackward0", "TransposeBackward0",
    "PermuteBackward0", "ExpandBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "UnsqueezeBackward0", "SelectBackward0", "SliceBackward0", "SplitBackward0", "CloneBackward0",
    "AliasBackward0", "ToCopyBackward0",
})  # fmt: skip
#: Products, linear in each factor alone; before the factors stand so many terms that are added.
_PRODUCTS: Final = {
    "MulBackward0": 0,
    "MmBackward0": 0,
    "BmmBackward0": 0,
    "MvBackward0": 0,
    "AddmmBackward0": 1,
    "BaddbmmBackward0": 1,
    "ConvolutionBackward0": 0,
}


def linear(first: GradientEdge, last: GradientEdge) -> bool:
    """Whether all that leads from ``first`` to ``last`` is known to be linear."""
    reaches: dict[Node, bool] = {first.node: True}  # whether ``first`` leads to what a node made
    todo = [last.node]
    while todo:
        node = todo[-1]
        below = [n for n, _ in node.next_functions]
        if node in reaches:
            todo.pop()
        elif ahead := [n for n in below if n is not None and n not in reaches]:
            todo += ahead
        else:
            todo.pop()
            from_first = [n is not None and reaches[n] for n in below]
            reaches[node] = any(from_first)
            if reaches[node] and not _linear(node, from_first):
                return False
    return True


def _linear(node: Node, from_first: list[bool]) -> bool:
    """Whether an operation is linear in those of its inputs together that ``first`` leads to.

    A factor that is not on the graph may be a mask that was made of the state; a number is none.
    """
    name = node.name()
    if name in _SUMS:
        return True
    if name == "DivBackward0":
        return not from_first[1] and _known(node, 1)
    if (terms := _PRODUCTS.get(name)) is None:
        return False
    factors = from_first[terms : terms + 2]
    if not any(factors) or all(factors):
        return not any(factors)
    return _known(node, terms + factors.index(False))


def _known(node: Node, factor: int) -> bool:
    """Whether a factor is on the graph, or one number."""
    if node.next_functions[factor][0] is not None:
        return True
    held = getattr(node, ("_saved_self", "_saved_other")[factor], None) if factor < 2 else None
    return isinstance(held, Tensor) and not held.dim()
