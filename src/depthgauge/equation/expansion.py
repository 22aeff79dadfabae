"""How large a block is once every definition stands where it is called."""

from __future__ import annotations

from depthgauge.equation.nodes import (
    SCALARS,
    Block,
    Call,
    Define,
    Init,
    Initial,
    Local,
    Node,
    State,
    children,
)

#: Operations, and operations inside one another, of a block written out: past this a reader would
#: take minutes, or run out of stack.
OPERATIONS, NESTED = 500, 150


_NAMES = (State, Initial, Local, Init)


def too_large(block: Block) -> str:
    """``""``, or the sentence that says how far the block expands. Linear in the text."""
    sizes: dict[str, tuple[int, int]] = {}
    total, deepest = 0, 0
    for statement in block.statements:
        if isinstance(statement, Define):
            sizes[statement.name] = _size(statement.body, sizes)
            continue
        operations, nested = _size(statement, sizes)
        total, deepest = total + operations, max(deepest, nested)
    if total <= OPERATIONS and deepest <= NESTED:
        return ""
    return (
        f"the equation has {total:,} operations, {deepest:,} inside one another, once its "
        f"definitions are written out, and the limit is {OPERATIONS} and {NESTED}: call them less "
        f"often, or give the network more depth"
    )


def _size(node: Node, sizes: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Operations and nesting of a node; a call adds its definition's to its arguments'."""
    if isinstance(node, (*_NAMES, *SCALARS)):
        return 0, 0
    below = [_size(child, sizes) for child in children(node)]
    operations = sum(count for count, _ in below)
    nested = max((depth for _, depth in below), default=0)
    own = sizes[node.name] if isinstance(node, Call) else (1, 1)
    return operations + own[0], nested + own[1]
