"""A block in which every scalar is a number: what the equation says in one place of the depth."""

from __future__ import annotations

from collections.abc import Mapping

from depthgauge.equation.nodes import (
    SCALARS,
    Arithmetic,
    Block,
    Function,
    Let,
    Negative,
    Node,
    Number,
    Statement,
    Symbol,
    rewrite,
)
from depthgauge.equation.scalars import evaluate

__all__ = ["numbered"]


def numbered(block: Block, scope: Mapping[str, float]) -> Block:
    """The block with the values of its symbols, ``{"L": 24, "depth": 12, "l": 3, "n": 64}``.

    Named scalars are put where their names stand. Raises EquationError where a scalar has no
    value.
    """
    known = dict(scope)

    def rule(node: Node) -> Node:
        if isinstance(node, Symbol | Negative | Arithmetic | Function):
            return Number(evaluate(node, known))
        return node

    statements: list[Statement] = []
    for statement in block.statements:
        if isinstance(statement, Let) and isinstance(statement.bound, SCALARS):
            known[statement.name] = evaluate(statement.bound, known)
        else:
            changed = rewrite(statement, rule)
            assert isinstance(changed, Statement)
            statements.append(changed)
    return Block(tuple(statements))
